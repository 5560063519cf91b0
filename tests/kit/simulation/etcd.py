"""etcd's twin: entries of logs, states of Pumps, last words; its answers are lost or come late.

Who calls waits for the network. A call may be lost before or after it was carried out, and one
that was given up may be carried out later.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import NamedTuple, TypeVar

from penstock.cluster.log_entry import Found, LogEntries, LogEntry
from penstock.cluster.node_registry import NodeState
from penstock.cluster.records import LastWord
from penstock.codes import Code
from penstock.errors import Retryable
from tests.kit.simulation.tasks import Tasks

T = TypeVar("T")

LATE_S = 3.0


class Status(NamedTuple):
    """What a Pump has put last: its state, and which process it is."""

    state: NodeState
    process: str
    epoch: int
    max_commit_ts: int


class Snapshot(NamedTuple):
    """A backup of everything in etcd."""

    at_s: float
    revision: int
    logs: dict[str, Found]
    history: dict[str, list[LogEntry]]
    statuses: dict[str, Status]
    last_words: dict[str, LastWord]
    entered: dict[str, int]


class Etcd(LogEntries):
    def __init__(self, tasks: Tasks, chance: random.Random) -> None:
        self._tasks = tasks
        self._chance = chance
        self.failing = 0.0
        """How many of the calls get no answer."""
        self._revision = 1
        self.logs: dict[str, Found] = {}
        self.history: dict[str, list[LogEntry]] = {}
        self.proposed: list[tuple[str, int, LogEntry]] = []
        """Swaps that were asked for and may win yet, with the revision that they are from."""
        self.statuses: dict[str, Status] = {}
        self.last_words: dict[str, LastWord] = {}
        self.entered: dict[str, int] = {}
        self.compares_for_status = True
        self.went_back = ""
        """Which status named the primary of an earlier epoch than the one before it."""
        self._watches: list[_Watch] = []
        self.on_swap: Callable[[str, LogEntry], object] = lambda node_id, entry: None
        """Hears of each entry of a log."""
        self._generation = 0

    def snapshot(self) -> Snapshot:
        """Return a backup."""
        history = {name: list(entries) for name, entries in self.history.items()}
        found = (dict(self.statuses), dict(self.last_words), dict(self.entered))
        return Snapshot(self._tasks.now_s, self._revision, dict(self.logs), history, *found)

    def put_back(self, snapshot: Snapshot) -> None:
        """Be again as a backup was; revisions are handed out once more, and no call comes late."""
        self._generation += 1
        self._revision = snapshot.revision
        self.logs = dict(snapshot.logs)
        self.history = {name: list(entries) for name, entries in snapshot.history.items()}
        self.statuses, self.entered = dict(snapshot.statuses), dict(snapshot.entered)
        self.last_words = dict(snapshot.last_words)
        self.proposed.clear()
        self._watches.clear()

    def put(self, node_id: str, entry: LogEntry) -> None:
        """Put an entry, as an operator does."""
        found = self.logs.get(node_id)
        self._swapped(node_id, 0 if found is None else found[1], entry)

    def call(self, work: Callable[[], T], *, may_be_late: bool = False) -> T:
        """Do something in etcd; raise `Retryable` when no answer comes."""
        self._tasks.sleep(self._chance.uniform(0.0005, 0.005))
        fails = self._chance.random() < self.failing
        how = self._chance.random()
        if fails and how < 0.4:
            if how < 0.2 and may_be_late:
                generation = self._generation
                self._tasks.later(
                    self._chance.uniform(0.0, LATE_S),
                    lambda: work() if generation == self._generation else None,
                )
            self._tasks.sleep(0.5)
            raise Retryable("etcd does not answer", code=Code.ETCD_AWAY)
        done = work()
        self._tasks.sleep(self._chance.uniform(0.0005, 0.005))
        if fails:
            raise Retryable("etcd does not answer", code=Code.ETCD_AWAY)
        return done

    # `LogEntries`.

    def read(self, node_id: str) -> Found | None:
        return self.call(lambda: self.logs.get(node_id))

    def swap(self, node_id: str, revision: int, entry: LogEntry) -> int | None:
        self.proposed.append((node_id, revision, entry))
        return self.call(lambda: self._swapped(node_id, revision, entry), may_be_late=True)

    def watch(self, node_id: str, on_change: Callable[[], None]) -> _Watch:
        watch = _Watch(node_id, on_change)
        self._watches.append(watch)
        on_change()
        return watch

    def _swapped(self, node_id: str, revision: int, entry: LogEntry) -> int | None:
        found = self.logs.get(node_id)
        if revision != (0 if found is None else found[1]):
            return None
        self._revision += 1
        self.logs[node_id] = (entry, self._revision)
        self.history.setdefault(node_id, []).append(entry)
        self.on_swap(node_id, entry)
        self.proposed = [each for each in self.proposed if each[0] != node_id]
        for watch in [each for each in self._watches if each.node_id == node_id]:
            if not watch.is_cancelled:
                self._tasks.later(self._chance.choice((0.001, 0.01, 1.0)), watch.changed)
        self._watches = [each for each in self._watches if not each.is_cancelled]
        return self._revision

    def possible(self, node_id: str) -> list[LogEntry]:
        """Return the entry of a log, and those that may follow it without being asked for again."""
        found = self.logs.get(node_id)
        if found is None:
            return []
        return [found[0], *(e for n, r, e in self.proposed if (n, r) == (node_id, found[1]))]

    def seen(self, node_id: str) -> LogEntry | None:
        """Return what one sees who watches, which may be behind."""
        known = self.history.get(node_id)
        return self._chance.choice(known[-2:]) if known else None

    # Pumps.

    def put_status(self, name: str, status: Status, revision: int | None) -> None:
        """Publish a status while the log's entry is at `revision`, else raise `Retryable`."""

        def put() -> bool:
            found = self.logs.get(name)
            is_ours = found is None or revision is None or found[1] == revision
            is_put = is_ours or not self.compares_for_status
            if is_put:
                before = self.statuses.get(name)
                if before is not None and status.epoch < before.epoch:
                    self.went_back = f"{status} after {before}"
                self.statuses[name] = status
            return is_put

        if not self.call(put, may_be_late=True):
            raise Retryable("the entry of the log has changed", code=Code.LOG_DEPOSED)

    def put_last_word(self, word: LastWord) -> None:
        self.call(lambda: self.last_words.__setitem__(word.pump, word))

    def forget_last_word(self, name: str) -> None:
        self.call(lambda: self.last_words.pop(name, None))

    def enter(self, name: str, ts: int) -> None:
        self.call(lambda: self.entered.setdefault(name, ts))

    def forget_entered(self, name: str) -> None:
        self.call(lambda: self.entered.pop(name, None))


class _Watch:
    def __init__(self, node_id: str, on_change: Callable[[], None]) -> None:
        self.node_id = node_id
        self._on_change = on_change
        self.is_cancelled = False

    def changed(self) -> None:
        if not self.is_cancelled:
            self._on_change()

    def cancel(self) -> None:
        self.is_cancelled = True
