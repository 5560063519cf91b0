"""What the fault matrix says is proved by tests, and files of tests, that exist."""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
MATRIX = (TESTS / "fault" / "README.md").read_text("utf-8")


def found_by_file() -> dict[str, set[str]]:
    found: dict[str, set[str]] = defaultdict(set)
    for path in TESTS.rglob("test_*.py"):
        found[path.stem] |= set(re.findall(r"^def (test_\w+)", path.read_text("utf-8"), re.M))
    return found


def rows() -> list[list[str]]:
    """Return the cells of each row of the tables of faults; tables of runs are others."""
    faults = MATRIX[MATRIX.index("\n## The Pump's storage") :]
    tables = re.findall(r"^\| fault \|.*\n\|-.*\n((?:\| .*\n?)+)", faults, re.M)
    return [re.split(r" *\| ", line[2:-2]) for table in tables for line in table.splitlines()]


def test_every_test_that_the_matrix_names_exists() -> None:
    by_file = found_by_file()
    named = set(re.findall(r"`(test_\w+)(?:\.py)?`", MATRIX))
    assert named
    assert sorted(named - set(by_file) - set().union(*by_file.values())) == []


def test_every_test_that_the_matrix_quotes_is_in_the_file_before_it() -> None:
    by_file = found_by_file()
    quoted = re.findall(r"`(test_\w+)` \*([^*|]+)\*(?:, \*([^*|]+)\*)?", MATRIX)
    assert quoted
    for file, *titles in quoted:
        for title in filter(None, titles):
            words = re.sub(r"\W+", "_", title)
            assert any(words in name for name in by_file[file]), (file, title)


def test_every_fault_has_a_test_and_a_count() -> None:
    assert len(rows()) >= 160
    for row in rows():
        assert "test_" in row[-1] or row[-1] == "same", row
        counted = row[-2]
        assert re.search(r"\d|same|among ", counted), row
