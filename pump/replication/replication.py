"""Replication: runs a Pump's part in the replication of logs, from its start to its end.

    start ── disk offered, replicas accepted ── own log claimed ── shipped ── complete ── …
                                                       └─ fenced: waits, then re-initialises

A Pump accepts replicas before it serves its own log: when all Pumps start together, the log of each
needs the disk of another. A Pump that is started for a failover only ships that log; its disk is
the parent's, and the parent offers it.
"""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

from penstock import failpoints
from penstock.cluster.etcd import EtcdClient
from penstock.cluster.log_entry import Copy, Disk, LogEntries, LogEntry, Offered, watch_disks
from penstock.cluster.node_registry import Cancellable, NodeKind, NodeState, Registry
from penstock.codes import Code
from penstock.errors import Corrupt, PenstockError, Retryable
from penstock.log.files import Files, lock_folder, sync_folder
from penstock.log.segments import begin_log
from penstock.security.tls import Tls
from pump.cluster.identity import (
    Identity,
    forget_former,
    former_since,
    has_disk_id,
    kept_disk_id,
    note_former,
)
from pump.cluster.membership import Membership
from pump.config import PumpConfig
from pump.replication.claiming import (
    Claimed,
    Fenced,
    PreviousLog,
    Unseen,
    Wanted,
    claim,
    is_nowhere,
    is_out_of,
    refuse_gone,
    refuse_older,
    refuse_other_history,
    reinitialise,
)
from pump.replication.draining import Draining, Moving
from pump.replication.failover import Failovers, StandbyProcess, arguments_for
from pump.replication.peers import Peers
from pump.replication.protocol.chain import Chain, Link, Seen
from pump.replication.repair import ClosedLogRepair, OwnLogRepair, Repairs
from pump.replication.replicas import REPLICAS_FOLDER, Replicas
from pump.replication.shipping import Shipping
from pump.store.space import Reserve
from pump.store.storage import Storage

log = logging.getLogger(__name__)
_set_aside = failpoints.point("copies.set_aside")

_DISPLACED_FOLDER = "displaced"
_WHEN = "%Y%m%d-%H%M%S-%f"
_LOOK_EVERY_S = 2.0
_PURGE_EVERY_S = 3600.0


class Replication:
    """The parts of a Pump for replication; none if its log has one copy and never had more."""

    def __init__(
        self,
        config: PumpConfig,
        identity: Identity,
        etcd: EtcdClient,
        cluster_id: int,
        tls: Tls | None,
    ) -> None:
        """Watch the logs and disks, if this Pump takes part; raises `Retryable` without etcd."""
        self._config = config
        self._node_id = identity.node_id
        self._etcd = etcd
        self._entries = LogEntries(etcd)
        self._registry = Registry(etcd)
        self._wanted = Wanted(config.copies, config.copies_needed)
        self._identity = identity
        # It takes part if `copies` is above one, or was once: then the log is listed.
        is_listed = has_disk_id(config.data_dir) or self._entries.read(identity.node_id)
        self._disk = kept_disk_id(config.data_dir) if config.copies > 1 or is_listed else ""
        self._own = Copy(config.taken_over_by or identity.node_id, self._disk)
        self.peers = Peers(
            *(cluster_id, self._own), registry=self._registry, tls=tls, apart=config.copies_apart
        )
        self._offered: Offered | None = None
        self.draining: Draining | None = None
        """Drains the replicas that are here; None while the disk is not offered."""
        self.followed: Replicas | None = None
        """The replicas of other logs; None until they are accepted."""
        self._failovers: Failovers | None = None
        self.repairs = Repairs()
        self.own_repair: OwnLogRepair | None = None
        """Repairs the own log, once it is shipped."""
        self._standby: StandbyProcess | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._watches: list[Cancellable] = []
        if self._disk:
            try:
                self._watches.append(watch_disks(etcd, self._note_disks))
                self._watches.append(self._entries.watch_all(self._note_logs))
            except BaseException:
                self.close()
                raise

    def _note_disks(self, disks: dict[str, Disk]) -> None:
        self.peers.disks = disks

    def _note_logs(self, logs: dict[str, LogEntry]) -> None:
        self.peers.logs = logs

    async def take_copies(self) -> Replicas | None:
        """Start to accept replicas of other logs; None for a Pump that does not.

        Once its callers are let in, `offer` lists the disk.
        """
        if not self._disk or self._config.taken_over_by:
            return None
        self.followed = Replicas(
            self._config.data_dir,
            node_id=self._node_id,
            cluster_id=self.peers.cluster_id,
            disk=self._disk,
            repairs=self.repairs,
            sources=self.peers.sources,
            epoch_listed=self.peers.epoch,
            reserve=Reserve(
                Files(), self._config.data_dir, self._config.storage.stop_write_at_available_bytes
            ),
        )
        await self.followed.start()
        identity = self._identity
        arguments = arguments_for(
            sys.argv[1:], pump=identity.node_id, address=identity.host, bind=self._config.addr
        )
        standby = StandbyProcess(self._config.data_dir / REPLICAS_FOLDER, sys.argv[1:])
        if self._config.takeover_after_s:
            self._standby = standby
        self._failovers = Failovers(
            *(self.followed, self.peers),
            lambda node_id, folder: standby.take(arguments(node_id, folder)),
            after_s=self._config.takeover_after_s,
        )

        async def stay_offered() -> None:
            # List the disk again whenever etcd has dropped it, from its first offer on.
            while True:
                await asyncio.sleep(_LOOK_EVERY_S)
                if self._offered is not None:
                    try:
                        await asyncio.to_thread(self._offered.renew)
                    except Retryable as error:
                        log.warning("this disk is not offered for copies now: %s", error)

        work = (self._failovers.run(), stay_offered())
        self._tasks = [asyncio.create_task(each) for each in work]
        return self.followed

    def offer(self) -> None:
        """List the own disk as accepting replicas; Retryable without etcd."""
        identity = self._identity
        disk = Disk(self._disk, identity.node_id, identity.host, identity.labels)
        self._offered = Offered(self._etcd, disk)
        assert self.followed is not None
        self.draining = Draining(self.peers, self._offered, self.followed)

    def moves(self, storage: Storage, states: Membership, own: Shipping | None) -> Moving | None:
        """Return an object that moves the own log; None when it has one copy."""
        if own is None:
            return None
        return Moving(
            self._node_id,
            peers=self.peers,
            shipping=own,
            states=states,
            draining=self.draining,
            count_open=lambda: len(storage.unmatched(older_than_s=0)),
            pause_grace_s=self._config.pause_grace_s,
            leave_grace_s=self._config.leave_grace_s,
        )

    async def drain(self) -> None:
        """Drain the replicas that are here, within `leave_grace_s`."""
        if self.draining is not None:
            await self.draining.drain(self._config.leave_grace_s)

    async def end(self) -> None:
        """Withdraw the disk from the list, and accept no further replicas."""
        await asyncio.to_thread(self.close)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._failovers is not None:
            await self._failovers.close()
        if self._standby is not None:
            await self._standby.close()
        if self.followed is not None:
            await self.followed.close()

    def close(self) -> None:
        """Withdraw the disk from the list."""
        for watch in self._watches:
            watch.cancel()
        if self._offered is not None:
            self._offered.close()

    async def run(
        self,
        storage: Storage,
        membership: Membership,
        copies: Shipping | None,
        oracle_lease: Callable[[], int],
    ) -> None:
        """Do the periodic work; ends only by being cancelled.

        `oracle_lease` returns the etcd lease with which this Pump leads the oracle, or 0.
        """
        purged_s = float("-inf")
        while self._disk:
            await asyncio.sleep(_LOOK_EVERY_S)
            try:
                if time.monotonic() - purged_s > _PURGE_EVERY_S:
                    purged_s = time.monotonic()
                    await asyncio.to_thread(
                        purge_displaced, self._config.data_dir, self._config.gc_days
                    )
                # Let replicas drop the segments that every Drainer has.
                if copies is not None and (drainers := await membership.drainers()):
                    drained_ts = min(drainer.max_commit_ts for drainer in drainers)
                    needed = await asyncio.to_thread(storage.needed_from, drained_ts)
                    await asyncio.to_thread(copies.needs, needed)
                if self._standby is not None:
                    await self._standby.keep(oracle_lease())
            except (PenstockError, OSError) as error:
                log.debug("the copies cannot be looked after now: %s", error)

    def closed_log_repair(self) -> Callable[[Corrupt], bool]:
        """Return a function that repairs the own log while it cannot be opened.

        It raises `NeedsOperator` while another process has the folder open.
        """
        folder = self._config.data_dir
        sources = partial(self.peers.sources, self._node_id)
        repair = ClosedLogRepair(folder / "log", Files(), self.repairs, sources, again_s=0)

        def repair_locked(damage: Corrupt) -> bool:
            lock = lock_folder(folder, "Pump")
            try:
                return repair(damage)
            finally:
                os.close(lock)

        return repair_locked

    def claim(self, storage: Storage) -> Claimed | None:
        """Claim the own log's next epoch; None when it has one copy. See `claiming.claim`.

        Raises `NeedsOperator` for a folder that is older than the log.
        """
        if not self._disk:
            return None
        chain = Chain(Link(*link) for link in storage.log.links())
        former = None if self.is_failover else former_since(self._config.data_dir)
        found = self._entries.read(self._node_id)
        if found is None or not is_out_of(found[0], former):
            with self.peers.sources(self._node_id) as others:
                seen = [each for other in others if (each := other.seen(chain)) is not None]
                refuse_other_history(
                    *(self._entries, self._node_id, self._own, chain, seen),
                    missing=self._unseen(each.copy.pump for each in seen),
                    withdraw_offline=self._withdraw_offline,
                )
                if (found := self._entries.read(self._node_id)) is not None:
                    refuse_older(self._node_id, self._own, chain, found[0], others)
        knows_ids = all(disk.knows_ids for disk in self.peers.disks.values())
        wanted = self._wanted._replace(gives_ids=knows_ids)
        claimed = claim(
            *(self._entries, self._node_id, self._own, chain, wanted), former_since=former
        )
        if self.followed is not None:
            self.followed.takes_own = False
        if claimed is not None and former is not None:
            try:
                forget_former(self._config.data_dir)
            except OSError as error:
                folder = self._config.data_dir
                raise Retryable(f"{folder}: {error}", Code.LOG_WRITE_FAILED) from error
        return claimed

    def _withdraw_offline(self) -> None:
        """Let Drainers wait for this Pump, whose log is newer than etcd.

        A state or last word that was restored with the entry would let them continue without it.
        """
        registry, name = self._registry, self._node_id
        status, word = registry.get(NodeKind.PUMP, name), registry.last_words().get(name)
        if status is None or status.state is not NodeState.OFFLINE:
            return
        if word is not None and name not in registry.entered():
            registry.put_entered(name, word.up_to_ts)
        registry.put(NodeKind.PUMP, replace(status, state=NodeState.PAUSED))
        registry.forget_last_word(name)

    def _unseen(self, seen: Iterable[str]) -> Unseen:
        states = {pump.node_id: pump.state for pump in self._registry.list(NodeKind.PUMP)}
        return Unseen.of(states, [self._own.pump, *seen])

    def ship(self, claimed: Claimed, storage: Storage) -> Shipping:
        """Return the own log's shipping, not started; its damage is repaired from now on."""
        self.own_repair = OwnLogRepair(
            *(storage.log, Files(), self.repairs),
            sources=partial(self.peers.sources, self._node_id),
            acknowledged=lambda: shipping.acknowledged,
        )
        shipping = Shipping(
            *(claimed, storage.log),
            node_id=self._node_id,
            entries=self._entries,
            peers=self.peers,
            replica_timeout_s=self._config.replica_timeout_s,
            repair=self.own_repair,
        )
        storage.log.repair_with(self.own_repair)
        return shipping

    def absent(self) -> list[str]:
        """Return the Pumps that are listed with a replica of the own log, and do not run now."""
        entry = self.peers.logs.get(self._node_id)
        copies = () if entry is None else entry.copies_known
        gone = (c.pump for c in copies if c.disk not in (self._disk, *self.peers.disks))
        return sorted(set(gone))

    @property
    def is_failover(self) -> bool:
        """True for a Pump that a failover started on a replica: it has no other log."""
        return bool(self._config.taken_over_by)

    def relisted(self, fenced: Fenced) -> LogEntry | None:
        """Return the entry with this disk as the primary of a new log; Retryable without etcd.

        Returns None until every Drainer has the former log; its primary is then offline, under this
        Pump's name. From now on, a failover of that log is possible even if it is paused. Until
        then this disk accepts a replica of that log, like any other disk. Raises `Retryable` if
        no disk has that log.
        """
        if isinstance(fenced, PreviousLog):
            return fenced.found[0]
        self._accept_own(fenced.found[0])
        status = self._registry.get(NodeKind.PUMP, self._node_id)
        if status is not None and status.state is NodeState.PAUSED:
            # It shut down cleanly, and so no replica takes over. But now this Pump runs, and the
            # disk that the log was on may be gone for good.
            self._registry.forget_last_word(self._node_id)
        is_drained = status is not None and status.state is NodeState.OFFLINE
        if not is_drained:
            is_new = status is None and self._node_id not in self._registry.entered()
            if not self._is_nowhere(fenced.found[0], is_new):
                return None
        return reinitialise(self._entries, self._node_id, self._own, fenced.found, self._wanted)

    def _is_nowhere(self, entry: LogEntry, is_new: bool) -> bool:
        """Return whether no disk has the log of a Pump that etcd has never seen in the cluster.

        That Pump lost its disk before it accepted anything. A restored etcd may not know it either,
        but then some disk has the log. Raises `Retryable` if no disk has the log of another
        Pump.
        """
        assert self.followed is not None
        edges = []
        if self._node_id in self.followed.names():
            edges.append(Seen(self._own, self.followed.links(self._node_id)))
            if not edges[0].links:  # It is not open: a Pump may run on it.
                return False
        with self.peers.sources(self._node_id) as others:
            edges += [each for other in others if (each := other.edges()) is not None]
        found = self._entries.read(self._node_id)
        if found is None or found[0] != entry:  # The needed segments may be purged.
            return False
        missing = self._unseen(each.copy.pump for each in edges)
        if is_new and is_nowhere(self._own, entry, edges, missing):
            return True
        refuse_gone(self._node_id, self._own, entry, edges, missing)
        return False

    def _accept_own(self, entry: LogEntry) -> None:
        """Accept a replica of the log that this Pump was fenced from, once no list has this disk.

        A list that has this disk means the folder of the own log. Retryable when the disk fails.
        """
        assert self.followed is not None
        folder = self._config.data_dir
        if former_since(folder) != entry.since:
            listed = entry.copies_known
            if self._disk in {copy.disk for copy in listed}:
                return
            try:
                note_former(folder, entry.since)
            except OSError as error:
                raise Retryable(f"{folder}: {error}", Code.LOG_WRITE_FAILED) from error
        self.followed.takes_own = True

    def reinitialise(self, entry: LogEntry) -> None:
        """Set the former log's files aside, and start the log of the entry.

        The storage must be closed. Raises `Retryable`; it may be tried again.
        """
        if self.followed is not None:
            self.followed.takes_own = False
        folder = self._config.data_dir
        fenced = folder / _DISPLACED_FOLDER
        try:
            set_aside(folder)
            begin_log(Files(), folder / "log", entry.since, entry.id_of(entry.since) or 0)
            # From now on the folder is compared with an entry from before, if etcd is restored.
            forget_former(folder)
        except OSError as error:
            room = f"; no one needs what is in {fenced}" if fenced.exists() else ""
            raise Retryable(f"{folder}: {error.strerror}{room}", Code.LOG_WRITE_FAILED) from error
        log.warning(
            "pump %s begins again in epoch %d; what it had before is in %s, and in every Drainer",
            *(self._node_id, entry.since, fenced),
        )


def set_aside(folder: Path) -> None:
    """Move index and log of a Pump into a separate folder, durably; raise `OSError`.

    The index goes first: it can be rebuilt from the log, but is nothing without it.
    """
    when = datetime.now(UTC).strftime(_WHEN)
    aside = folder / _DISPLACED_FOLDER / when
    for name in ("index", "log"):
        if any((folder / name).glob("*")):
            aside.mkdir(parents=True, exist_ok=True, mode=0o700)
            os.rename(folder / name, aside / name)
            for changed in (aside, aside.parent, folder):
                sync_folder(changed)
            _set_aside()


def purge_displaced(folder: Path, days: float, now: datetime | None = None) -> int:
    """Delete data that a Pump set aside more than `days` ago, and return its size in bytes.

    Every Drainer had all of it when it was set aside. Files without a time are left alone.
    """
    before = (now or datetime.now(UTC)) - timedelta(days=days)
    freed = 0
    for aside in sorted((folder / _DISPLACED_FOLDER).glob("*")):
        try:
            when = datetime.strptime(aside.name, _WHEN).replace(tzinfo=UTC)
        except ValueError:
            continue
        if when > before:
            continue
        size = sum(path.stat().st_size for path in aside.rglob("*") if path.is_file())
        shutil.rmtree(aside)
        log.info("%s is deleted, %d bytes: older than gc-days %g", aside, size, days)
        freed += size
    return freed
