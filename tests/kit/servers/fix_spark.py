"""A real Spark standalone cluster on the loopback: one master and two workers, a JVM each.

The workers are at 127.0.0.1 and 127.0.0.2, because Spark speculates on another host only.
"""

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from drainer.spark.jvm import use_java
from penstock_local.process import free_port

_HOSTS = ("127.0.0.1", "127.0.0.2")


class SparkCluster:
    """The master and its workers; each has two cores and memory for one executor.

    Two tasks are spread over both.
    """

    def __init__(self, home: Path) -> None:
        self.home = home
        self.port = free_port()
        self.url = f"spark://127.0.0.1:{self.port}"
        self.workers: list[subprocess.Popen[bytes]] = []
        self._hosts: dict[int, str] = {}
        self._master: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start everything and wait until both workers are registered."""
        self._start_master()
        for host in _HOSTS:
            self.add_worker(host)

    def _start_master(self) -> None:
        address = ["--host", "127.0.0.1", "--port", str(self.port), "--webui-port", "0"]
        self._master = self._jvm("master.Master", "master", address)
        self._wait_for("master", "I have been elected leader")

    def restart_forgetful(self) -> None:
        """Kill master, workers and executors, and start a master and workers without a memory."""
        assert self._master is not None
        self._master.kill()
        self._master.wait()
        for worker in self.workers:
            self.kill_worker(worker)
        self._start_master()
        for host in _HOSTS:
            self.add_worker(host)

    def add_worker(self, host: str = _HOSTS[0]) -> subprocess.Popen[bytes]:
        """Start one more worker and wait until the master knows it."""
        name = f"worker-{len(self.workers) + 1}"
        arguments = ["--host", host, "--cores", "2", "--memory", "700m"]
        arguments += ["--webui-port", "0", "--work-dir", str(self.home / name), self.url]
        worker = self._jvm("worker.Worker", name, arguments, host)
        self.workers.append(worker)
        self._hosts[worker.pid] = host
        self._wait_for(name, "Successfully registered with master")
        return worker

    def kill_worker(self, worker: subprocess.Popen[bytes]) -> None:
        for process in psutil.Process(worker.pid).children(recursive=True):
            process.kill()
        worker.kill()
        worker.wait()

    def kill_one(self, kind: str, rng: random.Random) -> None:
        """Kill a task's Python process, an executor's JVM, or all of a worker, which returns."""
        worker = rng.choice([worker for worker in self.workers if worker.poll() is None])
        if kind == "worker":
            self.kill_worker(worker)
            self.add_worker(self._hosts[worker.pid])
            return
        below = psutil.Process(worker.pid).children(recursive=True)
        is_python = kind == "task"
        # A daemon forks a Python process for each task; the last one is a task's.
        chosen = [p for p in below if ("python" in p.name()) is is_python][-1 if is_python else 0 :]
        for process in chosen[:1]:
            process.kill()

    def stop(self) -> None:
        """Stop everything that still runs."""
        for process in [*self.workers, *filter(None, [self._master])]:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
        for process in [*self.workers, *filter(None, [self._master])]:
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def _jvm(
        self, main: str, name: str, arguments: list[str], host: str = _HOSTS[0]
    ) -> subprocess.Popen[bytes]:
        import pyspark

        jars = Path(pyspark.__file__).parent / "jars"
        java_home = use_java(self.home / "java")
        command = [
            str(java_home / "bin" / "java"),
            "-Xmx256m",
            "-XX:+UseSerialGC",
            "-XX:TieredStopAtLevel=1",
        ]
        command += ["-cp", f"{jars}/*", f"org.apache.spark.deploy.{main}", *arguments]
        environment = {
            **os.environ,
            "SPARK_HOME": str(jars.parent),
            "JAVA_HOME": str(java_home),
            # Spark's scripts find this out; we start without them.
            "SPARK_SCALA_VERSION": next(jars.glob("spark-core_*")).name.split("_")[1].split("-")[0],
            "SPARK_LOCAL_IP": host,
            "SPARK_LOCAL_DIRS": str(self.home),
            "PYSPARK_PYTHON": sys.executable,
        }
        # Executors run in an empty directory and must not find our code by accident.
        environment.pop("PYTHONPATH", None)
        with (self.home / f"{name}.log").open("wb") as log:
            return subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment,
                cwd=self.home,
            )  # fmt: skip

    def _wait_for(self, name: str, text: str, timeout_s: float = 60) -> None:
        path = self.home / f"{name}.log"
        deadline_s = time.monotonic() + timeout_s
        while text not in path.read_text(errors="replace"):
            if time.monotonic() > deadline_s:
                pytest.fail(f"Spark {name} did not start:\n{path.read_text()[-3000:]}")
            time.sleep(0.1)


@pytest.fixture
def spark_cluster(tmp_path: Path) -> Iterator[SparkCluster]:
    """A running cluster of the test's own, because the test may kill parts of it."""
    home = tmp_path / "spark-cluster"
    home.mkdir()
    cluster = SparkCluster(home)
    cluster.start()
    yield cluster
    cluster.stop()
