"""Rows: the rows of a table before and after their changes, and the keys that distinguish them.

A before image exists for updates and deletes, an after image for inserts and updates. Each kind of
change has its own byte layout. Many rows are decoded as Arrow columns: each kind separately, and
the pieces are put back in row order later. Fewer than a hundred rows are decoded one at a time,
which costs less.

`row_changes` gives encoders the values of rows. Both ways give the same values, or the same
`Malformed`. Columns hold stored values; those of DECIMAL, ENUM and SET are converted to the values
that `RowCodec` reads (`penstock.datum.rows.fields`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from decimal import Decimal
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from drainer.task.sql.literals import padded_length
from drainer.task.work_unit import BOUNDS
from penstock.codes import Code
from penstock.datum.columnar.decode import Side, decode_columns
from penstock.datum.rows.fields import text_of
from penstock.datum.rows.row_codec import RowCodec
from penstock.errors import Malformed
from penstock.schema.model import PUBLIC, ColumnInfo, IndexInfo, MysqlType, TableInfo
from penstock.wire.binlog import MutationType

EXACT = {
    MysqlType.TINY, MysqlType.SHORT, MysqlType.INT24, MysqlType.LONG, MysqlType.LONGLONG,
}  # fmt: skip

_FLOATS = {MysqlType.FLOAT, MysqlType.DOUBLE}


@lru_cache(maxsize=1024)
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


@lru_cache(maxsize=1024)
def unique_columns(table: TableInfo) -> Sequence[int]:
    """Return the columns, beyond the key's, whose change can free or take a unique value."""
    key = apply_key(table)
    assert key is not None
    known = {part.offset for part in key.columns}
    wanted = {part.offset for i in table.indexes if i.unique for part in i.columns}
    return sorted(wanted - known)


@lru_cache(maxsize=1024)
def can_meet_others(table: TableInfo) -> bool:
    """Return whether an upsert may conflict with a row other than the row with its very key.

    Such a row has the same value in another unique index, or a key that the collation considers
    equal. Without a key there are no upserts.
    """
    key = apply_key(table)
    if key is None:
        return False
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


Row = tuple[Any, ...]
RowChange = tuple[Row | None, Row | None]
"""The row before and the row after."""
Kinds = np.ndarray[Any, np.dtype[np.uint8]]
Columns = list[pa.Array]


def before_columns(
    table: TableInfo, kinds: Kinds, rows: pa.Array, positions: Sequence[int]
) -> Columns:
    def decode(kind: MutationType, some: pa.Array) -> Columns:
        images = decode_columns(table, kind, some, positions, Side.BEFORE)
        assert images.before is not None, "an insert has no before image"
        return images.before

    return _by_kind(kinds, rows, decode)


def after_columns(
    table: TableInfo,
    kinds: Kinds,
    rows: pa.Array,
    positions: Sequence[int],
    *,
    marks_json: bool = False,
) -> Columns:
    def decode(kind: MutationType, some: pa.Array) -> Columns:
        images = decode_columns(table, kind, some, positions, Side.AFTER, marks_json=marks_json)
        assert images.after is not None, "a delete has no after image"
        return images.after

    return _by_kind(kinds, rows, decode)


def _by_kind(
    kinds: Kinds, rows: pa.Array, decode: Callable[[MutationType, pa.Array], Columns]
) -> Columns:
    present = np.unique(kinds)
    if len(present) == 1:
        return decode(MutationType(int(present[0])), rows)
    places = [np.flatnonzero(kinds == kind) for kind in present]
    pieces = [
        decode(MutationType(int(kind)), rows.take(pa.array(where)))
        for kind, where in zip(present, places, strict=True)
    ]
    back = pa.array(np.argsort(np.concatenate(places), kind="stable"))
    return [pa.concat_arrays(column).take(back) for column in zip(*pieces, strict=True)]


@lru_cache(maxsize=1024)
def row_codec(table: TableInfo) -> RowCodec:
    return RowCodec(table)


def before_image(codec: RowCodec, kind: int, data: bytes) -> tuple[Any, ...]:
    if kind == MutationType.DELETE:
        return codec.decode_delete(data)
    assert kind == MutationType.UPDATE, "an insert has no before image"
    return codec.decode_update(data)[0]


def after_image(codec: RowCodec, kind: int, data: bytes) -> tuple[Any, ...]:
    if kind == MutationType.INSERT:
        return codec.decode_insert(data)
    assert kind == MutationType.UPDATE, "a delete has no after image"
    return codec.decode_update(data)[1]


def row_change(table: TableInfo, kind: int, data: bytes) -> RowChange:
    """Return one change; raise `Malformed` for undecodable bytes."""
    codec = row_codec(table)
    if kind == MutationType.INSERT:
        return None, codec.decode_insert(data)
    if kind == MutationType.DELETE:
        return codec.decode_delete(data), None
    return codec.decode_update(data)


def row_changes(
    table: TableInfo, kinds: Kinds, rows: pa.Array, rowwise_max: int = BOUNDS.rowwise_max
) -> list[RowChange]:
    """Return the changes in the order of their rows; raise `Malformed` for undecodable bytes."""
    present = np.unique(kinds).tolist()
    if len(present) == 1:
        return _of_kind(table, MutationType(present[0]), rows, rowwise_max)
    made: list[RowChange] = [(None, None)] * len(kinds)
    for kind in present:
        places = np.flatnonzero(kinds == kind)
        changes = _of_kind(table, MutationType(kind), rows.take(pa.array(places)), rowwise_max)
        for place, change in zip(places.tolist(), changes, strict=True):
            made[place] = change
    return made


def _of_kind(
    table: TableInfo, kind: MutationType, rows: pa.Array, rowwise_max: int
) -> list[RowChange]:
    if len(rows) < rowwise_max:
        return [row_change(table, kind, each) for each in rows.to_pylist()]
    images = decode_columns(table, kind, rows)
    before, after = _tuples(table, images.before), _tuples(table, images.after)
    if before is None:
        return [(None, row) for row in after or ()]
    if after is None:
        return [(row, None) for row in before]
    return list(zip(before, after, strict=True))


def _tuples(table: TableInfo, columns: Sequence[pa.Array] | None) -> list[Row] | None:
    if columns is None:
        return None
    found = []
    for column, array in zip(table.columns, columns, strict=True):
        stored = array.to_pylist()
        value_of: Callable[[Any], Any] | None = None
        if column.tp is MysqlType.NEWDECIMAL:
            value_of = Decimal
        elif column.tp in (MysqlType.ENUM, MysqlType.SET):
            value_of = lru_cache(maxsize=1024)(text_of(column))
        if value_of is not None:
            stored = [None if each is None else value_of(each) for each in stored]
        found.append(stored)
    return list(zip(*found, strict=True))
