"""Merged batches against the original's way, into one MariaDB, in one run.

    merge     compaction, column-wise SQL, one connection, one transaction per batch
    original  16 connections, one statement per row, 20 rows per transaction

Both update every row of a filled table. Beside the wall clock, which a busy machine distorts
(sixteen threads get more of it than one), the CPU time per row of client and database is told.
Run it with `python -m tests.bench.apply_merge`.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa

from drainer.apply.compaction import plan_units
from drainer.apply.generate import generate
from drainer.apply.literals import MYSQL
from drainer.apply.rowwise import generate_rows
from drainer.apply.sql import table_sql
from drainer.apply.work import Op, Statements, WorkUnit, in_order
from drainer.sinks import Checkpoint, open_sink
from penstock.datum.rows import RowCodec
from penstock.model import MutationType
from tests.kit.changes import batch_of, table_of
from tests.kit.fix_mariadb import MariadbServer

SQL = (
    "CREATE TABLE t (id BIGINT PRIMARY KEY, ref BIGINT, name VARCHAR(40), city VARCHAR(40),"
    " qty INT, price DECIMAL(12,2), score DOUBLE, at DATETIME, note VARCHAR(255),"
    " raw VARBINARY(64), KEY qty (qty))"
)
CONNECTIONS = 16
ROWS_PER_TRANSACTION = 20


def row(i: int, version: int) -> tuple[Any, ...]:
    """Return one of the rows; every column but the key changes with the version."""
    return (
        i, i * 7 + version, f"name {i % 977} v{version}", f"it's city {i % 53}",
        (i * 31 + version) % 1000, f"{i % 10_000}.{version % 10}5", i / 7 + version,
        f"2022-04-27 04:05:{version % 60:02d}", f"a note of some length about row {i} " * 2,
        (i * 2654435761 + version).to_bytes(32, "little"),
    )  # fmt: skip


def batch(codec: RowCodec, rows: int, version: int) -> list[tuple[MutationType, bytes]]:
    """Return updates of all rows from one version to the next."""
    return [
        (MutationType.UPDATE, codec.encode_update(row(i, version), row(i, version + 1)))
        for i in range(rows)
    ]


def timed(what: dict[str, float], name: str, work: Callable[[], Any]) -> Any:
    """Return what `work` returns; add its wall time to `what`."""
    start = time.perf_counter()
    result = work()
    what[name] = what.get(name, 0.0) + time.perf_counter() - start
    return result


def merge(server: MariadbServer, schema: str, batches: list[Any], table: Any) -> dict[str, float]:
    """Apply all batches the merged way; return seconds by stage."""
    spent: dict[str, float] = {}
    sink = open_sink(server.url, cluster_id=1)
    sink.load_checkpoint()
    for number, changes in enumerate(batches, 1):
        made = batch_of(table, changes, schema=schema, number=number)
        units = timed(spent, "compact", lambda made=made: plan_units(made, 2, MYSQL))
        sent = timed(spent, "encode", lambda units=units: [unit.encode() for unit in units])
        got = [timed(spent, "decode", lambda unit=unit: WorkUnit.decode(unit)) for unit in sent]
        parts = timed(spent, "generate", lambda got=got: [generate(unit) for unit in got])
        back = timed(spent, "encode", lambda parts=parts: [part.encode() for part in parts])
        parts = timed(spent, "decode", lambda back=back: [Statements.decode(b) for b in back])
        point = Checkpoint(number, 1)
        timed(spent, "apply", lambda parts=parts, point=point: sink.apply(in_order(parts), point))
    sink.close()
    return spent


def original(server: MariadbServer, schema: str, changes: Any, table: Any) -> float:
    """Apply the changes the original's way; return seconds, statements made beforehand."""
    sql = table_sql(MYSQL, schema, "t", table)
    rows = pa.array([data for _, data in changes], pa.binary())
    count = len(changes)
    kinds = [int(kind) for kind, _ in changes]
    statements = generate_rows(sql, [Op.ORDERED] * count, kinds, rows).ordered
    connections = [server.connect() for _ in range(CONNECTIONS)]

    def work(which: int) -> None:
        connection = connections[which]
        mine = statements[which::CONNECTIONS]
        for start in range(0, len(mine), ROWS_PER_TRANSACTION):
            connection.begin()
            for statement in mine[start : start + ROWS_PER_TRANSACTION]:
                connection.query(statement)
            connection.commit()

    threads = [threading.Thread(target=work, args=(which,)) for which in range(CONNECTIONS)]
    for connection in connections:
        connection.query("SET sql_mode = 'NO_BACKSLASH_ESCAPES'")
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
    connection.query("SET sql_mode = 'NO_BACKSLASH_ESCAPES'")
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


def main() -> None:
    """Run both ways and print what they took as one JSON line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--batches", type=int, default=3)
    options = parser.parse_args()
    table = table_of(SQL)
    codec = RowCodec(table)
    with tempfile.TemporaryDirectory() as home:
        server = MariadbServer(Path(home))
        server.install()
        server.start()
        try:
            fill(server, "ours", codec, options.rows)
            fill(server, "theirs", codec, options.rows)
            batches = [batch(codec, options.rows, v) for v in range(options.batches)]
            start = cpu_s(server)
            theirs = original(server, "theirs", batches[0], table)
            middle = cpu_s(server)
            spent = merge(server, "ours", batches, table)
            end = cpu_s(server)
        finally:
            server.stop()
    rows = options.rows * options.batches
    total = sum(spent.values())
    ours_rate, their_rate = rows / total, options.rows / theirs
    print(
        json.dumps(
            {
                "rows_per_s": round(ours_rate),
                "original_rows_per_s": round(their_rate),
                "ratio": round(ours_rate / their_rate, 1),
                "us_per_row": {k: round(v / rows * 1e6, 2) for k, v in spent.items()},
                "cpu_us_per_row": per_row(middle, end, rows),
                "original_cpu_us_per_row": per_row(start, middle, options.rows),
                "client_us_per_row": round((total - spent["apply"]) / rows * 1e6, 2),
            }
        )
    )


if __name__ == "__main__":
    main()
