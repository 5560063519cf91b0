"""CHECKs that a statement leaves without a name have one that each server knows them by."""

import itertools
from contextlib import closing
from dataclasses import replace

import pymysql
import pytest

from drainer.settings.targets import MysqlTarget
from drainer.sinks.checkpoint import Checkpoint
from drainer.sinks.mysql.sink import MysqlSink
from penstock.ddl import Catalog, plan_ddl
from penstock.ddl.rewrite.constraint_names import as_mariadb_reads
from penstock.local.sql_server import SqlServer
from penstock.schema.ddl_context import DdlContext
from tests.kit.sink_target import sink_target

NAMED = (
    "CREATE TABLE t (a INT NOT NULL CHECK (a > 0), b INT, CHECK (b > 0), CHECK (b > 1))",
    "ALTER TABLE t DROP CHECK t_chk_3, ADD CHECK (b > 2)",
    "ALTER TABLE t ADD CHECK (a > 3), RENAME TO u",
    "CREATE TABLE l LIKE u",
    "ALTER TABLE l ADD CHECK (a > 4)",
    "ALTER TABLE u ADD c INT, ADD CHECK (c > 5)",
    "ALTER TABLE u DROP COLUMN c, ADD CHECK (a > 6)",
    "ALTER TABLE u ADD CHECK (a > 7)",
)
CHECKS = (
    "SELECT LOWER(table_name), constraint_name FROM information_schema.table_constraints"
    " WHERE table_schema = '{}' AND constraint_type = 'CHECK' ORDER BY 1, 2"
)


@pytest.mark.mysql
def test_a_mysql_downstream_has_the_names_of_a_mysql_upstream(mysql: SqlServer) -> None:
    mysql.run("CREATE DATABASE up", "CREATE DATABASE down")
    catalog, ids = Catalog(), itertools.count(1)
    for sql in ("CREATE DATABASE up", *NAMED):
        jobs = plan_ddl(sql, "up", catalog, lambda: next(ids))
        for job in jobs:
            catalog.apply(job)
        if sql in NAMED:
            mysql.run("USE up", sql, "USE down", *(job.query for job in jobs))
    assert mysql.query(CHECKS.format("down")) == mysql.query(CHECKS.format("up"))


class Replica:
    """A sink on a server, and DDL of an upstream of a kind."""

    def __init__(self, server: SqlServer, version: str) -> None:
        self._server, self._version = server, version
        self._catalog, self._ids = Catalog(), itertools.count(1)
        self._ts = itertools.count(1_700_000_000_000)
        self.run("CREATE DATABASE s")

    def run(self, *statements: str) -> None:
        context = DdlContext(variables=(("version", self._version),))
        for sql in statements:
            text = sql
            if "MariaDB" in self._version:
                text = as_mariadb_reads(sql, lambda ref: self._known(ref.name))
            for job in plan_ddl(text, "s", self._catalog, lambda: next(self._ids), context):
                ts = next(self._ts) << 18
                change = self._catalog.apply(replace(job, finished_ts=ts))
                with closing(
                    MysqlSink(
                        sink_target(MysqlTarget, self._server.url), cluster_id=1, retry_s_max=60
                    )
                ) as sink:
                    sink.load_checkpoint()
                    sink.run_ddl(change, Checkpoint(ts, job.schema_version), maybe_done=False)

    def _known(self, name: str) -> tuple[str, ...] | None:
        table = self._catalog.table("s", name)
        return None if table is None else table.constraints

    def checks(self) -> list[tuple[str, str]]:
        return [(t, n) for t, n in self._server.query(CHECKS.format("s"))]


@pytest.mark.thorough
@pytest.mark.mysql
def test_the_checks_of_a_mariadbs_tables_have_names_of_their_own_in_a_mysql(
    mysql: SqlServer,
) -> None:
    replica = Replica(mysql, "11.8.2-MariaDB")
    replica.run(
        "CREATE TABLE a (x INT, CHECK (x > 0), CHECK (x > 1))",
        "CREATE TABLE b (x INT, CHECK (x > 0))",
        "RENAME TABLE a TO c",
        "ALTER TABLE c DROP CONSTRAINT CONSTRAINT_1, ADD CHECK (x > 2)",
    )
    assert replica.checks() == [("b", "b_chk_1"), ("c", "c_chk_1"), ("c", "c_chk_2")]
    with pytest.raises(pymysql.err.OperationalError, match="c_chk_1"):
        mysql.run("INSERT INTO s.c VALUES (2)")


@pytest.mark.thorough
@pytest.mark.mariadb
def test_a_check_of_a_mysql_is_dropped_in_a_mariadb_after_its_table_was_renamed(
    mariadb: SqlServer,
) -> None:
    replica = Replica(mariadb, "9.7.0")
    replica.run(
        "CREATE TABLE a (x INT, y INT, CHECK (x > 0), CHECK (y > 0))",
        "RENAME TABLE a TO c",
        "ALTER TABLE c DROP CHECK c_chk_2",
        "ALTER TABLE c DROP COLUMN y, ADD COLUMN z INT",
    )
    assert replica.checks() == [("c", "a_chk_1")]


@pytest.mark.thorough
@pytest.mark.mariadb
def test_a_foreign_key_of_a_routed_table_is_dropped_by_upstreams_name(mariadb: SqlServer) -> None:
    replica = Replica(mariadb, "9.7.0")
    replica.run(
        "CREATE TABLE p (id INT PRIMARY KEY)",
        "CREATE TABLE routed (x INT, FOREIGN KEY (x) REFERENCES p (id))",
        "ALTER TABLE routed DROP FOREIGN KEY orders_ibfk_1",
    )
    keys = "SELECT constraint_name FROM information_schema.referential_constraints"
    assert mariadb.query(keys) == []
