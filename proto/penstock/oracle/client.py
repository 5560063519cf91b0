"""Cluster time: a client that gets timestamps from the oracle (`ts.py` defines a timestamp).

The oracle is a real PD, or Penstock's own (`server`), which speaks the same two methods. The client
finds the leader, and keeps one stream to it.

A timestamp is larger than every timestamp that anyone had received before it was requested. The
client therefore sends its request only after it was called. Threads that call while a request is in
progress queue up, and the first of them fetches for all as soon as that request is answered.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Protocol

from penstock.cluster.etcd import EtcdClient, read
from penstock.cluster.node_registry import refuse_pd
from penstock.codes import Code
from penstock.errors import NeedsOperator, Retryable, code_of_call
from penstock.http2.client.channel import CallFailed, Channel, ClientCall
from penstock.oracle.pd import PdLeader, pd_tls_of
from penstock.pb import pdpb_pb2
from penstock.security.refusal import refusal_of
from penstock.security.tls import Tls
from penstock.ts import LOGICAL_END, compose

log = logging.getLogger(__name__)

LEADER_KEY = "/penstock/v1/oracle/leader"

_UNUSED_S_MAX = 10.0
"""A Pump pings a connection that was silent for 20 s."""
_CLOSED = "this oracle client is closed"
_CALL_S_MAX = 1.0  # A frozen leader is abandoned soon after this, while others elect a new leader.


class TsoStream:
    """A stream to the current leader, used by one thread at a time; found again after a failure.

    The thread that asks also reads. Between two requests no one answers the server's pings, so a
    stream that was not used for a while is reopened before the server takes it for dead.
    """

    def __init__(
        self, find_leader: Callable[[float], tuple[str, int]], tls: Tls | None = None
    ) -> None:
        self._find_leader = find_leader
        self._tls = tls
        self._address = ""
        self._channel: Channel | None = None
        self._call: ClientCall | None = None
        self._answers = _Answers()
        self._header = pdpb_pb2.RequestHeader()
        self._used_s = 0.0
        self._closed = threading.Event()

    def fetch(self, count: int, left_s: float) -> tuple[int, int]:
        """Return physical and logical of the last of `count` new timestamps.

        One attempt: a failure is Retryable, and the next attempt looks for the leader again.
        """
        begin_s = time.monotonic()
        deadline_s = begin_s + max(min(left_s, _CALL_S_MAX), 0.01)
        if begin_s - self._used_s > _UNUSED_S_MAX:
            self._end_stream()
        try:
            if self._call is None:
                self._open(deadline_s)
            answer = self._ask(count, deadline_s)
        except CallFailed as error:
            self._end_stream()
            if refusal := refusal_of(self._address, self._tls, error):
                raise refusal from error
            raise Retryable(
                f"the oracle at {self._address}: {error.code().name}: {error.details()}",
                code_of_call(error) or Code.ORACLE_AWAY,
            ) from error
        except BaseException:
            # A pending answer must not be taken for the next request's.
            self._end_stream()
            raise
        if answer.header.error.type or answer.count != count:
            self._end_stream()
            raise Retryable(
                f"the oracle at {self._address}: {answer.header.error.message}", Code.ORACLE_AWAY
            )
        self._used_s = time.monotonic()
        return answer.timestamp.physical, answer.timestamp.logical

    def close(self) -> None:
        """End the stream permanently; callers waiting for its answer get an error."""
        self._closed.set()
        self._end_stream()

    def _ask(self, count: int, deadline_s: float) -> pdpb_pb2.TsoResponse:
        channel, call, answers = self._channel, self._call, self._answers
        if channel is None or call is None:
            raise Retryable(_CLOSED, Code.CLOSED)
        request = pdpb_pb2.TsoRequest(header=self._header, count=count)
        call.queue((request.SerializeToString(),))
        call.flush()
        if not channel.wait(answers.are_there, _never, deadline_s):
            raise Retryable(f"the oracle at {self._address} does not answer", Code.ORACLE_AWAY)
        return pdpb_pb2.TsoResponse.FromString(answers.next())

    def _open(self, deadline_s: float) -> None:
        address, cluster_id = self._find_leader(_left_s(deadline_s))
        if address != self._address:
            log.info("the oracle's leader is %s", address)
        self._address = address
        self._header = pdpb_pb2.RequestHeader(cluster_id=cluster_id)
        channel = self._channel = Channel(address, self._tls)
        if self._closed.is_set():  # `close` could not see this channel.
            raise Retryable(_CLOSED, Code.CLOSED)
        channel.connect(_left_s(deadline_s))
        self._answers = _Answers()
        self._call = channel.call("/pdpb.PD/Tso", self._answers)

    def _end_stream(self) -> None:
        channel, self._channel, self._call = self._channel, None, None
        if channel is not None:
            channel.close()


class _Answers:
    """The answers on one stream; a handler of its call."""

    def __init__(self) -> None:
        self._came: deque[bytes] = deque()
        self._outcome: CallFailed | None = None
        self._is_over = False

    def on_message(self, message: bytes) -> None:
        self._came.append(message)

    def on_end(self, error: CallFailed | None) -> None:
        self._is_over, self._outcome = True, error

    def are_there(self) -> bool:
        return self._is_over or bool(self._came)

    def next(self) -> bytes:
        """Return the answer; raise `CallFailed`, or `Retryable` if the server has ended."""
        if self._came:
            return self._came.popleft()
        raise self._outcome or Retryable("the oracle ended the stream", Code.ORACLE_AWAY)


def _left_s(deadline_s: float) -> float:
    return max(deadline_s - time.monotonic(), 0.01)


def _never(timeout_s: float | None) -> None:
    raise AssertionError("a channel without a reader has its callers read")


class EtcdLeader:
    """Finds the Pump that was elected oracle."""

    def __init__(self, etcd: EtcdClient) -> None:
        self._etcd = etcd

    def __call__(self, left_s: float) -> tuple[str, int]:
        """Return the leader's host:port, and 0 since one etcd serves one cluster.

        Raises `NeedsOperator` where a PD issues the timestamps.
        """
        address = read(self._etcd, LEADER_KEY, timeout_s=left_s)
        if address is None:
            refuse_pd(self._etcd)
            raise Retryable(
                "no oracle is elected: no Pump runs, or an election is under way", Code.ORACLE_AWAY
            )
        return address.decode(), 0


COUNT_MAX = LOGICAL_END // 2
"""The most timestamps one request may ask for."""

_RETRY_S = 0.05


class Oracle(Protocol):
    """The interface between users of the time and the cluster's clock."""

    def get_ts(self) -> int:
        """Return a timestamp larger than all timestamps received before this call."""

    def get_many(self, count: int) -> range:
        """Return `count` consecutive timestamps, each with the guarantee of `get_ts`."""

    def close(self) -> None: ...


def open_oracle(
    etcd: EtcdClient,
    pd_address: str | None = None,
    tls: Tls | None = None,
    *,
    pd_tls: Tls | None = None,
) -> Oracle:
    """Return a client of the PDs at `pd_address`, or else of the oracle elected in this etcd.

    `tls` is for the elected oracle, which is a Pump. `pd_tls` is for a PD at https://, which by
    default is asked without a client certificate and trusted by the system's CAs.
    """
    if not pd_address:
        return OracleClient(etcd, tls=tls)
    return OracleClient(pd_address, tls=pd_tls_of(pd_address, pd_tls))


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

    Blocking, safe to share between threads, one request for all threads that wait. Without a
    leader it looks for one until `timeout_s` has passed, then raises Retryable.
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
        self._newest_ts = 0
        self._closed = False

    def get_ts(self) -> int:
        """Return a timestamp larger than all timestamps anyone received before this call."""
        return self._wait(1)

    def get_many(self, count: int) -> range:
        """Return 1 to `COUNT_MAX` consecutive timestamps, with the guarantee of `get_ts`."""
        assert 1 <= count <= COUNT_MAX
        last_ts = self._wait(count)
        return range(last_ts - count + 1, last_ts + 1)

    def close(self) -> None:
        """Close the connection; waiting callers get `Retryable`."""
        self._closed = True
        self._stream.close()

    def _wait(self, count: int) -> int:
        turn = _Turn(count, time.monotonic() + self._timeout_s)
        with self._lock:
            self._queue.append(turn)
            fetch_now = not self._busy
            self._busy = True
        if not fetch_now:
            # Ends: the fetching thread stops at its deadline, and hands over to the oldest.
            turn.woken.acquire()
        if not turn.last_ts and turn.error is None:
            self._fetch_for_all(turn)
        if turn.error is not None:
            raise turn.error
        return turn.last_ts

    def _fetch_for_all(self, turn: _Turn) -> None:
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
                    waiting.error = error if is_final else Retryable(str(error), error.code)
                    done.append(waiting)
            turn.error = error
        finally:
            self._hand_over(turn, batch, done)

    def _next_batch(self) -> list[_Turn]:
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
                    raise Retryable(_CLOSED, Code.CLOSED)
                last_ts = compose(*self._stream.fetch(count, deadline_s - time.monotonic()))
                if last_ts - count >= self._newest_ts:
                    self._newest_ts = last_ts
                    return last_ts
                raise Retryable(
                    f"the oracle handed out {last_ts}, which is not above the {self._newest_ts}"
                    " before (was etcd restored from a backup, and is a Pump's clock behind?)",
                    Code.ORACLE_AWAY,
                )
            except Retryable as error:
                if self._closed or time.monotonic() + _RETRY_S >= deadline_s:
                    raise Retryable(f"no timestamp: {error}", error.code) from error
                time.sleep(_RETRY_S)
