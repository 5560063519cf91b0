"""Machine: a disk, the Pump that runs there, and the Pumps on logs that were taken over there.

The disk is in memory but for the indexes, which are LevelDB's and need a folder. At a crash what
was not synced is gone, or a part of it; an index is kept or gone, for it can be built again.
"""

from __future__ import annotations

import errno
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.cluster.log_entry import LogEntry
from penstock.cluster.node_registry import NodeKind, NodeState
from penstock.errors import Retryable
from penstock.log.segment import segment_name
from pump.replication.protocol.chain import foreign
from tests.kit.fakes.files import MemoryFiles
from tests.kit.simulation.copies import Copy, Replicas
from tests.kit.simulation.pump import Pump
from tests.kit.simulation.tasks import Killed

if TYPE_CHECKING:
    from tests.kit.simulation.world import World

TAKE_OVER_AFTER_S = 1.0
TURN = 0.5
AGAIN_S = 2.0
UNNEEDED_S = 5.0


class Machine:
    def __init__(self, world: World, number: int) -> None:
        self.world = world
        self.name = f"pump-{number}"
        self.own: Pump | None = None
        self.guests: dict[str, Pump] = {}
        self.copies: Replicas | None = None
        self.is_up = False
        self._dead: list[Pump] = []
        self.disk = ""
        self._begin_disk()

    def _begin_disk(self) -> None:
        name = f"d{self.world.number()}"
        if self.world.rules.tells_disks_apart or not self.disk:
            self.disk = name
        self.root = self.world.folder / name
        self.former_since: int | None = None
        self._put_in(MemoryFiles())

    def _put_in(self, files: MemoryFiles) -> None:
        self.files = files
        files.fail = self._at_call

    @property
    def own_folder(self) -> Path:
        return self.root / "own"

    def folder(self, log: str) -> Path:
        return self.root / "copies" / log

    def _copied(self) -> list[str]:
        copies = self.root / "copies"
        found = [path for path in self.files.nodes if path.is_relative_to(copies)]
        return sorted({path.relative_to(copies).parts[0] for path in found})

    def _at_call(self, call: str, path: Path) -> None:
        """Let the disk fail, or the machine die, or time pass."""
        world, process = self.world, self.world.tasks.current.process
        if process.is_dead:
            raise Killed
        if call == "read":
            return
        if self.files.calls:
            self.files.calls.clear()
        if call == "sync":
            is_slow = not world.is_calm and world.chance.random() < world.slow_disks
            world.tasks.sleep(world.chance.uniform(0.0001, 0.3 if is_slow else 0.003))
        if isinstance(process, Pump) and not world.is_calm:
            if world.chance.random() < world.death:
                self.crash()
                raise Killed
            if call in ("sync", "write") and world.chance.random() < world.failing_disks:
                raise OSError(errno.EIO, f"made to fail: {call}", str(path))

    # Its life.

    def start(self) -> None:
        """Start the Pump, unless it runs, as a supervisor does."""
        if self.own is not None and not self.own.is_dead:
            return
        self._bury()
        world = self.world
        self.is_up = True
        self.own = Pump(world, self, self.name, self.own_folder)
        world.note("%s starts", self.own.name)
        self.copies = Replicas(
            world.tasks,
            world.rules,
            own=self.name,
            disk=self.disk,
            process=self.own,
            files=self.files,
            folder=self.root / "copies",
        )
        for name in self._copied():
            copy = self.copies.add(name)
            copy.is_closed = name in self.guests  # Locked by the Pump that runs on it.
            if not copy.is_closed:
                self.copies.open(copy)
        world.tasks.spawn(lambda: self._watch(), f"watch {self.name}", self.own)
        self.own.start()

    def kill(self, pump: Pump) -> None:
        """End one process; what it has written stays."""
        self.world.note("%s is killed", pump.name)
        self.world.tasks.kill(pump)
        self._dead.append(pump)

    def crash(self) -> None:
        """Lose the processes, and what was not synced."""
        world = self.world
        world.note("%s crashes", self.name)
        self.is_up = False
        for pump in [*([self.own] if self.own else []), *self.guests.values()]:
            world.tasks.kill(pump)
            self._dead.append(pump)
        self.own, self.copies = None, None
        self.guests.clear()
        self._put_in(self.files.after_crash(world.chance))
        self._loses_indexes = world.chance.random() < 0.3

    _loses_indexes = False

    def lose_disk(self) -> None:
        """Crash, and come back with an empty disk."""
        self.world.note("%s loses its disk %s", self.name, self.disk)
        self.crash()
        self.world.tasks.later(0.05, self._bury)
        self._begin_disk()

    def put_back(self, files: MemoryFiles, former_since: int | None) -> None:
        """Crash, and come back with an older folder; its indexes are built again."""
        self.crash()
        self._put_in(files)
        self.former_since = former_since
        self._loses_indexes = True

    def _bury(self) -> None:
        for pump in self._dead:
            pump.bury()
        self._dead.clear()
        if self._loses_indexes:
            for folder in (self.own_folder, *map(self.folder, self._copied())):
                shutil.rmtree(folder / "index", ignore_errors=True)
            self._loses_indexes = False

    def forget_folder(self, folder: Path) -> None:
        files = self.files
        for names in (files.nodes, files.durable_names):
            for path in [path for path in names if path.is_relative_to(folder)]:
                del names[path]
        shutil.rmtree(folder, ignore_errors=True)

    # Taking over.

    def _watch(self) -> None:
        """Do what `pump.replication.failover` does."""
        world, not_before_s, began_s = self.world, dict[str, float](), self.world.tasks.now_s
        copies = self.copies
        assert copies is not None
        while True:
            world.tasks.sleep(0.2)
            for name, copy in list(copies.copies.items()):
                if world.tasks.now_s < not_before_s.get(name, 0.0):
                    continue
                try:
                    if self._look(copies, name, copy, began_s):
                        not_before_s[name] = world.tasks.now_s + AGAIN_S
                except Retryable:
                    not_before_s[name] = world.tasks.now_s + AGAIN_S

    def _look(self, copies: Replicas, name: str, copy: Copy, began_s: float) -> bool:
        """Look at one copy; True when it should be left alone for a while."""
        world = self.world
        if (guest := self.guests.get(name)) is not None:
            if guest.is_dead:
                guest.bury()
                del self.guests[name]
                copies.open(copy)
                return True
            return False
        entry = world.etcd.seen(name)
        if entry is None:
            return False
        if name == self.name and not copies.takes_own:
            if copies.takes_own is not None:
                self._drop(copies, name, copy)
            return False
        heard_s = began_s if copy.heard_s is None else copy.heard_s
        silence_s = world.tasks.now_s - heard_s
        is_primary = entry.primary.disk == self.disk
        is_due = not is_primary and self._is_due(entry, copy, silence_s)
        is_long_silent = silence_s > UNNEEDED_S
        if not (is_primary or is_due or is_long_silent):
            return False
        status = world.etcd.registry.get(NodeKind.PUMP, name)
        word = world.etcd.known.last_words().get(name)
        state = None if status is None else status.state
        if state is NodeState.PAUSED and word is None:
            state = None
        if is_due and _is_newer(entry, copy):
            return self._take_over(copies, name, copy, entry)
        if state is NodeState.OFFLINE:
            if is_long_silent and foreign(entry, copy.log.links) is None:
                self._drop(copies, name, copy)
        elif is_primary or (is_due and state is not NodeState.PAUSED):
            return self._take_over(copies, name, copy, entry)
        return False

    def _is_due(self, entry: LogEntry, copy: Copy, silence_s: float) -> bool:
        if not (_is_newer(entry, copy) or entry.may_claim(self.disk)):
            return False
        if self.world.chance.random() < self.world.suspicion:
            return True
        disks = [copy.disk for copy in (*entry.replicas, *entry.eligible)]
        turn = disks.index(self.disk) if self.disk in disks else len(disks)
        return silence_s > TAKE_OVER_AFTER_S * (1 + TURN * turn)

    def _take_over(self, copies: Replicas, name: str, copy: Copy, entry: LogEntry) -> bool:
        """Start a Pump on a copy; True when the copy lacks a part of the log."""
        copy.is_closed = True
        try:
            copies.in_turn(copy, copy.log.open)
            links = copy.log.links
        finally:
            copies.in_turn(copy, copy.log.close)
        is_newer = bool(links) and links[-1].epoch > entry.epoch
        if not is_newer and (not links or links[0].number > entry.needed):
            copies.open(copy)
            return True
        guest = self.guests[name] = Pump(self.world, self, name, self.folder(name))
        self.world.note("%s takes over %s", guest.name, name)
        guest.start()
        return False

    def _drop(self, copies: Replicas, name: str, copy: Copy) -> None:
        self.world.note("%s drops its copy of %s", self.name, name)
        copy.is_closed = True
        copies.in_turn(copy, copy.log.close)
        self.forget_folder(self.folder(name))
        del copies.copies[name]

    # What the world looks at.

    def durable(self, log: str, segment: int) -> bytes:
        folder, found = self.folder(log), self.world.etcd.logs[log][0]
        if log == self.name and (self.former_since is None or found.since > self.former_since):
            folder = self.own_folder
        node = self.files.durable_names.get(folder / "log" / segment_name(segment))
        return b"" if node is None else bytes(node.durable)


def _is_newer(entry: LogEntry, copy: Copy) -> bool:
    """Return whether a copy is of a later epoch than an entry that was put back."""
    links = copy.log.links
    return foreign(entry, links) is not None and links[-1].epoch > entry.epoch
