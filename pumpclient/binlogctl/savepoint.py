"""Writes the current time as a savepoint file, and passwords for TiDB-Binlog's settings.

    generate_meta     writes `commitTS = N` to <data-dir>/savepoint, and prints N
    encrypt           prints a value for encrypted_password; prefer password-file

The file is for programs that read TiDB-Binlog's; a Drainer takes N itself, as initial-commit-ts.
With a time zone, comments in the file also give N as a time in UTC and in that zone.
"""

from __future__ import annotations

import argparse
import os
import sys
from datetime import UTC, datetime, tzinfo
from pathlib import Path
from typing import Any, Final
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from penstock.codes import Code
from penstock.errors import NeedsOperator
from penstock.log.files import replace_file
from penstock.node.output import moment_of, show
from penstock.ts import physical_ms
from pumpclient.binlogctl.nodes import now_ts

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
            hint="use one such as Asia/Shanghai, UTC or Local",
            code=Code.COMMAND_INVALID,
        ) from error


def _encrypt(arguments: argparse.Namespace) -> int:
    # Here and not above: it needs a package that no other command needs.
    from penstock.security.encrypted_passwords import HAS_OWN_KEY, encrypted

    text = encrypted(arguments.text, os.environ)
    if HAS_OWN_KEY not in os.environ:
        sys.stderr.write(
            f"binlogctl: without {HAS_OWN_KEY} anyone can decrypt it: the key is in the programs;"
            " a password-file is better\n"
        )
    show(arguments, {"encrypted_password": text}, text)
    return 0
