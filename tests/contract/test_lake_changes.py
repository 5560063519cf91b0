"""What a lake of change logs promises, as Polars sees it: each change once, in its order."""

import copy
from collections.abc import Callable, Generator, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from drainer.settings.config import ApplyConfig, DrainerConfig
from drainer.sinks.checkpoint import Checkpoint
from drainer.sinks.opening import open_sink
from drainer.sinks.protocol import EventSink
from drainer.task.events.messages import Messages
from drainer.task.sql import lake_files
from drainer.task.work_unit import Batch
from penstock.errors import Malformed, NeedsOperator
from penstock.ts import compose
from tests.contract.test_lake_sink import Crash, crash_at
from tests.kit.delta.lake_reader import LakeReader
from tests.kit.opened_sinks import open_event_sink
from tests.kit.wait import present
from tests.kit.workloads.sink_stream import Change, ChangeStream, Transactions, inserts

CLUSTER = 7
Line = tuple[int, int, str, object, object]
"""commit_ts, number, kind, and the two columns of a table."""


class Log(ChangeStream):
    """A lake of change logs, its sinks, a stream for it, and a reader."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = folder
        self.reader = LakeReader(folder)
        self.sinks: list[EventSink] = []

    def open(self, options: str = "") -> EventSink:
        url = f"delta://{self.folder}?mode=changes&interval=0&{options}".rstrip("&")
        sink = open_event_sink(url, cluster_id=CLUSTER)
        self.sinks.append(sink)
        return sink

    def begun(self, options: str = "") -> EventSink:
        sink = self.open(options)
        sink.load_checkpoint()
        sink.look_at(self.catalog)
        self.ddl(
            sink,
            "CREATE DATABASE shop",
            "CREATE TABLE t (id INT PRIMARY KEY, v VARCHAR(20))",
            "CREATE TABLE u (id INT PRIMARY KEY, v VARCHAR(20))",
        )
        return sink

    def following(self) -> EventSink:
        """Return the sink of a run after a crash."""
        sink = self.open()
        sink.load_checkpoint()
        sink.look_at(self.catalog)
        return sink

    def lines(self, name: str = "t", version: int | None = None) -> list[Line]:
        found = self.reader.log("shop", name, version)
        return [
            (each["_commit_ts"], each["_seq"], each["_op"], each["id"], each.get("v"))
            for each in found
        ]


@pytest.fixture(params=[5000, 1], ids=["blocks", "files"])
def log(
    tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Log]:
    """Return a log whose lines come as blocks, or in files that tasks have written."""
    monkeypatch.setattr(lake_files, "FILE_ROWS_MIN", request.param)
    made = Log(tmp_path / "lake")
    yield made
    for sink in made.sinks:
        sink.close()


def test_each_change_is_a_line_with_its_kind_and_its_place(log: Log) -> None:
    sink = log.begun()
    one, two = compose(1_700_000_000_123, 1), compose(1_700_000_000_123, 2)
    changes: list[Change] = [((1, "a"), (2, "A")), (None, (3, "c")), ((2, "A"), None)]
    transactions: Transactions = {
        one: {"t": inserts((1, "a")), "u": inserts((9, "x"))},
        two: {"t": changes, "u": [((9, "x"), None)]},
    }
    sink.put(log.messages(sink, log.batch(transactions)), Checkpoint(two, log.catalog.version))
    assert log.lines() == [
        (one, 0, "insert", 1, "a"),
        (two, 0, "update_preimage", 1, "a"),
        (two, 1, "update_postimage", 2, "A"),
        (two, 2, "insert", 3, "c"),
        (two, 3, "delete", 2, "A"),
    ]
    assert log.lines("u") == [(one, 1, "insert", 9, "x"), (two, 4, "delete", 9, "x")]
    last = log.reader.log("shop", "u")[-1]
    assert last["_start_ts"] == two - 1
    assert last["_commit_time"] == datetime(2023, 11, 14, 22, 13, 20, 123_000, tzinfo=UTC)
    assert log.reader.states()[two].keys() == {("shop", "t"), ("shop", "u")}


@pytest.mark.parametrize("log", [5000], indirect=True)
def test_two_tables_that_are_one_downstream_have_their_changes_in_commit_order(log: Log) -> None:
    """Not only by a reader's sort: a small commit's lines are in its file as they were made."""
    sink = log.begun()
    stamps = [1000, 1001, 1002]
    held = [
        log.table_rows("t", inserts(*((first + n, "x") for n in range(3))), range(3))
        for first in (10, 20)
    ]
    sink.put(log.messages(sink, Batch(1, held, commit_ts=stamps)), Checkpoint(1002, 1))
    rows = DeltaTable(log.folder / "shop/t").to_pyarrow_table().to_pydict()
    assert rows["_commit_ts"] == [1000, 1000, 1001, 1001, 1002, 1002]
    assert rows["_seq"] == [0, 1] * 3
    assert rows["id"] == [10, 20, 11, 21, 12, 22]
    assert rows["_start_ts"] == [None] * 6


def test_a_large_transaction_is_numbered_throughout_and_one_commit(log: Log) -> None:
    sink = log.begun()
    point = log.point()

    def slices() -> Generator[Messages]:
        for number in range(3):
            change: list[Change] = [((number, "a"), (number, "b"))]
            tables = {"t": change, "u": inserts((number, "x"))}
            yield from log.messages(sink, log.batch({point.commit_ts: tables}, is_slice=True))

    before = DeltaTable(log.folder / "shop/t").version()
    sink.put_slices(slices, point)
    assert DeltaTable(log.folder / "shop/t").version() == before + 1
    numbers = [line[1] for line in (*log.lines(), *log.lines("u"))]
    assert sorted(numbers) == list(range(9))
    assert [line[1] for line in log.lines("u")] == [2, 5, 8]


STEPS = (
    ("table_committed", 1),
    *(
        pytest.param(step, passing, marks=pytest.mark.slow)
        for step, passing in (
            ("transaction_begun", 1),
            ("transaction_begun", 2),
            ("table_committed", 2),
            ("rows_changed", 1),
            ("versions_stored", 1),
            ("transaction_committed", 1),
        )
    ),
)


@pytest.mark.parametrize(("step", "passing"), STEPS)
@pytest.mark.parametrize(
    "is_larger", [pytest.param(False, marks=pytest.mark.slow), True], ids=["same", "larger"]
)
def test_what_a_crash_left_is_completed_and_nothing_is_there_twice(
    log: Log, step: str, passing: int, is_larger: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also by a batch that was cut elsewhere, of which a table has the first part."""
    sink = log.begun()
    transactions: dict[int, dict[str, list[Change]]] = {
        1000: {"t": inserts((1, "a")), "u": inserts((1, "x"))},
        1001: {"t": [((1, "a"), (1, "b"))], "u": [((1, "x"), None)]},
    }
    with monkeypatch.context() as patched:
        crash_at(patched, step, passing)
        with pytest.raises(Crash):
            sink.put(log.messages(sink, log.batch(transactions)), Checkpoint(1001, 1))
    following = log.following()
    if is_larger:
        transactions[1002] = {"t": [((1, "b"), None)], "u": inserts((2, "y"))}
    last = max(transactions)
    stored = present(following.load_checkpoint())
    if stored.commit_ts < 1001 or is_larger:
        following.put(log.messages(following, log.batch(transactions)), Checkpoint(last, 1))
    changes = [("insert", "a"), ("update_preimage", "a"), ("update_postimage", "b")]
    assert [line[2::2] for line in log.lines()] == changes + [("delete", "b")] * is_larger
    assert [line[2::2] for line in log.lines("u")] == [
        ("insert", "x"),
        ("delete", "x"),
        *[("insert", "y")] * is_larger,
    ]


def test_earlier_changes_stay_readable_whatever_ddl_does_to_the_columns(log: Log) -> None:
    sink = log.begun()
    log.ddl(sink, "CREATE TABLE k (id INT PRIMARY KEY, n TINYINT, gone VARCHAR(9))")
    log.put(sink, k=inserts((1, 5, "old")))
    log.ddl(sink, "ALTER TABLE k DROP COLUMN gone, CHANGE n m TINYINT, ADD COLUMN w INT DEFAULT 7")
    log.put(sink, k=[((1, 5, 7), (1, 6, 8))])
    log.ddl(sink, "ALTER TABLE k MODIFY m BIGINT")
    log.ddl(sink, "ALTER TABLE k ADD COLUMN gone VARCHAR(5)")
    last = log.put(sink, k=inserts((2, 2**40, None, "new")))
    found = log.reader.log("shop", "k")
    assert [(r["_op"], r["id"], r["n"], r["gone"], r["m"], r["w"]) for r in found] == [
        ("insert", 1, 5, "old", None, None),
        ("update_preimage", 1, None, None, 5, 7),
        ("update_postimage", 1, None, None, 6, 8),
        ("insert", 2, None, "new", 2**40, None),
    ]
    texts = [text for ts, schema, text in log.reader.statements() if ts < last.commit_ts]
    assert texts[-3].startswith("ALTER TABLE `k` DROP COLUMN gone")


def test_truncate_is_a_line_and_a_dropped_log_stays_for_good(log: Log) -> None:
    sink = log.begun("optimize=1s")
    first = log.put(sink, t=inserts((1, "a")))
    truncated = log.ddl(sink, "TRUNCATE TABLE t")
    assert log.lines() == [
        (first.commit_ts, 0, "insert", 1, "a"),
        (truncated.commit_ts, 0, "truncate", None, None),
    ]
    dropped = log.ddl(sink, "DROP TABLE t")
    aside = LakeReader(log.folder / f"_penstock/dropped/{dropped.commit_ts}")
    assert len(aside.log("shop", "t")) == 2


def test_a_type_that_earlier_changes_do_not_fit_stops_before_anything_is_done(log: Log) -> None:
    sink = log.begun()
    before = log.put(sink, t=inserts((1, "a")))
    log.ddl(sink, "ALTER TABLE t DROP COLUMN v")
    with pytest.raises(NeedsOperator, match="the change log has 'v' as string"):
        log.ddl(sink, "ALTER TABLE t ADD COLUMN v DATE")
    assert log.lines() == [(before.commit_ts, 0, "insert", 1, "a")]


@pytest.mark.parametrize("name", [pytest.param("_op", marks=pytest.mark.slow), "_Commit_TS"])
def test_a_column_with_the_name_of_one_of_the_logs_own_is_refused(log: Log, name: str) -> None:
    sink = log.begun()
    with pytest.raises(Malformed, match="which a change log has of its own"):
        log.ddl(sink, f"CREATE TABLE own (id INT PRIMARY KEY, {name} INT)")


def test_compaction_keeps_the_order_that_a_reader_sorts_by_and_every_state(log: Log) -> None:
    sink = log.begun("optimize=0")
    points = [log.put(sink, t=inserts((number, "x"))) for number in range(5)]
    wanted = log.lines()
    tidy = log.following()
    for _ in range(8):
        tidy.save_checkpoint(points[-1])
    assert len(DeltaTable(log.folder / "shop/t").file_uris()) == 1
    assert log.lines() == wanted
    counts = tidy.file_counts
    assert (counts.compactions, counts.files_removed, counts.files_added) == (1, 5, 1)
    assert (counts.commits, counts.rows, counts.last_commit_s) == (0, 0, 0)
    counts = sink.file_counts
    assert (counts.commits, counts.rows, counts.files_added) == (5, 5, 5)
    assert counts.last_commit_s > 0
    version = log.reader.states()[points[1].commit_ts]["shop", "t"]
    assert log.lines("t", version) == wanted[:2]


def test_tables_from_before_the_first_commit_get_a_log_when_something_is_written(log: Log) -> None:
    log.changes("CREATE DATABASE shop")
    log.changes("CREATE TABLE t (id INT PRIMARY KEY, v VARCHAR(20))")
    sink = log.following()
    log.put(sink, t=inserts((1, "a")))
    assert [line[2:] for line in log.lines()] == [("insert", 1, "a")]


@pytest.mark.slow
def test_a_table_from_before_that_was_dropped_is_not_made_again_after_a_crash(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    log.changes("CREATE DATABASE shop")
    log.changes("CREATE TABLE t (id INT PRIMARY KEY)")
    earlier = copy.deepcopy(log.catalog)
    (change,) = log.changes("DROP TABLE t")
    point = log.point()
    for is_crash in (True, False):
        sink = log.open()
        sink.load_checkpoint()
        sink.look_at(earlier)
        with monkeypatch.context() as patched:
            if not is_crash:
                sink.run_ddl(change, point, maybe_done=True)
                continue
            crash_at(patched, "ddl_run", 1)
            with pytest.raises(Crash):
                sink.run_ddl(change, point, maybe_done=False)
    assert not (log.folder / "shop/t").exists()
    assert (log.folder / f"_penstock/dropped/{point.commit_ts}/shop/t").exists()


@pytest.mark.parametrize(("one", "other"), [("mirror", "changes"), ("changes", "mirror")])
def test_a_lake_of_one_mode_is_not_opened_with_the_other(tmp_path: Path, one: str,
                                                         other: str) -> None:  # fmt: skip
    url: Callable[[str], str] = f"delta://{tmp_path}/lake?interval=0&mode={{}}".format
    stream = ChangeStream()
    first = open_sink(url(one), cluster_id=CLUSTER)
    first.load_checkpoint()
    stream.ddl(first, "CREATE DATABASE shop", "CREATE TABLE t (id INT PRIMARY KEY)")
    second = open_sink(url(other), cluster_id=CLUSTER)
    with pytest.raises(NeedsOperator, match=f"was begun with mode={one}"):
        second.load_checkpoint()
    assert open_sink(url(one), cluster_id=CLUSTER).load_checkpoint() is not None


def test_the_settings_know_that_a_change_log_takes_events() -> None:
    url = "delta:///srv/lake?mode=changes"
    assert DrainerConfig(sink=url).strategy == "events"
    wrong: list[dict[str, Any]] = [{"strategy": "merge"}, {"mode": "parallel"}]
    for each in wrong:
        with pytest.raises(NeedsOperator):
            DrainerConfig(sink=url, apply=ApplyConfig(**each))


ALL_DDL = (
    "CREATE TABLE x (id INT PRIMARY KEY, v VARCHAR(20), n INT)",
    "ALTER TABLE x ADD COLUMN w INT NOT NULL DEFAULT 7",
    "ALTER TABLE x CHANGE COLUMN v z VARCHAR(40), MODIFY COLUMN n BIGINT",
    "ALTER TABLE x DROP COLUMN w",
    "RENAME TABLE t TO y, u TO t, y TO u",
    "TRUNCATE TABLE x",
    "DROP TABLE x, u",
    "DROP DATABASE shop",
)


@pytest.mark.slow
def test_every_ddl_may_be_run_again_when_a_crash_left_it_in_doubt(log: Log) -> None:
    log.begun()
    for sql in ALL_DDL:
        for change in log.changes(sql):
            before = log.open()  # It has no look at the catalog, which is beyond the DDL.
            last = present(before.load_checkpoint())
            point = log.point()
            before.run_ddl(change, point, maybe_done=False)
            before.save_checkpoint(last)
            after = log.open()
            after.load_checkpoint()
            after.run_ddl(change, point, maybe_done=True)
            if sql.startswith("TRUNCATE"):
                assert [line["_op"] for line in log.reader.log("shop", "x")] == ["truncate"]
    stamps = [ts for ts, _, _ in log.reader.statements()]
    assert len(set(stamps)) == len(stamps) == 3 + len(ALL_DDL)
