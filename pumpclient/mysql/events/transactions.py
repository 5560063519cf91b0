"""Events of transactions: their first and last, their statements, compressed ones, lists of GTIDs.

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

    PREVIOUS_GTIDS      the set of all earlier files, in binary as in `pumpclient.mysql.gtid`
    GTID_LIST           the same of MariaDB: 4 bytes, of which the low 28 bits count, then
                        domain 4, server 4 and sequence number 8 for each
    INCIDENT            2 number, 1 bytes of the message, message: data may be missing after it

QUERY, a statement as text, with its session variables:

    4    connection that ran it
    4    seconds it ran
    1    bytes of the default schema's name
    2    error code it ended with
    2    bytes of status variables
    n    status variables: the session that the statement ran under
    n+1  schema, then 0
    n    the statement, in the character set of the session

Each status variable is a code of one byte and a value whose length only the code gives, so an
unknown code makes everything after it unreadable.
"""

import struct
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from enum import IntFlag
from typing import Any, Self
from uuid import UUID

import zstandard

from penstock.codes import Code
from penstock.errors import Malformed
from pumpclient.mysql.events.frame import (
    CHECKSUM_SIZE,
    HEADER_SIZE,
    BodyReader,
    Checksum,
    EventType,
    body_of,
    pack_uint,
    read_header,
)
from pumpclient.mysql.gtid import GtidSet, MariadbGtid, MariadbGtidSet, MysqlGtid, decode_sids

_COUNT_MASK = (1 << 28) - 1

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
    version, size, needed = _folded(body), _folded(body), _folded(body)
    if version != _TAGGED_VERSION or size > len(data) or needed > _LAST_FIELD:
        raise body.malformed(f"version {version}, {size} bytes, fields up to {needed}")
    body.end = size
    fields: dict[int, Any] = {}
    while body.left and (key := _folded(body)) <= _TAG_FIELD:
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
    if len(event) < _MYSQL_BEGIN.size + CHECKSUM_SIZE * checksum:
        raise BodyReader(event, "GTID").malformed(f"{len(event)} bytes")
    source, number = _MYSQL_BEGIN.unpack_from(event)
    return MysqlGtid(UUID(bytes=source), number)


def _field(body: BodyReader, key: int) -> Any:
    if key == _UUID_FIELD:
        numbers = [_folded(body) for _ in range(16)]
        if max(numbers) > 0xFF:
            raise body.malformed("a uuid with a number above 255")
        return UUID(bytes=bytes(numbers))
    if key == _TAG_FIELD:
        return body.take(_folded(body)).decode("ascii", "replace")
    number = _folded(body)
    return number >> 1 if key == _NUMBER_FIELD else number  # The sign is in the lowest bit.


def _folded(body: BodyReader) -> int:
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


def listed_gtids(type_: int, body: bytes) -> GtidSet:
    """Return the GTIDs of all earlier files, which a PREVIOUS_GTIDS or GTID_LIST has."""
    if type_ == EventType.PREVIOUS_GTIDS:
        return decode_sids(body)
    reader = BodyReader(body, "GTID_LIST")
    count = reader.uint(4) & _COUNT_MASK
    found = [MariadbGtid(reader.uint(4), reader.uint(4), reader.uint(8)) for _ in range(count)]
    # A list without entries is padded to the size of an entry's head.
    if count:
        reader.finish()
    return MariadbGtidSet(found)


@dataclass(frozen=True, slots=True)
class Incident:
    """The server reports an incident whose changes may be missing in its binlog."""

    number: int
    message: str

    @classmethod
    def decode(cls, data: bytes) -> Self:
        body = BodyReader(data, "INCIDENT")
        number = body.uint(2)
        return cls(number, body.take(body.uint(1)).decode("utf-8", "replace"))


_MANY_SCHEMAS = 254
"""This number of updated schemas means: too many to be named."""


@dataclass(frozen=True, slots=True)
class StatusVariables:
    """The session of a QUERY, as far as it counts; None for a variable that was not sent."""

    flags2: int | None = None
    sql_mode: int | None = None
    auto_increment: tuple[int, int] | None = None
    charsets: tuple[int, int, int] | None = None
    """Collation ids of character_set_client, collation_connection, collation_server."""
    time_zone: str | None = None
    lc_time_names: int | None = None
    microseconds: int | None = None
    explicit_defaults_ts: int | None = None
    default_collation_utf8mb4: int | None = None
    mariadb_hrnow_us: int | None = None
    mariadb_gtid_flags3: tuple[int, int] | None = None
    """MariaDB's additional flags, and for an ALTER's second phase the number of its first, else 0.
    """
    mariadb_collations: tuple[tuple[int, int], ...] | None = None
    """character_set_collations: pairs of a charset's default collation and its replacement."""


def _skip_schemas(body: BodyReader) -> None:
    count = body.uint(1)
    for _ in range(0 if count == _MANY_SCHEMAS else count):
        end = body.data.find(b"\0", body.at)
        if end < 0:
            raise body.malformed("a name without an end")
        body.take(end + 1 - body.at)


ALTER_BEGINS, ALTER_COMMITS, ALTER_IS_UNDONE = 2, 4, 8
"""The phases of an ALTER under `binlog_alter_two_phase`, in MariaDB's flags."""


def _read_flags3(body: BodyReader) -> tuple[int, int]:
    flags = body.uint(1)
    return flags, body.uint(8) if flags & (ALTER_COMMITS | ALTER_IS_UNDONE) else 0


def _number(size: int) -> Callable[[BodyReader], int]:
    return lambda body: body.uint(size)


def _numbers(count: int) -> Callable[[BodyReader], tuple[int, ...]]:
    return lambda body: tuple(body.uint(2) for _ in range(count))


_SKIPPED = ""
_READERS: dict[int, tuple[str, Callable[[BodyReader], Any]]] = {
    0: ("flags2", _number(4)),
    1: ("sql_mode", _number(8)),
    2: (_SKIPPED, lambda body: body.take(body.uint(1) + 1)),  # The catalog, and a zero.
    3: ("auto_increment", _numbers(2)),
    4: ("charsets", _numbers(3)),
    5: ("time_zone", lambda body: body.text(body.uint(1))),
    6: (_SKIPPED, lambda body: body.take(body.uint(1))),  # The catalog.
    7: ("lc_time_names", _number(2)),
    8: (_SKIPPED, _number(2)),  # The database's collation.
    9: (_SKIPPED, _number(8)),  # The tables that an UPDATE of several changes.
    10: (_SKIPPED, _number(4)),
    11: (_SKIPPED, lambda body: (body.take(body.uint(1)), body.take(body.uint(1)))),  # The invoker.
    12: (_SKIPPED, _skip_schemas),  # The databases that it changes.
    13: ("microseconds", _number(3)),
    16: ("explicit_defaults_ts", _number(1)),
    17: (_SKIPPED, _number(8)),  # The number of a DDL's transaction.
    18: ("default_collation_utf8mb4", _number(2)),
    19: (_SKIPPED, _number(1)),  # sql_require_primary_key.
    20: (_SKIPPED, _number(1)),  # default_table_encryption.
    21: (_SKIPPED, _number(1)),  # Of MySQL 9, with statements that change rows.
    128: ("mariadb_hrnow_us", _number(3)),
    129: (_SKIPPED, _number(8)),  # The number of a DDL's transaction.
    130: ("mariadb_gtid_flags3", _read_flags3),
    131: (
        "mariadb_collations",
        lambda body: tuple((body.uint(2), body.uint(2)) for _ in range(body.uint(1))),
    ),
}


def decode_status(data: bytes) -> StatusVariables:
    """Read the variables; raise `Malformed` for an unknown code."""
    body = BodyReader(data, "QUERY status variables")
    found: dict[str, Any] = {}
    while body.left:
        code = body.uint(1)
        if code not in _READERS:
            raise body.malformed(f"variable {code} is unknown")
        name, read = _READERS[code]
        value = read(body)
        if name:
            found[name] = value
    return StatusVariables(**found)


_HEAD = struct.Struct("<IIBHH")


@dataclass(frozen=True, slots=True)
class Query:
    """A statement; BEGIN and COMMIT of non-transactional engines are also statements."""

    schema: bytes
    statement: bytes
    status: bytes = field(default=b"", repr=False)
    thread_id: int = 0
    ran_s: int = 0
    error_code: int = 0

    @classmethod
    def decode(cls, data: bytes) -> Self:
        body = BodyReader(data, "QUERY")
        thread_id, ran_s, schema_length, error_code, status_size = _HEAD.unpack(
            body.take(_HEAD.size)
        )
        status = body.take(status_size)
        schema = body.take(schema_length)
        if body.uint(1) != 0:
            raise body.malformed("no zero after the schema's name")
        return cls(schema, body.rest(), status, thread_id, ran_s, error_code)

    @classmethod
    def decode_compressed(cls, data: bytes) -> Self:
        query = cls.decode(data)
        return replace(query, statement=decompress_block(query.statement))

    def encode(self) -> bytes:
        return b"".join(
            [
                pack_uint(self.thread_id, 4),
                pack_uint(self.ran_s, 4),
                pack_uint(len(self.schema), 1),
                pack_uint(self.error_code, 2),
                pack_uint(len(self.status), 2),
                self.status,
                self.schema + b"\0",
                self.statement,
            ]
        )

    def variables(self) -> StatusVariables:
        """Return the session's variables; raise `Malformed` if a variable is unknown."""
        return decode_status(self.status)
