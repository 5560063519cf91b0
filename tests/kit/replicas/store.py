"""etcd's twin: one key that is swapped by its revision, and the status that goes with it."""

from __future__ import annotations

from penstock.cluster.log_entry import LogEntry


class Store:
    """Linearizable; what makes it hard to use is done by who carries its answers (`world.py`)."""

    def __init__(self, entry: LogEntry) -> None:
        self.revision = 1
        self.entry = entry
        self.history = [(entry, 1)]
        self.status = (0, 0)
        """The epoch and the machine that the log's address in etcd names."""

    def swap(self, revision: int, entry: LogEntry) -> int | None:
        """Put the entry if the key is still at `revision`; return its new one."""
        if revision != self.revision:
            return None
        return self.put(entry)

    def put(self, entry: LogEntry) -> int:
        self.revision += 1
        self.entry = entry
        self.history.append((entry, self.revision))
        return self.revision

    def put_back(self, entry: LogEntry, revision: int) -> None:
        """Be again as a backup was; revisions are handed out once more."""
        self.entry, self.revision = entry, revision
        self.history = [found for found in self.history if found[1] <= revision]
        self.status = (0, 0)

    def put_status(self, revision: int, status: tuple[int, int]) -> None:
        if revision == self.revision:
            self.status = status
