"""A Drainer's relay log, and how long its restart and its takeover last.

    drainer.relay.<size>   writing the relay log, against the same bytes raw with the same syncs
    drainer.restart        from a killed Drainer's start to its next batch, against bare Spark
    drainer.takeover       from the kill to the next batch of the standby

Both sides of the relay log write what a backlog's batches are made of: runs of a mebibyte, synced
after each batch. Small binlogs are those of a transaction of one row, large ones of a hundred and
more. The raw side is one `write` per run. The sides take turns, and the best round of each counts:
others use the disk, too.

During restarts transactions keep coming, 50 a second, so that rows wait at each start. A Drainer
that has been up for some minutes has written the archive of Spark's classes; here it is written
first, and so each start is a warm one. Bare Spark is measured to the end of its first task.
"""

import os
import shutil
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from itertools import count
from pathlib import Path

from drainer.relay_log.log import RelayLog
from drainer.settings.config import DrainerConfig
from drainer.spark.job import JAVA_OPTIONS
from drainer.spark.jvm import archive_in, use_java, write_archive
from penstock.local.cluster import Cluster
from penstock.local.process import ServerProcess, free_port
from penstock.local.sql_server import MariadbServer
from penstock.wire.binlog import Binlog, BinlogType
from penstock.wire.codec import encode_binlog
from pumpclient import PumpClient
from tests.bench.lag import checkpoint_ts, wait_until
from tests.bench.rig import Figure, sized

SIZES = {"small": 200, "large": 32 << 10}
"""Bytes of a transaction's rows."""
RUN_BYTES = 1 << 20
TOTAL_BYTES = sized(256, 8) << 20
FILE_BYTES_MAX = 512 << 20
ROUNDS = 3


def measure_relay(home: Path) -> Iterator[Figure]:
    """Yield MB/s of binlogs for each of their sizes."""
    for kind, value_bytes in SIZES.items():
        runs = _runs(value_bytes)
        size = sum(len(payload) for run in runs for _, payload in run)
        ours_s: list[float] = []
        cpu_s: list[float] = []
        raw_s: list[float] = []
        raw_cpu_s: list[float] = []
        for number in range(ROUNDS):
            for side, seconds, cpu in ((_raw, raw_s, raw_cpu_s), (_relayed, ours_s, cpu_s)):
                begun_cpu_s = time.process_time()
                seconds.append(side(home / f"{kind}-{number}", runs))
                cpu.append(time.process_time() - begun_cpu_s)
        detail = {
            "bytes": size,
            "binlogs": sum(map(len, runs)),
            "cpu_us_per_binlog": round(min(cpu_s) / sum(map(len, runs)) * 1e6, 2),
            "cpu_s_per_gb": round(min(cpu_s) / size * 1e9, 2),
            "baseline_cpu_s_per_gb": round(min(raw_cpu_s) / size * 1e9, 2),
            "rounds": ROUNDS,
            "baseline": "one write per run, one fdatasync per batch",
        }
        yield Figure(
            f"drainer.relay.{kind}",
            size / min(ours_s) / 1e6,
            "MB/s",
            size / min(raw_s) / 1e6,
            detail,
        )


def _runs(value_bytes: int) -> list[list[tuple[int, bytes]]]:
    """Return merged binlogs in runs, as the merge hands them on."""
    runs: list[list[tuple[int, bytes]]] = [[]]
    value, size, filled = os.urandom(value_bytes), 0, 0
    ts = 1 << 58
    while size < TOTAL_BYTES:
        ts += 2
        merged = Binlog(tp=BinlogType.COMMIT, start_ts=ts - 1, commit_ts=ts, prewrite_value=value)
        payload = encode_binlog(merged)
        if filled + len(payload) > RUN_BYTES:
            runs.append([])
            filled = 0
        runs[-1].append((ts, payload))
        filled += len(payload)
        size += len(payload)
    return runs


def _relayed(home: Path, runs: Sequence[Sequence[tuple[int, bytes]]]) -> float:
    folder = home.with_name(f"{home.name}-relay")
    with closing(RelayLog.open(folder, file_bytes_max=FILE_BYTES_MAX)) as log:
        log.start(1, 1, ())
        seconds = _timed(runs, log.append, log.sync)
    shutil.rmtree(folder)
    return seconds


def _raw(home: Path, runs: Sequence[Sequence[tuple[int, bytes]]]) -> float:
    path = home.with_name(f"{home.name}-raw")
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL)

    def append(run: Sequence[tuple[int, bytes]]) -> None:
        data = b"".join([payload for _, payload in run])
        assert os.write(descriptor, data) == len(data), "the disk is full"

    try:
        return _timed(runs, append, lambda: os.fdatasync(descriptor))
    finally:
        os.close(descriptor)
        path.unlink()


def _timed(
    runs: Sequence[Sequence[tuple[int, bytes]]],
    append: Callable[[Sequence[tuple[int, bytes]]], None],
    sync: Callable[[], None],
) -> float:
    batch_runs = max(1, DrainerConfig().batch_bytes_max // RUN_BYTES)
    begun_s = time.perf_counter()
    for start in range(0, len(runs), batch_runs):
        for run in runs[start : start + batch_runs]:
            append(run)
        sync()
    return time.perf_counter() - begun_s


RESTARTS = sized(7)
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


def measure_restart(home: Path) -> Iterator[Figure]:
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
            restarts_s = [restart_s(cluster.drainer, cluster.mariadb) for _ in range(RESTARTS)]
            takeovers_s = list(takeovers(cluster, cluster.mariadb))
    for name, took_s in (("restart", restarts_s), ("takeover", takeovers_s)):
        detail = {
            "each_s": [round(each, 2) for each in took_s],
            "baseline": "bare Spark, to its first task",
        }
        yield Figure(
            f"drainer.{name}", statistics.median(took_s), "s", statistics.median(bare_s), detail
        )


def bare_spark_s() -> float:
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
    active = cluster.drainer
    standby = cluster.drainer_at("drainer-2", f"127.0.0.1:{free_port()}")
    try:
        for _ in range(RESTARTS):
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
    with downstream.connect() as connection, connection.cursor() as cursor:
        return checkpoint_ts(cursor)
