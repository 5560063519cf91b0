"""One sysbench history from a binlog into another MariaDB, against MariaDB's own replica.

The history is recorded once: `oltp_read_write` as sysbench runs it by default, four sessions. The
replica has fetched all of it before its time begins; Penstock's time begins with the start of the
source's process, so that Python's start and the fetching are in it. Both end when the downstream
has the last transaction, then the tables must be equal. `MYSQL_E2E_RAND` chooses how sysbench draws
rows (`special`, its default, has hot ones; `uniform`).

The lag is from a commit on the upstream to its rows being readable downstream. 1,000 sysbench-like
transactions a second are offered to the upstream, first with MariaDB's own replica behind it, then
with the source, the Pumps and the Drainer: the baseline is the replica's lag, one applying thread.
The time of a commit is that of its acknowledgement. Then the tables must be equal.
"""

import os
import time
from collections.abc import Iterator
from pathlib import Path
from time import perf_counter

from penstock.codes import Code
from penstock.errors import Retryable
from tests.bench.apply import fetch
from tests.bench.mysql_sides import (
    ROWS,
    TABLES,
    THREADS,
    WAIT_S_MAX,
    Cpu,
    Lagged,
    Place,
    Sides,
    Spent,
    both,
)
from tests.bench.oltp_writers import LOOK_EVERY_S, STALL_S_MAX, looking
from tests.bench.rig import Figure, lag_figures, sized

TRANSACTIONS = sized(100_000, 1_000)
RAND = os.environ.get("MYSQL_E2E_RAND", "special")
MANY = 16


def measure(home: Path) -> Iterator[Figure]:
    """Yield transactions/s; the baseline is the replica with one applying thread."""
    with both(home) as sides:
        sides.copy()
        start, before = sides.upstream.end(), sides.transactions()
        run = sides.sysbench.running(
            home / "sysbench.log", f"--events={TRANSACTIONS}", "--time=0",
            f"--threads={THREADS}", f"--rand-type={RAND}",
        )  # fmt: skip
        run.start()
        run.ended(WAIT_S_MAX)
        count = sides.transactions() - before
        one, many = (_replica(sides, start, count, threads) for threads in (0, MANY))
        ours = _penstock(sides, start, count)
    detail = {
        "cpu_us_per_transaction": ours.cpu_us,
        "baseline_cpu_us_per_transaction": one.cpu_us,
        f"replica_{MANY}_threads_per_s": round(many.rate),
        f"ratio_to_{MANY}_threads": round(ours.rate / many.rate, 3),
        f"replica_{MANY}_threads_cpu_us_per_transaction": many.cpu_us,
        "transactions": count,
        "tables": TABLES,
        "rows_per_table": ROWS,
        "rand_type": RAND,
        "cores": os.cpu_count(),
        "baseline": "slave_parallel_threads=0, from its own relay log",
    }
    yield Figure("mysql.e2e.sysbench", ours.rate, "transactions/s", one.rate, detail)


def _replica(sides: Sides, start: Place, count: int, threads: int) -> Spent:
    sides.restore()
    sides.follow(start)
    spent = sides.apply(count, threads)
    sides.leave()
    sides.ensure_equal()
    return spent


def _penstock(sides: Sides, start: Place, count: int) -> Spent:
    sides.restore()
    begun_s = perf_counter()
    with sides.source(start) as source:
        cpu = sides.cpu(source)
        sides.wait(sides.upstream.end(), source)
        seconds = perf_counter() - begun_s
        spent = Spent(count=count, seconds=seconds, cpu_s=cpu.spent_s())
    sides.ensure_equal()
    return spent


RATE = 1000
SECONDS = sized(20, 3)
FIRST = 1_000_000
"""The number of the first transaction behind the source, above all of the replica's."""


def measure_lag(home: Path) -> Iterator[Figure]:
    """Yield p50 and p99 of the lag in milliseconds."""
    with both(home) as sides:
        sides.copy()
        fetch(sides.downstream, sides.upstream, sides.upstream.end(), sides.upstream.end())
        sides.downstream.query("START SLAVE SQL_THREAD")
        theirs = _lagged(sides, Cpu({"mariadb": sides.downstream.pid}), first=1)
        sides.leave()
        sides.ensure_equal()
        with sides.source(sides.upstream.end()) as source:
            sides.until_syncing(source)
            _wait_for_spark(sides, number=FIRST - 1)
            ours = _lagged(sides, sides.cpu(source), first=FIRST)
        sides.ensure_equal()
    detail = {
        "transactions_per_s": round(ours.offered_per_s),
        "asked_per_s": RATE,
        "transactions": len(ours.lags_ms),
        "cpu_us_per_transaction": ours.spent.cpu_us,
        "baseline_cpu_us_per_transaction": theirs.spent.cpu_us,
        "baseline": "the replica's lag, slave_parallel_threads=0",
    }
    yield from lag_figures("mysql.lag", ours.lags_ms, theirs.lags_ms, detail)


def _wait_for_spark(sides: Sides, number: int) -> None:
    sides.mark(number)
    deadline_s = time.monotonic() + STALL_S_MAX
    while sides.downstream.query(f"SELECT number FROM {sides.marks} WHERE id = 0") != [(number,)]:
        if time.monotonic() > deadline_s:
            raise Retryable(
                f"no row arrives:\n{sides.cluster.drainer.log_tail()}", code=Code.ETCD_AWAY
            )
        time.sleep(LOOK_EVERY_S)


def _lagged(sides: Sides, cpu: Cpu, first: int) -> Lagged:
    with looking(sides.downstream, sides.sysbench.schema) as look:
        return sides.lagged(
            look, cpu, sides.cluster.drainer.log_tail, rate=RATE, seconds=SECONDS, first=first
        )
