"""Merger: merges the sorted streams of all Pumps into one stream in `commit_ts` order.

    pump a  ──1──3──5──7────────┐ received up to 7
    pump b  ──2──4──6───────────┤ received up to 6   <- blocks the merge: watermark 6
    pump c  ──────8──────9──────┘ received up to 9
    emitted ──1──2──3──4──5──6 |     7, 8 and 9 wait

Everything at or below the watermark is emitted, nothing above it; `drainer.intake` says why that is
the commit order.

A Pump that joins late enters at the emitted timestamp. A Pump that left before it had sent
everything, and returns, enters where it left. Its binlogs at or below the emitted timestamp have no
place in the order any more. Fake binlogs may pass, and transactions that an operator has named; any
other transaction stops the merge with the missing range.
"""

from __future__ import annotations

import heapq
import logging
from bisect import bisect_right
from collections import deque
from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass, field
from itertools import islice
from operator import lt

import numpy as np

from drainer.intake.payload import Payload, RemoteRun, is_fake, release, start_ts_of, weight_of
from penstock.codes import Code
from penstock.errors import NeedsOperator

log = logging.getLogger(__name__)

PAYLOAD_OVERHEAD_BYTES = 80
"""The cost of a buffered binlog beside its bytes: the bytes object, its timestamp, two slots."""

RUN_BYTES = 1 << 20
"""Size of a run if enough binlogs wait; they share the cost of the run."""


@dataclass(frozen=True, slots=True)
class Merged:
    """A run of binlogs in strictly increasing `commit_ts` order; `bytes` is their total weight."""

    commit_ts: Sequence[int]
    payloads: Sequence[Payload]
    bytes: int


@dataclass(slots=True)
class _Message:
    """One received run, consumed from `start` on; it counts in full until it is used up."""

    commit_ts: Sequence[int]
    payloads: Sequence[Payload]
    bytes: int
    start: int = 0


@dataclass(slots=True)
class _PumpQueue:
    received_ts: int
    messages: deque[_Message] = field(default_factory=deque)
    bytes: int = 0
    finished: bool = False


class Merger:
    """The merge of all Pumps' streams; uses no clock, no network and no thread."""

    def __init__(self, after_ts: int, ignored_ts: Set[int] = frozenset()) -> None:
        """Start after `after_ts`; an earlier run has emitted everything at or below it.

        Transactions at `ignored_ts` may come too late, because an operator has dealt with them.
        """
        self.emitted_ts = after_ts
        self.duplicates = 0
        self.late = 0
        """The number of late transactions that were among `ignored_ts`."""
        self._ignored_ts = ignored_ts
        self._sources: dict[str, _PumpQueue] = {}

    def add(self, source: str, left_ts: int | None = None) -> int:
        """Add a Pump and return the `commit_ts` after which it must be pulled.

        `left_ts` is the timestamp up to which it was received when it left, if it may have sent
        more after that.
        """
        assert source not in self._sources or self._sources[source].finished, source
        after_ts = self.emitted_ts if left_ts is None else min(left_ts, self.emitted_ts)
        self._sources[source] = _PumpQueue(after_ts)
        return after_ts

    def finish(self, source: str) -> None:
        """Let a Pump leave: its binlogs are still emitted, but it no longer blocks the merge."""
        self._sources[source].finished = True
        self._forget_finished()

    def push(self, source: str, commit_ts: Sequence[int], payloads: Sequence[Payload]) -> None:
        """Take a run from a Pump; raise `NeedsOperator` when it is not in increasing order."""
        assert len(commit_ts) == len(payloads)
        if not commit_ts:
            return
        state = self._sources[source]
        assert not state.finished, f"{source} has left the merge"
        if commit_ts[0] <= state.received_ts or not _rises(commit_ts):
            raise _disorder(source, state.received_ts, commit_ts)
        if commit_ts[0] <= self.emitted_ts:
            last_ts = commit_ts[-1]
            # A late run counts as received only after it was checked.
            commit_ts, payloads = self._on_time(source, state.received_ts, commit_ts, payloads)
            if not commit_ts:
                state.received_ts = last_ts
                return
        size = weight_of(payloads) + PAYLOAD_OVERHEAD_BYTES * len(payloads)
        state.received_ts = commit_ts[-1]
        state.bytes += size
        state.messages.append(_Message(commit_ts, payloads, size))

    def _on_time(
        self, source: str, left_ts: int, commit_ts: Sequence[int], payloads: Sequence[Payload]
    ) -> tuple[Sequence[int], Sequence[Payload]]:
        """Return the part of a run that is not too late; `NeedsOperator` if real transactions are.

        Only a Pump that left and returned sends binlogs below the emitted timestamp; a Pump that
        entered there does not.
        """
        late = bisect_right(commit_ts, self.emitted_ts)
        for ts, payload in zip(commit_ts[:late], payloads, strict=False):
            if is_fake(payload):
                continue
            if ts not in self._ignored_ts:
                raise _too_late(source, left_ts, ts, self.emitted_ts)
            log.warning("transaction %d of Pump %s is in ignore-txn-commit-ts, and too late for"
                        " the merge: it is skipped", ts, source)  # fmt: skip
            self.late += 1
            release(payload)
        return commit_ts[late:], payloads[late:]

    def take(self, up_to_ts: int | None = None) -> Merged | None:
        """Return the next run at or below the watermark, or None if all such runs were returned.

        With `up_to_ts` nothing above that is emitted either.

        A run ends at the end of the message with which the messages that end in it fill
        `RUN_BYTES`. `RUN_BYTES` and one message per Pump therefore bound a run's size, and the cost
        of a run, which grows with the number of Pumps, is shared by as many binlogs.
        """
        if not self._sources:
            return None
        horizon = self.watermark if up_to_ts is None else min(self.watermark, up_to_ts)
        horizon = self._reach(horizon)
        parts = [part for state in self._sources.values() for part in _cut(state, horizon)]
        self._forget_finished()
        if not parts:
            return None
        merged = parts[0] if len(parts) == 1 else self._merge(parts)
        assert merged.commit_ts[0] > self.emitted_ts
        self.emitted_ts = merged.commit_ts[-1]
        return merged

    def _reach(self, horizon: int) -> int:
        """Return the end of the message that fills `RUN_BYTES`, or `horizon` if that is first."""
        weight = 0
        for end, size in heapq.merge(*map(_ends, self._sources.values())):
            weight += size
            if weight >= RUN_BYTES or end >= horizon:
                return min(end, horizon)
        return horizon

    def _merge(self, parts: list[Merged]) -> Merged:
        commit_ts: list[int] = []
        for part in parts:
            commit_ts += part.commit_ts
        remote = [part.payloads for part in parts if isinstance(part.payloads, RemoteRun)]
        payloads: Sequence[Payload]
        if len(remote) == len(parts):
            payloads = RemoteRun.joined(remote)
        else:
            payloads = [payload for part in parts for payload in part.payloads]
        size = sum(part.bytes for part in parts)
        stamps = np.array(commit_ts, np.int64)
        # The sort finds the parts' rising runs and merges them; no other work remains.
        order = stamps.argsort(kind="stable")
        stamps = stamps[order]
        repeated = stamps[1:] == stamps[:-1]
        if repeated.any():
            self._drop(np.flatnonzero(repeated).tolist(), order.tolist(), commit_ts, payloads)
            kept = np.insert(~repeated, 0, True)
            stamps, order = stamps[kept], order[kept]
        if isinstance(payloads, RemoteRun):
            return Merged(stamps.tolist(), payloads.taken(order), size)
        return Merged(stamps.tolist(), list(map(payloads.__getitem__, order.tolist())), size)

    def _drop(
        self, places: list[int], order: list[int], commit_ts: list[int], payloads: Sequence[Payload]
    ) -> None:
        """Drop each binlog that repeats its predecessor in `order`, which it must equal."""
        for place in places:
            one, other = order[place], order[place + 1]
            _assert_same(commit_ts[one], payloads[other], payloads[one])
            release(payloads[other])
        self.duplicates += len(places)

    def _forget_finished(self) -> None:
        spent = [name for name, s in self._sources.items() if s.finished and not s.messages]
        for name in spent:
            del self._sources[name]

    @property
    def watermark(self) -> int:
        """The watermark: every Pump has sent all it has at or below this timestamp."""
        received = [s.received_ts for s in self._sources.values() if not s.finished]
        if received:
            return min(received)
        left = [s.received_ts for s in self._sources.values()]
        return max(left, default=self.emitted_ts)

    @property
    def holders(self) -> list[str]:
        """The Pumps that hold back the watermark: their streams have advanced least."""
        low = self.watermark
        return [n for n, s in self._sources.items() if not s.finished and s.received_ts == low]

    @property
    def sources(self) -> list[str]:
        return [name for name, state in self._sources.items() if not state.finished]

    def received_ts(self, source: str) -> int:
        return self._sources[source].received_ts

    def bytes_of(self, source: str) -> int:
        """Return the weight of a Pump's binlogs that the merge has not emitted."""
        state = self._sources.get(source)
        return state.bytes if state else 0

    @property
    def binlogs(self) -> int:
        messages = (message for state in self._sources.values() for message in state.messages)
        return sum(len(message.commit_ts) - message.start for message in messages)

    @property
    def bytes(self) -> int:
        return sum(state.bytes for state in self._sources.values())


def _rises(commit_ts: Sequence[int]) -> bool:
    return all(map(lt, commit_ts, islice(commit_ts, 1, None)))


def _disorder(source: str, last_ts: int, commit_ts: Sequence[int]) -> NeedsOperator:
    before = [last_ts, *commit_ts]
    last, ts = next((a, b) for a, b in zip(before, commit_ts, strict=False) if a >= b)
    return NeedsOperator(
        f"Pump {source} sent commit_ts {ts} after {last}",
        "its store is damaged, or two Pumps run under one node id; "
        "emitting either binlog could break the commit order, so the Drainer stops",
        Code.PULL_MALFORMED,
    )


def _too_late(source: str, left_ts: int, ts: int, emitted_ts: int) -> NeedsOperator:
    return NeedsOperator(
        f"Pump {source} came back with the transaction {ts}, after this Drainer had gone on without"
        f" it: what it holds of ({left_ts}, {emitted_ts}] is not downstream",
        "restore the downstream from a backup made before that, and the Drainer pulls it in"
        f" order; or read it with `penstock ctl dump --full --from-ts {left_ts + 1} --to-ts"
        f" {emitted_ts}` on that Pump's data-dir, repair the downstream by hand, and then name"
        " those transactions in ignore-txn-commit-ts",
        Code.PUMP_CAME_BACK,
    )


def _ends(state: _PumpQueue) -> Iterator[tuple[int, int]]:
    """Return the end and the remaining weight of each message."""
    for message in state.messages:
        count = len(message.commit_ts)
        yield message.commit_ts[-1], message.bytes * (count - message.start) // count


def _cut(state: _PumpQueue, horizon: int) -> Iterator[Merged]:
    while state.messages and state.messages[0].commit_ts[state.messages[0].start] <= horizon:
        message = state.messages[0]
        start, end = message.start, bisect_right(message.commit_ts, horizon, message.start)
        if end < len(message.commit_ts):
            message.start = end
            yield Merged(message.commit_ts[start:end], message.payloads[start:end], 0)
            return
        state.messages.popleft()
        state.bytes -= message.bytes
        if start == 0:
            yield Merged(message.commit_ts, message.payloads, message.bytes)
        else:
            yield Merged(message.commit_ts[start:], message.payloads[start:], message.bytes)


def _assert_same(ts: int, one: Payload, other: Payload) -> None:
    """Assert equality: two Pumps hold a commit only if its writer changed Pumps midway."""
    if one == other:
        return
    if start_ts_of(one) != start_ts_of(other):
        raise NeedsOperator(
            f"two Pumps hold different transactions with the commit_ts {ts}",
            "timestamps must be unique: check that all writers use one oracle; "
            "dropping either transaction would lose data, so the Drainer stops",
            Code.CONTRADICTION,
        )
