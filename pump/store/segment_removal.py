"""Segment removal: deletes whole segments, oldest first, with their index entries."""

from __future__ import annotations

import logging
import threading

from penstock import failpoints
from penstock.log.segments import MissingSegments, Segments
from pump.store.index import Index, Purge

log = logging.getLogger(__name__)
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
