"""A Pump in front of a TiDB: whose cluster it is, and what becomes of a silent TiDB's transactions.

PD and TiKV are scripted (`tests/kit/fakes/scripted_tidb.py`); Pump, etcd and all messages are real.
"""

import json
import re
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import pytest

from drainer.__main__ import main as drainer_main
from penstock.cluster.etcd import connect, read
from penstock.cluster.node_registry import CLUSTER_ID_KEY, NodeKind, Registry
from penstock.ctl.commands import main
from penstock.errors import NeedsOperator
from penstock.local.etcd import EtcdServer
from penstock.oracle.client import find_cluster_id
from penstock.pb import pump_pb2, pump_pb2_grpc
from penstock.wire.binlog import Binlog, BinlogType
from penstock.wire.codec import encode_binlog
from pumpclient import Options, PumpClient
from tests.kit.fakes.scripted_tidb import CLUSTER_ID, Fate, TidbCluster, meta_key, row_key
from tests.kit.servers.fix_pump import PumpProcess, streamed
from tests.kit.servers.fix_replication import Nodes
from tests.kit.servers.pages import asked, scraped
from tests.kit.wait import eventually

pytestmark = pytest.mark.etcd

KEY = row_key(42, 7)
_LAST_KEY = row_key(42, 9_999)


@pytest.fixture
def cluster() -> Iterator[TidbCluster]:
    with TidbCluster() as found:
        yield found


class Tidb:
    """What a TiDB does to one Pump: a Prewrite, and its Commit unless it dies."""

    def __init__(self, cluster: TidbCluster, pump: PumpProcess) -> None:
        self.cluster = cluster
        self.pump = pump
        self.began_ts = cluster.next_ts()

    def write(self, binlog: Binlog, cluster_id: int = CLUSTER_ID) -> None:
        request = pump_pb2.WriteBinlogReq(clusterID=cluster_id, payload=encode_binlog(binlog))
        with self.pump.channel() as channel:
            stub = pump_pb2_grpc.PumpStub(channel)  # type: ignore[no-untyped-call]
            stub.WriteBinlog(request, timeout=20)

    def prewrite(self, fate: Fate | None = None, key: bytes = KEY, **fields: Any) -> int:
        """Begin a transaction that goes no further, with this fate in TiKV."""
        start_ts = self.cluster.next_ts()
        if fate is not None:
            self.cluster.fates[key, start_ts] = fate
        prewrite = {"prewrite_key": key, "prewrite_value": b"rows", **fields}
        self.write(Binlog(tp=BinlogType.PREWRITE, start_ts=start_ts, **prewrite))
        return start_ts

    def commit(self, start_ts: int) -> int:
        """Commit in TiKV without a word to the Pump; return the commit_ts."""
        commit_ts = self.cluster.next_ts()
        self.cluster.fates[KEY, start_ts] = Fate(commit_ts=commit_ts)
        return commit_ts

    def transaction(self) -> int:
        start_ts = self.prewrite(key=_LAST_KEY)
        commit_ts = self.cluster.next_ts()
        self.write(Binlog(tp=BinlogType.COMMIT, start_ts=start_ts, commit_ts=commit_ts))
        return commit_ts

    def streamed(self) -> list[tuple[int, int]]:
        """Return start_ts and commit_ts of all up to a new transaction, without that.

        What was committed before this TiDB began is left out.
        """
        last_ts = self.transaction()
        found = streamed(self.pump, CLUSTER_ID, last_ts)
        assert found[-1].commit_ts == last_ts
        return [(b.start_ts, b.commit_ts) for b in found[:-1] if b.commit_ts > self.began_ts]

    def resolved(self) -> int:
        return int(self.pump.status().details["transactions_resolved"])

    def asked(self) -> float:
        pages = self.pump.status().details["status_pages"]
        return scraped(pages)["binlog_pump_storage_query_tikv_count"]

    def waiting(self) -> list[dict[str, Any]]:
        code, text = asked(f"{self.pump.status().details['status_pages']}status")
        assert code == 200
        waiting: list[dict[str, Any]] = json.loads(text)["self"].get("transactions", [])
        return waiting


@dataclass(frozen=True)
class Shared:
    """A Pump that several tests use one after the other, in an etcd of its own."""

    cluster: TidbCluster
    pump: PumpProcess
    etcd_url: str


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shared]:
    home = tmp_path_factory.mktemp("scripted")
    server = EtcdServer(home, durable=False).start()
    with TidbCluster() as cluster:
        settings = {"etcd_urls": server.url, "pd_address": cluster.url, "resolver_timeout_s": 1}
        pump = PumpProcess(home / "pump-1", "pump-1", settings).start()
        yield Shared(cluster, pump, server.url)
        pump.kill()
    server.stop()


@pytest.fixture
def scripted(shared: Shared) -> Tidb:
    return Tidb(shared.cluster, shared.pump)


def test_the_cluster_is_pd_s_for_pumps_and_for_writers(scripted: Tidb, shared: Shared) -> None:
    with closing(connect(shared.etcd_url)) as etcd:
        assert read(etcd, CLUSTER_ID_KEY) == str(CLUSTER_ID).encode()
        assert [node.node_id for node in Registry(etcd).list(NodeKind.PUMP)] == ["pump-1"]
    assert (scripted.pump.data_dir / ".cluster").read_text() == f"{CLUSTER_ID}\n"
    options = Options(pd_address=scripted.cluster.url)
    with PumpClient.connect(shared.etcd_url, options=options) as client:
        assert client.execute_ddl("CREATE DATABASE shop") != []
    committed_ts = scripted.transaction()
    assert streamed(scripted.pump, CLUSTER_ID, committed_ts)[-1].commit_ts == committed_ts
    assert scripted.pump.restart().status().state == "online"


def test_an_etcd_of_another_cluster_stops_every_program_and_stays_as_it_is(
    nodes: Nodes, cluster: TidbCluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    drawn = Registry(nodes.etcd).cluster_id()
    pump = nodes.add_pump(waiting=False, pd_address=cluster.url)
    assert pump.wait(60) == 2
    assert f"is of cluster {CLUSTER_ID}, and this etcd holds the nodes of" in pump.log_text()
    assert f"cluster {drawn}" in pump.log_text()
    with pytest.raises(NeedsOperator, match=f"of cluster {drawn}"):
        PumpClient.connect(nodes.url, options=Options(pd_address=cluster.url))
    given = ["--etcd-urls", nodes.url, "--pd-address", cluster.url]
    sink = ["--sink", f"sqlite:///{tmp_path / 'd.db'}", "--data-dir", str(tmp_path / "d")]
    assert drainer_main(["ddl", "list", *given, *sink]) == 2
    assert f"cluster {drawn}" in capsys.readouterr().err
    assert Registry(nodes.etcd).cluster_id() == drawn


def test_no_node_without_pd_joins_a_cluster_whose_time_is_pd_s(
    nodes: Nodes, cluster: TidbCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    assert find_cluster_id(nodes.etcd, cluster.url) == CLUSTER_ID
    assert find_cluster_id(nodes.etcd, cluster.url) == CLUSTER_ID
    pump = nodes.add_pump(waiting=False)
    assert pump.wait(60) == 2
    assert f"that of the TiDB cluster {CLUSTER_ID}" in pump.log_text()
    assert "pd-address" in pump.log_text()
    with pytest.raises(NeedsOperator, match="give the addresses of its PD"):
        PumpClient.connect(nodes.url)
    assert main(["timestamp", "--etcd-urls", nodes.url]) == 2
    assert "pd-address" in capsys.readouterr().err
    given = ["--etcd-urls", nodes.url, "--pd-address", cluster.url]
    assert main(["timestamp", *given]) == 0
    assert int(capsys.readouterr().out) < cluster.next_ts()


def test_a_pump_that_waits_for_pd_says_so_and_continues(nodes: Nodes, cluster: TidbCluster) -> None:
    cluster.pd_leader = None
    pump = nodes.add_pump(waiting=False, pd_address=cluster.url)
    pump.wait_for(f"or PD at {re.escape(cluster.url)} does not answer, trying again")
    cluster.pd_leader = 0
    pump.wait_for("is online at")
    assert read(nodes.etcd, CLUSTER_ID_KEY) == str(CLUSTER_ID).encode()


@pytest.mark.fault(
    "a TiDB of another cluster writes; a PD of another cluster answers; the etcd is another"
    " cluster's",
    "refused, both named",
    cases="3",
)
def test_a_tidb_of_another_cluster_is_refused_and_named(scripted: Tidb) -> None:
    before = scripted.streamed()
    prewrite = Binlog(tp=BinlogType.PREWRITE, start_ts=scripted.cluster.next_ts(), prewrite_key=KEY)
    for _ in range(3):
        with pytest.raises(grpc.RpcError) as caught:
            scripted.write(prewrite, cluster_id=666)
        assert f"cluster ID are mismatch, 666 vs {CLUSTER_ID}" in caught.value.details()
    named = re.findall(r"refused (\S+): it belongs to cluster 666,", scripted.pump.log_text())
    assert len(named) == 1
    assert re.fullmatch(r"ipv4:127\.0\.0\.1:\d+", named[0])
    assert len(scripted.streamed()) == len(before) + 1


@pytest.mark.fault(
    "TiDB dies with a lock, without one, committed, rolled back; in a DDL",
    "TiKV's outcome, no later than the lock lasts and 5 s",
    cases="6",
)
def test_what_a_tidb_left_open_ends_as_tikv_says(scripted: Tidb) -> None:
    resolved = scripted.resolved()
    committed, by_itself = scripted.prewrite(), scripted.prewrite(Fate(is_rolled_back=True))
    commit_ts = scripted.commit(committed)
    expired, never_locked = scripted.prewrite(Fate(ttl_ms=1)), scripted.prewrite()
    assert scripted.streamed() == [(committed, commit_ts)]
    for start_ts in (by_itself, expired, never_locked):
        assert scripted.cluster.fates[KEY, start_ts].is_rolled_back
    assert scripted.resolved() == resolved + 4
    assert f"transaction {committed} is committed, says the resolver" in scripted.pump.log_text()


def test_a_ddl_of_a_tidb_ends_as_tikv_says(scripted: Tidb) -> None:
    fields: dict[str, Any] = {"ddl_query": b"CREATE TABLE t (a INT)", "ddl_schema_state": 5}
    done = scripted.prewrite(key=meta_key(), ddl_job_id=77, **fields)
    undone = scripted.prewrite(Fate(is_rolled_back=True), meta_key(), ddl_job_id=78, **fields)
    commit_ts = scripted.cluster.next_ts()
    scripted.cluster.fates[meta_key(), done] = Fate(commit_ts=commit_ts)
    assert scripted.streamed() == [(done, commit_ts)]
    assert scripted.cluster.fates[meta_key(), undone].is_rolled_back


@pytest.mark.fault(
    "TiDB is alive, its lock is held, the transaction commits while it is asked",
    "held until then, nothing overtakes it, status says why",
    cases="1",
)
def test_a_live_lock_holds_the_stream_and_status_says_which_key_since_when_and_why(
    scripted: Tidb, shared: Shared, capsys: pytest.CaptureFixture[str]
) -> None:
    start_ts = scripted.prewrite(Fate(ttl_ms=60_000))
    eventually(lambda: any("lock" in each["waits"] for each in scripted.waiting()))
    (each,) = scripted.waiting()
    assert (each["start_ts"], each["key"]) == (start_ts, KEY.hex())
    assert re.fullmatch(r"20\d\d-\d\d-\d\dT[\d:.]+Z", each["open_since"])
    assert re.match(r"its lock in TiKV lasts 5\d\.\d s more", each["waits"])
    after_ts = scripted.transaction()
    assert scripted.pump.status().max_commit_ts < after_ts, "nothing overtakes it"
    assert main(["status", scripted.pump.node_id, "--etcd-urls", shared.etcd_url]) == 0
    printed = capsys.readouterr().out
    assert re.search(rf"transaction {start_ts} key +{KEY.hex()}\n", printed)
    assert re.search(rf"transaction {start_ts} waits +its lock in TiKV lasts", printed)
    assert re.search(r"transactions_waiting +1\n", printed)
    commit_ts = scripted.commit(start_ts)  # It was alive, only its Commit is lost.
    assert [ts for _, ts in scripted.streamed()] == [after_ts, commit_ts]
    eventually(lambda: scripted.waiting() == [])


@pytest.mark.thorough
def test_a_dead_tidb_holds_the_stream_until_its_lock_ends_and_not_for_good(
    nodes: Nodes, cluster: TidbCluster
) -> None:
    scripted = Tidb(cluster, nodes.add_pump(pd_address=cluster.url))
    never_locked = scripted.prewrite()
    assert scripted.streamed() == []
    began_s = time.monotonic()
    locked = scripted.prewrite(Fate(ttl_ms=3_000))
    assert len(scripted.streamed()) == 1
    # In real time, as a lock lasts. How soon after it is shown in `test_tikv_resolver.py`.
    assert time.monotonic() - began_s > 2.9
    for start_ts in (never_locked, locked):
        assert cluster.fates[KEY, start_ts].is_rolled_back


@pytest.mark.fault(
    "TiKV is away for longer than any time-out; may have collected the record",
    "held; nothing is guessed",
    cases="2",
)
@pytest.mark.thorough
def test_no_time_decides_while_tikv_cannot_answer(nodes: Nodes, cluster: TidbCluster) -> None:
    quick = {"resolver_timeout_s": 0.5, "txn_timeout_s": 0.5}
    scripted = Tidb(cluster, nodes.add_pump(pd_address=cluster.url, **quick))
    store = cluster.store_servers[1]
    store.stop()
    start_ts = scripted.prewrite()
    eventually(lambda: any("no answer from TiKV" in each["waits"] for each in scripted.waiting()))
    assert "stays open, trying again: no answer from TiKV" in scripted.pump.log_text()
    cluster.ahead_ms += 3_600_000
    asked_before = scripted.asked()
    eventually(lambda: scripted.asked() > asked_before, 20)
    assert scripted.resolved() == 0
    commit_ts = scripted.commit(start_ts)
    store.restart(same_port=False)
    assert scripted.streamed() == [(start_ts, commit_ts)]


def test_what_tikv_may_have_forgotten_is_never_guessed(scripted: Tidb) -> None:
    start_ts = scripted.prewrite()
    scripted.cluster.safe_point = scripted.cluster.next_ts()
    eventually(
        lambda: any("may have forgotten" in each["waits"] for each in scripted.waiting()), 20
    )
    about = [each for each in scripted.cluster.asked() if each.lock_ts == start_ts]
    assert about
    assert not any(each.rollback_if_not_exist for each in about)
    assert f"/debug/binlog/{start_ts}" in scripted.pump.log_text()
    scripted.cluster.fates[KEY, start_ts] = Fate(is_rolled_back=True)
    assert scripted.streamed() == []
