"""Event unit: a run of whole transactions for one task, and the task's answer.

The unit (its first bytes are not those of an Arrow stream):

    | part   | bytes | content                                                                  |
    |--------|-------|--------------------------------------------------------------------------|
    | magic  | 8     | `PSTEVENT`                                                               |
    | rows   | rest  | an Arrow IPC stream: table, transaction, kind, row; the header is JSON   |

`transaction` numbers the header's commit_ts, `table` its tables, and rows of one transaction and
table are in their order. The answer is `Messages`, in commit order.

    batch, by tables     A: 0 0 2 3 3 7    B: 1 2 2 7          a number is a transaction
    units                A: 0 0 2, B: 1 2 2  |  A: 3 3 7, B: 7
"""

from __future__ import annotations

import gc
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise, repeat
from typing import Any, Self

import numpy as np
import pyarrow as pa

from drainer.task.events.change_blocks import change_blocks
from drainer.task.events.encoding import DELTA_CHANGES, Encoding, encoder_of
from drainer.task.events.messages import Message, Messages, RowEvent
from drainer.task.sql import generate
from drainer.task.sql.images import row_changes
from drainer.task.work_unit import (
    Batch,
    TableRows,
    arrow_header,
    arrow_stream,
    table_of,
    table_text,
    undecodable,
)
from penstock.schema.model import TableInfo

MAGIC = b"PSTEVENT"
UNIT_ROWS_MIN = 500
"""For fewer rows, sending a unit to a task costs more than encoding it."""

_SCHEMA = pa.schema(
    [
        ("table", pa.uint32()),
        ("transaction", pa.uint32()),
        ("kind", pa.uint8()),
        ("row", pa.large_binary()),
    ]
)
_UNREADABLE = (pa.ArrowException, OSError, ValueError, LookupError, TypeError, StopIteration)

Ints = np.ndarray[Any, np.dtype[Any]]
Target = tuple[str, TableInfo]


@dataclass(frozen=True, slots=True, kw_only=True)
class EventUnit:
    """Changes of consecutive transactions; with `is_slice`, of a part of a large transaction."""

    encoding: Encoding
    commit_ts: Sequence[int]
    tables: Sequence[Target]
    rows: pa.RecordBatch
    is_slice: bool = False

    def encode(self) -> bytes:
        header = {
            "encoding": asdict(self.encoding),
            "commit_ts": list(self.commit_ts),
            "tables": [(schema, table_text(table)) for schema, table in self.tables],
            "is_slice": self.is_slice,
        }
        return arrow_stream(self.rows, header, MAGIC)

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Decode a unit whose rows share memory with `data`; raise `Malformed`."""
        try:
            with pa.ipc.open_stream(pa.py_buffer(data)[len(MAGIC) :]) as reader:
                header = arrow_header(reader.schema)
                rows = reader.read_next_batch()
            return cls(
                encoding=Encoding(**header["encoding"]),
                commit_ts=header["commit_ts"],
                tables=[(schema, table_of(text)) for schema, text in header["tables"]],
                rows=rows,
                is_slice=header["is_slice"],
            )
        except _UNREADABLE as error:
            raise undecodable("event unit", error) from error


def event_units(batch: Batch, encoding: Encoding, parts: int) -> list[EventUnit]:
    """Return the batch in at most `parts` units, whose answers follow one another.

    A batch that `displaces` is a slice of a transaction, and one unit.
    """
    count = len(batch.commit_ts)
    sizes = np.zeros(count, np.int64)
    for each in batch.tables:
        assert each.transactions is not None, "the batch says which rows belong together"
        sizes += np.bincount(each.transactions, minlength=count)
    ends = np.cumsum(sizes)
    total = int(ends[-1]) if count else 0
    wanted = max(1, min(parts, total // UNIT_ROWS_MIN))
    inner = np.searchsorted(ends, total * np.arange(1, wanted) / wanted) + 1
    cuts = sorted({0, count, *(int(cut) for cut in inner if cut < count)})
    units = [_unit(batch, encoding, begin, end) for begin, end in pairwise(cuts)]
    return [unit for unit in units if len(unit.rows)]


def _unit(batch: Batch, encoding: Encoding, begin: int, end: int) -> EventUnit:
    tables: list[Target] = []
    pieces: list[list[pa.Array]] = [[], [], [], []]
    for each in batch.tables:
        first, stop = map(int, np.searchsorted(each.transactions, (begin, end)))
        if first == stop:
            continue
        columns = _columns(each, len(tables), first, stop, begin)
        for piece, column in zip(pieces, columns, strict=True):
            piece.append(column)
        tables.append((each.schema, each.table))
    arrays = [
        pa.concat_arrays(piece) if piece else pa.array([], field.type)
        for piece, field in zip(pieces, _SCHEMA, strict=True)
    ]
    return EventUnit(
        encoding=encoding,
        commit_ts=batch.commit_ts[begin:end],
        tables=tables,
        rows=pa.RecordBatch.from_arrays(arrays, schema=_SCHEMA),
        is_slice=batch.displaces,
    )


def _columns(each: TableRows, number: int, first: int, stop: int, begin: int) -> list[pa.Array]:
    numbers = np.full(stop - first, number, np.uint32)
    transactions = (each.transactions[first:stop] - begin).astype(np.uint32)
    rows = each.rows.slice(first, stop - first).cast(pa.large_binary())
    return [
        pa.array(numbers),
        pa.array(transactions),
        pa.array(each.kind_array()[first:stop]),
        rows,
    ]


def answer(payload: bytes) -> bytes:
    """Return `Messages` for an `EventUnit`, SQL for a `WorkUnit`; a pure function.

    Raises `Malformed` for row bytes that do not fit their table, and for values without a form.
    """
    if not payload.startswith(MAGIC):
        return generate.answer(payload)
    # All rows and messages of the unit live until its end, and none refers back to another. The
    # collector would scan them repeatedly and find nothing.
    gc.disable()
    try:
        return encoded_messages(EventUnit.decode(payload)).encode()
    finally:
        gc.enable()


def encoded_messages(unit: EventUnit) -> Messages:
    """Return the messages of a unit, in commit order."""
    if unit.encoding.format == DELTA_CHANGES:
        blocks = list(change_blocks(unit.tables, unit.commit_ts, unit.rows))
        return Messages.at([unit.commit_ts[-1]] * len(blocks), blocks)
    encoder = encoder_of(unit.encoding)
    encode = encoder.slice if unit.is_slice else encoder.transaction
    stamps: list[int] = []
    made: list[Message] = []
    events, ends = _events(unit)
    begin = 0
    for commit_ts, end in zip(unit.commit_ts, ends, strict=True):
        if begin < end:
            made += encode(commit_ts, events[begin:end])
            stamps += repeat(commit_ts, len(made) - len(stamps))
        begin = end
    return Messages.at(stamps, made)


def _events(unit: EventUnit) -> tuple[list[RowEvent], list[int]]:
    columns = unit.rows
    transactions = columns.column("transaction").to_numpy()
    of_table = columns.column("table").to_numpy()
    kinds, rows = columns.column("kind").to_numpy(), columns.column("row")
    # A table's rows are contiguous, and the tables in their order.
    bounds = np.searchsorted(of_table, np.arange(len(unit.tables) + 1)).tolist()
    events: list[RowEvent] = []
    for (schema, table), (first, stop) in zip(unit.tables, pairwise(bounds), strict=True):
        changes = row_changes(table, kinds[first:stop], rows.slice(first, stop - first))
        events += [RowEvent(schema, table, before, after) for before, after in changes]
    # Stable: within a transaction each table stays contiguous, and its rows in their order.
    order = np.argsort(transactions, kind="stable")
    ends = np.searchsorted(transactions[order], np.arange(1, len(unit.commit_ts) + 1))
    return [events[at] for at in order.tolist()], ends.tolist()
