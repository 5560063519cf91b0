"""A backlog in three Pumps, applied from a Spark cluster into MariaDB: rate, and CPU of each part.

    Pumps ×3 ──> executors of two workers ──> MariaDB
         └──> Drainer (metadata) ──┘

Spark starts and warms up with 50,000 inserted rows of 400 bytes. The Drainer's process is then
halted until the backlog is written, so that it receives all of it within the measured time: 200,000
updates in transactions of five. The baseline is the same Drainer on the same cluster with
`payloads = driver`, into the same MariaDB, which is emptied between the two.
"""

import contextlib
import random
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pymysql

from penstock.local.cluster import Cluster
from penstock.local.process import ServerProcess, free_port
from penstock.local.spark_cluster import SparkCluster
from pumpclient import PumpClient
from tests.bench.lag import checkpoint_ts
from tests.bench.rig import Figure, sized
from tests.kit.servers.fix_mariadb import drop_user_databases

KEYS, CHANGES, CHANGES_PER_TRANSACTION = sized(50_000, 8_000), sized(200_000, 8_000), 5
WRITERS = 16
STALL_S_MAX = 300.0
LOOK_EVERY_S = 0.02
_PAD = "x" * 330
_DDL = "CREATE TABLE t (id BIGINT PRIMARY KEY, k INT, v BIGINT, pad VARCHAR(400), KEY (k))"

Row = tuple[int, int, int, str]


def measure(home: Path) -> Iterator[Figure]:
    """Yield rows/s, and microseconds of the Drainer's CPU for each row change."""
    with SparkCluster(home) as spark:
        options = [*spark.drainer_options(), "--apply-mode", "parallel"]
        cluster = Cluster(home, sink="mysql", with_drainer=False, drainer_options=options)
        with cluster, PumpClient.connect(cluster.etcd.url) as client:
            assert cluster.mariadb is not None
            backlog = Backlog(client)
            found = {}
            for way in ("executors", "driver"):
                drop_user_databases(cluster.mariadb)
                drainer = cluster.drainer_at(f"drainer-{way}", f"127.0.0.1:{free_port()}")
                drainer.command += ["--spark-payloads", way]
                try:
                    found[way] = applied(cluster, drainer.start(), spark, backlog)
                finally:
                    drainer.stop()
    (rate, cpu_us), (driver_rate, driver_cpu_us) = found["executors"], found["driver"]
    detail = {
        "cpu_us_per_change": cpu_us,
        "baseline_cpu_us_per_change": driver_cpu_us,
        "changes": CHANGES,
        "baseline": "payloads = driver",
    }
    yield Figure("spark.cluster.rate", rate, "rows/s", driver_rate, detail)
    yield Figure("spark.cluster.cpu", cpu_us["drainer"], "us/row", driver_cpu_us["drainer"])


class Backlog:
    """Writers with disjoint keys, and the commit_ts of their last transaction."""

    def __init__(self, client: PumpClient) -> None:
        """Create the table and insert the rows."""
        self.last_ts = 0
        self._client = client
        self._rows: dict[int, Row] = {k: (k, k % 1000, 0, f"{_PAD}{k:>40}") for k in range(KEYS)}
        client.execute_ddl("CREATE DATABASE bench")
        client.execute_ddl(_DDL, schema="bench")
        self._write(self._insert)

    def update(self) -> None:
        self._write(self._update)

    def _write(self, work: Callable[[int], int]) -> None:
        with ThreadPoolExecutor(WRITERS) as pool:
            self.last_ts = max(pool.map(work, range(WRITERS)))

    def _insert(self, number: int) -> int:
        keys = range(number, KEYS, WRITERS)
        for first in range(0, len(keys), 250):
            with self._client.begin("bench") as txn:
                for key in keys[first : first + 250]:
                    txn.insert("t", self._rows[key])
        return txn.commit_ts or 0

    def _update(self, number: int) -> int:
        dice = random.Random(f"{number} {self.last_ts}")
        keys = range(number, KEYS, WRITERS)
        for _ in range(CHANGES // CHANGES_PER_TRANSACTION // WRITERS):
            with self._client.begin("bench") as txn:
                for key in dice.sample(keys, CHANGES_PER_TRANSACTION):
                    before = self._rows[key]
                    self._rows[key] = (key, dice.randrange(1000), before[2] + 1, before[3])
                    txn.update("t", before, self._rows[key])
        return txn.commit_ts or 0


def applied(
    cluster: Cluster, drainer: ServerProcess, spark: SparkCluster, backlog: Backlog
) -> tuple[float, dict[str, float]]:
    """Return the rate at which a backlog is applied after the warm-up, and the CPU of each part."""
    _reached(cluster, drainer, backlog.last_ts)
    process = psutil.Process(drainer.pid)
    process.suspend()
    try:
        backlog.update()
        begun_s, before_s = time.monotonic(), _cpu_s(cluster, drainer, spark)
    finally:
        process.resume()
    _reached(cluster, drainer, backlog.last_ts)
    seconds, after_s = time.monotonic() - begun_s, _cpu_s(cluster, drainer, spark)
    used = {part: after_s[part] - before_s[part] for part in after_s}
    return CHANGES / seconds, {part: round(cpu / CHANGES * 1e6, 2) for part, cpu in used.items()}


def _reached(cluster: Cluster, drainer: ServerProcess, commit_ts: int) -> None:
    assert cluster.mariadb is not None
    deadline_s = time.monotonic() + STALL_S_MAX
    with cluster.mariadb.connect() as connection, connection.cursor() as cursor:
        while True:
            reached = 0
            # The Drainer has yet to create the table.
            with contextlib.suppress(pymysql.err.ProgrammingError):
                reached = checkpoint_ts(cursor)
            if reached >= commit_ts:
                return
            assert drainer.is_running, drainer.log_tail()
            assert time.monotonic() < deadline_s, drainer.log_tail()
            time.sleep(LOOK_EVERY_S)


def _cpu_s(cluster: Cluster, drainer: ServerProcess, spark: SparkCluster) -> dict[str, float]:
    """Return the CPU seconds of each part until now."""
    assert cluster.mariadb is not None
    below = [process for worker in spark.workers for process in worker.below()]
    tasks = [process for process in below if "python" in process.name()]
    parts = {
        "drainer": [psutil.Process(drainer.pid)],
        "driver_jvm": psutil.Process(drainer.pid).children(recursive=True),
        "tasks": tasks,
        "executor_jvms": [process for process in below if process not in tasks],
        "pumps": [psutil.Process(pump.pid) for pump in cluster.pumps.values()],
        "mariadb": [psutil.Process(cluster.mariadb.pid)],
    }
    return {part: sum(map(_own_cpu_s, processes)) for part, processes in parts.items()}


def _own_cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return times.user + times.system
