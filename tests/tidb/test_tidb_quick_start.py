"""The quick start with a TiDB, command by command, as it stands in the documentation."""

from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pymysql
import pytest

from penstock.local.sql_server import MariadbServer, PdAndTikv, TidbServer
from tests.kit.servers.fix_quick_start import COMMANDS_MAX, ETCD, INSTALLING, Reader
from tests.kit.wait import eventually

pytestmark = [pytest.mark.tidb, pytest.mark.alone]


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[tuple[PdAndTikv, TidbServer, MariadbServer]]:
    """A PD and a MariaDB that run, and a TiDB that is still to be started."""
    pd, downstream = PdAndTikv(tmp_path / "pd"), MariadbServer(tmp_path / "downstream")
    tidb = TidbServer(tmp_path / "tidb", pd)
    downstream.install()
    try:
        pd.start()
        downstream.start()
        yield pd, tidb, downstream
    finally:
        for server in (tidb, downstream, pd):
            server.stop()


def test_a_tidb_is_followed_after_few_commands(
    servers: tuple[PdAndTikv, TidbServer, MariadbServer], reader: Callable[..., Reader]
) -> None:
    pd, tidb, downstream = servers
    sink = {"mysql://penstock:secret@127.0.0.1:3306/": downstream.url}
    page = reader("tidb.md", **{ETCD: pd.url}, **sink)
    page.follow(0, 1)
    tidb.start()
    page.follow(1)
    assert INSTALLING + page.typed <= COMMANDS_MAX
    tidb.run(
        "CREATE DATABASE shop",
        "CREATE TABLE shop.orders (id INT PRIMARY KEY, what VARCHAR(20))",
        "INSERT INTO shop.orders VALUES (1, 'nut')",
    )

    def has_arrived() -> bool:
        with (
            suppress(pymysql.err.ProgrammingError, pymysql.err.OperationalError),  # Not yet there.
            downstream.connect() as connection,
            connection.cursor() as cursor,
        ):
            cursor.execute("SELECT id, what FROM shop.orders")
            return bool(cursor.fetchall() == ((1, "nut"),))
        return False

    eventually(has_arrived, 120)
