"""Cluster state: interprets an observation for an operator.

Pure.

    Observation + Chronicle ──> nodes with a level and a word, streams, concerns, skipped rows

A *level* says how much attention is needed: fine, note, watch, act. What a console, etcd and a
Drainer say of a Pump makes one state: a Pump that a Drainer finds dead is not shown as online, and
a downstream that was not tried is unknown. Nothing here raises for any output of a node.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import datetime
from itertools import islice
from typing import Final, NamedTuple

from penstock.cluster.node_registry import NodeState, NodeStatus, seems_live
from penstock.cluster.records import DrainerStop
from penstock.ctl.console import wording
from penstock.ctl.console.concerns import concerns_of
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
from penstock.ctl.console.views import (
    UP,
    Choice,
    ClusterState,
    DrainerNode,
    Level,
    Loading,
    NodeProblem,
    PumpAtMerge,
    PumpNode,
    Skipped,
    SourceNode,
    TableRate,
)
from penstock.ts import compose, physical_ms

_NOTHING: Final = ("", "nothing")
_STARTING_S: Final = 90.0
"""So long Spark may take to start, on a machine with much else to do."""
_LOADING_MAX: Final = 8
_AT: Final = re.compile(r" --(?:config|status-addr)=(?:'[^']*'|\S+)")
_PROBLEMS_MAX: Final = 30
_TABLES_MAX: Final = 20
_LAST_HEARTBEAT_S: Final = 5.0
"""A Drainer's entry is written at most this long after its last word."""


_Rate = Callable[[str, str, str], float | None]
"""The current rate of a kind of node, a node, and a quantity."""


def state_of(seen: Observation, chronicle: Chronicle, now_s: float) -> ClusterState:
    """Interpret an observation; `now_s` is by the chronicle's clock."""
    listing = seen.listing
    if listing is None:
        unknown = ClusterState(now_s=seen.now_s, is_known=False)
        return replace(unknown, concerns=concerns_of(unknown, seen))

    def rate(kind: str, name: str, quantity: str) -> float | None:
        return chronicle.now(f"{kind} {name}", quantity, now_s)

    pumps = [_pump(each, seen, rate) for each in listing.pumps if not _has_left(each)]
    drainers = list(_drainers(listing, seen, rate))
    pumps = [_as_drainers_see(each, drainers) for each in pumps]
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
        tables=_tables(seen),
        skipped=list(_skipped(seen)),
        unheard=[
            name
            for kind, names in ((DRAINER, drainers), (SOURCE, sources))
            for name in (each.name for each in names)
            if not _facts(seen.answers.get((kind, name)))
        ],
        problems=_problems(seen),
    )
    return replace(state, concerns=concerns_of(state, seen))


class _Look(NamedTuple):
    """The first impression of a node: its entry in etcd, and whether it answers."""

    level: Level
    word: str
    why: str = ""


def _has_left(node: NodeStatus) -> bool:
    return node.state is NodeState.OFFLINE


def _look(node: NodeStatus, answer: Answer | None, seen: Observation) -> _Look:
    now_s = seen.now_s
    heard_s = physical_ms(node.update_ts) / 1000
    heard = wording.ago(heard_s, now_s) if heard_s else "never"
    if node.state is NodeState.PAUSED:
        return _Look(Level.ACT, "paused", f"It was stopped in order; its last heartbeat: {heard}.")
    if answer is None or (answer.facts is None and not answer.problem):
        return _Look(Level.NOTE, "unknown", "It was not asked yet.")
    if answer.problem:
        why = f"{_silence(answer, now_s)} Its last heartbeat: {heard}."
        if seen.etcd_problem:
            return _Look(Level.WATCH, "no answer", _silence(answer, now_s))
        if seems_live(node, compose(max(0, int(now_s * 1000)), 0)):
            return _Look(Level.WATCH, "no answer", why)
        return _Look(Level.ACT, "dead", why)
    if node.state in (NodeState.PAUSING, NodeState.CLOSING):
        return _Look(Level.NOTE, str(node.state))
    return _Look(Level.FINE, str(node.state))


def _silence(answer: Answer, now_s: float) -> str:
    since = wording.duration(now_s - (answer.silent_since_s or now_s))
    return wording.sentence(f"no answer for {since}: {answer.problem}")


def _as_drainers_see(pump: PumpNode, drainers: Sequence[DrainerNode]) -> PumpNode:
    """Return a Pump that a Drainer finds dead as dead, whatever the console has heard last."""
    for drainer in drainers:
        for each in drainer.streams:
            is_dead = each.pump == pump.name and each.condition == "dead"
            if is_dead and pump.word in ("no answer", "unknown", *UP):
                word = "unreachable" if pump.word in UP else "dead"
                why = f"Drainer {drainer.name} finds it dead: {each.why}."
                if word == "dead" and pump.why:
                    why = pump.why
                return replace(pump, level=Level.ACT, word=word, why=why)
    return pump


def _facts(answer: Answer | None) -> Facts:
    return answer.facts if answer is not None and answer.facts is not None else {}


def _facts_now(look: _Look, answer: Answer | None) -> Facts:
    is_heard = answer is not None and not answer.problem and look.word != "paused"
    return _facts(answer) if is_heard else {}


def _pump(node: NodeStatus, seen: Observation, rate: _Rate) -> PumpNode:
    answer = seen.answers.get((PUMP, node.node_id))
    facts, look = _facts(answer), _look(node, answer, seen)
    is_cut_off = False
    free, least = (
        number(facts, f"storage_{name}")
        for name in ("available_bytes", "stop_write_at_available_bytes")
    )
    if look.level is Level.FINE and free is not None and least is not None and free <= least:
        about = f"{wording.size(free)} are free, and below {wording.size(least)} it refuses all."
        look = _Look(Level.ACT, "full", about)
    elif look.level is Level.FINE and text(facts, "etcd") == "away":
        is_cut_off = True
        look = _Look(Level.WATCH, "without etcd", "It cannot reach etcd.")
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
        copies_problem=text(facts, "copies_problem") if look.word in UP else "",
        cannot_reach_etcd=is_cut_off,
    )


def _drainers(listing: Listing, seen: Observation, rate: _Rate) -> Iterator[DrainerNode]:
    waiting = {each.node_id for each in listing.standbys}
    stops = {each.node_id: each for each in listing.stops}
    listed_ = (d for d in listing.drainers if not _has_left(d) and not d.is_reader)
    for node in (d for d in listed_ if d.node_id not in waiting):
        name = node.node_id
        answer = seen.answers.get((DRAINER, name))
        look = _look(node, answer, seen)
        facts = _facts_now(look, answer)
        stop = None if look.level is Level.FINE else stops.get(name)
        if stop is not None and physical_ms(node.update_ts) / 1000 > _until_s(stop):
            stop = None
        if stop is not None:
            look = _Look(Level.ACT, "stopped", stop.problem)
        elif look.level is Level.ACT and (heir := _heir(name, listing, seen)):
            # The same server may have other tables, so that this is no proof.
            why = f"Drainer {heir} writes to the same downstream, perhaps in its place."
            look = _Look(Level.WATCH, look.word, why)
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
            spark_waits_for=_unless_nothing(facts, "spark_waits_for"),
            steps=number(facts, "steps"),
            is_starting=(number(facts, "uptime_s") or math.inf) < _STARTING_S,
            held_by=text(facts, "held_by"),
            held_s=number(facts, "low_water_held_s"),
            remedy=text(facts, "held_by_remedy"),
            streams=[
                PumpAtMerge(
                    pump=text(each, "node_id"),
                    condition=text(each, "condition"),
                    why=text(each, "why"),
                    lag_s=number(each, "lag_s"),
                    holds=truth(each, "holds_low_water"),
                )
                for each in listed(facts, "pumps")
            ],
            standbys=[each.node_id for each in listing.standbys if each.active == name],
            stop=stop,
        )


def _heir(name: str, listing: Listing, seen: Observation) -> str:
    """Return the Drainer that answers and writes the same downstream; empty without one."""
    own = text(_facts(seen.answers.get((DRAINER, name))), "downstream")
    for node in listing.drainers:
        answer = seen.answers.get((DRAINER, node.node_id))
        is_up = node.node_id != name and answer is not None and not answer.problem
        if own and is_up and text(_facts(answer), "downstream") == own:
            return node.node_id
    return ""


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
    pages = entry.pages_url.partition("://")[2].rstrip("/")
    is_loading = look.word == "loading"
    return SourceNode(
        name=entry.source_id,
        **look._asdict(),
        server=text(facts, "server") or text(entry.checkpoint, "server"),
        owner=entry.owner,
        behind_s=number(facts, "seconds_behind") if look.word == "syncing" else None,
        transactions_per_s=rate(SOURCE, entry.source_id, "transactions"),
        place=text(facts, "committed") or text(entry.checkpoint, "done"),
        gtids=text(facts, "gtids") or text(entry.checkpoint, "gtids"),
        problem=text(facts, "problem") if look.word in ("failed", "waiting") else "",
        hint=text(facts, "hint"),
        pages=pages,
        repairs=", ".join(islice(map(str, within(facts, "cascaded")), _LOADING_MAX)),
        choices=[_anywhere(Choice.of(each), pages) for each in texts(facts, "overrides")],
        load=_load(within(facts, "load")) if is_loading else (),
        load_about=_load_about(within(facts, "load")) if is_loading else "",
    )


def _anywhere(choice: Choice, pages: str) -> Choice:
    """Return a source's choice with a command that finds the source from any machine."""
    if not choice.command or not pages:
        return choice
    return Choice(f"{_AT.sub('', choice.command)} --status-addr={pages}", choice.means)


def _look_of_source(entry: SourceEntry, answer: Answer | None, now_s: float) -> _Look:
    if not entry.owner:
        return _Look(Level.ACT, "not running", "no process runs it")
    if not entry.pages_url and answer is None:
        return _Look(Level.NOTE, "running", "Its pages are off, so only etcd speaks of it.")
    if answer is None or (answer.facts is None and not answer.problem):
        return _Look(Level.NOTE, "unknown", "It was not asked yet.")
    if answer.problem:
        return _Look(Level.WATCH, "no answer", _silence(answer, now_s))
    facts = _facts(answer)
    state, relay = text(facts, "state"), within(facts, "relay")
    if state == "syncing" and text(facts, "problem"):
        return _Look(Level.WATCH, "waiting", text(facts, "problem"))
    if state == "syncing" and text(relay, "problem") and not truth(relay, "connected"):
        return _Look(Level.ACT, "no connection", text(relay, "problem"))
    levels = {"syncing": Level.FINE, "failed": Level.ACT, "paused": Level.ACT}
    return _Look(levels.get(state, Level.NOTE), state or "running")


def _load(facts: Facts) -> list[Loading]:
    """Return the load as a whole, and that of the tables that are being read."""
    done = number(facts, "rows_done")
    if done is None:
        return []
    whole = Loading("All tables", done, number(facts, "rows"))
    running = (
        Loading(text(each, "table"), number(each, "rows_done") or 0.0, number(each, "rows"))
        for each in listed(facts, "running")
    )
    return [whole, *islice(running, _LOADING_MAX)]


def _load_about(facts: Facts) -> str:
    tables, done, left_s = (number(facts, n) for n in ("tables", "tables_done", "seconds_left"))
    if tables is None or done is None:
        return "How far the load is, is not known yet."
    left = "time left not known yet" if left_s is None else f"{wording.duration(left_s)} left"
    return f"{done:,.0f} of {wording.count(int(tables), 'table')} loaded, {left}"


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
        f" {wording.moment(at_s)} UTC, {wording.ago(at_s, now_s)}. What is before that goes once it"
        " is older than gc-days."
    )


def _tables(seen: Observation) -> list[TableRate]:
    found = []
    for (kind, name), answer in sorted(seen.answers.items()):
        rates = {} if answer.problem else seen.table_rates.get(name, {})
        for each in listed(_facts(answer), "tables") if kind == DRAINER else ():
            table, rows = text(each, "name"), number(each, "rows")
            if rows is not None:
                rate = rates.get(table)
                found.append(TableRate(drainer=name, name=table, rows=rows, rows_per_s=rate))
    return sorted(found, key=lambda each: -(each.rows_per_s or 0.0))[:_TABLES_MAX]


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
