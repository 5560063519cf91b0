"""Histories, and the ways of bringing one into MariaDB that are measured against each other.

    snapshot   the Drainer's default: compaction, column-wise SQL, a transaction per batch
    parallel   the same in partitions, on separate connections
    classic    TiDB-Binlog's: 16 connections, one statement per row, 20 rows per transaction

All begin with row bytes and end with the last commit, in this process. As in a Drainer, the next
batch becomes SQL while the one before is being committed. The classic way spreads rows by their
keys before its time begins, so it needs no fences against conflicts.

Tables are sysbench's. A valid history of changes continues where the one before it ended:

    insert   new rows behind the old ones
    update   rows drawn evenly; one half of the updates changes the indexed `k`, the other `c`
    mixed    oltp_read_write's writes: of an even choice one row's `k`, one's `c`, and one deleted
             and inserted again
    zipf     updates as above, row number r of a shuffled table drawn as often as 1/r

A transaction has four changes, each in a table of its choice.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TypeVar

import psutil
import pyarrow as pa

from drainer.settings.config import ApplyConfig, DrainerConfig
from drainer.sinks.checkpoint import Checkpoint
from drainer.sinks.opening import open_table_sink
from drainer.sinks.protocol import PartitionedSink, TableSink
from drainer.task.compaction import plan_units
from drainer.task.partitions import PARTITION_BYTES_MIN, Partitions, arranged
from drainer.task.sql.generate import generate
from drainer.task.sql.literals import MYSQL
from drainer.task.sql.rows import can_meet_others
from drainer.task.sql.upserts import table_sql
from drainer.task.work_unit import Batch, Statements, TableRows, WorkUnit, in_order
from penstock.datum.rows.row_codec import RowCodec
from penstock.schema.model import TableInfo
from penstock.wire.binlog import MutationType
from tests.bench.rig import Figure, running, together
from tests.kit.servers.fix_mariadb import MariadbServer
from tests.kit.workloads.changes import table_of

T = TypeVar("T")

CONNECTIONS = 16
ROWS_PER_TRANSACTION = 20


@dataclass(frozen=True, kw_only=True)
class Spent:
    """What a way took: the wall clock, and the CPU of this process and of the database."""

    rows: int
    seconds: float
    client_s: float
    database_s: float

    @property
    def rate(self) -> float:
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


def against(
    name: str, ours: Spent, split: Spent, theirs: Spent, baseline: str, **more: object
) -> Figure:
    """Return the figure of mode snapshot, with that of mode parallel in its detail."""
    detail = {
        "cpu_us_per_row": ours.cpu_us_per_row,
        "baseline_cpu_us_per_row": theirs.cpu_us_per_row,
        "cpu_ratio": ours.cpu_ratio(theirs),
        "parallel_rows_per_s": round(split.rate),
        "parallel_cpu_us_per_row": split.cpu_us_per_row,
        "rows": ours.rows,
        **more,
        "baseline": baseline,
    }
    return Figure(name, ours.rate, "rows/s", theirs.rate, detail)


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
    return sum(len(table.rows) for batch in made for table in batch.tables)


def warm_up(made: Batch) -> None:
    """Let what is kept for each table be there, for both ways: it is made once in a run."""
    few = [replace(each, kinds=each.kind_array()[:1], rows=each.rows[:1]) for each in made.tables]
    for batch in (made, replace(made, tables=few)):
        _generated(batch)


def _sink(server: MariadbServer, cluster_id: int) -> TableSink:
    """Open the downstream for one cluster; each has its checkpoint in another table."""
    url = f"{server.url}?checkpoint-table=checkpoint_{cluster_id}"
    return open_table_sink(url, cluster_id=cluster_id)


def snapshot(server: MariadbServer, made: Sequence[Batch], *, cluster_id: int) -> Spent:
    with closing(_sink(server, cluster_id)) as sink:
        sink.load_checkpoint()

        def prepared(batch: Batch) -> Sequence[bytes]:
            return in_order(statements for _, statements in _generated(batch))

        def commit(statements: Sequence[bytes], checkpoint: Checkpoint) -> None:
            sink.apply(statements, checkpoint)

        return measured(server, rows_in(made), lambda: _piped(made, prepared, commit))


def parallel(server: MariadbServer, made: Sequence[Batch], *, cluster_id: int) -> Spent:
    connections = ApplyConfig().connections
    with closing(_sink(server, cluster_id)) as sink:
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
    server: MariadbServer, tables: Sequence[TableInfo], schema: str, history: Sequence[Transaction]
) -> Spent:
    queues: list[list[Change]] = [[] for _ in range(CONNECTIONS)]
    for transaction in history:
        for change in transaction:
            queues[hash((change.table, change.row_id)) % CONNECTIONS].append(change)
    writers = [RowWriter(schema, table) for table in tables]
    connections = [server.connect() for _ in queues]
    for connection in connections:
        connection.query("SET sql_mode = ''")
        connection.query("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED")

    def work(which: int) -> None:
        connection, mine = connections[which], queues[which]
        for start in range(0, len(mine), ROWS_PER_TRANSACTION):
            connection.begin()
            for change in mine[start : start + ROWS_PER_TRANSACTION]:
                connection.query(writers[change.table].statement(change))
            connection.commit()

    works = [partial(work, n) for n in range(CONNECTIONS)]
    spent = measured(server, sum(map(len, history)), lambda: together(works))
    for connection in connections:
        connection.close()
    return spent


class RowWriter:
    """One table's rows, each as a statement of its own."""

    def __init__(self, schema: str, table: TableInfo) -> None:
        self._sql = table_sql(MYSQL, schema, table.name, table)
        self._codec = RowCodec(table)

    def statement(self, change: Change) -> bytes:
        if change.kind is MutationType.INSERT:
            return self._sql.replace_one(self._codec.decode_insert(change.data))
        if change.kind is MutationType.DELETE:
            return self._sql.delete_one(self._codec.decode_delete(change.data))
        return self._sql.update_one(*self._codec.decode_update(change.data))


def _generated(batch: Batch) -> list[tuple[bool, Statements]]:
    """Return what the tasks make of a batch, and whether rows can be in others' way."""
    made = []
    for unit in plan_units(batch, MYSQL):
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


KINDS = ("update", "mixed", "zipf", "insert")
CHANGES_PER_TRANSACTION = 4
_TEXTS = 997
_K_MAX = 100_000
_ROWS_PER_INSERT = 1000

Row = tuple[int, int, str, str]
Transaction = Sequence["Change"]


@dataclass(frozen=True, slots=True)
class Change:
    """One row change: which table, how, the row bytes, and the row's id."""

    table: int
    kind: MutationType
    data: bytes
    row_id: int


def definition(name: str) -> str:
    """Return the CREATE TABLE; `name` may be quoted and have a schema."""
    return (
        f"CREATE TABLE {name} (id INT NOT NULL, k INT NOT NULL DEFAULT 0,"
        " c CHAR(120) NOT NULL DEFAULT '', pad CHAR(60) NOT NULL DEFAULT '',"
        " PRIMARY KEY (id), KEY k_1 (k))"
    )


class Tables:
    """`count` tables of `rows` rows each, as the upstream has them."""

    def __init__(self, count: int, rows: int) -> None:
        self._random = random.Random(count)
        draw = self._random.randrange
        self._texts = [
            "-".join(f"{draw(10**11):011d}" for _ in range(9)) for _ in range(_TEXTS)
        ]  # A row's own eleven digits come before them.
        self.infos: list[TableInfo] = [table_of(definition(f"sbtest{n}")) for n in range(count)]
        self._codecs = [RowCodec(info) for info in self.infos]
        self.first_rows = rows
        self._rows: list[list[Row]] = [
            [self._new_row(row_id) for row_id in range(rows)] for _ in range(count)
        ]
        self._shuffled = list(range(rows))
        self._random.shuffle(self._shuffled)

    def rows_of(self, table: int) -> list[Row]:
        """Return a table's rows as they are now, in key order."""
        return self._rows[table]

    def history(self, kind: str, changes: int) -> list[Transaction]:
        """Return about so many changes of a kind, in transactions; they have happened here."""
        count = changes // CHANGES_PER_TRANSACTION
        return [self._transaction(kind) for _ in range(count)]

    def _transaction(self, kind: str) -> Transaction:
        if kind == "insert":
            return [self._insert() for _ in range(CHANGES_PER_TRANSACTION)]
        if kind != "mixed":
            return [self._update(kind, i % 2 == 0) for i in range(CHANGES_PER_TRANSACTION)]
        table, row_id = self._drawn(kind)
        before = self._rows[table][row_id]
        after = self._rows[table][row_id] = self._new_row(row_id)
        codec = self._codecs[table]
        return [
            self._update(kind, True, but=(table, row_id)),
            self._update(kind, False, but=(table, row_id)),
            Change(table, MutationType.DELETE, codec.encode_delete(before), row_id),
            Change(table, MutationType.INSERT, codec.encode_insert(after), row_id),
        ]

    def _insert(self) -> Change:
        table = self._random.randrange(len(self._rows))
        rows = self._rows[table]
        row = self._new_row(len(rows))
        rows.append(row)
        return Change(table, MutationType.INSERT, self._codecs[table].encode_insert(row), row[0])

    def _update(self, kind: str, of_index: bool, but: tuple[int, int] = (-1, -1)) -> Change:
        while (place := self._drawn(kind)) == but:
            pass
        table, row_id = place
        before = self._rows[table][row_id]
        _, k, c, pad = before
        after = (row_id, k + 1, c, pad) if of_index else (row_id, k, self._text(10), pad)
        self._rows[table][row_id] = after
        data = self._codecs[table].encode_update(before, after)
        return Change(table, MutationType.UPDATE, data, row_id)

    def _drawn(self, kind: str) -> tuple[int, int]:
        table = self._random.randrange(len(self._rows))
        if kind == "zipf":
            rank = int((self.first_rows + 1) ** self._random.random()) - 1
            return table, self._shuffled[min(rank, self.first_rows - 1)]
        return table, self._random.randrange(len(self._rows[table]))

    def _new_row(self, row_id: int) -> Row:
        k = self._random.randrange(1, _K_MAX)
        return row_id, k, self._text(10), self._text(5)

    def _text(self, groups: int) -> str:
        own = f"{self._random.randrange(10**11):011d}-"
        return own + self._texts[self._random.randrange(_TEXTS)][: 12 * groups - 13]


def database(home: Path, *options: str) -> AbstractContextManager[MariadbServer]:
    sizes = ("--innodb-log-file-size=1G", "--local-infile=ON")
    return running(MariadbServer(home, buffer_pool_mib=2048, options=(*sizes, *options)))


def fill(server: MariadbServer, tables: Tables, schemas: Sequence[str]) -> None:
    """Create the tables in all schemas, with the rows they have now."""
    with server.connect() as connection, connection.cursor() as cursor:
        first, *others = schemas
        for schema in schemas:
            cursor.execute(f"CREATE DATABASE {schema}")
        for number in range(len(tables.infos)):
            cursor.execute(definition(f"{first}.sbtest{number}"))
            rows = tables.rows_of(number)
            for start in range(0, len(rows), _ROWS_PER_INSERT):
                texts = ",".join(map(str, rows[start : start + _ROWS_PER_INSERT]))
                cursor.execute(f"INSERT INTO {first}.sbtest{number} VALUES {texts}")
            for schema in others:
                cursor.execute(definition(f"{schema}.sbtest{number}"))
                cursor.execute(
                    f"INSERT INTO {schema}.sbtest{number} SELECT * FROM {first}.sbtest{number}"
                )


def batches(
    tables: Tables, history: Sequence[Transaction], schema: str, first: int
) -> Iterator[Batch]:
    """Yield the history as a Drainer cuts it by default, numbered from `first`."""
    limits = DrainerConfig()
    changes: list[Change] = []
    size_bytes = 0
    for transaction in history:
        changes += transaction
        size_bytes += sum(len(change.data) for change in transaction)
        if len(changes) >= limits.batch_rows_max or size_bytes >= limits.batch_bytes_max:
            yield _batch(tables, changes, schema, first)
            changes, size_bytes, first = [], 0, first + 1
    if changes:
        yield _batch(tables, changes, schema, first)


def _batch(tables: Tables, changes: Sequence[Change], schema: str, number: int) -> Batch:
    by_table: dict[int, tuple[bytearray, list[bytes]]] = {}
    for change in changes:
        kinds, rows = by_table.setdefault(change.table, (bytearray(), []))
        kinds.append(change.kind)
        rows.append(change.data)
    return Batch(
        number,
        [
            TableRows(schema, tables.infos[which], bytes(kinds), pa.array(rows, pa.binary()))
            for which, (kinds, rows) in by_table.items()
        ],
    )
