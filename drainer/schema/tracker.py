"""Schema tracker: follows table schemas from DDL history to the checkpoint, then job by job.

Every row change carries the schema version its bytes were written with. `table_at` answers with the
newest table of the id. If writers are fenced, that is the table of this very version: rows and DDLs
of another version belong to another history, for example after a restore of etcd from a backup, and
are refused. The id of a dropped or truncated table is remembered forever (an id and a name),
because a transaction that was in progress when the table was dropped may still name it. Its rows
have no target, and the answer says so.

If a TiDB's stream begins during a DDL, it is unknown whether the DDL's binlog was before that
point. Such a job is `doubtful` until a row, or a DDL, of its version or a later one comes without
it. Rows of a version are committed after its DDL, so its binlog was before the start. It is
followed then.

    job ──> the catalog, as upstream has it ── always, so that every row can be read
       └──> drift ── the parts that the downstream lacks because of an override

A TiDB's sessions may commit rows of the schema before an EXCHANGE or TRUNCATE PARTITION after it.
They name their table, but are in a partition that by then belongs to another table, or to none, and
nothing in the stream identifies those rows. A line in the log requests a comparison.

A DDL that runs downstream is given in the downstream's terms: its tables before and after are as
the downstream has them. A DDL that concerns only tables and columns that the downstream lacks is
not run.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, replace
from typing import Any, NamedTuple

from drainer.differences import REPLACE, SKIP, TRACK, Override
from drainer.schema.drift import NONE, Drift, absent, compared
from drainer.schema.rules import ALL_RULES, FENCED, StreamPosition, StreamRules
from penstock.codes import Code
from penstock.ddl import Catalog, SchemaChange
from penstock.ddl.catalog import drops_several, of_dropped
from penstock.errors import NeedsOperator
from penstock.schema.model import JOB_SYNCED, DdlJob, DdlType, TableInfo
from penstock.schema.tidb_json import (
    job_from_json,
    job_to_json,
    schema_from_json,
    schema_to_json,
    table_from_json,
    table_to_json,
)

log = logging.getLogger(__name__)

_CHANGES_NOTHING = 27  # TiDB's LOCK TABLES.
OTHER_HISTORY = (
    "was etcd restored from a backup? If a backup of etcd has both DDLs, restore it; otherwise"
    " load a fresh copy of the data and start on it with initial-commit-ts after the restore"
)
_MOVES_ROWS = (DdlType.EXCHANGE_PARTITION, DdlType.TRUNCATE_PARTITION)


@dataclass(frozen=True, slots=True)
class Gone:
    """A table that was dropped or truncated: its rows must be skipped."""

    table_id: int
    schema_name: str
    table_name: str
    dropped_at_version: int


@dataclass(frozen=True, slots=True)
class Unknown:
    """A table of which only the id is known: its rows must be skipped."""

    table_id: int


class Tracked(NamedTuple):
    """A DDL that was followed: its effect upstream, and the statement to run downstream, if any."""

    change: SchemaChange
    run: SchemaChange | None


class SchemaTracker:
    """Follows DDL jobs in order of their schema version; uses neither clock nor etcd."""

    def __init__(self, rules: StreamRules = FENCED) -> None:
        self.rules = rules
        self.catalog = Catalog.of(0, rules.system_schemas, ())
        self.drifts: dict[int, Drift] = {}
        """How tables differ downstream, by their id; tables without a difference are not listed."""
        self.absent_schemas: dict[str, int] = {}
        """Databases that the downstream lacks, and the commit_ts of the override."""
        self.blind_ts = 0
        """The last skipped DDL that could not be tracked; unknown tables are skipped then."""
        self._versions: dict[int, tuple[int, str, TableInfo]] = {}
        """The version since which a table is like this, its schema and the table, by its id."""
        self._gone: dict[int, Gone] = {}
        self._doubtful: list[DdlJob] = []
        self.ahead: dict[int, int] = {}
        """Jobs that were followed before their binlog came, and their schema versions."""
        self._rows_moved: dict[int, int] = {}
        """The version at which a partition's rows moved elsewhere, by table id, since the start."""
        self._last: DdlJob | None = None
        """The last job that was followed; for people."""
        self.jobs_passed = 0
        """The number of jobs, of the last `follow_all`, that had passed."""
        self._system = {schema.name for schema in rules.system_schemas}

    @classmethod
    def from_history(
        cls,
        jobs: Iterable[DdlJob],
        up_to_ts: int,
        overrides: Mapping[int, Override] | None = None,
        *,
        rules: StreamRules = FENCED,
        version: int = 0,
        ahead: Mapping[int, int] | None = None,
    ) -> SchemaTracker:
        """Return a tracker that has followed all jobs that have passed at `up_to_ts`.

        There the schema version is `version`, if it is known and the rules use it. `overrides` by
        commit_ts say which jobs are something else downstream. Jobs `ahead` were followed before
        their binlog.
        """
        tracker = cls(rules)
        in_order = sorted(jobs, key=lambda job: job.schema_version)
        tracker.follow_all(
            in_order, StreamPosition(up_to_ts, version), overrides or {}, ahead=ahead
        )
        return tracker

    def follow_all(
        self,
        jobs: Sequence[DdlJob],
        position: StreamPosition,
        overrides: Mapping[int, Override],
        *,
        after_ts: int = 0,
        ahead: Mapping[int, int] | None = None,
    ) -> DdlJob | None:
        """Follow all jobs that have passed at a position; return the last that was new.

        `jobs` are all that finished after `after_ts`, in the order of their schema versions: a
        skipped job that is missing is lost. Those `ahead` have not passed, but were followed.
        """
        last, self.jobs_passed = None, 0
        up_to_ts = position.commit_ts
        lost = {ts for ts, o in overrides.items() if after_ts < ts <= up_to_ts and o.verb == SKIP}
        if lost:
            lost -= {job.finished_ts for job in jobs}
        self.blind_ts = max(lost, default=self.blind_ts)
        ends = sorted((o.ended_ts, ts) for ts, o in overrides.items() if 0 < o.ended_ts <= up_to_ts)
        for job in jobs:
            has_passed = self.rules.has_passed(job, position)
            if ahead and job.id in ahead:
                self.take_ahead(job, overrides.get(job.finished_ts))
                continue
            self.jobs_passed += has_passed
            if job.schema_version <= self.version:
                continue
            if has_passed:
                while ends and ends[0][0] < job.finished_ts:
                    self.take_back(ends.pop(0)[1])
                self.take(job, overrides.get(job.finished_ts))
                last = job
            elif self.rules.may_have_passed(job, position) and not job.has_failed:
                self._doubtful.append(job)
        for _, ts in ends:
            self.take_back(ts)
        return last

    def state(self) -> dict[str, Any]:
        """Return all of this tracker's state without its version, as JSON."""
        versions = [
            [since, schema, self.catalog.table_by_id(i) is not None, table_to_json(table)]
            for i, (since, schema, table) in self._versions.items()
        ]
        state: dict[str, Any] = {
            "schemas": [schema_to_json(schema) for schema in self.catalog.schemas()],
            "versions": versions,
            "gone": [list(astuple(gone)) for gone in self._gone.values()],
            "deviations": {str(i): drift.to_json() for i, drift in self.drifts.items()},
            "absent_schemas": dict(self.absent_schemas),
            "blind_ts": self.blind_ts,
        }
        if self.rules is not FENCED:
            state["rules"] = self.rules.name
            state["doubtful"] = [job_to_json(job) for job in self._doubtful]
        return state

    @classmethod
    def from_state(cls, version: int, state: Mapping[str, Any]) -> SchemaTracker:
        tracker = cls(ALL_RULES[state.get("rules", FENCED.name)])
        schemas = [schema_from_json(each) for each in state["schemas"]]
        now = []
        for since, schema, is_now, fields in state["versions"]:
            table = table_from_json(fields)
            # Older versions stored several versions of a table, the newest last.
            tracker._versions[table.id] = since, schema, table
            now += [(schema, table)] if is_now else []
        tracker.catalog = Catalog.of(version, schemas, now)
        tracker._gone = {each[0]: Gone(*each) for each in state["gone"]}
        tracker.drifts = {int(i): Drift.from_json(d) for i, d in state["deviations"].items()}
        tracker.absent_schemas = dict(state["absent_schemas"])
        tracker.blind_ts = state["blind_ts"]
        tracker._doubtful = [job_from_json(each) for each in state.get("doubtful", ())]
        return tracker

    def copy(self) -> SchemaTracker:
        other = SchemaTracker(self.rules)
        other.catalog = self.catalog.copy()
        other.drifts = dict(self.drifts)
        other.absent_schemas, other.blind_ts = dict(self.absent_schemas), self.blind_ts
        other._versions = dict(self._versions)
        other._gone, other._doubtful = dict(self._gone), list(self._doubtful)
        other._rows_moved, other.ahead = dict(self._rows_moved), dict(self.ahead)
        return other

    @property
    def version(self) -> int:
        return self.catalog.version

    def follow(self, job: DdlJob) -> SchemaChange:
        return self.track(job).change

    def track(self, job: DdlJob, override: Override | None = None) -> Tracked:
        """Track the stream's next job.

        If a fenced stream's job is not of the next schema version, it raises NeedsOperator and
        changes nothing: jobs of one history have consecutive versions. An override forces it to be
        followed.
        """
        if self.rules.is_fenced and override is None and job.schema_version != self.version + 1:
            raise self._other_history(job)
        return self.take(job, override)

    def take(self, job: DdlJob, override: Override | None = None) -> Tracked:
        """Track a job that is known to belong to this history.

        Raises NeedsOperator and changes nothing if a job does not fit, or if the downstream has
        only some of its tables. A TiDB's stream has each DDL once.
        """
        self._settle(job.schema_version - 1)
        return self._taken(job, override)

    def take_ahead(self, job: DdlJob, override: Override | None = None) -> Tracked:
        """Follow a job before its binlog, and so before jobs of lower versions."""
        version = self.version
        tracked = self._taken(job, override)
        self.catalog.version = version
        self.ahead[job.id] = job.schema_version
        return tracked

    def pass_ahead(self, job_id: int) -> bool:
        """Note a DDL's binlog; return whether its job was followed before it."""
        version = self.ahead.pop(job_id, None)
        if version is None:
            return False
        self.catalog.version = max(self.version, version)
        return True

    def newest(self, table_id: int) -> tuple[int, TableInfo] | None:
        found = self._versions.get(table_id)
        return None if found is None else (found[0], found[2])

    def is_doubtful(self, job: DdlJob) -> bool:
        """Return whether a job's binlog may precede the start of the stream."""
        return any(each.id == job.id for each in self._doubtful)

    def _taken(self, job: DdlJob, override: Override | None) -> Tracked:
        self._doubtful = [each for each in self._doubtful if each.id != job.id]
        trial = self.copy() if self.drifts or override is not None else self
        tracked = trial._track(job, override)
        if trial is not self:
            self.catalog, self.drifts = trial.catalog, trial.drifts
            self.absent_schemas, self.blind_ts = trial.absent_schemas, trial.blind_ts
            self._versions, self._gone = trial._versions, trial._gone
            self._doubtful, self._rows_moved = trial._doubtful, trial._rows_moved
        if self.rules.is_fenced:
            self.catalog.version = job.schema_version
        self._last = job
        return tracked

    def _other_history(self, job: DdlJob) -> NeedsOperator:
        last = self._last
        by = "" if last is None else f", last by DDL job {last.id} ({last.query})"
        found = "an earlier DDL of the stream had that version"
        hint = OTHER_HISTORY
        if job.schema_version > self.version:
            found = f"the stream had no DDL of version {self.version + 1}"
            hint = f"`penstock drainer ddl list` shows the DDLs in etcd; {OTHER_HISTORY}"
        return NeedsOperator(
            f"DDL job {job.id} ({job.query}) made schema version {job.schema_version}, but this"
            f" Drainer has followed the stream to version {self.version}{by}: {found}",
            hint,
            Code.DDL_HISTORY,
        )

    def take_back(self, override_ts: int) -> list[tuple[str, TableInfo]]:
        """Stop skipping because of an override; return the affected tables."""
        taken = []
        for table_id, drift in list(self.drifts.items()):
            if override_ts in drift.overrides:
                self._set_drift(table_id, drift.without(override_ts))
                found = self.catalog.table_by_id(table_id)
                taken += [found] if found is not None else []
        for name, since_ts in list(self.absent_schemas.items()):
            if since_ts == override_ts:
                del self.absent_schemas[name]
        self.blind_ts = 0 if self.blind_ts == override_ts else self.blind_ts
        return taken

    def _settle(self, schema_version: int) -> None:
        """Follow jobs that turn out to precede the start of the stream."""
        while self._doubtful and self._doubtful[0].schema_version <= schema_version:
            self._track(self._doubtful.pop(0), None)

    def _track(self, job: DdlJob, override: Override | None) -> Tracked:
        before = dict(self.drifts)
        absent_schemas = dict(self.absent_schemas)
        if override is None:
            change = self._followed(job)
            self._carry(change, before)
            return Tracked(change, self._to_run(change, before, absent_schemas))
        if override.verb == REPLACE:
            return self._replace(job, override)
        if override.verb == TRACK:
            change = self._followed(job)
            self._carry(change, before, is_there=True)
            return Tracked(change, None)
        try:
            change = self._followed(job)
        except NeedsOperator:
            # Its effect is unknown: rows of tables that it may have made are skipped.
            change = self._followed(_of_nothing(job))
            self.blind_ts = override.commit_ts
            return Tracked(change, None)
        self._skip(change, before, override.commit_ts)
        return Tracked(change, None)

    def _followed(self, job: DdlJob) -> SchemaChange:
        change = self._applied(job)
        for schema, table in change.dropped:
            self._versions.pop(table.id, None)
            self._gone[table.id] = Gone(table.id, schema, table.name, job.schema_version)
        for schema, table in change.created:
            self._remember(job, schema, table)
        for schema, before, after in change.altered:
            self._remember(job, schema, after)
            if job.type in _MOVES_ROWS and not self.rules.is_fenced:
                self._rows_moved[before.id] = job.schema_version
        for _, _, schema, after in change.renamed:
            self._remember(job, schema, after)
        return change

    def _applied(self, job: DdlJob) -> SchemaChange:
        """Apply a job; a TiDB may have created one of its system tables without a job."""
        if self.rules.is_fenced:
            return self.catalog.apply(job)
        if job.has_failed:
            return replace(self.catalog.apply(_of_nothing(job)), job=job)
        job = self.catalog.named(job)
        try:
            return self.catalog.apply(job)
        except NeedsOperator:
            if job.schema_name not in self._system:
                raise
        change = self.catalog.apply(_of_nothing(job))
        if job.table is None:
            return change
        self.catalog.put(job.schema_name, job.table)
        return replace(change, created=((job.schema_name, job.table),))

    def _remember(self, job: DdlJob, schema: str, table: TableInfo) -> None:
        self._gone.pop(table.id, None)
        self._versions[table.id] = job.schema_version, schema, table

    # --- deviations ----------------------------------------------------------------------------

    def drift(self, table_id: int) -> Drift:
        return self.drifts.get(table_id, NONE)

    def _set_drift(self, table_id: int, drift: Drift) -> None:
        if drift == NONE:
            self.drifts.pop(table_id, None)
        else:
            self.drifts[table_id] = drift

    def _carry(
        self, change: SchemaChange, before: Mapping[int, Drift], *, is_there: bool = False
    ) -> None:
        """Carry over the drift of changed tables; `is_there`: the change was made by hand."""
        for old, new in _kept_tables(change):
            self._set_drift(new.id, before.get(old.id, NONE).carried(change.job, old, new))
        lost = {table.id for _, table in change.dropped}
        for table_id in lost:
            self.drifts.pop(table_id, None)
        continued = {new.id for _, new in _kept_tables(change)}
        for schema, table in change.created:
            if table.id in continued:
                continue
            since_ts = self.absent_schemas.get(schema, 0)
            if is_there:
                self.absent_schemas.pop(schema, None)
            elif since_ts:
                self._set_drift(table.id, absent(since_ts))
            elif change.job.type == DdlType.CONVERT_PARTITION:
                sources = [before.get(old.id, NONE).absent_ts for _, old, _ in change.altered]
                self._set_drift(table.id, Drift(absent_ts=max(sources, default=0)))
        for name in change.schemas_dropped:
            self.absent_schemas.pop(name, None)

    def _skip(self, change: SchemaChange, before: Mapping[int, Drift], ts: int) -> None:
        """Record the upstream changes of a DDL that did not run downstream."""
        job = change.job
        for name in change.schemas_created:
            self.absent_schemas[name] = ts
        for name in change.schemas_dropped:
            self.absent_schemas.pop(name, None)
        kept = {new.id: old for old, new in _kept_tables(change)}
        renamed = {new.id for _, _, _, new in change.renamed}
        for schema, table in _tables_after(change):
            old = kept.get(table.id)
            if old is None or table.id in renamed:
                was = NONE if old is None else before.get(old.id, NONE)
                since_ts = was.absent_ts or self.absent_schemas.get(schema, 0) or ts
                self._set_drift(table.id, absent(since_ts))
                continue
            was = before.get(old.id, NONE)
            there = None if was.absent_ts else was.stripped(old)
            carried = was.carried(job, old, table)
            self._set_drift(table.id, compared(job, table, there, ts, carried))
        for table_id in {table.id for _, table in change.dropped}:
            self.drifts.pop(table_id, None)

    def _replace(self, job: DdlJob, override: Override) -> Tracked:
        there, before = self.downstream(), dict(self.drifts)
        planned = override.planned(job, there)
        run = there.apply(planned)
        try:
            change = self._followed(job)
        except NeedsOperator:
            change = self._followed(planned)
        for name in change.schemas_created:
            if there.schema(name) is None:
                self.absent_schemas[name] = override.commit_ts
        for name in (*change.schemas_dropped, *run.schemas_created):
            self.absent_schemas.pop(name, None)
        for _, table in change.dropped:
            self.drifts.pop(table.id, None)
        ids = {new.id: old for old, new in _kept_tables(change)}
        names = {(s, t.name) for each in (change, run) for s, t in _tables_after(each)}
        names |= {(s, t.name) for s, t in run.dropped}
        names |= {(s, old.name) for s, old, _, _ in run.renamed}
        for schema, name in sorted(names):
            found = self.catalog.table(schema, name)
            if found is not None:
                old = ids.get(found.id, found)
                was = before.get(old.id, NONE).carried(job, old, found)
                had = there.table(schema, name)
                if had is not None and had.id not in (found.id, old.id):
                    had = None  # Another table has the name there.
                self._set_drift(found.id, compared(job, found, had, override.commit_ts, was))
        return Tracked(change, run)

    def downstream(self) -> Catalog:
        tables = [
            (schema, self.drift(table.id).stripped(table))
            for schema, table in self.catalog.tables()
            if not self.drift(table.id).absent_ts
        ]
        homes = {schema for schema, _ in tables}
        schemas = [
            s
            for s in self.catalog.schemas()
            if s.name in homes or s.name not in self.absent_schemas
        ]
        return Catalog.of(self.version, schemas, tables)

    def _to_run(
        self, change: SchemaChange, before: Mapping[int, Drift], absent_schemas: Mapping[str, int]
    ) -> SchemaChange | None:
        """Return a change as the downstream can follow it, None when it lacks all of it."""
        if not before and not self.drifts and not absent_schemas:
            return change
        names = {*change.schemas_created, *change.schemas_dropped}
        if change.is_nothing:
            names = {change.job.schema_name}
        if names & absent_schemas.keys():
            return None
        parts = list(_parts(change, before, self.drifts))
        skipped = [name for name, is_absent in parts if is_absent]
        if skipped and len(skipped) == len(parts) and not change.schemas_dropped:
            return None
        if skipped and not change.schemas_dropped and not drops_several(change):
            raise NeedsOperator(
                f"{change.job.query!r} is also about {', '.join(skipped)}, which an override"
                " skipped downstream",
                "run the part that is about the others in its place",
                Code.FILTER_STOPS,
            )

        def was(table: TableInfo) -> TableInfo:
            return before.get(table.id, NONE).stripped(table)

        def now(table: TableInfo) -> TableInfo:
            return self.drift(table.id).stripped(table)

        dropped = tuple(
            (s, was(t)) for s, t in change.dropped if not before.get(t.id, NONE).absent_ts
        )
        if drops_several(change):
            return of_dropped(change, dropped)
        return replace(
            change,
            created=tuple((s, now(t)) for s, t in change.created),
            dropped=dropped,
            altered=tuple((s, was(old), now(new)) for s, old, new in change.altered),
            renamed=tuple((a, was(old), b, now(new)) for a, old, b, new in change.renamed),
        )

    def table_at(
        self, table_id: int, schema_version: int
    ) -> tuple[str, TableInfo] | Gone | Unknown:
        """Return (schema name, table) for rows of a version, or `Gone` for a table dropped since.

        `Unknown` is a table that a skipped DDL may have made which could not be tracked.

        An id that no DDL ever made raises NeedsOperator. So does, in a fenced stream, each version
        but the current one, because the fence lets no transaction commit rows of another version.
        """
        self._settle(schema_version)
        if schema_version != self.version and self.rules.is_fenced:
            only = " only" if schema_version > self.version else ""
            raise NeedsOperator(
                f"rows of table id {table_id} were written under schema version {schema_version},"
                f" but the stream's DDL has come to {self.version}{only}",
                f"the DDL history of the writers is not that of the stream; {OTHER_HISTORY}."
                " The rows of a transaction that is named in ignore-txn-commit-ts are missing"
                " downstream, and are counted",
                Code.SCHEMA_UNKNOWN,
            )
        if table_id in self._gone:
            return self._gone[table_id]
        found = self._versions.get(table_id)
        if found is None and table_id >= self.rules.system_ids_from:
            return self.rules.system_schemas[0].name, TableInfo(id=table_id, name=f"id {table_id}")
        if found is None and self.blind_ts:
            return Unknown(table_id)
        if found is None:
            raise NeedsOperator(
                f"rows name table id {table_id}, which no DDL has made",
                self.rules.unknown_table_hint,
                Code.SCHEMA_UNKNOWN,
            )
        _, schema, table = found
        if schema_version < self._rows_moved.get(table_id, 0):
            log.warning(
                "rows of %s.%s were written under schema version %d and committed after version"
                " %d, at which one of its partitions was exchanged or truncated: upstream, those of"
                " that partition are not in this table; compare the tables, as with"
                " `penstock verify`",
                schema, table.name, schema_version, self._rows_moved[table_id],
            )  # fmt: skip
        return schema, table


def _of_nothing(job: DdlJob) -> DdlJob:
    """Return a job without effect that only counts as a schema version."""
    return replace(job, type=_CHANGES_NOTHING, state=JOB_SYNCED, schema=None, table=None, tables=())


def _kept_tables(change: SchemaChange) -> Iterator[tuple[TableInfo, TableInfo]]:
    """Yield each table that exists before and after, also under another id if truncated."""
    for _, old, new in change.altered:
        yield old, new
    for _, old, _, new in change.renamed:
        yield old, new
    dropped = {(schema, table.name): table for schema, table in change.dropped}
    for schema, table in change.created:
        if (schema, table.name) in dropped:
            yield dropped[schema, table.name], table


def _tables_after(change: SchemaChange) -> Iterator[tuple[str, TableInfo]]:
    yield from change.created
    yield from ((schema, new) for schema, _, new in change.altered)
    yield from ((schema, new) for _, _, schema, new in change.renamed)


def _parts(
    change: SchemaChange, before: Mapping[int, Drift], after: Mapping[int, Drift]
) -> Iterator[tuple[str, bool]]:
    for schema, table in change.dropped:
        yield f"{schema}.{table.name}", bool(before.get(table.id, NONE).absent_ts)
    for schema, table in _tables_after(change):
        yield f"{schema}.{table.name}", bool(after.get(table.id, NONE).absent_ts)
