"""DDL follower: takes a DDL of the stream to what is to run downstream; tracked always, run maybe.

    DdlStep ── its job ── tracked, under the operator's override ──┬─ not to run: counted
                                                                   └─ route ──> run, or counted

The tracker follows the upstream's names and every DDL, also one that does not run downstream, so
that the schema never depends on filters or overrides. `route` is where filters and routing come in:
it gets the change as the downstream is to follow it and returns the one to run, or why none is.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Set
from typing import NamedTuple, Protocol

from drainer.batching.planner import DdlStep
from drainer.ddl.starting_schema import StartingSchema
from drainer.differences.left_out import DDLS, IGNORED, OVERRIDE, Counts, LeftOut
from drainer.differences.overrides import (
    REPLACE,
    SKIP,
    Override,
    replace_means,
    skip_means,
    subject_of,
    track_means,
)
from drainer.relay_log.stage import Relay
from drainer.schema.tracker import SchemaTracker, Tracked
from penstock.ddl import SchemaChange
from penstock.errors import NeedsOperator, Retryable
from penstock.schema.model import DdlJob

log = logging.getLogger(__name__)

Route = Callable[[SchemaChange], SchemaChange | LeftOut | None]


class FollowedDdl(NamedTuple):
    """What a DDL did upstream, what is to run downstream, if anything, and what it counts as."""

    upstream: SchemaChange
    run: SchemaChange | None
    left_out: Counts


def straight(change: SchemaChange) -> SchemaChange:
    """Run every DDL as it is."""
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
    ) -> None:
        """`ignored_ts` are commit_ts whose DDL is tracked and not run."""
        self._schemas = schemas
        self._fetch_job = fetch_job
        self._overrides = overrides
        self._ignored_ts = ignored_ts
        self._route = route

    async def follow(self, step: DdlStep) -> FollowedDdl:
        """Track a DDL and return what becomes of it downstream.

        One that cannot be followed raises NeedsOperator, whose hint says how to continue.
        """
        override = self._overrides.get(step.commit_ts)
        tracked: Tracked | None = None
        try:
            job = await self._job(step, override)
            tracked = self._schemas.track(job, override)
            if override is not None:
                self._report(step, override, tracked)
            return self._routed(step, override, tracked)
        except NeedsOperator as error:
            change = None if tracked is None else tracked.change
            raise with_way_out(error, step.commit_ts, change) from error

    def _routed(self, step: DdlStep, override: Override | None, tracked: Tracked) -> FollowedDdl:
        change, run = tracked.change, tracked.run
        subject, counts = subject_of(change), Counts()
        if override is not None or run is None:
            counts[LeftOut(DDLS, OVERRIDE, subject)] = 1
        elif step.commit_ts in self._ignored_ts:
            log.warning(
                "DDL at %d is in ignore-txn-commit-ts: tracked, not run: %s",
                step.commit_ts, change.job.query,
            )  # fmt: skip
            counts[LeftOut(DDLS, IGNORED, subject)] = 1
            run = None
        if run is None:
            return FollowedDdl(change, None, counts)
        routed = self._route(run)
        if isinstance(routed, LeftOut):
            counts[routed] += 1
            routed = None
        return FollowedDdl(change, routed, counts)

    def _report(self, step: DdlStep, override: Override, tracked: Tracked) -> None:
        meaning = {
            SKIP: skip_means(None if self._schemas.blind_ts == step.commit_ts
                                       else tracked.change),
            REPLACE: replace_means(),
        }.get(override.verb, track_means())  # fmt: skip
        log.warning(
            "DDL at %d, %r: %s, as decided %s: %s",
            step.commit_ts, step.query, override.describe(), override.made, meaning,
        )  # fmt: skip

    async def _job(self, step: DdlStep, override: Override | None) -> DdlJob:
        if override is None or override.verb != SKIP:
            return await self._fetch_job(step)
        try:
            return await self._fetch_job(step)
        except NeedsOperator:
            # Even without its job a skipped DDL counts as one version.
            version = self._schemas.version + 1
            return DdlJob(id=step.job_id, type=0, schema_id=0, schema_name="", query=step.query,
                          schema_version=version, finished_ts=step.commit_ts)  # fmt: skip


def with_way_out(
    error: NeedsOperator, commit_ts: int, change: SchemaChange | None
) -> NeedsOperator:
    """Return the error about a DDL with the overrides that let a Drainer continue, safest first.

    `change` is what it did upstream, None when that cannot be tracked.
    """
    ways = []
    if change is not None:
        ways.append(f"`drainer ddl track {commit_ts}`: {track_means()}")
    ways.append(f'`drainer ddl replace {commit_ts} "<sql>"`: {replace_means()}')
    ways.append(f"`drainer ddl skip {commit_ts}`: {skip_means(change)}")
    return NeedsOperator(
        f"DDL at {commit_ts}: {error.problem}",
        hint=f"{error.hint}; then start the Drainer again. Or override this DDL, and start it then."
        f" {'. '.join(ways)}. `drainer ddl list` shows this again, `drainer ddl undo {commit_ts}`"
        " takes an override back",
    )


ABSENT_S_MAX = 30.0
_RETRY_S_MIN = 0.1
_RETRY_S_MAX = 3.0


class JobHistory(Protocol):
    """Where the DDL jobs are."""

    def get(self, job_id: int) -> DdlJob | None:
        """Return a job, None when there is none of that id. May be Retryable."""


async def fetch_job(
    history: JobHistory, step: DdlStep, *, absent_s_max: float = ABSENT_S_MAX
) -> DdlJob:
    """Return the job of a DDL; wait for etcd as long as it takes.

    A job is written before its binlog, so one that stays absent is not late but lost: after
    `absent_s_max` that raises `NeedsOperator`.
    """
    pause_s = _RETRY_S_MIN
    asked_s = time.monotonic()
    while True:
        try:
            job = await asyncio.to_thread(history.get, step.job_id)
        except Retryable as error:
            log.error("the DDL at %d waits for its job %d: %s", step.commit_ts, step.job_id, error)
            asked_s = time.monotonic()
        else:
            if job is not None:
                return job
            if time.monotonic() - asked_s > absent_s_max:
                raise NeedsOperator(
                    f"DDL job {step.job_id}, committed at {step.commit_ts}, is not in the history:"
                    f" {step.query}",
                    hint="was etcd wiped? Restore /penstock/v1/ddl, or start on a fresh copy of "
                    "the downstream with initial-commit-ts above this DDL",
                )
            log.warning("the DDL at %d waits for its job %d", step.commit_ts, step.job_id)
        await asyncio.sleep(pause_s)
        pause_s = min(pause_s * 2, _RETRY_S_MAX)


class NotedJobs:
    """The jobs of the stream's DDL; the schema's snapshot and the relay log take note of each."""

    def __init__(self, history: JobHistory, schema: StartingSchema, relay: Relay) -> None:
        self._history = history
        self._schema = schema
        self._relay = relay

    async def fetch(self, step: DdlStep) -> DdlJob:
        """Return the job of a DDL that is about to be followed, as `fetch_job` does."""
        job = await fetch_job(self._history, step)
        if self._schema.file is not None:
            await self._schema.file.before(self._schema.tracker, job)
        self._relay.note_job(job)
        return job
