"""The demos from a server: a MariaDB or a TiDB under sysbench's load, into another MariaDB.

    sysbench ──> MariaDB ── binlog ──> penstock source ──> Pumps ──> Drainer, Spark ──> MariaDB

The tables exist before the source starts, so it loads them first, while sysbench changes them. The
source is killed once, and a DDL runs while it is down.

    sysbench ──> TiDB ── binlog ──> Pumps ──> Drainer, Spark ──> MariaDB
                  └── a PD and a TiKV: cluster id, timestamps, etcd, transactions' outcomes ───┘

The TiDB is killed once with all that its sessions had open, and restarted.

sysbench names tables and columns in its statements. It survives all steps, because none of them
renames or drops one of its tables, or drops one of its columns.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pymysql
from pymysql.constants import ER
from pymysql.cursors import Cursor

from penstock.codes import Code
from penstock.errors import PenstockError, Retryable
from penstock.local.cluster import Cluster, lag_s
from penstock.local.demo.comparison import Sums, fingerprints, judged, lines, sums
from penstock.local.demo.runner import CATCH_UP_S_MAX, Demo, Say, shown
from penstock.local.process import ServerProcess
from penstock.local.sql_server import (
    MariadbServer,
    PdAndTikv,
    SqlProcess,
    TidbServer,
    mariadb_binlog_options,
)
from penstock.local.upstream import WORKLOAD, MysqlSource, Sysbench, SysbenchRun
from penstock.node.logs import start_logging
from penstock.oracle.client import Oracle, OracleClient
from pumpclient import PumpClient
from pumpclient.mysql.verify import command as verify

PUMPS = 2
THREADS = 4
TABLES = 4
"""The number of sysbench's tables; each plan below leaves one of them unchanged."""
LOADED_S_MAX = 300.0
END_S_MAX = 120
LOCK_S_MAX = 60
TRIES = 9
_SOURCE, _TIDB = "penstock source", "tidb"
_WRITE_CONFLICT, _SCHEMA_CHANGED = 9007, 8028
_ROW_OF_OLD_COLUMNS = 1105
"""A TiDB's generic error number for a column added between a row's read and write."""
KILL, START, RESTART = "kill", "start", "kill and start"


@dataclass(frozen=True, slots=True)
class Size:
    """The size of a run: duration, `rate` in transactions a second, `rows` of each table."""

    seconds: int
    rate: int
    rows: int = 10_000


@dataclass(frozen=True, slots=True)
class Step:
    """Statements for the upstream, or an action on a process.

    `share` is the time of the step: the elapsed share of sysbench's duration.
    """

    share: float
    sql: tuple[str, ...] = ()
    action: str = ""


MYSQL_PLAN = (
    Step(0.25, ("ALTER TABLE sbtest1 ADD COLUMN note VARCHAR(20) NOT NULL DEFAULT 'as loaded'",)),
    Step(0.32, ("UPDATE sbtest1 SET note = CONCAT('row ', id) WHERE id % 10 = 0",)),
    Step(0.39, ("CREATE INDEX c_2 ON sbtest2 (c(20))",)),
    Step(
        0.46,
        (
            "CREATE TABLE picked (id BIGINT UNSIGNED NOT NULL AUTO_INCREMENT PRIMARY KEY, k INT,"
            " price DECIMAL(8,2), picked_at DATETIME(3) NOT NULL DEFAULT CURRENT_TIMESTAMP(3))",
            "INSERT INTO picked (k, price) SELECT k, k / 7 FROM sbtest3 WHERE id % 20 = 0",
        ),
    ),
    Step(0.55, action=KILL),
    Step(0.60, ("ALTER TABLE sbtest3 MODIFY COLUMN k BIGINT NOT NULL DEFAULT 0",)),
    Step(0.65, action=START),
    Step(0.72, ("RENAME TABLE picked TO chosen",)),
    Step(
        0.79,
        (
            "ALTER TABLE chosen ADD COLUMN colour ENUM('red', 'green') AFTER k, DROP COLUMN price",
            "UPDATE chosen SET colour = IF(k % 2, 'red', 'green') WHERE id % 3 <> 0",
        ),
    ),
    Step(0.86, ("ALTER TABLE sbtest1 ADD INDEX note_1 (note), ALTER COLUMN note SET DEFAULT ''",)),
    Step(
        0.92,
        ("CREATE TABLE passing LIKE chosen", "INSERT INTO passing SELECT * FROM chosen",
         "DROP TABLE passing"),
    ),
)  # fmt: skip

TIDB_PLAN = (
    Step(0.15, ("ALTER TABLE sbtest1 ADD COLUMN note VARCHAR(20) NOT NULL DEFAULT 'as loaded'",)),
    Step(0.20, ("UPDATE sbtest1 SET note = CONCAT('row ', id) WHERE id % 10 = 0",)),
    # Rows change in between the four states of an index that is being filled.
    Step(0.30, ("ALTER TABLE sbtest2 ADD INDEX pad_1 (pad)",)),
    # Every row is written again, into a column of another id.
    Step(0.45, ("ALTER TABLE sbtest3 MODIFY COLUMN k DECIMAL(14,2) NOT NULL DEFAULT 0",)),
    Step(0.60, action=RESTART),
    Step(
        0.85,
        (
            "CREATE TABLE picked (id BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY, k INT,"
            " price DECIMAL(8,2))",
            "INSERT INTO picked (k, price) SELECT k, k / 7 FROM sbtest1 WHERE id % 20 = 0",
            "ALTER TABLE picked DROP COLUMN price",
        ),
    ),
)


class ServerDemo(Demo):
    """sysbench's load on an upstream, and the steps of a plan in the middle of it."""

    plan: Sequence[Step]
    upstream_name = ""
    checksum = ""

    def __init__(
        self,
        cluster: Cluster,
        upstream: SqlProcess,
        oracle: Oracle,
        size: Size,
        *,
        others: dict[str, ServerProcess],
        also_again: tuple[int, ...] = (),
    ) -> None:
        super().__init__(cluster, others)
        assert cluster.mariadb is not None
        self.upstream, self.downstream = upstream, cluster.mariadb
        self.oracle, self.size = oracle, size
        self.sysbench = Sysbench(upstream, TABLES, size.rows, also_again=also_again)
        self.load = self.sysbench_for(size.seconds)

    def sysbench_for(self, seconds: float) -> SysbenchRun:
        return self.sysbench.running(
            self.cluster.home / "sysbench.log", f"--threads={THREADS}", f"--time={seconds:.0f}",
            f"--rate={self.size.rate}", "--report-interval=1",
        )  # fmt: skip

    def close(self) -> None:
        self.load.kill()
        super().close()

    def look(self) -> str:
        self.note_memory()
        downstream = "no time to be had"
        with contextlib.suppress(PenstockError):
            behind_s = lag_s(self.oracle.get_ts(), applied_ts := self.applied_ts())
            downstream = (
                f"downstream as of {behind_s:.1f} s ago" if applied_ts else "downstream empty"
            )
        parts = (self.load.rate_line(), self.source_line(), downstream)
        return f"{self.stage}: {', '.join(filter(None, parts))}"

    def source_line(self) -> str:
        return ""

    def run(self, say: Say) -> None:
        size = self.size
        self.stage = "loading"
        say(f"sysbench prepare: {TABLES} tables of {size.rows:,} rows in the {self.upstream_name}")
        self.sysbench.prepare()
        begun_s = time.monotonic()
        self.begin(say)
        self.stage = "following"
        for step in self.plan:
            time.sleep(max(0.0, begun_s + step.share * size.seconds - time.monotonic()))
            if step.action:
                self.act(step, say)
            else:
                self._execute(step.sql, say)
            self.check()
        done, again = self.load.ended(size.seconds + END_S_MAX)
        say(f"sysbench is done: {done:,} transactions, {again:,} errors tried again")
        self.stage = "catching up"
        self.source_catches_up()
        self.catch_up(self.oracle.get_ts())

    def begin(self, say: Say) -> None:
        say(f"sysbench {WORKLOAD} for {self.size.seconds} s, {self.size.rate} transactions/s")
        self.load.start()

    def act(self, step: Step, say: Say) -> None:
        raise NotImplementedError

    def source_catches_up(self) -> None:
        """Return when all of the upstream's changes are on the Pumps."""

    def prepare_session(self, cursor: Cursor) -> None:
        """Set a session up for the statements of a step."""

    def sums_of(self, server: SqlProcess) -> Sums:
        raise NotImplementedError

    def verified(self) -> bool:
        """Return whether another comparison finds no difference."""
        return True

    def report(self) -> bool:
        verdicts = judged(self.sums_of(self.upstream), self.sums_of(self.downstream))
        print("", *lines(verdicts, self.checksum), "", sep="\n", flush=True)
        return self.verdict(verdicts, TABLES + 1, is_equal=self.verified())

    def _execute(self, statements: tuple[str, ...], say: Say) -> None:
        connected = contextlib.closing(self.upstream.connect(database=self.sysbench.schema))
        try:
            with connected as connection, connection.cursor() as cursor:
                self.prepare_session(cursor)
                for statement in statements:
                    say(statement)
                    _execute(cursor, statement)
        except pymysql.MySQLError as error:
            problem = f"the {self.upstream_name} refused a statement: {error}"
            raise Retryable(problem, Code.CHILD_FAILED) from error


class FromMysql(ServerDemo):
    """A MariaDB with a source, which loads the tables while sysbench runs."""

    plan = MYSQL_PLAN
    upstream_name = "upstream"
    checksum = "CHECKSUM TABLE"

    def __init__(
        self, cluster: Cluster, upstream: MariadbServer, client: PumpClient, size: Size
    ) -> None:
        self.server = upstream
        self.source = MysqlSource(
            cluster.home / "demo", cluster.etcd.url, upstream, source_id="demo", mode="all"
        )
        others: dict[str, ServerProcess] = {_SOURCE: self.source}
        super().__init__(cluster, upstream, client.session.oracle, size, others=others)

    def close(self) -> None:
        self.source.stop()
        super().close()

    def source_line(self) -> str:
        status = self.source.status() if self.source.is_running else {}
        if not status:
            return "source down"
        if status["state"] != "syncing":
            return f"source {status['state']}"
        behind_s, count = status["seconds_behind"], status["transactions"]
        return f"source {behind_s:.1f} s behind after {count:,} transactions"

    def run(self, say: Say) -> None:
        super().run(say)
        repeated = int(self.status().details.get("repeated_transactions", "0"))
        say(f"the Drainer skipped {repeated:,} transactions that the killed source sent twice")

    def begin(self, say: Say) -> None:
        say(f"{_SOURCE} --mode all, while sysbench {WORKLOAD} already runs")
        begun_s = time.monotonic()
        self.load.start()
        self.source.start()
        self.until("the load", LOADED_S_MAX, self._is_loaded)
        say(f"loaded after {time.monotonic() - begun_s:.1f} s; the binlog is followed")

    def _is_loaded(self) -> bool:
        status = self.source.sound_status()
        return bool(status.get("state") == "syncing" and status["committed"])

    def act(self, step: Step, say: Say) -> None:
        if step.action == KILL:
            self.killed.add(_SOURCE)
            self.source.kill()
            say(f"killed {_SOURCE} with -9")
        else:
            self.source.start()
            self.killed.discard(_SOURCE)
            say(f"started {_SOURCE} again")

    def prepare_session(self, cursor: Cursor) -> None:
        cursor.execute(f"SET lock_wait_timeout = {LOCK_S_MAX}, tx_isolation = 'READ-COMMITTED'")

    def source_catches_up(self) -> None:
        self.until("the source", CATCH_UP_S_MAX, lambda: self.source.has(self.server))

    def sums_of(self, server: SqlProcess) -> Sums:
        return sums(server, self.sysbench.schema)

    def verified(self) -> bool:
        print("penstock verify --upstream … --downstream …", flush=True)
        urls = ["--upstream", self.upstream.url, "--downstream", self.downstream.url]
        return verify.main([*urls, "--tables", f"{self.sysbench.schema}.*"]) == 0


class FromTidb(ServerDemo):
    """A TiDB, which writes to the Pumps itself."""

    plan = TIDB_PLAN
    upstream_name = "TiDB"
    checksum = "checksum of all rows"

    def __init__(self, cluster: Cluster, upstream: TidbServer, pd: PdAndTikv, size: Size) -> None:
        self._clock = OracleClient(pd.url)
        again = (_WRITE_CONFLICT, _SCHEMA_CHANGED, _ROW_OF_OLD_COLUMNS)
        others: dict[str, ServerProcess] = {_TIDB: upstream, "pd-tikv": pd}
        super().__init__(cluster, upstream, self._clock, size, others=others, also_again=again)

    def close(self) -> None:
        self._clock.close()
        super().close()

    def act(self, step: Step, say: Say) -> None:
        self.killed.add(_TIDB)
        self.upstream.kill()
        say("killed the TiDB with -9")
        self.load.kill()  # It does not outlive its sessions.
        self.upstream.start()
        self.killed.discard(_TIDB)
        self.load = self.sysbench_for((1 - step.share) * self.size.seconds).start()
        say("started the TiDB again")

    def sums_of(self, server: SqlProcess) -> Sums:
        return dict(fingerprints(server.url, self.sysbench.schema))


def _execute(cursor: Cursor, statement: str) -> None:
    for _ in range(TRIES):
        try:
            cursor.execute(statement)
            return
        except pymysql.err.OperationalError as error:
            if error.args[0] not in (ER.LOCK_DEADLOCK, ER.LOCK_WAIT_TIMEOUT):
                raise
    cursor.execute(statement)


def run_mysql(home: Path, size: Size) -> bool:
    start_logging("info", str(home / "writers.log"))
    print(f"starting two MariaDB servers, etcd, {PUMPS} Pumps and a Drainer on Spark", flush=True)
    upstream = MariadbServer(home / "upstream", options=mariadb_binlog_options())
    with ExitStack() as stack:
        upstream.install()
        stack.callback(upstream.stop)
        upstream.start()
        cluster = stack.enter_context(Cluster(home, pumps=PUMPS, sink="mysql"))
        client = stack.enter_context(PumpClient.connect(cluster.etcd.url))
        return shown(FromMysql(cluster, upstream, client, size))


def run_tidb(home: Path, size: Size) -> bool:
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
        return shown(FromTidb(cluster, upstream, pd, size))
