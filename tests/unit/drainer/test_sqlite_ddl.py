"""SQLite's tables follow the upstream's, rows included."""

import itertools
import sqlite3
import weakref
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from drainer.sinks.mysql.ddl_progress import ensure_repeatable
from drainer.sinks.sqlite.ddl import create_indexes, create_table, plan
from drainer.sinks.sqlite.sink import exact_double
from penstock.ddl import Catalog, plan_ddl
from penstock.errors import Malformed, NeedsOperator
from penstock.schema.model import DdlJob, TableInfo


class Replica:
    """An upstream schema and the SQLite database that follows it."""

    def __init__(self) -> None:
        self.catalog = Catalog()
        self._ids = itertools.count(1)
        self.connection = sqlite3.connect(":memory:", isolation_level=None)
        weakref.finalize(self, self.connection.close)  # Python 3.13 warns of one that is left open.
        self.connection.create_function("exact_double", 1, exact_double)
        self.ddl("CREATE DATABASE s")

    def ddl(self, sql: str) -> list[str]:
        done: list[str] = []
        for job in plan_ddl(sql, "s", self.catalog, lambda: next(self._ids)):
            done += self.follow(job)
        return done

    def follow(self, job: DdlJob) -> list[str]:
        steps = plan(self.catalog.apply(job))
        for name, function in steps.functions.items():
            self.connection.create_function(name, 1, function)
        for statement in steps.statements:
            self.connection.execute(statement)
        return steps.statements

    def rows(self, name: str = "t") -> list[Any]:
        return list(self.connection.execute(f"SELECT * FROM `s.{name}`"))

    def shape(self, name: str, table_name: str) -> Any:
        columns = [
            (c[1], c[2], c[3], c[5])
            for c in self.connection.execute(f"PRAGMA table_info(`{name}`)")
        ]
        indexes = []
        for index in self.connection.execute(f"PRAGMA index_list(`{name}`)").fetchall():
            parts = self.connection.execute(f"PRAGMA index_xinfo(`{index[1]}`)").fetchall()
            indexes.append((index[2], index[3], [(p[0], p[2]) for p in parts if p[5]]))
        return columns, sorted(indexes, key=repr)

    def has_the_shape_of(self, table: TableInfo) -> bool:
        """Compare with the same table made at once."""
        fresh = "`fresh`"
        self.connection.execute(create_table(fresh, table))
        for sql in create_indexes(fresh, table):
            self.connection.execute(sql.replace("penstock.index", "fresh.index"))
        same: bool = self.shape("fresh", "fresh") == self.shape(f"s.{table.name}", table.name)
        self.connection.execute("DROP TABLE fresh")
        return same

    def table(self, name: str = "t") -> TableInfo:
        found = self.catalog.table("s", name)
        assert found is not None
        return found


@pytest.fixture
def replica() -> Iterator[Replica]:
    made = Replica()
    with closing(made.connection):
        yield made


ALTERS = [
    "ADD COLUMN n INT",
    "ADD COLUMN n INT NOT NULL DEFAULT 7",
    "ADD COLUMN n VARCHAR(9) NOT NULL DEFAULT 'it''s' FIRST",
    "ADD COLUMN n DOUBLE NOT NULL DEFAULT 1e300",
    "ADD COLUMN n INT AS (id + 1) VIRTUAL",
    "ADD COLUMN n POINT NOT NULL, ADD SPATIAL INDEX (n)",
    "ADD COLUMN (n INT, m DATETIME(3) NOT NULL)",
    "DROP COLUMN v",
    "DROP COLUMN u",
    "CHANGE COLUMN v w VARCHAR(99)",
    "RENAME COLUMN v TO w",
    "MODIFY COLUMN v VARCHAR(99) NOT NULL",
    "MODIFY COLUMN u BIGINT",
    "MODIFY COLUMN u VARCHAR(20)",
    "MODIFY COLUMN u DECIMAL(10,3)",
    "MODIFY COLUMN id BIGINT UNSIGNED",
    "MODIFY COLUMN d DECIMAL(12,4)",
    "MODIFY COLUMN v VARCHAR(20) AFTER d",
    "ADD INDEX vi (v)",
    "ADD INDEX vi (v(3))",
    "ADD UNIQUE KEY vu (v(3))",
    "ADD UNIQUE KEY vu (v, d)",
    "DROP INDEX u",
    "RENAME INDEX u TO uu",
    "DROP PRIMARY KEY, ADD PRIMARY KEY (u)",
    "DROP PRIMARY KEY",
    "ADD COLUMN n INT, DROP COLUMN v, ADD INDEX ni (n)",
    "COMMENT 'nothing to see'",
]
BASE = "CREATE TABLE t (id INT PRIMARY KEY, u INT NOT NULL UNIQUE, v VARCHAR(20), d DECIMAL(10,2))"


def tried(replica: Replica, sql: str) -> bool:
    """Run a DDL; False when the upstream itself would refuse it."""
    try:
        jobs = plan_ddl(sql, "s", replica.catalog.copy(), itertools.count(10_000).__next__)
    except NeedsOperator:
        return False
    return bool(jobs) and replica.ddl(sql) is not None


@pytest.mark.parametrize("alter", ALTERS)
def test_an_altered_table_is_like_one_made_that_way(replica: Replica, alter: str) -> None:
    replica.ddl(BASE)
    replica.connection.execute(
        "INSERT INTO `s.t` VALUES (1, 10, 'one', '1.50'), (2, 20, 'two', '2.25')"
    )
    if not tried(replica, f"ALTER TABLE t {alter}"):
        pytest.skip("the planner does not know this DDL")
    assert replica.has_the_shape_of(replica.table())
    assert len(replica.rows()) == 2


@settings(max_examples=30, deadline=None)
@given(st.lists(st.sampled_from(ALTERS), max_size=6))
def test_altered_again_and_again_it_still_is(alters: list[str]) -> None:
    replica = Replica()
    with closing(replica.connection):
        replica.ddl(BASE)
        replica.connection.execute("INSERT INTO `s.t` VALUES (1, 10, '11', '1.50')")
        for alter in alters:
            tried(replica, f"ALTER TABLE t {alter}")
        assert replica.has_the_shape_of(replica.table())
        assert len(replica.rows()) == 1


@pytest.mark.parametrize(
    ("old", "value", "new", "converted"),
    [
        ("INT", 5, "DECIMAL(10,2)", "5.00"),
        ("DECIMAL(10,2)", "1.50", "DECIMAL(12,4)", "1.5000"),
        ("DECIMAL(10,2)", "2.50", "INT", 3),
        ("DECIMAL(10,2)", "1.55", "DECIMAL(10,1)", "1.6"),
        ("INT", 5, "VARCHAR(9)", "5"),
        ("VARCHAR(9)", "17", "INT", 17),
        ("VARCHAR(9)", "x", "ENUM('w','x')", "x"),
        ("ENUM('w','x')", "x", "VARCHAR(9)", "x"),
        ("DATE", "2022-04-27", "DATETIME", "2022-04-27 00:00:00"),
        ("DATETIME", "2022-04-27 04:05:07", "DATE", "2022-04-27"),
        ("DATETIME", "2022-04-27 04:05:07", "DATETIME(3)", "2022-04-27 04:05:07.000"),
        ("INT", 5, "DOUBLE", 5.0),
        ("BIGINT UNSIGNED", str(2**63), "DECIMAL(30,0)", str(2**63)),
        ("DECIMAL(30,0)", str(2**63), "BIGINT UNSIGNED", str(2**63)),
        ("VARCHAR(9)", "ab", "VARBINARY(9)", b"ab"),
        ("VARBINARY(9)", b"ab", "VARCHAR(9)", "ab"),
        ("VARBINARY(9)", b"ab", "BINARY(4)", b"ab\0\0"),
        ("INT", None, "VARCHAR(9)", None),
        ("POINT", b"\0\0\0\0\1", "GEOMETRY", b"\0\0\0\0\1"),
        ("GEOMETRY", b"\0\0\0\0\1", "BLOB", b"\0\0\0\0\1"),
    ],
)
def test_values_follow_their_column_s_type(
    replica: Replica, old: str, value: Any, new: str, converted: Any
) -> None:
    replica.ddl(f"CREATE TABLE t (id INT PRIMARY KEY, c {old})")
    replica.connection.execute("INSERT INTO `s.t` VALUES (1, ?)", (value,))
    replica.ddl(f"ALTER TABLE t MODIFY COLUMN c {new}")
    ((_, got),) = replica.rows()
    assert (got, type(got)) == (converted, type(converted))


def test_a_value_that_cannot_follow_is_named_with_its_column(replica: Replica) -> None:
    replica.ddl("CREATE TABLE t (id INT PRIMARY KEY, c VARCHAR(9))")
    replica.connection.execute("INSERT INTO `s.t` VALUES (1, 'x')")
    job = plan_ddl("ALTER TABLE t MODIFY COLUMN c INT", "s", replica.catalog, lambda: 999)[0]
    steps = plan(replica.catalog.apply(job))
    (convert,) = steps.functions.values()
    with pytest.raises(Malformed, match="'c'"):
        convert("x")


def test_a_new_column_reads_as_its_default_in_old_rows(replica: Replica) -> None:
    replica.ddl("CREATE TABLE t (id INT PRIMARY KEY)")
    replica.connection.execute("INSERT INTO `s.t` VALUES (1)")
    replica.ddl("ALTER TABLE t ADD COLUMN a DECIMAL(5,2) NOT NULL DEFAULT 1.5")
    replica.ddl("ALTER TABLE t ADD COLUMN b VARCHAR(9) FIRST")
    replica.ddl("ALTER TABLE t ADD COLUMN c DATE NOT NULL")
    assert replica.rows() == [(None, 1, "1.50", "0000-00-00")]


def test_adding_a_column_at_the_end_copies_no_rows(replica: Replica) -> None:
    replica.ddl("CREATE TABLE t (id INT PRIMARY KEY)")
    (statement,) = replica.ddl("ALTER TABLE t ADD COLUMN v INT NOT NULL DEFAULT 3")
    assert statement == "ALTER TABLE `s.t` ADD COLUMN `v` INTEGER NOT NULL DEFAULT 3"


def test_what_only_mysql_cares_about_changes_nothing(replica: Replica) -> None:
    replica.ddl("CREATE TABLE t (id INT PRIMARY KEY, v VARCHAR(9))")
    assert replica.ddl("ALTER TABLE t MODIFY COLUMN v VARCHAR(99) COMMENT 'x'") == []
    assert replica.ddl("CREATE VIEW w AS SELECT id FROM t") == []
    assert replica.ddl("DROP VIEW w") == []


def test_unique_prefixes_stay_unique_prefixes(replica: Replica) -> None:
    replica.ddl("CREATE TABLE t (a VARCHAR(20), UNIQUE KEY p (a(2)))")
    replica.connection.execute("INSERT INTO `s.t` VALUES ('abc'), (NULL), (NULL)")
    with pytest.raises(sqlite3.IntegrityError):
        replica.connection.execute("INSERT INTO `s.t` VALUES ('abd')")


def test_dropping_a_schema_drops_its_tables(replica: Replica) -> None:
    replica.ddl("CREATE TABLE t (id INT PRIMARY KEY)")
    replica.ddl("CREATE TABLE u (id INT PRIMARY KEY)")
    replica.ddl("DROP DATABASE s")
    assert list(replica.connection.execute("SELECT name FROM sqlite_master")) == []


def with_new_ids(job: DdlJob, *names: str) -> DdlJob:
    """Return the job as a TiDB records it that had to rewrite the values of these columns."""
    assert job.table is not None
    ids = itertools.count(job.table.max_column_id + 1)
    columns = tuple(replace(c, id=next(ids)) if c.name in names else c for c in job.table.columns)
    largest = max(c.id for c in columns)
    return replace(job, table=replace(job.table, columns=columns, max_column_id=largest))


@pytest.mark.parametrize(
    ("sql", "names", "values"),
    [
        ("ALTER TABLE t MODIFY a VARCHAR(9)", ("a",), (1, "7", "x")),
        ("ALTER TABLE t MODIFY COLUMN a BIGINT AFTER b", ("a",), (1, "x", 7)),
        ("ALTER TABLE t CHANGE a c VARCHAR(9)", ("c",), (1, "7", "x")),
        ("ALTER TABLE t CHANGE a b VARCHAR(9), CHANGE b a TEXT", ("a", "b"), (1, "7", "x")),
        ("ALTER TABLE t MODIFY a VARCHAR(9), ADD n INT", ("a",), (1, "7", "x", None)),
        ("ALTER TABLE t DROP a, ADD a INT", (), (1, "x", None)),
        ("ALTER TABLE t MODIFY a VARCHAR(9) STORED BY x", ("a",),
         (1, "7", "x")),
    ],
)  # fmt: skip
def test_a_column_that_was_modified_keeps_its_values_under_a_new_id(
    replica: Replica, sql: str, names: tuple[str, ...], values: tuple[Any, ...]
) -> None:
    replica.ddl("CREATE TABLE t (id INT PRIMARY KEY, a INT, b VARCHAR(9))")
    replica.connection.execute("INSERT INTO `s.t` VALUES (1, 7, 'x')")
    known = sql.partition(" STORED")[0]
    (job,) = plan_ddl(known, "s", replica.catalog, itertools.count(999).__next__)
    replica.follow(replace(with_new_ids(job, *names), query=sql))
    assert replica.rows() == [values]
    assert replica.has_the_shape_of(replica.table())


def test_a_column_that_may_continue_with_another_one_s_values_is_refused(replica: Replica) -> None:
    replica.ddl("CREATE TABLE t (id INT PRIMARY KEY, a INT, b INT)")
    replica.connection.execute("INSERT INTO `s.t` VALUES (1, 7, 8)")
    ids = itertools.count(999)
    modified = "ALTER TABLE t MODIFY a BIGINT, ADD d INT"
    (job,) = plan_ddl(modified, "s", replica.catalog, ids.__next__)
    replica.follow(replace(with_new_ids(job, "a"), query=f"{modified} SOMEHOW"))
    assert replica.rows() == [(1, 7, 8, None)]
    changed = "ALTER TABLE t CHANGE a c INT, ADD e INT"
    (job,) = plan_ddl(changed, "s", replica.catalog, ids.__next__)
    with pytest.raises(NeedsOperator, match="it is not known whether c, e of t goes on"):
        replica.follow(replace(with_new_ids(job, "c"), query=f"{changed} SOMEHOW"))
    assert replica.rows() == [(1, 7, 8, None)]


def test_a_swap_of_column_names_under_new_ids_is_not_run_twice(replica: Replica) -> None:
    replica.ddl("CREATE TABLE t (id INT PRIMARY KEY, a INT, b INT)")
    sql = "ALTER TABLE t CHANGE a b BIGINT, CHANGE b a BIGINT"
    (job,) = plan_ddl(sql, "s", replica.catalog, itertools.count(999).__next__)
    with pytest.raises(NeedsOperator, match="is unknown whether"):
        ensure_repeatable(replica.catalog.apply(with_new_ids(job, "a", "b")))
