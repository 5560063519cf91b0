"""Command: `python -m tests.kit.console_scene docs/console` takes the pictures of docs/console.md.

It starts two MariaDB servers, etcd, three Pumps, a Drainer and a source, writes to them for a few
minutes (`--seconds`), and takes pictures of the console: while the source loads, while all is well,
while a Pump, the downstream and etcd are away, of a table's last changes, and of a DDL that has
stopped the Drainer.
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
from tests.kit.servers.chromium import DESKTOP, PHONE, Chromium, Size
from tests.kit.servers.console import ConsoleProcess

TOKEN = "only-for-these-pictures"

_WAVE_S = 40.0
_TICK_S = 0.5
_SEEN_S = 180.0
_LOAD_SEEN_S = 12.0
_LOAD_BYTES_PER_S = 250_000
_OLD = {"archive": 120_000, "returns": 60_000, "suppliers": 900}
"""The rows of tables that the source loads first."""
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

    def change(self) -> None:
        """Write a few rows of each kind."""
        rows = [{"id": next(self._ids), "what": what} for what in ("a bolt " * 20, "a nut", None)]
        with self._client.begin("shop") as txn:
            for row in rows:
                txn.insert("orders", row)
        with self._client.begin("shop") as txn:
            txn.update("orders", rows[1], {"what": "two nuts"})
            txn.delete("orders", rows[2])


class Pictures:
    """A browser, and the folder for its pictures."""

    def __init__(self, browser: Chromium, console: ConsoleProcess, folder: Path) -> None:
        self._browser, self._console, self._folder = browser, console, folder

    def log_in(self) -> None:
        self._browser.open(f"{self._console.url}login")
        self._browser.ask(f"document.querySelector('#token').value = {TOKEN!r}")
        self._browser.click("form button")
        self.see("Actions")

    def see(self, words: str) -> None:
        self._browser.until(f"document.body?.innerText.includes({words!r})", _SEEN_S)

    def take(self, name: str, *, size: Size = DESKTOP, words: str = "live", at: str = "") -> None:
        """Take a picture of the page once it shows the words."""
        self._browser.show(size)
        self._browser.open(at or self._console.url)
        self.see(words)
        path = self._folder / f"{name}.png"
        path.write_bytes(self._browser.picture())
        sys.stdout.write(f"{path}\n")


def _failures(cluster: Cluster, trade: Trade, pictures: Pictures) -> None:
    """Let one part after the other fail, and come back."""
    assert cluster.mariadb is not None
    pump = cluster.pumps["pump-2"]
    pump.kill()
    pictures.take("pump-dead", words="The merge of drainer-1 has been blocked")
    pump.start()
    pictures.see("All is well")
    cluster.mariadb.stop()
    trade.go_on(_TICK_S)
    pictures.take("downstream-refuses", words="takes no changes")
    cluster.mariadb.start()
    pictures.see("All is well")
    cluster.etcd.stop()
    pictures.take("etcd-away", words="etcd has not answered this console for 1")
    cluster.etcd.start()
    pictures.see("All is well")
    trade.go_on(_TICK_S)


def _scene(home: Path, folder: Path, seconds: float) -> None:
    use_java(home / "java")
    upstream = MariadbServer(home / "upstream", options=mariadb_binlog_options())
    settings = home / "drainer.toml"
    settings.write_text(_LEFT_OUT)
    token = home / "token"
    token.write_text(TOKEN)
    with ExitStack() as stack:
        upstream.install()
        stack.callback(upstream.stop)
        upstream.start()
        upstream.run(
            "CREATE DATABASE depot",
            "CREATE TABLE depot.stock (id BIGINT PRIMARY KEY, what TEXT)",
            *(
                f"CREATE TABLE depot.{name} (id BIGINT PRIMARY KEY, what TEXT)"
                f" SELECT seq AS id, 'a crate of old bolts' AS what FROM depot.seq_1_to_{rows}"
                for name, rows in _OLD.items()
            ),
        )
        cluster = Cluster(home, sink="mysql")
        cluster.drainer.command += ["--config", str(settings)]
        stack.enter_context(cluster)
        client = stack.enter_context(PumpClient.connect(cluster.etcd.url))
        source = MysqlSource(
            home / "depot", cluster.etcd.url, upstream, source_id="depot", mode="all",
            load_rate_bytes_per_s=_LOAD_BYTES_PER_S,
        )  # fmt: skip
        stack.callback(source.stop)
        source.start()
        console = ConsoleProcess(home, cluster.etcd.url, "--token-file", str(token))
        stack.callback(console.stop)
        console.start()
        trade = Trade(client, upstream)
        browser = stack.enter_context(Chromium(home / "chromium"))
        pictures = Pictures(browser, console, folder)
        trade.go_on(_LOAD_SEEN_S)
        pictures.take("loading", words="loads its tables")
        pictures.see("All is well")
        trade.go_on(seconds)
        for size in (DESKTOP, PHONE):
            trade.go_on(_TICK_S)
            pictures.take(size.name, size=size)
        _failures(cluster, trade, pictures)
        pictures.log_in()
        trade.change()
        pictures.take(
            "changes", words="update", at=f"{console.url}changes?table=shop.orders&since=1+minute"
        )
        assert cluster.mariadb is not None
        cluster.mariadb.run("DROP TABLE shop.orders")
        client.execute_ddl("ALTER TABLE shop.orders ADD COLUMN paid DATETIME")
        pictures.take("decision", words="waits for a decision")


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
