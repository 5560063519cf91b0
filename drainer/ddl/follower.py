"""A DDL of the stream into what is to run downstream: tracked always, run maybe.

    DdlStep ── its job ── tracked, under the operator's override ──┬─ not to run: counted
                                                                   └─ route ──> run, or counted

The tracker follows the upstream's names and every DDL, also one that does not run downstream, so
that the schema never depends on filters or overrides. `route` is where filters and routing come in:
it gets the change as the downstream is to follow it and returns the one to run, or why none is.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping, Set
from typing import NamedTuple

from drainer.differences import consequences
from drainer.differences.left_out import DDLS, IGNORED, OVERRIDE, Counts, LeftOut
from drainer.differences.overrides import REPLACE, SKIP, Override
from drainer.plan.planner import DdlStep
from drainer.schema.tracker import SchemaTracker, Tracked
from penstock.ddl import SchemaChange
from penstock.errors import NeedsOperator
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

        One that cannot be followed raises NeedsOperator, whose hint says how to go on.
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
        subject, counts = consequences.subject(change), Counts()
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
            SKIP: consequences.of_skip(None if self._schemas.blind_ts == step.commit_ts
                                       else tracked.change),
            REPLACE: consequences.of_replace(),
        }.get(override.verb, consequences.of_track())  # fmt: skip
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
    """Return the error about a DDL with the overrides that let the Drainer go on, the safe first.

    `change` is what it did upstream, None when that cannot be tracked.
    """
    ways = []
    if change is not None:
        ways.append(f"`drainer ddl track {commit_ts}`: {consequences.of_track()}")
    ways.append(f'`drainer ddl replace {commit_ts} "<sql>"`: {consequences.of_replace()}')
    ways.append(f"`drainer ddl skip {commit_ts}`: {consequences.of_skip(change)}")
    return NeedsOperator(
        f"DDL at {commit_ts}: {error.problem}",
        hint=f"{error.hint}; then start the Drainer again. Or override this DDL, and start it then."
        f" {'. '.join(ways)}. `drainer ddl list` shows this again, `drainer ddl undo {commit_ts}`"
        " takes an override back",
    )
