"""A stream for lakes: DDL, and batches of changes in the blocks that a Drainer's tasks make."""

from __future__ import annotations

import itertools

import pyarrow as pa

from drainer.sinks.checkpoint import Checkpoint
from drainer.sinks.protocol import TableSink
from drainer.task.answers import answer
from drainer.task.compaction import plan_units
from drainer.task.sql.literals import ARROW
from drainer.task.work_unit import Batch, Statements, TableRows, in_order
from penstock.datum.rows.row_codec import RowCodec
from penstock.ddl import Catalog, SchemaChange, plan_ddl
from penstock.wire.binlog import MutationType

Row = tuple[object, ...]
Change = tuple[Row | None, Row | None]
"""A row before and after; None where there is none."""


class LakeStream:
    """Hands out changes and the checkpoints that go with them, in commit order."""

    def __init__(self) -> None:
        self.catalog = Catalog()
        self._ids = itertools.count(1)
        self.ts = 100

    def point(self) -> Checkpoint:
        """Return the next checkpoint."""
        self.ts += 1
        return Checkpoint(commit_ts=self.ts, schema_version=self.catalog.version)

    def changes(self, sql: str) -> list[SchemaChange]:
        """Return what a statement does, which is done then."""
        jobs = plan_ddl(sql, "shop", self.catalog, lambda: next(self._ids))
        return [self.catalog.apply(job) for job in jobs]

    def ddl(self, sink: TableSink, *statements: str) -> Checkpoint:
        """Run statements in a sink, and return the last checkpoint."""
        for sql in statements:
            for change in self.changes(sql):
                point = self.point()
                sink.run_ddl(change, point, maybe_done=False)
        return point

    def blocks(self, tables: dict[str, list[Change]], parts: int = 2) -> list[bytes]:
        """Return a batch's blocks, in the order in which a sink gets them."""
        return self.in_order([answer(unit) for unit in self.units(tables, parts)])

    def units(self, tables: dict[str, list[Change]], parts: int) -> list[bytes]:
        """Return a batch as tasks get it: compacted."""
        batch = Batch(1, [self._rows(name, changes) for name, changes in tables.items()])
        return [unit.encode() for unit in plan_units(batch, parts, ARROW)]

    def in_order(self, answers: list[bytes]) -> list[bytes]:
        """Return the blocks that tasks have answered with, in the order for a sink."""
        return list(in_order(map(Statements.decode, answers)))

    def put(self, sink: TableSink, **tables: list[Change]) -> Checkpoint:
        """Bring a batch of changes of these tables into a sink."""
        point = self.point()
        sink.apply(self.blocks(tables), point)
        return point

    def _rows(self, name: str, changes: list[Change]) -> TableRows:
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
        return TableRows("shop", table, bytes(kinds), pa.array(rows, pa.binary()))


def inserts(*rows: Row) -> list[Change]:
    """Return the inserts of some rows."""
    return [(None, row) for row in rows]
