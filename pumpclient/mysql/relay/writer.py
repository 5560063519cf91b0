"""Writes a server's events into files that become byte for byte the server's.

What is where follows from each event's own position: one that lies behind the end of the file
leaves a hole that is filled, one before it must be there already, byte for byte, and is dropped. A
file is opened at its FORMAT_DESCRIPTION. Offsets have 64 bits, an event's position has 32.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from penstock.errors import Corrupt
from penstock.log.files import sync_folder
from pumpclient.mysql.events.files import FormatDescription, is_fake, rotate_of
from pumpclient.mysql.events.frame import FILE_MAGIC, Checksum, EventFlag, Header, read_header
from pumpclient.mysql.protocol.refusals import PositionLost
from pumpclient.mysql.relay.filler_events import dummies
from pumpclient.mysql.relay.layout import FIRST_POSITION, FileName

BUFFER_BYTES_MAX = 1 << 20
_POSITION_MASK = 0xFFFF_FFFF
_BACKWARDS = 1 << 31
_FLAGS_AT = 17


class RelayWriter:
    """Writes the files of one sub-directory; one thread."""

    def __init__(self, folder: Path) -> None:
        """Write below `folder`; the first ROTATE says which file."""
        self._folder = folder
        self.file: FileName | None = None
        self.checksum = Checksum.NONE
        self.offset = 0  # Where the file ends once the buffer is written.
        self.at = 0  # Where the last event ends that the stream brought; 64 bits.
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
        """Take a ROTATE: one of the file is written, one of the stream says where it is."""
        rotate = rotate_of(event)
        name = FileName.parse(rotate.file)
        if not is_fake(header):
            self.put(event, header.end_position, header.size)
        elif self.file is not None and name < self.file:
            raise PositionLost(
                f"the server went back from {self.file} to {name}",
                hint="it was restored or reset: compare its GTIDs with relay.meta",
            )
        else:
            self.at = rotate.position
        self._next = name

    def describe(self, event: bytes, header: Header, description: FormatDescription) -> None:
        """Take a FORMAT_DESCRIPTION: open the file it is of, and write it unless it is there."""
        if self._next is None:
            raise PositionLost(
                "a FORMAT_DESCRIPTION before any ROTATE", hint="this is not a server's stream"
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
        if not same_description(stored, event):
            raise PositionLost(
                f"the server's {self.file} began at another time than the one in {self._folder}",
                hint="the server was reset or restored: a new sub-directory must begin",
            )

    def put(self, event: bytes, end_position: int, size: int) -> None:
        """Take any other event: write it at its place, or see that it is there."""
        if not self.is_open:
            raise PositionLost(
                "an event before any FORMAT_DESCRIPTION", hint="this is not a server's stream"
            )
        start = self.at
        # Servers since MariaDB 11.4 leave out positions within a transaction.
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
            raise Corrupt(str(path), 0, "shorter than its first four bytes")

    def flush(self) -> None:
        """Give the buffer to the operating system: readers see it, a power cut may lose it.

        Raises `OSError` when the disk is full; then `abandon` and recover.
        """
        if not self._buffer:
            return
        data: bytes | memoryview = b"".join(self._buffer)
        self._buffer.clear()
        self.unsynced_bytes += self._buffered_bytes
        self._buffered_bytes = 0
        while data:
            written = os.write(self._descriptor, data)
            data = memoryview(data)[written:]

    def sync(self) -> None:
        """Put everything so far on the disk."""
        if self.is_open:
            self.flush()
            if self.unsynced_bytes:
                os.fdatasync(self._descriptor)
                self.unsynced_bytes = 0

    def close(self) -> None:
        """Sync and close the file; the next FORMAT_DESCRIPTION opens one again."""
        if self.is_open:
            self.sync()
            self.abandon()

    def abandon(self) -> None:
        """Close the file as it is: its end may be torn."""
        if self.is_open:
            with contextlib.suppress(OSError):
                os.close(self._descriptor)
        self._descriptor = -1
        self._buffer.clear()
        self._buffered_bytes = self.unsynced_bytes = 0
        self.file = None


def same_description(stored: bytes, sent: bytes) -> bool:
    """Tell whether two FORMAT_DESCRIPTIONs begin one file, which may have been closed between."""
    if len(stored) != len(sent):
        return False
    return _without_flags(stored) == _without_flags(sent)


def _without_flags(event: bytes) -> bytes:
    kept = event[_FLAGS_AT] & ~EventFlag.BINLOG_IN_USE
    return event[:_FLAGS_AT] + bytes([kept]) + event[_FLAGS_AT + 1 :]
