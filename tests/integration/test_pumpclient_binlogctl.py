"""The operator's command against a real etcd and a real Pump."""

import json
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import grpc
import pytest

from penstock.cluster.log_entry import Copy, LogEntries, LogEntry
from penstock.cluster.node_registry import NodeKind, NodeState, NodeStatus, Registry
from penstock.cluster.records import Standby, key_of, record_text
from penstock.ctl import states
from penstock.ctl.commands import main
from penstock.local.etcd import EtcdServer
from penstock.oracle.client import OracleClient
from penstock.pb import penstock_pb2, penstock_pb2_grpc
from tests.kit.servers.fix_replication import Nodes
from tests.kit.wait import eventually, present

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(etcd: Any, etcd_server: EtcdServer, capsys: pytest.CaptureFixture[str]) -> Run:
    def run_it(*arguments: str) -> tuple[int, str, str]:
        code = main([*arguments, "--etcd-urls", etcd_server.url])
        return code, *capsys.readouterr()

    return run_it


@pytest.fixture
def registry(etcd: Any) -> Registry:
    return Registry(etcd)


def test_pumps_and_drainers_are_listed_and_offline_ones_only_on_demand(
    run: Run, registry: Registry
) -> None:
    for node_id, state in (("pump-1", NodeState.PAUSED), ("pump-2", NodeState.OFFLINE)):
        registry.put(NodeKind.PUMP, NodeStatus(node_id=node_id, host="127.0.0.1:1", state=state))
    code, out, err = run("pumps")
    assert (code, err) == (0, "")
    assert "pump-1" in out
    assert "pump-2" not in out
    assert "pump-2" in run("pumps", "--show-offline-nodes")[1]
    assert run("drainers") == (0, "no nodes\n", "")


def test_a_state_is_written_for_a_drainer_that_is_dead_and_what_follows_is_said(
    run: Run, registry: Registry
) -> None:
    status = NodeStatus(node_id="d", host="127.0.0.1:1", state=NodeState.ONLINE, max_commit_ts=5)
    registry.put(NodeKind.DRAINER, status)
    code, out, _ = run("update-drainer", "--node-id", "d", "--state", "offline")
    assert (code, out.splitlines()[0]) == (0, "d: online -> offline")
    assert "continues from its checkpoint 5, or stops if some after that are gone" in out
    found = present(registry.get(NodeKind.DRAINER, "d"))
    assert (found.state, found.max_commit_ts) == (NodeState.OFFLINE, 5)


@pytest.mark.slow
def test_where_no_one_has_the_time_a_heartbeat_is_watched(
    run: Run, registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(states, "WATCHED_S", 3)
    status = NodeStatus(node_id="d", host="127.0.0.1:1", state=NodeState.ONLINE, update_ts=5)
    registry.put(NodeKind.DRAINER, status)
    beat = threading.Timer(1.5, registry.put, (NodeKind.DRAINER, replace(status, update_ts=6)))
    beat.start()
    code, _, err = run("update-drainer", "--node-id", "d", "--state", "offline")
    beat.join()
    assert (code, "d is alive: its last heartbeat" in err) == (2, True)
    assert run("update-drainer", "--node-id", "d", "--state", "paused")[0] == 0


@pytest.mark.parametrize("state", ["online", "pausing", "paused", "closing", "offline"])
def test_the_state_of_a_pump_that_is_alive_is_not_changed_by_anybody_else(
    run: Run, registry: Registry, nodes: Nodes, state: str
) -> None:
    pump = nodes.add_pump()
    code, _, err = run("update-pump", "--node-id", "pump-1", "--state", state)
    assert (code, "pump-1 is alive" in err) == (2, True), err
    found = present(registry.get(NodeKind.PUMP, "pump-1"))
    assert found.state is NodeState.ONLINE
    # Nor when somebody has written another state past us, or its heartbeats do not come through.
    registry.put(NodeKind.PUMP, replace(found, state=NodeState.PAUSED, update_ts=5))
    code, _, err = run("update-pump", "--node-id", "pump-1", "--state", state)
    assert (code, "pump-1 is alive" in err) == (2, True), err
    assert pump.is_running


@pytest.mark.thorough
def test_a_stopped_pump_goes_offline_only_when_every_drainer_has_what_it_holds(
    run: Run, nodes: Nodes, registry: Registry
) -> None:
    keeper, pump = nodes.add_pump(), nodes.add_pump()
    session = nodes.session(pump)
    last_ts = session.transaction().commit_ts
    session.close()
    late = NodeStatus(
        node_id="d", host="127.0.0.1:1", state=NodeState.PAUSED, max_commit_ts=last_ts - 1
    )
    registry.put(NodeKind.DRAINER, late)
    offline = ("offline-pump", "--node-id", "pump-2")
    pump.kill()
    for command in (offline, ("update-pump", "--node-id", "pump-2", "--state", "offline")):
        eventually(lambda: "is alive" not in run(*command)[2], 60)  # noqa: B023  # Called here.
        code, _, err = run(*command)
        assert code in (1, 2)
        assert "start" in err
    assert "it is unknown which binlogs only it holds" in err
    code, out, err = run("status", "pump-2")
    assert (code, "unknown: it did not shut down cleanly" in out) == (1, True), out
    pump.start()
    pump.stop()
    code, out, err = run("status", "pump-2")
    assert (code, err, "paused, the last that was heard of it" in out) == (0, "", True), out
    assert f"holds_up_to        {last_ts}, said at" in out
    code, _, err = run(*offline)
    assert (code, f"drainer d (paused) is missing those in ({last_ts - 1}, {last_ts}]" in err) == (
        2,
        True,
    )
    registry.put(NodeKind.DRAINER, replace(late, max_commit_ts=last_ts))
    code, out, _ = run(*offline)
    assert (code, "pump-2: paused -> offline" in out) == (0, True)
    code, _, err = run(*offline)
    assert (code, "is offline" in err) == (2, True)
    pump.start()  # It may come back: it is listed again before it takes anything.
    assert pump.status().state == "online"
    assert registry.last_words() == {}
    assert keeper.is_running


def test_a_timestamp_is_that_of_the_cluster(run: Run, nodes: Nodes) -> None:
    nodes.add_pump()
    oracle = OracleClient(nodes.etcd)
    before = oracle.get_ts()
    code, out, _ = run("timestamp")
    assert code == 0
    assert before < int(out) < oracle.get_ts()
    oracle.close()


def test_an_unknown_node_is_an_operators_matter(run: Run) -> None:
    code, out, err = run("pause-pump", "--node-id", "ghost")
    assert (code, out) == (2, "")
    assert "no node 'ghost'" in err


def test_a_dead_node_cannot_be_paused_and_the_error_says_what_can_be_done(
    run: Run, registry: Registry
) -> None:
    status = NodeStatus(node_id="p", host="127.0.0.1:1", state=NodeState.ONLINE)
    registry.put(NodeKind.PUMP, status)
    code, _, err = run("pause-pump", "--node-id", "p")
    assert code == 1
    assert "if it does not run, start it" in err


@pytest.mark.parametrize(
    ("command", "state"), [("pause-pump", NodeState.PAUSED), ("offline-pump", NodeState.OFFLINE)]
)
def test_a_pump_stops_in_the_way_it_is_asked_to(
    run: Run, registry: Registry, nodes: Nodes, command: str, state: NodeState
) -> None:
    pump = nodes.add_pump()
    code, out, err = run(command, "--node-id", pump.node_id)
    assert (code, err) == (0, "")
    assert pump.node_id in out
    assert pump.wait() == 0
    eventually(lambda: getattr(registry.get(NodeKind.PUMP, pump.node_id), "state", None) == state)
    code, _, err = run(command, "--node-id", pump.node_id)
    assert code == 2
    assert f"is {state}" in err


def test_a_pump_describes_itself_and_purges_on_request_with_and_without_etcd(
    run: Run, nodes: Nodes
) -> None:
    pump = nodes.add_pump()
    code, out, err = run("status", pump.node_id)
    assert (code, err) == (0, "")
    fields = dict(line.split(maxsplit=1) for line in out.splitlines() if len(line.split()) > 1)
    assert (fields["node_id"], fields["state"], fields["etcd"]) == (
        pump.node_id,
        "online",
        "reachable",
    )
    assert int(fields["storage_segments"]) == 1
    code, out, _ = run("trigger-gc", "--addr", pump.addr)
    assert code == 0
    assert "0 segments went" in out
    code, _, err = run("trigger-gc", "ghost")
    assert (code, "no node 'ghost'" in err) == (2, True)
    code, _, err = run("status")
    assert (code, "give a node id, or --addr" in err) == (2, True)
    code, _, err = run("status", "--addr", "127.0.0.1:1")
    assert (code, "UNAVAILABLE" in err) == (1, True)


def test_every_command_about_nodes_speaks_json(run: Run, registry: Registry, nodes: Nodes) -> None:
    def ask(*arguments: str) -> Any:
        code, out, err = run(*arguments, "-o", "json")
        assert (code, err) == (0, "")
        return json.loads(out)

    pump = nodes.add_pump()
    (listed,) = ask("pumps")
    assert (listed["node_id"], listed["state"], listed["is_alive"]) == ("pump-1", "online", True)
    assert listed["heartbeat_ts"] > 0
    assert ask("drainers") == []
    about = ask("status", "pump-1")
    assert (about["state"], about["answers"], about["leads_oracle"]) == ("online", True, True)
    assert type(about["storage_segments"]) is int
    stamp = ask("timestamp")
    assert stamp["ts"] > about["max_commit_ts"]
    assert "segments went" in ask("trigger-gc", "pump-1")["message"]
    assert ask("pause-pump", "pump-1", "--wait") == {
        "cluster": nodes.url,
        "node_id": "pump-1",
        "state": "paused",
    }
    assert pump.wait() == 0
    about = ask("status", "--node-id", "pump-1")
    assert (about["state"], about["answers"], about["is_alive"]) == ("paused", False, False)
    assert type(about["holds_up_to_ts"]) is int

    dead = NodeStatus(node_id="d", host="127.0.0.1:1", state=NodeState.ONLINE, max_commit_ts=5)
    registry.put(NodeKind.DRAINER, dead)
    changed = ask("update-drainer", "d", "--state", "paused")
    assert (changed["before"], changed["state"]) == ("online", "paused")


def test_lost_in_json_says_what_is_declared_lost_before_and_after(
    run: Run, registry: Registry, nodes: Nodes
) -> None:
    nodes.add_pump()  # The one that has the time.
    dead = NodeStatus(node_id="p", host="127.0.0.1:1", state=NodeState.ONLINE, max_commit_ts=5)
    registry.put(NodeKind.PUMP, dead)
    drainer = replace(dead, node_id="d", max_commit_ts=4)
    registry.put(NodeKind.DRAINER, drainer)
    ask = ("lost-pump", "p", "--accept-loss-after", "4", "-o", "json")
    code, out, err = run(*ask)
    assert (code, "add --confirm p" in err) == (2, True)
    report = json.loads(out)
    assert (report["is_lost"], report["accept_loss_after_ts"]) == (False, 4)
    assert [(d["node_id"], d["has_up_to_ts"]) for d in report["drainers"]] == [("d", 4)]
    code, out, err = run(*ask, "--confirm", "p")
    assert (code, err, json.loads(out)["is_lost"]) == (0, "", True)
    assert registry.lost()["p"].after_ts == 4


def test_a_pump_is_not_lost_while_another_disk_has_a_whole_copy_of_its_log(
    run: Run, registry: Registry, nodes: Nodes
) -> None:
    nodes.add_pump()
    registry.put(NodeKind.PUMP, NodeStatus(node_id="p", host="127.0.0.1:1", state=NodeState.ONLINE))
    entry = LogEntry(epoch=2, primary=Copy("p", "d1"), replicas=(Copy("pump-3", "d3"),))
    assert LogEntries(nodes.etcd).swap("p", 0, entry) is not None
    ask = ("lost-pump", "p", "--accept-loss-after", "0", "--confirm", "p")
    code, _, err = run(*ask)
    assert (code, "etcd lists a whole copy of its log on pump-3" in err) == (2, True)
    assert "p" not in registry.lost()
    assert run(*ask, "--copies-are-gone")[0] == 0
    assert "p" in registry.lost()


@pytest.mark.thorough
def test_waiting_ends_when_the_node_is_there_or_when_time_is_up(
    run: Run, registry: Registry, nodes: Nodes
) -> None:
    nodes.add_pump()
    late = NodeStatus(node_id="d", host="127.0.0.1:1", state=NodeState.PAUSED)
    registry.put(NodeKind.DRAINER, late)
    code, out, err = run("offline-pump", "pump-1", "--wait", "--timeout", "2s")
    assert (code, out) == (1, "")
    assert "pump-1 is not offline after 2 s, it is closing: " in err
    assert "drainer d" in err
    registry.put(NodeKind.DRAINER, replace(late, state=NodeState.OFFLINE))
    eventually(
        lambda: registry.get(NodeKind.PUMP, "pump-1").state is NodeState.OFFLINE,  # type: ignore[union-attr]
        30,
    )


class Handing(penstock_pb2_grpc.DrainerServicer):
    """A Drainer that hands over, and stands by a moment later."""

    def __init__(self, etcd: Any) -> None:
        self.etcd = etcd
        self.host = ""

    def HandOver(self, request: Any, context: Any) -> Any:  # noqa: N802  (gRPC's name)
        waiting = Standby(
            node_id=request.node_id, host=self.host, active="d-2", writer="w", checkpoint_ts=7,
            update_ts=0,
        )  # fmt: skip
        put = (key_of(waiting, "w"), record_text(waiting))
        threading.Timer(1.0, self.etcd.put, put).start()
        return penstock_pb2.HandOverReply(standbys=["d-2"])


def test_a_hand_over_is_named_waited_for_and_reported_as_other_commands_are(
    run: Run, etcd: Any, registry: Registry
) -> None:
    handing = Handing(etcd)
    server = grpc.server(ThreadPoolExecutor(2))
    penstock_pb2_grpc.add_DrainerServicer_to_server(handing, server)  # type: ignore[no-untyped-call]
    handing.host = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    try:
        active = NodeStatus(node_id="d-1", host=handing.host, state=NodeState.ONLINE)
        registry.put(NodeKind.DRAINER, active)
        code, out, err = run("hand-over", "d-1", "--wait", "--timeout", "20s", "-o", "json")
    finally:
        server.stop(None).wait()
    assert (code, err) == (0, "")
    answer = json.loads(out)
    assert answer.pop("cluster")
    assert answer == {"node_id": "d-1", "state": "standby", "standbys": ["d-2"]}
    (listed,) = json.loads(run("drainers", "-o", "json")[1])
    assert (listed["state"], listed["max_commit_ts"]) == ("standby", 7)
