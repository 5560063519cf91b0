"""Spark's tasks commit the partitions of batches into a real MariaDB; they die and freeze there."""

import random
import time
from typing import Any

import psutil
import pytest

from penstock.failpoints import VARIABLE
from penstock.local.sql_server import SqlServer
from tests.kit.servers.binlog_server import MARIADB, TIDB
from tests.kit.servers.fix_drainer import SERVES, START_S, DrainerProcess
from tests.kit.servers.fix_mariadb import MariadbServer
from tests.kit.servers.fix_replication import Replication
from tests.kit.servers.fix_spark import SPECULATION, HarmedCluster, committed_by_tasks
from tests.kit.wait import eventually
from tests.kit.workloads.random_writer import RandomWriter

pytestmark = pytest.mark.fault

WAY: dict[str, Any] = {
    "apply_mode": "parallel",
    "apply_connections": 2,
    "spark_master": "local[2]",
    "spark_payloads": "executors",
}
ROWS = 6_000
"""So many new items are above two partitions."""
TASKS_S = 300.0
"""Within this time a busy machine starts Spark and its tasks."""


def served(drainer: DrainerProcess, failpoints: str = "") -> DrainerProcess:
    drainer.spawn(failpoints)
    drainer.addr = drainer.wait_for(SERVES, START_S)[2]
    return drainer


def batches(drainer: DrainerProcess, writer: RandomWriter, count: int) -> None:
    for _ in range(count):
        writer.transact(5)
        drainer.wait_until(writer.bulk(ROWS))


@pytest.mark.fault(
    "a task's process is killed as it gets the order to commit, after a partition's statements,"
    " or after its commit and before the report",
    "another one commits what is missing; equal, a table without keys too",
    cases="3",
)
@pytest.mark.main_case("changed")
@pytest.mark.parametrize(
    "step",
    ["drainer.partitions_ordered=kill@2", "drainer.partition_changed=kill@3",
     "drainer.partition_committed=kill@3"],
)  # fmt: skip
def test_tasks_that_are_killed_as_they_commit_change_nothing(
    step: str, replication: Replication, mariadb: MariadbServer
) -> None:
    """The Drainer has the same fault: it would end, too, if it committed a partition itself."""
    drainer = served(replication.start(mariadb, started=False, **WAY), step)
    writer = replication.begin(seed=71)
    batches(drainer, writer, 4)
    drainer.wait_for(r"commits the batch up to \d+ in the place of another", 1)
    replication.check(drainer)
    assert drainer.stop() == 0


@pytest.mark.fault(
    "on a standalone cluster with speculation: a task's Python, an executor's JVM or a worker is"
    " killed while tasks and their copies commit batches",
    "equal to upstream, a table without keys too",
    cases="1 to 45",
)
@pytest.mark.slow
@pytest.mark.mariadb
def test_copies_of_tasks_that_are_killed_as_they_commit_change_nothing(
    replication: Replication, mariadb: MariadbServer, spark_cluster: HarmedCluster
) -> None:
    rng = random.Random(77)
    way = WAY | {"spark_master": spark_cluster.url, "spark_tasks": 2}
    replication.start(mariadb, started=False)
    slow = f"spark.executorEnv.{VARIABLE}=drainer.partition_changed=sleep(0.5)"
    way["spark_conf"] = ",".join([*SPECULATION, slow])
    drainer = replication.drain_into(mariadb.url_without_password, **way)
    drainer.wait_for(r"4 in all", TASKS_S)
    writer = replication.begin(seed=77)
    bulk_ts = 0
    for harm in ("task", "executor", "worker") * 15:
        if "in the place of another" in drainer.log_text():
            break
        batches(drainer, writer, 1)
        bulk_ts = writer.bulk(ROWS)
        time.sleep(0.5 + rng.random() / 2)
        spark_cluster.kill_one(harm, rng)
        drainer.wait_until(bulk_ts)
    drainer.wait_for("in the place of another", 1)
    assert committed_by_tasks(mariadb) == bulk_ts
    replication.check(drainer)
    assert drainer.stop() == 0


LARGE_TRANSACTION = {
    False: "SELECT 1 FROM information_schema.innodb_trx WHERE trx_rows_modified > 1000",
    True: "SELECT 1 FROM information_schema.tidb_trx WHERE mem_buffer_keys > 1000",
}
"""A query for an open one, by whether the server is a TiDB."""


def has_large_transaction(server: SqlServer, kind: str) -> bool:
    server.query("DO SLEEP(0.2)")  # InnoDB's list is renewed only if nobody has read it for 0.1 s.
    return bool(server.query(LARGE_TRANSACTION[kind == TIDB]))


@pytest.mark.fault(
    "a Drainer freezes with its tasks, one of which holds a partition that is not committed; a"
    " standby takes over; they wake",
    "the server ends its transaction within half a minute; it commits nothing more; equal",
    cases="1, on a Spark cluster and into a TiDB another 2",
)
@pytest.mark.thorough
@pytest.mark.parametrize(
    ("kind", "cluster"),
    [
        pytest.param(MARIADB, "", marks=pytest.mark.mariadb),
        pytest.param(MARIADB, "spark_cluster", marks=[pytest.mark.mariadb, pytest.mark.slow]),
        pytest.param(TIDB, "", marks=pytest.mark.tidb),
    ],
)
def test_a_task_that_was_frozen_past_a_takeover_commits_nothing(
    kind: str,
    cluster: str,
    replication: Replication,
    sink_server: SqlServer,
    request: pytest.FixtureRequest,
) -> None:
    spark: HarmedCluster | None = request.getfixturevalue(cluster) if cluster else None
    fault, way, faulty = "drainer.partition_changed=sleep(20)", WAY, WAY
    if spark is not None:
        way = WAY | {"spark_master": spark.url, "spark_tasks": 2}
        faulty = way | {"spark_conf": f"spark.executorEnv.{VARIABLE}={fault}"}
    replication.start(sink_server, started=False)
    url = sink_server.url if kind == TIDB else sink_server.url_without_password
    first = replication.drain_into(url, started=False, **faulty)
    served(first, fault)
    first.wait_for(r"2 in all", TASKS_S)
    writer = replication.begin(seed=72)
    first.wait_until(writer.transact(5))
    tasks = [task for worker in spark.workers for task in spark.tasks(worker)] if spark else []
    second = replication.drain_into(url, started=False, **way)
    second.spawn()
    second.wait_for(r"2 in all", TASKS_S)
    writer.bulk(ROWS)
    writer.bulk(ROWS)
    eventually(lambda: has_large_transaction(sink_server, kind), 60)
    frozen = [psutil.Process(first.pid), *first.children(), *tasks]
    for process in frozen:
        process.suspend()
    try:
        writer.transact(20)
        replication.check(second)
        asked = "SELECT DISTINCT epoch FROM tidb_binlog.checkpoint_fence"
        assert sink_server.query(asked) == [(2,)]
    finally:
        for process in frozen:
            process.resume()
    first.wait_for("this Drainer writes no more", 60)
    batches(second, writer, 1)
    replication.check(second)
    assert first.stop() == 0
    assert second.stop() == 0


LARGE_ROWS = 128
LARGE_BYTES = 4 << 20


@pytest.mark.fault(
    "a batch needs more memory than Spark gives a task (batch-bytes-max of 1 GiB)",
    "the Drainer stops with a hint and writes nothing of the batch; with the default size of"
    " batches it applies all rows",
    cases="1",
)
@pytest.mark.mariadb
@pytest.mark.slow
def test_a_batch_that_needs_more_memory_than_a_task_has_stops_the_drainer_with_a_hint(
    replication: Replication, mariadb: MariadbServer
) -> None:
    way = WAY | {"spark_conf": "spark.executor.pyspark.memory=2g"}
    replication.start(mariadb, started=False)
    client = replication.connect()
    client.execute_ddl("CREATE DATABASE shop")
    client.execute_ddl("CREATE TABLE shop.page (id INT PRIMARY KEY, text LONGTEXT)")
    for number in range(LARGE_ROWS):
        with client.begin("shop") as txn:
            txn.insert("page", {"id": number, "text": f"{number}" + "x" * LARGE_BYTES})
    url = mariadb.url_without_password
    drainer = replication.drain_into(url, batch_bytes_max=1 << 30, started=False, **way)
    drainer.spawn()
    assert drainer.wait(TASKS_S) == 2
    # gRPC ends its process if it gets no memory; the fourth task that is lost stops the Drainer.
    drainer.wait_for("more memory than Spark gives a task|usually an executor without memory", 1)
    assert mariadb.query("SELECT COUNT(*) FROM shop.page") == [(0,)]
    drainer = replication.drain_into(url, **way)
    drainer.wait_until(txn.commit_ts or 0, TASKS_S)
    digits = sum(len(f"{number}") for number in range(LARGE_ROWS))
    asked = "SELECT COUNT(*), SUM(LENGTH(text)) FROM shop.page"
    assert mariadb.query(asked) == [(LARGE_ROWS, LARGE_ROWS * LARGE_BYTES + digits)]
