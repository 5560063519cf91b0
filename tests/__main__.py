"""`python -m tests [--slow|--tidb]`: the suite on all cores, then what needs the machine alone.

Each worker has servers of its own and takes whole files, the slow ones first. One line at the end
counts both parts, in pytest's words; `--slow` runs the long sweeps and nothing else, `--tidb` what
needs a TiDB, and other arguments are passed on to pytest.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections import Counter
from datetime import timedelta

WORKERS_MAX = 4
"""Each has up to six servers."""
_OK, _INTERRUPTED, _NOTHING_RUN = 0, 2, 5
_MARKS = {"--slow": "slow and not tidb", "--tidb": "tidb"}
_BY_DEFAULT = "not slow and not tidb"
_PARTS = (
    ("not alone", ["--dist", "loadfile", "--no-loadscope-reorder", "-n"]),
    ("alone", ["-p", "no:xdist"]),
)
_KINDS = ("failed", "passed", "skipped", "xfailed", "xpassed", "error", "errors")
_CLOSING = re.compile(r"^=* ?((?:\d+ \w+(?:, )?)+) in [\d.]+s.*$", re.MULTILINE)
_COUNT = re.compile(r"(\d+) (\w+)")
_PROBLEM = re.compile(r"^(?:FAILED|ERROR) .*$", re.MULTILINE)
_COLOUR = re.compile(r"\x1b\[[\d;]*m")


def selected(arguments: list[str]) -> tuple[str, list[str]]:
    """Return which tests are asked for, by their marks, and the arguments that pytest gets."""
    asked = [_MARKS[argument] for argument in arguments if argument in _MARKS]
    rest = [argument for argument in arguments if argument not in _MARKS]
    return asked[0] if asked else _BY_DEFAULT, rest


def counts(output: str) -> Counter[str]:
    """Return what the closing line of a run of pytest counts; nothing when there is none."""
    closing = _CLOSING.findall(output)
    found = _COUNT.findall(closing[-1]) if closing else []
    return Counter({kind: int(count) for count, kind in found if kind in _KINDS})


def closing_line(all_counts: Counter[str], took_s: float) -> str:
    """Return a line as pytest ends with, for several runs."""
    counted = ", ".join(f"{all_counts[kind]} {kind}" for kind in _KINDS if all_counts[kind])
    clock = timedelta(seconds=int(took_s))
    return f" {counted or 'no tests ran'} in {took_s:.2f}s ({clock}) ".center(100, "=")


def exit_code(codes: list[int]) -> int:
    """Return the first that is a failure; a part without tests is none when another has some."""
    failures = [code for code in codes if code not in (_OK, _NOTHING_RUN)]
    if failures:
        return failures[0]
    return _OK if _OK in codes else _NOTHING_RUN


def run(arguments: list[str]) -> tuple[int, str]:
    """Run pytest; show its output as it comes, and return its exit code and all of that."""
    colour = ["--color=yes"] if sys.stdout.isatty() else []
    command = [sys.executable, "-m", "pytest", *colour, *arguments]
    seen = bytearray()
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        while block := os.read(process.stdout.fileno(), 65536):
            seen += block
            sys.stdout.buffer.write(block)
            sys.stdout.buffer.flush()
    return process.returncode, _COLOUR.sub("", seen.decode(errors="replace"))


def main(arguments: list[str]) -> int:
    """Run all parts, and count."""
    marks, arguments = selected(arguments)
    begun_s = time.monotonic()
    workers = str(min(os.cpu_count() or 1, WORKERS_MAX))
    all_counts: Counter[str] = Counter()
    problems: list[str] = []
    codes = []
    for which, how in _PARTS:
        how = [*how, workers] if how[-1] == "-n" else how
        code, output = run(["-m", f"{marks} and {which}", *how, *arguments])
        codes.append(code)
        all_counts += counts(output)
        problems += _PROBLEM.findall(output)
        if code == _INTERRUPTED:
            break
    took_s = time.monotonic() - begun_s
    sys.stdout.write("\n".join(["", *problems, closing_line(all_counts, took_s), ""]))
    return exit_code(codes)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
