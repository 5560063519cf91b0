"""Sorter: tracks the open transactions, and the commit_ts up to which the stream is complete.

A writer asks for its commit_ts only when its Prewrite is durable here. So every commit_ts that this
Pump has seen *before* a Prewrite was issued before the commit_ts of that Prewrite will be:

    arrival   P1 ── C0(10) ── P2 ── C3(14) ── C2(17) ── …
    floor     0               10                          P2 will commit above 10,
                                                          P1 may commit anywhere: the max is 0

The floor of a Prewrite is the largest commit_ts that arrived before it. The stream is complete up
to the floor of the oldest open Prewrite; with none open, up to the largest commit_ts seen.
Transactions that wait for an open one need no queue: memory grows with the open transactions only.

Invariants: `max_commit_ts` never goes down, and the ledger refuses a Commit unless it lies above
its Prewrite's floor, so nothing enters the stream below it. No clock, no I/O.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import NamedTuple

from penstock.log.segments import Position
from pump.store.record import IN_ONE

_new = tuple.__new__


class Open(NamedTuple):
    """A Prewrite without its Commit or Rollback."""

    position: Position
    floor_ts: int
    since_ms: int
    first_segment: int = IN_ONE
    """The segment of its first chunk, if it was stored in chunks."""


class Sorter:
    """Receives records in the order of the log; `open` holds unmatched Prewrites by arrival."""

    def __init__(self, max_commit_ts: int = 0) -> None:
        # An OrderedDict, because its first key costs the same however many were deleted.
        self.open: OrderedDict[int, Open] = OrderedDict()
        self.largest_ts = max_commit_ts

    @property
    def max_commit_ts(self) -> int:
        """The commit_ts up to and including which nothing can be added to the stream."""
        oldest = self.oldest_unmatched()
        return self.largest_ts if oldest is None else oldest.floor_ts

    def push_prewrite(
        self, start_ts: int, position: Position, now_ms: int, first_segment: int = IN_ONE
    ) -> None:
        """Record an open transaction, whose Prewrite must not be open already."""
        assert start_ts not in self.open, "the ledger lets no Prewrite in twice"
        # Same as `Open(…)`, at half the cost.
        self.open[start_ts] = _new(Open, (position, self.largest_ts, now_ms, first_segment))

    def push_commit(self, start_ts: int, commit_ts: int) -> Open | None:
        """Match a Commit, return its Prewrite if that was open, and advance time."""
        if commit_ts > self.largest_ts:
            self.largest_ts = commit_ts
        return self.open.pop(start_ts, None)

    def push_rollback(self, start_ts: int) -> Open | None:
        """Match a Rollback and return its Prewrite if that was open."""
        return self.open.pop(start_ts, None)

    def push_fake(self, ts: int) -> None:
        """Advance time to `ts`, as far as open transactions allow."""
        if ts > self.largest_ts:
            self.largest_ts = ts

    def oldest_unmatched(self) -> Open | None:
        """Return the open Prewrite that arrived first."""
        for oldest in self.open.values():
            return oldest
        return None

    def segments_of_chunks(self) -> list[int]:
        """Return the first chunk's segment of each open Prewrite that has chunks."""
        return [p.first_segment for p in self.open.values() if p.first_segment != IN_ONE]

    def unmatched(self, older_than_ms: int) -> list[tuple[int, Open]]:
        """Return start_ts and Prewrite of arrivals before `older_than_ms`, oldest first."""
        found = []
        for start_ts, prewrite in self.open.items():
            if prewrite.since_ms > older_than_ms:
                break
            found.append((start_ts, prewrite))
        return found
