"""SQL of one work unit: column by column if it is large, row by row if it is small.

A unit whose ops are EACH or SAFE is answered with a statement for each change (`row_statements`), a
unit in the dialect `arrow` with blocks of rows (`lake_rows`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from drainer.task.sql.digests import Touched
from drainer.task.sql.lake_files import in_parcel
from drainer.task.sql.lake_rows import lake_rows
from drainer.task.sql.literals import ARROW, MYSQL
from drainer.task.sql.row_statements import row_statements
from drainer.task.sql.rows import (
    Row,
    after_columns,
    after_image,
    before_columns,
    before_image,
    row_change,
    row_codec,
)
from drainer.task.sql.upserts import TableSql, table_sql
from drainer.task.work_unit import BOUNDS, Bounds, Member, Op, Statements, WorkUnit
from penstock.errors import Malformed


def generate(unit: WorkUnit, bounds: Bounds = BOUNDS, touched: Touched | None = None) -> Statements:
    """Return the statements of `unit`; a pure function, so any task may run it any number of times.

    Adds to `touched` the key values that they touch. Raises `Malformed` for row bytes that do not
    fit the table.
    """
    if unit.dialect.startswith(ARROW):
        assert touched is None, "blocks of a lake are applied one after another"
        run = unit.dialect.removeprefix(ARROW)
        return lake_rows(unit, partial(in_parcel, run=run) if run else None)
    sql = _sql_of(unit, unit.schema, unit.name, bounds)
    ops = unit.rows.column("op").to_numpy()
    kinds = unit.rows.column("kind").to_numpy()
    rows: Any = unit.rows.column("row")
    if not unit.members and (len(ops) < bounds.rowwise_max or ops[0] == Op.ORDERED):
        return generate_rows(sql, ops.tolist(), kinds.tolist(), rows, touched)
    # Ops are sorted, so each op's rows are one run.
    border = int(np.searchsorted(ops, Op.UPSERT))
    members = unit.members or ((unit.schema, unit.name, border, len(ops) - border),)
    try:
        keys, texts = _texts(unit, sql, members, touched)
    except Malformed:
        if not unit.members:
            raise
        if touched is not None:
            touched.give_up()
        return _one_by_one(unit, border, bounds)  # This reports the bad row.
    made = Statements()
    gone = kept = 0
    for schema, name, deletes, upserts in members:
        sql = _sql_of(unit, schema, name, bounds)
        if deletes:
            made.deletes.extend(sql.deletes(keys.slice(gone, deletes)))
        if upserts:
            made.upserts.extend(sql.upserts(texts.slice(kept, upserts)))
        gone, kept = gone + deletes, kept + upserts
    return made


def _texts(
    unit: WorkUnit, sql: TableSql, members: Sequence[Member], touched: Touched | None
) -> tuple[Any, Any]:
    """Return the texts of the keys to delete and of the rows to upsert."""
    kinds: Any = unit.rows.column("kind").to_numpy()
    rows: Any = unit.rows.column("row")
    keys: Any = []
    texts: Any = []
    border = sum(deletes for _, _, deletes, _ in members)
    if border:
        places = sql.key if touched is None else touched.with_keys(sql.key)
        columns = before_columns(unit.table, kinds[:border], rows.slice(0, border), places)
        keys = sql.keys_column(columns[: len(sql.key)])
        if touched is not None:
            touched.add(dict(zip(places, columns, strict=True)), [each[2] for each in members])
    if border < len(rows):
        columns = after_columns(
            unit.table, kinds[border:], rows.slice(border), sql.written,
            marks_json=unit.dialect == MYSQL,
        )  # fmt: skip
        texts = sql.rows_column(columns)
        if touched is not None:
            by_place = dict(zip(sql.written, columns, strict=True))
            touched.add(by_place, [each[3] for each in members])
    return keys, texts


def generate_rows(
    sql: TableSql,
    ops: Iterable[int],
    kinds: Iterable[int],
    rows: pa.Array,
    touched: Touched | None = None,
) -> Statements:
    """Return the statements for rows of a work unit; raise `Malformed` for undecodable bytes."""
    codec = row_codec(sql.table)
    deletes: list[str] = []
    upserts: list[str] = []
    ordered: list[bytes] = []
    images: list[Row] = []
    for op, kind, data in zip(ops, kinds, rows.to_pylist(), strict=True):
        if op == Op.DELETE:
            images.append(before_image(codec, kind, data))
            deletes.append(sql.key_text(images[-1]) + ",")
        elif op == Op.UPSERT:
            images.append(after_image(codec, kind, data))
            upserts.append(sql.row_text(images[-1]) + ",")
        else:
            ordered.append(sql.change_one(*row_change(sql.table, kind, data)))
    if touched is not None:
        touched.add_rows(images)
    return Statements(
        sql.deletes(pa.array(deletes, pa.large_string())) if deletes else [],
        sql.upserts(pa.array(upserts, pa.large_string())) if upserts else [],
        ordered,
    )


def _sql_of(unit: WorkUnit, schema: str, name: str, bounds: Bounds) -> TableSql:
    return table_sql(
        unit.dialect, schema, name, unit.table,
        displaces=unit.displaces, rows_max=bounds.statement_rows_max,
    )  # fmt: skip


def _one_by_one(unit: WorkUnit, border: int, bounds: Bounds) -> Statements:
    made = Statements()
    gone, kept = 0, border
    for schema, name, deletes, upserts in unit.members:
        pieces = [unit.rows.slice(gone, deletes), unit.rows.slice(kept, upserts)]
        rows = pa.Table.from_batches(pieces).combine_chunks().to_batches()
        gone, kept = gone + deletes, kept + upserts
        table = unit.table.renamed(name)
        for each in rows:
            one = replace(unit, schema=schema, name=name, table=table, rows=each, members=())
            left = generate(one, bounds)
            made.deletes.extend(left.deletes)
            made.upserts.extend(left.upserts)
    return made


def answer(payload: bytes) -> bytes:
    """Return the encoded statements for an encoded WorkUnit; a pure function.

    They are `RowStatements` if its ops are EACH or SAFE, else `Statements`.
    """
    unit = WorkUnit.decode(payload)
    if len(unit.rows) and unit.rows.column("op")[0].as_py() in (Op.EACH, Op.SAFE):
        return row_statements(unit).encode()
    return generate(unit).encode()
