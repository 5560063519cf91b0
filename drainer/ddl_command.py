"""Command `penstock drainer ddl`: overrides a DDL that stops a Drainer.

    penstock drainer ddl list                        the DDL that stops it, overrides, counts
    penstock drainer ddl track <commit_ts>           the downstream has the DDL, or gets it by hand
    penstock drainer ddl replace <commit_ts> "<sql>" run this statement there instead
    penstock drainer ddl skip <commit_ts>            continue without it and the changes it enables
    penstock drainer ddl undo <commit_ts>            remove an override before its DDL is reached

The settings after the command are those of the Drainer (`--config`, `--etcd-urls`, …). They name
its etcd and its downstream, which have no defaults here. Each answer names the downstream.

An override is written into the downstream's checkpoint in one transaction, and therefore belongs to
the downstream. A Drainer that writes the downstream later reads the override at its start; a
running Drainer reads it before its next commit. Once the checkpoint has passed a DDL that was
skipped or replaced, `track` resumes replication of the skipped changes from the checkpoint on. It
is refused while a Drainer writes, because the tables must be prepared first.

A TiDB's DDL is listed and named by the time at which its job finished.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from typing import Any

from drainer.ddl.jobs import JobSource, open_job_source
from drainer.ddl.starting_schema import recorded_overrides
from drainer.differences import OVERRIDE, REPLACE, SKIP, TRACK, Override, commands, lines, means
from drainer.schema.rules import StreamPosition, StreamRules
from drainer.schema.tracker import SchemaTracker
from drainer.settings.compat import load_settings
from drainer.settings.config import DOWNSTREAM_KEYS, DrainerConfig
from drainer.sinks.checkpoint import Checkpoint, OverrideChange
from drainer.sinks.opening import open_sink
from drainer.sinks.protocol import Sink
from penstock.cluster.etcd import EtcdClient, connect
from penstock.cluster.records import run_named
from penstock.codes import Code
from penstock.ddl.parse.parser import parse
from penstock.errors import NeedsOperator
from penstock.node.output import take_output, write
from penstock.oracle.client import find_cluster_id
from penstock.schema.model import DdlJob, TableInfo
from penstock.security.tls import Security
from penstock.settings.setting import did_you_mean

_ARGUMENTS = {"list": 0, TRACK: 1, REPLACE: 2, SKIP: 1, "undo": 1}
_SHOWN_MAX = 20
_SINK_S_MAX = 3.0
_BUSY_S_MAX = 10.0
_BUSY_PAUSE_S = 0.1
"""The first pause; each later pause is twice as long, because a try reads the whole DDL history."""

USAGE = """\
commands about a DDL that stops the Drainer; they take the Drainer's own settings after them:
  penstock drainer ddl list                        what it is stopped at, all overrides
  penstock drainer ddl track <commit_ts>           go on: the downstream has it, or gets it by hand
  penstock drainer ddl replace <commit_ts> "<sql>" go on with another statement in its place
  penstock drainer ddl skip <commit_ts>            go on without it; skip and count its changes
  penstock drainer ddl undo <commit_ts>            take an override back
each takes -o json, too
"""


def main(argv: Sequence[str]) -> int:
    form, arguments = take_output(argv)
    verb, *rest = arguments or ("",)
    if verb in ("--help", "-h", "help"):
        sys.stdout.write(USAGE)
        return 0
    shown, facts = _run(verb, rest)
    write(form, facts, "\n".join(shown))
    return 0


def _run(verb: str, rest: Sequence[str]) -> tuple[list[str], dict[str, Any]]:
    if verb not in _ARGUMENTS or len(rest) < _ARGUMENTS[verb]:
        usage = "use list, track <commit_ts>, replace <commit_ts> <sql>, skip <commit_ts> or"
        usage += " undo <commit_ts>; settings come last"
        raise NeedsOperator(
            f"unknown command: penstock drainer ddl {' '.join((verb, *rest))}",
            usage if verb in _ARGUMENTS else did_you_mean(verb, _ARGUMENTS, usage),
            Code.COMMAND_INVALID,
        )
    given, flags = rest[: _ARGUMENTS[verb]], rest[_ARGUMENTS[verb] :]
    needed = (DOWNSTREAM_KEYS, ("etcd-urls",))
    config, _ = load_settings(flags, prog=f"penstock drainer ddl {verb}", required=needed)
    if given and not given[0].isdecimal():
        raise NeedsOperator(
            f"{given[0]!r} is no commit_ts",
            "`penstock drainer ddl list` shows it",
            Code.COMMAND_INVALID,
        )
    commit_ts = int(given[0]) if given else 0
    security = Security(config.security)
    etcd = connect(config.etcd_urls, tls=security.etcd_tls)
    with closing(etcd):
        cluster_id = find_cluster_id(etcd, config.pd_address, security.pd_tls)
        sink = open_sink(config.downstream, cluster_id=cluster_id, retry_s_max=_SINK_S_MAX)
        with closing(sink):
            source = open_job_source(config.pd_address, etcd, security.pd_tls)
            downstream = config.downstream.label
            if verb == "list":
                state = _read(config, etcd, source, sink)
                return [f"downstream: {downstream}", *_list(state)], {
                    "downstream": downstream,
                    **_facts(state),
                }
            sql = given[1] if verb == REPLACE else None
            read = partial(_read, config, etcd, source, sink)
            shown = _decided(read, sink, verb, commit_ts, sql)
            facts = {"downstream": downstream, "commit_ts": commit_ts, "verb": verb}
            return [f"changed in the checkpoint of {downstream}:", *shown], {
                **facts,
                "messages": shown,
            }


def _decided(
    read: Callable[[], _DownstreamState], sink: Sink, verb: str, commit_ts: int, sql: str | None
) -> list[str]:
    """Change the overrides, waiting a while for a condition that may end soon."""
    until_s, pause_s = time.monotonic() + _BUSY_S_MAX, _BUSY_PAUSE_S
    while True:
        state = read()
        try:
            if verb == "undo":
                change, shown = _undo(state, commit_ts)
            else:
                change, shown = _override(state, commit_ts, verb, sql)
            sink.change_overrides(change)
        except _Busy:
            if time.monotonic() > until_s:
                raise
            time.sleep(pause_s)
            pause_s *= 2
        else:
            return shown


class _Busy(NeedsOperator):
    """A conflict that may be over within moments."""


# --- state -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class _DownstreamState:
    """A downstream's state, as read from the downstream and from etcd."""

    writer: str
    """The Drainer that is writing it; empty if no writer is known."""
    after_ts: int
    checkpoint: Checkpoint
    rules: StreamRules
    jobs: Sequence[DdlJob]
    overrides: Mapping[int, Override]
    config: DrainerConfig

    @property
    def coming(self) -> list[DdlJob]:
        position = StreamPosition(self.after_ts, self.checkpoint.schema_version)
        to_come = (job for job in self.jobs if not self.rules.has_passed(job, position))
        ahead = self.checkpoint.ahead
        return [job for job in to_come if not job.has_failed and job.id not in ahead]

    def has_passed(self, commit_ts: int, now: Checkpoint) -> bool:
        """Return whether a downstream at checkpoint `now` has passed the DDL at `commit_ts`."""
        job, position = self.job(commit_ts), StreamPosition(now.commit_ts, now.schema_version)
        is_past = commit_ts <= max(self.after_ts, now.commit_ts)
        return is_past or (
            job is not None and (job.id in now.ahead or self.rules.has_passed(job, position))
        )

    def tracker(self, before_ts: int | None = None) -> SchemaTracker:
        """Return the schema at the checkpoint, or just before a DDL that comes after it."""
        made = SchemaTracker.from_history(
            self.jobs,
            self.after_ts,
            self.overrides,
            rules=self.rules,
            version=self.checkpoint.schema_version,
            ahead=self.checkpoint.ahead,
        )
        for job in self.coming if before_ts is not None else ():
            if job.finished_ts == before_ts:
                break
            made.take(job, self.overrides.get(job.finished_ts))
        return made

    def job(self, commit_ts: int) -> DdlJob | None:
        return next((job for job in self.jobs if job.finished_ts == commit_ts), None)


def _read(
    config: DrainerConfig, etcd: EtcdClient, source: JobSource, sink: Sink
) -> _DownstreamState:
    """Return the state; at most an empty checkpoint table is created downstream."""
    checkpoint = sink.load_checkpoint() or Checkpoint(0, 0)
    run = run_named(etcd, checkpoint.writer) if checkpoint.writer else None
    writer = "" if run is None else run.node_id
    recorded: dict[int, Override] = {}
    if not checkpoint.has_all_overrides:
        from drainer.components import Home  # It imports Arrow, which `--help` does not need.

        address = config.advertise_addr or config.addr
        own = Home(config.data_dir).known_node_id(config.node_id, address)
        recorded = recorded_overrides(etcd, [own, *filter(None, [writer])])
    return _DownstreamState(
        writer=writer,
        after_ts=checkpoint.commit_ts or max(0, config.initial_commit_ts),
        checkpoint=checkpoint,
        rules=source.rules,
        jobs=source.jobs(),
        overrides=checkpoint.overrides_with(recorded),
        config=config,
    )


# --- decisions -------------------------------------------------------------------------------


_Decided = tuple[OverrideChange, list[str]]
"""The change of the overrides, and the lines that report it."""


def _changed(state: _DownstreamState, commit_ts: int, override: Override | None) -> OverrideChange:
    """Return the change that sets `override` for a future DDL; None removes the override."""

    def change(now: Checkpoint) -> Mapping[int, Override]:
        if state.has_passed(commit_ts, now):
            raise _Busy(
                f"the DDL at {commit_ts} was passed just now",
                hint="`penstock drainer ddl list` shows how",
                code=Code.OVERRIDE_INVALID,
            )
        if state.writer and now.ddl_intent_ts > now.commit_ts:  # It might have to run it again.
            raise _Busy(
                f"drainer {state.writer} is running the DDL at {now.ddl_intent_ts} just now",
                hint="wait until `penstock drainer ddl list` no longer shows it as begun, or stop"
                " the Drainer",
                code=Code.NODE_STATE,
            )
        made = {ts: each for ts, each in _all(state, now).items() if ts != commit_ts}
        return made if override is None else {**made, commit_ts: override}

    return change


def _all(state: _DownstreamState, now: Checkpoint) -> Mapping[int, Override]:
    return (now.overrides or {}) if now.has_all_overrides else state.overrides


def _override(state: _DownstreamState, commit_ts: int, verb: str, sql: str | None) -> _Decided:
    if state.has_passed(commit_ts, state.checkpoint):
        return _take_back(state, commit_ts, verb)
    made = datetime.now(UTC).isoformat(timespec="seconds")
    override = Override(commit_ts=commit_ts, verb=verb, sql=sql, made=made)
    job = state.job(commit_ts)
    if sql is not None and len(parse(sql)[1]) != 1:
        raise NeedsOperator("more than one statement", "give exactly one", Code.COMMAND_INVALID)
    change = None
    if job is not None:  # An override that would stop the Drainer again is refused here.
        tracker = state.tracker(job.finished_ts)
        tracked = tracker.track(job, override)
        change = None if tracker.blind_ts == commit_ts else tracked.change
    if job is None and verb != SKIP:
        raise NeedsOperator(
            f"the DDL history has no DDL at {commit_ts}",
            "`penstock drainer ddl list` shows those that come; without its job one can"
            " only be"
            " skipped, and what it did is not known then",
            Code.OVERRIDE_INVALID,
        )
    about = "which the DDL history does not have (yet)" if job is None else repr(job.query)
    by = "by whichever Drainer writes this downstream next"
    if state.writer:
        by = f"by drainer {state.writer} or whichever writes this downstream after it"
    return _changed(state, commit_ts, override), [
        f"the DDL at {commit_ts}, {about}, will be {override.describe()}, {by}",
        f"what that means: {means(verb, change)}",
        "until the checkpoint has passed the DDL, another override, or"
        f" `penstock drainer ddl undo {commit_ts}`, changes it",
    ]


def _take_back(state: _DownstreamState, commit_ts: int, verb: str) -> _Decided:
    """From the checkpoint on, stop skipping data because of a DDL that it has passed."""
    known = state.overrides.get(commit_ts)
    if known is None or known.verb == TRACK or known.ended_ts or verb != TRACK:
        raise NeedsOperator(
            f"the DDL at {commit_ts} is before the checkpoint at {state.after_ts}: it was followed"
            f" {'as it is' if known is None else 'like this: ' + known.describe()}",
            "what was followed and run stays. `penstock drainer ddl track` takes a skipped"
            " or replaced one back; `penstock drainer ddl list` shows these",
            Code.OVERRIDE_INVALID,
        )
    if state.writer:
        raise _Busy(
            f"drainer {state.writer} writes this downstream",
            hint="stop it and its standbys first: from the checkpoint on rows will go into tables"
            " that must be ready for them then",
            code=Code.NODE_STATE,
        )
    shown = [
        f"from the checkpoint at {state.after_ts} on, nothing is skipped any more for the DDL at"
        f" {commit_ts}, which was {known.describe()}"
    ]
    for schema, table in state.tracker().take_back(commit_ts):
        shown += _wanted(state, schema, table)

    def change(now: Checkpoint) -> Mapping[int, Override]:
        if (now, now.writer) != (state.checkpoint, state.checkpoint.writer):
            raise _Busy(
                "a Drainer was started just now",
                hint="stop it and its standbys first",
                code=Code.NODE_STATE,
            )
        return {**_all(state, now), commit_ts: replace(known, ended_ts=state.after_ts)}

    return change, [*shown, "this takes effect when a Drainer is started next"]


def _wanted(state: _DownstreamState, schema: str, table: TableInfo) -> list[str]:
    name = f"{schema}.{table.name}"
    columns = ", ".join(c.name for c in table.columns)
    missing = {
        each: count
        for each, count in state.checkpoint.skipped.items()
        if each.cause == OVERRIDE and each.table == name
    }
    lost = "; ".join(lines(missing)) or "nothing that is counted under this name"
    return [
        f"  before the start the downstream must have {name} with the columns {columns}",
        f"  changes skipped so far are not made up for: {lost}. Load the table again, or copy"
        " its rows by hand, as they are at the checkpoint",
    ]


def _undo(state: _DownstreamState, commit_ts: int) -> _Decided:
    known = state.overrides.get(commit_ts)
    if known is None:
        raise NeedsOperator(
            f"there is no override of the DDL at {commit_ts}",
            "`penstock drainer ddl list` shows all overrides",
            Code.OVERRIDE_INVALID,
        )
    if state.has_passed(commit_ts, state.checkpoint):
        raise NeedsOperator(
            f"the DDL at {commit_ts} is before the checkpoint at {state.after_ts}: it was"
            f" {known.describe()}",
            f"`penstock drainer ddl track {commit_ts}` takes back, from the checkpoint on,"
            " what is left"
            " out for it",
            Code.OVERRIDE_INVALID,
        )
    return _changed(state, commit_ts, None), [
        f"the DDL at {commit_ts} will be followed as it is; it was to be {known.describe()}"
    ]


# --- output ----------------------------------------------------------------------------------


def _list(state: _DownstreamState) -> list[str]:
    coming = state.coming
    writer = f"drainer {state.writer} writes" if state.writer else "no Drainer writes"
    shown = [
        f"{writer} this downstream; its checkpoint is at {state.after_ts},"
        f" DDLs after it: {len(coming)}"
    ]
    begun_ts = state.checkpoint.ddl_intent_ts
    if begun_ts > state.after_ts:
        shown.append(f"the DDL at {begun_ts} was begun and is not known to be done")
    tracker = state.tracker()
    passed = _passed(state, tracker)
    for number, job in enumerate(coming[:_SHOWN_MAX]):
        override = state.overrides.get(job.finished_ts)
        query = " ".join(job.query.split())[:200]
        decided = f"   [{override.describe()}]" if override else ""
        shown.append(f"{job.finished_ts}  {job.schema_name or '-'}  {query}{decided}")
        shown += _ways(tracker, job, state.config) if number == 0 else []
    ahead = {job.finished_ts for job in coming}
    for ts, override in sorted(state.overrides.items()):
        if ts > state.after_ts and ts not in ahead:
            shown.append(f"{ts}  decided {override.made}: {override.describe()}")
    if passed:
        shown += ["overrides of DDL that the checkpoint has passed:", *passed]
    counted = [f"  {line}" for line in lines(state.checkpoint.skipped)]
    return shown + (["what did not go downstream so far:", *counted] if counted else [])


def _facts(state: _DownstreamState) -> dict[str, Any]:
    tracker, begun_ts = state.tracker(), state.checkpoint.ddl_intent_ts
    return {
        "drainer": state.writer or None,
        "checkpoint_ts": state.after_ts,
        "begun_ddl_ts": begun_ts if begun_ts > state.after_ts else None,
        "coming": [
            {"commit_ts": job.finished_ts, "schema": job.schema_name, "query": job.query}
            for job in state.coming
        ],
        "overrides": [
            {
                "commit_ts": ts,
                "verb": override.verb,
                "replacement": override.sql,
                "made": override.made,
                "ended_ts": override.ended_ts or None,
                "is_passed": ts <= state.after_ts,
                "leaves_out": [
                    {"name": name, "what": what} for name, what in _skipped_by(tracker, ts)
                ],
            }
            for ts, override in sorted(state.overrides.items())
        ],
        "left_out": [
            {**each._asdict(), "count": count}
            for each, count in sorted(state.checkpoint.skipped.items())
        ],
    }


def _ways(tracker: SchemaTracker, job: DdlJob, config: DrainerConfig) -> list[str]:
    ts, change = job.finished_ts, None
    unfit = ""
    try:
        change = tracker.copy().track(job, Override(commit_ts=ts, verb=TRACK)).change
    except NeedsOperator as error:
        unfit = f"    it cannot be tracked: {error.problem} [{error.code}]"
    typed = commands(ts, f" {config.as_flags}")
    shown = [f"    {command}: {means(verb, change)}" for verb, command in typed.items()]
    if config.password_hint:
        shown.append(f"    for these commands, {config.password_hint}")
    return [unfit, *shown[1:]] if unfit else shown


def _passed(state: _DownstreamState, tracker: SchemaTracker) -> list[str]:
    shown = []
    for ts, override in sorted(state.overrides.items()):
        if ts > state.after_ts:
            continue
        shown.append(f"{ts}  decided {override.made}: {override.describe()}")
        for name, what in _skipped_by(tracker, ts):
            shown.append(f"    {name}: {what}; `penstock drainer ddl track {ts}` ends that")
    return shown


def _skipped_by(tracker: SchemaTracker, override_ts: int) -> Iterator[tuple[str, str]]:
    """Yield each table that differs because of an override, and the difference."""
    for schema, table in tracker.catalog.tables():
        drift = tracker.drift(table.id)
        if override_ts not in drift.overrides:
            continue
        only = drift.without(override_ts)
        if drift.absent_ts == override_ts:
            yield f"{schema}.{table.name}", "its rows are skipped"
            continue
        lacking = set(drift.lacking(table)) - set(only.lacking(table))
        converted = set(drift.converted(table)) - set(only.converted(table))
        parts = [f"the values of {', '.join(sorted(lacking))} are skipped"] if lacking else []
        if converted:
            parts.append(f"{', '.join(sorted(converted))} has another definition downstream")
        yield f"{schema}.{table.name}", "; ".join(parts) or "its indexes differ downstream"
    for schema, since_ts in tracker.absent_schemas.items():
        if since_ts == override_ts:
            yield schema, "its tables are skipped"
