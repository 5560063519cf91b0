"""A DDL of a TiDB computes downstream what it did upstream, in the session that it ran in."""

import asyncio
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest

from drainer.ddl.follower import DdlFollower, fetch_job
from drainer.ddl.jobs import TidbJobs
from drainer.ddl.tidb_servers import StatusPorts
from drainer.planner import DdlStep
from drainer.schema.rules import TIDB
from drainer.schema.tracker import SchemaTracker
from drainer.settings.targets import MysqlTarget
from drainer.sinks.checkpoint import Checkpoint
from drainer.sinks.mysql.sink import MysqlSink
from drainer.task.selection import Selection
from penstock.cluster.etcd import connect
from penstock.filters import FilterConfig, Rules
from penstock.local.sql_server import PdAndTikv, TidbServer
from penstock.oracle.client import OracleClient, find_cluster_id
from penstock.schema.model import DdlJob
from tests.kit.servers.fix_mariadb import MariadbServer
from tests.kit.servers.fix_pump import PumpProcess, streamed
from tests.kit.sink_target import sink_target

pytestmark = [pytest.mark.tidb, pytest.mark.mariadb, pytest.mark.alone]

ROW = (
    "INSERT INTO shop.t (id, dt, ts, v, n)"
    " VALUES (1, '2020-06-01 12:00:00', '2020-06-01 12:00:00', 'abcdef', 300)"
)
SESSIONS = (
    ("time_zone = '+08:00'", "MODIFY dt TIMESTAMP NULL"),
    ("time_zone = '-03:30'", "MODIFY ts DATETIME NULL"),
    ("time_zone = '+08:00'", "ADD a DATETIME NOT NULL DEFAULT CURRENT_TIMESTAMP,"
     " ADD b TIMESTAMP NOT NULL DEFAULT CURRENT_TIMESTAMP"),
    ("time_zone = '+13:00'", "ADD c TIMESTAMP NOT NULL DEFAULT '2020-01-01 08:00:00'"),
    ("sql_mode = ''", "MODIFY v VARCHAR(3)"),
    ("sql_mode = ''", "MODIFY n TINYINT"),
)  # fmt: skip
IN_UTC: dict[str, Any] = {"init_command": "SET time_zone = '+00:00'", "conv": {}}


@pytest.fixture
def upstream(tmp_path: Path) -> Iterator[tuple[PdAndTikv, PumpProcess, TidbServer]]:
    with ExitStack() as stack:
        pd = PdAndTikv(tmp_path / "pd")
        stack.callback(pd.start().stop)
        settings = {"etcd_urls": pd.url, "pd_address": pd.url}
        pump = PumpProcess(tmp_path / "pump-1", "pump-1", settings)
        stack.callback(pump.start().kill)
        tidb = TidbServer(tmp_path / "tidb", pd)
        stack.callback(tidb.start().stop)
        yield pd, pump, tidb


def test_values_that_a_ddl_computes_are_those_of_its_session(
    upstream: tuple[PdAndTikv, PumpProcess, TidbServer], mariadb: MariadbServer
) -> None:
    pd, pump, tidb = upstream
    tidb.run("CREATE DATABASE shop",
             "CREATE TABLE shop.t (id INT PRIMARY KEY, dt DATETIME, ts TIMESTAMP NULL,"
             " v VARCHAR(9), n INT)",
             "SET time_zone = '+00:00'", ROW)  # fmt: skip
    for setting, parts in SESSIONS:
        tidb.run(f"SET {setting}", f"ALTER TABLE shop.t {parts}")
    with closing(OracleClient(pd.url)) as clock, closing(connect(pd.url)) as etcd:
        cluster_id, until_ts = find_cluster_id(etcd, pd.url), clock.get_ts()
        source = TidbJobs(StatusPorts(etcd, None))
        tracker = SchemaTracker(TIDB)

        async def fetch(step: DdlStep) -> DdlJob:
            return await fetch_job(source, step)

        route = Selection(Rules(FilterConfig(do_dbs=("shop",))), tracker).route
        follower = DdlFollower(tracker, fetch, overrides={}, route=route)
        with closing(
            MysqlSink(sink_target(MysqlTarget, mariadb.url), cluster_id=cluster_id, retry_s_max=10)
        ) as sink:
            sink.load_checkpoint()
            for b in streamed(pump, cluster_id, until_ts):
                if not b.ddl_job_id:
                    continue
                query, state = b.ddl_query.decode(), b.ddl_schema_state
                step = DdlStep(b.commit_ts, b.ddl_job_id, query, schema_state=state)
                followed = asyncio.run(follower.follow(step))
                change = followed.run
                if change is None or change.job.schema_name != "shop":
                    continue
                version = change.job.schema_version
                sink.run_ddl(change, Checkpoint(b.commit_ts, version), maybe_done=False)
                if "CREATE TABLE" in query:
                    mariadb.run("SET time_zone = '+00:00'", ROW)
    columns = "id, dt, ts, a, b, c, v, n"
    found = [server.query(f"SELECT {columns} FROM shop.t", **IN_UTC) for server in (tidb, mariadb)]
    assert found[0] == found[1]
    assert found[0][0][1:3] == ("2020-06-01 04:00:00", "2020-06-01 08:30:00")
    assert found[0][0][-3:] == ("2019-12-31 19:00:00", "abc", "127")
