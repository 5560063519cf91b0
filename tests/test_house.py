"""The rules of the house that no linter holds."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SOURCES = ("proto/penstock", "pump", "drainer", "pumpclient", "deploy")
FUNCTION_LINES_MAX = 60
BANNED_NAMES = {"util", "utils", "common", "helper", "helpers", "misc", "base", "manager"}


def modules() -> Iterator[Path]:
    for source in SOURCES:
        for path in sorted((ROOT / source).rglob("*.py")):
            if "pb" not in path.relative_to(ROOT).parts:
                yield path


def named(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("path", list(modules()), ids=named)
def test_a_module_says_what_it_does_in_functions_that_fit_in_the_head(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    tree = ast.parse(text)
    assert ast.get_docstring(tree), "no docstring"
    assert path.stem not in BANNED_NAMES
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            assert node.end_lineno is not None
            assert node.end_lineno - node.lineno < FUNCTION_LINES_MAX, f"{node.name} is too long"


@pytest.mark.parametrize("folder", ["proto", "pump", "drainer", "pumpclient", "deploy", "tests"])
def test_every_top_level_folder_has_a_readme(folder: str) -> None:
    assert (ROOT / folder / "README.md").stat().st_size > 0


def test_every_sink_is_in_the_contract_suite() -> None:
    suite = (ROOT / "tests/contract/test_sink.py").read_text(encoding="utf-8")
    for scheme in ("sqlite", "mysql"):
        assert (ROOT / f"drainer/sinks/{scheme}/sink.py").exists()
        assert scheme in suite.lower() or "mariadb" in suite.lower()


def test_no_production_code_prints_or_leaves_work_undone() -> None:
    for path in modules():
        text = path.read_text(encoding="utf-8")
        for word in ("TODO", "FIXME", "XXX"):
            assert word not in text, f"{named(path)}: {word}"
