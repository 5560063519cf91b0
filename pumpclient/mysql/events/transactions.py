"""Transaction events: the first and the last event of a transaction, and compressed ones.

    MySQL      GTID, GTID_TAGGED or ANONYMOUS_GTID    …    XID or XA_PREPARE
    MariaDB    MARIADB_GTID                           …    XID or XA_PREPARE

(Or a QUERY with BEGIN, COMMIT or a DDL.) GTID, and ANONYMOUS_GTID with a uuid of zeros: 1 flags, 16
server uuid, 8 transaction number, then data of the commit.

GTID_TAGGED, since MySQL 8.3, is a message in the `mysql::serialization` format: version 1, its
size, the last field a reader must know, then fields, each after its number: 0 flags; 1 server uuid,
16 numbers; 2 transaction number, signed; 3 tag, a length, then its bytes; then data of the commit.
All numbers have variable length: the trailing one-bits of the first byte count the bytes that
follow; the value is in the bits above these and above the zero that ends them; a number of nine
bytes starts with 0xff. Signed numbers are folded: the lowest bit is the sign.

MARIADB_GTID, whose server is the header's:

    8   sequence number
    4   domain
    1   flags
    …   commit id, XA name, flags of newer servers

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
from enum import IntFlag
from typing import Any, Self
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
from pumpclient.mysql.gtid import MysqlGtid

_XID_PART_MAX = 64

_TAGGED_VERSION = 1
_UUID_FIELD, _NUMBER_FIELD, _TAG_FIELD, _LAST_FIELD = 1, 2, 3, 11
_LONG = 0xFF

MARIADB_BEGIN = struct.Struct("<5xI10xQIB")
"""Server, sequence number, domain and flags of a whole MARIADB_GTID event."""
_MYSQL_BEGIN = struct.Struct("<20x16sQ")


def _decode_tagged(data: bytes) -> MysqlGtid:
    """Decode a body; raise `Malformed` if it is invalid or has an unknown mandatory field."""
    body = BodyReader(data, "GTID_TAGGED")
    version, size, needed = _number(body), _number(body), _number(body)
    if version != _TAGGED_VERSION or size > len(data) or needed > _LAST_FIELD:
        raise body.malformed(f"version {version}, {size} bytes, fields up to {needed}")
    body.end = size
    fields: dict[int, Any] = {}
    while body.left and (key := _number(body)) <= _TAG_FIELD:
        fields[key] = _field(body, key)
    missing = {_UUID_FIELD, _NUMBER_FIELD, _TAG_FIELD} - fields.keys()
    if missing:
        raise body.malformed(f"fields {sorted(missing)} are missing")
    return MysqlGtid(fields[_UUID_FIELD], fields[_NUMBER_FIELD], fields[_TAG_FIELD])


def mysql_gtid_of(type_: int, event: bytes, checksum: Checksum) -> MysqlGtid | None:
    """Return only the id of a GTID or GTID_TAGGED event; None for an ANONYMOUS_GTID."""
    if type_ == EventType.ANONYMOUS_GTID:
        return None
    if type_ == EventType.GTID_TAGGED:
        return _decode_tagged(body_of(event, checksum))
    if len(event) < _MYSQL_BEGIN.size:
        raise BodyReader(event, "GTID").malformed(f"{len(event)} bytes")
    source, number = _MYSQL_BEGIN.unpack_from(event)
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
    return number >> 1 if key == _NUMBER_FIELD else number  # The sign is in the lowest bit.


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


@dataclass(frozen=True, slots=True)
class XaPrepare:
    """The end of an XA transaction's changes; with `one_phase` also its commit."""

    one_phase: bool
    name: bytes
    """As `XA COMMIT` takes it."""

    @classmethod
    def decode(cls, data: bytes) -> Self:
        body = BodyReader(data, "XA_PREPARE")
        one_phase = bool(body.uint(1))
        format_, global_size, branch_size = body.uint(4), body.uint(4), body.uint(4)
        if global_size > _XID_PART_MAX or branch_size > _XID_PART_MAX:
            raise body.malformed(f"parts of {global_size} and {branch_size} bytes")
        global_id, branch = body.take(global_size).hex(), body.take(branch_size).hex()
        body.finish()
        return cls(one_phase, f"X'{global_id}',X'{branch}',{format_}".encode())


_BLOCK_MARK, _ALGORITHM_BITS, _LENGTH_BITS = 0x80, 0x70, 0x07
_END_FIELD, _SIZE_FIELD, _COMPRESSION_FIELD, _PLAIN_SIZE_FIELD = range(4)
_ZSTD, _UNCOMPRESSED = 0, 255
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


@dataclass(frozen=True, slots=True)
class TransactionPayload:
    """All events of a transaction except its GTID, in one event."""

    is_compressed: bool
    payload: bytes
    plain_bytes: int

    @classmethod
    def decode(cls, data: bytes) -> Self:
        body = BodyReader(data, "TRANSACTION_PAYLOAD")
        fields: dict[int, int] = {}
        while (number := body.packed()) != _END_FIELD:
            value = BodyReader(body.take(body.packed()), "TRANSACTION_PAYLOAD")
            fields[number] = value.packed()
        kind = fields.get(_COMPRESSION_FIELD, _UNCOMPRESSED)
        if kind not in (_ZSTD, _UNCOMPRESSED):
            raise body.malformed(f"compression {kind} is unknown")
        payload = body.take(fields.get(_SIZE_FIELD, body.left))
        body.finish()
        return cls(kind == _ZSTD, payload, fields.get(_PLAIN_SIZE_FIELD, len(payload)))

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
        if not self.is_compressed:
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
