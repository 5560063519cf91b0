"""Moves and drains of Pumps that do not run: what an operator is told to do."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from penstock.cluster.log_entry import Copy, LogEntry
from penstock.cluster.node_registry import NodeKind, NodeState, NodeStatus, Registry
from penstock.cluster.records import LastWord
from penstock.codes import Code
from penstock.ctl import nodes, steering
from penstock.ctl.commands import main
from penstock.errors import Retryable
from tests.kit.fakes.etcd import MemoryEtcd

NODE = NodeStatus(
    node_id="pump-1", host="127.0.0.1:1", state=NodeState.ONLINE, max_commit_ts=0, update_ts=0
)
ENTRY = LogEntry(epoch=3, primary=Copy("pump-2", "b"), replicas=(Copy("pump-3", "c"),))
Ctl = Callable[..., tuple[int, str]]


@dataclass
class World:
    """What etcd has."""

    registry: Registry = field(default_factory=lambda: Registry(MemoryEtcd()))
    logs: dict[str, LogEntry] = field(default_factory=dict)

    def has(self, state: NodeState, node_id: str = "pump-1") -> None:
        self.registry.put(NodeKind.PUMP, replace(NODE, node_id=node_id, state=state))


class Entries:
    def __init__(self, world: World) -> None:
        self._world = world

    def read(self, node_id: str) -> None:
        return None

    def read_all(self) -> Mapping[str, LogEntry]:
        return self._world.logs


class Client:
    def close(self) -> None:
        pass


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    made = World()

    def no_answer(*asked: Any) -> None:
        raise Retryable("127.0.0.1:1: UNAVAILABLE: no one listens", code=Code.NODE_AWAY)

    monkeypatch.setattr("penstock.cluster.etcd.connect", lambda urls, tls: Client())
    monkeypatch.setattr(nodes, "Registry", lambda client: made.registry)
    monkeypatch.setattr(nodes, "LogEntries", lambda client: Entries(made))
    monkeypatch.setattr(steering, "call_pump", no_answer)
    return made


@pytest.fixture
def ctl(world: World, capsys: pytest.CaptureFixture[str]) -> Ctl:
    def run(*words: str) -> tuple[int, str]:
        code = main([*words, "--etcd-urls=127.0.0.1:1"])
        printed = capsys.readouterr()
        return code, printed.out + printed.err

    return run


def stopped(world: World) -> None:
    world.has(NodeState.PAUSED)
    word = LastWord(pump="pump-1", up_to_ts=7, open_count=0, made="2026-11-22T10:00:00+00:00")
    world.registry.put_last_word(word)


@pytest.mark.parametrize(
    ("state", "said"),
    [
        (NodeState.ONLINE, "the log of one that is dead is taken over"),
        (NodeState.PAUSED, "the log of one that is dead is taken over"),
        (NodeState.OFFLINE, "it is offline, and every Drainer has all of its log"),
    ],
)
def test_a_log_whose_pump_does_not_answer_is_not_moved(
    world: World, ctl: Ctl, state: NodeState, said: str
) -> None:
    world.has(state)
    code, printed = ctl("move-log", "pump-1")
    assert code == 1
    assert said in printed


def test_the_log_of_a_pump_that_was_stopped_is_not_said_to_be_taken_over(
    world: World, ctl: Ctl
) -> None:
    stopped(world)
    code, printed = ctl("move-log", "pump-1")
    assert code == 1
    assert "one that was stopped is not taken over: start it, and move its log once" in printed


def test_a_pump_that_was_stopped_is_started_before_it_is_drained(world: World, ctl: Ctl) -> None:
    stopped(world)
    code, printed = ctl("drain", "pump-1", "--wait")
    assert code == 2
    assert "pump-1 is paused (start it, then drain it" in printed


@pytest.mark.parametrize(
    "logs",
    [{}, {"pump-2": ENTRY}, {"pump-1": replace(ENTRY, primary=Copy("pump-1", "a"))}],
    ids=["no copies", "copies elsewhere", "its own log"],
)
def test_an_offline_pump_is_drained_already(
    world: World, ctl: Ctl, logs: Mapping[str, LogEntry]
) -> None:
    world.has(NodeState.OFFLINE)
    world.logs.update(logs)
    code, printed = ctl("drain", "pump-1", "--wait")
    assert (code, "its machine can be switched off" in printed) == (0, True), printed


@pytest.mark.parametrize(
    "entry",
    [
        replace(ENTRY, primary=Copy("pump-1", "a")),
        replace(ENTRY, replicas=(Copy("pump-1", "a"),)),
        replace(ENTRY, replicas=(), eligible=(Copy("pump-1", "a"),)),
    ],
    ids=["primary", "replica", "eligible"],
)
def test_an_offline_pump_whose_disk_is_listed_has_to_be_started(
    world: World, ctl: Ctl, entry: LogEntry
) -> None:
    world.has(NodeState.OFFLINE)
    world.has(NodeState.ONLINE, "pump-2")
    world.logs["pump-2"] = entry
    code, printed = ctl("drain", "pump-1")
    assert code == 2
    assert "pump-1 is offline, and etcd lists its disk for the log of pump-2 (start it" in printed
    world.has(NodeState.OFFLINE, "pump-2")
    assert ctl("drain", "pump-1")[0] == 0
