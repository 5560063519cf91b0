"""Row-wise SQL: writes few rows one at a time, which is cheaper than columns below a hundred.

`compact_few` keeps the promises of `drainer.task.compaction`, with dictionaries and not arrays.

It is also the only way for tables without a row key, whose changes keep their order: each is a
separate statement that finds its row by comparing every column.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa

from drainer.task.sql.images import Kinds
from drainer.task.sql.keys import apply_key, is_in_row, normal_value, unique_columns
from drainer.task.sql.table_sql import TableSql
from drainer.task.work_unit import Op, Statements
from penstock.datum.rows.fields import number_of
from penstock.datum.rows.row_codec import RowCodec
from penstock.schema.model import ColumnInfo, MysqlType, TableInfo
from penstock.wire.binlog import MutationType


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


def _ordered(sql: TableSql, codec: RowCodec, kind: int, data: bytes) -> bytes:
    if kind == MutationType.INSERT:
        return sql.insert_one(codec.decode_insert(data))
    if kind == MutationType.DELETE:
        return sql.delete_one(codec.decode_delete(data))
    return sql.update_one(*codec.decode_update(data))


def generate_rows(
    sql: TableSql, ops: Iterable[int], kinds: Iterable[int], rows: pa.Array
) -> Statements:
    """Return the statements for rows of a work unit; raise `Malformed` for undecodable bytes."""
    codec = row_codec(sql.table)
    deletes: list[str] = []
    upserts: list[str] = []
    ordered: list[bytes] = []
    for op, kind, data in zip(ops, kinds, rows.to_pylist(), strict=True):
        if op == Op.DELETE:
            deletes.append(sql.key_text(before_image(codec, kind, data)) + ",")
        elif op == Op.UPSERT:
            upserts.append(sql.row_text(after_image(codec, kind, data)) + ",")
        else:
            ordered.append(_ordered(sql, codec, kind, data))
    return Statements(
        sql.deletes(pa.array(deletes, pa.large_string())) if deletes else [],
        sql.upserts(pa.array(upserts, pa.large_string())) if upserts else [],
        ordered,
    )


Row = tuple[Any, ...]


@dataclass(slots=True)
class _Fate:
    """A batch's effect on one key: its image at the start (None: no row) and at the end."""

    first_row: int
    before: Row | None
    last_row: int = -1
    after: Row | None = None


def compact_few(
    table: TableInfo, kinds: Kinds, rows: pa.Array
) -> tuple[Kinds, np.ndarray[Any, np.dtype[np.int64]]]:
    """Return ops and row indexes of the remaining changes, deletes first, in key order."""
    codec = row_codec(table)
    key_of = _key_of(table)
    fates: dict[Row, _Fate] = {}

    def event(row: int, before: Row | None, after: Row | None, key: Row) -> None:
        fate = fates.setdefault(key, _Fate(row, before))
        fate.last_row, fate.after = row, after

    for i, (kind, data) in enumerate(zip(kinds.tolist(), rows.to_pylist(), strict=True)):
        if kind == MutationType.INSERT:
            after = codec.decode_insert(data)
            event(i, None, after, key_of(after))
        elif kind == MutationType.DELETE:
            before = codec.decode_delete(data)
            event(i, before, None, key_of(before))
        else:
            before, after = codec.decode_update(data)
            old, new = key_of(before), key_of(after)
            if old == new:
                event(i, before, after, new)
            else:
                event(i, before, None, old)
                event(i, None, after, new)
    moved = _moved(table)
    in_order = [fates[key] for key in sorted(fates)]
    gone = [f.first_row if f.after else f.last_row for f in in_order if not f.after or moved(f)]
    kept = [f.last_row for f in in_order if f.after]
    ops = [Op.DELETE] * len(gone) + [Op.UPSERT] * len(kept)
    return np.array(ops, np.uint8), np.array(gone + kept, np.int64)


def _key_of(table: TableInfo) -> Callable[[Row], Row]:
    key = apply_key(table)
    assert key is not None
    columns = [(part.offset, _key_value(table.columns[part.offset])) for part in key.columns]
    return lambda row: tuple([value(row[at]) for at, value in columns])


def _key_value(column: ColumnInfo) -> Callable[[Any], Any]:
    """Return the comparison form of a key's values: ENUM texts are not unique per number."""
    if column.tp not in (MysqlType.ENUM, MysqlType.SET):
        return lambda value: normal_value(column, value)
    number = number_of(column)
    return lambda value: number(normal_value(column, value))


def _moved(table: TableInfo) -> Callable[[_Fate], bool]:
    positions = unique_columns(table)
    in_row = is_in_row(table, positions)

    def moved(fate: _Fate) -> bool:
        if fate.before is None or fate.after is None:
            return False
        before, after = fate.before, fate.after
        return not in_row or any(before[p] != after[p] for p in positions)

    return moved
