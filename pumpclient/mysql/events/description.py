"""FORMAT_DESCRIPTION: how the events of a file are laid out; the first event of every file.

    2    binlog version, always 4
    50   the server's version, padded with zeros
    4    when the file was created, seconds; 0 when it is not the server's first since its start
    1    header length, always 19
    n    post-header length of each event type, from type 1 on
    1    checksum algorithm of the file's events

Behind it this event has four checksum bytes in any case; they are no part of the body here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from penstock.errors import Malformed
from pumpclient.mysql.events.field_reader import BodyReader, pack_uint
from pumpclient.mysql.events.frame import CHECKSUM_SIZE, HEADER_SIZE, Checksum
from pumpclient.mysql.gtid import Flavor

_VERSION_SIZE = 50
_BINLOG_VERSION = 4


@dataclass(frozen=True, slots=True)
class FormatDescription:
    """What all later events of the file are read with."""

    server_version: str
    created_s: int
    post_header_lengths: bytes
    checksum: Checksum

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Read what follows the header, the event's own checksum included.

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
                hint="servers since MySQL 5.6 and MariaDB 10 write version 4 with 19 bytes",
            )
        if algorithm not in list(Checksum):
            raise Malformed(
                f"server {version} writes checksum algorithm {algorithm}",
                hint="set its binlog_checksum to CRC32 or NONE",
            )
        return cls(version, created_s, lengths, Checksum(algorithm))

    def encode(self) -> bytes:
        """Return the body, without the checksum that `make_event` adds."""
        return b"".join(
            [
                pack_uint(_BINLOG_VERSION, 2),
                self.server_version.encode("ascii").ljust(_VERSION_SIZE, b"\0"),
                pack_uint(self.created_s, 4),
                bytes([HEADER_SIZE]),
                self.post_header_lengths,
                bytes([self.checksum]),
            ]
        )

    @property
    def flavor(self) -> Flavor:
        """Which kind of server wrote the file."""
        return Flavor.of_version(self.server_version)
