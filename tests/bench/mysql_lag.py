"""From a commit on the upstream to its rows being readable downstream, at a steady rate.

1,000 sysbench-like transactions a second are offered to the upstream, first with MariaDB's own
replica behind it, then with the source, the Pumps and the Drainer: the baseline is the replica's
lag, one applying thread. Moments of commits are those of their acknowledgement. Then the tables
must be equal. `MYSQL_LAG_SECONDS` makes it shorter.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

from penstock.errors import Retryable
from tests.bench.apply_replica import fetch
from tests.bench.figure import Figure, percentile
from tests.bench.mysql_sides import MARKS, ROWS, TABLES, Cpu, Sides, Spent, running
from tests.bench.oltp_writers import Pace

RATE = 1000
SESSIONS = MARKS
WARM_UP_S = 3.0
SECONDS = float(os.environ.get("MYSQL_LAG_SECONDS", "20"))
LOOK_EVERY_S = 0.004
STALL_S_MAX = 60.0
FIRST = 1_000_000
"""The number of the first transaction behind the source, above all of the replica's."""

Commits = list[tuple[int, int, float]]
"""Session, number and moment of each transaction."""


def measure(home: Path) -> Iterator[Figure]:
    """Yield p50 and p99 of the lag in milliseconds."""
    with running(home) as sides:
        sides.copy()
        fetch(sides.downstream, sides.upstream, sides.upstream.end(), sides.upstream.end())
        sides.downstream.query("START SLAVE SQL_THREAD")
        theirs_ms, _, theirs = _measured(sides, Cpu({"mariadb": sides.downstream.pid}), first=1)
        sides.leave()
        sides.ensure_equal()
        with sides.source(sides.upstream.end()) as source:
            sides.until_syncing(source)
            _wait_for_spark(sides, number=FIRST - 1)
            ours_ms, rate, ours = _measured(sides, sides.cpu(source), first=FIRST)
        sides.ensure_equal()
    detail = {
        "transactions_per_s": round(rate),
        "asked_per_s": RATE,
        "transactions": len(ours_ms),
        "cpu_us_per_transaction": ours.cpu_us,
        "baseline_cpu_us_per_transaction": theirs.cpu_us,
        "machine_load": round(os.getloadavg()[0], 1),
        "baseline": "the replica's lag, slave_parallel_threads=0",
    }
    for name, share in (("mysql.lag.p50", 0.5), ("mysql.lag.p99", 0.99)):
        yield Figure(
            name=name,
            value=percentile(ours_ms, share),
            unit="ms",
            baseline=percentile(theirs_ms, share),
            detail=detail,
        )


def _wait_for_spark(sides: Sides, number: int) -> None:
    """Return once one row went all the way: with the first one the Drainer starts Spark."""
    marks = f"{sides.sysbench.schema}.marks"
    sides.upstream.run(f"UPDATE {marks} SET number = {number} WHERE id = 0")
    deadline_s = time.monotonic() + STALL_S_MAX
    while sides.downstream.query(f"SELECT number FROM {marks} WHERE id = 0") != [(number,)]:
        if time.monotonic() > deadline_s:
            raise Retryable(f"no row arrives:\n{sides.cluster.drainer.log_tail()}")
        time.sleep(LOOK_EVERY_S)


def _measured(sides: Sides, cpu: Cpu, first: int) -> tuple[list[float], float, Spent]:
    """Return the lags after the warm-up, the rate that was offered, and the CPU it took."""
    begun_s = time.monotonic()
    writers = _Writers(sides, first)
    seen = _watched(sides, writers)
    spent = Spent(
        transactions=len(writers.commits), seconds=time.monotonic() - begun_s, cpu_s=cpu.spent_s()
    )
    moments = sorted(at for _, _, at in writers.commits)
    lags_ms = []
    for session, number, at in writers.commits:
        if at > moments[0] + WARM_UP_S:
            numbers, times = seen[session]
            lags_ms.append(max(0.0, times[bisect_left(numbers, number)] - at) * 1000)
    return lags_ms, len(moments) / (moments[-1] - moments[0]), spent


class _Writers:
    """The process of writers, and what it committed once it `is_done`."""

    def __init__(self, sides: Sides, first: int) -> None:
        server = sides.upstream
        pace = Pace(
            host=server.host, port=server.port, user=server.user, password=server.password,
            schema=sides.sysbench.schema, tables=TABLES, rows=ROWS, rate=RATE, sessions=SESSIONS,
            seconds=WARM_UP_S + SECONDS, first=first,
        )  # fmt: skip
        command = [sys.executable, "-m", "tests.bench.oltp_writers", json.dumps(asdict(pace))]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE)
        self.commits: Commits = []
        self.is_done = threading.Event()
        threading.Thread(target=self._read).start()

    def _read(self) -> None:
        out, _ = self._process.communicate()
        if self._process.returncode == 0:
            self.commits = json.loads(out)
        self.is_done.set()


def _watched(sides: Sides, writers: _Writers) -> list[tuple[list[int], list[float]]]:
    """Return, for each session, the numbers that were read downstream, and when first."""
    seen: list[tuple[list[int], list[float]]] = [([], []) for _ in range(SESSIONS)]
    last: dict[int, int] = {}
    stalls_at_s = 0.0
    with sides.downstream.connect() as connection, connection.cursor() as cursor:
        while True:
            cursor.execute(f"SELECT id, number FROM {sides.sysbench.schema}.marks")
            now_s = time.monotonic()
            for session, number in cursor.fetchall():
                numbers, times = seen[session]
                if not numbers or numbers[-1] < number:
                    numbers.append(number)
                    times.append(now_s)
            if writers.is_done.is_set():
                assert writers.commits, "the writers failed, see above"
                last = last or {session: number for session, number, _ in writers.commits}
                if all(seen[session][0][-1] >= number for session, number in last.items()):
                    return seen
                stalls_at_s = stalls_at_s or now_s + STALL_S_MAX
                if now_s > stalls_at_s:
                    raise Retryable(f"the downstream stands:\n{sides.cluster.drainer.log_tail()}")
            time.sleep(LOOK_EVERY_S)
