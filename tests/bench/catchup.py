"""A backlog: gigabytes of binlogs in a Pump, then a Drainer starts and brings them into MariaDB.

Rows of 1 KB in transactions of 4, 32 and 128 changes; each writer inserts rows, and deletes those
it inserted a while ago, so that the downstream stays small. Ten gigabytes take about ten minutes on
two cores, half of it to write them. `BENCH_SCALE` changes the amount, and the figure is called by
it. What matters beside the rate is in the detail: rate and memory, for each tenth.
"""

import random
import sys
import time
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pymysql

from penstock.codes import Code
from penstock.errors import Retryable
from penstock.local.cluster import Cluster
from pumpclient import PumpClient
from pumpclient.transaction import Transaction
from tests.bench.lag import checkpoint_ts
from tests.bench.pump_stored import need_room
from tests.bench.rig import Figure, process_s, sized

GIGABYTES = sized(10)
NAME = f"catchup.{GIGABYTES}g"
ROW_BYTES = 1000
CHANGES = (4, 32, 128)
WRITERS = 4
KEPT_ROWS = 5_000
TENTHS = 10
LOOK_EVERY_S = 0.05
STALL_S_MAX = 120.0
_MIB = 1 << 20

Row = tuple[int, bytes]


def measure(home: Path) -> Iterator[Figure]:
    """Yield MB/s of row bytes, from the Drainer's first batch to its last."""
    need_room(home, (GIGABYTES + 8) << 30)
    with Cluster(home, pumps=1, sink="mysql", with_drainer=False) as cluster:
        (pump,) = cluster.pumps.values()
        with PumpClient.connect(cluster.etcd.url) as client:
            client.execute_ddl("CREATE DATABASE bench")
            client.execute_ddl(
                "CREATE TABLE t (id BIGINT NOT NULL, raw VARBINARY(1000), PRIMARY KEY (id))",
                schema="bench",
            )
            begun_s = time.monotonic()
            backlog = Backlog(client, GIGABYTES * 10**9)
            filled_s = time.monotonic() - begun_s
        pump_s = process_s(pump.pid)
        cluster.drainer.start()
        tenths = follow(cluster, backlog)
        pump_s = process_s(pump.pid) - pump_s
        drainer_s = process_s(cluster.drainer.pid)
        stored = _stored_bytes(home / "pump-1")
    rates = [round(tenth.rate, 1) for tenth in tenths]
    whole = Tenth(
        size_bytes=sum(each.size_bytes for each in tenths),
        seconds=sum(each.seconds for each in tenths),
        rss_bytes=0,
        tree_bytes=0,
    )
    detail = {
        "mb_per_s_by_tenth": rates,
        "slowest_over_mean": round(min(rates) / whole.rate, 2),
        "drainer_rss_mib_by_tenth": [each.rss_bytes // _MIB for each in tenths],
        "with_spark_rss_mib_by_tenth": [each.tree_bytes // _MIB for each in tenths],
        "row_changes": backlog.changes,
        "transactions": len(backlog.commits),
        "pump_log_bytes": stored,
        "drainer_cpu_s_per_gb": round(drainer_s / GIGABYTES, 1),
        "pump_cpu_s_per_gb": round(pump_s / GIGABYTES, 1),
        "filled_in_s": round(filled_s),
    }
    yield Figure(NAME, whole.rate, "MB/s", None, detail)


class Backlog:
    """What the writers have committed: by commit_ts, how many bytes of rows were in it."""

    def __init__(self, client: PumpClient, size_bytes: int) -> None:
        """Write until there are so many bytes; say on stderr how far that is."""
        self.commits: list[tuple[int, int]] = []
        self.changes = 0
        self._written = 0
        with ThreadPoolExecutor(WRITERS) as pool:
            writers = [pool.submit(self._work, client, n, size_bytes) for n in range(WRITERS)]
            while wait(writers, 10.0).not_done:
                print(f"  {self._written / 1e9:.1f} GB written", file=sys.stderr, flush=True)
        for writer in writers:
            writer.result()
        self.commits.sort()

    def borders(self) -> list[tuple[int, int]]:
        """Return each tenth's last commit_ts, and its bytes."""
        total, sums = 0, []
        for _, size in self.commits:
            total += size
            sums.append(total)
        ends = [bisect_left(sums, total * n // TENTHS) for n in range(1, TENTHS + 1)]
        before = 0
        found = []
        for end in ends:
            found.append((self.commits[end][0], sums[end] - before))
            before = sums[end]
        return found

    def _work(self, client: PumpClient, number: int, size_bytes: int) -> None:
        rows = _rows(number)
        kept: deque[Row] = deque()
        rng = random.Random(number)
        while self._written < size_bytes:
            count = rng.choice(CHANGES)
            with client.begin(schema="bench") as txn:
                _change(txn, rows, kept, count)
            assert txn.commit_ts is not None
            self.commits.append((txn.commit_ts, count * ROW_BYTES))
            self._written += count * ROW_BYTES  # Losing an addition now and then is no harm.
            self.changes += count


def _rows(number: int) -> Iterator[Row]:
    """Yield new rows of one writer; no two writers have one id."""
    noise = random.Random(number).randbytes(1 << 20)
    row_id = number
    while True:
        at = row_id * 61 % (len(noise) - ROW_BYTES)
        yield row_id, noise[at : at + ROW_BYTES]
        row_id += WRITERS


def _change(txn: Transaction, rows: Iterator[Row], kept: deque[Row], count: int) -> None:
    """Insert rows, and delete as many old ones once there are enough."""
    for number in range(count):
        if number % 2 and len(kept) >= KEPT_ROWS:
            txn.delete("t", kept.popleft())
            continue
        row = next(rows)
        txn.insert("t", row)
        kept.append(row)


@dataclass(frozen=True, kw_only=True)
class Tenth:
    """How one tenth of the backlog went; memory as it was at its end."""

    size_bytes: int
    seconds: float
    rss_bytes: int
    tree_bytes: int

    @property
    def rate(self) -> float:
        return self.size_bytes / self.seconds / 1e6


def follow(cluster: Cluster, backlog: Backlog) -> list[Tenth]:
    """Return each tenth once the Drainer has brought all of them downstream.

    The first one begins with the first batch downstream, whose bytes do not count.
    """
    assert cluster.mariadb is not None
    first_ts = backlog.commits[0][0]
    tenths: list[Tenth] = []
    with cluster.mariadb.connect() as connection, connection.cursor() as cursor:
        reached = _next(cluster, lambda: _saved(cursor), first_ts)
        begun_s = time.monotonic()
        skipped = sum(size for ts, size in backlog.commits if ts <= reached)
        for last_ts, size in backlog.borders():
            _next(cluster, lambda: _saved(cursor), last_ts)
            now_s = time.monotonic()
            drainer = psutil.Process(cluster.drainer.pid)
            own = drainer.memory_info().rss
            tree = sum(each.memory_info().rss for each in drainer.children(recursive=True))
            tenths.append(
                Tenth(
                    size_bytes=size - skipped,
                    seconds=now_s - begun_s,
                    rss_bytes=own,
                    tree_bytes=own + tree,
                )
            )
            print(f"  {len(tenths)} of {TENTHS}: {tenths[-1].rate:.1f} MB/s", file=sys.stderr)
            begun_s, skipped = now_s, 0
    return tenths


def _next(cluster: Cluster, saved: Callable[[], int], commit_ts: int) -> int:
    """Return the checkpoint once it is at `commit_ts`; raise when nothing moves."""
    last, last_s = 0, time.monotonic()
    while (reached := saved()) < commit_ts:
        if reached != last:
            last, last_s = reached, time.monotonic()
        if time.monotonic() > last_s + STALL_S_MAX or not cluster.drainer.is_running:
            raise Retryable(
                f"the Drainer stands at {last}:\n{cluster.drainer.log_tail()}", code=Code.ETCD_AWAY
            )
        time.sleep(LOOK_EVERY_S)
    return reached


def _saved(cursor: Any) -> int:
    """Return the downstream's checkpoint; 0 as long as there is no table for it."""
    try:
        return checkpoint_ts(cursor)
    except pymysql.err.ProgrammingError:
        return 0


def _stored_bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in (folder / "log").iterdir())
