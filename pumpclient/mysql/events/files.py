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
    INCIDENT            2 number, 1 bytes of the message, message: data may be missing after it

The first event of a stream is a ROTATE that names its file. The FORMAT_DESCRIPTION, which tells
whether events end in checksums, comes after it. `rotate_of` recognises by the last bytes of such a
ROTATE whether it has a checksum itself.
"""

from __future__ import annotations

from dataclasses import dataclass
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
    EventType,
    Header,
    checksum_holds,
)
from pumpclient.mysql.gtid import GtidSet, MariadbGtid, MariadbGtidSet, decode_sids

_VERSION_SIZE = 50
_BINLOG_VERSION = 4
_POSITION_SIZE = 8
_COUNT_MASK = (1 << 28) - 1


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
class Incident:
    """The server reports an incident whose changes may be missing in its binlog."""

    number: int
    message: str

    @classmethod
    def decode(cls, data: bytes) -> Self:
        body = BodyReader(data, "INCIDENT")
        number = body.uint(2)
        return cls(number, body.take(body.uint(1)).decode("utf-8", "replace"))
