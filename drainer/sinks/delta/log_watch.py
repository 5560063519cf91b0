"""Log watch: whether the log of a Delta table still has the last entry that this run knows of.

A table that was removed, restored to an earlier version or replaced lacks the entry, or has another
entry under its number: each entry has the time of its commit.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path


class LogWatch:
    """Watches the log in one folder of a table; initially it knows no entry."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._entry: Path | None = None
        self._stat: os.stat_result | None = None
        self._digest = b""

    def note(self, version: int) -> None:
        entry = self._path / "_delta_log" / f"{version:020}.json"
        try:
            self._stat, self._digest = os.stat(entry), _digest(entry)
            self._entry = entry
        except FileNotFoundError:  # A checkpoint of Delta's replaced it.
            self._entry = None

    def is_same(self) -> bool:
        """Return False once the noted entry is gone or changed."""
        if self._entry is None or self._stat is None:
            return True
        try:
            now = os.stat(self._entry)
            if _mark(now) != _mark(self._stat) and _digest(self._entry) != self._digest:
                return False
        except (FileNotFoundError, NotADirectoryError):
            return False
        self._stat = now
        return True


def _mark(found: os.stat_result) -> tuple[int, ...]:
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


def _digest(entry: Path) -> bytes:
    return hashlib.blake2b(entry.read_bytes(), digest_size=16).digest()
