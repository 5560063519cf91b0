from __future__ import annotations

import asyncio
from typing import Any

import pytest

from penstock.errors import Retryable
from penstock.registry import NodeKind, NodeState, NodeStatus
from pump import membership
from pump.identity import Identity
from pump.membership import Membership
from tests.kit.registry import MemoryRegistry


class AwayFor(MemoryRegistry):
    """A registry that is away for the next puts."""

    def __init__(self, puts: int) -> None:
        super().__init__()
        self.left = puts

    def put(self, kind: NodeKind, status: NodeStatus) -> None:
        self.left -= 1
        if self.left >= 0:
            raise Retryable("etcd is away")
        super().put(kind, status)


class Parts:
    """What a Membership asks storage and clock for."""

    max_commit_ts = 5

    def now_ts(self) -> int:
        return 7


def joined(registry: MemoryRegistry) -> Membership:
    parts: Any = Parts()
    identity = Identity("p", "h:1", {"zone": "a"})
    return Membership(registry, parts, parts, identity=identity, score=lambda: 321)


def test_score_and_labels_are_published_with_the_status() -> None:
    registry = MemoryRegistry()
    asyncio.run(joined(registry).enter(NodeState.PAUSED))
    found = registry.get(NodeKind.PUMP, "p")
    assert found is not None
    assert (found.score, found.label) == (321, {"labels": {"zone": "a"}})
    assert (found.max_commit_ts, found.update_ts) == (5, 7)


def test_offline_is_said_again_until_etcd_has_heard_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(membership, "_RETRY_S", 0)
    registry = AwayFor(puts=3)
    asyncio.run(joined(registry).enter(NodeState.OFFLINE))
    found = registry.get(NodeKind.PUMP, "p")
    assert found is not None
    assert found.state is NodeState.OFFLINE


def test_an_etcd_that_never_hears_it_is_named_with_the_command_that_helps(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(membership, "_RETRY_S", 0)
    asyncio.run(joined(AwayFor(puts=1000)).enter(NodeState.OFFLINE))
    assert "binlogctl update-pump --node-id p --state offline" in caplog.text
