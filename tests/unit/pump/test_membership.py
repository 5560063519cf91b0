import asyncio
import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.cluster.node_registry import (
    READER,
    Heartbeats,
    NodeKind,
    NodeState,
    NodeStatus,
    Registry,
)
from penstock.cluster.records import LastWord
from penstock.codes import Code
from penstock.errors import Retryable
from penstock.security.tls import Tls
from penstock.ts import LOGICAL_BITS
from pump.cluster import membership
from pump.cluster.identity import Identity
from pump.cluster.membership import SCORE_MAX, Membership, score_of
from tests.kit.fakes.etcd import MemoryEtcd

WORD = LastWord(pump="p", up_to_ts=4, open_count=0, made="today")


class AwayFor(Registry):
    """A registry that is away for the next puts."""

    def __init__(self, puts: int) -> None:
        super().__init__(MemoryEtcd())
        self.left = puts

    def put(self, kind: NodeKind, status: NodeStatus) -> None:
        self.left -= 1
        if self.left >= 0:
            raise Retryable("etcd is away", code=Code.ETCD_AWAY)
        super().put(kind, status)


class Parts:
    """What a Membership asks storage and clock for."""

    logged_ts = 5
    held_ts = 4
    begun_ts = 0

    def holds_up_to_ts(self) -> int:
        return self.held_ts

    def begin(self, ts: int) -> None:
        self.begun_ts = ts

    def now_ts(self) -> int:
        return 7

    async def next_ts(self) -> int:
        return 7


def joined(registry: Registry) -> Membership:
    parts: Any = Parts()
    identity = Identity("p", "h:1", {"zone": "a"})
    made = Membership(registry, parts, parts, identity=identity, score=lambda: 321)
    made.retry_s = 0
    return made


def test_score_and_labels_are_published_with_the_status() -> None:
    registry = Registry(MemoryEtcd())
    asyncio.run(joined(registry).enter(NodeState.PAUSED))
    found = registry.get(NodeKind.PUMP, "p")
    assert found is not None
    assert (found.score, found.label) == (321, {"labels": {"zone": "a"}})
    assert (found.max_commit_ts, found.update_ts) == (5, 7)


def test_offline_is_said_again_until_etcd_has_heard_it() -> None:
    registry = AwayFor(puts=3)
    asyncio.run(joined(registry).leave(NodeState.OFFLINE, WORD))
    found = registry.get(NodeKind.PUMP, "p")
    assert found is not None
    assert found.state is NodeState.OFFLINE
    assert registry.last_words() == {"p": WORD}


def test_an_etcd_that_never_hears_it_leaves_a_log_that_says_what_helps(
    caplog: pytest.LogCaptureFixture,
) -> None:
    asyncio.run(joined(AwayFor(puts=1000)).leave(NodeState.OFFLINE, WORD))
    assert "start this Pump again and take it offline once more" in caplog.text


def test_a_pump_withdraws_its_last_word_before_it_takes_anything() -> None:
    seen: list[tuple[NodeState, bool]] = []

    class Seen(Registry):
        def put(self, kind: NodeKind, status: NodeStatus) -> None:
            seen.append((status.state, bool(self.last_words())))
            super().put(kind, status)

    registry = Seen(MemoryEtcd())
    registry.put_last_word(WORD)
    asyncio.run(joined(registry).join())
    assert seen == [(NodeState.PAUSED, False), (NodeState.ONLINE, False)]


@pytest.mark.parametrize(("held_ts", "entered_ts"), [(4, 7), (6, 4)])
def test_a_pump_enters_from_a_last_word_that_lacks_some_of_its_transactions(
    monkeypatch: pytest.MonkeyPatch, held_ts: int, entered_ts: int
) -> None:
    monkeypatch.setattr(Parts, "held_ts", held_ts)
    registry = Registry(MemoryEtcd())
    registry.put_last_word(WORD)
    asyncio.run(joined(registry).join())
    assert registry.entered() == {"p": entered_ts}


GIB = 1 << 30


def score(
    free_bytes: int = 100 * GIB,
    reserve_bytes: int = 2 * GIB,
    volume_bytes: int = 100 * GIB,
    fill: float = 0.0,
    append_s: float = 0.0,
) -> int:
    stats = {"available_bytes": free_bytes, "stop_write_at_available_bytes": reserve_bytes}
    return score_of(stats, volume_bytes, fill, append_s)


def test_a_pump_at_rest_on_an_empty_disk_scores_most() -> None:
    assert score() == SCORE_MAX


def test_each_factor_takes_its_part() -> None:
    assert score(free_bytes=51 * GIB) == 500
    assert score(fill=0.75) == 250
    assert score(append_s=0.010) == 500
    assert score(append_s=0.090) == 100


def test_one_that_takes_nothing_scores_nothing() -> None:
    assert score(free_bytes=2 * GIB) == 0
    assert score(fill=1.2) == 0


def test_one_that_takes_something_is_never_left_out() -> None:
    assert score(2 * GIB + 1, 2 * GIB, 10000 * GIB, 0.999, 60.0) == 1


BYTES = st.integers(0, 1 << 45)


@given(BYTES, BYTES, BYTES, st.floats(0, 2), st.floats(0, 1000))
def test_it_is_always_within_its_bounds(
    free: int, reserve: int, volume: int, queue_fill: float, append_s: float
) -> None:
    assert 0 <= score(free, reserve, volume, queue_fill, append_s) <= SCORE_MAX


def test_a_pump_that_joins_notifies_every_drainer_and_no_reader() -> None:
    registry, notified = Registry(MemoryEtcd()), list[str]()

    async def notify(drainer: NodeStatus, tls: Tls | None) -> None:
        notified.append(drainer.node_id)

    for name, host, state in (
        ("drainer-1", "d:1", NodeState.ONLINE),
        ("audit", f"{READER}app:0", NodeState.READING),
        ("index", f"{READER}app:0", NodeState.PAUSED),
    ):
        status = NodeStatus(node_id=name, host=host, state=state, update_ts=7)
        registry.put(NodeKind.DRAINER, status)
    member = joined(registry)
    member.notify = member.notify_stopped = notify
    asyncio.run(member.join())
    assert notified == ["drainer-1"]
    assert member.state is NodeState.ONLINE


YEAR = 365 * 24 * 3600 * 1000 << LOGICAL_BITS


def listed(registry: Registry, update_ts: int = 7, state: str = "online") -> NodeStatus:
    status = NodeStatus(
        node_id="drainer-1", host="d:1", state=NodeState(state), update_ts=update_ts
    )
    registry.put(NodeKind.DRAINER, status)
    return status


def test_a_drainer_whose_heartbeat_looks_old_is_notified_all_the_same() -> None:
    # The cluster's clock may have jumped between its heartbeat and our look.
    registry, notified = Registry(MemoryEtcd()), list[str]()
    listed(registry)
    listed(registry, state="online")

    async def notify(drainer: NodeStatus, tls: Tls | None) -> None:
        notified.append(drainer.node_id)

    class Jumped(Parts):
        def now_ts(self) -> int:
            return YEAR

        async def next_ts(self) -> int:
            return YEAR

    member = joined(registry)
    member._clock = Jumped()  # type: ignore[assignment]
    member.notify = notify
    asyncio.run(member.join())
    assert notified == ["drainer-1"]


def test_a_drainer_that_is_not_reached_keeps_a_pump_from_joining_while_its_heart_beats(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(membership, "_AGAIN_S", 0)
    registry, beats, ticks = Registry(MemoryEtcd()), iter(range(8, 11)), itertools.count()
    listed(registry)

    async def notify(drainer: NodeStatus, tls: Tls | None) -> None:
        assert member.state is not NodeState.ONLINE
        listed(registry, next(beats, 10))
        raise Retryable("not reached", code=Code.DRAINER_NOT_NOTIFIED)

    member = joined(registry)
    member.watched = Heartbeats(clock=lambda: float(next(ticks)))
    member.notify = notify
    asyncio.run(member.join())
    assert list(beats) == []
    assert registry.silent() == {"drainer-1": 10}


def test_a_drainer_that_another_pump_found_silent_is_not_waited_for(
    caplog: pytest.LogCaptureFixture,
) -> None:
    registry = Registry(MemoryEtcd())
    registry.put_silent(listed(registry, YEAR))  # However fresh it looks.

    async def notify(drainer: NodeStatus, tls: Tls | None) -> None:
        raise AssertionError("asked one that is dead")

    member = joined(registry)
    member.notify = member.notify_stopped = notify
    with caplog.at_level("INFO"):
        asyncio.run(member.join())
    assert "drainer-1 is not running, not notified" in caplog.text
    assert not member.is_live(listed(registry, YEAR))
    assert member.is_live(listed(registry, 8))
