"""Connections to the databases that hold an outbox, from their URLs, with a time-out on everything.

    mysql://user:password@host:port/schema?ssl-ca=/path/ca.pem
    sqlite:///relative/file.db    sqlite:////absolute/file.db

Special characters are percent-encoded, the comma too: it separates URLs. The user needs SELECT,
INSERT and UPDATE on the outbox table and nothing else. PyMySQL is loaded only when a MySQL is
configured.
"""

from __future__ import annotations

import importlib
import re
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import SplitResult, parse_qsl, quote, unquote, urlsplit

from penstock.errors import NeedsOperator

_NAMED = re.compile(r"([A-Za-z0-9_.-]+)=(.*)", re.DOTALL)
_TLS = {"ssl-ca": "ssl_ca", "ssl-cert": "ssl_cert", "ssl-key": "ssl_key"}
_LOCK_WAIT_TIMEOUT, _DEADLOCK = 1205, 1213
_HINT = "write mysql://user:password@host:port/schema or sqlite:////path/file.db"

Connect = Callable[[], Any]


def split(entry: str) -> tuple[str, str]:
    """Return the name and the URL of `name=URL`; without a name that is empty."""
    match = _NAMED.fullmatch(entry)
    return (match[1], match[2]) if match else ("", entry)


def opener(url: str, *, timeout_s: float) -> tuple[str, Connect]:
    """Return a name for log lines, without a password, and a function that opens a connection.

    Raises `NeedsOperator` for a URL that cannot be right; the function raises the driver's errors.
    """
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError as error:
        # The URL itself may hold a password and is not repeated.
        raise NeedsOperator(f"resolver.url is unreadable: {error}", hint=_HINT) from error
    if parts.scheme == "sqlite":
        return _sqlite(parts, timeout_s)
    if parts.scheme == "mysql":
        return _mysql(parts, timeout_s)
    raise NeedsOperator(f"resolver.url has the scheme {parts.scheme!r}", hint=_HINT)


def is_locked(error: Exception) -> bool:
    """True for a driver's error that says: somebody else has the row, or the SQLite file."""
    if isinstance(error, sqlite3.OperationalError):
        return error.sqlite_errorcode & 0xFF in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
    return bool(error.args) and error.args[0] in (_LOCK_WAIT_TIMEOUT, _DEADLOCK)


def _sqlite(parts: SplitResult, timeout_s: float) -> tuple[str, Connect]:
    path = unquote(parts.path).removeprefix("/")
    if parts.netloc or not path:
        raise NeedsOperator("resolver.url names no file", hint=_HINT)
    # A file that is not there must not be created: an empty database would fence everything.
    uri = f"file:{quote(str(Path(path).absolute()))}?mode=rw"

    def connect() -> sqlite3.Connection:
        connection = sqlite3.connect(uri, uri=True, timeout=timeout_s, check_same_thread=False)
        # FULL would leave the removal of a rollback journal to chance, and with it a fence.
        connection.execute("PRAGMA synchronous = EXTRA")
        return connection

    return path, connect


def _mysql(parts: SplitResult, timeout_s: float) -> tuple[str, Connect]:
    try:
        pymysql = importlib.import_module("pymysql")
    except ImportError as error:
        raise NeedsOperator(
            "resolver.url is a MySQL's, and PyMySQL is not installed",
            hint="pip install 'penstock[mysql]'",
        ) from error
    asked = dict(parse_qsl(parts.query))
    unknown = asked.keys() - _TLS.keys()
    schema = unquote(parts.path).strip("/")
    if unknown or not schema or not parts.hostname:
        wrong = f"has an unknown option {unknown.pop()!r}" if unknown else "names no host or schema"
        raise NeedsOperator(f"resolver.url {wrong}", hint=_HINT)
    host, port = parts.hostname, parts.port or 3306
    options: dict[str, Any] = {_TLS[key]: value for key, value in asked.items()}

    def connect() -> Any:
        connection = pymysql.connect(
            host=host,
            port=port,
            user=unquote(parts.username or ""),
            password=unquote(parts.password or ""),
            database=schema,
            charset="utf8mb4",
            connect_timeout=max(1, int(timeout_s)),
            read_timeout=timeout_s,
            write_timeout=timeout_s,
            **options,
        )
        with connection.cursor() as cursor:
            # A writer holds its row's lock only between two statements: no use in waiting for it.
            cursor.execute("SET SESSION innodb_lock_wait_timeout = 1")
        return connection

    return f"{host}:{port}/{schema}", connect
