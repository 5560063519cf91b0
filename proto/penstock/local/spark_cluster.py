"""A private Spark standalone cluster: a master and workers from pyspark's jars, loopback only.

    master.Master <── worker.Worker ──> an executor's JVM for an application ──> a Python per task

The commands are those of deploy/README.md. Each worker has its own address, so that Spark takes it
for another host.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Self

import psutil

from drainer.spark.jvm import use_java
from penstock.codes import Code
from penstock.errors import NeedsOperator
from penstock.local import FILES
from penstock.local.process import ServerProcess, free_port

HOST: Final = "127.0.0.1"
MEMORY: Final = "spark-master"
"""The directory from which a restarted master knows its workers and applications."""
_START_S_MAX: Final = 90.0
_END_S_MAX: Final = 10.0
_MASTER, _WORKER = "org.apache.spark.deploy.master.Master", "org.apache.spark.deploy.worker.Worker"
_READY: Final = {
    _MASTER: b"I have been elected leader",
    _WORKER: b"Successfully registered with master",
}
_EXECUTOR: Final = "org.apache.spark.executor.CoarseGrainedExecutorBackend"
_WORK_DIR: Final = "spark-worker-"
_DAEMON_JVM: Final = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -XX:-UsePerfData"
_MASTER_OPTIONS: Final = (
    "-Dspark.deploy.recoveryMode=FILESYSTEM -Dspark.deploy.recoveryDirectory={folder}"
    " -Dspark.master.rest.enabled=false"
)


class SparkServer(ServerProcess):
    """A master or a worker, with its executors below it."""

    def __init__(self, main: str, home: Path, name: str, host: str, options: Sequence[str]) -> None:
        """`host` is the address that it listens on and shows to others."""
        found = importlib.util.find_spec("pyspark")
        if found is None or found.origin is None:
            raise NeedsOperator("no package pyspark", "pip install pyspark", Code.PACKAGE_MISSING)
        spark_home = Path(found.origin).parent
        environment = {
            **os.environ,
            "SPARK_HOME": str(spark_home),
            "JAVA_HOME": str(use_java(home / "java")),
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_DAEMON_JAVA_OPTS": _DAEMON_JVM,
            "SPARK_MASTER_OPTS": _MASTER_OPTIONS.format(folder=home / MEMORY),
            "SPARK_LOCAL_IP": host,
            "SPARK_LOCAL_DIRS": str(home),
            "PYSPARK_PYTHON": sys.executable,
        }
        # Executors must not find our code by accident.
        environment.pop("PYTHONPATH", None)
        command = [str(spark_home / "bin" / "spark-class"), main, "--host", host, *options]
        super().__init__(command, log=home / f"{name}.log", environment=environment)
        self.name, self._ready = name, _READY[main]

    def start(self) -> Self:
        """Start it and wait until it serves; raise `Retryable` with its log when it does not."""
        begin = self.log.stat().st_size if self.log.exists() else 0

        def is_ready() -> bool:
            with self.log.open("rb") as log:
                log.seek(begin)
                return self._ready in log.read()

        return super().start().until(is_ready, _START_S_MAX)

    def below(self) -> list[psutil.Process]:
        """Return the processes below a worker: its executors and their Python processes."""
        with contextlib.suppress(psutil.NoSuchProcess):
            if self.is_running:
                return psutil.Process(self.pid).children(recursive=True)
        return []

    def executors(self) -> list[psutil.Process]:
        """Return the JVMs of a worker's executors."""
        found = []
        for process in self.below():
            with contextlib.suppress(psutil.Error):
                if _EXECUTOR in process.cmdline():
                    found.append(process)
        return found

    def kill_executor(self) -> bool:
        """Kill the JVM of the first executor; return whether it had one."""
        for process in self.executors()[:1]:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
                return True
        return False


class SparkCluster:
    """One master and two workers of two cores; the master's port stays the same over restarts."""

    def __init__(self, home: Path) -> None:
        self.home = home
        port, page = free_port(), free_port()
        self.url = f"spark://{HOST}:{port}"
        options = ["--port", str(port), "--webui-port", str(page)]
        self.master = SparkServer(_MASTER, home, MEMORY, HOST, options)
        self.workers = [self._worker(number) for number in (1, 2)]

    def _worker(self, number: int) -> SparkServer:
        name = f"{_WORK_DIR}{number}"
        options = ["--cores", "2", "--memory", "2g", "--webui-port", "0"]
        options += ["--work-dir", str(self.home / name), self.url]
        return SparkServer(_WORKER, self.home, name, f"127.0.0.{number}", options)

    @property
    def servers(self) -> dict[str, ServerProcess]:
        return {server.name: server for server in (self.master, *self.workers)}

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def start(self) -> None:
        for server in (self.master, *self.workers):
            server.start()

    def __exit__(self, *error: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Stop all servers and what is left of their executors, also of workers that were killed.

        Executors and their Python processes run below a worker's directory.
        """
        for server in (*self.workers, self.master):
            server.stop()
        left = [process for process in psutil.process_iter() if self._has_below(process)]
        _, alive = psutil.wait_procs(left, _END_S_MAX)
        for process in alive:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(alive, _END_S_MAX)

    def _has_below(self, process: psutil.Process) -> bool:
        with contextlib.suppress(psutil.Error):
            return process.cwd().startswith(str(self.home / _WORK_DIR))
        return False

    def drainer_options(self) -> list[str]:
        """Write the sample `standalone.toml` with this cluster's addresses; return its option."""
        text = (FILES / "spark" / "standalone.toml").read_text(encoding="utf-8")
        ours = {
            "spark://spark-master:7077": self.url,
            "drainer.example": HOST,
            "/opt/penstock/bin/python": sys.executable,
        }
        for sample, own in ours.items():
            assert text.count(sample) == 1, f"{sample} is not in the sample once"
            text = text.replace(sample, own)
        path = self.home / "standalone.toml"
        path.write_text(text, encoding="utf-8")
        return ["--config", str(path)]
