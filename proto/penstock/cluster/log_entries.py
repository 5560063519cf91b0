"""Log entries in etcd: read, changed by compare-and-swap, and watched.

The keys are those of `log_entry.py`. A change names the revision at which the key was last changed,
0 for a new key. etcd compares and puts in one step, so at most one of two changes that name the
same revision wins. When no answer comes, the swap may have won or may still win:
`pump/replication/protocol/claim.py` describes how to find out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from penstock.cluster.etcd import EtcdClient, Watch, etcd_errors, read_prefix
from penstock.cluster.log_entry import LOGS, LogEntry
from penstock.cluster.node_registry import Cancellable
from penstock.pb.etcd import rpc_pb2

Found = tuple[LogEntry, int]
"""An entry, and the revision at which it was put."""


class LogEntries(Protocol):
    """The interface between the replicas of a log and the place where they are listed."""

    def read(self, node_id: str) -> Found | None:
        """Return the entry written by the last successful swap, None if there was none."""

    def swap(self, node_id: str, revision: int, entry: LogEntry) -> int | None:
        """Put the entry if the key is at `revision` (0: absent); return its new one, else None.

        After a Retryable it is unknown whether the entry was put, or will be.
        """

    def watch(self, node_id: str, on_change: Callable[[], None]) -> Cancellable:
        """Call back when a read is due: once before this returns, then after changes."""


class EtcdLogEntries:
    """The entries in etcd. Blocking, safe to share between threads; failures are Retryable."""

    def __init__(self, etcd: EtcdClient) -> None:
        self._etcd = etcd

    def read(self, node_id: str) -> Found | None:
        """Return an entry by a linearizable read; `Malformed` if it cannot be read."""
        key = LOGS + node_id
        with etcd_errors(self._etcd):
            answer = self._etcd.kvstub.Range(
                rpc_pb2.RangeRequest(key=key.encode()),
                self._etcd.timeout,
                metadata=self._etcd.metadata,
            )
        if not answer.kvs:
            return None
        (found,) = answer.kvs
        return LogEntry.from_json(key, found.value), int(found.mod_revision)

    def read_all(self) -> dict[str, LogEntry]:
        """Return all entries, by node id; `Malformed` if one cannot be read."""
        items, _ = read_prefix(self._etcd, LOGS)
        return _by_node_id(items)

    def swap(self, node_id: str, revision: int, entry: LogEntry) -> int | None:
        """Put the entry if the key is at `revision` (0: absent); return the new one, else None."""
        key = (LOGS + node_id).encode()
        compare = rpc_pb2.Compare(
            result=rpc_pb2.Compare.EQUAL,
            target=rpc_pb2.Compare.MOD,
            key=key,
            mod_revision=revision,
        )
        put = rpc_pb2.PutRequest(key=key, value=entry.to_json().encode())
        request = rpc_pb2.TxnRequest(
            compare=[compare], success=[rpc_pb2.RequestOp(request_put=put)]
        )
        with etcd_errors(self._etcd):
            answer = self._etcd.kvstub.Txn(
                request, self._etcd.timeout, metadata=self._etcd.metadata
            )
        return int(answer.header.revision) if answer.succeeded else None

    def watch(self, node_id: str, on_change: Callable[[], None]) -> Cancellable:
        """Call back when a read is due: once before this returns, and after changes.

        Later calls come from a thread of the watch; an outage of etcd delays them and loses none.
        Keys that start with this key count as well, which only costs a read.
        """
        return Watch(self._etcd, LOGS + node_id, lambda items: on_change())

    def watch_all(self, on_entries: Callable[[dict[str, LogEntry]], None]) -> Cancellable:
        """Call back with all entries, by node id: once before this returns, then after changes."""
        return Watch(self._etcd, LOGS, lambda items: on_entries(_by_node_id(items)))


def _by_node_id(items: Mapping[str, bytes]) -> dict[str, LogEntry]:
    found = {key: LogEntry.from_json(key, text) for key, text in items.items()}
    return {key.removeprefix(LOGS): entry for key, entry in found.items()}
