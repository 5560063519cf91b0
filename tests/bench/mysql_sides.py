"""Two MariaDB servers with sysbench's tables, and what follows the one into the other.

The upstream writes the binlog. The downstream is a cluster's, and has a copy of the tables as they
were before the history, from which they are made again for each side. Both servers are what a side
finds: the replica's threads and Penstock's processes share one machine with them.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from penstock.codes import Code
from penstock.errors import Retryable
from penstock.local.cluster import Cluster
from penstock.local.process import program
from penstock.local.sql_server import MariadbServer, SqlServer, mariadb_binlog_options
from penstock.local.upstream import MysqlSource, Sysbench
from pumpclient import PumpClient
from pumpclient.mysql.protocol.server import ServerAddress
from pumpclient.mysql.relay.layout import FileName
from pumpclient.mysql.source.ddl.table_mapping import define_table
from tests.bench.apply import applied, fetch
from tests.bench.lag import cpu_s, wait_until
from tests.bench.oltp_writers import Look, MarkedWriters, Pace
from tests.bench.rig import process_s, running, sized

TABLES, ROWS = 4, sized(25_000, 2_000)
THREADS = 4
MARKS = 16
"""How many rows `marks` has, by which a session's transactions are known downstream."""
WARM_UP_S = 3.0
WAIT_S_MAX = 3600.0
_UPSTREAM_ID = 101
_OPTIONS = (*mariadb_binlog_options(_UPSTREAM_ID), "--innodb-flush-log-at-trx-commit=0")
_KEPT = "sbtest_before"
_SOURCE_ID = "mysql-1"
_LOOK_EVERY_S = 0.01

Place = tuple[str, int]
"""A binlog file and a position in it."""


@dataclass(frozen=True, kw_only=True)
class Spent:
    """What a side took for so many transactions or rows: the wall clock, and the CPU by process."""

    count: int
    seconds: float
    cpu_s: dict[str, float]
    load: float = field(default_factory=lambda: round(os.getloadavg()[0], 1))
    """The machine's, in the last minute of the measured time."""

    @property
    def rate(self) -> float:
        return self.count / self.seconds

    @property
    def cpu_us(self) -> dict[str, float]:
        found = {part: s / self.count * 1e6 for part, s in self.cpu_s.items()}
        return {part: round(us, 1) for part, us in {**found, "all": sum(found.values())}.items()}


@dataclass(frozen=True, kw_only=True)
class Lagged:
    """How far a side was behind what was offered to its upstream, and what it took."""

    lags_ms: list[float]
    offered_per_s: float
    spent: Spent


class SysbenchTables:
    """Sysbench's tables and `marks` on an upstream."""

    def __init__(self, sysbench: Sysbench, sessions: int) -> None:
        """Make the tables; so many sessions count their transactions in a mark each."""
        self.sysbench, self._sessions = sysbench, sessions
        self.marks = f"{sysbench.schema}.marks"
        self.tables = [*(f"sbtest{n}" for n in range(1, sysbench.tables + 1)), "marks"]
        sysbench.prepare()
        sysbench.server.run(
            f"CREATE TABLE {self.marks} (id INT PRIMARY KEY, number BIGINT NOT NULL)",
            f"INSERT INTO {self.marks} VALUES {', '.join(f'({n}, 0)' for n in range(sessions))}",
        )

    def define(self, client: PumpClient) -> None:
        """Create them in a cluster as the upstream has them."""
        server = self.sysbench.server
        address = ServerAddress(server.host, server.port, server.user, server.password)
        with address.session() as connection:
            for name in self.names():
                define_table(client, connection, name, lambda schema, table: (schema, table))

    def names(self) -> list[tuple[str, str]]:
        return [(self.sysbench.schema, table) for table in self.tables]

    def mark(self, number: int) -> None:
        """Commit a transaction of its own, which can be waited for."""
        self.sysbench.server.run(f"UPDATE {self.marks} SET number = {number} WHERE id = 0")

    def writers(self, *, rate: int, seconds: float, first: int) -> MarkedWriters:
        """Run `rate` transactions a second, which each session counts from `first`."""
        server = self.sysbench.server
        return MarkedWriters(
            Pace(
                host=server.host, port=server.port, user=server.user, password=server.password,
                schema=self.sysbench.schema, tables=self.sysbench.tables, rows=self.sysbench.rows,
                rate=rate, sessions=self._sessions, seconds=seconds, first=first,
            )
        )  # fmt: skip

    def lagged(
        self, look: Look, cpu: Cpu, log_tail: Callable[[], str],
        *, rate: int, seconds: float, first: int,
    ) -> Lagged:  # fmt: skip
        """Offer transactions for so many seconds after a warm-up, and look when they arrive."""
        begun_s = time.monotonic()
        writers = self.writers(rate=rate, seconds=WARM_UP_S + seconds, first=first)
        lags_ms = writers.lags_ms(look, WARM_UP_S, log_tail)
        spent = Spent(
            count=len(writers.commits), seconds=time.monotonic() - begun_s, cpu_s=cpu.spent_s()
        )
        return Lagged(lags_ms=lags_ms, offered_per_s=writers.rate, spent=spent)


class SysbenchSides(SysbenchTables):
    """The same, and a downstream that gets their changes."""

    def __init__(self, sysbench: Sysbench, downstream: MariadbServer, sessions: int) -> None:
        super().__init__(sysbench, sessions)
        self.downstream = downstream

    def keep(self) -> None:
        self.downstream.run(f"CREATE DATABASE {_KEPT}")
        for table in self.tables:
            self.downstream.run(
                f"CREATE TABLE {_KEPT}.{table} LIKE {self.sysbench.schema}.{table}",
                f"INSERT INTO {_KEPT}.{table} SELECT * FROM {self.sysbench.schema}.{table}",
            )

    def restore(self) -> None:
        for table in self.tables:
            self.downstream.run(
                f"TRUNCATE {self.sysbench.schema}.{table}",
                f"INSERT INTO {self.sysbench.schema}.{table} SELECT * FROM {_KEPT}.{table}",
            )


class Sides(SysbenchSides):
    """The servers and the cluster, as long as they run."""

    def __init__(self, home: Path, upstream: MariadbServer, cluster: Cluster) -> None:
        assert cluster.mariadb is not None
        self._home = home
        self.upstream, self.cluster = upstream, cluster
        super().__init__(Sysbench(upstream, TABLES, ROWS), cluster.mariadb, MARKS)
        self._bring_tables()

    def _bring_tables(self) -> None:
        """Create the tables in the cluster, and through the Drainer: Spark takes a while to start.

        A row that goes behind them shows when the downstream has them.
        """
        with PumpClient.connect(self.cluster.etcd.url) as client:
            self.define(client)
            client.execute_ddl("CREATE DATABASE warm")
            client.execute_ddl("CREATE TABLE warm.t (id INT PRIMARY KEY)")
            with client.begin("warm") as first:
                first.insert("t", {"id": 1})
        wait_until(self.downstream, first.commit_ts or 0)

    def copy(self) -> None:
        """Bring the upstream's rows into the downstream, and keep them there."""
        schema = self.sysbench.schema
        dump_and_load(self.upstream, self.downstream, ["--no-create-info", schema], [schema])
        self.keep()

    def ensure_equal(self) -> None:
        """Raise when the downstream's tables are not the upstream's."""
        for schema, table in self.names():
            ours, theirs = (
                server.query(f"CHECKSUM TABLE {schema}.{table}")[0][1]
                for server in (self.upstream, self.downstream)
            )
            assert ours == theirs, f"{schema}.{table} differs"

    def transactions(self) -> int:
        return int(self.upstream.query("SELECT @@gtid_binlog_pos")[0][0].split("-")[2])

    def follow(self, start: Place) -> None:
        """Let the downstream be a replica from a place on, which has fetched all there is."""
        self.downstream.query("SET GLOBAL server_id = 2")
        fetch(self.downstream, self.upstream, start, self.upstream.end())

    def leave(self) -> None:
        self.downstream.run("STOP SLAVE", "RESET SLAVE ALL")

    def apply(self, transactions: int, threads: int) -> Spent:
        self.downstream.run(
            f"SET GLOBAL slave_parallel_threads = {threads}",
            "SET GLOBAL slave_parallel_mode = 'optimistic'",
        )
        end = self.upstream.end()
        cpu = Cpu({"mariadb": self.downstream.pid})
        begun_s = time.perf_counter()
        applied(self.downstream, end, WAIT_S_MAX)
        seconds = time.perf_counter() - begun_s
        return Spent(count=transactions, seconds=seconds, cpu_s=cpu.spent_s())

    @contextmanager
    def source(self, start: Place) -> Iterator[MysqlSource]:
        source = source_at(self._home, self.cluster, self.upstream, start).start()
        try:
            yield source
        finally:
            source.stop()

    def until_syncing(self, source: MysqlSource) -> None:
        while not source.has(self.upstream):
            time.sleep(_LOOK_EVERY_S)

    def cpu(self, source: MysqlSource) -> Cpu:
        return Cpu({"source": source.pid}, lambda: cpu_s(self.cluster))

    def wait(self, end: Place, source: MysqlSource) -> None:
        wanted = (FileName.parse(end[0]).number, end[1])
        with self.downstream.connect() as connection, connection.cursor() as cursor:
            while True:
                cursor.execute("SELECT checkPoint FROM tidb_binlog.checkpoint")
                (text,) = cursor.fetchone() or ("{}",)
                _, *place = json.loads(text).get("origins", {}).get(_SOURCE_ID, (0, 0, 0))
                if tuple(place) >= wanted:
                    return
                for process in (source, self.cluster.drainer):
                    if not process.is_running:
                        raise Retryable(
                            f"{process.log}:\n{process.log_tail()}", code=Code.ETCD_AWAY
                        )
                time.sleep(_LOOK_EVERY_S)


class Cpu:
    """The CPU seconds of processes and their children, from now on."""

    def __init__(self, pids: dict[str, int], others: Callable[[], dict[str, float]] = dict) -> None:
        """Count processes by their ids, and whatever `others` names."""
        self._pids, self._others = pids, others
        self._before = self._now()

    def _now(self) -> dict[str, float]:
        return {**{part: process_s(pid) for part, pid in self._pids.items()}, **self._others()}

    def spent_s(self) -> dict[str, float]:
        """Return the seconds of each part; a part that has been started since counts whole."""
        return {part: now - self._before.get(part, 0.0) for part, now in self._now().items()}


def upstream_at(home: Path) -> MariadbServer:
    return MariadbServer(home / "upstream", options=_OPTIONS)


def source_at(home: Path, cluster: Cluster, upstream: SqlServer, start: Place) -> MysqlSource:
    """Return a source, not started, that follows an upstream from a place on."""
    return MysqlSource(
        home / "source", cluster.etcd.url, upstream,
        start=f"{start[0]}:{start[1]}", source_id=_SOURCE_ID,
    )  # fmt: skip


@contextmanager
def both(home: Path) -> Iterator[Sides]:
    """Run an upstream with sysbench's tables, and a cluster whose downstream is empty."""
    upstream = upstream_at(home)
    with running(upstream), Cluster(home, sink="mysql") as cluster:
        yield Sides(home, upstream, cluster)


def dump_and_load(
    source: MariadbServer, target: MariadbServer, dumped: list[str], loaded: list[str]
) -> None:
    """Run `mariadb-dump | mariadb`, each with more arguments."""

    def command(names: tuple[str, str], server: MariadbServer, more: list[str]) -> str:
        login = [f"--host={server.host}", f"--port={server.port}", f"--user={server.user}"]
        login.append(f"--password={server.password}")
        return shlex.join([program(*names), "--no-defaults", *login, *more])

    dump = command(("mariadb-dump", "mysqldump"), source, ["--single-transaction", *dumped])
    piped = f"{dump} | {command(('mariadb', 'mysql'), target, loaded)}"
    subprocess.run(["bash", "-o", "pipefail", "-c", piped], check=True)
