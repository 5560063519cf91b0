"""The plan: which faults come when, as a pure function of a seed and a length.

Kinds are drawn like cards: all of them once in some order, then all of them again, so that a plan
of a few minutes has every kind. What is broken already is not broken a second time before it is
whole, and no more than `AT_ONCE_MAX` faults last at once: a cluster that is always down proves
nothing. Which disks may be lost is no matter of the plan: at least one with all of each log must
stay, and only the running cluster knows which have that (`tests.chaos.copies`).
"""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import Enum

PUMPS = ("pump-1", "pump-2", "pump-3")
DRAINERS = ("drainer-1", "drainer-2")
WRITERS = ("writer-1", "writer-2")
ETCD, MARIADB = "etcd", "mariadb"
ALL_WRITERS = "writers"
"""As the client of a link: what concerns one writer's connections concerns those of all."""
CLUSTER = "cluster"
"""As a target: all but MariaDB."""
BACKED_UP = f"{ETCD}+way to {ETCD}+{WRITERS[0]}"
"""As a target: etcd, and the writer that runs DDL with its way there."""
EVERYONE = "everyone"
"""As the client of a link: all callers of its server."""

AT_ONCE_MAX = 3
_GAP_S = 4.0
"""From the begin of one fault to that of the next, on average and if nothing holds it up."""

_LINKS = (
    *(f"{ALL_WRITERS}>{server}" for server in (*PUMPS, ETCD)),
    *(f"{drainer}>{server}" for drainer in DRAINERS for server in (*PUMPS, ETCD, MARIADB)),
    *(f"{pump}>{server}" for pump in PUMPS for server in (*PUMPS, ETCD) if server != pump),
)
"""Who calls whom. Each server has one proxy, which knows whose connection it carries."""
_BETWEEN_PUMPS = tuple(f"{one}>{other}" for one in PUMPS for other in PUMPS if one != other)
_TO_PUMPS = tuple(f"{EVERYONE}>{pump}" for pump in PUMPS)
_CLOCKS = (*PUMPS, *DRAINERS, *WRITERS)
_TAKERS = tuple(f"{one}+{other}" for one in PUMPS for other in PUMPS if one != other)
"""A Pump, and the one whose log it is to take over."""


class Kind(Enum):
    """A kind of fault: how the table calls it, what it can hit, for how many seconds.

    A new kind needs a row here and a body in `tests.chaos.faults`. With one copy there are those
    only that need none.
    """

    def __init__(
        self,
        title: str,
        targets: tuple[str, ...],
        lasts_s: tuple[float, float],
        needs_copies: bool = False,
    ) -> None:
        self.title = title
        self.targets = targets
        self.lasts_s = lasts_s
        self.needs_copies = needs_copies

    PUMP_KILLED = ("Pump killed", PUMPS, (0.1, 20))
    PUMP_FROZEN = ("Pump frozen", PUMPS, (1, 60))
    PUMP_KILLED_AT_STEP = ("Pump killed at a step of its storage", PUMPS, (5, 20))
    PUMP_DISK_SLOW = ("Pump's disk slow to sync", PUMPS, (5, 25))
    PUMP_DISK_FULL = ("Pump's disk full", PUMPS, (3, 30))
    DRAINER_KILLED = ("Drainer killed", DRAINERS, (0.1, 15))
    DRAINER_FROZEN = ("Drainer frozen", DRAINERS, (1, 60))
    WRITER_KILLED = ("writer killed", WRITERS, (0.1, 5))
    WRITER_FROZEN = ("writer frozen", WRITERS, (1, 60))
    ETCD_KILLED = ("etcd killed", (ETCD,), (0.1, 20))
    ETCD_FROZEN = ("etcd frozen", (ETCD,), (1, 20))
    MARIADB_KILLED = ("MariaDB killed", (MARIADB,), (0.1, 15))
    MARIADB_FROZEN = ("MariaDB frozen", (MARIADB,), (1, 30))
    LINK_CUT = ("network cut without a word", _LINKS, (2, 45))
    LINK_SLOW = ("network seconds late", _LINKS, (5, 40))
    LINK_NARROW = ("network of some KB a second", _LINKS, (5, 40))
    LINK_RESET = ("connections reset", _LINKS, (0.1, 0.2))
    CLOCK_JUMPED = ("wall clock of one process jumped", _CLOCKS, (2, 45))
    DISK_DELETED = ("Pump killed and its disk deleted", PUMPS, (0.1, 20), True)
    PUMP_KILLED_ALONE = ("Pump killed without those it started", PUMPS, (0.1, 20), True)
    PUMP_KILLED_AT_COPYING = ("Pump killed at a step of copying", PUMPS, (5, 20), True)
    PUMP_KILLED_TAKING_OVER = ("Pump killed at a step of taking over", _TAKERS, (8, 25), True)
    PUMPS_CUT = ("network between Pumps cut", _BETWEEN_PUMPS, (1, 45), True)
    PUMPS_SLOW = ("network between Pumps late", _BETWEEN_PUMPS, (5, 40), True)
    PUMP_UNREACHABLE = ("Pump that no one reaches", _TO_PUMPS, (1, 45), True)
    ETCD_BACKED_UP = ("etcd backed up, and no DDL from then on", (BACKED_UP,), (0.1, 0.2), True)
    ETCD_RESTORED = ("etcd restored from a backup", (CLUSTER,), (5, 20), True)


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault; `number` is a die of its own, for whatever its body has to choose."""

    at_s: float
    kind: Kind
    target: str
    lasts_s: float
    number: int

    @property
    def until_s(self) -> float:
        return self.at_s + self.lasts_s

    @property
    def occupies(self) -> frozenset[str]:
        """What no other fault may touch meanwhile: processes, or the proxy before one."""
        if self.target == CLUSTER:
            ways = (f"way to {server}" for server in (*PUMPS, ETCD))
            return frozenset((*PUMPS, *DRAINERS, *WRITERS, ETCD, *ways))
        if ">" in self.target:
            return frozenset({f"way to {self.server}"})
        return frozenset(self.target.split("+"))

    @property
    def client(self) -> str:
        return self.target.partition(">")[0]

    @property
    def server(self) -> str:
        return self.target.partition(">")[2]

    def __str__(self) -> str:
        return f"{self.kind.title}: {self.target}"


def plan(seed: int, length_s: float, copies: int = 1) -> tuple[Fault, ...]:
    """Return the faults of a run in the order of their begin; all are over at `length_s`.

    `copies` are those that each log has: with one no disk is lost.
    """
    kinds = [kind for kind in Kind if copies > 1 or not kind.needs_copies]
    dice = random.Random(seed)
    made: list[Fault] = []
    lasting: list[Fault] = []
    at_s = 0.0
    for kind in _drawn(dice, kinds):
        target, number = dice.choice(kind.targets), dice.getrandbits(32)
        shortest_s, longest_s = kind.lasts_s
        # As many short ones as long ones, by orders of magnitude.
        lasts_s = shortest_s * (longest_s / shortest_s) ** dice.random()
        fault = Fault(at_s + dice.expovariate(1 / _GAP_S), kind, target, lasts_s, number)
        at_s = _possible_s(lasting, fault)
        if at_s >= length_s:
            return tuple(made)
        made.append(replace(fault, at_s=at_s, lasts_s=min(lasts_s, length_s - at_s)))
        lasting = [f for f in (*lasting, made[-1]) if f.until_s > at_s]
    raise AssertionError("cards are drawn without end")


def _drawn(dice: random.Random, kinds: Sequence[Kind]) -> Iterator[Kind]:
    """Yield kinds without end; a backup comes before its restore, by a few faults or by many."""
    while True:
        drawn = dice.sample(kinds, len(kinds))
        if Kind.ETCD_RESTORED in drawn:
            taken, restored = sorted(map(drawn.index, (Kind.ETCD_BACKED_UP, Kind.ETCD_RESTORED)))
            drawn[taken], drawn[restored] = Kind.ETCD_BACKED_UP, Kind.ETCD_RESTORED
        yield from drawn


def _possible_s(lasting: list[Fault], fault: Fault) -> float:
    """Return the first moment at which its target is whole and few faults last."""
    whole_s = max((f.until_s for f in lasting if f.occupies & fault.occupies), default=0.0)
    at_s = max(fault.at_s, whole_s)
    ends = sorted(f.until_s for f in lasting if f.until_s > at_s)
    return at_s if len(ends) < AT_ONCE_MAX else ends[-AT_ONCE_MAX]
