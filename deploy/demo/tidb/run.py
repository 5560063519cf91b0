"""One run of the TiDB demo: load, online DDL, a kill, and the comparison."""

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

from deploy.demo.comparison import fingerprints
from deploy.demo.display import Display
from deploy.demo.mysql.checksums import judged, lines
from deploy.demo.tidb.steps import PLAN, TABLES, Step
from deploy.local.cluster import Cluster, lag_s
from deploy.local.process import ServerProcess
from deploy.local.sysbench import Sysbench, SysbenchRun
from deploy.local.tidb import PdAndTikv, TidbServer
from penstock.errors import PenstockError, Retryable
from penstock.oracle.client import OracleClient
from penstock.pb import penstock_pb2, penstock_pb2_grpc

PUMPS = 2
THREADS = 4
WORKLOAD = "oltp_read_write"
CATCH_UP_S_MAX = 300.0
END_S_MAX = 120
ANSWER_S_MAX = 5.0
_WRITE_CONFLICT, _SCHEMA_CHANGED = 9007, 8028
_ROW_OF_OLD_COLUMNS = 1105
"""What a TiDB says, without a number for it, when a column comes between a row's read and write."""
_RATE = re.compile(r"tps: ([\d.]+)")


@dataclass(frozen=True, slots=True)
class Size:
    """How much a run does: `rate` transactions a second for so long; `rows` of each table."""

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
        self.sysbench = Sysbench(upstream, TABLES, size.rows, workload=WORKLOAD, also_again=again)
        self.load = self._load(size.seconds)
        self.stage = "starting"
        self.rss_max: dict[str, int] = {}
        self._applied_ts = 0
        self._is_killed = False
        self._clock = OracleClient(pd.url)
        self._channel = grpc.insecure_channel(cluster.drainer_addr)
        self._drainer = penstock_pb2_grpc.DrainerStub(self._channel)  # type: ignore[no-untyped-call]

    def _load(self, seconds: float) -> SysbenchRun:
        return self.sysbench.running(
            self.cluster.home / "sysbench.log", f"--threads={THREADS}", f"--time={seconds:.0f}",
            f"--rate={self.size.rate}", "--report-interval=1",
        )  # fmt: skip

    def close(self) -> None:
        """End sysbench, and hang up on PD and the Drainer."""
        self.load.kill()
        self._clock.close()
        self._channel.close()

    def look(self) -> str:
        """Return the line for the display, and note the processes' memory."""
        for name, node in self._nodes().items():
            if node.is_running:
                self.rss_max[name] = max(self.rss_max.get(name, 0), node.rss_bytes())
        rates = _RATE.findall(self.load.log_tail(3)) if self.load.is_running else []
        load = f"sysbench {float(rates[-1]):.0f} transactions/s" if rates else "sysbench idle"
        return f"{self.stage}: {load}, {self._drainer_line()}"

    def _drainer_line(self) -> str:
        with contextlib.suppress(PenstockError):
            now_ts, applied_ts = self._clock.get_ts(), self.applied_ts()
            behind_s = lag_s(now_ts, applied_ts)
            return f"downstream as of {behind_s:.1f} s ago" if applied_ts else "downstream empty"
        return "no time to be had"

    def applied_ts(self) -> int:
        """Return the Drainer's checkpoint; the last known one while it does not answer."""
        with contextlib.suppress(grpc.RpcError):
            status = self._drainer.Status(penstock_pb2.StatusRequest(), timeout=ANSWER_S_MAX)
            self._applied_ts = status.max_commit_ts
        return self._applied_ts

    def run(self, display: Display) -> None:
        """Write, alter, kill, and wait until the downstream has what the TiDB has."""
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
            self._check_nodes()
        done, again = self.load.ended(size.seconds + END_S_MAX)
        display.say(f"sysbench is done: {done:,} transactions, {again:,} errors tried again")
        self.stage = "catching up"
        until_ts = self._clock.get_ts()
        self._until("the Drainer", CATCH_UP_S_MAX, lambda: self.applied_ts() >= until_ts)

    def _take(self, step: Step, display: Display) -> None:
        if step.kills:
            self._is_killed = True
            self.upstream.kill()
            display.say("killed the TiDB with -9")
            self.load.kill()  # It does not outlive its sessions.
            self.upstream.start()
            self._is_killed = False
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
            raise Retryable(f"the TiDB refused a statement: {error}") from error
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
            if not node.is_running and not (node is self.upstream and self._is_killed):
                raise Retryable(f"{name} ended:\n{node.log_tail()}")

    def _nodes(self) -> dict[str, ServerProcess]:
        return {**self.cluster.nodes, "tidb": self.upstream, "pd-tikv": self.pd}

    def report(self) -> bool:
        """Print both sides table by table, and return whether they are the same."""
        schema = self.sysbench.schema
        sides = [
            dict(fingerprints(server.url, schema)) for server in (self.upstream, self.downstream)
        ]
        verdicts = judged(*sides)
        print("", *lines(verdicts, "checksum of all rows"), "", sep="\n")
        memory = ", ".join(f"{n} {rss >> 20} MiB" for n, rss in sorted(self.rss_max.items()))
        print(f"largest resident memory: {memory}")
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
        # A TiDB that writes binlogs wants a Pump before it starts, a Drainer a TiDB.
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
