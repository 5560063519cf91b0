"""etcd whose answers are lost or come late, whose watches lag, and which is put back.

Who calls waits for the network. A call may be lost before or after it was carried out, and a
transaction that was given up may be carried out later.
"""

import contextlib
import random
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, TypeVar

from penstock.cluster.log_entry import LOGS, Found, LogEntries, LogEntry
from penstock.cluster.node_registry import ROOT, NodeKind, NodeStatus, Registry
from penstock.codes import Code
from penstock.errors import Retryable
from tests.kit.fakes.etcd import MemoryEtcd, MemoryWatch, Snapshot
from tests.kit.simulation.tasks import Tasks

T = TypeVar("T")

LATE_S = 3.0
_entry_of = lru_cache(LogEntry.from_json)
_status_of = lru_cache(NodeStatus.from_json)
_PUMPS = f"{ROOT}/{NodeKind.PUMP}/"


class Etcd(MemoryEtcd):
    """The registry publishes Pumps by their process, as `host`, and their epoch, as `score`."""

    def __init__(self, tasks: Tasks, chance: random.Random) -> None:
        super().__init__()
        self.lock: Any = contextlib.nullcontext()  # One task runs at a time.
        self._tasks = tasks
        self._chance = chance
        self.failing = 0.0
        """How many of the calls get no answer."""
        self.watch_late_s = 1.0
        self.entries = Entries(self)
        self.registry = Registry(self)
        self._peeked = MemoryEtcd()
        self._peeked.keys = self.keys
        self.known = Registry(self._peeked)
        """The registry for one who sees everything without a call."""
        self.history: dict[str, list[Found]] = {}
        self.proposed: list[tuple[str, int, LogEntry]] = []
        """Swaps that were asked for and may win yet, with the revision that they are from."""
        self.went_back = ""
        """Which status named the primary of an earlier epoch than the one before it."""
        self.on_swap: Callable[[str, LogEntry], object] = lambda node_id, entry: None
        """Hears of each entry of a log."""
        self._generation = 0

    @property
    def logs(self) -> dict[str, Found]:
        """The entries, without a call."""
        kvs = [(kv.key.decode(), kv) for kv in self.below(LOGS)]
        return {k[len(LOGS) :]: (_entry_of(k, kv.value), kv.mod_revision) for k, kv in kvs}

    @property
    def statuses(self) -> dict[str, NodeStatus]:
        """What Pumps have put last, without a call."""
        found = (_status_of(kv.value) for kv in self.below(_PUMPS))
        return {status.node_id: status for status in found}

    def put_back(self, snapshot: Snapshot) -> None:
        """Be again as a backup was; no call comes late."""
        super().put_back(snapshot)
        self._generation += 1
        self._peeked.keys = self.keys
        for name, found in self.history.items():
            self.history[name] = [each for each in found if each[1] <= snapshot.revision]
        self.proposed.clear()

    def put_entry(self, node_id: str, entry: LogEntry) -> None:
        self.put_by_hand(LOGS + node_id, entry.to_json())

    def enter(self, name: str, ts: int) -> None:
        """Say from where a Pump has entered, unless that is known."""
        if name not in self.known.entered():
            self.registry.put_entered(name, ts)

    def call(self, work: Callable[[], T], *, may_be_late: bool = False) -> T:
        """Answer a call; raise `Retryable` when no answer comes."""
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

    def possible(self, node_id: str) -> list[LogEntry]:
        """Return the entry of a log, and those that may follow it without being asked for again."""
        found = self.logs.get(node_id)
        if found is None:
            return []
        return [found[0], *(e for n, r, e in self.proposed if (n, r) == (node_id, found[1]))]

    def seen(self, node_id: str) -> LogEntry | None:
        known = self.history.get(node_id)
        return self._chance.choice(known[-2:])[0] if known else None

    def notify(self, watch: MemoryWatch) -> None:
        self._tasks.later(self._chance.choice((0.001, 0.01, self.watch_late_s)), watch.call_back)

    def _apply(self, operations: Sequence[Any]) -> list[Any]:
        before = self.statuses
        answers = super()._apply(operations)
        for key in {each.key for each in operations}:
            if key.startswith(_PUMPS):
                name = key.removeprefix(_PUMPS)
                status = self.statuses[name]
                if name in before and status.score < before[name].score:
                    self.went_back = f"{status} after {before[name]}"
            elif key.startswith(LOGS) and self.keys[key].mod_revision == self.revision:
                name = key.removeprefix(LOGS)
                entry, revision = self.logs[name]
                self.history.setdefault(name, []).append((entry, revision))
                self.on_swap(name, entry)
                self.proposed = [each for each in self.proposed if each[0] != name]
        return answers


class Entries(LogEntries):
    """Notes which swaps are under way."""

    def __init__(self, etcd: Etcd) -> None:
        super().__init__(etcd)
        self._proposed_in = etcd

    def swap(self, node_id: str, revision: int, entry: LogEntry) -> int | None:
        self._proposed_in.proposed.append((node_id, revision, entry))
        return super().swap(node_id, revision, entry)
