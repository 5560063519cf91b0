"""The registry's twin in memory."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from penstock.cluster.node_registry import NodeKind, NodeState, NodeStatus, Registry, Statuses
from penstock.cluster.records import Gap, LastWord, LostPump


class MemoryRegistry(Registry):
    """A registry shared by all who hold the same object; call-backs run in the writer's thread."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._cluster_id = secrets.randbits(63) | 1
        self._nodes: dict[tuple[NodeKind, str], NodeStatus] = {}
        self._gaps: dict[tuple[str, str], Gap] = {}
        self._lost: dict[str, LostPump] = {}
        self._words: dict[str, LastWord] = {}
        self._entered: dict[str, int] = {}
        self._runs: dict[str, str] = {}
        self._silent: dict[str, int] = {}
        self._watches: list[MemoryWatch] = []

    def cluster_id(self) -> int:
        return self._cluster_id

    def put(self, kind: NodeKind, status: NodeStatus) -> None:
        with self._lock:
            self._nodes[kind, status.node_id] = status
            self._notify(kind)

    def _notify(self, kind: NodeKind) -> None:
        for watch in list(self._watches):
            if watch.kind is kind:
                watch.on_change(self.list(kind))

    def get(self, kind: NodeKind, node_id: str) -> NodeStatus | None:
        with self._lock:
            return self._nodes.get((kind, node_id))

    def list(self, kind: NodeKind) -> Statuses:
        with self._lock:
            return [self._nodes[key] for key in sorted(self._nodes) if key[0] is kind]

    def standbys(self) -> Statuses:
        return []

    def put_gap(self, gap: Gap) -> None:
        with self._lock:
            self._gaps[gap.drainer, gap.pump] = gap

    def gaps(self, drainer: str) -> Sequence[Gap]:
        with self._lock:
            return [self._gaps[key] for key in sorted(self._gaps) if key[0] == drainer]

    def put_lost(self, lost: LostPump) -> None:
        with self._lock:
            self._lost[lost.pump] = lost

    def lost(self) -> Mapping[str, LostPump]:
        with self._lock:
            return dict(self._lost)

    def forget(self, kind: NodeKind, node_id: str) -> None:
        with self._lock:
            if self._nodes.pop((kind, node_id), None) is not None:
                self._notify(kind)

    def put_run(self, pump: str, run: str) -> None:
        self._runs[pump] = run

    def last_run(self, pump: str) -> str:
        return self._runs.get(pump, "")

    def put_entered(self, pump: str, ts: int) -> None:
        with self._lock:
            self._entered[pump] = ts

    def forget_entered(self, pump: str) -> None:
        with self._lock:
            self._entered.pop(pump, None)

    def entered(self) -> Mapping[str, int]:
        with self._lock:
            return dict(self._entered)

    def put_silent(self, drainer: NodeStatus) -> None:
        with self._lock:
            self._silent[drainer.node_id] = drainer.update_ts

    def silent(self) -> Mapping[str, int]:
        with self._lock:
            return dict(self._silent)

    def put_last_word(self, word: LastWord) -> None:
        with self._lock:
            self._words[word.pump] = word

    def forget_last_word(self, pump: str) -> None:
        with self._lock:
            self._words.pop(pump, None)

    def last_words(self) -> Mapping[str, LastWord]:
        with self._lock:
            return dict(self._words)

    def retire(self, status: NodeStatus, word: LastWord) -> bool:
        with self._lock:
            found = self._nodes.get((NodeKind.PUMP, status.node_id))
            if found != status or self._words.get(word.pump) != word:
                return False
            self._entered.pop(word.pump, None)
            self.put(NodeKind.PUMP, replace(status, state=NodeState.OFFLINE))
            return True

    def watch(self, kind: NodeKind, on_change: Callable[[Statuses], None]) -> MemoryWatch:
        with self._lock:
            watch = MemoryWatch(self, kind, on_change)
            self._watches.append(watch)
            on_change(self.list(kind))
            return watch

    def end_watch(self, watch: MemoryWatch) -> None:
        with self._lock:
            if watch in self._watches:
                self._watches.remove(watch)


class MemoryWatch:
    def __init__(
        self, registry: MemoryRegistry, kind: NodeKind, on_change: Callable[[Statuses], None]
    ) -> None:
        self._registry = registry
        self.kind = kind
        self.on_change = on_change

    def cancel(self) -> None:
        self._registry.end_watch(self)
