"""Downstreams as an operator meets them, who works there by hand: a file, and a server."""

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any, Protocol

from drainer.sinks.sqlite.ddl import create_indexes, create_table
from penstock.ddl import SchemaChange
from penstock.local.sql_server import SqlServer
from penstock.schema.model import MysqlType, TableInfo
from tests.kit.fakes.local_drainer import CLUSTER


class OperatedDownstream(Protocol):
    """A downstream as an operator sees it, who works there by hand."""

    url: str

    def name(self, schema: str, table: str) -> str:
        """Return a table's name, quoted."""

    def query(self, sql: str) -> list[tuple[Any, ...]]:
        """Return a statement's rows; it is done when this returns."""

    def stored(self) -> str | None:
        """Return the checkpoint's row."""

    def databases(self, change: SchemaChange) -> list[str]:
        """Return what makes and drops a change's databases."""

    def create(self, schema: str, table: TableInfo) -> list[str]:
        """Return what makes a table that is not there."""


class SqliteFile:
    """A file, which has no databases and one name space for all indexes."""

    def __init__(self, path: Path) -> None:
        self.url = f"sqlite:///{path}"
        self._path = path

    def name(self, schema: str, table: str) -> str:
        return f"`{schema}.{table}`"

    def query(self, sql: str) -> list[tuple[Any, ...]]:
        with closing(sqlite3.connect(self._path, isolation_level=None)) as connection:
            connection.execute("PRAGMA legacy_alter_table = ON")
            return connection.execute(sql).fetchall()

    def stored(self) -> str | None:
        sql = f"SELECT checkPoint FROM `tidb_binlog.checkpoint` WHERE clusterID = '{CLUSTER}'"
        found = self.query(sql)
        return found[0][0] if found else None

    def databases(self, change: SchemaChange) -> list[str]:
        return []

    def create(self, schema: str, table: TableInfo) -> list[str]:
        name = self.name(schema, table.name)
        # An index that stayed under an older name may be there.
        gone = [f"DROP INDEX IF EXISTS `penstock.index.{table.id}.{i.id}`" for i in table.indexes]
        return [*gone, create_table(name, table), *create_indexes(name, table)]


class Server:
    """A MySQL or MariaDB server."""

    def __init__(self, server: SqlServer) -> None:
        self.url = server.url
        self._server = server

    def name(self, schema: str, table: str) -> str:
        return f"`{schema}`.`{table}`"

    def query(self, sql: str) -> list[tuple[Any, ...]]:
        return self._server.query(sql)

    def stored(self) -> str | None:
        sql = f"SELECT checkPoint FROM tidb_binlog.checkpoint WHERE clusterID = {CLUSTER}"
        found = self.query(sql)
        return found[0][0] if found else None

    def databases(self, change: SchemaChange) -> list[str]:
        dropped = [f"DROP DATABASE IF EXISTS `{name}`" for name in change.schemas_dropped]
        return dropped + [f"CREATE DATABASE IF NOT EXISTS `{n}`" for n in change.schemas_created]

    def create(self, schema: str, table: TableInfo) -> list[str]:
        kinds = {MysqlType.LONG: "INT", MysqlType.LONGLONG: "BIGINT"}
        parts = [f"`{c.name}` {kinds[MysqlType(c.tp)]}" for c in table.columns]
        for index in table.indexes:
            names = ", ".join(f"`{c.name}`" for c in index.columns)
            parts.append(
                f"PRIMARY KEY ({names})" if index.primary else f"KEY `{index.name}` ({names})"
            )
        name = self.name(schema, table.name)
        return [
            f"CREATE DATABASE IF NOT EXISTS `{schema}`",
            f"CREATE TABLE {name} ({', '.join(parts)})",
        ]
