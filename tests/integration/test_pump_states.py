"""What an operator can rely on: purges, going offline, and whose data and name it is."""

import shutil
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest

from penstock.cluster.node_registry import NodeKind, NodeState, NodeStatus, Registry
from penstock.ctl.commands import main
from penstock.local.process import free_port
from penstock.pb import penstock_pb2
from penstock.ts import compose
from pumpclient import PumpClient
from tests.kit.servers.fix_replication import Nodes, Replication
from tests.kit.servers.pump_session import PumpSession
from tests.kit.wait import eventually, present
from tests.kit.workloads.ledger import pull_until

SMALL_SEGMENTS: dict[str, Any] = {"storage_segment_bytes_max": 1 << 16}
ROWS = bytes(1 << 15)
DAY_S = 86400


def listed(session: PumpSession, node_id: str, checkpoint_ts: int, age_s: int = 0) -> NodeStatus:
    """List a Drainer that has that checkpoint and was last heard of `age_s` ago."""
    status = NodeStatus(
        node_id=node_id,
        host="127.0.0.1:9",
        state=NodeState.ONLINE,
        max_commit_ts=checkpoint_ts,
        update_ts=session.oracle.get_ts() - compose(age_s * 1000, 0),
    )
    session.registry.put(NodeKind.DRAINER, status)
    return status


def trigger_gc(session: PumpSession) -> str:
    reply = session.batches.TriggerGc(penstock_pb2.TriggerGcRequest(), timeout=20)
    return str(reply.message)


def state_of(session: PumpSession) -> NodeState | None:
    status = session.registry.get(NodeKind.PUMP, session.pump.node_id)
    return status.state if status else None


def test_what_is_forced_out_is_named_and_a_drainer_that_needs_it_stops_with_a_hint(
    replication: Replication,
) -> None:
    ages = {"gc_days": 0.1 / DAY_S, "gc_force_after_days": 0.2 / DAY_S}
    session = replication.session(replication.add_pump(**ages, **SMALL_SEGMENTS))
    first = session.transaction()
    for _ in range(10):
        session.transaction(ROWS)
    late = listed(session, "late", first.commit_ts, age_s=60)
    time.sleep(0.3)
    answer = trigger_gc(session)
    assert "purged (0, " in answer
    assert f"drainer late (online) still needs binlogs after {first.commit_ts}" in answer
    found = session.pump.wait_for(
        rf"ERROR.*drainer late at checkpoint {late.max_commit_ts} lost binlogs: those in"
        rf" \({late.max_commit_ts}, (\d+)\] were purged"
    )
    assert session.pump.status().details["purge"] == answer
    range_text = rf"binlogs in \({first.commit_ts}, {found[1]}\] are purged"
    with pytest.raises(grpc.RpcError, match=range_text):
        pull_until(session.pump.addr, session.cluster_id, first.commit_ts, first.commit_ts)

    drainer = replication.add_drainer(started=False, initial_commit_ts=first.commit_ts)
    assert drainer.spawn().wait(60) == 2
    drainer_log = drainer.log_text()
    assert f"binlogs in ({first.commit_ts}, {found[1]}] are purged" in drainer_log
    assert "restore the downstream from a newer backup" in drainer_log


@pytest.mark.thorough
def test_a_dead_drainer_is_named_and_waited_for_until_it_is_skipped(
    replication: Replication, capsys: pytest.CaptureFixture[str]
) -> None:
    session = replication.session(replication.add_pump())
    commit = session.transaction()
    dead = listed(session, "dead", commit.commit_ts - 1, age_s=60)
    slow = listed(session, "slow", commit.commit_ts)

    def ctl(*arguments: str) -> tuple[int, str]:
        code = main([*arguments, "--etcd-urls", replication.url])
        return code, "".join(capsys.readouterr())

    offline = ("offline-pump", "--node-id", "pump-1")
    assert ctl(*offline)[0] == 0
    session.pump.wait_for("not offline yet: drainer dead .* behind, and not running")
    eventually(lambda: "0 of 2 Drainers have all up to" in ctl("status", "pump-1")[1])
    printed = ctl("status", "pump-1")[1]
    assert "named with --skip-drainer, it never gets what it lacks" in printed
    assert "drainer slow (online) is" in printed

    code, printed = ctl(*offline, "--skip-drainer", "daed")
    assert (code, "no one waits for a drainer 'daed'" in printed) == (2, True)
    assert "those waited for: dead, slow" in printed
    session.registry.put(NodeKind.DRAINER, replace(slow, update_ts=session.oracle.get_ts()))
    code, printed = ctl(*offline, "--skip-drainer", "slow")
    assert (code, "drainer slow is online and runs" in printed) == (2, True)

    assert ctl(*offline, "--skip-drainer", "dead")[0] == 0
    eventually(lambda: "drainer dead" not in session.pump.status().details["closing"])
    assert session.pump.is_running
    listed(session, "slow", session.oracle.get_ts())
    assert session.pump.wait() == 0
    assert state_of(session) is NodeState.OFFLINE
    lost = (
        f"drainer dead at checkpoint {dead.max_commit_ts} is abandoned.*\\({dead.max_commit_ts}, "
    )
    session.pump.wait_for(lost)

    drainer = replication.add_drainer(
        started=False, node_id="dead", initial_commit_ts=dead.max_commit_ts
    )
    assert drainer.spawn().wait(60) == 2
    assert f"will never get binlogs in ({dead.max_commit_ts}, " in drainer.log_text()
    assert "restore the downstream from a newer backup" in drainer.log_text()


@pytest.mark.thorough
def test_a_pump_stopped_while_going_offline_is_paused_and_comes_back_whole(nodes: Nodes) -> None:
    session = nodes.session(nodes.add_pump())
    commit = session.transaction()
    listed(session, "dead", commit.commit_ts - 1, age_s=60)
    session.batches.Close(penstock_pb2.CloseRequest(node_id="pump-1"), timeout=20)
    assert session.pump.stop() == 0
    assert state_of(session) is NodeState.PAUSED
    session.pump.start()
    assert state_of(session) is NodeState.ONLINE
    session.transaction()


@pytest.mark.fault("the same node id or data folder twice; a renamed host")
def test_a_pump_whose_host_is_renamed_or_moved_keeps_name_writers_and_data(
    nodes: Nodes, tmp_path: Path
) -> None:
    pump = nodes.add_pump(node_id="", data_dir=tmp_path / "data")
    named = pump.addr
    session = nodes.session(pump)
    commit = session.transaction()
    with PumpClient.connect(nodes.url) as client:
        # A new name of the same host: the old one still leads to this very Pump.
        pump.kill()
        port = named.rpartition(":")[2]
        pump = nodes.add_pump(
            node_id="", data_dir=pump.data_dir, addr=named, advertise_addr=f"localhost:{port}"
        )
        assert pump.wait_for(r"pump (\S+) is online at localhost")[1] == named
        # Another port, as on another host.
        pump.kill()
        elsewhere = f"127.0.0.1:{free_port()}"
        pump = nodes.add_pump(node_id="", data_dir=pump.data_dir, addr=elsewhere)
        status = present(session.registry.get(NodeKind.PUMP, named))
        assert (status.host, status.state) == (elsewhere, NodeState.ONLINE)
        assert len(session.registry.list(NodeKind.PUMP)) == 1
        client.write_binlog(session.prewrite())
    found = pull_until(elsewhere, session.cluster_id, commit.commit_ts)
    assert commit.commit_ts in [commit_ts for commit_ts, _ in found]


def test_a_duplicate_node_id_waits_for_one_that_may_be_alive_and_ends_when_it_is(
    nodes: Nodes,
) -> None:
    oracle_keeper = nodes.add_pump()
    first = nodes.add_pump(node_id="twin")
    other = first.data_dir.with_name("other")
    first.freeze()
    shutil.copytree(first.data_dir, other)  # An empty folder would be refused for itself.
    second = nodes.add_pump(node_id="twin", data_dir=other, waiting=False)
    second.wait_for("does not answer, but was heard of a moment ago")
    first.thaw()
    assert second.wait(20) == 2
    assert "already has the node id twin" in second.log_text()
    status = present(Registry(nodes.etcd).get(NodeKind.PUMP, "twin"))
    assert (status.host, first.is_running, oracle_keeper.is_running) == (first.addr, True, True)
