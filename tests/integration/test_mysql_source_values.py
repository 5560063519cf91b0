"""Values and columns that servers allow and others do not, from a MariaDB to the Pumps."""

import itertools
from collections.abc import Iterator
from typing import Any

import pytest

from penstock.cluster.history import History
from penstock.ddl import Catalog, plan_ddl
from penstock.schema.model import TableInfo
from tests.kit.servers.binlog_server import BinlogServer, binlog_server
from tests.kit.servers.fix_source import SourceRig, cleared

pytestmark = [pytest.mark.mariadb, pytest.mark.thorough]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BinlogServer]:
    home = tmp_path_factory.mktemp("valued-source-server")
    options = ("--binlog-row-metadata=FULL", "--sql-mode=", "--default-time-zone=+03:00")
    with binlog_server(home, 1, *options) as running:
        yield running


ZERO_DATES = """CREATE TABLE shop.z (id INT PRIMARY KEY, d DATE, t DATETIME(3), s TIMESTAMP NULL,
    n DATE NOT NULL DEFAULT '0000-00-00', y YEAR)"""


@pytest.mark.fault(
    "zero dates and dates with zeros, in columns, defaults and updates",
    "come out as they are",
    cases="5 rows",
)
def test_zero_dates_and_dates_with_zeros_come_out_as_they_are(
    server: BinlogServer, rig: SourceRig
) -> None:
    cleared(server)
    server.run(
        ZERO_DATES,
        "INSERT INTO shop.z VALUES (1, '0000-00-00', '0000-00-00', '0000-00-00', '2020-00-00', 0)",
        "INSERT INTO shop.z VALUES (2, '2020-00-00', '2020-05-00 10:00:00.123', NULL, '0', '0000')",
        "INSERT INTO shop.z (id) VALUES (3)",
        "INSERT INTO shop.z VALUES (4, '2021-02-03', '0000-00-00 00:00:00.500', NULL, '0', 2020)",
    )
    rig.begin(server)
    rig.source.catch_up(server)
    server.run(
        "UPDATE shop.z SET d = '2020-00-07' WHERE id = 1",
        "UPDATE shop.z SET t = '0000-00-00' WHERE id = 4",
        "DELETE FROM shop.z WHERE d = '2020-00-00'",
        "ALTER TABLE shop.z ADD COLUMN later DATE NOT NULL DEFAULT '0000-00-00'",
        "INSERT INTO shop.z (id) VALUES (5)",
    )
    rig.source.finish(server)
    wanted = server.query(
        "SELECT id, CAST(d AS CHAR), CAST(t AS CHAR), CAST(s AS CHAR), CAST(n AS CHAR), y + 0,"
        " CAST(later AS CHAR) FROM shop.z"
    )
    assert rig.downstream().rows("shop.z") == sorted(wanted)


IMPLICIT = (
    "CREATE TABLE shop.i (id INT PRIMARY KEY, a TIMESTAMP, b TIMESTAMP, c TIMESTAMP NULL)",
    "CREATE TABLE shop.j (a TIMESTAMP(3) DEFAULT '2020-01-01', b TIMESTAMP(6), c DATETIME)",
    "CREATE TABLE shop.k (a TIMESTAMP NULL, b TIMESTAMP NOT NULL, c TIMESTAMP NOT NULL)",
    "ALTER TABLE shop.j ADD COLUMN d TIMESTAMP FIRST, MODIFY COLUMN b TIMESTAMP(2)",
    "ALTER TABLE shop.k CHANGE a z TIMESTAMP, ADD COLUMN (e TIMESTAMP, f TIMESTAMP NULL)",
)


def facts(table: TableInfo) -> list[tuple[Any, ...]]:
    return [(c.name, c.tp, c.decimal, c.is_not_null, c.default, int(c.flag)) for c in table.columns]


@pytest.mark.fault(
    "TIMESTAMP columns of sessions without `explicit_defaults_for_timestamp`",
    "the tracked definition is the server's",
    cases="5 statements",
)
def test_timestamps_have_the_defaults_that_a_server_gives_them_unasked(
    server: BinlogServer, rig: SourceRig
) -> None:
    cleared(server)
    server.run("SET explicit_defaults_for_timestamp = OFF", *IMPLICIT)
    rig.begin(server)
    rig.source.finish(server)
    catalog = Catalog()
    for job in History(rig.etcd).jobs():
        catalog.apply(job)
    ids = itertools.count(1)
    for name in "ijk":
        ((_, sql),) = server.query(
            f"SHOW CREATE TABLE shop.{name}", init_command="SET time_zone = '+00:00'"
        )
        there = Catalog()
        for statement in ("CREATE DATABASE shop", sql):
            for job in plan_ddl(statement, "shop", there, ids.__next__):
                there.apply(job)
        here, wanted = catalog.table("shop", name), there.table("shop", name)
        assert here is not None
        assert wanted is not None
        assert facts(here) == facts(wanted)


def test_ddl_of_a_temporary_table_leaves_the_table_alone_that_it_hides(
    server: BinlogServer, rig: SourceRig
) -> None:
    cleared(server)
    server.run(
        "CREATE TABLE shop.hidden (id INT PRIMARY KEY, b INT)",
        "CREATE TABLE shop.u (id INT PRIMARY KEY)",
        "CREATE TABLE shop.v (id INT PRIMARY KEY)",
        "INSERT INTO shop.hidden VALUES (1, 2)",
        "INSERT INTO shop.u VALUES (1)",
        "INSERT INTO shop.v VALUES (1)",
    )
    rig.begin(server)
    rig.source.catch_up(server)
    server.run(
        "SET binlog_format = MIXED",
        "CREATE TEMPORARY TABLE shop.hidden (id INT, b INT)",
        "ALTER TABLE shop.hidden DROP COLUMN b",
        "CREATE INDEX x ON shop.hidden (id)",
        "DROP INDEX x ON shop.hidden",
        "TRUNCATE TABLE shop.hidden",
        "ALTER TABLE shop.u ADD COLUMN b INT",
        "CREATE INDEX x ON shop.u (b)",
        "TRUNCATE TABLE shop.v",
        "DROP TEMPORARY TABLE shop.hidden",
        "SET binlog_format = ROW",
        "INSERT INTO shop.hidden VALUES (2, 3)",
    )
    rig.source.finish(server)
    downstream = rig.downstream()
    assert downstream.rows("shop.hidden") == [(1, 2), (2, 3)]
    assert downstream.rows("shop.u") == [(1, None)]
    assert downstream.rows("shop.v") == []
