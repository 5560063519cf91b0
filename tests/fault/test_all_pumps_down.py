"""Every Pump is gone, and comes back."""

import itertools
from contextlib import suppress

import pytest

from penstock.cluster.node_registry import Registry
from penstock.wire.codec import decode_binlog
from pumpclient import NoPump, Options, PumpClient, Retryable
from tests.kit.servers.fix_replication import Nodes
from tests.kit.wait import eventually
from tests.kit.workloads.ledger import pull_until

pytestmark = [pytest.mark.fault, pytest.mark.alone, pytest.mark.thorough]


@pytest.mark.fault(
    "all Pumps are killed, and come back",
    "writers learn that nothing happened, and commit again without waiting for a probe",
    cases="1, of 2 Pumps",
)
def test_writers_need_no_probe_when_all_pumps_are_back(nodes: Nodes) -> None:
    pumps = [nodes.add_pump() for _ in range(2)]
    options = Options(probe_interval_s=3600)
    with PumpClient.connect(nodes.url, write_timeout_s=1, options=options) as client:
        client.execute_ddl("CREATE DATABASE row45")
        client.execute_ddl("CREATE TABLE row45.t (id INT PRIMARY KEY)")
        tried = itertools.count(1)

        def write() -> int:
            with client.begin("row45") as txn:
                txn.insert("t", [next(tried)])
            return txn.start_ts

        committed = [write()]
        for pump in pumps:
            pump.kill()
        client._session.oracle._timeout_s = 2  # type: ignore[attr-defined]
        # Neither a Pump nor the oracle, which is one of them; and no doubt about what happened.
        with pytest.raises((Retryable, NoPump)):
            write()
        for pump in pumps:
            pump.spawn()
        for pump in pumps:
            pump.wait_for("is online at")

        def wrote() -> bool:
            with suppress(Retryable, NoPump):
                committed.append(write())
            return len(committed) > 1

        eventually(wrote, 60)
        committed += [write() for _ in range(4)]
    cluster_id = Registry(nodes.etcd).cluster_id()
    found = []
    for pump in pumps:
        end_ts = pump.status().max_commit_ts
        for _, payload in pull_until(pump.addr, cluster_id, end_ts):
            found += [b for b in [decode_binlog(payload)] if not b.is_fake and not b.is_ddl]
    assert sorted(b.start_ts for b in found) == committed
