"""Space: keeps a reserve of the volume, tracks announced large transactions, and purges segments.

    volume  ├──────────── for all binlogs ────────────┼─ Commits, Rollbacks ─┼─ index, repair ─┤
            and new replicas of other logs         reserve   replicas    reserve / 2          0

Without a setting the reserve is a fiftieth of the volume, at least 64 MiB for the index to write in
and at most 10 GiB; on a small volume a quarter. No state is kept: as soon as space is free again,
by a purge or by hand, writers are served again.

A large transaction announces its size before its chunks come. Until its chunk list is stored, no
index entry and no open Prewrite refers to the chunks, so it also records their first segment.

A purge deletes whole segments, oldest first, with their index entries.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from penstock import failpoints
from penstock.codes import Code
from penstock.errors import PenstockError
from penstock.log.files import Files
from penstock.log.segments import MissingSegments, Position, Segments
from penstock.wire.binlog import BinlogType
from pump.store.index import Index, Purge
from pump.store.record import ChunkRecord, OutOfSpace, Record

log = logging.getLogger(__name__)

_RESERVE_BYTES_MIN = 64 << 20
_RESERVE_BYTES_MAX = 10 << 30
_RESERVE_SHARE = 50
_SMALL_VOLUME_SHARE = 4
_ENDS = (BinlogType.COMMIT, BinlogType.ROLLBACK)
_AMPLE_BYTES = 4 << 30
"""No group of binlogs is that large; with so much free space its size need not be counted."""


def default_reserve_bytes(volume_bytes: int) -> int:
    share = min(max(volume_bytes // _RESERVE_SHARE, _RESERVE_BYTES_MIN), _RESERVE_BYTES_MAX)
    return min(share, volume_bytes // _SMALL_VOLUME_SHARE)


class Reserve:
    """Checks the free space before every group; a check costs two microseconds."""

    def __init__(self, files: Files, folder: Path, reserve_bytes: int) -> None:
        self._files = files
        self._folder = folder
        self._reserve_bytes = reserve_bytes
        self._is_low = False

    def space(self) -> tuple[int, int]:
        """Return the free bytes, and how many of them are the reserve."""
        free, volume_bytes = self._files.space(self._folder)
        if self._reserve_bytes >= 0:
            return free, self._reserve_bytes
        return free, default_reserve_bytes(volume_bytes)

    def stats(self) -> dict[str, int]:
        free, reserve = self.space()
        return {"available_bytes": free, "stop_write_at_available_bytes": reserve}

    def check(self, wanted_bytes: int = 0) -> None:
        """Raise `OutOfSpace` if new transactions are refused or `wanted_bytes` do not fit."""
        free, reserve = self.space()
        self._note(free, reserve)
        if free - wanted_bytes <= reserve:
            raise _out_of_space(free, reserve)

    def refused(self, records: Sequence[Record]) -> dict[int, PenstockError]:
        """Return the records refused, by index.

        Below the reserve these are Prewrites and their chunks. Records that end a transaction are
        small, and the whole stream waits for them, so they may use half of the reserve.
        """
        free, reserve = self.space()
        self._note(free, reserve)
        if free - reserve > _AMPLE_BYTES:
            return {}
        left = free - sum(len(record.payload) for record in records)
        if left > reserve:
            return {}
        error = _out_of_space(free, reserve)
        ends = [i for i, record in enumerate(records) if record.tp in _ENDS]
        left = free - sum(len(records[i].payload) for i in ends)
        if left <= reserve // 2:
            return dict.fromkeys(range(len(records)), error)
        return dict.fromkeys(set(range(len(records))).difference(ends), error)

    def check_copy(self, wanted_bytes: int, *, is_new: bool) -> None:
        """Raise `OutOfSpace` when a replica of another Pump's log may not use that much.

        An existing replica may use half of the reserve, like records that end transactions; a new
        replica, or an older segment, may use none of it.
        """
        free, reserve = self.space()
        if free - wanted_bytes <= (reserve if is_new else reserve // 2):
            raise _out_of_space(free, reserve)

    def _note(self, free: int, reserve: int) -> None:
        is_low = free <= reserve
        if is_low and not self._is_low:
            log.error(
                "%s has %d bytes left: no new transactions until there are more than %d again;"
                " pulls continue (free some space, or let purges take more: gc-days) [%s]",
                *(self._folder, free, reserve, Code.DISK_FULL),
            )
        elif self._is_low and not is_low:
            log.info("%s has %d bytes left: new transactions are taken again", self._folder, free)
        self._is_low = is_low


def _out_of_space(free: int, reserve: int) -> OutOfSpace:
    # TiDB-Binlog's clients know this text.
    return OutOfSpace(
        f"no available space, available: {free}, StopWriteAtAvailableSpace: {reserve}",
        code=Code.DISK_FULL,
    )


@dataclass(slots=True, eq=False)
class IncomingTransaction:
    """One large transaction on its way into the log."""

    start_ts: int
    size_bytes: int
    stored_bytes: int = 0
    positions: list[Position] = field(default_factory=list)
    first: ChunkRecord | None = None


_segments_dropped = failpoints.point("pump.purge.segments_dropped")
_purged = failpoints.point("pump.purge.done")


class Needed:
    """For each segment the largest timestamp that needs it; a Prewrite is as old as its Commit.

    Updated by the appending thread, read by the purging thread.
    """

    def __init__(self, by_segment: dict[int, int]) -> None:
        self._by_segment = by_segment
        self._lock = threading.Lock()

    def note(self, by_segment: dict[int, int]) -> None:
        """Raise the timestamps, and update `by_segment` to the values the index must hold."""
        with self._lock:
            for segment, ts in by_segment.items():
                most_ts = max(ts, self._by_segment.get(segment, 0))
                by_segment[segment] = self._by_segment[segment] = most_ts

    def largest_ts(self) -> int:
        return max(self._by_segment.values(), default=0)

    def droppable(self, purge: Purge, limit: int, before_ts: int) -> Purge:
        """Return the furthest purge that takes nothing at or after `before_ts`.

        Segments from `limit` on stay.
        """
        purged_ts, first = purge
        with self._lock:
            while first < limit and self._by_segment.get(first, 0) < before_ts:
                purged_ts = max(purged_ts, self._by_segment.get(first, 0))
                first += 1
        return Purge(purged_ts, first)

    def forget(self, before_segment: int) -> None:
        with self._lock:
            for segment in [n for n in self._by_segment if n < before_segment]:
                del self._by_segment[segment]


def carry_out(index: Index, segments: Segments, purge: Purge) -> None:
    """Remove segments and index entries; after a crash, `finish_purge` completes the removal.

    `purge` must be durable in the index, and known to all readers, before this call.
    """
    segments.drop_before(purge.first_segment)
    _segments_dropped()
    deleted = index.forget(purge.purged_ts, purge.first_segment)
    _purged()
    log.info(
        "purged all up to commit_ts %d: segments before %d, %d index entries",
        purge.purged_ts,
        purge.first_segment,
        deleted,
    )


def finish_purge(index: Index, segments: Segments) -> Purge:
    """Return the purge after dropping segments that a crash left behind; raise `Corrupt`."""
    purge = index.purge()
    first = segments.first
    if index.head() is None and first > 0:  # The index is new, the log is not.
        purge = Purge(segments.earlier_largest_ts(first), first)
        index.set_purge(purge)
    if first > purge.first_segment:
        raise MissingSegments(
            segments.folder,
            purge.first_segment,
            first - 1,
            after_ts=purge.purged_ts,
            up_to_ts=segments.earlier_largest_ts(first),
        )
    if first < purge.first_segment:
        carry_out(index, segments, purge)
    return purge
