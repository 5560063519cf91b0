"""Held units: all rows of a batch for one task, which compacts them and makes their SQL.

The bytes are `PSTBATCH` and an Arrow IPC stream with one record batch; the header is JSON in the
metadata of its schema: number, dialect and `displaces` of the batch, and database, definition and
number of rows of each table, in the order of the rows.

    column  type    meaning
    kind    uint8   MutationType of `row`
    row     binary  the row bytes as the writer encoded them

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

import struct

import numpy as np
import pyarrow as pa

from drainer.task.compaction import plan_units
from drainer.task.events import event_unit
from drainer.task.sql.generate import generate
from drainer.task.sql.rows import can_meet_others
from drainer.task.work_unit import (
    Batch,
    Statements,
    TableRows,
    arrow_batch,
    arrow_stream,
    reading,
    table_of,
    table_text,
)

_MAGIC = b"PSTBATCH"
_LENGTH = struct.Struct("<I")
_SCHEMA = pa.schema([("kind", pa.uint8()), ("row", pa.large_binary())])

Made = list[tuple[bool, Statements]]
"""SQL, and whether its rows can conflict with others."""


def held_unit(batch: Batch, dialect: str) -> bytes:
    """Return the encoded unit; the batch has rows."""
    kinds = np.concatenate([each.kind_array() for each in batch.tables])
    rows = pa.concat_arrays([each.rows.cast(pa.large_binary()) for each in batch.tables])
    tables = [(each.schema, table_text(each.table), len(each.rows)) for each in batch.tables]
    header = {"batch": batch.batch_id, "dialect": dialect, "displaces": batch.displaces}
    columns = pa.RecordBatch.from_arrays([pa.array(kinds), rows], schema=_SCHEMA)
    return arrow_stream(columns, header | {"tables": tables}, _MAGIC)


def answer(payload: bytes) -> bytes:
    """Return the answer to a unit with rows, of whatever kind; see `event_unit.answer`."""
    if not payload.startswith(_MAGIC):
        return event_unit.answer(payload)
    batch, dialect = _decoded(payload)
    made = {True: Statements(), False: Statements()}
    for unit in plan_units(batch, dialect):
        ours, theirs = made[can_meet_others(unit.table)], generate(unit)
        ours.deletes.extend(theirs.deletes)
        ours.upserts.extend(theirs.upserts)
        ours.ordered.extend(theirs.ordered)
    first = made[True].encode()
    return b"".join([_LENGTH.pack(len(first)), first, made[False].encode()])


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
