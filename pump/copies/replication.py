"""Replication: a Pump's part in the copies of logs, from its start to its end.

    start ── disk offered, copies of other logs taken ── own log claimed ── shipped ── whole ── …
                                                              └─ displaced: waits, then begins again

A Pump takes copies before it serves its own log: when all are started at once, each one's log needs
another one's disk. The one that is started on a log that was taken over only ships that log: the
disk is its parent's, who offers it.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from collections import Counter
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from penstock import failpoints
from penstock.cluster.disks import Disk, EtcdDisks, Offered
from penstock.cluster.etcd import EtcdClient
from penstock.cluster.log_entries import EtcdLogEntries
from penstock.cluster.log_entry import Copy, LogEntry
from penstock.cluster.node_registry import Cancellable, NodeKind, NodeState, Registry
from penstock.errors import PenstockError
from penstock.log.files import OsFiles, sync_folder
from penstock.log.segments import begin_log
from penstock.security.tls import Tls
from pump.cluster.identity import Identity, has_disk_id, kept_disk_id
from pump.cluster.membership import Membership
from pump.config import PumpConfig
from pump.copies.claiming import Claimed, Displaced, Former, Wanted, begin_again, claim
from pump.copies.followed_logs import Copies
from pump.copies.shipper import Lines
from pump.copies.shipping import Recruits, Shipping
from pump.copies.takeover import Surroundings, TakeOvers, command_of
from pump.replicas.chain import Chain, Link
from pump.store.storage import Storage

log = logging.getLogger(__name__)
_set_aside = failpoints.point("copies.set_aside")

_DISPLACED_FOLDER = "displaced"
_LOOK_EVERY_S = 2.0


class Cluster(NamedTuple):
    """Where the copies of a log are listed, and how other Pumps are reached."""

    etcd: EtcdClient
    cluster_id: int
    tls: Tls | None


class Replication:
    """What a Pump has beside its own storage; with one copy, which was never more, that is nothing.

    Open it with `Replication.open`.
    """

    def __init__(self, config: PumpConfig, identity: Identity, cluster: Cluster) -> None:
        self._config = config
        self._node_id = identity.node_id
        self._cluster = cluster
        self._entries = EtcdLogEntries(cluster.etcd)
        self._registry = Registry(cluster.etcd)
        self._wanted = Wanted(config.copies, config.copies_needed)
        self._pump = config.taken_over_by or identity.node_id
        self._identity = identity
        self._disk = ""
        self._disks: Mapping[str, Disk] = {}
        self._logs: Mapping[str, LogEntry] = {}
        self._offered: Offered | None = None
        self.followed: Copies | None = None
        """The copies of other logs; None until they are taken."""
        self._takeovers: TakeOvers | None = None
        self._watching: asyncio.Task[None] | None = None
        self._watches: list[Cancellable] = []

    @classmethod
    def open(cls, config: PumpConfig, identity: Identity, cluster: Cluster) -> Replication:
        """Begin to take copies, if this Pump has anything to do with them; Retryable without etcd.

        It has with `copies` above one, and once it had: then the log is listed.
        """
        opened = cls(config, identity, cluster)
        is_listed = has_disk_id(config.data_dir) or opened._entries.read(identity.node_id)
        if config.copies > 1 or is_listed:
            try:
                opened._begin()
            except BaseException:
                opened.close()
                raise
        return opened

    def _begin(self) -> None:
        self._disk = kept_disk_id(self._config.data_dir)
        self._watches.append(EtcdDisks(self._cluster.etcd).watch(self._note_disks))
        self._watches.append(self._entries.watch_all(self._note_logs))

    async def take_copies(self) -> Copies | None:
        """Begin to take copies of other logs; None for a Pump that does not.

        Once its callers are let in, `offer` lists the disk.
        """
        if not self._disk or self._config.taken_over_by:
            return None
        self.followed = Copies(
            self._config.data_dir,
            node_id=self._node_id,
            cluster_id=self._cluster.cluster_id,
            disk=self._disk,
        )
        await self.followed.start()
        identity = self._identity
        around = Surroundings(
            self._disk,
            entry=lambda node_id: self._logs.get(node_id),
            state=self._state,
            command=command_of(
                sys.argv[1:],
                pump=identity.node_id,
                address=identity.host,
                bind=self._config.addr,
            ),
        )
        self._takeovers = TakeOvers(self.followed, around, self._config.takeover_after_s)
        self._watching = asyncio.create_task(self._takeovers.run())
        return self.followed

    def offer(self) -> None:
        """List the own disk as one that takes copies; Retryable without etcd."""
        identity = self._identity
        disk = Disk(self._disk, identity.node_id, identity.host, identity.labels)
        self._offered = EtcdDisks(self._cluster.etcd).offer(disk)

    async def end(self) -> None:
        """List the disk no longer, and take no more copies."""
        await asyncio.to_thread(self.close)
        if self._watching is not None and self._takeovers is not None:
            self._watching.cancel()
            await asyncio.gather(self._watching, return_exceptions=True)
            await self._takeovers.close()
        if self.followed is not None:
            await self.followed.close()

    def close(self) -> None:
        """List the disk no longer."""
        for watch in self._watches:
            watch.cancel()
        if self._offered is not None:
            self._offered.close()

    async def run(self, storage: Storage, membership: Membership, copies: Shipping | None) -> None:
        """Do what there is to do now and then; ends only by being cancelled."""
        while self._disk:
            await asyncio.sleep(_LOOK_EVERY_S)
            try:
                if self._offered is not None:
                    await asyncio.to_thread(self._offered.renew)
                if copies is not None:
                    await self._note_needed(storage, membership, copies)
            except PenstockError as error:
                log.debug("the copies cannot be looked after now: %s", error)

    async def _note_needed(
        self, storage: Storage, membership: Membership, copies: Shipping
    ) -> None:
        """Let copies drop what every Drainer has."""
        drainers = await membership.drainers()
        if drainers:
            drained_ts = min(drainer.max_commit_ts for drainer in drainers)
            copies.needs(await asyncio.to_thread(storage.needed_from, drained_ts))

    def claim(self, storage: Storage) -> Claimed | None:
        """Claim the own log's next epoch; None when it has one copy. See `claiming.claim`."""
        if not self._disk:
            return None
        chain = Chain(Link(*link) for link in storage.log.links())
        return claim(self._entries, self._node_id, self._own, chain, self._wanted)

    def ship(self, claimed: Claimed, storage: Storage) -> Shipping:
        """Return what ships the own log, not started yet."""
        lines = Lines(
            self._cluster.cluster_id,
            self._node_id,
            address=self._address,
            tls=self._cluster.tls,
            timeout_s=self._config.replica_timeout_s,
            read=storage.log.read_bytes,
            epoch=lambda: claimed.won[0].epoch,
        )
        recruits = Recruits(
            disks=lambda: self._disks,
            load=lambda: copies_by_disk(self._logs),
            apart=self._config.copies_apart,
        )
        return Shipping(claimed, storage.log, entries=self._entries, lines=lines, recruits=recruits)

    @property
    def is_guest(self) -> bool:
        """True for a Pump on the copy of a log that it is to take over: it has no other log."""
        return bool(self._config.taken_over_by)

    def listed_again(self, displaced: Displaced) -> LogEntry | None:
        """Return the entry with this disk as the primary of a new log; Retryable without etcd.

        None before the log that was taken over is with every Drainer: the one that had it is
        offline then, under the name of this Pump.
        """
        if isinstance(displaced, Former):
            return displaced.found[0]
        status = self._registry.get(NodeKind.PUMP, self._node_id)
        if status is None or status.state is not NodeState.OFFLINE:
            return None
        return begin_again(self._entries, self._node_id, self._own, displaced.found, self._wanted)

    def begin_again(self, entry: LogEntry) -> None:
        """Set the former log's files aside, and begin the one that the entry is of.

        The storage must be closed.
        """
        set_aside(self._config.data_dir)
        begin_log(OsFiles(), self._config.data_dir / "log", entry.since)
        log.warning(
            "pump %s begins again in epoch %d; what it had before is in %s, and in every Drainer",
            *(self._node_id, entry.since, self._config.data_dir / _DISPLACED_FOLDER),
        )

    @property
    def _own(self) -> Copy:
        return Copy(self._pump, self._disk)

    def _state(self, node_id: str) -> NodeState | None:
        """Return the state of a Pump; None for one that died while it started.

        That is paused in etcd then, too, but a Pump that stops in order leaves its last word.
        """
        status = self._registry.get(NodeKind.PUMP, node_id)
        if status is None:
            return None
        if status.state is NodeState.PAUSED and node_id not in self._registry.last_words():
            return None
        return status.state

    def _address(self, disk: str) -> str | None:
        found = self._disks.get(disk)
        return None if found is None else found.host

    def _note_disks(self, disks: dict[str, Disk]) -> None:
        self._disks = disks

    def _note_logs(self, logs: dict[str, LogEntry]) -> None:
        self._logs = logs


def set_aside(folder: Path) -> None:
    """Move index and log of a Pump into a folder of their own, durably; raise `OSError`.

    The index goes first: it can be built again from the log, but is nothing without it.
    """
    when = datetime.now(UTC).strftime("%Y%m%d-%H%M%S-%f")
    aside = folder / _DISPLACED_FOLDER / when
    aside.mkdir(parents=True, mode=0o700)
    for name in ("index", "log"):
        if (folder / name).exists():
            os.rename(folder / name, aside / name)
            for changed in (aside, aside.parent, folder):
                sync_folder(changed)
            _set_aside()


def copies_by_disk(entries: Mapping[str, LogEntry]) -> Mapping[str, int]:
    """Return how many logs each disk has a copy of."""
    return Counter(copy.disk for entry in entries.values() for copy in entry.replicas)
