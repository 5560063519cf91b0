"""Translates a call in the spelling of TiDB-Binlog's binlogctl into ours.

    binlogctl -cmd pause-pump -pd-urls=http://10.0.0.1:2379 -node-id pump-1
    binlogctl pause-pump --etcd-urls=http://10.0.0.1:2379 --node-id=pump-1

A call that starts with a flag is in TiDB-Binlog's spelling. Its flags start with one dash or two,
and have their value after `=` or as the next word; without -cmd it lists the Pumps. Both spellings
do and refuse the same. Above all, neither changes the state of a live node. A flag without meaning
for a command is reported once, on stderr.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from penstock.codes import Code
from penstock.errors import NeedsOperator
from penstock.settings.compat import is_true
from pumpclient.binlogctl.nodes import KINDS

_OURS: Final = ("-h", "--help", "--version")
_ANYWHERE: Final = ("pd-urls", "ssl-ca", "ssl-cert", "ssl-key")
_OF_A_NODE: Final = {
    "pause": ("node-id",),
    "offline": ("node-id",),
    "update": ("node-id", "state"),
}
COMMANDS: Final[Mapping[str, tuple[str, ...]]] = {
    **{f"{kind}s": ("show-offline-nodes",) for kind in KINDS},
    **{f"{verb}-{kind}": flags for verb, flags in _OF_A_NODE.items() for kind in KINDS},
    "generate_meta": ("data-dir", "time-zone"),
    "encrypt": ("text",),
}
"""Its commands, which have the same names as ours, each with the flags that apply to it."""

_TO_PD: Final = frozenset(COMMANDS) - {
    "pumps",
    "drainers",
    "pause-pump",
    "pause-drainer",
    "encrypt",
}
"""Commands that ask for the time, which a PD provides."""

FLAGS: Final = frozenset(
    {"cmd", "V", "h", "help", *_ANYWHERE, *(flag for flags in COMMANDS.values() for flag in flags)}
)
_SWITCHES: Final = frozenset({"V", "h", "help", "show-offline-nodes"})


@dataclass(frozen=True, slots=True)
class Call:
    """A call in our spelling, and remarks about the way it was written."""

    argv: list[str]
    notes: list[str]


def in_our_words(argv: Sequence[str]) -> Call | None:
    """Return a call in TiDB-Binlog's spelling as ours; None if it is ours already.

    Raises `NeedsOperator` for an unknown flag or command.
    """
    if not argv or not argv[0].startswith("-") or argv[0] in _OURS:
        return None
    given = dict(_flags(argv))
    if {"h", "help"} & given.keys():
        return Call(["--help"], [])
    if is_true(given.pop("V", "false")):
        return Call(["--version"], [])
    command = given.pop("cmd", "pumps")
    if command not in COMMANDS:
        raise NeedsOperator(
            f"-cmd {command} is no command",
            hint=f"use one of {', '.join(COMMANDS)}",
            code=Code.COMMAND_INVALID,
        )
    made, notes = [command], []
    if command in ("pumps", "drainers"):
        made.append("--in-log-form")
    for flag, value in given.items():
        if flag in (*_ANYWHERE, *COMMANDS[command]):
            made += _in_ours(command, flag, value)
        else:
            notes.append(f"-{flag} means nothing to {command}, and is left out")
    return Call(made, notes)


def _in_ours(command: str, flag: str, value: str) -> list[str]:
    if flag == "pd-urls":
        pd = [f"--pd-address={value}"] if command in _TO_PD else []
        return [f"--etcd-urls={value}", *pd]
    if flag in _SWITCHES:
        return [f"--{flag}"] if is_true(value) else []
    # Without a value a TLS file is not set.
    return [f"--{flag}={value}"] if value or flag not in _ANYWHERE else []


def _flags(argv: Sequence[str]) -> Iterator[tuple[str, str]]:
    words = iter(argv)
    for word in words:
        flag, is_joined, value = word.removeprefix("-").removeprefix("-").partition("=")
        if not word.startswith("-"):
            raise NeedsOperator(
                f"{word!r} is no flag",
                hint="name the command with -cmd; or call it as binlogctl COMMAND, see --help",
                code=Code.COMMAND_INVALID,
            )
        if flag not in FLAGS:
            near = difflib.get_close_matches(flag, FLAGS, 1)
            hint = f"did you mean -{near[0]}?" if near else "see binlogctl --help"
            raise NeedsOperator(
                f"there is no flag {word.partition('=')[0]}", hint=hint, code=Code.COMMAND_INVALID
            )
        if not is_joined:
            value = "true" if flag in _SWITCHES else next(words, "")
            if not value:
                raise NeedsOperator(
                    f"{word} has no value", hint=f"write {word}=…", code=Code.COMMAND_INVALID
                )
        yield flag, value
