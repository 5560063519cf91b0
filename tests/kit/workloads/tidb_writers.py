"""Sessions that change rows on several TiDB servers at once, whatever happens to those."""

import random
import threading
import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, Self

import pymysql

from penstock.local.sql_server import SqlProcess
from tests.kit.wait import deadline

TRIED_AGAIN = {
    1205: "lock wait",
    1213: "deadlock",
    2003: "no connection",
    2006: "gone",
    2013: "lost",
    8002: "a lock that is no more",
    8022: "commit failed and may be tried again",
    8027: "schema out of date",
    8028: "schema changed",
    9007: "write conflict",
}
"""Errors after which a transaction begins again; when it may be in all the same, that is well too,
because what counts is what the server has."""
WHILE_A_DDL_RUNS = {
    1054: "no such column",
    1062: "duplicate",
    1105: "a row of the columns before",
    1146: "no such table",
    1292: "no value of the column's type to be",
}
_PAUSE_S = 0.005

Transaction = Callable[[random.Random], Sequence[str]]


class TidbWriters:
    """`threads` sessions, in turn on the servers, from the start of a `with` to its end.

    At the end it raises what a session met that is not expected, and `AssertionError` when one of
    them never got through.
    """

    def __init__(
        self,
        servers: Sequence[SqlProcess],
        transaction: Transaction,
        *,
        threads: int = 4,
        seed: int = 1,
    ) -> None:
        """A `transaction` is statements, without BEGIN and COMMIT."""
        self.committed = [0] * threads
        self._transaction = transaction
        self._over = threading.Event()
        self._failures: list[BaseException] = []
        self._threads = [
            threading.Thread(
                target=self._run,
                args=(n, servers[n % len(servers)], random.Random(seed * 1000 + n)),
                name=f"writer-{n}",
            )
            for n in range(threads)
        ]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()
        if error is None:
            if self._failures:
                raise self._failures[0]
            assert all(self.committed), f"a session never got through: {self.committed}"

    def wait_for(self, more: int, within_s: float = 60.0) -> None:
        """Return once each session has committed so many more transactions."""
        wanted = [count + more for count in self.committed]
        deadline_s = deadline(within_s)
        while any(count < enough for count, enough in zip(self.committed, wanted, strict=True)):
            assert not self._failures, self._failures
            assert time.monotonic() < deadline_s, f"{self.committed} of {wanted}"
            time.sleep(0.02)

    def _run(self, number: int, server: SqlProcess, rng: random.Random) -> None:
        connection: Any = None
        while not self._over.wait(_PAUSE_S):
            try:
                connection = connection or server.connect(autocommit=False, read_timeout=60)
                with connection.cursor() as cursor:
                    # Both kinds: locks taken as rows are changed, and at the commit only.
                    cursor.execute(f"BEGIN {rng.choice(('PESSIMISTIC', 'OPTIMISTIC'))}")
                    for statement in self._transaction(rng):
                        cursor.execute(statement)
                    cursor.execute("ROLLBACK" if rng.random() < 0.05 else "COMMIT")
                self.committed[number] += 1
            except pymysql.MySQLError as met:
                connection = self._after(met, connection)
            except BaseException as met:
                self._failures.append(met)
                return
        if connection is not None:
            connection.close()

    def _after(self, met: pymysql.MySQLError, connection: Any) -> Any:
        """Return the connection to continue with, None for a new one; note what is not expected."""
        number = met.args[0] if met.args else 0
        if number not in TRIED_AGAIN and number not in WHILE_A_DDL_RUNS and number != 0:
            self._failures.append(met)
            self._over.set()
        try:
            connection.rollback()
        except (pymysql.MySQLError, AttributeError):
            time.sleep(0.1)
            return None
        return connection


def changes(table: str, keys: int = 200) -> Transaction:
    """Return transactions on a table with `id` as its key and columns `n` and `v`."""

    def transaction(rng: random.Random) -> Sequence[str]:
        statements = []
        for _ in range(rng.randint(1, 4)):
            key, n = rng.randrange(keys), rng.randrange(1000)
            statements.append(
                rng.choice(
                    (
                        f"INSERT INTO {table} (id, n, v) VALUES ({key}, {n}, 'new {n}')"
                        " ON DUPLICATE KEY UPDATE n = VALUES(n), v = VALUES(v)",
                        f"REPLACE INTO {table} (id, n, v) VALUES ({key}, {n}, NULL)",
                        f"UPDATE {table} SET n = {n}, v = CONCAT('set ', id)"
                        f" WHERE id BETWEEN {key} AND {key + 5}",
                        f"UPDATE {table} SET v = 'näher' WHERE id = {key}",
                        f"DELETE FROM {table} WHERE id = {key}",
                    )
                )
            )
        return statements

    return transaction


def changes_without_key(table: str) -> Transaction:
    """Return transactions on a table without any key, with columns `n` and `v`."""

    def transaction(rng: random.Random) -> Sequence[str]:
        n = rng.randrange(40)
        return [
            rng.choice(
                (
                    f"INSERT INTO {table} (n, v) VALUES ({n}, 'a'), ({n}, 'a'), ({n}, NULL)",
                    f"UPDATE {table} SET v = 'b' WHERE n = {n} LIMIT 2",
                    f"DELETE FROM {table} WHERE n = {n} LIMIT 1",
                )
            )
        ]

    return transaction


def either(*transactions: Transaction) -> Transaction:
    """Return transactions of several kinds, in no order."""
    return lambda rng: rng.choice(transactions)(rng)
