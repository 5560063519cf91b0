"""Snapshot sessions: all see the same state of a server; rows are read from them quickly.

The global read lock is held only while every session starts its snapshot and the end of the binlog
is read. A server that may not be locked, or cannot be within `_LOCK_S`, is an error: without the
lock several sessions cannot share one consistent state.
"""

from __future__ import annotations

import contextlib
import logging
import socket
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import pymysql

from penstock.codes import Code
from penstock.errors import NeedsOperator, Retryable
from pumpclient.mysql.load.state import BinlogPlace
from pumpclient.mysql.load.text_rows import PACKET_BYTES_MAX, TextRows
from pumpclient.mysql.protocol.address import Connection, ServerAddress, server_errors
from pumpclient.mysql.protocol.server import ServerIdentity, identify, is_tidb, master_status

log = logging.getLogger(__name__)

_RECEIVED_BYTES = 256 << 10
_LOCK_S = 20
_DAY_S = 86400
_CHANGED = (1146, 1412, 1054, 1049)
"""No such table, column or database, or another definition than the snapshot's."""
_REFUSED = (1044, 1045, 1227)


_SETTINGS = (
    # An invalid date is a valid bound of a key.
    "SET SESSION sql_mode = 'ALLOW_INVALID_DATES', time_zone = '+00:00', sql_quote_show_create = 1",
    f"SET SESSION net_write_timeout = {_DAY_S}, wait_timeout = {_DAY_S}",
    "SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ",
)
_BEGIN = "START TRANSACTION WITH CONSISTENT SNAPSHOT"


class SnapshotSession:
    """A connection within its snapshot; for one thread."""

    def __init__(self, address: ServerAddress, *, moment: bool = True) -> None:
        """Connect; with `moment`, `begin` starts the snapshot."""
        self._address = address
        self.connection: Connection = address.connect()
        self.is_tidb = is_tidb(self.connection)
        with server_errors(address), self.connection.cursor() as cursor:
            for statement in _SETTINGS if moment else _SETTINGS[:2]:
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
        """Return a small result; a table that has changed raises `Retryable`."""
        with self._errors(), self.connection.cursor() as cursor:
            cursor.execute(sql, parameters or None)
            return list(cursor.fetchall())

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
                        f"{self._address}: the server closed the connection", code=Code.SERVER_AWAY
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
                        f"the schema changed while it was loaded: {error}", code=Code.LOAD_DISTURBED
                    ) from error
                raise


def _exactly(file: Any, data: bytes, size: int) -> tuple[bytes, bytes]:
    if len(data) < size:
        data += file.read(size - len(data))
        if len(data) < size:
            raise Retryable("the server closed the connection within a row", code=Code.SERVER_AWAY)
    return data[:size], data[size:]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Sessions with the same consistent state, and the end of the binlog at that state."""

    identity: ServerIdentity
    place: BinlogPlace
    sessions: tuple[SnapshotSession, ...]


@contextmanager
def snapshot(address: ServerAddress, count: int) -> Iterator[Snapshot]:
    """Open `count` sessions with the same consistent state for the `with`.

    Raises `NeedsOperator` when the user may not lock, `Retryable` when a long statement of another
    session prevents the lock.
    """
    with ExitStack() as opened:
        sessions = []
        for _ in range(count):
            sessions.append(SnapshotSession(address))
            opened.callback(sessions[-1].close)
        identity, place = _at_one_moment(address, sessions)
        yield Snapshot(identity, place, tuple(sessions))


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
            f"{address}: {count} XA transactions are prepared: end them first",
            code=Code.XA_PREPARED,
        )


def _at_one_moment(
    address: ServerAddress, sessions: Sequence[SnapshotSession]
) -> tuple[ServerIdentity, BinlogPlace]:
    with address.session() as locker, locker.cursor() as cursor:
        identity = identify(locker)
        cursor.execute(f"SET SESSION lock_wait_timeout = {_LOCK_S}")
        try:
            cursor.execute("FLUSH TABLES WITH READ LOCK")
        except pymysql.err.MySQLError as error:
            if error.args[0] in _REFUSED:
                raise NeedsOperator(
                    f"{address}: the user may not lock all tables for a moment: {error}",
                    hint="GRANT RELOAD ON *.* TO the user",
                    code=Code.SERVER_GRANT,
                ) from error
            raise
        try:
            _check_prepared(locker, address)
            for session in sessions:
                session.begin()
            status = master_status(locker, identity.flavor)
        finally:
            with contextlib.suppress(pymysql.err.MySQLError):
                cursor.execute("UNLOCK TABLES")
    return identity, BinlogPlace(status.file, status.position, str(status.gtids))
