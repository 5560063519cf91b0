"""CREATE and ALTER SEQUENCE into jobs; DROP SEQUENCE goes with the tables."""

from __future__ import annotations

from penstock.ddl.plan.jobs import Jobs, named
from penstock.ddl.syntax.lexer import quote_name
from penstock.ddl.syntax.statements import AlterSequence, CreateSequence
from penstock.errors import NeedsOperator
from penstock.schema.model import DdlType, TableInfo


def plan_sequence(jobs: Jobs, statement: CreateSequence | AlterSequence) -> None:
    """Plan one statement; what MariaDB would refuse raises NeedsOperator."""
    if isinstance(statement, CreateSequence):
        _create(jobs, statement)
    else:
        _alter(jobs, statement)


def _create(jobs: Jobs, statement: CreateSequence) -> None:
    schema = jobs.schema(statement.ref.schema)
    found = jobs.catalog.table(schema.name, statement.ref.name)
    if found is not None and statement.if_not_exists:
        return
    if found is not None and found.kind == "TABLE" and statement.or_replace:
        drop = f"DROP TABLE {quote_name(found.name)}"
        fields = {"table_id": found.id, "table_name": found.name}
        jobs.emit(DdlType.DROP_TABLE, schema, drop, **fields)
        found = None
    if found is not None and not (found.is_sequence and statement.or_replace):
        jobs.check_free(schema, statement.ref.name)
    name = found.name if found is not None else statement.ref.name
    sequence = TableInfo(
        id=jobs.next_id(),
        name=name,
        charset=schema.charset,
        collate=schema.collate,
        is_sequence=True,
    )
    query = jobs.text(statement, named(statement.ref, schema, name, schema))
    jobs.emit_table(DdlType.CREATE_SEQUENCE, schema, sequence, query)


def _alter(jobs: Jobs, statement: AlterSequence) -> None:
    owner = jobs.catalog.schema(jobs.schema_name(statement.ref.schema))
    found = None if owner is None else jobs.catalog.table(owner.name, statement.ref.name)
    if owner is None or found is None or not found.is_sequence:
        if statement.if_exists:
            return
        raise NeedsOperator(
            f"sequence {statement.ref.name!r} does not exist", hint="check the name"
        )
    query = jobs.text(statement, named(statement.ref, owner, found.name, owner))
    jobs.emit_table(DdlType.ALTER_SEQUENCE, owner, found, query)
