"""Change batches: transactions as Arrow record batches, one line for each row before or after.

A batch has lines of one table version: the table's columns with the types of a lake
(`drainer.task.sql.lake_rows`), and after them

    column      type    meaning
    _kind       string  insert, delete, update_preimage, update_postimage
    _commit_ts  int64   the transaction's commit_ts
    _start_ts   int64   the transaction's start_ts
    _seq        int64   numbers the lines of a transaction that are read together

An update is two lines, the row before and the row after, as in a lake's change log: otherwise a
reader could not follow a key that changes, or a table without a key.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from drainer.task.row_changes import Collector, TableChanges
from drainer.task.sql.lake_rows import LakeColumns, first_lines, lake_schema, written_positions
from penstock.codes import Code
from penstock.errors import Malformed
from penstock.schema.model import TableInfo
from penstock.wire.binlog import MutationType

KIND, COMMIT_TS, START_TS, SEQ = "_kind", "_commit_ts", "_start_ts", "_seq"
META = pa.schema(
    [(KIND, pa.string()), (COMMIT_TS, pa.int64()), (START_TS, pa.int64()), (SEQ, pa.int64())]
)


def line_schema(table: TableInfo) -> pa.Schema:
    """Return the columns of a table's lines; raise `Malformed` if a column has a reserved name."""
    schema = lake_schema(table)
    for name in schema.names:
        if name.lower() in META.names:
            raise Malformed(
                f"table {table.name!r} has a column {name!r}, a name that each change has for its"
                " own data",
                "rename the column upstream, or read the changes without their types",
                Code.SINK_DDL,
            )
    return pa.schema([*schema, *META])


class TableBatch(NamedTuple):
    """Lines of one table version, in commit order."""

    schema: str
    table: TableInfo
    rows: pa.RecordBatch


class ChangeBatches:
    """Collects transactions in commit order until their lines are taken."""

    def __init__(self) -> None:
        self._collector = Collector()
        self._start_ts: list[int] = []
        self._next_seq: tuple[int, int] = (0, 0)

    @property
    def rows(self) -> int:
        return self._collector.rows

    @property
    def bytes(self) -> int:
        return self._collector.bytes

    def fits(self, changes: list[TableChanges]) -> bool:
        """Return whether changes are of the table versions that are being collected."""
        return self._collector.fits(changes)

    def add(self, commit_ts: int, start_ts: int, changes: list[TableChanges], size: int) -> None:
        """Add a transaction, or the next slice of one; `size` is in bytes."""
        self._collector.add(changes, size, commit_ts)
        self._start_ts.append(start_ts)

    def take(self) -> Iterator[TableBatch]:
        """Yield the lines, one batch for each table, and start again.

        Raises `Malformed` for bytes that are not rows of their table.
        """
        collector, self._collector = self._collector, Collector()
        start_ts, self._start_ts = np.array(self._start_ts, np.int64), []
        commit_ts = np.array(collector.commit_ts, np.int64)
        tables = collector.tables()
        if not tables:
            return
        kinds = [each.kind_array() for each in tables]
        transactions: list[Any] = [each.transactions for each in tables]
        firsts = self._numbered(commit_ts, np.concatenate(transactions), np.concatenate(kinds))
        bounds = np.cumsum([0, *map(len, kinds)]).tolist()
        for number, (begin, end) in enumerate(pairwise(bounds)):
            each, of = tables[number], transactions[number]
            meta = (commit_ts[of], start_ts[of], firsts[begin:end])
            rows = _lines(each.table, kinds[number], each.rows, meta)
            yield TableBatch(each.schema, each.table, rows)

    def _numbered(self, commit_ts: Any, transactions: Any, kinds: Any) -> Any:
        """Return each change's first number; slices of one transaction continue to count."""
        stamps, numbers = np.unique(commit_ts[transactions], return_inverse=True)
        firsts = first_lines(numbers, kinds)
        known_ts, count = self._next_seq
        firsts[stamps[numbers] == known_ts] += count
        last = numbers == len(stamps) - 1
        lines = int((1 + (kinds[last] == MutationType.UPDATE)).sum())
        self._next_seq = int(stamps[-1]), lines + (count if stamps[-1] == known_ts else 0)
        return firsts


def _lines(table: TableInfo, kinds: Any, rows: pa.Array, meta: Sequence[Any]) -> pa.RecordBatch:
    lines = LakeColumns(table, written_positions(table)).lines(kinds, rows)
    commit_ts, start_ts, firsts = meta
    arrays = [array for array, _ in lines.values]
    arrays += [pa.repeat(pa.scalar(text), len(lines.at)) for _, text in table.constants]
    arrays += [lines.ops, pa.array(commit_ts[lines.at]), pa.array(start_ts[lines.at])]
    arrays.append(pa.array(firsts[lines.at] + lines.is_second))
    return pa.RecordBatch.from_arrays(arrays, schema=line_schema(table))
