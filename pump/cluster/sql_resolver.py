"""SQL resolver: asks the writers' own databases, where a row in the outbox is a commit.

A fence prevents an absent row from being written later. `penstock.outbox` argues why the answers
are right whatever a writer does at any time. This module keeps a bad database from harming others:

    one thread asks           up to 4 threads per database, each with a dedicated connection
    it is slow                a question takes at most `timeout_s`, in the driver and in its locks
    it is away or broken      no thread retries for a second; other questions fail immediately and
                              are asked again
    too many ask              256 per database may wait, the rest are asked again

A transaction with an outbox key is never decided by its age, however long its database is away:
a committed transaction must reach the downstream. To abandon a database, set `kind = "none"`.

A database is named by a URL:

    mysql://user:password@host:port/schema?ssl-ca=/path/ca.pem
    sqlite:///relative/file.db    sqlite:////absolute/file.db

Special characters are percent-encoded, including the comma, which separates URLs. The user needs
SELECT, INSERT and UPDATE on the outbox table and nothing else. PyMySQL is loaded only when a MySQL
is configured.
"""

from __future__ import annotations

import asyncio
import importlib
import logging
import queue
import re
import sqlite3
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import SplitResult, parse_qsl, quote, unquote, urlsplit

from penstock import outbox
from penstock.codes import Code
from penstock.errors import NeedsOperator, PenstockError, Retryable
from pump.cluster.resolver import ROLLED_BACK, UNKNOWN, Outcome, Question, Resolution, Resolver
from pump.config import ResolverConfig

log = logging.getLogger(__name__)

_THREADS = 4
_WAITING_MAX = 256
_AWAY_S = 1.0

_Connection = Any
_NAMED = re.compile(r"([A-Za-z0-9_.-]+)=(.*)", re.DOTALL)
_TLS = {"ssl-ca": "ssl_ca", "ssl-cert": "ssl_cert", "ssl-key": "ssl_key"}
_LOCK_WAIT_TIMEOUT, _DEADLOCK = 1205, 1213
_HINT = "write mysql://user:password@host:port/schema or sqlite:////path/file.db"

Connect = Callable[[], _Connection]


class Database:
    """One database with an outbox, and the threads that ask it; safe to share between threads."""

    def __init__(self, name: str, table: str, connect: Connect) -> None:
        self.name = name
        self._table = table
        self._connect = connect
        self._idle: queue.SimpleQueue[_Connection] = queue.SimpleQueue()
        self._away_until_s = float("-inf")
        self._away_because = ""
        self._closed = False
        self.threads = ThreadPoolExecutor(_THREADS, f"pump-resolver-{name}")
        self.waiting = 0
        """Questions that wait for a thread."""

    def settle(self, key: bytes, start_ts: int, *, fence: bool) -> int | None:
        """Settle as `outbox.settle` does; raise `Retryable` if the database does not answer."""
        if time.monotonic() < self._away_until_s:
            raise Retryable(self._away_because, Code.RESOLVER_AWAY)
        connection = None
        try:
            connection = self._take()
            found = outbox.settle(connection, self._table, key, start_ts, fence=fence)
        except BaseException as error:
            # Its state is unknown: a lock may be held, half of an answer may be on its way.
            if connection is not None:
                _close(connection)
            if isinstance(error, PenstockError) or not isinstance(error, Exception):
                raise
            raise self._failed(error) from error
        self._idle.put(connection)
        if self._closed:
            self.close()
        return found

    def close(self) -> None:
        self._closed = True
        self._drop_idle()

    def _take(self) -> _Connection:
        try:
            return self._idle.get_nowait()
        except queue.Empty:
            connection = self._connect()
        try:
            outbox.check_engine(connection, self._table)
        except BaseException:
            _close(connection)
            raise
        return connection

    def _failed(self, error: Exception) -> Retryable:
        if is_locked(error):
            return Retryable(
                f"the writer has its outbox row in {self.name} locked: {error}", Code.RESOLVER_AWAY
            )
        self._away_because = f"the database {self.name} does not answer: {error}"
        self._away_until_s = time.monotonic() + _AWAY_S
        self._drop_idle()  # Connections to a server that is gone are useless.
        return Retryable(self._away_because, Code.RESOLVER_AWAY)

    def _drop_idle(self) -> None:
        while True:
            try:
                _close(self._idle.get_nowait())
            except queue.Empty:
                return


class SqlResolver:
    """Resolves transactions with an outbox key; passes the others on."""

    def __init__(
        self, databases: Mapping[str, Database], otherwise: Resolver, *, fence_after_s: float
    ) -> None:
        """Take databases by the name in their keys; the name "" is for all other names."""
        self._databases = databases
        self._otherwise = otherwise
        self._fence_after_s = fence_after_s

    async def resolve(self, question: Question) -> Resolution:
        """Ask the key's database, which fences a writer that was silent for too long."""
        key = question.prewrite_key
        name = outbox.name_in(key)
        if name is None:
            return await self._otherwise.resolve(question)
        database = self._databases.get(name) or self._databases.get("")
        if database is None:
            raise NeedsOperator(
                f"this Pump does not know where the outbox {name!r} is",
                f"add {name}=URL to resolver.url",
                Code.RESOLVER_OUTBOX,
            )
        if database.waiting >= _WAITING_MAX:
            raise Retryable(
                f"too many questions to the database {database.name}", Code.RESOLVER_AWAY
            )
        settle, fence = database.settle, question.waited_s >= self._fence_after_s
        database.waiting += 1
        try:
            found = await asyncio.get_running_loop().run_in_executor(
                database.threads, partial(settle, key, question.start_ts, fence=fence)
            )
        finally:
            database.waiting -= 1
        if found is None:
            return UNKNOWN
        return Resolution(Outcome.COMMITTED, found) if found else ROLLED_BACK

    async def close(self) -> None:
        for database in self._databases.values():
            database.threads.shutdown(wait=False, cancel_futures=True)
            database.close()
        await self._otherwise.close()


def databases(config: ResolverConfig) -> dict[str, Database]:
    """Return the configured databases by name; raise `NeedsOperator` for an invalid entry."""
    found: dict[str, Database] = {}
    for entry in config.url:
        name, url = split(entry)
        if name in found:
            raise NeedsOperator(
                f"resolver.url names the outbox {name!r} twice",
                "give each a name: name=URL",
                Code.URL_INVALID,
            )
        shown, connect = opener(url, timeout_s=config.timeout_s)
        found[name] = Database(f"{name} at {shown}" if name else shown, config.table, connect)
    return found


def _close(connection: _Connection) -> None:
    try:
        connection.close()
    except Exception as error:
        log.debug("closing a broken connection: %s", error)


def split(entry: str) -> tuple[str, str]:
    match = _NAMED.fullmatch(entry)
    return (match[1], match[2]) if match else ("", entry)


def opener(url: str, *, timeout_s: float) -> tuple[str, Connect]:
    """Return a name for log lines, without a password, and a function that opens a connection.

    Raises `NeedsOperator` for an invalid URL; the function raises the driver's errors.
    """
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError as error:
        # The URL itself may hold a password and is not repeated.
        raise NeedsOperator(
            f"resolver.url is unreadable: {error}", _HINT, Code.URL_INVALID
        ) from error
    if parts.scheme == "sqlite":
        return _sqlite(parts, timeout_s)
    if parts.scheme == "mysql":
        return _mysql(parts, timeout_s)
    raise NeedsOperator(f"resolver.url has the scheme {parts.scheme!r}", _HINT, Code.URL_INVALID)


def is_locked(error: Exception) -> bool:
    """Return whether a driver's error says that another session locks the row or SQLite file."""
    if isinstance(error, sqlite3.OperationalError):
        return error.sqlite_errorcode & 0xFF in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
    return bool(error.args) and error.args[0] in (_LOCK_WAIT_TIMEOUT, _DEADLOCK)


def _sqlite(parts: SplitResult, timeout_s: float) -> tuple[str, Connect]:
    path = unquote(parts.path).removeprefix("/")
    if parts.netloc or not path:
        raise NeedsOperator("resolver.url names no file", _HINT, Code.URL_INVALID)
    # A missing file must not be created: an empty database would fence everything.
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
            "install Penstock with the extra mysql",
            Code.PACKAGE_MISSING,
        ) from error
    asked = dict(parse_qsl(parts.query))
    unknown = asked.keys() - _TLS.keys()
    schema = unquote(parts.path).strip("/")
    if unknown or not schema or not parts.hostname:
        wrong = f"has an unknown option {unknown.pop()!r}" if unknown else "names no host or schema"
        raise NeedsOperator(f"resolver.url {wrong}", _HINT, Code.URL_INVALID)
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
            # A writer holds its row's lock only between two statements, so waiting for it is
            # useless.
            cursor.execute("SET SESSION innodb_lock_wait_timeout = 1")
        return connection

    return f"{host}:{port}/{schema}", connect


def open_resolver(config: ResolverConfig, otherwise: Resolver) -> Resolver:
    """Return the configured resolver; `otherwise` is asked about all other transactions.

    Raises `NeedsOperator` for an invalid URL; nothing is connected yet.
    """
    if config.kind != "sql":
        return otherwise
    return SqlResolver(databases(config), otherwise, fence_after_s=config.fence_after_s)
