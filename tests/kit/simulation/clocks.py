"""Clocks that jump and machines that are paused: an oracle, a DDL, a Pump that joins, a Drainer.

A world of its own beside that of whole Pumps, in steps of true time. Real are the oracle's
`Allocator`, `Heartbeats` and `TimeoutResolver`; etcd is a handful of fields that always answer.

    wall clock   jumps by up to days, on each machine apart
    VM pause     the machine does nothing, and neither of its clocks goes on
    restart      of all Pumps: a leader then has no evidence but its wall clock, which is believed

What must hold:

    order     no timestamp repeats, and a leader's are above those of the leaders before it
    pace      time runs at double speed at most, but for a leader that no one could tell better
    ddl       a DDL that was acknowledged is committed in the stream, no other one is
    joined    no Pump is online without a Drainer that runs having been told
    progress  in the end every DDL is decided, and a Pump joins beside a Drainer that is dead
"""

import asyncio
import random
from dataclasses import dataclass, field

from penstock.cluster.node_registry import Heartbeats, NodeState, NodeStatus, seems_live
from penstock.oracle.server import WINDOW_MS, Allocator
from penstock.ts import LOGICAL_BITS, compose, physical_ms
from pump.cluster.resolver import Outcome, Question, TimeoutResolver
from tests.kit.replicas.world import Violation

T0_MS = 1_700_000_000_000
DAY_S = 24 * 3600.0
TTL_S = 2.0
STEPS = 600
CALM_STEPS = 400


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockRules:
    """What the programs do; each can be switched off, and must then be missed."""

    ages_by_own_clock: bool = True
    notes_rollbacks: bool = True
    watches_heartbeats: bool = True
    bounds_jumps: bool = True
    starts_at_the_window: bool = True


@dataclass(slots=True)
class Machine:
    """A machine with two clocks."""

    ahead_s: float = 0.0
    mono_s: float = 0.0
    paused_s: float = 0.0
    known: tuple[int, float] = (0, 0.0)
    """The last timestamp that it got, and when, by its monotonic clock."""

    def now_ts(self) -> int:
        """Return the cluster's time as this machine knows it without asking."""
        ts, at_s = self.known
        return ts + (int((self.mono_s - at_s) * 1000) << LOGICAL_BITS)


@dataclass(slots=True)
class Candidate:
    """A Pump as a candidate for the oracle; what it has seen of the window."""

    machine: Machine
    window: tuple[int, float | None] = (0, None)
    allocator: Allocator | None = None
    held_until_s: float = 0.0


@dataclass(slots=True)
class Ddl:
    """A DDL between its Prewrite and its end, and what became of it."""

    start_ts: int
    since_s: float
    decides_s: float
    outcome: str = ""
    is_acknowledged: bool = False


@dataclass(slots=True)
class Etcd:
    leader: int = -1
    leader_until_s: float = 0.0
    window_ms: int = 0
    recorded: set[int] = field(default_factory=set)
    rolled_back: set[int] = field(default_factory=set)


class ClockWorld:
    """One run; the same seed and the same rules give the same one."""

    def __init__(self, seed: int, rules: ClockRules | None = None) -> None:
        self.rules = rules or ClockRules()
        self.chance = random.Random(seed)
        self.true_s = 0.0
        self.etcd = Etcd()
        self.candidates = [Candidate(Machine()) for _ in range(3)]
        self.pump = self.candidates[0].machine
        self.last_ts, self.last_s, self.is_believed = 0, 0.0, True
        self.timeout_s = self.chance.choice((3.0, 20.0))
        self.ddls: list[Ddl] = []
        self.drainer = NodeStatus(
            node_id="d", host="d:1", state=NodeState.ONLINE, update_ts=compose(T0_MS, 0)
        )
        self.drainer_machine = Machine()
        self.drainer_is_dead = False
        self.drainer_may_pause_s = 0.0
        self.beat_s = 0.0
        self.learner: Heartbeats | None = None
        self.counts = dict.fromkeys(("timestamps", "jumps", "pauses", "DDLs", "joins", "terms"), 0)

    # The run.

    def run(self) -> None:
        """Let things happen; raise `Violation`."""
        for step in range(STEPS + CALM_STEPS):
            self._pass(self.chance.uniform(0.05, 0.5))
            if step < STEPS:
                self._break()
            elif step == STEPS:
                self.drainer_is_dead, self.learner = True, Heartbeats(clock=self._pump_clock)
            self._lead()
            self._beat()
            self._execute(is_over=step >= STEPS)
            if not self.pump.paused_s:
                self._resolve()
                self._join()
        undecided = [ddl for ddl in self.ddls if not ddl.outcome]
        if undecided or self.learner is not None:
            raise Violation(f"progress: {undecided}, joining: {self.learner is not None}")

    def counted(self) -> dict[str, int]:
        return self.counts

    def _pump_clock(self) -> float:
        return self.pump.mono_s

    def _machines(self) -> list[Machine]:
        return [*(each.machine for each in self.candidates), self.drainer_machine]

    def _pass(self, seconds: float) -> None:
        self.true_s += seconds
        for machine in self._machines():
            if machine.paused_s > 0:
                machine.paused_s = max(0.0, machine.paused_s - seconds)
                machine.ahead_s -= seconds
            else:
                machine.mono_s += seconds

    def _break(self) -> None:
        chance = self.chance
        if chance.random() < 0.03:
            machine = chance.choice(self._machines())
            machine.ahead_s = chance.choice((0, -DAY_S, -60, 60, 3600, DAY_S, 400 * DAY_S))
            self.counts["jumps"] += 1
        if chance.random() < 0.02:
            self._pause(chance.choice(self._machines()))
        if chance.random() < 0.01:
            for each in self.candidates:
                each.allocator, each.window = None, (self.etcd.window_ms, None)
            self.etcd.leader = -1

    def _pause(self, machine: Machine) -> None:
        """Stop a machine; that of the Drainer not for as long as one is taken for dead."""
        if machine is self.drainer_machine:
            if self.true_s < self.drainer_may_pause_s:
                return
            self.drainer_may_pause_s = self.true_s + 12
        machine.paused_s = self.chance.uniform(0.5, 6)
        self.counts["pauses"] += 1

    # The oracle.

    def _lead(self) -> None:
        etcd = self.etcd
        if self.true_s > etcd.leader_until_s:
            etcd.leader = -1
        for number, each in enumerate(self.candidates):
            machine = each.machine
            if machine.paused_s:
                continue
            if each.window[0] != etcd.window_ms:
                each.window = (etcd.window_ms, machine.mono_s if each.window[0] else None)
            if etcd.leader < 0:
                self._elect(number, each)
            if etcd.leader != number:
                each.allocator = None
            elif each.allocator is not None:
                etcd.leader_until_s = self.true_s + TTL_S
                wanted_ms = each.allocator.wanted_limit_ms()
                if each.allocator.limit_ms - each.allocator.now_ms() < WINDOW_MS / 2:
                    each.allocator.limit_ms = etcd.window_ms = max(etcd.window_ms, wanted_ms)
                self._take(each.allocator)

    def _elect(self, number: int, each: Candidate) -> None:
        machine, since_s = each.machine, each.window[1]
        floor_ms = self.etcd.window_ms if self.rules.starts_at_the_window else 0
        each.allocator = Allocator(
            floor_ms,
            wall_ms=lambda: T0_MS + (self.true_s + machine.ahead_s) * 1000,
            monotonic_s=lambda: machine.mono_s,
            since_s=since_s if self.rules.bounds_jumps else None,
        )
        self.is_believed = since_s is None
        self.etcd.leader, self.etcd.leader_until_s = number, self.true_s + TTL_S
        self.counts["terms"] += 1

    def _take(self, allocator: Allocator) -> None:
        if not self.rules.bounds_jumps:
            allocator._is_known = False
        ts = allocator.take(1)
        if ts is None:
            return
        if ts <= self.last_ts:
            raise Violation(f"order: {ts} comes after {self.last_ts}")
        most_ms = physical_ms(self.last_ts) + 2000 * (self.true_s - self.last_s) + 3 * WINDOW_MS
        if not self.is_believed and physical_ms(ts) > most_ms:
            raise Violation(f"pace: {physical_ms(ts) - most_ms} ms ahead of what can be")
        self.last_ts, self.last_s, self.is_believed = ts, self.true_s, False
        self.counts["timestamps"] += 1
        for machine in self._machines():
            if not machine.paused_s and self.chance.random() < 0.5:
                machine.known = (ts, machine.mono_s)

    # A DDL, and the Pump that has its Prewrite.

    def _execute(self, *, is_over: bool) -> None:
        etcd = self.etcd
        if not is_over and self.last_ts and self.chance.random() < 0.05:
            decides_s = self.true_s + self.chance.uniform(0, 8)
            self.ddls.append(Ddl(self.last_ts, self.pump.mono_s, decides_s))
            self.counts["DDLs"] += 1
        for ddl in self.ddls:
            if not ddl.is_acknowledged and 0 < ddl.decides_s <= self.true_s:
                ddl.decides_s = 0
                if ddl.start_ts not in etcd.rolled_back:
                    etcd.recorded.add(ddl.start_ts)
                    ddl.is_acknowledged = True

    def _resolve(self) -> None:
        etcd, resolver = self.etcd, TimeoutResolver(txn_timeout_s=self.timeout_s)
        for ddl in self.ddls:
            waited_s = self.pump.mono_s - ddl.since_s
            if ddl.outcome or waited_s < 1 or self.chance.random() < 0.5:
                continue
            if ddl.start_ts in etcd.recorded:
                ddl.outcome = "committed"
                continue
            if not self.rules.ages_by_own_clock:
                waited_s = (physical_ms(self.pump.now_ts()) - physical_ms(ddl.start_ts)) / 1000
            found = _answer(resolver, Question(ddl.start_ts, ddl_job_id=1, waited_s=waited_s))
            if found is not Outcome.ROLLED_BACK:
                continue
            if waited_s < self.timeout_s or self.pump.mono_s - ddl.since_s < self.timeout_s:
                raise Violation(f"ddl: {ddl} is rolled back before its time")
            if self.rules.notes_rollbacks:
                etcd.rolled_back.add(ddl.start_ts)
            ddl.outcome = "rolled back"
        for ddl in self.ddls:
            if ddl.outcome == "rolled back" and ddl.is_acknowledged:
                raise Violation(f"ddl: {ddl} was acknowledged")

    # A Drainer, and the Pump that joins.

    def _beat(self) -> None:
        machine = self.drainer_machine
        if self.drainer_is_dead or machine.paused_s or machine.mono_s - self.beat_s < 2:
            return
        self.beat_s = machine.mono_s
        self.drainer = NodeStatus(
            node_id="d", host="d:1", state=NodeState.ONLINE, update_ts=machine.now_ts()
        )

    def _join(self) -> None:
        """Join where the Drainer cannot be reached: only one that is dead may be skipped."""
        if self.learner is None:
            if self.drainer_is_dead or self.chance.random() > 0.02:
                return
            self.learner = Heartbeats(clock=self._pump_clock)
        self.learner.note([self.drainer])
        is_live = self.learner.is_live(self.drainer)
        if not self.rules.watches_heartbeats:
            is_live = seems_live(self.drainer, self.pump.now_ts())
        if is_live:
            return
        if not self.drainer_is_dead:
            raise Violation(f"joined: {self.drainer} runs, and was not told")
        self.learner = None
        self.counts["joins"] += 1


def _answer(resolver: TimeoutResolver, question: Question) -> Outcome:
    """Return what a resolver that waits for nothing answers."""
    coroutine = resolver.resolve(question)
    try:
        coroutine.send(None)
    except StopIteration as done:
        outcome: Outcome = done.value.outcome
        return outcome
    raise asyncio.InvalidStateError


CLOCK_RULES = {
    "a Prewrite's age is by its Pump's own clock": ClockRules(ages_by_own_clock=False),
    "a DDL is rolled back in etcd before it is in the log": ClockRules(notes_rollbacks=False),
    "heartbeats are watched": ClockRules(watches_heartbeats=False),
    "a jump ahead is followed at double speed": ClockRules(bounds_jumps=False),
    "a leader starts at the window": ClockRules(starts_at_the_window=False),
}
