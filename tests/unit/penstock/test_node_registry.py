"""The status JSON, and who counts as live."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.cluster.node_registry import NodeState, NodeStatus, seems_live
from penstock.errors import Malformed
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
