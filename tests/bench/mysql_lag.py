"""From a commit on the upstream to its rows being readable downstream, at a steady rate.

1,000 sysbench-like transactions a second are offered to the upstream, first with MariaDB's own
replica behind it, then with the source, the Pumps and the Drainer: the baseline is the replica's
lag, one applying thread. Moments of commits are those of their acknowledgement. Then the tables
must be equal. `MYSQL_LAG_SECONDS` makes it shorter.
"""

import os
import time
from collections.abc import Iterator
from pathlib import Path

from penstock.codes import Code
from penstock.errors import Retryable
from tests.bench.apply_replica import fetch
from tests.bench.figure import Figure, percentile
from tests.bench.marked_writers import LOOK_EVERY_S, STALL_S_MAX, MarkedWriters
from tests.bench.mysql_sides import MARKS, ROWS, TABLES, Cpu, Sides, Spent, running
from tests.bench.oltp_writers import Pace

RATE = 1000
SESSIONS = MARKS
WARM_UP_S = 3.0
SECONDS = float(os.environ.get("MYSQL_LAG_SECONDS", "20"))
FIRST = 1_000_000
"""The number of the first transaction behind the source, above all of the replica's."""


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
            raise Retryable(
                f"no row arrives:\n{sides.cluster.drainer.log_tail()}", code=Code.ETCD_AWAY
            )
        time.sleep(LOOK_EVERY_S)


def _measured(sides: Sides, cpu: Cpu, first: int) -> tuple[list[float], float, Spent]:
    """Return the lags after the warm-up, the rate that was offered, and the CPU it took."""
    server = sides.upstream
    begun_s = time.monotonic()
    writers = MarkedWriters(
        Pace(
            host=server.host, port=server.port, user=server.user, password=server.password,
            schema=sides.sysbench.schema, tables=TABLES, rows=ROWS, rate=RATE, sessions=SESSIONS,
            seconds=WARM_UP_S + SECONDS, first=first,
        )
    )  # fmt: skip
    lags_ms = writers.lags_ms(sides.downstream, WARM_UP_S, sides.cluster.drainer.log_tail)
    spent = Spent(
        transactions=len(writers.commits), seconds=time.monotonic() - begun_s, cpu_s=cpu.spent_s()
    )
    return lags_ms, writers.rate, spent
