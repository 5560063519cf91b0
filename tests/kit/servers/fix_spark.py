"""A real Spark standalone cluster on the loopback: one master and two workers, a JVM each.

The workers are at 127.0.0.1 and 127.0.0.2, because Spark speculates on another host only.
"""

import random
import shutil
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from penstock_local.spark_cluster import MEMORY, SparkCluster, SparkServer


class HarmedCluster(SparkCluster):
    """A cluster whose parts are killed; two tasks are spread over both workers."""

    def restart_forgetful(self) -> None:
        """Kill master, workers and executors, and start a master and workers without a memory."""
        self.master.kill()
        for worker in self.workers:
            self.kill_worker(worker)
        shutil.rmtree(self.home / MEMORY)
        self.start()

    def kill_worker(self, worker: SparkServer) -> None:
        """Kill a worker with all below it, as the loss of its machine does."""
        below = worker.below()
        worker.kill()
        for process in below:
            process.kill()
        psutil.wait_procs(below, 10)

    def kill_one(self, kind: str, rng: random.Random) -> None:
        """Kill a task's Python process, an executor's JVM, or all of a worker, which returns."""
        worker = rng.choice(self.workers)
        if kind == "worker":
            self.kill_worker(worker)
            worker.start()
        elif kind == "executor":
            worker.kill_executor()
        else:
            for process in self.tasks(worker)[-1:]:
                process.kill()

    def tasks(self, worker: SparkServer) -> list[psutil.Process]:
        """Return the Python processes of a worker's tasks, which each executor's daemon forks."""
        pythons = [process for process in worker.below() if "python" in process.name()]
        daemons = {process.pid for process in pythons} & {process.ppid() for process in pythons}
        return [process for process in pythons if process.pid not in daemons]


@pytest.fixture
def spark_cluster(tmp_path: Path) -> Iterator[HarmedCluster]:
    """A running cluster of the test's own, because the test may kill parts of it."""
    with HarmedCluster(tmp_path / "spark-cluster") as cluster:
        yield cluster
