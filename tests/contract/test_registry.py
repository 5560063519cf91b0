"""What every registry promises, in memory and in etcd."""

import threading
from dataclasses import replace
from typing import Any

import pytest

from penstock.cluster.node_registry import (
    EntryGuard,
    NodeKind,
    NodeState,
    NodeStatus,
    Registry,
    Statuses,
)
from penstock.cluster.records import Gap, LastWord, LostPump
from penstock.errors import Retryable
from tests.kit.fakes.etcd import MemoryEtcd
from tests.kit.wait import eventually

PUMP = NodeKind.PUMP


@pytest.fixture(params=["memory", "etcd"])
def registry(request: pytest.FixtureRequest) -> Registry:
    if request.param == "memory":
        return Registry(MemoryEtcd())
    return Registry(request.getfixturevalue("etcd"))


def status(node_id: str, state: NodeState = NodeState.ONLINE, **more: Any) -> NodeStatus:
    return NodeStatus(node_id=node_id, host="127.0.0.1:8250", state=state, **more)


def test_a_status_reads_back_as_it_was_put(registry: Registry) -> None:
    put = status("a:1", NodeState.PAUSING, max_commit_ts=2**60, update_ts=5, score=3)
    registry.put(PUMP, put)
    assert registry.get(PUMP, "a:1") == put


def test_what_a_drainer_will_miss_is_kept_for_it_alone(registry: Registry) -> None:
    first = Gap(drainer="d", pump="a:1", after_ts=5, up_to_ts=2**60)
    second = Gap(drainer="d", pump="b:1", after_ts=6, up_to_ts=7)
    others = Gap(drainer="d/a", pump="a:1", after_ts=1, up_to_ts=2)
    for gap in (second, others, first):
        registry.put_gap(gap)
    assert list(registry.gaps("d")) == [first, second]
    assert list(registry.gaps("no one")) == []


def test_a_node_never_seen_is_none(registry: Registry) -> None:
    registry.put(PUMP, status("a:1"))
    assert registry.get(PUMP, "a") is None
    assert registry.get(NodeKind.DRAINER, "a:1") is None


def test_the_list_is_by_node_id_and_of_one_kind(registry: Registry) -> None:
    registry.put(PUMP, status("b:1"))
    registry.put(PUMP, status("a:1"))
    registry.put(NodeKind.DRAINER, status("c:1"))
    assert [s.node_id for s in registry.list(PUMP)] == ["a:1", "b:1"]
    assert [s.node_id for s in registry.list(NodeKind.DRAINER)] == ["c:1"]


def test_the_last_put_wins(registry: Registry) -> None:
    registry.put(PUMP, status("a:1"))
    registry.put(PUMP, status("a:1", NodeState.OFFLINE))
    assert [s.state for s in registry.list(PUMP)] == [NodeState.OFFLINE]


def test_a_node_that_is_forgotten_is_listed_no_longer(registry: Registry) -> None:
    registry.put(NodeKind.DRAINER, status("d"))
    registry.put(PUMP, status("d"))
    registry.forget(NodeKind.DRAINER, "d")
    registry.forget(NodeKind.DRAINER, "never seen")
    assert registry.list(NodeKind.DRAINER) == []
    assert [s.node_id for s in registry.list(PUMP)] == ["d"]


def test_when_a_pump_entered_is_known_until_it_leaves(registry: Registry) -> None:
    registry.put_entered("a:1", 2**60)
    registry.put_entered("b", 7)
    registry.put_entered("b", 8)
    assert registry.entered() == {"a:1": 2**60, "b": 8}
    registry.forget_entered("b")
    registry.forget_entered("b")
    assert registry.entered() == {"a:1": 2**60}


def test_a_last_word_is_there_until_it_is_withdrawn(registry: Registry) -> None:
    word = LastWord(pump="a:1", up_to_ts=2**60, open_count=1, made="today")
    registry.put_last_word(replace(word, up_to_ts=1))
    registry.put_last_word(word)
    assert registry.last_words() == {"a:1": word}
    registry.forget_last_word("a:1")
    registry.forget_last_word("a:1")
    assert registry.last_words() == {}


def test_a_stopped_pump_is_retired_only_if_it_was_not_heard_of_since(registry: Registry) -> None:
    word = LastWord(pump="a:1", up_to_ts=7, open_count=0, made="today")
    stopped = status("a:1", NodeState.PAUSED, update_ts=1)
    registry.put(PUMP, stopped)
    assert not registry.retire(stopped, word), "it has left no last word"
    registry.put_last_word(word)
    registry.put(PUMP, replace(stopped, update_ts=2))
    assert not registry.retire(stopped, word), "it was heard of"
    assert not registry.retire(replace(stopped, update_ts=2), replace(word, up_to_ts=6))
    assert [s.state for s in registry.list(PUMP)] == [NodeState.PAUSED]
    registry.put_entered("a:1", 5)
    assert registry.retire(replace(stopped, update_ts=2), word)
    assert registry.entered() == {}
    assert registry.list(PUMP) == [replace(stopped, state=NodeState.OFFLINE, update_ts=2)]


def test_everyone_gets_the_same_cluster_id(registry: Registry) -> None:
    found: list[int] = []
    threads = [
        threading.Thread(target=lambda: found.append(registry.cluster_id())) for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 8
    assert len(set(found)) == 1
    assert 0 < found[0] < 2**63


def test_a_watch_reports_what_is_there_before_it_returns(registry: Registry) -> None:
    registry.put(PUMP, status("a:1"))
    seen: list[Statuses] = []
    watch = registry.watch(PUMP, seen.append)
    assert seen == [[status("a:1")]]
    watch.cancel()


def test_a_watch_reports_each_change_of_its_kind_as_the_full_list(registry: Registry) -> None:
    seen: list[Statuses] = []
    watch = registry.watch(PUMP, seen.append)
    registry.put(NodeKind.DRAINER, status("d:1"))
    registry.put(PUMP, status("a:1"))
    registry.put(PUMP, status("b:1"))
    eventually(lambda: seen[-1] == [status("a:1"), status("b:1")])
    watch.cancel()
    assert all(s.node_id != "d:1" for statuses in seen for s in statuses)


def test_a_cancelled_watch_is_silent(registry: Registry) -> None:
    seen: list[Statuses] = []
    later: list[Statuses] = []
    registry.watch(PUMP, seen.append).cancel()
    watch = registry.watch(PUMP, later.append)
    registry.put(PUMP, status("a:1"))
    eventually(lambda: later[-1] == [status("a:1")])
    watch.cancel()
    assert seen == [[]]


def test_a_lost_pump_is_remembered_and_a_later_word_about_it_counts(registry: Registry) -> None:
    assert registry.lost() == {}
    first = LostPump(pump="p", after_ts=10, up_to_ts=20, made="2026-11-21T07:00:00Z")
    other = LostPump(pump="q", after_ts=1, up_to_ts=2, made="2026-11-21T07:00:00Z")
    registry.put_lost(first)
    registry.put_lost(other)
    again = replace(first, after_ts=5)
    registry.put_lost(again)
    assert registry.lost() == {"p": again, "q": other}


def test_a_status_is_put_only_by_who_has_the_log_however_often_its_list_changes(etcd: Any) -> None:
    etcd.put("/guarded", "first")
    seen = [etcd.get("/guarded")[1].mod_revision]
    etcd.put("/guarded", "changed by the one who puts")
    now = etcd.get("/guarded")[1].mod_revision
    # Its own change is heard of between the look and the transaction.
    answers = iter([*seen, now, now])
    guarded = Registry(etcd, guard=lambda: EntryGuard("/guarded", next(answers)))
    guarded.put(PUMP, status("a"))
    assert Registry(etcd).get(PUMP, "a") == status("a")
    etcd.put("/guarded", "changed by another one")
    deposed = Registry(etcd, guard=lambda: EntryGuard("/guarded", now))
    Registry(etcd).put_last_word(LastWord(pump="a", up_to_ts=1, open_count=0, made="now"))
    with pytest.raises(Retryable, match="the status of a is not published"):
        deposed.put(PUMP, status("a", NodeState.PAUSED))
    with pytest.raises(Retryable, match="the last word of a is not withdrawn"):
        deposed.forget_last_word("a")
    assert Registry(etcd).get(PUMP, "a") == status("a")
    assert "a" in Registry(etcd).last_words()
