"""The catalog: all schemas and tables at one schema version, and the step to the next version.

Names of schemas and tables are looked up as written and, without an exact match, case-insensitively
(the first in order of creation). The step takes the finished `TableInfo` from the job and reads no
SQL, so that a history written by a real TiDB is followed in the same way.

    job                                     effect
    CREATE_SCHEMA, DROP, MODIFY CHARSET     by name; a dropped schema's tables are dropped with it
    CREATE TABLE, VIEW, SEQUENCE, … (60)    adds; a view may take the place of a view
    DROP TABLE, VIEW, SEQUENCE              removes by id; of several, all in `tables`
    CONVERT PARTITION, CONVERT TABLE        replaces by id, adds new tables, removes `table_id`
    TRUNCATE                                removes `table_id`, adds `table`
    EXCHANGE PARTITION                      a TiDB's: the table and the partition swap their ids
    RENAME, RENAME TABLES                   moves by id, to the name and schema of the job
    all others that carry a table           replaces it by id; its name and schema may also change
    locks, TiFlash, placement, …            nothing

A DROP of several tables is one job because its statement is one step. A filter, a route or an
override may concern only some of its tables. Each table is then judged separately, and the
remaining tables are again dropped by one statement.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

from penstock.codes import Code
from penstock.ddl.successors import adopted
from penstock.ddl.syntax.lexer import quote_name, quote_path
from penstock.ddl.tables.default_values import is_now
from penstock.errors import NeedsOperator
from penstock.schema.model import ColumnInfo, DdlJob, DdlType, MysqlType, SchemaInfo, TableInfo
from penstock.ts import physical_ms

WITHOUT_EFFECT = frozenset({27, 28, 30, 31, *range(49, 60), 68, 69, 70})
"""Jobs that concern only TiDB itself: placement, locks, caches, TiFlash, resource groups."""
_CREATES = (
    DdlType.CREATE_TABLE,
    DdlType.CREATE_VIEW,
    DdlType.CREATE_SEQUENCE,
    DdlType.RECOVER_TABLE,
)
DROPS = {"TABLE": DdlType.DROP_TABLE, "VIEW": DdlType.DROP_VIEW, "SEQUENCE": DdlType.DROP_SEQUENCE}
"""The types of jobs that drop tables, by the kind that they name."""
_PARTITIONS = (DdlType.ALTER_PARTITIONING, DdlType.REMOVE_PARTITIONING)
_CONVERSIONS = (DdlType.CONVERT_PARTITION, DdlType.CONVERT_TABLE)
_CREATE_TABLES = 60
_UNFOLLOWABLE = {
    62: "FLASHBACK CLUSTER changes rows without a binlog",
    63: "RECOVER SCHEMA brings back rows without a binlog",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaChange:
    """The effect of a DDL job, by tables.

    A truncated table is `dropped` under its old id and `created` under its new id, a replaced view
    likewise. A `renamed` table may have changed in the same step.
    """

    job: DdlJob
    created: tuple[tuple[str, TableInfo], ...] = ()
    dropped: tuple[tuple[str, TableInfo], ...] = ()
    altered: tuple[tuple[str, TableInfo, TableInfo], ...] = ()
    renamed: tuple[tuple[str, TableInfo, str, TableInfo], ...] = ()
    schemas_created: tuple[str, ...] = ()
    schemas_dropped: tuple[str, ...] = ()

    @property
    def is_nothing(self) -> bool:
        return not (
            self.created
            or self.dropped
            or self.altered
            or self.renamed
            or self.schemas_created
            or self.schemas_dropped
        )


class Catalog:
    """Schemas by name, tables by name and by id; changes only through `apply`."""

    def __init__(self) -> None:
        self.version = 0
        self._schemas: dict[str, SchemaInfo] = {}
        self._tables: dict[str, dict[str, int]] = {}
        self._by_id: dict[int, tuple[str, TableInfo]] = {}

    @classmethod
    def of(
        cls, version: int, schemas: Iterable[SchemaInfo], tables: Iterable[tuple[str, TableInfo]]
    ) -> Catalog:
        made = cls()
        made.version, made._schemas = version, {schema.name: schema for schema in schemas}
        made._tables = {name: {} for name in made._schemas}
        for schema, table in tables:
            made._tables[schema][table.name] = table.id
            made._by_id[table.id] = (schema, table)
        return made

    def copy(self) -> Catalog:
        other = Catalog()
        other.version, other._schemas = self.version, dict(self._schemas)
        other._tables = {schema: dict(names) for schema, names in self._tables.items()}
        other._by_id = dict(self._by_id)
        return other

    def schemas(self) -> tuple[SchemaInfo, ...]:
        return tuple(self._schemas.values())

    def schema(self, name: str) -> SchemaInfo | None:
        key = _find(self._schemas, name)
        return None if key is None else self._schemas[key]

    def tables(self, schema: str | None = None) -> tuple[tuple[str, TableInfo], ...]:
        """Return (schema name, table) for all tables, or those of one schema."""
        found = None if schema is None else self.schema(schema)
        names = [found.name] if found is not None else list(self._schemas) * (schema is None)
        return tuple(self._by_id[i] for n in names for i in self._tables[n].values())

    def table(self, schema: str, name: str) -> TableInfo | None:
        found = self.schema(schema)
        if found is None:
            return None
        names = self._tables[found.name]
        key = _find(names, name)
        return None if key is None else self._by_id[names[key]][1]

    def table_by_id(self, table_id: int) -> tuple[str, TableInfo] | None:
        return self._by_id.get(table_id)

    def apply(self, job: DdlJob) -> SchemaChange:
        """Apply one finished job and return the change.

        A job that does not fit (a table missing, a name taken) raises NeedsOperator and changes
        nothing; a failed job changes nothing.
        """
        if job.has_failed or job.schema_version == 0:
            return SchemaChange(job=job)
        if job.type in _UNFOLLOWABLE:
            raise _unfit(job, _UNFOLLOWABLE[job.type])
        step = _STEPS.get(job.type, Catalog._replace)
        change = step(trial := self.copy(), job)
        self._schemas, self._tables, self._by_id = trial._schemas, trial._tables, trial._by_id
        self.version = max(self.version, job.schema_version)
        return change

    def _nothing(self, job: DdlJob) -> SchemaChange:
        return SchemaChange(job=job)

    def _create_schema(self, job: DdlJob) -> SchemaChange:
        if job.schema is None:
            raise _unfit(job, "it carries no schema")
        if job.schema.name in self._schemas:
            raise _unfit(job, f"schema {job.schema.name!r} exists")
        self._schemas[job.schema.name] = job.schema
        self._tables[job.schema.name] = {}
        return SchemaChange(job=job, schemas_created=(job.schema.name,))

    def _drop_schema(self, job: DdlJob) -> SchemaChange:
        name = self._schema_of(job)
        dropped = self.tables(name)
        for _, table in dropped:
            del self._by_id[table.id]
        del self._schemas[name], self._tables[name]
        return SchemaChange(job=job, dropped=dropped, schemas_dropped=(name,))

    def _modify_schema(self, job: DdlJob) -> SchemaChange:
        name = self._schema_of(job)
        if job.schema is None:
            raise _unfit(job, "it carries no schema")
        self._schemas[name] = replace(job.schema, name=name)
        return SchemaChange(job=job)

    def _create_tables(self, job: DdlJob) -> SchemaChange:
        pairs = self._pairs(job)
        if not pairs:
            raise _unfit(job, "it carries no table")
        created: list[tuple[str, TableInfo]] = []
        dropped: list[tuple[str, TableInfo]] = []
        for schema, table in pairs:
            old_id = self._tables.get(schema, {}).get(table.name)
            same = old_id is not None and self._by_id[old_id][1].kind == table.kind
            if old_id is not None and same and table.kind != "TABLE":
                dropped.append(self._remove(job, old_id))
            created.append(self._add(job, schema, table))
        return SchemaChange(job=job, created=tuple(created), dropped=tuple(dropped))

    def _drop_table(self, job: DdlJob) -> SchemaChange:
        ids = [table.id for _, table in job.tables] or [job.table_id]
        return SchemaChange(job=job, dropped=tuple(self._remove(job, each) for each in ids))

    def _truncate(self, job: DdlJob) -> SchemaChange:
        if job.table is None:
            raise _unfit(job, "it carries no table")
        dropped = self._remove(job, job.table_id)
        created = self._add(job, dropped[0], job.table)
        return SchemaChange(job=job, dropped=(dropped,), created=(created,))

    def _convert(self, job: DdlJob) -> SchemaChange:
        dropped = [self._remove(job, job.table_id)] if job.type == DdlType.CONVERT_TABLE else []
        created, altered = [], []
        for schema, table in self._pairs(job):
            if table.id in self._by_id:
                _, before = self._remove(job, table.id)
                altered.append((schema, before, self._add(job, schema, table)[1]))
            else:
                created.append(self._add(job, schema, table))
        return SchemaChange(
            job=job, created=tuple(created), dropped=tuple(dropped), altered=tuple(altered)
        )

    def _partitioning(self, job: DdlJob) -> SchemaChange:
        """Replace a table that TiDB gives a new id when it becomes partitioned or unpartitioned."""
        if job.table is None or job.table.id == job.table_id:
            return self._replace(job)
        schema, before = self._remove(job, job.table_id)
        _, after = self._add(job, schema, settled(job, before, job.table))
        return SchemaChange(job=job, altered=((schema, before, after),))

    def _exchange(self, job: DdlJob) -> SchemaChange:
        """Replace a partitioned table; the exchanged table gets the id of its partition, if any.

        Without partition ids, for example in Penstock's own plans, both tables keep their ids.
        """
        other = self._by_id.get(job.table_id)
        if job.table is None or job.table.id == job.table_id or not job.table.partition_ids:
            return self._replace(job)
        if other is None or job.table_id not in job.table.partition_ids:
            raise _unfit(job, f"table id {job.table_id} is not the partition that it was to become")
        found = self._by_id.get(job.table.id)
        before = found[1] if found is not None else job.table
        at = job.table.partition_ids.index(job.table_id)
        if found is None or at >= len(before.partition_ids):
            raise _unfit(job, f"table id {job.table.id} has not had that partition")
        schema, partitioned = self._remove(job, job.table.id)
        altered = [(schema, partitioned, self._add(job, schema, job.table)[1])]
        schema, single = self._remove(job, job.table_id)
        swapped = replace(single, id=before.partition_ids[at])
        altered.append((schema, single, self._add(job, schema, swapped)[1]))
        return SchemaChange(job=job, altered=tuple(altered))

    def put(self, schema: str, table: TableInfo) -> None:
        """Put a table into an existing schema, replacing the tables with its id or its name."""
        names = self._tables[schema]
        for table_id in {table.id, names.get(table.name, table.id)} & self._by_id.keys():
            home, other = self._by_id.pop(table_id)
            del self._tables[home][other.name]
        names[table.name] = table.id
        self._by_id[table.id] = (schema, table)

    def named(self, job: DdlJob) -> DdlJob:
        """Return a TiDB's job with schema names as spelled here, if they exist.

        A TiDB's job has them in lower case, or only by their ids, and a table once for each rename.
        """
        names = {schema.id: schema.name for schema in self._schemas.values()}
        name = names.get(job.schema_id) or _find(self._schemas, job.schema_name) or job.schema_name
        ids = job.schema_ids or (job.schema_id,) * len(job.tables)
        pairs = zip(ids, job.tables, strict=True)
        last = {table.id: (names.get(schema_id, name), table) for schema_id, (_, table) in pairs}
        return replace(job, schema_name=name, tables=tuple(last.values()))

    def _replace(self, job: DdlJob) -> SchemaChange:
        """Replace tables by id, all in a single step, so that names may swap."""
        pairs = self._pairs(job)
        if not pairs:
            raise _unfit(job, f"jobs of type {job.type} without a table are unknown")
        before = [self._remove(job, table.id) for _, table in pairs]
        for i, (schema, table) in enumerate(pairs):
            self._add(job, schema, settled(job, before[i][1], table))
        altered, renamed = [], []
        for (old_schema, old), (_, table) in zip(before, pairs, strict=True):
            new_schema, new = self._by_id[table.id]
            if (old_schema, old.name) == (new_schema, new.name):
                altered.append((new_schema, old, new))
            else:
                renamed.append((old_schema, old, new_schema, new))
        return SchemaChange(job=job, altered=tuple(altered), renamed=tuple(renamed))

    def _pairs(self, job: DdlJob) -> tuple[tuple[str, TableInfo], ...]:
        return job.tables or (((self._schema_of(job), job.table),) if job.table else ())

    def _schema_of(self, job: DdlJob) -> str:
        """Return the name of a job's schema; TiDB writes it in lower case, or only the id."""
        if job.schema_name:
            found = _find(self._schemas, job.schema_name)
        else:
            named = (s.name for s in self._schemas.values() if s.id == job.schema_id)
            found = next(named, None)
        if found is None:
            raise _unfit(job, f"schema {job.schema_name!r} does not exist")
        return found

    def _remove(self, job: DdlJob, table_id: int) -> tuple[str, TableInfo]:
        found = self._by_id.pop(table_id, None)
        if found is None:
            raise _unfit(job, f"table id {table_id} does not exist")
        del self._tables[found[0]][found[1].name]
        return found

    def _add(self, job: DdlJob, schema: str, table: TableInfo) -> tuple[str, TableInfo]:
        if schema not in self._schemas:
            raise _unfit(job, f"schema {schema!r} does not exist")
        if table.name in self._tables[schema] or table.id in self._by_id:
            raise _unfit(job, f"table {schema}.{table.name} (id {table.id}) exists")
        self._tables[schema][table.name] = table.id
        self._by_id[table.id] = (schema, table)
        return schema, table


def _find(names: Mapping[str, object], name: str) -> str | None:
    if name in names:
        return name
    wanted = name.lower()
    return next((n for n in names if n.lower() == wanted), None)


def _unfit(job: DdlJob, why: str) -> NeedsOperator:
    return NeedsOperator(
        f"DDL job {job.id} ({job.query[:80]!r}, version {job.schema_version}) does not fit: {why}",
        "the DDL history is incomplete or was changed by hand: compare it with the tables",
        Code.DDL_HISTORY,
    )


_STEPS: dict[int, Callable[[Catalog, DdlJob], SchemaChange]] = {
    DdlType.CREATE_SCHEMA: Catalog._create_schema,
    DdlType.DROP_SCHEMA: Catalog._drop_schema,
    DdlType.MODIFY_SCHEMA_CHARSET: Catalog._modify_schema,
    DdlType.TRUNCATE_TABLE: Catalog._truncate,
    DdlType.EXCHANGE_PARTITION: Catalog._exchange,
    _CREATE_TABLES: Catalog._create_tables,
    **dict.fromkeys(_CREATES, Catalog._create_tables),
    **dict.fromkeys(DROPS.values(), Catalog._drop_table),
    **dict.fromkeys(WITHOUT_EFFECT, Catalog._nothing),
    **dict.fromkeys(_PARTITIONS, Catalog._partitioning),
    **dict.fromkeys(_CONVERSIONS, Catalog._convert),
}

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def settled(job: DdlJob, before: TableInfo, after: TableInfo) -> TableInfo:
    """Return the table with the DDL's time where older rows read as the current time."""
    if job.finished_ts == 0 or not any(is_now(c.origin_default) for c in after.columns):
        return after
    known = {c.id: c.origin_default for c in adopted(job, before, after).columns}
    columns = tuple(
        replace(c, origin_default=_moment(job, c, known.get(c.id)))
        if is_now(c.origin_default)
        else c
        for c in after.columns
    )
    return replace(after, columns=columns)


def _moment(job: DdlJob, column: ColumnInfo, known: str | None) -> str:
    if known is not None and not is_now(known):
        return known
    written = re.search(r"\d", column.origin_default or "")
    digits = int(written[0]) if written else 0
    text = moment_text(job, digits, in_utc=column.tp is MysqlType.TIMESTAMP)
    return text + "0" * (column.decimal - digits)


def moment_text(job: DdlJob, decimals: int, *, in_utc: bool) -> str:
    """Return the time of a job's CURRENT_TIMESTAMP, as MySQL prints it.

    It is in UTC, or in the time zone of the job's session.
    """
    moment = None if job.context is None else job.context.shown(in_utc=in_utc)
    if moment is None:
        moment = _EPOCH + timedelta(milliseconds=physical_ms(job.finished_ts))
    text = moment.strftime("%Y-%m-%d %H:%M:%S.%f")
    return text[: len(text) - 6 + decimals] if decimals else text[:-7]


Dropped = Sequence[tuple[str, TableInfo]]


def drop_job(job: DdlJob, dropped: Dropped) -> DdlJob:
    """Return a job like `job`, but that drops these tables; it runs in the first table's schema.

    A job of one table names it by `table_id`, as always. A job of several tables has their ids and
    names in `tables`, and no `table_id`: a reader that expects one table per job refuses it.
    """
    home = dropped[0][0]
    kinds = {table.kind for _, table in dropped}
    kind = kinds.pop() if len(kinds) == 1 else "TABLE"  # MariaDB's DROP TABLE also drops sequences.
    names = [
        quote_name(table.name) if schema == home else quote_path(schema, table.name)
        for schema, table in dropped
    ]
    made = replace(job, type=DROPS[kind], schema_name=home, query=f"DROP {kind} {', '.join(names)}")
    if len(dropped) == 1:
        ((_, table),) = dropped
        return replace(made, table_id=table.id, table_name=table.name, tables=())
    tables = [
        (s, TableInfo(id=t.id, name=t.name, is_view=t.is_view, is_sequence=t.is_sequence))
        for s, t in dropped
    ]
    return replace(made, table_id=0, table_name="", tables=tuple(tables))


def drops_several(change: SchemaChange) -> bool:
    """Return whether a change drops several tables, but not a database."""
    return change.job.type in DROPS.values() and len(change.dropped) > 1


def of_dropped(change: SchemaChange, dropped: Dropped) -> SchemaChange:
    """Return a DROP limited to these tables; duplicate names are dropped only once."""
    once = {(schema, table.name): (schema, table) for schema, table in dropped}
    kept = tuple(once.values())
    return replace(change, job=drop_job(change.job, kept), dropped=kept)


def table_by_table(change: SchemaChange) -> list[SchemaChange]:
    """Split a DROP of several tables into single drops; return any other change alone."""
    if not drops_several(change):
        return [change]
    return [of_dropped(change, (each,)) for each in change.dropped]


def together(parts: Sequence[SchemaChange]) -> SchemaChange:
    """Merge parts that `table_by_table` returned, at least a single part, into a change."""
    if len(parts) == 1:
        return parts[0]
    return of_dropped(parts[0], [each for part in parts for each in part.dropped])
