"""Counters: counts and timings that the parts of a Pump record while they work.

`pages.py` computes metrics from them at a scrape; nothing here depends on their format.
Counting takes no lock, because each counter has only one thread that writes it.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path

from penstock.errors import Retryable
from penstock.log.files import File, Files
from penstock.node.metrics import Distribution
from penstock.pb import penstock_pb2
from pump.store.record import Contradiction, NoPrewrite, OutOfSpace, TooManyOpen

SECONDS = tuple(5e-5 * 2**n for n in range(18))
"""TiDB-Binlog's bounds, 50 µs to 6.6 s."""
SIZES_BYTES = tuple(16.0 * 2**n for n in range(25))
COUNTS = tuple(float(2**n) for n in range(16))


class Counters:
    """All counters of one Pump since it started."""

    def __init__(self) -> None:
        self.calls: defaultdict[tuple[str, ...], Distribution] = defaultdict(
            lambda: Distribution(SECONDS)
        )
        """Seconds of a call, by method and `succ` or `fail`."""
        self.acknowledge_s = Distribution(SECONDS)
        """From a submission to its acknowledgement."""
        self.append_s = Distribution(SECONDS)
        self.write_s = Distribution(SECONDS)
        self.sync_s = Distribution(SECONDS)
        self.rotate_s = Distribution(SECONDS)
        """From one segment to the next, until its header is on the disk under its name."""
        self.write_bytes = Distribution(SIZES_BYTES)
        self.group_records = Distribution(COUNTS)
        self.refused: Counter[str] = Counter()
        self.failed_groups = 0
        self.failed_writes = 0
        """Binlogs that were submitted in failed groups."""
        self.failed_indexing = 0

    def refuse(self, error: BaseException) -> None:
        self.refused[reason_of(error)] += 1


_REASONS: tuple[tuple[type[BaseException], str], ...] = (
    (TooManyOpen, "too_many_open"),
    (OutOfSpace, "no_space"),
    (NoPrewrite, "no_prewrite"),
    (Contradiction, "contradiction"),
    (Retryable, "overloaded"),
)


def reason_of(error: BaseException) -> str:
    refusal = getattr(error, "refusal", None)
    if isinstance(refusal, int):
        return penstock_pb2.Refusal.Code.Name(refusal).lower()
    return next((word for kind, word in _REASONS if isinstance(error, kind)), "other")


class MeteredFile:
    """A writable file that measures writes and syncs, and delegates all work to another file."""

    def __init__(self, file: File, counters: Counters) -> None:
        self._file = file
        self._counters = counters
        self.size = file.size
        self.read = file.read
        self.truncate = file.truncate
        self.extend = file.extend
        self.forget = file.forget
        self.is_named = file.is_named
        self.close = file.close

    @property
    def path(self) -> Path:
        return self._file.path

    @path.setter
    def path(self, path: Path) -> None:
        self._file.path = path

    def write(self, buffers: Sequence[bytes], offset: int) -> None:
        begin_s = time.perf_counter()
        self._file.write(buffers, offset)
        self._counters.write_s.note(time.perf_counter() - begin_s)
        self._counters.write_bytes.note(sum(map(len, buffers)))

    def sync(self) -> None:
        begin_s = time.perf_counter()
        try:
            self._file.sync()
        finally:
            self._counters.sync_s.note(time.perf_counter() - begin_s)


class MeteredFiles:
    """A file system that measures the files that are written; reads cost nothing more."""

    def __init__(self, files: Files, counters: Counters) -> None:
        self._files = files
        self._counters = counters
        self._created_s: float | None = None
        self.names = files.names
        self.rename = files.rename
        self.remove = files.remove
        self.space = files.space

    def sync_folder(self, path: Path) -> None:
        """Make names durable; after `create` this completes the creation of a segment."""
        self._files.sync_folder(path)
        created_s, self._created_s = self._created_s, None
        if created_s is not None:
            self._counters.rotate_s.note(time.perf_counter() - created_s)

    def create(self, path: Path) -> File:
        self._created_s = time.perf_counter()
        return MeteredFile(self._files.create(path), self._counters)

    def open(self, path: Path, *, writable: bool = False) -> File:
        file = self._files.open(path, writable=writable)
        return MeteredFile(file, self._counters) if writable else file
