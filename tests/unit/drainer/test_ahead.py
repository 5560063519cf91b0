"""Rows of a TiDB that come before the DDL whose table they need: a multi-schema change."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import pytest

from drainer.ddl.catch_up import CatchUp
from drainer.ddl.follower import DdlFollower
from drainer.intake.merger import Merged
from drainer.planner import AheadStep, DdlStep
from drainer.schema.rules import TIDB
from drainer.schema.tracker import SchemaTracker
from drainer.sinks.checkpoint import Checkpoint
from drainer.stream.decoder import Ddl, Decoder, Reached, Transaction
from drainer.task.selection import Selection
from penstock.datum.rows.row_codec import RowCodec
from penstock.filters import Rules
from penstock.pb import binlog_pb2 as pb
from penstock.schema.model import PUBLIC, DdlJob, TableInfo
from penstock.schema.tidb_json import job_from_json, job_to_json
from penstock.wire.binlog import MutationType, PrewriteValue, TableMutation
from penstock.wire.codec import encode_prewrite_value
from tests.kit.tidb.tidb_history import TidbDdl, failed, with_new_ids
from tests.kit.tidb.tidb_shop import TidbShop, committed

Row = Sequence[object]
WRITE_ONLY = 2


@dataclass
class Tidb:
    """A TiDB that is asked: its finished jobs, and its tables of now."""

    finished: list[DdlJob] = field(default_factory=list)
    to_come: list[DdlJob] = field(default_factory=list)
    """Those that are over once it has been asked again."""
    now: dict[int, TableInfo] = field(default_factory=dict)
    version: int = 1 << 40
    asked: list[str] = field(default_factory=list)

    def jobs_of(self, table_id: int, after_version: int) -> list[DdlJob]:
        self.asked.append("jobs")
        of_table = [job for job in self.finished if job.table and job.table.id == table_id]
        self.finished += self.to_come
        self.to_come = []
        return [job for job in of_table if job.schema_version > after_version]

    def table_now(self, table_id: int) -> tuple[int, TableInfo | None]:
        self.asked.append("table")
        return self.version, self.now.get(table_id)


class Shop(TidbShop):
    def comes(self, ddl: TidbDdl) -> None:
        ts = self.history.now()
        ddl.fields["binlog"]["FinishedTS"] = ts + 3
        self.binlogs.append((ts, ddl.binlog(commit_ts=ts)))

    def writes(self, table: TableInfo, version: int, **rows: Row | tuple[Row, Row]) -> None:
        """Insert, update or delete a row as a server with that table and version does."""
        codec, ts = RowCodec(table), self.history.now()
        kinds = {
            "insert": (MutationType.INSERT, "inserted_rows", codec.encode_insert),
            "update": (MutationType.UPDATE, "updated_rows", lambda r: codec.encode_update(*r)),
            "delete": (MutationType.DELETE, "deleted_rows", codec.encode_delete),
        }
        for name, row in rows.items():
            kind, place, encode = kinds[name]
            lists: dict[str, Any] = {place: (cast(Any, encode)(row),)}
            made = TableMutation(table_id=table.id, sequence=(kind,), **lists)
            value = encode_prewrite_value(PrewriteValue(schema_version=version, mutations=(made,)))
            self.binlogs.append((ts, committed(ts, value)))
            ts = self.history.now()

    def follow(self, *, up_to: int | None = None, **way: Any) -> Checkpoint:
        return super().follow(up_to=up_to, upstream=Tidb(self.jobs), **way)


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    made = Shop(tmp_path)
    made.ddl("CREATE TABLE t (id INT PRIMARY KEY, a INT, b INT)")
    return made


def added(column_id: int) -> dict[str, Any]:
    """Return the part of a job that adds a column, where another part says the version."""
    return {"type": 5, "schema_version": 0, "raw_args": [{"id": column_id}, {}, 0, False]}


def changed(shop: Shop, *, after_swap: int = 2) -> tuple[TidbDdl, int, TableInfo, TableInfo]:
    """Run MODIFY a, ADD z, DROP b; return it, its swap, and the tables before and after."""
    before = shop.table()
    first = shop.history.version
    sql = "ALTER TABLE t MODIFY a VARCHAR(30), ADD COLUMN z INT DEFAULT 4, DROP COLUMN b"
    swap = first + 4 - after_swap
    parts = [
        {"type": 12, "schema_version": swap},
        added(4),
        {"type": 6, "schema_version": first + 4},
    ]
    ddl = shop.history.run(sql, change=with_new_ids("a"), multi_schema_info={"sub_jobs": parts})
    return ddl, swap, before, shop.table()


def both(before: TableInfo, after: TableInfo) -> TableInfo:
    """Return the table as servers of the version before the swap write it."""
    known = {column.id for column in before.columns}
    new = [column for column in after.columns if column.id not in known]
    columns = [
        replace(column, offset=at, name=f"{column.name}{at}" if column in new else column.name)
        for at, column in enumerate((*before.columns, *new))
    ]
    return replace(before, columns=tuple(columns))


@pytest.mark.fault(
    "rows of a multi-schema change come before its binlog; the Drainer is started again at"
    " each of them",
    "its DDL runs before the first such row, once; other tables' DDL keeps its place",
    cases="12",
)
def test_rows_from_the_swap_on_keep_their_values_before_their_ddl_s_binlog(shop: Shop) -> None:
    shop.writes(shop.table(), shop.history.version, insert=(1, 10, 11))
    shop.writes(shop.table(), shop.history.version, insert=(2, 20, 21))
    ddl, swap, before, after = changed(shop)
    old_and_new = both(before, after)
    shop.writes(old_and_new, swap - 1, insert=(3, 30, 31, "30", 4))
    shop.writes(after, swap, update=((1, "10", 4), (1, "ten", 4)))
    shop.writes(after, swap + 1, insert=(4, "forty", 9))
    # The version before the swap is still alive.
    shop.writes(old_and_new, swap - 1, update=((2, 20, 21, "20", 4), (2, 22, 21, "22", 4)))
    shop.writes(old_and_new, swap - 1, insert=(5, 50, 51, "50", 4))
    shop.writes(after, swap + 1, delete=(3, "30", 4))
    shop.comes(ddl)
    shop.writes(after, shop.history.version, insert=(6, "sixty", 7))
    at = shop.follow()
    assert shop.rows("t", "id, a, z") == [
        (1, "ten", 4), (2, "22", 4), (4, "forty", 9), (5, "50", 4), (6, "sixty", 7),
    ]  # fmt: skip
    assert (at.schema_version, at.ahead) == (shop.history.version, {})


def test_a_value_of_an_added_column_is_not_lost_where_nothing_else_is_missing(shop: Shop) -> None:
    before = shop.table()
    parts = [{"type": 6, "schema_version": shop.history.version + 4}, added(4)]
    ddl = shop.history.run(
        "ALTER TABLE t DROP COLUMN b, ADD COLUMN z INT DEFAULT 4",
        multi_schema_info={"sub_jobs": parts},
    )
    after = shop.table()
    three = both(before, after)
    swap = ddl.job.schema_version - 3
    shop.writes(three, swap - 1, insert=(1, 10, 11, 4))
    shop.writes(three, swap, insert=(2, 20, 21, 4))
    shop.writes(three, swap, insert=(3, 30, 31, 9))
    shop.writes(three, swap, update=((1, 10, 11, 4), (1, 10, 11, None)))
    shop.comes(ddl)
    shop.follow()
    assert shop.rows("t", "id, a, z") == [(1, 10, None), (2, 20, 4), (3, 30, 9)]


def test_a_transaction_that_lies_on_the_disk_has_its_ddl_run_before_it_too(shop: Shop) -> None:
    ddl, swap, before, after = changed(shop)
    shop.writes(both(before, after), swap - 1, insert=(1, 10, 11, "10", 4))
    for number in (2, 3):
        shop.writes(after, swap, insert=(number, f"{number}" * 30, 9))
    until = len(shop.binlogs)
    shop.comes(ddl)
    # A binlog of more than 100 bytes goes to the disk, and is cut into slices.
    assert shop.follow(up_to=until, bytes_max=100).ahead == {ddl.job.id: ddl.job.schema_version}
    shop.follow(bytes_max=400)
    assert shop.rows("t", "id, a, z") == [(1, "10", 4), (2, "2" * 30, 9), (3, "3" * 30, 9)]


def test_a_column_under_another_name_is_not_taken_for_an_added_one(shop: Shop) -> None:
    before, first = shop.table(), shop.history.version
    sql = "ALTER TABLE t CHANGE a c VARCHAR(30), MODIFY b VARCHAR(9)"
    # Neither part says when the swap was: the rows tell.
    parts = [{"type": 12, "schema_version": first + 4}, {"type": 12, "schema_version": 0}]
    ddl = shop.history.run(
        sql, change=with_new_ids("c", "b"), multi_schema_info={"sub_jobs": parts}
    )
    after = shop.table()
    half = both(before, replace(after, columns=(*after.columns[:2], before.columns[2])))
    shop.writes(half, first + 1, insert=(1, 10, 11, "10"))
    shop.writes(half, first + 1, insert=(2, None, 21, None))
    shop.writes(after, first + 3, insert=(3, "three", None))
    shop.writes(both(before, after), first + 2, insert=(4, 40, 41, "40", "41"))
    shop.comes(ddl)
    shop.follow()
    assert shop.rows("t", "id, c, b") == [
        (1, "10", "11"), (2, None, "21"), (3, "three", None), (4, "40", "41"),
    ]  # fmt: skip


@pytest.mark.parametrize("cut", range(3, 12))
def test_a_restart_anywhere_around_an_early_ddl_runs_it_once(shop: Shop, cut: int) -> None:
    shop.writes(shop.table(), shop.history.version, insert=(1, 10, 11))
    ddl, swap, before, after = changed(shop)
    shop.writes(both(before, after), swap - 1, insert=(2, 20, 21, "20", 4))
    shop.writes(after, swap, insert=(3, "thirty", 9))
    other = shop.history.run("CREATE TABLE u (id INT PRIMARY KEY)")
    shop.comes(other)
    shop.writes(shop.table("u"), other.job.schema_version, insert=(7,))
    shop.writes(after, swap, update=((1, "10", 4), (1, "ten", 5)))
    shop.comes(ddl)
    shop.writes(after, ddl.job.schema_version, insert=(4, "four", 6))
    part = shop.follow(up_to=min(cut, len(shop.binlogs)))
    shop.follow()
    assert shop.rows("t", "id, a, z") == [
        (1, "ten", 5), (2, "20", 4), (3, "thirty", 9), (4, "four", 6),
    ]  # fmt: skip
    assert shop.rows("u") == [(7,)]
    is_between = 5 <= min(cut, len(shop.binlogs)) < 9
    assert part.ahead == ({ddl.job.id: ddl.job.schema_version} if is_between else {})


def test_ddl_of_another_table_stays_at_its_place_whatever_its_version(shop: Shop) -> None:
    shop.ddl("CREATE TABLE u (id INT PRIMARY KEY, c INT)")
    old = shop.table("u")
    # The other job is of a lower version than the end of the first one, and begins after its swap.
    other = shop.history.run("ALTER TABLE u MODIFY c VARCHAR(9)", change=with_new_ids("c"))
    ddl, swap, _, after = changed(shop, after_swap=7)
    shop.writes(after, swap, insert=(1, "one", 9))
    shop.writes(old, swap, insert=(2, 22))
    shop.comes(other)
    shop.writes(shop.table("u"), other.job.schema_version, insert=(3, "three"))
    shop.comes(ddl)
    shop.follow()
    assert shop.rows("u") == [(2, "22"), (3, "three")]
    assert shop.rows("t", "id, a, z") == [(1, "one", 9)]


def test_a_single_change_does_not_run_before_its_binlog(shop: Shop) -> None:
    before, first = shop.table(), shop.history.version
    ddl = shop.history.run("ALTER TABLE t MODIFY a VARCHAR(30)", change=with_new_ids("a"))
    both_columns = both(before, shop.table())
    shop.writes(both_columns, first + 3, insert=(1, 10, 11, "10"))
    until = len(shop.binlogs)
    shop.comes(ddl)
    at = shop.follow(up_to=until)
    assert (at.schema_version, at.ahead) == (first, {})
    shop.follow()
    assert shop.rows("t", "id, a, b") == [(1, "10", 11)]


def test_a_reader_gets_the_ddl_before_the_rows_that_need_it_and_once(shop: Shop) -> None:
    followed, begin_ts = len(shop.jobs), shop.last_ts
    ddl, swap, _, after = changed(shop)
    shop.writes(after, swap, insert=(1, "one", 9))
    shop.comes(ddl)
    shop.writes(after, ddl.job.schema_version, insert=(2, "two", 4))
    jobs = {job.id: job for job in shop.jobs}

    async def fetch(step: DdlStep) -> DdlJob:
        return jobs[step.job_id]

    tracker = SchemaTracker.from_history(shop.jobs[:followed], 1 << 62, rules=TIDB)
    lookup = Selection(Rules(), tracker).lookup
    decoder = Decoder(
        Reached(7, Checkpoint(begin_ts, tracker.version)),
        tracker,
        lookup=lookup,
        follow=DdlFollower(tracker, fetch, overrides={}).follow,
        catch_up=CatchUp(tracker, Tidb(shop.jobs)),
    )
    coming = [each for each in shop.binlogs if each[0] > begin_ts]
    merged = Merged([ts for ts, _ in coming], [data for _, data in coming], 0)
    found = asyncio.run(decoder.decode(merged, {})).committed
    assert [type(one) for one in found] == [Ddl, Transaction, Transaction]
    assert found[0].commit_ts == found[1].commit_ts - 1
    assert Reached.from_text(found[1].reached.text).checkpoint.ahead == {
        ddl.job.id: ddl.job.schema_version
    }
    rows = [change.after for one in found[1:] for change in cast(Transaction, one).changes]
    assert rows == [{"id": 1, "a": "one", "z": 9}, {"id": 2, "a": "two", "z": 4}]


# --- what is asked, and when --------------------------------------------------------------------


def catch_up(shop: Shop, upstream: Tidb, followed: int) -> CatchUp:
    tracker = SchemaTracker.from_history(shop.jobs[:followed], 1 << 62, rules=TIDB)
    return CatchUp(tracker, upstream)


def steps(follower: CatchUp, shop: Shop, binlog: int = -1) -> list[int] | None:
    """Return the ids of the jobs that a transaction needs first, None if nothing is asked."""
    ts, data = shop.binlogs[binlog]
    row = follower.ahead(cast(Any, pb.Binlog).FromString(data).prewrite_value)
    if row is None:
        return None
    found = asyncio.run(follower.steps(AheadStep(ts - 1, row)))
    return [step.job_id for step in found]


def test_during_a_long_reorganisation_nothing_waits_and_one_version_is_asked_about_once(
    shop: Shop,
) -> None:
    followed, first = len(shop.jobs), shop.history.version
    _, swap, before, after = changed(shop)
    table = both(before, after)
    known = {column.id for column in before.columns}
    states = [
        column if column.id in known else replace(column, state=WRITE_ONLY)
        for column in table.columns
    ]
    now = replace(table, columns=tuple(states))
    upstream = Tidb(now={table.id: now}, version=swap - 1)
    follower = catch_up(shop, upstream, followed)
    shop.writes(table, first + 1, insert=(1, None, None, None, 4))
    assert steps(follower, shop) == []
    assert upstream.asked == ["jobs", "table", "jobs"]
    for row in ((2, None, 3, None, 4), (3, 4, 5, "4", 4)):
        shop.writes(table, swap - 1, insert=row)
        assert steps(follower, shop) is None
    shop.writes(table, swap - 1, update=((3, 4, 5, "4", 4), (3, 5, 5, "5", 4)))
    assert steps(follower, shop) is None


def test_a_row_of_public_columns_waits_for_the_end_of_its_ddl(shop: Shop) -> None:
    followed = len(shop.jobs)
    ddl, swap, _, after = changed(shop)
    assert all(column.state == PUBLIC for column in after.columns)
    upstream = Tidb(to_come=[ddl.job], now={after.id: after})
    follower = catch_up(shop, upstream, followed)
    shop.writes(after, swap, insert=(1, None, 9))
    assert steps(follower, shop) == [ddl.job.id]
    assert upstream.asked == ["jobs", "table", "jobs", "jobs"]


def test_a_row_that_lacks_a_replaced_column_waits_whatever_the_tidb_says_about_its_table(
    shop: Shop,
) -> None:
    followed = len(shop.jobs)
    ddl, swap, _, after = changed(shop)
    upstream = Tidb(to_come=[ddl.job])
    follower = catch_up(shop, upstream, followed)
    shop.writes(after, swap, delete=(1, "one", 4))
    assert steps(follower, shop) == [ddl.job.id]
    assert "table" not in upstream.asked


def test_columns_of_a_ddl_that_failed_and_of_a_table_that_is_gone_are_left_out(shop: Shop) -> None:
    followed, before, first = len(shop.jobs), shop.table(), shop.history.version
    ddl = shop.history.run("ALTER TABLE t ADD z INT DEFAULT 4", change=failed(3))
    z = replace(before.columns[2], id=9, name="z", offset=3)
    table = replace(before, columns=(*before.columns, z))
    follower = catch_up(shop, Tidb([ddl.job]), followed)
    shop.writes(table, first + 2, insert=(1, 2, 3, 4))
    assert steps(follower, shop) == []


def test_a_job_s_parts_are_read_with_their_versions(shop: Shop) -> None:
    ddl, swap, _, _ = changed(shop)
    assert ddl.job.parts == ((swap, 0), (0, 4), (ddl.job.schema_version, 0))
    assert job_from_json(job_to_json(ddl.job)) == ddl.job
    assert ddl.job.swap_version == swap
    assert replace(ddl.job, parts=()).swap_version == ddl.job.schema_version


def test_jobs_ahead_are_in_the_checkpoint_only_while_there_are_any() -> None:
    assert "ahead" not in Checkpoint(5, 7).to_json("me")
    text = Checkpoint(5, 7, ahead={112: 54}).to_json("me")
    assert Checkpoint.from_json(text).ahead == {112: 54}
