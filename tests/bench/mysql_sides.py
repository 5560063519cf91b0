"""Two MariaDB servers with sysbench's tables, and what follows the one into the other.

The upstream writes the binlog. The downstream is a cluster's, and has a copy of the tables as they
were before the history, from which they are made again for each side. Both servers are what a side
finds: the replica's threads and Penstock's processes share one machine with them.
"""

from __future__ import annotations

import json
import shlex
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from penstock.codes import Code
from penstock.errors import Retryable
from penstock_local.cluster import Cluster
from penstock_local.process import program
from penstock_local.sql_server import MariadbServer, SqlProcess, mariadb_binlog_options
from penstock_local.upstream import MysqlSource, Sysbench
from pumpclient import PumpClient
from pumpclient.mysql.protocol.server import ServerAddress
from pumpclient.mysql.relay.layout import FileName
from pumpclient.mysql.source.ddl.table_mapping import define_table
from tests.bench.apply import applied, fetch
from tests.bench.lag import cpu_s, wait_until
from tests.bench.rig import process_s, running, sized

TABLES, ROWS = 4, sized(25_000, 2_000)
THREADS = 4
MARKS = 16
"""How many rows `marks` has, by which a session's transactions are known downstream."""
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
    """What a side took for so many transactions: the wall clock, and the CPU by process."""

    transactions: int
    seconds: float
    cpu_s: dict[str, float]

    @property
    def rate(self) -> float:
        return self.transactions / self.seconds

    @property
    def cpu_us(self) -> dict[str, float]:
        found = {part: s / self.transactions * 1e6 for part, s in self.cpu_s.items()}
        return {part: round(us, 1) for part, us in {**found, "all": sum(found.values())}.items()}


class SysbenchSides:
    """Sysbench's tables and `marks` on an upstream, and a downstream that gets their changes."""

    def __init__(
        self, sysbench: Sysbench, upstream: SqlProcess, downstream: MariadbServer, marks: int
    ) -> None:
        """Make the upstream's tables; sessions count their transactions in so many marks."""
        self.sysbench, self.downstream = sysbench, downstream
        self.marks = f"{sysbench.schema}.marks"
        self.tables = [*(f"sbtest{n}" for n in range(1, TABLES + 1)), "marks"]
        sysbench.prepare()
        upstream.run(
            f"CREATE TABLE {self.marks} (id INT PRIMARY KEY, number BIGINT NOT NULL)",
            f"INSERT INTO {self.marks} VALUES {', '.join(f'({n}, 0)' for n in range(marks))}",
        )

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
        super().__init__(Sysbench(upstream, TABLES, ROWS), upstream, cluster.mariadb, MARKS)
        self._define()

    def _define(self) -> None:
        """Create the tables in the cluster, and through the Drainer: Spark takes a while to start.

        A row that goes behind them shows when the downstream has them.
        """
        server = self.upstream
        address = ServerAddress(server.host, server.port, server.user, server.password)
        with PumpClient.connect(self.cluster.etcd.url) as client, address.session() as connection:
            for name in self._names():
                define_table(client, connection, name, lambda schema, table: (schema, table))
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
        for schema, table in self._names():
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
        return Spent(transactions=transactions, seconds=seconds, cpu_s=cpu.spent_s())

    @contextmanager
    def source(self, start: Place) -> Iterator[MysqlSource]:
        place = f"{start[0]}:{start[1]}"
        source = MysqlSource(
            self._home / "source", self.cluster.etcd.url, self.upstream,
            start=place, source_id=_SOURCE_ID,
        )  # fmt: skip
        source.start()
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

    def _names(self) -> list[tuple[str, str]]:
        return [(self.sysbench.schema, table) for table in self.tables]


class Cpu:
    """The CPU seconds of processes and their children, from now on."""

    def __init__(self, pids: dict[str, int], others: Callable[[], dict[str, float]] = dict) -> None:
        """Count processes by their ids, and whatever `others` names."""
        self._pids, self._others = pids, others
        self._before = self._now()

    def _now(self) -> dict[str, float]:
        return {**{part: process_s(pid) for part, pid in self._pids.items()}, **self._others()}

    def spent_s(self) -> dict[str, float]:
        return {part: now - self._before[part] for part, now in self._now().items()}


@contextmanager
def both(home: Path) -> Iterator[Sides]:
    """Run an upstream with sysbench's tables, and a cluster whose downstream is empty."""
    upstream = MariadbServer(home / "upstream", options=_OPTIONS)
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
