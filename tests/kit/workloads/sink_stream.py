"""Streams for sinks: DDL, and batches of changes as a Drainer's tasks encode them."""

from drainer.sink_contract import (
    CREATE,
    Change,
    InsertStream,
    Row,
    SinkStream,
    Transactions,
    inserts,
)
from drainer.sinks.checkpoint import Checkpoint
from drainer.sinks.protocol import EventSink, TableSink
from drainer.task.compaction import plan_units
from drainer.task.events.event_unit import answer
from drainer.task.sql.literals import ARROW
from drainer.task.work_unit import Batch, Statements, in_order

__all__ = ["CREATE", "Change", "InsertStream", "LakeStream", "Row", "SinkStream", "Transactions",
           "inserts"]  # fmt: skip


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
