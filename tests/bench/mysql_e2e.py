"""One sysbench history from a binlog into another MariaDB, against MariaDB's own replica.

The history is recorded once: `oltp_read_write` as sysbench runs it by default, four sessions. The
replica has fetched all of it before its time begins; Penstock's time begins with the start of the
source's process, so that Python's start and the fetching are in it. Both end when the downstream
has the last transaction, then the tables must be equal. `MYSQL_E2E_TRANSACTIONS` makes it smaller,
`MYSQL_E2E_RAND` chooses how sysbench draws rows (`special`, its default, has hot ones; `uniform`).
"""

import os
from collections.abc import Iterator
from pathlib import Path
from time import perf_counter

from tests.bench.figure import Figure
from tests.bench.mysql_sides import ROWS, TABLES, THREADS, WAIT_S_MAX, Place, Sides, Spent, running

TRANSACTIONS = int(os.environ.get("MYSQL_E2E_TRANSACTIONS", "100000"))
RAND = os.environ.get("MYSQL_E2E_RAND", "special")
MANY = 16


def measure(home: Path) -> Iterator[Figure]:
    """Yield transactions/s; the baseline is the replica with one applying thread."""
    with running(home) as sides:
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
    yield Figure(
        name="mysql.e2e.sysbench",
        value=ours.rate,
        unit="transactions/s",
        baseline=one.rate,
        detail={
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
            "machine_load": round(os.getloadavg()[0], 1),
            "baseline": "slave_parallel_threads=0, from its own relay log",
        },
    )


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
        spent = Spent(transactions=count, seconds=seconds, cpu_s=cpu.spent_s())
    sides.ensure_equal()
    return spent
