"""DDL text into jobs for the history: the schema afterwards, and the statement to run downstream.

A job's `query` is one statement, to be run with `schema_name` as current database (no database
for CREATE, DROP and ALTER DATABASE). It is the text as written, but for this:

    names of tables     as the catalog spells them, with their schema where it is another
    IF [NOT] EXISTS     gone, since it was decided here; CREATE DATABASE IF NOT EXISTS keeps it
    character sets      explicit wherever the servers' own defaults would decide
    several tables      DROP TABLE a, b becomes two jobs; RENAME TABLE stays one, being atomic
    operations          those that came to nothing are left out
    clauses             that MySQL and MariaDB spell differently and that change no row: left out

ALTER TABLE is one job, whatever it holds, and of type MULTI_SCHEMA_CHANGE if it holds several
operations. Triggers, routines, accounts and rows made by DDL (CREATE TABLE … SELECT, partition
exchange) raise NeedsOperator.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from penstock.ddl.catalog import Catalog
from penstock.ddl.charsets import resolve
from penstock.ddl.lexer import Source, quote_name
from penstock.ddl.parse import parse
from penstock.ddl.plan_alter import AlterPlan, plan_alter
from penstock.ddl.spelling import column_edits, option_edits
from penstock.ddl.syntax import (
    AlterSchema,
    AlterTable,
    CreateLike,
    CreateSchema,
    CreateTable,
    CreateView,
    DropSchema,
    DropTables,
    Edit,
    IndexStatement,
    Part,
    RenameTables,
    Statement,
    TableRef,
    TruncateTable,
    edited,
)
from penstock.ddl.tables import create_table
from penstock.ddl.views import check_view
from penstock.errors import NeedsOperator
from penstock.schema import DdlJob, DdlType, SchemaInfo, TableInfo


def plan_ddl(
    sql: str, default_schema: str | None, catalog: Catalog, next_id: Callable[[], int]
) -> list[DdlJob]:
    """Return the jobs that `sql` comes to, none if IF [NOT] EXISTS makes it come to nothing.

    `catalog` stays as it is; `finished_ts` is the caller's to fill in. What cannot be followed, and
    what MySQL would refuse, raises NeedsOperator; nothing is planned then.
    """
    source, statements = parse(sql)
    plan = _Plan(source, default_schema, catalog.copy(), next_id)
    for statement in statements:
        plan.add(statement)
    return plan.jobs


class _Plan:
    """Jobs so far, and the catalog as they leave it."""

    def __init__(
        self,
        source: Source,
        default_schema: str | None,
        catalog: Catalog,
        next_id: Callable[[], int],
    ) -> None:
        self._source = source
        self._default_schema = default_schema
        self._catalog = catalog
        self._next_id = next_id
        self.jobs: list[DdlJob] = []

    def add(self, statement: Statement) -> None:
        """Plan one more statement."""
        match statement:
            case CreateSchema():
                self._create_schema(statement)
            case AlterSchema():
                self._alter_schema(statement)
            case DropSchema():
                self._drop_schema(statement)
            case CreateTable():
                self._create_table(statement)
            case CreateLike():
                self._create_like(statement)
            case CreateView():
                self._create_view(statement)
            case _:
                self._change_tables(statement)

    def _change_tables(self, statement: Statement) -> None:
        match statement:
            case DropTables():
                self._drop_tables(statement)
            case TruncateTable():
                self._truncate(statement)
            case RenameTables():
                self._rename(statement)
            case AlterTable():
                self._alter(statement, statement.ref, statement.parts)
            case IndexStatement():
                part = Part(statement.operation, statement.start, statement.end)
                self._alter(statement, statement.ref, (part,))
            case _:
                raise AssertionError(f"no plan for {type(statement).__name__}")

    def _emit(self, type_: int, owner: SchemaInfo, query: str, **fields: object) -> None:
        job = DdlJob(
            id=self._next_id(),
            type=type_,
            schema_id=owner.id,
            schema_name=owner.name,
            query=query,
            schema_version=self._catalog.version + 1,
        )
        job = replace(job, **fields)  # type: ignore[arg-type]
        self._catalog.apply(job)
        self.jobs.append(job)

    # Names.

    def _schema_name(self, name: str | None) -> str:
        wanted = name or self._default_schema
        if wanted is None:
            raise NeedsOperator("no database is chosen", hint="write the table as schema.table")
        return wanted

    def _schema(self, name: str | None) -> SchemaInfo:
        wanted = self._schema_name(name)
        found = self._catalog.schema(wanted)
        if found is None:
            raise NeedsOperator(f"database {wanted!r} does not exist", hint="create it first")
        return found

    def _table(self, ref: TableRef) -> tuple[SchemaInfo, TableInfo]:
        schema = self._schema(ref.schema)
        table = self._catalog.table(schema.name, ref.name)
        if table is None:
            raise NeedsOperator(
                f"table {schema.name}.{ref.name} does not exist", hint="check the name"
            )
        return schema, table

    def _base_table(self, ref: TableRef) -> tuple[SchemaInfo, TableInfo]:
        schema, table = self._table(ref)
        if table.is_view:
            raise NeedsOperator(
                f"{schema.name}.{table.name} is a view", hint="name a table, or use DROP VIEW"
            )
        return schema, table

    def _free(self, schema: SchemaInfo, name: str) -> None:
        found = self._catalog.table(schema.name, name)
        if found is not None:
            raise NeedsOperator(
                f"table {schema.name}.{found.name} exists", hint="drop it or choose another name"
            )

    def _text(self, statement: Statement, *edits: Edit) -> str:
        return edited(self._source.text, statement.start, statement.end, (*statement.edits, *edits))

    # Schemas.

    def _create_schema(self, statement: CreateSchema) -> None:
        if self._catalog.schema(statement.name) is not None:
            if statement.if_not_exists:
                return
            raise NeedsOperator(f"database {statement.name!r} exists", hint="choose another name")
        charset, collate = resolve(statement.charset, ("utf8mb4", "utf8mb4_bin"))
        schema = SchemaInfo(
            id=self._next_id(), name=statement.name, charset=charset, collate=collate
        )
        absent = "IF NOT EXISTS " if statement.if_not_exists else ""
        query = f"CREATE DATABASE {absent}{_charset_clause(schema)}"
        self._emit(DdlType.CREATE_SCHEMA, schema, query, schema=schema)

    def _alter_schema(self, statement: AlterSchema) -> None:
        before = self._schema(statement.name)
        charset, collate = resolve(statement.charset, (before.charset, before.collate))
        schema = replace(before, charset=charset, collate=collate)
        query = f"ALTER DATABASE {_charset_clause(schema)}"
        self._emit(DdlType.MODIFY_SCHEMA_CHARSET, schema, query, schema=schema)

    def _drop_schema(self, statement: DropSchema) -> None:
        if statement.if_exists and self._catalog.schema(statement.name) is None:
            return
        schema = self._schema(statement.name)
        query = f"DROP DATABASE {quote_name(schema.name)}"
        self._emit(DdlType.DROP_SCHEMA, schema, query)

    # Tables come and go.

    def _create_table(self, statement: CreateTable) -> None:
        schema = self._schema(statement.ref.schema)
        if statement.if_not_exists and self._catalog.table(schema.name, statement.ref.name):
            return
        self._free(schema, statement.ref.name)
        table = create_table(statement, self._next_id(), schema)
        edits = [_named(statement.ref, schema, table.name, schema)]
        edits += option_edits(statement.options, table)
        for column in statement.columns:
            edits += column_edits(column)
        self._emit_table(DdlType.CREATE_TABLE, schema, table, self._text(statement, *edits))

    def _emit_table(self, type_: int, schema: SchemaInfo, table: TableInfo, query: str) -> None:
        self._emit(type_, schema, query, table_id=table.id, table_name=table.name, table=table)

    def _create_like(self, statement: CreateLike) -> None:
        schema = self._schema(statement.ref.schema)
        if statement.if_not_exists and self._catalog.table(schema.name, statement.ref.name):
            return
        self._free(schema, statement.ref.name)
        like_schema, like = self._base_table(statement.like)
        table = replace(like, id=self._next_id(), name=statement.ref.name)
        table = replace(
            table, columns=tuple(replace(c, origin_default=None) for c in table.columns)
        )
        query = (
            f"CREATE TABLE {quote_name(table.name)} LIKE"
            f" {_qualified(like_schema, like.name, schema)}"
        )
        self._emit_table(DdlType.CREATE_TABLE, schema, table, query)

    def _create_view(self, statement: CreateView) -> None:
        schema = self._schema(statement.ref.schema)
        found = self._catalog.table(schema.name, statement.ref.name)
        if found is not None and statement.if_not_exists:
            return
        if statement.must_exist:
            _, found = self._table(statement.ref)
        if found is not None and not (found.is_view and statement.or_replace):
            self._free(schema, statement.ref.name)
        name = found.name if found is not None else statement.ref.name
        if self._default_schema != schema.name:
            check_view(self._source.slice(statement.select_start, statement.end), schema.name)
        view = TableInfo(
            id=self._next_id(),
            name=name,
            charset=schema.charset,
            collate=schema.collate,
            is_view=True,
        )
        query = self._text(statement, _named(statement.ref, schema, name, schema))
        self._emit_table(DdlType.CREATE_VIEW, schema, view, query)

    def _drop_tables(self, statement: DropTables) -> None:
        kind = "VIEW" if statement.views else "TABLE"
        for ref in statement.refs:
            schema = self._catalog.schema(self._schema_name(ref.schema))
            found = schema and self._catalog.table(schema.name, ref.name)
            if not schema or not found or found.is_view != statement.views:
                if statement.if_exists:
                    continue
                raise NeedsOperator(
                    f"{kind.lower()} {ref.name!r} does not exist", hint="check the name"
                )
            self._emit(
                DdlType.DROP_VIEW if statement.views else DdlType.DROP_TABLE,
                schema,
                f"DROP {kind} {quote_name(found.name)}",
                table_id=found.id,
                table_name=found.name,
            )

    def _truncate(self, statement: TruncateTable) -> None:
        schema, before = self._base_table(statement.ref)
        table = replace(before, id=self._next_id())
        table = replace(
            table, columns=tuple(replace(c, origin_default=None) for c in table.columns)
        )
        self._emit(
            DdlType.TRUNCATE_TABLE,
            schema,
            f"TRUNCATE TABLE {quote_name(table.name)}",
            table_id=before.id,
            table_name=table.name,
            table=table,
        )

    # Tables change.

    def _rename(self, statement: RenameTables) -> None:
        """Plan the renames one after the other, so that names may swap, as one job."""
        trial, clauses = self._catalog, []
        self._catalog, before = trial.copy(), len(self.jobs)
        target: SchemaInfo | None = None
        for old, new in statement.pairs:
            target = target or self._schema(new.schema)
            clauses.append(self._rename_one(old, new, target))
        moved = {job.table_id: job for job in self.jobs[before:]}
        del self.jobs[before:]
        self._catalog = trial
        assert target is not None
        query = f"RENAME TABLE {', '.join(clauses)}"
        tables = tuple((job.schema_name, job.table) for job in moved.values() if job.table)
        if len(tables) == 1:
            schema = self._schema(tables[0][0])
            self._emit_table(DdlType.RENAME_TABLE, schema, tables[0][1], query)
        else:
            self._emit(DdlType.RENAME_TABLES, target, query, tables=tables)

    def _rename_one(self, old: TableRef, new: TableRef, current: SchemaInfo) -> str:
        schema, before = self._table(old)
        target = self._schema(new.schema)
        if before.is_view and target.name != schema.name:
            raise NeedsOperator("a view cannot change its database", hint="create it anew there")
        taken = self._catalog.table(target.name, new.name)
        if taken is not None and taken.id != before.id:
            self._free(target, new.name)
        table = before.renamed(new.name)
        self._emit_table(DdlType.RENAME_TABLE, target, table, "")
        return (
            f"{_qualified(schema, before.name, current)} TO {_qualified(target, new.name, current)}"
        )

    def _alter(self, statement: Statement, ref: TableRef, parts: tuple[Part, ...]) -> None:
        schema, before = self._base_table(ref)
        plan: AlterPlan | None = plan_alter(before, schema, parts)
        if plan is None:
            return
        target, table = schema, plan.table
        if plan.rename is not None:
            target = self._schema(plan.rename.schema)
            taken = self._catalog.table(target.name, plan.rename.name)
            if taken is not None and taken.id != before.id:
                self._free(target, plan.rename.name)
            table = table.renamed(plan.rename.name)
        edits = [*plan.edits, _named(ref, schema, before.name, target)]
        if plan.rename is not None:
            edits.append(_named(plan.rename, target, table.name, target))
        if isinstance(statement, AlterTable):
            text = plan.text(self._source.text, (*statement.edits, *edits))
            query = f"ALTER TABLE {_qualified(schema, before.name, target)} {text}"
        else:
            query = self._text(statement, *edits)
        self._emit_table(plan.type, target, table, query)


def _qualified(schema: SchemaInfo, name: str, current: SchemaInfo) -> str:
    """Return a table's name as it reads while `current` is the database."""
    if schema.name == current.name:
        return quote_name(name)
    return f"{quote_name(schema.name)}.{quote_name(name)}"


def _named(ref: TableRef, schema: SchemaInfo, name: str, current: SchemaInfo) -> Edit:
    return Edit(ref.start, ref.end, _qualified(schema, name, current))


def _charset_clause(schema: SchemaInfo) -> str:
    return f"{quote_name(schema.name)} CHARACTER SET {schema.charset} COLLATE {schema.collate}"
