"""The oracle over elections, deaths, frozen leaders, wrong clocks and outages of etcd."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import grpc
import psutil
import pytest

from penstock.cluster.etcd import connect, read
from penstock.cluster.node_registry import NodeKind, NodeState, NodeStatus, Registry
from penstock.errors import Retryable
from penstock.local.etcd import EtcdServer
from penstock.oracle.client import COUNT_MAX, LEADER_KEY, OracleClient
from penstock.oracle.server import WINDOW_KEY
from penstock.pb import pdpb_pb2
from penstock.ts import LOGICAL_END, compose, physical_ms
from tests.kit.fakes.oracle import OracleNode
from tests.kit.wait import eventually, present

pytestmark = pytest.mark.alone

_CANDIDATE = """
import sys
from penstock.cluster.etcd import connect
from tests.kit.fakes.oracle import OracleNode
etcd = connect(sys.argv[1])
node = OracleNode(etcd)
print(node.address, flush=True)
sys.stdin.read()
node.stop()
etcd.close()
"""


class Candidate:
    """A candidate in a process of its own, to be killed or frozen."""

    def __init__(self, etcd_url: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", _CANDIDATE, etcd_url],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(["proto", "."])},
        )
        assert self._process.stdout is not None
        self.address = self._process.stdout.readline().decode().strip()

    def send(self, what: signal.Signals) -> None:
        self._process.send_signal(what)

    def freeze(self) -> None:
        """Return once it stands, and answers no more."""
        self.send(signal.SIGSTOP)
        eventually(lambda: psutil.Process(self._process.pid).status() == psutil.STATUS_STOPPED)

    def end(self) -> None:
        self._process.send_signal(signal.SIGCONT)
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(20)
        self._process.stdout.close()


@pytest.fixture
def candidate(etcd: Any, etcd_server: EtcdServer) -> Iterator[Candidate]:
    """The leader, alone so far."""
    candidate = Candidate(etcd_server.url)
    eventually(lambda: read(etcd, LEADER_KEY) == candidate.address.encode())
    yield candidate
    candidate.end()


@pytest.fixture
def client(etcd: Any) -> Iterator[OracleClient]:
    client = OracleClient(etcd, timeout_s=60)
    yield client
    client.close()


def tso(address: str, request: pdpb_pb2.TsoRequest) -> pdpb_pb2.TsoResponse:
    with grpc.insecure_channel(address) as channel:
        call = channel.unary_unary(
            "/pdpb.PD/Tso",
            request_serializer=pdpb_pb2.TsoRequest.SerializeToString,
            response_deserializer=pdpb_pb2.TsoResponse.FromString,
        )
        answer: pdpb_pb2.TsoResponse = call(request, timeout=5)
        return answer


def test_another_candidate_leads_when_the_lease_of_a_dead_leader_has_ended(
    etcd: Any, candidate: Candidate, client: OracleClient
) -> None:
    last_ts = client.get_ts()
    heir = OracleNode(etcd)
    candidate.send(signal.SIGKILL)
    assert client.get_ts() > last_ts
    assert heir.oracle.is_leader
    heir.stop()


def test_only_the_leader_s_own_process_takes_timestamps_without_a_call(
    etcd: Any, client: OracleClient
) -> None:
    first = OracleNode(etcd)
    first.wait_elected()
    second = OracleNode(etcd)
    before_ts = client.get_ts()
    taken = present(first.take_now(3))
    assert list(taken) == [taken[0], taken[0] + 1, taken[0] + 2]
    assert before_ts < taken[0] <= taken[-1] < client.get_ts()
    assert second.take_now(1) is None
    assert first.take_now(COUNT_MAX + 1) is None
    first.stop()
    second.wait_elected()
    assert client.get_ts() < present(second.take_now(1))[0]
    second.stop()


def test_a_resigning_leader_hands_over_at_once(etcd: Any, client: OracleClient) -> None:
    first = OracleNode(etcd)
    first.wait_elected()
    second = OracleNode(etcd)
    last_ts = client.get_ts()
    first.stop()
    assert read(etcd, LEADER_KEY) != first.address.encode(), "others would wait for its lease"
    assert client.get_ts() > last_ts
    assert second.oracle.is_leader
    second.stop()


@pytest.mark.fault(
    "a leader frozen past its lease wakes up",
    "it is silent: the lease is checked before each answer",
    cases="1, asked 20 times",
)
@pytest.mark.thorough
def test_a_frozen_leader_is_replaced_and_silent_when_it_wakes_up(
    etcd: Any, candidate: Candidate, client: OracleClient
) -> None:
    last_ts = client.get_ts()
    heir = OracleNode(etcd)
    candidate.freeze()
    assert client.get_ts() > last_ts
    candidate.send(signal.SIGCONT)
    for _ in range(20):
        with pytest.raises(grpc.RpcError, match="not the oracle's leader"):
            tso(candidate.address, pdpb_pb2.TsoRequest(count=1))
    assert heir.oracle.is_leader
    heir.stop()


@pytest.mark.thorough
@pytest.mark.parametrize("offset_ms", [-3_600_000, 3_600_000])
def test_a_new_leader_with_a_wrong_clock_keeps_the_order(
    etcd: Any, client: OracleClient, offset_ms: int
) -> None:
    taken = []
    for offset in (0, offset_ms, 0):
        node = OracleNode(etcd, wall_offset_ms=offset)
        node.wait_elected()
        taken += [client.get_ts() for _ in range(20)]
        node.stop()
    assert all(a < b for a, b in pairwise(taken))


@pytest.mark.thorough
def test_a_leader_whose_clock_jumps_keeps_the_order_and_its_window(
    etcd: Any, client: OracleClient
) -> None:
    node = OracleNode(etcd)
    node.wait_elected()
    taken = []
    for jump_ms in (0, -3_600_000, 86_400_000, -86_400_000):
        node.wall_offset_ms = jump_ms
        taken += [client.get_ts() for _ in range(20)]
        window = present(read(etcd, WINDOW_KEY))
        assert physical_ms(taken[-1]) < int(window)
    assert all(a < b for a, b in pairwise(taken))
    node.stop()


@pytest.mark.thorough
def test_order_and_uniqueness_hold_for_all_threads_while_leaders_come_and_go(
    etcd: Any, etcd_server: EtcdServer
) -> None:
    """A timestamp is larger than all that anyone had received before it was asked for."""
    newest, taken, late = 0, set[int](), list[tuple[int, int]]()
    count = 0
    lock = threading.Lock()
    over = threading.Event()
    clients = [OracleClient(etcd), OracleClient(etcd)]

    def work(client: OracleClient) -> None:
        nonlocal newest, count
        while not over.is_set():
            with lock:
                known = newest
            ts = client.get_ts()
            with lock:
                newest = max(newest, ts)
                taken.add(ts)
                count += 1
                if ts <= known:
                    late.append((known, ts))

    nodes = [OracleNode(etcd), OracleNode(etcd, wall_offset_ms=-600_000)]
    killed = Candidate(etcd_server.url)
    threads = [threading.Thread(target=work, args=(clients[n % 2],)) for n in range(8)]
    for thread in threads:
        thread.start()
    for _ in range(4):
        time.sleep(0.7)
        leader = next((n for n in nodes if n.oracle.is_leader), None)
        if leader is None:
            killed.send(signal.SIGKILL)
            eventually(lambda: any(n.oracle.is_leader for n in nodes))
        else:
            nodes.remove(leader)
            leader.stop()
            nodes.append(OracleNode(etcd, wall_offset_ms=-leader.wall_offset_ms - 1000))
    over.set()
    for thread in threads:
        thread.join(15)
    for node in nodes:
        node.stop()
    for client in clients:
        client.close()
    killed.end()
    assert not late
    assert len(taken) == count > 1000


@pytest.mark.thorough
def test_after_an_outage_of_etcd_the_oracle_continues_in_order(fresh_etcd: EtcdServer) -> None:
    etcd = connect(fresh_etcd.url, timeout_s=2)
    node = OracleNode(etcd)
    client, hasty = OracleClient(etcd, timeout_s=60), OracleClient(etcd, timeout_s=0.5)
    last_ts = client.get_ts()
    hasty.get_ts()
    fresh_etcd.kill()
    # Without its lease a leader must fall silent, since it cannot know that it still is one.
    eventually(lambda: not node.oracle.is_leader)
    with pytest.raises(Retryable, match="no timestamp"):
        hasty.get_ts()
    fresh_etcd.start()
    assert client.get_ts() > last_ts
    client.close()
    hasty.close()
    node.stop()
    etcd.close()


@pytest.mark.fault(
    "etcd restarts; one of two endpoints is dead",
    "the oracle does not notice a short one; the other endpoint serves",
    cases="1 + 2",
)
@pytest.mark.thorough
def test_a_short_restart_of_etcd_is_not_noticed(fresh_etcd: EtcdServer) -> None:
    etcd = connect(fresh_etcd.url, timeout_s=2)
    node = OracleNode(etcd)
    client = OracleClient(etcd)
    taken = [client.get_ts()]
    restart = threading.Thread(target=fresh_etcd.restart)
    restart.start()
    deadline_s = time.monotonic() + 5
    while time.monotonic() < deadline_s:
        taken.append(client.get_ts())
    restart.join()
    assert all(a < b for a, b in pairwise(taken))
    client.close()
    node.stop()
    etcd.close()


def test_a_stopped_leader_leaves_no_key_behind(etcd: Any) -> None:
    node = OracleNode(etcd)
    node.wait_elected()
    node.stop()
    assert read(etcd, LEADER_KEY) is None


@pytest.mark.thorough
def test_a_leader_whose_key_was_deleted_steps_down_and_may_be_elected_again(etcd: Any) -> None:
    node = OracleNode(etcd)
    node.wait_elected()
    etcd.delete(LEADER_KEY)
    eventually(lambda: read(etcd, LEADER_KEY) == node.address.encode())
    node.wait_elected()
    node.stop()


@pytest.mark.thorough
def test_without_its_window_an_oracle_starts_above_what_all_pumps_hold(etcd: Any) -> None:
    own_ts, later_ts, last_ts = (compose(int(time.time() * 1000) + s, 7) for s in (0, 3000, 6000))
    registry = Registry(etcd)

    def other_pump(max_commit_ts: int) -> None:
        pump = NodeStatus(
            node_id="pump-2", host="h:1", state=NodeState.ONLINE, max_commit_ts=max_commit_ts
        )
        registry.put(NodeKind.PUMP, pump)

    def first_ts(held_ts: int) -> int:
        etcd.delete(WINDOW_KEY)  # As in a backup from before the first timestamp.
        node = OracleNode(etcd, wall_offset_ms=-600_000, held_ts=held_ts)
        node.wait_elected()
        client = OracleClient(node.address)
        try:
            ts = client.get_ts()
            if held_ts:  # A Pump comes back while this one leads.
                other_pump(last_ts)
                eventually(lambda: client.get_ts() > last_ts)
            return ts
        finally:
            client.close()
            node.stop()

    other_pump(later_ts)
    assert first_ts(0) > later_ts
    other_pump(0)
    assert first_ts(own_ts) > own_ts


def test_members_name_the_leader_at_every_candidate(etcd: Any) -> None:
    first = OracleNode(etcd)
    first.wait_elected()
    second = OracleNode(etcd)
    found = OracleClient(second.address)
    assert found.get_ts() > 0
    found.close()
    second.stop()
    first.stop()


def test_requests_that_make_no_sense_are_refused(candidate: Candidate) -> None:
    for request, problem in (
        (pdpb_pb2.TsoRequest(count=0), "count must be"),
        (pdpb_pb2.TsoRequest(count=COUNT_MAX + 1), "count must be"),
        (pdpb_pb2.TsoRequest(header={"cluster_id": 7}, count=1), "this is cluster"),
    ):
        with pytest.raises(grpc.RpcError, match=problem):
            tso(candidate.address, request)


def test_many_timestamps_at_once_span_several_milliseconds_in_order(
    client: OracleClient, candidate: Candidate
) -> None:
    taken = [client.get_many(COUNT_MAX) for _ in range(20)]
    assert all(a[-1] < b[0] for a, b in pairwise(taken))
    assert all(physical_ms(each[0]) == physical_ms(each[-1]) for each in taken)
    answer = tso(candidate.address, pdpb_pb2.TsoRequest(count=5))
    assert answer.count == 5
    assert answer.timestamp.logical < LOGICAL_END
    assert compose(answer.timestamp.physical, answer.timestamp.logical) > taken[-1][-1]


@pytest.mark.fault(
    "a lone oracle loses its lease again and again",
    "callers wait for the next term and get larger timestamps; each next lease is longer, up"
    " to four times",
    cases="23",
)
@pytest.mark.thorough
def test_a_lone_oracle_that_loses_its_lease_lets_callers_wait_and_takes_a_longer_one(
    etcd: Any, candidate: Candidate, client: OracleClient
) -> None:
    request = pdpb_pb2.TsoRequest(count=1)
    last = tso(candidate.address, request).timestamp
    for granted_s in (4, 8, 8):
        _, meta = etcd.get(LEADER_KEY)
        etcd.revoke_lease(meta.lease_id)
        eventually(lambda: _lease_of(etcd) not in (0, meta.lease_id))  # noqa: B023
        assert etcd.get_lease_info(_lease_of(etcd)).grantedTTL == granted_s
        found = tso(candidate.address, request).timestamp
        assert (found.physical, found.logical) > (last.physical, last.logical)
        last = found


@pytest.mark.thorough
def test_who_asks_a_lone_oracle_between_two_terms_gets_a_timestamp(
    etcd: Any, candidate: Candidate
) -> None:
    for _ in range(20):
        _, meta = etcd.get(LEADER_KEY)
        etcd.revoke_lease(meta.lease_id)
        assert tso(candidate.address, pdpb_pb2.TsoRequest(count=1)).count == 1
        eventually(lambda: _lease_of(etcd) not in (0, meta.lease_id))  # noqa: B023


def _lease_of(etcd: Any) -> int:
    value, meta = etcd.get(LEADER_KEY)
    return 0 if value is None else int(meta.lease_id)
