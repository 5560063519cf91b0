"""What an override of each kind of DDL leaves out downstream, and what it leaves as it is."""

import json
from dataclasses import replace

import pytest

from drainer.differences import REPLACE, SKIP, TRACK, Override, skip_means
from drainer.schema.drift import NONE, Drift
from drainer.schema.tracker import SchemaTracker, Tracked
from drainer.task.sql.rows import apply_key
from penstock.errors import NeedsOperator
from penstock.schema.model import DdlJob, TableInfo
from tests.unit.penstock.ddl_session import DdlSession

BEGIN = (
    "CREATE TABLE t (id INT PRIMARY KEY, a INT NOT NULL, b VARCHAR(9), UNIQUE KEY by_a (a))",
    "CREATE TABLE u (id INT PRIMARY KEY, c INT)",
)


class Site:
    """An upstream with the tables t and u, and what a Drainer tracks of it."""

    def __init__(self, *more: str) -> None:
        self._session = DdlSession()
        self.tracker = SchemaTracker()
        self._track(None, None, self._session.history)
        for sql in (*BEGIN, *more):
            self.ddl(sql)

    def ddl(self, sql: str, verb: str | None = None, instead: str | None = None) -> list[Tracked]:
        return self._track(verb, instead, self._session.run(sql))

    def _track(self, verb: str | None, sql: str | None, jobs: list[DdlJob]) -> list[Tracked]:
        made = []
        for job in jobs:
            ts = 10 * job.schema_version
            override = verb and Override(commit_ts=ts, verb=verb, sql=sql)
            made.append(self.tracker.track(replace(job, finished_ts=ts), override or None))
        return made

    def table(self, name: str) -> TableInfo:
        schema, _, table = name.rpartition(".")
        return self._session.table(table, schema or "d")

    def drift(self, name: str) -> Drift:
        return self.tracker.drift(self.table(name).id)


@pytest.mark.parametrize(
    ("sql", "table", "meaning"),
    [
        ("CREATE TABLE v (id INT PRIMARY KEY)", "v", "the rows of d.v are skipped"),
        ("CREATE TABLE v LIKE t", "v", "the rows of d.v are skipped"),
        ("RENAME TABLE t TO v", "v", "the rows of d.v are skipped and counted, and d.t stays"),
        ("ALTER TABLE t RENAME TO v", "v", "the rows of d.v are skipped"),
        ("ALTER TABLE t DROP PRIMARY KEY, ADD COLUMN k INT NOT NULL, ADD PRIMARY KEY (k)", "t",
         "the values of column k of d.t are skipped"),
    ],
)  # fmt: skip
def test_a_table_that_is_not_there_downstream_is_left_out_with_its_ddl(
    sql: str, table: str, meaning: str
) -> None:
    site = Site()
    (skipped,) = site.ddl(sql, SKIP)
    assert skipped.run is None
    assert meaning in skip_means(skipped.change)
    assert site.drift(table).absent_ts
    for later in ("ADD COLUMN x INT", "ADD INDEX by_x (x)", "RENAME TO w"):
        (tracked,) = site.ddl(f"ALTER TABLE {table} {later}")
        assert (tracked.run, bool(site.tracker.drifts)) == (None, True)
    (truncated,) = site.ddl("TRUNCATE TABLE w")
    assert (truncated.run, bool(site.drift("w").absent_ts)) == (None, True)
    (dropped,) = site.ddl("DROP TABLE w")
    assert (dropped.run, site.tracker.drifts) == (None, {})
    (made,) = site.ddl("CREATE TABLE w (id INT PRIMARY KEY)")
    assert made.run == made.change


def test_two_tables_whose_swap_was_skipped_are_both_left_out() -> None:
    site = Site()
    site.ddl("RENAME TABLE t TO x, u TO t, x TO u", SKIP)
    assert site.drift("t").absent_ts
    assert site.drift("u").absent_ts


def test_a_swap_in_whose_place_something_else_runs_mixes_no_rows() -> None:
    site = Site()
    site.ddl("RENAME TABLE t TO x, u TO t, x TO u", REPLACE, "ALTER TABLE t COMMENT 'x'")
    assert site.drift("t").absent_ts
    assert site.drift("u").absent_ts


def test_a_database_that_is_not_there_takes_its_tables_along_until_it_is_dropped() -> None:
    site = Site()
    site.ddl("CREATE DATABASE e", SKIP)
    (made,) = site.ddl("CREATE TABLE e.v (id INT PRIMARY KEY)")
    assert (made.run, bool(site.drift("e.v").absent_ts)) == (None, True)
    (altered,) = site.ddl("ALTER DATABASE e CHARACTER SET latin1")
    assert altered.run is None
    (dropped,) = site.ddl("DROP DATABASE e")
    assert (dropped.run, site.tracker.drifts, site.tracker.absent_schemas) == (None, {}, {})
    (again,) = site.ddl("CREATE DATABASE e")
    assert again.run is not None


def test_a_column_that_is_not_there_is_neither_written_nor_part_of_later_ddl() -> None:
    site = Site()
    site.ddl("ALTER TABLE t ADD COLUMN x INT AFTER id, CHANGE b bb VARCHAR(9)", SKIP)
    table, drift = site.table("t"), site.drift("t")
    assert drift.lacking(table) == ["x", "bb"]
    written = [c.name for c in drift.masked(table).columns if c.state]
    assert written == ["id", "a"]
    assert [c.name for c in drift.masked(table).columns] == ["id", "x", "a", "bb"]
    (tracked,) = site.ddl("ALTER TABLE t ADD COLUMN y INT")
    assert tracked.run is not None
    ((_, before, after),) = tracked.run.altered
    assert [(c.name, c.offset) for c in before.columns] == [("id", 0), ("a", 1)]
    assert [(c.name, c.offset) for c in after.columns] == [("id", 0), ("a", 1), ("y", 2)]
    site.ddl("ALTER TABLE t DROP COLUMN x, DROP COLUMN bb", TRACK)
    assert site.drift("t") == NONE


def test_a_column_that_keeps_its_definition_still_gets_its_values() -> None:
    site = Site()
    (tracked,) = site.ddl("ALTER TABLE t MODIFY b VARCHAR(99), MODIFY a INT NULL", SKIP)
    assert "a number or a time may be rounded" in skip_means(tracked.change)
    table, drift = site.table("t"), site.drift("t")
    assert (drift.lacking(table), drift.converted(table)) == ([], ["b"])
    assert all(c.state for c in drift.masked(table).columns)
    site.ddl("ALTER TABLE t MODIFY b VARCHAR(50)")
    assert site.drift("t") == NONE


def test_rows_are_identified_by_no_key_that_is_missing_downstream() -> None:
    site = Site("CREATE TABLE v (id INT NOT NULL, n INT)")
    site.ddl("ALTER TABLE v ADD PRIMARY KEY (id)", SKIP)
    table, drift = site.table("v"), site.drift("v")
    assert apply_key(table) is not None
    assert apply_key(drift.masked(table)) is None
    assert drift.stripped(table).primary_key is None
    site.ddl("ALTER TABLE v DROP PRIMARY KEY", TRACK)
    assert site.drift("v") == NONE


def test_a_unique_index_that_stays_downstream_is_known_to_the_sink() -> None:
    site = Site()
    site.ddl("ALTER TABLE t DROP INDEX by_a", SKIP)
    table, drift = site.table("t"), site.drift("t")
    (index,) = drift.masked(table).indexes
    assert (index.name, index.unique, [p.name for p in index.columns]) == ("by_a", True, ["a"])
    site.ddl("ALTER TABLE t DROP COLUMN a", TRACK)
    assert site.drift("t") == NONE


@pytest.mark.parametrize(
    "sql",
    [
        "DROP TABLE t",
        "TRUNCATE TABLE t",
        "DROP DATABASE d",
        "ALTER TABLE t DROP COLUMN b",
        "ALTER TABLE t COMMENT 'x'",
        "ALTER TABLE t ALTER COLUMN b SET DEFAULT 'x'",
        "ALTER DATABASE d CHARACTER SET latin1",
    ],
)
def test_what_a_skipped_ddl_takes_away_stays_and_no_row_is_left_out(sql: str) -> None:
    site = Site()
    (tracked,) = site.ddl(sql, SKIP)
    assert (tracked.run, site.tracker.drifts) == (None, {})
    assert skip_means(tracked.change)


def test_a_ddl_about_a_table_that_is_there_and_one_that_is_not_asks_for_another_statement() -> None:
    site = Site()
    site.ddl("CREATE TABLE v (id INT PRIMARY KEY)", SKIP)
    before = site.tracker.state()
    with pytest.raises(NeedsOperator, match=r"is also about d\.w"):
        site.ddl("RENAME TABLE v TO w, t TO v")
    assert site.tracker.state() == before
    site = Site()
    site.ddl("CREATE TABLE v (id INT PRIMARY KEY)", SKIP)
    (tracked,) = site.ddl("RENAME TABLE v TO w, t TO v", REPLACE, "RENAME TABLE t TO v")
    assert tracked.run is not None
    assert site.drift("v") == NONE
    assert site.drift("w").absent_ts


def test_an_override_that_is_taken_back_leaves_what_another_one_left_out() -> None:
    site = Site()
    for name in ("x", "y"):
        site.ddl(f"ALTER TABLE t ADD COLUMN {name} INT", SKIP)
    table = site.table("t")
    first, second = sorted(site.drift("t").overrides)
    assert [found.name for _, found in site.tracker.take_back(first)] == ["t"]
    assert site.drift("t").lacking(table) == ["y"]
    site.tracker.take_back(second)
    assert site.tracker.drifts == {}


def test_a_deviation_comes_back_from_json() -> None:
    site = Site()
    site.ddl("ALTER TABLE t DROP INDEX by_a, ADD COLUMN x INT, ADD INDEX by_b (b)", SKIP)
    site.ddl("ALTER TABLE t MODIFY b VARCHAR(20)", SKIP)
    drift = site.drift("t")
    assert drift.kept
    assert Drift.from_json(json.loads(json.dumps(drift.to_json()))) == drift
