"""Spelling: rewrites a DDL for the server that runs it; rejects features that the server lacks."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from drainer.sinks.mysql.session import is_mariadb, many, version_of
from penstock.codes import Code
from penstock.ddl.parse.parser import parse
from penstock.ddl.rewrite.constraint_names import as_server_names
from penstock.ddl.rewrite.foreign import spelled_for
from penstock.ddl.syntax.statements import AlterTable, ChangeColumn, Flavor
from penstock.ddl.tables.column_types import TEXT_TYPES
from penstock.errors import NeedsOperator
from penstock.schema.ddl_context import DdlContext

if TYPE_CHECKING:
    from drainer.sinks.mysql.session import Connection
    from penstock.ddl import SchemaChange
    from penstock.ddl.syntax.statements import TableRef
    from penstock.schema.model import ColumnInfo

log = logging.getLogger(__name__)


def spelled(connection: Connection, change: SchemaChange, *, is_tidb: bool) -> str:
    """Return a job's statement as the server can parse it; log the parts it omits."""
    query = change.job.query
    own = Flavor.MARIADB if is_mariadb(version_of(connection)) else Flavor.MYSQL
    flavor = Flavor.TIDB if is_tidb else own
    before = [old for _, old, _ in change.altered] + [old for _, old, _, _ in change.renamed]
    indexes = [name for table in before for name in table.expression_indexes]
    sequences = [(schema, t.name) for schema, t, _, _ in change.renamed if t.is_sequence]
    try:
        found = spelled_for(flavor, query, indexes, sequences)
    except NeedsOperator:
        return query  # Not of our grammar: a TiDB's, or an operator's own.
    if flavor is not Flavor.MARIADB:
        _check_conversions(change)
    if found.lacking:
        lacking = ", ".join(found.lacking)
        log.warning("the downstream, a %s, does not have %s: %s", flavor.value, lacking, query)
    return _with_own_names(connection, change, found.sql) if found.sql else ""


def _with_own_names(connection: Connection, change: SchemaChange, sql: str) -> str:
    """Return a statement with the names that constraints have on this server."""
    context = change.job.context or DdlContext()
    version = dict(context.variables).get("version", "")

    def there(ref: TableRef) -> dict[str, str]:
        schema, table = connection.escape(ref.schema or change.job.schema_name), ref.name
        found = many(
            connection,
            "SELECT constraint_name, constraint_type FROM"  # noqa: S608
            " information_schema.table_constraints"
            f" WHERE LOWER(table_schema) = LOWER({schema})"
            f" AND LOWER(table_name) = LOWER({connection.escape(table)})",
        )
        return {str(name): str(type_) for name, type_ in found}

    is_moved = is_mariadb(version) and not is_mariadb(version_of(connection))
    return as_server_names(sql, there, numbers_by_table=is_moved)


def _check_conversions(change: SchemaChange) -> None:
    """Reject conversions from or to a type that only MariaDB has, except for texts.

    MySQL stores these values as texts, so it would cut or keep values that MariaDB converts.
    """
    for schema, old, new in change.altered:
        before = {column.id: column for column in old.columns}
        for column in new.columns:
            was = before.get(column.id)
            if was is None or was.native == column.native:
                continue
            is_kept = was.native and not column.native and _is_text(column)
            if is_kept or not _converts(change.job.query, was, column):
                continue
            raise NeedsOperator(
                f"column {column.name!r} of {schema}.{new.name} turns from {was.sql_type} into"
                f" {column.sql_type}, and the downstream does not have"
                f" {was.native or column.native}",
                hint="make the column so downstream by hand, with upstream's values; then track"
                " this DDL",
                code=Code.SINK_DDL_MOMENT,
            )


def _is_text(column: ColumnInfo) -> bool:
    return column.tp in TEXT_TYPES and not column.is_binary and not column.elems


def _converts(query: str, was: ColumnInfo, column: ColumnInfo) -> bool:
    _, statements = parse(query)
    parts = [p.operation for s in statements if isinstance(s, AlterTable) for p in s.parts]
    return any(
        isinstance(each, ChangeColumn)
        and each.old.lower() == was.name.lower()
        and column.native in ("", each.column.type.name)
        for each in parts
    )
