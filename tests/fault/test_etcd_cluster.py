"""etcd loses its leader, or answers late: Pumps stay online, writes continue, nothing flaps."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest

from penstock.cluster.etcd import connect, read
from penstock.cluster.node_registry import NodeKind, NodeState, Registry, seems_live
from penstock.ctl.commands import main
from penstock.local.etcd import EtcdServer
from penstock.oracle.client import LEADER_KEY, OracleClient
from penstock.pb import pump_pb2, pump_pb2_grpc
from penstock.wire.binlog import Binlog, BinlogType
from penstock.wire.codec import decode_binlog, encode_binlog
from tests.kit.crash.slow_proxy import SlowProxy
from tests.kit.servers.fix_etcd import EtcdCluster
from tests.kit.servers.fix_pump import PumpProcess
from tests.kit.wait import answered, eventually, present
from tests.kit.workloads.ledger import pull_until

pytestmark = [pytest.mark.fault, pytest.mark.thorough]

Factory = Callable[..., PumpProcess]


class Load:
    """Transactions one after the other, each with timestamps of the oracle, until it is to stop."""

    def __init__(self, pump: PumpProcess, etcd: Any) -> None:
        self._oracle = OracleClient(etcd, timeout_s=150)
        self._channel = pump.channel()
        self._stub: Any = pump_pb2_grpc.PumpStub(self._channel)  # type: ignore[no-untyped-call]
        self.cluster_id = Registry(etcd).cluster_id()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.committed: list[int] = []
        self.error: BaseException | None = None

    def write(self, binlog: Binlog) -> None:
        request = pump_pb2.WriteBinlogReq(clusterID=self.cluster_id, payload=encode_binlog(binlog))
        self._stub.WriteBinlog(request, timeout=60)

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                start_ts = self._oracle.get_ts()
                self.write(Binlog(tp=BinlogType.PREWRITE, start_ts=start_ts, prewrite_value=b"x"))
                commit_ts = self._oracle.get_ts()
                self.write(Binlog(tp=BinlogType.COMMIT, start_ts=start_ts, commit_ts=commit_ts))
                self.committed.append(commit_ts)
        except BaseException as error:
            self.error = error

    def more(self, count: int) -> None:
        """Return once that many more are committed."""
        wanted = len(self.committed) + count
        eventually(lambda: len(self.committed) >= wanted or self.error is not None, 180)
        assert self.error is None, self.error

    def __enter__(self) -> Load:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        self._thread.join()
        self.close()

    def close(self) -> None:
        self._oracle.close()
        self._channel.close()


@contextmanager
def connected(urls: str) -> Iterator[Any]:
    client = connect(urls)
    yield client
    client.close()


@pytest.mark.fault(
    "the leader of three etcds is frozen or killed",
    "Pumps stay online, one change of oracle at most, 200 transactions continue, heartbeats"
    " by way of the other members",
    cases="1 / 2, with 200 transactions each",
)
@pytest.mark.parametrize("way", ["freeze", pytest.param("kill", marks=pytest.mark.slow)])
def test_a_lost_leader_of_three_etcds_costs_neither_writes_nor_places(
    etcd_cluster: EtcdCluster, pump_factory: Factory, way: str
) -> None:
    pumps = [pump_factory(etcd_cluster.url) for _ in range(2)]
    with connected(etcd_cluster.url) as etcd, Load(pumps[1], etcd) as load:
        registry = Registry(etcd)
        seen: list[list[NodeState]] = []
        watch = registry.watch(NodeKind.PUMP, lambda all_: seen.append([s.state for s in all_]))
        oracles: list[bytes | None] = []
        load.more(20)
        lost = etcd_cluster.leader()
        getattr(lost, way)()
        etcd_cluster.leader(but=lost)
        begin_ts = load.committed[-1]
        load.more(100)
        for pump in pumps:  # Fresh again, by way of the members that are left.
            eventually(partial(_beats_after, registry, pump, begin_ts), 90)
        if way == "kill":
            lost.start()
        lost.thaw()
        for _ in range(10):
            oracles.append(answered(lambda: read(etcd, LEADER_KEY), 90))
            load.more(10)
        watch.cancel()
    assert all(pump.is_running for pump in pumps)
    assert {state for states in seen for state in states} == {NodeState.ONLINE}
    # The oracle kept its lease, or was elected again; it did not go to and fro.
    assert len([who for who, _ in itertools.groupby(oracles)]) <= 2
    counts = [pump.log_text().count("is online at") for pump in pumps]
    assert counts == [1, 1]
    found = pull_until(pumps[1].addr, load.cluster_id, load.committed[-1])
    assert [ts for ts, p in found if not decode_binlog(p).is_fake] == load.committed


def _beats_after(registry: Registry, pump: PumpProcess, ts: int) -> bool:
    status = answered(lambda: registry.get(NodeKind.PUMP, pump.node_id), 90)
    return status is not None and status.update_ts > ts


@pytest.mark.fault(
    "etcd takes 2 s for each operation",
    "200 writes and a pull do not wait for it; a late heartbeat warns; the oracle cannot hold"
    " its lease of 2 s then, and leads again after",
    cases="1, with 200 writes",
)
@pytest.mark.alone
def test_an_etcd_that_takes_two_seconds_holds_up_no_writes_and_a_heartbeat_says_so(
    fresh_etcd: EtcdServer, pump_factory: Factory
) -> None:
    with SlowProxy(fresh_etcd.url) as proxy, connected(fresh_etcd.url) as etcd:
        pump = pump_factory(proxy.url)
        oracle = OracleClient(etcd, timeout_s=150)
        load = Load(pump, etcd)
        starts = list(oracle.get_many(200))
        prewrites = [Binlog(tp=BinlogType.PREWRITE, start_ts=ts) for ts in starts]
        for prewrite in prewrites[:100]:
            load.write(prewrite)
        commits = list(oracle.get_many(100))
        proxy.delay_s = 2.0
        slow_from_s = time.monotonic()
        for start_ts, commit_ts in zip(starts[:100], commits, strict=True):
            load.write(Binlog(tp=BinlogType.COMMIT, start_ts=start_ts, commit_ts=commit_ts))
        for prewrite in prewrites[100:]:
            load.write(prewrite)
        found = pull_until(pump.addr, load.cluster_id, commits[-1])
        wrote_s = time.monotonic() - slow_from_s
        assert [ts for ts, p in found if not decode_binlog(p).is_fake] == commits
        # In real time: 200 calls, each waiting for etcd, would take nearly seven minutes.
        assert wrote_s < 200
        pump.wait_for(
            r"WARNING .* etcd took \d\.\d s for a heartbeat, writes and pulls do not wait"
        )
        listed = present(Registry(etcd).get(NodeKind.PUMP, pump.node_id))
        assert listed.state is NodeState.ONLINE
        proxy.delay_s = 0.0
        # The oracle cannot hold its lease of 2 s that way, but takes it again.
        later_ts = answered(oracle.get_ts, 90)
        assert later_ts > commits[-1]
        status = present(answered(lambda: Registry(etcd).get(NodeKind.PUMP, pump.node_id), 90))
        assert seems_live(status, later_ts, 60)
        oracle.close()
        load.close()


@pytest.mark.fault(
    "a Pump frozen until it counts as dead wakes up",
    "listed as silent; the oracle moves once, nothing it held is lost, its heartbeat is fresh"
    " again",
    cases="0 / 1",
)
@pytest.mark.slow
@pytest.mark.alone
def test_a_pump_frozen_until_it_is_taken_for_dead_continues_where_it_stood(
    fresh_etcd: EtcdServer, pump_factory: Factory, capsys: pytest.CaptureFixture[str]
) -> None:
    frozen = pump_factory(fresh_etcd.url)
    other = pump_factory(fresh_etcd.url)
    with connected(fresh_etcd.url) as etcd:
        assert frozen.status().details["leads_oracle"] == "True"
        with Load(frozen, etcd) as before:
            before.more(20)
        frozen.freeze()
        with Load(other, etcd) as load:
            load.more(20)  # The oracle's lease ends, the other Pump is elected.
            frozen_at_s = time.monotonic()
            while time.monotonic() < frozen_at_s + 13:
                load.more(1)
                time.sleep(0.05)
            assert main(["pumps", "--etcd-urls", fresh_etcd.url]) == 0
            listed = capsys.readouterr().out.splitlines()
            assert [line.split()[0] for line in listed if "(silent)" in line] == [frozen.node_id]
            begin_ts = load.committed[-1]
            frozen.thaw()
            eventually(lambda: _beats_after(Registry(etcd), frozen, begin_ts), 90)
            load.more(20)
        # Nothing that it acknowledged is lost, and it takes transactions as before.
        assert frozen.log_text().count("is online at") == 1
        with Load(frozen, etcd) as after:
            after.more(20)
        assert other.status().details["leads_oracle"] == "True"
        committed = before.committed + after.committed
        found = pull_until(frozen.addr, after.cluster_id, committed[-1])
        assert [ts for ts, p in found if not decode_binlog(p).is_fake] == committed
        assert committed == sorted(committed)
