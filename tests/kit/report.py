"""Reports of a run of pytest as JSON, for `python -m tests`: a plug-in that writes one
to the file that `--report-to` names.

    {"counts": {"passed": 2, "failed": 1}, "problems": ["tests/unit/test_a.py::test_b"],
     "seconds": {"tests/unit/test_a.py::test_b": 0.31, …}}

A problem is the id of a test that failed or whose fixture did, or a file that cannot be collected.
A test's seconds are those of its set-up, its call and its teardown.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any, NamedTuple

import pytest

KINDS = ("failed", "passed", "skipped", "xfailed", "xpassed", "error")


class Report(NamedTuple):
    """The outcome of one run, or of several."""

    counts: Counter[str]
    problems: list[str]
    seconds: dict[str, float]

    @classmethod
    def read(cls, path: Path) -> Report:
        """An empty report if pytest ended before it could write the file."""
        if not path.exists():
            return cls(Counter(), [], {})
        found = json.loads(path.read_text(encoding="utf-8"))
        return cls(Counter(found["counts"]), found["problems"], found["seconds"])

    def __add__(self, other: object) -> Report:
        assert isinstance(other, Report)
        return Report(
            self.counts + other.counts,
            [*self.problems, *other.problems],
            self.seconds | other.seconds,
        )


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--report-to", type=Path, help="write outcomes and times to a JSON file")


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Write the report; only the process that talks to the terminal comes here."""
    path: Path | None = config.getoption("--report-to")
    if path is None:
        return
    stats: dict[str, list[Any]] = terminalreporter.stats
    seconds: defaultdict[str, float] = defaultdict(float)
    for kind in (*KINDS, ""):  # The rest are warnings and deselected tests.
        for report in stats.get(kind, []):
            seconds[report.nodeid] += getattr(report, "duration", 0.0)
    problems = [report.nodeid for kind in ("failed", "error") for report in stats.get(kind, [])]
    found = {
        "counts": {kind: len(stats[kind]) for kind in KINDS if stats.get(kind)},
        "problems": list(dict.fromkeys(problems)),
        "seconds": seconds,
    }
    path.write_text(json.dumps(found), encoding="utf-8")
