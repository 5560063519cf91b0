"""Row values: reads a table's rows for encoders, column by column if there are many.

Both ways give the same values, or the same `Malformed`. Columns hold stored values; those of
DECIMAL, ENUM and SET are converted to the values that `RowCodec` reads
(`penstock.datum.rows.fields`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from decimal import Decimal
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa

from drainer.task.events.encoder import Values
from drainer.task.sql.rowwise import row_codec
from drainer.task.work_unit import BOUNDS
from penstock.datum.columnar.decode import decode_columns
from penstock.datum.rows.fields import text_of
from penstock.schema.model import ColumnInfo, MysqlType, TableInfo
from penstock.wire.binlog import MutationType

Kinds = np.ndarray[Any, np.dtype[np.uint8]]
Change = tuple[Values | None, Values | None]
"""The row before and the row after."""


def row_changes(
    table: TableInfo, kinds: Kinds, rows: pa.Array, rowwise_max: int = BOUNDS.rowwise_max
) -> list[Change]:
    """Return the changes in the order of their rows; raise `Malformed` for undecodable bytes."""
    present = np.unique(kinds).tolist()
    if len(present) == 1:
        return _of_kind(table, MutationType(present[0]), rows, rowwise_max)
    made: list[Change] = [(None, None)] * len(kinds)
    for kind in present:
        places = np.flatnonzero(kinds == kind)
        changes = _of_kind(table, MutationType(kind), rows.take(pa.array(places)), rowwise_max)
        for place, change in zip(places.tolist(), changes, strict=True):
            made[place] = change
    return made


def _of_kind(
    table: TableInfo, kind: MutationType, rows: pa.Array, rowwise_max: int
) -> list[Change]:
    if len(rows) < rowwise_max:
        return _one_by_one(table, kind, rows)
    images = decode_columns(table, kind, rows)
    before, after = _tuples(table, images.before), _tuples(table, images.after)
    if before is None:
        return [(None, row) for row in after or ()]
    if after is None:
        return [(row, None) for row in before]
    return list(zip(before, after, strict=True))


def _one_by_one(table: TableInfo, kind: MutationType, rows: pa.Array) -> list[Change]:
    codec, data = row_codec(table), rows.to_pylist()
    if kind is MutationType.INSERT:
        return [(None, codec.decode_insert(each)) for each in data]
    if kind is MutationType.DELETE:
        return [(codec.decode_delete(each), None) for each in data]
    return [codec.decode_update(each) for each in data]


def _tuples(table: TableInfo, columns: Sequence[pa.Array] | None) -> list[Values] | None:
    if columns is None:
        return None
    found = []
    for column, array in zip(table.columns, columns, strict=True):
        stored = array.to_pylist()
        value_of = _value_of(column)
        if value_of is not None:
            stored = [None if each is None else value_of(each) for each in stored]
        found.append(stored)
    return list(zip(*found, strict=True))


def _value_of(column: ColumnInfo) -> Callable[[Any], Any] | None:
    if column.tp is MysqlType.NEWDECIMAL:
        return Decimal
    if column.tp in (MysqlType.ENUM, MysqlType.SET):
        return lru_cache(maxsize=1024)(text_of(column))
    return None
