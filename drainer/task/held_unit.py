"""Held units: all rows of a batch for one task, which compacts them and makes their SQL.

The bytes are `PSTBATCH` and an Arrow IPC stream with one record batch; the header is JSON in the
metadata of its schema: number, dialect and `displaces` of the batch, and database, definition and
number of rows of each table, in the order of the rows.

    column  type    meaning
    kind    uint8   MutationType of `row`
    row     binary  the row bytes as the writer encoded them

A few small rows are sent as JSON, unless they are for a lake: `PSTBAFEW`, `dialect`, `displaces`,
and database, definition, kinds and rows of each table.

The answer is the SQL of tables whose rows can conflict with others, then that of the other tables:
a length (u32 LE) and the encoded `Statements`, then the rest is the second `Statements`.

**Why the task compacts.** CPU of the Drainer's process in µs per row change, sysbench's tables, 2
tasks, each figure the best of 7 runs on a busy two-core machine. "Compacts" sends compacted rows,
spread over the tasks. "Sends" is this module. The last columns are the time from a batch to its SQL
in ms, with nothing else to do, the two tasks of "compacts" in parallel.

| batch, mixed changes | compacts | sends | time, compacts | time, sends |
|---|---|---|---|---|
| 4 rows of a table | 55 | 19 | 0.4 | 0.9 |
| 400 rows of a table | 4.4 | 0.24 | 5.6 | 5.6 |
| 4,000 rows of a table | 0.76 | 0.07 | 6.5 | 9.6 |
| 28,000 rows of a table | 0.57 | 0.10 | 26 | 45 |
| 28,000 rows of 100 tables | 0.78 | 0.22 | 31 | 46 |

Sending is cheaper for every batch. A large batch becomes SQL later, because one task does
everything, but its commit takes ten times as long, and the next batch is made meanwhile.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Iterator, Sequence
from itertools import repeat

import numpy as np
import pyarrow as pa

from drainer.task.compaction import plan_units, remaining
from drainer.task.events import event_unit
from drainer.task.sql.generate import generate
from drainer.task.sql.literals import ARROW
from drainer.task.sql.rows import can_meet_others, row_change
from drainer.task.sql.upserts import TableSql, table_sql
from drainer.task.work_unit import (
    Batch,
    Statements,
    TableRows,
    arrow_batch,
    arrow_stream,
    bytes_of,
    few_encoded,
    reading,
    table_of,
    table_text,
)
from penstock.schema.model import TableInfo

_MAGIC, _FEW_MAGIC = b"PSTBATCH", b"PSTBAFEW"
_LENGTH = struct.Struct("<I")
_SCHEMA = pa.schema([("kind", pa.uint8()), ("row", pa.large_binary())])

Made = list[tuple[bool, Statements]]
"""SQL, and whether its rows can conflict with others."""


def held_unit(batch: Batch, dialect: str) -> bytes:
    """Return the encoded unit; the batch has rows."""
    if batch.is_few and not dialect.startswith(ARROW):
        shown = [
            (e.schema, table_text(e.table), e.kind_array().tolist(), e.rows.to_pylist())
            for e in batch.tables
        ]
        few = {"dialect": dialect, "displaces": batch.displaces, "tables": shown}
        return _FEW_MAGIC + few_encoded(few)
    kinds = np.concatenate([each.kind_array() for each in batch.tables])
    rows = pa.concat_arrays([each.rows.cast(pa.large_binary()) for each in batch.tables])
    tables = [(each.schema, table_text(each.table), len(each.rows)) for each in batch.tables]
    header = {"batch": batch.batch_id, "dialect": dialect, "displaces": batch.displaces}
    columns = pa.RecordBatch.from_arrays([pa.array(kinds), rows], schema=_SCHEMA)
    return arrow_stream(columns, header | {"tables": tables}, _MAGIC)


def answer(payload: bytes) -> bytes:
    """Return the answer to a unit with rows, of whatever kind; see `event_unit.answer`."""
    if payload.startswith(_FEW_MAGIC):
        return _encoded(_few_made(payload[len(_FEW_MAGIC) :]))
    if not payload.startswith(_MAGIC):
        return event_unit.answer(payload)
    batch, dialect = _decoded(payload)
    return _encoded((unit.table, generate(unit)) for unit in plan_units(batch, dialect))


def _encoded(made: Iterable[tuple[TableInfo, Statements]]) -> bytes:
    by_meeting = {True: Statements(), False: Statements()}
    for table, theirs in made:
        ours = by_meeting[can_meet_others(table)]
        ours.deletes.extend(theirs.deletes)
        ours.upserts.extend(theirs.upserts)
        ours.ordered.extend(theirs.ordered)
    first = by_meeting[True].encode()
    return b"".join([_LENGTH.pack(len(first)), first, by_meeting[False].encode()])


def _few_made(data: bytes) -> Iterator[tuple[TableInfo, Statements]]:
    with reading("batch"):
        few = json.loads(data)
        tables = [(schema, table_of(text), *rest) for schema, text, *rest in few["tables"]]
    for schema, table, kinds, rows in tables:
        sql = table_sql(few["dialect"], schema, table.name, table, displaces=few["displaces"])
        yield table, _few_statements(sql, kinds, list(map(bytes_of, rows)))


def _few_statements(sql: TableSql, kinds: Sequence[int], rows: Sequence[bytes]) -> Statements:
    if not sql.key:
        changes = map(row_change, repeat(sql.table), kinds, rows)
        return Statements(ordered=[sql.change_one(before, after) for before, after in changes])
    gone, kept = remaining(sql.table, kinds, rows)
    return Statements(*sql.few(gone, kept))


def answered(data: bytes) -> Made:
    """Return the SQL in an answer to a `held_unit`; raise `Malformed`."""
    with reading("answer of a task"):
        view, at = memoryview(data), _LENGTH.size
        (length,) = _LENGTH.unpack_from(data)
        parts = view[at : at + length], view[at + length :]
        return [
            (meets, Statements.decode(p)) for meets, p in zip((True, False), parts, strict=True)
        ]


def _decoded(payload: bytes) -> tuple[Batch, str]:
    with reading("batch"):
        header, columns = arrow_batch(payload, _MAGIC)
        tables, at = [], 0
        for schema, text, count in header["tables"]:
            kinds, rows = (column.slice(at, count) for column in columns.columns)
            tables.append(TableRows(schema, table_of(text), kinds.to_numpy(), rows))
            at += count
        return Batch(header["batch"], tables, header["displaces"]), header["dialect"]
