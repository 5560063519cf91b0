"""Copies: which disks have all of each Pump's log, as etcd lists them and as they are there.

A fault that deletes a disk asks here first. The adversary of promise 1 may take any disk but the
last whole one of a log. What etcd lists can be behind what Pumps do, but only in one direction
while the Pump is dead whose disk is to be deleted: it changes no list any more, and a list that
another Pump puts is headed by that one's disk, which has everything.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress

from penstock.cluster import etcd
from penstock.cluster.log_entry import LogEntries, LogEntry
from penstock.cluster.node_registry import NodeKind, NodeState, Registry
from pump.cluster.identity import has_disk_id, kept_disk_id
from tests.chaos.machine import Machine

_ANSWER_S = 5


def last_whole(logs: Mapping[str, LogEntry], disks: Mapping[str, str], pump: str) -> list[str]:
    """Return the logs of which only one disk has all, that of `pump`, or none.

    `disks` are the ids of those that are there, by the Pumps that have them.
    """
    others = {disk for owner, disk in disks.items() if owner != pump}
    return sorted(name for name, entry in logs.items() if not _whole(entry) & others)


class LogCopies:
    """The copies of all Pumps' logs; each question raises `Retryable` while etcd is away."""

    def __init__(self, etcd_url: str, machines: Mapping[str, Machine]) -> None:
        self._etcd_url, self._machines = etcd_url, machines

    def last_whole(self, pump: str) -> list[str]:
        """Return the logs of which no other disk has all than that of this Pump."""
        logs = {name: each for name, each in self.entries().items() if each is not None}
        return last_whole(logs, self._disks(), pump)

    def entries(self) -> dict[str, LogEntry | None]:
        with self._connected() as (entries, _):
            found = {name: entries.read(name) for name in self._machines}
        return {name: each and each[0] for name, each in found.items()}

    def problems(self) -> dict[str, str]:
        """Return what each log lacks until it is as it was: own disk, enough copies, online."""
        disks = self._disks()
        found = {}
        with self._connected() as (entries, registry):
            for name in self._machines:
                read, status = entries.read(name), registry.get(NodeKind.PUMP, name)
                if read is None:
                    found[name] = f"the log of {name} has no entry"
                    continue
                entry = read[0]
                listed = {entry.primary.disk, *(copy.disk for copy in entry.replicas)}
                whole = _whole(entry) & listed & set(disks.values())
                if entry.primary.disk != disks.get(name):
                    found[name] = f"{name} does not serve its log: {entry}"
                elif len(whole) < entry.copies:
                    found[name] = f"the log of {name} is not whole on {entry.copies} disks: {entry}"
                elif status is None or status.state is not NodeState.ONLINE:
                    found[name] = f"{name} is not online: {status}"
        return found

    def _disks(self) -> dict[str, str]:
        """Return the ids of the disks that are there, by the Pumps that have them."""
        found = {}
        for name, machine in self._machines.items():
            # A Pump may make its folder, or a fault delete it, just now.
            with suppress(FileNotFoundError):
                if has_disk_id(machine.folder):
                    found[name] = kept_disk_id(machine.folder)
        return found

    @contextmanager
    def _connected(self) -> Iterator[tuple[LogEntries, Registry]]:
        connection = etcd.connect(self._etcd_url, timeout_s=_ANSWER_S)
        try:
            yield LogEntries(connection), Registry(connection)
        finally:
            connection.close()


def _whole(entry: LogEntry) -> set[str]:
    copies = entry.copies_known
    return {copy.disk for copy in copies if entry.may_claim(copy.disk)}
