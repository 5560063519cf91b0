"""Log entry: the disks that have a Pump's log, the primary among them, and the epoch; all disks.

/penstock/v1/logs/<node id>   JSON, only for a log with more than one copy; never deleted

    {"epoch": 7, "primary": {"pump": "pump-1", "disk": "9f…"},
     "replicas": [{"pump": "pump-3", "disk": "a1…", "from": 12}], "eligible": [],
     "copies": 2, "copies_min": 2, "needed": 11, "since": 0, "ids": [11201423, 3340921],
     "mark": [12, 4096, 7, 3340921]}

Every change is a compare-and-swap on the key's revision (`LogEntries`), so the changes form one
line. This module knows which entry may follow which. It lists disks, never only Pumps, because a
machine that comes back with an empty disk is another disk. At any time, each disk in primary,
replicas and eligible has every acknowledged group from its `from` on, except in segments before
`needed`, which no Drainer lacks. So `from` at or below `needed` is a complete replica.

*Eligible* are disks that left the list and still have all of that. Nothing can have been
acknowledged without them, because fewer than `copies_min` disks are listed. The first list that is
long enough again empties it.

*Ids* make an epoch unique: each epoch gets a random number, which the headers of its segments also
have. An etcd that was restored from a backup issues epochs a second time. A segment whose id is not
the entry's for that epoch is of another history, and so is a segment of an epoch that the entry has
not reached. `ids` are those of the last epochs, the newest last. Entries of older Pumps have none.

The *mark* is a place up to which the log was acknowledged: in segment 12, up to offset 4096; epoch
7 with this id started that segment. Each disk in primary, replicas and eligible therefore has the
log up to there. A disk that ends before it was restored to an older state. The mark trails behind.

All disks that accept replicas are listed with their Pumps and addresses:

/penstock/v1/disks/<disk id>   JSON, with a lease: {"pump": "pump-3", "host": "10.0.0.3:8250",
                               "labels": {"zone": "b"}, "leaving": true,
                               "epoch_ids": true}

`leaving` is present while the Pump drains the replicas on the disk, before it ends: no new replica
goes to such a disk, and its replicas are replaced.

A disk's id never changes; its Pump's address may. When a Pump is gone, its disk vanishes from this
list with its lease, but leaves a log's entry only by a swap.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from penstock.cluster.etcd import EtcdClient, Lease, Watch, read_at, read_prefix, transact
from penstock.cluster.node_registry import Cancellable
from penstock.codes import Code
from penstock.errors import Malformed

LOGS = "/penstock/v1/logs/"
EPOCH_ID_BITS = 24
"""The bits that a segment's header has room for (`penstock/log/segment.py`)."""
IDS_MAX = 128
_HINT = "it is written by Pumps only; compare it with `penstock ctl pumps` before you correct it"


@dataclass(frozen=True, slots=True)
class Copy:
    """A disk with a log: its Pump, its id, and the first segment that it has."""

    pump: str
    disk: str
    first: int = 0


class Mark(NamedTuple):
    """A place in a log, and the epoch that started its segment."""

    segment: int
    offset: int
    epoch: int
    epoch_id: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class LogEntry:
    """One state of the list; its methods return the states that may follow it."""

    epoch: int
    primary: Copy
    replicas: tuple[Copy, ...] = ()
    eligible: tuple[Copy, ...] = ()
    copies: int = 2
    copies_min: int = 2
    needed: int = 0
    """The first segment that a Drainer lacks, or that an open transaction is in; may be behind."""
    since: int = 0
    """The epoch in which this log began; a disk with an earlier one has a former log."""
    ids: tuple[int, ...] = ()
    """The ids of the last epochs, that of `epoch` last; empty while Pumps without ids take part."""
    mark: Mark | None = None
    """Up to here at least the log is acknowledged; None in entries of older Pumps."""

    @property
    def may_acknowledge(self) -> bool:
        """True when enough disks are listed for anything to be acknowledged."""
        return 1 + len(self.replicas) >= self.copies_min

    @property
    def copies_known(self) -> tuple[Copy, ...]:
        return (self.primary, *self.replicas, *self.eligible)

    @property
    def id(self) -> int:
        """The id of the epoch; 0 for none."""
        return self.ids[-1] if self.ids else 0

    def id_of(self, epoch: int) -> int | None:
        at = epoch - self.epoch - 1 + len(self.ids)
        return self.ids[at] if 0 <= at < len(self.ids) else None

    def is_foreign(self, epoch: int, epoch_id: int) -> bool:
        """Return whether a segment of an epoch with this id is of another history than the entry.

        Epoch 0 is that of a log before it had copies.
        """
        known = self.id_of(epoch)
        return epoch > self.epoch or (known is not None and known != epoch_id)

    def replica(self, disk: str) -> Copy | None:
        return next((copy for copy in self.replicas if copy.disk == disk), None)

    def may_claim(self, disk: str) -> bool:
        """Return whether this disk may start the next epoch: primary or complete replica."""
        if disk == self.primary.disk:
            return True
        copies = (*self.replicas, *self.eligible)
        return any(copy.disk == disk and copy.first <= self.needed for copy in copies)

    def claimed(self, by: Copy) -> LogEntry:
        replicas = [copy for copy in self.replicas if copy.disk != by.disk]
        left = [] if by.disk == self.primary.disk else [replace(self.primary, first=self.needed)]
        return self._followed(replace(by, first=0), replicas, left)

    def without(self, disks: Iterable[str]) -> LogEntry:
        """Return the next epoch's entry, with these replicas removed from the list."""
        gone = set(disks)
        stay = [copy for copy in self.replicas if copy.disk not in gone]
        return self._followed(
            self.primary, stay, [copy for copy in self.replicas if copy.disk in gone]
        )

    def without_damaged(self, disks: Iterable[str]) -> LogEntry:
        """Return the next epoch's entry, with these disks neither listed nor eligible."""
        gone = set(disks)
        stay = [copy for copy in self.replicas if copy.disk not in gone]
        found = self._followed(self.primary, stay, [])
        eligible = tuple(copy for copy in found.eligible if copy.disk not in gone)
        return replace(found, eligible=eligible)

    def joined(self, copy: Copy) -> LogEntry:
        return self._followed(self.primary, [*self.replicas, copy], [])

    def extended(self, disk: str, first: int) -> LogEntry:
        """Return the entry with older segments added to a replica; the epoch is unchanged."""
        copies = (replace(c, first=first) if c.disk == disk else c for c in self.replicas)
        return replace(self, replicas=tuple(copies))

    def needing(self, segment: int) -> LogEntry:
        """Return the entry with segments before `segment` not needed; the epoch is unchanged."""
        return replace(self, needed=max(self.needed, segment))

    def marked(self, mark: Mark) -> LogEntry:
        """Return the entry with a later acknowledged position; the epoch is unchanged."""
        return replace(self, mark=mark)

    def asking(self, copies: int, copies_min: int) -> LogEntry:
        """Return the entry with other numbers of copies; the epoch stays.

        If it has enough to acknowledge now, it drops eligible disks, which would miss that data.
        """
        found = replace(self, copies=copies, copies_min=copies_min)
        return replace(found, eligible=()) if found.may_acknowledge else found

    def begun_again(self, by: Copy, copies: int, copies_min: int) -> LogEntry:
        """Return the entry of a new log of this name; valid only if no one needs the former log."""
        return LogEntry(
            epoch=self.epoch + 1,
            primary=by,
            copies=copies,
            copies_min=copies_min,
            since=self.epoch + 1,
            ids=self._next_ids(),
        )

    def with_ids(self) -> LogEntry:
        """Return the entry with an id for its epoch, which no segment has yet."""
        return self if self.ids else replace(self, ids=(_new_id(),))

    def _next_ids(self) -> tuple[int, ...]:
        return (*self.ids, _new_id())[-IDS_MAX:] if self.ids else ()

    def _followed(self, primary: Copy, replicas: list[Copy], left: list[Copy]) -> LogEntry:
        listed = {primary.disk, *(copy.disk for copy in replicas)}
        eligible = [copy for copy in (*self.eligible, *left) if copy.disk not in listed]
        found = replace(
            self,
            epoch=self.epoch + 1,
            primary=primary,
            replicas=tuple(replicas),
            eligible=(),
            ids=self._next_ids(),
        )
        return found if found.may_acknowledge else replace(found, eligible=tuple(eligible))

    def to_json(self) -> str:
        ids = {"ids": self.ids} if self.ids else {}
        mark = {} if self.mark is None else {"mark": self.mark}
        return json.dumps(
            {
                "epoch": self.epoch,
                "primary": {"pump": self.primary.pump, "disk": self.primary.disk},
                "replicas": [_copy_fields(copy) for copy in self.replicas],
                "eligible": [_copy_fields(copy) for copy in self.eligible],
                "copies": self.copies,
                "copies_min": self.copies_min,
                "needed": self.needed,
                "since": self.since,
                **ids,
                **mark,
            },
            ensure_ascii=False,
        )

    @classmethod
    def from_json(cls, key: str, text: str | bytes) -> LogEntry:
        try:
            fields = json.loads(text)
            entry = cls(
                epoch=_number(fields, "epoch"),
                primary=_copy({**fields["primary"], "from": 0}),
                replicas=tuple(map(_copy, fields["replicas"])),
                eligible=tuple(map(_copy, fields["eligible"])),
                copies=_number(fields, "copies"),
                copies_min=_number(fields, "copies_min"),
                needed=_number(fields, "needed"),
                since=_number({"since": 0, **fields}, "since"),
                ids=tuple(_number({"id": number}, "id") for number in fields.get("ids", ())),
                mark=_mark(fields["mark"]) if "mark" in fields else None,
            )
            disks = [c.disk for c in entry.copies_known]
            if len(set(disks)) < len(disks):
                raise ValueError("a disk is listed twice")
        except (ValueError, TypeError, KeyError) as error:
            problem = f"{key} is {text!r}: {error}"
            raise Malformed(problem, _HINT, Code.ETCD_VALUE) from error
        return entry


def _copy_fields(copy: Copy) -> dict[str, Any]:
    return {"pump": copy.pump, "disk": copy.disk, "from": copy.first}


def _copy(fields: Mapping[str, Any]) -> Copy:
    pump, disk = fields["pump"], fields["disk"]
    if not (isinstance(pump, str) and isinstance(disk, str) and disk):
        raise ValueError("a copy is named by its Pump and its disk")
    return Copy(pump, disk, _number(fields, "from"))


def _mark(numbers: Iterable[int]) -> Mark:
    return Mark(*(_number({"mark": number}, "mark") for number in numbers))


def _new_id() -> int:
    return secrets.randbelow((1 << EPOCH_ID_BITS) - 1) + 1


def _number(fields: Mapping[str, Any], name: str) -> int:
    value = fields[name]
    if type(value) is not int or value < 0:  # JSON's true is a Python int.
        raise ValueError(f"{name} is not a number")
    return value


Found = tuple[LogEntry, int]
"""An entry, and the revision at which it was put."""


class LogEntries:
    """The entries in etcd. Blocking, safe to share between threads; failures are Retryable."""

    def __init__(self, etcd: EtcdClient) -> None:
        self._etcd = etcd

    def read(self, node_id: str) -> Found | None:
        """Return an entry by a linearizable read; `Malformed` if it cannot be read."""
        key = LOGS + node_id
        value, _, revision = read_at(self._etcd, key)
        return None if value is None else (LogEntry.from_json(key, value), revision)

    def read_all(self) -> dict[str, LogEntry]:
        """Return all entries, by node id; `Malformed` if one cannot be read."""
        items, _ = read_prefix(self._etcd, LOGS)
        return _by_node_id(items)

    def swap(self, node_id: str, revision: int, entry: LogEntry) -> int | None:
        """Put the entry if the key is at `revision` (0: absent); return its new one, else None.

        After a Retryable it is unknown whether the entry was put, or will be. The module
        `pump/replication/protocol/replica.py` describes how to find out.
        """
        key, do = LOGS + node_id, self._etcd.transactions
        puts = [do.put(key, entry.to_json()), do.get(key)]
        is_put, answers = transact(self._etcd, [do.mod(key) == revision], puts)
        return int(answers[1][0][1].mod_revision) if is_put else None

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
    def from_json(cls, key: str, text: bytes) -> Disk:
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
