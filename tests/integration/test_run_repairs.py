"""`penstock run` repairs the rows that foreign keys change below the binlog."""

from collections.abc import Iterator
from pathlib import Path

import pymysql
import pytest

from penstock.local.sql_server import SqlServer
from tests.integration.test_penstock_run import START_S, Runs, url
from tests.kit.servers.fix_mariadb import MariadbServer
from tests.kit.servers.fix_source import rows_of
from tests.kit.wait import eventually

pytestmark = [pytest.mark.thorough, pytest.mark.spark, pytest.mark.etcd, pytest.mark.mariadb]

CASCADING = "ON DELETE CASCADE ON UPDATE CASCADE"
TABLES = ("shop.p", "shop.c", "shop.g", "shop.e")


@pytest.fixture
def runs(tmp_path: Path) -> Iterator[Runs]:
    made = Runs(tmp_path / "data")
    yield made
    made.close()


def said(runs: Runs) -> str:
    return (runs.folder.parent / "run.log").read_text()


def are_equal(one: SqlServer, other: SqlServer, *tables: str) -> bool:
    try:
        return all(rows_of(one, table) == rows_of(other, table) for table in tables)
    except pymysql.err.ProgrammingError:  # The load has not created it yet.
        return False


FAMILY = (
    "CREATE DATABASE shop",
    "CREATE TABLE shop.p (id INT PRIMARY KEY)",
    f"CREATE TABLE shop.c (id INT PRIMARY KEY, p INT, u INT UNIQUE, CONSTRAINT c_p FOREIGN KEY"
    f" (p) REFERENCES shop.p (id) {CASCADING})",
    "CREATE TABLE shop.g (id INT PRIMARY KEY, c INT, CONSTRAINT g_c FOREIGN KEY (c)"
    " REFERENCES shop.c (id) ON DELETE SET NULL)",
    "CREATE TABLE shop.e (p INT, CONSTRAINT e_p FOREIGN KEY (p) REFERENCES shop.p (id)"
    " ON DELETE CASCADE)",
    "INSERT INTO shop.p VALUES (1), (2), (3)",
    "INSERT INTO shop.c VALUES (10, 1, 100), (20, 2, 200), (30, 3, 300)",
    "INSERT INTO shop.g VALUES (1, 10), (2, 20), (3, 30)",
    "INSERT INTO shop.e VALUES (3)",
)


@pytest.mark.fault(
    "a parent's row is deleted, and a new row gets the unique value of a child that this deleted",
    "the Drainer stops at the new row, the repair deletes the child, both sides become equal",
    cases="1",
)
@pytest.mark.parametrize(
    "u", [101, pytest.param(100, id="100: the value of a deleted child", marks=pytest.mark.slow)]
)
def test_one_command_repairs_what_keys_change_and_names_the_table_that_it_cannot_repair(
    u: int, runs: Runs, mariadb_binlog: MariadbServer, mariadb: MariadbServer
) -> None:
    up, down = mariadb_binlog, mariadb
    up.drop_user_databases()
    up.run(*FAMILY)
    runs.start("--from", url(up), "--to", url(down))
    eventually(runs.is_up, START_S)
    eventually(lambda: are_equal(up, down, *TABLES), START_S)
    assert "notice   foreign keys: 3 change rows that the binlog does not have" in said(runs)
    assert "penstock verify --repair restores these rows downstream" in said(runs)
    up.run(
        "DELETE FROM shop.p WHERE id = 1",
        "UPDATE shop.p SET id = 5 WHERE id = 2",
        f"INSERT INTO shop.c VALUES (11, 3, {u})",
        "DELETE FROM shop.p WHERE id = 3",
    )
    eventually(lambda: are_equal(up, down, "shop.p", "shop.c", "shop.g"), 2 * START_S)
    assert rows_of(down, "shop.c") == [(20, 5, 200)]
    assert rows_of(down, "shop.g") == [(1, None), (2, 20), (3, None)]
    eventually(lambda: "rows repaired" in said(runs), START_S)
    told = "foreign keys may have changed shop.e, not repaired: it has no key to repair it by"
    eventually(lambda: told in said(runs), 2 * START_S)
    assert "penstock source reload shop.e --config" in said(runs)
    assert runs.stop() == 0
