"""From one server through source, Pump and Drainer to another of other defaults: the same rows."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.local.sql_server import SqlServer
from tests.kit.fakes.replica import Replica
from tests.kit.servers.binlog_server import BinlogServer, binlog_server
from tests.kit.servers.fix_mariadb import drop_user_databases
from tests.kit.servers.fix_source import SourceRig

pytestmark = [pytest.mark.mysql, pytest.mark.mariadb, pytest.mark.thorough]

TABLES = [
    "CREATE DATABASE shop",
    "CREATE TABLE shop.k (k VARCHAR(20) PRIMARY KEY, v INT)",
    "CREATE TABLE shop.g (id INT PRIMARY KEY, name VARCHAR(20), u VARCHAR(20) UNIQUE,"
    " is_abc INT AS (name = 'abc') STORED, status VARCHAR(9), CHECK (status IN ('new', 'old')))",
    "CREATE TABLE shop.p (id INT, kind VARCHAR(9) NOT NULL) PARTITION BY LIST COLUMNS (kind)"
    " (PARTITION p0 VALUES IN ('red'), PARTITION p1 VALUES IN ('blue'))",
]
ROWS = [
    "INSERT INTO shop.g (id, name, u, status) VALUES (1, 'ABC', 'Käse', 'NEW'),"
    " (2, 'abd', 'kaese', 'old'), (3, 'Abc', 'x', 'Old')",
    "UPDATE shop.g SET u = 'KÄSE' WHERE id = 1",
    "UPDATE shop.g SET u = 'y', status = 'OLD' WHERE id = 3",
    "INSERT INTO shop.p VALUES (1, 'RED'), (2, 'Blue')",
    "INSERT INTO shop.k VALUES ('x', 1), ('abc', 2), ('Größe', 3)",
    "UPDATE shop.k SET k = 'ABC' WHERE k = 'abc'",
    "DELETE FROM shop.k WHERE k = 'größe'",
    "INSERT INTO shop.k VALUES ('GRÖSSE', 4)",
    "ALTER TABLE shop.g ADD COLUMN more VARCHAR(9) NOT NULL DEFAULT 'für'",
    "UPDATE shop.g SET more = 'Straße' WHERE name = 'abc' AND id = 1",
]
COMPARED = {"shop.k": "k, v", "shop.g": "id, name, u, is_abc, status, more", "shop.p": "id, kind"}
FOUND = "SELECT id FROM shop.g WHERE name = 'aBc' ORDER BY id"


@pytest.fixture(scope="module")
def latin1_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BinlogServer]:
    """A MariaDB as it was built: latin1."""
    home = tmp_path_factory.mktemp("latin1-upstream")
    with binlog_server(home, 1, "--character-set-server=latin1") as running:
        yield running


def rows(server: SqlServer, table: str) -> list[Any]:
    return sorted(server.query(f"SELECT {COMPARED[table]} FROM {table}"), key=repr)


@pytest.mark.parametrize(
    ("upstream", "downstream"),
    [
        ("mysql", "mariadb"),
        ("latin1_server", "mysql"),
        pytest.param("mariadb_new", "mysql", marks=pytest.mark.slow),
        pytest.param("mysql", "mariadb_new", marks=pytest.mark.slow),
    ],
)
def test_rows_keys_checks_and_generated_columns_are_the_same_under_other_defaults(
    request: pytest.FixtureRequest, rig: SourceRig, tmp_path: Path, upstream: str, downstream: str
) -> None:
    here: SqlServer = request.getfixturevalue(upstream)
    there: SqlServer = request.getfixturevalue(downstream)
    drop_user_databases(here)
    rig.begin(here, start="current", mode="incremental")
    rig.source.catch_up(here)
    here.run(*TABLES, *ROWS)
    if upstream == "mysql":  # A space at the end counts there: these are rows of their own.
        here.run("INSERT INTO shop.k VALUES ('x ', 5), ('abc ', 6)")
    rig.source.catch_up(here)
    Replica(rig.etcd, rig.etcd_url, rig.pumps, there, tmp_path / "drainer").follow()
    for table in COMPARED:
        assert rows(there, table) == rows(here, table)
    assert there.query(FOUND) == here.query(FOUND) == [(1,), (3,)]
    here.run("UPDATE shop.k SET v = v + 10", "DELETE FROM shop.k WHERE k = 'ABC'")
    rig.source.catch_up(here)
    Replica(rig.etcd, rig.etcd_url, rig.pumps, there, tmp_path / "drainer").follow()
    assert rows(there, "shop.k") == rows(here, "shop.k")
