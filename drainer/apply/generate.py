"""One work unit turned into SQL: column by column when it is large, row by row when it is small."""

from __future__ import annotations

from typing import Any

import numpy as np

from drainer.apply.images import Kinds, after_columns, before_columns
from drainer.apply.rowwise import generate_rows
from drainer.apply.sql import TableSql, table_sql
from drainer.apply.work import Op, Statements, WorkUnit

ROWWISE_MAX = 100


def generate(unit: WorkUnit) -> Statements:
    """Return the statements of `unit`; a pure function, so any task may run it any number of times.

    Raises `Malformed` for row bytes that do not fit the table.
    """
    sql = table_sql(unit.dialect, unit.schema, unit.name, unit.table, displaces=unit.displaces)
    ops = unit.rows.column("op").to_numpy()
    kinds = unit.rows.column("kind").to_numpy()
    if len(ops) < ROWWISE_MAX or ops[0] == Op.ORDERED:
        return generate_rows(sql, ops.tolist(), kinds.tolist(), unit.rows.column("row"))
    # Ops are sorted, so each op's rows are one run.
    border = int(np.searchsorted(ops, Op.UPSERT))
    rows: Any = unit.rows.column("row")
    return Statements(
        _deletes(sql, kinds[:border], rows.slice(0, border)),
        _upserts(sql, kinds[border:], rows.slice(border)),
    )


def _deletes(sql: TableSql, kinds: Kinds, rows: Any) -> list[bytes]:
    if not len(rows):
        return []
    return sql.deletes(sql.keys_column(before_columns(sql.table, kinds, rows, sql.key)))


def _upserts(sql: TableSql, kinds: Kinds, rows: Any) -> list[bytes]:
    if not len(rows):
        return []
    return sql.upserts(sql.rows_column(after_columns(sql.table, kinds, rows, sql.written)))
