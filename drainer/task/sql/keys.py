"""Keys: how the rows of a table are distinguished, and which of their values can collide."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from drainer.task.sql.literals import padded_length
from penstock.codes import Code
from penstock.errors import Malformed
from penstock.schema.model import PUBLIC, ColumnInfo, IndexInfo, MysqlType, TableInfo

EXACT = {
    MysqlType.TINY, MysqlType.SHORT, MysqlType.INT24, MysqlType.LONG, MysqlType.LONGLONG,
}  # fmt: skip

_FLOATS = {MysqlType.FLOAT, MysqlType.DOUBLE}


def apply_key(table: TableInfo) -> IndexInfo | None:
    """Return the index by which rows are distinguished, None if changes must keep their order.

    It is the table's row key, unless that depends on a generated column: a virtual column is not in
    the row bytes, and SQLite's table has neither kind.
    """
    key = table.row_key
    if key is None or any(table.columns[part.offset].is_generated for part in key.columns):
        return None
    return key


def is_written(column: ColumnInfo) -> bool:
    return column.state == PUBLIC and not column.is_generated


def unique_columns(table: TableInfo) -> list[int]:
    """Return the columns, beyond the key's, whose change can free or take a unique value."""
    key = apply_key(table)
    assert key is not None
    known = {part.offset for part in key.columns}
    wanted = {part.offset for i in table.indexes if i.unique for part in i.columns}
    return sorted(wanted - known)


def can_meet_others(table: TableInfo) -> bool:
    """Return whether an upsert may conflict with a row other than the row with its very key.

    Such a row has the same value in another unique index, or a key that the collation considers
    equal.
    """
    key = apply_key(table)
    assert key is not None
    columns = [table.columns[part.offset] for part in key.columns]
    return bool(unique_columns(table)) or not all(c.tp in EXACT for c in columns)


def is_in_row(table: TableInfo, positions: Sequence[int]) -> bool:
    """Return whether the row bytes hold the columns; generated columns may be missing."""
    return not any(table.columns[p].is_generated for p in positions)


def normal_key(column: ColumnInfo, values: pa.Array) -> pa.Array:
    """Return a key column with one form for each value; raise `Malformed` for NULL.

    CHAR(n) drops trailing spaces and BINARY(n) adds zero bytes, so writers may send either form.
    Servers take -0.0 for 0.0.
    """
    if values.null_count:
        raise Malformed(
            f"a row has NULL in the key column {column.name!r}",
            "the row was not written by a database; find its writer",
            Code.BINLOG_UNDECODABLE,
        )
    if length := padded_length(column):
        return pa.array([v.ljust(length, b"\0") for v in values.to_pylist()], pa.large_binary())
    if column.tp is MysqlType.STRING and not column.is_binary:
        return pc.utf8_rtrim(values, " ")
    return pc.add(values, 0.0) if column.tp in _FLOATS else values


def normal_value(column: ColumnInfo, value: Any) -> Any:
    """Return one key value in the form of `normal_key`; raise `Malformed` for NULL."""
    if value is None:
        normal_key(column, pa.nulls(1))
    if column.tp is not MysqlType.STRING:  # Nearly all keys.
        return value
    if length := padded_length(column):
        return value.ljust(length, b"\0")
    return value if column.is_binary else value.rstrip(" ")
