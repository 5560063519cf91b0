"""Counters: counts and timings that the parts of a Pump record while they work.

`pages.py` computes metrics from them at a scrape; nothing here depends on their format.
Counting takes no lock, because each counter has only one thread that writes it.
"""

from __future__ import annotations

import os
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


class MeteredFile(File):
    """A writable file that measures writes and syncs."""

    def __init__(self, path: Path, flags: int, counters: Counters) -> None:
        super().__init__(path, flags)
        self._counters = counters

    def write(self, buffers: Sequence[bytes], offset: int) -> None:
        begin_s = time.perf_counter()
        super().write(buffers, offset)
        self._counters.write_s.note(time.perf_counter() - begin_s)
        self._counters.write_bytes.note(sum(map(len, buffers)))

    def sync(self) -> None:
        begin_s = time.perf_counter()
        try:
            super().sync()
        finally:
            self._counters.sync_s.note(time.perf_counter() - begin_s)


class MeteredFiles(Files):
    """A file system that measures the files that are written; reads cost nothing more."""

    def __init__(self, counters: Counters) -> None:
        self._counters = counters
        self._created_s: float | None = None

    def sync_folder(self, folder: Path) -> None:
        """Make names durable; after `create` this completes the creation of a segment."""
        super().sync_folder(folder)
        created_s, self._created_s = self._created_s, None
        if created_s is not None:
            self._counters.rotate_s.note(time.perf_counter() - created_s)

    def create(self, path: Path) -> File:
        self._created_s = time.perf_counter()
        return super().create(path)

    def _file(self, path: Path, flags: int) -> File:
        if flags == os.O_RDONLY:
            return super()._file(path, flags)
        return MeteredFile(path, flags, self._counters)
