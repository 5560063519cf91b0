"""Disks: the registry in etcd of disks that accept replicas, with their Pumps and addresses.

/penstock/v1/disks/<disk id>   JSON, with a lease: {"pump": "pump-3", "host": "10.0.0.3:8250",
                               "labels": {"zone": "b"}, "leaving": true,
                               "epoch_ids": true}

`leaving` is present while the Pump drains the replicas on the disk, before it ends: no new replica
goes to such a disk, and its replicas are replaced.

A log's entry (`log_entry.py`) lists disks, whose ids never change; their Pumps' addresses change.
When a Pump is gone, its disk vanishes from here with its lease, but leaves an entry only by a swap.
"""

import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

from penstock.cluster.etcd import EtcdClient, Watch
from penstock.cluster.lease import Lease
from penstock.cluster.node_registry import Cancellable
from penstock.codes import Code
from penstock.errors import Malformed

DISKS = "/penstock/v1/disks/"
LEASE_S = 5
"""How long a disk stays listed after its Pump is gone."""


@dataclass(frozen=True, slots=True)
class Disk:
    """A disk whose Pump runs."""

    id: str
    pump: str
    host: str
    labels: Mapping[str, str] = field(default_factory=dict, hash=False)
    is_draining: bool = False
    """True while it drains: its replicas are replaced, and it gets no further replica."""
    knows_ids: bool = True
    """False for an older Pump, which accepts no segments with an epoch's id."""

    def to_json(self) -> str:
        fields: dict[str, Any] = {"pump": self.pump, "host": self.host, "labels": dict(self.labels)}
        fields |= {"leaving": True} if self.is_draining else {}
        fields |= {"epoch_ids": True} if self.knows_ids else {}
        return json.dumps(fields, ensure_ascii=False)

    @classmethod
    def from_json(cls, key: str, text: bytes) -> Self:
        """Parse the output of `to_json`; `Malformed` names the key."""
        try:
            fields = json.loads(text)
            pump, host, labels = fields["pump"], fields["host"], fields["labels"]
            if not (isinstance(pump, str) and isinstance(host, str) and isinstance(labels, dict)):
                raise TypeError("pump and host are texts, labels an object")
            is_draining = fields.get("leaving", False)
            knows_ids = fields.get("epoch_ids", False)
            if not (isinstance(is_draining, bool) and isinstance(knows_ids, bool)):
                raise TypeError("leaving and epoch_ids are true or false")
        except (ValueError, TypeError, KeyError) as error:
            raise Malformed(
                f"{key} is {text!r}: {error}",
                "delete it: its Pump writes it again",
                Code.ETCD_VALUE,
            ) from error
        return cls(key.removeprefix(DISKS), pump, host, labels, is_draining, knows_ids)


def watch_disks(etcd: EtcdClient, on_disks: Callable[[dict[str, Disk]], None]) -> Cancellable:
    """Call back with all disks, by id: once before this returns, then after each change.

    Later calls come from a thread of the watch. `Retryable` when etcd does not answer.
    """

    def on_items(items: dict[str, bytes]) -> None:
        disks = [Disk.from_json(key, text) for key, text in items.items()]
        on_disks({disk.id: disk for disk in disks})

    return Watch(etcd, DISKS, on_items)


class Offered:
    """A disk that is listed until this process exits or the offer is closed: its key has a lease.

    Blocking, safe to share between threads.
    """

    def __init__(self, etcd: EtcdClient, disk: Disk) -> None:
        self._etcd = etcd
        self._disk = disk
        self._lease: Lease | None = None
        self.renew()

    def renew(self) -> None:
        """Register the disk again if etcd dropped it; `Retryable` when etcd does not answer."""
        if self._lease is not None and not self._lease.is_lost():
            return
        lease = Lease(self._etcd, LEASE_S)
        try:
            lease.put(DISKS + self._disk.id, self._disk.to_json())
        except BaseException:
            lease.close()
            raise
        self._lease = lease

    def set_draining(self, is_draining: bool) -> None:
        """Register the disk as draining or staying; `Retryable` when etcd does not answer."""
        self._disk = replace(self._disk, is_draining=is_draining)
        if self._lease is None or self._lease.is_lost():
            self.renew()
        else:
            self._lease.put(DISKS + self._disk.id, self._disk.to_json())

    def close(self) -> None:
        if self._lease is not None:
            self._lease.close()


def spare_disk(
    disks: Iterable[Disk],
    taken: Sequence[str],
    *,
    barred: Collection[str] = (),
    apart: str = "",
    load: Mapping[str, int],
) -> Disk | None:
    """Return the disk for the next replica of a log, None when no disk is suitable.

    `taken` are the ids of the disks that keep the log, the primary's first; no disk in `barred`
    is chosen. With `apart`, the name of a label, no two of the log's disks may have the same value
    of it. `load` is the number of replicas on each disk. The disk with the fewest replicas is
    chosen, and among equals the next after the primary in the order of ids, so that neighbours do
    not all choose the same disk.
    """
    by_id = {disk.id: disk for disk in disks}
    pumps = {by_id[each].pump for each in taken if each in by_id}
    values = {by_id[each].labels.get(apart) for each in taken if each in by_id}
    found = [
        disk
        for disk in by_id.values()
        if disk.id not in taken
        and disk.id not in barred
        and disk.pump not in pumps
        and not (apart and (disk.labels.get(apart) is None or disk.labels[apart] in values))
    ]
    primary = taken[0] if taken else ""
    return min(found, key=lambda d: (load.get(d.id, 0), d.id < primary, d.id), default=None)
