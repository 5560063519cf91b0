"""`python -m tests [--all|--slow|--tidb]`: the suite on all cores, then the tests marked `alone`.

Without an option the tests of every main path run; `--all` adds those marked `thorough`, `--slow`
runs the long sweeps and nothing else, `--tidb` the tests that need a TiDB. Pytest gets all other
arguments.

Each worker has servers of its own and takes whole files, the slow files first. A test of real
processes that fails is repeated once, alone, at the end. If it passes then, it counts as flaky, the
closing line says so, and `flaky-tests.txt` gets a line; the run is a success. Tests without
processes are never repeated, nor are tests of a run in which more than `REPEATED_MAX` failed.
"""

import os
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path

from tests.kit.report import KINDS, Report

WORKERS_MAX = 4
"""Each has up to six servers."""
REPEATED_MAX = 10
REPEATED_TIERS = {"integration", "fault", "tidb"}
SLOWEST = 40
"""How many files are named with the time that their tests took."""
FLAKY_FILE = Path("flaky-tests.txt")
_OK, _FAILED, _INTERRUPTED, _NOTHING_RUN = 0, 1, 2, 5
_MARKS = {"--all": "not slow and not tidb", "--slow": "slow and not tidb", "--tidb": "tidb"}
_BY_DEFAULT = "not slow and not tidb and not thorough"
_ONE_PROCESS = ["-p", "no:xdist"]
_PARTS = (
    ("not alone", ["--dist", "loadfile", "--no-loadscope-reorder", "-n"]),
    ("alone", _ONE_PROCESS),
)
_FOLDER = Path(__file__).parent
_TIDB_FOLDER = _FOLDER / "tidb"
"""Its fixture marks every test there `alone`."""


def selected(arguments: list[str]) -> tuple[str, list[str]]:
    """Return which tests are asked for, by their marks, and the arguments that pytest gets."""
    asked = [_MARKS[argument] for argument in arguments if argument in _MARKS]
    rest = [argument for argument in arguments if argument not in _MARKS]
    return asked[0] if asked else _BY_DEFAULT, rest


def files_alone() -> list[str]:
    """Return the files that have tests marked `alone`, so that pytest collects no others."""
    paths = sorted(_FOLDER.rglob("test_*.py"))
    found = [p for p in paths if "pytest.mark.alone" in p.read_text(encoding="utf-8")]
    return [str(path.relative_to(_FOLDER.parent)) for path in [*found, _TIDB_FOLDER]]


def tier(test: str) -> str:
    """Return the folder of a test below `tests/`; `house` for a file directly in it."""
    parts = Path(test.partition("::")[0]).parts
    return parts[1] if len(parts) > 2 else "house"


def to_repeat(code: int, problems: list[str]) -> list[str]:
    """Return the tests that are repeated after a run with this exit code; none or all problems."""
    are_tests = all("::" in test and tier(test) in REPEATED_TIERS for test in problems)
    return problems if code == _FAILED and are_tests and len(problems) <= REPEATED_MAX else []


def without_flaky(report: Report, again: Report) -> Report:
    """Return a report in which each problem that passed when it was repeated counts as flaky."""
    passed = [test for test in report.problems if test not in again.problems]
    counts = Counter({kind: report.counts[kind] for kind in KINDS})
    counts["flaky"] = len(passed)
    counts["failed"], counts["error"] = again.counts["failed"], again.counts["error"]
    return Report(+counts, again.problems, report.seconds)


def closing_line(all_counts: Mapping[str, int], took_s: float) -> str:
    """Return a line as pytest ends with, for several runs."""
    kinds = [kind for kind in (*KINDS, "flaky") if all_counts.get(kind)]
    counted = ", ".join(f"{all_counts[kind]} {kind}" for kind in kinds)
    clock = timedelta(seconds=int(took_s))
    return f" {counted or 'no tests ran'} in {took_s:.2f}s ({clock}) ".center(100, "=")


def times(seconds: Mapping[str, float]) -> list[str]:
    """Return the time that the tests of each tier took, over all workers."""
    of_tier: defaultdict[str, list[float]] = defaultdict(list)
    for test, took_s in seconds.items():
        of_tier[tier(test)].append(took_s)
    return [f"{name:12} {len(of):6} tests {sum(of):8.1f} s" for name, of in of_tier.items()]


def slowest(seconds: Mapping[str, float]) -> list[str]:
    """Return the files whose tests took longest, and for how long."""
    of_file: defaultdict[str, float] = defaultdict(float)
    for test, took_s in seconds.items():
        of_file[test.partition("::")[0]] += took_s
    found = sorted(of_file.items(), key=lambda each: -each[1])[:SLOWEST]
    return [f"{took_s:8.1f} s {name}" for name, took_s in found]


def exit_code(codes: list[int]) -> int:
    """Return the first that is a failure; a part without tests is none when another has some."""
    failures = [code for code in codes if code not in (_OK, _NOTHING_RUN)]
    if failures:
        return failures[0]
    return _OK if _OK in codes else _NOTHING_RUN


def run(arguments: list[str]) -> tuple[int, Report]:
    """Run pytest with these arguments; return its exit code and its report."""
    colour = ["--color=yes"] if sys.stdout.isatty() else []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "report.json"
        report = ["-p", "tests.kit.report", "--report-to", str(path)]
        sys.stdout.flush()
        done = subprocess.run([sys.executable, "-m", "pytest", *colour, *report, *arguments])
        return done.returncode, Report.read(path)


def repeated(problems: list[str]) -> tuple[int, Report]:
    """Repeat tests, one after another; note in a file which of them pass now."""
    sys.stdout.write(f"\nrepeated alone: {' '.join(problems)}\n")
    code, again = run(["-m", "", *_ONE_PROCESS, *problems])
    today = datetime.now(UTC).date()
    with FLAKY_FILE.open("a", encoding="utf-8") as file:
        file.writelines(f"{today} {test}\n" for test in problems if test not in again.problems)
    return code, again


def main(arguments: list[str]) -> int:
    """Run both parts, repeat failures of tests with real processes, and count."""
    marks, arguments = selected(arguments)
    begun_s = time.monotonic()
    workers = str(min(os.cpu_count() or 1, WORKERS_MAX))
    report = Report(Counter(), [], {})
    codes = []
    for which, how in _PARTS:
        how = [*how, workers] if how[-1] == "-n" else how
        which_files = files_alone() if which == "alone" and not arguments else []
        code, of_part = run(["-m", f"({marks}) and {which}", *how, *arguments, *which_files])
        codes.append(code)
        report += of_part
        if code == _INTERRUPTED:
            break
    code = exit_code(codes)
    problems = to_repeat(code, report.problems)
    if problems:
        code, again = repeated(problems)
        report = without_flaky(report, again)
    lines = ["", *slowest(report.seconds), "", *times(report.seconds)]
    lines += [f"FAILED {test}" for test in report.problems]
    lines.append(closing_line(report.counts, time.monotonic() - begun_s))
    sys.stdout.write("\n".join([*lines, ""]))
    return code


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
