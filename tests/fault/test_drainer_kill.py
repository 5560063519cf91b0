"""A Drainer that is killed, a downstream that goes away, Pumps that die and join: nothing is lost,
nothing is applied twice, and what cannot continue says why."""

import random
import time

import pytest

from penstock.cluster.etcd import EtcdClient
from penstock.cluster.history import History
from penstock.local.sql_server import SqlServer
from penstock.oracle.client import open_oracle
from penstock.schema.model import DdlJob
from penstock.wire.binlog import Binlog, BinlogType
from pumpclient import PumpClient
from tests.kit.servers.binlog_server import MARIADB, OF_EACH_FLAVOR, on_servers
from tests.kit.servers.fix_replication import Replication
from tests.kit.wait import eventually
from tests.kit.workloads.random_writer import RandomWriter, in_sqlite, writing_meanwhile

pytestmark = [pytest.mark.fault, pytest.mark.thorough]
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


@pytest.mark.parametrize("kills", [1, pytest.param(6, marks=pytest.mark.slow)])
@pytest.mark.parametrize("kind", on_servers(MARIADB, kinds=OF_EACH_FLAVOR))
def test_a_drainer_killed_again_and_again_ends_with_the_model_s_state(
    replication: Replication, sink_server: SqlServer, kills: int
) -> None:
    rng = random.Random(5)
    drainer = replication.start(sink_server, pumps=2, batch_rows_max=500)
    writer = replication.begin(seed=11)
    with writing_meanwhile(writer, _alter):
        for _ in range(kills):
            seen = drainer.checkpoint_ts()
            drainer.wait_for("2 in all", SPARK_S)
            eventually(lambda seen=seen: drainer.checkpoint_ts() > seen, 120)  # type: ignore[misc]
            time.sleep(rng.random())
            drainer.restart()
    replication.check(drainer)
    extras = {f"extra_{n}" for n in range(12, 10**6, 12)}
    tables = {name for (name,) in sink_server.query("SHOW TABLES FROM shop")}
    assert tables - extras == {"item", "stock", "note"}


@pytest.mark.slow
def test_a_killed_sqlite_drainer_ends_with_the_model_s_state(replication: Replication) -> None:
    rng = random.Random(6)
    drainer = replication.start(batch_rows_max=300)
    writer = replication.begin(seed=12)
    with writing_meanwhile(writer):
        for _ in range(2):
            drainer.wait_for("2 in all", SPARK_S)
            time.sleep(rng.random())
            drainer.restart()
    replication.check(drainer)


@pytest.mark.slow
def test_a_drainer_that_finds_rows_waiting_starts_well_every_time(replication: Replication) -> None:
    drainer = replication.start(batch_rows_max=20)
    writer = replication.begin(seed=14)
    for _ in range(10):
        drainer.kill()
        writer.transact(100)
        drainer.start()
        drainer.wait_until(writer.last_ts)
        assert "defect" not in drainer.log_text()
    replication.check()


@pytest.mark.slow
@pytest.mark.parametrize("kind", on_servers(MARIADB, kinds=OF_EACH_FLAVOR))
def test_a_downstream_that_is_killed_while_rows_are_applied_holds_everything_once(
    replication: Replication, sink_server: SqlServer
) -> None:
    drainer = replication.start(sink_server)
    writer = replication.begin(seed=13)
    with writing_meanwhile(writer):
        drainer.wait_for("2 in all", SPARK_S)
        for _ in range(2):
            time.sleep(1)
            sink_server.kill()
            time.sleep(0.5)
            sink_server.start()
    replication.check(drainer)


@pytest.mark.thorough
@pytest.mark.parametrize("kind", on_servers(MARIADB))
def test_a_drainer_that_is_stopped_while_its_downstream_is_away_ends_and_continues_later(
    replication: Replication, sink_server: SqlServer
) -> None:
    drainer = replication.start(sink_server, stop_timeout_s=3)
    writer = replication.begin(seed=15)
    drainer.wait_until(writer.transact(20))
    sink_server.kill()
    try:
        assert drainer.stop(30) == 0
        writer.transact(20)
    finally:
        sink_server.start()
    drainer.start()
    writer.transact(20)
    replication.check(drainer)


@pytest.mark.fault(
    "a Pump is gone",
    "the merge waits for it, by name, with the low water and what ends that",
    cases="1",
)
@pytest.mark.thorough
def test_a_dead_pump_holds_the_merge_by_name_and_a_new_one_joins_before_it_serves(
    replication: Replication,
) -> None:
    drainer = replication.start(pumps=2)
    first, second = replication.pumps
    writer = replication.begin(seed=14)
    drainer.wait_until(writer.transact(20))
    with writing_meanwhile(writer):
        third = replication.add_pump()
        assert "drainer drainer-1 was notified" in third.log_text()
        drainer.wait_for("pulling from Pump pump-3")
        time.sleep(1)
        second.kill()
        drainer.wait_for(r"has waited \d+ s for Pump pump-2 .* at low water \d+", 15)
        held = drainer.checkpoint_ts()
        time.sleep(1)
        assert drainer.checkpoint_ts() == held
        second.start()
    replication.check(drainer)
    first.kill()
    first.start()
    writer.transact(20)
    replication.check(drainer)


@pytest.mark.fault("a Pump joins while a Drainer pulls, or is frozen")
@pytest.mark.slow
def test_a_pump_that_joins_while_the_drainer_is_frozen_loses_nothing(
    replication: Replication,
) -> None:
    drainer = replication.start()
    writer = replication.begin(seed=15)
    drainer.wait_until(writer.transact(20))
    with writing_meanwhile(writer):
        drainer.freeze()
        time.sleep(11)
        joined = replication.add_pump()
        assert "drainer drainer-1 is not running" in joined.log_text()
        time.sleep(1)
        drainer.thaw()
        time.sleep(1)
    replication.check(drainer)


@pytest.mark.fault(
    "a DDL that no one knows, or whose job does not fit",
    "exit code 2 before it, with the commands to continue; again at the next start",
    cases="1",
)
@pytest.mark.thorough
def test_a_ddl_that_no_one_knows_stops_the_drainer_before_it_with_a_hint(
    replication: Replication,
) -> None:
    drainer = replication.start()
    writer = replication.begin(seed=16)
    before_ts = writer.transact(20)
    _write_unknown_ddl(replication.etcd, replication.client)
    shop_then = writer.expected()
    writer.transact(5)
    assert drainer.wait(60) == 2
    log = drainer.log_text()
    assert "stopped:" in log
    assert "EXCHANGE PARTITION" in log
    assert drainer.checkpoint_ts() >= before_ts
    assert in_sqlite(replication.path) == shop_then
    # It stops there again: nothing was skipped meanwhile.
    assert drainer.spawn().wait(60) == 2
    assert in_sqlite(replication.path) == shop_then


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
