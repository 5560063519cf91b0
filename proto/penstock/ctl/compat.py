"""TiDB-Binlog's forms: its spelling of calls, its savepoint file, its passwords, its nodes.

    binlogctl -cmd pause-pump -pd-urls=http://10.0.0.1:2379 -node-id pump-1
    penstock ctl pause-pump --etcd-urls=http://10.0.0.1:2379 --node-id=pump-1

A call that starts with a flag is in TiDB-Binlog's spelling. Its flags start with one dash or two,
and have their value after `=` or as the next word; without -cmd it lists the Pumps. Both spellings
do and refuse the same. Above all, neither changes the state of a live node. A flag without meaning
for a command is reported once, on stderr.

    generate_meta     writes `commitTS = N` to <data-dir>/savepoint, and prints N
    encrypt           prints a value for encrypted_password; prefer password-file

The file is for programs that read TiDB-Binlog's; a Drainer takes N itself, as initial-commit-ts.
With a time zone, comments in the file also give N as a time in UTC and in that zone.

    PUT http://<host>/state/<node id>/pause | close      {"message": …, "code": 200, "data": …}

TiDB-Binlog's nodes in a mixed cluster serve HTTP at the address of their gRPC, do not know our
methods, and always answer with status 200: the code in the body has the result.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, tzinfo
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from penstock.cluster.node_registry import NodeStatus
from penstock.codes import Code
from penstock.ctl.nodes import KINDS, now_ts
from penstock.errors import NeedsOperator, Retryable
from penstock.log.files import replace_file
from penstock.node.output import moment_of, show
from penstock.security.tls import Tls, open_http
from penstock.settings.compat import is_true
from penstock.settings.setting import did_you_mean
from penstock.ts import physical_ms

_OURS: Final = ("-h", "--help", "--version")
_ANYWHERE: Final = ("pd-urls", "ssl-ca", "ssl-cert", "ssl-key")
_OF_A_NODE: Final = {"pause": ("node-id",), "offline": ("node-id",), "update": ("node-id", "state")}
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


def in_our_words(argv: Sequence[str]) -> tuple[list[str], list[str]] | None:
    """Return a call in TiDB-Binlog's spelling as ours, with remarks; None if it is ours already.

    Raises `NeedsOperator` for an unknown flag or command.
    """
    if not argv or not argv[0].startswith("-") or argv[0] in _OURS:
        return None
    given = dict(_flags(argv))
    if {"h", "help"} & given.keys():
        return ["--help"], []
    if is_true(given.pop("V", "false")):
        return ["--version"], []
    command = given.pop("cmd", "pumps")
    if command not in COMMANDS:
        raise NeedsOperator(
            f"-cmd {command} is no command",
            did_you_mean(command, COMMANDS, f"use one of {', '.join(COMMANDS)}"),
            Code.COMMAND_INVALID,
        )
    made, notes = [command, *["--in-log-form"] * (command in ("pumps", "drainers"))], []
    for flag, value in given.items():
        if flag not in (*_ANYWHERE, *COMMANDS[command]):
            notes.append(f"-{flag} has no meaning for {command}: ignored")
        elif flag == "pd-urls":
            made += [f"--etcd-urls={value}"]
            made += [f"--pd-address={value}"] if command in _TO_PD else []
        elif flag in _SWITCHES:
            made += [f"--{flag}"] if is_true(value) else []
        elif value or flag not in _ANYWHERE:  # Without a value a TLS file is not set.
            made.append(f"--{flag}={value}")
    return made, notes


def _flags(argv: Sequence[str]) -> Iterator[tuple[str, str]]:
    words = iter(argv)
    for word in words:
        flag, is_joined, value = word.removeprefix("-").removeprefix("-").partition("=")
        if not word.startswith("-"):
            raise NeedsOperator(
                f"{word!r} is no flag",
                "name the command with -cmd; or call it as penstock ctl COMMAND, see --help",
                Code.COMMAND_INVALID,
            )
        if flag not in FLAGS:
            hint = did_you_mean(flag, {*FLAGS, "version"}, "see penstock ctl --help", "--{}".format)
            raise NeedsOperator(
                f"there is no flag {word.partition('=')[0]}", hint, Code.COMMAND_INVALID
            )
        if not is_joined:
            value = "true" if flag in _SWITCHES else next(words, "")
            if not value:
                raise NeedsOperator(f"{word} has no value", f"write {word}=…", Code.COMMAND_INVALID)
        yield flag, value


_FILE: Final = "savepoint"


def add_commands(commands: Any, shared: argparse.ArgumentParser) -> None:
    meta = commands.add_parser(
        "generate_meta", parents=[shared], help="write the present timestamp to a file"
    )
    meta.add_argument(
        "--data-dir",
        type=Path,
        default=Path("binlog_position"),
        metavar="DIR",
        help="directory of the file (default: %(default)s)",
    )
    meta.add_argument(
        "--time-zone", default="", metavar="ZONE", help="also write the time, such as Asia/Shanghai"
    )
    meta.add_argument("--pd-address", metavar="HOST:PORT", help="of the PD, if there is one")
    meta.set_defaults(run=_generate_meta)
    encrypt = commands.add_parser(
        "encrypt", parents=[shared], help="a password as encrypted_password in [syncer.to]"
    )
    encrypt.add_argument("--text", required=True, metavar="TEXT", help="the password")
    encrypt.set_defaults(run=_encrypt)


def _generate_meta(arguments: argparse.Namespace) -> int:
    zone = _zone(arguments.time_zone)
    ts = now_ts(arguments)
    path = arguments.data_dir / _FILE
    arguments.data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    lines = [f"commitTS = {ts}"]
    if zone is not None:
        at = datetime.fromtimestamp(physical_ms(ts) / 1000, UTC)
        lines += [
            f"# {at:%Y-%m-%d %H:%M:%S %z %Z}",
            f"# {at.astimezone(zone):%Y-%m-%d %H:%M:%S %z %Z}",
        ]
    replace_file(path, "".join(f"{line}\n" for line in lines).encode())
    facts = {"ts": ts, "time": moment_of(ts), "file": str(path)}
    show(
        arguments, facts, f"{path}: commitTS: {ts}; a Drainer takes it as --initial-commit-ts {ts}"
    )
    return 0


def _zone(name: str) -> tzinfo | None:
    if not name:
        return None
    if name.lower() == "local":
        return datetime.now().astimezone().tzinfo
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        raise NeedsOperator(
            f"there is no time zone {name!r}",
            "use one such as Asia/Shanghai, UTC or Local",
            Code.COMMAND_INVALID,
        ) from error


def _encrypt(arguments: argparse.Namespace) -> int:
    # Here and not above: it needs a package that no other command needs.
    from penstock.security.encrypted_passwords import HAS_OWN_KEY, encrypted

    text = encrypted(arguments.text, os.environ)
    if HAS_OWN_KEY not in os.environ:
        sys.stderr.write(
            f"penstock ctl: without {HAS_OWN_KEY} anyone can decrypt it: the key is in the"
            " programs; a password-file is better\n"
        )
    show(arguments, {"encrypted_password": text}, text)
    return 0


_DONE: Final = 200
_ANSWER_BYTES_MAX: Final = 64 << 10


def steer_original(status: NodeStatus, action: str, within_s: float, tls: Tls | None) -> None:
    """Ask a node to `pause` or to `close`; it then proceeds on its own.

    Raises `NeedsOperator` with the node's words when it refuses, `Retryable` when it is away.
    """
    answer = _put(status.host, f"/state/{quote(status.node_id, safe='')}/{action}", within_s, tls)
    try:
        body = json.loads(answer)
        code, message = int(body["code"]), str(body.get("message", ""))
    except (ValueError, KeyError, TypeError) as error:
        raise NeedsOperator(
            f"{status.host} does not answer as a node of TiDB-Binlog does",
            "is it another program? see that its address in etcd is right",
            Code.NODE_OTHER,
        ) from error
    if code != _DONE:
        raise NeedsOperator(
            f"{status.node_id}, a node of TiDB-Binlog, refuses: {message}",
            "look at the node's log",
            Code.NODE_REFUSES,
        )


def _put(host: str, path: str, within_s: float, tls: Tls | None) -> bytes:
    connection = open_http(host, tls, within_s)
    try:
        connection.request("PUT", path)
        body: bytes = connection.getresponse().read(_ANSWER_BYTES_MAX)
    except (OSError, http.client.HTTPException) as error:
        raise Retryable(f"{host}: {error or type(error).__name__}", Code.NODE_AWAY) from error
    finally:
        connection.close()
    return body
