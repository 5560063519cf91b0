"""Command: `python -m tests.kit.console_scene docs/console` takes the pictures of docs/console.md.

It starts two MariaDB servers, etcd, three Pumps, a Drainer and a source, writes to them for a few
minutes (`--seconds`), and takes a picture of the console on each screen; then a DDL stops the
Drainer, and it takes one more of what the console shows of that.
"""

import argparse
import math
import sys
import tempfile
import time
from contextlib import ExitStack
from itertools import count
from pathlib import Path

from drainer.spark.jvm import use_java
from penstock.local.cluster import Cluster
from penstock.local.sql_server import MariadbServer, mariadb_binlog_options
from penstock.local.upstream import MysqlSource
from pumpclient import PumpClient
from tests.kit.servers.chromium import DESKTOP, PHONE, SIZES, Chromium, Size
from tests.kit.servers.console import ConsoleProcess

_WAVE_S = 40.0
_TICK_S = 0.5
_SEEN_S = 60.0
_LEFT_OUT = '[[filter.ignore-tables]]\ndb-name = "shop"\ntbl-name = "visits"\n'


class Trade:
    """A program that writes in waves, and a shop's own database beside it."""

    def __init__(self, client: PumpClient, upstream: MariadbServer) -> None:
        self._client, self._upstream = client, upstream
        self._ids = count(1)
        client.execute_ddl("CREATE DATABASE shop")
        for table in ("orders", "visits"):
            client.execute_ddl(f"CREATE TABLE shop.{table} (id BIGINT PRIMARY KEY, what TEXT)")

    def go_on(self, seconds: float) -> None:
        """Write for so long, now more and now less."""
        began_s = time.monotonic()
        while (passed_s := time.monotonic() - began_s) < seconds:
            size = 14 + 10 * math.sin(passed_s / _WAVE_S * 2 * math.pi) + 4 * math.sin(passed_s)
            for number in range(int(size)):
                with self._client.begin("shop") as txn:
                    for _ in range(1 + number % 5):
                        txn.insert("orders", {"id": next(self._ids), "what": "a bolt " * 20})
                    if number % 4 == 0:
                        txn.insert("visits", {"id": next(self._ids), "what": "someone looks"})
            rows = ", ".join(f"({next(self._ids)}, 'a nut')" for _ in range(1 + int(size)))
            self._upstream.run(f"INSERT INTO depot.stock VALUES {rows}")
            time.sleep(_TICK_S)


def _take(browser: Chromium, console: ConsoleProcess, size: Size, path: Path) -> None:
    browser.show(size)
    browser.open(console.url)
    browser.until("document.getElementById('connection').textContent.includes('live')", _SEEN_S)
    path.write_bytes(browser.picture())
    sys.stdout.write(f"{path}\n")


def _scene(home: Path, folder: Path, seconds: float) -> None:
    use_java(home / "java")
    upstream = MariadbServer(home / "upstream", options=mariadb_binlog_options())
    settings = home / "drainer.toml"
    settings.write_text(_LEFT_OUT)
    with ExitStack() as stack:
        upstream.install()
        stack.callback(upstream.stop)
        upstream.start()
        upstream.run(
            "CREATE DATABASE depot", "CREATE TABLE depot.stock (id BIGINT PRIMARY KEY, what TEXT)"
        )
        cluster = Cluster(home, sink="mysql")
        cluster.drainer.command += ["--config", str(settings)]
        stack.enter_context(cluster)
        client = stack.enter_context(PumpClient.connect(cluster.etcd.url))
        source = MysqlSource(
            home / "depot", cluster.etcd.url, upstream, source_id="depot", mode="all"
        )
        stack.callback(source.stop)
        source.start()
        console = ConsoleProcess(home, cluster.etcd.url)
        stack.callback(console.stop)
        console.start()
        trade = Trade(client, upstream)
        trade.go_on(seconds)
        browser = stack.enter_context(Chromium(home / "chromium"))
        for size in SIZES:
            trade.go_on(_TICK_S)
            _take(browser, console, size, folder / f"{size.name}.png")
        assert cluster.mariadb is not None
        cluster.mariadb.run("DROP TABLE shop.orders")
        client.execute_ddl("ALTER TABLE shop.orders ADD COLUMN paid DATETIME")
        words = "waits for a decision"
        browser.until(f"document.body?.innerText.includes('{words}')", _SEEN_S)
        _take(browser, console, DESKTOP, folder / "decision.png")
        _take(browser, console, PHONE, folder / "decision-phone.png")


def main() -> int:
    parser = argparse.ArgumentParser(prog="tests.kit.console_scene", description=__doc__)
    parser.add_argument("folder", type=Path, help="where the pictures go")
    parser.add_argument("--seconds", type=float, default=300.0, help="how long it is written to")
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="penstock-console-") as home:
        _scene(Path(home), arguments.folder, arguments.seconds)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
