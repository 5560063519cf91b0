"""Group commit: whatever waits becomes one write and one fdatasync, is acknowledged, then indexed.

    submit ──> waiting ──> append (durable) ──> acknowledge ──> index ──> on_indexed
                 ^           │                                              │
    requests pile up here <──┘ while the disk works        next append <────┘

Invariants: appends and index calls alternate, in order, never at the same time; nothing is
acknowledged before `append` returned; a failed append is reported to every writer of its group
and to no other. While an append takes less than a millisecond the event loop does it itself,
which is cheaper than handing it to a thread; a slow disk gets a thread, so that pulls continue.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.errors import PenstockError, Retryable
from pump.counters import Counters
from pump.store.record import NotStored, TooManyOpen

if TYPE_CHECKING:
    from pump.store.record import Record
    from pump.store.storage import Appended, Storage

    _Stored = tuple[Appended | None, dict[int, PenstockError]]

log = logging.getLogger(__name__)

Refusals = Mapping[int, PenstockError]
"""By position among the records submitted: those that were not stored, and why."""

INLINE_BELOW_S = 0.001
"""Appends that take less on average run in the event loop."""

_EWMA_WEIGHT = 0.1
_PROBE_EVERY = 32
_PROBE_BELOW = 10
"""A thread's time includes its wait for the interpreter, and so looks slow. Unless the
average is ten times the limit, each 32nd append is done inline to see how fast the disk is."""

_SLOW_S = 1.0


@dataclass(slots=True)
class _Waiting:
    records: Sequence[Record]
    size_bytes: int
    done: asyncio.Future[Refusals]
    since_s: float


class GroupCommit:
    """The one that appends to a Pump's storage; for one event loop."""

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
        self._inline_below_s = inline_below_s
        self.index_retry_s = 1.0
        self._counters = counters or Counters()
        self._loop = asyncio.get_running_loop()
        self._thread = ThreadPoolExecutor(1, "pump-append")
        self._waiting: deque[_Waiting] = deque()
        self._queued_bytes = 0
        self._unindexed: Appended | None = None
        self._busy = False
        self._roomy = asyncio.Event()
        self._roomy.set()
        self._idle = asyncio.Event()
        self._idle.set()
        self._until_probe = _PROBE_EVERY
        self.append_s_average = 0.0
        self.records_written = 0
        self.groups_written = 0

    @property
    def queue_fill(self) -> float:
        """How full the queue is, from 0 to 1 and a little above."""
        return self._queued_bytes / self._queue_bytes_max

    @property
    def is_full(self) -> bool:
        """True while the queue holds its limit of bytes; `submit` then raises."""
        return self._queued_bytes >= self._queue_bytes_max

    @property
    def queued_bytes(self) -> int:
        """What waits to be written."""
        return self._queued_bytes

    @property
    def appends_inline(self) -> bool:
        """True while the event loop appends by itself."""
        return self.append_s_average < self._inline_below_s

    async def room(self) -> None:
        """Return once the queue takes more: how a stream of batches feels back-pressure."""
        while self.is_full:
            await self._roomy.wait()

    async def write(self, records: Sequence[Record]) -> None:
        """Return once all of `records` are durable; raise the first reason why one is not."""
        for refusal in (await self.submit(records)).values():
            raise refusal

    def submit(self, records: Sequence[Record]) -> asyncio.Future[Refusals]:
        """Queue `records`; the future is done once all but the refused ones are durable.

        Raises `Retryable` while the queue is full. When the append fails, the future raises.
        """
        if self.is_full:
            overloaded = Retryable(
                f"the Pump is overloaded: {self._queued_bytes} bytes wait to be written"
            )
            self._counters.refuse(overloaded)
            raise overloaded
        done: asyncio.Future[Refusals] = self._loop.create_future()
        size_bytes = sum(len(record.payload) for record in records)
        self._waiting.append(_Waiting(records, size_bytes, done, time.perf_counter()))
        self._queued_bytes += size_bytes
        if self.is_full:
            self._roomy.clear()
        if not self._busy:
            self._busy = True
            self._idle.clear()
            self._loop.call_soon(self._turn)
        return done

    async def close(self) -> None:
        """Write and index what waits, then end the thread; nothing may be submitted any more."""
        await self._idle.wait()
        self._thread.shutdown()

    def _turn(self) -> None:
        """Index the group before, then append the next one, if any."""
        if not self._indexed():
            return
        if not self._waiting:
            self._busy = False
            self._idle.set()
            return
        group = self._next_group()
        records = [record for waiting in group for record in waiting.records]
        if self.appends_inline or self._probe_is_due():
            try:
                stored = self._append(records, trusted=True)
            except Exception as error:
                self._failed(group, error)
            else:
                self._stored(group, stored)
            return
        task = self._loop.run_in_executor(self._thread, self._append, records)
        task.add_done_callback(lambda task: self._from_thread(group, task))

    def _from_thread(self, group: list[_Waiting], task: asyncio.Future[_Stored]) -> None:
        error = task.exception()
        if error is None:
            self._stored(group, task.result())
        else:
            self._failed(group, error)

    def _next_group(self) -> list[_Waiting]:
        group = [self._waiting.popleft()]
        size_bytes = group[0].size_bytes
        while self._waiting and size_bytes + self._waiting[0].size_bytes <= self._group_bytes_max:
            size_bytes += self._waiting[0].size_bytes
            group.append(self._waiting.popleft())
        self._queued_bytes -= size_bytes
        if not self.is_full:
            self._roomy.set()
        return group

    def _probe_is_due(self) -> bool:
        self._until_probe -= 1
        if self._until_probe > 0:
            return False
        self._until_probe = _PROBE_EVERY
        return self.append_s_average < _PROBE_BELOW * self._inline_below_s

    def _append(self, records: Sequence[Record], trusted: bool = False) -> _Stored:
        """Append all but those that the storage refuses; it takes a group whole or not at all."""
        refused: dict[int, PenstockError] = {}
        left = list(range(len(records)))
        while left:
            begin_s = time.perf_counter()
            try:
                appended = self._storage.append([records[i] for i in left])
            except NotStored as error:
                refused.update((left[i], reason) for i, reason in error.refused.items())
                left = [i for i in left if i not in refused]
            else:
                self._note_time(time.perf_counter() - begin_s, trusted, len(left))
                return appended, refused
        return None, refused

    def _note_time(self, took_s: float, trusted: bool, count: int) -> None:
        if trusted and took_s < self._inline_below_s <= self.append_s_average:
            self.append_s_average = took_s
        self.append_s_average += _EWMA_WEIGHT * (took_s - self.append_s_average)
        self._counters.append_s.note(took_s)
        self._counters.group_records.note(count)
        if took_s > _SLOW_S:
            log.warning("writing %d binlogs to disk took %.1f s", count, took_s)

    def _stored(self, group: Sequence[_Waiting], stored: _Stored) -> None:
        """Acknowledge the group; its index entries follow once the acknowledgements left."""
        appended, refused = stored
        _acknowledge(group, refused)
        now_s, acknowledged = time.perf_counter(), self._counters.acknowledge_s
        for waiting in group:
            acknowledged.note(now_s - waiting.since_s)
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
        self._counters.failed_writes += len(group)
        for waiting in group:
            if not waiting.done.done():
                waiting.done.set_exception(error)
                waiting.done.exception()  # Seen, even if its caller goes away before looking.
        self._loop.call_soon(self._turn)

    def _indexed(self) -> bool:
        """Index the last group; False when that failed and will be tried again in a second.

        Nothing is appended meanwhile: the index is filled in the order of the log.
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


def _acknowledge(group: Sequence[_Waiting], refused: Refusals) -> None:
    """Acknowledge every submission, handing each the refusals among its own records."""
    begin = 0
    for waiting in group:
        end = begin + len(waiting.records)
        own = {i - begin: refused[i] for i in range(begin, end) if i in refused} if refused else {}
        if not waiting.done.done():  # Else its caller went away; it is stored all the same.
            waiting.done.set_result(own)
        begin = end
