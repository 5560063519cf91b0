"""One run of the TiDB demo: load, online DDL, a kill, and the comparison."""

from __future__ import annotations

import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pymysql

from penstock.codes import Code
from penstock.errors import Retryable
from penstock.oracle.client import OracleClient
from penstock_local.cluster import Cluster
from penstock_local.demo.comparison import fingerprints
from penstock_local.demo.display import Display
from penstock_local.demo.mysql.checksums import judged, lines
from penstock_local.demo.tidb.steps import PLAN, TABLES, Step
from penstock_local.demo.watch import Watch
from penstock_local.sysbench import WORKLOAD, Sysbench, SysbenchRun
from penstock_local.tidb import PdAndTikv, TidbServer

PUMPS = 2
TIDB = "tidb"
THREADS = 4
CATCH_UP_S_MAX = 300.0
END_S_MAX = 120
_WRITE_CONFLICT, _SCHEMA_CHANGED = 9007, 8028
_ROW_OF_OLD_COLUMNS = 1105
"""A TiDB's generic error number for a column added between a row's read and write."""


@dataclass(frozen=True, slots=True)
class Size:
    """The size of a run: duration, `rate` in transactions a second, `rows` of each table."""

    seconds: int = 40
    rate: int = 100
    rows: int = 10_000


class Demo:
    """One run over a running cluster and a running TiDB."""

    def __init__(self, cluster: Cluster, upstream: TidbServer, pd: PdAndTikv, size: Size) -> None:
        assert cluster.mariadb is not None
        self.cluster, self.upstream, self.downstream = cluster, upstream, cluster.mariadb
        self.pd, self.size = pd, size
        again = (_WRITE_CONFLICT, _SCHEMA_CHANGED, _ROW_OF_OLD_COLUMNS)
        self.sysbench = Sysbench(upstream, TABLES, size.rows, also_again=again)
        self.load = self._load(size.seconds)
        self.stage = "starting"
        self.watch = Watch(cluster, {TIDB: upstream, "pd-tikv": pd})
        self._clock = OracleClient(pd.url)

    def _load(self, seconds: float) -> SysbenchRun:
        return self.sysbench.running(
            self.cluster.home / "sysbench.log", f"--threads={THREADS}", f"--time={seconds:.0f}",
            f"--rate={self.size.rate}", "--report-interval=1",
        )  # fmt: skip

    def close(self) -> None:
        self.load.kill()
        self._clock.close()
        self.watch.close()

    def look(self) -> str:
        self.watch.note_memory()
        downstream = self.watch.downstream_line(self._clock)
        return f"{self.stage}: {self.load.rate_line()}, {downstream}"

    def run(self, display: Display) -> None:
        size = self.size
        display.say(f"sysbench prepare: {TABLES} tables of {size.rows:,} rows in the TiDB")
        self.stage = "loading"
        self.sysbench.prepare()
        display.say(f"sysbench {WORKLOAD} for {size.seconds} s, {size.rate} transactions/s")
        self.stage = "following"
        begun_s = time.monotonic()
        self.load.start()
        for step in PLAN:
            time.sleep(max(0.0, begun_s + step.share * size.seconds - time.monotonic()))
            self._take(step, display)
            self.watch.check()
        done, again = self.load.ended(size.seconds + END_S_MAX)
        display.say(f"sysbench is done: {done:,} transactions, {again:,} errors tried again")
        self.stage = "catching up"
        until_ts = self._clock.get_ts()
        self.watch.until("the Drainer", CATCH_UP_S_MAX, lambda: self.watch.applied_ts() >= until_ts)

    def _take(self, step: Step, display: Display) -> None:
        if step.kills:
            self.watch.killed.add(TIDB)
            self.upstream.kill()
            display.say("killed the TiDB with -9")
            self.load.kill()  # It does not outlive its sessions.
            self.upstream.start()
            self.watch.killed.discard(TIDB)
            self.load = self._load((1 - step.share) * self.size.seconds).start()
            display.say("started the TiDB again")
            return
        connection = self.upstream.connect(database=self.sysbench.schema)
        try:
            with connection.cursor() as cursor:
                for statement in step.sql:
                    display.say(statement)
                    cursor.execute(statement)
        except pymysql.MySQLError as error:
            raise Retryable(
                f"the TiDB refused a statement: {error}", code=Code.CHILD_FAILED
            ) from error
        finally:
            connection.close()

    def report(self) -> bool:
        """Print both sides table by table, and return whether they are the same."""
        schema = self.sysbench.schema
        sides = [
            dict(fingerprints(server.url, schema)) for server in (self.upstream, self.downstream)
        ]
        verdicts = judged(*sides)
        print("", *lines(verdicts, "checksum of all rows"), "", sep="\n")
        print(self.watch.memory_line())
        identical = len(verdicts) > TABLES and all(verdict.identical for verdict in verdicts)
        print("identical" if identical else "NOT identical: see the tables marked DIFFERENT")
        return identical


def run(home: Path, size: Size) -> bool:
    """Run the demo with its files below `home`; return whether the two sides are equal."""
    print(
        f"starting a PD and a TiKV, {PUMPS} Pumps, a TiDB, a MariaDB, a Drainer on Spark",
        flush=True,
    )
    with ExitStack() as stack:
        pd = PdAndTikv(home / "pd")
        stack.callback(pd.stop)
        # A TiDB that writes binlogs needs a Pump before it starts, a Drainer needs a TiDB.
        cluster = Cluster(home, pumps=PUMPS, sink="mysql", with_drainer=False, pd=pd)
        stack.enter_context(cluster)
        upstream = TidbServer(home / "tidb", pd)
        stack.callback(upstream.stop)
        upstream.start()
        cluster.start_drainer()
        demo = Demo(cluster, upstream, pd, size)
        stack.callback(demo.close)
        with Display(demo.look) as display:
            demo.run(display)
        return demo.report()
