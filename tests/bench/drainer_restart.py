"""From a Drainer's death to the next batch downstream: started again, and by a standby.

Transactions keep coming, 50 a second, so that rows wait at each start. A Drainer that has been up
for some minutes has written the archive of Spark's classes; here it is written first, and so each
start is a warm one. The baseline is a bare Spark in a process of its own: from its start to the end
of its first task.
"""

import os
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

from drainer.spark.job import JAVA_OPTIONS
from drainer.spark.jvm import archive_in, use_java, write_archive
from penstock_local.cluster import Cluster
from penstock_local.process import ServerProcess
from penstock_local.sql_server import MariadbServer
from pumpclient import PumpClient
from tests.bench.figure import Figure
from tests.bench.lag import checkpoint_ts, wait_until

ROUNDS = 7
WRITE_EVERY_S = 0.02
DEAD_FOR_S = 0.5
SETTLE_S = 2.0
SPARK_WARM_S = 12.0
_LAST_WORDS_S = 0.1
"""For what the dead one had sent, and the downstream had not yet done."""
_LOOK_EVERY_S = 0.005
_BARE_SPARK = """
from pyspark import SparkConf, SparkContext
conf = SparkConf().setMaster("local[1]").set("spark.ui.enabled", "false")
context = SparkContext(conf=conf.set("spark.driver.bindAddress", "127.0.0.1"))
context.parallelize(range(1), 1).foreachPartition(lambda numbers: None)
print("done", flush=True)
"""


def measure(home: Path) -> Iterator[Figure]:
    """Yield the medians of a restart and of a takeover, in seconds."""
    java_home = str(use_java(home / "java"))
    os.environ["JAVA_HOME"] = java_home
    bare_s = [bare_spark_s() for _ in range(3)]
    with (
        Cluster(home, pumps=1, sink="mysql") as cluster,
        PumpClient.connect(cluster.etcd.url) as client,
    ):
        assert cluster.mariadb is not None
        client.execute_ddl("CREATE DATABASE bench")
        (ts,) = client.execute_ddl("CREATE TABLE t (id BIGINT PRIMARY KEY)", schema="bench")
        wait_until(cluster.mariadb, ts)
        folder = home / "drainer-1"
        assert write_archive(archive_in(folder, java_home), JAVA_OPTIONS).wait() == 0
        with steady(client):
            restarts_s = [restart_s(cluster.drainer, cluster.mariadb) for _ in range(ROUNDS)]
            takeovers_s = list(takeovers(cluster, cluster.mariadb))
    for name, took_s in (("restart", restarts_s), ("takeover", takeovers_s)):
        yield Figure(
            name=f"drainer.{name}",
            value=statistics.median(took_s),
            unit="s",
            baseline=statistics.median(bare_s),
            detail={
                "each_s": [round(each, 2) for each in took_s],
                "machine_load": round(os.getloadavg()[0], 1),
                "baseline": "bare Spark, to its first task",
            },
        )


def bare_spark_s() -> float:
    """Return how long a Spark of its own takes to its first task."""
    began = time.monotonic()
    command = [sys.executable, "-c", _BARE_SPARK]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"done\n"
        return time.monotonic() - began


@contextmanager
def steady(client: PumpClient) -> Iterator[None]:
    """Commit one row after another until the block ends."""
    stop, numbers = threading.Event(), count()

    def write() -> None:
        while not stop.wait(WRITE_EVERY_S):
            with client.begin(schema="bench") as transaction:
                transaction.insert("t", (next(numbers),))

    thread = threading.Thread(target=write)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def restart_s(drainer: ServerProcess, downstream: MariadbServer) -> float:
    """Kill a Drainer, start it again, and return how long its next batch takes from there."""
    time.sleep(SETTLE_S)
    drainer.kill()
    time.sleep(DEAD_FOR_S)
    reached = reached_ts(downstream)
    began = time.monotonic()
    drainer.start()
    wait_until(downstream, reached + 1, _LOOK_EVERY_S)
    return time.monotonic() - began


def takeovers(cluster: Cluster, downstream: MariadbServer) -> Iterator[float]:
    """Kill the active one of two Drainers by turns, and yield how long the other one takes."""
    active, standby = cluster.drainer, cluster.another_drainer("drainer-2")
    try:
        for _ in range(ROUNDS):
            standby.start()
            time.sleep(SPARK_WARM_S)
            began = time.monotonic()
            active.kill()
            time.sleep(_LAST_WORDS_S)
            wait_until(downstream, reached_ts(downstream) + 1, _LOOK_EVERY_S)
            yield time.monotonic() - began
            active, standby = standby, active
    finally:
        active.stop()
        standby.stop()


def reached_ts(downstream: MariadbServer) -> int:
    """Return the downstream's checkpoint now."""
    with downstream.connect() as connection, connection.cursor() as cursor:
        return checkpoint_ts(cursor)
