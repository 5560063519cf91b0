"""A real Spark standalone cluster on the loopback: one master and two workers, a JVM each.

The workers are at 127.0.0.1 and 127.0.0.2, because Spark speculates on another host only.
"""

import os
import random
import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from drainer.spark.jvm import use_java
from penstock.local.process import ServerProcess
from penstock.local.spark_cluster import MEMORY, SparkCluster, SparkServer
from penstock.local.sql_server import SqlProcess

SPECULATION = (
    "spark.speculation=true",
    "spark.speculation.interval=100ms",
    "spark.speculation.task.duration.threshold=500ms",
    "spark.executor.cores=2",
    "spark.cores.max=4",
)
"""Each resident task gets a copy on the other host as soon as it has run for half a second."""


class HarmedCluster(SparkCluster):
    """A cluster whose parts are killed; two tasks are spread over both workers."""

    def restart_forgetful(self) -> None:
        """Kill master, workers and executors, and start a master and workers without a memory."""
        self.master.kill()
        for worker in self.workers:
            kill_tree(worker)
        shutil.rmtree(self.home / MEMORY)
        self.start()

    def kill_one(self, kind: str, rng: random.Random) -> None:
        """Kill a task's Python process, an executor's JVM, or all of a worker, which returns."""
        worker = rng.choice(self.workers)
        if kind == "worker":
            kill_tree(worker)
            worker.start()
        elif kind == "executor":
            worker.kill_executor()
        else:
            _kill(self.tasks(worker)[-1:])

    def tasks(self, worker: SparkServer) -> list[psutil.Process]:
        """Return the Python processes of a worker's tasks, which each executor's daemon forks."""
        parents = {}
        for process in worker.below():
            with suppress(psutil.NoSuchProcess):
                if "python" in process.name():
                    parents[process] = process.ppid()
        return [each for each in parents if each.pid not in parents.values()]


def kill_tree(process: ServerProcess) -> None:
    """Kill a process with all below it, as the loss of its machine does."""
    below: list[psutil.Process] = []
    with suppress(psutil.NoSuchProcess):
        if process.is_running:
            below = psutil.Process(process.pid).children(recursive=True)
    process.kill()
    _kill(below)
    psutil.wait_procs(below, 10)


def _kill(processes: Sequence[psutil.Process]) -> None:
    """Kill processes, of which some may end by themselves as their parents do."""
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.kill()


def committed_by_tasks(server: SqlProcess) -> int:
    """Return the commit_ts of the last batch whose fences tasks have moved, 0 without one."""
    asked = "SELECT COALESCE(MAX(batch), 0) FROM tidb_binlog.checkpoint_fence WHERE content = ''"
    return int(server.query(asked)[0][0])


@pytest.fixture
def spark_cluster(tmp_path: Path) -> Iterator[HarmedCluster]:
    """A running cluster of the test's own, because the test may kill parts of it."""
    with HarmedCluster(tmp_path / "spark-cluster") as cluster:
        yield cluster


@pytest.fixture(scope="session")
def spark_session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A session for all tests of a process."""
    with local_session(tmp_path_factory.mktemp("spark-session")) as session:
        yield session


def session_environment(home: Path) -> dict[str, str]:
    """Return the variables of a process that has a Spark session; `home` gets a link to Java."""
    return {
        "JAVA_HOME": str(use_java(home)),
        "PYTHONPATH": os.pathsep.join(each for each in sys.path if each),
        "PYSPARK_PYTHON": sys.executable,
    }


@contextmanager
def local_session(home: Path, *sources: type) -> Iterator[Any]:
    """Yield a session with two local tasks, the format `penstock` and those of `sources`."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in session_environment(home).items():
            patch.setenv(name, value)
        from pyspark.sql import SparkSession

        from penstock.spark import PenstockSource

        builder = SparkSession.builder.master("local[2]").appName("penstock tests")
        for name, value in _SESSION.items():
            builder = builder.config(name, value)
        session = builder.config("spark.sql.warehouse.dir", str(home)).getOrCreate()
        session.sparkContext.setLogLevel("ERROR")
        for source in (PenstockSource, *sources):
            session.dataSource.register(source)
        yield session
        session.stop()


_SESSION = {
    "spark.ui.enabled": "false",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.memory": "512m",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "1",
    # A busy machine may need longer than 15 s to start a Python.
    "spark.python.authenticate.socketTimeout": "120s",
}
