"""Large binlogs on their way into the log: what is announced, and which segments must stay for it.

Until the assembly is stored nothing else knows of the pieces: no index entry, no open Prewrite.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

from penstock.log.segments import Position
from pump.store.record import PieceRecord


@dataclass(slots=True, eq=False)
class Upload:
    """One large binlog under way."""

    start_ts: int
    size_bytes: int
    stored_bytes: int = 0
    positions: list[Position] = field(default_factory=list)
    first: PieceRecord | None = None


class Uploads:
    """All of them; safe to share between threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: set[Upload] = set()

    def begin(self, upload: Upload) -> None:
        """Note that an upload begins."""
        with self._lock:
            self._open.add(upload)

    def end(self, upload: Upload) -> None:
        """Note that it is stored or broken off."""
        with self._lock:
            self._open.discard(upload)

    def __len__(self) -> int:
        """Return how many are under way."""
        return len(self._open)

    def left_bytes(self) -> int:
        """Return how much is announced and not stored yet."""
        with self._lock:
            return sum(upload.size_bytes - upload.stored_bytes for upload in self._open)

    def segments(self) -> list[int]:
        """Return the first segment of each upload that has stored something."""
        with self._lock:
            firsts = [upload.first for upload in self._open]
        return [f.position.segment for f in firsts if f is not None and f.position is not None]
