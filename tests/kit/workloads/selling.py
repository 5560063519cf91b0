"""Sellers on a server: several sessions at once, tables with and without keys, DDL in between."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pymysql

from deploy.local.sql_server import SqlServer
from tests.kit.servers.binlog_server import LOST_LOCKS

TABLES = ("shop.sale", "shop.visit")
_BEGIN = (
    "CREATE DATABASE shop",
    "CREATE TABLE shop.sale (id BIGINT PRIMARY KEY, item INT, amount INT,"
    " code VARCHAR(20) COLLATE utf8mb4_bin UNIQUE)",
    "CREATE TABLE shop.visit (who INT, page VARCHAR(10))",
)
_DDL = (
    "ALTER TABLE shop.visit ADD COLUMN stars INT DEFAULT 3",
    "ALTER TABLE shop.sale ADD COLUMN note VARCHAR(20)",
    "ALTER TABLE shop.visit DROP COLUMN stars",
    "CREATE INDEX of_item ON shop.sale (item)",
    "ALTER TABLE shop.sale DROP COLUMN note",
    "DROP INDEX of_item ON shop.sale",
)
_KEYS_EACH = 1_000_000


class Seller(threading.Thread):
    """One session: sells, takes back, counts visits; the tables' rows tell visits apart by number.

    Rows of `shop.visit` are often the same, so that a change that is lost or repeated shows.
    """

    def __init__(self, server: SqlServer, number: int, seed: int, over: threading.Event) -> None:
        super().__init__(name=f"seller-{number}")
        self.failure: BaseException | None = None
        self.transactions = 0
        self._server = server
        self._random = random.Random(f"{seed} {number}")
        self._over = over
        self._first = number * _KEYS_EACH
        self._sold = 0
        self._ddl = number == 0

    def run(self) -> None:
        """Sell until it is over."""
        try:
            with self._server.connect(autocommit=False) as connection:
                with connection.cursor() as cursor:
                    cursor.execute("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED")
                while not self._over.wait(self._random.random() / 50):
                    self._round(connection)
        except BaseException as error:
            self.failure = error

    def _round(self, connection: pymysql.connections.Connection[Any]) -> None:
        with connection.cursor() as cursor:
            try:
                for _ in range(self._random.randint(1, 4)):
                    cursor.execute(self._statement())
                connection.commit()
                self.transactions += 1
                if self._ddl and self.transactions % 40 == 0:
                    cursor.execute(_DDL[self.transactions // 40 % len(_DDL) - 1])
            except pymysql.err.OperationalError as error:
                if error.args[0] not in LOST_LOCKS:
                    raise
                connection.rollback()

    def _statement(self) -> str:
        rng = self._random
        some = self._first + rng.randint(0, self._sold)
        page = f"page {rng.randrange(3)}"
        match rng.randrange(6):
            case 0 | 1:
                self._sold += 1
                number = self._first + self._sold
                return (
                    "INSERT INTO shop.sale (id, item, amount, code)"
                    f" VALUES ({number}, {rng.randrange(9)}, 1, 'c{number}')"
                )
            case 2:
                return f"UPDATE shop.sale SET amount = amount + 1, code = NULL WHERE id = {some}"
            case 3:
                return (
                    f"DELETE FROM shop.visit WHERE page = '{page}' LIMIT 1"
                    if rng.random() < 0.5
                    else f"DELETE FROM shop.sale WHERE id = {some}"
                )
            case 4:
                return f"UPDATE shop.visit SET who = who + 1 WHERE page = '{page}' LIMIT 2"
            case _:
                return f"INSERT INTO shop.visit (who, page) VALUES (1, '{page}'), (1, '{page}')"


@contextmanager
def selling(server: SqlServer, sellers: int, seed: int) -> Iterator[list[Seller]]:
    """Create the tables and let sellers sell; all they did is committed at the end."""
    server.run(*_BEGIN)
    over = threading.Event()
    threads = [Seller(server, number, seed, over) for number in range(sellers)]
    for thread in threads:
        thread.start()
    try:
        yield threads
    finally:
        over.set()
        for thread in threads:
            thread.join()
    failures = [thread.failure for thread in threads if thread.failure is not None]
    assert not failures, failures
