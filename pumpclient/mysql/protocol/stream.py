"""Streams a server's binlog events over one session that is watched for stalls.

    BinlogStream(address, options) → identity → start_at or start_after → batches → close

The session asks for the server's identity before it asks for events, so both answers are from the
same server, even if a virtual address moves. `session_statements` make the session a replica's.

`file_after` and `file_at` use it to find the file to start from, by a GTID set or a point in time.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import logging
import secrets
import select
import socket
import ssl
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Any, NamedTuple
from uuid import UUID, uuid4

import pymysql

from penstock.codes import Code
from penstock.errors import NeedsOperator, PenstockError, Retryable
from pumpclient.mysql.events.files import description_digest, rotate_of
from pumpclient.mysql.events.frame import EventType, read_header
from pumpclient.mysql.gtid import Flavor, GtidSet, MariadbGtidSet, MysqlGtidSet
from pumpclient.mysql.protocol.address import ServerAddress, server_errors
from pumpclient.mysql.protocol.packets import (
    DumpFlag,
    PacketReader,
    acknowledge,
    dump_from_gtids,
    dump_from_position,
    register_replica,
)
from pumpclient.mysql.protocol.refusals import (
    GRANT,
    PURGED_HINT,
    RELOAD_ALL,
    PositionLost,
    Purged,
    ServerIdTaken,
)
from pumpclient.mysql.protocol.server import ServerIdentity, binlog_files, identify, replica_ids

FIRST_DRAWN = (1 << 32) // 10
DRAWN = 100_000
"""People assign small numbers; drawn numbers are far from these."""


def draw_server_id(taken: Collection[int], below: Callable[[int], int]) -> int:
    """Return a server id that is not `taken`; `below(n)` draws from 0 to n - 1."""
    assert len(taken) < DRAWN, "more replicas than numbers"
    while (drawn := FIRST_DRAWN + below(DRAWN)) in taken:
        pass
    return drawn


_MARIADB_CAPABILITY = 4
"""Understands MariaDB's GTIDs; without it they come as QUERY "BEGIN", and files differ."""

_NS_PER_S = 1_000_000_000
_LOGIN_REFUSED = 1045


@dataclass(frozen=True, slots=True)
class ReplicaSession:
    """Settings of a replica's session. `start_after` makes MariaDB start by GTID."""

    heartbeat_s: float
    replica_uuid: UUID
    semi_sync: bool = False
    start_after: MariadbGtidSet | None = None
    gtid_strict_mode: bool = True


SessionStatement = tuple[str, tuple[object, ...]]


def session_statements(flavor: Flavor, wanted: ReplicaSession) -> list[SessionStatement]:
    """Return statements with their parameters.

    MySQL renamed its variables in 8.0.26 and dropped the old names in 8.4: a session variable of
    either name may be set everywhere, so both are.
    """
    period_ns = round(wanted.heartbeat_s * _NS_PER_S)
    statements: list[SessionStatement] = [
        ("SET @master_binlog_checksum = @@global.binlog_checksum", ()),
        ("SET @master_heartbeat_period = %s", (period_ns,)),
    ]
    if flavor is Flavor.MARIADB:
        statements.append(("SET @mariadb_slave_capability = %s", (_MARIADB_CAPABILITY,)))
        if wanted.start_after is not None:
            statements += _mariadb_start(wanted.start_after, strict=wanted.gtid_strict_mode)
    else:
        uuid = str(wanted.replica_uuid)
        statements += [
            ("SET @source_binlog_checksum = @@global.binlog_checksum", ()),
            ("SET @source_heartbeat_period = %s", (period_ns,)),
            ("SET @slave_uuid = %s, @replica_uuid = %s", (uuid, uuid)),
        ]
    if wanted.semi_sync:
        statements.append(("SET @rpl_semi_sync_slave = 1", ()))
        if flavor is Flavor.MYSQL:
            statements.append(("SET @rpl_semi_sync_replica = 1", ()))
    return statements


def _mariadb_start(gtids: MariadbGtidSet, *, strict: bool) -> list[SessionStatement]:
    behind = ",".join(map(str, gtids.position()))
    return [
        ("SET @slave_connect_state = %s", (behind,)),
        ("SET @slave_gtid_strict_mode = %s", (int(strict),)),
        ("SET @slave_gtid_ignore_duplicates = 0", ()),
    ]


logger = logging.getLogger(__name__)

_RECEIVED_BYTES_MAX = 256 << 10
_OK = 0x00


@dataclass(frozen=True, slots=True)
class StreamOptions:
    """Settings of the replication. `server_id` None draws a free one at each connection.

    A stream without event or heartbeat for `stalled_periods` heartbeats has failed; `idle_s` is the
    interval in which `batches` yields an empty list.
    """

    server_id: int | None = None
    heartbeat_s: float = 10.0
    stalled_periods: int = 3
    idle_s: float = 0.5
    semi_sync: bool = False
    gtid_strict_mode: bool = True


class BinlogStream:
    """One session and its dump; `start` once, then `batches`. `close` may come from any thread."""

    def __init__(self, address: ServerAddress, options: StreamOptions) -> None:
        self._address = address
        self._options = options
        self._closing = False
        self._connection = address.connect()
        self._reader = PacketReader(semi_sync=False)
        try:
            with server_errors(address):
                self.identity = identify(self._connection)
        except BaseException:
            self._connection.close()
            raise
        self._thread_id: int = self._connection.thread_id()  # type: ignore[no-untyped-call]

    @property
    def ack_wanted(self) -> bool:
        return self._reader.ack_wanted

    def start_at(self, file: str, position: int, *, to_the_end: bool = False) -> None:
        """Request everything from a position on; `to_the_end` ends there instead of waiting."""
        server_id = self._set_up(None)
        flags = self._flags(to_the_end=to_the_end)
        self._send(dump_from_position(server_id, file, position, flags))

    def start_after(self, gtids: GtidSet) -> None:
        if isinstance(gtids, MariadbGtidSet):
            self._check_flavor(Flavor.MARIADB)
            server_id = self._set_up(gtids)
            self._send(dump_from_position(server_id, "", 4, self._flags()))
            return
        assert isinstance(gtids, MysqlGtidSet)
        self._check_flavor(Flavor.MYSQL)
        server_id = self._set_up(None)
        self._send(dump_from_gtids(server_id, gtids))

    def _check_flavor(self, flavor: Flavor) -> None:
        if self.identity.flavor is not flavor:
            raise NeedsOperator(
                f"{self._address} runs {self.identity.version}, the GTIDs are of {flavor.value}",
                hint=f"a source cannot go over from MySQL to MariaDB or back: {RELOAD_ALL}",
                code=Code.SERVER_POSITION_LOST,
            )

    def _flags(self, *, to_the_end: bool = False) -> int:
        flags = DumpFlag.NON_BLOCK if to_the_end else DumpFlag(0)
        if self.identity.flavor is Flavor.MARIADB:
            flags |= DumpFlag.SEND_ANNOTATE
        return flags

    def _set_up(self, start_after: MariadbGtidSet | None) -> int:
        session = ReplicaSession(
            heartbeat_s=self._options.heartbeat_s,
            replica_uuid=uuid4(),
            semi_sync=self._options.semi_sync,
            start_after=start_after,
            gtid_strict_mode=self._options.gtid_strict_mode,
        )
        with server_errors(self._address):
            with self._connection.cursor() as cursor:
                for statement, parameters in session_statements(self.identity.flavor, session):
                    cursor.execute(statement, parameters)
            server_id = self._options.server_id
            if server_id is None:
                server_id = draw_server_id(replica_ids(self._connection), secrets.randbelow)
            self._send(register_replica(server_id, socket.gethostname()))
            self._registered()
        self._reader = PacketReader(semi_sync=self._options.semi_sync)
        return server_id

    def _registered(self) -> None:
        try:
            self._private("_read_packet")()
        except pymysql.err.OperationalError as error:
            code, text = error.args
            if code != _LOGIN_REFUSED:
                raise
            # The login succeeded, so the password is not wrong.
            problem = f"{self._address}: may not replicate: error {code}: {text}"
            raise NeedsOperator(problem, hint=GRANT, code=Code.SERVER_GRANT) from error

    def _private(self, name: str) -> Any:
        # PyMySQL has no public way to send another command; a test checks that these exist.
        return getattr(self._connection, name)

    def _send(self, payload: bytes) -> None:
        with server_errors(self._address):
            self._private("_write_bytes")(len(payload).to_bytes(3, "little") + b"\0" + payload)
            self._connection._next_seq_id = 1  # type: ignore[attr-defined]

    def batches(self) -> Iterator[list[bytes]]:
        """Yield lists of consecutive events; an empty list when none arrived for a while.

        Ends when the stream is closed or asked to end. Raises `Retryable` when the connection is
        lost or stalled, and the error that `refusals` makes of the server's error.
        """
        stalled_s = self._options.heartbeat_s * self._options.stalled_periods
        heard_s = time.monotonic()
        received = self._receive()
        for data in received:
            now_s = time.monotonic()
            if data is None:
                if now_s - heard_s > stalled_s:
                    raise Retryable(
                        f"{self._address}: neither event nor heartbeat for {stalled_s:g} s",
                        code=Code.SERVER_AWAY,
                    )
                yield []
                continue
            heard_s = now_s
            while events := self._feed(data):
                yield events
                data = b""
            if self._reader.is_ended:
                return

    def _feed(self, data: bytes) -> list[bytes]:
        try:
            return self._reader.feed(data)
        except ServerIdTaken as error:
            if self._options.server_id is None:
                raise  # The next connection draws another.
            raise NeedsOperator(
                f"{self._address}: {error}",
                hint=f"another replica has server id {self._options.server_id}: choose another",
                code=Code.SERVER_ID_TAKEN,
            ) from error
        except NeedsOperator as error:
            problem = f"{self._address}: {error.problem}"
            raise type(error)(problem, hint=error.hint, code=error.code) from error

    def _receive(self) -> Iterator[bytes | None]:
        """Yield data from the socket, or None after each `idle_s` without data."""
        sock = self._private("_sock")
        if sock is None:
            raise Retryable(f"{self._address}: the connection is closed", code=Code.SERVER_AWAY)
        poll = select.poll()
        poll.register(sock, select.POLLIN)
        timeout_ms = self._options.idle_s * 1000
        try:
            while not self._closing:
                pending = isinstance(sock, ssl.SSLSocket) and sock.pending()
                if not pending and not poll.poll(timeout_ms):
                    yield None
                    continue
                data = sock.recv(_RECEIVED_BYTES_MAX)
                if not data:
                    break
                yield data
        except OSError as error:
            if not self._closing:
                raise Retryable(
                    f"{self._address}: the connection was cut: {error}", code=Code.SERVER_AWAY
                ) from error
        if not self._closing:
            raise Retryable(
                f"{self._address}: the server closed the connection", code=Code.SERVER_AWAY
            )

    def events(self) -> Iterator[bytes]:
        for batch in self.batches():
            yield from batch

    def ack(self, file: str, position: int) -> None:
        """Report to the server that everything up to here is on disk."""
        self._reader.ack_wanted = False
        with server_errors(self._address):
            self._private("_write_bytes")(acknowledge(file, position))

    def close(self) -> None:
        """End the stream; if the server's thread is not killed, it runs until it next sends."""
        if self._closing:
            return
        self._closing = True
        sock = self._private("_sock")
        if sock is not None:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
            with contextlib.suppress(PenstockError), self._address.session() as other:
                self._kill(other)
        self._private("_force_close")()

    def _kill(self, other: Any) -> None:
        # Behind a virtual address this may be another server, where the number belongs to another
        # thread.
        if identify(other) != self.identity:
            logger.info("%s leads to another server now: no dump thread killed", self._address)
            return
        with contextlib.suppress(Exception), other.cursor() as cursor:
            cursor.execute(
                "SELECT 1 FROM information_schema.processlist"
                " WHERE id = %s AND command LIKE 'Binlog Dump%%'",
                (self._thread_id,),
            )
            if cursor.fetchall():
                cursor.execute("KILL %s", (self._thread_id,))


_FIRST_POSITION = 4


def description_of(
    address: ServerAddress, options: StreamOptions, file: str
) -> tuple[ServerIdentity, bytes]:
    with closing(BinlogStream(address, options)) as stream:
        stream.start_at(file, _FIRST_POSITION)
        for event in stream.events():
            if read_header(event).type == EventType.FORMAT_DESCRIPTION:
                return stream.identity, event
    raise Retryable(f"{address}: the stream ended before {file} began", code=Code.SERVER_AWAY)


class History(NamedTuple):
    """The whole binlog of a server, identified by the first event of its oldest file.

    Names of files, positions and GTIDs are reused after a RESET MASTER and in a restored server.
    The first event of a file is unique: it has the time at which the file was started.
    """

    server: ServerIdentity
    file: str
    begun_s: int
    digest: int

    @property
    def name(self) -> str:
        return f"{self.server.uuid} {self.file} {self.digest:08x}"

    def __str__(self) -> str:
        begun = dt.datetime.fromtimestamp(self.begun_s, dt.UTC).isoformat(" ", "seconds")
        return f"{self.file} of {self.server.uuid}, begun {begun}"


def history_of(address: ServerAddress, options: StreamOptions) -> History:
    """Return a server's current history; raise `NeedsOperator` if it has no binlog."""
    with address.session() as connection:
        names = [file.name for file in binlog_files(connection)]
    if not names:
        raise PositionLost(
            f"{address} has no binlog", hint="start it with log_bin", code=Code.SERVER_SETTING
        )
    server, event = description_of(address, options, names[0])
    return History(server, names[0], read_header(event).timestamp_s, description_digest(event))


def file_after(
    address: ServerAddress, options: StreamOptions, gtids: GtidSet
) -> tuple[ServerIdentity, str]:
    """Return the server's identity, and its file with the first transaction not in `gtids`.

    Raises `Purged` when that file is deleted, and `NeedsOperator` when the server never had
    `gtids`.
    """
    with closing(BinlogStream(address, options)) as stream:
        stream.start_after(gtids)
        file = ""
        for event in stream.events():
            if read_header(event).type == EventType.ROTATE:
                file = rotate_of(event).file
            elif file:
                return stream.identity, file  # Otherwise a refusal would have come.
    raise Retryable(f"{address}: the stream ended before it began", code=Code.SERVER_AWAY)


def file_at(address: ServerAddress, options: StreamOptions, time_s: int) -> str:
    """Return the last file that was started at or before `time_s` (seconds since 1970).

    Raises `Purged` when even the oldest was started later: changes since then are gone.
    """
    with address.session() as connection:
        names = [file.name for file in binlog_files(connection)]
    low, high = 0, len(names)
    while low < high:  # The first file started after `time_s` is at or after `low`.
        middle = (low + high) // 2
        _, event = description_of(address, options, names[middle])
        if read_header(event).timestamp_s <= time_s:
            low = middle + 1
        else:
            high = middle
    if not names:
        raise NeedsOperator(
            f"{address} has no binlog", hint="start it with log_bin", code=Code.SERVER_SETTING
        )
    if low == 0:
        raise Purged(
            f"{address}: {names[0]} began after {time_s}",
            hint=PURGED_HINT,
            code=Code.SERVER_POSITION_LOST,
        )
    return names[low - 1]
