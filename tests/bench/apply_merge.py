"""Merged batches against TiDB-Binlog's way, into one MariaDB, in one run.

    merge        compaction, column-wise SQL, one connection, one transaction per batch
    TiDB-Binlog  16 connections, one statement per row, 20 rows per transaction

Both start from the same row bytes and update every row of a filled table. Beside the wall clock,
which a busy machine distorts (sixteen threads get more of it than one), the CPU time per row of
client and database is measured.
"""

import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa

from drainer.sinks.checkpoint import Checkpoint
from drainer.sinks.opening import open_table_sink
from drainer.task.compaction import plan_units
from drainer.task.sql.generate import generate, generate_rows
from drainer.task.sql.literals import MYSQL
from drainer.task.sql.table_sql import table_sql
from drainer.task.work_unit import Op, Statements, WorkUnit, in_order
from penstock.datum.rows.row_codec import RowCodec
from penstock.wire.binlog import MutationType
from tests.bench.figure import Figure
from tests.kit.servers.fix_mariadb import MariadbServer
from tests.kit.workloads.changes import batch_of, table_of

SQL = (
    "CREATE TABLE t (id BIGINT PRIMARY KEY, ref BIGINT, name VARCHAR(40), city VARCHAR(40),"
    " qty INT, price DECIMAL(12,2), score DOUBLE, at DATETIME, note VARCHAR(255),"
    " raw VARBINARY(64), KEY qty (qty))"
)
ROWS = 20_000
BATCHES = 8
CONNECTIONS = 16
ROWS_PER_TRANSACTION = 20


def row(i: int, version: int) -> tuple[Any, ...]:
    """Return one of the rows; a version changes half of its columns, the indexed ones apart."""
    return (
        i, i * 7 + version, f"name {i % 977}", f"it's city {i % 53}",
        i * 31 % 1000, f"{i % 10_000}.{version % 10}5", i / 7 + version,
        f"2022-04-27 04:05:{version % 60:02d}", f"a note of some length about row {i} " * 2,
        (i * 2654435761 + version).to_bytes(32, "little"),
    )  # fmt: skip


def batch(codec: RowCodec, rows: int, version: int) -> list[tuple[MutationType, bytes]]:
    """Return updates of all rows from one version to the next."""
    return [
        (MutationType.UPDATE, codec.encode_update(row(i, version), row(i, version + 1)))
        for i in range(rows)
    ]


def merge(server: MariadbServer, schema: str, batches: list[Any], table: Any) -> float:
    """Apply all batches the merged way; return seconds.

    As in a Drainer, the next batch becomes SQL while the one before is being committed.
    """

    def prepared(number: int) -> Sequence[bytes]:
        made = batch_of(table, batches[number], schema=schema, number=number + 1)
        sent = [unit.encode() for unit in plan_units(made, 2, MYSQL)]
        parts = [generate(WorkUnit.decode(unit)).encode() for unit in sent]
        return in_order(Statements.decode(part) for part in parts)

    sink = open_table_sink(server.url, cluster_id=1)
    sink.load_checkpoint()
    start = time.perf_counter()
    with ThreadPoolExecutor(1) as ahead:
        coming = ahead.submit(prepared, 0)
        for number in range(len(batches)):
            statements = coming.result()
            if number + 1 < len(batches):
                coming = ahead.submit(prepared, number + 1)
            sink.apply(statements, Checkpoint(number + 1, 1))
    spent = time.perf_counter() - start
    sink.close()
    return spent


def row_by_row(server: MariadbServer, schema: str, changes: Any, table: Any) -> float:
    """Apply the changes as TiDB-Binlog does; return seconds, from the same row bytes to commits."""
    sql = table_sql(MYSQL, schema, "t", table)
    connections = [server.connect() for _ in range(CONNECTIONS)]

    def work(which: int) -> None:
        connection = connections[which]
        mine = changes[which::CONNECTIONS]
        for start in range(0, len(mine), ROWS_PER_TRANSACTION):
            some = mine[start : start + ROWS_PER_TRANSACTION]
            kinds = [int(kind) for kind, _ in some]
            rows = pa.array([data for _, data in some], pa.binary())
            connection.begin()
            for statement in generate_rows(sql, [Op.ORDERED] * len(some), kinds, rows).ordered:
                connection.query(statement)
            connection.commit()

    threads = [threading.Thread(target=work, args=(which,)) for which in range(CONNECTIONS)]
    for connection in connections:
        connection.query("SET sql_mode = ''")
    start = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    spent = time.perf_counter() - start
    for connection in connections:
        connection.close()
    return spent


def fill(server: MariadbServer, schema: str, codec: RowCodec, rows: int) -> None:
    """Create the table with version 0 of all rows."""
    server.query(f"CREATE DATABASE {schema}")
    server.query(SQL.replace("TABLE t", f"TABLE {schema}.t"))
    changes = [(MutationType.INSERT, codec.encode_insert(row(i, 0))) for i in range(rows)]
    units = plan_units(batch_of(codec.table, changes, schema=schema), 1, MYSQL)
    connection = server.connect()
    connection.query("SET sql_mode = ''")
    for statement in in_order(generate(unit) for unit in units):
        connection.query(statement)
    connection.close()


def cpu_s(server: MariadbServer) -> tuple[float, float]:
    """Return the CPU seconds that we and the database have used so far."""
    times = psutil.Process(server.pid).cpu_times()
    return time.process_time(), times.user + times.system


def per_row(start: tuple[float, float], end: tuple[float, float], rows: int) -> dict[str, float]:
    """Return CPU microseconds per row between two readings."""
    client, database = ((b - a) / rows * 1e6 for a, b in zip(start, end, strict=True))
    return {"client": round(client, 2), "database": round(database, 2)}


def measure(home: Path) -> Iterator[Figure]:
    """Yield rows/s over existing rows; the baseline updates the same rows as TiDB-Binlog does."""
    table = table_of(SQL)
    codec = RowCodec(table)
    server = MariadbServer(home / "mariadb")
    server.install()
    server.start()
    try:
        fill(server, "ours", codec, ROWS)
        fill(server, "theirs", codec, ROWS)
        batches = [batch(codec, ROWS, version) for version in range(BATCHES)]
        start = cpu_s(server)
        theirs_s = row_by_row(server, "theirs", batches[0], table)
        middle = cpu_s(server)
        ours_s = merge(server, "ours", batches, table)
        end = cpu_s(server)
        row_by_row(server, "theirs", [c for each in batches[1:] for c in each], table)
        same = [server.query(f"CHECKSUM TABLE {name}.t")[0][1] for name in ("ours", "theirs")]
        assert same[0] == same[1], "the two ways ended with different rows"
    finally:
        server.stop()
    yield Figure(
        name="apply.merge.existing",
        value=ROWS * BATCHES / ours_s,
        unit="rows/s",
        baseline=ROWS / theirs_s,
        detail={
            "cpu_us_per_row": per_row(middle, end, ROWS * BATCHES),
            "baseline_cpu_us_per_row": per_row(start, middle, ROWS),
            "baseline": "16 connections, one row per statement, 20 rows per transaction",
        },
    )
