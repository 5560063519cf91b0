"""File events: they describe a binlog file, its place, and the files before and after it.

FORMAT_DESCRIPTION is the first event of every file:

    2    binlog version, always 4
    50   the server's version, padded with zeros
    4    when the file was created, seconds; 0 when it is not the server's first since its start
    1    header length, always 19
    n    post-header length of each event type, from type 1 on
    1    checksum algorithm of the file's events

This event always has four checksum bytes after it, which are not part of the body here.

    PREVIOUS_GTIDS      the set of all earlier files, in binary as in `pumpclient.mysql.gtid`
    GTID_LIST           the same of MariaDB: 4 bytes, of which the low 28 bits count, then
                        domain 4, server 4 and sequence number 8 for each
    ROTATE              8 position in the next file, then its name
    BINLOG_CHECKPOINT   4 bytes of name, the oldest file that MariaDB's crash recovery needs
    START_ENCRYPTION    scheme 1, key version 4, nonce 12; a server's stream is decrypted
    HEARTBEAT           the name of the file; its position is the header's
    HEARTBEAT_V2        fields: number, length, value; 1 the file's name, 2 the position; 0 ends
    INCIDENT            2 number, 1 bytes of the message, message: data may be missing after it

The first event of a stream is a ROTATE that names its file. The FORMAT_DESCRIPTION, which tells
whether events end in checksums, comes after it. `rotate_of` recognises by the last bytes of such a
ROTATE whether it has a checksum itself.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Self
from zlib import crc32

from penstock.codes import Code
from penstock.errors import Malformed
from pumpclient.mysql.events.frame import (
    CHECKSUM_SIZE,
    HEADER_SIZE,
    BodyReader,
    Checksum,
    EventFlag,
    Header,
    checksum_holds,
)
from pumpclient.mysql.gtid import Flavor, MariadbGtid, MariadbGtidSet, MysqlGtidSet, decode_sids

_VERSION_SIZE = 50
_BINLOG_VERSION = 4
_POSITION_SIZE = 8
_COUNT_BITS = 28
_NAME_FIELD, _POSITION_FIELD, _END_FIELD = 1, 2, 0


@dataclass(frozen=True, slots=True)
class FormatDescription:
    """Describes how to read all later events of the file."""

    server_version: str
    created_s: int
    post_header_lengths: bytes
    checksum: Checksum

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Decode the bytes after the header, the event's own checksum included.

        Raises `Malformed` for a version, header length or checksum that is unknown here.
        """
        body = BodyReader(data[: len(data) - CHECKSUM_SIZE], "FORMAT_DESCRIPTION")
        binlog_version = body.uint(2)
        version = body.take(_VERSION_SIZE).rstrip(b"\0").decode("ascii", "replace")
        created_s = body.uint(4)
        header_length = body.uint(1)
        lengths = body.take(body.left - 1) if body.left else b""
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
        return cls(version, created_s, lengths, Checksum(algorithm))

    @property
    def flavor(self) -> Flavor:
        return Flavor.of_version(self.server_version)


_FLAGS_AT = 17


def description_digest(event: bytes) -> int:
    """Return a digest of a file's FORMAT_DESCRIPTION, the same whether the file is open or closed.

    It distinguishes files of one name, because the event has the time at which the server started
    the file.
    """
    if len(event) <= _FLAGS_AT:
        return 0
    kept = event[_FLAGS_AT] & ~EventFlag.BINLOG_IN_USE
    # Without its own checksum: with it, the digests of all events would be equal.
    return crc32(event[:_FLAGS_AT] + bytes([kept]) + event[_FLAGS_AT + 1 : -CHECKSUM_SIZE])


@dataclass(frozen=True, slots=True)
class PreviousGtids:
    """The GTIDs of all earlier files."""

    gtids: MysqlGtidSet = field(default_factory=MysqlGtidSet)

    @classmethod
    def decode(cls, data: bytes) -> Self:
        return cls(decode_sids(data))


@dataclass(frozen=True, slots=True)
class GtidList:
    """The GTIDs of all earlier files: the last id of each domain and server."""

    gtids: MariadbGtidSet = field(default_factory=MariadbGtidSet)
    flags: int = 0

    @classmethod
    def decode(cls, data: bytes) -> Self:
        body = BodyReader(data, "GTID_LIST")
        flags, count = divmod(body.uint(4), 1 << _COUNT_BITS)
        found = [MariadbGtid(body.uint(4), body.uint(4), body.uint(8)) for _ in range(count)]
        # A list without entries is padded to the size of an entry's head.
        if count:
            body.finish()
        return cls(MariadbGtidSet(found), flags)


@dataclass(frozen=True, slots=True)
class Rotate:
    """The next file after this; an artificial event names the file that a stream is in."""

    position: int
    file: str

    @classmethod
    def decode(cls, data: bytes) -> Self:
        body = BodyReader(data, "ROTATE")
        return cls(body.uint(8), body.text(body.left))


def rotate_of(event: bytes) -> Rotate:
    shortest = HEADER_SIZE + _POSITION_SIZE + CHECKSUM_SIZE
    checked = len(event) > shortest and checksum_holds(event)
    return Rotate.decode(event[HEADER_SIZE : len(event) - CHECKSUM_SIZE * checked])


def is_fake(header: Header) -> bool:
    """Return whether a ROTATE was made for the stream, so that no file contains it."""
    return header.is_artificial or header.timestamp_s == 0 or header.end_position == 0


@dataclass(frozen=True, slots=True)
class BinlogCheckpoint:
    """The oldest file that the server's crash recovery may need."""

    file: str

    @classmethod
    def decode(cls, data: bytes) -> Self:
        body = BodyReader(data, "BINLOG_CHECKPOINT")
        event = cls(body.text(body.uint(4)))
        body.finish()
        return event


@dataclass(frozen=True, slots=True)
class StartEncryption:
    """The rest of the file is encrypted; a stream is not."""

    scheme: int
    key_version: int
    nonce: bytes

    @classmethod
    def decode(cls, data: bytes) -> Self:
        body = BodyReader(data, "START_ENCRYPTION")
        event = cls(body.uint(1), body.uint(4), body.take(12))
        body.finish()
        return event


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """The server is alive and has no new events; `position` is None where the header has it."""

    file: str
    position: int | None = None

    @classmethod
    def decode(cls, data: bytes) -> Self:
        body = BodyReader(data, "HEARTBEAT")
        return cls(body.text(body.left))

    @classmethod
    def decode_v2(cls, data: bytes) -> Self:
        """Decode a HEARTBEAT_V2; unknown fields are skipped, as the format intends."""
        body = BodyReader(data, "HEARTBEAT_V2")
        file, position = "", None
        while body.left and (number := body.packed()) != _END_FIELD:
            value = BodyReader(body.take(body.packed()), "HEARTBEAT_V2")
            if number == _NAME_FIELD:
                file = value.text(value.left)
            elif number == _POSITION_FIELD:
                position = value.packed()
        return cls(file, position)


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
