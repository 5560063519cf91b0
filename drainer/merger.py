"""Merge the sorted streams of all Pumps into one stream in `commit_ts` order.

    pump a  ──1──3──5──7────────┐ received up to 7
    pump b  ──2──4──6───────────┤ received up to 6   <- holds the merge: low water 6
    pump c  ──────8──────9──────┘ received up to 9
    emitted ──1──2──3──4──5──6 |     7, 8 and 9 wait

Each stream is strictly increasing, so once every Pump has sent something at or above a timestamp,
nothing at or below it can still arrive. The smallest "received up to" of all Pumps is the *low
water*: everything at or below it is emitted, nothing above it is. A Pump that is silent, paused
or dead holds the low water where it is; it is never skipped. Fake binlogs keep idle Pumps moving.

A Pump that joins late enters at what was already emitted. That is safe because it takes its first
write only after it entered here: its commits then get timestamps the oracle had not yet handed out.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from drainer.payload import Payload, release, start_ts_of
from penstock.errors import NeedsOperator

PAYLOAD_OVERHEAD_BYTES = 80
"""What a buffered binlog costs beside its bytes: the bytes object, its timestamp, two slots."""


@dataclass(frozen=True, slots=True)
class Merged:
    """A run of binlogs in strictly increasing `commit_ts` order; `bytes` is what they weighed."""

    commit_ts: Sequence[int]
    payloads: Sequence[Payload]
    bytes: int


@dataclass(slots=True)
class _Chunk:
    """One received run, consumed from `start` on; it is weighed until it is used up."""

    commit_ts: Sequence[int]
    payloads: Sequence[Payload]
    bytes: int
    start: int = 0


@dataclass(slots=True)
class _Source:
    received_ts: int
    chunks: deque[_Chunk] = field(default_factory=deque)
    bytes: int = 0
    finished: bool = False


class Merger:
    """The merge of all Pumps' streams; knows no clock, no network and no thread."""

    def __init__(self, after_ts: int) -> None:
        """Start after `after_ts`: what is at or below it was emitted in an earlier life."""
        self.emitted_ts = after_ts
        self.duplicates = 0
        self._sources: dict[str, _Source] = {}

    def add(self, source: str) -> int:
        """Let a Pump enter and return the `commit_ts` after which it must be pulled."""
        assert source not in self._sources or self._sources[source].finished, source
        self._sources[source] = _Source(self.emitted_ts)
        return self.emitted_ts

    def finish(self, source: str) -> None:
        """Let a Pump leave: what it sent is still emitted, but it no longer holds the merge."""
        self._sources[source].finished = True
        self._forget_finished()

    def push(self, source: str, commit_ts: Sequence[int], payloads: Sequence[Payload]) -> None:
        """Take a run from a Pump; raise `NeedsOperator` when it is not in increasing order."""
        assert len(commit_ts) == len(payloads)
        if not commit_ts:
            return
        state = self._sources[source]
        assert not state.finished, f"{source} has left the merge"
        last = state.received_ts
        for ts in commit_ts:
            if ts <= last:
                raise NeedsOperator(
                    f"Pump {source} sent commit_ts {ts} after {last}",
                    hint="its store is damaged, or two Pumps run under one node id; "
                    "emitting either binlog could break the commit order, so the Drainer stops",
                )
            last = ts
        size = sum(map(len, payloads)) + PAYLOAD_OVERHEAD_BYTES * len(payloads)
        state.received_ts = last
        state.bytes += size
        state.chunks.append(_Chunk(commit_ts, payloads, size))

    def take(self) -> Merged | None:
        """Return the next run at or below the low water, or None when every such one is out.

        A run ends where the first Pump's received message ends, so its size is bounded by one
        message per Pump.
        """
        if not self._sources:
            return None
        horizon = self.low_water
        for state in self._sources.values():
            if state.chunks:
                horizon = min(horizon, state.chunks[0].commit_ts[-1])
        parts = [part for state in self._sources.values() if (part := _cut(state, horizon))]
        self._forget_finished()
        if not parts:
            return None
        merged = parts[0] if len(parts) == 1 else self._merge(parts)
        assert merged.commit_ts[0] > self.emitted_ts
        self.emitted_ts = merged.commit_ts[-1]
        return merged

    def _merge(self, parts: list[Merged]) -> Merged:
        commit_ts = [ts for part in parts for ts in part.commit_ts]
        payloads = [payload for part in parts for payload in part.payloads]
        size = sum(part.bytes for part in parts)
        # The sort finds the parts' rising runs and merges them, which is all that is left to do.
        order = sorted(range(len(commit_ts)), key=commit_ts.__getitem__)
        kept = [order[0]]
        for index in order[1:]:
            if commit_ts[index] == commit_ts[kept[-1]]:
                _assert_same(commit_ts[index], payloads[index], payloads[kept[-1]])
                release(payloads[index])
                self.duplicates += 1
            else:
                kept.append(index)
        return Merged([commit_ts[i] for i in kept], [payloads[i] for i in kept], size)

    def _forget_finished(self) -> None:
        spent = [name for name, s in self._sources.items() if s.finished and not s.chunks]
        for name in spent:
            del self._sources[name]

    @property
    def low_water(self) -> int:
        """The timestamp at or below which every Pump has sent all it has."""
        received = [s.received_ts for s in self._sources.values() if not s.finished]
        if received:
            return min(received)
        left = [s.received_ts for s in self._sources.values()]
        return max(left, default=self.emitted_ts)

    @property
    def holders(self) -> list[str]:
        """The Pumps that keep the low water from rising: those that have sent the least far."""
        low = self.low_water
        return [n for n, s in self._sources.items() if not s.finished and s.received_ts == low]

    @property
    def sources(self) -> list[str]:
        """The Pumps that take part and have not left."""
        return [name for name, state in self._sources.items() if not state.finished]

    def received_ts(self, source: str) -> int:
        """Return the largest `commit_ts` that a Pump has sent."""
        return self._sources[source].received_ts

    def bytes_of(self, source: str) -> int:
        """Return the weight of what a Pump has sent and the merge has not emitted."""
        state = self._sources.get(source)
        return state.bytes if state else 0

    @property
    def bytes(self) -> int:
        """Return the weight of everything that waits here."""
        return sum(state.bytes for state in self._sources.values())


def _cut(state: _Source, horizon: int) -> Merged | None:
    """Take what a source's first chunk holds at or below the horizon."""
    if not state.chunks or state.chunks[0].commit_ts[state.chunks[0].start] > horizon:
        return None
    chunk = state.chunks[0]
    start, end = chunk.start, bisect_right(chunk.commit_ts, horizon, chunk.start)
    if end < len(chunk.commit_ts):
        chunk.start = end
        return Merged(chunk.commit_ts[start:end], chunk.payloads[start:end], 0)
    state.chunks.popleft()
    state.bytes -= chunk.bytes
    if start == 0:
        return Merged(chunk.commit_ts, chunk.payloads, chunk.bytes)
    return Merged(chunk.commit_ts[start:], chunk.payloads[start:], chunk.bytes)


def _assert_same(ts: int, one: Payload, other: Payload) -> None:
    """Two Pumps hold the same commit when a writer changed Pumps midway; anything else is wrong."""
    if one == other:
        return
    if start_ts_of(one) != start_ts_of(other):
        raise NeedsOperator(
            f"two Pumps hold different transactions with the commit_ts {ts}",
            hint="timestamps must be unique: check that all writers use one oracle; "
            "dropping either transaction would lose data, so the Drainer stops",
        )
