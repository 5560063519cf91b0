"""What the entries of logs promise, in memory and in etcd."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from penstock.cluster.etcd import connect
from penstock.cluster.log_entry import LOGS, Copy, LogEntries, LogEntry
from penstock.errors import Malformed, Retryable
from tests.kit.fakes.etcd import MemoryEtcd
from tests.kit.wait import eventually, present

A, B = Copy("pump-a", "disk-a"), Copy("pump-b", "disk-b")
FIRST = LogEntry(epoch=1, primary=A)


@pytest.fixture(params=["memory", "etcd"])
def entries(request: pytest.FixtureRequest) -> LogEntries:
    if request.param == "memory":
        return LogEntries(MemoryEtcd())
    return LogEntries(request.getfixturevalue("etcd"))


def test_a_log_with_one_copy_has_no_entry(entries: LogEntries) -> None:
    assert entries.read("pump-a") is None


def test_an_entry_reads_back_with_the_revision_of_its_swap(entries: LogEntries) -> None:
    made = present(entries.swap("pump-a", 0, FIRST))
    assert entries.read("pump-a") == (FIRST, made)
    assert entries.swap("pump-b", 0, FIRST.claimed(B)) is not None
    assert entries.read("pump-a") == (FIRST, made)
    changed = present(entries.swap("pump-a", made, FIRST.joined(B)))
    assert changed > made
    assert entries.read("pump-a") == (FIRST.joined(B), changed)


def test_a_swap_from_another_revision_changes_nothing(entries: LogEntries) -> None:
    assert entries.swap("pump-a", 1, FIRST) is None
    made = present(entries.swap("pump-a", 0, FIRST))
    assert entries.swap("pump-a", 0, FIRST.joined(B)) is None
    second = entries.swap("pump-a", made, FIRST.joined(B))
    assert entries.swap("pump-a", made, FIRST) is None
    assert entries.read("pump-a") == (FIRST.joined(B), second)


def test_of_many_swaps_from_one_revision_one_wins(entries: LogEntries) -> None:
    revision = 0
    for epoch in range(1, 6):
        rivals = [LogEntry(epoch=epoch, primary=Copy(f"pump-{n}", f"disk-{n}")) for n in range(8)]
        begin = threading.Barrier(len(rivals))

        def attempt(
            entry: LogEntry, before: int = revision, begin: threading.Barrier = begin
        ) -> int | None:
            begin.wait()
            return entries.swap("pump-a", before, entry)

        with ThreadPoolExecutor(len(rivals)) as threads:
            answers = list(threads.map(attempt, rivals))
        won = [n for n, answer in enumerate(answers) if answer is not None]
        assert len(won) == 1
        found = entries.read("pump-a")
        assert found == (rivals[won[0]], answers[won[0]])
        revision = found[1]


def test_a_watch_says_when_it_is_time_to_read(entries: LogEntries) -> None:
    seen = []
    watch = entries.watch("pump-a", lambda: seen.append(entries.read("pump-a")))
    assert seen == [None]
    made = entries.swap("pump-a", 0, FIRST)
    eventually(lambda: seen[-1] == (FIRST, made))
    watch.cancel()
    assert made is not None
    entries.swap("pump-a", made, FIRST.joined(B))
    assert seen[-1] == (FIRST, made)


def test_a_value_that_no_pump_wrote_is_named(etcd: object) -> None:
    etcd.put(LOGS + "pump-a", "{}")  # type: ignore[attr-defined]
    with pytest.raises(Malformed, match="/penstock/v1/logs/pump-a"):
        LogEntries(etcd).read("pump-a")


def test_an_etcd_that_is_away_is_retryable() -> None:
    away = LogEntries(connect("127.0.0.1:1", timeout_s=0.2))
    with pytest.raises(Retryable):
        away.read("pump-a")
    with pytest.raises(Retryable):
        away.swap("pump-a", 0, FIRST)
