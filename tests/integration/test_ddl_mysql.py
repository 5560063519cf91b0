"""What the catalog says after a MySQL's DDL is what a MySQL, and a newer MariaDB, say after it."""

import re
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pymysql
import pytest

from penstock.ddl.rewrite.foreign import spelled_for
from penstock.ddl.syntax.statements import Flavor
from penstock.local.sql_server import SqlServer
from penstock.schema.model import DdlJob, DdlType, TableInfo
from tests.kit.servers.binlog_server import KINDS, MYSQL, on_servers
from tests.kit.servers.fix_mariadb import drop_user_databases
from tests.unit.penstock.ddl_session import DdlSession
from tests.unit.penstock.test_ddl_property import run

HISTORY = Path(__file__).with_name("ddl_mysql.sql")
_OURS = "table_schema = 'd'"


def lines() -> list[str]:
    found = HISTORY.read_text().splitlines()
    return [line for line in found if line and not line.startswith("--")]


_NO_SUCH_KEY = 1176


class SpelledSession(DdlSession):
    """Runs on a server what it plans, as that server can read it."""

    def __init__(self, connection: Any, flavor: Flavor) -> None:
        self.connection, self.flavor = connection, flavor
        super().__init__()

    def run(self, *statements: str) -> list[DdlJob]:
        for job in (job for sql in statements for job in self.plan(sql)):
            known = self.catalog.copy()
            change = self.catalog.apply(job)
            before = [old for _, old, _ in change.altered]
            gone = [name for table in before for name in table.expression_indexes]
            spelled = spelled_for(self.flavor, job.query, gone)
            with self.connection.cursor() as cursor:
                if job.type != DdlType.CREATE_SCHEMA:
                    cursor.execute(f"USE `{job.schema_name}`")
                try:
                    cursor.execute(spelled.sql or "DO 0")
                except pymysql.err.OperationalError as error:
                    # MariaDB renames a key that goes with its column in the same statement.
                    assert error.args[0] == _NO_SUCH_KEY, spelled.sql  # noqa: PT017 - an answer.
                    self.catalog = known
                    return []
            wrong = set(catalog_says(self.tables())) ^ set(
                server_says(self.connection, self.flavor)
            )
            assert not wrong, (spelled.sql, sorted(wrong))
        return []

    def tables(self) -> list[TableInfo]:
        return [table for _, table in self.catalog.tables("d") if table.kind == "TABLE"]


def catalog_says(tables: list[TableInfo]) -> Iterator[tuple[Any, ...]]:
    """Columns and indexes as the catalog has them; no index over an expression among them."""
    for table in tables:
        for column in table.columns:
            is_solid = column.is_not_null and not column.is_generated
            yield table.name, column.offset, column.name, is_solid
        primary = table.primary_key
        indexes = {index.name: index for index in table.indexes}
        if primary is not None:
            indexes["PRIMARY"] = primary
        for index in indexes.values():
            for number, part in enumerate(index.columns, 1):
                length = None if part.length == -1 else part.length
                yield table.name, index.name, number, part.name, length, index.unique


def server_says(connection: Any, flavor: Flavor) -> Iterator[tuple[Any, ...]]:
    expression = "expression" if flavor is Flavor.MYSQL else "NULL"
    with connection.cursor() as cursor:
        cursor.execute(
            # Positions count hidden columns of indexes over expressions, too.
            "SELECT table_name, ROW_NUMBER() OVER (PARTITION BY table_name"
            " ORDER BY ordinal_position) - 1, column_name, is_nullable = 'NO'"
            " AND extra NOT LIKE '%GENERATED%' OR extra LIKE '%DEFAULT_GENERATED%'"
            " AND is_nullable = 'NO' FROM information_schema.columns"
            f" JOIN information_schema.tables USING (table_schema, table_name)"
            f" WHERE {_OURS} AND table_type = 'BASE TABLE'"
        )
        yield from ((*row[:3], bool(row[3])) for row in cursor.fetchall())
        cursor.execute(
            "SELECT table_name, index_name, seq_in_index, column_name, sub_part, non_unique = 0,"
            f" {expression} FROM information_schema.statistics WHERE {_OURS}"
        )
        rows = cursor.fetchall()
    over = {row[:2] for row in rows if row[6] is not None}
    yield from ((*row[:5], bool(row[5])) for row in rows if row[:2] not in over)


def test_the_tracked_schema_is_that_of_a_mysql_after_every_statement(mysql: SqlServer) -> None:
    with closing(mysql.connect(init_command="SET foreign_key_checks = 0")) as connection:
        session = SpelledSession(connection, Flavor.MYSQL)
        for sql in lines():
            session.run(sql)


def test_a_mariadb_gets_of_a_mysqls_schema_what_it_can_have(mariadb_new: SqlServer) -> None:
    only_there = re.compile(r"uuid_to_bin|TABLE counts$|\bj->'\$\.a' AS UNSIGNED ARRAY\b.*LIKE")
    with closing(mariadb_new.connect(init_command="SET foreign_key_checks = 0")) as connection:
        session = SpelledSession(connection, Flavor.MARIADB)
        for sql in lines():
            if not only_there.search(sql):
                session.run(sql)


@pytest.mark.parametrize("kind", on_servers(kinds=KINDS[1:]))
def test_random_histories_leave_a_server_with_the_tracked_schema(
    sink_server: SqlServer, kind: str
) -> None:
    flavor = Flavor.MYSQL if kind == MYSQL else Flavor.MARIADB
    for seed in range(100):
        drop_user_databases(sink_server)
        session_says = "SET foreign_key_checks = 0, sql_mode = 'STRICT_ALL_TABLES'"
        with closing(sink_server.connect(init_command=session_says)) as connection:
            run(seed, SpelledSession(connection, flavor))
