"""A DDL of the stream into what is to run downstream: tracked always, executed maybe.

    DdlStep ── its job ── the operator's decision ── tracked ──┬─ skipped, or its commit_ts ignored
                                                               └─ route ──> SchemaChange, or nothing

The tracker follows the upstream's names and every DDL, also one that does not run downstream, so
that the schema never depends on filters. `route` is where filters and routing come in: it gets the
change that was tracked and returns the one to run, or None to let it be.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping, Set

from drainer.decisions import Decision
from drainer.planner import DdlStep
from drainer.schema import SchemaTracker
from penstock.ddl import SchemaChange
from penstock.errors import NeedsOperator
from penstock.schema import DdlJob

log = logging.getLogger(__name__)

Route = Callable[[SchemaChange], SchemaChange | None]


def straight(change: SchemaChange) -> SchemaChange | None:
    """Run every DDL as it is."""
    return change


class DdlFollower:
    """Follows one DDL after the other."""

    def __init__(
        self,
        schemas: SchemaTracker,
        fetch_job: Callable[[DdlStep], Awaitable[DdlJob]],
        *,
        decisions: Mapping[int, Decision],
        ignored_ts: Set[int] = frozenset(),
        route: Route = straight,
    ) -> None:
        """`ignored_ts` are commit_ts whose DDL is tracked and not run."""
        self._schemas = schemas
        self._fetch_job = fetch_job
        self._decisions = decisions
        self._ignored_ts = ignored_ts
        self._route = route

    async def follow(self, step: DdlStep) -> SchemaChange | None:
        """Track a DDL and return what is to run downstream, None for nothing.

        One that cannot be followed raises NeedsOperator, whose hint tells how to go on.
        """
        decision = self._decisions.get(step.commit_ts)
        try:
            job = await self._job(step, decision)
            change = self._schemas.follow(job)
            if decision is not None:
                log.warning(
                    "DDL at %d, %r: %s, as decided %s",
                    step.commit_ts, step.query, decision.describe(), decision.made,
                )  # fmt: skip
            if decision is not None and decision.sql is None:
                return None
            if step.commit_ts in self._ignored_ts:
                log.warning(
                    "DDL at %d is in ignore-txn-commit-ts: tracked, not run: %s",
                    step.commit_ts, job.query,
                )  # fmt: skip
                return None
            return self._route(change)
        except NeedsOperator as error:
            raise with_way_out(error, step.commit_ts) from error

    async def _job(self, step: DdlStep, decision: Decision | None) -> DdlJob:
        if decision is None:
            return await self._fetch_job(step)
        try:
            job = await self._fetch_job(step)
        except NeedsOperator:
            if decision.sql is not None:
                raise
            # Even without its job a skipped DDL counts as one version.
            version = self._schemas.version + 1
            job = DdlJob(id=step.job_id, type=0, schema_id=0, schema_name="", query=step.query,
                         schema_version=version, finished_ts=step.commit_ts)  # fmt: skip
        return decision.decided(job, self._schemas.catalog)


def with_way_out(error: NeedsOperator, commit_ts: int) -> NeedsOperator:
    """Return the error about a DDL with the commands that let the Drainer go on."""
    return NeedsOperator(
        f"DDL at {commit_ts}: {error.problem}",
        hint=f"{error.hint}; or go on with `drainer ddl skip {commit_ts}` or"
        f' `drainer ddl replace {commit_ts} "<sql>"`, then start the Drainer again',
    )
