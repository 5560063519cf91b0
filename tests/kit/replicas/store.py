"""etcd with the entry of one log, and the status that names the log's address."""

from penstock.cluster.log_entry import LOGS, Found, LogEntries, LogEntry
from penstock.cluster.node_registry import EntryGuard, NodeKind, NodeState, NodeStatus, Registry
from tests.kit.fakes.etcd import Kv, MemoryEtcd, Snapshot

LOG = "pump-0"
KEY = LOGS + LOG


class Store(MemoryEtcd):
    """What makes it hard to use is done by who carries its answers (`world.py`)."""

    def __init__(self, entry: LogEntry) -> None:
        super().__init__()
        self._entries = LogEntries(self)
        self.history: list[Found] = []
        self.put_entry(entry)

    @property
    def entry(self) -> LogEntry:
        return self.history[-1][0]

    @property
    def entry_revision(self) -> int:
        return self.history[-1][1]

    def swap(self, revision: int, entry: LogEntry) -> int | None:
        """Put the entry if the key is still at `revision`; return its new one."""
        won = self._entries.swap(LOG, revision, entry)
        self._note()
        return won

    def put_entry(self, entry: LogEntry) -> None:
        self.put_by_hand(KEY, entry.to_json())
        self._note()

    def _note(self) -> None:
        found = self._entries.read(LOG)
        if found is not None and (not self.history or found[1] != self.entry_revision):
            self.history.append(found)

    def put_entry_back(self, entry: LogEntry, revision: int) -> None:
        """Be again as a backup was, without a status."""
        kv = Kv(KEY.encode(), entry.to_json().encode(), revision, revision, 0)
        self.put_back(Snapshot(revision, {KEY: kv}))
        self.history = [found for found in self.history if found[1] <= revision]

    def status_epoch(self) -> int:
        """Return the epoch whose primary the log's address in etcd names."""
        status = Registry(self).get(NodeKind.PUMP, LOG)
        return 0 if status is None else status.score

    def put_status(self, revision: int, epoch: int, machine: int) -> None:
        """Publish an address while the entry is at `revision`, else raise `Retryable`."""
        registry = Registry(self, lambda: EntryGuard(KEY, revision))
        host, state = f"pump-{machine}", NodeState.ONLINE
        registry.put(NodeKind.PUMP, NodeStatus(node_id=LOG, host=host, state=state, score=epoch))
