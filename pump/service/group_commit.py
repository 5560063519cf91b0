"""Group commit: writes queued binlogs with one fdatasync, acknowledges them, then indexes them.

    enqueue ──> waiting ──> append (durable) ──> settle ──> index ──> on_indexed
                  ^           │                                         │
     requests pile up here <──┘ while the disk works   next append <────┘

Invariants: appends and index calls alternate and never overlap; nothing is
acknowledged before `append` returned; a failed append is reported to every writer of its group
and to no other. While an append waits less than a millisecond for the disk, the event loop does it
itself, otherwise a thread (`AppendTimes`).

Each submission has a callback, which saves a call with one binlog the future and the task that
would wait for it. A group is everything that comes in one turn of the event loop, because the first
submission only schedules the append; `begin` does not wait for that.

An append in the event loop is cheaper than handing it to a thread; a slow disk gets a thread, so
that pulls continue. The decision depends on how long an append waits, not on its processor time: a
thread would need the same processor time, and keep the event loop waiting for the interpreter. It
uses the median of the last few waits, not their mean. On a busy machine some waits are ten times as
long because the process is not scheduled, which says nothing about the disk.

A thread's wait includes the wait for the interpreter, and so looks long. Unless the median is ten
times the limit, every 32nd append is done in the event loop to measure the disk.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import operator
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final, NamedTuple

from penstock.codes import Code
from penstock.errors import PenstockError, Retryable
from pump.counters import Counters
from pump.store.record import NotStored, TooManyOpen

if TYPE_CHECKING:
    from pump.store.record import Record
    from pump.store.storage import Appended, Storage

    _Stored = tuple[Appended | None, dict[int, PenstockError]]


_KEPT: Final = 15
_PROBE_EVERY: Final = 32
_PROBE_BELOW: Final = 10
_EWMA_WEIGHT: Final = 0.1


class AppendTimes:
    """The last appends of one Pump; times are seconds."""

    def __init__(self, inline_below_s: float) -> None:
        """The event loop appends at first, and while the median wait is below `inline_below_s`."""
        self._inline_below_s = inline_below_s
        self._last = deque([0.0] * _KEPT, _KEPT)
        self._median_s = 0.0
        self._until_probe = _PROBE_EVERY
        self.average_s = 0.0
        """The average duration, for status and score; newer appends count more."""

    @property
    def are_short(self) -> bool:
        return self._median_s < self._inline_below_s

    def probe_is_due(self) -> bool:
        self._until_probe -= 1
        if self._until_probe > 0:
            return False
        self._until_probe = _PROBE_EVERY
        return self._median_s < _PROBE_BELOW * self._inline_below_s

    def note(self, took_s: float, waited_s: float, *, in_loop: bool) -> None:
        if in_loop and waited_s < self._inline_below_s and not self.are_short:
            self._last.extend([waited_s] * _KEPT)
            self.average_s = took_s
        self._last.append(waited_s)
        self._median_s = sorted(self._last)[_KEPT // 2]
        self.average_s += _EWMA_WEIGHT * (took_s - self.average_s)


log = logging.getLogger(__name__)

Refusals = Mapping[int, PenstockError]
"""Refused records and the reasons, by their position in the submission."""

ALL_STORED: Final[Refusals] = {}

Settle = Callable[[Refusals | BaseException], None]
"""Receives the outcome of a submission: its refusals, the rest being durable, or its group's
error.

Called once, in the event loop's thread; must neither raise nor take long.
"""

INLINE_BELOW_S = 0.001
"""The event loop does the appends whose wait is shorter (see `AppendTimes`)."""

_SLOW_S = 1.0
_PAYLOAD = operator.itemgetter(3)


class _Waiting(NamedTuple):
    records: Sequence[Record]
    size_bytes: int
    since_s: float
    calls: int
    settle: Settle


class GroupCommit:
    """The only appender to a Pump's storage; for one event loop."""

    def __init__(
        self,
        storage: Storage,
        *,
        on_indexed: Callable[[], None] = lambda: None,
        group_bytes_max: int = 4 << 20,
        queue_bytes_max: int = 256 << 20,
        inline_below_s: float = INLINE_BELOW_S,
        counters: Counters | None = None,
    ) -> None:
        self._storage = storage
        self._on_indexed = on_indexed
        self._group_bytes_max = group_bytes_max
        self._queue_bytes_max = queue_bytes_max
        self.times = AppendTimes(inline_below_s)
        self.index_retry_s = 1.0
        self._counters = counters or Counters()
        self._loop = asyncio.get_running_loop()
        self._thread = ThreadPoolExecutor(1, "pump-append")
        self._waiting: deque[_Waiting] = deque()
        self.queued_bytes = 0
        self._unindexed: Appended | None = None
        self._busy = False
        self._beginning: asyncio.Handle | None = None  # While a first `_turn` is scheduled.
        self._roomy = asyncio.Event()
        self._roomy.set()
        self._idle = asyncio.Event()
        self._idle.set()
        self.records_written = 0
        self.groups_written = 0

    @property
    def queue_fill(self) -> float:
        return self.queued_bytes / self._queue_bytes_max

    @property
    def is_full(self) -> bool:
        """True while the queue holds its limit of bytes; `submit` then raises."""
        return self.queued_bytes >= self._queue_bytes_max

    async def room(self) -> None:
        """Wait until the queue accepts more: back-pressure for a stream of batches."""
        while self.is_full:
            await self._roomy.wait()

    async def write(self, records: Sequence[Record]) -> None:
        """Return once all of `records` are durable; raise the first error otherwise."""
        for refusal in (await self.submit(records)).values():
            raise refusal

    def submit(self, records: Sequence[Record]) -> asyncio.Future[Refusals]:
        """Queue `records`; the future is done once all but the refused records are durable.

        Raises `Retryable` while the queue is full. When the append fails, the future raises.
        """
        done: asyncio.Future[Refusals] = self._loop.create_future()

        def settle(outcome: Refusals | BaseException) -> None:
            if done.done():  # Its caller went away; the records are stored nevertheless.
                return
            if isinstance(outcome, BaseException):
                done.set_exception(outcome)
                done.exception()  # Marked as seen, even if its caller goes away before looking.
            else:
                done.set_result(outcome)

        self.enqueue(records, settle)
        return done

    def enqueue(self, records: Sequence[Record], settle: Settle, calls: int = 1) -> None:
        """Queue `records` and report to `settle`; raise `Retryable` while the queue is full.

        `calls` is the number of callers that wait for them, and so how often the wait is counted.
        """
        if self.queued_bytes >= self._queue_bytes_max:
            overloaded = Retryable(
                f"the Pump is overloaded: {self.queued_bytes} bytes wait to be written",
                Code.PUMP_OVERLOADED,
            )
            self._counters.refuse(overloaded)
            raise overloaded
        size_bytes = sum(map(len, map(_PAYLOAD, records)))
        self._waiting.append(_Waiting(records, size_bytes, time.perf_counter(), calls, settle))
        self.queued_bytes += size_bytes
        if self.queued_bytes >= self._queue_bytes_max:
            self._roomy.clear()
        if not self._busy:
            self._busy = True
            self._idle.clear()
            self._beginning = self._loop.call_soon(self._turn)

    async def between_groups(self, call: Callable[[], None]) -> None:
        """Call once everything queued before is indexed, and before anything later is appended.

        `call` must not raise. Raises `Retryable` as `enqueue` does.
        """
        done: asyncio.Future[None] = self._loop.create_future()

        def between(outcome: Refusals | BaseException) -> None:
            call()
            if not done.done():
                done.set_result(None)

        self.enqueue((), between, 0)
        await done

    def begin(self) -> None:
        """Append the queue now, not in the loop's next turn, unless a group is in progress.

        For a caller that has gathered the submissions of one turn.
        """
        if self._beginning is not None:
            self._beginning.cancel()
            self._turn()

    async def close(self) -> None:
        """Write and index the queue, then end the thread; nothing may be submitted afterwards."""
        await self._idle.wait()
        self._thread.shutdown()

    def _turn(self) -> None:
        self._beginning = None
        if not self._indexed():
            return
        while self._waiting and not self._waiting[0].records:
            self._waiting.popleft().settle(ALL_STORED)
        if not self._waiting:
            self._busy = False
            self._idle.set()
            return
        group = self._next_group()
        records = list(itertools.chain.from_iterable(waiting.records for waiting in group))
        if self.times.are_short or self.times.probe_is_due():
            try:
                stored = self._append(records, in_loop=True)
            except Exception as error:
                self._failed(group, error)
            else:
                self._stored(group, stored)
            return

        def finish(task: asyncio.Future[_Stored]) -> None:
            if (error := task.exception()) is None:
                self._stored(group, task.result())
            else:
                self._failed(group, error)

        self._loop.run_in_executor(self._thread, self._append, records).add_done_callback(finish)

    def _next_group(self) -> list[_Waiting]:
        group = [self._waiting.popleft()]
        size_bytes = group[0].size_bytes
        while self._waiting and size_bytes + self._waiting[0].size_bytes <= self._group_bytes_max:
            if not self._waiting[0].records:
                break
            size_bytes += self._waiting[0].size_bytes
            group.append(self._waiting.popleft())
        self.queued_bytes -= size_bytes
        if not self.is_full:
            self._roomy.set()
        return group

    def _append(self, records: Sequence[Record], in_loop: bool = False) -> _Stored:
        """Append all records that the storage accepts; it stores a group whole or not at all."""
        refused: dict[int, PenstockError] = {}
        left: Sequence[int] = range(len(records))
        while left:
            begin_s, begin_cpu_s = time.perf_counter(), time.thread_time()
            try:
                appended = self._storage.append([records[i] for i in left] if refused else records)
            except NotStored as error:
                refused.update((left[i], reason) for i, reason in error.refused.items())
                left = [i for i in left if i not in refused]
            else:
                took_s = time.perf_counter() - begin_s
                waited_s = took_s - (time.thread_time() - begin_cpu_s)
                self.times.note(took_s, waited_s, in_loop=in_loop)
                self._counters.append_s.note(took_s)
                self._counters.group_records.note(len(left))
                if took_s > _SLOW_S:
                    log.warning("writing %d binlogs to disk took %.1f s", len(left), took_s)
                return appended, refused
        return None, refused

    def _stored(self, group: Sequence[_Waiting], stored: _Stored) -> None:
        """Acknowledge the group; it is indexed after the acknowledgements have left."""
        appended, refused = stored
        _settle(group, refused)
        now_s = time.perf_counter()
        for waiting in group:
            self._counters.acknowledge_s.note(now_s - waiting.since_s, waiting.calls)
        for error in refused.values():
            self._counters.refuse(error)
            if isinstance(error, TooManyOpen):
                log.warning("new transactions are refused: %s", error)
        if appended is not None:
            self._unindexed = appended
            self.groups_written += 1
            self.records_written += sum(len(waiting.records) for waiting in group) - len(refused)
        self._loop.call_soon(self._turn)

    def _failed(self, group: Sequence[_Waiting], error: BaseException) -> None:
        log.error("a group of %d writes failed: %s", len(group), error)
        self._counters.failed_groups += 1
        self._counters.failed_writes += sum(waiting.calls for waiting in group)
        for waiting in group:
            waiting.settle(error)
        self._loop.call_soon(self._turn)

    def _indexed(self) -> bool:
        """Index the last group; False when that failed and will be tried again in a second.

        Nothing is appended until it succeeds: the index is filled in the order of the log.
        """
        if self._unindexed is None:
            return True
        try:
            self._storage.index(self._unindexed)
        except Exception:
            self._counters.failed_indexing += 1
            log.exception("indexing failed; trying again in %.0f s", self.index_retry_s)
            self._loop.call_later(self.index_retry_s, self._turn)
            return False
        self._unindexed = None
        self._on_indexed()
        return True


def _settle(group: Sequence[_Waiting], refused: Refusals) -> None:
    if not refused:
        for waiting in group:
            waiting.settle(ALL_STORED)
        return
    begin = 0
    for waiting in group:
        end = begin + len(waiting.records)
        waiting.settle({i - begin: refused[i] for i in range(begin, end) if i in refused})
        begin = end
