"""The world of whole Pumps: machines with real storages, writers, a Drainer, and an adversary.

Each machine has a log of its own and copies of others'. What must hold:

    enough     what is acknowledged is synced, byte for byte, on every listed disk that is not lost
    address    the address in etcd never goes back to the primary of an earlier epoch
    invented, twice, lost      what comes out of the merge is what the ledger says, at each step
    stored, purged             nothing that a Drainer needs is gone or damaged
    progress   once nothing fails any more, everything comes out, all logs have their copies, and
               new transactions come through, within `SETTLED_WITHIN_S`

An assertion that fails in a process, and an error that no retry cures, are violations, too.

The adversary may lose any disk, but leaves each log one that its entry calls whole.
"""

from __future__ import annotations

import itertools
import logging
import os
import random
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

from penstock.cluster import log_entry
from penstock.cluster.log_entry import LogEntry
from penstock.errors import PenstockError, Retryable
from penstock.log.segment import BEGIN, segment_name
from penstock.log.segments import Place
from pump.replication import peers, shipper, shipping
from tests.kit.replicas.world import Stalled, Violation
from tests.kit.simulation.copies import Network, Replicas
from tests.kit.simulation.drainer import Drainer
from tests.kit.simulation.etcd import Etcd
from tests.kit.simulation.ledger import Ledger
from tests.kit.simulation.machine import Machine
from tests.kit.simulation.pump import Pump, Watched
from tests.kit.simulation.restoring import Restoring
from tests.kit.simulation.switches import Rules
from tests.kit.simulation.tasks import Clock, Process, Queues, Tasks, Threading
from tests.kit.simulation.writers import Source, Writer

MACHINES = 4
WRITERS = 3
LASTS_S = 25.0
SETTLED_WITHIN_S = 120.0
_MEMORY = Path("/dev/shm")
"""Where the indexes are, if it is there: LevelDB needs a folder."""


class World:
    """One run; the same seed and the same rules give the same one."""

    watch_late_s = 1.0
    fakes = 0.3
    """The share of fake binlogs; the others are watermarks."""
    sources = 1
    guests_stay = 0
    """Whether a Pump that took a log over takes new transactions until all is calm."""
    watermarks = 0

    def __init__(self, seed: int, rules: Rules | None = None, trace: bool = False) -> None:
        self.rules = rules or Rules()
        self.trace: list[str] | None = [] if trace else None
        self.chance = chance = random.Random(seed)
        self.wanted = ((2, 2), (3, 2), (2, 2), (3, 3), (2, 1))[seed % 5]
        self.tasks = Tasks(chance)
        self.is_calm = False
        self.network = Network(self.tasks, chance, self)
        self.network.loss = chance.choice((0, 0.01, 0.05))
        self.network.doubling = chance.choice((0, 0.05, 0.2))
        self.network.lateness = chance.choice((0, 0.01, 0.05))
        self.etcd = Etcd(self.tasks, chance)
        self.etcd_failing = chance.choice((0, 0.05, 0.2))
        self.death = chance.choice((0, 0.0005, 0.002))
        self.failing_disks = chance.choice((0, 0.002, 0.03))
        self.slow_disks = chance.choice((0.01, 0.01, 0.3))
        self.segment_bytes = chance.choice((300, 1500, 1500))
        self.silences = chance.choice((0, 0.01, 0.1))
        self.suspicion = chance.choice((0, 0.005, 0.02))
        self.purging = chance.choice((0, 0.1, 0.5))
        self.drainer_deaths = chance.choice((0, 0.002, 0.01))
        self.restores_etcd = chance.choice((0.0, 0.0, 2.0))
        self.restores_disks = chance.choice((0.0, 0.3))
        self.restoring = Restoring(self)
        self.etcd.on_swap = self.restoring.note_lists
        for name, value in self.rules.settings.items():
            assert hasattr(self, name), name
            setattr(self, name, value)
        self.etcd.failing, self.etcd.watch_late_s = self.etcd_failing, self.watch_late_s
        self.ledger = Ledger()
        self.drainer = Drainer(self)
        self.cut_off: set[str] = set()
        self.lost_disks = 0
        self.acknowledged = 0
        """How often a log was acknowledged further."""
        self._acknowledged: dict[tuple[str, int], Place] = {}
        """Up to where each log was, by its name and the epoch in which it began."""
        self._numbers = itertools.count()
        self._ts = 1000
        self._failure: BaseException | None = None
        self.folder = _MEMORY
        self.machines: list[Machine] = []

    @property
    def drained_ts(self) -> int:
        """Up to where the Drainer has saved what it has of every Pump."""
        return self.drainer.drained_ts

    def number(self) -> int:
        return next(self._numbers)

    def oracle(self) -> int:
        """Return a timestamp above all before."""
        self._ts += self.chance.randint(1, 9)
        return self._ts

    def note(self, text: str, *fields: object) -> None:
        if self.trace is not None:
            self.trace.append(f"{self.tasks.now_s:8.4f} {text % fields}")

    # Who is where.

    def machine(self, name: str) -> Machine:
        return self.machines[int(name.removeprefix("pump-"))]

    def copies_at(self, address: str) -> Replicas | None:
        found = self.machine(address)
        is_there = found.own is not None and not found.own.is_dead
        return found.copies if is_there else None

    def is_cut_off(self, address: str) -> bool:
        """Return whether the network has parted the caller from a machine."""
        caller = self.tasks.current.process
        name = caller.machine.name if isinstance(caller, Pump) else ""
        return (name in self.cut_off) != (address in self.cut_off)

    def pumps_of(self, log: str) -> list[Pump]:
        found = [machine.guests.get(log) for machine in self.machines]
        found.append(self.machine(log).own)
        return [pump for pump in found if pump is not None and not pump.is_dead]

    def pump_of(self, log: str) -> Pump | None:
        """Return the process at the address that etcd has for a log."""
        status = self.etcd.statuses.get(log)
        name = "" if status is None else status.host
        return next((pump for pump in self.pumps_of(log) if pump.name == name), None)

    # What must hold.

    def failed(self, pump: Pump, error: BaseException) -> None:
        self.note("%s fails: %s", pump.name, error)
        if isinstance(error, Retryable) or not isinstance(error, PenstockError):
            return
        if not self.restoring.stopped(pump, error):
            self._failure = self._failure or Violation(f"stored: {pump.name}: {error}")

    def shipping(self, pump: Pump) -> Callable[..., Any]:

        def made(*arguments: Any, **settings: Any) -> Any:
            watched = type("WatchedShipping", (Watched, self.rules.shipping), {})
            found = watched(*arguments, **settings)
            found.on_acknowledged = lambda place: self._check(pump, found, place)
            return found

        return made

    def _check(self, pump: Pump, found: Any, place: Place) -> None:
        self.acknowledged += 1
        primary, entry = found._primary, found._primary.entry
        key = (pump.log, entry.since)
        known = self._acknowledged.get(key, Place(0, 0))
        self._acknowledged[key] = max(known, place)
        self.restoring.note_acknowledged(pump.log, entry.since, place, primary.chain.links)
        if self.etcd.logs[pump.log][0].epoch != entry.epoch:
            return  # Its copies may be another one's by now.
        before = max(found.acknowledged, Place(self.restoring.needed(pump.log, entry), BEGIN))
        for link in primary.chain.links:
            if before.segment <= link.number <= place.segment:
                end = place.offset if link.number == place.segment else link.end
                begin = before.offset if link.number == before.segment else BEGIN
                holders = self._holders(pump, entry, link.number, begin, end)
                if Place(link.number, end) > known and holders < entry.copies_min:
                    raise Violation(
                        f"enough: segment {link.number} up to {end} is on {holders} disks, and"
                        f" {pump.name} acknowledges it, {entry}"
                    )

    def _holders(self, pump: Pump, entry: LogEntry, number: int, begin: int, end: int) -> int:
        """Return on how many disks a part of a segment is, or was before they were lost."""
        expected = pump.files.nodes[pump.folder / "log" / segment_name(number)].data[begin:end]
        holders = 0
        for copy in (entry.primary, *entry.replicas):
            is_older = (copy.disk, pump.log) in self.restoring.older
            machine = None if is_older else self._disk_of(copy.disk)
            if machine is None or machine.durable(pump.log, number)[begin:end] == expected:
                holders += 1
            elif copy.first <= number:
                raise Violation(
                    f"enough: {machine.name} lacks segment {number} from {begin} to {end}, which"
                    f" {pump.name} acknowledges, {entry}"
                )
        return holders

    def _disk_of(self, disk: str) -> Machine | None:
        return next((machine for machine in self.machines if machine.disk == disk), None)

    # The adversary.

    def fail(self) -> None:
        machine = self.chance.choice(self.machines)
        pumps = [*([machine.own] if machine.own else []), *machine.guests.values()]
        pumps = [pump for pump in pumps if not pump.is_dead]
        what = self.chance.random()
        if what < 0.25:
            if machine.is_up:
                machine.crash()
        elif what < 0.5 and pumps:
            machine.kill(self.chance.choice(pumps))
        elif what < 0.65 and pumps:
            self.chance.choice(pumps).is_asked_to_stop = True
        elif what < 0.8:
            names = [each.name for each in self.machines]
            self.cut_off = set(self.chance.sample(names, self.chance.choice((0, 1, 1))))
            self.note("cut off: %s", self.cut_off)
        elif self.may_lose(machine):
            self.lost_disks += 1
            machine.lose_disk()

    def silence(self) -> None:
        """Have a primary believe that one of its copies does not answer."""
        for machine in self.machines:
            if self.chance.random() < self.silences and machine.own is not None:
                primary = machine.own.shipping and machine.own.shipping._primary
                if primary and primary.entry.replicas and not machine.own.is_dead:
                    disk = self.chance.choice(primary.entry.replicas).disk
                    self.tasks.spawn(partial(machine.own.shipping.silent, disk), "", machine.own)

    def may_lose(self, machine: Machine) -> bool:
        """Return whether every log has another whole disk, whatever swaps may win yet."""
        for log in self.etcd.logs:
            entries = self.etcd.possible(log)
            for pump in self.pumps_of(log):
                proposal = pump.shipping and pump.shipping._primary._proposal
                entries += [proposal.entry] if proposal else []
            if any(self._whole_disks(log, entry) == [machine.disk] for entry in entries):
                return False
        return True

    def _whole_disks(self, log: str, entry: LogEntry) -> list[str]:
        disks = [copy.disk for copy in entry.copies_known if copy.first <= entry.needed]
        older = self.restoring.older
        return [disk for disk in disks if self._disk_of(disk) and (disk, log) not in older]

    def supervise(self) -> None:
        """Start what is down, after a while."""
        for machine in self.machines:
            is_down = machine.own is None or machine.own.is_dead
            if is_down and (self.is_calm or self.chance.random() < 0.15):
                machine.start()

    # The run.

    def run(self) -> None:
        """Let things happen, then let them settle; raise `Violation`."""
        where = _MEMORY if _MEMORY.is_dir() else None
        with tempfile.TemporaryDirectory(dir=where, prefix="penstock-") as folder:
            self.folder = Path(folder)
            with self._substituted(), _quiet(), _one_core():
                try:
                    self._live()
                    self._settle()
                except Violation:
                    raise
                except Exception as error:  # Whatever ends a task is a defect.
                    raise Violation(f"failed: {type(error).__name__}: {error}") from error
                finally:
                    self._end()

    def _end(self) -> None:
        self.tasks.end()
        for machine in self.machines:
            machine.crash()
            machine._bury()

    @contextmanager
    def _substituted(self) -> Iterator[None]:
        tasks = self.tasks
        threading, queues, clock = Threading(tasks), Queues(tasks), Clock(tasks)
        common: dict[str, Any] = {"threading": threading, "queue": queues, "time": clock}
        network = self.network
        calls: dict[str, Any] = {
            "Channel": network.channel,
            "unary": network.unary,
            "stream_unary": network.stream_unary,
        }
        with (
            mock.patch.multiple(shipping, **common),
            mock.patch.object(log_entry, "_new_id", itertools.count(1).__next__),
            mock.patch.multiple(shipper, **common, **calls),
            mock.patch.multiple(peers, Channel=network.channel, unary=network.unary),
        ):
            yield

    def counted(self) -> dict[str, int]:
        return {
            "transactions merged": len(self.ledger.arrived),
            "acknowledgements": self.acknowledged,
            "watermarks": self.watermarks,
            "epochs": sum(found[0].epoch for found in self.etcd.logs.values()),
            "disks lost": self.lost_disks,
            "etcds put back": self.restoring.etcds,
            "older disks put back": self.restoring.disks,
            "logs adopted by an operator": self.restoring.adopted,
            "restarts of the Drainer": self.drainer.restarts,
        }

    def _live(self) -> None:
        self.machines += [Machine(self, number) for number in range(MACHINES)]
        for machine in self.machines:
            machine.start()
        self.tasks.spawn(self.drainer.run, "drainer", Process("drainer"))
        for n in range(WRITERS):
            self.tasks.spawn(Writer(self).run, f"writer {n}", Process(f"writer {n}"))
        for _ in range(self.sources):
            self.tasks.spawn(Source(self).run, "source", Process("source"))
        next_fault_s, pause_s = 3.0, self.chance.choice((0.5, 1.5, 4.0))
        while self.tasks.now_s < LASTS_S:
            self.pass_by(0.1)
            self.supervise()
            self.silence()
            self.restoring.back_up()
            self.restoring.look_after()
            if self.tasks.now_s > next_fault_s:
                self.fail()
                if self.chance.random() < self.restores_disks:
                    self.restoring.restore_disk()
                if self.chance.random() < self.restores_etcd * pause_s / LASTS_S:
                    self.restoring.restore_etcd()
                next_fault_s = self.tasks.now_s + self.chance.uniform(0, 2 * pause_s)

    def pass_by(self, length_s: float) -> None:
        self.tasks.sleep(length_s)
        failure = self._failure or self.tasks.failure
        if failure is not None:
            raise failure
        if self.etcd.went_back:
            raise Violation(f"address: {self.etcd.went_back}")

    def _settle(self) -> None:
        self.note("calm")
        self.is_calm = True
        self.cut_off = set()
        self.network.loss = self.network.doubling = self.network.lateness = 0.0
        self.etcd.failing = self.suspicion = 0.0
        until_s = self.tasks.now_s + SETTLED_WITHIN_S
        last: list[Any] = []
        while self.tasks.now_s < until_s:
            self.pass_by(0.5)
            self.restoring.look_after()  # Before a refused Pump starts again.
            self.supervise()
            if not self._is_in_order():
                last.clear()
            elif not last:
                self.tasks.spawn(lambda: last.append(Writer(self).transact()), "last", Process("l"))
                last.append(None)
            elif last[-1] is not None and not self._missing():
                return
        raise Stalled(f"progress: {self._missing()[:3]}, {self._states()}")

    def _missing(self) -> list[Any]:
        return self.ledger.missing()

    def _is_in_order(self) -> bool:
        """Return whether each log is served by its own Pump and has its copies."""
        for machine in self.machines:
            found, pump = self.etcd.logs.get(machine.name), self.pump_of(machine.name)
            if found is None or pump is None or pump is not machine.own:
                return False
            entry = found[0]
            whole = self._whole_disks(machine.name, entry)
            if not pump.is_serving or not len(whole) == 1 + len(entry.replicas) == entry.copies:
                return False
        return True

    def _states(self) -> str:
        merger = self.drainer.merger
        return "; ".join(
            f"{name}: {status.state} {status.host}, "
            f"{'merged to ' + str(merger.received_ts(name)) if name in merger.sources else 'out'}, "
            f"{self.etcd.logs[name][0].to_json()}"
            for name, status in sorted(self.etcd.statuses.items())
        )


@contextmanager
def _quiet() -> Iterator[None]:
    """Have no logs: everything fails all the time here, and `trace` says what does."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(before)


@contextmanager
def _one_core() -> Iterator[None]:
    """Stay on one core: only one thread runs at a time, and to wake one elsewhere takes longer."""
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {sorted(allowed)[os.getpid() % len(allowed)]})
    try:
        yield
    finally:
        os.sched_setaffinity(0, allowed)
