"""Cluster state: interprets an observation for an operator.

Pure.

    Observation + Chronicle ──> nodes with a level and a word, streams, concerns, skipped rows

A *level* says how much attention is needed: fine, note, watch, act. A *concern* is a sentence about
a problem, its consequence and its remedy: the node's own words, because the node knows best.
Nothing here raises for any output of a node.

Above 500 lines, because a node's view and its concerns come from the same facts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from enum import IntEnum
from typing import Final, NamedTuple

from penstock.cluster.node_registry import NodeState, NodeStatus, seems_live
from penstock.cluster.records import DrainerStop
from penstock.ctl.console import wording
from penstock.ctl.console.observation import (
    DRAINER,
    PUMP,
    SOURCE,
    Answer,
    Chronicle,
    Facts,
    Listing,
    Observation,
    SourceEntry,
    drainer_lag_s,
    listed,
    number,
    text,
    texts,
    timestamp,
    truth,
    within,
)
from penstock.ts import compose, physical_ms

LAG_WATCH_S: Final = 30.0
"""A downstream with a larger lag is worth a look."""
_NOTHING: Final = ("", "nothing")
_PROBLEMS_MAX: Final = 30
_LAST_HEARTBEAT_S: Final = 5.0
"""A Drainer's entry is written at most this long after its last word."""


_Rate = Callable[[str, str, str], float | None]
"""The current rate of a kind of node, a node, and a quantity."""


class Level(IntEnum):
    """How much attention is needed."""

    FINE = 0
    NOTE = 1
    WATCH = 2
    ACT = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Concern:
    """A problem; `choices` are for a person to decide between."""

    level: Level
    title: str
    detail: str = ""
    remedy: str = ""
    choices: Sequence[str] = ()


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

    @property
    def is_up(self) -> bool:
        return self.level < Level.WATCH and self.word != "paused"


@dataclass(frozen=True, slots=True, kw_only=True)
class PumpAtMerge:
    """The state of a Pump's stream at a Drainer."""

    pump: str
    condition: str
    summary: str
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
    held_by: str = ""
    held_s: float | None = None
    remedy: str = ""
    streams: Sequence[PumpAtMerge] = ()
    standbys: Sequence[str] = ()
    stop: DrainerStop | None = None

    @property
    def is_up(self) -> bool:
        return self.level < Level.WATCH and self.word != "paused"


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
    choices: Sequence[str] = ()


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
    skipped: Sequence[Skipped] = ()
    unheard: Sequence[str] = ()
    """Drainers and sources that have not reported yet which rows they skip."""
    problems: Sequence[NodeProblem] = ()

    @property
    def level(self) -> Level:
        return max((concern.level for concern in self.concerns), default=Level.FINE)


def state_of(seen: Observation, chronicle: Chronicle, now_s: float) -> ClusterState:
    """Interpret an observation; `now_s` is by the chronicle's clock."""
    listing = seen.listing
    if listing is None:
        concerns = [_etcd_concern(seen)] if seen.etcd_problem else []
        return ClusterState(now_s=seen.now_s, is_known=False, concerns=concerns)

    def rate(kind: str, name: str, quantity: str) -> float | None:
        return chronicle.now(f"{kind} {name}", quantity, now_s)

    pumps = [_pump(each, seen, rate) for each in listing.pumps if not _has_left(each)]
    drainers = list(_drainers(listing, seen, rate))
    sources = [_source(each, seen, rate) for each in listing.sources]
    owners = tuple(f"{each.owner}-" for each in listing.sources if each.owner)
    state = ClusterState(
        now_s=seen.now_s,
        is_known=True,
        pumps=pumps,
        drainers=drainers,
        sources=sources,
        programs=sum(not writer.startswith(owners) for writer in listing.writers),
        offline=[n.node_id for n in (*listing.pumps, *listing.drainers) if _has_left(n)],
        purge_waits_for=_purge_waits_for(listing, seen.now_s),
        skipped=list(_skipped(seen)),
        unheard=[
            name
            for kind, names in ((DRAINER, drainers), (SOURCE, sources))
            for name in (each.name for each in names)
            if not _facts(seen.answers.get((kind, name)))
        ],
        problems=_problems(seen),
    )
    concerns = sorted(_concerns(state, seen), key=lambda each: -each.level)
    return replace(state, concerns=concerns)


class _Look(NamedTuple):
    """The first impression of a node: its entry in etcd, and whether it answers."""

    level: Level
    word: str
    why: str = ""


def _has_left(node: NodeStatus) -> bool:
    return node.state is NodeState.OFFLINE


def _look(node: NodeStatus, answer: Answer | None, now_s: float) -> _Look:
    heard = wording.moment(physical_ms(node.update_ts) / 1000 if node.update_ts else None)
    if node.state is NodeState.PAUSED:
        return _Look(Level.NOTE, "paused", f"shut down cleanly; last heartbeat at {heard}")
    if answer is None:
        return _Look(Level.NOTE, str(node.state), "not asked yet")
    if answer.problem:
        since = wording.duration(now_s - (answer.silent_since_s or now_s))
        why = f"no answer for {since}: {answer.problem}"
        if seems_live(node, compose(max(0, int(now_s * 1000)), 0)):
            return _Look(Level.WATCH, "no answer", f"{why}; its heartbeat comes")
        return _Look(Level.ACT, "dead", f"{why}; last heartbeat at {heard}")
    if node.state in (NodeState.PAUSING, NodeState.CLOSING):
        return _Look(Level.NOTE, str(node.state))
    return _Look(Level.FINE, str(node.state))


def _facts(answer: Answer | None) -> Facts:
    return answer.facts if answer is not None and answer.facts is not None else {}


def _facts_now(look: _Look, answer: Answer | None) -> Facts:
    is_heard = answer is not None and not answer.problem and look.word != "paused"
    return _facts(answer) if is_heard else {}


def _pump(node: NodeStatus, seen: Observation, rate: _Rate) -> PumpNode:
    answer = seen.answers.get((PUMP, node.node_id))
    facts, look = _facts(answer), _look(node, answer, seen.now_s)
    free, least = (
        number(facts, f"storage_{name}")
        for name in ("available_bytes", "stop_write_at_available_bytes")
    )
    if look.level is Level.FINE and free is not None and least is not None and free <= least:
        about = f"{wording.size(free)} free: new transactions are refused"
        look = _Look(Level.ACT, "full", about)
    elif look.level is Level.FINE and text(facts, "etcd") == "away":
        look = _Look(Level.WATCH, str(node.state), "it cannot reach etcd")
    copies_min = timestamp(facts, "copies_min")
    return PumpNode(
        name=node.node_id,
        address=node.host,
        **look._asdict(),
        leads_oracle=truth(_facts_now(look, answer), "leads_oracle"),
        binlogs_per_s=rate(PUMP, node.node_id, "binlogs_written"),
        bytes_per_s=rate(PUMP, node.node_id, "storage_appended_bytes"),
        log_bytes=number(facts, "storage_log_bytes"),
        free_bytes=free,
        refuses_below_bytes=least,
        open_prewrites=number(facts, "storage_unmatched"),
        purge=text(facts, "purge"),
        closing=text(facts, "closing"),
        copies_on=text(facts, "copies_on"),
        copies_min=copies_min,
        acknowledges=timestamp(facts, "copies_present") >= copies_min,
        copies_problem=text(facts, "copies_problem"),
    )


def _drainers(listing: Listing, seen: Observation, rate: _Rate) -> Iterator[DrainerNode]:
    waiting = {each.node_id for each in listing.standbys}
    stops = {each.node_id: each for each in listing.stops}
    active = [d for d in listing.drainers if d.node_id not in waiting and not _has_left(d)]
    for node in active:
        name = node.node_id
        answer = seen.answers.get((DRAINER, name))
        look = _look(node, answer, seen.now_s)
        facts = _facts_now(look, answer)
        stop = None if look.level is Level.FINE else stops.get(name)
        if stop is not None and physical_ms(node.update_ts) / 1000 > _until_s(stop):
            stop = None
        if stop is not None:
            look = _Look(Level.ACT, "stopped", stop.problem)
        yield DrainerNode(
            name=name,
            address=node.host,
            **look._asdict(),
            lag_s=drainer_lag_s(facts),
            rows_per_s=rate(DRAINER, name, "rows"),
            transactions_per_s=rate(DRAINER, name, "transactions"),
            checkpoint_s=physical_ms(node.max_commit_ts) / 1000,
            downstream=text(_facts(answer), "downstream"),
            downstream_waits_for=_unless_nothing(facts, "downstream_waits_for"),
            ddl_waits_for=_unless_nothing(facts, "ddl_waits_for"),
            held_by=text(facts, "held_by"),
            held_s=number(facts, "low_water_held_s"),
            remedy=text(facts, "held_by_remedy"),
            streams=[
                PumpAtMerge(
                    pump=text(each, "node_id"),
                    condition=text(each, "condition"),
                    summary=text(each, "summary"),
                    lag_s=number(each, "lag_s"),
                    holds=truth(each, "holds_low_water"),
                )
                for each in listed(facts, "pumps")
            ],
            standbys=[each.node_id for each in listing.standbys if each.active == name],
            stop=stop,
        )


def _until_s(stop: DrainerStop) -> float:
    """Return when the last heartbeat before a stop was written at the latest."""
    try:
        return datetime.fromisoformat(stop.made).timestamp() + _LAST_HEARTBEAT_S
    except (ValueError, OverflowError):
        return math.inf


def _unless_nothing(facts: Facts, name: str) -> str:
    found = text(facts, name)
    return "" if found in _NOTHING else found


def _source(entry: SourceEntry, seen: Observation, rate: _Rate) -> SourceNode:
    """Return a source; its checkpoint in etcd supplies the facts missing on its page."""
    answer = seen.answers.get((SOURCE, entry.source_id))
    facts = _facts(answer)
    look = _look_of_source(entry, answer, seen.now_s)
    return SourceNode(
        name=entry.source_id,
        **look._asdict(),
        server=text(facts, "server") or text(entry.checkpoint, "server"),
        owner=entry.owner,
        behind_s=number(facts, "seconds_behind") if look.level < Level.WATCH else None,
        transactions_per_s=rate(SOURCE, entry.source_id, "transactions"),
        place=text(facts, "committed") or text(entry.checkpoint, "done"),
        gtids=text(facts, "gtids") or text(entry.checkpoint, "gtids"),
        problem=text(facts, "problem"),
        hint=text(facts, "hint"),
        choices=texts(facts, "overrides"),
    )


def _look_of_source(entry: SourceEntry, answer: Answer | None, now_s: float) -> _Look:
    if not entry.owner:
        return _Look(Level.WATCH, "not running", "no process has it")
    if answer is None:
        return _Look(Level.NOTE, "running", "its pages are off, so etcd alone speaks of it")
    if answer.problem:
        since = wording.duration(now_s - (answer.silent_since_s or now_s))
        return _Look(Level.WATCH, "no answer", f"no answer for {since}: {answer.problem}")
    state = text(_facts(answer), "state")
    levels = {"syncing": Level.FINE, "failed": Level.ACT}
    return _Look(levels.get(state, Level.NOTE), state or "running")


# --- concerns ------------------------------------------------------------------------------------


def _concerns(state: ClusterState, seen: Observation) -> Iterator[Concern]:
    if seen.etcd_problem:
        yield _etcd_concern(seen)
    for drainer in state.drainers:
        yield from _drainer_concerns(drainer)
    for pump in state.pumps:
        yield from _pump_concerns(pump)
    for source in state.sources:
        if source.level >= Level.WATCH:
            yield Concern(
                level=source.level,
                title=f"Source {source.name}: {source.word}",
                detail=source.problem or source.why,
                remedy="" if source.choices else source.hint,
                choices=source.choices,
            )
    listing = seen.listing or Listing()
    for problem in listing.problems:
        yield Concern(level=Level.WATCH, title="An entry in etcd cannot be read", detail=problem)
    for gap in listing.gaps:
        yield Concern(
            level=Level.ACT,
            title=f"Drainer {gap.drainer} can never get the binlogs of Pump {gap.pump}",
            detail=f"({gap.after_ts}, {gap.up_to_ts}]: the Pump left without waiting for it",
            remedy="restore its downstream from a newer backup, and start it there",
        )
    if not any(pump.is_up for pump in state.pumps):
        yield Concern(
            level=Level.ACT,
            title="No Pump takes transactions",
            detail="Writers get an error until one is online.",
            remedy="start a Pump",
        )
    if not state.drainers:
        yield Concern(
            level=Level.NOTE,
            title="There is no Drainer",
            detail="Pumps keep what is written; nothing goes downstream.",
        )


def _etcd_concern(seen: Observation) -> Concern:
    since = wording.duration(seen.now_s - (seen.etcd_silent_since_s or seen.now_s))
    return Concern(
        level=Level.ACT,
        title=f"etcd has not answered this console for {since}",
        detail=seen.etcd_problem,
        remedy="what is shown of nodes is their own word; their list is the last that etcd gave",
    )


def _drainer_concerns(drainer: DrainerNode) -> Iterator[Concern]:
    name, stop = drainer.name, drainer.stop
    if stop is not None:
        yield Concern(
            level=Level.ACT,
            title=f"Drainer {name} has stopped and waits for a decision",
            detail=f"{stop.made[:19].replace('T', ' ')} UTC: {stop.problem}",
            remedy="" if stop.choices else stop.hint,
            choices=stop.choices,
        )
    elif drainer.word == "paused":
        yield Concern(
            level=Level.WATCH,
            title=f"Drainer {name} is paused",
            detail=f"Nothing goes downstream, Pumps keep what comes; {drainer.why}.",
            remedy="start it again: it continues from its checkpoint",
        )
    elif drainer.level >= Level.WATCH:
        yield Concern(
            level=drainer.level,
            title=f"Drainer {name}: {drainer.word}",
            detail=drainer.why,
            remedy="start it again: it continues from its checkpoint",
        )
    if drainer.held_by:
        yield Concern(
            level=Level.ACT if drainer.remedy else Level.WATCH,
            title=f"The merge of {name} has stood for {wording.duration(drainer.held_s)}",
            detail=f"It waits for {drainer.held_by}.",
            remedy=drainer.remedy,
        )
    for what, waits in (
        (f"The downstream of {name} takes no changes", drainer.downstream_waits_for),
        (f"A DDL waits at {name}", drainer.ddl_waits_for),
    ):
        if waits:
            yield Concern(level=Level.WATCH, title=what, detail=waits)
    if drainer.lag_s is not None and drainer.lag_s > LAG_WATCH_S:
        yield Concern(
            level=Level.WATCH,
            title=f"The downstream of {name} is {wording.duration(drainer.lag_s)} behind",
        )


def _pump_concerns(pump: PumpNode) -> Iterator[Concern]:
    if pump.closing:
        yield Concern(level=Level.NOTE, title=f"Pump {pump.name} is leaving", detail=pump.closing)
    if pump.copies_problem:
        title = f"The log of Pump {pump.name} has too few copies"
        if not pump.acknowledges:
            title = f"Pump {pump.name} acknowledges nothing: its log has too few copies"
        yield Concern(
            level=Level.WATCH if pump.acknowledges else Level.ACT,
            title=title,
            detail=f"It is on {pump.copies_on}. {pump.copies_problem}.",
            remedy="start the Pumps that are down, or one more: a copy is then added",
        )
    if pump.word == "paused":
        yield Concern(
            level=Level.WATCH,
            title=f"Pump {pump.name} is paused",
            detail=f"Every Drainer that is missing its binlogs waits for it; {pump.why}.",
            remedy=f"start it again; to do without it: penstock ctl offline-pump {pump.name}, which"
            " refuses while a Drainer is missing binlogs",
        )
    if pump.level < Level.WATCH:
        return
    remedy = ""
    if pump.word == "dead":
        remedy = (
            "start it again: Drainers wait for what it holds, which is on its disk only, unless its"
            " log has copies"
        )
    if pump.word == "full":
        remedy = "make room on its volume; what it keeps is needed by a Drainer, see below"
    title = f"Pump {pump.name}: {pump.word}"
    yield Concern(level=pump.level, title=title, detail=pump.why, remedy=remedy)


# --- purging, skipped rows, logged problems ------------------------------------------------------


def _purge_waits_for(listing: Listing, now_s: float) -> str:
    needing = [each for each in listing.drainers if not _has_left(each)]
    if not needing:
        return "No Drainer needs what Pumps hold; it goes when it is old enough."
    last = min(needing, key=lambda each: each.max_commit_ts)
    at_s = physical_ms(last.max_commit_ts) / 1000
    if not at_s:
        return f"Drainer {last.node_id} has nothing yet, so Pumps keep everything."
    return (
        f"Pumps keep what Drainer {last.node_id} ({last.state}) has not got yet: all after"
        f" {wording.moment(at_s)} UTC, {wording.duration(max(0.0, now_s - at_s))} ago. What is"
        " before that goes once it is older than gc-days."
    )


def _skipped(seen: Observation) -> Iterator[Skipped]:
    for (kind, name), answer in sorted(seen.answers.items()):
        node, facts = f"{kind} {name}", _facts(answer)
        if kind == DRAINER:
            for each in listed(facts, "left_out_counts"):
                yield Skipped(
                    node=node,
                    name=text(each, "name"),
                    cause=text(each, "cause"),
                    kind=text(each, "kind"),
                    count=timestamp(each, "count"),
                )
        if kind == SOURCE:
            for table, about in within(facts, "left_out").items():
                if isinstance(about, dict):
                    whole = truth(about, "is_whole")
                    yield Skipped(
                        node=node,
                        name=str(table),
                        cause="skip-table" if whole else "skip",
                        kind="rows",
                        count=timestamp(about, "rows"),
                        note=f"nothing is followed since {text(about, 'since')}" if whole else "",
                    )


def _problems(seen: Observation) -> list[NodeProblem]:
    found = []
    for (kind, name), answer in seen.answers.items():
        for each in listed(_facts(answer), "problems"):
            severity, _, line = text(each, "summary").partition(" ")
            found.append(
                NodeProblem(
                    node=f"{kind} {name}",
                    time=text(each, "time"),
                    severity=severity.lower(),
                    line=line,
                )
            )
    return sorted(found, key=lambda each: each.time, reverse=True)[:_PROBLEMS_MAX]
