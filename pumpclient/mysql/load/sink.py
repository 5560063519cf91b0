"""The sink of a load: writes rows directly into the downstream, with a session for each reader.

The Drainer creates the tables there: the load's DDL goes through the Pumps, and rows follow once
the downstream's checkpoint has passed it. So only the Drainer creates tables, and no conflict over
existing tables can arise. An ENUM's error value is written unchanged (`penstock.refused_inserts`).

    lock 0 … 31   "penstock load <digest of the source> <n>", one for each session

A session holds its lock for as long as it is open, and an attempt first takes all locks. So no
statement of an earlier attempt, whose process may have died before its last INSERT ended, can run
after the DROP of its table. Each INSERT is a transaction of its own.
"""

import contextlib
import hashlib
import json
import logging
import socket
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any

import pymysql

from penstock import refused_inserts
from penstock.codes import Code
from penstock.ddl.syntax.lexer import quote_path
from penstock.errors import NeedsOperator, Retryable
from pumpclient.mysql.load.text_rows import SqlRows
from pumpclient.mysql.protocol.server import Connection, ServerAddress, server_errors
from pumpclient.mysql.rows.table_map import Name

log = logging.getLogger(__name__)

SESSIONS_MAX = 32
_LOCK_S = 60
_STATEMENT_S = 600.0
_LOOK_EVERY_S = 0.1
_SQL_MODE = "STRICT_ALL_TABLES,NO_AUTO_VALUE_ON_ZERO,ALLOW_INVALID_DATES,NO_ENGINE_SUBSTITUTION"
_DAY_S = 86400
_DUPLICATE = 1062
_ROLLED_BACK = (1205, 1213)
"""Lock wait timeout, deadlock: the statement did nothing."""
_NOT_YET = (1049, 1146)
"""No such database or table: the Drainer has not created it."""
_ROOM_BYTES = 64 << 10
"""Bytes of a packet that are reserved for the part before the rows."""


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """The downstream, and its table with the Drainer's checkpoint."""

    address: ServerAddress
    checkpoint: str = "tidb_binlog.checkpoint"
    applied_s: float = 600.0
    """How long the Drainer, which creates the tables, may stay at one checkpoint."""
    retry_s: float = 60.0
    """How long rows are retried while the server does not accept them."""
    again_s: float = 0.2
    """The pause before rows are sent again."""
    is_shared: bool = False
    """Others may write to the tables, so a duplicate key proves nothing."""


class SinkSession:
    """Inserts for one thread; `interrupt` may come from another thread."""

    def __init__(
        self, options: SinkOptions, locks: Sequence[str], may_commit: Callable[[], bool]
    ) -> None:
        """Connect and take locks; raise `Retryable` while another session holds one."""
        self._options = options
        self._address = replace(options.address, statement_timeout_s=_STATEMENT_S)
        self._locks = locks
        self._may_commit = may_commit
        self._is_interrupted = False
        self.packet_bytes_max = 0
        self._open()

    def _open(self) -> None:
        self._connection: Connection = self._address.connect()
        try:
            with server_errors(self._address), self._connection.cursor() as cursor:
                cursor.execute(f"SET SESSION sql_mode = '{_SQL_MODE}', time_zone = '+00:00'")
                cursor.execute(f"SET SESSION foreign_key_checks = 0, wait_timeout = {_DAY_S}")
            self.packet_bytes_max = int(self.fetch("SELECT @@max_allowed_packet")[0][0])
            for name in self._locks:
                if self.fetch("SELECT GET_LOCK(%s, %s)", (name, _LOCK_S)) != [(1,)]:
                    raise Retryable(
                        f"{self._address}: another load's session is at work there",
                        Code.LOAD_DISTURBED,
                    )
        except BaseException:
            self.close()
            raise

    def fetch(self, sql: str, parameters: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        with server_errors(self._address), self._connection.cursor() as cursor:
            cursor.execute(sql, parameters or None)
            return list(cursor.fetchall())

    def insert(self, inserts: SqlRows, rows: list[bytes]) -> None:
        """Insert rows; they are durable when this returns, as durable as the server makes them.

        After a lost connection it is unknown whether the rows exist. If the table has a key and no
        other writer, they are sent again, and a duplicate key proves that they exist. Raises
        `Retryable` if this takes too long or rows cannot be sent again, `NeedsOperator` for a
        refusal.
        """
        statement = inserts.insert(rows)
        if len(statement) > self.packet_bytes_max:
            raise NeedsOperator(
                f"a row needs a statement of {len(statement)} bytes, and {self._address} takes"
                f" {self.packet_bytes_max}",
                "raise max_allowed_packet there",
                Code.ROW_TOO_LARGE,
            )
        deadline_s = time.monotonic() + self._options.retry_s
        may_be_there = False
        while self._may_commit():
            try:
                self._query(statement)
                return
            except Retryable as error:
                if code_of(error) not in _ROLLED_BACK:
                    may_be_there = True
                    self.close()
                    if not inserts.is_known_by_key or self._options.is_shared:
                        raise
                if self._is_interrupted or time.monotonic() > deadline_s:
                    raise
                log.warning("rows are sent to the sink again: %s", error)
                time.sleep(self._options.again_s)
            except NeedsOperator as error:
                if may_be_there and code_of(error) == _DUPLICATE:
                    return
                raise NeedsOperator(
                    f"the sink refuses rows: {error.problem}",
                    "compare the table there with the source's; does anybody write to it?",
                    Code.SINK_REFUSES,
                ) from error
        raise Retryable("another process has this source now", Code.SOURCE_TAKEN)

    def _query(self, statement: bytes) -> None:
        connection: Any = self._connection
        if connection._sock is None:
            self._open()
            connection = self._connection
        with server_errors(self._address):
            try:
                connection.query(statement)
            except pymysql.err.MySQLError as error:
                may_be = bool(error.args) and error.args[0] in refused_inserts.CODES
                if not (may_be and refused_inserts.written_alone(connection, statement)):
                    raise

    def interrupt(self) -> None:
        self._is_interrupted = True
        connection: Any = self._connection
        if connection._sock is not None:
            with contextlib.suppress(OSError):
                connection._sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        connection: Any = self._connection
        connection._force_close()


def code_of(error: Exception) -> object:
    """Return the server's number of an error, also from `server_errors`, or 0 if it has none."""
    args = getattr(error.__cause__ or error, "args", ())
    return args[0] if args else 0


class Sink:
    """The downstream during one attempt."""

    def __init__(
        self, options: SinkOptions, cluster_id: int, sessions: Sequence[SinkSession]
    ) -> None:
        self._options = options
        self._cluster_id = cluster_id
        self._checkpoint = quote_path(*options.checkpoint.split("."))
        self.sessions = sessions

    def group_bytes(self, wanted: int) -> int:
        return max(min(wanted, self.sessions[0].packet_bytes_max - _ROOM_BYTES), 1)

    def wait_for(
        self, commit_ts: int, tables: Iterable[Name], check_stopped: Callable[[], None]
    ) -> None:
        """Return once the Drainer has passed `commit_ts` and the tables exist.

        Raises the errors of `check_stopped`, and `NeedsOperator` when it takes too long.
        """
        missing, reached_ts, deadline_s = set(tables), -1, 0.0
        while True:
            seen_ts = min(self._checkpoint_ts(), commit_ts)
            if seen_ts == commit_ts and not (missing := set(self._absent(missing))):
                return
            check_stopped()
            if seen_ts > reached_ts:
                reached_ts, deadline_s = seen_ts, time.monotonic() + self._options.applied_s
            if time.monotonic() > deadline_s:
                names = ", ".join(".".join(name) for name in sorted(missing)[:10])
                raise NeedsOperator(
                    f"the Drainer has not created these tables in {self._options.address}: {names}",
                    "is it running, is this its sink, are its checkpoint's name and the"
                    " tables' names as the load expects them (its filters and routes)?",
                    Code.LOAD_TARGET,
                )
            time.sleep(_LOOK_EVERY_S)

    def _checkpoint_ts(self) -> int:
        sql = f"SELECT checkPoint FROM {self._checkpoint} WHERE clusterID = %s"  # noqa: S608
        try:
            found = self.sessions[0].fetch(sql, (self._cluster_id,))
        except NeedsOperator as error:
            if code_of(error) in _NOT_YET:
                return 0
            raise
        return int(json.loads(found[0][0]).get("commitTS", 0)) if found else 0

    def _absent(self, tables: Iterable[Name]) -> list[Name]:
        sql = "SELECT 1 FROM information_schema.tables WHERE table_schema = %s AND table_name = %s"
        return [name for name in tables if not self.sessions[0].fetch(sql, name)]


def lock_name(cluster_id: int, source: str, number: int) -> str:
    """Return the name of the lock that a source's session holds, at most 64 characters."""
    digest = hashlib.sha256(f"{cluster_id} {source}".encode()).hexdigest()[:24]
    return f"penstock load {digest} {number}"


@contextmanager
def sink_sessions(
    options: SinkOptions, cluster_id: int, source: str, count: int, may_commit: Callable[[], bool]
) -> Iterator[Sink]:
    """Open `count` sessions for the `with`, once those of earlier attempts have ended."""
    assert 0 < count <= SESSIONS_MAX
    names = [lock_name(cluster_id, source, n) for n in range(SESSIONS_MAX)]
    with ExitStack() as opened:
        sessions = []
        for n in range(count):
            # The last session also takes the remaining locks, of an attempt that had more sessions.
            locks = names[n:] if n == count - 1 else [names[n]]
            sessions.append(SinkSession(options, locks, may_commit))
            opened.callback(sessions[-1].close)
        yield Sink(options, cluster_id, sessions)
