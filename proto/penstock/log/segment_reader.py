"""Reads from a segmented log: at random, in blocks that serve neighbours, and from end to end.

A pull wants a Prewrite here and a Commit a little further on, thousands of times: with one `pread`
for each block of 128 KiB the system calls all but vanish; what is large is read by itself. See
files.py for why there is no map.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from pathlib import Path

from google_crc32c import extend, value

from penstock.errors import Corrupt, Retryable
from penstock.log.files import File, Files
from penstock.log.frame import CHECKED_SIZE, HEADER, HEADER_SIZE, MAGIC, SEED_BITS
from penstock.log.segment import CHUNK_BYTES, BrokenAt, read_large, segment_name

_FILES_MAX = 128
_BLOCK_BITS = 17
_BLOCK_BYTES = 1 << _BLOCK_BITS
_BLOCKS_MAX = 256
"""Blocks that one call keeps: 32 MiB."""

_ALONE_BYTES = 32 << 10
"""From this length on a block would mostly be read to be thrown away."""


class Reader:
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
        unpack, mask = HEADER.unpack_from, _BLOCK_BYTES - 1
        for segment, offset, length in positions:
            begin = (offset & mask) + HEADER_SIZE
            end = begin + length
            if length >= _ALONE_BYTES or end > _BLOCK_BYTES:
                block = self._read(segment, offset, HEADER_SIZE + length)
                begin, end = HEADER_SIZE, HEADER_SIZE + length
            else:
                key = segment << 48 | offset >> _BLOCK_BITS
                if key not in blocks:
                    if len(blocks) >= _BLOCKS_MAX:
                        blocks.clear()
                    blocks[key] = self._read(segment, offset & ~mask, _BLOCK_BYTES)
                block = blocks[key]
            payload = block[begin:end]
            if len(block) < end or unpack(block, begin - HEADER_SIZE)[3] != value(payload):
                path = self._folder / segment_name(segment)
                raise Corrupt(str(path), offset, f"the {length} bytes stored here have changed")
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
        """Let go of one segment."""
        with self._lock:
            self._open.pop(number, None)

    def forget_all(self) -> None:
        """Let go of all segments."""
        with self._lock:
            self._open.clear()

    def _read(self, number: int, offset: int, length: int) -> bytes:
        try:
            return self.file(number).read(offset, length)
        except OSError as error:
            path = self._folder / segment_name(number)
            raise Retryable(f"{path}, offset {offset}: cannot be read: {error}") from error


def blocks(file: File, begin: int, end: int, seed: int) -> Iterator[tuple[list[int], list[bytes]]]:
    """Yield the offsets and payloads of all frames from `begin` to `end`; raise `BrokenAt`.

    `walk` says more of each frame, at three times the cost: this is what a rebuild reads with.
    Marks of a clean stop are left out.
    """
    unpack, place = HEADER.unpack_from, begin
    while place < end:
        chunk = file.read(place, min(CHUNK_BYTES, end - place))
        at, last = 0, len(chunk) - HEADER_SIZE
        offsets: list[int] = []
        payloads: list[bytes] = []
        while at <= last:
            magic, length, _, payload_crc, header_crc = unpack(chunk, at)
            checked = chunk[at : at + CHECKED_SIZE]
            if magic != MAGIC or extend(seed ^ (place + at) & SEED_BITS, checked) != header_crc:
                break
            body = at + HEADER_SIZE
            payload = chunk[body : body + length]
            if len(payload) < length:
                break
            if value(payload) != payload_crc:
                raise BrokenAt(place + at, "the payload does not match its checksum")
            if length:
                offsets.append(place + at)
                payloads.append(payload)
            at = body + length
        if at == 0:  # A frame larger than a chunk, or none.
            frame = read_large(file, place, end, seed)
            offsets, payloads, at = [place], [frame.payload], frame.end - place
        place += at
        if payloads:
            yield offsets, payloads
