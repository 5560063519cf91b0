"""From a commit's acknowledgement to its row being readable downstream, at a steady rate.

The row and the checkpoint become visible in one transaction, so a reader that watches the
checkpoint sees exactly when each row could be read. The baseline is one row inserted and committed
by hand into the same MariaDB.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from deploy.local.cluster import Cluster
from deploy.local.mariadb import MariadbServer
from pumpclient import PumpClient
from tests.bench.figure import Figure, percentile

RATE = 1000
THREADS = 32
WARM_UP_S = 2.0
SECONDS = 15.0
LOOK_EVERY_S = 0.002


def measure(home: Path) -> Iterator[Figure]:
    """Yield p50 and p99 of the lag in milliseconds."""
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
        acknowledged = write_steadily(client)
        seen = watch(cluster.mariadb, acknowledged)
        lags_ms, rate = acknowledged.lags_ms(seen)
    detail = {"transactions_per_s": round(rate), "rows": len(lags_ms), "baseline": "bare commit"}
    for name, share in (("lag.p50", 0.5), ("lag.p99", 0.99)):
        yield Figure(
            name=name,
            value=percentile(lags_ms, share),
            unit="ms",
            baseline=percentile(bare_ms, share),
            detail=detail,
        )


class Acknowledged:
    """What the writers committed: (commit_ts, when it was acknowledged)."""

    def __init__(self) -> None:
        self.commits: list[tuple[int, float]] = []
        self.done = threading.Event()
        self.began = time.monotonic()

    def lags_ms(self, seen: list[tuple[int, float]]) -> tuple[list[float], float]:
        """Return the lags after the warm-up, and the rate the writers kept."""
        lags, position = [], 0
        for commit_ts, at in sorted(self.commits):
            while seen[position][0] < commit_ts:
                position += 1
            if at > self.began + WARM_UP_S:
                lags.append(max(0.0, seen[position][1] - at) * 1000)
        last = max(at for _, at in self.commits)
        return lags, len(self.commits) / (last - self.began)


def write_steadily(client: PumpClient) -> Acknowledged:
    """Start writers that keep to the rate together; they end by themselves."""
    log = Acknowledged()

    def writer(number: int) -> None:
        pause = THREADS / RATE
        due = log.began + number / RATE
        key = number
        while due < log.began + WARM_UP_S + SECONDS:
            time.sleep(max(0.0, due - time.monotonic()))
            with client.begin(schema="bench") as txn:
                txn.insert("t", (key, key % 1000, "x" * 100))
            log.commits.append((txn.commit_ts, time.monotonic()))
            key += THREADS
            due += pause

    def run() -> None:
        threads = [threading.Thread(target=writer, args=(n,)) for n in range(THREADS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        log.done.set()

    threading.Thread(target=run).start()
    return log


def wait_until(mariadb: MariadbServer, commit_ts: int) -> None:
    """Return once the downstream has everything up to `commit_ts`."""
    with mariadb.connect() as connection, connection.cursor() as cursor:
        while checkpoint_ts(cursor) < commit_ts:
            time.sleep(LOOK_EVERY_S)


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
            if log.done.is_set() and seen and seen[-1][0] >= max(log.commits)[0]:
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
