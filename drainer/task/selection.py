"""Selection: decides which changes of the stream go downstream, and under which names.

    lookup   (table id, version) -> target     for the planner, for the rows of a transaction
    route    change -> change to run, or not   for the follower, for every DDL it has tracked

Filters see the upstream's names and columns. The downstream sees only the routes' names, and the
columns that it has (`drainer.schema.drift`). Skipped changes also advance the checkpoint,
and are counted (`drainer.differences`). If several tables are replicated into one:

    rows   of one shape, which is the rule, are gathered as one table's, in the order of their
           commits: the last change of a key counts, whichever source made it. While shapes
           differ, a batch ends where the source changes. Rows that a route marks with their
           source are kept apart: a statement touches only rows of its own source.
    DDL    `penstock.filters.routes`
"""

from __future__ import annotations

import logging
from dataclasses import replace

from drainer.differences import DDLS, DROPPED, FILTER, OVERRIDE, SYNC_DDL, Skipped, subject_of
from drainer.schema.tracker import Gone, SchemaTracker, Unknown
from drainer.task.row_changes import Loss, MarkTable, Screened, Target, is_mark_table
from penstock.codes import Code
from penstock.ddl import Catalog, SchemaChange, route_change
from penstock.errors import NeedsOperator
from penstock.filters import Rules
from penstock.filters.routes import Constants, check_newcomer, routed_table, runs_alter, united
from penstock.schema.model import DdlType, SchemaInfo, TableInfo

log = logging.getLogger(__name__)

Place = tuple[str, TableInfo]
Names = tuple[str, str]


class Selection:
    """Filters and routes over the tracked schema."""

    def __init__(
        self,
        rules: Rules,
        schemas: SchemaTracker,
        *,
        channel_id: int | None = None,
        runs_ddl: bool = True,
        checks: bool = True,
    ) -> None:
        """Check the rules against the existing tables; raise `NeedsOperator` if a rule is unfit.

        Transactions with the mark of `channel_id` are skipped whole. Without `runs_ddl`, DDL is
        only tracked. Without `checks`, an unfit rule fails only at the rows that it is for.
        """
        self._channel_id = channel_id
        self._runs_ddl = runs_ddl
        self._rules = rules
        self._schemas = schemas
        self._known: dict[int, Target] = {}
        if checks:
            rules.check(schemas.catalog.tables())
            self._check_merged()

    def lookup(self, table_id: int, version: int) -> Target:
        """Return the target of rows; `Screened` if some rows or some values are skipped."""
        found = self._schemas.table_at(table_id, version)
        if isinstance(found, Unknown):
            return _nowhere(table_id, "", f"id {table_id}", OVERRIDE)
        if isinstance(found, Gone):
            return _nowhere(table_id, found.schema_name, found.table_name, DROPPED)
        if self._channel_id is not None and is_mark_table(found[0], found[1].name):
            return MarkTable(found, self._channel_id)
        name = f"{found[0]}.{found[1].name}"
        policy = self._rules.of_rows(*found)
        if policy.takes_nothing:
            return Screened(found, Loss(name, policy))
        drift = self._schemas.drift(table_id)
        if drift.absent_ts:
            return Screened(found, Loss(name, cause=OVERRIDE))
        target = self._target(found[0], drift.masked(found[1]))
        lacking, converted = drift.lacking(found[1]), drift.converted(found[1])
        loss = Loss(name, policy, lacking=tuple(lacking), converted=tuple(converted))
        takes_all = policy.takes_all and not lacking and not converted
        return target if takes_all else Screened(target, loss)

    def _target(self, schema: str, table: TableInfo) -> Target:
        """Return the same object for all tables that map to one downstream table."""
        router = self._rules.router
        target = (schema, table)
        if not router.is_empty:
            new_schema, name = router.target(schema, table.name)
            constants = self._constants(schema, table)
            target = (new_schema, routed_table(new_schema, name, table, constants))
        known = self._known.get(target[1].id)
        if known != target:
            known = self._known[target[1].id] = target
        return known

    def downstream(self) -> Catalog:
        rules, tracked = self._rules, self._schemas.downstream()
        tables: dict[Names, Place] = {}
        for schema, table in tracked.tables():
            if rules.is_replicated(schema, table.name):
                placed = self._placed(schema, table)
                tables.setdefault((placed[0], placed[1].name), placed)
        schemas: dict[str, SchemaInfo] = {}
        for each in tracked.schemas():
            if rules.is_replicated(each.name, ""):
                name = rules.target(each.name, "")[0]
                schemas.setdefault(name, replace(each, name=name))
        for name, _ in tables:
            schemas.setdefault(name, SchemaInfo(id=0, name=name))
        return Catalog.of(tracked.version, schemas.values(), tables.values())

    # --- DDL -----------------------------------------------------------------------------------

    def route(self, change: SchemaChange) -> SchemaChange | Skipped | None:
        """Return a DDL as it runs downstream, or its count if it does not.

        None means that it has been done there already, by another table that goes there.

        Raises `NeedsOperator` if only an operator can decide.
        """
        job = change.job
        if not self._runs_ddl:
            log.info("DDL at %d is only tracked (sync-ddl): %s", job.finished_ts, job.query)
            return Skipped(DDLS, SYNC_DDL, subject_of(change))
        if not self._rules.of_ddl(change):
            log.info("DDL at %d is filtered: %s", job.finished_ts, job.query)
            return Skipped(DDLS, FILTER, subject_of(change))
        if self._rules.router.is_empty:
            return change
        runs = self._verdicts(change)
        if runs == {False}:
            log.info("DDL at %d changes nothing downstream now: %s", job.finished_ts, job.query)
            return None
        if len(runs) > 1:
            raise NeedsOperator(
                f"only a part of {job.query!r} is to run on tables that become one",
                "change the downstream by hand, then track this DDL",
                Code.FILTER_STOPS,
            )
        return self._routed(change)

    def _verdicts(self, change: SchemaChange) -> set[bool]:
        """Return whether each part of a change must run; an empty set means that it must."""
        runs: set[bool] = set()
        for name in change.schemas_created:
            runs.add(not self._other_schemas(name))
        for name in change.schemas_dropped:
            self._check_drop_schema(name, change)
            runs.add(True)
        for schema, table in () if change.schemas_dropped else change.dropped:
            if self._others(schema, table) or self._constants(schema, table):
                raise _shared(self._place(schema, table), change)
            runs.add(True)
        for schema, table in change.created:
            others = self._others(schema, table)
            if others:
                self._check_merged()
                check_newcomer(self._place(schema, table), table, others)
            self._placed(schema, table)
            # A table whose rows get columns that name their source goes into an existing table.
            runs.add(not others and not self._constants(schema, table))
        for schema, before, after in change.altered:
            others = self._others(schema, after)
            place = self._place(schema, after)
            runs.add(not others or runs_alter(place, before, after, others))
        for old_schema, before, new_schema, after in change.renamed:
            runs.add(self._is_moved(change, (old_schema, before), (new_schema, after)))
        return runs

    def _is_moved(self, change: SchemaChange, old: Place, new: Place) -> bool:
        same = self._place(*old).lower() == self._place(*new).lower()
        if self._constants(*old) != self._constants(*new) or (self._constants(*old) and not same):
            raise _shared(self._place(*new), change)
        if same and old[1].columns == new[1].columns and old[1].indexes == new[1].indexes:
            return False
        if same or self._others(*old) or self._others(*new):
            raise _shared(self._place(*new), change)
        return True

    def _check_drop_schema(self, name: str, change: SchemaChange) -> None:
        """Refuse to drop a schema downstream that others share or that leaves tables behind."""
        target = self._rules.target(name, "")[0].lower()
        homes = {self._rules.target(s, t.name)[0].lower() for s, t in change.dropped
                 if self._rules.is_replicated(s, t.name)}  # fmt: skip
        present = {
            self._rules.target(s, t.name)[0].lower()
            for s, t in self._schemas.catalog.tables()
            if self._rules.is_replicated(s, t.name)
        }
        marked = any(self._constants(*each) for each in change.dropped)
        if marked or self._other_schemas(name) or target in present or homes - {target}:
            raise _shared(target, change)

    def _other_schemas(self, name: str) -> list[str]:
        target = self._rules.target(name, "")[0].lower()
        return [
            s.name
            for s in self._schemas.catalog.schemas()
            if s.name != name
            and self._rules.is_replicated(s.name, "")
            and self._rules.target(s.name, "")[0].lower() == target
        ]

    def _others(self, schema: str, table: TableInfo) -> list[TableInfo]:
        wanted = self._place(schema, table).lower()
        return [
            other
            for name, other in self._schemas.catalog.tables()
            if other.id != table.id
            and self._rules.is_replicated(name, other.name)
            and self._place(name, other).lower() == wanted
        ]

    def _check_merged(self) -> None:
        """Raise `NeedsOperator` if tables merge downstream and no route intends that."""
        router = self._rules.router
        places: dict[str, list[Names]] = {}
        for schema, table in () if router.is_empty else self._schemas.catalog.tables():
            is_absent = self._schemas.drift(table.id).absent_ts
            if self._rules.is_replicated(schema, table.name) and not is_absent:
                names = places.setdefault(self._place(schema, table).lower(), [])
                names.append((schema, table.name))
        for names in places.values():
            if len(names) > 1:
                router.check_merged(names)

    def _constants(self, schema: str, table: TableInfo) -> Constants:
        is_table = table.kind == "TABLE"
        return self._rules.router.extracted(schema, table.name) if is_table else ()

    def _place(self, schema: str, table: TableInfo) -> str:
        return ".".join(self._rules.target(schema, table.name))

    def _routed(self, change: SchemaChange) -> SchemaChange:
        routed = route_change(change, self._rules.target)
        altered = []
        for schema, before, after in change.altered:
            others = self._others(schema, after)
            if others:
                before, after = united(before, others), united(after, others)
            new_schema, new_after = self._placed(schema, after)
            altered.append((new_schema, self._placed(schema, before)[1], new_after))
        job = routed.job
        if job.type == DdlType.CREATE_SCHEMA and " IF NOT EXISTS " not in job.query:
            # A table of another schema may have been routed there before.
            query = job.query.replace("CREATE DATABASE ", "CREATE DATABASE IF NOT EXISTS ", 1)
            job = replace(job, query=query)
        home = self._schemas.catalog.schema(change.job.schema_name)
        if job.type == DdlType.CREATE_TABLE and home and job.schema_name != home.name:
            # Upstream may never create this schema: the sink does before the table.
            job = replace(job, schema=replace(home, name=job.schema_name))
        return replace(
            routed,
            job=job,
            created=tuple(self._placed(*each) for each in change.created),
            dropped=tuple(self._placed(*each) for each in change.dropped),
            altered=tuple(altered),
            renamed=tuple(
                (*self._placed(a, b), *self._placed(c, d)) for a, b, c, d in change.renamed
            ),
        )

    def _placed(self, schema: str, table: TableInfo) -> Place:
        new_schema, name = self._rules.target(schema, table.name)
        if self._rules.router.is_routed(schema, table.name):
            return new_schema, routed_table(new_schema, name, table, self._constants(schema, table))
        return new_schema, table.renamed(name)


def _nowhere(table_id: int, schema: str, name: str, cause: str) -> Screened:
    target = (schema, TableInfo(id=table_id, name=name))
    return Screened(target, Loss(f"{schema}.{name}" if schema else name, cause=cause))


def _shared(place: str, change: SchemaChange) -> NeedsOperator:
    return NeedsOperator(
        f"{change.job.query!r} would touch {place} downstream, where other tables are routed too",
        "do downstream by hand what is right for the others, then track this DDL; event rules"
        " leave such DDL out for good",
        Code.ROUTE_CONFLICT,
    )
