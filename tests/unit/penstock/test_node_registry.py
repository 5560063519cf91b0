"""The status JSON, and who counts as live."""

import ast
import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.cluster.node_registry import (
    SILENT_AFTER_S,
    Heartbeats,
    NodeState,
    NodeStatus,
    labels_in,
    labels_text,
    parse_labels,
    published_labels,
    seems_live,
)
from penstock.errors import Malformed, NeedsOperator
from penstock.ts import compose

statuses = st.builds(
    NodeStatus,
    node_id=st.text(),
    host=st.text(),
    state=st.sampled_from(NodeState),
    is_alive=st.booleans(),
    score=st.integers(-(2**63), 2**63 - 1),
    label=st.none() | st.just({"labels": {"zone": "a"}}),
    max_commit_ts=st.integers(0, 2**63 - 1),
    update_ts=st.integers(0, 2**63 - 1),
)


def test_the_json_has_the_eight_fields_of_tidb_binlog_in_its_order() -> None:
    status = NodeStatus(
        node_id="db1:8250",
        host="10.0.0.1:8250",
        state=NodeState.ONLINE,
        max_commit_ts=7,
        update_ts=9,
    )
    assert status.to_json() == (
        '{"nodeId":"db1:8250","host":"10.0.0.1:8250","state":"online","isAlive":false,'
        '"score":0,"label":null,"maxCommitTS":7,"updateTS":9}'
    )


@given(statuses)
def test_a_status_survives_json(status: NodeStatus) -> None:
    assert NodeStatus.from_json(status.to_json()) == status


def test_absent_fields_read_as_zero() -> None:
    read = NodeStatus.from_json(b'{"nodeId":"a","host":"b","state":"paused"}')
    assert read == NodeStatus(node_id="a", host="b", state=NodeState.PAUSED)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "null",
        '{"nodeId":"a","host":"b","state":"asleep"}',
        '{"nodeId":1,"host":"b","state":"online"}',
        '{"nodeId":"a","host":"b","state":"online","maxCommitTS":"7"}',
        b"\xff\xfe\xff",
    ],
)
def test_a_status_that_cannot_be_read_is_malformed(text: str | bytes) -> None:
    with pytest.raises(Malformed):
        NodeStatus.from_json(text)


def test_unknown_fields_are_ignored_as_a_newer_node_may_write_them() -> None:
    fields = {"nodeId": "a", "host": "b", "state": "online", "zone": "c"}
    assert NodeStatus.from_json(json.dumps(fields)).node_id == "a"


@pytest.mark.parametrize(
    ("state", "age_s", "live"),
    [
        (NodeState.ONLINE, 0, True),
        (NodeState.ONLINE, 10, True),
        (NodeState.ONLINE, 10.001, False),
        (NodeState.ONLINE, -5, True),
        (NodeState.PAUSING, 1, True),
        (NodeState.CLOSING, 1, True),
        (NodeState.PAUSED, 1, False),
        (NodeState.OFFLINE, 1, False),
    ],
)
def test_a_node_seems_live_while_it_runs_and_was_heard_of_lately(
    state: NodeState, age_s: float, live: bool
) -> None:
    now_ms = 1_700_000_000_000
    status = NodeStatus(
        node_id="a", host="b", state=state, update_ts=compose(now_ms - round(age_s * 1000), 3)
    )
    assert seems_live(status, compose(now_ms, 0)) is live


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
    "proto/penstock/ctl/nodes.py",
    "proto/penstock/ctl/console/cluster_state.py",
}


def test_how_old_a_heartbeat_looks_is_used_for_display_only() -> None:
    root = Path(__file__).parents[3]
    found = set()
    for part in ("proto", "pump", "drainer", "pumpclient"):
        for path in (root / part).rglob("*.py"):
            text = path.read_text()
            if "seems_live" in text or "update_ts, now" in text:
                names = {n.id for n in ast.walk(ast.parse(text)) if isinstance(n, ast.Name)}
                if "seems_live" in names or path.name == "node_registry.py":
                    found.add(str(path.relative_to(root)))
    assert found == SHOWN_BY
    assert SILENT_AFTER_S == 10


def test_labels_go_through_settings_and_status_unchanged() -> None:
    labels = parse_labels(["zone=a", " disk = fast "])
    assert labels == {"zone": "a", "disk": "fast"}
    assert published_labels(labels) == {"labels": {"zone": "a", "disk": "fast"}}
    assert labels_in(published_labels(labels)) == labels
    assert parse_labels(labels_text(labels).split(",")) == labels


def test_no_labels_are_published_as_tidb_binlog_does() -> None:
    assert published_labels({}) is None
    assert labels_in(None) == {}


@pytest.mark.parametrize("text", ["zone", "=a", "zone=", "zone=a=b", ""])
def test_what_is_no_label_says_what_one_looks_like(text: str) -> None:
    with pytest.raises(NeedsOperator, match=r"is not a label .write name=value: zone=a"):
        parse_labels([text])


def test_a_label_has_one_value() -> None:
    assert parse_labels(["zone=a", "zone=a"]) == {"zone": "a"}
    with pytest.raises(NeedsOperator, match="zone has two values"):
        parse_labels(["zone=a", "zone=b"])


def test_a_strange_field_of_another_program_bears_no_labels() -> None:
    assert labels_in({"labels": ["zone"]}) == {}
    assert labels_in({"labels": {"zone": 3, "disk": "fast"}}) == {"disk": "fast"}
    assert labels_in({"other": {}}) == {}
