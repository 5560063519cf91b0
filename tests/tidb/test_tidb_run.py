"""`penstock run` into a TiDB: the printed privileges are all that it needs."""

from pathlib import Path

import pytest

from penstock.local.sql_server import SqlProcess, TidbServer
from tests.integration.test_penstock_run import Runs, poor_account, statements
from tests.kit.servers.fix_mariadb import MariadbServer

pytestmark = [pytest.mark.tidb, pytest.mark.spark, pytest.mark.etcd]


@pytest.mark.mariadb
def test_a_mariadb_is_replicated_into_a_tidb_with_the_privileges_that_are_printed(
    mariadb_binlog: MariadbServer, tidb: TidbServer, tmp_path: Path
) -> None:
    mariadb_binlog.drop_user_databases()
    mariadb_binlog.run(
        "CREATE DATABASE shop",
        "CREATE TABLE shop.p (id INT PRIMARY KEY)",
        "CREATE TABLE shop.c (id INT PRIMARY KEY, p INT, FOREIGN KEY (p) REFERENCES shop.p (id))",
        "CREATE TABLE shop.m (id INT PRIMARY KEY) ENGINE=MyISAM",
        "INSERT INTO shop.p VALUES (1)",
        "INSERT INTO shop.c VALUES (2, 1)",
        "INSERT INTO shop.m VALUES (3)",
    )
    runs = Runs(tmp_path / "data")
    sides: dict[str, SqlProcess] = {"upstream": mariadb_binlog, "downstream": tidb}
    with poor_account(mariadb_binlog) as upstream, poor_account(tidb) as downstream:
        asked = ("--from", upstream, "--to", downstream.replace("mysql:", "tidb:"), "--once")
        refused = runs.completed(*asked)
        assert refused.returncode == 2, refused.stdout
        wanted = statements(refused.stdout)
        for side, server in sides.items():
            server.run(*wanted[side])
        done = runs.completed(*asked)
        assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
        mariadb_binlog.run("ALTER TABLE shop.p ADD v INT", "INSERT INTO shop.p VALUES (3, 4)")
        again = runs.completed(*asked)
        assert again.returncode == 0, f"{again.stdout}\n{again.stderr}"
        assert tidb.query("SELECT * FROM shop.p ORDER BY id") == [(1, None), (3, 4)]
