"""One run of the MySQL demo: load, load's end, DDL, a kill, and the comparison."""

from __future__ import annotations

import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pymysql
from pymysql.constants import ER
from pymysql.cursors import Cursor

from penstock.codes import Code, code_named
from penstock.errors import NeedsOperator, Retryable
from penstock.node.logs import start_logging
from penstock_local.cluster import Cluster
from penstock_local.demo.display import Display
from penstock_local.demo.mysql.checksums import judged, lines, sums
from penstock_local.demo.mysql.steps import PLAN, TABLES, SourceIs, Step
from penstock_local.demo.watch import Watch
from penstock_local.mariadb import MariadbServer, binlog_options
from penstock_local.mysql_source import MysqlSource
from penstock_local.sysbench import Sysbench, SysbenchRun
from pumpclient import PumpClient
from pumpclient.mysql.verify import command as verify

PUMPS = 2
THREADS = 4
SOURCE, SOURCE_ID = "penstock source", "demo"
LOADED_S_MAX = 300.0
CATCH_UP_S_MAX = 300.0
LOCK_S_MAX = 60
TRIES = 9


@dataclass(frozen=True, slots=True)
class Size:
    """The size of a run: duration, `rate` in transactions a second, `rows` of each table."""

    seconds: int = 30
    rate: int = 300
    rows: int = 10_000


class Demo:
    """One run over a running cluster and a running upstream."""

    def __init__(
        self, cluster: Cluster, upstream: MariadbServer, client: PumpClient, size: Size
    ) -> None:
        assert cluster.mariadb is not None
        self.cluster, self.upstream, self.downstream = cluster, upstream, cluster.mariadb
        self.size = size
        self.client = client
        self.sysbench = Sysbench(upstream, TABLES, size.rows)
        self.load: SysbenchRun = self.sysbench.running(
            cluster.home / "sysbench.log", f"--threads={THREADS}", f"--time={size.seconds}",
            f"--rate={size.rate}", "--report-interval=1",
        )  # fmt: skip
        self.source = MysqlSource(
            cluster.home / SOURCE_ID, cluster.etcd.url, upstream, source_id=SOURCE_ID, mode="all"
        )
        self.stage = "starting"
        self.watch = Watch(cluster, {SOURCE: self.source})

    def close(self) -> None:
        self.load.kill()
        self.source.stop()
        self.watch.close()

    def look(self) -> str:
        self.watch.note_memory()
        downstream = self.watch.downstream_line(self.client.session.oracle)
        return f"{self.stage}: {self.load.rate_line()}, {self._source_line()}, {downstream}"

    def _source_line(self) -> str:
        status = self.source.status() if self.source.is_running else {}
        if not status:
            return "source down"
        if status["state"] != "syncing":
            return f"source {status['state']}"
        behind_s, count = status["seconds_behind"], status["transactions"]
        return f"source {behind_s:.1f} s behind after {count:,} transactions"

    def run(self, display: Display) -> None:
        size = self.size
        display.say(f"sysbench prepare: {TABLES} tables of {size.rows:,} rows in the upstream")
        self.sysbench.prepare()
        display.say("penstock source --mode all, while sysbench oltp_read_write already runs")
        self.stage = "loading"
        begun_s = time.monotonic()
        self.load.start()
        self.source.start()
        self.watch.until("the load", LOADED_S_MAX, self._is_loaded)
        display.say(f"loaded after {time.monotonic() - begun_s:.1f} s; the binlog is followed")
        self.stage = "following"
        for step in PLAN:
            time.sleep(max(0.0, begun_s + step.share * size.seconds - time.monotonic()))
            self._take(step, display)
            self.watch.check()
        done, again = self.load.ended(size.seconds + LOCK_S_MAX)
        display.say(f"sysbench is done: {done:,} transactions, {again:,} tried again")
        self.stage = "catching up"
        self.watch.until("the source", CATCH_UP_S_MAX, lambda: self.source.has(self.upstream))
        until_ts = self.client.session.oracle.get_ts()
        self.watch.until("the Drainer", CATCH_UP_S_MAX, lambda: self.watch.applied_ts() >= until_ts)
        repeated = int(self.watch.status().details.get("repeated_transactions", "0"))
        display.say(
            f"the Drainer left out {repeated:,} transactions that the killed source sent twice"
        )

    def _is_loaded(self) -> bool:
        status = self.source.status()
        if status.get("state") == "failed":
            raise NeedsOperator(
                f"penstock source: {status['problem']}",
                hint=status["hint"],
                code=code_named(status["code"]) or Code.NODE_REFUSES,
            )
        return bool(status.get("state") == "syncing" and status["committed"])

    def _take(self, step: Step, display: Display) -> None:
        match step.source:
            case SourceIs.KILLED:
                self.watch.killed.add(SOURCE)
                self.source.kill()
                display.say("killed penstock source with -9")
            case SourceIs.STARTED:
                self.source.start()
                self.watch.killed.discard(SOURCE)
                display.say("started penstock source again")
            case SourceIs.LEFT:
                self._execute(step.sql, display)

    def _execute(self, statements: tuple[str, ...], display: Display) -> None:
        connection = self.upstream.connect(database=self.sysbench.schema)
        try:
            with connection.cursor() as cursor:
                cursor.execute(
                    f"SET lock_wait_timeout = {LOCK_S_MAX}, tx_isolation = 'READ-COMMITTED'"
                )
                for statement in statements:
                    display.say(statement)
                    _execute(cursor, statement)
        except pymysql.MySQLError as error:
            raise Retryable(
                f"the upstream refused a statement: {error}", code=Code.CHILD_FAILED
            ) from error
        finally:
            connection.close()

    def report(self) -> bool:
        """Print both sides table by table, and the rows that differ; return whether none does."""
        schema = self.sysbench.schema
        verdicts = judged(sums(self.upstream, schema), sums(self.downstream, schema))
        print("", *lines(verdicts), "", sep="\n")
        print("penstock verify --upstream … --downstream …", flush=True)
        urls = ["--upstream", self.upstream.url, "--downstream", self.downstream.url]
        verified = verify.main([*urls, "--tables", f"{schema}.*"]) == 0
        print(self.watch.memory_line())
        identical = len(verdicts) > TABLES and all(v.identical for v in verdicts)
        if identical and verified:
            print("identical")
        else:
            print("NOT identical: see what is marked DIFFERENT, and what penstock verify names")
        return identical and verified


def _execute(cursor: Cursor, statement: str) -> None:
    for _ in range(TRIES):
        try:
            cursor.execute(statement)
            return
        except pymysql.err.OperationalError as error:
            if error.args[0] not in (ER.LOCK_DEADLOCK, ER.LOCK_WAIT_TIMEOUT):
                raise
    cursor.execute(statement)


def run(home: Path, size: Size) -> bool:
    """Run the demo with its files below `home`; return whether the two sides are equal."""
    start_logging("info", str(home / "writers.log"))
    print(f"starting two MariaDB servers, etcd, {PUMPS} Pumps and a Drainer on Spark", flush=True)
    upstream = MariadbServer(home / "upstream", options=binlog_options())
    with ExitStack() as stack:
        upstream.install()
        stack.callback(upstream.stop)
        upstream.start()
        cluster = stack.enter_context(Cluster(home, pumps=PUMPS, sink="mysql"))
        client = stack.enter_context(PumpClient.connect(cluster.etcd.url))
        demo = Demo(cluster, upstream, client, size)
        stack.callback(demo.close)
        with Display(demo.look) as display:
            demo.run(display)
        return demo.report()
