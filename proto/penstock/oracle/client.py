"""Cluster time: a client that gets timestamps from the oracle (`ts.py` defines a timestamp).

The oracle is a real PD, or Penstock's own (`server`), which speaks the same two methods. The client
finds the leader, and keeps one stream to it.

A timestamp is larger than every timestamp that anyone had received before it was requested. The
client therefore sends its request only after it was called. Threads that call while a request is in
progress queue up, and the first of them fetches for all as soon as that request is answered.

*PD.* Every PD of a TiDB cluster knows the others and their leader. The configured PDs are asked
first, then those that they named, so that a list that has become too short still leads to a PD that
runs. The cluster id must never change, because timestamps of another cluster are unrelated to ours:
a client that was once given an id accepts no other id.

TiDB sends PD's id to a Pump with each binlog, so a Pump in front of it must have the same. The id
in etcd never changes: nodes, data folders and downstreams identify each other by it. If it is not
PD's, a node with `pd-address` does not start. If it is, a node without `pd-address` does not start:
its timestamps would come from another clock than those of all others.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Protocol

import grpc

from penstock.cluster.etcd import EtcdClient, read, transact
from penstock.cluster.node_registry import CLUSTER_ID_KEY, PD_CLUSTER_ID_KEY, Registry, refuse_pd
from penstock.codes import Code
from penstock.errors import NeedsOperator, Retryable, code_of_call
from penstock.http2.client.channel import CallFailed, Channel, ClientCall
from penstock.pb import pdpb_pb2
from penstock.security.refusal import refusal_of
from penstock.security.tls import Tls, open_channel
from penstock.ts import LOGICAL_END, compose

log = logging.getLogger(__name__)

LEADER_KEY = "/penstock/v1/oracle/leader"

_UNUSED_S_MAX = 10.0
"""A Pump pings a connection that was silent for 20 s."""
_CLOSED = "this oracle client is closed"
_CALL_S_MAX = 1.0  # A frozen leader is abandoned soon after this, while others elect a new leader.

CHANNEL_OPTIONS = [
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.min_reconnect_backoff_ms", 500),
    ("grpc.max_reconnect_backoff_ms", 500),
    ("grpc.use_local_subchannel_pool", 1),
]

_KNOWN_MAX = 16


def pd_tls_of(addresses: str, tls: Tls | None) -> Tls | None:
    """Return the TLS with which the PDs at these addresses are asked; None for http://.

    Without `tls`, PDs at https:// are asked without a client certificate, and trusted by the
    system's CAs. Raises `NeedsOperator` if only some are at https://.
    """
    secure = {each.startswith("https://") for each in _split(addresses)}
    if len(secure) > 1:
        raise NeedsOperator(
            f"only some addresses in {addresses!r} begin with https://",
            "write https:// before each address in pd-address, or before none",
            Code.SETTING_VALUE,
        )
    return (tls or Tls()) if secure == {True} else None


class PdLeader:
    """Finds the leader among PDs; for one thread at a time."""

    def __init__(self, addresses: str, tls: Tls | None = None) -> None:
        self._tls = tls
        self._configured = [_host_port(each) for each in _split(addresses)]
        self._named: list[str] = []
        self._cluster_id: int | None = None

    def __call__(self, left_s: float) -> tuple[str, int]:
        """Return the leader's host:port and the cluster id that PD insists on.

        Each silent PD costs up to `left_s`. Raises `Retryable` when none knows a leader,
        `NeedsOperator` when all configured PDs refuse us, or belong to another cluster.
        """
        problem, refusals = "", list[NeedsOperator | None]()
        others = [each for each in self._named if each not in self._configured]
        for address in (*self._configured, *others):
            try:
                answer = _members(address, self._tls, left_s)
            except grpc.RpcError as error:
                if address in self._configured:
                    refusals.append(refusal_of(address, self._tls, error))
                problem = f"PD at {address}: {error.code().name}: {error.details()}"
                continue
            if answer.header.error.type:
                problem = f"PD at {address}: {answer.header.error.message}"
            elif answer.leader.client_urls:
                return self._leader(address, answer)
            else:
                problem = f"PD at {address} knows no leader"
            refusals.append(None)
        if refusals and (first := refusals[0]) is not None and None not in refusals:
            raise first
        raise Retryable(f"{problem} (start PD, or correct pd-address)", Code.ORACLE_AWAY)

    def _leader(self, address: str, answer: pdpb_pb2.GetMembersResponse) -> tuple[str, int]:
        found = answer.header.cluster_id
        if self._cluster_id not in (None, found):
            raise NeedsOperator(
                f"PD at {address} is of cluster {found}, and it was {self._cluster_id} before",
                "check pd-address: all PDs in it must be of one cluster",
                Code.CLUSTER_MISMATCH,
            )
        url = answer.leader.client_urls[0]
        if url.startswith("https://") and self._tls is None:
            raise NeedsOperator(
                f"PD's leader at {url} asks for TLS",
                "write https:// in pd-address",
                Code.TLS_MISMATCH,
            )
        self._cluster_id = found
        urls = [url for member in answer.members for url in member.client_urls]
        self._named = [_host_port(url) for url in urls[:_KNOWN_MAX]]
        return _host_port(url), found


def _members(address: str, tls: Tls | None, timeout_s: float) -> pdpb_pb2.GetMembersResponse:
    with open_channel(address, tls, CHANNEL_OPTIONS) as channel:
        parse = pdpb_pb2.GetMembersResponse.FromString  # gRPC reports bytes that it refuses.
        call = channel.unary_unary("/pdpb.PD/GetMembers", response_deserializer=parse)
        answer: pdpb_pb2.GetMembersResponse = call(b"", timeout=timeout_s)
        return answer


def _split(addresses: str) -> list[str]:
    return [part for each in addresses.split(",") if (part := each.strip())]


def _host_port(url: str) -> str:
    return url.removeprefix("https://").removeprefix("http://").rstrip("/")


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
        if not channel.wait(answers.are_there, deadline_s):
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


def _elected(etcd: EtcdClient, left_s: float) -> tuple[str, int]:
    """Return the host:port of the Pump elected oracle, and 0 since one etcd serves one cluster.

    Raises `NeedsOperator` where a PD issues the timestamps.
    """
    address = read(etcd, LEADER_KEY, timeout_s=left_s)
    if address is None:
        refuse_pd(etcd)
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
        is_pd = isinstance(source, str)
        find = PdLeader(source, tls) if is_pd else partial(_elected, source)
        self._stream = TsoStream(find, tls)
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


_WITHIN_S = 10.0
_ANSWER_S_MAX = 2.0
_PD_RETRY_S = 0.2


def find_cluster_id(
    etcd: EtcdClient,
    pd_address: str | None = None,
    pd_tls: Tls | None = None,
    *,
    within_s: float = _WITHIN_S,
) -> int:
    """Return the id of the cluster of this etcd, and of the PDs at `pd_address` if it is given.

    Raises `Retryable` when etcd or PD does not answer in time, `NeedsOperator` when the two are not
    of one cluster.
    """
    if not pd_address:
        return Registry(etcd).cluster_id()
    leader = PdLeader(pd_address, pd_tls_of(pd_address, pd_tls))
    until_s = time.monotonic() + within_s
    while True:
        try:
            _, found = leader(min(_ANSWER_S_MAX, within_s))
            break
        except Retryable:
            if time.monotonic() + _PD_RETRY_S >= until_s:
                raise
            time.sleep(_PD_RETRY_S)
    _keep(etcd, found, pd_address)
    return found


def _keep(etcd: EtcdClient, pd_id: int, pd_address: str) -> None:
    do, text = etcd.transactions, str(pd_id)
    puts = [do.put(CLUSTER_ID_KEY, text), do.put(PD_CLUSTER_ID_KEY, text)]
    transact(etcd, [do.create(CLUSTER_ID_KEY) == 0], puts)
    # Compared by value, not by presence: an id that an operator restored by hand is also PD's.
    is_same, answers = transact(
        etcd, [do.value(CLUSTER_ID_KEY) == text], puts[1:], [do.get(CLUSTER_ID_KEY)]
    )
    if is_same:
        return
    values = [value.decode("utf-8", "replace") for value, _ in answers[0]]
    raise NeedsOperator(
        f"the PD at {pd_address} is of cluster {pd_id}, and this etcd holds the nodes of cluster"
        f" {', '.join(values) or '?'}",
        "check etcd-urls and pd-address; if the cluster began without its PD's id, see"
        " 'With a TiDB' in pump/README.md",
        Code.CLUSTER_MISMATCH,
    )
