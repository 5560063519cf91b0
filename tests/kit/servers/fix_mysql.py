"""Private servers that no Debian release of ours has: a real MySQL, and a newer MariaDB.

`mysql_server` and `mariadb_new_server` are one server each for the whole session, with the defaults
of their releases (charset and collation too) and with a binlog; `mysql` and `mariadb_new` are the
same with every user database dropped, and running again if the test before left them dead.
`followed` is one of them or `mariadb_binlog`, as the test's parameter says. `sink_server` and
`source_server` are two servers of the kind that the test's parameter `kind` names.
`deploy/servers.sh` unpacks both. A test that uses one of them is marked `mysql` or `mariadb`.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.local.process import Unpacked
from penstock.local.sql_server import SqlServer, mariadb_binlog_options
from tests.kit.servers.binlog_server import (
    MARIADB,
    MARIADB_NEW,
    MYSQL,
    TIDB,
    AnyBinlogServer,
    MysqlServer,
    make_server,
    mysql_binlog_options,
    on_servers,
)
from tests.kit.servers.fix_mariadb import MariadbServer, drop_user_databases, installed


@pytest.fixture(scope="session")
def mysql_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SqlServer]:
    """One MySQL for the session; a test that stops it starts it again."""
    options = mysql_binlog_options()
    yield from installed(MysqlServer(tmp_path_factory.mktemp("mysql"), options=options))


@pytest.fixture(scope="session")
def mariadb_new_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SqlServer]:
    """One MariaDB of the newest release; a test that stops it starts it again."""
    server = MariadbServer(
        tmp_path_factory.mktemp("mariadb-new"),
        options=(*mariadb_binlog_options(), "--binlog-row-metadata=FULL"),
        unpacked=Unpacked("mariadb"),
    )
    yield from installed(server)


def _clean(server: SqlServer) -> SqlServer:
    if not server.is_running:
        server.start()
    drop_user_databases(server)
    return server


@pytest.fixture
def mysql(mysql_server: SqlServer) -> SqlServer:
    """The session's MySQL, without any user database."""
    return _clean(mysql_server)


@pytest.fixture
def mariadb_new(mariadb_new_server: SqlServer) -> SqlServer:
    """The session's newer MariaDB, without any user database."""
    return _clean(mariadb_new_server)


SINKS = {MARIADB: "mariadb", MYSQL: "mysql", MARIADB_NEW: "mariadb_new", TIDB: "tidb"}
"""The fixture of a server to write into, by its kind."""


@pytest.fixture
def sink_server(request: pytest.FixtureRequest, kind: str) -> SqlServer:
    """A server of a kind to write into, without any user database."""
    server: SqlServer = request.getfixturevalue(SINKS[kind])
    return server


@pytest.fixture
def source_server(kind: str, tmp_path: Path) -> Iterator[AnyBinlogServer]:
    server = make_server(tmp_path / "source-server", 1, "--binlog-row-metadata=FULL", kind=kind)
    server.install()
    server.start()
    yield server
    server.stop()


_FOLLOWED = {MARIADB: "mariadb_binlog", MYSQL: "mysql_server", MARIADB_NEW: "mariadb_new_server"}


@pytest.fixture(params=on_servers(MARIADB))
def followed(request: pytest.FixtureRequest) -> Iterator[SqlServer]:
    """A server of each kind for a source to follow: no user database, and its binlog begins.

    It logs the names of columns with their rows.
    """
    server: SqlServer = request.getfixturevalue(_FOLLOWED[request.param])
    _clean(server)
    reset = "RESET BINARY LOGS AND GTIDS" if request.param == MYSQL else "RESET MASTER"
    server.run(reset, "SET GLOBAL binlog_row_metadata = FULL")
    yield server
    if request.param == MYSQL:
        server.run("SET GLOBAL binlog_row_metadata = DEFAULT")
