"""A Pump's storage: binlogs are durable when `append` returns and in the stream after `index`.

    append    ledger ── log: one write, one fdatasync ── sorter         → the writers are answered
    index     one LevelDB batch ── max_commit_ts moves                  → the pullers are woken
    pull      index scan ── log ── Prewrite bytes + Commit bytes = the merged binlog

Threads: one appends, and calls `index` with each result, in the same order; `index` may be called
again with the same result after it raised. Everything else may be called from any thread at any
time. README.md has the files byte by byte and the argument why no crash loses anything.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import operator
import os
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple

from penstock.errors import NeedsOperator, PenstockError
from penstock.files import Files, OsFiles
from penstock.model import BinlogType
from penstock.segments import SEGMENT_BYTES_MAX, Place, Position, WriteFailed
from pump.index import Checkpoint, Purge
from pump.record import Contradiction, NoPrewrite, NotStored, OutOfSpace, PurgedRange, Record
from pump.recovery import (
    Entry,
    Recovered,
    Settings,
    checkpoint_of,
    enter,
    fill,
    largest_ts,
    recover,
)
from pump.stream import Pulled, Stream

__all__ = [
    "Appended",
    "Contradiction",
    "NoPrewrite",
    "NotStored",
    "OutOfSpace",
    "Pulled",
    "PurgedRange",
    "Record",
    "Storage",
    "StorageConfig",
    "Unmatched",
]

log = logging.getLogger(__name__)

_LENGTH = operator.attrgetter("length")
_RESERVE_BYTES_MAX = 10 << 30
_RESERVE_SHARE = 50
_FLUSH_AFTER_RECORDS = 100_000
_FLUSH_AFTER_BYTES = 128 << 20
"""A restart replays little more than this: about a second's work."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageConfig:
    """How a Pump stores; the defaults are meant to stay."""

    sync_log: bool = True
    """False acknowledges what a crash of the machine may lose; only for what can be made again."""
    segment_bytes_max: int = SEGMENT_BYTES_MAX
    stop_write_at_available_bytes: int = -1
    """Refuse new transactions below this. Negative: a fiftieth of the volume, at most 10 GiB."""
    index_write_buffer_bytes: int = 16 << 20
    index_cache_bytes: int = 32 << 20


class Appended(NamedTuple):
    """What an append stored, for `index`."""

    number: int
    entries: Sequence[Entry]
    needed: dict[int, int]
    head: Place
    checkpoint: Checkpoint
    size_bytes: int


class Unmatched(NamedTuple):
    """A Prewrite without Commit or Rollback; `payload_reader` returns its bytes."""

    start_ts: int
    payload_reader: Callable[[], bytes]


class Storage:
    """The log and the index of one Pump; create with `Storage.open`."""

    def __init__(
        self,
        recovered: Recovered,
        config: StorageConfig,
        lock_file: int,
        files: Files,
        clock: Callable[[], float],
    ) -> None:
        self._segments = recovered.segments
        self._index = recovered.index
        self._ledger = recovered.ledger
        self._needed = recovered.needed
        self._stream = Stream(recovered.index, recovered.segments, recovered.purge)
        self._folder = recovered.folder
        self._replayed = recovered.replayed
        self._config = config
        self._lock_file = lock_file
        self._files = files
        self._clock = clock
        # Guards ledger and needed. Held during I/O only to compare a repeated Prewrite.
        self._state_lock = threading.Lock()
        self._gc_lock = threading.Lock()
        self._flush_lock = threading.Lock()
        self._max_commit_ts = self._ledger.sorter.max_commit_ts
        self._groups = self._indexed_group = 0
        self._indexed_checkpoint = self._flushed_checkpoint = recovered.checkpoint
        self._unflushed_records = self._unflushed_bytes = 0
        self._flush_thread: threading.Thread | None = None
        self._appended_records = self._appended_bytes = 0
        self._closed = False

    @classmethod
    def open(
        cls,
        path: Path,
        config: StorageConfig | None = None,
        *,
        on_progress: Callable[[int, int], None] | None = None,
        files: Files | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> Storage:
        """Open the storage in `path`, creating it if need be; replay what the index may lack.

        `on_progress` is told bytes done and to do. Raises `Corrupt` for damage, `NeedsOperator`
        while another process has it open.
        """
        config, files = config or StorageConfig(), files or OsFiles()
        path.mkdir(parents=True, exist_ok=True, mode=0o700)
        lock_file = _lock(path)
        try:
            recovered = recover(
                path,
                Settings(
                    segment_bytes_max=config.segment_bytes_max,
                    may_be_short=not config.sync_log,
                    index_write_buffer_bytes=config.index_write_buffer_bytes,
                    index_cache_bytes=config.index_cache_bytes,
                ),
                files=files,
                on_progress=on_progress or (lambda done, total: None),
                now_ms=int(clock() * 1000),
            )
        except BaseException:
            os.close(lock_file)
            raise
        return cls(recovered, config, lock_file, files, clock)

    @property
    def max_commit_ts(self) -> int:
        """The commit_ts up to which the stream is complete and can be pulled."""
        return self._max_commit_ts

    @property
    def purged_ts(self) -> int:
        """The commit_ts up to which the stream is gone; a pull must start at or above it."""
        return self._stream.purge.purged_ts

    def append(self, records: Sequence[Record]) -> Appended:
        """Store `records` with one write and one fdatasync; durable when it returns.

        What is stored already is not stored again, and is no error. Raises `NotStored` when any
        record is refused, `OutOfSpace` or another `Retryable` when the disk fails; then none of
        the group is stored.
        """
        assert not self._closed, "a closed storage takes nothing"
        with self._state_lock:
            stored, refused = self._ledger.admit(records)
        refused |= self._refused_for_space(records)
        if refused:
            raise NotStored(refused)
        most_ts = largest_ts(stored)
        positions = self._write(stored, most_ts) if stored else []
        now_ms = int(self._clock() * 1000)
        head = self._segments.end
        self._groups += 1
        with self._state_lock:
            entries, needed, orphans = enter(self._ledger, stored, positions, now_ms)
            assert not orphans, "the ledger admits no Commit without its Prewrite"
            self._ledger.end_group(self._groups, self._indexed_group)
            needed[head.segment] = most_ts
            for segment, ts in needed.items():
                needed[segment] = self._needed[segment] = max(ts, self._needed.get(segment, 0))
            checkpoint = checkpoint_of(self._ledger.sorter, head)
        size_bytes = sum(map(_LENGTH, positions))
        self._appended_records += len(stored)
        self._appended_bytes += size_bytes
        return Appended(self._groups, entries, needed, head, checkpoint, size_bytes)

    def index(self, appended: Appended) -> None:
        """Put what was appended into the index and the stream; raise `Retryable` or `Corrupt`."""
        batch = self._index.batch()
        fill(batch, appended.entries)
        for segment, ts in appended.needed.items():
            batch.needed(segment, ts)
        batch.head(appended.head)
        batch.write()
        self._indexed_group = appended.number
        self._indexed_checkpoint = appended.checkpoint
        self._max_commit_ts = appended.checkpoint.max_commit_ts
        self._unflushed_records += len(appended.entries)
        self._unflushed_bytes += appended.size_bytes
        much = self._unflushed_records >= _FLUSH_AFTER_RECORDS
        if (much or self._unflushed_bytes >= _FLUSH_AFTER_BYTES) and not self._is_flushing():
            self._unflushed_records = self._unflushed_bytes = 0
            flush = partial(self._flush, appended.checkpoint)
            self._flush_thread = threading.Thread(target=flush, name="pump-index-flush")
            self._flush_thread.start()

    def pull(self, after_ts: int, *, bytes_max: int, count_max: int) -> Pulled:
        """Return merged and fake binlogs in (after_ts, max_commit_ts], in order.

        At least one if there is any, else as many as the bounds allow; `last_ts` is where to go
        on. Raises `PurgedRange`, `Corrupt`, and `Retryable` when the disk cannot be read.
        """
        return self._stream.pull(after_ts, self._max_commit_ts, bytes_max, count_max)

    def prewrite(self, start_ts: int) -> bytes | None:
        """Return the Prewrite of `start_ts`, None if there is none or it is purged."""
        return self._stream.prewrite(start_ts)

    def get(self, ts: int) -> bytes | None:
        """Return the merged or fake binlog at commit_ts `ts`, None if there is none."""
        return self._stream.get(ts)

    def unmatched(self, older_than_s: float = 0.0) -> list[Unmatched]:
        """Return the open Prewrites that arrived at least that long ago, oldest first.

        After a restart their age begins anew.
        """
        older_than_ms = int((self._clock() - older_than_s) * 1000)
        with self._state_lock:
            found = self._ledger.sorter.unmatched(older_than_ms)
        read = self._segments.read
        return [Unmatched(start_ts, partial(read, known.position)) for start_ts, known in found]

    def gc(self, before_ts: int) -> int:
        """Drop the oldest segments in which nothing is at or after `before_ts`; return how many.

        Only whole, sealed segments go, and none from the oldest open Prewrite on. A Prewrite
        counts as old as its Commit, and nothing beyond `max_commit_ts` goes.
        """
        with self._gc_lock:
            self._flush(self._indexed_checkpoint)
            before_ts = min(before_ts, self._max_commit_ts)
            first = begin = self._stream.purge.first_segment
            limit = self._flushed_checkpoint.pointer.segment
            purged_ts = self._stream.purge.purged_ts
            with self._state_lock:
                while first < limit and self._needed.get(first, 0) < before_ts:
                    purged_ts = max(purged_ts, self._needed.get(first, 0))
                    first += 1
            if first > begin:
                self._purge(Purge(purged_ts, first))
        return first - begin

    def _purge(self, purge: Purge) -> None:
        """Remove what `purge` names; a crash on the way is finished at the next start."""
        self._index.set_purge(purge)
        self._stream.purge = purge
        self._segments.drop_before(purge.first_segment)
        with self._state_lock:
            for segment in [n for n in self._needed if n < purge.first_segment]:
                del self._needed[segment]
        deleted = self._index.forget(purge.purged_ts, purge.first_segment)
        log.info(
            "purged all up to commit_ts %d: segments before %d, %d index entries",
            purge.purged_ts,
            purge.first_segment,
            deleted,
        )

    def check_space(self) -> None:
        """Raise `OutOfSpace` when new transactions are refused: what a client's probe asks."""
        free, reserve = self._space()
        if free <= reserve:
            raise OutOfSpace(
                f"no available space, available: {free}, StopWriteAtAvailableSpace: {reserve}"
            )

    def stats(self) -> dict[str, int]:
        """Return the figures an operator wants to see; sizes in bytes."""
        free, reserve = self._space()
        sorter, ledger = self._ledger.sorter, self._ledger
        return {
            "max_commit_ts": self._max_commit_ts,
            "purged_ts": self.purged_ts,
            "unmatched": len(sorter.open),
            "segments": self._segments.count,
            "log_bytes": self._segments.size_bytes,
            "available_bytes": free,
            "stop_write_at_available_bytes": reserve,
            "appended_records": self._appended_records,
            "appended_bytes": self._appended_bytes,
            "repeated_records": ledger.repeated,
            "refused_records": ledger.refused,
            "replayed_records": self._replayed,
        }

    def close(self) -> None:
        """Flush, mark the clean stop and let go; nothing may be appended or pulled any more."""
        if self._closed:
            return
        self._closed = True
        if self._flush_thread is not None:
            self._flush_thread.join()
        self._flush(self._indexed_checkpoint)
        self._segments.close()
        self._index.close()
        os.close(self._lock_file)

    def _write(self, records: Sequence[Record], most_ts: int) -> list[Position]:
        payloads = [record.payload for record in records]
        try:
            positions = self._segments.append(payloads, largest_ts=most_ts)
            if self._config.sync_log:
                self._segments.sync()
        except WriteFailed as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise OutOfSpace(str(error)) from error
            raise
        return positions

    def _space(self) -> tuple[int, int]:
        free, total = self._files.space(self._folder)
        reserve = self._config.stop_write_at_available_bytes
        if reserve < 0:
            reserve = min(total // _RESERVE_SHARE, _RESERVE_BYTES_MAX)
        return free, reserve

    def _refused_for_space(self, records: Sequence[Record]) -> dict[int, PenstockError]:
        """Refuse Prewrites below the reserve; what ends a transaction may use half of it."""
        free, reserve = self._space()
        if free > reserve:
            return {}
        ends = free > reserve // 2
        return {
            i: OutOfSpace(
                f"no available space, available: {free}, StopWriteAtAvailableSpace: {reserve}"
            )
            for i, record in enumerate(records)
            if not (ends and record.tp != BinlogType.PREWRITE)
        }

    def _is_flushing(self) -> bool:
        return self._flush_thread is not None and self._flush_thread.is_alive()

    def _flush(self, checkpoint: Checkpoint) -> None:
        """Make the index durable up to `checkpoint`; a failure only lengthens the next replay."""
        with self._flush_lock:
            if checkpoint.pointer <= self._flushed_checkpoint.pointer:
                return
            try:
                self._index.flush(checkpoint)
            except PenstockError as error:
                log.warning("the index could not be flushed: %s", error)
            else:
                self._flushed_checkpoint = checkpoint


def _lock(folder: Path) -> int:
    descriptor = os.open(folder / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(descriptor)
        raise NeedsOperator(
            f"another process has {folder} open", hint="two Pumps cannot share a data folder"
        ) from error
    return descriptor
