"""The entries of logs in memory."""

from __future__ import annotations

import threading
from collections.abc import Callable

from penstock.cluster.log_entry import Found, LogEntries, LogEntry


class MemoryLogEntries(LogEntries):
    """Entries shared by all who hold the same object; call-backs run in the writer's thread."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._revision = 1
        self._found: dict[str, Found] = {}
        self._watches: list[MemoryWatch] = []

    @property
    def watched(self) -> int:
        """How many watch now."""
        return len(self._watches)

    def read(self, node_id: str) -> Found | None:
        with self._lock:
            return self._found.get(node_id)

    def swap(self, node_id: str, revision: int, entry: LogEntry) -> int | None:
        with self._lock:
            found = self._found.get(node_id)
            if revision != (0 if found is None else found[1]):
                return None
            self._revision += 1
            self._found[node_id] = (entry, self._revision)
            for watch in list(self._watches):
                if watch.node_id == node_id:
                    watch.on_change()
            return self._revision

    def watch(self, node_id: str, on_change: Callable[[], None]) -> MemoryWatch:
        with self._lock:
            watch = MemoryWatch(self._watches, node_id, on_change)
            self._watches.append(watch)
            on_change()
            return watch


class MemoryWatch:
    def __init__(
        self, watches: list[MemoryWatch], node_id: str, on_change: Callable[[], None]
    ) -> None:
        self._watches = watches
        self.node_id = node_id
        self.on_change = on_change

    def cancel(self) -> None:
        if self in self._watches:
            self._watches.remove(self)
