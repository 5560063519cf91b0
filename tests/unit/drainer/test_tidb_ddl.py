"""A TiDB's stream: rows of versions around a DDL, and DDL of which not all runs downstream."""

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from drainer.ddl.follower import DdlFollower, FollowedDdl
from drainer.differences import DDLS, OVERRIDE, SKIP, UPSTREAM_ONLY, Counts, Override, Skipped
from drainer.intake.merger import Merged
from drainer.planner import DdlStep, Planner
from drainer.schema.rules import TIDB, StreamPosition
from drainer.schema.snapshot import SnapshotOrigin, pack, unpack
from drainer.schema.tracker import Gone, SchemaTracker
from drainer.sinks.checkpoint import Checkpoint
from drainer.task.selection import Selection
from penstock.datum.rows.row_codec import RowCodec
from penstock.errors import NeedsOperator
from penstock.filters import FilterConfig, Rules
from penstock.schema.model import DdlJob, DdlType, TableInfo
from penstock.schema.tidb_json import job_to_json
from penstock.wire.binlog import MutationType, PrewriteValue, TableMutation, fake_binlog
from penstock.wire.codec import encode_binlog, encode_prewrite_value
from tests.kit.tidb.tidb_history import (
    TidbDdl,
    TidbHistory,
    failed,
    of_type,
    with_new_ids,
    with_partition_ids,
)
from tests.kit.tidb.tidb_shop import TidbShop, committed

Row = Sequence[object]


def inserted(ts: int, version: int, table: TableInfo, *rows: Row) -> bytes:
    """Return a transaction's binlog that inserts rows, encoded with a table of any version."""
    codec = RowCodec(table)
    mutation = TableMutation(
        table_id=table.id,
        inserted_rows=tuple(codec.encode_insert(row) for row in rows),
        sequence=(MutationType.INSERT,) * len(rows),
    )
    value = encode_prewrite_value(PrewriteValue(schema_version=version, mutations=(mutation,)))
    return committed(ts, value)


class Shop(TidbShop):
    def insert(self, table: TableInfo, *rows: Row, version: int = 0) -> None:
        """Insert rows under a version, by default the one of now."""
        ts = self.history.now()
        binlog = inserted(ts, version or self.history.version, table, *rows)
        self.binlogs.append((ts, binlog))

    def follow(self, **more: Any) -> Checkpoint:
        ts = self.history.now()
        self.binlogs.append((ts, encode_binlog(fake_binlog(ts))))
        return super().follow(**more)


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    return Shop(tmp_path)


# --- rows around a DDL --------------------------------------------------------------------------


def test_rows_of_versions_before_between_and_behind_ddls_keep_their_values(shop: Shop) -> None:
    shop.ddl("CREATE TABLE t (id INT PRIMARY KEY, a INT)")
    first, version = shop.table(), shop.history.version
    shop.insert(first, (1, 10))
    # A job under way has versions without a binlog: rows of a table that is not public yet.
    shop.insert(first, (2, 20), version=version + 2)
    shop.ddl("ALTER TABLE t ADD b INT DEFAULT 7")
    second = shop.table()
    shop.insert(second, (3, 30, 31))
    # The version before the DDL is still alive: its rows lack the column, or have it already.
    shop.insert(first, (4, 40), version=version + 3)
    shop.insert(second, (5, 50, 7), version=version + 3)
    shop.ddl("ALTER TABLE t DROP a")
    shop.insert(second, (6, 60, 61), version=shop.history.version - 1)
    shop.insert(shop.table(), (7, 71))
    shop.insert(shop.table(), (8, 81), version=shop.history.version + 9)
    assert shop.follow().schema_version == shop.history.version
    assert shop.rows("t", "id, b") == [
        (1, 7), (2, 7), (3, 31), (4, 7), (5, 7), (6, 61), (7, 71), (8, 81),
    ]  # fmt: skip


def test_a_column_on_its_way_out_is_announced_once_and_dropped_once(shop: Shop) -> None:
    shop.ddl("CREATE TABLE t (id INT PRIMARY KEY, a INT NOT NULL DEFAULT 5, b INT)")
    before = shop.table()
    shop.insert(before, (1, 10, 11))
    dropped = shop.history.run("ALTER TABLE t DROP a")
    shop.binlogs.append(
        (dropped.commit_ts - 30, dropped.binlog(state=1, commit_ts=dropped.commit_ts - 30))
    )
    # From here on rows have no value of the column, which is still there downstream.
    version = shop.history.version - 1
    shop.binlogs.append(
        (dropped.commit_ts - 20, inserted(dropped.commit_ts - 20, version, shop.table(), (2, 21)))
    )
    shop.binlogs.append((dropped.commit_ts, dropped.binlog(state=0)))
    shop.insert(shop.table(), (3, 31))
    shop.follow()
    assert shop.rows("t") == [(1, 11), (2, 21), (3, 31)]


def test_a_modified_column_continues_with_its_values_under_its_new_id(shop: Shop) -> None:
    shop.ddl("CREATE TABLE t (id INT PRIMARY KEY, a INT, b INT)")
    before = shop.table()
    shop.insert(before, (1, 10, 11), (2, None, 21))
    shop.ddl("ALTER TABLE t MODIFY a VARCHAR(20)", change=with_new_ids("a"))
    shop.insert(shop.table(), (3, "thirty", 31))
    # While the values are rewritten, rows have both columns; the old one counts before the DDL.
    both = replace(
        shop.table(), columns=(*shop.table().columns, replace(before.columns[1], offset=3))
    )
    shop.insert(both, (4, "40", 41, 40), version=shop.history.version - 1)
    shop.ddl(
        "ALTER TABLE t CHANGE b c BIGINT, ADD INDEX (a)", change=with_new_ids("c"),
        multi_schema_info={"sub_jobs": [{"type": 12}, {"type": 7}]},
    )  # fmt: skip
    shop.insert(shop.table(), (5, "fifty", 51))
    shop.follow()
    assert shop.rows("t") == [
        (1, "10", 11), (2, None, 21), (3, "thirty", 31), (4, "40", 41), (5, "fifty", 51),
    ]  # fmt: skip


@pytest.mark.fault(
    "a Drainer is three DDLs behind, started again at each binlog; killed",
    "every row has its values",
    cases="2",
)
def test_a_drainer_that_is_three_ddls_behind_continues_from_its_version_not_from_a_time(
    shop: Shop,
) -> None:
    shop.ddl("CREATE TABLE t (id INT PRIMARY KEY)")
    shop.insert(shop.table(), (1,))
    passed = shop.follow()
    known = len(shop.binlogs)
    for name in "abc":
        # Each job finishes after the binlog of the next one is committed.
        shop.ddl(f"ALTER TABLE t ADD {name} INT DEFAULT {len(shop.binlogs)}")
        shop.history.all[-1].fields["binlog"]["FinishedTS"] += 1_000
        shop.insert(shop.table(), (len(shop.binlogs), *range(len(shop.table().columns) - 1)))
    for end in range(known + 1, len(shop.binlogs) + 1):
        at = TidbShop.follow(shop, up_to=end)
        assert at.commit_ts == shop.binlogs[end - 1][0]
        assert at.schema_version >= passed.schema_version
        passed = at
    assert shop.rows("t") == [(1, 4, 6, 8), (5, 0, 6, 8), (7, 0, 1, 8), (9, 0, 1, 2)]


# --- DDL of which not all runs ------------------------------------------------------------------


class Stream:
    """A follower of a TiDB's stream, and what it was asked for."""

    def __init__(self, history: TidbHistory, followed: int, **settings: Any) -> None:
        jobs = [ddl.job for ddl in history.all]
        self.tracker = SchemaTracker.from_history(jobs[:followed], 1 << 62, rules=TIDB)
        self.fetched: list[int] = []
        self._jobs = {job.id: job for job in jobs}
        selection = Selection(Rules(FilterConfig()), self.tracker)
        asked = {"overrides": {}, "route": selection.route, **settings}
        self._follower = DdlFollower(self.tracker, self._fetch, **asked)

    async def _fetch(self, step: DdlStep) -> DdlJob:
        self.fetched.append(step.job_id)
        return self._jobs[step.job_id]

    def follow(self, ddl: TidbDdl, *, state: int = 5) -> FollowedDdl:
        planner = Planner(lambda i, v: ("", TableInfo(id=i, name="")), rows_max=9, bytes_max=9999)
        planner.offer(Merged([ddl.commit_ts], [ddl.binlog(state=state)], 0))
        step = planner.next_step()
        assert isinstance(step, DdlStep)
        return asyncio.run(self._follower.follow(step))

    def query(self, ddl: TidbDdl, *, state: int = 5) -> str:
        followed = self.follow(ddl, state=state)
        assert followed.run is not None
        assert not followed.skipped
        return followed.run.job.query


@pytest.fixture
def history() -> TidbHistory:
    made = TidbHistory()
    made.run("CREATE DATABASE Shop")
    made.run("CREATE TABLE t (id INT PRIMARY KEY, a INT)")
    return made


def test_what_runs_is_the_text_of_the_binlog_in_the_database_as_it_is_written(
    history: TidbHistory,
) -> None:
    sent = "CREATE TABLE u (id INT /*T![auto_rand] AUTO_RANDOM(5) */ PRIMARY KEY)"
    ddl = history.run("CREATE TABLE u (id INT PRIMARY KEY)", sent=sent)
    stream = Stream(history, 2)
    followed = stream.follow(ddl)
    assert followed.run is not None
    query = f"{sent} DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin"
    assert (followed.run.job.query, followed.run.job.schema_name) == (query, "Shop")
    assert followed.ts == ddl.job.finished_ts > ddl.commit_ts


@pytest.mark.parametrize(
    ("sql", "wanted"),
    [
        ("CREATE DATABASE d2", "CREATE DATABASE d2 CHARACTER SET utf8mb4 COLLATE utf8mb4_bin"),
        ("CREATE DATABASE d2 CHARACTER SET latin1",
         "CREATE DATABASE d2 CHARACTER SET latin1 COLLATE latin1_bin"),
        ("CREATE TABLE u (a VARCHAR(9) CHARACTER SET latin1, b TEXT)",
         "CREATE TABLE u (a VARCHAR(9) CHARACTER SET latin1 COLLATE latin1_bin, b TEXT)"
         " DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin"),
        ("CREATE TABLE u (a TEXT) CHARSET=latin1",
         "CREATE TABLE u (a TEXT) CHARSET=latin1 COLLATE latin1_bin"),
        ("ALTER TABLE t ADD b TEXT CHARACTER SET ascii, ADD c TEXT COLLATE utf8mb4_general_ci",
         "ALTER TABLE t ADD b TEXT CHARACTER SET ascii COLLATE ascii_bin,"
         " ADD c TEXT COLLATE utf8mb4_general_ci"),
        ("ALTER TABLE t CONVERT TO CHARACTER SET latin1",
         "ALTER TABLE t CONVERT TO CHARACTER SET latin1 COLLATE latin1_bin"),
        ("CREATE TABLE u (a INT) /*!50100 PARTITION BY HASH (a) PARTITIONS 2 */ /*T! POLICY=p */",
         "CREATE TABLE u (a INT) DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin"
         " /*!50100 PARTITION BY HASH (a) PARTITIONS 2 */ /*T! POLICY=p */"),
        ("CREATE TABLE u LIKE t", "CREATE TABLE u LIKE t"),
        ("CREATE VIEW v AS SELECT 1 AS one", "CREATE VIEW v AS SELECT 1 AS one"),
    ],
)  # fmt: skip
def test_collations_that_a_tidb_chose_are_not_left_to_the_downstream(
    history: TidbHistory, sql: str, wanted: str
) -> None:
    ddl = history.run(sql)
    assert Stream(history, 2).query(ddl) == wanted


@pytest.mark.parametrize(
    ("sql", "wanted"),
    [
        ("ALTER TABLE T ADD b INT", "ALTER TABLE `Shop`.`t` ADD b INT"),
        ("ALTER TABLE sHOP.T ADD b INT", "ALTER TABLE `Shop`.`t` ADD b INT"),
        ("CREATE TABLE U LIKE T", "CREATE TABLE `Shop`.`U` LIKE `Shop`.`t`"),
        ("RENAME TABLE T TO Tt", "RENAME TABLE `Shop`.`t` TO `Shop`.`Tt`"),
        ("CREATE INDEX k ON T (a)", "CREATE INDEX k ON `Shop`.`t` (a)"),
        ("TRUNCATE TABLE T", "TRUNCATE TABLE `Shop`.`t`"),
        ("ALTER TABLE t ADD b INT", "ALTER TABLE t ADD b INT"),
    ],
)
def test_a_table_is_named_in_the_letter_case_in_which_it_was_created(
    history: TidbHistory, sql: str, wanted: str
) -> None:
    ddl = history.run(sql)
    assert Stream(history, 2).query(ddl) == wanted


def test_a_text_that_cannot_be_read_runs_as_it_is_with_a_word_in_the_log(
    history: TidbHistory, caplog: pytest.LogCaptureFixture
) -> None:
    ddl = history.run("ALTER TABLE t ADD b TEXT", sent="ALTER TABLE t ADD b TEXT SOMEHOW")
    with caplog.at_level(logging.WARNING):
        assert Stream(history, 2).query(ddl) == "ALTER TABLE t ADD b TEXT SOMEHOW"
    assert "collations that it does not name are the downstream's choice" in caplog.text


def test_a_ddl_that_is_not_over_yet_is_left_until_it_comes_again_without_its_job(
    history: TidbHistory,
) -> None:
    ddl = history.run("ALTER TABLE t DROP a")
    stream = Stream(history, 2)
    first = stream.follow(ddl, state=1)
    assert (first.run, first.skipped, stream.fetched) == (None, {}, [])
    assert stream.query(ddl, state=0) == "ALTER TABLE t DROP a"


@pytest.mark.fault("a DDL is rolled back or cancelled", "nothing runs", cases="2")
@pytest.mark.parametrize("state", [3, 5])
def test_a_failed_ddl_does_nothing_and_is_not_counted(history: TidbHistory, state: int) -> None:
    ddl = history.run("CREATE UNIQUE INDEX i ON t (a)", change=failed(state))
    stream = Stream(history, 2)
    before = stream.tracker.state()
    followed = stream.follow(ddl, state=0)
    assert (followed.run, followed.skipped) == (None, Counts())
    assert stream.tracker.state() == before
    # Its version counts: a checkpoint may be at it.
    assert stream.tracker.version == ddl.job.schema_version
    again = begun([each.job for each in history.all], 0, ddl.job.schema_version)
    assert (again.state(), again.version) == (before, ddl.job.schema_version)


@pytest.mark.parametrize("number", [27, 28, 30, 31, *range(49, 60), 68, 69, 70])
def test_what_only_a_tidb_has_is_counted_and_does_not_run(
    history: TidbHistory, number: int
) -> None:
    ddl = history.run("ALTER TABLE t COMMENT 'x'", change=of_type(number, has_table=True))
    stream = Stream(history, 2)
    followed = stream.follow(ddl)
    assert followed.run is None
    assert followed.skipped == {Skipped(DDLS, UPSTREAM_ONLY, "Shop"): 1}
    assert stream.tracker.version == ddl.job.schema_version


def test_tables_that_one_statement_drops_are_dropped_one_by_one(history: TidbHistory) -> None:
    history.run("CREATE TABLE u (a INT)")
    history.run("CREATE VIEW v AS SELECT 1 AS one")
    both = "DROP TABLE IF EXISTS t, u"
    drops = [
        history.run("DROP TABLE t", sent=both), history.run("DROP TABLE u", sent=both),
        history.run("DROP VIEW v", sent="DROP VIEW v, w"),
    ]  # fmt: skip
    stream = Stream(history, 4)
    assert [stream.query(ddl, state=0) for ddl in drops] == [
        "DROP TABLE IF EXISTS `Shop`.`t`", "DROP TABLE IF EXISTS `Shop`.`u`",
        "DROP VIEW `Shop`.`v`",
    ]  # fmt: skip


def test_a_table_that_moves_to_another_database_moves_from_where_it_was(
    history: TidbHistory,
) -> None:
    history.run("CREATE DATABASE Store")
    moved = history.run("RENAME TABLE t TO Store.u", sent="RENAME TABLE t TO Store.u")
    assert moved.fields["schema_name"] == "store"
    stream = Stream(history, 3)
    assert stream.query(moved) == "RENAME TABLE `Shop`.`t` TO `Store`.`u`"
    assert stream.tracker.catalog.table("Store", "u") is not None


def test_tables_that_move_together_are_found_by_the_ids_of_their_databases(
    history: TidbHistory,
) -> None:
    store = history.run("CREATE DATABASE Store")
    history.run("CREATE TABLE u (a INT)")
    assert store.job.schema is not None
    ids = {name: cast(Any, history.catalog.schema(name)).id for name in ("Shop", "Store")}
    moved = history.run(
        "RENAME TABLE t TO Store.t2, u TO Shop.u2",
        raw_args=[[ids["Shop"], ids["Shop"]], [ids["Store"], ids["Shop"]], [], []],
    )
    assert moved.job.type == DdlType.RENAME_TABLES
    stream = Stream(history, 4)
    assert stream.query(moved) == (
        "RENAME TABLE `Shop`.`t` TO `Store`.`t2`, `Shop`.`u` TO `Shop`.`u2`"
    )
    assert {f"{s}.{t.name}" for s, t in stream.tracker.catalog.tables()} == {"Store.t2", "Shop.u2"}


def test_tables_that_swap_their_names_are_in_the_job_as_often_as_they_were_renamed(
    history: TidbHistory,
) -> None:
    history.run("CREATE TABLE u (b INT)")
    ids = {name: history.table(name).id for name in "tu"}

    def as_tidb(job: DdlJob) -> DdlJob:
        found = dict((table.id, (schema, table)) for schema, table in job.tables)
        schema, table = found[ids["t"]]
        first = schema, table.renamed("tmp")
        return replace(job, tables=(first, found[ids["u"]], found[ids["t"]]))

    sql = "RENAME TABLE t TO tmp, u TO t, tmp TO u"
    home = cast(Any, history.catalog.schema("Shop")).id
    swapped = history.run(sql, raw_args=[[home] * 3, [home] * 3])
    swapped.fields["binlog"]["MultipleTableInfos"] = job_to_json(as_tidb(swapped.job))["binlog"][
        "MultipleTableInfos"
    ]
    assert len(swapped.job.tables) == 3
    stream = Stream(history, 3)
    assert stream.query(swapped) == sql
    names = {t.id: t.name for _, t in stream.tracker.catalog.tables("Shop")}
    assert names == {ids["t"]: "u", ids["u"]: "t"}


def test_tables_and_ddl_of_the_system_s_database_are_known_and_stay_where_they_are(
    history: TidbHistory,
) -> None:
    made = history.run("CREATE TABLE user (a INT)", schema="mysql")
    changed = history.run("ALTER TABLE user ADD b INT", schema="mysql")
    stream = Stream(history, 2)
    for ddl in (made, changed):
        followed = stream.follow(ddl)
        assert followed.run is None
        assert followed.skipped == {Skipped(DDLS, "filter", "mysql.user"): 1}
    selection = Selection(Rules(FilterConfig()), stream.tracker)
    target = cast(Any, selection.lookup(made.fields["table_id"], 99))
    assert (target.loss.name, target.loss.takes_nothing) == ("mysql.user", True)
    # TiDB makes the tables of its own jobs without one.
    target = cast(Any, selection.lookup((1 << 48) - 2, 99))
    assert (target.target[0], target.loss.takes_nothing) == ("mysql", True)


def test_a_change_of_a_system_table_that_no_job_made_is_followed_all_the_same(
    history: TidbHistory,
) -> None:
    history.run("CREATE TABLE tidb_mdl (a INT)", schema="mysql")
    lost = history.all.pop()
    changed = history.run("ALTER TABLE tidb_mdl ADD b INT", schema="mysql")
    stream = Stream(history, 2)
    assert stream.follow(changed).run is None
    found = stream.tracker.table_at(lost.fields["table_id"], 1)
    assert isinstance(found, tuple)
    assert (found[0], [c.name for c in found[1].columns]) == ("mysql", ["a", "b"])
    assert stream.tracker.version == changed.job.schema_version


EXCHANGE = "ALTER TABLE p EXCHANGE PARTITION p1 WITH TABLE t"


def exchanged(history: TidbHistory) -> tuple[TidbDdl, int, int]:
    """Exchange a partition of p with t; return the DDL and the ids that t and p had."""
    bounds = "PARTITION p0 VALUES LESS THAN (9), PARTITION p1 VALUES LESS THAN (99)"
    by = f"PARTITION BY RANGE (id) ({bounds})"
    history.run(f"CREATE TABLE p (id INT PRIMARY KEY, a INT) {by}", change=with_partition_ids(501))
    single, parts = history.table("t"), history.table("p")
    assert parts.partition_ids == (501, 502)
    swapped = replace(parts, partition_ids=(501, single.id))

    def as_tidb(job: DdlJob) -> DdlJob:
        return replace(job, table=swapped, table_id=single.id, tables=())

    return history.run(EXCHANGE, change=as_tidb), single.id, parts.id


def test_an_exchanged_partition_and_table_swap_their_ids(history: TidbHistory) -> None:
    ddl, single_id, parts_id = exchanged(history)
    stream = Stream(history, 3)
    assert stream.query(ddl, state=0) == EXCHANGE
    for table_id, name in ((502, "t"), (parts_id, "p")):
        found = stream.tracker.table_at(table_id, ddl.job.schema_version)
        assert isinstance(found, tuple)
        assert found[1].name == name
    assert stream.tracker.catalog.table_by_id(single_id) is None


def test_rows_that_come_late_after_a_partition_was_exchanged_are_named_for_a_comparison(
    history: TidbHistory, caplog: pytest.LogCaptureFixture
) -> None:
    ddl, single_id, parts_id = exchanged(history)
    stream, version = Stream(history, 3), ddl.job.schema_version
    stream.tracker.table_at(parts_id, version - 1)
    stream.follow(ddl, state=0)
    stream.tracker.table_at(parts_id, version)
    assert "committed after" not in caplog.text
    for table_id in (parts_id, single_id):
        caplog.clear()
        stream.tracker.copy().table_at(table_id, version - 1)
        assert f"under schema version {version - 1} and committed after" in caplog.text


def test_a_truncated_table_s_late_rows_have_nowhere_to_go(history: TidbHistory) -> None:
    old = history.table("t").id
    truncated = history.run("TRUNCATE TABLE t")
    stream = Stream(history, 2)
    stream.follow(truncated)
    assert stream.tracker.table_at(old, 1) == Gone(old, "Shop", "t", truncated.job.schema_version)


def recovery_of(table: TableInfo) -> Callable[[DdlJob], DdlJob]:
    return lambda job: replace(job, type=25, table=table, table_id=table.id)


def test_a_recovered_table_comes_back_where_a_server_can_and_is_refused_by_number(
    history: TidbHistory,
) -> None:
    table = history.table("t")
    history.run("DROP TABLE t")
    ddl = history.run("CREATE TABLE t (id INT PRIMARY KEY, a INT)", change=recovery_of(table),
                      sent="FLASHBACK TABLE t")  # fmt: skip
    stream = Stream(history, 3)
    assert stream.query(ddl) == "FLASHBACK TABLE t"
    assert not isinstance(stream.tracker.table_at(table.id, 1), Gone)
    by_job = replace(ddl, query="RECOVER TABLE BY JOB 53")
    with pytest.raises(NeedsOperator, match="another one downstream") as caught:
        Stream(history, 3).follow(by_job)
    assert f"penstock drainer ddl track {ddl.job.finished_ts}" in caught.value.hint


def test_sqlite_refuses_to_bring_back_rows_that_it_has_not(shop: Shop) -> None:
    shop.ddl("CREATE TABLE t (id INT PRIMARY KEY)")
    table = shop.table()
    shop.insert(table, (1,))
    shop.ddl("DROP TABLE t")
    change = recovery_of(table)
    ddl = shop.ddl("CREATE TABLE t (id INT PRIMARY KEY)", change=change, sent="RECOVER TABLE t")
    with pytest.raises(NeedsOperator, match="SQLite has no rows of a dropped table") as caught:
        shop.follow()
    assert f"penstock drainer ddl track {ddl.job.finished_ts}" in caught.value.hint


def test_a_flashback_of_the_cluster_stops_with_the_ways_to_continue(history: TidbHistory) -> None:
    ddl = history.run("ALTER TABLE t COMMENT 'x'", change=of_type(62), sent="FLASHBACK CLUSTER")
    with pytest.raises(NeedsOperator, match="changes rows without a binlog") as caught:
        Stream(history, 2).follow(ddl)
    assert f"penstock drainer ddl skip {ddl.job.finished_ts}" in caught.value.hint


def test_an_override_names_a_ddl_by_its_job_s_end_in_the_stream_and_after_a_restart(
    history: TidbHistory, caplog: pytest.LogCaptureFixture
) -> None:
    ddl = history.run("ALTER TABLE t ADD b INT, ADD c INT")
    finished_ts = ddl.job.finished_ts
    made = {finished_ts: Override(commit_ts=finished_ts, verb=SKIP, made="then")}
    stream = Stream(history, 2, overrides=made)
    with caplog.at_level(logging.WARNING):
        followed = stream.follow(ddl)
    assert (followed.run, followed.skipped) == (None, {Skipped(DDLS, OVERRIDE, "Shop.t"): 1})
    lacking = stream.tracker.drift(ddl.fields["table_id"]).lacking(history.table("t"))
    assert lacking == ["b", "c"]
    jobs = [each.job for each in history.all]
    again = SchemaTracker.from_history(
        jobs, ddl.commit_ts, made, rules=TIDB, version=ddl.job.schema_version
    )
    assert again.state() == stream.tracker.state()


# --- where a stream begins ----------------------------------------------------------------------


def begun(jobs: list[DdlJob], ts: int, version: int = 0) -> SchemaTracker:
    tracker = SchemaTracker(TIDB)
    tracker.follow_all(jobs, StreamPosition(ts, version), {})
    return tracker


def test_a_start_takes_what_the_checkpoint_s_version_has_whenever_it_finished(
    history: TidbHistory,
) -> None:
    ddl = history.run("ALTER TABLE t ADD b INT")
    late = history.run("ALTER TABLE t ADD c INT")
    jobs = [each.job for each in history.all]
    # The checkpoint is at the binlog: its job finished later.
    at = begun(jobs, ddl.commit_ts, ddl.job.schema_version)
    assert at.version == ddl.job.schema_version
    assert begun(jobs, ddl.commit_ts - 1, ddl.job.schema_version - 4).version < at.version
    assert begun(jobs, late.commit_ts, late.job.schema_version).version == late.job.schema_version


@pytest.mark.fault(
    "a stream begins while a DDL is under way",
    "followed once, by its binlog or by the first row of its version",
    cases="4",
)
def test_a_ddl_under_way_at_the_beginning_is_known_by_the_first_row_of_its_version(
    history: TidbHistory,
) -> None:
    ddl = history.run("ALTER TABLE t ADD b INT")
    jobs, version = [each.job for each in history.all], ddl.job.schema_version
    table_id = ddl.fields["table_id"]
    # Between its binlog and its end: the copy downstream has the column, the stream not the DDL.
    tracker = begun(jobs, ddl.commit_ts + 1)
    assert len(cast(Any, tracker.table_at(table_id, version - 1))[1].columns) == 2
    data = pack(tracker, SnapshotOrigin(cluster_id=1, commit_ts=1, schema_version=tracker.version,
                                        last_job_id=1, revision=1, overrides={}))  # fmt: skip
    for each in (tracker.copy(), unpack(data, "x")[0], tracker):
        assert len(cast(Any, each.table_at(table_id, version))[1].columns) == 3
        assert each.version == version


def test_a_ddl_under_way_at_the_beginning_that_comes_by_itself_is_followed_once(
    history: TidbHistory,
) -> None:
    ddl = history.run("ALTER TABLE t ADD b INT")
    after = history.run("ALTER TABLE t ADD c INT")
    jobs = [each.job for each in history.all]
    tracker = begun(jobs[:-1], ddl.commit_ts - 1)
    assert [c.name for c in tracker.follow(ddl.job).altered[0][2].columns] == ["id", "a", "b"]
    # One that never comes was before the one that does.
    tracker = begun(jobs[:-1], ddl.commit_ts + 1)
    tracker.follow(after.job)
    found = tracker.catalog.table("Shop", "t")
    assert found is not None
    assert [c.name for c in found.columns] == ["id", "a", "b", "c"]


def test_a_ddl_under_way_that_finished_before_the_next_start_has_passed(
    history: TidbHistory,
) -> None:
    ddl = history.run("ALTER TABLE t ADD b INT")
    jobs = [each.job for each in history.all]
    before = ddl.job.schema_version - 4
    assert begun(jobs, ddl.commit_ts + 1, before).version == before
    assert begun(jobs, ddl.job.finished_ts, before).version == ddl.job.schema_version


def test_rows_of_a_table_from_before_the_stream_are_refused_with_the_way_to_begin() -> None:
    tracker = begun([], 0)
    with pytest.raises(NeedsOperator, match="which no DDL has made") as caught:
        tracker.table_at(4711, 99)
    assert "initial-commit-ts" in caught.value.hint


def test_a_tracked_ddl_counts_from_its_version_on(history: TidbHistory) -> None:
    ddl = history.run("ALTER TABLE t ADD b INT")
    ts = ddl.job.finished_ts
    stream = Stream(history, 2, overrides={ts: Override(commit_ts=ts, verb="track", made="then")})
    followed = stream.follow(ddl)
    assert (followed.run, followed.skipped) == (None, {Skipped(DDLS, OVERRIDE, "Shop.t"): 1})
