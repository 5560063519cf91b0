"""What is tracked of a TiDB's schema is what the TiDB says of it, after DDL of every kind."""

import asyncio
import dataclasses
import json
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import pymysql
import pytest

from drainer.ddl.follower import DdlFollower, FollowedDdl, fetch_job
from drainer.ddl.jobs import TidbJobs
from drainer.ddl.tidb_servers import StatusPorts
from drainer.planner import DdlStep
from drainer.schema.rules import TIDB
from drainer.schema.tracker import SchemaTracker
from drainer.task.selection import Selection
from penstock.cluster.etcd import connect
from penstock.filters import FilterConfig, Rules
from penstock.local.sql_server import PdAndTikv, TidbServer
from penstock.oracle.client import OracleClient, find_cluster_id
from penstock.schema.model import DdlJob
from penstock.schema.tidb_json import table_from_json
from tests.kit.servers.fix_pump import PumpProcess, streamed

pytestmark = [pytest.mark.tidb, pytest.mark.alone]

OF_ITSELF = {"information_schema", "performance_schema", "metrics_schema"}
"""Schemas that are in memory only."""

STATEMENTS = """
CREATE DATABASE Shop
CREATE DATABASE Store CHARACTER SET latin1
CREATE TABLE Shop.T (Id INT PRIMARY KEY, v VARCHAR(9) DEFAULT 'x', w INT)
INSERT INTO Shop.T VALUES (1, '7', 2), (2, '8', 3)
ALTER TABLE Shop.T ADD ts TIMESTAMP DEFAULT NOW(), ADD dt DATETIME(3) DEFAULT NOW(3)
ALTER TABLE Shop.T DROP COLUMN w
ALTER TABLE Shop.T MODIFY v INT
ALTER TABLE Shop.T CHANGE v vv TEXT, ADD INDEX i (ts), ADD n BIT(5) NOT NULL DEFAULT b'101'
ALTER TABLE Shop.T ADD INDEX e ((Id + 1)), ADD UNIQUE INDEX u ((Id * 2))
CREATE TABLE Shop.u (a BIGINT PRIMARY KEY AUTO_RANDOM(5), b JSON, c ENUM('p', 'q') DEFAULT 'q', \
d SET('x', 'y'), f DECIMAL(10, 3) DEFAULT 1.5, g YEAR, h TIME(2), k DATE, l FLOAT, m DOUBLE, \
o BLOB, p CHAR(3), q BINARY(4), gen INT AS (l + 1) VIRTUAL, st BIGINT AS (l + 2) STORED)
CREATE TABLE Shop.nc (a VARCHAR(10), b INT, PRIMARY KEY (a) NONCLUSTERED, KEY (b))
CREATE TABLE Shop.cl (a VARCHAR(10), b INT, PRIMARY KEY (a, b) CLUSTERED)
CREATE VIEW Shop.vw AS SELECT Id, vv FROM Shop.T
CREATE OR REPLACE VIEW Shop.vw AS SELECT Id FROM Shop.T
CREATE SEQUENCE Shop.sq START WITH 5 CACHE 10
ALTER SEQUENCE Shop.sq CACHE 20
CREATE TABLE Shop.pt (id INT PRIMARY KEY, a INT) PARTITION BY RANGE (id) \
(PARTITION p0 VALUES LESS THAN (10), PARTITION p1 VALUES LESS THAN (100))
CREATE TABLE Shop.ex (id INT PRIMARY KEY, a INT)
INSERT INTO Shop.ex VALUES (50, 1)
ALTER TABLE Shop.pt EXCHANGE PARTITION p1 WITH TABLE Shop.ex
ALTER TABLE Shop.pt ADD PARTITION (PARTITION p2 VALUES LESS THAN (1000))
ALTER TABLE Shop.pt TRUNCATE PARTITION p0
ALTER TABLE Shop.pt DROP PARTITION p2
ALTER TABLE Shop.pt REORGANIZE PARTITION p1 INTO \
(PARTITION p1a VALUES LESS THAN (50), PARTITION p1b VALUES LESS THAN (100))
RENAME TABLE Shop.nc TO Store.nc2
CREATE TABLE Shop.s1 (a INT)
CREATE TABLE Shop.s2 (b INT)
RENAME TABLE Shop.s1 TO Shop.tmp, Shop.s2 TO Shop.s1, Shop.tmp TO Shop.s2
RENAME TABLE Shop.s1 TO Store.s1, Shop.s2 TO Store.s22
CREATE TABLE Shop.d1 (a INT)
CREATE TABLE Shop.d2 (a INT)
CREATE TABLE Shop.d3 (a INT)
DROP TABLE Shop.d1, Shop.d2
TRUNCATE TABLE Shop.d3
DROP TABLE Shop.d3
FLASHBACK TABLE Shop.d3
TRUNCATE TABLE Shop.d3
FLASHBACK TABLE Shop.d3 TO d3_before
DROP TABLE Shop.d3
RECOVER TABLE Shop.d3
CREATE TABLE Shop.ph (id INT, a INT, PRIMARY KEY (id)) PARTITION BY HASH (id) PARTITIONS 3
CREATE TABLE Shop.pl (id INT, a INT) PARTITION BY LIST (id) \
(PARTITION p0 VALUES IN (1, 2), PARTITION p1 VALUES IN (3, NULL))
ALTER TABLE Shop.pl ADD PARTITION (PARTITION p2 VALUES IN (4))
CREATE TABLE Shop.pc (id INT, v VARCHAR(9)) PARTITION BY RANGE COLUMNS (v) \
(PARTITION p0 VALUES LESS THAN ('m'), PARTITION p1 VALUES LESS THAN (MAXVALUE))
CREATE TABLE Shop.cs (id INT, v VARCHAR(9) CHARACTER SET utf8, KEY (v)) CHARACTER SET utf8
ALTER TABLE Shop.cs CONVERT TO CHARACTER SET utf8mb4
ALTER TABLE Shop.cs ADD PRIMARY KEY (id) NONCLUSTERED
ALTER TABLE Shop.cs DROP PRIMARY KEY
ALTER TABLE Shop.cs ALTER INDEX v INVISIBLE
ALTER TABLE Shop.cs SHARD_ROW_ID_BITS = 2
ALTER TABLE Shop.cs AUTO_ID_CACHE = 50
ALTER TABLE Shop.cs ADD COLUMN first INT FIRST, DROP INDEX v, RENAME COLUMN id TO number
ALTER TABLE Shop.cs MODIFY COLUMN v VARCHAR(20) AFTER first
CREATE TABLE Shop.ttl (id INT PRIMARY KEY, made DATETIME) TTL = made + INTERVAL 1 YEAR
ALTER TABLE Shop.ttl TTL_ENABLE = 'OFF'
ALTER TABLE Shop.ttl REMOVE TTL
CREATE GLOBAL TEMPORARY TABLE Shop.gt (a INT) ON COMMIT DELETE ROWS
ALTER TABLE Shop.cl CACHE
ALTER TABLE Shop.cl NOCACHE
CREATE PLACEMENT POLICY pp FOLLOWERS=1
DROP PLACEMENT POLICY pp
ALTER TABLE Shop.cl COMMENT 'c', AUTO_INCREMENT = 100
ALTER DATABASE Shop CHARACTER SET utf8mb4 COLLATE utf8mb4_general_ci
ALTER TABLE Shop.u ADD UNIQUE KEY bad (c)
ALTER TABLE Shop.u DROP COLUMN gen
ALTER TABLE Shop.u DROP COLUMN st
INSERT INTO Shop.cl VALUES ('a', 1), ('b', 2)
ALTER TABLE Shop.cl ADD dup INT DEFAULT 1
ALTER TABLE Shop.cl ADD UNIQUE KEY fails (dup)
ALTER TABLE Shop.u ALTER COLUMN f SET DEFAULT 2.5
ALTER TABLE Shop.u RENAME COLUMN f TO ff
ALTER TABLE Shop.u RENAME INDEX bad TO good
ALTER TABLE Shop.cl ADD t2 TIMESTAMP NOT NULL DEFAULT '2020-01-01 00:00:00', \
ADD e2 ENUM('a', 'b') NOT NULL
CREATE TABLE Store.lk LIKE Shop.T
CREATE TABLE Store.fk (a INT PRIMARY KEY, b INT, FOREIGN KEY fkx (b) REFERENCES Shop.T (Id))
ALTER TABLE Store.fk DROP FOREIGN KEY fkx
CREATE DATABASE gone
CREATE TABLE gone.x (a INT)
DROP DATABASE gone
"""


@dataclass
class Upstream:
    """A TiDB with one Pump, after all of that."""

    pd: PdAndTikv
    pump: PumpProcess
    tidb: TidbServer
    source: TidbJobs

    def page(self, path: str) -> Any:
        url = f"http://127.0.0.1:{self.tidb.status_port}{path}"
        with urllib.request.urlopen(url, timeout=60) as answer:
            return json.load(answer)


@pytest.fixture(scope="module")
def upstream(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Upstream]:
    home = tmp_path_factory.mktemp("tidb")
    with ExitStack() as stack:
        pd = PdAndTikv(home / "pd")
        stack.callback(pd.start().stop)
        settings = {"etcd_urls": pd.url, "pd_address": pd.url}
        pump = PumpProcess(home / "pump-1", "pump-1", settings)
        stack.callback(pump.start().kill)
        tidb = TidbServer(home / "tidb", pd)
        stack.callback(tidb.start().stop)
        for sql in STATEMENTS.strip().splitlines():
            if "fails" in sql:
                with pytest.raises(pymysql.err.MySQLError, match="Duplicate entry"):
                    tidb.run(sql)
            else:
                tidb.run(sql)
        etcd = connect(pd.url)
        stack.callback(etcd.close)
        yield Upstream(pd, pump, tidb, TidbJobs(StatusPorts(etcd, None)))


def check(tracker: SchemaTracker, upstream: Upstream) -> None:
    """Hold each schema and table, with all its parts, against what the TiDB says."""
    wrong, count = [], 0
    for each in upstream.page("/schema"):
        name = each["db_name"]["O"]
        if name.lower() in OF_ITSELF:
            continue
        found = tracker.catalog.schema(name)
        assert found is not None, name
        if name != "mysql":
            assert (found.id, found.collate) == (each["id"], each["collate"])
        tables = {table.name: table for _, table in tracker.catalog.tables(name)}
        for fields in upstream.page(f"/schema/{name}"):
            wanted = table_from_json(fields)
            if wanted.id >= TIDB.system_ids_from:
                continue
            table = tables.pop(wanted.name, None)
            count += 1
            wrong += [
                f"{name}.{wanted.name} {field.name}"
                for field in dataclasses.fields(wanted)
                if getattr(table, field.name, None) != getattr(wanted, field.name)
            ]
        wrong += [f"{name}.{left} is no more" for left in tables]
    assert (wrong, count > 50) == ([], True)


def test_the_schema_from_the_history_is_the_tidb_s(upstream: Upstream) -> None:
    jobs = upstream.source.jobs()
    upstream.source.check_settled()
    check(SchemaTracker.from_history(jobs, 1 << 62, rules=TIDB), upstream)
    assert upstream.source.get(jobs[0].id) == jobs[0]
    assert upstream.source.get(jobs[-1].id) == jobs[-1]


def test_the_schema_from_the_stream_is_the_tidb_s_and_what_runs_is_right(
    upstream: Upstream,
) -> None:
    tracker = SchemaTracker(TIDB)
    route = Selection(Rules(FilterConfig()), tracker).route

    async def fetch(step: DdlStep) -> DdlJob:
        return await fetch_job(upstream.source, step)

    follower = DdlFollower(tracker, fetch, overrides={}, route=route)
    followed: list[tuple[str, FollowedDdl]] = []
    clock = OracleClient(upstream.pd.url)
    until_ts = clock.get_ts()
    clock.close()
    etcd = connect(upstream.pd.url)
    cluster_id = find_cluster_id(etcd, upstream.pd.url)
    etcd.close()
    for b in streamed(upstream.pump, cluster_id, until_ts):
        if b.ddl_job_id:
            query, state = b.ddl_query.decode(), b.ddl_schema_state
            step = DdlStep(b.commit_ts, b.ddl_job_id, query, schema_state=state)
            followed.append((query, asyncio.run(follower.follow(step))))
    check(tracker, upstream)
    run = [ddl.run.job.query.rstrip(";") for _, ddl in followed if ddl.run is not None]
    assert sum("DROP COLUMN `w`" in query for query, _ in followed) == 2
    assert sum("DROP COLUMN `w`" in query for query in run) == 1
    assert any("`fails`" in query for query, _ in followed)
    assert not any("`fails`" in query for query in run)
    assert [query for query in run if "`d1`" in query][1:] == ["DROP TABLE `Shop`.`d1`"]
    assert not any("PLACEMENT POLICY" in query or "`mysql`" in query for query in run)
    assert "CREATE DATABASE `Shop` CHARACTER SET utf8mb4 COLLATE utf8mb4_bin" in run
    assert all(ddl.ts > 0 for _, ddl in followed if ddl.run is not None)
