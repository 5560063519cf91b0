"""Table schemas as the stream moves on: from DDL history up to the checkpoint, then job by job.

Every row change carries the schema version its bytes were written with. `table_at` answers with
the table of that version, out of the last few versions of each table: writers are fenced, so rows
older than the newest DDL before them are rare and never far behind. A dropped or truncated table's
id is remembered for good (an id and a name), because a transaction that was under way when the
table went may still name it; its rows have nowhere to go, and the answer says so.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.ddl import Catalog, SchemaChange
from penstock.errors import NeedsOperator
from penstock.schema import DdlJob, SchemaInfo, TableInfo

if TYPE_CHECKING:
    from drainer.decisions import Decision

VERSIONS_PER_TABLE_MAX = 8


@dataclass(frozen=True, slots=True)
class Gone:
    """A table that was dropped or truncated: rows for it are to be left out."""

    table_id: int
    schema_name: str
    table_name: str
    dropped_at_version: int


@dataclass(frozen=True, slots=True)
class _Version:
    """A table from one schema version on."""

    since: int
    schema_name: str
    table: TableInfo


State = tuple[
    list[SchemaInfo], list[tuple[int, str, bool, TableInfo]], list[tuple[int, str, str, int]]
]


class SchemaTracker:
    """Follows DDL jobs in order of their schema version; knows neither clock nor etcd."""

    def __init__(self) -> None:
        self.catalog = Catalog()
        self._versions: dict[int, list[_Version]] = {}
        self._gone: dict[int, Gone] = {}

    @classmethod
    def from_history(
        cls, jobs: Iterable[DdlJob], up_to_ts: int, decisions: Mapping[int, Decision] | None = None
    ) -> SchemaTracker:
        """Return a tracker that has followed all jobs finished at or before `up_to_ts`.

        `decisions` by commit_ts say which jobs are something else to this Drainer.
        """
        tracker = cls()
        tracker.follow_all(jobs, up_to_ts, decisions or {})
        return tracker

    def follow_all(
        self, jobs: Iterable[DdlJob], up_to_ts: int, decisions: Mapping[int, Decision]
    ) -> DdlJob | None:
        """Follow all jobs finished at or before `up_to_ts`; return the last that was new."""
        last = None
        for job in sorted(jobs, key=lambda j: j.schema_version):
            if job.finished_ts <= up_to_ts and job.schema_version > self.version:
                decision = decisions.get(job.finished_ts)
                self.follow(decision.decided(job, self.catalog) if decision else job)
                last = job
        return last

    def state(self) -> State:
        """Return all that this tracker knows, unshared: it may move on meanwhile.

        That is the schemas, the versions of tables (with whether each is the table of today), and
        what is gone.
        """
        versions = []
        for table_id, kept in self._versions.items():
            now = self.catalog.table_by_id(table_id)
            for v in kept:
                is_now = v is kept[-1] and now is not None
                versions.append((v.since, v.schema_name, is_now, v.table))
        gone = [
            (g.table_id, g.schema_name, g.table_name, g.dropped_at_version)
            for g in self._gone.values()
        ]
        return list(self.catalog.schemas()), versions, gone

    @classmethod
    def from_state(
        cls,
        version: int,
        schemas: Sequence[SchemaInfo],
        versions: Sequence[tuple[int, str, bool, TableInfo]],
        gone: Sequence[tuple[int, str, str, int]],
    ) -> SchemaTracker:
        """Return a tracker that knows what `state` returned at that schema version."""
        tracker = cls()
        now = [(schema, table) for _, schema, is_now, table in versions if is_now]
        tracker.catalog = Catalog.of(version, schemas, now)
        for since, schema, _, table in versions:
            kept = tracker._versions.setdefault(table.id, [])
            kept.append(_Version(since, schema, table))
        for each in gone:
            tracker._gone[each[0]] = Gone(*each)
        return tracker

    def copy(self) -> SchemaTracker:
        """Return a tracker that follows independently of this one."""
        other = SchemaTracker()
        other.catalog = self.catalog.copy()
        other._versions = {table_id: list(kept) for table_id, kept in self._versions.items()}
        other._gone = dict(self._gone)
        return other

    @property
    def version(self) -> int:
        """The schema version of the last job followed."""
        return self.catalog.version

    def follow(self, job: DdlJob) -> SchemaChange:
        """Take one job into account and return what it changed; nothing if it was followed already.

        A job that does not fit raises NeedsOperator and changes nothing.
        """
        if job.schema_version <= self.version:
            return SchemaChange(job=job)
        change = self.catalog.apply(job)
        for schema, table in change.dropped:
            self._versions.pop(table.id, None)
            self._gone[table.id] = Gone(table.id, schema, table.name, job.schema_version)
        for schema, table in change.created:
            self._remember(job, schema, table)
        for schema, _, after in change.altered:
            self._remember(job, schema, after)
        for _, _, schema, after in change.renamed:
            self._remember(job, schema, after)
        return change

    def _remember(self, job: DdlJob, schema: str, table: TableInfo) -> None:
        self._gone.pop(table.id, None)
        versions = self._versions.setdefault(table.id, [])
        versions.append(_Version(job.schema_version, schema, table))
        del versions[:-VERSIONS_PER_TABLE_MAX]

    def table_at(self, table_id: int, schema_version: int) -> tuple[str, TableInfo] | Gone:
        """Return (schema name, table) as of a schema version, or `Gone` for a table dropped since.

        An id that no DDL ever made, a version not yet followed, and one too far behind raise
        NeedsOperator.
        """
        if table_id in self._gone:
            return self._gone[table_id]
        if schema_version > self.version:
            raise NeedsOperator(
                f"rows of table id {table_id} were written under schema version {schema_version},"
                f" but the stream's DDL has come to {self.version} only",
                hint="a writer used a schema before its DDL was in the stream: check the history",
            )
        versions = self._versions.get(table_id)
        if versions is None:
            raise NeedsOperator(
                f"rows name table id {table_id}, which no DDL has made",
                hint="the DDL history is incomplete: was it wiped, or is the cluster id another?",
            )
        for version in reversed(versions):
            if version.since <= schema_version:
                return version.schema_name, version.table
        raise NeedsOperator(
            f"rows of table id {table_id} were written under schema version {schema_version},"
            f" which is older than the versions kept (from {versions[0].since})",
            hint="a transaction stayed open across many schema changes: skip it by its commit_ts",
        )
