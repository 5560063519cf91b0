"""The world that the core runs in: machines, a network, etcd, Drainers, and an adversary.

What must hold is checked after each step, by one who sees everything:

    listed     every listed disk that is not lost has synced what was acknowledged, from its first
               segment on, as far as Drainers lack it; an eligible one too
    enough     what is acknowledged is, at that moment, synced on `copies_min` listed disks
    stream     whatever primary a Drainer asks, it gets the acknowledged groups in one order, with
               none left out
    place      a frame at one place of a segment of an epoch and its id is never another one
    older      no disk that was put back to an older state takes over without all of the log
    restored   no primary serves an etcd that was put back without all acknowledged groups
    address    the address in etcd never goes back to the primary of an earlier epoch
    watermark  who has confirmed its epoch has all that was acknowledged when it asked
    leaving    a copy that answers is put off the list only if `copies` whole ones stay
    progress   once nothing fails any more, everything acknowledged is streamed, new groups are
               acknowledged, and the list is complete, within a number of rounds

The adversary may lose any disk, but leaves one that the entry calls whole, also if a swap that is
under way should win: with two whole disks it takes one, and the next one when there are two again.
It may damage a copy in the same way, which counts as lost from then on, until it begins again: then
it is held to what it must have if it is listed still.

It may put etcd back to an entry from before, while no Pump runs. No disk fails then until a primary
serves the log, and machines stay down only if one that shows that the entry is old is up, or one
that the entry names has all: else no rule could help. Where no disk can show that it has all, an
operator names the one that has.

It may put an older folder of a listed disk back, where the mark in etcd shows that this disk had
more, or another disk does for the primary's. The primary's folder is refused, and its Pump starts
with an empty one. A replica counts as lost until a primary has given it the rest again; meanwhile
its Pump may try to take over, and the log is not moved to it.

The module is long because what happens in the world draws from one source of chance.
"""

import contextlib
import itertools
import random
from bisect import bisect_left
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any, NamedTuple
from unittest import mock

from penstock.cluster import log_entry
from penstock.cluster.log_entry import Copy, LogEntry
from penstock.errors import NeedsOperator, Retryable
from penstock.log.segment import BEGIN
from penstock.log.segments import Place
from pump.replication.claiming import refuse_older
from pump.replication.protocol import messages as m
from pump.replication.protocol.chain import Chain, Seen, Verdict, foreign, judge, lacks
from pump.replication.protocol.primary import Primary
from pump.replication.protocol.replica import Claim, Replica
from tests.kit.replicas.disk import Disk, PeerDisk, Piece, Stored
from tests.kit.replicas.store import Store

MACHINES = 5
STEPS, STEPS_OF_A_LONG_RUN = 250, 1000
ROUNDS_MAX = 100
STRANGERS_EVERY = 10
ROUND_STEPS_MAX = 1000
PIECE_BYTES = 3


class Violation(AssertionError):
    """Something that must hold does not."""


class Stalled(Violation):
    """Nothing is wrong with what is stored, but the log does not get on."""


class Crash(Exception):
    """The machine died before an action."""


@dataclass(frozen=True)
class Rules:
    """Which rules hold; a test switches off one at a time (`switches.py`)."""

    name: str = ""
    replica: type[Replica] = Replica
    primary: type[Primary] = Primary
    claim: type[Claim] = Claim
    syncs_before_it_answers: bool = True
    knows_disks: bool = True
    compares_revisions: bool = True
    compares_for_status: bool = True
    streams_acknowledged_only: bool = True
    compares_histories: bool = True
    judge: Callable[..., Verdict] = judge
    waits_for_all_disks: bool = True
    restores: float = 0.1
    """How often etcd is put back."""
    loses_whole: bool = False
    """Whether the disks are lost then that have all of the log."""
    damages: float = 1
    """How often a copy is found damaged."""
    refuses_older: bool = True
    heeds_mark: bool = True
    confirms: float = 4
    """How often a primary asks for a watermark."""
    suspects: float = 1.5
    """How often a disk claims the log."""
    restores_disks: float = 2
    """How often an older folder is put back."""
    strikes_first_group: float = 0
    """How often that happens as a primary has written the first group of an epoch."""
    strikes_listed_again: float = 0
    """How often a copy is damaged once more as it is listed again, and what is late arrives."""


class Machine:
    """One Pump with a disk; it serves the log as its primary, or has a copy of it, or nothing."""

    def __init__(self, number: int, disk: Disk) -> None:
        self.number = number
        self.disk = disk
        self.is_up = True
        self.replica: Replica
        self.primary: Primary | None = None
        self.claim: Claim | None = None
        self.streamable = 0
        """How many groups of the log were acknowledged by this primary."""
        self.asked = (0, 0)
        """The last question about its epoch, and how many groups were acknowledged then."""
        self.backup: dict[int, Stored] = {}
        """The disk before its Pump began its last epoch."""

    @property
    def copy(self) -> Copy:
        return Copy(f"pump-{self.number}", self.disk.id)


class Message(NamedTuple):
    sender: int
    sender_disk: str
    to: int
    to_disk: str
    content: Any
    piece: Piece | None


class Request(NamedTuple):
    """A call of etcd; `owner` is the claim or the primary that gets the answer."""

    machine: int
    owner: Claim | Primary
    action: Any


class World:
    """One run; the same seed and the same rules give the same one."""

    watermarks = 0

    def __init__(self, seed: int, rules: Rules | None = None, trace: bool = False) -> None:
        self.random = random.Random(seed)
        self.steps = STEPS if seed % 10 else STEPS_OF_A_LONG_RUN
        self.rules = rules or Rules()
        self.trace: list[str] | None = [] if trace else None
        copies, copies_min = ((2, 2), (3, 2), (2, 2), (3, 3), (2, 1))[seed % 5]
        self.network: list[Message] = []
        self.late: list[Message] = []
        """Second copies of messages that have arrived, or will."""
        self.loss = self.random.choice((0, 0.02, 0.1))
        self.doubling = self.random.choice((0, 0.05, 0.3))
        self.death = self.random.choice((0, 0.001, 0.004))
        self.failing_syncs = self.random.choice((0, 0.05, 0.4))
        self.requests: list[Request] = []
        self.cut_off: set[int] = set()
        self.draining: set[int] = set()
        """Machines that are to be switched off."""
        self.missed: set[str] = set()
        """Disks that some primary may have found silent, or without anything of its log."""
        self.is_calm = False
        self.broken: set[frozenset[int]] = set()
        """Between which machines something was lost since they were connected."""
        self.acknowledged: list[int] = []
        self.segments: list[int] = []
        """In which segment each of them is; that never changes."""
        self.streamed = 0
        self.drained = 0
        self.written = 0
        self.lost_disks = 0
        self.damages = 0
        self.reinitialised = 0
        self.rotten: Machine | None = None
        self.contents: dict[tuple[int, int, int, int], int] = {}
        self.address_epoch = 0
        self.changed: set[int] | None = None
        """Machines whose copies to look at after this step; None: all."""
        self.machines = [Machine(n, Disk(f"d{n}")) for n in range(MACHINES)]
        entry = LogEntry(
            epoch=0, primary=self.machines[0].copy, copies=copies, copies_min=copies_min
        )
        self.store = Store(entry)
        self._begin_restores()
        for machine in self.machines:
            self.open(machine)

    def _begin_restores(self) -> None:
        self.disks = MACHINES
        self.restored = 0
        self.older_disks = 0
        self.older: set[str] = set()
        """Replicas that were put back to an older state, and lack what they had since."""
        self.off_list_older: set[str] = set()
        """Those that left the list; an etcd that is put back may list them again."""
        self.adopted = 0
        self.is_restored = False
        """True from when etcd was put back until a primary serves the log again."""
        self.is_refused = False
        """True once a disk did not claim because of another history."""
        self.rounds = 0
        self.ids = itertools.count(1)
        self.statuses: list[tuple[int, tuple[int, int]]] = []

    # Machines.

    def open(self, machine: Machine) -> None:
        if machine.disk.is_damaged:
            self.damages += 1
            machine.replica = self.rules.replica(Chain(), self.damages)
        else:
            machine.replica = self.rules.replica(machine.disk.chain())
        machine.primary = machine.claim = None
        self.broken |= {frozenset((machine.number, n)) for n in range(MACHINES)}
        machine.streamable, machine.asked = 0, (0, 0)

    def crash(self, machine: Machine) -> None:
        self.note("pump-%d dies", machine.number)
        machine.disk.crash(self.random)
        machine.is_up = self.is_restored
        self.open(machine)
        self.look_at(machine)

    def claim(self, machine: Machine) -> None:
        is_free = machine.primary is None and machine.claim is None and machine.is_up
        if is_free and not machine.disk.is_damaged and self.may_claim(machine):
            self.note("pump-%d claims the log", machine.number)
            machine.claim = self.rules.claim(machine.copy, machine.replica)
            self.carry_out(machine, machine.claim.start())

    def may_claim(self, machine: Machine) -> bool:
        """Do what `pump.replication.claiming` does before a claim."""
        others = [each for each in self.machines if each is not machine]
        there = [m for m in others if m.is_up and m.number not in self.cut_off]
        if self.rules.refuses_older and self.is_older(machine, there):
            return False
        if not self.rules.compares_histories:
            return True
        return self.may_claim_beside(machine, others, there)

    def is_older(self, machine: Machine, there: list[Machine]) -> bool:
        """Return whether the folder is refused, as another disk has more that began on it."""
        chain = machine.replica.chain
        disks = [PeerDisk(each.disk) for each in there if not each.disk.is_damaged]
        if not chain.links:
            return False
        try:
            entry = self.store.entry
            entry = entry if self.rules.heeds_mark else replace(entry, mark=None)
            refuse_older("pump-0", machine.copy, chain, entry, disks)
        except NeedsOperator as error:
            self.note("pump-%d does not claim: %s", machine.number, error)
            return True
        return False

    def may_claim_beside(
        self, machine: Machine, others: list[Machine], there: list[Machine]
    ) -> bool:
        """Do what `refuse_other_history` does."""
        chain = machine.replica.chain
        seen = [
            Seen(each.copy, tuple(each.replica.chain.links))
            for each in there
            if not each.disk.is_damaged
        ]
        missing = [each.copy.pump for each in others if each.copy not in {s.copy for s in seen}]
        missing = missing if self.rules.waits_for_all_disks else []
        found = self.rules.judge(self.store.entry, machine.copy, chain, seen, missing)
        if found.adopted is not None:
            self.note("pump-%d adopts the log: %s", machine.number, found.adopted)
            self.store.put_entry(found.adopted)
        elif found.waits or found.refuses:
            self.is_refused = True
            self.note("pump-%d does not claim: %s", machine.number, found)
        return not (found.waits or found.refuses)

    def carry_out(self, machine: Machine, actions: m.Actions, piece: Piece | None = None) -> None:
        """Carry out actions one by one; the machine may die before each."""
        try:
            for action in actions:
                if not self.is_calm and self.random.random() < self.death:
                    raise Crash
                if self.trace is not None:
                    self.note("pump-%d: %s", machine.number, action)
                _CARRIED_OUT[type(action)](self, machine, action, piece)
        except Crash:
            self.crash(machine)

    def cut(self, machine: Machine, action: m.Cut, piece: Piece | None) -> None:
        disk = machine.disk
        while next(reversed(disk.segments)) != action.place.segment:
            self.may_die()
            disk.remove_last()
        disk.truncate(action.place.offset)
        self.look_at(machine)

    def clear(self, machine: Machine, action: m.Clear, piece: Piece | None) -> None:
        while machine.disk.segments:
            machine.disk.remove_last()
            self.may_die()
        self.look_at(machine)

    def set_aside(self, machine: Machine, action: m.SetAside, piece: Piece | None) -> None:
        """Move file by file: once those that are damaged are gone, what is left can be opened."""
        disk = machine.disk
        while disk.segments:
            self.may_die()
            disk.remove_last()
            disk.is_damaged &= self.random.random() < 0.5
        disk.is_damaged = False
        self.reinitialised += 1
        self.look_at(machine)

    def may_die(self) -> None:
        if not self.is_calm and self.random.random() < 10 * self.death:
            raise Crash

    def write(self, machine: Machine, action: m.Write, piece: Piece | None) -> None:
        assert piece is not None
        machine.disk.write(action, piece)

    def write_before(self, machine: Machine, action: m.WriteBefore, piece: Piece | None) -> None:
        assert piece is not None
        machine.disk.write_before(action.link, piece)

    def sync(self, machine: Machine, action: m.Sync, piece: Piece | None) -> None:
        if self.rules.syncs_before_it_answers:
            machine.disk.sync()

    def drop_before(self, machine: Machine, action: m.DropBefore, piece: Piece | None) -> None:
        machine.disk.drop_before(action.segment)
        self.look_at(machine)

    def begin(self, machine: Machine, action: m.Begin, piece: Piece | None) -> None:
        machine.disk.begin(*action)

    def acknowledge(self, machine: Machine, action: m.Acknowledge, piece: Piece | None) -> None:
        """Take note of what is acknowledged, and hold it to what was before."""
        disk = machine.disk
        if action.place.segment not in disk.segments:
            raise Violation(f"enough: {action.place} is not where it was written")
        upto = disk.index_at(action.place)
        begin, frames = disk.synced_from(machine.streamable)
        for index in range(machine.streamable, min(upto, len(self.acknowledged))):
            if index >= begin >= 0 and frames[index - begin] != self.acknowledged[index]:
                raise Violation(f"stream: another group is acknowledged as the {index}th")
        for index in range(len(self.acknowledged), upto):
            if self.is_restored:
                raise Violation(f"restored: pump-{machine.number} serves {self.store.entry}")
            if not begin <= index < begin + len(frames):
                raise Violation(f"enough: the {index}th group is not synced where it was written")
            self.check_enough(machine, index, frames[index - begin])
            self.acknowledged.append(frames[index - begin])
            self.segments.append(disk.segment_of(index))
            self.changed = None
        machine.streamable = max(machine.streamable, upto)

    def check_enough(self, machine: Machine, index: int, value: int) -> None:
        assert machine.primary is not None
        entry = machine.primary.entry
        disks = [self.disk_of(copy) for copy in (entry.primary, *entry.replicas)]
        holders = sum(disk is not None and disk.has(index, value) for disk in disks)
        lost = sum(disk is None for disk in disks)
        if holders + lost < entry.copies_min:
            raise Violation(f"enough: the {index}th group is acknowledged with {holders} copies")

    def reply(self, machine: Machine, action: m.Reply, piece: Piece | None) -> None:
        assert self.answering is not None
        asked = self.answering
        self.send(
            Message(
                machine.number,
                machine.disk.id,
                asked.sender,
                asked.sender_disk,
                action.answer,
                None,
            )
        )

    def send_request(self, machine: Machine, action: m.Send, piece: Piece | None) -> None:
        to, request, disk = action.to, action.request, machine.disk
        sent: Piece | None = None
        if isinstance(request, m.Append):
            sent = disk.read(request.segment, request.offset, request.end)
        elif isinstance(request, m.Prepend):
            sent = disk.read(request.link.number, 0, request.link.end)
        number = int(to.pump.removeprefix("pump-"))
        self.send(Message(machine.number, disk.id, number, to.disk, request, sent))

    def send(self, message: Message) -> None:
        if self.is_calm:
            self.network.append(message)
            return
        way = frozenset((message.sender, message.to))
        if (message.sender in self.cut_off) != (message.to in self.cut_off):
            self.broken.add(way)
            return
        chance = self.random.random()
        if chance > self.loss:
            self.network.append(message)
        else:
            self.broken.add(way)
        is_aimed_at = self.rules.strikes_listed_again > 0 and isinstance(message.content, m.Append)
        is_aimed_at |= isinstance(message.content, m.Confirmed)
        if is_aimed_at or chance > 1 - self.doubling:
            self.late.append(message)

    def ask_etcd(self, machine: Machine, action: m.Swap | m.ReadEntry, piece: Any) -> None:
        owner = machine.primary or machine.claim
        if owner is not None:
            self.requests.append(Request(machine.number, owner, action))

    def check_list(self, before: LogEntry, after: LogEntry) -> None:
        """Hold a change of the list to it that no disk goes before others are there."""
        if after.primary != before.primary:
            if after.primary.disk not in self.heirs(before):
                raise Violation(f"leaving: {before} is given to a disk that may not take over")
            self.missed.clear()  # The next primary has to find that out itself.
            return
        gone = {copy.disk for copy in before.replicas} - {copy.disk for copy in after.replicas}
        whole = 1 + sum(copy.first <= after.needed for copy in after.replicas)
        damaged = {d for each in self.machines if each.primary for d in each.primary._damaged}
        damaged |= {each.disk.id for each in self.machines if each.disk.is_damaged}
        if gone and not gone & (self.missed | damaged) and whole < after.copies:
            raise Violation(f"leaving: {gone} are put off, and {after} remains")
        self.missed -= {copy.disk for copy in after.replicas if before.replica(copy.disk) is None}

    def heirs(self, entry: LogEntry) -> set[str]:
        copies = entry.copies_known
        return {copy.disk for copy in copies if entry.may_claim(copy.disk)}

    def step_down(self, machine: Machine, action: m.StepDown, piece: Piece | None) -> None:
        self.open(machine)

    # What happens.

    def deliver(self) -> None:
        if self.network:
            self.arrive(self.network.pop(self.random.randrange(len(self.network))))

    def deliver_late(self) -> None:
        if self.late:
            self.arrive(self.late.pop(self.random.randrange(len(self.late))))

    def arrive(self, message: Message) -> None:
        machine = self.machines[message.to]
        if not machine.is_up or (machine.disk.id != message.to_disk and self.rules.knows_disks):
            self.broken.add(frozenset((message.sender, message.to)))
            return
        if self.trace is not None:
            self.note("pump-%d gets %s from %d", message.to, message.content, message.sender)
        if isinstance(message.content, m.Request):
            self.receive(machine, message)
        elif machine.primary is not None:
            primary, answer = machine.primary, message.content
            is_other = (
                isinstance(answer, m.ReplicaState) and primary.chain.agreement(answer.links) is None
            )
            if isinstance(answer, m.ReplicaState):
                is_other |= lacks(Chain(answer.links), primary.entry.mark)
            if is_other or isinstance(answer, m.Damaged):
                self.missed.add(message.sender_disk)
            self.carry_out(machine, primary.answered(message.sender_disk, answer))
            self.check_confirmed(machine)

    def receive(self, machine: Machine, message: Message) -> None:
        if machine.primary is not None:
            self.carry_out(machine, machine.primary.outran(message.content.epoch))
            if not machine.is_up:
                return
        self.answering = message
        self.carry_out(machine, machine.replica.receive(message.content), message.piece)
        self.look_at(machine)

    answering: Message | None = None

    def etcd(self) -> None:
        """Carry out a call of etcd; its answer may be lost, or the call come late or never."""
        if not self.requests:
            return
        at = self.random.randrange(len(self.requests)) if not self.is_calm else 0
        request = self.requests.pop(at)
        chance = 1.0 if self.is_calm else self.random.random()
        if chance < 0.05:  # The caller waits no longer, and the call comes late.
            self.requests.append(request)
            self.etcd_answers(request, None)
        elif chance < 0.1:
            self.etcd_answers(request, None)
        elif isinstance(request.action, m.ReadEntry):
            self.entry_seen(request, self.store.entry, self.store.entry_revision)
        else:
            revision = self.swap(request.action)
            self.etcd_answers(request, None if chance < 0.25 else revision)

    def swap(self, action: m.Swap) -> int | None:
        entry = self.store.entry
        revision = self.store.entry_revision
        won = self.store.swap(
            action.revision if self.rules.compares_revisions else revision, action.entry
        )
        if won is not None and self.store.entry != entry:
            self.off_list_older |= self.older
            self.older &= {copy.disk for copy in self.store.entry.copies_known}
            self.check_list(entry, self.store.entry)
            self.changed = None
            self.note("etcd: %s at %d", action.entry, won)
            if self.strikes(self.rules.strikes_listed_again):
                self.damage_again()
        return won

    def damage_again(self) -> None:
        """Damage a listed copy that began again once; what it was sent for that comes late."""
        late = [each for each in self.late if getattr(each.content, "damage", 0)]
        for message in late:
            machine = self.machines[message.to]
            if self.store.entry.replica(machine.disk.id) is not None:
                self.damage_copy(machine)
                self.late.remove(message)
                self.arrive(message)

    def etcd_answers(self, request: Request, revision: int | None) -> None:
        machine = self.machines[request.machine]
        if request.owner not in (machine.primary, machine.claim):
            return
        if isinstance(request.action, m.ReadEntry):
            self.carry_out(machine, [request.action])  # It is read again until there is an answer.
            return
        self.carry_out(machine, request.owner.swapped(revision))
        self.may_begin(machine)

    def entry_seen(self, request: Request, entry: LogEntry, revision: int) -> None:
        machine = self.machines[request.machine]
        if request.owner in (machine.primary, machine.claim):
            self.carry_out(machine, request.owner.entry_seen(entry, revision))
            self.may_begin(machine)

    def may_begin(self, machine: Machine) -> None:
        """Begin the epoch if the claim was won."""
        claim = machine.claim
        if claim is None or not claim.is_over:
            return
        machine.claim = None
        if claim.won is None:
            return
        machine.primary = self.rules.primary(
            machine.copy, machine.replica.chain, claim.won, piece_bytes_max=PIECE_BYTES
        )
        if machine.disk.id in self.older and not self.has_all(machine):
            raise Violation(f"older: {machine.copy} takes over without all of the log")
        self.is_restored &= not self.has_all(machine)
        self.changed = None
        machine.backup = deepcopy(machine.disk.segments)
        if not self.rules.streams_acknowledged_only:
            machine.streamable = machine.disk.count()
        self.carry_out(machine, machine.primary.start())

    def watch(self) -> None:
        machine = self.any_primary()
        if machine is not None and machine.primary is not None:
            seen = self.random.choice(self.store.history[-3:])
            self.carry_out(machine, machine.primary.entry_seen(*seen))

    def append(self) -> None:
        machine = self.any_primary()
        if machine is not None:
            self.append_to(machine)

    def append_to(self, machine: Machine) -> None:
        primary, disk = machine.primary, machine.disk
        if primary is None or not primary.is_ready:
            return
        number, offset = primary.chain.end
        is_first = offset == BEGIN
        if offset > BEGIN and self.random.random() < 0.2:
            number, offset = number + 1, BEGIN
            disk.begin(number, primary.entry.epoch, primary.entry.id)
        for _ in range(self.random.choice((1, 1, 2, 5))):
            self.written += 1
            disk.segments[number].frames.append(self.written)
            stored = disk.segments[number]
            self.check_place((number, stored.epoch, stored.epoch_id, offset), self.written)
            offset += 1
        self.carry_out(machine, primary.appended(Place(number, offset)))
        if is_first and self.strikes(self.rules.strikes_first_group):
            disk.sync()
            self.restore_epoch(machine)

    def strikes(self, chance: float) -> bool:
        """Return whether an adversary who aims at one rule strikes now."""
        return chance > 0 and not self.is_calm and self.random.random() < chance

    def check_place(self, place: tuple[int, int, int, int], value: int) -> None:
        if self.contents.setdefault(place, value) != value:
            raise Violation(f"place: another group at {place}")

    def confirm(self) -> None:
        """A primary takes a timestamp for a watermark, once it has what it serves."""
        machine = self.any_primary()
        if machine is None or machine.primary is None:
            return
        primary = machine.primary
        if machine.streamable or primary.is_ready:
            before, actions = len(self.acknowledged), primary.confirm()
            machine.asked = (primary.confirms, before)
            self.carry_out(machine, actions)
            self.check_confirmed(machine)

    def check_confirmed(self, machine: Machine) -> None:
        """Hold a watermark that is confirmed to what was acknowledged, by whomever, before it."""
        primary, (number, before) = machine.primary, machine.asked
        if primary is None or not 0 < number <= primary.confirmed:
            return
        self.watermarks += 1
        machine.asked = (0, 0)
        if machine.streamable < before:
            raise Violation(
                f"watermark: pump-{machine.number} has {machine.streamable} of {before} groups"
            )

    def sync_own(self) -> None:
        machine = self.any_primary()
        if machine is None or machine.primary is None:
            return
        disk, chain = machine.disk, machine.primary.chain
        if not self.is_calm and self.random.random() < self.failing_syncs:
            stored = disk.segments[chain.end.segment]
            if stored.synced < len(stored.frames):
                self.note("pump-%d: a sync fails", machine.number)
                end = Place(chain.end.segment, BEGIN + stored.synced)
                del stored.frames[stored.synced :]
                self.carry_out(machine, machine.primary.abandoned(end))
            return
        disk.sync()
        self.carry_out(machine, machine.primary.own_synced())

    def pull(self) -> None:
        machine = self.any_primary()
        if machine is not None:
            self.pull_from(machine)

    def pull_from(self, machine: Machine) -> None:
        """A Drainer continues from where it is."""
        if machine.streamable <= self.streamed:
            return
        begin, frames = machine.disk.synced_from(self.streamed)
        for index in range(self.streamed, machine.streamable):
            if not begin <= index < begin + len(frames):
                raise Violation(f"stream: pump-{machine.number} has not the {index}th group")
            expected = self.acknowledged[index] if index < len(self.acknowledged) else None
            if frames[index - begin] != expected:
                raise Violation(f"stream: another group is streamed as the {index}th")
        self.streamed = machine.streamable

    def drain(self) -> None:
        """Drainers have applied a part, so segments are not needed any more."""
        self.drained = self.random.randint(self.drained, self.streamed)
        machine = self.any_primary()
        if machine is not None:
            self.need(machine)

    def need(self, machine: Machine) -> None:
        if machine.primary is not None:
            needed = next(
                (
                    number
                    for number, stored in machine.disk.segments.items()
                    if stored.before + len(stored.frames) > self.drained
                ),
                machine.primary.chain.end.segment,
            )
            self.carry_out(machine, machine.primary.needs(needed))

    def mark(self) -> None:
        """A primary has etcd know up to where the log is acknowledged."""
        machine = self.any_primary()
        if machine is not None and machine.primary is not None:
            self.carry_out(machine, machine.primary.marks())

    def purge(self) -> None:
        machine = self.any_primary()
        if machine is not None and machine.primary is not None:
            machine.primary.dropped(machine.primary.droppable_before)
            machine.disk.drop_before(machine.primary.chain.first)
            self.look_at(machine)

    def heartbeat(self) -> None:
        machine = self.any_primary()
        if machine is None or machine.primary is None:
            return
        primary = machine.primary
        self.statuses.append((primary.revision, (primary.entry.epoch, machine.number)))
        self.put_status()

    def put_status(self) -> None:
        if self.random.random() < 0.3:
            return
        revision, status = self.statuses.pop(self.random.randrange(len(self.statuses)))
        known = revision if self.rules.compares_for_status else self.store.entry_revision
        before = self.store.status_epoch()
        with contextlib.suppress(Retryable):
            self.store.put_status(known, *status)
        if self.store.status_epoch() < before:
            raise Violation(f"address: back to pump-{status[1]} of epoch {status[0]}")

    def silence(self) -> None:
        machine = self.any_primary()
        if machine is not None and machine.primary is not None:
            disks = [copy.disk for copy in machine.primary.entry.replicas]
            learner = machine.primary.learner
            disks += [learner] if learner is not None else []
            if disks:
                disk = self.random.choice(disks)
                self.missed.add(disk)
                self.carry_out(machine, machine.primary.silent(disk))

    def connect(self) -> None:
        machine = self.any_primary()
        if machine is not None and machine.primary is not None:
            disk = self.random.choice(self.machines).disk.id
            self.carry_out(machine, machine.primary.connected(disk))

    def candidate(self) -> None:
        machine = self.any_primary()
        if machine is not None and machine.primary is not None:
            other = self.random.choice(self.machines)
            if other.is_up:
                self.carry_out(machine, machine.primary.candidate(other.copy))

    def leave(self) -> None:
        """An operator wants to switch off other machines than before, and a primary hears of it."""
        if self.random.random() < 0.5:
            number = self.random.choice((0, 1, 1, 2))
            self.draining = set(self.random.sample(range(MACHINES), number))
        machine = self.any_primary()
        if machine is not None and machine.primary is not None:
            self.carry_out(machine, machine.primary.draining(self.leaving_disks()))

    def leaving_disks(self) -> set[str]:
        return {self.machines[number].disk.id for number in self.draining}

    def move(self) -> None:
        """An operator moves the log, goes on with that, or thinks better of it."""
        machine = self.any_primary()
        if machine is None or machine.primary is None:
            return
        if self.random.random() < 0.6:
            other = self.random.choice(self.machines)
            wanted = "" if other is machine or self.random.random() < 0.2 else other.disk.id
            self.carry_out(machine, machine.primary.moves_to(wanted))
            if machine.primary is not None and wanted and other.is_up:
                self.carry_out(machine, machine.primary.candidate(other.copy))
        else:
            # Who moves a log sees to it that another disk is whole; here it is the heir's.
            heirs = [each.disk for each in self.machines if not each.disk.is_damaged]
            heirs = [disk for disk in heirs if disk.id not in self.older]
            if machine.primary._moves_to in [disk.id for disk in heirs]:
                self.carry_out(machine, machine.primary.gives_away())

    def suspect(self) -> None:
        self.claim(self.random.choice(self.machines))

    def fail(self) -> None:
        """A machine dies, one comes back, or the network parts."""
        machine = self.random.choice(self.machines)
        chance = self.random.random()
        if chance < 0.6 or self.is_restored:
            self.restart(machine)
        elif chance < 0.8:
            if machine.is_up:
                self.crash(machine)
        else:
            self.cut_off = set(self.random.sample(range(MACHINES), self.random.choice((0, 0, 1))))

    def restart(self, machine: Machine) -> None:
        if not machine.is_up:
            self.note("pump-%d starts", machine.number)
            machine.is_up = True
            if self.random.random() < 0.7:
                self.claim(machine)

    def damage(self) -> None:
        """A copy is found damaged when its folder is opened, and no other disk can mend it."""
        machine = self.random.choice(self.machines)
        if self.rotten is not None and self.random.random() < 0.7:
            machine = self.rotten  # What has rotted once does so again.
        self.damage_copy(machine)

    def damage_copy(self, machine: Machine) -> None:
        is_copy = machine.primary is None and machine.claim is None and machine.disk.segments
        if is_copy and self.may_lose(machine.disk):
            self.note("pump-%d finds its copy damaged", machine.number)
            machine.disk.is_damaged = True
            self.rotten = machine
            self.crash(machine)
            machine.is_up = True

    def may_lose(self, disk: Disk) -> bool:
        """Return whether another disk is whole, whatever swap may win."""
        if self.is_restored:
            return False
        entries = [self.store.entry]
        entries += [r.action.entry for r in self.requests if isinstance(r.action, m.Swap)]
        primaries = [each.primary for each in self.machines if each.primary is not None]
        if any(each._gives_away and each._moves_to == disk.id for each in primaries):
            return False
        return not any(self.whole_disks(entry) == [disk.id] for entry in entries)

    def restore(self) -> None:
        """Stop all Pumps, put etcd back, and start them again; all disks are there."""
        if self.is_restored or self.older:
            return
        self.append()  # So that some disk has what no other one may have.
        self.sync_own()
        found, revision = self.random.choice(self.store.history[-6:])
        self.put_back(found, revision)
        if self.rules.loses_whole:
            self.lose_whole(found)
        else:
            self.begin_after_restore(found)

    def restore_epoch(self, machine: Machine) -> None:
        """Put etcd back to before an epoch of which only its primary's disk has any yet.

        Then another disk that was listed before wins an epoch of the same number.
        """
        epoch = self.store.entry.epoch
        found, revision = [each for each in self.store.history if each[0].epoch < epoch][-1]
        heirs = [m for m in self.machines if found.may_claim(m.disk.id) and self.has_all(m)]
        heirs = [heir for heir in heirs if heir is not machine]
        if heirs and not (self.is_restored or self.older):
            self.put_back(found, revision)
            for each in self.machines:
                each.is_up = each is heirs[0]
            self.claim(heirs[0])
            machine.is_up = True

    def put_back(self, found: LogEntry, revision: int) -> None:
        self.note("etcd is put back to %s at %d", found, revision)
        for machine in self.machines:
            self.crash(machine)
        for waiting in (self.requests, self.network, self.late, self.statuses):
            waiting.clear()
        self.cut_off = set()
        self.store.put_entry_back(found, revision)
        listed = {copy.disk for copy in found.copies_known}
        self.missed |= listed
        self.older |= self.off_list_older & listed
        self.restored += 1
        self.is_restored = True

    def begin_after_restore(self, entry: LogEntry) -> None:
        """Start machines: all, or one that has what a rule needs, and others by chance."""
        chains = [machine.replica.chain.links for machine in self.machines]
        known = [m for m, chain in zip(self.machines, chains, strict=True) if foreign(entry, chain)]
        whole = [m for m in self.machines if entry.may_claim(m.disk.id) and self.has_all(m)]
        weak = [m for m in known if not m.disk.is_damaged and not self.has_all(m)]
        how = self.random.choice(("all", "weak", "whole"))
        some = {"all": self.machines, "weak": weak, "whole": whole}[how] or self.machines
        first = self.random.choice(some)
        for machine in self.machines:
            is_held_back = self.has_all(machine) if how == "weak" else machine in known
            is_free = some is self.machines or (not is_held_back and self.random.random() < 0.8)
            machine.is_up = machine is first or is_free

    def lose_whole(self, entry: LogEntry) -> None:
        """Lose each disk that has all, or had all under an entry that was put back.

        Where another disk shows that, and nothing shows what was acknowledged, none may continue.
        """
        began = (entry.epoch, entry.id)
        lost = [m for m in self.machines if self.has_all(m) or entry.may_claim(m.disk.id)]
        chains = [machine.replica.chain.links for machine in self.machines if machine not in lost]
        of_entry = any((link.epoch, link.epoch_id) == began for links in chains for link in links)
        if of_entry or not any(foreign(entry, links) for links in chains):
            self.begin_after_restore(entry)
            return
        for machine in self.machines:
            machine.is_up = True
            if machine in lost:
                self.disks += 1
                machine.disk = Disk(f"d{self.disks}")
                self.open(machine)
        for machine in self.machines:
            self.may_claim(machine)
        if self.store.entry != entry:
            raise Violation(f"restored: {self.store.entry} is adopted, and lacks what is lost")
        raise Stalled("restored: no disk may continue the log, as is right")

    def has_all(self, machine: Machine) -> bool:
        expected = self.acknowledged[self.drained :]
        if machine.disk.is_damaged or machine.disk.count() < len(self.acknowledged):
            return False
        at, frames = machine.disk.synced_from(self.drained)
        return not expected or (at == self.drained and frames[: len(expected)] == expected)

    def adopt(self) -> None:
        """An operator names the disk that continues the log (`penstock ctl adopt-log`)."""
        machine = next(each for each in self.machines if self.has_all(each))
        links = [link for each in self.machines for link in each.replica.chain.links]
        self.adopted += 1
        self.store.put_entry(
            replace(
                self.store.entry,
                epoch=max(self.store.entry.epoch, *(link.epoch for link in links)),
                primary=machine.copy,
                replicas=(),
                eligible=(),
                needed=machine.replica.chain.first,
                ids=(),
                mark=None,
            )
        )

    def lose_disk(self) -> None:
        machine = self.random.choice(self.machines)
        if not self.may_lose(machine.disk):
            return
        self.note("pump-%d loses its disk", machine.number)
        self.lost_disks += machine.disk.id in self.whole_disks(self.store.entry)
        self.disks += 1
        machine.disk = Disk(f"d{self.disks}")
        self.crash(machine)

    def restore_disk(self) -> None:
        if self.random.random() < 0.5:
            self.restore_replica()
            return
        machine = self.any_primary()
        if machine is None or machine.primary is None or not self.may_lose(machine.disk):
            return
        entry = machine.primary.entry
        others = [m for m in self.machines if m.is_up and m.number not in self.cut_off]
        others = [m for m in others if m is not machine and not m.disk.is_damaged]
        if entry != self.store.entry or not machine.backup:
            return
        began, last = (entry.epoch, entry.id), next(reversed(machine.backup))
        begins = {last + 1, *(copy.first for copy in entry.copies_known if copy.first > last)}
        shown = [m.disk.segments for m in others if begins & set(m.disk.segments)]
        if not any((s.epoch, s.epoch_id) == began for found in shown for s in found.values()):
            return
        self.note("pump-%d gets an older folder back", machine.number)
        self.older_disks += 1
        self.crash(machine)
        machine.is_up, machine.disk.segments = True, deepcopy(machine.backup)
        self.open(machine)
        self.claim(machine)
        if machine.claim is None:
            self.disks += 1
            machine.disk = Disk(f"d{self.disks}")
            self.crash(machine)

    def restore_replica(self) -> None:
        """Put a folder with a replica back to an earlier state; its Pump may try to take over.

        It ends before the mark in etcd: what is newer cannot be told from the one that was there.
        """
        entry = self.store.entry
        replicas = [copy for copy in (*entry.replicas, *entry.eligible) if self.disk_of(copy)]
        if not replicas or entry.mark is None or self.is_restored:
            return
        machine = self.machines[int(self.random.choice(replicas).pump[5:])]
        if not self.may_lose(machine.disk) or not entry.may_claim(machine.disk.id):
            return
        if self.is_counted(machine):
            return
        segments = deepcopy(machine.disk.segments)
        for number in [n for n in segments if n > entry.mark.segment]:
            del segments[number]
        marked = segments.get(entry.mark.segment)
        if marked is None or len(segments) < 2:
            return
        if entry.mark.offset == BEGIN or self.random.random() < 0.5:
            del segments[entry.mark.segment]
        else:
            del marked.frames[self.random.randrange(entry.mark.offset - BEGIN) :]
            marked.synced = len(marked.frames)
        self.note("pump-%d gets an older folder back, with a replica", machine.number)
        self.older_disks += 1
        self.crash(machine)
        for waiting in (self.network, self.late):  # No message is under way for as long.
            waiting[:] = [each for each in waiting if machine.number not in (each.sender, each.to)]
        machine.disk.segments = segments
        self.older.add(machine.disk.id)
        machine.is_up = True
        self.open(machine)

    def is_counted(self, machine: Machine) -> bool:
        """Return whether some primary counts what the disk has for a group that waits."""
        primaries = [each.primary for each in self.machines if each.primary is not None]
        followers = [(p, p._follower(machine.disk.id)) for p in primaries]
        return any(f is not None and f.have > p.acknowledged for p, f in followers)

    def whole_disks(self, entry: LogEntry) -> list[str]:
        """Return the disks that an entry calls whole, as far as they are not lost."""
        copies = entry.copies_known
        return [c.disk for c in copies if c.first <= entry.needed and self.disk_of(c) is not None]

    def disk_of(self, copy: Copy) -> Disk | None:
        """Return a listed disk, None when it is lost, or what it has is damaged."""
        machine = self.machines[int(copy.pump.removeprefix("pump-"))]
        disk = machine.disk
        if disk.id in self.older and self.has_caught_up(machine):
            self.older.discard(disk.id)
        is_lost = disk.id != copy.disk or disk.is_damaged or disk.id in self.older
        return None if is_lost else disk

    def has_caught_up(self, machine: Machine) -> bool:
        """Return whether a disk that was put back has the rest again, drained or not."""
        entry, chain = self.store.entry, machine.replica.chain
        is_there = chain.links and chain.links[-1].number >= entry.needed
        return bool(is_there and self.has_all(machine) and not lacks(chain, entry.mark))

    def any_primary(self) -> Machine | None:
        """Return a machine that thinks itself the primary; there may be several."""
        found = [machine for machine in self.machines if machine.primary is not None]
        return self.random.choice(found) if len(found) > 1 else found[0] if found else None

    # The run.

    def run(self) -> None:
        """Let things happen, then let them settle; raise `Violation`."""
        with mock.patch.object(log_entry, "_new_id", self.ids.__next__):
            self.live()

    def live(self) -> None:
        weighted = {
            **_WEIGHTS,
            World.restore: self.rules.restores,
            World.damage: self.rules.damages,
            World.suspect: self.rules.suspects,
            World.restore_disk: self.rules.restores_disks,
            World.confirm: self.rules.confirms,
        }
        weights = [
            weight * (self.random.choice(_DEGREES) if happen in _ADVERSE else 1)
            for happen, weight in weighted.items()
        ]
        happenings = self.random.choices(list(weighted), weights, k=self.steps)
        self.claim(self.machines[0])
        for happen in happenings:
            happen(self)
            self.check()
        self.settle()

    def counted(self) -> dict[str, int]:
        return {
            "steps": self.steps,
            "frames acknowledged": len(self.acknowledged),
            "watermarks": self.watermarks,
            "epochs": self.store.entry.epoch,
            "listed disks lost": self.lost_disks,
            "copies begun again": self.reinitialised,
            "etcds put back": self.restored,
            "older disks put back": self.older_disks,
            "logs adopted by an operator": self.adopted,
        }

    def check(self) -> None:
        """Hold every listed disk to what it must have, if anything changed for it."""
        if self.is_restored:  # The list says nothing then.
            return
        changed, self.changed = self.changed, set()
        if changed is not None and not changed:
            return
        entry = self.store.entry
        for copy in entry.copies_known:
            disk = self.disk_of(copy)
            if disk is not None and (changed is None or int(copy.pump[5:]) in changed):
                self.check_copy(entry, copy, disk)

    def check_copy(self, entry: LogEntry, copy: Copy, disk: Disk) -> None:
        begin = self.drained
        if copy.first > entry.needed:
            begin = max(begin, bisect_left(self.segments, copy.first))
        expected = self.acknowledged[begin:]
        if not expected:
            return
        at, frames = disk.synced_from(begin)
        if at != begin or frames[: len(expected)] != expected:
            raise Violation(f"listed: {copy} lacks acknowledged groups of {entry}")

    def look_at(self, machine: Machine) -> None:
        if self.changed is not None:
            self.changed.add(machine.number)

    def settle(self) -> None:
        """Nothing fails from now on: all is streamed and the list is complete before long."""
        self.is_calm = True
        self.cut_off = set()
        wanted = self.written + 1
        for _ in range(ROUNDS_MAX):
            self.round()
            entry = self.store.entry
            is_full = 1 + len(entry.replicas) == entry.copies == len(self.whole_disks(entry))
            is_full &= not self.leaving_disks() & {copy.disk for copy in entry.replicas}
            is_all_streamed = self.streamed == len(self.acknowledged)
            if is_full and is_all_streamed and max(self.acknowledged, default=0) >= wanted:
                return
        raise Stalled(f"progress: {ROUNDS_MAX} rounds do not settle {self.store.entry}")

    def round(self) -> None:
        """Let everything happen once that is due."""
        for machine in self.machines:
            machine.is_up = True
        self.rounds += 1
        if self.is_restored or self.is_refused:
            self.recover()
        self.suspect_rightly()
        # What is still under way is overtaken by what comes in the next round.
        for _ in range(self.random.choice((1, 2, 4, ROUND_STEPS_MAX))):
            if not self.requests and not self.network:
                break
            self.etcd()
            self.deliver()
            self.check()
        for machine in self.machines:
            if machine.primary is not None:
                self.serve(machine, machine.primary)

    def recover(self) -> None:
        """Let every Pump try to continue a log whose entry was put back, then an operator."""
        self.is_refused = False
        is_served = any(machine.primary is not None for machine in self.machines)
        if self.rounds % (ROUNDS_MAX // 4) == 0 and not is_served:
            self.requests.clear()
            for machine in self.machines:
                machine.claim = None
            self.adopt()
        for machine in self.machines:
            self.claim(machine)

    def suspect_rightly(self) -> None:
        entry = self.store.entry
        for copy in entry.copies_known:
            if self.disk_of(copy) is not None and entry.may_claim(copy.disk):
                machine = self.machines[int(copy.pump[5:])]
                if machine.primary is None:
                    self.claim(machine)
                return

    def serve(self, machine: Machine, primary: Primary) -> None:
        self.carry_out(machine, primary.entry_seen(self.store.entry, self.store.entry_revision))
        self.carry_out(machine, primary.draining(self.leaving_disks()))
        self.carry_out(machine, primary.moves_to(""))
        self.carry_out(machine, primary.marks())
        for copy in primary.entry.replicas:
            way = frozenset((machine.number, int(copy.pump[5:])))
            if self.machines[int(copy.pump[5:])].disk.id != copy.disk:
                self.missed.add(copy.disk)
                self.carry_out(machine, primary.silent(copy.disk))
            elif way in self.broken:
                self.broken.discard(way)
                self.carry_out(machine, primary.connected(copy.disk))
        if primary.learner is not None:
            is_there = any(each.disk.id == primary.learner for each in self.machines)
            again = primary.connected if is_there else primary.silent
            self.carry_out(machine, again(primary.learner))
        if self.restored:  # What was needed before is so again in etcd.
            self.need(machine)
        # A disk of another history is offered again: in a later epoch its end may not count.
        is_again = self.rounds % STRANGERS_EVERY == 0
        for other in self.machines:
            if is_again or other.disk.id not in primary.foreign_disks:
                self.carry_out(machine, primary.candidate(other.copy))
        if machine.primary is primary and not primary.is_over:
            self.append_to(machine)
            machine.disk.sync()
            self.carry_out(machine, primary.own_synced())
            self.pull_from(machine)

    def note(self, text: str, *arguments: object) -> None:
        if self.trace is not None:
            self.trace.append(text % arguments)


_CARRIED_OUT: dict[type, Callable[[World, Machine, Any, Piece | None], None]] = {
    m.Reply: World.reply,
    m.Cut: World.cut,
    m.Clear: World.clear,
    m.SetAside: World.set_aside,
    m.Write: World.write,
    m.WriteBefore: World.write_before,
    m.Sync: World.sync,
    m.DropBefore: World.drop_before,
    m.Begin: World.begin,
    m.Send: World.send_request,
    m.Acknowledge: World.acknowledge,
    m.Swap: World.ask_etcd,
    m.ReadEntry: World.ask_etcd,
    m.StepDown: World.step_down,
}
_WEIGHTS: dict[Callable[[World], None], float] = {
    World.deliver: 46,
    World.deliver_late: 3,
    World.etcd: 9,
    World.append: 12,
    World.sync_own: 9,
    World.pull: 4,
    World.drain: 2,
    World.purge: 1,
    World.mark: 2,
    World.heartbeat: 1,
    World.watch: 1,
    World.silence: 1.2,
    World.connect: 4,
    World.candidate: 4,
    World.leave: 2.5,
    World.move: 2,
    World.suspect: 1.5,
    World.fail: 4,
    World.lose_disk: 0.7,
}
_ADVERSE = {
    *(World.silence, World.leave, World.move, World.suspect, World.fail, World.lose_disk),
    *(World.damage, World.watch, World.drain, World.restore, World.restore_disk),
}
_DEGREES = (0, 0.3, 1, 2)
"""How much more often a thing happens in one run than in another: a run without crashes gets
further than one that has everything, and other things are found there."""
