"""Readers: sessions with the same snapshot of a server, and the threads that read from them.

The global read lock is held only while every session starts its snapshot and the end of the binlog
is read. A server that may not be locked, or cannot be within `_LOCK_S`, is an error: without the
lock several sessions cannot share one consistent state.

Tables of engines without transactions are not part of a snapshot. They get READ locks under the
global lock, which stay until the last of them is read. Any session may read them, ahead of the
writers that wait (HIGH_PRIORITY), and none writes.

The threads read chunks of many tables and hand the rows over in bounded groups.

planner session ── ranges, on demand ──> reader threads ── queue ──> one writer
                                           └─ a session of the sink each, if a sink
                                              is used: then the queue has counts
"""

import contextlib
import logging
import queue
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import pymysql
from pymysql.constants import CLIENT

from penstock.codes import Code
from penstock.ddl.syntax.lexer import quote_path
from penstock.errors import NeedsOperator, Retryable
from pumpclient.mysql.load.sink import SinkSession, code_of
from pumpclient.mysql.load.tables import Fetch, Range, SourceTable, chunks_of, packed, select
from pumpclient.mysql.load.text_rows import PACKET_BYTES_MAX, SqlRows, TextRows
from pumpclient.mysql.protocol.server import (
    BinlogPlace,
    Connection,
    ServerAddress,
    identify,
    is_tidb,
    master_status,
    server_errors,
)

log = logging.getLogger(__name__)

_RECEIVED_BYTES = 256 << 10
_LOCK_S = 20
_DAY_S = 86400
_CHANGED = (1146, 1412, 1054, 1049)
"""No such table, column or database, or another definition than the snapshot's."""
_REFUSED = (1044, 1045, 1142, 1227)
Lockable = Callable[[Fetch], Sequence[SourceTable]]
"""Returns the tables of a load that have no transactions."""


_SETTINGS = (
    # An invalid date is a valid bound of a key.
    "SET SESSION sql_mode = 'ALLOW_INVALID_DATES', time_zone = '+00:00', sql_quote_show_create = 1",
    f"SET SESSION net_write_timeout = {_DAY_S}, wait_timeout = {_DAY_S}",
    "SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ",
)
_BEGIN = "START TRANSACTION WITH CONSISTENT SNAPSHOT"


class SnapshotSession:
    """A connection within its snapshot; for one thread."""

    def __init__(self, address: ServerAddress) -> None:
        """Connect; `begin` starts the snapshot."""
        self._address = address
        self.connection: Connection = address.connect(CLIENT.MULTI_STATEMENTS)
        self.is_tidb = is_tidb(self.connection)
        with server_errors(address), self.connection.cursor() as cursor:
            for statement in _SETTINGS:
                cursor.execute(statement)

    def begin(self) -> None:
        with server_errors(self._address), self.connection.cursor() as cursor:
            # TiDB's grammar does not allow both.
            cursor.execute(_BEGIN if self.is_tidb else f"{_BEGIN}, READ ONLY")

    def interrupt(self) -> None:
        """Make the thread that reads from the session fail; callable from any thread."""
        sock: Any = self.connection._sock  # type: ignore[attr-defined]
        if sock is not None:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """End the session, even in the middle of a result."""
        self.connection._force_close()  # type: ignore[attr-defined]

    def fetch(self, sql: str, parameters: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        """Return small results, see `Fetch`; a table that has changed raises `Retryable`."""
        with self._errors(), self.connection.cursor() as cursor:
            cursor.execute(sql, parameters or None)
            found = list(cursor.fetchall())
            while cursor.nextset():
                found += cursor.fetchall()
            return found

    def rows(
        self, sql: str, parameters: Sequence[object], reader: TextRows
    ) -> Iterator[list[bytes]]:
        """Yield the encoded rows of a SELECT of `reader.columns`, as they arrive.

        If the iterator is not exhausted, the session can only be closed.
        """
        connection: Any = self.connection
        with self._errors():
            with connection.cursor() as cursor:
                text = cursor.mogrify(sql, parameters or None)
            connection.query(text, unbuffered=True)
            connection._result.unbuffered_active = False  # The rest is read here.
            connection._result = None
            data = b""
            while True:
                more = connection._rfile.read1(_RECEIVED_BYTES)
                if not more:
                    raise Retryable(
                        f"{self._address}: the server closed the connection", Code.SERVER_AWAY
                    )
                data = data + more if data else more
                out: list[bytes] = []
                at, is_ended = reader.read(data, 0, out)
                if not is_ended and data[at : at + 3] == b"\xff\xff\xff":
                    payload, data = self._long(data[at:])
                    out.append(reader.row(payload))
                    at, is_ended = reader.read(data, 0, out)
                if out:
                    yield out
                if is_ended:
                    self._check_end(data[at:])
                    return
                data = data[at:]

    def _long(self, data: bytes) -> tuple[bytes, bytes]:
        source: Any = self.connection
        payload = bytearray()
        size = PACKET_BYTES_MAX
        while size == PACKET_BYTES_MAX:
            head, data = _exactly(source._rfile, data, 4)
            size = int.from_bytes(head[:3], "little")
            part, data = _exactly(source._rfile, data, size)
            payload += part
        return bytes(payload), data

    def _check_end(self, data: bytes) -> None:
        if data[4] == 0xFF:
            source: Any = self.connection
            size = int.from_bytes(data[:3], "little")
            body, _ = _exactly(source._rfile, data[4:], size)
            pymysql.err.raise_mysql_exception(body)

    @contextmanager
    def _errors(self) -> Iterator[None]:
        with server_errors(self._address):
            try:
                yield
            except pymysql.err.MySQLError as error:
                if error.args and error.args[0] in _CHANGED:
                    raise Retryable(
                        f"the schema changed while it was loaded: {error}", Code.LOAD_DISTURBED
                    ) from error
                raise


def _exactly(file: Any, data: bytes, size: int) -> tuple[bytes, bytes]:
    if len(data) < size:
        data += file.read(size - len(data))
        if len(data) < size:
            raise Retryable("the server closed the connection within a row", Code.SERVER_AWAY)
    return data[:size], data[size:]


class TableLocks:
    """Locks of tables without transactions, held by a separate session."""

    def __init__(self, address: ServerAddress, lockable: Lockable) -> None:
        self._address = address
        self._lockable = lockable
        self._session: SnapshotSession | None = None
        self.tables: Sequence[SourceTable] = ()

    def take(self) -> None:
        """Lock the tables, while no one can write; raise `NeedsOperator` without the right to."""
        self._session = session = SnapshotSession(self._address)
        self.tables = self._lockable(session.fetch)
        if not self.tables:
            return self.release()
        locks = ", ".join(f"{quote_path(*each.full_name)} READ" for each in self.tables)
        session.fetch(f"SET SESSION lock_wait_timeout = {_LOCK_S}")
        with _needing("LOCK TABLES", f"{self._address}: the user may not lock tables"):
            session.fetch(f"LOCK TABLES {locks}")

    def release(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            session.close()


@contextmanager
def _needing(privilege: str, problem: str) -> Iterator[None]:
    try:
        yield
    except (pymysql.err.MySQLError, NeedsOperator) as error:
        if code_of(error) in _REFUSED:
            raise NeedsOperator(
                f"{problem}: {error}", f"GRANT {privilege} ON *.* TO the user", Code.SERVER_GRANT
            ) from error
        raise


@contextmanager
def snapshot(
    address: ServerAddress, count: int, lockable: Lockable
) -> Iterator[tuple[str, BinlogPlace, list[SnapshotSession], TableLocks]]:
    """Open `count` sessions with the same consistent state for the `with`.

    Yields also the server's version, the end of the binlog at that state, and the locks of the
    tables that are not part of it.

    Raises `NeedsOperator` when the user may not lock, `Retryable` when a long statement of another
    session prevents the lock.
    """
    with ExitStack() as opened:
        sessions = []
        for _ in range(count):
            sessions.append(SnapshotSession(address))
            opened.callback(sessions[-1].close)
        locks = TableLocks(address, lockable)
        opened.callback(locks.release)
        yield *_at_one_moment(address, sessions, locks), sessions, locks


def _check_prepared(locker: Connection, address: ServerAddress) -> None:
    """Raise `Retryable` while transactions are prepared: their rows precede the snapshot."""
    try:
        with locker.cursor() as cursor:
            count = cursor.execute("XA RECOVER")
    except pymysql.err.MySQLError as error:
        log.warning("it is unknown whether XA transactions are prepared: %s", error)
        return
    if count:
        raise Retryable(
            f"{address}: {count} XA transactions are prepared: end them first", Code.XA_PREPARED
        )


def _at_one_moment(
    address: ServerAddress, sessions: Sequence[SnapshotSession], locks: TableLocks
) -> tuple[str, BinlogPlace]:
    with address.session() as locker, locker.cursor() as cursor:
        identity = identify(locker)
        cursor.execute(f"SET SESSION lock_wait_timeout = {_LOCK_S}")
        with _needing("RELOAD", f"{address}: the user may not lock all tables for a moment"):
            cursor.execute("FLUSH TABLES WITH READ LOCK")
        try:
            _check_prepared(locker, address)
            locks.take()
            for session in sessions:
                session.begin()
            place = master_status(locker, identity.flavor)
        finally:
            with contextlib.suppress(pymysql.err.MySQLError):
                cursor.execute("UNLOCK TABLES")
    return identity.version, place


_QUEUED_PER_READER = 3
_POLL_S = 0.2


@dataclass(slots=True)
class TableJob:
    """A table to read. `is_planned` when `chunks_begun` is final."""

    table: SourceTable
    reader: TextRows
    inserts: SqlRows | None = None
    """For writing into the sink; None means through the Pumps."""
    chunks_begun: int = 0
    chunks_ended: int = 0
    is_planned: bool = False
    is_done: bool = False
    """The whole table has been read and written."""
    rows_written: int = 0


@dataclass(frozen=True, slots=True)
class RowGroup:
    """Rows of one table; without rows it marks the end of a chunk or of the planning."""

    job: TableJob
    rows: list[bytes] = field(default_factory=list)
    written_rows: int = 0
    written_bytes: int = 0
    """Bytes of the rows that are already in the sink."""
    ends_chunk: bool = False


class Readers:
    """Reads all jobs, one table after the other, with a thread for each session."""

    def __init__(
        self,
        jobs: Sequence[TableJob],
        planner: SnapshotSession,
        sessions: Sequence[SnapshotSession],
        writers: Sequence[SinkSession] = (),
        *,
        rows_per_chunk: int,
        group_bytes: int,
    ) -> None:
        self._jobs = jobs
        self._planner = planner
        self._sessions = sessions
        self._writers = writers
        self._rows_per_chunk = rows_per_chunk
        self._group_bytes = group_bytes
        self._queue: queue.Queue[RowGroup | BaseException | None] = queue.Queue(
            _QUEUED_PER_READER * len(sessions)
        )
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._plan = self._planned()

    def _planned(self) -> Iterator[tuple[TableJob, Range]]:
        for job in self._jobs:
            for range_ in chunks_of(self._planner.fetch, job.table, self._rows_per_chunk):
                job.chunks_begun += 1
                yield job, range_
            job.is_planned = True
            self._put(RowGroup(job))

    @contextmanager
    def groups(self) -> Iterator[Iterator[RowGroup]]:
        """Run the threads during the `with`; the iterator raises an error of any thread."""
        threads = [
            threading.Thread(target=self._read_all, args=(s, n), name=f"load-{n}", daemon=True)
            for n, s in enumerate(self._sessions)
        ]
        for thread in threads:
            thread.start()
        try:
            yield self._arriving(len(threads))
        finally:
            self._stop.set()
            for session in (self._planner, *self._sessions):
                session.interrupt()
            for writer in self._writers:
                writer.interrupt()
            for thread in threads:
                thread.join()

    def _arriving(self, running: int) -> Iterator[RowGroup]:
        while running:
            item = self._queue.get()
            if item is None:
                running -= 1
            elif isinstance(item, BaseException):
                raise item
            else:
                yield item

    def _read_all(self, session: SnapshotSession, number: int) -> None:
        try:
            while True:
                with self._lock:
                    found = next(self._plan, None)
                if found is None or self._stop.is_set():
                    break
                self._read(session, number, *found)
            self._put(None)
        except BaseException as error:
            self._put(error)

    def _read(self, session: SnapshotSession, number: int, job: TableJob, range_: Range) -> None:
        sql, parameters = select(job.table, job.reader.columns, range_)
        rows = session.rows(sql, parameters, job.reader)
        for group in packed(rows, self._group_bytes):
            if self._stop.is_set():
                return
            if job.inserts is None:
                self._put(RowGroup(job, group))
                continue
            self._writers[number].insert(job.inserts, group)
            size_bytes = sum(map(len, group))
            self._put(RowGroup(job, written_rows=len(group), written_bytes=size_bytes))
        self._put(RowGroup(job, ends_chunk=True))

    def _put(self, item: RowGroup | BaseException | None) -> None:
        while not self._stop.is_set():
            try:
                return self._queue.put(item, timeout=_POLL_S)
            except queue.Full:
                continue
