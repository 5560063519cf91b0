"""From a commit's acknowledgement to its row being readable downstream, at a steady rate.

The row and the checkpoint become visible in one transaction, so a reader that watches the
checkpoint sees exactly when each row could be read. The baseline is one row inserted and committed
by hand into the same MariaDB.

The writer is a separate process, so that neither side waits for the other's interpreter lock:

    python -m tests.bench.lag '{"etcd_url": …}'     a JSON object on stdout

Each of its transactions has one row, timestamps and a Prewrite and a Commit of its own. Those that
are due at one moment travel together (`pumpclient.delivery.group_commit`, as sources use it): a
thread for each would take the machine that is to be measured. Times are of `time.monotonic`, which
all processes of a machine share.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penstock.local.cluster import Cluster
from penstock.local.sql_server import MariadbServer
from penstock.wire.binlog import MutationType
from pumpclient import PumpClient
from pumpclient.changes import Changes, ChangeSet, next_row_id
from pumpclient.delivery.group_commit import GROUP_COUNT_MAX, GroupWriter, PendingTransaction
from pumpclient.rows import Table
from tests.bench.rig import Figure, Writers, lag_figures, percentile, process_s, sized

WARM_UP_S = 2.0
SECONDS = sized(15, 3)
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
        "baseline": "bare commit",
    }
    yield from lag_figures(name, lags_ms, bare_ms, detail)


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


class Acknowledged(Writers):
    """What the writers committed: (commit_ts, when it was known, when it was acknowledged)."""

    def __init__(self, pace: Pace) -> None:
        super().__init__("tests.bench.lag", pace)

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
            if log.is_done.is_set():
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


GATHER_S = 0.01
"""What comes due in this time is one group, or more where the last groups are not through."""


@dataclass(frozen=True, kw_only=True)
class Pace:
    """What is written: `rate` transactions a second into `bench.t`."""

    etcd_url: str
    rate: int
    seconds: float


class Moments:
    """Notes for each group when its commit_ts were known: a journal that remembers nothing else."""

    def __init__(self) -> None:
        self.acknowledged: list[tuple[int, float, float]] = []
        self._decided: tuple[range, float] = (range(0), 0.0)

    def begin(self, node_id: str, start_ts: range) -> None:
        """Forget: this process is not started again."""

    def decide(self, start_ts: range, commit_ts: range) -> None:
        """Note when; groups follow one another."""
        self._decided = commit_ts, time.monotonic()

    def end(self, start_ts: range) -> None:
        """Note the acknowledgement, which is that of the group's last Commit."""
        commit_ts, decided_s = self._decided
        now_s = time.monotonic()
        self.acknowledged += [(ts, decided_s, now_s) for ts in commit_ts]


def write(client: PumpClient, pace: Pace) -> list[tuple[int, float, float]]:
    """Return each commit_ts, when it was known, and when its Commit was acknowledged."""
    table = client.compiled("t", "bench")
    moments = Moments()
    groups = GroupWriter(client.session, moments)
    try:
        began_s = time.monotonic()
        written, total = 0, int(pace.rate * pace.seconds)
        while written < total:
            time.sleep(GATHER_S)
            due = min(total, int((time.monotonic() - began_s) * pace.rate))
            due = min(due, written + GROUP_COUNT_MAX)
            if due > written:
                groups.submit([one_row(table, key) for key in range(written, due)], _nothing)
            written = due
        groups.drain()
    finally:
        groups.close()
    return moments.acknowledged


def one_row(table: Table, key: int) -> PendingTransaction:
    image = table.inserted((key, key % 1000, "x" * 100))
    changes = ChangeSet(1 << 20, None)
    inserted = changes.tables[table.info.id] = Changes(table)
    data = table.codec.encode_insert(image, rowid=next_row_id())
    changes.note(inserted, MutationType.INSERT, data)
    return PendingTransaction(changes, None)


def _nothing() -> None:
    """Do nothing."""


if __name__ == "__main__":
    asked = Pace(**json.loads(sys.argv[1]))
    with PumpClient.connect(asked.etcd_url) as connected:
        begun_s = time.process_time()
        committed = write(connected, asked)
        print(json.dumps({"commits": committed, "cpu_s": time.process_time() - begun_s}))
