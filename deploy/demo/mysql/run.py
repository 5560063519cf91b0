"""One run of the MySQL demo: load, load's end, DDL, a kill, and the comparison."""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import grpc
import pymysql
from pymysql.constants import ER
from pymysql.cursors import Cursor

from deploy.demo.display import Display
from deploy.demo.mysql.checksums import judged, lines, sums
from deploy.demo.mysql.steps import PLAN, TABLES, SourceIs, Step
from deploy.local.cluster import Cluster, lag_s
from deploy.local.mariadb import MariadbServer, binlog_options
from deploy.local.mysql_source import MysqlSource
from deploy.local.process import ServerProcess
from deploy.local.sysbench import Sysbench, SysbenchRun
from penstock.errors import NeedsOperator, PenstockError, Retryable
from penstock.node.logs import start_logging
from penstock.pb import penstock_pb2, penstock_pb2_grpc
from pumpclient import PumpClient
from pumpclient.mysql.verify import command as verify

PUMPS = 2
THREADS = 4
SOURCE_ID = "demo"
LOADED_S_MAX = 300.0
CATCH_UP_S_MAX = 300.0
LOCK_S_MAX = 60
TRIES = 9
ANSWER_S_MAX = 5.0
_RATE = re.compile(r"tps: ([\d.]+)")


@dataclass(frozen=True, slots=True)
class Size:
    """How much a run does: `rate` transactions a second for so long; `rows` of each table."""

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
        self.rss_max: dict[str, int] = {}
        self._applied_ts = 0
        self._is_source_killed = False
        self._channel = grpc.insecure_channel(cluster.drainer_addr)
        self._drainer = penstock_pb2_grpc.DrainerStub(self._channel)  # type: ignore[no-untyped-call]

    def close(self) -> None:
        """End the source and sysbench, and hang up on the Drainer."""
        self.load.kill()
        self.source.stop()
        self._channel.close()

    def look(self) -> str:
        """Return the line for the display, and note the processes' memory."""
        for name, node in self._nodes().items():
            if node.is_running:
                self.rss_max[name] = max(self.rss_max.get(name, 0), node.rss_bytes())
        return f"{self.stage}: {self._load_line()}, {self._source_line()}, {self._drainer_line()}"

    def _load_line(self) -> str:
        rates = _RATE.findall(self.load.log_tail(3)) if self.load.is_running else []
        return f"sysbench {float(rates[-1]):.0f} transactions/s" if rates else "sysbench idle"

    def _source_line(self) -> str:
        status = self.source.status() if self.source.is_running else {}
        if not status:
            return "source down"
        if status["state"] != "syncing":
            return f"source {status['state']}"
        behind_s, count = status["seconds_behind"], status["transactions"]
        return f"source {behind_s:.1f} s behind after {count:,} transactions"

    def _drainer_line(self) -> str:
        with contextlib.suppress(PenstockError):
            now_ts, applied_ts = self.client.session.oracle.get_ts(), self.applied_ts()
            behind_s = lag_s(now_ts, applied_ts)
            return f"downstream as of {behind_s:.1f} s ago" if applied_ts else "downstream empty"
        return "no time to be had"

    def applied_ts(self) -> int:
        """Return the Drainer's checkpoint; the last known one while it does not answer."""
        with contextlib.suppress(grpc.RpcError):
            self._applied_ts = self._status().max_commit_ts
        return self._applied_ts

    def _status(self) -> penstock_pb2.StatusReply:
        asked = penstock_pb2.StatusRequest()
        reply: penstock_pb2.StatusReply = self._drainer.Status(asked, timeout=ANSWER_S_MAX)
        return reply

    def run(self, display: Display) -> None:
        """Load, follow, alter, kill, and wait until the downstream has what the upstream has."""
        size = self.size
        display.say(f"sysbench prepare: {TABLES} tables of {size.rows:,} rows in the upstream")
        self.sysbench.prepare()
        display.say("mysql-source --mode all, while sysbench oltp_read_write already runs")
        self.stage = "loading"
        begun_s = time.monotonic()
        self.load.start()
        self.source.start()
        self._until("the load", LOADED_S_MAX, self._is_loaded)
        display.say(f"loaded after {time.monotonic() - begun_s:.1f} s; the binlog is followed")
        self.stage = "following"
        for step in PLAN:
            time.sleep(max(0.0, begun_s + step.share * size.seconds - time.monotonic()))
            self._take(step, display)
            self._check_nodes()
        done, again = self.load.ended(size.seconds + LOCK_S_MAX)
        display.say(f"sysbench is done: {done:,} transactions, {again:,} tried again")
        self.stage = "catching up"
        self._until("the source", CATCH_UP_S_MAX, lambda: self.source.has(self.upstream))
        until_ts = self.client.session.oracle.get_ts()
        self._until("the Drainer", CATCH_UP_S_MAX, lambda: self.applied_ts() >= until_ts)
        repeated = int(self._status().details.get("repeated_transactions", "0"))
        display.say(
            f"the Drainer left out {repeated:,} transactions that the killed source sent twice"
        )

    def _is_loaded(self) -> bool:
        status = self.source.status()
        if status.get("state") == "failed":
            raise NeedsOperator(f"mysql-source: {status['problem']}", hint=status["hint"])
        return bool(status.get("state") == "syncing" and status["committed"])

    def _take(self, step: Step, display: Display) -> None:
        match step.source:
            case SourceIs.KILLED:
                self._is_source_killed = True
                self.source.kill()
                display.say("killed mysql-source with -9")
            case SourceIs.STARTED:
                self.source.start()
                self._is_source_killed = False
                display.say("started mysql-source again")
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
            raise Retryable(f"the upstream refused a statement: {error}") from error
        finally:
            connection.close()

    def _until(self, what: str, within_s: float, is_done: Callable[[], bool]) -> None:
        """Wait; raise `Retryable` with the logs' ends when a process ended, or for too long."""
        deadline_s = time.monotonic() + within_s
        while not is_done():
            self._check_nodes()
            if time.monotonic() > deadline_s:
                tails = [f"{name}:\n{node.log_tail(8)}" for name, node in self._nodes().items()]
                raise Retryable(f"{what} takes more than {within_s:.0f} s\n" + "\n".join(tails))
            time.sleep(0.1)

    def _check_nodes(self) -> None:
        for name, node in self._nodes().items():
            if not node.is_running and not (node is self.source and self._is_source_killed):
                raise Retryable(f"{name} ended:\n{node.log_tail()}")

    def _nodes(self) -> dict[str, ServerProcess]:
        return {**self.cluster.nodes, "mysql-source": self.source}

    def report(self) -> bool:
        """Print both sides table by table, and the rows that differ; return whether none does."""
        schema = self.sysbench.schema
        verdicts = judged(sums(self.upstream, schema), sums(self.downstream, schema))
        print("", *lines(verdicts), "", sep="\n")
        print("penstock verify --upstream … --downstream …", flush=True)
        urls = ["--upstream", self.upstream.url, "--downstream", self.downstream.url]
        verified = verify.main(["verify", *urls, "--tables", f"{schema}.*"]) == 0
        memory = ", ".join(f"{n} {rss >> 20} MiB" for n, rss in sorted(self.rss_max.items()))
        print(f"largest resident memory: {memory}")
        identical = len(verdicts) > TABLES and all(v.identical for v in verdicts)
        if identical and verified:
            print("identical")
        else:
            print("NOT identical: see what is marked DIFFERENT, and what penstock verify names")
        return identical and verified


def _execute(cursor: Cursor, statement: str) -> None:
    """Execute a statement, again when sysbench's transactions were in its way."""
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
