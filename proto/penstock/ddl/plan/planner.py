"""Plans DDL text as jobs for the history: the new schema, and the statement for downstream.

A job's `query` is one statement, to be run with `schema_name` as current database (no database for
CREATE, DROP and ALTER DATABASE). It is the text as written, with these changes:

    names of tables     as the catalog spells them, with their schema if it is not the current one
    IF [NOT] EXISTS     removed, since it was decided here; CREATE DATABASE IF NOT EXISTS keeps it
    character sets      explicit wherever the servers' own defaults would decide
    OR REPLACE TABLE    becomes two jobs, since MySQL does not have it: DROP TABLE and CREATE TABLE
    several tables      DROP TABLE a, b and RENAME TABLE stay one job: they are one step
    operations          operations without effect are omitted
    constraints         with the names that MySQL would choose, where they have none
    clauses             that MySQL and MariaDB spell differently and that change no row: omitted

ALTER TABLE is one job, whatever it holds, and of type MULTI_SCHEMA_CHANGE if it holds several
operations. Triggers, routines, accounts and rows made by DDL (CREATE TABLE … SELECT) raise
NeedsOperator.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from penstock.ddl.catalog import Catalog
from penstock.ddl.charsets import resolve
from penstock.ddl.parse.parser import parse
from penstock.ddl.parse.views import check_view
from penstock.ddl.plan.alter_jobs import AlterPlan, emit_altered, other_table, plan_alter
from penstock.ddl.plan.jobs import Jobs, check_file_name, check_new_names, named, qualified, refused
from penstock.ddl.rewrite.constraint_names import (
    constraint_edits,
    copied,
    renamed,
    within,
    without_columns,
)
from penstock.ddl.rewrite.explicit import key_edits, option_edits, own_column_edits, period_edits
from penstock.ddl.syntax import statements as ast
from penstock.ddl.syntax.lexer import quote_name
from penstock.ddl.tables.table_builder import create_table, emptied
from penstock.schema.ddl_context import DdlContext
from penstock.schema.model import DdlJob, DdlType, SchemaInfo, TableInfo


def plan_ddl(
    sql: str,
    default_schema: str | None,
    catalog: Catalog,
    next_id: Callable[[], int],
    context: DdlContext | None = None,
) -> list[DdlJob]:
    """Return the jobs of `sql`; the list is empty if IF [NOT] EXISTS leaves nothing to do.

    `catalog` is not changed; the caller fills in `finished_ts`. `context` is the session that the
    statement ran in elsewhere, None for one of our own. A statement that cannot be followed, or
    that MySQL would refuse, raises NeedsOperator; nothing is planned then.
    """
    source, statements = parse(sql)
    check_new_names(source, catalog)
    plan = _Plan(source, default_schema, catalog.copy(), next_id, context)
    for statement in statements:
        plan.add(statement)
    return plan.jobs


class _Plan(Jobs):
    """Plans one statement after the other."""

    def add(self, statement: ast.Statement) -> None:
        _STEPS[type(statement)](self, statement)

    # Schemas.

    def _create_schema(self, statement: ast.CreateSchema) -> None:
        found = self.catalog.schema(statement.name)
        if found is not None and statement.or_replace:
            self.emit(DdlType.DROP_SCHEMA, found, f"DROP DATABASE {quote_name(found.name)}")
        if self.catalog.schema(statement.name) is not None:
            if statement.if_not_exists:
                return
            raise refused(f"database {statement.name!r} exists", "choose another name")
        check_file_name(statement.name)
        charset, collate = resolve(statement.charset, ("utf8mb4", "utf8mb4_bin"))
        schema = SchemaInfo(
            id=self.next_id(), name=statement.name, charset=charset, collate=collate
        )
        absent = "IF NOT EXISTS " if statement.if_not_exists else ""
        query = f"CREATE DATABASE {absent}{_charset_clause(schema)}"
        self.emit(DdlType.CREATE_SCHEMA, schema, query, schema=schema)

    def _alter_schema(self, statement: ast.AlterSchema) -> None:
        before = self.schema(statement.name)
        charset, collate = resolve(statement.charset, (before.charset, before.collate))
        schema = replace(before, charset=charset, collate=collate)
        query = f"ALTER DATABASE {_charset_clause(schema)}"
        self.emit(DdlType.MODIFY_SCHEMA_CHARSET, schema, query, schema=schema)

    def _drop_schema(self, statement: ast.DropSchema) -> None:
        if statement.if_exists and self.catalog.schema(statement.name) is None:
            return
        schema = self.schema(statement.name)
        self.emit(DdlType.DROP_SCHEMA, schema, f"DROP DATABASE {quote_name(schema.name)}")

    # Tables come and go.

    def _create_table(self, statement: ast.CreateTable) -> None:
        schema = self.schema(statement.ref.schema)
        if statement.if_not_exists and self.catalog.table(schema.name, statement.ref.name):
            return
        if statement.or_replace:
            self._make_room(schema, statement.ref.name)
        self.check_free(schema, statement.ref.name)
        table, unnamed = create_table(statement, self.next_id(), schema, self.context)
        edits = [named(statement.ref, schema, table.name, schema)]
        edits += option_edits(statement.options, table)
        edits += period_edits(statement.keys, table)
        for column in statement.columns:
            edits += own_column_edits(column, table)
        edits += key_edits(unnamed, "")
        tokens = within(self.source.tokens, statement.start, statement.end)
        names, constraints = constraint_edits(tokens, table.name, ())
        table = replace(table, constraints=constraints)
        text = self.text(statement, *edits, *names)
        self.emit_table(DdlType.CREATE_TABLE, schema, table, text)

    def _create_like(self, statement: ast.CreateLike) -> None:
        schema = self.schema(statement.ref.schema)
        if statement.if_not_exists and self.catalog.table(schema.name, statement.ref.name):
            return
        like_schema, like = self.base_table(statement.like)
        if statement.or_replace and like != self.catalog.table(schema.name, statement.ref.name):
            self._make_room(schema, statement.ref.name)
        self.check_free(schema, statement.ref.name)
        name = statement.ref.name
        names = copied(like.constraints, like.name, name)
        table = replace(emptied(like), id=self.next_id(), name=name, constraints=names)
        other = qualified(like_schema, like.name, schema)
        query = f"CREATE TABLE {quote_name(name)} LIKE {other}"
        self.emit_table(DdlType.CREATE_TABLE, schema, table, query)

    def _create_view(self, statement: ast.CreateView) -> None:
        schema = self.schema(statement.ref.schema)
        found = self.catalog.table(schema.name, statement.ref.name)
        if found is not None and statement.if_not_exists:
            return
        if statement.must_exist:
            _, found = self.table(statement.ref)
        if found is not None and not (found.is_view and statement.or_replace):
            self.check_free(schema, statement.ref.name)
        name = found.name if found is not None else statement.ref.name
        if self.default_schema != schema.name:
            check_view(self.source.slice(statement.select_start, statement.end), schema.name)
        view = replace(self._empty_table(schema, name), is_view=True)
        query = self.text(statement, named(statement.ref, schema, name, schema))
        self.emit_table(DdlType.CREATE_VIEW, schema, view, query)

    def _drop_tables(self, statement: ast.DropTables) -> None:
        kind = statement.kind
        dropped: dict[int, tuple[str, TableInfo]] = {}
        for ref in statement.refs:
            schema = self.catalog.schema(self.schema_name(ref.schema))
            found = schema and self.catalog.table(schema.name, ref.name)
            # MariaDB's DROP TABLE also drops sequences.
            kinds = (kind, "SEQUENCE") if kind == "TABLE" else (kind,)
            if not schema or not found or found.kind not in kinds or found.id in dropped:
                if statement.if_exists:
                    continue
                raise refused(f"{kind.lower()} {ref.name!r} does not exist", "check the name")
            dropped[found.id] = schema.name, found
        if dropped:
            self.emit_drop(tuple(dropped.values()))

    def _make_room(self, schema: SchemaInfo, name: str) -> None:
        found = self.catalog.table(schema.name, name)
        if found is not None and not found.is_view:
            self.emit_drop(((schema.name, found),))

    def _truncate(self, statement: ast.TruncateTable) -> None:
        schema, before = self.base_table(statement.ref)
        table = replace(emptied(before), id=self.next_id())
        self.emit(
            DdlType.TRUNCATE_TABLE,
            schema,
            f"TRUNCATE TABLE {quote_name(table.name)}",
            table_id=before.id,
            table_name=table.name,
            table=table,
        )

    def _empty_table(self, schema: SchemaInfo, name: str) -> TableInfo:
        return TableInfo(
            id=self.next_id(), name=name, charset=schema.charset, collate=schema.collate
        )

    def _create_sequence(self, statement: ast.CreateSequence) -> None:
        schema = self.schema(statement.ref.schema)
        found = self.catalog.table(schema.name, statement.ref.name)
        if found is not None and statement.if_not_exists:
            return
        if found is not None and found.kind == "TABLE" and statement.or_replace:
            self.emit_drop(((schema.name, found),))
            found = None
        if found is not None and not (found.is_sequence and statement.or_replace):
            self.check_free(schema, statement.ref.name)
        name = found.name if found is not None else statement.ref.name
        sequence = replace(self._empty_table(schema, name), is_sequence=True)
        query = self.text(statement, named(statement.ref, schema, name, schema))
        self.emit_table(DdlType.CREATE_SEQUENCE, schema, sequence, query)

    def _alter_sequence(self, statement: ast.AlterSequence) -> None:
        owner = self.catalog.schema(self.schema_name(statement.ref.schema))
        found = None if owner is None else self.catalog.table(owner.name, statement.ref.name)
        if owner is not None and found is not None and found.is_sequence:
            query = self.text(statement, named(statement.ref, owner, found.name, owner))
            self.emit_table(DdlType.ALTER_SEQUENCE, owner, found, query)
        elif not statement.if_exists:
            raise refused(f"sequence {statement.ref.name!r} does not exist", "check the name")

    # Tables change.

    def _rename(self, statement: ast.RenameTables) -> None:
        """Plan renames in sequence, so that names may swap, and combine them in a single job."""
        start, planned = self.catalog, self.jobs
        self.catalog, self.jobs = start.copy(), []
        steps = [
            self._rename_one(old, new)
            for old, new in statement.pairs
            if not statement.if_exists or self.find(old) is not None
        ]
        moved = {job.table_id: (job.schema_name, job.table) for job in self.jobs if job.table}
        self.catalog, self.jobs = start, planned
        if not steps:
            return
        schemas = {schema.name for old, _, new, _ in steps for schema in (old, new)}
        current = steps[0][2] if len(schemas) == 1 else None
        clauses = [
            f"{qualified(old, before, current)} TO {qualified(new, after, current)}"
            for old, before, new, after in steps
        ]
        query = f"RENAME TABLE {', '.join(clauses)}"
        tables = tuple((schema, table) for schema, table in moved.values() if table)
        owner = self.schema(tables[0][0])
        if len(tables) == 1:
            self.emit_table(DdlType.RENAME_TABLE, owner, tables[0][1], query)
        else:
            self.emit(DdlType.RENAME_TABLES, owner, query, tables=tables)

    def _replace_index(self, statement: ast.IndexStatement) -> None:
        operation = statement.operation
        if not statement.or_replace or not isinstance(operation, ast.KeyDef):
            return
        schema, before = self.base_table(statement.ref)
        name = operation.name or ""
        if not any(index.name.lower() == name.lower() for index in before.indexes):
            return
        plan = plan_alter(before, schema, (ast.Part(ast.DropKey(name), 0, 0),))
        assert plan is not None, name
        query = f"DROP INDEX {quote_name(name)} ON {quote_name(before.name)}"
        emit_altered(self, plan, schema, plan.table, query)

    def _alter_table(self, statement: ast.AlterTable) -> None:
        self._alter(statement, statement.ref, statement.parts)

    def _index(self, statement: ast.IndexStatement) -> None:
        self._replace_index(statement)
        part = ast.Part(statement.operation, statement.start, statement.end)
        self._alter(statement, statement.ref, (part,))

    def _rename_one(
        self, old: ast.TableRef, new: ast.TableRef
    ) -> tuple[SchemaInfo, str, SchemaInfo, str]:
        schema, before = self.table(old)
        target = self.schema(new.schema)
        if before.is_view and target.name != schema.name:
            raise refused("a view cannot change its database", "create it again there")
        self.check_free(target, new.name, unless_id=before.id * (new.name != before.name))
        self.emit_table(DdlType.RENAME_TABLE, target, _renamed(before, new.name), "")
        return schema, before.name, target, new.name

    def _alter(
        self, statement: ast.Statement, ref: ast.TableRef, parts: tuple[ast.Part, ...]
    ) -> None:
        if isinstance(statement, ast.AlterTable) and statement.if_exists and self.find(ref) is None:
            return
        found = self.find(ref)
        renamed = parts[0].operation if len(parts) == 1 else None
        if found is not None and found.is_sequence and isinstance(renamed, ast.RenameTo):
            return self._rename(ast.RenameTables(pairs=((ref, renamed.ref),)))
        schema, before = self.base_table(ref)
        plan: AlterPlan | None = plan_alter(before, schema, parts, self.context)
        if plan is None:
            return
        target, table = schema, plan.table
        if plan.rename is not None:
            target = self.schema(plan.rename.schema)
            self.check_free(target, plan.rename.name, unless_id=before.id)
        edits = [*plan.edits, named(ref, schema, before.name, target)]
        known = without_columns(table.constraints, before.name, plan.parts)
        if known is not None:
            tokens = within(self.source.tokens, statement.start, statement.end)
            new_name = plan.rename.name if plan.rename is not None else ""
            names, known = constraint_edits(tokens, before.name, known, new_name)
            edits += names
        table = replace(table, constraints=known)
        if plan.rename is not None:
            table = _renamed(table, plan.rename.name)
        if plan.other is not None:
            edits.append(other_table(self, plan.type, plan.other, before, schema))
        if plan.rename is not None:
            edits.append(named(plan.rename, target, table.name, target))
        if isinstance(statement, ast.AlterTable):
            text = plan.text(self.source.text, (*statement.edits, *edits))
            query = f"ALTER TABLE {qualified(schema, before.name, target)} {text}"
        else:
            query = self.text(statement, *edits)
        emit_altered(self, plan, target, table, query)


def _renamed(table: TableInfo, name: str) -> TableInfo:
    constraints = renamed(table.constraints, table.name, name)
    return replace(table.renamed(name), constraints=constraints)


def _charset_clause(schema: SchemaInfo) -> str:
    return f"{quote_name(schema.name)} CHARACTER SET {schema.charset} COLLATE {schema.collate}"


_STEPS: dict[type[ast.Statement], Callable[[_Plan, Any], None]] = {
    ast.CreateSchema: _Plan._create_schema,
    ast.AlterSchema: _Plan._alter_schema,
    ast.DropSchema: _Plan._drop_schema,
    ast.CreateTable: _Plan._create_table,
    ast.CreateLike: _Plan._create_like,
    ast.CreateView: _Plan._create_view,
    ast.CreateSequence: _Plan._create_sequence,
    ast.AlterSequence: _Plan._alter_sequence,
    ast.DropTables: _Plan._drop_tables,
    ast.TruncateTable: _Plan._truncate,
    ast.RenameTables: _Plan._rename,
    ast.AlterTable: _Plan._alter_table,
    ast.IndexStatement: _Plan._index,
}
