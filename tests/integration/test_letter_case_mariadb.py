"""A downstream whose names are in lower case (`lower_case_table_names` = 1) is followed."""

import itertools
import logging
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from drainer.settings.targets import MysqlTarget
from drainer.sinks.checkpoint import Checkpoint
from drainer.sinks.mysql.sink import MysqlSink
from penstock.ddl import Catalog, plan_ddl
from penstock.errors import NeedsOperator
from tests.kit.servers.fix_mariadb import MariadbServer
from tests.kit.sink_target import sink_target

pytestmark = [pytest.mark.mariadb, pytest.mark.thorough]


@pytest.fixture
def folding(tmp_path: Path) -> Iterator[MariadbServer]:
    server = MariadbServer(tmp_path / "mariadb", options=("--lower-case-table-names=1",))
    server.install()
    server.start()
    yield server
    server.stop()


STATEMENTS = [
    "CREATE DATABASE Shop",
    "CREATE TABLE Item (id INT PRIMARY KEY, v INT)",
    "CREATE TABLE Child (id INT PRIMARY KEY, v INT, FOREIGN KEY (v) REFERENCES Item (id))",
    "ALTER TABLE Item ADD COLUMN w INT",
    "RENAME TABLE Item TO iTEM",
    "RENAME TABLE iTEM TO Other, Child TO Item",
    "CREATE TABLE IF NOT EXISTS OTHER (id INT PRIMARY KEY)",
    "TRUNCATE TABLE Other",
    "DROP TABLE Item",
]


@pytest.mark.fault(
    "a table of a MySQL or MariaDB that the checkpoint says is downstream does not exist at a"
    " start",
    "logged, with what to compare",
    cases="1",
)
def test_names_in_any_letters_are_followed_and_done_once(
    folding: MariadbServer, caplog: pytest.LogCaptureFixture
) -> None:
    catalog, ids, stamps = Catalog(), itertools.count(1), itertools.count(1_700_000_000_000)
    with closing(
        MysqlSink(sink_target(MysqlTarget, folding.url), cluster_id=1, retry_s_max=5)
    ) as sink:
        sink.load_checkpoint()
        for sql in STATEMENTS:
            for job in plan_ddl(sql, "Shop", catalog, lambda: next(ids)):
                change = catalog.apply(replace(job, finished_ts=next(stamps) << 18))
                point = Checkpoint(change.job.finished_ts, catalog.version)
                sink.run_ddl(change, point, maybe_done=False)
                sink.run_ddl(change, point, maybe_done=True)
            there = folding.query(
                "SELECT table_name FROM information_schema.tables WHERE table_schema = 'shop'"
            )
            expected = {table.name.lower() for _, table in catalog.tables()}
            assert {name for (name,) in there} == expected, sql
        assert [table.name for _, table in catalog.tables()] == ["Other"]
        sink.apply(["REPLACE INTO `Shop`.`Other` (id, v) VALUES (1, 2)"], point)
        sink.look_at(catalog)
        assert "do not exist" not in caplog.text
        folding.run("DROP TABLE shop.other")
        with caplog.at_level(logging.WARNING):
            sink.look_at(catalog)
        assert "1 tables that the checkpoint says are downstream do not exist there" in caplog.text
        assert "`Shop`.`Other`" in caplog.text
        with pytest.raises(NeedsOperator):
            sink.apply(["REPLACE INTO `Shop`.`Other` (id, v) VALUES (1, 2)"], point)
