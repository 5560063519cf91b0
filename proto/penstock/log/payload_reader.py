"""Payload reader: reads payloads of a log by their positions, for any number of threads.

A pull wants a Prewrite here and a Commit a little further on, thousands of times. With one `pread`
for each block of 128 KiB, which serves many neighbouring records, the system calls all but vanish;
a large payload is read separately. See files.py for why there is no map.
"""

from __future__ import annotations

import struct
import threading
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path

from google_crc32c import value

from penstock.codes import Code
from penstock.errors import Corrupt, Retryable
from penstock.log.files import File, Files
from penstock.log.frame import HEADER_SIZE, PAYLOAD_CRC_AT
from penstock.log.segment import segment_name

_CRC = struct.Struct("<I")
_FILES_MAX = 128
_BLOCK_BITS = 17
_BLOCK_BYTES = 1 << _BLOCK_BITS
_BLOCKS_MAX = 256
"""Blocks that one call keeps: 32 MiB."""

_ALONE_BYTES = 32 << 10
"""From this length on a block would mostly be read to be thrown away."""


class Unreadable(Retryable):
    """The disk cannot read stored bytes."""

    def __init__(self, path: Path, offset: int, error: OSError) -> None:
        super().__init__(
            f"{path}, offset {offset}: cannot be read: {error}", code=Code.DISK_FAILING
        )
        self.path = str(path)
        self.errno = error.errno


class PayloadReader:
    """Open segments, the least recently used of which are closed; for any number of threads."""

    def __init__(self, folder: Path, files: Files) -> None:
        self._folder = folder
        self._files = files
        self._open: OrderedDict[int, File] = OrderedDict()
        self._lock = threading.Lock()

    def read_many(self, positions: Sequence[tuple[int, int, int]]) -> list[bytes]:
        """Return the payloads at `positions`, in that order.

        Raises `Corrupt` for bytes that have changed, `Retryable` when the disk fails.
        """
        payloads: list[bytes] = []
        blocks: dict[int, bytes] = {}
        unpack, mask = _CRC.unpack_from, _BLOCK_BYTES - 1
        crc_before = HEADER_SIZE - PAYLOAD_CRC_AT
        for segment, offset, length in positions:
            begin = (offset & mask) + HEADER_SIZE
            end = begin + length
            if length >= _ALONE_BYTES or end > _BLOCK_BYTES:
                block = self.read(segment, offset, HEADER_SIZE + length)
                begin, end = HEADER_SIZE, HEADER_SIZE + length
            else:
                key = segment << 48 | offset >> _BLOCK_BITS
                if key not in blocks:
                    if len(blocks) >= _BLOCKS_MAX:
                        blocks.clear()
                    blocks[key] = self.read(segment, offset & ~mask, _BLOCK_BYTES)
                block = blocks[key]
            payload = block[begin:end]
            if len(block) < end or unpack(block, begin - crc_before)[0] != value(payload):
                path = self._folder / segment_name(segment)
                raise Corrupt(
                    str(path),
                    offset,
                    f"the {length} bytes stored here have changed",
                    code=Code.SEGMENT_DAMAGED,
                )
            payloads.append(payload)
        return payloads

    def file(self, number: int) -> File:
        """Return segment `number`, open for reading; raise `OSError`."""
        with self._lock:
            file = self._open.get(number)
            if file is None:
                file = self._open[number] = self._files.open(self._folder / segment_name(number))
                if len(self._open) > _FILES_MAX:  # Closed when its last reader is done.
                    self._open.popitem(last=False)
            else:
                self._open.move_to_end(number)
            return file

    def forget(self, number: int) -> None:
        with self._lock:
            self._open.pop(number, None)

    def forget_all(self) -> None:
        with self._lock:
            self._open.clear()

    def read(self, number: int, offset: int, length: int) -> bytes:
        """Return bytes of a segment, fewer only at its end; `Retryable` if the disk fails."""
        try:
            return self.file(number).read(offset, length)
        except OSError as error:
            raise Unreadable(self._folder / segment_name(number), offset, error) from error
