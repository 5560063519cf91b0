"""Copies of a table in SQLite, which different ways fill with the same changes."""

import sqlite3
from collections.abc import Iterable, Sequence
from typing import Any

import pyarrow as pa

from drainer.sinks.sqlite.ddl import create_indexes, create_table, stored_value
from drainer.sinks.sqlite.sink import exact_double
from drainer.task.sql.generate import generate_rows
from drainer.task.sql.literals import SQLITE
from drainer.task.sql.upserts import table_sql
from drainer.task.work_unit import Op
from penstock.schema.model import TableInfo
from penstock.wire.binlog import MutationType
from tests.kit.workloads.changes import Upstream, padded

Changes = list[tuple[MutationType, bytes]]


def database(table: TableInfo, *schemas: str, extra: str = "") -> sqlite3.Connection:
    """Return a database with the table `t` of each schema; `extra` is a column that it adds."""
    connection = sqlite3.connect(":memory:", isolation_level=None)
    connection.create_function("exact_double", 1, exact_double)
    for schema in schemas:
        name = f"`{schema}.t`"
        connection.execute(create_table(name, table))
        for index in create_indexes(name, table):
            connection.execute(index.replace("penstock.index", f"penstock.{schema}"))
        if extra:
            connection.execute(f"ALTER TABLE {name} ADD COLUMN {extra}")
    return connection


def run(connection: sqlite3.Connection, statements: Iterable[bytes]) -> None:
    for statement in statements:
        connection.execute(statement.decode())


def serial(table: TableInfo, changes: Changes) -> Sequence[bytes]:
    """Return the changes of `serial.t` one by one."""
    sql = table_sql(SQLITE, "serial", "t", table)
    kinds = [int(kind) for kind, _ in changes]
    rows = pa.array([data for _, data in changes], pa.binary())
    return generate_rows(sql, [Op.ORDERED] * len(kinds), kinds, rows).ordered


def content(connection: sqlite3.Connection, schema: str, columns: int | None = None) -> list[Any]:
    """Return the first columns of all rows, sorted."""
    rows = connection.execute(f"SELECT * FROM `{schema}.t`")
    return sorted((row[:columns] for row in rows), key=repr)


def expected(upstream: Upstream) -> list[Any]:
    """Return what a copy must hold."""
    columns = [i for i, c in enumerate(upstream.table.columns) if not c.is_generated]
    rows = [padded(upstream.table, row) for _, row in upstream.rows]
    return sorted((tuple(stored_value(row[i]) for i in columns) for row in rows), key=repr)
