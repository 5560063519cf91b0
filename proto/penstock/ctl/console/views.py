"""Views: what an operator sees of a cluster and its nodes.

Pure. A *level* says how much attention is needed: fine, note, watch, act. A *concern* is a problem
with its consequences and its remedy.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Final, NamedTuple

from penstock.cluster.records import DrainerStop
from penstock.ctl.console import wording

LAG_WATCH_S: Final = 30.0
"""A downstream with a larger lag is worth a look."""
_CHOICE: Final = re.compile(r"`(.+?)`: (.+)|(penstock .+?): (.+)", re.DOTALL)
UP: Final = ("online", "pausing", "closing")
"""States of a Pump that runs."""


class Level(IntEnum):
    """How much attention is needed."""

    FINE = 0
    NOTE = 1
    WATCH = 2
    ACT = 3


class Choice(NamedTuple):
    """A way out: the whole command, empty if it is done by hand, and its effect."""

    command: str
    means: str

    @classmethod
    def of(cls, text: str) -> Choice:
        """Read the form of a Drainer, `command`: effect, or that of a source, command: effect."""
        found = _CHOICE.fullmatch(text)
        return cls(found[1] or found[3], found[2] or found[4]) if found else cls("", text)


@dataclass(frozen=True, slots=True, kw_only=True)
class Concern:
    """A problem; `choices` are for a person to decide between, `follows` are its consequences."""

    level: Level
    title: str
    subject: str = ""
    due_to: Sequence[str] = ()
    detail: str = ""
    remedy: str = ""
    commands: Sequence[Choice] = ()
    choices: Sequence[Choice] = ()
    follows: Sequence[str] = ()


def _machine(address: str) -> str:
    return address.rpartition(":")[0] or address


@dataclass(frozen=True, slots=True, kw_only=True)
class PumpNode:
    """A Pump, according to etcd and to itself."""

    name: str
    address: str
    level: Level
    word: str
    why: str = ""
    leads_oracle: bool = False
    binlogs_per_s: float | None = None
    bytes_per_s: float | None = None
    log_bytes: float | None = None
    free_bytes: float | None = None
    refuses_below_bytes: float | None = None
    open_prewrites: float | None = None
    purge: str = ""
    closing: str = ""
    copies_on: str = ""
    """The Pumps whose disks have replicas of its log; empty with one copy."""
    copies_min: int = 0
    """With fewer copies nothing is acknowledged; 0 with one copy."""
    acknowledges: bool = True
    """False while fewer copies than that exist."""
    copies_problem: str = ""
    cannot_reach_etcd: bool = False

    @property
    def is_up(self) -> bool:
        return self.level < Level.ACT and (self.word in UP or self.cannot_reach_etcd)

    @property
    def machine(self) -> str:
        return _machine(self.address)


@dataclass(frozen=True, slots=True, kw_only=True)
class PumpAtMerge:
    """The state of a Pump's stream at a Drainer."""

    pump: str
    condition: str
    why: str
    lag_s: float | None
    holds: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainerNode:
    """A Drainer with its merge and its downstream."""

    name: str
    address: str
    level: Level
    word: str
    why: str = ""
    lag_s: float | None = None
    rows_per_s: float | None = None
    transactions_per_s: float | None = None
    checkpoint_s: float = 0.0
    downstream: str = ""
    downstream_waits_for: str = ""
    ddl_waits_for: str = ""
    spark_waits_for: str = ""
    steps: float | None = None
    """Batches, DDL and checkpoints that it has committed downstream since its start."""
    is_starting: bool = False
    held_by: str = ""
    held_s: float | None = None
    remedy: str = ""
    streams: Sequence[PumpAtMerge] = ()
    standbys: Sequence[str] = ()
    stop: DrainerStop | None = None

    @property
    def is_up(self) -> bool:
        return self.level < Level.WATCH and self.word != "paused"

    @property
    def machine(self) -> str:
        return _machine(self.address)

    @property
    def downstream_look(self) -> tuple[Level, str]:
        """How its downstream is: fine only if something was committed, and is not late."""
        if self.downstream_waits_for:
            return Level.ACT, "takes no changes"
        if not self.is_up:
            return Level.NOTE, "unknown"
        if self.steps == 0:
            return Level.NOTE, "not tried yet"
        if self.lag_s is None:
            return Level.NOTE, "nothing comes"
        level = Level.WATCH if self.lag_s > LAG_WATCH_S else Level.FINE
        return level, f"{wording.duration(self.lag_s)} behind"


class Loading(NamedTuple):
    """How far the load of a table, or of all, is; `rows` is an estimate, or not known."""

    name: str
    rows_done: float
    rows: float | None

    @property
    def share(self) -> float | None:
        return min(1.0, max(0.0, self.rows_done / self.rows)) if self.rows else None


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceNode:
    """A MySQL or MariaDB server that is a writer."""

    name: str
    level: Level
    word: str
    why: str = ""
    server: str = ""
    owner: str = ""
    behind_s: float | None = None
    transactions_per_s: float | None = None
    place: str = ""
    gtids: str = ""
    problem: str = ""
    hint: str = ""
    pages: str = ""
    """The address of its pages."""
    repairs: str = ""
    """Tables whose rows a foreign key may have changed, until they are repaired downstream."""
    choices: Sequence[Choice] = ()
    load: Sequence[Loading] = ()
    """While it loads: all tables as one, then the tables that are being read."""
    load_about: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Skipped:
    """The skipped rows of a table, or of all; `name` is empty for rows without a table."""

    node: str
    name: str
    cause: str
    kind: str
    count: int
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableRate:
    """A table downstream; the rate is not known at first."""

    drainer: str
    name: str
    rows: float
    rows_per_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeProblem:
    """A warning or error in a node's log."""

    node: str
    time: str
    severity: str
    line: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterState:
    """A cluster at a point in time."""

    now_s: float
    is_known: bool
    concerns: Sequence[Concern] = ()
    pumps: Sequence[PumpNode] = ()
    drainers: Sequence[DrainerNode] = ()
    sources: Sequence[SourceNode] = ()
    programs: int = 0
    """Writers other than sources: programs with `pumpclient`."""
    offline: Sequence[str] = ()
    """Nodes that have left."""
    purge_waits_for: str = ""
    tables: Sequence[TableRate] = ()
    """The tables with the highest rates, and then those that changed last."""
    skipped: Sequence[Skipped] = ()
    unheard: Sequence[str] = ()
    """Drainers and sources that have not reported yet which rows they skip."""
    problems: Sequence[NodeProblem] = ()

    @property
    def level(self) -> Level:
        return max((concern.level for concern in self.concerns), default=Level.FINE)
