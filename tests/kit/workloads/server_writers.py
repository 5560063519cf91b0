"""Writers on a server: sessions side by side, or one random history of transactions and DDL."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pymysql

from penstock.local.sql_server import SqlServer
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
    "ALTER TABLE shop.visit DROP COLUMN stars, FORCE",
    "CREATE INDEX of_item ON shop.sale (item)",
    "ALTER TABLE shop.sale DROP COLUMN note, FORCE",
    "DROP INDEX of_item ON shop.sale",
)
"""In turns; FORCE, since a row keeps room for each column that was dropped at once."""
_KEYS_EACH = 1_000_000


class ServerWriter(threading.Thread):
    """One session: inserts, updates, deletes; each has keys of its own.

    Rows of `shop.visit` are often the same, so that a change that is lost or repeated shows.
    """

    def __init__(self, server: SqlServer, number: int, seed: int, over: threading.Event) -> None:
        super().__init__(name=f"writer-{number}")
        self.failure: BaseException | None = None
        self.transactions = 0
        self._server = server
        self._random = random.Random(f"{seed} {number}")
        self._over = over
        self._first = number * _KEYS_EACH
        self._written = 0
        self._ddl = number == 0

    def run(self) -> None:
        """Write until it is over."""
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
        some = self._first + rng.randint(0, self._written)
        page = f"page {rng.randrange(3)}"
        match rng.randrange(6):
            case 0 | 1:
                self._written += 1
                number = self._first + self._written
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
def writing_on(server: SqlServer, writers: int, seed: int) -> Iterator[list[ServerWriter]]:
    """Create the tables and let writers work; all they did is committed at the end."""
    server.run(*_BEGIN)
    over = threading.Event()
    threads = [ServerWriter(server, number, seed, over) for number in range(writers)]
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


HISTORY_TABLES = ("shop.a", "shop.b")


class ServerHistory:
    """Runs statements; `many` transactions at a time, each with some rows."""

    def __init__(self, server: SqlServer, seed: int) -> None:
        self._server = server
        self._random = random.Random(seed)
        self._next = 0
        self._extra = 0
        self._rows: dict[str, list[int]] = {table: [] for table in HISTORY_TABLES}

    def begin(self) -> None:
        """Create the tables; the second one has no key."""
        self._server.run(
            "CREATE DATABASE IF NOT EXISTS shop",
            "CREATE TABLE shop.a (id INT PRIMARY KEY, v VARCHAR(20), n BIGINT)",
            "CREATE TABLE shop.b (id INT, v VARCHAR(20), n BIGINT)",
        )

    def many(self, count: int) -> None:
        self._server.run(*(sql for _ in range(count) for sql in self._transaction()))

    def ddl(self) -> None:
        """Change the schema: columns come and go, a table is emptied or renamed and back."""
        kind = self._random.randrange(4)
        table = self._random.choice(HISTORY_TABLES)
        if kind == 0:
            self._extra += 1
            self._server.run(f"ALTER TABLE {table} ADD COLUMN x{self._extra} INT")
            self._server.run(f"UPDATE {table} SET x{self._extra} = id WHERE id % 2 = 0")
            self._server.run(f"ALTER TABLE {table} DROP COLUMN x{self._extra}")
        elif kind == 1:
            self._extra += 1
            self._server.run(f"ALTER TABLE {table} ADD COLUMN y{self._extra} VARCHAR(9) FIRST")
        elif kind == 2:
            self._server.run(f"TRUNCATE TABLE {table}")
            self._rows[table].clear()
        else:
            self._server.run(
                f"RENAME TABLE {table} TO shop.tmp", f"RENAME TABLE shop.tmp TO {table}"
            )

    def _transaction(self) -> Iterator[str]:
        yield "BEGIN"
        for _ in range(self._random.randint(1, 4)):
            yield self._statement(self._random.choice(HISTORY_TABLES))
        yield "COMMIT"

    def _statement(self, table: str) -> str:
        rows = self._rows[table]
        kind = self._random.random()
        if kind < 0.5 or not rows:
            self._next += 1
            rows.append(self._next)
            return f"INSERT INTO {table} (id, v, n) VALUES ({self._next}, 'v{self._next}', 0)"
        if kind < 0.85:
            chosen = self._random.choice(rows)
            return f"UPDATE {table} SET n = n + 1, v = CONCAT('u', n) WHERE id = {chosen}"
        return f"DELETE FROM {table} WHERE id = {rows.pop(self._random.randrange(len(rows)))}"
