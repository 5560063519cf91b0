"""Renames the tables of a DDL as table routing demands, while the tracker follows the old names.

    rename_tables(sql, schema, mapping) -> sql         the text, every table with its database
    route_change(change, mapping) -> SchemaChange      the same change for a sink to run

`mapping(database, table)` returns the (database, table) downstream, and its arguments if they are
not routed. For a database alone the table is "". A DDL is processed as follows:

    change = tracker.follow(job)               always, whether or not it runs downstream
    sink.save_checkpoint(checkpoint)           if filters keep it from running
    sink.run_ddl(route_change(change, mapping), checkpoint, …)         otherwise

The text is read by our own grammar and only its names are replaced, so nothing else of it can
change; a statement that the grammar does not know raises NeedsOperator. Names within a view's
SELECT are replaced as well.
"""

from __future__ import annotations

from dataclasses import replace

from penstock.codes import Code
from penstock.ddl.catalog import SchemaChange
from penstock.ddl.parse.parser import rewritten
from penstock.ddl.parse.views import Mapping, view_edits
from penstock.ddl.syntax.lexer import quote_path
from penstock.ddl.syntax.statements import CreateView, Edit, Statement
from penstock.errors import NeedsOperator
from penstock.schema.model import TableInfo


def rename_tables(sql: str, schema: str | None, mapping: Mapping) -> str:
    """Return `sql` with every table and database as `mapping` names it, tables with databases.

    `schema` is the current database of `sql`, None when it needs none. Several statements stay
    several. An unreadable statement raises NeedsOperator.
    """
    return rewritten(sql, lambda each, source: _edits(each, source.text, schema, mapping))


def _edits(statement: Statement, text: str, schema: str | None, mapping: Mapping) -> list[Edit]:
    edits = []
    for ref in statement.refs:
        owner = ref.schema or schema
        if owner is None:
            problem = f"table {ref.name!r} has no database"
            raise NeedsOperator(problem, "write the table as schema.table", Code.DDL_OBJECT)
        names = mapping(owner, ref.name)[: 2 if ref.name else 1]
        edits.append(Edit(ref.start, ref.end, quote_path(*names)))
    if isinstance(statement, CreateView):
        select = text[statement.select_start : statement.end]
        # Tables in a view are not looked up in the view's own database.
        current = schema or statement.ref.schema or ""
        edits += view_edits(select, statement.select_start, current, mapping)
    return edits


def route_change(change: SchemaChange, mapping: Mapping) -> SchemaChange:
    def placed(schema: str, table: TableInfo) -> tuple[str, TableInfo]:
        new_schema, new_name = mapping(schema, table.name)
        return new_schema, table.renamed(new_name)

    altered = []
    for schema, before, after in change.altered:
        new_schema, new_after = placed(schema, after)
        altered.append((new_schema, before.renamed(new_after.name), new_after))
    job = change.job
    query = rename_tables(job.query, job.schema_name or None, mapping) if job.query else ""
    schema = mapping(job.schema_name, job.table_name)[0] if job.schema_name else ""
    return replace(
        change,
        job=replace(job, schema_name=schema, query=query),
        created=tuple(placed(*one) for one in change.created),
        dropped=tuple(placed(*one) for one in change.dropped),
        altered=tuple(altered),
        renamed=tuple((*placed(a, b), *placed(c, d)) for a, b, c, d in change.renamed),
        schemas_created=tuple(mapping(name, "")[0] for name in change.schemas_created),
        schemas_dropped=tuple(mapping(name, "")[0] for name in change.schemas_dropped),
    )
