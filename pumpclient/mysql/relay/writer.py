"""Writes a server's events into files that become byte for byte the server's.

The place of an event follows from its own position. An event after the end of the file leaves a
hole that is filled; an event before it must exist already, byte for byte, and is dropped. A file is
opened at its FORMAT_DESCRIPTION. Offsets have 64 bits, an event's position has 32.

A hole arises where the server omitted events that its file holds. Replicas ignore the filling: a
USER_VAR that is NULL where room is short, else a QUERY that is one comment. Sizes in bytes, with
CRC-32; without it, 4 less:

    29 to 37   USER_VAR: header 19, length 4, name 1 to 9, is null 1, checksum 4
    38 and up  QUERY: header 19, fixed part 13, end of the schema 1, comment, checksum 4
"""

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path

from penstock.codes import Code
from penstock.errors import Corrupt, Malformed
from penstock.log.files import sync_data, sync_folder
from pumpclient.mysql.events.frame import (
    CHECKSUM_SIZE,
    FILE_MAGIC,
    HEADER_SIZE,
    Checksum,
    EventFlag,
    EventType,
    FormatDescription,
    Header,
    description_digest,
    is_fake,
    make_event,
    pack_uint,
    read_header,
    rotate_of,
)
from pumpclient.mysql.events.transactions import Query
from pumpclient.mysql.protocol.server import PositionLost
from pumpclient.mysql.relay.layout import FIRST_POSITION, FileName

BUFFER_BYTES_MAX = 1 << 20
_POSITION_MASK = 0xFFFF_FFFF
_BACKWARDS = 1 << 31


Written = Callable[[FileName, int, list[bytes], int], None]
"""Called with events that a file has now: the file, where they begin, and their bytes."""


class RelayWriter:
    """Writes the files of one sub-directory; one thread."""

    def __init__(self, folder: Path, written: Written = lambda *run: None) -> None:
        self._folder = folder
        self._written = written
        self.file: FileName | None = None
        self.checksum = Checksum.NONE
        self.offset = 0  # Where the file ends once the buffer is written.
        self.at = 0  # Where the last event of the stream ends; 64 bits.
        self.unsynced_bytes = 0
        self._next: FileName | None = None
        self._descriptor = -1
        self._buffer: list[bytes] = []
        self._buffered_bytes = 0

    @property
    def is_open(self) -> bool:
        """True between the first FORMAT_DESCRIPTION and `close`."""
        return self._descriptor >= 0

    def rotate(self, event: bytes, header: Header) -> None:
        """Handle a ROTATE: append a real event; take the stream's position from a fake event."""
        position, file = rotate_of(event)
        name = FileName.parse(file)
        if not is_fake(header):
            self.put(event, header.end_position, header.size)
        elif self.file is not None and name < self.file:
            raise PositionLost(
                f"the server went back from {self.file} to {name}",
                hint="it was reset or put back; see penstock source continue and reload --all",
                code=Code.SERVER_POSITION_LOST,
            )
        else:
            self.at = position
        self._next = name

    def describe(self, event: bytes, header: Header, description: FormatDescription) -> None:
        """Handle a FORMAT_DESCRIPTION: open its file, and append it unless already present."""
        if self._next is None:
            raise PositionLost(
                "a FORMAT_DESCRIPTION before any ROTATE",
                hint="this is not a server's stream",
                code=Code.SERVER_AWAY,
            )
        if self._next != self.file:
            self.close()
            self._open(self._next)
        self.checksum = description.checksum
        if self.offset == FIRST_POSITION:
            self._append(event)
        elif header.end_position:
            self._check_description(event)
        if header.end_position:
            self.at = FIRST_POSITION + header.size

    def _check_description(self, event: bytes) -> None:
        self.flush()
        stored = os.pread(self._descriptor, len(event), FIRST_POSITION)
        if description_digest(stored) != description_digest(event):
            raise PositionLost(
                f"the server's {self.file} began at another time than the one in {self._folder}",
                hint="the server was reset or put back; see penstock source continue and reload"
                " --all",
                code=Code.SERVER_POSITION_LOST,
            )

    def put(self, event: bytes, end_position: int, size: int) -> None:
        """Append any other event at its position, or verify it if it is already present."""
        if self._descriptor < 0:
            raise PositionLost(
                "an event before any FORMAT_DESCRIPTION",
                hint="this is not a server's stream",
                code=Code.SERVER_AWAY,
            )
        start = self.at
        # Since MariaDB 11.4 servers omit positions within a transaction.
        skipped = (end_position - size - start) & _POSITION_MASK if end_position else 0
        if skipped:
            start += skipped if skipped < _BACKWARDS else skipped - (_POSITION_MASK + 1)
        self.at = start + size
        if start < self.offset:
            self._check_duplicate(event, start)
            return
        if start > self.offset:
            near = read_header(event)
            for dummy in dummies(start - self.offset, self.offset, near, self.checksum):
                self._append(dummy)
        self._append(event)

    def _append(self, event: bytes) -> None:
        size = len(event)
        self._buffer.append(event)
        self.offset += size
        self._buffered_bytes += size
        if self._buffered_bytes >= BUFFER_BYTES_MAX:
            self.flush()

    def _check_duplicate(self, event: bytes, start: int) -> None:
        self.flush()
        stored = os.pread(self._descriptor, len(event), start)
        if stored != event:
            raise Corrupt(
                str(self._folder / str(self.file)),
                start,
                "the server sends other bytes than those that were relayed",
                code=Code.RELAY_DAMAGED,
            )

    def _open(self, name: FileName) -> None:
        path = self._folder / str(name)
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
        self.file = name
        self.offset = os.fstat(self._descriptor).st_size
        if self.offset == 0:
            self._append(FILE_MAGIC)
            sync_folder(self._folder)
        elif self.offset < FIRST_POSITION:
            raise Corrupt(
                str(path), 0, "shorter than its first four bytes", code=Code.RELAY_DAMAGED
            )

    def flush(self) -> None:
        """Write the buffer to the operating system: readers see it, a power failure may lose it.

        Raises `OSError` when the disk is full; then `abandon` and recover.
        """
        if not self._buffer:
            return
        events, size = self._buffer, self._buffered_bytes
        self._buffer, self._buffered_bytes = [], 0
        data: bytes | memoryview = b"".join(events)
        self.unsynced_bytes += size
        while data:
            written = os.write(self._descriptor, data)
            data = memoryview(data)[written:]
        begin = self.offset - size
        if not begin:
            begin, events, size = FIRST_POSITION, events[1:], size - FIRST_POSITION
        if events:
            assert self.file is not None, "what is written is in a file"
            self._written(self.file, begin, events, size)

    def sync(self) -> None:
        if self.is_open:
            self.flush()
            if self.unsynced_bytes:
                sync_data(self._descriptor)
                self.unsynced_bytes = 0

    def close(self) -> None:
        """Sync and close the file; the next FORMAT_DESCRIPTION opens a file again."""
        if self.is_open:
            self.sync()
            self.abandon()

    def abandon(self) -> None:
        """Close the file without flushing it; it may end in a torn event."""
        if self.is_open:
            with contextlib.suppress(OSError):
                os.close(self._descriptor)
        self._descriptor = -1
        self._buffer.clear()
        self._buffered_bytes = self.unsynced_bytes = 0
        self.file = None


_NAME = b"!dummyvar"
_COMMENT = b"# events that the server did not send: "
_QUERY_SIZE_MIN = HEADER_SIZE + 13 + 1 + 1
_VARIABLE_SIZE_MIN = HEADER_SIZE + 4 + 1 + 1
_POSITION_MASK = 0xFFFF_FFFF
DUMMY_BYTES_MAX = 16 << 20
"""A larger hole takes several events."""


def dummies(size: int, start: int, near: Header, checksum: Checksum) -> Iterator[bytes]:
    """Yield events of `size` bytes in all for a hole at offset `start`, dated as their neighbour.

    Raises `Malformed` when the hole is smaller than the smallest event.
    """
    while size > 2 * DUMMY_BYTES_MAX:
        yield _dummy(DUMMY_BYTES_MAX, start, near, checksum)
        size, start = size - DUMMY_BYTES_MAX, start + DUMMY_BYTES_MAX
    yield _dummy(size, start, near, checksum)


def _dummy(size: int, start: int, near: Header, checksum: Checksum) -> bytes:
    protected = CHECKSUM_SIZE if checksum else 0
    if size < _VARIABLE_SIZE_MIN + protected:
        raise Malformed(
            f"a hole of {size} bytes at {start}, which no event fits into",
            "the server's file is damaged, or the relay log is not of this server",
            Code.EVENT_MALFORMED,
        )
    flags = EventFlag.SUPPRESS_USE | EventFlag.RELAY_LOG
    end = (start + size) & _POSITION_MASK
    header = near._replace(end_position=end, flags=int(flags))
    room = size - protected - _QUERY_SIZE_MIN + 1
    if room < 1:
        name = _NAME[: size - protected - _VARIABLE_SIZE_MIN + 1]
        body = pack_uint(len(name), 4) + name + b"\1"
        return make_event(EventType.USER_VAR, body, header=header, checksum=checksum)
    comment = _COMMENT[:room].ljust(room, b".")
    return make_event(
        EventType.QUERY, Query(b"", comment).encode(), header=header, checksum=checksum
    )
