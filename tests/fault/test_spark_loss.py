"""Spark's tasks, executors, workers and the driver's JVM are killed while rows
flow, with speculation on; every change arrives once, of tables without keys too."""

import random
import shutil
import time
from pathlib import Path

import psutil
import pytest

import drainer as drainer_package
import penstock
from drainer.spark.dispatcher import LOST_S
from tests.kit.servers.fix_drainer import DrainerProcess
from tests.kit.servers.fix_mariadb import MariadbServer
from tests.kit.servers.fix_replication import Replication
from tests.kit.servers.fix_spark import SPECULATION, HarmedCluster
from tests.kit.wait import eventually
from tests.kit.workloads.random_writer import writing_meanwhile

pytestmark = [pytest.mark.fault, pytest.mark.thorough]


def past(drainer: DrainerProcess, timeout_s: float = 180) -> None:
    """Return once the checkpoint has moved on."""
    seen = drainer.checkpoint_ts()
    deadline_s = time.monotonic() + timeout_s
    while drainer.checkpoint_ts() <= seen:
        if time.monotonic() > deadline_s:
            drainer.fail(f"its checkpoint stays at {seen}")
        time.sleep(0.02)


def kill_jvm(drainer: DrainerProcess) -> list[psutil.Process]:
    """Kill the driver's JVM; return the processes that it had below it.

    One that was killed before may just be replaced.
    """

    def jvms() -> list[psutil.Process]:
        return [child for child in drainer.children() if child.name() == "java"]

    eventually(lambda: len(jvms()) == 1, 60)
    (jvm,) = jvms()
    below = jvm.children(recursive=True)
    jvm.kill()
    return below


FEW = ("task", "executor")
MANY = ("task", "executor", "task", "worker", "driver") * 2


@pytest.mark.fault(
    "on a standalone cluster with speculation, so that every task has a copy at work: a"
    " task's Python and an executor's JVM are killed in a batch",
    "equal to upstream; no unit is applied twice",
    cases="2, in the sweep 10 with workers and the driver's JVM",
)
@pytest.mark.parametrize(
    "harms", [FEW, pytest.param(MANY, marks=pytest.mark.slow)], ids=["few", "many"]
)
def test_tasks_copies_and_executors_that_die_in_a_batch_change_nothing(
    harms: tuple[str, ...], replication: Replication, spark_cluster: HarmedCluster
) -> None:
    rng = random.Random(57)
    drainer = replication.start(
        spark_master=spark_cluster.url,
        spark_tasks=2,
        spark_conf=",".join(SPECULATION),
        batch_rows_max=300,
    )
    drainer.wait_for("4 in all", 150)
    writer = replication.begin(seed=57)
    with writing_meanwhile(writer):
        for harm in harms:
            past(drainer)
            time.sleep(rng.random() / 4)
            if harm == "driver":
                kill_jvm(drainer)
            else:
                spark_cluster.kill_one(harm, rng)
        past(drainer)
    replication.check(drainer)
    drainer.wait_for(r"is lost, \d are left", 1)
    assert drainer.stop() == 0


@pytest.mark.fault(
    "the driver's JVM is killed",
    "said, started again with back-off, its Python processes end; equal",
    cases="1, in the sweep 6",
)
@pytest.mark.parametrize("rounds", [1, pytest.param(6, marks=pytest.mark.slow)])
def test_a_driver_jvm_that_is_killed_is_replaced_and_nothing_arrives_twice(
    rounds: int, replication: Replication
) -> None:
    drainer = replication.start(spark_master="local[2]", batch_rows_max=300)
    drainer.wait_for("2 in all", 120)
    writer = replication.begin(seed=58)
    with writing_meanwhile(writer):
        for _ in range(rounds):
            past(drainer)  # By what was SQL already, too: then a JVM dies as it starts.
            orphans = kill_jvm(drainer)
            _, alive = psutil.wait_procs(orphans, 60)
            assert not alive, "Python workers outlive their JVM"
    replication.check(drainer)
    drainer.wait_for(r"(?s)2 in all.*the Spark JVM has ended.*resident tasks")
    assert drainer.stop() == 0


@pytest.mark.fault(
    "a Spark master restarts and has forgotten the application; all executors are gone",
    "reported after seconds; a new session is started after 30 s; equal",
    cases="1",
)
@pytest.mark.slow
def test_a_master_that_restarts_without_its_executors_is_asked_for_new_ones(
    replication: Replication, spark_cluster: HarmedCluster
) -> None:
    drainer = replication.start(spark_master=spark_cluster.url, spark_tasks=2, batch_rows_max=300)
    drainer.wait_for("2 in all", 150)
    writer = replication.begin(seed=59)
    with writing_meanwhile(writer):
        past(drainer)
        spark_cluster.restart_forgetful()
        drainer.wait_for("starting a new Spark session", 120)
        drainer.wait_for(r"(?s)starting a new Spark session.*2 in all", 150)
        past(drainer)
    replication.check(drainer)
    assert drainer.stop() == 0


@pytest.mark.fault(
    "all tasks are lost, and the executor that follows starts for 40 s",
    "the session is kept; equal",
    cases="1",
)
@pytest.mark.slow
def test_a_session_whose_new_executor_starts_slowly_is_kept(
    replication: Replication, spark_cluster: HarmedCluster
) -> None:
    drainer = replication.start(spark_master=spark_cluster.url, spark_tasks=1)
    drainer.wait_for("1 in all", 150)
    writer = replication.begin(seed=63)
    drainer.wait_until(writer.transact(5))

    def executors() -> list[psutil.Process]:
        found = [each for worker in spark_cluster.workers for each in worker.executors()]
        return [each for each in found if each.pid not in old]

    old: list[int] = []
    (first,) = executors()
    old.append(first.pid)
    first.kill()
    eventually(lambda: len(executors()) == 1, 90)
    (slow,) = executors()
    slow.suspend()
    time.sleep(LOST_S + 10)
    slow.resume()
    drainer.wait_for(r"is lost, 0 are left(.|\n)*1 in all", 150)
    writer.transact(5)
    replication.check(drainer)
    assert "new Spark session" not in drainer.log.read_text()
    assert drainer.stop() == 0


@pytest.mark.fault(
    "a Spark master that stores its applications is killed and restarted",
    "the tasks continue without it; restarted, it replaces an executor that is killed; equal",
    cases="1",
)
@pytest.mark.slow
def test_a_master_that_is_killed_disturbs_no_task_and_returns_with_its_memory(
    replication: Replication, spark_cluster: HarmedCluster
) -> None:
    drainer = replication.start(spark_master=spark_cluster.url, spark_tasks=2, batch_rows_max=300)
    drainer.wait_for("2 in all", 150)
    writer = replication.begin(seed=60)
    with writing_meanwhile(writer):
        past(drainer)
        spark_cluster.master.kill()
        for _ in range(20):
            past(drainer)
        spark_cluster.master.start()
        for _ in range(20):
            past(drainer)
        assert drainer.status().details["spark_tasks_lost"] == "0"
        assert spark_cluster.workers[0].kill_executor()
        drainer.wait_for(r"is lost, 1 are left(.|\n)*2 in all", 150)
        past(drainer)
    replication.check(drainer)
    assert "new Spark session" not in drainer.log.read_text()
    assert drainer.stop() == 0


@pytest.mark.fault(
    "a Spark task is frozen in the middle of a batch, and continues after its units were answered",
    "after 60 s another task answers; the second answer changes nothing; equal",
    cases="1",
)
@pytest.mark.mariadb
@pytest.mark.slow
def test_the_units_of_a_frozen_task_are_answered_by_another_and_its_late_answers_change_nothing(
    replication: Replication, spark_cluster: HarmedCluster, mariadb: MariadbServer
) -> None:
    replication.start(mariadb, started=False)
    drainer = replication.drain_into(
        mariadb.url_without_password,
        spark_master=spark_cluster.url,
        spark_tasks=2,
        batch_rows_max=300,
        apply_mode="parallel",
    )
    drainer.wait_for("2 in all", 150)
    writer = replication.begin(seed=61)
    with writing_meanwhile(writer):
        past(drainer)
        (frozen,) = spark_cluster.tasks(spark_cluster.workers[0])
        frozen.suspend()
        drainer.wait_for("have waited 60 s for an answer", 150)
        past(drainer)
        frozen.resume()
        for _ in range(20):
            past(drainer)
    replication.check(drainer)
    assert drainer.status().details["spark_tasks"] == "2"
    assert drainer.stop() == 0


@pytest.mark.fault("a task runs other code than the Drainer")
@pytest.mark.slow
def test_a_drainer_whose_executors_find_other_code_first_stops_with_a_hint(
    replication: Replication, spark_cluster: HarmedCluster, tmp_path: Path
) -> None:
    """What the executors' Python imports at its start precedes the code that is sent to them."""
    found = tmp_path / "found"
    for package in (drainer_package, penstock):
        name = package.__name__
        shutil.copytree(Path(package.__path__[0]), found / name)
    (found / "drainer" / "task" / "another.py").write_text("# Another version.\n")
    (found / "sitecustomize.py").write_text("import drainer, penstock\n")
    node = replication.start(
        spark_master=spark_cluster.url,
        spark_tasks=2,
        spark_conf=f"spark.executorEnv.PYTHONPATH={found}",
    )
    replication.begin(seed=62).transact(5)
    assert node.wait(150) == 2
    node.wait_for(r"Spark task \d runs Penstock .*, this Drainer is .*remove what they find", 1)
    assert node.checkpoint_ts() < replication.writer.last_ts
