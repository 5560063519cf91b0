"""DDL follower: decides what a DDL of the stream runs downstream; tracked always, run maybe.

    DdlStep ── its job ── tracked, under the operator's override ──┬─ not to run: counted
                                                                   └─ route ──> run, or counted

A TiDB's DDL is named by the time at which its job finished, because its history records that time.
The commit_ts of its binlog is a little earlier, and recorded only in the binlog.

The tracker follows the upstream's names and every DDL, including DDL that does not run downstream,
so that the schema never depends on filters or overrides. `route` applies filters and routing: it
gets the change as the downstream must follow it and returns the change to run, or why none runs.

Which part of a TiDB's DDL runs downstream, and with which text:

    binlog's schema state 1     a column is being removed; a second binlog reports its removal
    a failed job                did nothing, so nothing runs
    a job about TiDB's own      placement, locks, caches, TiFlash, resource groups: nothing runs
    DROP TABLE a, b             is two jobs of one text: each drops its own table
    RENAME to another database  under names with their databases: the session's is not in the job
    RECOVER TABLE … BY JOB      refused: a job's number is another job's downstream
    anything else               as the binlog has it, with TiDB's own words in comments, and
                                with the collations and names of keys that TiDB chose;
                                with names in the letter case of their tables

A writer of ours records the statement to run, so its stream does not need this.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import Awaitable, Callable, Mapping, Set
from dataclasses import replace
from typing import NamedTuple

from drainer.ddl.catch_up import CatchUp, Upstream, unreported
from drainer.ddl.jobs import JobSource
from drainer.ddl.starting_schema import StartingSchema
from drainer.differences import (
    DDLS,
    IGNORED,
    OVERRIDE,
    REPLACE,
    SKIP,
    TRACK,
    UPSTREAM_ONLY,
    Counts,
    Override,
    Skipped,
    commands,
    means,
    subject_of,
)
from drainer.planner import DdlStep
from drainer.relay_log.log import RelayStage
from drainer.schema.rules import StreamRules
from drainer.schema.tracker import OTHER_HISTORY, SchemaTracker, Tracked
from drainer.sinks.checkpoint import Checkpoint
from penstock.codes import Code
from penstock.ddl import SchemaChange, rename_tables
from penstock.ddl.catalog import (
    DROPS,
    WITHOUT_EFFECT,
    Catalog,
    drops_several,
    table_by_table,
    together,
)
from penstock.ddl.rewrite.explicit import as_made
from penstock.ddl.syntax.lexer import quote_path
from penstock.errors import NeedsOperator, Retryable, coded
from penstock.schema.model import DdlJob, DdlType, TableInfo
from penstock.waiting import doubling

log = logging.getLogger(__name__)

Route = Callable[[SchemaChange], SchemaChange | Skipped | None]
Refused = Callable[[NeedsOperator, int, SchemaChange | None], NeedsOperator]


class FollowedDdl(NamedTuple):
    """A DDL's effect upstream, the statement to run downstream, if any, and its count.

    `ts` is its name in an override.
    """

    upstream: SchemaChange
    run: SchemaChange | None
    skipped: Counts
    ts: int = 0


def straight(change: SchemaChange) -> SchemaChange:
    return change


class DdlFollower:
    """Follows one DDL after the other."""

    def __init__(
        self,
        schemas: SchemaTracker,
        fetch_job: Callable[[DdlStep], Awaitable[DdlJob]],
        *,
        overrides: Mapping[int, Override],
        ignored_ts: Set[int] = frozenset(),
        route: Route = straight,
        refused: Refused | None = None,
    ) -> None:
        """`ignored_ts` are commit_ts whose DDL is tracked and not run.

        `refused` adds the remedy to an error; default: the overrides of a Drainer.
        """
        self.refused = refused or with_overrides
        self.schemas = schemas
        self._fetch_job = fetch_job
        self._overrides = overrides
        self._ignored_ts = ignored_ts
        self._route = route

    async def follow(self, step: DdlStep) -> FollowedDdl:
        """Track a DDL and return what becomes of it downstream.

        A DDL that cannot be followed raises NeedsOperator, whose hint says how to continue.
        """
        override = self._overrides.get(step.commit_ts)
        tracked: Tracked | None = None
        ts, is_fenced = step.commit_ts, self.schemas.rules.is_fenced
        if not is_fenced and step.schema_state == DELETE_ONLY:
            log.info("DDL at %d is not over yet; it comes again: %s", ts, step.query)
            return FollowedDdl(_of_nothing(step), None, Counts())
        if not step.is_ahead and self.schemas.pass_ahead(step.job_id):
            log.info("DDL at %d ran before: rows that came earlier needed it", ts)
            return FollowedDdl(_of_nothing(step), None, Counts())
        try:
            job = await self._job(step, override)
            if not is_fenced:
                ts, job = job.finished_ts, replace(job, query=step.query)
                override = self._overrides.get(ts)
                if job.has_failed:
                    log.info("DDL at %d failed upstream (state %d): %s", ts, job.state, step.query)
                    return FollowedDdl(self.schemas.follow(job), None, Counts(), ts)
            take = self.schemas.take_ahead if step.is_ahead else self.schemas.track
            tracked = take(job, override)
            if override is not None:
                self._report(step, override, tracked)
            return self._routed(step, override, tracked)._replace(ts=ts)
        except NeedsOperator as error:
            change = None if tracked is None else tracked.change
            raise self.refused(error, ts, change) from error

    def _routed(self, step: DdlStep, override: Override | None, tracked: Tracked) -> FollowedDdl:
        change, run = tracked.change, tracked.run
        subject, counts = subject_of(change), Counts()
        if override is not None or run is None:
            counts[Skipped(DDLS, OVERRIDE, subject)] = 1
        elif step.commit_ts in self._ignored_ts:
            log.warning(
                "DDL at %d is in ignore-txn-commit-ts: tracked, not run: %s",
                step.commit_ts, change.job.query,
            )  # fmt: skip
            counts[Skipped(DDLS, IGNORED, subject)] = 1
            run = None
        elif drops_several(change):
            absent = [part for part in table_by_table(change) if part.dropped[0][1].id not in
                      {table.id for _, table in run.dropped}]  # fmt: skip
            counts.update(Skipped(DDLS, OVERRIDE, subject_of(part)) for part in absent)
        elif not self.schemas.rules.is_fenced:
            if change.job.type in WITHOUT_EFFECT:  # It concerns nothing that a downstream has.
                counts[Skipped(DDLS, UPSTREAM_ONLY, subject)] = 1
                run = None
            else:
                run = _in_letter_case(_alone(run), self.schemas.catalog)
        if run is None:
            return FollowedDdl(change, None, counts)
        kept = []
        for part in table_by_table(run):
            routed = self._route(part)
            if isinstance(routed, Skipped):
                counts[routed] += 1
            elif routed is not None:
                kept.append(routed)
        return FollowedDdl(change, together(kept) if kept else None, counts)

    def _report(self, step: DdlStep, override: Override, tracked: Tracked) -> None:
        change = None if self.schemas.blind_ts == step.commit_ts else tracked.change
        log.warning(
            "DDL at %d, %r: %s, as decided %s: %s",
            step.commit_ts, step.query, override.describe(), override.made,
            means(override.verb, change),
        )  # fmt: skip

    async def _job(self, step: DdlStep, override: Override | None) -> DdlJob:
        if override is None or override.verb != SKIP:
            return await self._fetch_job(step)
        try:
            # A TiDB's job may be late by any time, so only the job of a fenced stream is awaited.
            is_prompt = self.schemas.rules.is_fenced
            async with asyncio.timeout(None if is_prompt else ABSENT_S_MAX):
                return await self._fetch_job(step)
        except (NeedsOperator, TimeoutError):
            # Even without its job a skipped DDL counts as one version.
            version = self.schemas.version + 1
            return DdlJob(id=step.job_id, type=0, schema_id=0, schema_name="", query=step.query,
                          schema_version=version, finished_ts=step.commit_ts)  # fmt: skip


def _of_nothing(step: DdlStep) -> SchemaChange:
    job = DdlJob(
        id=step.job_id, type=0, schema_id=0, schema_name="", query=step.query, schema_version=0
    )
    return SchemaChange(job=job)


class DdlRefused(NeedsOperator):
    """A DDL that stops the Drainer; `choices` are the overrides, each with its effect."""

    def __init__(self, problem: str, *, hint: str, code: Code, choices: tuple[str, ...]) -> None:
        super().__init__(problem, hint=hint, code=code)
        self.choices = choices


def with_overrides(
    error: NeedsOperator,
    commit_ts: int,
    change: SchemaChange | None,
    *,
    flags: str = "",
    password_hint: str = "",
) -> DdlRefused:
    """Return the error about a DDL with the overrides that let a Drainer continue, safest first.

    `change` is the DDL's effect upstream, None if it cannot be tracked. `flags` complete each
    command: they name the Drainer's settings, without a password, for which there is a hint.
    """
    flags = flags and f" {flags}"
    refused = {TRACK} if change is None else set()
    if error.code is Code.DDL_HISTORY:  # Without its job only skipping it is safe.
        refused.add(REPLACE)
    choices = [
        f"`{command}`: {means(verb, change)}"
        for verb, command in commands(commit_ts, flags).items()
        if verb not in refused
    ]
    if password_hint:
        choices.append(f"For these commands, {password_hint}")
    return DdlRefused(
        f"DDL at {commit_ts}: {error.problem}",
        hint=f"{error.hint}; then start the Drainer again. Or override this DDL, and start it then."
        f" {'. '.join(choices)}. `penstock drainer ddl list{flags}` shows this again,"
        f" `penstock drainer ddl undo {commit_ts}{flags}` takes an override back",
        code=error.code,
        choices=(f"{error.hint}; then start the Drainer again", *choices),
    )


ABSENT_S_MAX = 30.0
_RETRY_S_MIN = 0.1
_RETRY_S_MAX = 3.0


async def fetch_job(
    history: JobSource,
    step: DdlStep,
    *,
    absent_s_max: float = ABSENT_S_MAX,
    report: Callable[[str], None] = unreported,
) -> DdlJob:
    """Return the job of a DDL; wait for the history as long as it takes, and `report` the wait.

    If a job is written before its binlog, a missing job is not late but lost: after `absent_s_max`
    that raises `NeedsOperator`. A TiDB's job comes once all its servers have the schema, for which
    a server may wait for a transaction's end.
    """
    pauses = doubling(_RETRY_S_MIN, _RETRY_S_MAX)
    asked_s = logged_s = time.monotonic()
    what = f"the DDL at {step.commit_ts} waits for its job {step.job_id}"
    while True:
        try:
            job = await asyncio.to_thread(history.get, step.job_id)
        except Retryable as error:
            report(f"{what}: {coded(error)}")
            log.error("%s: %s", what, error)
            asked_s = time.monotonic()
        else:
            if job is not None:
                report("")
                refuse_other(job, step, history.rules, history.place)
                return job
            now_s = time.monotonic()
            if history.rules.is_fenced and now_s - asked_s > absent_s_max:
                raise NeedsOperator(
                    f"DDL job {step.job_id}, committed at {step.commit_ts}, is not in the history:"
                    f" {step.query}",
                    "was etcd wiped? Restore /penstock/v1/ddl, or start on a fresh copy of "
                    "the downstream with initial-commit-ts above this DDL",
                    Code.DDL_HISTORY,
                )
            report(f"{what}, which is not in {history.place} yet")
            if history.rules.is_fenced or now_s - logged_s > absent_s_max:
                log.warning("%s, which is not in %s yet", what, history.place)
                logged_s = now_s
        await asyncio.sleep(next(pauses))


def refuse_other(job: DdlJob, step: DdlStep, rules: StreamRules, place: str) -> None:
    """Raise `NeedsOperator` unless the job of a DDL's id is the job of that DDL.

    A history that was restored from a backup assigns its ids again. A writer of ours records the
    text and the commit_ts of the binlog. A TiDB's binlog lies between its job's start and end. This
    holds for only one job of an id, because TiDB's timestamps never repeat.
    """
    if rules.is_fenced:
        is_same = (job.finished_ts, job.query) == (step.commit_ts, step.query)
    else:
        is_same = job.start_ts <= step.commit_ts <= job.finished_ts
    if not is_same:
        raise NeedsOperator(
            f"the stream's DDL at {step.commit_ts} has job id {step.job_id} and is {step.query!r},"
            f" but job {job.id} in {place} finished at {job.finished_ts} and is {job.query!r}",
            OTHER_HISTORY,
            Code.DDL_HISTORY,
        )


class NotedJobs:
    """The jobs of the stream's DDL; the schema's snapshot and the relay log record each."""

    def __init__(
        self, history: JobSource, schema: StartingSchema, relay: RelayStage | None = None
    ) -> None:
        self._history = history
        self._schema = schema
        self._relay = relay
        self._waits_for = ""

    def waits_for(self) -> str:
        return self._waits_for

    def _wait_for(self, what: str) -> None:
        self._waits_for = what

    def catch_up(self, upstream: Upstream, checkpoint: Checkpoint) -> CatchUp:
        is_beginning = not checkpoint.schema_version
        return CatchUp(
            self._schema.tracker, upstream, is_beginning=is_beginning, report=self._wait_for
        )

    async def fetch(self, step: DdlStep) -> DdlJob:
        job = await fetch_job(self._history, step, report=self._wait_for)
        if self._schema.file is not None and not step.is_ahead:
            await self._schema.file.before(self._schema.tracker, job)
        if self._relay is not None:
            self._relay.note_job(job)
        return job


DELETE_ONLY = 1
"""The schema state in which only deletes still see a column: rows no longer bring its values."""

_OF_SCHEMAS = (DdlType.CREATE_SCHEMA, DdlType.MODIFY_SCHEMA_CHARSET)
_RENAMES = (DdlType.RENAME_TABLE, DdlType.RENAME_TABLES)
_IF_EXISTS = re.compile(r"\bIF\s+EXISTS\b", re.IGNORECASE)
_BY_JOB = re.compile(r"\bBY\s+JOB\b", re.IGNORECASE)


def _alone(change: SchemaChange) -> SchemaChange:
    """Return a change with the text that is right for it alone, wherever it runs."""
    job = change.job
    if job.type == DdlType.RECOVER_TABLE:
        if _BY_JOB.search(job.query):
            raise NeedsOperator(
                f"{job.query!r} names a job of the upstream, which is another one downstream",
                "bring the table and its rows back downstream by hand, as they are upstream",
                Code.DDL_UNSUPPORTED,
            )
        return change
    if job.type in DROPS.values() and len(change.dropped) == 1:
        ((schema, table),) = change.dropped
        absent = "IF EXISTS " if _IF_EXISTS.search(job.query) else ""
        return _with(change, f"DROP {table.kind} {absent}{quote_path(schema, table.name)}")
    is_moved = any(old_schema != schema for old_schema, _, schema, _ in change.renamed)
    before = {(schema, table.name) for schema, table, _, _ in change.renamed}
    after = {(schema, table.name) for _, _, schema, table in change.renamed}
    if job.type in _RENAMES and is_moved and not before & after:
        parts = [
            f"{quote_path(old_schema, old.name)} TO {quote_path(schema, new.name)}"
            for old_schema, old, schema, new in change.renamed
        ]
        return _with(change, f"RENAME TABLE {', '.join(parts)}")
    return _with_collations(change)


def _with_collations(change: SchemaChange) -> SchemaChange:
    """Return a change whose text leaves no collation or key name to the server's choice."""
    job = change.job
    made = job.schema if job.type in _OF_SCHEMAS else job.table
    if made is None or (isinstance(made, TableInfo) and made.kind != "TABLE"):
        return change
    try:
        return _with(change, as_made(job.query, made))
    except NeedsOperator:
        log.warning(
            "DDL at %d is not of a grammar that is known here, so collations that it does not"
            " name are the downstream's choice: %s",
            job.finished_ts, job.query,
        )  # fmt: skip
        return change


def _in_letter_case(change: SchemaChange, catalog: Catalog) -> SchemaChange:
    """Return a change whose text names tables as they were created.

    A TiDB finds `T` by the name `t`, and a MariaDB or MySQL on Linux does not.
    """
    before = {
        (schema.lower(), table.name.lower()): (schema, table.name)
        for schema, table in (
            *change.dropped,
            *((schema, old) for schema, old, _ in change.altered),
            *((schema, old) for schema, old, _, _ in change.renamed),
        )
    }
    is_other = False

    def named(schema: str, table: str) -> tuple[str, str]:
        nonlocal is_other
        found = before.get((schema.lower(), table.lower()))
        if found is None:
            of_schema, of_table = catalog.schema(schema), catalog.table(schema, table)
            found = of_schema.name if of_schema else schema, of_table.name if of_table else table
        is_other |= found != (schema, table)
        return found

    try:
        text = rename_tables(change.job.query, change.job.schema_name or None, named)
    except NeedsOperator:  # Not of our grammar: it runs as it was written.
        return change
    return _with(change, text) if is_other else change


def _with(change: SchemaChange, query: str) -> SchemaChange:
    return replace(change, job=replace(change.job, query=query))
