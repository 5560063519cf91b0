"""Catch-up: runs a TiDB's DDL before its binlog, if rows that come earlier need its table.

    a row has columns that its table lacks (`drainer.schema.ahead`)
      ── the history has the job ──┬─ its table is the row's ──> the job runs now
                                   └─ it is not ──> the table before reads the row
      ── it does not ──┬─ the columns are not public ──> the same, up to the present version
                       └─ they are ──> wait for the job: it is over soon

Such a job stays in the checkpoint until its binlog has come, which then runs nothing. Jobs of other
tables are left at their places, whatever their versions are.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from contextlib import closing
from typing import Any, Protocol, TypeVar

from drainer.intake.payload import Limits, Spooled, SpooledRows
from drainer.planner import AheadStep, DdlStep
from drainer.schema.ahead import AheadRow, is_past, may_be_of, rows_ahead
from drainer.schema.tracker import SchemaTracker
from drainer.task.row_changes import Lookup, parse_merged
from penstock.errors import Retryable, coded
from penstock.pb import binlog_pb2 as pb
from penstock.schema.model import DdlJob, TableInfo
from penstock.waiting import doubling

log = logging.getLogger(__name__)

T = TypeVar("T")

_RETRY_S_MIN = 0.1
_RETRY_S_MAX = 3.0


class Upstream(Protocol):
    """Queries to a TiDB: a part of `TidbJobs`. Blocking, each method may be Retryable."""

    def jobs_of(self, table_id: int, after_version: int) -> Iterable[DdlJob]:
        """Return the finished jobs of later schema versions that shaped a table."""

    def table_now(self, table_id: int) -> tuple[int, TableInfo | None]:
        """Return a table with its columns not yet public, and a lower bound of its version.

        None if the table does not exist.
        """


def unreported(waits_for: str) -> None: ...


class CatchUp:
    """Decides for each row with unknown columns which table it belongs to."""

    def __init__(
        self,
        schemas: SchemaTracker,
        upstream: Upstream,
        *,
        is_beginning: bool = False,
        report: Callable[[str], None] = unreported,
    ) -> None:
        """Serve one run; `is_beginning`: the checkpoint's schema version is unknown."""
        self._schemas = schemas
        self._upstream = upstream
        self._is_beginning = is_beginning
        self._report = report
        self._before: dict[int, int] = {}
        """The version up to which rows surely belong to the tracked table, by table id."""
        self._next: dict[int, DdlJob] = {}
        """The job that brings the unknown columns, by table id, once the history has it."""

    def ahead(self, prewrite_value: bytes) -> AheadRow | None:
        """Return a row of a transaction that first requires a question or an action."""
        value: Any = pb.PrewriteValue.FromString(prewrite_value)
        return next(filter(self._is_open, rows_ahead(self._schemas, value)), None)

    def _is_open(self, row: AheadRow) -> bool:
        table_id = row.table.id
        if not row.is_certain and row.version <= self._before.get(table_id, 0):
            return False
        job = self._next.get(table_id)
        if job is None or job.schema_version <= row.since or not _brings(job, row):
            return True
        if (
            self._is_beginning
            and self._schemas.is_doubtful(job)
            and (row.version >= job.schema_version)
        ):
            return False  # It was before the start: the tracker follows it with this row.
        return is_past(row, job)

    async def steps(self, step: AheadStep) -> list[DdlStep]:
        """Return the DDL that must run before a row, once known; empty if there is none."""
        row = step.row
        await self._decide(row, step.commit_ts)
        if not self._is_open(row):
            return []
        jobs = await self._asked(lambda: self._jobs(row), "")
        last = self._next[row.table.id]
        wanted = [job for job in jobs if job.schema_version <= last.schema_version]
        for job in wanted:
            log.info(
                "rows after %d have the columns of DDL job %d already: it runs before its"
                " binlog: %s", step.commit_ts, job.id, job.query,
            )  # fmt: skip
        doubtful = self._schemas.is_doubtful
        return [
            DdlStep(step.commit_ts, job.id, job.query, step.origins, is_ahead=True,
                    maybe_done=doubtful(job))
            for job in wanted
        ]  # fmt: skip

    async def before(
        self, ts: int, payload: bytes | Spooled, lookup: Lookup, limits: Limits
    ) -> list[DdlStep]:
        """Return the DDL that must run before a transaction: `ahead` and `steps` in one."""
        found: list[DdlStep] = []
        while not found:
            if isinstance(payload, Spooled):
                row = await asyncio.to_thread(self._ahead_in, payload, lookup, limits)
            else:
                row = self.ahead(parse_merged(ts, payload).prewrite_value)
            if row is None:
                break
            found = await self.steps(AheadStep(ts - 1, row))  # A TiDB's stream has no origins.
        return found

    def _ahead_in(self, payload: Spooled, lookup: Lookup, limits: Limits) -> AheadRow | None:
        rows = SpooledRows(payload, lookup, limits)
        with closing(rows.values()) as values:
            return next(filter(None, map(self.ahead, values)), None)

    async def _decide(self, row: AheadRow, after_ts: int) -> None:
        what = (
            f"rows after {after_ts} have columns of {row.table.name} (id {row.table.id}) that only"
            " a DDL under way can have made: they wait for its end"
        )
        pauses = doubling(_RETRY_S_MIN, _RETRY_S_MAX)
        while True:
            if await self._asked(lambda: self._find(row), what):
                self._report("")
                return
            self._report(what)
            await asyncio.sleep(next(pauses))

    async def _asked(self, ask: Callable[[], T], what: str) -> T:
        pauses = doubling(_RETRY_S_MIN, _RETRY_S_MAX)
        while True:
            try:
                return await asyncio.to_thread(ask)
            except Retryable as error:
                self._report(f"{what}: {coded(error)}")
                log.error("cannot ask the TiDB about its DDL: %s", error)
            await asyncio.sleep(next(pauses))

    def _find(self, row: AheadRow) -> bool:
        """Ask once; False if the TiDB is still at the DDL that a row needs."""
        if self._find_job(row):
            return True
        if row.is_certain:
            return False
        version, table = self._upstream.table_now(row.table.id)
        if version < row.version or (table is not None and may_be_of(row, table)):
            return False
        # Since the first look a job may have ended, and the next one have dropped the column.
        if not self._find_job(row):
            self._before[row.table.id] = version
        return True

    def _find_job(self, row: AheadRow) -> bool:
        found = next((job for job in self._jobs(row) if _brings(job, row)), None)
        if found is not None:
            self._next[row.table.id] = found
        return found is not None

    def _jobs(self, row: AheadRow) -> list[DdlJob]:
        """Return the jobs, by version, that changed a row's table after the tracked version."""
        found = self._upstream.jobs_of(row.table.id, row.since)
        return sorted(
            (job for job in found if not job.has_failed), key=lambda job: job.schema_version
        )


def _brings(job: DdlJob, row: AheadRow) -> bool:
    return job.table is not None and may_be_of(row, job.table)
