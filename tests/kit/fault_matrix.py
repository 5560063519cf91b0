"""The fault matrix: which faults the tests make, what must come of each, and which test shows it.

Tests name their faults by a mark, which this module reads from their source text:

    @pytest.mark.fault("a Pump is killed", "no acknowledged write is missing", cases="3 / 20")

`cases` counts the faulty situations that one run of the test builds: by default / with the long
sweeps. A second test of the same fault has a mark with the fault only.
"""

import ast
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

TESTS = Path(__file__).resolve().parents[1]


class Fault(NamedTuple):
    """The mark of one test."""

    text: str
    outcome: str | None
    cases: str
    file: str
    test: str


def faults(folder: Path = TESTS) -> Iterator[Fault]:
    """Yield the marks of all tests below a folder, in the order of files and lines."""
    for path in sorted(folder.rglob("test_*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                for mark in node.decorator_list:
                    if isinstance(mark, ast.Call) and ast.unparse(mark.func).endswith("mark.fault"):
                        yield _fault(mark, str(path.relative_to(folder)), node.name)


def problems(found: Iterable[Fault]) -> list[str]:
    """Return what makes a matrix incomplete: a fault has exactly one outcome."""
    outcomes: dict[str, int] = {}
    for fault in found:
        outcomes[fault.text] = outcomes.get(fault.text, 0) + (fault.outcome is not None)
    return [f"{count} outcomes: {text}" for text, count in outcomes.items() if count != 1]


def page(found: Iterable[Fault]) -> str:
    """Return the matrix as Markdown: a table for each file of tests."""
    rows = list(found)
    others: dict[str, list[str]] = {}
    for row in rows:
        if row.outcome is None:
            others.setdefault(row.text, []).append(f"`{row.file}::{row.test}`")
    lines = ["# Fault matrix"]
    file = ""
    for row in rows:
        if row.outcome is None:
            continue
        if row.file != file:
            file = row.file
            lines += [
                "",
                f"## {file}",
                "",
                "| fault | outcome | cases | test |",
                "|---|---|---|---|",
            ]
        tests = ", ".join([f"`{row.test}`", *others.get(row.text, [])])
        cells = (row.text, row.outcome, row.cases, tests)
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join([*lines, ""])


def _fault(mark: ast.Call, file: str, test: str) -> Fault:
    given = [ast.literal_eval(argument) for argument in mark.args]
    text, outcome = given if len(given) == 2 else (*given, None)
    cases = {word.arg: ast.literal_eval(word.value) for word in mark.keywords}.get("cases", "")
    return Fault(text, outcome, cases, file, test)
