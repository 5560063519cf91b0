"""Spark's tasks commit the partitions of batches into a real MariaDB; they die and freeze there."""

from typing import Any

import psutil
import pytest

from tests.kit.servers.fix_drainer import SERVES, START_S, DrainerProcess
from tests.kit.servers.fix_mariadb import MariadbServer
from tests.kit.servers.fix_replication import Replication
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
    "a Drainer freezes with its tasks, one of which holds a partition that is not committed; a"
    " standby takes over; they wake",
    "the server ends its transaction within half a minute; it commits nothing more; equal",
    cases="1",
)
@pytest.mark.thorough
def test_a_task_that_was_frozen_past_a_takeover_commits_nothing(
    replication: Replication, mariadb: MariadbServer
) -> None:
    first = replication.start(mariadb, started=False, **WAY)
    served(first, "drainer.partition_changed=sleep(20)@3")
    writer = replication.begin(seed=72)
    batches(first, writer, 1)
    second = replication.drain_into(replication.sink, started=False, **WAY)
    second.spawn()
    second.wait_for(r"2 in all", START_S)
    writer.bulk(ROWS)
    writer.bulk(ROWS)
    open_transactions = "SELECT 1 FROM information_schema.innodb_trx WHERE trx_rows_modified > 1000"
    eventually(lambda: len(mariadb.query(open_transactions)) > 0, 60)
    frozen = [psutil.Process(first.pid), *first.children()]
    for process in frozen:
        process.suspend()
    try:
        writer.transact(20)
        replication.check(second)
        assert mariadb.query("SELECT DISTINCT epoch FROM tidb_binlog.checkpoint_fence") == [(2,)]
    finally:
        for process in frozen:
            process.resume()
    first.wait_for("this Drainer writes no more", 60)
    batches(second, writer, 1)
    replication.check(second)
    assert first.stop() == 0
    assert second.stop() == 0
