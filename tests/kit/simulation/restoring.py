"""Restoring: backups of etcd and of data folders, put back as `docs/restoring.md` says.

    etcd      everything stops, etcd is put back, all Pumps start together, then the Drainer; where
              no Pump continues a log, an operator names the disk that does (`adopt-log`)
    a disk    one Pump stops, and starts with an older folder; if it is refused, with an empty one

A folder is put back only where its age can be shown: for each log that lists the disk it lacks the
mark, or segments from the listed one on, or has all that was acknowledged. It counts as lost for
the logs of which it lacks something, until their lists do not have it any more or they begin again.

No machine fails while etcd is put back: else a disk with the newest state might be away.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from penstock.cluster.log_entry import Copy, LogEntry
from penstock.cluster.node_registry import NodeState
from penstock.codes import Code
from penstock.errors import PenstockError, Retryable
from penstock.log.replica import ReplicaSegments
from penstock.log.segment import BEGIN
from penstock.log.segments import Place
from pump.replication.protocol.chain import Chain, Link, lacks
from tests.kit.fakes.etcd import Snapshot
from tests.kit.fakes.files import MemoryFiles
from tests.kit.replicas.world import Stalled

if TYPE_CHECKING:
    from tests.kit.simulation.machine import Machine
    from tests.kit.simulation.pump import Pump
    from tests.kit.simulation.world import World

STOPS = (Code.LOG_OLDER, Code.LOG_PUT_BACK)
"""With these a Pump stops for an operator after something was put back."""
BACKUP_EVERY_S = 2.0
SERVED_WITHIN_S = 120.0
DECIDES_AFTER_S = 15.0


class Backup(NamedTuple):
    """The data folder of a machine."""

    disk: str
    files: MemoryFiles
    former_since: int | None


class Acknowledged(NamedTuple):
    """How far a log was acknowledged, and its segments then.

    An etcd that was put back may have a `since` of a former log, whose places were further on.
    """

    etcds: int
    since: int
    place: Place
    links: tuple[Link, ...]


class Restoring:
    """What was put back in one run, and who must be helped since."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.etcds = self.disks = self.adopted = 0
        self.older: set[tuple[str, str]] = set()
        """Disks that lack what they had of a log."""
        self.refused: set[str] = set()
        """Disks whose Pump refuses them; an operator empties them as soon as no log needs them."""
        self.named: set[str] = set()
        """Logs for which a Pump has named an operator's command."""
        self.gone: set[str] = set()
        """Logs that no disk has, as their Pumps say."""
        self.acknowledged: dict[str, Acknowledged] = {}
        self._needed: dict[tuple[str, int], int] = {}
        self._snapshots: list[Snapshot] = []
        self._backups: dict[str, list[Backup]] = {}
        self._next_s = BACKUP_EVERY_S

    def back_up(self) -> None:
        world = self.world
        if world.tasks.now_s < self._next_s or not (world.restores_etcd or world.restores_disks):
            return
        self._next_s += BACKUP_EVERY_S
        self._snapshots.append(world.etcd.snapshot())
        for machine in world.machines:
            files = machine.files.after_crash(None)
            found = Backup(machine.disk, files, machine.former_since)
            self._backups.setdefault(machine.name, []).append(found)

    def stopped(self, pump: Pump, error: PenstockError) -> bool:
        """Return whether an operator expects this error, and note what to do."""
        if not (self.etcds or self.disks) or error.code not in STOPS:
            return False
        self.named.add(pump.log)
        if error.code is Code.LOG_OLDER and not pump.is_failover:
            self.refused.add(pump.machine.disk)
        return True

    def refused_claim(self, log: str, error: Retryable) -> None:
        """Note which commands a Pump names that cannot claim a log."""
        if "adopt-log" in str(error):
            self.named.add(log)
        if "--empty" in str(error):
            self.gone.add(log)

    def look_after(self) -> None:
        world = self.world
        for machine in world.machines:
            is_down = machine.own is None or machine.own.is_dead
            if machine.disk in self.refused and is_down and world.may_lose(machine):
                self.refused.discard(machine.disk)
                machine.lose_disk()

    def needed(self, log: str, entry: LogEntry) -> int:
        """Return the first segment that is needed; an etcd that was put back lists earlier ones."""
        key = (log, entry.since)
        self._needed[key] = max(self._needed.get(key, 0), entry.needed)
        return self._needed[key]

    def note_lists(self, log: str, entry: LogEntry) -> None:
        """Forget what a disk lacks of a log that does not list it any more, or that began again.

        In the epoch in which a log begins again, nothing of it was acknowledged, and no Drainer
        needs the former log.
        """
        has_begun = entry.epoch == entry.since
        if has_begun and (since_id := entry.id_of(entry.since)):
            begin = Link(0, entry.since, BEGIN, since_id)
            self.acknowledged[log] = Acknowledged(
                self.etcds, entry.since, Place(0, BEGIN), (begin,)
            )
        listed = set() if has_begun else {copy.disk for copy in entry.copies_known}
        self.older = {each for each in self.older if each[1] != log or each[0] in listed}

    def note_acknowledged(self, log: str, since: int, place: Place, links: list[Link]) -> None:
        found = Acknowledged(self.etcds, since, place, tuple(links))
        self.acknowledged[log] = max(self.acknowledged.get(log, found), found)

    # A disk.

    def restore_disk(self) -> None:
        """Put an older folder back on a machine, if its age can be shown."""
        world = self.world
        machine = world.chance.choice(world.machines)
        backups = [b for b in self._backups.get(machine.name, []) if b.disk == machine.disk]
        if not backups or not world.may_lose(machine) or self._is_counted(machine):
            return
        backup = world.chance.choice(backups)
        lacking = self._lacking(machine, backup)
        if not lacking:
            return
        world.note("%s gets an older folder back: it lacks a part of %s", machine.name, lacking)
        self.disks += 1
        self.older |= {(machine.disk, log) for log in lacking}
        machine.put_back(backup.files.after_crash(None), backup.former_since)

    def _lacking(self, machine: Machine, backup: Backup) -> list[str]:
        """Return of which logs a backup lacks a part; none where that cannot be shown."""
        found = []
        for log, (entry, _) in self.world.etcd.logs.items():
            listed = next((c for c in entry.copies_known if c.disk == machine.disk), None)
            if listed is None:
                continue
            chain = self._chain(machine, log, backup.files, backup.former_since)
            if lacks(chain, entry.mark):
                found.append(log)
            elif not self._has_all(chain, log):
                return []
            elif chain.first > max(listed.first, self.needed(log, entry)):
                found.append(log)  # It is from before the disk was given its older segments.
        return found

    def _is_counted(self, machine: Machine) -> bool:
        """Return whether a primary counts what the disk has for a group that waits."""
        pumps = [pump for log in self.world.etcd.logs for pump in self.world.pumps_of(log)]
        primaries = [pump.shipping._primary for pump in pumps if pump.shipping]
        known = [(primary, primary._follower(machine.disk)) for primary in primaries]
        return any(each is not None and each.have > p.acknowledged for p, each in known)

    def _chain(
        self, machine: Machine, log: str, files: MemoryFiles, former_since: int | None
    ) -> Chain:
        """Return the log as it is in a folder of a machine."""
        found = self.world.etcd.logs.get(log)
        since = 0 if found is None else found[0].since
        folder = machine.folder(log)
        if log == machine.name and (former_since is None or since > former_since):
            folder = machine.own_folder
        files = files.after_crash(None)
        if not files.names(folder / "log"):
            return Chain()
        try:
            return Chain(
                Link(*link) for link in ReplicaSegments.open(folder / "log", files=files).links()
            )
        except PenstockError:
            return Chain()

    def _has_all(self, chain: Chain, log: str) -> bool:
        """Return whether a disk has all of a log that was acknowledged."""
        known = self.acknowledged.get(log)
        if known is None:
            return True
        agreed = chain.agreement(known.links)
        return agreed is not None and agreed >= known.place  # `links` may end after `place`.

    def _is_unused(self, log: str) -> bool:
        """Return whether a log has begun again, and nothing of it was acknowledged."""
        known = self.acknowledged.get(log)
        return known is not None and known.place == Place(0, BEGIN)

    # Etcd.

    def restore_etcd(self) -> None:
        """Put etcd back, and wait until every log is served again."""
        world = self.world
        if self.older or self.refused or not self._snapshots:
            return
        self.etcds += 1
        self.named.clear()
        snapshot = world.chance.choice(self._snapshots[-6:])
        with self._quiet():
            world.drainer.is_stopped = world.rules.stops_drainers
            for machine in world.machines:
                machine.crash()
            world.pass_by(0.5)
            for log, (entry, _) in world.etcd.logs.items():
                self.needed(log, entry)
            world.network.generation += 1
            world.etcd.put_back(snapshot)
            world.drainer.etcd_was_put_back()
            self._snapshots = [
                each for each in self._snapshots if each.revision <= snapshot.revision
            ]
            world.note(
                "etcd is put back: %s", {n: e.epoch for n, (e, _) in world.etcd.logs.items()}
            )
            for machine in world.machines:
                machine.start()
            self._wait_until_served()
        world.drainer.is_stopped = False
        world.drainer.restart()

    def _wait_until_served(self) -> None:
        world = self.world
        until_s = world.tasks.now_s + SERVED_WITHIN_S
        decides_s = world.tasks.now_s + DECIDES_AFTER_S
        while not all(self._is_served(machine.name) for machine in world.machines):
            world.pass_by(0.5)
            world.supervise()
            if world.tasks.now_s > until_s:
                raise Stalled(f"restored: {world._states()}")
            if world.tasks.now_s > decides_s:
                for machine in world.machines:
                    if not self._is_served(machine.name) and machine.name in self.named:
                        self._adopt(machine.name)
                decides_s = world.tasks.now_s + DECIDES_AFTER_S / 2

    def _is_served(self, log: str) -> bool:
        status, pump = self.world.etcd.statuses.get(log), self.world.pump_of(log)
        is_over = status is not None and status.state is NodeState.OFFLINE
        return is_over or (pump is not None and pump.is_serving and pump.state is not None)

    def _adopt(self, log: str) -> None:
        """Let the disk that has all of a log continue it (`penstock ctl adopt-log`)."""
        world = self.world
        self.named.discard(log)
        found = world.etcd.logs.get(log)
        chains = [(m, self._chain(m, log, m.files, m.former_since)) for m in world.machines]
        having = [each for each in chains if each[1].links]
        whole = [each for each in having if self._has_all(each[1], log)]
        epochs = [link.epoch for _, chain in having for link in chain.links]
        if not whole and log not in self.gone and self._is_unused(log):
            # The folder was not emptied yet, and no Drainer needs the former log.
            whole = sorted(having, key=lambda each: each[1].links[-1].epoch)[-1:]
        for machine, chain in sorted(whole, key=lambda each: each[1].first)[:1]:
            own = Copy(machine.name, machine.disk)
            entry = LogEntry(epoch=0, primary=own) if found is None else found[0]
            adopted = replace(
                entry,
                epoch=max(entry.epoch, *epochs),
                primary=own,
                replicas=(),
                eligible=(),
                needed=chain.first,
                ids=(),
                mark=None,
            )
            self.adopted += 1
            world.note("an operator lets %s continue %s: %s", machine.name, log, adopted)
            world.etcd.put_entry(log, adopted)
        if not whole and log in self.gone and found is not None:
            self.gone.discard(log)
            machine = world.machine(log)
            own = Copy(machine.name, machine.disk)
            world.note("an operator begins a new log of %s", log)
            world.etcd.put_entry(
                log, found[0].begun_again(own, found[0].copies, found[0].copies_min)
            )

    @contextmanager
    def _quiet(self) -> Iterator[None]:
        """Let nothing else fail meanwhile."""
        world = self.world
        places = [(world, n) for n in ("death", "failing_disks", "silences", "suspicion")]
        places += [(world.network, n) for n in ("loss", "doubling", "lateness")]  # type: ignore
        places.append((world.etcd, "failing"))  # type: ignore[arg-type]
        before = [(place, name, getattr(place, name)) for place, name in places]
        cut_off, world.cut_off = world.cut_off, set()
        for place, name in places:
            setattr(place, name, 0.0)
        try:
            yield
        finally:
            world.cut_off = cut_off
            for place, name, value in before:
                setattr(place, name, value)
