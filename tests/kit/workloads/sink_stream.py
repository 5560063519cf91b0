"""Streams for sinks: DDL, and batches of changes as a Drainer's tasks encode them."""

import itertools
from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa

from drainer.sinks.checkpoint import Checkpoint
from drainer.sinks.protocol import EventSink, Sink, TableSink
from drainer.task.compaction import plan_units
from drainer.task.events.event_unit import answer, encoded_units
from drainer.task.events.messages import Messages
from drainer.task.sql.literals import ARROW
from drainer.task.work_unit import Batch, Statements, TableRows, TransactionStart, in_order
from penstock.datum.rows.row_codec import RowCodec
from penstock.ddl import Catalog, SchemaChange, plan_ddl
from penstock.wire.binlog import MutationType, Origin

Row = tuple[object, ...]
Change = tuple[Row | None, Row | None]
"""A row before and after; None where there is none."""


Transactions = Mapping[int, Mapping[str, Sequence[Change]]]
"""The changes of each table, by commit_ts."""


class SinkStream:
    """Hands out changes and the checkpoints that go with them, in commit order."""

    def __init__(self) -> None:
        self.catalog = Catalog()
        self._ids = itertools.count(1)
        self.ts = 100
        self.origin: Origin | None = None
        """Of all transactions."""

    def point(self) -> Checkpoint:
        self.ts += 1
        return Checkpoint(commit_ts=self.ts, schema_version=self.catalog.version)

    def changes(self, sql: str) -> list[SchemaChange]:
        made = []
        for each in sql.split("; "):
            jobs = plan_ddl(each, "shop", self.catalog, lambda: next(self._ids))
            made += [self.catalog.apply(job) for job in jobs]
        return made

    def ddl(self, sink: Sink, *statements: str) -> Checkpoint:
        for sql in statements:
            for change in self.changes(sql):
                point = self.point()
                sink.run_ddl(change, point, maybe_done=False)
        return point

    def table_rows(
        self, name: str, changes: Sequence[Change], transactions: Sequence[int] | None = None
    ) -> TableRows:
        table = self.catalog.table("shop", name)
        assert table is not None
        codec, kinds, rows = RowCodec(table), bytearray(), []
        for before, after in changes:
            if before is None:
                assert after is not None
                kinds.append(MutationType.INSERT)
                rows.append(codec.encode_insert(after))
            elif after is None:
                kinds.append(MutationType.DELETE)
                rows.append(codec.encode_delete(before))
            else:
                kinds.append(MutationType.UPDATE)
                rows.append(codec.encode_update(before, after))
        numbers = None if transactions is None else np.array(transactions, np.int32)
        return TableRows("shop", table, bytes(kinds), pa.array(rows, pa.binary()), numbers)

    def batch_of(self, transactions: Transactions, *, is_slice: bool = False) -> Batch:
        of_table: dict[str, list[tuple[int, Change]]] = {}
        for number, tables in enumerate(transactions.values()):
            for name, changes in tables.items():
                of_table.setdefault(name, []).extend((number, each) for each in changes)
        held = [
            self.table_rows(name, [each for _, each in some], [number for number, _ in some])
            for name, some in of_table.items()
        ]
        return Batch(
            1, held, displaces=is_slice, commit_ts=list(transactions),
            starts={ts: TransactionStart(ts - 1, self.origin) for ts in transactions},
        )  # fmt: skip

    def messages(self, sink: EventSink, batch: Batch, parts: int = 3) -> list[Messages]:
        units = encoded_units(batch, sink.encoding, parts)
        return [Messages.decode(answer(unit), batch.starts) for unit in units]


class LakeStream(SinkStream):
    """A stream for mirrors: batches are compacted."""

    dialect = ARROW

    def blocks(self, tables: dict[str, list[Change]]) -> list[bytes]:
        """Return a batch's blocks, in the order in which a sink gets them."""
        return self.in_order([answer(unit) for unit in self.units(tables)])

    def units(self, tables: dict[str, list[Change]]) -> list[bytes]:
        """Return a batch as tasks get it: compacted."""
        batch = Batch(1, [self.table_rows(name, changes) for name, changes in tables.items()])
        return [unit.encode() for unit in plan_units(batch, self.dialect)]

    def in_order(self, answers: list[bytes]) -> list[bytes]:
        """Return the blocks that tasks have answered with, in the order for a sink."""
        return list(in_order(map(Statements.decode, answers)))

    def put(self, sink: TableSink, **tables: list[Change]) -> Checkpoint:
        self.dialect = sink.dialect
        point = self.point()
        sink.apply(self.blocks(tables), point)
        return point


class ChangeStream(SinkStream):
    """A stream for change logs: a batch has every change of its transactions."""

    batch = SinkStream.batch_of

    def put(self, sink: EventSink, **tables: list[Change]) -> Checkpoint:
        point = self.point()
        sink.put(self.messages(sink, self.batch({point.commit_ts: tables})), point)
        return point


CREATE = "CREATE DATABASE shop; CREATE TABLE t (id INT PRIMARY KEY)"


class InsertStream(SinkStream):
    """A stream of rows that are inserted into one table, `t (id)`."""

    def batch(self, transactions: Mapping[int, Sequence[int]], *, is_slice: bool = False) -> Batch:
        made = {ts: {"t": inserts(*((i,) for i in ids))} for ts, ids in transactions.items()}
        return self.batch_of(made, is_slice=is_slice)

    def put(self, sink: EventSink, *ids: int) -> Checkpoint:
        point = self.point()
        sink.put(self.messages(sink, self.batch({point.commit_ts: ids})), point)
        return point

    def create(self, sink: EventSink) -> None:
        self.ddl(sink, CREATE)


def inserts(*rows: Row) -> list[Change]:
    return [(None, row) for row in rows]
