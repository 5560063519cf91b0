"""URL of a MySQL downstream: parses it.

    mysql://user:password@host:port/?checkpoint-schema=tidb_binlog&ssl-ca=/path/ca.pem

With `tidb://` it is a TiDB even if the server does not say so.

`ssl-ca`, `ssl-cert`, `ssl-key` and `ssl-verify` are as in `penstock.security.databases`. Special
characters in user and password are percent-encoded; `password-file` names a file instead. `params`
are session variables (name=value, comma-separated). `sql-mode` is the sessions' mode. `collations`
says whether to map a collation that the server lacks, or to stop (map, stop). `loopback-channel` is
the mark that transactions leave (`drainer.task.row_changes`). `read-timeout` bounds how long a
statement may take to answer, in seconds.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from penstock.codes import Code
from penstock.errors import NeedsOperator
from penstock.security.databases import FULL, PasswordFile, SqlTls
from penstock.settings.setting import out_of_range

MAP, STOP = POLICIES = "map", "stop"
_CONNECT_TIMEOUT_S = 10
_TLS = ("ssl-ca", "ssl-cert", "ssl-key")
_KNOWN = {
    "checkpoint-schema", "checkpoint-table", "collations", "loopback-channel", "params",
    "password-file", "read-timeout", "sql-mode", "ssl-verify", "unix-socket", *_TLS,
}  # fmt: skip
_VARIABLE = re.compile(r"\s*([A-Za-z_][A-Za-z0-9_]*)\s*=\s*(.*?)\s*", re.DOTALL)
_FIXED = {"sql_mode", "time_zone", "foreign_key_checks", "autocommit", "tx_isolation", "timestamp",
          "transaction_isolation", "names", "character_set_client"}  # fmt: skip
"""Session variables that decide how rows are written."""


@dataclass(frozen=True, slots=True)
class MysqlTarget:
    """The server to connect to, and the location of the checkpoint."""

    name: str
    options: dict[str, Any]
    checkpoint_schema: str
    checkpoint_table: str
    is_tidb: bool = False
    params: tuple[tuple[str, str], ...] = ()
    sql_mode: str = ""
    channel_id: int | None = None
    collations: str = MAP
    tls: SqlTls | None = None
    password_file: PasswordFile | None = None

    def connect_options(self) -> dict[str, Any]:
        if self.password_file is None:
            return self.options
        return {**self.options, "password": self.password_file.password()}


def parse_url(url: str) -> MysqlTarget:
    """Return the parts of `url`; raise `NeedsOperator` for an unknown option."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "127.0.0.1", parts.port or 3306
        asked = dict(parse_qsl(parts.query, True, bool(parts.query)))
        channel_id = int(asked["loopback-channel"]) if "loopback-channel" in asked else None
        read_timeout_s = float(asked.get("read-timeout", 0))
    except ValueError as error:
        # The URL itself holds a password and is not repeated.
        raise NeedsOperator(
            f"unreadable downstream URL: {error}",
            hint="write mysql://user:password@host:port/ and percent-encode special characters",
            code=Code.URL_INVALID,
        ) from error
    for key in asked:
        if key not in _KNOWN:
            raise NeedsOperator(
                f"unknown downstream option {key!r}",
                hint=f"known are {', '.join(sorted(_KNOWN))}",
                code=Code.URL_INVALID,
            )
    password = unquote(parts.password or "")
    password_file = _password_file(password, asked.get("password-file", ""))
    collations = asked.get("collations", MAP)
    if collations not in POLICIES:
        raise out_of_range("collations", collations, f"use {' or '.join(POLICIES)}")
    options: dict[str, Any] = {
        "host": host,
        "port": port,
        "user": unquote(parts.username or "root"),
        "password": password_file.password() if password_file else password,
        "charset": "utf8mb4",
        "autocommit": True,
        "connect_timeout": _CONNECT_TIMEOUT_S,
    }
    ca, cert, pem = (Path(asked[name]) if name in asked else None for name in _TLS)
    tls = SqlTls(ca, cert, pem, asked.get("ssl-verify", FULL))
    if read_timeout_s > 0:
        options["read_timeout"] = read_timeout_s
    if "unix-socket" in asked:
        options["unix_socket"] = asked["unix-socket"]
    return MysqlTarget(
        name=f"{host}:{port}",
        options=options,
        tls=tls if ca or cert else None,
        checkpoint_schema=asked.get("checkpoint-schema", "tidb_binlog").replace("`", "``"),
        checkpoint_table=asked.get("checkpoint-table", "checkpoint").replace("`", "``"),
        is_tidb=parts.scheme == "tidb",
        params=tuple(_variables(asked.get("params", ""))),
        sql_mode=asked.get("sql-mode", ""),
        channel_id=channel_id,
        password_file=password_file,
        collations=collations,
    )


def _password_file(password: str, file: str) -> PasswordFile | None:
    if password and file:
        raise NeedsOperator(
            "the downstream's URL has a password and a password-file",
            hint="leave one of them out",
            code=Code.URL_INVALID,
        )
    return PasswordFile(file) if file else None


def _variables(text: str) -> Iterator[tuple[str, str]]:
    for each in filter(None, text.split(",")):
        found = _VARIABLE.fullmatch(each)
        if found is None:
            raise NeedsOperator(
                f"{each!r} sets no session variable", hint="write name=value", code=Code.URL_INVALID
            )
        if found[1].lower() in _FIXED:
            raise NeedsOperator(
                f"the session variable {found[1]} is part of how rows are written",
                hint="times travel as UTC whatever the downstream's time zone is; sql-mode has a"
                " setting of its own",
                code=Code.URL_INVALID,
            )
        yield found[1], found[2]
