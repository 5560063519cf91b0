"""kill -9 under load, again and again: no acknowledged binlog lost, none invented, order kept."""

import random
import time

import pytest

from penstock.cluster.node_registry import Registry
from penstock.oracle.client import OracleClient
from tests.kit.fakes.oracle import OracleNode
from tests.kit.servers.fix_replication import Nodes
from tests.kit.workloads.ledger import Ledger, LedgerWriter, committed, pull_until

pytestmark = pytest.mark.fault

WRITERS = 6


@pytest.mark.fault(
    "kill at every step (all 21 failpoints, in a storage process; real Pumps; random runs;"
    " `kill -9` under load)"
)
@pytest.mark.parametrize("kills", [3, pytest.param(20, marks=pytest.mark.slow)])
def test_kills_under_load_lose_nothing(nodes: Nodes, kills: int) -> None:
    # An oracle outside the Pump: else every kill would also wait for an election.
    oracle_node = OracleNode(nodes.etcd)
    oracle_node.wait_elected()
    oracle = OracleClient(nodes.etcd)
    cluster_id = Registry(nodes.etcd).cluster_id()
    pump = nodes.add_pump(storage_segment_bytes_max=4 << 20)
    ledger, chance = Ledger(), random.Random(20)
    writers = [
        LedgerWriter(ledger, oracle, pump.addr, cluster_id, value_bytes_max=8000, seed=seed)
        for seed in range(WRITERS)
    ]
    try:
        for writer in writers:
            writer.start()
        for _ in range(kills):
            time.sleep(chance.uniform(0.05, 0.5))
            pump.restart()
        time.sleep(0.5)
        for writer in writers:
            writer.stop()
        found = pull_until(pump.addr, cluster_id, oracle.get_ts())
        streamed = ledger.check(found)
        assert streamed >= ledger.acknowledged > kills * WRITERS
        pump.restart()
        again = pull_until(pump.addr, cluster_id, found[-1][0])
        assert committed(again) == committed(found)
    finally:
        pump.kill()
        oracle.close()
        oracle_node.stop()
