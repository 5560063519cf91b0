"""Binlog files as they lie on disk: the magic, then event after event.

Positions are counted here and have 64 bits: an event's own `end_position` is modulo 2^32, and 0 in
events that MariaDB 11.4 and later wrote through its cache.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import BinaryIO

from penstock.errors import Malformed
from pumpclient.mysql.events.files import FormatDescription
from pumpclient.mysql.events.frame import (
    FILE_MAGIC,
    HEADER,
    HEADER_SIZE,
    Checksum,
    EventType,
    Header,
    checksum_holds,
)

FIRST_POSITION = len(FILE_MAGIC)
BLOCK_BYTES = 1 << 17  # Larger ones leave the processor's cache: an event takes a tenth more.
_POSITION_BITS = 0xFFFFFFFF
_FORMAT_DESCRIPTION = int(EventType.FORMAT_DESCRIPTION)  # Plain numbers compare fastest.
_HINT = "the file is damaged, or the position is not the beginning of an event"


class BinlogFile:
    """A pass over a file's events from `position` on; `position` moves behind each one.

    With `verifies` every checksum that the file's FORMAT_DESCRIPTION promises is checked. A file
    that ends within an event ends the pass: `torn_bytes` says how much of the event is there.
    With `types` only events of these are yielded; the others are checked like them, and passed over
    without being made.
    """

    def __init__(
        self,
        file: BinaryIO,
        position: int = FIRST_POSITION,
        *,
        verifies: bool = False,
        types: Collection[int] | None = None,
    ) -> None:
        self._file = file
        self._types = None if types is None else frozenset(map(int, types))
        self.position = position
        self.torn_bytes = 0
        self.verifies = verifies
        self.description: FormatDescription | None = None

    def __iter__(self) -> Iterator[tuple[int, Header, bytes]]:
        """Return an iterator over position, header and all bytes of each event.

        Raises `Malformed` for a file that is no binlog, a header that cannot be, and, when
        verifying, a checksum that does not hold.
        """
        self._file.seek(0)
        if (magic := self._file.read(FIRST_POSITION)) != FILE_MAGIC:
            raise Malformed(f"a file that begins with {magic!r} is no binlog", hint=_HINT)
        if self.position > FIRST_POSITION and self.verifies:
            self.description = self._first_description()
        self._file.seek(self.position)
        return self._events()

    def _events(self) -> Iterator[tuple[int, Header, bytes]]:
        waiting, wanted = b"", HEADER_SIZE
        begin = self.position
        unpack, new, types, verifies = HEADER.unpack_from, tuple.__new__, self._types, self.verifies
        while block := self._file.read(max(BLOCK_BYTES, wanted - len(waiting))):
            waiting += block
            at, end = 0, len(waiting)
            wanted = HEADER_SIZE
            last = end - HEADER_SIZE
            while at <= last:
                fields = unpack(waiting, at)
                type_, size = fields[1], fields[3]  # As `Header` has them.
                if size < HEADER_SIZE:
                    raise Malformed(f"an event of {size} bytes at {begin + at}", hint=_HINT)
                behind = at + size
                if behind > end:
                    wanted = size
                    break
                if verifies or type_ == _FORMAT_DESCRIPTION:
                    self.position = begin + at
                    self._check(Header._make(fields), waiting[at:behind])
                if types is None or type_ in types:
                    self.position = begin + behind
                    # What `Header._make` does, without its call in between.
                    yield begin + at, new(Header, fields), waiting[at:behind]
                at = behind
            waiting = waiting[at:]
            begin += at
            self.position = begin
        self.torn_bytes = len(waiting)

    def _first_description(self) -> FormatDescription | None:
        """Read what the file's first event says of checksums."""
        for _, header, event in BinlogFile(self._file):
            if header.type == EventType.FORMAT_DESCRIPTION:
                return FormatDescription.decode(event[HEADER_SIZE:])
            break
        return None

    def _check(self, header: Header, event: bytes) -> None:
        if header.type == EventType.FORMAT_DESCRIPTION:
            self.description = FormatDescription.decode(event[HEADER_SIZE:])
        if not self.verifies:
            return
        promised = self.description is not None and self.description.checksum is Checksum.CRC32
        if promised and not checksum_holds(event):
            raise Malformed(f"the checksum of the {header} at {self.position}", hint=_HINT)


def ends_as_told(header: Header, end: int) -> bool:
    """Tell whether an event that ends at `end` says so, as far as its 32 bits can."""
    return header.end_position in (0, end & _POSITION_BITS)


def first_timestamp(file: BinaryIO) -> int | None:
    """Return the seconds since 1970 of a file's first event that has a time, None when none has."""
    return next(
        (header.timestamp_s for _, header, _ in BinlogFile(file) if header.timestamp_s), None
    )
