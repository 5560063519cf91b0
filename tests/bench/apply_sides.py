"""The ways of bringing one history into MariaDB that are measured against each other.

    snapshot   the Drainer's default: compaction, column-wise SQL, a transaction per batch
    parallel   the same in partitions, on connections of their own
    classic    TiDB-Binlog's: 16 connections, one statement per row, 20 rows per transaction

All begin with row bytes and end with the last commit, in this process. As in a Drainer, the next
batch becomes SQL while the one before is being committed. The classic way spreads rows by their
keys before its time begins, so it needs no fences against conflicts.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, replace
from typing import TypeVar

import psutil

from drainer.apply.strategies import PARTITION_BYTES_MIN, arranged
from drainer.settings.config import ApplyConfig
from drainer.sinks.checkpoint import Checkpoint
from drainer.sinks.opening import open_table_sink
from drainer.sinks.protocol import PartitionedSink, Partitions
from drainer.task.compaction import plan_units
from drainer.task.sql.generate import generate
from drainer.task.sql.literals import MYSQL
from drainer.task.sql.rows import can_meet_others
from drainer.task.sql.table_sql import table_sql
from drainer.task.work_unit import Batch, Statements, WorkUnit, in_order
from penstock.datum.rows.row_codec import RowCodec
from penstock.schema.model import TableInfo
from penstock.wire.binlog import MutationType
from tests.bench.sysbench import Change, Tables, Transaction
from tests.kit.servers.fix_mariadb import MariadbServer

T = TypeVar("T")

CONNECTIONS = 16
ROWS_PER_TRANSACTION = 20
_PARTS = 2  # As many as a Drainer on two cores has tasks.


@dataclass(frozen=True, kw_only=True)
class Spent:
    """What a way took: the wall clock, and the CPU of this process and of the database."""

    rows: int
    seconds: float
    client_s: float
    database_s: float

    @property
    def rate(self) -> float:
        """Row changes per second."""
        return self.rows / self.seconds

    @property
    def cpu_us_per_row(self) -> dict[str, float]:
        """CPU microseconds for each row change."""
        return {
            "client": round(self.client_s / self.rows * 1e6, 1),
            "database": round(self.database_s / self.rows * 1e6, 1),
        }

    def cpu_ratio(self, baseline: Spent) -> float:
        """Return how much more CPU the baseline takes for a row, here and in the database."""
        own, other = ((s.client_s + s.database_s) / s.rows for s in (self, baseline))
        return round(other / own, 2)


def measured(server: MariadbServer, rows: int, work: Callable[[], object]) -> Spent:
    """Return what `work` took on `rows` row changes."""
    database = psutil.Process(server.pid)
    before, client_s, begun_s = database.cpu_times(), time.process_time(), time.perf_counter()
    work()
    seconds, client_s = time.perf_counter() - begun_s, time.process_time() - client_s
    after = database.cpu_times()
    spent_s = after.user + after.system - before.user - before.system
    return Spent(rows=rows, seconds=seconds, client_s=client_s, database_s=spent_s)


def rows_in(made: Sequence[Batch]) -> int:
    """Return how many row changes there are."""
    return sum(len(table.rows) for batch in made for table in batch.tables)


def warm_up(made: Batch) -> None:
    """Let what is kept for each table be there, for both ways: it is made once in a run."""
    few = [replace(each, kinds=each.kind_array()[:1], rows=each.rows[:1]) for each in made.tables]
    for batch in (made, replace(made, tables=few)):
        _generated(batch)


def snapshot(server: MariadbServer, made: Sequence[Batch], *, cluster_id: int) -> Spent:
    """Apply the batches in mode snapshot."""
    with closing(open_table_sink(server.url, cluster_id=cluster_id)) as sink:
        sink.load_checkpoint()

        def prepared(batch: Batch) -> Sequence[bytes]:
            return in_order(statements for _, statements in _generated(batch))

        def commit(statements: Sequence[bytes], checkpoint: Checkpoint) -> None:
            sink.apply(statements, checkpoint)

        return measured(server, rows_in(made), lambda: _piped(made, prepared, commit))


def parallel(server: MariadbServer, made: Sequence[Batch], *, cluster_id: int) -> Spent:
    """Apply the batches in mode parallel."""
    connections = ApplyConfig().connections
    with closing(open_table_sink(server.url, cluster_id=cluster_id)) as sink:
        assert isinstance(sink, PartitionedSink)
        start = sink.load_checkpoint() or Checkpoint(0, 1)

        def prepared(batch: Batch) -> Partitions:
            partitions = arranged(
                _generated(batch), connections=connections, bytes_min=PARTITION_BYTES_MIN
            )
            assert partitions.content or not partitions.phases  # Computed here, as in a Drainer.
            return partitions

        def commit(partitions: Partitions, checkpoint: Checkpoint) -> None:
            sink.apply_partitions(partitions, checkpoint, start)

        return measured(server, rows_in(made), lambda: _piped(made, prepared, commit))


def classic(
    server: MariadbServer, tables: Tables, schema: str, history: Sequence[Transaction]
) -> Spent:
    """Apply the history as TiDB-Binlog does."""
    queues: list[list[Change]] = [[] for _ in range(CONNECTIONS)]
    for transaction in history:
        for change in transaction:
            queues[hash((change.table, change.row_id)) % CONNECTIONS].append(change)
    writers = [RowWriter(schema, table) for table in tables.infos]
    connections = [server.connect() for _ in queues]
    for connection in connections:
        connection.query("SET sql_mode = ''")
        connection.query("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED")
    failures: list[BaseException] = []

    def work(which: int) -> None:
        connection, mine = connections[which], queues[which]
        try:
            for start in range(0, len(mine), ROWS_PER_TRANSACTION):
                connection.begin()
                for change in mine[start : start + ROWS_PER_TRANSACTION]:
                    connection.query(writers[change.table].statement(change))
                connection.commit()
        except BaseException as error:
            failures.append(error)

    def run() -> None:
        threads = [threading.Thread(target=work, args=(n,)) for n in range(CONNECTIONS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    spent = measured(server, sum(map(len, history)), run)
    for connection in connections:
        connection.close()
    if failures:
        raise failures[0]
    return spent


class RowWriter:
    """One table's rows, each as a statement of its own."""

    def __init__(self, schema: str, table: TableInfo) -> None:
        self._sql = table_sql(MYSQL, schema, table.name, table)
        self._codec = RowCodec(table)

    def statement(self, change: Change) -> bytes:
        """Return what TiDB-Binlog runs for a change."""
        if change.kind is MutationType.INSERT:
            return self._sql.replace_one(self._codec.decode_insert(change.data))
        if change.kind is MutationType.DELETE:
            return self._sql.delete_one(self._codec.decode_delete(change.data))
        return self._sql.update_one(*self._codec.decode_update(change.data))


def _generated(batch: Batch) -> list[tuple[bool, Statements]]:
    """Return what the tasks make of a batch, and whether rows can be in others' way."""
    made = []
    for unit in plan_units(batch, _PARTS, MYSQL):
        sent = WorkUnit.decode(unit.encode())
        answer = Statements.decode(generate(sent).encode())
        made.append((can_meet_others(unit.table), answer))
    return made


def _piped(
    made: Sequence[Batch], prepared: Callable[[Batch], T], commit: Callable[[T, Checkpoint], None]
) -> None:
    """Commit batch after batch, the next one being prepared meanwhile."""
    with ThreadPoolExecutor(1) as ahead:
        coming = ahead.submit(prepared, made[0])
        for batch, following in zip(made, (*made[1:], None), strict=True):
            ready = coming.result()
            if following is not None:
                coming = ahead.submit(prepared, following)
            commit(ready, Checkpoint(batch.batch_id, 1))
