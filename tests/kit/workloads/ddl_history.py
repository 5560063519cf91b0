"""Random histories of DDL over every kind of statement, from a seed; mostly about what is there."""

import random
from collections.abc import Sequence
from typing import TypeVar

from penstock.ddl import Catalog
from penstock.schema.model import MysqlType, TableInfo

T = TypeVar("T")

_COLUMNS = ("a", "b", "c", "D", "e`e", "füß")
_NAMES = ("t", "u", "W", "v w", "x.t", "x.u", "y.t", "y.`z-z`")
_PLAIN = (
    "INT", "BIGINT UNSIGNED NOT NULL", "TINYINT(1) DEFAULT 1", "DECIMAL(8,3) DEFAULT 1.5",
    "VARCHAR(20)", "VARCHAR(20) CHARACTER SET latin1 NOT NULL DEFAULT 'q'", "TEXT", "BLOB",
    "DATETIME(3) DEFAULT '2020-01-01'", "TIMESTAMP NOT NULL DEFAULT CURRENT_TIMESTAMP",
    "ENUM('p','q') DEFAULT 'q'", "BIT(5) NOT NULL DEFAULT b'11'", "YEAR", "INT UNIQUE",
    "INT PRIMARY KEY",
)  # fmt: skip
_TYPES = (
    *_PLAIN, "SMALLINT ZEROFILL", "MEDIUMINT", "FLOAT", "DOUBLE(10,2)", "CHAR(7) NOT NULL",
    "VARCHAR(9) COLLATE utf8mb4_bin", "MEDIUMTEXT CHARACTER SET utf8", "VARBINARY(12)",
    "BINARY(3)", "DATE", "TIME(2)", "SET('x','y,')", "INT COMMENT 'it''s'", "INT CHECK (1 = 1)",
    "GEOMETRY", "POINT NOT NULL",
)  # fmt: skip
_CHARSETS = ("latin1", "utf8", "utf8mb4", "utf8mb4 COLLATE utf8mb4_general_ci")
_LARGE = (MysqlType.TINY_BLOB, MysqlType.BLOB, MysqlType.MEDIUM_BLOB, MysqlType.LONG_BLOB)


def quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


class RandomDdl:
    """Makes up one statement after the other from what a catalog holds.

    A `plain` one leaves out what has no tables, and what only some servers have.
    """

    def __init__(self, seed: int, catalog: Catalog, *, plain: bool = False) -> None:
        self._random = random.Random(seed)
        self._catalog = catalog
        self._is_plain = plain

    def statement(self) -> str:
        """Return a statement; the planner may refuse it, a server must not."""
        if self._is_plain:
            databases = [*self._databases()[1:3], "DROP DATABASE IF EXISTS x"]
            return self._pick([self._alter(), self._alter(), self._on_table(), self._create(),
                               self._pick(databases)])  # fmt: skip
        kinds = [self._alter] * 12 + [self._on_table] * 4 + [self._elsewhere] * 3
        kinds += [self._partitions] * 4 + [self._create] * 3
        return self._pick(kinds)()

    def _pick(self, values: Sequence[T]) -> T:
        return self._random.choice(values)

    def _often(self, known: Sequence[str], others: Sequence[str]) -> str:
        return self._pick(known if known and self._random.random() < 0.85 else others)

    def _found(self, kind: str = "TABLE") -> list[tuple[str, TableInfo]]:
        return [
            (f"{quoted(schema)}.{quoted(table.name)}", table)
            for schema, table in self._catalog.tables()
            if table.kind == kind and not table.name.startswith("part")
        ]

    def _name(self, kind: str = "TABLE") -> str:
        return self._often([name for name, _ in self._found(kind)], self._fresh_names())

    def _fresh_names(self) -> list[str]:
        return [".".join(quoted(p.strip("`")) for p in n.split(".")) for n in _NAMES]

    def _fresh(self) -> str:
        return self._pick(self._fresh_names())

    def _type(self) -> str:
        return self._pick(_PLAIN if self._is_plain else _TYPES)

    def _column(self, table: TableInfo) -> str:
        return quoted(self._often([c.name for c in table.columns], _COLUMNS))

    def _column_to_change(self, table: TableInfo) -> str:
        """Return one that no generated column computes with, which may not take every type."""
        computed = " ".join(c.generated_expr for c in table.columns)
        known = [c.name for c in table.columns if quoted(c.name) not in computed]
        return quoted(self._often(known, _COLUMNS))

    def _key(self, table: TableInfo, *, primary: bool = False) -> str:
        known = [c for c in table.columns if not (primary and c.is_generated)]
        chosen = [c for c in known if self._random.random() < 0.4] or known[:1]
        self._random.shuffle(chosen := list(chosen))
        parts = [quoted(c.name) + "(3)" * (c.tp in _LARGE) for c in chosen]
        return f"({', '.join(parts)})"

    def _create(self) -> str:
        columns = self._random.sample(_COLUMNS, self._random.randint(1, 5))
        body = ", ".join(f"{quoted(c)} {self._type()}" for c in columns)
        if not self._is_plain and self._random.random() < 0.3:
            body += f", n INT, g INT AS (n + 1) {self._pick(['STORED', 'VIRTUAL'])}"
        options = self._pick(["", f" CHARSET {self._pick(_CHARSETS)}", " COMMENT 'c''c'"])
        if self._random.random() < 0.2:
            return f"CREATE OR REPLACE TABLE {self._name()} ({body}){options}"
        absent = self._pick(["", "IF NOT EXISTS "])
        return f"CREATE TABLE {absent}{self._fresh()} ({body}){options}"

    def _operation(self, table: TableInfo) -> str:
        a, b = self._column(table), quoted(self._pick(_COLUMNS))
        changed = self._column_to_change(table)
        place = self._pick(["", "", " FIRST", f" AFTER {self._column(table)}"])
        index = quoted(self._often([i.name for i in table.indexes], _COLUMNS))
        choices = [
            f"ADD {b} {self._type()}{place}",
            f"ADD ({b} {self._type()}, g2 INT)",
            f"ADD COLUMN IF NOT EXISTS {b} {self._type()}",
            f"DROP {a}", f"DROP COLUMN IF EXISTS {b}",
            f"MODIFY {changed} {self._type()}{place}",
            f"CHANGE {changed} {b} {self._type()}{place}",
            f"RENAME COLUMN {a} TO {b}", f"RENAME COLUMN {a} TO {self._column(table)}",
            f"ADD INDEX {self._key(table)}", f"ADD UNIQUE {b} {self._key(table)}",
            f"ADD PRIMARY KEY {self._key(table, primary=True)}", "DROP PRIMARY KEY",
            f"DROP INDEX {index}", f"RENAME INDEX {index} TO {b}",
            f"ALTER {a} SET DEFAULT 1", f"ALTER {a} DROP DEFAULT",
            "COMMENT 'it''s'", f"CONVERT TO CHARACTER SET {self._pick(_CHARSETS)}",
            f"DEFAULT CHARSET {self._pick(_CHARSETS)}", "ENGINE = InnoDB", "FORCE",
            "ADD CHECK (1 = 1)", "ALGORITHM = COPY", f"ADD SPATIAL INDEX ({a})",
        ]  # fmt: skip
        return self._pick(choices[:-3] if self._is_plain else choices)

    def _alter(self) -> str:
        found = self._found()
        if not found:
            return self._create()
        name, table = self._pick(found)
        if not self._is_plain and self._random.random() < 0.05:
            numbers = [c.name for c in table.columns if c.tp is MysqlType.LONG]
            column = quoted(self._pick(numbers)) if numbers else "1"
            kind = self._pick(["STORED", "VIRTUAL"])
            return f"ALTER TABLE {name} ADD g3 BIGINT AS ({column} * 2) {kind}"
        if self._random.random() < 0.05:
            return f"ALTER TABLE {name} RENAME TO {self._fresh()}"
        operations = [self._operation(table) for _ in range(self._random.randint(1, 3))]
        return f"ALTER TABLE {name} {', '.join(operations)}"

    def _on_table(self) -> str:
        t, u = self._name(), self._name()
        columns = self._key(dict(self._found()).get(t) or TableInfo(id=0, name="")) or "(a)"
        return self._pick([
            f"CREATE TABLE {self._fresh()} LIKE {u}", f"TRUNCATE {t}", f"DROP TABLE {t}",
            f"DROP TABLE IF EXISTS {t}, {self._fresh()}", f"RENAME TABLE {t} TO {self._fresh()}",
            f"RENAME TABLE {t} TO d.tmp, {u} TO {t}, d.tmp TO {u}",
            f"RENAME TABLE {t} TO {self._fresh()}, {u} TO {self._fresh()}",
            f"CREATE INDEX {quoted(self._pick(_COLUMNS))} ON {t} {columns}",
            f"CREATE UNIQUE INDEX IF NOT EXISTS {quoted(self._pick(_COLUMNS))} ON {t} {columns}",
            f"DROP INDEX {quoted(self._pick(_COLUMNS))} ON {t}",
        ])  # fmt: skip

    def _elsewhere(self) -> str:
        view, sequence = self._name("VIEW"), self._name("SEQUENCE")
        reads = self._pick([*(name for name, _ in self._found()), "(SELECT 1 AS one) AS s"])
        return self._pick([
            f"CREATE VIEW {self._fresh()} AS SELECT 1 AS one",
            f"CREATE OR REPLACE VIEW {view} AS SELECT * FROM {reads}", f"DROP VIEW {view}",
            f"ALTER VIEW {view} AS SELECT 2 AS two", f"RENAME TABLE {view} TO {self._fresh()}",
            f"CREATE SEQUENCE {self._fresh()} START WITH 3 MAXVALUE 99 CYCLE",
            f"CREATE OR REPLACE SEQUENCE {sequence} CACHE 5", f"DROP SEQUENCE {sequence}",
            f"ALTER SEQUENCE {sequence} RESTART 4", f"DROP SEQUENCE IF EXISTS {sequence}, d.nope",
            *self._databases(),
        ])  # fmt: skip

    def _databases(self) -> list[str]:
        charset = self._pick(_CHARSETS)
        return [
            "CREATE DATABASE y", f"CREATE DATABASE IF NOT EXISTS x CHARSET {charset}",
            f"ALTER DATABASE d CHARSET {charset}", "DROP DATABASE IF EXISTS y",
            f"ALTER DATABASE x CHARSET {charset}", "DROP DATABASE y",
        ]  # fmt: skip

    def _partitions(self) -> str:
        """Return something about d.part1 or d.part2, of which a server refuses other things."""
        name = self._pick(["part1", "part2"])
        table = self._catalog.table("d", name)
        if table is None:
            by = (
                "RANGE (id) (PARTITION p0 VALUES LESS THAN (9), PARTITION p1 VALUES LESS THAN (99))"
            )
            body = f"(id INT PRIMARY KEY, v INT) PARTITION BY {by}"
            return f"CREATE TABLE d.{name} {body}"
        one = self._pick(["p0", "p1", "P2", "p7"])
        alone = [f"TRUNCATE PARTITION {one}", f"DROP PARTITION {one}", "ANALYZE PARTITION ALL",
                 "ADD w INT", "ADD INDEX iv (v)"]  # fmt: skip
        added = "ADD PARTITION (PARTITION p2 VALUES LESS THAN (999))"
        other = f"CREATE TABLE d.part3 LIKE d.{name}; ALTER TABLE d.part3 REMOVE PARTITIONING"
        steps = [
            f"ALTER TABLE d.{name} {self._pick(alone)}", f"ALTER TABLE d.{name} {added}",
            f"ALTER TABLE d.{name} CONVERT PARTITION {one} TO TABLE d.part3; DROP TABLE d.part3",
            f"{other}; ALTER TABLE d.{name} CONVERT TABLE d.part3 TO PARTITION p2"
            " VALUES LESS THAN (999)",
            f"ALTER TABLE d.{name} REORGANIZE PARTITION p0, p1 INTO"
            " (PARTITION p0 VALUES LESS THAN (5), PARTITION p1 VALUES LESS THAN (99))",
            f"ALTER TABLE d.{name} {added}; ALTER TABLE d.{name} DROP PARTITION p2",
            f"{other};"
            f" ALTER TABLE d.{name} EXCHANGE PARTITION p1 WITH TABLE d.part3; DROP TABLE d.part3",
            f"ALTER TABLE d.{name} PARTITION BY HASH (id) PARTITIONS 2;"
            f" ALTER TABLE d.{name} ADD PARTITION PARTITIONS 2;"
            f" ALTER TABLE d.{name} COALESCE PARTITION 1; DROP TABLE d.{name}",
            f"TRUNCATE d.{name}", f"DROP TABLE d.{name}",
        ]  # fmt: skip
        return self._pick(steps)
