"""The queue between an application's threads and the connection to a Pump.

    thread ─ put ─┐            ┌─ batch 7 ┄┐
    thread ─ put ─┼─> queued ──┼─ batch 8 ┄┼┄> Pump ┄> acked ── each write's gate opens
    thread ─ put ─┘  (bytes    └─ batch 9 ┄┘
                    bounded)  in flight (count bounded)

No dedicated thread sends. A lone write is sent immediately by the thread that puts it. While a
batch is in flight, writes gather until they are many, or until a batch is acknowledged and the
thread that received the acknowledgement sends the gathered writes. Batches grow with the load, and
no thread is woken to send. Wake-ups cost more than bytes here: a thread waits on one bare lock.

A large backlog is sent in two halves, so that one is prepared while the Pump has the other.

Invariant: each write is in one of three places (queued, in flight, finished), moves under the one
lock, and only forward. So "was it sent?" has an answer at any moment.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from pumpclient.errors import Failure, Reason

_QUEUED: Final = 0
_IN_FLIGHT: Final = 1
_FINISHED: Final = 2

# While a batch is in flight, the next batch waits for this much, or for the ack. A batch costs both
# sides some 300 µs whatever it holds: with 16 threads this halved the CPU time per write.
_EAGER_COUNT: Final = 32
_EAGER_BYTES: Final = 256 << 10

# With more than this outstanding, a batch is at most half of it: one half is prepared or answered
# here while the Pump works on the other. As a single batch, each side would wait for the other.
_WHOLE_COUNT: Final = 64


class PendingWrite:
    """One binlog to be sent; its thread waits in `settle` for the outcome, or `on_end` is called.

    `on_end` is called by the receiver's thread, must be quick, must not raise, and may submit more.
    """

    __slots__ = ("_gate", "_on_end", "_place", "_queue", "failure", "needs_known", "payload")

    def __init__(
        self,
        payload: bytes,
        *,
        needs_known: bool = False,
        on_end: Callable[[PendingWrite], None] | None = None,
    ) -> None:
        self.payload = payload
        # Must not go to a node that cannot prove its identity.
        self.needs_known = needs_known
        self.failure: Failure | None = None
        self._place: int = _QUEUED
        self._queue: WriteQueue | None = None
        self._on_end = on_end
        # A bare lock, taken now and released when finished: the cheapest one-time signal available.
        self._gate = threading.Lock()
        self._gate.acquire()

    def settle(self, timeout_s: float) -> Failure | None:
        """Wait for the end of this write; return None once it is durable, else the failure.

        A write that was not sent by then is withdrawn. Only one thread may wait.
        """
        try:
            answered = self._gate.acquire(timeout=max(timeout_s, 0))
        except BaseException:  # An interrupt: the answer will not be read.
            self._withdraw()
            raise
        if answered or self._withdraw():
            return self.failure
        return Failure(Reason.TIMED_OUT, f"waited {timeout_s:.1f} s", maybe_stored=True)

    def finish(self, failure: Failure | None) -> None:
        """Wake the waiting thread; only the first outcome counts."""
        if self._place != _FINISHED:
            self._place = _FINISHED
            self.failure = failure
            self.payload = b""
            self._gate.release()
            if self._on_end is not None:
                self._on_end(self)

    def _withdraw(self) -> bool:
        return self._queue is None or self._queue.abandon(self)


class Link(Protocol):
    """A connection as seen by the queue."""

    def queue(self, batch: list[PendingWrite]) -> None:
        """Buffer a batch to be sent; called under the queue's lock, so it must not block."""

    def flush(self) -> None:
        """Send the buffered batches; called without a lock."""

    def finish(self) -> None:
        """Declare that no more batches will come; a call of `flush` follows."""


@dataclass(slots=True, eq=False)
class InFlight:
    """The batches of one connection that are sent and not yet answered, oldest first."""

    link: Link
    batches: deque[list[PendingWrite]] = field(default_factory=deque)
    writes: int = 0


class WriteQueue:
    """Writes of many threads for one connection at a time; bounded in bytes."""

    def __init__(
        self, *, batch_count_max: int, batch_bytes_max: int, in_flight_max: int, bytes_max: int
    ) -> None:
        self._batch_count_max = batch_count_max
        self._batch_bytes_max = batch_bytes_max
        self._in_flight_max = in_flight_max
        self._eager_count = min(_EAGER_COUNT, batch_count_max)
        self._whole_count = min(_WHOLE_COUNT, batch_count_max)
        self._bytes_max = bytes_max
        self._lock = threading.Lock()
        self._space = threading.Condition(self._lock)
        self._queued: deque[PendingWrite] = deque()
        self._queued_bytes = 0
        self._in_flight: InFlight | None = None
        self._work = threading.Condition(self._lock)
        self._closed = False

    def put(self, pendings: Sequence[PendingWrite], timeout_s: float) -> None:
        """Queue writes together, waiting for room; those without room in time fail."""
        done = 0
        while True:
            with self._lock:
                done = self._append(pendings, done)
                in_flight = self._advance()
            if in_flight is not None:
                in_flight.link.flush()
            if done == len(pendings):
                return
            with self._lock:
                failure = self._wait_for_room(len(pendings[done].payload), timeout_s)
            if failure is not None:
                for pending in pendings[done:]:
                    pending.finish(failure)
                return

    def abandon(self, pending: PendingWrite) -> bool:
        """Withdraw a write; True if it was not sent and never will be."""
        with self._lock:
            if pending._place != _QUEUED:
                return False
            self._queued_bytes -= len(pending.payload)
            pending.finish(Failure(Reason.TIMED_OUT, "not sent", maybe_stored=False))
            self._space.notify_all()
            return True

    def wait_for_work(self) -> bool:
        """Sleep until something is queued; False once the queue is closed and empty."""
        with self._lock:
            while True:
                while self._queued and self._queued[0]._place == _FINISHED:
                    self._queued.popleft()
                if self._queued:
                    return True
                if self._closed:
                    return False
                self._work.wait()

    def begin(self, in_flight: InFlight) -> None:
        """Send through this connection from now on, starting with the queued writes."""
        with self._lock:
            assert self._in_flight is None, "a queue has one connection"
            self._in_flight = in_flight
            self._advance()
        in_flight.link.flush()

    def acked(self, in_flight: InFlight) -> list[PendingWrite]:
        """Remove and return the oldest batch in flight, and send the gathered writes."""
        with self._lock:
            batch = in_flight.batches.popleft()
            in_flight.writes -= len(batch)
            advanced = self._advance()
        if advanced is not None:
            advanced.link.flush()
        return batch

    def end(self, in_flight: InFlight) -> list[PendingWrite]:
        """End a connection's batches and return their writes; queued writes stay queued."""
        with self._lock:
            if self._in_flight is in_flight:
                self._in_flight = None
            lost = [pending for batch in in_flight.batches for pending in batch]
            in_flight.batches.clear()
            in_flight.writes = 0
        return lost

    def put_back(self, pendings: list[PendingWrite]) -> None:
        """Requeue, at the front, writes that surely never reached the Pump."""
        with self._lock:
            for pending in reversed(pendings):
                if pending._place == _IN_FLIGHT:
                    pending._place = _QUEUED
                    self._queued.appendleft(pending)
                    self._queued_bytes += len(pending.payload)

    def fail_queued(self, failure: Failure) -> None:
        """Fail all queued writes: their threads should ask another Pump."""
        assert not failure.maybe_stored
        with self._lock:
            failed = [pending for pending in self._queued if pending._place == _QUEUED]
            for pending in failed:
                pending._place = _IN_FLIGHT  # So that it cannot be withdrawn any more.
            self._queued.clear()
            self._queued_bytes = 0
            self._space.notify_all()
        for pending in failed:
            pending.finish(failure)

    def close(self) -> None:
        """Refuse further writes; the connection ends once all queued writes are answered."""
        with self._lock:
            self._closed = True
            self._space.notify_all()
            self._work.notify_all()
            in_flight = self._advance()
        if in_flight is not None:
            in_flight.link.flush()

    def _append(self, pendings: Sequence[PendingWrite], done: int) -> int:
        for i in range(done, len(pendings)):
            pending = pendings[i]
            size = len(pending.payload)
            if self._closed or not self._has_room(size):
                return i
            pending._queue = self
            self._queued.append(pending)
            self._queued_bytes += size
        return len(pendings)

    def _advance(self) -> InFlight | None:
        """Move all batches that may leave now; return the `InFlight` to flush, if any."""
        in_flight = self._in_flight
        if in_flight is None:
            if self._queued:
                self._work.notify_all()
            return None
        is_changed = False
        while self._queued and self._may_send(in_flight):
            batch = self._pop(in_flight.writes)
            if batch:
                in_flight.batches.append(batch)
                in_flight.writes += len(batch)
                in_flight.link.queue(batch)
                is_changed = True
        if self._closed and not self._queued and not in_flight.batches:
            in_flight.link.finish()
            is_changed = True
        return in_flight if is_changed else None

    def _may_send(self, in_flight: InFlight) -> bool:
        """True when a batch may leave now: nothing is in flight, or enough has gathered."""
        count = len(in_flight.batches)
        if not 0 < count < self._in_flight_max:
            return not count
        has_gathered = len(self._queued) >= self._eager_count
        return has_gathered or self._queued_bytes >= _EAGER_BYTES or self._closed

    def _has_room(self, size: int) -> bool:
        """Return whether there is room; a write above the bound fits only an empty queue."""
        return not self._queued_bytes or self._queued_bytes + size <= self._bytes_max

    def _wait_for_room(self, size: int, timeout_s: float) -> Failure | None:
        has_room = self._space.wait_for(lambda: self._closed or self._has_room(size), timeout_s)
        if self._closed:
            return Failure(Reason.BROKEN, "the writer is closed", maybe_stored=False)
        return None if has_room else Failure(Reason.BUSY, "", maybe_stored=False)

    def _pop(self, in_flight_writes: int) -> list[PendingWrite]:
        """Take a batch off the queue, but leave some if the Pump has little other work."""
        batch: list[PendingWrite] = []
        size = 0
        half = (in_flight_writes + len(self._queued) + 1) // 2
        count_max = min(self._batch_count_max, max(half, self._whole_count))
        while self._queued and len(batch) < count_max:
            pending = self._queued[0]
            if pending._place == _QUEUED:
                if batch and size + len(pending.payload) > self._batch_bytes_max:
                    break
                size += len(pending.payload)
                pending._place = _IN_FLIGHT
                batch.append(pending)
            self._queued.popleft()
        if batch:
            self._queued_bytes -= size
            self._space.notify_all()
        return batch
