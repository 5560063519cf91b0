"""A TiDB in front of the Pumps and a MariaDB behind the Drainer: how far behind, how fast again.

    tidb.catchup   a Drainer, Spark's start included, brings what sysbench has changed meanwhile
    tidb.lag       from a commit's acknowledgement to its rows being readable downstream

The TiDB, its TiKV and everything else share one machine, so the first figure is taken when nothing
is written any more; it is the best of three, for each of which the downstream is put back. They run
only under their own names, and need what `make test-tidb` builds. `TIDB_RATE` sets the rate. Where
`TIDB_BINLOG_DRAINER` is the path of TiDB-Binlog's own Drainer, the catch-up has it as its baseline,
on the same stream, in turns.
"""

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import pymysql

from penstock.codes import Code
from penstock.errors import Retryable
from penstock.local.cluster import Cluster
from penstock.local.process import ServerProcess, free_port
from penstock.local.sql_server import PdAndTikv, TidbServer
from penstock.local.upstream import Sysbench
from tests.bench.lag import bare_commits_ms, cpu_s
from tests.bench.mysql_sides import TABLES, SysbenchSides
from tests.bench.oltp_writers import LOOK_EVERY_S, looking
from tests.bench.rig import Figure, lag_figures, process_s, sized

CHANGES = sized(230_000, 4_000)
ORIGINAL = os.environ.get("TIDB_BINLOG_DRAINER", "")
ORIGINAL_WORKERS = 16
RATE = int(os.environ.get("TIDB_RATE", "300"))
PUMPS = 2
ROWS = 10_000
SESSIONS = 16
CHANGES_PER_TRANSACTION = 4
WARM_UP_S = 5.0
SECONDS = sized(30, 5)
FILL_S_MAX = 3600.0
REPEATS = 3
STALL_S_MAX = 300.0
_WRITE_CONFLICT = 9007


class TidbSides(SysbenchSides):
    """A TiDB, and a cluster with a MariaDB that has what the TiDB had at first."""

    def __init__(self, upstream: TidbServer, pd: PdAndTikv, cluster: Cluster, home: Path) -> None:
        assert cluster.mariadb is not None
        self.upstream, self.pd, self.cluster, self.home = upstream, pd, cluster, home
        sysbench = Sysbench(upstream, TABLES, ROWS, also_again=(_WRITE_CONFLICT,))
        super().__init__(sysbench, cluster.mariadb, SESSIONS)

    def wait_for(self, number: int, drainer: ServerProcess | None = None) -> None:
        """Return once that transaction is downstream, and so everything before it."""
        drainer = drainer or self.cluster.drainer
        wanted, deadline_s = f"SELECT number FROM {self.marks} WHERE id = 0", time.monotonic()
        deadline_s += STALL_S_MAX
        with self.downstream.connect() as connection, connection.cursor() as cursor:
            while True:
                with suppress(pymysql.err.ProgrammingError):  # There may be no table yet.
                    cursor.execute(wanted)
                    if cursor.fetchone() == (number,):
                        return
                if time.monotonic() > deadline_s or not drainer.is_running:
                    raise Retryable(f"no row arrives:\n{drainer.log_tail()}", code=Code.ETCD_AWAY)
                time.sleep(LOOK_EVERY_S)

    def checkpoint(self) -> str:
        ((checkpoint,),) = self.downstream.query("SELECT checkPoint FROM tidb_binlog.checkpoint")
        return str(checkpoint)

    def put_back(self, checkpoint: str) -> None:
        """Give the downstream the tables that were kept and a checkpoint; no Drainer runs."""
        self.restore()
        with self.downstream.connect() as connection, connection.cursor() as cursor:
            cursor.execute("UPDATE tidb_binlog.checkpoint SET checkPoint = %s", (checkpoint,))

    def cpu_s(self) -> dict[str, float]:
        """Return the CPU seconds that each part used so far."""
        parts = {**cpu_s(self.cluster), "tidb": process_s(self.upstream.pid)}
        parts["pd and tikv"] = parts.pop("etcd")
        return parts

    def fill(self, changes: int) -> tuple[float, float]:
        """Run sysbench for so many row changes; return transactions, and how many a second."""
        load = replace(self.sysbench, workload="oltp_write_only").running(
            self.home / "sysbench.log", f"--threads={SESSIONS}", "--time=0",
            f"--events={changes // CHANGES_PER_TRANSACTION}",
        )  # fmt: skip
        begun_s = time.monotonic()
        done, _ = load.start().ended(FILL_S_MAX)
        return done, done / (time.monotonic() - begun_s)


@contextmanager
def running(home: Path) -> Iterator[TidbSides]:
    """Run all of it, until the downstream has what sysbench begins with."""
    pd = PdAndTikv(home / "pd")
    upstream = TidbServer(home / "tidb", pd)
    try:
        with Cluster(home, pumps=PUMPS, sink="mysql", with_drainer=False, pd=pd) as cluster:
            try:
                upstream.start()
                sides = TidbSides(upstream, pd, cluster, home)
                sides.mark(1)
                cluster.start_drainer()
                sides.wait_for(1)
                yield sides
            finally:
                upstream.stop()
    finally:
        pd.stop()


def measure_catchup(home: Path) -> Iterator[Figure]:
    """Yield the seconds from the start of a Drainer's process to the last row downstream."""
    took_s: dict[str, list[float]] = {"own": [], "original": []}
    cpu_s: dict[str, list[float]] = {"own": [], "original": []}
    with running(home) as sides:
        drainers = {"own": sides.cluster.drainer}
        if ORIGINAL:
            drainers["original"] = original(sides)
        sides.cluster.drainer.stop()
        sides.keep()
        checkpoint = sides.checkpoint()
        done, rate = sides.fill(CHANGES)
        print(f"  {done} transactions written, {rate:.0f}/s", file=sys.stderr, flush=True)
        sides.mark(2)
        for _ in range(REPEATS):
            for name, drainer in drainers.items():
                sides.put_back(checkpoint)
                begun_s = time.monotonic()
                drainer.start()
                try:
                    sides.wait_for(2, drainer)
                    took_s[name].append(time.monotonic() - begun_s)
                    cpu_s[name].append(process_s(drainer.pid))
                finally:
                    drainer.stop()
                print(f"  {name}: {took_s[name][-1]:.1f} s", file=sys.stderr, flush=True)
    detail = {
        "row_changes": CHANGES_PER_TRANSACTION * done,
        "row_changes_per_s": round(CHANGES_PER_TRANSACTION * done / min(took_s["own"])),
        "all_s": {name: [round(each, 1) for each in all_s] for name, all_s in took_s.items()},
        "cpu_s": {name: [round(each, 1) for each in all_s] for name, all_s in cpu_s.items()},
        "written_transactions_per_s": round(rate),
        "baseline": "TiDB-Binlog's Drainer",
    }
    yield Figure(
        "tidb.catchup", min(took_s["own"]), "s", min(took_s["original"], default=None), detail
    )


def original(sides: TidbSides) -> ServerProcess:
    """Return TiDB-Binlog's Drainer, not started; it goes on from the checkpoint of ours."""
    home, to = sides.home / "original", sides.downstream
    home.mkdir()
    settings = home / "drainer.toml"
    settings.write_text(
        f"""
        [syncer]
        db-type = "mysql"
        worker-count = {ORIGINAL_WORKERS}
        [syncer.to]
        host = "{to.host}"
        port = {to.port}
        user = "{to.user}"
        password = "{to.password}"
        """
    )
    settings.chmod(0o600)
    command = [
        ORIGINAL,
        f"-config={settings}",
        f"-addr=127.0.0.1:{free_port()}",
        f"-data-dir={home / 'data'}",
        f"-pd-urls=http://{sides.pd.url}",
    ]
    return ServerProcess(command, log=home / "drainer.log")


def measure_lag(home: Path) -> Iterator[Figure]:
    """Yield p50 and p99 of the lag in milliseconds."""
    with running(home) as sides:
        bare_ms = bare_commits_ms(sides.downstream)
        before = sides.cpu_s()
        writers = sides.writers(rate=RATE, seconds=WARM_UP_S + SECONDS, first=10)
        with looking(sides.downstream, sides.sysbench.schema) as look:
            lags_ms = writers.lags_ms(look, WARM_UP_S, sides.cluster.drainer.log_tail)
        after = sides.cpu_s()
    detail = {
        "transactions_per_s": round(writers.rate),
        "asked_per_s": RATE,
        "transactions": len(lags_ms),
        "cpu_us_per_transaction": {
            part: round((after[part] - before[part]) / len(writers.commits) * 1e6) for part in after
        },
        "baseline": "bare commit",
    }
    yield from lag_figures("tidb.lag", lags_ms, bare_ms, detail)
