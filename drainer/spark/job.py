"""Spark job: keeps one long-running job alive whose tasks turn units of work into SQL.

    this thread ── JVM (driver) ──┬── task 0 ──┐
       start session              ├── task 1 ──┼── connect back to the dispatcher, stay
       run job, again and again   └── task n ──┘

A job per batch would cost hundreds of milliseconds each; a resident job costs its start once. Spark
places the tasks, restarts lost tasks and spreads them over a cluster. A job that ends unexpectedly
is restarted with backoff, a JVM that died is replaced. The JVM ends with this process, for whatever
reason: it reads our pipe on its standard input and exits at the pipe's end.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import logging
import os
import re
import shutil
import socketserver
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from drainer.spark.jvm import (
    BEGINS_AFTER_S,
    Jvm,
    archive_in,
    kill_archiving,
    options_for,
    write_archive,
)
from drainer.task import without_pandas
from drainer.task.row_fetch import FetchSettings
from drainer.task.work_loop import Bundle, OpensOrders, serve_partition
from penstock.codes import Code
from penstock.errors import PenstockError, Retryable
from penstock.waiting import doubling

log = logging.getLogger(__name__)

_TASK_FAILURES_MAX = 4
_RESTART_S_MIN = 0.5
_RESTART_S_MAX = 15.0
_STOP_TIMEOUT_S = 4.0
_LOCAL_TASKS_MAX = 4
_LOOPBACK = "127.0.0.1"

_CODE = "penstock.zip"
JAVA_OPTIONS = (
    "-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -XX:-UsePerfData"
    " -XX:InitialRAMPercentage=0.1 -XX:MinHeapFreeRatio=10 -XX:MaxHeapFreeRatio=20"
)
"""Options of the driver's JVM: small, and quick to start.

By default its heap starts with a 64th of the machine's memory, and most of it stays free. On 24 GiB
an idle JVM took 268 MiB instead of 176, for the same processor time.
"""

_LOG4J = """
rootLogger.level = warn
rootLogger.appenderRef.console.ref = console
appender.console.type = Console
appender.console.name = console
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{yyyy-MM-dd'T'HH:mm:ss.SSS'Z'}{UTC} %p spark.%c{1}: %m%n%ex
logger.native.name = org.apache.hadoop.util.NativeCodeLoader
logger.native.level = error
logger.granted.name = org.apache.spark.scheduler.cluster.StandaloneSchedulerBackend
logger.granted.level = info
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class SparkSettings:
    """The location and number of tasks; `work_dir` is ours alone, emptied at start and end.

    `output` is the file for Spark's output.
    """

    work_dir: Path
    output: Path
    master: str = "local[*]"
    tasks: int = 0
    host: str = "127.0.0.1"
    conf: Sequence[str] = field(default_factory=tuple)

    @property
    def is_local(self) -> bool:
        """True when the tasks are children of this process's JVM."""
        return self.master.startswith("local")

    @property
    def task_count(self) -> int:
        if self.tasks > 0:
            return self.tasks
        local = re.fullmatch(r"local\[(\d+)(?:,\s*\d+)?\]", self.master)
        return int(local[1]) if local else min(os.cpu_count() or 1, _LOCAL_TASKS_MAX)

    @property
    def spark_master(self) -> str:
        """The master's URL; like a cluster, a local master tolerates task failures."""
        if not self.is_local:
            return self.master
        return f"local[{self.task_count},{_TASK_FAILURES_MAX}]"


class SparkJob:
    """The Spark session and its resident job, driven by a dedicated thread."""

    def __init__(
        self,
        settings: SparkSettings,
        bundle: Bundle,
        address: tuple[str, int],
        token: str,
        fetch: FetchSettings | None = None,
        digest: str = "",
        commits: OpensOrders | None = None,
        secrets: Mapping[str, str] | None = None,
    ) -> None:
        """Prepare; the tasks get the `bundle`, connect to `address` and present `token`.

        With `fetch` they get rows from the Pumps, with `commits` they write the downstream;
        `digest` is that of the Drainer's certificate. These values are in the job's own code, and
        neither in Spark's configuration nor in its logs. The `secrets` are in the environment of
        the JVM, which only the tasks of a local master inherit.
        """
        self._bundle = bundle
        self._settings = settings
        self._body = functools.partial(
            serve_partition, *address, token, settings=fetch, digest=digest, commits=commits
        )
        self._jvm = Jvm(settings.output, secrets)
        self._archive = archive_in(settings.output.parent, os.environ.get("JAVA_HOME", ""))
        self._is_up = False
        self._stopping = threading.Event()
        self._archiving: subprocess.Popen[bytes] | None = None
        # A daemon thread: a call into a JVM that hangs must not keep the process from ending.
        self._thread = threading.Thread(target=self._run, name="spark", daemon=True)

    def start(self) -> None:
        """Start the session in the background; tasks connect some seconds later."""
        self._thread.start()

    def stop(self) -> None:
        """End job, session and JVM; the dispatcher must have disconnected the tasks before."""
        self._stopping.set()
        if self._archiving is not None:
            kill_archiving(self._archiving)
        if not self._is_up:
            self._jvm.kill()  # Its state needs no clean end, and a clean end takes seconds.
        self._thread.join(timeout=_STOP_TIMEOUT_S)
        if self._thread.is_alive():  # Nothing waits any more for tasks that were still to come.
            self._jvm.kill()
            self._thread.join(timeout=_STOP_TIMEOUT_S)
        _forget_gateway()
        self._jvm.end()
        shutil.rmtree(self._settings.work_dir, ignore_errors=True)

    def starts(self) -> int:
        """Return how many jobs have begun, and executors that a standalone master assigned."""
        return self._jvm.starts

    def replace_session(self) -> None:
        """End session and JVM; the job restarts with a new session and JVM."""
        self._jvm.kill()

    def _run(self) -> None:
        pauses = doubling(_RESTART_S_MIN, _RESTART_S_MAX)
        while not self._stopping.is_set():
            pause_s = next(pauses)
            try:
                self._run_once()
                pauses = doubling(_RESTART_S_MIN, _RESTART_S_MAX)
                pause_s = next(pauses)
            except Exception as error:  # Whatever Spark throws, start a fresh job.
                if self._stopping.is_set():
                    break
                self._report(error, pause_s)
            self._stopping.wait(pause_s)
        self._stop_session()

    def _report(self, error: Exception, pause_s: float) -> None:
        what = "the Spark job failed"
        if not isinstance(error, Retryable) and not self._jvm.outlives(_RESTART_S_MIN):
            what = "the Spark JVM has ended"
            error = Retryable(self._jvm.reason(), Code.SPARK_ENDED)
        why = f": {found}" if (found := _first_lines(error)) else ""
        if shutil.disk_usage(folder := self._jvm.output.parent).free < 1 << 20:
            why = f": no room is left in {folder}, so make room on its disk"
        log.error("%s, again in %.1f s%s (more in %s)", what, pause_s, why, self._jvm.output)
        log.debug("the Spark failure in full", exc_info=True)

    def _run_once(self) -> None:
        self._jvm.starts += 1
        began_s = time.monotonic()
        session = self._session()
        count = self._settings.task_count
        log.info(
            "Spark %s is up at %s after %.1f s; starting %d resident tasks",
            session.version, session.master, time.monotonic() - began_s, count,
        )  # fmt: skip
        if not self._archive.exists() and self._archiving is None:
            threading.Thread(target=self._archive_classes, name="classes", daemon=True).start()
        session.parallelize(range(count), count).foreachPartition(self._body)
        if not self._stopping.is_set():
            log.warning("the resident Spark job ended on its own")

    def _archive_classes(self) -> None:
        if self._stopping.wait(BEGINS_AFTER_S):
            return
        log.info("writing %s in the background, for quicker starts", self._archive)
        self._archiving = write_archive(self._archive, JAVA_OPTIONS)
        if self._stopping.is_set():
            kill_archiving(self._archiving)
        self._archiving.wait()

    def _session(self) -> Any:
        # Import Spark in the thread that uses it: the import alone takes half a second.
        from pyspark import SparkContext

        _import_spark()

        running = SparkContext._active_spark_context
        if running is not None and self._jvm.is_alive and not running._jsc.sc().isStopped():
            return running
        self._is_up = False
        self._forget_session()
        conf = self._conf()
        code = self._settings.work_dir / _CODE
        code.write_bytes(self._bundle.data)
        gateway = self._jvm.start(conf.getAll())
        session = SparkContext(conf=conf, pyFiles=[str(code)], gateway=gateway)
        self._is_up = True
        return session

    def _conf(self) -> Any:
        from pyspark import SparkConf

        settings = self._settings
        work_dir = settings.work_dir
        shutil.rmtree(work_dir, ignore_errors=True)
        work_dir.mkdir(parents=True, mode=0o700)
        log4j = work_dir / "log4j2.properties"
        log4j.write_text(_LOG4J)
        if settings.is_local or not os.environ.get("PYSPARK_PYTHON"):
            os.environ["PYSPARK_PYTHON"] = sys.executable
        os.environ["SPARK_LOCAL_DIRS"] = str(work_dir)
        os.environ["SPARK_LOCAL_IP"] = settings.host
        # The driver's JVM only places tasks: little heap, a simple collector, no second compiler.
        java = (
            f"-Dlog4j2.configurationFile={log4j.as_uri()} -Djava.io.tmpdir={work_dir}"
            f" {JAVA_OPTIONS} {options_for(self._archive)}"
        )
        conf = SparkConf().setMaster(settings.spark_master).setAppName("penstock-drainer")
        conf.setAll(
            [
                ("spark.ui.enabled", "false"),
                ("spark.ui.showConsoleProgress", "false"),
                ("spark.driver.memory", "512m"),
                ("spark.driver.host", settings.host),
                ("spark.driver.bindAddress", settings.host),
                ("spark.driver.extraJavaOptions", java),
                ("spark.executor.memory", "512m"),
                ("spark.cores.max", str(settings.task_count)),
                ("spark.task.maxFailures", str(_TASK_FAILURES_MAX)),
                ("spark.python.worker.faulthandler.enabled", "true"),
                # Ignore a `drainer` in a worker's current directory.
                ("spark.executorEnv.PYTHONSAFEPATH", "1"),
                ("spark.executorEnv.OPENBLAS_NUM_THREADS", "1"),
                ("spark.executorEnv.MALLOC_ARENA_MAX", "2"),
            ]
        )
        if settings.is_local:
            # On a cluster the code reaches the executors later than their daemon starts.
            conf.set("spark.executorEnv.PYTHONPATH", str(work_dir / _CODE))
            conf.set("spark.python.daemon.module", "drainer.task.work_loop")
        for setting in settings.conf:
            name, equals, value = setting.partition("=")
            assert equals, "the settings were checked"
            conf.set(name, value)
        return conf

    def _stop_session(self) -> None:
        from pyspark import SparkContext

        running = SparkContext._active_spark_context
        if running is None or not self._is_up or not self._jvm.is_alive:
            return
        try:
            running.stop()
        except Exception as error:
            log.warning("the Spark session did not stop cleanly: %s", _first_lines(error))

    def _forget_session(self) -> None:
        from pyspark import SparkContext

        running = SparkContext._active_spark_context
        if running is not None and self._jvm.is_alive:
            running.stop()
        SparkContext._active_spark_context = None
        _forget_gateway()
        self._jvm.end()


def _import_spark() -> None:
    """Import the modules of Spark's first call into the JVM, and correct its one server.

    It is for accumulators, and binds to the name `localhost`: on a host that cannot resolve that
    name, Spark could not start. When the JVM ends, it would print a traceback.
    """
    with without_pandas():
        importlib.import_module("pyspark.testing.utils")
    from pyspark import accumulators

    accumulators.AccumulatorTCPServer.server_bind = _bind_to_an_address
    accumulators.AccumulatorTCPServer.handle_error = _note_error


def _bind_to_an_address(server: socketserver.TCPServer) -> None:
    server.server_address = (_LOOPBACK, *server.server_address[1:])
    socketserver.TCPServer.server_bind(server)


def _note_error(server: socketserver.TCPServer, request: Any, client: Any) -> None:
    """Log an error of a connection, but not its end, which comes with the end of the JVM."""
    if not isinstance(sys.exception(), (EOFError, ConnectionError)):
        log.exception("a message of Spark's JVM could not be read")


def _forget_gateway() -> None:
    if "pyspark" not in sys.modules:
        return
    from pyspark import SparkContext

    gateway: Any = SparkContext._gateway
    SparkContext._gateway = SparkContext._jvm = None
    if gateway is not None:
        with contextlib.suppress(Exception):  # Ignore all errors of py4j about a JVM that is gone.
            gateway.shutdown()


def _first_lines(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    said = [line for line in lines if not line.startswith(("at ", "File ", "...", "Traceback"))]
    named = "" if isinstance(error, PenstockError) else f"{type(error).__name__}: "
    return named + " | ".join(said[:2])
