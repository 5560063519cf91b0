"""Who runs is found out by watching, and never by how old a heartbeat looks."""

import ast
from dataclasses import replace
from pathlib import Path

import pytest

from penstock.cluster.node_registry import SILENT_AFTER_S, Heartbeats, NodeState, NodeStatus

NODE = NodeStatus(node_id="a", host="h:1", state=NodeState.ONLINE, update_ts=7)
LATER = replace(NODE, update_ts=8)


class Watching:
    def __init__(self) -> None:
        self.now_s = 100.0
        self.heartbeats = Heartbeats(clock=lambda: self.now_s)

    def look(self, status: NodeStatus, after_s: float = 0.0, times: int = 1) -> None:
        for _ in range(times):
            self.now_s += after_s
            self.heartbeats.note([status])


def test_a_node_is_silent_once_its_heartbeat_has_not_changed_for_ten_seconds() -> None:
    watching = Watching()
    assert watching.heartbeats.is_live(NODE)
    watching.look(NODE)
    watching.look(NODE, after_s=2, times=4)
    assert watching.heartbeats.is_live(NODE)
    watching.look(NODE, after_s=2)
    assert watching.heartbeats.is_silent(NODE)
    assert not watching.heartbeats.is_live(NODE)


@pytest.mark.parametrize("update_ts", [8, 6, 1 << 62])
def test_any_other_heartbeat_is_one_whatever_its_time(update_ts: int) -> None:
    watching = Watching()
    watching.look(NODE)
    watching.look(NODE, after_s=2, times=5)
    beat = replace(NODE, update_ts=update_ts)
    watching.look(beat, after_s=1)
    assert watching.heartbeats.is_live(beat)
    watching.look(beat, after_s=2, times=5)
    assert watching.heartbeats.is_silent(beat)


def test_time_without_a_look_does_not_count() -> None:
    watching = Watching()
    watching.look(NODE)
    watching.look(NODE, after_s=3600)  # As after an outage of etcd, or SIGSTOP.
    assert watching.heartbeats.is_live(NODE)


def test_what_a_pump_has_found_counts_for_that_heartbeat_only() -> None:
    watching = Watching()
    watching.heartbeats.note([NODE], {"a": 7})
    assert watching.heartbeats.is_silent(NODE)
    watching.heartbeats.note([LATER], {"a": 7})
    assert watching.heartbeats.is_live(LATER)


@pytest.mark.parametrize("state", [NodeState.PAUSED, NodeState.OFFLINE])
def test_one_that_stopped_does_not_live(state: NodeState) -> None:
    assert not Heartbeats().is_live(replace(NODE, state=state))


SHOWN_BY = {
    "drainer/intake/merge_holder.py",
    "proto/penstock/cluster/node_registry.py",
    "pump/pages.py",
    "ctl/nodes.py",
    "ctl/console/cluster_state.py",
}


def test_how_old_a_heartbeat_looks_is_used_for_display_only() -> None:
    root = Path(__file__).parents[3]
    found = set()
    for part in ("proto", "pump", "drainer", "pumpclient", "ctl"):
        for path in (root / part).rglob("*.py"):
            text = path.read_text()
            if "seems_live" in text or "update_ts, now" in text:
                names = {n.id for n in ast.walk(ast.parse(text)) if isinstance(n, ast.Name)}
                if "seems_live" in names or path.name == "node_registry.py":
                    found.add(str(path.relative_to(root)))
    assert found == SHOWN_BY
    assert SILENT_AFTER_S == 10
