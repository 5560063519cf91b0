"""Cluster time: a client of the oracle that hands out timestamps (`ts.py` says what one is).

The oracle is a real PD, or Penstock's own (`server`), which speaks the same two methods.
A timestamp is larger than every one that anyone had received before it was asked for. Therefore
the client asks only after it was asked: threads that ask while a request is under way queue up,
and the first of them fetches for all as soon as that request is answered.
"""

from __future__ import annotations

import threading
import time
from typing import Protocol

from penstock.cluster.etcd import EtcdClient
from penstock.errors import NeedsOperator, Retryable
from penstock.oracle.stream import EtcdLeader, PdLeader, TsoStream
from penstock.security.tls import Tls
from penstock.ts import LOGICAL_END, compose

COUNT_MAX = LOGICAL_END // 2
"""The most timestamps one request may ask for."""

_RETRY_S = 0.05


class Oracle(Protocol):
    """The seam between whoever needs to know the time and the one clock of the cluster."""

    def get_ts(self) -> int:
        """Return a timestamp larger than all that were received before this call."""

    def get_many(self, count: int) -> range:
        """Return `count` consecutive timestamps, each as good as one of `get_ts`."""

    def close(self) -> None:
        """Let go of connections."""


def open_oracle(
    etcd: EtcdClient,
    pd_address: str | None = None,
    tls: Tls | None = None,
    *,
    pd_tls: Tls | None = None,
) -> Oracle:
    """Return a client of the PD at `pd_address`, or else of the oracle elected in this etcd.

    `tls` is for the elected one, which is a Pump; `pd_tls` for a PD at https://, which by default
    is asked without a certificate and trusted by the system's CAs.
    """
    if not pd_address:
        return OracleClient(etcd, tls=tls)
    with_tls = pd_address.startswith("https://")
    return OracleClient(pd_address, tls=(pd_tls or Tls()) if with_tls else None)


class _Turn:
    """One thread's request while it waits."""

    __slots__ = ("count", "deadline_s", "error", "last_ts", "woken")

    def __init__(self, count: int, deadline_s: float) -> None:
        self.count = count
        self.deadline_s = deadline_s
        self.woken = threading.Lock()  # Held from the start; releasing it wakes the waiter.
        self.woken.acquire()
        self.last_ts = 0
        self.error: Exception | None = None


class OracleClient:
    """A client of the oracle that a PD address or an etcd client leads to.

    Blocking, safe to share between threads, one request for all threads that wait. While there is
    no leader it looks for one until `timeout_s` has passed, then raises Retryable.
    """

    def __init__(
        self, source: EtcdClient | str, *, timeout_s: float = 10, tls: Tls | None = None
    ) -> None:
        leader = PdLeader(source, tls) if isinstance(source, str) else EtcdLeader(source)
        self._stream = TsoStream(leader, tls)
        self._timeout_s = timeout_s
        self._lock = threading.Lock()
        self._queue: list[_Turn] = []
        self._busy = False
        self._closed = False

    def get_ts(self) -> int:
        """Return a timestamp larger than all that anyone received before this call."""
        return self._wait(1)

    def get_many(self, count: int) -> range:
        """Return 1 to `COUNT_MAX` consecutive timestamps, each as good as one of `get_ts`."""
        assert 1 <= count <= COUNT_MAX
        last_ts = self._wait(count)
        return range(last_ts - count + 1, last_ts + 1)

    def close(self) -> None:
        """Close the connection; who waits gets Retryable."""
        self._closed = True
        self._stream.close()

    def _wait(self, count: int) -> int:
        turn = _Turn(count, time.monotonic() + self._timeout_s)
        with self._lock:
            self._queue.append(turn)
            fetch_now = not self._busy
            self._busy = True
        if not fetch_now:
            # Ends: whoever fetches gives up at its own deadline, and hands over to the oldest.
            turn.woken.acquire()
        if not turn.last_ts and turn.error is None:
            self._fetch_for_all(turn)
        if turn.error is not None:
            raise turn.error
        return turn.last_ts

    def _fetch_for_all(self, turn: _Turn) -> None:
        """Serve everyone in the queue, then hand over to whoever came meanwhile."""
        batch = self._next_batch()
        done: list[_Turn] = []
        try:
            last_ts = self._fetch(sum(t.count for t in batch), turn.deadline_s)
            for served in reversed(batch):
                served.last_ts = last_ts
                last_ts -= served.count
            done = batch
        except (Retryable, NeedsOperator) as error:
            now_s = time.monotonic()
            for waiting in batch:
                if waiting is turn or waiting.deadline_s <= now_s or self._closed:
                    is_final = isinstance(error, NeedsOperator)
                    waiting.error = error if is_final else Retryable(*error.args)
                    done.append(waiting)
            turn.error = error
        finally:
            self._hand_over(turn, batch, done)

    def _next_batch(self) -> list[_Turn]:
        """Take the oldest waiters whose counts still fit into one request."""
        with self._lock:
            total, size = 0, 0
            for waiting in self._queue:
                total += waiting.count
                if total > COUNT_MAX:
                    break
                size += 1
            batch, self._queue = self._queue[:size], self._queue[size:]
            return batch

    def _hand_over(self, turn: _Turn, batch: list[_Turn], done: list[_Turn]) -> None:
        with self._lock:
            if len(done) < len(batch):
                left = [t for t in batch if t not in done and t is not turn]
                self._queue[:0] = left
            successor = self._queue[0] if self._queue else None
            self._busy = successor is not None
        if successor is not None:
            successor.woken.release()
        for served in done:
            if served is not turn:
                served.woken.release()

    def _fetch(self, count: int, deadline_s: float) -> int:
        while True:
            try:
                if self._closed:
                    raise Retryable("this oracle client is closed")
                return compose(*self._stream.fetch(count, deadline_s - time.monotonic()))
            except Retryable as error:
                if self._closed or time.monotonic() + _RETRY_S >= deadline_s:
                    raise Retryable(f"no timestamp: {error}") from error
                time.sleep(_RETRY_S)
