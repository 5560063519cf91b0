"""What a lake promises, as Polars sees it: each batch once, and one state over all tables."""

import itertools
import shutil
from collections import Counter
from collections.abc import Generator, Iterator
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from drainer.sinks.checkpoint import Checkpoint
from drainer.sinks.delta import changes_sink as changes_module
from drainer.sinks.delta import lake as lake_module
from drainer.sinks.delta import sink as sink_module
from drainer.sinks.patience import locked
from drainer.sinks.protocol import TableSink
from drainer.task.events.event_unit import answer
from drainer.task.sql import lake_files
from penstock.errors import Malformed, NeedsOperator, Retryable
from tests.kit.delta.lake_reader import LakeReader, Versions
from tests.kit.opened_sinks import open_lake_sink
from tests.kit.wait import present
from tests.kit.workloads.sink_stream import Change, LakeStream, Row, inserts

SCHEME = "delta"
CLUSTER = 6_791_641_053_252_586_769 * 2 + 1  # More than a signed 64-bit number holds.


class Crash(BaseException):
    """In the place of a kill: no one catches it."""


class Lake(LakeStream):
    """A lake, its sinks, a stream for it, and a reader that shares no code with them."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = folder
        self.reader = LakeReader(folder)
        self.sinks: list[TableSink] = []
        self.asked = 0
        """The number of units that tasks have answered."""

    def open(self, options: str = "", **more: Any) -> TableSink:
        url = f"{SCHEME}://{self.folder}?interval=0&{options}".rstrip("&")
        sink = open_lake_sink(url, **{"cluster_id": CLUSTER, **more})
        sink.use_tasks(self.ask)
        self.sinks.append(sink)
        return sink

    def ask(self, units: list[bytes]) -> Future[list[bytes]]:
        """Answer units here, in the place of tasks."""
        self.asked += len(units)
        made: Future[list[bytes]] = Future()
        try:
            made.set_result([answer(unit) for unit in units])
        except NeedsOperator as error:
            made.set_exception(error)
        return made

    def begun(self, options: str = "") -> TableSink:
        sink = self.open(options)
        sink.load_checkpoint()
        self.dialect = sink.dialect
        self.ddl(
            sink,
            "CREATE DATABASE shop",
            "CREATE TABLE t (id INT PRIMARY KEY, v VARCHAR(20))",
            "CREATE TABLE u (id INT PRIMARY KEY, v VARCHAR(20))",
            "CREATE TABLE heap (a INT, b VARCHAR(20))",
        )
        return sink

    def rows(self, name: str = "t", version: int | None = None) -> list[Row]:
        return sorted(self.reader.table("shop", name, version).rows(), key=repr)

    def add(self, sink: TableSink, *ids: int, point: Checkpoint | None = None) -> Checkpoint:
        point = point or self.point()
        sink.apply(self.blocks({"t": inserts(*((i, "x") for i in ids))}), point)
        return point

    def ids(self) -> list[object]:
        return [row[0] for row in self.rows()]

    def states(self) -> dict[int, Versions]:
        return self.reader.states()

    def rows_at(self, commit_ts: int, name: str = "t") -> list[Row]:
        return self.rows(name, self.states()[commit_ts]["shop", name])

    def table(self, name: str = "t") -> DeltaTable:
        return DeltaTable(self.folder / "shop" / name)


@pytest.fixture(params=[1000, 0], ids=["drainer", "tasks"])
def lake(
    tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Lake]:
    """Return a lake into which the Drainer merges, or tasks do, with rows in files of tasks."""
    monkeypatch.setattr(sink_module, "MERGE_ROWS_MIN", request.param)
    monkeypatch.setattr(lake_files, "FILE_ROWS_MIN", request.param or 2)
    made = Lake(tmp_path / "lake")
    yield made
    for sink in made.sinks:
        sink.close()


def test_a_batch_is_one_commit_of_each_table_and_a_state_of_all(lake: Lake) -> None:
    sink = lake.begun()
    first = lake.put(sink, t=inserts((1, "a"), (2, "b")), u=inserts((1, "x")))
    second = lake.put(sink, t=[((1, "a"), (1, "A")), ((2, "b"), None), (None, (3, "c"))])
    assert lake.open().load_checkpoint() == second
    assert lake.rows() == [(1, "A"), (3, "c")]
    assert lake.rows_at(first.commit_ts) == [(1, "a"), (2, "b")]
    one, two = lake.states()[first.commit_ts], lake.states()[second.commit_ts]
    assert (two["shop", "t"], two["shop", "u"]) == (one["shop", "t"] + 1, one["shop", "u"])
    (commit,) = lake.table().history(1)
    assert commit["operation"] == ("WRITE" if lake.asked else "MERGE")
    counts, files = sink.file_counts, list((lake.folder / "shop").glob("*/*.parquet"))
    assert (counts.commits, counts.rows, counts.files_removed) == (3, 3 + 2, 1)
    assert counts.files_added == len(files)
    assert counts.bytes_added == sum(path.stat().st_size for path in files)


@pytest.mark.slow
def test_a_key_that_moves_and_one_that_ends_and_begins_again_are_one_row_each(lake: Lake) -> None:
    sink = lake.begun()
    lake.put(sink, t=inserts((1, "a"), (2, "b"), (3, "c")))
    lake.put(
        sink, t=[((1, "a"), (9, "a")), ((2, "b"), None), (None, (2, "B")), ((3, "c"), (1, "c"))]
    )
    assert lake.rows() == [(1, "c"), (2, "B"), (9, "a")]


def test_rows_without_a_key_are_counted(lake: Lake) -> None:
    sink = lake.begun()
    lake.put(sink, heap=inserts((1, "a"), (1, "a"), (1, "a"), (None, None), (None, None), (2, "b")))
    changes: list[Change] = [((1, "a"), None), ((None, None), (3, None)), (None, (2, "b"))]
    lake.put(sink, heap=changes)
    wanted = Counter({(1, "a"): 2, (None, None): 1, (3, None): 1, (2, "b"): 2})
    assert Counter(lake.rows("heap")) == wanted
    lake.put(sink, heap=[((1, "a"), None), ((1, "a"), None), (None, (1, "a"))])
    assert Counter(lake.rows("heap")) == wanted - Counter({(1, "a"): 1})


def test_a_batch_that_is_refused_leaves_the_state_that_was_promised(lake: Lake) -> None:
    sink = lake.begun()
    first = lake.put(sink, t=inserts((1, "a")))
    (lake.folder / "shop/u").rename(lake.folder / "elsewhere")
    with pytest.raises(NeedsOperator, match="no Delta table in"):
        lake.put(sink, t=inserts((2, "b")), u=inserts((1, "x")))
    found = present(lake.open().load_checkpoint())
    assert (found.commit_ts, found.applying_ts) == (first.commit_ts, first.commit_ts + 1)
    assert max(lake.states()) == first.commit_ts
    assert lake.rows_at(first.commit_ts) == [(1, "a")]
    (lake.folder / "elsewhere").rename(lake.folder / "shop/u")
    sink.load_checkpoint()
    sink.apply(
        lake.blocks({"t": inserts((2, "b")), "u": inserts((1, "x"))}), Checkpoint(lake.ts, 1)
    )
    assert (lake.rows(), lake.rows("u")) == ([(1, "a"), (2, "b")], [(1, "x")])


STEPS = (
    ("transaction_begun", 1),
    ("transaction_begun", 2),
    ("table_committed", 1),
    ("table_committed", 2),
    ("table_committed", 3),
    ("rows_changed", 1),
    ("versions_stored", 1),
    ("transaction_committed", 1),
)


@pytest.mark.slow
@pytest.mark.parametrize(("step", "passing"), STEPS)
def test_what_a_crash_left_is_completed_by_the_same_batch(
    lake: Lake, step: str, passing: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = lake.begun()
    lake.put(sink, t=inserts((1, "a")), u=inserts((1, "x")), heap=inserts((1, "h")))
    changes: dict[str, list[Change]] = {
        "t": [((1, "a"), None), (None, (2, "b"))],
        "u": [((1, "x"), (1, "y"))],
        "heap": [*inserts((1, "h"), (1, "h"))],
    }
    point = lake.point()
    with monkeypatch.context() as patched:
        crash_at(patched, step, passing)
        with pytest.raises(Crash):
            sink.apply(lake.blocks(changes), point)
    following = lake.open()
    assert following.load_checkpoint() is not None
    lake.dialect = following.dialect
    following.apply(lake.blocks(changes), point)
    assert lake.rows() == [(2, "b")]
    assert lake.rows("u") == [(1, "y")]
    assert lake.rows("heap") == [(1, "h")] * 3
    last = {place: lake.table(place[1]).version() for place in lake.states()[point.commit_ts]}
    assert lake.states()[point.commit_ts] == last


def crash_at(patched: pytest.MonkeyPatch, step: str, passing: int) -> None:
    count = itertools.count(1)

    def hit() -> None:
        if next(count) == passing:
            raise Crash

    for module in (sink_module, lake_module, changes_module):
        if hasattr(module, step):
            patched.setattr(module, step, hit)


def test_a_larger_batch_than_the_one_that_crashed_still_ends_right(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch that is cut elsewhere: a table that has its first part gets the whole of it."""
    sink = lake.begun()
    lake.put(sink, t=inserts((1, "a"), (2, "b")), u=inserts((1, "x")))
    first: dict[str, list[Change]] = {"t": [((1, "a"), (1, "A")), ((2, "b"), None)],
                                      "u": [((1, "x"), None)]}  # fmt: skip
    later: dict[str, list[Change]] = {"t": [((1, "A"), None), (None, (2, "B"))],
                                      "u": [(None, (2, "y"))]}  # fmt: skip
    with monkeypatch.context() as patched:
        crash_at(patched, "table_committed", 1)
        with pytest.raises(Crash):
            sink.apply(lake.blocks(first), lake.point())
    following = lake.open()
    following.load_checkpoint()
    point = lake.point()
    following.apply(lake.blocks({name: first[name] + later[name] for name in first}), point)
    assert (lake.rows(), lake.rows("u")) == ([(2, "B")], [(2, "y")])
    assert lake.rows_at(point.commit_ts) == [(2, "B")]


@pytest.mark.slow
def test_a_large_transaction_is_there_as_a_whole(lake: Lake) -> None:
    sink = lake.begun()
    before = lake.put(sink, t=inserts((0, "a")), heap=inserts((0, "h")))
    point = lake.point()

    def slices() -> Generator[list[bytes]]:
        for number in range(4):
            row = (number, "b")
            changes: list[Change] = [(None, row)] if number else [((0, "a"), row)]
            yield lake.blocks({"t": changes, "heap": inserts((0, "h"))})

    sink.apply_slices(slices, point)
    assert lake.rows_at(point.commit_ts) == [(n, "b") for n in range(4)]
    assert lake.rows("heap") == [(0, "h")] * 5
    assert lake.rows_at(before.commit_ts) == [(0, "a")]


def test_a_large_transaction_that_fails_in_the_middle_is_not_in_any_state(lake: Lake) -> None:
    sink = lake.begun()
    before = lake.put(sink, t=inserts((0, "a")), heap=inserts((0, "h")))
    point = lake.point()

    def slices(count: int) -> Generator[list[bytes]]:
        for number in range(1, count):
            yield lake.blocks({"t": inserts((number, "b")), "heap": inserts((number, "h"))})

    def failing() -> Generator[list[bytes]]:
        yield from slices(4)
        raise Crash

    with pytest.raises(Crash):
        sink.apply_slices(failing, point)
    assert max(lake.states()) == before.commit_ts
    assert lake.rows_at(before.commit_ts) == [(0, "a")]
    following = lake.open()
    following.load_checkpoint()
    following.apply_slices(lambda: slices(6), point)
    assert lake.rows() == [(0, "a"), *((number, "b") for number in range(1, 6))]
    assert lake.rows("heap") == [(number, "h") for number in range(6)]


def test_a_damaged_checkpoint_is_refused_and_never_taken_for_none(lake: Lake) -> None:
    sink = lake.open()
    sink.load_checkpoint()
    sink.save_checkpoint(Checkpoint(5, 1))
    for damage in (None, "", "x", "{}", '{"commitTS":-1}'):
        rows = pa.table(
            {"cluster_id": [str(CLUSTER)], "checkpoint": pa.array([damage], pa.string())}
        )
        write_deltalake(lake.folder / "_penstock/checkpoint", rows, mode="overwrite")
        with pytest.raises(Malformed, match="damaged"):
            lake.open().load_checkpoint()


ALL_DDL = (
    "CREATE TABLE x (id INT PRIMARY KEY, v VARCHAR(20), n INT)",
    "ALTER TABLE x ADD COLUMN w INT NOT NULL DEFAULT 7",
    "ALTER TABLE x ADD COLUMN d DECIMAL(10,2) NOT NULL DEFAULT 1.5 FIRST",
    "ALTER TABLE x ADD COLUMN at DATETIME, ADD COLUMN z TIMESTAMP NULL",
    "CREATE INDEX vi ON x (v)",
    "ALTER TABLE x CHANGE COLUMN v `v'v` VARCHAR(40)",
    "ALTER TABLE x MODIFY COLUMN n BIGINT",
    "ALTER TABLE x DROP COLUMN w",
    "RENAME TABLE x TO x2",
    "RENAME TABLE t TO y, u TO t, y TO u",
    "CREATE TABLE x (id INT PRIMARY KEY)",
    "DROP TABLE x, u",
    "TRUNCATE TABLE x2",
    "DROP DATABASE shop",
)


@pytest.mark.slow
def test_every_ddl_may_be_run_again_when_a_crash_left_it_in_doubt(lake: Lake) -> None:
    """After each DDL, pretend that the crash came between it and its checkpoint."""
    lake.begun()
    for sql in ALL_DDL:
        for change in lake.changes(sql):
            before = lake.open()
            last = present(before.load_checkpoint())
            point = lake.point()
            before.run_ddl(change, point, maybe_done=False)
            before.save_checkpoint(last)
            after = lake.open()
            assert after.load_checkpoint() == last
            after.run_ddl(change, point, maybe_done=True)
            assert lake.open().load_checkpoint() == point
            if sql.startswith("ALTER TABLE x DROP"):
                frame = lake.reader.table("shop", "x")
                assert set(frame.columns) == {"d", "id", "v'v", "n", "at", "z"}
    assert not (lake.folder / "shop").exists()


def test_older_rows_have_a_new_columns_default_and_later_ones_their_own(lake: Lake) -> None:
    sink = lake.begun()
    before = lake.put(sink, t=inserts((1, "a")))
    lake.ddl(sink, "ALTER TABLE t ADD COLUMN w VARCHAR(9) NOT NULL DEFAULT 'it''s', ADD n INT")
    lake.put(sink, t=inserts((2, "b", "own", 5)))
    assert lake.rows() == [(1, "a", "it's", None), (2, "b", "own", 5)]
    assert lake.rows_at(before.commit_ts) == [(1, "a")]


def test_columns_are_renamed_widened_and_dropped_with_their_values(lake: Lake) -> None:
    sink = lake.begun()
    lake.ddl(sink, "CREATE TABLE k (id TINYINT PRIMARY KEY, n INT UNSIGNED, gone INT)")
    lake.put(sink, k=inserts((1, 2**32 - 1, 5)))
    lake.ddl(sink, "ALTER TABLE k MODIFY id BIGINT, CHANGE n m DECIMAL(22,2), DROP COLUMN gone")
    lake.put(sink, k=inserts((2**40, "0.05")))
    frame = lake.reader.table("shop", "k").sort("id")
    assert [(row[0], str(row[1])) for row in frame.rows()] == [
        (1, "4294967295.00"), (2**40, "0.05"),
    ]  # fmt: skip


@pytest.mark.slow
def test_a_dropped_column_may_be_kept(lake: Lake) -> None:
    sink = lake.begun("drop-column=keep")
    lake.put(sink, t=inserts((1, "a"), (2, "b")))
    lake.ddl(sink, "ALTER TABLE t DROP COLUMN v")
    lake.put(sink, t=[*inserts((3,)), ((1,), None)])
    assert lake.rows() == [(2, "b"), (3, None)]
    lake.ddl(sink, "ALTER TABLE t ADD COLUMN v INT NOT NULL DEFAULT 4")
    assert lake.rows() == [(2, 4), (3, 4)]


REFUSED_DDL = {
    "ALTER TABLE t MODIFY COLUMN v INT": "does not become INT",
    "ALTER TABLE t ADD COLUMN `a b` INT": "'a b' of 't' has a character",
    "CREATE TABLE u2 (`a=b` INT PRIMARY KEY)": "'a=b' of 'u2' has a character",
}


@pytest.mark.parametrize(
    "sql",
    [pytest.param(sql, marks=pytest.mark.slow if "`a b`" in sql else ()) for sql in REFUSED_DDL],
)
def test_a_ddl_that_a_lake_cannot_follow_changes_nothing_and_says_why(lake: Lake, sql: str) -> None:
    sink = lake.begun()
    before = lake.put(sink, t=inserts((1, "a")))
    version = lake.table().version()
    with pytest.raises(NeedsOperator, match=REFUSED_DDL[sql]):
        lake.ddl(sink, sql)
    assert lake.open().load_checkpoint() == before
    assert lake.table().version() == version


@pytest.mark.slow
def test_a_table_of_someone_else_is_not_taken_for_the_one_that_is_made(lake: Lake) -> None:
    sink = lake.begun()
    write_deltalake(lake.folder / "shop/mine", pa.table({"a": [1]}))
    with pytest.raises(NeedsOperator, match="is there before upstream's table"):
        lake.ddl(sink, "CREATE TABLE mine (a BIGINT PRIMARY KEY)")
    assert lake.reader.table("shop", "mine").rows() == [(1,)]


def test_names_may_swap(lake: Lake) -> None:
    sink = lake.begun()
    before = lake.put(sink, t=inserts((1, "a")), u=inserts((2, "b")))
    lake.ddl(sink, "RENAME TABLE t TO x, u TO t, x TO u")
    after = lake.put(sink, t=inserts((3, "c")))
    assert (lake.rows("u"), lake.rows("t")) == ([(1, "a")], [(2, "b"), (3, "c")])
    assert (
        lake.states()[after.commit_ts]["shop", "u"] == lake.states()[before.commit_ts]["shop", "t"]
    )


@pytest.mark.slow
def test_a_dropped_table_stays_aside_and_its_name_is_free(lake: Lake) -> None:
    sink = lake.begun()
    lake.put(sink, t=inserts((1, "a")))
    point = lake.ddl(sink, "DROP TABLE t")
    lake.ddl(sink, "CREATE TABLE t (id INT PRIMARY KEY)")
    assert lake.rows() == []
    aside = lake.folder / f"_penstock/dropped/{point.commit_ts}"
    assert LakeReader(aside).table("shop", "t").rows() == [(1, "a")]


@pytest.mark.slow
def test_names_that_no_url_takes_are_spelt_out(lake: Lake) -> None:
    sink = lake.begun()
    lake.ddl(sink, "CREATE TABLE `Größe #1` (id INT PRIMARY KEY)")
    lake.put(sink, **{"Größe #1": inserts((1,))})
    assert lake.rows("Gr~C3~B6~C3~9Fe~20~231") == [(1,)]


def test_someone_elses_commit_stops_the_drainer_with_both_versions(lake: Lake) -> None:
    sink = lake.begun()
    lake.put(sink, t=inserts((1, "a")))
    known = lake.table().version()
    lake.table().optimize.compact()  # Changes no row.
    lake.table().vacuum(dry_run=False)
    lake.put(sink, t=inserts((2, "b")))
    lake.table().delete("id = 1")
    now = lake.table().version()
    assert now > known + 1
    for each in (sink, lake.open()):
        each.load_checkpoint()
        with pytest.raises(NeedsOperator, match=rf"at version {now}, .* is {now - 1}"):
            lake.put(each, t=inserts((3, "c")))
    accepting = lake.open(f"accept=shop.t@{now}")
    accepting.load_checkpoint()
    lake.put(accepting, t=inserts((3, "c")))
    assert lake.rows() == [(2, "b"), (3, "c")]
    later = lake.open()
    later.load_checkpoint()
    lake.put(later, t=inserts((4, "d")))


@pytest.mark.slow
def test_a_table_that_went_back_stops_the_drainer(lake: Lake) -> None:
    sink = lake.begun()
    lake.put(sink, t=inserts((1, "a")))
    version = lake.table().version()
    (lake.folder / f"shop/t/_delta_log/{version:020}.json").unlink()
    following = lake.open()
    following.load_checkpoint()
    with pytest.raises(NeedsOperator, match=rf"at version {version - 1}, .* is {version}"):
        lake.put(following, t=inserts((2, "b")))


@pytest.mark.parametrize("is_crash", [False, True])
def test_a_table_without_a_key_that_is_ahead_of_the_checkpoint_gets_no_row_twice(
    lake: Lake, is_crash: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The checkpoint was restored without the tables, or a crash left a batch of other settings."""
    sink = lake.begun()
    at = lake.put(sink, t=inserts((1, "a")), heap=inserts((1, "h")))
    known = lake.table("heap").version()
    backup = shutil.copytree(lake.folder / "_penstock", lake.folder.parent / "backup")
    with monkeypatch.context() as patched, suppress(Crash):
        crash_at(patched, "rows_changed", 1 if is_crash else 2)
        lake.put(sink, t=inserts((2, "b")), heap=inserts((2, "h")))
    if not is_crash:
        shutil.rmtree(lake.folder / "_penstock")
        backup.rename(lake.folder / "_penstock")
    following, more = lake.open(), inserts((2, "h"), (3, "i"))
    found = present(following.load_checkpoint())
    assert found.commit_ts == at.commit_ts
    with pytest.raises(NeedsOperator, match=f"has changes up to {at.commit_ts + 1}, .*twice"):
        lake.put(following, t=inserts((2, "b"), (3, "c")), heap=more)
    lake.table("heap").restore(known)
    version = lake.table("heap").version()
    accepting = lake.open(f"accept=shop.heap@{version}")
    accepting.load_checkpoint()
    lake.put(accepting, t=inserts((2, "b"), (3, "c")), heap=more)
    lake.put(accepting, heap=inserts((4, "j")))
    assert lake.rows() == [(1, "a"), (2, "b"), (3, "c")]
    assert lake.rows("heap") == [(1, "h"), (2, "h"), (3, "i"), (4, "j")]


def test_while_another_program_holds_the_folder_the_sink_waits_and_says_so(lake: Lake) -> None:
    lake.begun()
    impatient = lake.open(retry_s_max=0.0)
    with locked(lake.folder), pytest.raises(Retryable, match=r"another program holds \.lock"):
        impatient.load_checkpoint()
    assert impatient.load_checkpoint() is not None
