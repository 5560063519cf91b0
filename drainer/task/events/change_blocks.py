"""Change blocks: the changes of a unit as Arrow tables, for a lake that keeps every change.

A block (`drainer.task.sql.lake_rows`) has some of one table's changes, each with all its columns. A
change log has these columns first, so that Delta's statistics cover them, however many columns
upstream has:

    column         type                meaning
    _commit_ts     int64               the transaction's commit_ts, or the DDL's
    _seq           int64               numbers the lines of a transaction, over all its tables
    _op            string              insert, delete, update_preimage, update_postimage, truncate
    _commit_time   timestamp[us, UTC]  the time of the commit_ts, to the millisecond
    _start_ts      int64               the transaction's start_ts; NULL for DDL

An update is two lines, the row before and the row after, named as in Delta's own change data feed.
Without the row before, readers could not follow a key that changes, or a table without a key. The
feed's column names are not used, because a table that has one of them cannot have such a feed. A
message is a block, and has the unit's last commit_ts. The start_ts is not sent; the receiver adds
it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa

from drainer.task.events.messages import Message
from drainer.task.sql.lake_rows import LakeColumns, Values, lake_schema, written_positions
from penstock.codes import Code
from penstock.errors import Malformed
from penstock.schema.model import TableInfo
from penstock.ts import LOGICAL_BITS
from penstock.wire.binlog import MutationType

COMMIT_TS, SEQ, OP = "_commit_ts", "_seq", "_op"
COMMIT_TIME, START_TS = "_commit_time", "_start_ts"
_TIME = pa.timestamp("us", "UTC")
_IN_BLOCKS = pa.schema(
    [(COMMIT_TS, pa.int64()), (SEQ, pa.int64()), (OP, pa.string()), (COMMIT_TIME, _TIME)]
)
OWN_COLUMNS = pa.schema([*_IN_BLOCKS, (START_TS, pa.int64())])
INSERT, DELETE, TRUNCATE = "insert", "delete", "truncate"
BEFORE, AFTER = "update_preimage", "update_postimage"

Ints = np.ndarray[Any, np.dtype[Any]]


def change_schema(table: TableInfo) -> pa.Schema:
    """Return a change log's columns; raise `Malformed` if an upstream column has such a name."""
    schema = lake_schema(table)
    for name in schema.names:
        if name.lower() in OWN_COLUMNS.names:
            raise Malformed(
                f"table {table.name!r} has a column {name!r}, which a change log has of its own",
                "leave the table out by a filter, or name the column otherwise upstream",
                Code.SINK_DDL,
            )
    return pa.schema([*OWN_COLUMNS, *schema])


def commit_times(commit_ts: Ints) -> pa.Array:
    return pa.array((commit_ts >> LOGICAL_BITS) * 1000).cast(_TIME)


def change_blocks(
    tables: Sequence[tuple[str, TableInfo]], commit_ts: Sequence[int], rows: pa.RecordBatch
) -> Iterator[Message]:
    """Yield a block for each table of a unit; its rows are as `EventUnit` has them.

    Raises `Malformed` for row bytes that do not fit their table, and for values without a form.
    """
    of_table = rows.column("table").to_numpy()
    transactions = rows.column("transaction").to_numpy()
    kinds = rows.column("kind").to_numpy()
    firsts = first_lines(transactions, kinds)
    stamps = np.asarray(commit_ts, np.int64)[transactions]
    bounds = np.searchsorted(of_table, np.arange(len(tables) + 1)).tolist()
    for (schema, table), (begin, end) in zip(tables, pairwise(bounds), strict=True):
        change_schema(table)
        some = slice(begin, end)
        yield Message(
            _block(schema, table, kinds[some], rows.column("row")[some], stamps[some], firsts[some])
        )


def first_lines(transactions: Ints, kinds: Ints) -> Ints:
    """Return the number of each row's first line in its transaction; an update has two lines."""
    order = np.argsort(transactions, kind="stable")
    counts = 1 + (kinds == MutationType.UPDATE).astype(np.int64)
    before = np.cumsum(counts[order]) - counts[order]
    begins = np.searchsorted(transactions[order], transactions[order])
    made = np.empty(len(order), np.int64)
    made[order] = before - before[begins]
    return made


def _block(
    schema: str, table: TableInfo, kinds: Ints, rows: pa.Array, stamps: Ints, firsts: Ints
) -> bytes:
    columns = LakeColumns(table, written_positions(table))
    had, has = (np.flatnonzero(kinds != k) for k in (MutationType.INSERT, MutationType.DELETE))
    pieces: list[Values] = []
    if len(had):
        pieces.append(columns.before(kinds[had], rows.take(pa.array(had))))
    if len(has):
        pieces.append(columns.after(kinds[has], rows.take(pa.array(has))))
    # A row's line before comes right before its line after.
    places = np.concatenate((2 * had, 2 * has + 1))
    order = np.argsort(places)
    at, is_after = places[order] // 2, places[order] % 2
    is_update = kinds[at] == MutationType.UPDATE
    ops = np.select(
        [is_update & (is_after == 0), is_update, is_after == 1], [BEFORE, AFTER, INSERT], DELETE
    )
    added = pa.Table.from_arrays(
        [
            pa.array(stamps[at]),
            pa.array(firsts[at] + np.where(is_update, is_after, 0)),
            pa.array(ops.tolist(), pa.string()),
            commit_times(stamps[at]),
        ],
        schema=_IN_BLOCKS,
    )
    return columns.block_of(schema, table.name, _joined(pieces, pa.array(order)), added)


def _joined(pieces: Sequence[Values], order: pa.Array) -> Values:
    made: Values = []
    for column in zip(*pieces, strict=True):
        array = pa.concat_arrays([array for array, _ in column]).take(order)
        lost = [flags for _, flags in column if flags is not None]
        made.append((array, np.concatenate(lost) if lost else None))
    return made
