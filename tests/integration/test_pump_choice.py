"""Writers that choose among real Pumps by what those report: score and labels."""

import json
import threading
from typing import Any

import pytest

from penstock import failpoints
from penstock.cluster.node_registry import NodeKind, Registry
from pumpclient import NoPump, Options, PumpClient
from tests.kit.servers.fix_pump import PumpProcess
from tests.kit.servers.fix_replication import Nodes
from tests.kit.servers.pump_session import PumpSession
from tests.kit.wait import eventually

QUICK = {"heartbeat_interval_s": 0.2}


def score(registry: Registry, pump: PumpProcess) -> int:
    status = registry.get(NodeKind.PUMP, pump.node_id)
    return status.score if status else -1


def written(pump: PumpProcess) -> int:
    """Return how many binlogs writers, not the Pump itself, have put there."""
    details = pump.status().details
    return int(details["binlogs_written"]) - int(details["fake_binlogs_written"])


def write(etcd_url: str, session: PumpSession, count: int, **settings: Any) -> None:
    with PumpClient.connect(etcd_url, **settings) as client:
        for _ in range(count):
            prewrite = session.prewrite()
            client.write_binlog(prewrite)
            client.write_binlog(session.commit(prewrite))


def test_a_pump_low_on_disk_gets_few_transactions_and_a_full_one_none(nodes: Nodes) -> None:
    roomy = nodes.add_pump(**QUICK, storage_stop_write_at_available_bytes=0)
    details = roomy.status().details
    free_bytes = int(details["storage_available_bytes"])
    low = nodes.add_pump(**QUICK, storage_stop_write_at_available_bytes=int(free_bytes * 0.95))
    registry = Registry(nodes.etcd)
    session = nodes.session(roomy)
    eventually(lambda: 0 < 4 * score(registry, low) < score(registry, roomy))
    write(nodes.url, session, 60, strategy="score")
    assert written(roomy) + written(low) == 120
    assert 0 <= written(low) < 40
    low.stop()
    full = nodes.add_pump(
        **QUICK,
        node_id=low.node_id,
        data_dir=low.data_dir,
        storage_stop_write_at_available_bytes=1 << 60,
    )
    eventually(lambda: score(registry, full) == 0)
    before = written(roomy)
    write(nodes.url, session, 30, strategy="score")
    assert (written(full), written(roomy) - before) == (0, 60)


@pytest.mark.thorough
def test_a_pump_whose_appends_take_long_gets_fewer_transactions_than_a_quick_one(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as environment:
        environment.setenv(failpoints.VARIABLE, "disk.sync=sleep(0.05)")
        slow = nodes.add_pump(**QUICK)
    quick = nodes.add_pump(**QUICK)
    registry = Registry(nodes.etcd)
    slow_session, session = nodes.session(slow), nodes.session(quick)
    stop = threading.Event()

    def load() -> None:
        while not stop.is_set():
            slow_session.transaction()

    thread = threading.Thread(target=load)
    thread.start()
    try:
        eventually(lambda: 0 < 2 * score(registry, slow) < score(registry, quick), 20)
        before = written(quick)
        write(nodes.url, session, 100, strategy="score")
        assert written(quick) - before > 100  # Out of 200: more than half.
    finally:
        stop.set()
        thread.join()


@pytest.mark.thorough
def test_labels_are_in_the_status_and_keep_writers_to_their_zone(nodes: Nodes) -> None:
    near = nodes.add_pump(labels="zone=a,disk=fast")
    far = nodes.add_pump(labels="zone=b")
    key = f"/tidb-binlog/v1/pumps/{near.node_id}"
    document = json.loads(nodes.etcd.get(key)[0])
    assert document["label"] == {"labels": {"zone": "a", "disk": "fast"}}
    assert 0 < document["score"] <= 1000
    session = nodes.session(near)
    write(nodes.url, session, 10, options=Options(labels=("zone=a",)))
    assert (written(near), written(far)) == (20, 0)
    options = Options(labels=("zone=c",), connect_timeout_s=0.5)
    with pytest.raises(NoPump, match=r"no Pump bears the labels zone=c .*pump-2: zone=b"):
        PumpClient.connect(nodes.url, options=options)
