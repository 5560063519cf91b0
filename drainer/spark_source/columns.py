"""Columns: a table's columns in Spark, and whether rows of another version of the table fit them.

A query has one schema from its start to its end. Rows of a version of the table fit it if each
column of that version is in the schema, with the same type or a wider one. Columns that the version
lacks are NULL.

    tinyint … bigint        a larger integer, or a decimal with enough digits
    float                   double
    decimal(p,s)            a decimal with as many digits before and after the point

A DDL is *compatible* if rows before it fit the columns after it. A DDL that removes rows without a
change of each row (TRUNCATE, DROP, a partition) is not: a reader would keep them.
"""

from __future__ import annotations

from typing import Final

import pyarrow as pa

from drainer.task.change_batches import COMMIT_TS, KIND, SEQ, START_TS, line_schema
from penstock.ddl import SchemaChange
from penstock.schema.model import DdlType, TableInfo

GENERIC: Final = pa.schema(
    [
        ("schema", pa.string()),
        ("table", pa.string()),
        ("before", pa.string()),
        ("after", pa.string()),
        (KIND, pa.string()),
        (COMMIT_TS, pa.int64()),
        (START_TS, pa.int64()),
        (SEQ, pa.int64()),
    ]
)
"""The columns without a table: rows as JSON."""

_DIGITS: Final = {pa.int8(): 3, pa.int16(): 5, pa.int32(): 10, pa.int64(): 19}
_MOVE_ROWS: Final = frozenset(
    {
        DdlType.DROP_PARTITION,
        DdlType.TRUNCATE_PARTITION,
        DdlType.EXCHANGE_PARTITION,
        DdlType.CONVERT_PARTITION,
    }
)

Place = tuple[str, str]


def misfit(table: TableInfo, wanted: pa.Schema) -> str:
    """Return the first column of a table that `wanted` cannot hold; empty if it holds all."""
    return misfit_of(line_schema(table), wanted)


def misfit_of(columns: pa.Schema, wanted: pa.Schema) -> str:
    for column in columns:
        at = wanted.get_field_index(column.name)
        if at < 0 or not _widens(column.type, wanted.field(at).type):
            return str(column.name)
    return ""


def _widens(narrow: pa.DataType, wide: pa.DataType) -> bool:
    if narrow == wide:
        return True
    if narrow in _DIGITS:
        if pa.types.is_decimal(wide):
            return bool(wide.precision - wide.scale >= _DIGITS[narrow])
        return wide in _DIGITS and _DIGITS[narrow] < _DIGITS[wide]
    if pa.types.is_decimal(narrow) and pa.types.is_decimal(wide):
        whole = narrow.precision - narrow.scale
        return bool(wide.scale >= narrow.scale and wide.precision - wide.scale >= whole)
    return bool(narrow == pa.float32() and wide == pa.float64())


def fitted(rows: pa.RecordBatch, wanted: pa.Schema) -> pa.RecordBatch:
    """Return rows with the columns of `wanted`, which holds them (`misfit`)."""
    if rows.schema.equals(wanted):
        return rows
    arrays = []
    for column in wanted:
        at = rows.schema.get_field_index(column.name)
        known = pa.nulls(rows.num_rows, column.type) if at < 0 else rows.column(at)
        arrays.append(known.cast(column.type))
    return pa.RecordBatch.from_arrays(arrays, schema=wanted)


def concerns(change: SchemaChange, place: Place) -> bool:
    """Return whether a DDL changes the table of that name, or which table has the name."""
    named = [(schema, table) for schema, table in (*change.dropped, *change.created)]
    named += [(schema, after) for schema, _, after in change.altered]
    for old_schema, before, schema, after in change.renamed:
        named += [(old_schema, before), (schema, after)]
    return any(is_at(place, *each) for each in named)


def is_compatible(change: SchemaChange, place: Place) -> bool:
    """Return whether a reader of the table may go on after a DDL that concerns it."""
    gone = [*change.dropped, *((schema, table) for schema, table, _, _ in change.renamed)]
    came = [(schema, table) for _, _, schema, table in change.renamed]
    if any(is_at(place, *each) for each in (*gone, *came)) or change.job.type in _MOVE_ROWS:
        return False
    return not any(
        misfit(before, line_schema(after))
        for schema, before, after in change.altered
        if is_at(place, schema, after)
    )


def is_at(place: Place, schema: str, table: TableInfo) -> bool:
    return (schema.lower(), table.name.lower()) == (place[0].lower(), place[1].lower())
