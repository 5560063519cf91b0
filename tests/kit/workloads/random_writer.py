"""A writer with a memory: random transactions through `PumpClient`, and the state they must leave.

Tables `item` (integer key, one more unique column), `stock` (key of two columns) and `note` (no
key at all, so its rows are a multiset). Transactions insert, change, move and delete rows over all
three, and swap unique values within one transaction. Every row is known to the model, which after
the last commit is what every downstream must hold.
"""

import random
import sqlite3
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from penstock.local.sql_server import SqlProcess
from pumpclient import PumpClient

DDL = [
    "CREATE DATABASE shop",
    "CREATE TABLE shop.item (id BIGINT PRIMARY KEY, code VARCHAR(30) COLLATE utf8mb4_bin UNIQUE,"
    " price DECIMAL(10,2), sold DATETIME(3), note TEXT)",
    "CREATE TABLE shop.stock (place VARCHAR(20) NOT NULL, item INT NOT NULL, amount INT UNSIGNED,"
    " PRIMARY KEY (place, item))",
    "CREATE TABLE shop.note (author VARCHAR(20), text VARCHAR(200), stars INT)",
]
_TEXTS = ("", "plain", "it's", 'a "quote"', "back\\slash", "100 %", "zwölf", "火", "nl\nand\ttab")

Row = dict[str, Any]
State = dict[str, Counter[tuple[Any, ...]]]


class RandomWriter:
    """One single-threaded writer and its model."""

    def __init__(self, client: PumpClient, seed: int = 1) -> None:
        self._client = client
        self._random = random.Random(seed)
        self._next_id = 1
        self.last_ts = 0
        self.items: dict[int, Row] = {}
        self.stock: dict[tuple[str, int], Row] = {}
        self.notes: list[Row] = []

    def create(self) -> int:
        """Create the tables; return the last DDL's commit_ts."""
        for sql in DDL:
            self.last_ts = self._client.execute_ddl(sql)[-1]
        return self.last_ts

    def execute_ddl(self, sql: str) -> int:
        self.last_ts = self._client.execute_ddl(sql)[-1]
        return self.last_ts

    def transact(self, transactions: int, changes_max: int = 8) -> int:
        """Commit that many random transactions; return the last commit_ts."""
        for _ in range(transactions):
            with self._client.begin("shop") as txn:
                for _ in range(self._random.randint(1, changes_max)):
                    self._random.choices(
                        (self._insert, self._change, self._delete, self._swap, self._stock,
                         self._note),
                        (4, 3, 1, 1, 3, 2),
                    )[0](txn)  # fmt: skip
            assert txn.commit_ts is not None
            self.last_ts = txn.commit_ts
        return self.last_ts

    def bulk(self, rows: int, width: int = 20) -> int:
        """Insert that many items in one transaction; return its commit_ts."""
        with self._client.begin("shop") as txn:
            for _ in range(rows):
                self._insert(txn, "x" * width)
        assert txn.commit_ts is not None
        self.last_ts = txn.commit_ts
        return self.last_ts

    def rewrite(self, first: int, rows: int, width: int) -> int:
        """Change the notes of that many items, from the `first` oldest on, in one transaction."""
        with self._client.begin("shop") as txn:
            for key in list(self.items)[first : first + rows]:
                before = self.items[key]
                self.items[key] = {**before, "note": self._random.choice("abc") * width}
                txn.update("item", before, self.items[key])
        assert txn.commit_ts is not None
        self.last_ts = txn.commit_ts
        return self.last_ts

    def shrink(self, items: int) -> None:
        """Delete the newest items until so many are left, in one transaction."""
        with self._client.begin("shop") as txn:
            for key in list(self.items)[items:]:
                txn.delete("item", self.items.pop(key))
        self.last_ts = txn.commit_ts or self.last_ts

    def _insert(self, txn: Any, note: str | None = None) -> None:
        key = self._next_id
        self._next_id += 1
        row: Row = {
            "id": key,
            "code": None if key % 7 == 0 else f"c{key}",
            "price": f"{self._random.randint(-999, 99999) / 100:.2f}",
            "sold": self._random.choice(
                (None, "2026-11-21 03:10:27.250", "1999-12-31 23:59:59.000")
            ),
            "note": self._random.choice(_TEXTS) if note is None else note,
        }
        txn.insert("item", row)
        self.items[key] = row

    def _change(self, txn: Any) -> None:
        if not self.items:
            return
        key = self._random.choice(list(self.items))
        before = self.items.pop(key)
        after: Row = {**before, "note": self._random.choice(_TEXTS), "price": None}
        if self._random.random() < 0.3:  # The row moves to another key.
            after["id"] = self._next_id
            self._next_id += 1
        txn.update("item", before, after)
        self.items[after["id"]] = after

    def _delete(self, txn: Any) -> None:
        if not self.items:
            return
        key = self._random.choice(list(self.items))
        txn.delete("item", self.items.pop(key))

    def _swap(self, txn: Any) -> None:
        if len(self.items) < 2:
            return
        one, two = (self.items[k] for k in self._random.sample(list(self.items), 2))
        free: Row = {**one, "code": None}
        one_after, two_after = {**one, "code": two["code"]}, {**two, "code": one["code"]}
        txn.update("item", one, free)
        txn.update("item", two, two_after)
        txn.update("item", free, one_after)
        self.items[one["id"]], self.items[two["id"]] = one_after, two_after

    def _stock(self, txn: Any) -> None:
        key = (self._random.choice(("north", "South", "ost")), self._random.randint(1, 40))
        after = {
            "place": key[0],
            "item": key[1],
            "amount": self._random.choice((None, 0, 2**32 - 1)),
        }
        before = self.stock.pop(key, None)
        if before is None:
            txn.insert("stock", after)
        elif self._random.random() < 0.3:
            txn.delete("stock", before)
            return
        else:
            txn.update("stock", before, after)
        self.stock[key] = after

    def _note(self, txn: Any) -> None:
        if len(self.notes) > 10 and self._random.random() < 0.5:
            before = self.notes.pop(self._random.randrange(len(self.notes)))
            if self._random.random() < 0.5:
                txn.delete("note", before)
                return
            after = {**before, "stars": self._random.choice((None, 1, 5))}
            txn.update("note", before, after)
        else:
            after = {
                "author": self._random.choice(("ann", "bob", None)),
                "text": self._random.choice(_TEXTS),
                "stars": self._random.randint(1, 3),
            }
            txn.insert("note", after)
        self.notes.append(after)

    def expected(self) -> State:
        """Return what a downstream must hold now, values as text."""
        return {
            "item": Counter(_plain(row.values()) for row in self.items.values()),
            "stock": Counter(_plain(row.values()) for row in self.stock.values()),
            "note": Counter(_plain(row.values()) for row in self.notes),
        }


def _plain(values: Any) -> tuple[Any, ...]:
    return tuple(None if value is None else str(value) for value in values)


def in_sqlite(path: Path) -> State:
    connection = sqlite3.connect(path)
    try:
        return {
            table: Counter(
                _plain(row) for row in connection.execute(f'SELECT * FROM "shop.{table}"')
            )
            for table in ("item", "stock", "note")
        }
    finally:
        connection.close()


def in_mariadb(server: SqlProcess) -> State:
    """Return what a MariaDB, MySQL or TiDB holds, in the model's form."""
    queries = {
        # The driver would drop the zeros of a fraction of a second; text keeps them.
        "item": "SELECT id, code, price, CAST(sold AS CHAR), note FROM shop.item",
        "stock": "SELECT * FROM shop.stock",
        "note": "SELECT * FROM shop.note",
    }
    return {
        table: Counter(_plain(row) for row in server.query(sql)) for table, sql in queries.items()
    }


_ROWS, _WIDTH, _GROUPS = 400, 1_000, 3
"""So many rows of that width are above two partitions of SQL."""
ITEMS_MAX = _GROUPS * _ROWS + 1_000


def write_partitions(writer: RandomWriter, round_number: int) -> None:
    """Change rows enough for partitions now and then, and keep the number of items; an `act`."""
    if round_number % 10 == 5:
        writer.rewrite(round_number // 10 % _GROUPS * _ROWS, _ROWS, _WIDTH)
        writer.shrink(ITEMS_MAX)


@contextmanager
def writing_meanwhile(
    writer: RandomWriter, act: Callable[[RandomWriter, int], None] | None = None
) -> Iterator[None]:
    """Let the writer work in the background, `act` between its rounds; raise what went wrong."""
    over = threading.Event()
    failures: list[BaseException] = []

    def work() -> None:
        try:
            round_number = 0
            while not over.wait(0.02):
                writer.transact(10)
                round_number += 1
                if round_number % 10 == 0:
                    writer.bulk(400)
                if act is not None:
                    act(writer, round_number)
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
    assert not failures, failures
