"""CREATE TABLE into the table it makes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from penstock.ddl.charsets.charsets import resolve
from penstock.ddl.syntax.elements import ColumnDef, KeyDef
from penstock.ddl.syntax.operations import PartitionBy
from penstock.ddl.syntax.statements import CreateTable
from penstock.ddl.tables.draft import Draft
from penstock.ddl.tables.partitioning import partitioned
from penstock.ddl.tables.types import build_column
from penstock.schema.model import SchemaInfo, TableInfo


def create_table(
    statement: CreateTable, table_id: int, schema: SchemaInfo
) -> tuple[TableInfo, list[tuple[KeyDef, str]]]:
    """Return the table that CREATE TABLE makes in this schema, and keys implied by foreign ones."""
    charset, collate = resolve(statement.options.charset, (schema.charset, schema.collate))
    table = TableInfo(
        id=table_id,
        name=statement.ref.name,
        charset=charset,
        collate=collate,
        comment=statement.options.comment or "",
        period=statement.period,
    )
    draft = Draft(table=table)
    for column in statement.columns:
        built = build_column(column, draft.new_column_id(), (charset, collate))
        draft.columns.append(built)
    draft.add_keys(statement.keys)
    check_primary(draft, nullable_of(statement.columns))
    parts = PartitionBy(statement.partitions)
    return partitioned(draft.finish(), (parts,)), draft.implied


def emptied(table: TableInfo) -> TableInfo:
    """Return the table without what only older rows need."""
    return replace(table, columns=tuple(replace(c, origin_default=None) for c in table.columns))


def nullable_of(columns: Iterable[ColumnDef]) -> set[str]:
    """Return the columns that are written as NULL; what counts has no NULLs in a primary key."""
    return {c.name.lower() for c in columns if c.not_null is False and not c.auto_increment}


def check_primary(draft: Draft, nullable: set[str]) -> None:
    """Refuse columns written as NULL in the primary key."""
    for key in draft.keys:
        if key.primary and nullable & {p.name.lower() for p in key.parts}:
            raise draft.refuse("a primary key with NULLs", "leave NULL out of its columns")
