"""DDL progress: finds out whether a DDL was done, after a crash between it and its checkpoint.

A schema change has things that exist only before it and things that exist only after it:
databases, tables, columns, indexes. Looking for just those in the downstream answers the question
without touching anything an operator may have added. When a change has none (a new comment, a
column made wider, a TRUNCATE), running it again does no harm; but for the two that undo
themselves, a swap of table names or of column names, which only a human can decide.
"""

from __future__ import annotations

import re
from enum import Enum
from typing import TYPE_CHECKING, Any

from pymysql.constants import ER

from penstock.codes import Code
from penstock.ddl import adopted
from penstock.errors import NeedsOperator
from penstock.schema.model import PUBLIC, DdlType, TableInfo

if TYPE_CHECKING:
    from penstock.ddl import SchemaChange


Thing = tuple[str, ...]  # ("schema", s), ("table", s, t), ("column", s, t, c), ("index", s, t, i)

_MARIADB_UNKNOWN_VIEW, _MARIADB_UNKNOWN_SEQUENCE = 4092, 4091
_SAME_NAME_CONSTRAINT = 1826
# Not partitioned, bounds do not rise, no such partition, the last one, a name twice.
_PARTITION_CODES = (1505, 1493, 1507, 1508, 1517)
_TELLS_NO_TWICE = re.compile(
    r"\b(COALESCE\s+PARTITION|EXCHANGE\s+PARTITION|ADD\s+PARTITION\s+PARTITIONS)\b", re.IGNORECASE
)
ALREADY_CODES = {
    ER.DB_CREATE_EXISTS, ER.DB_DROP_EXISTS, ER.BAD_DB_ERROR, ER.TABLE_EXISTS_ERROR,
    ER.BAD_TABLE_ERROR, ER.BAD_FIELD_ERROR, ER.DUP_FIELDNAME, ER.DUP_KEYNAME,
    ER.MULTIPLE_PRI_KEY, ER.CANT_DROP_FIELD_OR_KEY, ER.NO_SUCH_TABLE, ER.KEY_DOES_NOT_EXITS,
    _MARIADB_UNKNOWN_VIEW, _MARIADB_UNKNOWN_SEQUENCE,
    *_PARTITION_CODES, _SAME_NAME_CONSTRAINT,
}  # fmt: skip
"""What MySQL answers to a DDL that it has already done."""


_BY_PARTITION = (
    DdlType.ADD_PARTITION,
    DdlType.REORGANIZE_PARTITION,
    DdlType.EXCHANGE_PARTITION,
)


class DdlProgress(Enum):
    """How far a DDL is in the downstream."""

    DONE = "done"
    NOT_DONE = "not done"
    UNKNOWN = "it looks the same before and after"
    MIXED = "neither as before nor as after"


def progress(connection: Any, change: SchemaChange) -> DdlProgress:
    """Look at the downstream and say whether `change` happened there."""
    before, after = things(change)
    changed = before ^ after
    if not changed:
        return DdlProgress.UNKNOWN
    there = {thing for thing in changed if _exists(connection, thing)}
    if there == changed & after:
        return DdlProgress.DONE
    return DdlProgress.NOT_DONE if there == changed & before else DdlProgress.MIXED


def ensure_repeatable(change: SchemaChange) -> None:
    """Raise `NeedsOperator` for a change that a second run would undo and no one can see."""
    old = {(schema, t.name.lower()) for schema, t, _, _ in change.renamed}
    new = {(schema, t.name.lower()) for _, _, schema, t in change.renamed}
    swapped = bool(old & new)
    for _, before, after in change.altered:
        ids = {c.name.lower(): c.id for c in adopted(change.job, before, after).columns}
        kept = {c.id for c in after.columns}
        for c in after.columns:
            was = ids.get(c.name.lower(), c.id)
            swapped = swapped or (was != c.id and was in kept)
    if change.job.type in _BY_PARTITION and _TELLS_NO_TWICE.search(change.job.query):
        swapped = True
    if swapped:
        raise NeedsOperator(
            f"it is unknown whether the downstream already did: {change.job.query}",
            hint="look at the downstream, do it by hand if it is not done, and then track it",
            code=Code.SINK_DDL_DOUBT,
        )


def things(change: SchemaChange) -> tuple[set[Thing], set[Thing]]:
    """Return what exists before and after, as far as the change touches it."""
    before: set[Thing] = {("schema", name.lower()) for name in change.schemas_dropped}
    after: set[Thing] = {("schema", name.lower()) for name in change.schemas_created}
    for schema, table in change.dropped:
        if schema not in change.schemas_dropped:
            before |= _of_table(schema, table)
    for schema, table in change.created:
        after |= _of_table(schema, table)
    for schema, old, new in change.altered:
        before |= _of_table(schema, old)
        after |= _of_table(schema, new)
    for old_schema, old, new_schema, new in change.renamed:
        before |= _of_table(old_schema, old)
        after |= _of_table(new_schema, new)
    return before, after


def _of_table(schema: str, table: TableInfo) -> set[Thing]:
    place = (schema.lower(), table.name.lower())
    found: set[Thing] = {("table", *place)}
    if table.kind != "TABLE":
        return found
    shown = [c for c in table.columns if c.state == PUBLIC and not c.hidden]
    found |= {("column", *place, c.name.lower()) for c in shown}
    found |= {
        ("index", *place, i.name.lower())
        for i in table.indexes
        if i.state == PUBLIC and not i.primary and i.name not in table.expression_indexes
    }
    if table.primary_key is not None:
        found.add(("index", *place, "primary"))
    return found


_QUERIES = {
    "schema": "SELECT COUNT(*) FROM information_schema.schemata WHERE LOWER(schema_name) = %s",
    "table": "SELECT COUNT(*) FROM information_schema.tables"
    " WHERE LOWER(table_schema) = %s AND LOWER(table_name) = %s",
    "column": "SELECT COUNT(*) FROM information_schema.columns"
    " WHERE LOWER(table_schema) = %s AND LOWER(table_name) = %s AND LOWER(column_name) = %s",
    "index": "SELECT COUNT(*) FROM information_schema.statistics"
    " WHERE LOWER(table_schema) = %s AND LOWER(table_name) = %s AND LOWER(index_name) = %s",
}


def _exists(connection: Any, thing: Thing) -> bool:
    kind, *names = thing
    with connection.cursor() as cursor:
        cursor.execute(_QUERIES[kind], names)
        (count,) = cursor.fetchone()
    return bool(count)
