"""From a commit's acknowledgement to its row being readable downstream, at a steady rate.

The row and the checkpoint become visible in one transaction, so a reader that watches the
checkpoint sees exactly when each row could be read. The baseline is one row inserted and committed
by hand into the same MariaDB.
"""

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import psutil

from penstock_local.cluster import Cluster
from penstock_local.sql_server import MariadbServer
from pumpclient import PumpClient
from tests.bench.figure import Figure, percentile
from tests.bench.steady_writers import Pace

WARM_UP_S = 2.0
SECONDS = 15.0
LOOK_EVERY_S = 0.004


def measure(name: str, rate: int, home: Path) -> Iterator[Figure]:
    """Yield p50 and p99 of the lag in milliseconds, at so many transactions a second."""
    with Cluster(home, sink="mysql") as cluster, PumpClient.connect(cluster.etcd.url) as client:
        assert cluster.mariadb is not None
        client.execute_ddl("CREATE DATABASE bench")
        client.execute_ddl(
            "CREATE TABLE t (id BIGINT NOT NULL, a INT, b VARCHAR(200), PRIMARY KEY (id))",
            schema="bench",
        )
        bare_ms = bare_commits_ms(cluster.mariadb)
        with client.begin(schema="bench") as first:
            first.insert("t", (-1, 0, "Spark takes some seconds to start"))
        assert first.commit_ts is not None
        wait_until(cluster.mariadb, first.commit_ts)
        before_s = cpu_s(cluster)
        log = Acknowledged(Pace(etcd_url=cluster.etcd.url, rate=rate, seconds=WARM_UP_S + SECONDS))
        seen = watch(cluster.mariadb, log)
        lags_ms = log.lags_ms(seen)
        whole_ms = log.lags_ms(seen, from_commit_ts=True)
        spent_s = cpu_s(cluster)
        spent_s["writers"], before_s["writers"] = log.cpu_s, 0.0
    detail = {
        "transactions_per_s": round(log.rate),
        "asked_per_s": rate,
        "from_commit_ts_ms": [round(percentile(whole_ms, share)) for share in (0.5, 0.99)],
        "rows_per_batch": round(len(log.commits) / max(1, len(seen) - 1), 1),
        "rows": len(lags_ms),
        "cpu_us_per_transaction": {
            part: round((spent_s[part] - before_s[part]) / len(log.commits) * 1e6, 1)
            for part in spent_s
        },
        "machine_load": round(os.getloadavg()[0], 1),
        "baseline": "bare commit",
    }
    for figure, share in ((f"{name}.p50", 0.5), (f"{name}.p99", 0.99)):
        yield Figure(
            name=figure,
            value=percentile(lags_ms, share),
            unit="ms",
            baseline=percentile(bare_ms, share),
            detail=detail,
        )


def cpu_s(cluster: Cluster) -> dict[str, float]:
    """Return the CPU seconds that each part used so far, the Drainer's children included."""
    assert cluster.mariadb is not None
    pids = {
        "drainer": [cluster.drainer.pid],
        "mariadb": [cluster.mariadb.pid],
        "pumps": [pump.pid for pump in cluster.pumps.values()],
        "etcd": [cluster.etcd.pid],
    }
    return {part: sum(map(process_s, found)) for part, found in pids.items()}


def process_s(pid: int) -> float:
    """Return the CPU seconds of a process and its children."""
    process = psutil.Process(pid)
    times = [each.cpu_times() for each in (process, *process.children(recursive=True))]
    return sum(each.user + each.system for each in times)


class Acknowledged:
    """What the writers committed: (commit_ts, when it was known, when it was acknowledged)."""

    def __init__(self, pace: Pace) -> None:
        """Start them; they end by themselves."""
        command = [sys.executable, "-m", "tests.bench.steady_writers", json.dumps(asdict(pace))]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE)
        self.commits: list[tuple[int, float, float]] = []
        self.cpu_s = 0.0
        self.done = threading.Event()
        threading.Thread(target=self._read).start()

    def _read(self) -> None:
        out, _ = self._process.communicate()
        if self._process.returncode == 0:
            answer = json.loads(out)
            self.cpu_s = answer["cpu_s"]
            self.commits = sorted(map(tuple, answer["commits"]))
        self.done.set()

    @property
    def rate(self) -> float:
        """The transactions per second that the writers kept to."""
        moments = [at for _, _, at in self.commits]
        return len(moments) / (max(moments) - min(moments))

    def lags_ms(
        self, seen: list[tuple[int, float]], *, from_commit_ts: bool = False
    ) -> list[float]:
        """Return the lags after the warm-up, from the acknowledgement if nothing else is said."""
        lags, position = [], 0
        warm = min(at for _, _, at in self.commits) + WARM_UP_S
        for commit_ts, known, acknowledged in self.commits:
            while seen[position][0] < commit_ts:
                position += 1
            begin = known if from_commit_ts else acknowledged
            if begin > warm:
                lags.append(max(0.0, seen[position][1] - begin) * 1000)
        return lags


def wait_until(mariadb: MariadbServer, commit_ts: int, every_s: float = LOOK_EVERY_S) -> None:
    """Return once the downstream has everything up to `commit_ts`."""
    with mariadb.connect() as connection, connection.cursor() as cursor:
        while checkpoint_ts(cursor) < commit_ts:
            time.sleep(every_s)


def checkpoint_ts(cursor: Any) -> int:
    """Return the downstream's checkpoint; 0 while there is none."""
    cursor.execute("SELECT checkPoint FROM tidb_binlog.checkpoint")
    row = cursor.fetchone()
    return int(json.loads(row[0])["commitTS"]) if row is not None else 0


def watch(mariadb: MariadbServer, log: Acknowledged) -> list[tuple[int, float]]:
    """Return each checkpoint with the moment it could be read, until all commits are there."""
    seen: list[tuple[int, float]] = []
    with mariadb.connect() as connection, connection.cursor() as cursor:
        while True:
            commit_ts = checkpoint_ts(cursor)
            if not seen or seen[-1][0] < commit_ts:
                seen.append((commit_ts, time.monotonic()))
            if log.done.is_set():
                assert log.commits, "the writers failed, see above"
                if seen[-1][0] >= log.commits[-1][0]:
                    return seen
            time.sleep(LOOK_EVERY_S)


def bare_commits_ms(mariadb: MariadbServer) -> list[float]:
    """Return how long one inserted row takes to commit, without anything of ours."""
    times = []
    with mariadb.connect() as connection, connection.cursor() as cursor:
        cursor.execute("CREATE DATABASE bare")
        cursor.execute("CREATE TABLE bare.t (id BIGINT PRIMARY KEY, b VARCHAR(200))")
        for key in range(300):
            begun = time.perf_counter()
            cursor.execute("INSERT INTO bare.t VALUES (%s, %s)", (key, "x" * 100))
            times.append((time.perf_counter() - begun) * 1000)
        cursor.execute("DROP DATABASE bare")
    return times
