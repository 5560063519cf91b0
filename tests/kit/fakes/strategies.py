"""One batch of several tables through every strategy, each into a schema of its own on a server."""

import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from drainer.apply.statements import in_commit_order, is_crossing, links_of, spread
from drainer.sinks.checkpoint import Checkpoint
from drainer.sinks.mysql.sink import MysqlSink
from drainer.sinks.opening import open_sink
from drainer.task.compaction import plan_units
from drainer.task.partitions import arranged
from drainer.task.sql.generate import answer, generate
from drainer.task.sql.literals import MYSQL
from drainer.task.sql.row_statements import RowStatements
from drainer.task.sql.rows import can_meet_others
from drainer.task.work_unit import (
    ROWS_SCHEMA,
    Batch,
    Bounds,
    Op,
    Statements,
    TableRows,
    WorkUnit,
    in_order,
)
from penstock.schema.model import TableInfo
from penstock.wire.binlog import MutationType
from tests.kit.servers.fix_mariadb import MariadbServer

STRATEGIES = ("snapshot", "parallel", "statements")
_START = Checkpoint(0, 0)
_SMALL = Bounds(rowwise_max=0, statement_rows_max=2)
"""A few rows are columns, and enough for several statements."""


class RowChange(NamedTuple):
    """One row change as it is in the stream; changes of one transaction have one number."""

    table: TableInfo
    transaction: int
    kind: MutationType
    row: bytes


class Strategies:
    """The Drainer's ways to one downstream, side by side; close it."""

    def __init__(self, server: MariadbServer) -> None:
        self._clock = itertools.count(1)
        self._sinks: dict[str, MysqlSink] = {}
        for number, way in enumerate(STRATEGIES, 11):
            sink = open_sink(f"{server.url}?checkpoint-table=of_{number}", cluster_id=number)
            assert isinstance(sink, MysqlSink)
            self._sinks[way] = sink
            sink.save_checkpoint(sink.load_checkpoint() or _START)

    def close(self) -> None:
        for sink in self._sinks.values():
            sink.close()

    def apply(self, changes: Sequence[RowChange], *, queues: int = 3, safe: bool = False) -> None:
        """Apply one batch in every way."""
        if not changes:
            return
        for way in STRATEGIES:
            batch = Batch(1, _tables(way, changes))
            getattr(self, f"_{way}")(batch, queues, safe)

    def _point(self) -> Checkpoint:
        return Checkpoint(next(self._clock), 1)

    def _snapshot(self, batch: Batch, queues: int, safe: bool) -> None:
        made = [statements for _, statements in _generated(batch)]
        self._sinks["snapshot"].apply(in_order(made), self._point())

    def _parallel(self, batch: Batch, queues: int, safe: bool) -> None:
        work = arranged(_generated(batch), connections=queues, bytes_min=1)
        self._sinks["parallel"].apply_partitions(work, self._point(), _START)

    def _statements(self, batch: Batch, queues: int, safe: bool) -> None:
        sink = self._sinks["statements"]
        numbers = [np.asarray(each.transactions, np.int32) for each in batch.tables]
        keys = sink.foreign_keys()
        units = [
            _each(rows, links_of(rows.schema, rows.table, keys), safe) for rows in batch.tables
        ]
        changes = in_commit_order(units, numbers)
        if not safe and is_crossing(changes):
            self._statements(batch, queues, safe=True)
            return
        work = spread(changes, queues=queues, statements_max=2, safe=safe)
        missed = sink.apply_split(work, self._point(), _START)
        assert not missed.count, missed


def _tables(schema: str, changes: Sequence[RowChange]) -> list[TableRows]:
    tables = dict.fromkeys(each.table for each in changes)
    made = []
    for table in tables:
        mine = [each for each in changes if each.table is table or each.table == table]
        kinds = bytes(int(each.kind) for each in mine)
        rows = pa.array([each.row for each in mine], pa.binary())
        numbers = np.array([each.transaction for each in mine], np.int32)
        made.append(TableRows(schema, table, kinds, rows, numbers))
    return made


def _generated(batch: Batch) -> list[tuple[bool, Statements]]:
    made = []
    for unit in plan_units(batch, MYSQL, _SMALL):
        meets = can_meet_others(unit.table)
        made.append((meets, generate(WorkUnit.decode(unit.encode()), _SMALL)))
    return made


def _each(rows: TableRows, links: Any, safe: bool) -> RowStatements:
    count = len(rows.rows)
    columns = [
        pa.array([int(Op.SAFE if safe else Op.EACH)] * count, pa.uint8()),
        pa.array(rows.kind_array()),
        rows.rows.cast(pa.large_binary()),
    ]
    record = pa.RecordBatch.from_arrays(columns, schema=ROWS_SCHEMA)
    table = rows.table
    unit = WorkUnit(1, 0, MYSQL, rows.schema, table.name, table, record, links=links)
    return RowStatements.decode(answer(unit.encode()))
