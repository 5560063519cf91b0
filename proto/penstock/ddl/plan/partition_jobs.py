"""The part of planning that knows statements in which a partition and a table meet."""

from __future__ import annotations

from dataclasses import replace

from penstock.ddl.plan.alter_jobs import AlterPlan, check_alike
from penstock.ddl.plan.jobs import Jobs, named
from penstock.ddl.syntax.elements import Edit, TableRef
from penstock.ddl.tables.create import emptied
from penstock.ddl.tables.partitioning import without
from penstock.schema.model import DdlType, SchemaInfo, TableInfo


def other_table(
    jobs: Jobs, kind: DdlType, ref: TableRef, table: TableInfo, schema: SchemaInfo
) -> Edit:
    """Check the table that a partition of `table` exchanges rows with, becomes or is made of.

    Returns how its name reads while `schema` is the database.
    """
    if kind == DdlType.CONVERT_PARTITION:
        place = jobs.schema(ref.schema)
        jobs.check_free(place, ref.name)
        return named(ref, place, ref.name, schema)
    place, other = jobs.base_table(ref)
    check_alike(table, other)
    return named(ref, place, other.name, schema)


def emit_altered(
    jobs: Jobs, plan: AlterPlan, schema: SchemaInfo, table: TableInfo, query: str
) -> None:
    """Add the job of an ALTER TABLE that leaves `table`, and maybe another one more or less."""
    if plan.other is not None and plan.type == DdlType.CONVERT_PARTITION:
        made = replace(emptied(without(table)), id=jobs.next_id(), name=plan.other.name)
        pairs = ((schema.name, table), (jobs.schema(plan.other.schema).name, made))
        jobs.emit(plan.type, schema, query, table_name=table.name, tables=pairs)
    elif plan.other is not None and plan.type == DdlType.CONVERT_TABLE:
        _, gone = jobs.base_table(plan.other)
        jobs.emit(plan.type, schema, query, table_id=gone.id, table_name=table.name, table=table)
    else:
        jobs.emit_table(plan.type, schema, table, query)
