"""Binlogs too large for one record: cut into pieces, and put together again in bounded memory."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

from drainer.intake.payload import Payload, Remote, Spooled, opened
from drainer.intake.slicing import outline
from drainer.relay_log.records import RECORD_BYTES_MAX, NotARecord, Piece


def is_large(payload: Payload) -> bool:
    """Tell whether a binlog is written in pieces."""
    assert not isinstance(payload, Remote), "with a relay log, payloads come here"
    return isinstance(payload, Spooled) or len(payload) > RECORD_BYTES_MAX


def size_of(payload: Payload) -> int:
    """Return the bytes of a binlog, wherever it lies."""
    return payload.size if isinstance(payload, Spooled) else len(payload)


def pieces_of(payload: Payload) -> Iterator[bytes]:
    """Cut a binlog; one that lies on the disk is read piece by piece."""
    if isinstance(payload, Spooled):
        with opened(payload.path) as read:
            for begin in range(0, payload.size, RECORD_BYTES_MAX):
                yield read(begin, RECORD_BYTES_MAX)
    elif isinstance(payload, bytes):
        for begin in range(0, len(payload), RECORD_BYTES_MAX):
            yield payload[begin : begin + RECORD_BYTES_MAX]


class Gathering:
    """Takes pieces in the order of the log; what is above `bytes_max` goes to a file."""

    def __init__(self, folder: Path | None = None, bytes_max: int = 1 << 62) -> None:
        """Keep everything in memory, or what is large in `folder`, which exists."""
        self._folder = folder
        self._bytes_max = bytes_max
        self._data: list[bytes] = []
        self._size = 0
        self._digest = hashlib.blake2b(digest_size=16)

    def add(self, piece: Piece) -> Payload | None:
        """Take the next piece; return the binlog when it was the last one.

        Raises `NotARecord` when it does not follow the piece before.
        """
        if piece.offset == 0:  # A crash may have torn off a binlog's end: here it is again.
            self._data, self._size, self._digest = [], 0, hashlib.blake2b(digest_size=16)
        if piece.offset != self._size:
            raise NotARecord(f"a piece at {piece.offset} of a binlog after {self._size} bytes")
        self._size += len(piece.data)
        if self._folder is None or piece.size_bytes <= self._bytes_max:
            self._data.append(piece.data)
            return b"".join(self._data) if piece.is_last else None
        self._digest.update(piece.data)
        path = self._folder / f"relayed-{piece.commit_ts}"
        with path.open("ab" if piece.offset else "wb") as file:
            file.write(piece.data)
        return self._spooled(path) if piece.is_last else None

    def _spooled(self, path: Path) -> Payload:
        with opened(path) as read:
            found = outline(read, self._size)
        if found.ddl_job_id > 0:  # A DDL is handled in memory, whatever way it came.
            data = path.read_bytes()
            path.unlink()
            return data
        return Spooled(path, self._size, self._digest.digest(), found)
