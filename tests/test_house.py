"""The rules of the house that no linter holds."""

import ast
import re
import shutil
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kit import census

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
    suites = [
        (ROOT / f"tests/contract/{name}.py").read_text(encoding="utf-8")
        for name in ("test_sink", "test_event_sink", "test_lake_sink")
    ]
    found = [path.parent.name for path in (ROOT / "drainer/sinks").glob("*/sink.py")]
    assert len(found) >= 3
    for folder in found:
        assert any(f'"{folder}"' in suite for suite in suites), folder


def test_no_production_code_prints_or_leaves_work_undone() -> None:
    for path in modules():
        text = path.read_text(encoding="utf-8")
        for word in ("TODO", "FIXME", "XXX"):
            assert word not in text, f"{named(path)}: {word}"


def test_no_document_is_wider_than_a_hundred_columns() -> None:
    """But for tables and what is to be shown or typed as it is."""
    for path in sorted(ROOT.glob("*.md")) + sorted(ROOT.glob("[a-z]*/**/*.md")):
        is_prose = True
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            is_prose ^= line.startswith("```")
            is_shown = line.startswith(("|", "    ", "```"))
            assert not is_prose or is_shown or len(line) <= 100, f"{named(path)}:{number}"


OLD_WORDS = re.compile(
    r"\b(anew|whoever|nobody|in vain|gladly|for ever|went on|hungry|tally|newcomer|tamed"
    r"|told(?! apart))\b",
    re.IGNORECASE,
)
"""What the field has plain terms for, or another word that means one thing only."""


def test_no_module_and_no_document_uses_a_word_that_the_house_has_replaced() -> None:
    documents = (*ROOT.glob("*.md"), *ROOT.glob("[a-z]*/**/*.md"))
    for path in (*modules(), *sorted(documents)):
        found = OLD_WORDS.search(path.read_text(encoding="utf-8"))
        assert found is None, f"{named(path)}: {found and found[0]}"


def test_git_does_not_track_the_virtual_environment() -> None:
    """A tracked link of this name replaces the environment of each clone that checks it out."""
    if not (ROOT / ".git").exists() or shutil.which("git") is None:
        return  # Not a clone.
    tracked = subprocess.run(
        ["git", "ls-files", "--", ".venv"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert tracked.stdout == ""


def test_no_folder_holds_more_modules_than_one_look_takes_in() -> None:
    folders = Counter(path.parent for path in modules() if not path.stem.startswith("__"))
    assert {named(folder): count for folder, count in folders.items() if count > 13} == {}


def test_every_place_that_contributing_names_exists() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    section = text.split("## Where things go")[1].split("\n## ")[0]
    places = re.findall(r"`([\w.]+/[\w./]*)`", section)
    assert len(places) > 30
    assert [place for place in places if not (ROOT / place).exists()] == []


def sources_of(folder: str) -> Iterator[tuple[str, ast.Module]]:
    for path in sorted((ROOT / folder).rglob("*.py")):
        yield named(path), ast.parse(path.read_text(encoding="utf-8"))


@pytest.mark.parametrize("folder", ["tests/unit", "tests/contract"])
def test_a_test_without_servers_never_sleeps(folder: str) -> None:
    for name, tree in sources_of(folder):
        for node in ast.walk(tree):
            if isinstance(node, ast.Call):
                assert ast.unparse(node.func).rpartition(".")[2] != "sleep", f"{name}:{node.lineno}"


def is_bound_of_elapsed_time(test: ast.expr) -> bool:
    """Return whether an expression has the form `clock() - begin < bound`."""

    def reads_clock(node: ast.expr) -> bool:
        clocks = ("monotonic", "perf_counter", "time")
        is_call = isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
        return is_call and node.func.attr in clocks  # type: ignore[attr-defined]

    def is_elapsed(node: ast.expr) -> bool:
        found = [
            n for n in ast.walk(node) if isinstance(n, ast.BinOp) and isinstance(n.op, ast.Sub)
        ]
        return any(reads_clock(n.left) or reads_clock(n.right) for n in found)

    for node in ast.walk(test):
        if isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
            for left, op, right in zip(sides, node.ops, sides[1:], strict=False):
                less = left if isinstance(op, (ast.Lt, ast.LtE)) else right
                if isinstance(op, (ast.Lt, ast.LtE, ast.Gt, ast.GtE)) and is_elapsed(less):
                    return True
    return False


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("time.monotonic() - a < 3", True),
        ("1 <= abs(b - time.time()) <= 3", True),
        ("x and 3 > loop.time() - a", True),
        ("time.monotonic() - a >= 3", False),
        ("time.monotonic() < deadline_s", False),
    ],
)
def test_a_bound_of_elapsed_time_is_recognized(text: str, *, expected: bool) -> None:
    assert is_bound_of_elapsed_time(ast.parse(text, mode="eval").body) is expected


def test_a_test_that_bounds_a_time_by_the_clock_says_why() -> None:
    """In a comment on the line or the one before; most can assert what happened instead."""
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        lines = path.read_text(encoding="utf-8").splitlines()
        for node in ast.walk(ast.parse("\n".join(lines))):
            if isinstance(node, ast.Assert) and is_bound_of_elapsed_time(node.test):
                near = lines[node.lineno - 2 : node.end_lineno]
                assert any("# " in line for line in near), f"{named(path)}:{node.lineno}"


def test_the_kit_imports_no_test() -> None:
    for name, tree in sources_of("tests/kit"):
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom):
                of_tests = (node.module or "").startswith("tests.")
                assert not of_tests or (node.module or "").startswith("tests.kit"), name


SIZES_MAX = {
    # Spark tasks that compact, fetch rows and events in columns, detect conflicts by digests,
    # commit, and write the files of lakes; several batches at once; the Spark data source with its
    # example, and batches of a reader; a Spark cluster of the demo and the tests, whose executors
    # may still be starting; downstreams without room, and a broker's refusal; reading only new DDL
    # jobs; patience with slow writers; watermarks that all copies confirm; decided
    # transactions that a Pump stores in one call; starts after a purge of all binlogs; histories of
    # a source that a Drainer tells apart; topics' ends before they are reported; tables of many
    # columns in little memory; batches of a few rows in a third of the time; DDL of many tables
    # under one fence; completion in shells; probes and OpenMetrics; an SBOM; `penstock run`
    # and `tail`; a source's events in memory; commands that name their targets, and hints that a
    # newcomer can follow; an etcd that loses no writes; a console with one card for each cause,
    # with decisions, rates of tables and their last changes; notes and repairs of the rows that
    # foreign keys change; checks of both sides with statements to paste, exact loads of tables
    # without transactions, and the progress of a load; a source's status as text, and remedies for
    # servers that are not reached; sinks of other
    # packages, with their tests and an example (the tests of our own outputs moved there: 470
    # lines); lakes and files in object stores.
    "lines": 115_857,
    "lines of code": 83_573,
    # The Spark cluster; digests and admission; the data source, its public name and its example;
    # batches of a reader; partitions, orders of tasks and their commits; the unit with all rows;
    # decided writes of a Pump; completion; an SBOM; `penstock run` and `tail`;
    # foreign keys, the notes of them, and their repair; checks, a preflight and a screen;
    # the interface, tests and example of other packages' sinks; folders and files of objects.
    "modules": 406,
    # The same, and columns of transactions on Pumps, the confirmation of an epoch; decided
    # writes, their hold of the stream, their calls and groups, and the refusal of an older schema;
    # the parts of `penstock run` and their supervisor; classes of tests for all sinks.
    "classes": 1_063,
    "settings": 218,
    "codes": 145,
}
"""Bounds fall with the tree. A bound that rises needs a comment: the capability it pays for."""
PROSE_MAX: dict[str, dict[str, float]] = {
    "documents": {
        "headless what": 2.0,
        "pronoun one": 2.5,
        "by itself": 1.0,
        "is there": 0.5,
        "begin again": 0.5,
        "is no": 0.5,
        "mend": 0.5,
        "final too": 0.5,
        "as X": 0.5,
        "in order": 1.0,
    },
    "docstrings": {
        "headless what": 0.5,
        "pronoun one": 7.0,
        "by itself": 1.0,
        "is there": 1.0,
        "begin again": 1.5,
        "is no": 1.0,
        "mend": 0.5,
        "final too": 0.5,
        "as X": 0.5,
        "in order": 1.0,
    },
}
"""Patterns per 10,000 words, see `tests.kit.census`; these bounds fall, too."""


def test_the_project_is_no_larger_than_its_bounds() -> None:
    found = census.sizes(modules(), sorted((ROOT / "deploy/conf").glob("*.toml")))
    print(found)  # noqa: T201
    assert found.keys() == SIZES_MAX.keys()
    above = {name: size for name, size in found.items() if size > SIZES_MAX[name]}
    assert not above, f"larger than the bound: {above}; remove as much elsewhere"


@pytest.mark.parametrize("kind", PROSE_MAX)
def test_prose_has_no_more_stilted_patterns_than_its_bounds(kind: str) -> None:
    if kind == "documents":
        pages = (*ROOT.glob("*.md"), *ROOT.glob("[a-z]*/**/*.md"))
        kept = [
            p
            for p in pages
            if p.name != "CHANGELOG.md" and "tests" not in p.relative_to(ROOT).parts
        ]
        texts = [page.read_text(encoding="utf-8") for page in kept]
    else:
        texts = [text for path in modules() for text in census.docstrings(path.read_text("utf-8"))]
    found = census.patterns(texts)
    print(found)  # noqa: T201
    above = {name: rate for name, rate in found.items() if rate > PROSE_MAX[kind][name]}
    assert not above, f"more than the bound: {above}"
