"""Concerns: the problems of a cluster, one for each cause, with all their consequences.

Pure.

    pump pump-2 is dead  <── the merge of drainer-1 stands  <── its downstream is 40 s behind
    etcd does not answer <── a source waits

A concern has a *subject*, and may be *due to* other subjects. If one of these is a concern as well,
it is the cause: its consequences are listed beneath it, and its level is that of the worst of them.
A concern whose cause is not known stays as it is. Each remedy that is a command is whole: with the
cluster's etcd and the node, so that it acts on the right target wherever it is pasted.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

from penstock.ctl.console import wording
from penstock.ctl.console.observation import DRAINER, PUMP, SOURCE, Listing, Observation
from penstock.ctl.console.views import (
    LAG_WATCH_S,
    Choice,
    ClusterState,
    Concern,
    DrainerNode,
    Level,
    PumpNode,
    SourceNode,
)

_FAR_DOWN: Final = ("dead", "stopped")
ETCD: Final = "etcd"
WRITERS: Final = "writers"


def ctl_command(*words: str, flags: str) -> str:
    """Return a command of penstock ctl; `flags` name the cluster."""
    return f"{shlex.join(['penstock', 'ctl', *words])} {flags}"


def concerns_of(state: ClusterState, seen: Observation) -> list[Concern]:
    return folded([*_concerns(state, seen)])


def folded(found: Sequence[Concern]) -> list[Concern]:
    """Return the causes, the worst first, each with its consequences."""
    known = {each.subject: each for each in found if each.subject}
    follows: dict[int, list[Concern]] = {id(each): [] for each in found}
    for each in found:
        if (cause := _cause(each, known)) is not each:
            follows[id(cause)].append(each)
    causes = [
        replace(
            each,
            level=max(one.level for one in (each, *follows[id(each)])),
            follows=tuple(one.title for one in follows[id(each)]),
        )
        for each in found
        if _cause(each, known) is each
    ]
    return sorted(causes, key=lambda each: -each.level)


def _cause(one: Concern, known: dict[str, Concern]) -> Concern:
    passed = {one.subject}
    while (up := next((s for s in one.due_to if s in known and s not in passed), None)) is not None:
        passed.add(up)
        one = known[up]
    return one


def _concerns(state: ClusterState, seen: Observation) -> Iterator[Concern]:
    if seen.etcd_problem:
        yield _etcd_concern(seen)
    pumps = [f"{PUMP} {each.name}" for each in state.pumps if not each.is_up]
    for drainer in state.drainers:
        yield from _drainer_concerns(drainer, pumps)
    for pump in state.pumps:
        yield from _pump_concerns(pump, pumps, seen.flags)
    for source in state.sources:
        yield from _source_concerns(source, pumps)
    listing = seen.listing or Listing()
    for problem in listing.problems:
        yield Concern(level=Level.WATCH, title="An entry in etcd cannot be read", detail=problem)
    for gap in listing.gaps:
        yield Concern(
            level=Level.ACT,
            title=f"Drainer {gap.drainer} can never get the binlogs of Pump {gap.pump}",
            detail=f"({gap.after_ts}, {gap.up_to_ts}]: the Pump left without waiting for it.",
            remedy="Restore its downstream from a newer backup, and start it there.",
        )
    if state.is_known and not any(pump.level < Level.ACT for pump in state.pumps):
        yield Concern(
            level=Level.ACT,
            title="No Pump takes transactions: writers get an error until one is online",
            subject=WRITERS,
            due_to=(*pumps, ETCD),
            remedy="Start a Pump with this cluster's etcd.",
        )
    if state.is_known and not state.drainers:
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
        subject=ETCD,
        detail=seen.etcd_problem,
        remedy="Start it, or correct the console's --etcd-urls. Until it answers, nodes are shown"
        " as they describe themselves, and their list is the last that etcd gave.",
    )


def _drainer_concerns(drainer: DrainerNode, pumps: Sequence[str]) -> Iterator[Concern]:
    name, stop = drainer.name, drainer.stop
    own = f"{DRAINER} {name}"
    start = f"Start it again on {drainer.machine}: it continues from its checkpoint."
    if stop is not None:
        has_choices = bool(stop.choices)
        yield Concern(
            level=Level.ACT,
            title=f"Drainer {name} has stopped and waits for "
            + ("a decision" if has_choices else "a person"),
            subject=own,
            detail=f"It stopped {stop.made}. {wording.sentence(stop.problem)}",
            remedy="" if has_choices else wording.sentence(stop.hint),
            choices=tuple(map(Choice.of, stop.choices)),
        )
    elif drainer.level >= Level.WATCH:
        has_ended = drainer.word in ("dead", "paused")
        verb = "is" if has_ended else "gives"
        yield Concern(
            level=drainer.level,
            title=f"Drainer {name} {verb} {drainer.word}",
            subject=own,
            due_to=(ETCD,),
            detail=f"Nothing goes to its downstream, and Pumps keep what comes. {drainer.why}"
            if drainer.level is Level.ACT
            else drainer.why,
            remedy=start if has_ended else "",
        )
    yield from _waits(drainer, pumps)


def _waits(drainer: DrainerNode, pumps: Sequence[str]) -> Iterator[Concern]:
    name = drainer.name
    holders = [f"{PUMP} {each.pump}" for each in drainer.streams if each.holds]
    if drainer.held_by:
        yield Concern(
            level=Level.ACT if drainer.remedy else Level.WATCH,
            title=f"The merge of {name} has been blocked for {wording.duration(drainer.held_s)}:"
            " nothing goes downstream",
            subject=f"merge {name}",
            due_to=(*holders, ETCD),
            detail=f"It waits for {drainer.held_by}.",
            remedy=wording.sentence(drainer.remedy),
        )
    ways = [("downstream", f"The downstream of {name} takes no changes",
             drainer.downstream_waits_for, "Nothing is lost: Pumps keep what comes, and Drainer"
             f" {name} tries again until it succeeds. Start the database or broker, or correct what"
             " it says here; if its address has changed, start the Drainer with the new one.", ()),
            ("ddl", f"A DDL waits at {name}", drainer.ddl_waits_for,
             "It is a matter of etcd, or with a TiDB of its PD: start it.", (ETCD,)),
            ("spark", f"Drainer {name} has no Spark task", drainer.spark_waits_for,
             "Look at spark.log in its data folder: Spark, or a Spark cluster's executors, must"
             " run.", ())]  # fmt: skip
    if drainer.spark_waits_for and drainer.is_starting:
        yield Concern(
            level=Level.NOTE,
            title=f"Spark is starting at {name}",
            subject=f"spark {name}",
            detail="Rows go downstream once it has started.",
        )
        ways.pop()
    for what, title, waits, remedy, due_to in ways:
        if waits:
            yield Concern(level=Level.ACT, title=title, subject=f"{what} {name}",
                          due_to=due_to, detail=waits, remedy=remedy)  # fmt: skip
    if drainer.lag_s is not None and drainer.lag_s > LAG_WATCH_S:
        causes = [f"{what} {name}" for what in ("downstream", "ddl", "spark", "merge")]
        yield Concern(
            level=Level.NOTE if drainer.is_starting else Level.WATCH,
            title=f"The downstream of {name} is {wording.duration(drainer.lag_s)} behind",
            due_to=(*causes, *pumps, ETCD),
            remedy="If it does not fall, see its rate and the load of the downstream below.",
        )


def _pump_concerns(pump: PumpNode, pumps: Sequence[str], flags: str) -> Iterator[Concern]:
    own = f"{PUMP} {pump.name}"
    if pump.closing:
        yield Concern(level=Level.NOTE, title=f"Pump {pump.name} is leaving", detail=pump.closing)
    if pump.copies_problem:
        title = f"The log of Pump {pump.name} has too few copies"
        if not pump.acknowledges:
            title = f"Pump {pump.name} acknowledges nothing: its log has too few copies"
        yield Concern(
            level=Level.WATCH if pump.acknowledges else Level.ACT,
            title=title,
            subject=f"copies {pump.name}",
            due_to=(*pumps, ETCD),
            detail=f"It is on {pump.copies_on}. {wording.sentence(pump.copies_problem)}",
            remedy="Start the Pumps that are down, or one more: a copy is then added.",
        )
    if pump.level < Level.WATCH:
        return
    start = f"Start it again on {pump.machine}"
    detail, remedy, commands = pump.why, "", tuple[Choice, ...]()
    if pump.word in _FAR_DOWN or pump.word == "unreachable":
        remedy = (
            f"{start}: Drainers wait for what it holds, which is on its disk only, unless its log"
            " has copies."
        )
        if pump.word == "unreachable":
            remedy = "Make its address reachable from there: a firewall, or --advertise-addr."
        commands = (
            Choice(ctl_command("lost-pump", pump.name, "--accept-loss-after", "0", flags=flags),
                   "If it can never start again: changes nothing yet, and lists what every Drainer"
                   " would lose"),
        )  # fmt: skip
    if pump.word == "paused":
        detail = f"Every Drainer that lacks its binlogs waits for it. {pump.why}"
        remedy = f"{start}, and it hands over what it holds."
        commands = (
            Choice(ctl_command("offline-pump", pump.name, flags=flags),
                   "To do without it from now on: refused while a Drainer lacks its binlogs"),
        )  # fmt: skip
    if pump.word == "full":
        remedy = "Make room on its volume. What it keeps is needed by a Drainer, see Disk below."
    if pump.cannot_reach_etcd:
        remedy = "Make etcd reachable from its machine."
    known = {"no answer": "does not answer"}
    yield Concern(
        level=pump.level,
        title=f"Pump {pump.name} {known.get(pump.word, f'is {pump.word}')}",
        subject=own,
        due_to=(ETCD,) if pump.cannot_reach_etcd or pump.word == "no answer" else (),
        detail=detail,
        remedy=remedy,
        commands=commands,
    )


def _source_concerns(source: SourceNode, pumps: Sequence[str]) -> Iterator[Concern]:
    if source.level < Level.WATCH:
        return
    remedy, commands, choices = wording.sentence(source.hint), tuple[Choice, ...](), source.choices
    if source.word == "paused":
        remedy = "Let it go on. Its relay log grows meanwhile."
    elif source.word in ("not running", "no answer"):
        remedy = "Start it again on its machine: it continues from its checkpoint."
    elif source.word == "no connection":
        remedy = "Start the server, or correct its address: the source connects again."
    elif source.word == "failed" and not choices:
        remedy += " Then let it go on."
    if source.word in ("paused", "failed") and not choices:
        at = f" --status-addr={source.pages}" if source.pages else ""
        commands = (Choice(f"penstock source resume{at}", "It goes on where it stopped"),)
    verb = {"no answer": "gives", "no connection": "has"}.get(source.word, "is")
    if source.word == "failed":
        title = f"Source {source.name} has stopped and waits for "
        title += "a decision" if choices else "a person"
    else:
        title = f"Source {source.name} {verb} {source.word}"
    yield Concern(
        level=source.level,
        title=title,
        subject=f"{SOURCE} {source.name}",
        due_to=(WRITERS, *pumps, ETCD) if source.word == "waiting" else (),
        detail=wording.sentence(source.problem or source.why),
        remedy=remedy.strip(),
        commands=commands,
        choices=choices,
    )
