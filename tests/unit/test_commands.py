"""Every command explains itself, prints its version, and refuses a typo with a hint."""

import contextlib
import io
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock import __version__
from penstock.__main__ import main
from penstock.completion import places

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS: dict[str, str] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
NODES = ("pump", "drainer")


def run(name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a console script's function as the installed script does."""
    module, function = SCRIPTS[name].split(":")
    code = f"import sys; from {module} import {function}; sys.exit({function}())"
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_command_explains_itself_on_stdout(name: str) -> None:
    done = run(name, "--help")
    assert done.returncode == 0
    assert "usage:" in done.stdout
    assert done.stderr == ""


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_command_prints_its_version(name: str) -> None:
    done = run(name, "--version")
    assert done.returncode == 0
    assert __version__ in done.stdout


@pytest.mark.parametrize("name", NODES)
def test_a_mistyped_flag_ends_a_node_with_a_hint_on_stderr(name: str) -> None:
    done = run(name, "--etcd-url", "127.0.0.1:1")
    assert done.returncode == 2
    assert "did you mean --etcd-urls" in done.stderr
    assert done.stdout == ""


@pytest.mark.parametrize("name", NODES)
def test_a_mistyped_key_ends_a_node_with_the_nearest_key(name: str, tmp_path: Path) -> None:
    path = tmp_path / "node.toml"
    path.write_text('adr = "127.0.0.1:1"\n')
    done = run(name, "--config", str(path))
    assert done.returncode == 2
    assert "unknown key 'adr' (did you mean 'addr'?)" in done.stderr


def mistyped(word: str) -> str:
    """Leave a letter in the middle out."""
    at = len(word) // 2 + word.count("--")
    return word[:at] + word[at + 1 :]


DDL = {"track": ["7"], "replace": ["7", "DROP TABLE t"], "skip": ["7"], "undo": ["7"]}


def typos() -> Iterator[tuple[list[str], str]]:
    """Yield a command line for each word of each program, mistyped; and the word."""
    found = places()
    words = {word for each in found.values() for word in each}
    for place, offered in found.items():
        typed = place.split()
        if typed[:2] == ["drainer", "ddl"]:
            typed += DDL.get(typed[-1], [])
        for word in offered:
            wrong = mistyped(word)
            if len(word.lstrip("-")) >= 4 and wrong not in words and not word.startswith(wrong):
                yield [*typed, wrong], word


def test_each_mistyped_command_option_and_choice_is_answered_with_the_word_that_was_meant(
    capsys: pytest.CaptureFixture[str],
) -> None:
    count, wrong = 0, []
    for argv, word in typos():
        code = main(argv)
        line = capsys.readouterr().err
        meant = rf"penstock.*: .*\(did you mean -*{re.escape(word.lstrip('-'))}\?.*\) \[PS-\d+\]\n"
        if (code, bool(re.fullmatch(meant, line))) != (2, True):
            wrong.append((argv, code, line))
        count += 1
    assert wrong == []
    assert count > 500


SECOND_NAMES = re.compile(r"\bmysql-source\b|\bbinlogctl\b|python -m (pump|drainer|penstock)\b")


def test_no_help_and_no_page_for_users_calls_a_program_by_a_second_name() -> None:
    shown = io.StringIO()
    for place in places():
        if place and " -" not in place:
            with contextlib.redirect_stdout(shown), contextlib.suppress(SystemExit):
                main([*place.split(), "--help"])
    assert shown.getvalue().count("usage: ") > 30
    assert SECOND_NAMES.search(shown.getvalue()) is None
    pages = [*ROOT.glob("docs/**/*.md"), *ROOT.glob("*/guide/*.md"), ROOT / "README.md"]
    pages += [ROOT / f"{each}/README.md" for each in ("pump", "drainer", "pumpclient")]
    pages += [ROOT / "proto/penstock/ctl/README.md"]
    for page in pages:
        if page.name != "from_tidb_binlog.md":
            assert SECOND_NAMES.search(page.read_text()) is None, page


def test_no_program_has_a_parser_of_another_class() -> None:
    for folder in ("drainer", "pump", "pumpclient", "proto/penstock"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            assert "= argparse.ArgumentParser(" not in path.read_text(), path
