"""A real primary's log on the disks of its copies: what is acknowledged is there, as it says."""

import contextlib
import random
from collections import deque

import pytest

from penstock.cluster.log_entry import Copy, LogEntry
from penstock.log.replica import OlderSegment, ReplicaSegments
from penstock.log.segments import Place, WriteFailed
from pump.replication.protocol import messages as m
from pump.replication.protocol.chain import Link
from pump.replication.protocol.primary import Primary
from tests.kit.replicas.shipping import LOG, Died, Downstream, Upstream, check_same

OWN = Copy("pump-0", "d0")
OTHERS = [Copy(f"pump-{n}", f"d{n}") for n in (1, 2)]
FAILURES = ("crash", "kill", "error")


class Shipped:
    """One log, its primary, and two disks that it may be copied to; etcd answers at once."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.up = Upstream(self.chance)
        self.disks = {copy.disk: Downstream(random.Random(seed)) for copy in OTHERS}
        self.entry = LogEntry(epoch=1, primary=OWN)
        self.revision = 1
        self.acknowledged = Place(0, 0)
        self.start()

    def start(self) -> None:
        """Claim the next epoch and begin it, as at each start of a Pump."""
        self.entry = self.entry.claimed(OWN)
        self.revision += 1
        chain = self.up.chain()
        self.primary = Primary(OWN, chain, (self.entry, self.revision), piece_bytes_max=1000)
        self.carry_out(self.primary.start())

    def restart(self) -> None:
        self.up.reopen()
        self.start()

    def carry_out(self, actions: m.Actions) -> None:
        waiting = deque(actions)
        while waiting:
            waiting += self.done(waiting.popleft())

    def done(self, action: m.Action) -> m.Actions:
        if isinstance(action, m.Begin):
            self.up.segments.begin_next(action.epoch)
            assert self.up.segments.end.segment == action.number
        elif isinstance(action, m.Swap):
            assert action.revision == self.revision
            self.entry, self.revision = action.entry, self.revision + 1
            return self.primary.swapped(self.revision)
        elif isinstance(action, m.Acknowledge):
            self.check_acknowledged(action.place)
        else:
            assert isinstance(action, m.Send)
            return self.sent(action.to.disk, action.request)
        return []

    def sent(self, disk: str, request: m.Request) -> m.Actions:
        down = self.disks[disk]
        answer = None
        with down.failing():
            answer = self.asked(down, request)
        return self.primary.answered(disk, answer) if answer is not None else []

    def asked(self, down: Downstream, request: m.Request) -> m.Answer:
        if isinstance(request, m.Prepend):
            older = OlderSegment(down.files, LOG, request.link, serial=0)
            try:
                older.write(self.up.data(request.link.number, 0, request.link.end))
                older.finish()
                return down.log.prepend(request, older)
            finally:
                with contextlib.suppress(Died):
                    older.drop()
        if isinstance(request, m.Ask):
            return down.log.answer(request, b"")
        return down.log.answer(request, self.up.data(request.segment, request.offset, request.end))

    def check_acknowledged(self, place: Place) -> None:
        """Every listed disk has it, also after a crash."""
        chain = self.primary.chain
        self.acknowledged = max(p for p in self.up.boundaries | {self.acknowledged} if p <= place)
        assert self.entry.may_acknowledge
        for copy in self.entry.replicas:
            files = self.disks[copy.disk].files.after_crash(self.chance)
            links = [Link(*link) for link in ReplicaSegments.open(LOG, files=files).links()]
            agreed = chain.agreement(links)
            assert agreed is not None
            assert agreed >= self.acknowledged

    def write(self) -> None:
        if not self.primary.is_ready:
            return
        self.up.append()
        self.carry_out(self.primary.appended(self.up.segments.end))
        if self.chance.random() < 0.1:
            self.up.files.fail_once("sync")
            with contextlib.suppress(WriteFailed):
                self.up.segments.sync()
            self.carry_out(self.primary.abandoned(self.up.segments.end))
        else:
            self.up.segments.sync()
            self.carry_out(self.primary.own_synced())

    def connect(self) -> None:
        self.carry_out(self.primary.connected(self.chance.choice(OTHERS).disk))

    def silence(self) -> None:
        self.carry_out(self.primary.silent(self.chance.choice(OTHERS).disk))

    def candidate(self) -> None:
        self.carry_out(self.primary.candidate(self.chance.choice(OTHERS)))

    def fail(self) -> None:
        down = self.disks[self.chance.choice(OTHERS).disk]
        for call in self.chance.sample(range(1, 30), 2):
            down.fail_at[down.calls + call] = self.chance.choice(FAILURES)

    def purge(self) -> None:
        segments = self.up.segments
        self.carry_out(self.primary.needs(self.chance.randint(segments.first, segments.end[0])))
        self.primary.dropped(self.primary.droppable_before)
        segments.drop_before(self.primary.chain.first)

    def settle(self) -> None:
        """Nothing fails any more: before long the log has its copy, and continues."""
        for down in self.disks.values():
            down.fail_at.clear()
        end = None
        for _ in range(30):
            for copy in OTHERS:
                self.carry_out(self.primary.candidate(copy))
                self.carry_out(self.primary.connected(copy.disk))
            if self.primary.is_ready and self.entry.may_acknowledge:
                if end is not None:
                    break
                self.write()
                end = self.up.segments.end
        assert end is not None
        assert self.primary.is_ready
        for copy in self.entry.replicas:
            check_same(self.up, self.disks[copy.disk], first=copy.first)


WEIGHTS = {
    Shipped.write: 20.0,
    Shipped.connect: 8,
    Shipped.candidate: 4,
    Shipped.silence: 1,
    Shipped.fail: 2,
    Shipped.purge: 1,
    Shipped.restart: 1,
}


@pytest.mark.parametrize("block", range(3))
def test_what_is_acknowledged_is_on_every_listed_disk_whatever_fails(block: int) -> None:
    acknowledged = 0
    for seed in range(block * 30, block * 30 + 30):
        log = Shipped(seed)
        for happen in log.chance.choices(list(WEIGHTS), [*WEIGHTS.values()], k=60):
            happen(log)
        acknowledged += log.acknowledged.segment
        log.settle()
    assert acknowledged > 60
