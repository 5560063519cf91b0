import asyncio
from dataclasses import replace
from typing import Any

import pytest

from drainer.cluster.membership import Membership
from penstock.cluster.node_registry import READER, NodeKind, NodeState, NodeStatus, Registry
from penstock.codes import Code
from penstock.errors import NeedsOperator, Retryable
from tests.kit.fakes.etcd import MemoryEtcd

DRAINER = NodeKind.DRAINER


def member(registry: Registry) -> Membership:
    oracle: Any = None
    return Membership(registry, oracle, node_id="d", host="h:1", checkpoint_ts=lambda: 5)


def test_a_drainer_that_has_begun_nothing_is_forgotten_and_holds_no_purge() -> None:
    registry = Registry(MemoryEtcd())
    drainer = member(registry)
    asyncio.run(drainer.publish_and_list())
    assert [status.state for status in registry.list(DRAINER)] == [NodeState.ONLINE]
    asyncio.run(drainer.leave(NodeState.PAUSED, is_new=True))
    assert registry.list(DRAINER) == []


def test_a_drainer_with_a_checkpoint_keeps_its_place() -> None:
    registry = Registry(MemoryEtcd())
    drainer = member(registry)
    asyncio.run(drainer.publish_and_list())
    asyncio.run(drainer.leave(NodeState.PAUSED, is_new=False))
    found = registry.get(DRAINER, "d")
    assert found is not None
    assert (found.state, found.max_commit_ts) == (NodeState.PAUSED, 5)


@pytest.mark.parametrize("is_new", [False, True])
def test_a_start_that_goes_wrong_leaves_the_entry_of_the_same_node_id_as_it_is(
    is_new: bool,
) -> None:
    registry = Registry(MemoryEtcd())
    other = NodeStatus(node_id="d", host="h:2", state=NodeState.ONLINE, update_ts=9)
    registry.put(DRAINER, other)
    asyncio.run(member(registry).leave(NodeState.PAUSED, is_new=is_new))
    assert registry.list(DRAINER) == [other]


def test_a_place_that_cannot_be_left_is_named_with_what_does_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Away(Registry):
        def forget(self, kind: NodeKind, node_id: str) -> None:
            raise Retryable("etcd is away", code=Code.ETCD_AWAY)

    drainer = member(Away(MemoryEtcd()))
    asyncio.run(drainer.publish_and_list())
    asyncio.run(drainer.leave(NodeState.PAUSED, is_new=True))
    assert "start it again; without that: penstock ctl update-drainer --node-id d" in caplog.text


def test_a_drainer_does_not_take_the_name_of_a_program_that_reads() -> None:
    registry = Registry(MemoryEtcd())
    reader = NodeStatus(node_id="d", host=f"{READER}app:0", state=NodeState.PAUSED, update_ts=9)
    registry.put(DRAINER, reader)
    with pytest.raises(NeedsOperator, match="that of a program that reads the stream"):
        asyncio.run(member(registry).refuse_duplicate())
    registry.put(DRAINER, replace(reader, state=NodeState.OFFLINE))
    asyncio.run(member(registry).refuse_duplicate())
