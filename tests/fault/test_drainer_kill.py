"""A Drainer that is killed, a downstream that goes away, Pumps that die and join: nothing is lost,
nothing is applied twice, and what cannot go on says why."""

from __future__ import annotations

import random
import time
from pathlib import Path
from typing import Any

import pytest

from deploy.local.etcd import EtcdServer
from deploy.local.sql_server import SqlServer
from penstock.cluster.etcd import EtcdClient
from penstock.cluster.history import History
from penstock.oracle.client import open_oracle
from penstock.schema.model import DdlJob
from penstock.wire.binlog import Binlog, BinlogType
from pumpclient import PumpClient
from tests.kit.servers.binlog_server import MARIADB, OF_EACH_FLAVOR, on_servers
from tests.kit.servers.fix_drainer import DrainerFactory
from tests.kit.workloads.random_writer import RandomWriter, in_mariadb, in_sqlite, writing_meanwhile

pytestmark = pytest.mark.fault
SPARK_S = 180.0
"""How long Spark may take on a machine that others use."""


def _alter(writer: RandomWriter, round_number: int) -> None:
    """Every few rounds, a DDL: a table more, or an index that is there or not."""
    if round_number % 12 == 0:
        writer.execute_ddl(f"CREATE TABLE shop.extra_{round_number} (id INT PRIMARY KEY)")
    elif round_number % 24 == 6:
        writer.execute_ddl("CREATE INDEX by_price ON shop.item (price)")
    elif round_number % 24 == 18:
        writer.execute_ddl("DROP INDEX by_price ON shop.item")


@pytest.mark.parametrize("kills", [2, pytest.param(6, marks=pytest.mark.slow)])
@pytest.mark.parametrize("kind", on_servers(MARIADB, kinds=OF_EACH_FLAVOR))
def test_a_drainer_killed_again_and_again_ends_with_the_model_s_state(
    etcd: Any,
    etcd_server: EtcdServer,
    pump_factory: Any,
    drainer_factory: DrainerFactory,
    sink_server: SqlServer,
    kills: int,
) -> None:
    rng = random.Random(5)
    pump_factory(etcd_server.url)
    pump_factory(etcd_server.url)
    drainer = drainer_factory(etcd_server.url, sink_server.url, batch_rows_max=500)
    with PumpClient.connect(etcd_server.url) as client:
        writer = RandomWriter(client, seed=11)
        writer.create()
        with writing_meanwhile(writer, _alter):
            for _ in range(kills):
                seen = drainer.checkpoint_ts()
                drainer.wait_for("2 in all", SPARK_S)
                _until(lambda seen=seen: drainer.checkpoint_ts() > seen)
                time.sleep(rng.random())
                drainer.restart()
        drainer.wait_until(writer.last_ts)
        assert in_mariadb(sink_server) == writer.expected()
        extras = {f"extra_{n}" for n in range(12, 10**6, 12)}
        tables = {name for (name,) in sink_server.query("SHOW TABLES FROM shop")}
        assert tables - extras == {"item", "stock", "note"}


@pytest.mark.slow
def test_a_killed_sqlite_drainer_ends_with_the_model_s_state(
    etcd: Any,
    etcd_server: EtcdServer,
    pump_factory: Any,
    drainer_factory: DrainerFactory,
    tmp_path: Path,
) -> None:
    rng = random.Random(6)
    path = tmp_path / "down.db"
    pump_factory(etcd_server.url)
    drainer = drainer_factory(etcd_server.url, f"sqlite:///{path}", batch_rows_max=300)
    with PumpClient.connect(etcd_server.url) as client:
        writer = RandomWriter(client, seed=12)
        writer.create()
        with writing_meanwhile(writer):
            for _ in range(2):
                drainer.wait_for("2 in all", SPARK_S)
                time.sleep(rng.random())
                drainer.restart()
        drainer.wait_until(writer.last_ts)
        assert in_sqlite(path) == writer.expected()


@pytest.mark.slow
def test_a_drainer_that_finds_rows_waiting_starts_well_every_time(
    etcd: Any,
    etcd_server: EtcdServer,
    pump_factory: Any,
    drainer_factory: DrainerFactory,
    tmp_path: Path,
) -> None:
    path = tmp_path / "down.db"
    pump_factory(etcd_server.url)
    drainer = drainer_factory(etcd_server.url, f"sqlite:///{path}", batch_rows_max=20)
    with PumpClient.connect(etcd_server.url) as client:
        writer = RandomWriter(client, seed=14)
        writer.create()
        for _ in range(10):
            drainer.kill()
            writer.transact(100)
            drainer.start()
            drainer.wait_until(writer.last_ts)
            assert "defect" not in drainer.log_text()
        assert in_sqlite(path) == writer.expected()


@pytest.mark.parametrize("kind", on_servers(MARIADB, kinds=OF_EACH_FLAVOR))
def test_a_downstream_that_is_killed_while_rows_are_applied_holds_everything_once(
    etcd: Any,
    etcd_server: EtcdServer,
    pump_factory: Any,
    drainer_factory: DrainerFactory,
    sink_server: SqlServer,
) -> None:
    pump_factory(etcd_server.url)
    drainer = drainer_factory(etcd_server.url, sink_server.url)
    with PumpClient.connect(etcd_server.url) as client:
        writer = RandomWriter(client, seed=13)
        writer.create()
        with writing_meanwhile(writer):
            drainer.wait_for("2 in all", SPARK_S)
            for _ in range(2):
                time.sleep(1)
                sink_server.kill()
                time.sleep(0.5)
                sink_server.start()
        drainer.wait_until(writer.last_ts)
        assert in_mariadb(sink_server) == writer.expected()


def test_a_dead_pump_holds_the_merge_by_name_and_a_new_one_joins_before_it_serves(
    etcd: Any,
    etcd_server: EtcdServer,
    pump_factory: Any,
    drainer_factory: DrainerFactory,
    tmp_path: Path,
) -> None:
    path = tmp_path / "down.db"
    first, second = pump_factory(etcd_server.url), pump_factory(etcd_server.url)
    drainer = drainer_factory(etcd_server.url, f"sqlite:///{path}")
    with PumpClient.connect(etcd_server.url) as client:
        writer = RandomWriter(client, seed=14)
        writer.create()
        drainer.wait_until(writer.transact(20))
        with writing_meanwhile(writer):
            third = pump_factory(etcd_server.url)
            assert "drainer drainer-1 was notified" in third.log_text()
            drainer.wait_for("pulling from Pump pump-3")
            time.sleep(1)
            second.kill()
            drainer.wait_for(r"has waited \d+ s for Pump pump-2 .* at low water \d+", 15)
            held = drainer.checkpoint_ts()
            time.sleep(1)
            assert drainer.checkpoint_ts() == held
            second.start()
        drainer.wait_until(writer.last_ts)
        assert in_sqlite(path) == writer.expected()
        first.kill()
        first.start()
        drainer.wait_until(writer.transact(20))
        assert in_sqlite(path) == writer.expected()


def test_a_pump_that_joins_while_the_drainer_is_frozen_loses_nothing(
    etcd: Any,
    etcd_server: EtcdServer,
    pump_factory: Any,
    drainer_factory: DrainerFactory,
    tmp_path: Path,
) -> None:
    path = tmp_path / "down.db"
    pump_factory(etcd_server.url)
    drainer = drainer_factory(etcd_server.url, f"sqlite:///{path}")
    with PumpClient.connect(etcd_server.url) as client:
        writer = RandomWriter(client, seed=15)
        writer.create()
        drainer.wait_until(writer.transact(20))
        with writing_meanwhile(writer):
            drainer.freeze()
            time.sleep(11)
            newcomer = pump_factory(etcd_server.url)
            assert "drainer drainer-1 is not running" in newcomer.log_text()
            time.sleep(1)
            drainer.thaw()
            time.sleep(1)
        drainer.wait_until(writer.last_ts)
        assert in_sqlite(path) == writer.expected()


def test_a_ddl_that_nobody_knows_stops_the_drainer_before_it_with_a_hint(
    etcd: EtcdClient,
    etcd_server: EtcdServer,
    pump_factory: Any,
    drainer_factory: DrainerFactory,
    tmp_path: Path,
) -> None:
    path = tmp_path / "down.db"
    pump_factory(etcd_server.url)
    drainer = drainer_factory(etcd_server.url, f"sqlite:///{path}")
    with PumpClient.connect(etcd_server.url) as client:
        writer = RandomWriter(client, seed=16)
        writer.create()
        before_ts = writer.transact(20)
        _write_unknown_ddl(etcd, client)
        shop_then = writer.expected()
        writer.transact(5)
        assert drainer.wait(60) == 2
    log = drainer.log_text()
    assert "stopped:" in log
    assert "EXCHANGE PARTITION" in log
    assert drainer.checkpoint_ts() >= before_ts
    assert in_sqlite(path) == shop_then
    # It stops there again: nothing was skipped meanwhile.
    assert drainer.spawn().wait(60) == 2
    assert in_sqlite(path) == shop_then


def _write_unknown_ddl(etcd: EtcdClient, client: PumpClient) -> None:
    """Record a job of a type that Penstock does not follow, and its binlog."""
    history, oracle = History(etcd), open_oracle(etcd)
    try:
        start_ts, commit_ts = oracle.get_ts(), oracle.get_ts()
        job = DdlJob(
            id=history.next_ids(1),
            type=42,
            schema_id=1,
            schema_name="shop",
            query="ALTER TABLE item EXCHANGE PARTITION p WITH TABLE other",
            schema_version=history.schema_version() + 1,
            finished_ts=commit_ts,
        )
        history.append(job)
        ddl = {"ddl_query": job.query.encode(), "ddl_job_id": job.id}
        client.write_binlog(Binlog(tp=BinlogType.PREWRITE, start_ts=start_ts, **ddl))  # type: ignore[arg-type]
        client.write_binlog(
            Binlog(tp=BinlogType.COMMIT, start_ts=start_ts, commit_ts=commit_ts, **ddl)  # type: ignore[arg-type]
        )
    finally:
        oracle.close()


def _until(condition: Any, timeout_s: float = 120) -> None:
    deadline_s = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline_s, "it did not come true"
        time.sleep(0.05)
