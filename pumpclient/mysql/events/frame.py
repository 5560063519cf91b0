"""The frame of events: header, fields of the body, checksum; and the events that frame a file.

    offset  size  field
    0       4     timestamp      seconds since 1970, 0 in events the server made for this stream
    4       1     type
    5       4     server_id      where the event was first written
    9       4     size           of the whole event, header and checksum included
    13      4     end_position   offset of the next event in its file, modulo 2^32; 0: in no file
    17      2     flags
    19      n     body
    19+n    4     CRC-32 (zlib's) of all before it, if the file's FORMAT_DESCRIPTION says so

All integers are little-endian. A FORMAT_DESCRIPTION's checksum is taken with BINLOG_IN_USE clear.
The body is untrusted input: `BodyReader` checks that each field exists.

FORMAT_DESCRIPTION is the first event of every file:

    2    binlog version, always 4
    50   the server's version, padded with zeros
    4    when the file was created, seconds; 0 when it is not the server's first since its start
    1    header length, always 19
    n    post-header length of each event type, from type 1 on
    1    checksum algorithm of the file's events

This event always has four checksum bytes after it, which are not part of the body here.

    ROTATE              8 position in the next file, then its name

The first event of a stream is a ROTATE that names its file. The FORMAT_DESCRIPTION, which tells
whether events end in checksums, comes after it. `rotate_of` recognises by the last bytes of such a
ROTATE whether it has a checksum itself.
"""

import struct
from dataclasses import dataclass
from enum import IntEnum, IntFlag
from typing import NamedTuple, Self
from zlib import crc32

from penstock.codes import Code
from penstock.errors import Malformed


class EventType(IntEnum):
    """The type of a binlog event; MariaDB's own types start at 160."""

    START_V3 = 1
    QUERY = 2
    STOP = 3
    ROTATE = 4
    INTVAR = 5
    SLAVE = 7
    APPEND_BLOCK = 9
    DELETE_FILE = 11
    RAND = 13
    USER_VAR = 14
    FORMAT_DESCRIPTION = 15
    XID = 16
    BEGIN_LOAD_QUERY = 17
    EXECUTE_LOAD_QUERY = 18
    TABLE_MAP = 19
    PRE_GA_WRITE_ROWS = 20
    PRE_GA_UPDATE_ROWS = 21
    PRE_GA_DELETE_ROWS = 22
    WRITE_ROWS_V1 = 23
    UPDATE_ROWS_V1 = 24
    DELETE_ROWS_V1 = 25
    INCIDENT = 26
    HEARTBEAT = 27
    IGNORABLE = 28
    ROWS_QUERY = 29
    WRITE_ROWS = 30
    UPDATE_ROWS = 31
    DELETE_ROWS = 32
    GTID = 33
    ANONYMOUS_GTID = 34
    PREVIOUS_GTIDS = 35
    TRANSACTION_CONTEXT = 36
    VIEW_CHANGE = 37
    XA_PREPARE = 38
    PARTIAL_UPDATE_ROWS = 39
    TRANSACTION_PAYLOAD = 40
    HEARTBEAT_V2 = 41
    GTID_TAGGED = 42
    ANNOTATE_ROWS = 160
    BINLOG_CHECKPOINT = 161
    MARIADB_GTID = 162
    GTID_LIST = 163
    START_ENCRYPTION = 164
    QUERY_COMPRESSED = 165
    WRITE_ROWS_COMPRESSED_V1 = 166
    UPDATE_ROWS_COMPRESSED_V1 = 167
    DELETE_ROWS_COMPRESSED_V1 = 168
    WRITE_ROWS_COMPRESSED = 169
    UPDATE_ROWS_COMPRESSED = 170
    DELETE_ROWS_COMPRESSED = 171


class EventFlag(IntFlag):
    """The header's flags."""

    BINLOG_IN_USE = 0x1  # Only in a FORMAT_DESCRIPTION: this file was not closed.
    FORCED_ROTATE = 0x2
    THREAD_SPECIFIC = 0x4
    SUPPRESS_USE = 0x8
    ARTIFICIAL = 0x20  # Made by the server for this stream; in no file.
    RELAY_LOG = 0x40
    IGNORABLE = 0x80  # A reader that does not know this type may skip it.
    NO_FILTER = 0x100
    MTS_ISOLATE = 0x200
    SKIP_REPLICATION = 0x8000  # MariaDB.


ROWS_TYPES = frozenset(
    {
        EventType.PRE_GA_WRITE_ROWS,
        EventType.PRE_GA_UPDATE_ROWS,
        EventType.PRE_GA_DELETE_ROWS,
        EventType.WRITE_ROWS_V1,
        EventType.UPDATE_ROWS_V1,
        EventType.DELETE_ROWS_V1,
        EventType.WRITE_ROWS,
        EventType.UPDATE_ROWS,
        EventType.DELETE_ROWS,
        EventType.PARTIAL_UPDATE_ROWS,
        EventType.WRITE_ROWS_COMPRESSED_V1,
        EventType.UPDATE_ROWS_COMPRESSED_V1,
        EventType.DELETE_ROWS_COMPRESSED_V1,
        EventType.WRITE_ROWS_COMPRESSED,
        EventType.UPDATE_ROWS_COMPRESSED,
        EventType.DELETE_ROWS_COMPRESSED,
    }
)
"""The events that `pumpclient.mysql.rows` reads, with the TABLE_MAP before them."""

HEADER = struct.Struct("<IBIIIH")
HEADER_SIZE = HEADER.size
assert HEADER_SIZE == 19  # Required by the table above.
CHECKSUM_SIZE = 4
_FLAGS_AT = 17
_ARTIFICIAL = int(EventFlag.ARTIFICIAL)  # An IntFlag's own `&` takes a microsecond.
_FORMAT_DESCRIPTION = int(EventType.FORMAT_DESCRIPTION)
_U32 = struct.Struct("<I")

CRC_OF_WHOLE = 0x2144DF1C
"""The CRC-32 of any bytes that end in their own CRC-32."""

FILE_MAGIC = b"\xfebin"
"""The first four bytes of every binlog file; its first event is at 4."""


class Checksum(IntEnum):
    """How the events of a file are protected."""

    NONE = 0
    CRC32 = 1


class Header(NamedTuple):
    """An event's header; `type` is a plain number, because it may be unknown here."""

    timestamp_s: int
    type: int
    server_id: int
    size: int
    end_position: int
    flags: int

    @property
    def is_artificial(self) -> bool:
        """Return whether the server made this event for the stream; no file contains it."""
        return bool(self.flags & _ARTIFICIAL)

    def __str__(self) -> str:
        known = self.type in EventType.__members__.values()
        name = EventType(self.type).name if known else f"type {self.type}"
        return f"event {name} that ends at {self.end_position}"


def read_header(data: bytes | memoryview, at: int = 0) -> Header:
    """Return the header at index `at`; raise `Malformed` if there is none."""
    if len(data) - at < HEADER_SIZE:
        raise Malformed(
            f"{len(data) - at} bytes where an event's header needs {HEADER_SIZE}",
            "the stream or file ends within an event",
            Code.EVENT_MALFORMED,
        )
    header = tuple.__new__(Header, HEADER.unpack_from(data, at))  # `_make` without its call.
    if header.size < HEADER_SIZE:
        raise Malformed(
            f"an event of {header.size} bytes is shorter than its header",
            "the file is damaged, or the position is not the beginning of an event",
            Code.EVENT_MALFORMED,
        )
    return header


def body_of(event: bytes, checksum: Checksum) -> bytes:
    """Return a whole event's bytes between its header and its checksum."""
    return event[HEADER_SIZE:-CHECKSUM_SIZE] if checksum else event[HEADER_SIZE:]


def make_event(
    type_: int, body: bytes, *, header: Header | None = None, checksum: Checksum = Checksum.CRC32
) -> bytes:
    """Return a whole event; `header` supplies all fields except type and size."""
    given = header or Header(0, type_, 0, 0, 0, 0)
    size = HEADER_SIZE + len(body) + (CHECKSUM_SIZE if checksum else 0)
    whole = HEADER.pack(*given._replace(type=type_, size=size)) + body
    return whole + _U32.pack(_checksum(whole)) if checksum else whole


def checksum_holds(event: bytes) -> bool:
    """Return whether the last four bytes of a whole event are its checksum."""
    end = len(event) - CHECKSUM_SIZE
    (stored,) = _U32.unpack_from(event, end)
    return bool(_checksum(memoryview(event)[:end]) == stored)


def _checksum(whole: bytes | memoryview) -> int:
    if whole[4] != _FORMAT_DESCRIPTION:
        return crc32(whole)
    flags = whole[_FLAGS_AT] & ~EventFlag.BINLOG_IN_USE
    return crc32(whole[_FLAGS_AT + 1 :], crc32(bytes([flags]), crc32(whole[:_FLAGS_AT])))


_LENGTH_BYTES = {0xFC: 2, 0xFD: 3, 0xFE: 8}
_HINT = "bytes of the event are lost, or its server writes a layout that is unknown here"


class BodyReader:
    """A cursor over a body; every read checks that the bytes exist."""

    __slots__ = ("_what", "at", "data", "end")

    def __init__(self, data: bytes, what: str, *, at: int = 0) -> None:
        self.data = data
        self.at = at
        self.end = len(data)
        self._what = what

    @property
    def left(self) -> int:
        return self.end - self.at

    def take(self, count: int) -> bytes:
        """Return the next `count` bytes; raise `Malformed` when there are fewer."""
        if count > self.end - self.at:
            raise self.malformed(f"{count} bytes wanted at {self.at} of {self.end}")
        start = self.at
        self.at += count
        return self.data[start : self.at]

    def rest(self) -> bytes:
        return self.take(self.left)

    def uint(self, size: int) -> int:
        return int.from_bytes(self.take(size), "little")

    def packed(self) -> int:
        """Return MySQL's length-encoded number: one byte below 251, else a mark and 2, 3 or 8."""
        first = self.uint(1)
        if first < 0xFB:
            return first
        if first not in _LENGTH_BYTES:
            raise self.malformed(f"{first:#x} begins no length")
        return self.uint(_LENGTH_BYTES[first])

    def text(self, size: int) -> str:
        """Return `size` bytes as UTF-8 text, as names are stored; invalid bytes are an error."""
        data = self.take(size)
        try:
            return data.decode("utf-8")
        except UnicodeDecodeError as error:
            raise self.malformed(f"a name that is not UTF-8: {data!r}") from error

    def finish(self) -> None:
        """Raise `Malformed` if any bytes are unread."""
        if self.left:
            raise self.malformed(f"{self.left} bytes too many")

    def malformed(self, problem: str) -> Malformed:
        return Malformed(f"{self._what}: {problem}", _HINT, Code.EVENT_MALFORMED)


def pack_number(number: int) -> bytes:
    if number < 0xFB:
        return bytes([number])
    for mark, size in _LENGTH_BYTES.items():
        if number < 1 << 8 * size:
            return bytes([mark]) + number.to_bytes(size, "little")
    raise ValueError(f"{number} needs more than 8 bytes")


def pack_uint(number: int, size: int) -> bytes:
    return number.to_bytes(size, "little")


_VERSION_SIZE = 50
_BINLOG_VERSION = 4
_POSITION_SIZE = 8


@dataclass(frozen=True, slots=True)
class FormatDescription:
    """Describes how to read all later events of the file."""

    server_version: str
    checksum: Checksum

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Decode the bytes after the header, the event's own checksum included.

        Raises `Malformed` for a version, header length or checksum that is unknown here.
        """
        body = BodyReader(data[: len(data) - CHECKSUM_SIZE], "FORMAT_DESCRIPTION")
        binlog_version = body.uint(2)
        version = body.take(_VERSION_SIZE).rstrip(b"\0").decode("ascii", "replace")
        body.take(4)
        header_length = body.uint(1)
        body.take(max(body.left - 1, 0))
        algorithm = body.uint(1)
        if binlog_version != _BINLOG_VERSION or header_length != HEADER_SIZE:
            raise Malformed(
                f"server {version} writes binlog version {binlog_version} with headers of"
                f" {header_length} bytes",
                "servers since MySQL 5.6 and MariaDB 10 write version 4 with 19 bytes",
                Code.EVENT_UNKNOWN,
            )
        if algorithm not in list(Checksum):
            raise Malformed(
                f"server {version} writes checksum algorithm {algorithm}",
                "set its binlog_checksum to CRC32 or NONE",
                Code.EVENT_UNKNOWN,
            )
        return cls(version, Checksum(algorithm))


def description_digest(event: bytes) -> int:
    """Return a digest of a file's FORMAT_DESCRIPTION, the same whether the file is open or closed.

    It distinguishes files of one name, because the event has the time at which the server started
    the file.
    """
    # Without its own checksum: with it, the digests of all events would be equal.
    return _checksum(event[:-CHECKSUM_SIZE]) if len(event) > _FLAGS_AT + CHECKSUM_SIZE else 0


def rotate_of(event: bytes) -> tuple[int, str]:
    """Return a ROTATE's position and file: the next after this, or that a stream is in."""
    shortest = HEADER_SIZE + _POSITION_SIZE + CHECKSUM_SIZE
    checked = len(event) > shortest and checksum_holds(event)
    body = BodyReader(event[HEADER_SIZE : len(event) - CHECKSUM_SIZE * checked], "ROTATE")
    return body.uint(_POSITION_SIZE), body.text(body.left)


def is_fake(header: Header) -> bool:
    """Return whether a ROTATE was made for the stream, so that no file contains it."""
    return header.is_artificial or header.timestamp_s == 0 or header.end_position == 0
