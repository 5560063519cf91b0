"""Rows that foreign keys change below the binlog: noted and repaired, whatever is killed."""

from __future__ import annotations

import random
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pymysql
import pytest

from penstock.local.sql_server import SqlServer
from pumpclient import PumpClient
from pumpclient.mysql.verify import command as verify
from tests.kit.servers.binlog_server import MARIADB, MYSQL, make_server, running
from tests.kit.servers.fix_replication import Replication
from tests.kit.servers.fix_source import LONG_S, SourceProcess, rows_of
from tests.kit.wait import eventually

pytestmark = [pytest.mark.fault, pytest.mark.thorough, pytest.mark.mariadb]

_IDS = 40
_REFUSED = (1048, 1062, 1205, 1213, 1451, 1452)
"""Statements that a key refuses, and lost locks."""
TABLES = ("shop.a", "shop.b", "shop.c", "shop.d", "shop.t")
FAMILY = (
    "CREATE DATABASE shop",
    "CREATE TABLE shop.a (id INT PRIMARY KEY, k VARCHAR(20) NOT NULL UNIQUE, v INT)",
    "CREATE TABLE shop.b (id INT PRIMARY KEY, a INT, v INT, CONSTRAINT b_a FOREIGN KEY (a)"
    " REFERENCES shop.a (id) ON DELETE CASCADE ON UPDATE CASCADE)",
    "CREATE TABLE shop.c (id INT PRIMARY KEY, b INT, v INT, CONSTRAINT c_b FOREIGN KEY (b)"
    " REFERENCES shop.b (id) ON DELETE SET NULL ON UPDATE CASCADE)",
    "CREATE TABLE shop.d (id INT PRIMARY KEY, k VARCHAR(20), v INT, CONSTRAINT d_k FOREIGN KEY (k)"
    " REFERENCES shop.a (k) ON DELETE CASCADE ON UPDATE CASCADE)",
    "CREATE TABLE shop.t (id INT PRIMARY KEY, p INT, v INT, CONSTRAINT t_p FOREIGN KEY (p)"
    " REFERENCES shop.t (id) ON DELETE CASCADE)",
)


class Writer(threading.Thread):
    """Inserts, deletes and renumbers parents and children at random until `over`."""

    def __init__(self, server: SqlServer, seed: int, over: threading.Event) -> None:
        super().__init__()
        self._server, self._chance, self._over = server, random.Random(seed), over
        self.done = 0
        self.failure: Exception | None = None

    def run(self) -> None:
        try:
            with self._server.connect() as connection, connection.cursor() as cursor:
                while not self._over.is_set():
                    self._transaction(cursor)
                    time.sleep(self._chance.random() / 50)
        except Exception as error:
            self.failure = error

    def work(self, count: int) -> None:
        """Change parents alone, so that no other note hides a missing one."""
        with self._server.connect() as connection, connection.cursor() as cursor:
            for _ in range(count):
                one, other = self._chance.randrange(_IDS), self._chance.randrange(_IDS, 2 * _IDS)
                cursor.execute(self._chance.choice((
                    f"UPDATE shop.a SET id = {other} WHERE id < {one} ORDER BY id DESC LIMIT 1",
                    f"UPDATE shop.a SET k = 'k{other}' WHERE id < {one} ORDER BY id DESC LIMIT 1",
                    f"UPDATE shop.b SET id = {other} WHERE id < {one} ORDER BY id DESC LIMIT 1",
                    f"DELETE FROM shop.b WHERE id < {one} ORDER BY id DESC LIMIT 1",
                    f"DELETE FROM shop.t WHERE id < {one} ORDER BY id DESC LIMIT 1",
                )))  # fmt: skip
                connection.commit()

    def _transaction(self, cursor: Any) -> None:
        checks = self._chance.random() > 0.1
        cursor.execute(f"SET foreign_key_checks = {int(checks)}")
        cursor.execute("BEGIN")
        for _ in range(self._chance.randint(1, 4)):
            with suppress(pymysql.err.IntegrityError, pymysql.err.OperationalError):
                cursor.execute(self._statement())
                self.done += 1
        cursor.execute("COMMIT" if self._chance.random() > 0.1 else "ROLLBACK")

    def _statement(self) -> str:
        one, other, value = (self._chance.randrange(_IDS) for _ in range(3))
        match self._chance.randrange(14):
            case 0:
                return f"INSERT INTO shop.a VALUES ({one}, 'k{one}', {value})"
            case 1:
                return f"INSERT INTO shop.b VALUES ({one}, {other}, {value})"
            case 2:
                return f"INSERT INTO shop.c VALUES ({one}, {other}, {value})"
            case 3:
                return f"INSERT INTO shop.d VALUES ({one}, 'k{other}', {value})"
            case 4:
                return f"INSERT INTO shop.t VALUES ({one}, {other}, {value})"
            case 5:
                return f"INSERT INTO shop.t VALUES ({one}, NULL, {value})"
            case 6:
                return f"DELETE FROM shop.a WHERE id BETWEEN {one} AND {one + 2}"
            case 7:
                return f"UPDATE shop.a SET id = {one}, k = 'k{one}' WHERE id = {other}"
            case 8:
                return f"UPDATE shop.b SET id = {one} WHERE id = {other}"
            case 9:
                return f"DELETE FROM shop.{self._chance.choice('bt')} WHERE id = {one}"
            case 10:
                return f"REPLACE INTO shop.a VALUES ({one}, 'k{one}', {value})"
            case _:
                table = self._chance.choice("abcdt")
                return f"UPDATE shop.{table} SET v = {value} WHERE id BETWEEN {one} AND {one + 5}"


@contextmanager
def writing(server: SqlServer, seed: int) -> Iterator[list[Writer]]:
    over = threading.Event()
    threads = [Writer(server, seed + number, over) for number in range(2)]
    for thread in threads:
        thread.start()
    try:
        yield threads
    finally:
        over.set()
        for thread in threads:
            thread.join()
    assert [thread.failure for thread in threads] == [None, None]


def repairing(source: SourceProcess, server: SqlServer, down: SqlServer) -> list[str]:
    return [
        "--upstream", server.url, "--downstream", down.url, "--source", "db-1", "--repair", "--yes",
        "--source-status", source.address, "--wait-s", "60",
    ]  # fmt: skip


def killed_repairs(arguments: list[str], chance: random.Random, over: threading.Event) -> None:
    while not over.is_set():
        verifying = subprocess.Popen(
            [sys.executable, "-m", verify.__name__, *arguments],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        with suppress(subprocess.TimeoutExpired):
            verifying.wait(chance.choice((1.0, 3.0, 60.0)))
        verifying.kill()
        verifying.wait()


def caught_up(replication: Replication, drainer: Any) -> None:
    with PumpClient.connect(replication.url) as client:
        until_ts = client.session.oracle.get_ts()
    drainer.wait_until(until_ts, LONG_S)


@pytest.mark.slow
@pytest.mark.fault(
    "`penstock source` (at four moments) and `penstock verify --repair` are killed while parents"
    " are deleted and renumbered on a server whose foreign keys cascade",
    "no note is lost, no newer row is overwritten for good; after the last repair, all tables are"
    " equal",
    cases="0 / 28",
)
@pytest.mark.parametrize(
    ("kind", "seed"),
    [
        *((MARIADB, seed) for seed in range(1, 6)),
        *(pytest.param(MYSQL, seed, marks=pytest.mark.mysql) for seed in range(6, 8)),
    ],
)
def test_what_keys_changed_is_equal_downstream_whatever_is_killed(
    kind: str, seed: int, replication: Replication, mariadb: SqlServer, tmp_path: Path
) -> None:
    chance = random.Random(seed)
    replication.add_pump()
    # Otherwise MySQL logs what its keys change.
    options = ("--innodb-native-foreign-keys=ON",) if kind == MYSQL else ()
    with running(make_server(tmp_path / "server", 1, *options, kind=kind)) as server:
        server.run("DROP DATABASE shop")
        server.reset_binlog()
        server.run(*FAMILY)
        drainer = replication.drain_into(mariadb.url)
        source = SourceProcess(tmp_path / "source", replication.url, server, cascades="repair")
        arguments, over = repairing(source, server, mariadb), threading.Event()
        repairs = threading.Thread(target=killed_repairs, args=(arguments, chance, over))
        repairs.start()
        try:
            with writing(server, seed) as writers:
                for point in ("source.before_checkpoint", "source.after_decided"):
                    source.is_killed_at(f"{point}=kill@{chance.randint(2, 5)}")
                source.start()
                for _ in range(2):
                    eventually(lambda: source.status().get("transactions", 0) > 50, LONG_S)
                    time.sleep(2 * chance.random())
                    source.kill()
                    source.start()
                eventually(lambda: source.status().get("transactions", 0) > 50, LONG_S)
            assert sum(each.done for each in writers) > 200
            over.set()
            repairs.join()
            last = Writer(server, seed, over)
            for count in (0, 1, 1, 1, 2, 3):
                last.work(count)
                source.catch_up(server)
                caught_up(replication, drainer)
                assert verify.main(arguments) == 0
                assert source.status()["cascaded"] == {}
                for table in TABLES:
                    assert rows_of(mariadb, table) == rows_of(server, table), table
        finally:
            over.set()
            repairs.join()
            source.stop()
