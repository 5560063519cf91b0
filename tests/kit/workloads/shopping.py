"""A random history on a server: transactions over two tables, DDL in between."""

from __future__ import annotations

import random
from collections.abc import Iterator

from deploy.local.sql_server import SqlServer

TABLES = ("shop.a", "shop.b")


class History:
    """Runs statements; `many` transactions at a time, each with some rows."""

    def __init__(self, server: SqlServer, seed: int) -> None:
        self._server = server
        self._random = random.Random(seed)
        self._next = 0
        self._extra = 0
        self._rows: dict[str, list[int]] = {table: [] for table in TABLES}

    def begin(self) -> None:
        """Create the tables; the second one has no key."""
        self._server.run(
            "CREATE DATABASE IF NOT EXISTS shop",
            "CREATE TABLE shop.a (id INT PRIMARY KEY, v VARCHAR(20), n BIGINT)",
            "CREATE TABLE shop.b (id INT, v VARCHAR(20), n BIGINT)",
        )

    def many(self, count: int) -> None:
        """Commit that many transactions on one connection."""
        self._server.run(*(sql for _ in range(count) for sql in self._transaction()))

    def ddl(self) -> None:
        """Change the schema: columns come and go, a table is emptied or made anew."""
        kind = self._random.randrange(4)
        table = self._random.choice(TABLES)
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
            yield self._statement(self._random.choice(TABLES))
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
