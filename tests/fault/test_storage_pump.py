"""A real Pump that dies at each step, or whose disk fails, under writers who keep the protocol."""

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from penstock import failpoints
from penstock.cluster.node_registry import Registry
from penstock.oracle.client import OracleClient
from tests.kit.crash.disks import faulty_disk
from tests.kit.fakes.oracle import OracleNode
from tests.kit.servers.fix_pump import PumpProcess
from tests.kit.servers.fix_replication import Nodes
from tests.kit.workloads.ledger import Ledger, LedgerWriter, pull_until

pytestmark = pytest.mark.fault

SETTINGS = {
    "storage_segment_bytes_max": 100_000,
    # A writer that is stopped while it repeats a Prewrite leaves an orphan, which holds the stream.
    "txn_timeout_s": 10,
}
WRITERS = 4
RUNNING = [
    "pump.before_append",
    "pump.after_write",
    "pump.after_sync",
    "pump.after_append",
    "pump.after_index",
    "log.rotate.header_synced",
    "log.rotate.renamed",
    "log.rotate.created",
]
STOPPING = ["pump.flush.compacted", "pump.flush.done", "log.close.marked"]
STARTING = ["pump.open.index_opened", "pump.open.log_opened", "pump.open.replayed"]
FEW = ["pump.after_sync", "log.rotate.renamed"]


class Load:
    """Writers on one Pump, and the check of what it kept."""

    def __init__(self, oracle: OracleClient, cluster_id: int) -> None:
        self.oracle = oracle
        self.cluster_id = cluster_id
        self.ledger = Ledger()
        self.writers: list[LedgerWriter] = []

    def begin(self, pump: PumpProcess) -> None:
        self.writers = [
            LedgerWriter(self.ledger, self.oracle, pump.addr, self.cluster_id, seed=seed)
            for seed in range(WRITERS)
        ]
        for writer in self.writers:
            writer.start()

    def run_until_acknowledged(self, count: int) -> None:
        deadline_s = time.monotonic() + 60
        while self.ledger.acknowledged < count and time.monotonic() < deadline_s:
            time.sleep(0.02)
        assert self.ledger.acknowledged >= count

    def end(self, pump: PumpProcess) -> None:
        """Stop the writers, pull everything and hold it against the answers that they got."""
        for writer in self.writers:
            writer.stop()
        found = pull_until(pump.addr, self.cluster_id, self.oracle.get_ts())
        assert self.ledger.check(found) >= self.ledger.acknowledged > 0


@pytest.fixture
def load(etcd: Any) -> Iterator[Load]:
    node = OracleNode(etcd)
    node.wait_elected()
    oracle = OracleClient(etcd)
    yield Load(oracle, Registry(etcd).cluster_id())
    oracle.close()
    node.stop()


@contextmanager
def environment(values: dict[str, str]) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in values.items():
            patch.setenv(name, value)
        yield


def pull_often(addr: str, load: Load) -> None:
    for _ in range(20):
        pull_until(addr, load.cluster_id, load.oracle.get_ts())


@pytest.mark.main_case("after_sync")
@pytest.mark.parametrize(
    "step", [*FEW, *(pytest.param(s, marks=pytest.mark.slow) for s in RUNNING if s not in FEW)]
)
def test_a_pump_killed_at_a_step_loses_nothing(load: Load, nodes: Nodes, step: str) -> None:
    at = 2 if step.startswith("log.") else 60
    with environment({failpoints.VARIABLE: f"{step}=kill@{at}"}):
        pump = nodes.add_pump(**SETTINGS)
    load.begin(pump)
    assert pump.wait() == -signal.SIGKILL
    already = load.ledger.acknowledged
    pump.start()
    load.run_until_acknowledged(already + 20)
    load.end(pump)


@pytest.mark.slow
@pytest.mark.parametrize("step", [*STOPPING, *STARTING])
def test_a_pump_killed_while_it_stops_or_starts_loses_nothing(
    load: Load, nodes: Nodes, step: str
) -> None:
    with environment({failpoints.VARIABLE: f"{step}=kill"} if step in STOPPING else {}):
        pump = nodes.add_pump(**SETTINGS)
    load.begin(pump)
    load.run_until_acknowledged(100)
    if step in STOPPING:
        assert pump.stop() == -signal.SIGKILL
    else:
        pump.kill()
        with environment({failpoints.VARIABLE: f"{step}=kill"}):
            assert pump.spawn().wait() == -signal.SIGKILL
    already = load.ledger.acknowledged
    pump.start()
    load.run_until_acknowledged(already + 20)  # Else a Commit may still be on its way.
    load.end(pump)


@pytest.mark.thorough
def test_a_pump_whose_sync_fails_once_continues_in_a_new_segment(
    load: Load, nodes: Nodes, tmp_path: Path
) -> None:
    faults = {"LD_PRELOAD": str(faulty_disk(tmp_path)), "FAULTY_MATCH": ".seg", "FAULTY_SYNC": "30"}
    with environment(faults):
        pump = nodes.add_pump(**SETTINGS)
    load.begin(pump)
    pump.wait_for("sync failed, abandoning the file at offset")
    load.run_until_acknowledged(load.ledger.acknowledged + 20)
    load.end(pump)


@pytest.mark.fault(
    "fdatasync takes seconds (failpoint `disk.sync=sleep(2)` on a Pump)",
    "writers wait, the Pump stays online and says how long its disk takes",
    cases="0 / 1",
)
@pytest.mark.slow
def test_a_pump_with_a_disk_that_takes_seconds_is_slow_but_loses_no_writer(
    load: Load, nodes: Nodes
) -> None:
    with environment({failpoints.VARIABLE: "disk.sync=sleep(2)"}):
        pump = nodes.add_pump(**SETTINGS)
    load.begin(pump)
    pump.wait_for(r"to disk took \d")
    load.run_until_acknowledged(2 * WRITERS)
    assert pump.status().state == "online"
    load.end(pump)


@pytest.mark.slow
def test_a_disk_that_cannot_be_read_ends_a_pull_with_a_reason_and_nothing_else(
    load: Load, nodes: Nodes
) -> None:
    with environment({failpoints.VARIABLE: "disk.read=raise(EIO)@12"}):
        pump = nodes.add_pump(**SETTINGS)
    load.begin(pump)
    load.run_until_acknowledged(200)
    with pytest.raises(grpc.RpcError, match="Input/output error"):
        pull_often(pump.addr, load)
    load.run_until_acknowledged(load.ledger.acknowledged + 20)
    load.end(pump)
