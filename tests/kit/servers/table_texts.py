"""Whole tables as texts, in one spelling for TiDB, MariaDB and SQLite, to hold against each other.

numbers with a fraction   as the server spells them
FLOAT, DOUBLE             Python's shortest spelling
BIT                       the number
binary strings            hexadecimal
JSON                      sorted, in Python's spelling
everything else           as the server spells it
"""

import json
import sqlite3
from collections import Counter
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from penstock.local.sql_server import SqlProcess

Row = tuple[str | None, ...]
Rows = Counter[Row]

_BINARY = {"binary", "varbinary", "tinyblob", "blob", "mediumblob", "longblob"}
_FLOATS = {"float", "double"}


@dataclass(frozen=True, slots=True)
class Column:
    """A column by its name and its type as the upstream calls it, without a length."""

    name: str
    type: str


class Side(Protocol):
    """A database whose tables are read."""

    def tables(self, schema: str) -> list[str]:
        """Return the names of all tables of a schema, views apart."""

    def columns(self, schema: str, table: str) -> list[Column]:
        """Return the columns in their order; only of a server."""

    def column_names(self, schema: str, table: str) -> set[str]:
        """Return the names of the columns that are there."""

    def rows(self, schema: str, table: str, columns: list[Column]) -> Rows:
        """Return all rows, each as often as it is there."""


class SqlSide:
    """A server."""

    def __init__(self, server: SqlProcess) -> None:
        self.server = server

    def tables(self, schema: str) -> list[str]:
        found = self.server.query(
            "SELECT table_name FROM information_schema.tables"
            f" WHERE table_schema = '{schema}' AND table_type = 'BASE TABLE' ORDER BY table_name"
        )
        return [str(name) for (name,) in found]

    def columns(self, schema: str, table: str) -> list[Column]:
        found = self.server.query(
            "SELECT column_name, data_type FROM information_schema.columns WHERE"
            f" table_schema = '{schema}' AND table_name = '{table}' ORDER BY ordinal_position"
        )
        return [Column(str(name), str(kind).lower()) for name, kind in found]

    def column_names(self, schema: str, table: str) -> set[str]:
        return {column.name for column in self.columns(schema, table)}

    def rows(self, schema: str, table: str, columns: list[Column]) -> Rows:
        chosen = ", ".join(_expression(column) for column in columns)
        found = self.server.query(f"SELECT {chosen} FROM `{schema}`.`{table}`")
        return Counter(_texts(row, columns) for row in found)


class SqliteSide:
    """A file, where a table is named `schema.table`."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def tables(self, schema: str) -> list[str]:
        names = self._query("SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name")
        prefix = f"{schema}."
        return [name.removeprefix(prefix) for (name,) in names if name.startswith(prefix)]

    def columns(self, schema: str, table: str) -> list[Column]:
        raise NotImplementedError("types are the upstream's")

    def column_names(self, schema: str, table: str) -> set[str]:
        return {row[1] for row in self._query(f'PRAGMA table_info("{schema}.{table}")')}

    def rows(self, schema: str, table: str, columns: list[Column]) -> Rows:
        chosen = ", ".join(f'"{column.name}"' for column in columns)
        found = self._query(f'SELECT {chosen} FROM "{schema}.{table}"')
        return Counter(_texts(row, columns) for row in found)

    def _query(self, sql: str) -> list[tuple[Any, ...]]:
        with closing(sqlite3.connect(self.path)) as connection:
            return connection.execute(sql).fetchall()


def difference(side: str, table: str, found: Rows, expected: Rows) -> str:
    missing, extra = expected - found, found - expected
    return (
        f"{table} in {side}: {missing.total()} rows are missing, such as {list(missing)[:3]};"
        f" {extra.total()} are there that should not be, such as {list(extra)[:3]}"
    )


def _expression(column: Column) -> str:
    name = f"`{column.name}`"
    if column.type in _BINARY:
        return f"HEX({name})"
    if column.type == "bit":
        return f"CAST({name} AS UNSIGNED)"
    return name if column.type in _FLOATS else f"CAST({name} AS CHAR)"


def _texts(row: tuple[Any, ...], columns: list[Column]) -> Row:
    return tuple(_text(value, column.type) for value, column in zip(row, columns, strict=True))


def _text(value: Any, kind: str) -> str | None:
    if value is None:
        return None
    if isinstance(value, bytes) and kind in _BINARY:
        return value.hex().upper()
    if isinstance(value, bytes):
        value = value.decode()
    if kind in _FLOATS:
        return repr(float(value))
    if kind == "json":
        return json.dumps(json.loads(value), sort_keys=True)
    return str(value)
