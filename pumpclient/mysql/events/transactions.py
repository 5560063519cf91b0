"""Transaction events: the first and the last event of a transaction, and compressed ones.

    MySQL      GTID, GTID_TAGGED or ANONYMOUS_GTID    …    XID or XA_PREPARE
    MariaDB    MARIADB_GTID                           …    XID or XA_PREPARE

(Or a QUERY with BEGIN, COMMIT or a DDL.) GTID, and ANONYMOUS_GTID with a uuid of zeros:

    1   flags: 1 the transaction may hold statements
    16  server uuid
    8   transaction number
    1   2: a logical clock follows
    8   last_committed
    8   sequence number
    7   commit time where it was just committed, µs; bit 55: the next field exists
    7   commit time where it was committed first
    n   bytes of the whole transaction, a length-encoded number
    4   version of the server that just committed it; bit 31: the next field exists
    4   version of the server that committed it first
    8   ticket of the commit group

Servers before 8.0 end after the sequence number, servers before 8.2 before the ticket.

GTID_TAGGED, since MySQL 8.3, is a message in the `mysql::serialization` format: version 1, its
size, the last field a reader must know, then fields, each after its number. All numbers have
variable length: the trailing one-bits of the first byte count the bytes that follow; the value is
in the bits above these and above the zero that ends them; a number of nine bytes starts with 0xff.
Signed numbers are folded: the lowest bit is the sign, a negative n is -1 - n.

    0   flags                              7   first commit, µs, when it differs
    1   server uuid, 16 numbers            8   bytes of the transaction
    2   transaction number, signed         9   version of the server
    3   tag: a length, then its bytes      10  version of the first server, when it differs
    4   last_committed, signed             11  ticket of the commit group
    5   sequence number, signed
    6   commit time, µs

MARIADB_GTID, whose server is the header's:

    8   sequence number
    4   domain
    1   flags
    8   commit id, with flag GROUP_COMMIT
    4   format, 1 bytes of gtrid, 1 bytes of bqual, then both, with PREPARED_XA or COMPLETED_XA
    n   flags of newer servers, or zeros up to 19 bytes in all

XID: 8 number, an InnoDB transaction is committed. XA_PREPARE: 1 committed directly, in one phase; 4
format, 4 bytes of gtrid, 4 bytes of bqual, then both.

MariaDB's compressed block (log_bin_compress), in place of a statement or of the rows' images:

    1   0x80 | algorithm << 4 | n     algorithm 0 is zlib; n is 1 to 4
    n   bytes when uncompressed, big-endian
    …   the zlib stream

MySQL's TRANSACTION_PAYLOAD (binlog_transaction_compression): fields of number, length and value,
all length-encoded, ended by number 0 alone; then the payload: whole events without checksums.

    1   bytes of the payload
    2   compression: 0 zstd, 255 none
    3   bytes when uncompressed
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum, IntFlag
from typing import Any, NamedTuple, Self
from uuid import UUID

import zstandard

from penstock.codes import Code
from penstock.errors import Malformed
from pumpclient.mysql.events.frame import (
    HEADER_SIZE,
    BodyReader,
    Checksum,
    EventType,
    body_of,
    read_header,
)
from pumpclient.mysql.gtid import MariadbGtid, MysqlGtid

_XID_SIZE = 8
_XID_PART_MAX = 64

_LOGICAL_CLOCK = 2
_ORIGINAL_TIME = 1 << 55
_ORIGINAL_VERSION = 1 << 31
NO_UUID = UUID(int=0)

_TAGGED_VERSION = 1
_SIGNED = {2, 4, 5}
_UUID_FIELD, _TAG_FIELD, _LAST_FIELD = 1, 3, 11
_LONG = 0xFF

_GTID_HEAD = struct.Struct("<QIB")
_GTID_EVENT = struct.Struct("<5xI10xQIB")  # Includes the header's server before it.
GTID_EVENT_SIZE_MIN = _GTID_EVENT.size
_MYSQL_GTID = struct.Struct("<x16sQ")


@dataclass(frozen=True, slots=True)
class CommitInfo:
    """The commit information that servers since 8.0 send with a transaction."""

    immediate_us: int
    original_us: int
    transaction_bytes: int
    immediate_version: int
    original_version: int
    ticket: int | None = None


@dataclass(frozen=True, slots=True)
class Gtid:
    """The start of a transaction; `gtid` is None in ANONYMOUS_GTID."""

    gtid: MysqlGtid | None
    flags: int = 0
    last_committed: int = 0
    sequence: int = 0
    commit: CommitInfo | None = None

    @classmethod
    def decode(cls, data: bytes) -> Self:
        body = BodyReader(data, "GTID")
        flags, source, number = body.uint(1), UUID(bytes=body.take(16)), body.uint(8)
        gtid = None if source == NO_UUID and number == 0 else MysqlGtid(source, number)
        if not body.left:
            return cls(gtid, flags)
        if body.uint(1) != _LOGICAL_CLOCK:
            raise body.malformed("a logical clock of an unknown kind")
        clock = body.uint(8), body.uint(8)
        return cls(gtid, flags, *clock, _decode_commit(body) if body.left else None)


def _decode_commit(body: BodyReader) -> CommitInfo:
    immediate_us = body.uint(7)
    original_us = immediate_us & ~_ORIGINAL_TIME
    if immediate_us & _ORIGINAL_TIME:
        immediate_us, original_us = original_us, body.uint(7)
    size = body.packed() if body.left else 0
    immediate = body.uint(4) if body.left else 0
    original = immediate & ~_ORIGINAL_VERSION
    if immediate & _ORIGINAL_VERSION:
        immediate, original = original, body.uint(4)
    ticket = body.uint(8) if body.left else None
    body.finish()
    return CommitInfo(immediate_us, original_us, size, immediate, original, ticket)


def decode_tagged(data: bytes) -> Gtid:
    """Decode a body; raise `Malformed` if it is invalid or has an unknown mandatory field."""
    body = BodyReader(data, "GTID_TAGGED")
    version, size, needed = _number(body), _number(body), _number(body)
    if version != _TAGGED_VERSION or size > len(data) or needed > _LAST_FIELD:
        raise body.malformed(f"version {version}, {size} bytes, fields up to {needed}")
    body.end = size
    fields: dict[int, Any] = {}
    while body.left:
        key = _number(body)
        if key > _LAST_FIELD:
            break  # Beyond all fields that must be known.
        fields[key] = _field(body, key)
    missing = {0, 1, 2, 3, 4, 5, 6, 8, 9} - fields.keys()
    if missing:
        raise body.malformed(f"fields {sorted(missing)} are missing")
    return Gtid(
        MysqlGtid(fields[1], fields[2], fields[3]),
        fields[0],
        fields[4],
        fields[5],
        CommitInfo(
            immediate_us=fields[6],
            original_us=fields.get(7, fields[6]),
            transaction_bytes=fields[8],
            immediate_version=fields[9],
            original_version=fields.get(10, fields[9]),
            ticket=fields.get(11),
        ),
    )


def mysql_gtid_of(type_: int, event: bytes, checksum: Checksum) -> MysqlGtid | None:
    """Return only the id of a GTID or GTID_TAGGED event; None for an ANONYMOUS_GTID."""
    if type_ == EventType.ANONYMOUS_GTID:
        return None
    if type_ == EventType.GTID_TAGGED:
        return decode_tagged(body_of(event, checksum)).gtid
    source, number = _MYSQL_GTID.unpack_from(event, HEADER_SIZE)
    return MysqlGtid(UUID(bytes=source), number)


def _field(body: BodyReader, key: int) -> Any:
    if key == _UUID_FIELD:
        numbers = [_number(body) for _ in range(16)]
        if max(numbers) > 0xFF:
            raise body.malformed("a uuid with a number above 255")
        return UUID(bytes=bytes(numbers))
    if key == _TAG_FIELD:
        return body.take(_number(body)).decode("ascii", "replace")
    number = _number(body)
    if key in _SIGNED:
        return -1 - (number >> 1) if number & 1 else number >> 1
    return number


def _number(body: BodyReader) -> int:
    first = body.uint(1)
    if first == _LONG:
        return body.uint(8)
    more = (~first & (first + 1)).bit_length() - 1
    return (first | body.uint(more) << 8) >> (more + 1)


class GtidFlag(IntFlag):
    """The flags of MariaDB's GTID events."""

    STANDALONE = (
        1  # Exactly one event follows, usually a DDL; otherwise XID, COMMIT or ROLLBACK ends.
    )
    GROUP_COMMIT = 2
    TRANSACTIONAL = 4
    ALLOW_PARALLEL = 8
    WAITED = 16
    DDL = 32
    PREPARED_XA = 64
    COMPLETED_XA = 128


# Plain numbers: an IntFlag's own `&` takes a microsecond, and these are in every transaction.
_STANDALONE = int(GtidFlag.STANDALONE)
_GROUP_COMMIT = int(GtidFlag.GROUP_COMMIT)
_XA = int(GtidFlag.PREPARED_XA | GtidFlag.COMPLETED_XA)
_LONGER = _GROUP_COMMIT | _XA


@dataclass(frozen=True, slots=True)
class XaId:
    """A distributed transaction's name."""

    format: int
    global_id: bytes
    branch: bytes

    def __str__(self) -> str:
        """Return the name as `XA COMMIT` takes it."""
        return f"X'{self.global_id.hex()}',X'{self.branch.hex()}',{self.format}"


class MariadbGtidEvent(NamedTuple):
    """The start of a transaction of MariaDB."""

    sequence: int
    domain: int
    flags: int
    commit_id: int | None = None
    xid: XaId | None = None
    rest: bytes = b""

    @classmethod
    def decode(cls, data: bytes) -> Self:
        if len(data) < _GTID_HEAD.size:
            raise BodyReader(data, "MARIADB_GTID").malformed(f"{len(data)} bytes")
        sequence, domain, flags = _GTID_HEAD.unpack_from(data)
        if not flags & _LONGER:
            rest = data[_GTID_HEAD.size :]
            return tuple.__new__(cls, (sequence, domain, flags, None, None, rest))
        body = BodyReader(data, "MARIADB_GTID", at=_GTID_HEAD.size)
        commit_id = body.uint(8) if flags & _GROUP_COMMIT else None
        xid = None
        if flags & _XA:
            format_, global_size, branch_size = body.uint(4), body.uint(1), body.uint(1)
            xid = XaId(format_, body.take(global_size), body.take(branch_size))
        return cls(sequence, domain, flags, commit_id, xid, body.rest())

    def gtid(self, server: int) -> MariadbGtid:
        return MariadbGtid(self.domain, server, self.sequence)

    @property
    def is_standalone(self) -> bool:
        """Return whether the next event is the whole transaction."""
        return bool(self.flags & _STANDALONE)


def read_begin(event: bytes) -> tuple[str, int]:
    """Return a MARIADB_GTID event's id as text and its flags, which most readers need."""
    server, sequence, domain, flags = _GTID_EVENT.unpack_from(event)
    return f"{domain}-{server}-{sequence}", flags


@dataclass(frozen=True, slots=True)
class Xid:
    """The end of a transaction of a transactional engine."""

    number: int

    @classmethod
    def decode(cls, data: bytes) -> Self:
        if len(data) != _XID_SIZE:
            raise BodyReader(data, "XID").malformed(f"{len(data)} bytes")
        return cls(int.from_bytes(data, "little"))


@dataclass(frozen=True, slots=True)
class XaPrepare:
    """The end of an XA transaction's changes; with `one_phase` also its commit."""

    one_phase: bool
    xid: XaId

    @classmethod
    def decode(cls, data: bytes) -> Self:
        body = BodyReader(data, "XA_PREPARE")
        one_phase = bool(body.uint(1))
        format_, global_size, branch_size = body.uint(4), body.uint(4), body.uint(4)
        if global_size > _XID_PART_MAX or branch_size > _XID_PART_MAX:
            raise body.malformed(f"parts of {global_size} and {branch_size} bytes")
        event = cls(one_phase, XaId(format_, body.take(global_size), body.take(branch_size)))
        body.finish()
        return event


_BLOCK_MARK, _ALGORITHM_BITS, _LENGTH_BITS = 0x80, 0x70, 0x07
_END_FIELD, _SIZE_FIELD, _COMPRESSION_FIELD, _PLAIN_SIZE_FIELD = range(4)
_PIECE_BYTES = 1 << 20
_HINT = "bytes of the event are lost, or it is compressed in a way that is unknown here"


def decompress_block(data: bytes | memoryview) -> bytes:
    """Decompress a MariaDB block; raise `Malformed` if it is not valid."""
    if not data or not data[0] & _BLOCK_MARK or data[0] & _ALGORITHM_BITS:
        raise Malformed(
            f"a compressed block that begins with {bytes(data[:1])!r}", _HINT, Code.EVENT_MALFORMED
        )
    length_size = data[0] & _LENGTH_BITS
    length = int.from_bytes(data[1 : 1 + length_size], "big")
    unpacking = zlib.decompressobj()
    try:
        plain = unpacking.decompress(data[1 + length_size :], length + 1)
    except zlib.error as error:
        raise Malformed(
            f"a damaged compressed block: {error}", _HINT, Code.EVENT_MALFORMED
        ) from error
    if len(plain) != length or not unpacking.eof:
        raise Malformed(
            f"a compressed block is not of the {length} bytes it promises",
            _HINT,
            Code.EVENT_MALFORMED,
        )
    return plain


class Compression(IntEnum):
    """How the payload of a transaction is stored."""

    ZSTD = 0
    NONE = 255


@dataclass(frozen=True, slots=True)
class TransactionPayload:
    """All events of a transaction except its GTID, in one event."""

    compression: Compression
    payload: bytes
    plain_bytes: int

    @classmethod
    def decode(cls, data: bytes) -> Self:
        body = BodyReader(data, "TRANSACTION_PAYLOAD")
        fields: dict[int, int] = {}
        while (number := body.packed()) != _END_FIELD:
            value = BodyReader(body.take(body.packed()), "TRANSACTION_PAYLOAD")
            fields[number] = value.packed()
        kind = fields.get(_COMPRESSION_FIELD, Compression.NONE)
        if kind not in list(Compression):
            raise body.malformed(f"compression {kind} is unknown")
        payload = body.take(fields.get(_SIZE_FIELD, body.left))
        body.finish()
        return cls(Compression(kind), payload, fields.get(_PLAIN_SIZE_FIELD, len(payload)))

    def events(self) -> Iterator[bytes]:
        """Yield the events one by one; at most one event, and a MiB, is in memory.

        Raises `Malformed` when the payload is damaged or does not have its declared length.
        """
        waiting = bytearray()
        total = 0
        for piece in self._pieces():
            waiting += piece
            total += len(piece)
            at = 0
            while len(waiting) - at >= HEADER_SIZE:
                size = read_header(waiting, at).size  # type: ignore[arg-type]
                if len(waiting) - at < size:
                    break
                yield bytes(waiting[at : at + size])
                at += size
            del waiting[:at]
        if waiting or total != self.plain_bytes:
            problem = f"{total} bytes in a transaction payload of {self.plain_bytes}"
            raise Malformed(
                f"{problem}, {len(waiting)} after its last event", _HINT, Code.EVENT_MALFORMED
            )

    def _pieces(self) -> Iterator[bytes]:
        if self.compression is Compression.NONE:
            yield self.payload
            return
        unpacking = zstandard.ZstdDecompressor().stream_reader(self.payload)
        try:
            while piece := unpacking.read(_PIECE_BYTES):
                yield piece
        except zstandard.ZstdError as error:
            raise Malformed(
                f"a damaged transaction payload: {error}", _HINT, Code.EVENT_MALFORMED
            ) from error
