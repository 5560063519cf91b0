"""Random but valid histories of row changes, as a database upstream would have let them happen.

`Upstream` is a model of one table: it refuses what a unique index would refuse at that moment,
under the column's collation, and encodes what it accepts. A history is drawn as plain numbers, so
that hypothesis can shrink it.
"""

import itertools
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from functools import lru_cache
from typing import Any

import pyarrow as pa
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from drainer.task.work_unit import Batch, TableRows
from penstock.datum.rows.row_codec import RowCodec
from penstock.ddl import Catalog, plan_ddl
from penstock.schema.model import ColumnInfo, MysqlType, TableInfo
from penstock.wire.binlog import MutationType

Row = tuple[Any, ...]
SCHEMA = "shop"


@dataclass(frozen=True)
class Case:
    """One table and, for each column, the values that rows are made of."""

    name: str
    columns: str
    values: tuple[tuple[Any, ...], ...]

    @property
    def sql(self) -> str:
        return f"CREATE TABLE t ({self.columns})"

    @property
    def table(self) -> TableInfo:
        return table_of(self.sql)

    def __str__(self) -> str:
        return self.name


@lru_cache
def table_of(sql: str) -> TableInfo:
    catalog = catalog_of(f"CREATE DATABASE {SCHEMA}", sql)
    return next(t for _, t in catalog.tables() if not t.is_view)


def catalog_of(*statements: str) -> Catalog:
    catalog = Catalog()
    ids = itertools.count(1)
    for sql in statements:
        for job in plan_ddl(sql, SCHEMA, catalog, lambda: next(ids)):
            catalog.apply(job)
    return catalog


_CI = "VARCHAR(20) CHARACTER SET utf8mb4 COLLATE utf8mb4_general_ci"
_TEXTS = ("a", "A", "a ", "á", "b", "B", "it's", "")
_POINT = "0101000000000000000000f03f0000000000000040"
_SHAPES = (
    # As MySQL keeps them: a point without SRID, the same with one, and a line.
    bytes.fromhex(f"00000000{_POINT}"),
    bytes.fromhex(f"e6100000{_POINT}"),
    bytes.fromhex("00000000010200000002000000" + "00" * 16 + _POINT[-32:]),
)
CASES = [
    Case(
        "integer key and unique values",
        "id BIGINT PRIMARY KEY, u INT UNIQUE, a INT, b INT, v VARCHAR(20) COLLATE utf8mb4_bin,"
        " UNIQUE KEY ab (a, b)",
        ((1, 2, 3, -4, 5), (None, 1, 2, 3), (None, 1, 2), (1, 2, 3), ("x", "it's", None, "\\")),
    ),
    Case(
        "case-insensitive key of two columns",
        f"a {_CI} NOT NULL, b INT NOT NULL, u {_CI}, v DECIMAL(10,2), PRIMARY KEY (a, b),"
        " UNIQUE KEY u (u)",
        (_TEXTS, (1, 2), (None, *_TEXTS), (None, Decimal("1.50"), Decimal("-0.25"))),
    ),
    Case(
        "case-insensitive key",
        f"a {_CI} PRIMARY KEY, v INT, p POINT NOT NULL",
        (_TEXTS, (None, 1, 2, 3), _SHAPES[:2]),
    ),
    Case(
        "no key",
        f"a INT, b {_CI}, c DOUBLE, g GEOMETRY",
        ((None, 1, 2), (None, "a", "A", "a ", "b"), (None, 0.1, 1e-7, -2.5), (None, *_SHAPES)),
    ),
    Case(
        "unique key for a primary key",
        "a INT NOT NULL, b VARBINARY(10) NOT NULL, v INT UNIQUE, UNIQUE KEY k (a, b)",
        ((1, 2), (b"", b"\0\xff", b"'"), (None, 1, 2, 3)),
    ),
    Case(
        "fixed length keys",
        "a CHAR(4) COLLATE utf8mb4_bin, b BINARY(3), v DATETIME(3), PRIMARY KEY (a, b)",
        (("a", "A", "bc"), (b"a\0\0", b"abc"), (None, "2022-04-27 04:05:07.250")),
    ),
    Case(
        "key on a prefix",
        f"a {_CI} NOT NULL, v INT, PRIMARY KEY (a(1))",
        (("ab", "Ac", "bc", "b", "c"), (None, 1, 2)),
    ),
    Case(
        "unique key that may be NULL",
        "a INT, b INT, v INT, UNIQUE KEY ab (a, b)",
        ((None, 1, 2), (None, 1, 2), (None, 1, 2)),
    ),
    Case(
        "numbers that are no numbers elsewhere",
        "id BIGINT UNSIGNED PRIMARY KEY, e ENUM('x','y','z') UNIQUE, s SET('p','q'), f BIT(64)",
        ((0, 1, 2**63, 2**64 - 1), (None, "x", "y", "z"), (None, "", "p,q"), (None, 0, 2**64 - 1)),
    ),
]


@dataclass
class Upstream:
    """The table as the upstream holds it, and every change it went through."""

    table: TableInfo
    rows: list[tuple[int, Row]] = field(default_factory=list)  # A row id, and the row.
    changes: list[tuple[MutationType, bytes]] = field(default_factory=list)
    next_rowid: int = 1

    def __post_init__(self) -> None:
        self.codec = RowCodec(self.table)

    def insert(self, row: Row) -> None:
        """Insert a row unless a unique index refuses it."""
        if self._fits(row, None):
            rowid, self.next_rowid = self.next_rowid, self.next_rowid + 1
            self.rows.append((rowid, row))
            self._note(MutationType.INSERT, self.codec.encode_insert(row, rowid=rowid))

    def update(self, at: int, row: Row) -> None:
        """Change the row at `at` unless nothing changes or a unique index refuses it."""
        rowid, before = self.rows[at]
        if row != before and self._fits(row, at):
            self.rows[at] = (rowid, row)
            self._note(MutationType.UPDATE, self.codec.encode_update(before, row, rowid=rowid))

    def delete(self, at: int) -> None:
        """Delete the row at `at`."""
        rowid, before = self.rows.pop(at)
        self._note(MutationType.DELETE, self.codec.encode_delete(before, rowid=rowid))

    def _note(self, kind: MutationType, data: bytes) -> None:
        self.changes.append((kind, data))

    def _fits(self, row: Row, at: int | None) -> bool:
        others = [r for i, (_, r) in enumerate(self.rows) if i != at]
        wanted = unique_values(self.table, row)
        return not any(wanted & unique_values(self.table, other) for other in others)


def unique_values(table: TableInfo, row: Row) -> set[tuple[Any, ...]]:
    """Return the values that no other row may have, each with the id of its index."""
    found = set()
    indexes = [i for i in table.indexes if i.unique]
    if table.primary_key is not None and table.primary_key not in indexes:
        indexes.append(table.primary_key)
    for index in indexes:
        values = [
            collated(table.columns[part.offset], row[part.offset], part.length)
            for part in index.columns
        ]
        if None not in values:
            found.add((index.id, *values))
    return found


def collated(column: ColumnInfo, value: Any, length: int = -1) -> Any:
    """Return a value that is equal for values the column's collation calls equal."""
    if not isinstance(value, str):
        return value
    value = (value if length == -1 else value[:length]).rstrip(" ")
    if column.collate.endswith("_ci"):
        parts = unicodedata.normalize("NFD", value.lower())
        value = "".join(c for c in parts if not unicodedata.combining(c))
    return value


@dataclass(frozen=True)
class Step:
    """One drawn change; meaningless numbers are taken modulo what there is."""

    op: int
    at: int
    mask: int
    choices: tuple[int, ...]


def histories(
    case: Case, max_size: int, *, min_size: int = 0
) -> st.SearchStrategy[list[list[Step]]]:
    count = len(case.values)
    small = st.integers(0, 7)
    step = st.builds(
        Step, small, small, st.integers(1, (1 << count) - 1), st.tuples(*[small] * count)
    )
    return st.lists(st.lists(step, min_size=min_size, max_size=max_size), min_size=1, max_size=4)


def play(case: Case, upstream: Upstream, steps: Sequence[Step]) -> list[tuple[MutationType, bytes]]:
    """Let the upstream do the steps; return the changes that it let happen."""
    start = len(upstream.changes)
    for step in steps:
        row = tuple(v[c % len(v)] for v, c in zip(case.values, step.choices, strict=True))
        if step.op < 3 or not upstream.rows:
            upstream.insert(row)
            continue
        at = step.at % len(upstream.rows)
        if step.op < 6:
            old = upstream.rows[at][1]
            new = tuple(
                n if step.mask >> i & 1 else o
                for i, (o, n) in enumerate(zip(old, row, strict=True))
            )
            upstream.update(at, new)
        else:
            upstream.delete(at)
    return upstream.changes[start:]


def played(
    case: Case, upstream: Upstream, history: Sequence[Sequence[Step]]
) -> Iterator[list[tuple[MutationType, bytes]]]:
    """Yield the changes that the upstream let happen, batch by batch; none that is empty."""
    return filter(None, (play(case, upstream, steps) for steps in history))


def examples(count: int) -> settings:
    slow = [HealthCheck.too_slow]
    return settings(max_examples=count, deadline=None, suppress_health_check=slow, database=None)


def batch_of(
    table: TableInfo, changes: Sequence[tuple[MutationType, bytes]], *, schema: str, number: int = 1
) -> Batch:
    kinds = bytes(int(kind) for kind, _ in changes)
    rows = pa.array([data for _, data in changes], pa.binary())
    return Batch(number, [TableRows(schema, table, kinds, rows)])


def padded(table: TableInfo, row: Row) -> Row:
    """Return a row as a database keeps it: BINARY(n) with zero bytes up to n."""
    return tuple(
        v.ljust(c.flen, b"\0")
        if isinstance(v, bytes) and c.tp is MysqlType.STRING and c.is_binary
        else v
        for c, v in zip(table.columns, row, strict=True)
    )
