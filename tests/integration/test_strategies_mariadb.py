"""Histories over several tables end alike in every strategy, on a real MariaDB.

Foreign keys: the upstream is a MariaDB that enforces them, cascades included; the stream has
every row that a transaction changed, those that a cascade changed too, as TiDB's does.
"""

from collections.abc import Sequence
from contextlib import closing
from typing import Any

import pymysql
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.datum.rows.row_codec import RowCodec
from penstock.filters import FilterConfig, RouteRule, Rules
from penstock.filters.routes import routed_table
from penstock.filters.settings import ExtractSchema, ExtractSource, ExtractTable
from penstock.wire.binlog import MutationType
from tests.kit.fakes.strategies import STRATEGIES, RowChange, Strategies
from tests.kit.servers.fix_mariadb import MariadbServer
from tests.kit.workloads.changes import (
    CASES,
    Case,
    Upstream,
    examples,
    histories,
    padded,
    play,
    table_of,
)

pytestmark = pytest.mark.mariadb
INSERT, UPDATE, DELETE = MutationType

# --- rows of several sources in one table ---------------------------------------------------------

ROUTE = RouteRule(
    schema_pattern="s_*",
    table_pattern="t_*",
    target_schema="all",
    target_table="t",
    extract_table=ExtractTable(table_regexp="t_(.*)", target_column="c_table"),
    extract_schema=ExtractSchema(schema_regexp="(.)_(.*)", target_column="c_schema"),
    extract_source=ExtractSource(source_regexp="(.*)", target_column="c_source"),
)
SLOW = ("case-insensitive key", "no key")
PLACES = (("s_1", "t_a"), ("s_1", "t_it's"), ("s_2", "t_a"))
EXTRACTED = (("a", "s1", "north"), ("it's", "s1", "north"), ("a", "s2", "north"))
MERGED = [
    pytest.param(case, id=case.name, marks=[pytest.mark.slow] * (case.name in SLOW))
    for case in CASES
    if case.name in SLOW or case.name == "integer key and unique values"
]


def wide(case: Case) -> str:
    """The table downstream: with the columns that name the source, and keys that hold them."""
    added = [f"c_{of} VARCHAR(20) COLLATE utf8mb4_bin NOT NULL" for of in ("table", "schema")]
    columns = f"{case.columns}, {', '.join(added)}, c_source VARCHAR(20) NOT NULL"
    keys = table_of(case.sql)
    changes = []
    for index in (*keys.indexes, *([keys.primary_key] if keys.pk_is_handle else [])):
        if index is None or not index.unique:
            continue
        names = ", ".join(f"`{part.name}`" for part in index.columns)
        what = "PRIMARY KEY" if index.primary else f"INDEX `{index.name}`"
        made = "PRIMARY KEY" if index.primary else f"UNIQUE INDEX `{index.name}`"
        changes += [f"DROP {what}", f"ADD {made} ({names}, c_table, c_schema)"]
    return f"CREATE TABLE t ({columns}); ALTER TABLE t {', '.join(changes) or 'FORCE'}"


def routed() -> Rules:
    return Rules(FilterConfig(routes=(ROUTE,)), source_id="north")


@pytest.mark.thorough
@pytest.mark.parametrize("case", MERGED)
def test_rows_that_name_their_source_keep_apart_in_every_strategy(
    mariadb: MariadbServer, case: Case
) -> None:
    router = routed().router
    constants = [router.extracted(*place) for place in PLACES]
    assert [tuple(text for _, text in each) for each in constants] == list(EXTRACTED)
    tables = [routed_table("all", "t", case.table, each) for each in constants]
    assert len({table.id for table in tables}) == len(PLACES)
    for way in STRATEGIES:
        mariadb.query(f"CREATE DATABASE {way}")
        with closing(mariadb.connect(database=way)) as connection:
            for sql in wide(case).split("; "):
                connection.query(sql)
    with closing(Strategies(mariadb)) as ways, closing(mariadb.connect()) as reader:
        reader.query("SET time_zone = '+00:00'")

        @examples(4)
        @given(batches=st.tuples(*[histories(case, 12)] * len(PLACES)), safe=st.booleans())
        def check(batches: Any, safe: bool) -> None:
            for way in STRATEGIES:
                reader.query(f"DELETE FROM {way}.t")
            upstreams = [Upstream(case.table) for _ in PLACES]
            for number in range(max(map(len, batches))):
                changes: list[RowChange] = []
                for table, upstream, steps in zip(tables, upstreams, batches, strict=True):
                    mine = play(case, upstream, steps[number]) if number < len(steps) else []
                    changes += [RowChange(table, i, *change) for i, change in enumerate(mine)]
                ways.apply(sorted(changes, key=lambda each: each.transaction), safe=safe)
                wanted = sorted(
                    (
                        _plain((*padded(case.table, row), *texts))
                        for upstream, texts in zip(upstreams, EXTRACTED, strict=True)
                        for _, row in upstream.rows
                    ),
                    key=repr,
                )
                for way in STRATEGIES:
                    assert _content(reader, f"{way}.t") == wanted, way

        check()


def _plain(row: Sequence[Any]) -> tuple[Any, ...]:
    return tuple(str(value) if value is not None else None for value in row)


def _content(connection: Any, table: str) -> list[Any]:
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT * FROM {table}")
        return sorted(map(_plain, cursor.fetchall()), key=repr)


# --- foreign keys ---------------------------------------------------------------------------------

FAMILY = (
    "CREATE TABLE p (id INT PRIMARY KEY, u INT UNIQUE, v INT)",
    "CREATE TABLE c (id INT PRIMARY KEY, p INT, v INT, FOREIGN KEY (p) REFERENCES p (id)"
    " ON DELETE CASCADE ON UPDATE CASCADE)",
    "CREATE TABLE g (id INT PRIMARY KEY, c INT NOT NULL, FOREIGN KEY (c) REFERENCES c (id)"
    " ON DELETE CASCADE)",
    "CREATE TABLE n (id INT PRIMARY KEY, u INT, FOREIGN KEY (u) REFERENCES p (u)"
    " ON DELETE SET NULL ON UPDATE CASCADE)",
)
DOINGS = (
    "INSERT INTO p VALUES ({a}, {b}, {c})",
    "INSERT INTO c VALUES ({a}, {b}, {c})",
    "INSERT INTO g VALUES ({a}, {b})",
    "INSERT INTO n VALUES ({a}, {b})",
    "DELETE FROM p WHERE id = {a}",
    "DELETE FROM c WHERE id = {a}",
    "UPDATE p SET id = {b}, v = {c} WHERE id = {a}",
    "UPDATE p SET u = {b} WHERE id = {a}",
    "UPDATE c SET p = {b}, v = {c} WHERE id = {a}",
    "UPDATE g SET c = {b} WHERE id = {a}",
)
Doing = tuple[int, int, int, int]
Kept = dict[int, tuple[Any, ...]]


class Family:
    """The upstream's tables, whose server enforces foreign keys, and what its stream would have."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        connection.select_db("upstream")
        self.tables = [table_of(sql.replace("FOREIGN KEY", "KEY").split(" REFERENCES")[0] + ")")
                       if "FOREIGN" in sql else table_of(sql) for sql in FAMILY]  # fmt: skip
        self.names = [table.name for table in self.tables]
        self._last = self.rows()

    def rows(self) -> list[Kept]:
        found = []
        with self._connection.cursor() as cursor:
            for name in self.names:
                cursor.execute(f"SELECT * FROM upstream.{name}")
                found.append({row[0]: row for row in cursor.fetchall()})
        return found

    def transaction(self, number: int, doings: Sequence[Doing]) -> list[RowChange]:
        """Do what the keys allow, and return every row that is another now."""
        self._connection.begin()
        for what, a, b, c in doings:
            try:
                self._connection.query(DOINGS[what].format(a=a, b=b, c=c))
            except pymysql.err.IntegrityError:
                continue
        self._connection.commit()
        before, self._last = self._last, self.rows()
        return [
            RowChange(table, number, *change)
            for table, old, new in zip(self.tables, before, self._last, strict=True)
            for change in _changes(RowCodec(table), old, new)
        ]


def _changes(codec: RowCodec, old: Kept, new: Kept) -> list[tuple[MutationType, bytes]]:
    changes = [(DELETE, codec.encode_delete(old[key])) for key in sorted(old.keys() - new.keys())]
    both = [key for key in sorted(old.keys() & new.keys()) if old[key] != new[key]]
    changes += [(UPDATE, codec.encode_update(old[key], new[key])) for key in both]
    added = sorted(new.keys() - old.keys())
    return changes + [(INSERT, codec.encode_insert(new[key])) for key in added]


_small = st.integers(0, 5)
_doings = st.lists(
    st.tuples(st.integers(0, len(DOINGS) - 1), _small, _small, _small), min_size=1, max_size=4
)
_histories = st.lists(st.lists(_doings, min_size=1, max_size=8), min_size=1, max_size=4)
_SEED: list[Doing] = [(0, i, i, 0) for i in range(4)] + [(1, i, i, 0) for i in range(4)]
_SEED += [(2, i, i, 0) for i in range(3)] + [(3, i, i, 0) for i in range(3)]


def hold_foreign_keys(mariadb: MariadbServer, count: int) -> None:
    for schema in ("upstream", *STRATEGIES):
        mariadb.query(f"CREATE DATABASE {schema}")
        with closing(mariadb.connect(database=schema)) as connection:
            for sql in FAMILY:
                connection.query(sql)
    with closing(Strategies(mariadb)) as ways, closing(mariadb.connect()) as connection:

        @examples(count)
        @given(batches=_histories, safe=st.booleans())
        def check(batches: list[list[list[Doing]]], safe: bool) -> None:
            for schema in ("upstream", *STRATEGIES):
                for name in "gncp":
                    connection.query(f"DELETE FROM {schema}.{name}")
            connection.commit()
            family = Family(connection)
            for number, batch in enumerate([[_SEED], *batches]):
                changes = []
                for i, doings in enumerate(batch):
                    changes += family.transaction(i, doings)
                ways.apply(changes, safe=safe and number > 0)
                connection.commit()
                for name in family.names:
                    wanted = _content(connection, f"upstream.{name}")
                    for way in STRATEGIES:
                        assert _content(connection, f"{way}.{name}") == wanted, (way, name)

        check()


def test_what_foreign_keys_cascade_upstream_arrives_once_in_every_strategy(
    mariadb: MariadbServer,
) -> None:
    hold_foreign_keys(mariadb, count=8)


@pytest.mark.slow
def test_long_searches_find_no_foreign_key_that_a_strategy_breaks(mariadb: MariadbServer) -> None:
    hold_foreign_keys(mariadb, count=150)


def test_a_parent_s_delete_takes_no_child_along_that_the_stream_does_not_name(
    mariadb: MariadbServer,
) -> None:
    """As from a server whose binlog leaves cascaded rows out: nothing is guessed."""
    for way in STRATEGIES:
        mariadb.query(f"CREATE DATABASE {way}")
        with closing(mariadb.connect(database=way)) as connection:
            for sql in FAMILY[:2]:
                connection.query(sql)
            connection.query("INSERT INTO p VALUES (1, 1, 1), (2, 2, 2)")
            connection.query("INSERT INTO c VALUES (7, 1, 0), (8, 2, 0)")
    parent = table_of(FAMILY[0])
    codec = RowCodec(parent)
    gone = RowChange(parent, 0, DELETE, codec.encode_delete((1, 1, 1)))
    moved = RowChange(parent, 1, UPDATE, codec.encode_update((2, 2, 2), (2, 3, 9)))
    for safe in (False, True):
        with closing(Strategies(mariadb)) as ways:
            if safe:
                ways.apply([RowChange(parent, 0, INSERT, codec.encode_insert((1, 1, 1)))])
                moved = RowChange(parent, 1, UPDATE, codec.encode_update((2, 3, 9), (2, 4, 9)))
            ways.apply([gone, moved], safe=safe)
        for way in STRATEGIES:
            assert mariadb.query(f"SELECT id FROM {way}.p") == [(2,)]
            assert mariadb.query(f"SELECT id, p FROM {way}.c ORDER BY id") == [(7, 1), (8, 2)]
