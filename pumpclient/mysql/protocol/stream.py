"""Streams a server's binlog events over one session that is watched for stalls.

    BinlogStream(address, options) → identity → start_at or start_after → batches → close

The session asks for the server's identity before it asks for events, so both answers are from the
same server, even if a virtual address moves. `session_statements` make the session a replica's.
Its commands:

    COM_REGISTER_SLAVE    15 | server id 4 | 1 + host | 1 + user | 1 + password | port 2 | 0 4 | 0 4
    COM_BINLOG_DUMP       12 | position 4 | flags 2 | server id 4 | file
    COM_BINLOG_DUMP_GTID  1e | flags 2 | server id 4 | 4 + file | position 8 | 4 + GTID set

(numbers in hexadecimal, little-endian; n + x is a length in n bytes before x). The stream:

    event    00 | with semi-sync: ef, 1 when an acknowledgement is requested | event
    error    ff | code 2 | # | state 5 | message
    end      fe, in fewer than 9 bytes
    ACK      ef | position 8 | file

A packet is 3 bytes of length, 1 of sequence, payload; 0xffffff bytes continue in the next packet.
"""

import contextlib
import logging
import secrets
import select
import socket
import ssl
import struct
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import Any
from uuid import UUID, uuid4

import pymysql

from penstock.codes import Code
from penstock.errors import NeedsOperator, PenstockError, Retryable
from pumpclient.mysql.gtid import Flavor, GtidSet, MariadbGtidSet, MysqlGtidSet, encode_sids
from pumpclient.mysql.protocol.server import (
    GRANT,
    RELOAD_ALL,
    ServerAddress,
    ServerIdTaken,
    identify,
    refusal,
    replica_ids,
    server_errors,
)

FULL_PACKET = 0xFFFFFF
_HEAD = struct.Struct("<I")
_ERROR = struct.Struct("<H")
_SEMI_SYNC = 0xEF
_OK, _EOF, _ERR = 0x00, 0xFE, 0xFF
_EOF_SIZE_END = 9
_POSITION_END = 1 << 32


_SEND_ANNOTATE = 0x02
"""A flag of MariaDB's dump: without it ANNOTATE_ROWS are omitted, and files have holes."""
_THROUGH_GTID = 0x04
"""A flag of MySQL's dump: start by the GTID set."""


def register_replica(server_id: int, host: str = "") -> bytes:
    """Return COM_REGISTER_SLAVE; `host` is what SHOW REPLICAS shows."""
    name = host.encode()[:60]
    fixed = struct.pack("<BIB", 0x15, server_id, len(name))
    return fixed + name + struct.pack("<BBHII", 0, 0, 0, 0, 0)


def dump_from_position(server_id: int, file: str, position: int, flags: int = 0) -> bytes:
    """Return COM_BINLOG_DUMP; an empty `file` is the first, or MariaDB's start by GTID."""
    assert position < _POSITION_END, "the command has four bytes for it"
    return struct.pack("<BIHI", 0x12, position, flags, server_id) + file.encode()


def dump_from_gtids(server_id: int, gtids: MysqlGtidSet) -> bytes:
    """Return MySQL's COM_BINLOG_DUMP_GTID: everything that `gtids` does not hold."""
    data = encode_sids(gtids)
    head = struct.pack("<BHII", 0x1E, _THROUGH_GTID, server_id, 0)
    return head + struct.pack("<QI", 4, len(data)) + data


def acknowledge(file: str, position: int) -> bytes:
    """Return the semi-sync packet that reports everything up to here as on disk."""
    payload = struct.pack("<BQ", _SEMI_SYNC, position) + file.encode()
    return _HEAD.pack(len(payload)) + payload


class PacketReader:
    """Splits received bytes into events; bytes of an incomplete packet wait for the rest."""

    def __init__(self, *, semi_sync: bool) -> None:
        """Start with the answer to a command, which has sequence number 1."""
        self._left = b""
        self._pieces: list[bytes] = []
        self._sequence = 1
        self._semi_sync = semi_sync
        self.ack_wanted = False
        self.is_ended = False

    def feed(self, data: bytes) -> list[bytes]:
        """Return the events that are complete with `data`.

        Raises the error that `refusal` makes of an error packet once the events before it were
        returned, and `Retryable` when packets are lost.
        """
        data = self._left + data if self._left else data
        self._left = b""
        events: list[bytes] = []
        at, end, sequence = 0, len(data), self._sequence
        is_plain = not self._semi_sync
        while end - at >= 4:
            (head,) = _HEAD.unpack_from(data, at)
            size = head & FULL_PACKET
            stop = at + 4 + size
            if stop > end:
                break
            if head >> 24 != sequence:
                sequence = self._resequence(head >> 24, sequence)
            if is_plain and size < FULL_PACKET and not self._pieces and size and not data[at + 4]:
                events.append(data[at + 5 : stop])
            elif not self._take(data[at + 4 : stop], events):
                self._left = data[at:]  # It is reported once the events before it are consumed.
                self._sequence = sequence
                return events
            at, sequence = stop, (sequence + 1) & 0xFF
        self._left, self._sequence = data[at:], sequence
        return events

    def _resequence(self, found: int, expected: int) -> int:
        # A caller that requests acknowledgements restarts at 1. An error at shutdown has 0.
        if found in (0, 1):
            return found
        raise Retryable(
            f"packet {found} of a dump where {expected} was due: packets are lost", Code.SERVER_AWAY
        )

    def _take(self, payload: bytes, events: list[bytes]) -> bool:
        """Process a packet that is not a plain event; return False if it must wait."""
        if len(payload) == FULL_PACKET:
            self._pieces.append(payload)
            return True
        if self._pieces:
            payload = b"".join([*self._pieces, payload])
            self._pieces = []
        first = payload[0] if payload else _EOF
        if first == _OK:
            at = 1
            if self._semi_sync and payload[1] == _SEMI_SYNC:
                self.ack_wanted = self.ack_wanted or bool(payload[2])
                at = 3
            events.append(payload[at:])
            return True
        if events:
            return False
        if first == _EOF and len(payload) < _EOF_SIZE_END:
            self.is_ended = True
            return True
        raise error_of(payload)


def error_of(payload: bytes) -> Exception:
    if payload[:1] != bytes([_ERR]):
        return Retryable(f"a packet of a dump begins with {payload[:1]!r}", Code.SERVER_AWAY)
    (code,) = _ERROR.unpack_from(payload, 1)
    message = payload[9:] if payload[3:4] == b"#" else payload[3:]
    return refusal(code, message.decode("utf-8", "replace"))


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


SessionStatement = tuple[str, tuple[object, ...]]


def session_statements(
    flavor: Flavor,
    *,
    heartbeat_s: float,
    replica_uuid: UUID,
    semi_sync: bool = False,
    start_after: MariadbGtidSet | None = None,
) -> list[SessionStatement]:
    """Return a replica session's statements; `start_after` makes MariaDB start by GTID.

    MySQL renamed its variables in 8.0.26 and dropped the old names in 8.4: a session variable of
    either name may be set everywhere, so both are.
    """
    period_ns = round(heartbeat_s * _NS_PER_S)
    statements: list[SessionStatement] = [
        ("SET @master_binlog_checksum = @@global.binlog_checksum", ()),
        ("SET @master_heartbeat_period = %s", (period_ns,)),
    ]
    if flavor is Flavor.MARIADB:
        statements.append(("SET @mariadb_slave_capability = %s", (_MARIADB_CAPABILITY,)))
        if start_after is not None:
            behind = ",".join(map(str, start_after.position()))
            statements += [
                ("SET @slave_connect_state = %s", (behind,)),
                ("SET @slave_gtid_strict_mode = 1", ()),
                ("SET @slave_gtid_ignore_duplicates = 0", ()),
            ]
    else:
        uuid = str(replica_uuid)
        statements += [
            ("SET @source_binlog_checksum = @@global.binlog_checksum", ()),
            ("SET @source_heartbeat_period = %s", (period_ns,)),
            ("SET @slave_uuid = %s, @replica_uuid = %s", (uuid, uuid)),
        ]
    if semi_sync:
        statements.append(("SET @rpl_semi_sync_slave = 1", ()))
        if flavor is Flavor.MYSQL:
            statements.append(("SET @rpl_semi_sync_replica = 1", ()))
    return statements


logger = logging.getLogger(__name__)

_RECEIVED_BYTES_MAX = 256 << 10


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

    def start_at(self, file: str, position: int) -> None:
        self._dump(self._set_up(None), file, position)

    def start_after(self, gtids: GtidSet) -> None:
        if isinstance(gtids, MariadbGtidSet):
            self._check_flavor(Flavor.MARIADB)
            self._dump(self._set_up(gtids), "", 4)
            return
        assert isinstance(gtids, MysqlGtidSet)
        self._check_flavor(Flavor.MYSQL)
        server_id = self._set_up(None)
        self._send(dump_from_gtids(server_id, gtids))

    def _check_flavor(self, flavor: Flavor) -> None:
        if self.identity.flavor is not flavor:
            raise NeedsOperator(
                f"{self._address} runs {self.identity.version}, the GTIDs are of {flavor.value}",
                f"a source cannot go over from MySQL to MariaDB or back: {RELOAD_ALL}",
                Code.SERVER_POSITION_LOST,
            )

    def _dump(self, server_id: int, file: str, position: int) -> None:
        flags = _SEND_ANNOTATE if self.identity.flavor is Flavor.MARIADB else 0
        self._send(dump_from_position(server_id, file, position, flags))

    def _set_up(self, start_after: MariadbGtidSet | None) -> int:
        statements = session_statements(
            self.identity.flavor,
            heartbeat_s=self._options.heartbeat_s,
            replica_uuid=uuid4(),
            semi_sync=self._options.semi_sync,
            start_after=start_after,
        )
        with server_errors(self._address):
            with self._connection.cursor() as cursor:
                for statement, parameters in statements:
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
            raise NeedsOperator(problem, GRANT, Code.SERVER_GRANT) from error

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
        lost or stalled, and the error that `refusal` makes of the server's error.
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
                        Code.SERVER_AWAY,
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
                f"another replica has server id {self._options.server_id}: choose another",
                Code.SERVER_ID_TAKEN,
            ) from error
        except NeedsOperator as error:
            problem = f"{self._address}: {error.problem}"
            raise type(error)(problem, hint=error.hint, code=error.code) from error

    def _receive(self) -> Iterator[bytes | None]:
        """Yield data from the socket, or None after each `idle_s` without data."""
        sock = self._private("_sock")
        if sock is None:
            raise Retryable(f"{self._address}: the connection is closed", Code.SERVER_AWAY)
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
                    f"{self._address}: the connection was cut: {error}", Code.SERVER_AWAY
                ) from error
        if not self._closing:
            raise Retryable(f"{self._address}: the server closed the connection", Code.SERVER_AWAY)

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
