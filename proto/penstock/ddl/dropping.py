"""Splits and joins a DROP of several tables, which is one job because its statement is one step.

A filter, a route or an override may concern only some of its tables. Each table is then judged
separately, and the remaining tables are again dropped by one statement.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from penstock.ddl.catalog import SchemaChange
from penstock.ddl.syntax.lexer import quote_name, quote_path
from penstock.schema.model import DdlJob, DdlType, TableInfo

DROPS = {"TABLE": DdlType.DROP_TABLE, "VIEW": DdlType.DROP_VIEW, "SEQUENCE": DdlType.DROP_SEQUENCE}
"""The types of jobs that drop tables, by the kind that they name."""

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
