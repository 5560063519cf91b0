"""A private MariaDB for the tests that need a real downstream.

`mariadb_server` is one server for the whole session, on a free port of 127.0.0.1, with its data
below pytest's temporary directory. `mariadb` is the same server with every user database dropped
and running again if the test before left it dead. `mariadb_binlog` is another one, whose binlog is
on. A test that uses one of them is marked `mariadb`.

Durability is the real thing (`innodb_flush_log_at_trx_commit=1`), because the tests kill it.
"""

import shutil
from collections.abc import Iterator
from contextlib import closing
from typing import Any, TypeVar

import pytest

from penstock.local import sql_server as local
from penstock.local.sql_server import SqlProcess

_SYSTEM_SCHEMAS = {"mysql", "information_schema", "performance_schema", "sys", "metrics_schema"}


class MariadbServer(local.MariadbServer):
    """The local server, with what tests ask of one."""

    def drop_user_databases(self) -> None:
        drop_user_databases(self)


def drop_user_databases(server: SqlProcess) -> None:
    with closing(server.connect()) as connection, connection.cursor() as cursor:
        cursor.execute("SET foreign_key_checks = 0")
        cursor.execute("SHOW DATABASES")
        for (name,) in cursor.fetchall():
            if name.lower() not in _SYSTEM_SCHEMAS:
                quoted = name.replace("`", "``")
                cursor.execute(f"DROP DATABASE `{quoted}`")


_Server = TypeVar("_Server", bound=Any)


def installed(server: _Server) -> Iterator[_Server]:
    """Yield a new server while it runs, and remove its data."""
    server.install()
    server.start()
    yield server
    server.stop()
    shutil.rmtree(server.home / "data", ignore_errors=True)


@pytest.fixture(scope="session")
def mariadb_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MariadbServer]:
    """One MariaDB for the session; a test that stops it starts it again."""
    yield from installed(MariadbServer(tmp_path_factory.mktemp("mariadb")))


@pytest.fixture(scope="session")
def mariadb_binlog(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MariadbServer]:
    """A second MariaDB, which logs rows with full metadata: what a source reads."""
    options = (*local.mariadb_binlog_options(), "--binlog-row-metadata=FULL")
    yield from installed(MariadbServer(tmp_path_factory.mktemp("mariadb-binlog"), options=options))


@pytest.fixture
def mariadb(mariadb_server: MariadbServer) -> MariadbServer:
    """The session's MariaDB, running and without any user database."""
    if not mariadb_server.is_running:
        mariadb_server.start()
    mariadb_server.drop_user_databases()
    return mariadb_server
