"""A Pump whose neighbours fail: etcd away, Drainers dead or deaf, the oracle frozen."""

import threading
from collections.abc import Callable, Iterator
from concurrent import futures
from contextlib import closing, contextmanager
from typing import Any

import grpc
import pytest

from penstock.cluster.etcd import connect
from penstock.cluster.node_registry import NodeKind, NodeState, NodeStatus, Registry
from penstock.local.etcd import EtcdServer
from penstock.local.process import free_port
from penstock.oracle.client import LEADER_KEY, OracleClient
from penstock.pb import cistern_pb2, cistern_pb2_grpc, pump_pb2, pump_pb2_grpc
from penstock.ts import compose
from penstock.wire.binlog import Binlog, BinlogType
from penstock.wire.codec import encode_binlog
from tests.kit.servers.fix_pump import PumpProcess
from tests.kit.servers.fix_replication import Nodes
from tests.kit.wait import eventually, present
from tests.kit.workloads.ledger import committed, pull_until

pytestmark = [pytest.mark.fault, pytest.mark.alone]

Factory = Callable[..., PumpProcess]


@contextmanager
def writing(pump: PumpProcess, cluster_id: int) -> Iterator[Callable[[Binlog], None]]:
    with pump.channel() as channel:
        stub: Any = pump_pb2_grpc.PumpStub(channel)  # type: ignore[no-untyped-call]

        def write(binlog: Binlog) -> None:
            request = pump_pb2.WriteBinlogReq(clusterID=cluster_id, payload=encode_binlog(binlog))
            stub.WriteBinlog(request, timeout=5)

        yield write


def prewrite(start_ts: int) -> Binlog:
    return Binlog(tp=BinlogType.PREWRITE, start_ts=start_ts, prewrite_value=b"rows")


def commit(start_ts: int, commit_ts: int) -> Binlog:
    return Binlog(tp=BinlogType.COMMIT, start_ts=start_ts, commit_ts=commit_ts)


@pytest.mark.fault(
    "etcd away, at the start and later",
    "start waits and can be stopped; later writes and pulls continue",
    cases="3, with 20 writes",
)
def test_a_pump_waits_for_an_etcd_that_is_not_there_yet(
    fresh_etcd: EtcdServer, pump_factory: Factory
) -> None:
    fresh_etcd.stop()
    address = f"127.0.0.1:{free_port()}"
    pump = pump_factory(fresh_etcd.url, waiting=False, addr=address)
    pump.wait_for("ERROR .* does not answer, trying again: .*start etcd, or correct etcd-urls")
    fresh_etcd.start()
    pump.wait_for(f"is online at {address}")
    assert pump.stop() == 0


def test_a_pump_that_waits_for_etcd_can_be_stopped(
    fresh_etcd: EtcdServer, pump_factory: Factory
) -> None:
    fresh_etcd.stop()
    pump = pump_factory(fresh_etcd.url, waiting=False)
    pump.wait_for("does not answer")
    assert pump.stop(timeout_s=10) == 0


def test_writes_and_pulls_continue_while_etcd_is_away(
    fresh_etcd: EtcdServer, pump_factory: Factory
) -> None:
    pump = pump_factory(fresh_etcd.url)
    etcd = connect(fresh_etcd.url)
    oracle = OracleClient(etcd)
    cluster_id = Registry(etcd).cluster_id()
    try:
        with writing(pump, cluster_id) as write:
            starts = list(oracle.get_many(20))
            for start_ts in starts[:10]:
                write(prewrite(start_ts))
            commits = list(oracle.get_many(10))
            fresh_etcd.kill()
            for start_ts, commit_ts in zip(starts[:10], commits, strict=True):
                write(commit(start_ts, commit_ts))
            for start_ts in starts[10:]:
                write(prewrite(start_ts))
            assert committed(pull_until(pump.addr, cluster_id, commits[-1])) == commits
            pump.wait_for("the status in etcd grows old, writes and pulls continue")
            fresh_etcd.start()
            pump.wait_for("etcd is back")
            later = oracle.get_ts()
            assert later > commits[-1]
            for start_ts in starts[10:]:
                write(commit(start_ts, oracle.get_ts()))
        status = present(Registry(etcd).get(NodeKind.PUMP, pump.node_id))
        assert status.state is NodeState.ONLINE
    finally:
        oracle.close()
        etcd.close()


YEAR_MS = 365 * 24 * 3600 * 1000


class Listener(cistern_pb2_grpc.CisternServicer):
    """A Drainer that notes in which state it saw the Pump when it was notified."""

    def __init__(self, registry: Registry) -> None:
        self.registry = registry
        self.seen: list[NodeState] = []

    def Notify(self, request: Any, context: Any) -> cistern_pb2.NotifyResp:  # noqa: N802
        self.seen += [pump.state for pump in self.registry.list(NodeKind.PUMP)]
        return cistern_pb2.NotifyResp()


@contextmanager
def listening(registry: Registry) -> Iterator[tuple[Listener, str]]:
    listener = Listener(registry)
    server = grpc.server(futures.ThreadPoolExecutor(2))
    cistern_pb2_grpc.add_CisternServicer_to_server(listener, server)  # type: ignore[no-untyped-call]
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield listener, f"127.0.0.1:{port}"
    finally:
        server.stop(None).wait()


def drainer(node_id: str, host: str, update_ts: int) -> NodeStatus:
    return NodeStatus(node_id=node_id, host=host, state=NodeState.ONLINE, update_ts=update_ts)


@pytest.mark.fault(
    "a Pump joins while a Drainer pulls, or is frozen",
    "in the merge before its first Prewrite",
    cases="1 / 2",
)
@pytest.mark.fault(
    "a Drainer that cannot be reached when a Pump starts: whose heartbeat looks a year old,"
    " as the cluster's clock has jumped",
    "notified; one that is dead is skipped, however fresh it looks",
    cases="1",
)
@pytest.mark.thorough
def test_live_drainers_hear_of_a_pump_before_it_is_online_and_dead_ones_are_skipped(
    nodes: Nodes,
) -> None:
    registry = Registry(nodes.etcd)
    first = nodes.add_pump()
    oracle = OracleClient(nodes.etcd)
    try:
        with listening(registry) as (listener, address):
            now_ts = oracle.get_ts()
            dead = drainer("dead", "127.0.0.1:9", now_ts + compose(60_000, 0))
            registry.put(NodeKind.DRAINER, dead)
            first.wait_for("drainer dead is silent", 30)
            # As old as it looks after the cluster's clock has jumped by a year.
            registry.put(NodeKind.DRAINER, drainer("live", address, now_ts - compose(YEAR_MS, 0)))
            second = nodes.add_pump()
            assert "drainer dead is not running, not notified" in second.log_text()
            assert "did not take notice" not in second.log_text()
            assert listener.seen == [NodeState.ONLINE, NodeState.PAUSED]
        assert first.status().state == second.status().state == "online"
    finally:
        oracle.close()


@pytest.mark.fault(
    "a Drainer that cannot be reached when a Pump starts",
    "dead: skipped; alive but deaf: waited for, by name",
    cases="1",
)
@pytest.mark.thorough
def test_a_live_drainer_that_is_deaf_keeps_a_pump_from_being_online(nodes: Nodes) -> None:
    registry = Registry(nodes.etcd)
    nodes.add_pump()
    oracle = OracleClient(nodes.etcd)
    stop = threading.Event()

    def beat() -> None:
        while not stop.wait(1):
            registry.put(NodeKind.DRAINER, drainer("deaf", "127.0.0.1:9", oracle.get_ts()))

    registry.put(NodeKind.DRAINER, drainer("deaf", "127.0.0.1:9", oracle.get_ts()))
    beating = threading.Thread(target=beat)
    beating.start()
    try:
        second = nodes.add_pump(online=False)
        second.wait_for("drainer deaf at 127.0.0.1:9 is alive but did not take notice within 10 s")
        refused = pytest.raises(grpc.RpcError, match="no online: paused")
        with writing(second, registry.cluster_id()) as write, refused:
            write(prewrite(oracle.get_ts()))
        with listening(registry) as (listener, address):
            stop.set()
            beating.join()
            registry.put(NodeKind.DRAINER, drainer("deaf", address, oracle.get_ts()))
            second.wait_for("is online at")
            assert listener.seen
    finally:
        stop.set()
        beating.join()
        oracle.close()


@pytest.mark.fault(
    "a Prewrite or a Commit a year ahead of the oracle",
    "refused for now; the stream and other writers continue",
    cases="2",
)
def test_a_commit_of_the_future_is_refused_and_holds_up_no_one(nodes: Nodes) -> None:
    pump = nodes.add_pump()
    with closing(OracleClient(nodes.etcd)) as oracle:
        cluster_id = Registry(nodes.etcd).cluster_id()
        year = compose(YEAR_MS, 0)
        start_ts = oracle.get_ts()
        future_ts = start_ts + year
        with writing(pump, cluster_id) as write:
            write(prewrite(start_ts))
            for ahead in (commit(start_ts, future_ts), prewrite(future_ts)):
                with pytest.raises(grpc.RpcError, match=f"timestamp {future_ts} is ahead of the"):
                    write(ahead)
            commit_ts = oracle.get_ts()
            write(commit(start_ts, commit_ts))
        eventually(lambda: pump.status().max_commit_ts >= commit_ts)
        assert pump.status().max_commit_ts < commit_ts + year / 2


@pytest.mark.fault(
    "the oracle is frozen, and no other can be elected",
    "200 Prewrites are taken; their Commits once another leads",
    cases="1, with 200 writes",
)
@pytest.mark.thorough
def test_a_frozen_oracle_holds_up_time_but_no_writes(nodes: Nodes) -> None:
    leader = nodes.add_pump()
    other = nodes.add_pump()
    assert leader.status().details["leads_oracle"] == "True"
    oracle = OracleClient(nodes.etcd)
    cluster_id = Registry(nodes.etcd).cluster_id()
    try:
        starts = list(oracle.get_many(200))
        leader.freeze()
        nodes.etcd.put(LEADER_KEY, "127.0.0.1:9")  # Without a lease: no other one is elected.
        with writing(other, cluster_id) as write:
            for start_ts in starts:
                write(prewrite(start_ts))
            nodes.etcd.delete(LEADER_KEY)
            commit_ts = 0
            for start_ts in starts:  # The other takes over.
                commit_ts = oracle.get_ts()
                write(commit(start_ts, commit_ts))
        assert len(committed(pull_until(other.addr, cluster_id, commit_ts))) == len(starts)
        assert other.status().details["leads_oracle"] == "True"
    finally:
        leader.thaw()
        oracle.close()
