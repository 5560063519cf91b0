"""An operator names the disk that continues a log."""

from typing import Any

import pytest

from penstock.cluster.log_entry import LOGS, Copy, LogEntries, LogEntry
from penstock.cluster.node_registry import NodeKind, NodeState, NodeStatus, Registry
from penstock.codes import Code
from penstock.ctl import lost, nodes
from penstock.ctl.commands import main
from penstock.errors import Retryable
from penstock.pb import penstock_pb2
from tests.kit.fakes.etcd import MemoryEtcd

COMMAND = (
    *("adopt-log", "pump-1", "--pump", "pump-2", "--disk", "d2", "--epoch", "5", "--from", "3"),
    *("--etcd-urls", "127.0.0.1:1"),
)
ENTRY = LogEntry(epoch=2, primary=Copy("pump-1", "d1"), replicas=(Copy("pump-3", "d3"),), ids=(7,))


class Client:
    def close(self) -> None:
        pass


@pytest.fixture
def entries(monkeypatch: pytest.MonkeyPatch) -> LogEntries:
    made, registry = LogEntries(MemoryEtcd()), Registry(MemoryEtcd())
    made.swap("pump-1", 0, ENTRY)
    registry.put(NodeKind.PUMP, NodeStatus(node_id="pump-1", host="h:1", state=NodeState.ONLINE))

    def no_answer(*asked: Any) -> None:
        raise Retryable("h:1: no one listens", code=Code.NODE_AWAY)

    monkeypatch.setattr("penstock.cluster.etcd.connect", lambda urls, tls: Client())
    monkeypatch.setattr(nodes, "Registry", lambda client: registry)
    monkeypatch.setattr(nodes, "LogEntries", lambda client: made)
    monkeypatch.setattr(lost, "call_pump", no_answer)
    return made


def entry_of(entries: LogEntries) -> LogEntry:
    found = entries.read("pump-1")
    assert found is not None
    return found[0]


def test_the_disk_that_is_named_is_the_only_one_of_the_log(entries: LogEntries) -> None:
    assert main([*COMMAND, "--confirm", "pump-1"]) == 0
    found = entry_of(entries)
    assert (found.epoch, found.primary, found.needed) == (5, Copy("pump-2", "d2"), 3)
    assert found.copies_known == (found.primary,)
    assert found.ids == ()


def test_a_log_without_an_entry_gets_one(entries: LogEntries) -> None:
    entries._etcd.delete(LOGS + "pump-1")
    assert main([*COMMAND, "--confirm", "pump-1"]) == 0
    assert entry_of(entries).epoch == 5


def test_nothing_is_changed_without_the_name_once_more(
    entries: LogEntries, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(COMMAND) == 2
    assert "add --confirm pump-1" in capsys.readouterr().err
    assert entry_of(entries) == ENTRY


def test_an_entry_that_is_newer_than_the_error_stays(
    entries: LogEntries, capsys: pytest.CaptureFixture[str]
) -> None:
    again = [*COMMAND[:7], "1", *COMMAND[8:], "--confirm", "pump-1"]
    assert main(again) == 2
    assert "etcd lists epoch 2 of the log of pump-1, which is newer than 1" in (
        capsys.readouterr().err
    )


def test_a_log_that_is_served_is_not_taken_from_its_pump(
    entries: LogEntries, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    reply = penstock_pb2.StatusReply(node_id="pump-1")
    monkeypatch.setattr(lost, "call_pump", lambda *asked: reply)
    assert main([*COMMAND, "--confirm", "pump-1"]) == 2
    assert "the log of pump-1 is served at h:1" in capsys.readouterr().err
    assert entry_of(entries) == ENTRY
