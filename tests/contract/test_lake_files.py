"""Files that tasks write for a lake: each is in its table once, or in no table at all."""

import asyncio
import json
import os
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import polars as pl
import pytest
from deltalake import DeltaTable, QueryBuilder, write_deltalake

from drainer.apply.batches import HeldBatch
from drainer.build import build_strategy
from drainer.settings.config import DrainerConfig
from drainer.sinks.checkpoint import Checkpoint
from drainer.sinks.delta import changes_sink, incoming
from drainer.sinks.delta import sink as sink_module
from drainer.sinks.opening import SinkThread
from drainer.sinks.protocol import EventSink
from drainer.spark.dispatcher import Dispatcher
from drainer.task.events.event_unit import event_units
from drainer.task.events.messages import Messages
from drainer.task.held_unit import answer
from drainer.task.sql import lake_files, lake_merge
from drainer.task.sql.lake_merge import by_table, candidates
from drainer.task.sql.lake_rows import Block
from drainer.task.sql.literals import ARROW
from drainer.task.work_loop import serve
from drainer.task.work_unit import Batch
from penstock.errors import NeedsOperator, Retryable
from tests.contract.test_lake_changes import Log
from tests.contract.test_lake_sink import Crash, Lake
from tests.kit.delta.spark_reader import SparkReader
from tests.kit.wait import present
from tests.kit.workloads.sink_stream import Change, inserts

ROWS = [(number, f"row {number}") for number in range(40)]


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Log]:
    monkeypatch.setattr(lake_files, "FILE_ROWS_MIN", 20)
    made = Log(tmp_path / "lake")
    yield made
    for sink in made.sinks:
        sink.close()


def waiting(log: Log) -> list[Path]:
    """Return the files that no table has taken, of all runs."""
    return sorted((log.folder / "_penstock/incoming").glob("*/*/*.parquet"))


def ids(log: Log) -> list[object]:
    return [line[3] for line in log.lines()]


def last_added(log: Log, name: str) -> list[dict[str, Any]]:
    table = DeltaTable(log.folder / "shop" / name)
    entry = log.folder / "shop" / name / "_delta_log" / f"{table.version():020}.json"
    actions = [json.loads(line) for line in entry.read_text(encoding="utf-8").splitlines()]
    return [each["add"] for each in actions if "add" in each]


def test_a_large_block_is_a_file_whose_rows_do_not_come_to_the_drainer(log: Log) -> None:
    sink = log.begun()
    batch = log.batch({1000: {"t": inserts(*ROWS), "u": inserts((1, "x"))}})
    messages = log.messages(sink, batch)
    values = [present(message.value) for each in messages for _, message in each]
    assert [b"row 17" in value for value in values] == [False, False]
    assert [b"part-0" in value for value in values] == [True, False]
    assert len(waiting(log)) == 1
    sink.put(messages, Checkpoint(1000, 1))
    assert ids(log) == [number for number, _ in ROWS]
    assert log.lines("u") == [(1000, 40, "insert", 1, "x")]
    assert log.reader.log("shop", "t")[7]["_start_ts"] == 999
    assert waiting(log) == []
    assert (sink.file_counts.commits, sink.file_counts.rows) == (2, 41)


def test_statistics_and_rows_are_those_that_deltalake_writes_in_the_drainer(
    log: Log, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = Log(tmp_path / "other")
    found = []
    for each, rows_min in ((log, 20), (other, 1000)):
        monkeypatch.setattr(lake_files, "FILE_ROWS_MIN", rows_min)
        sink = each.begun()
        columns = "id INT PRIMARY KEY, d DECIMAL(12,3), f DOUBLE, w TIMESTAMP, s TEXT, b BLOB"
        each.ddl(sink, f"CREATE TABLE k ({columns})")
        wide = [(n, f"{n}.125", n / 7, f"2026-11-{n % 9 + 1:02} 01:02:03", "é" * n, b"\xff" * n)
                if n else (0, None, None, None, None, None) for n in range(40)]  # fmt: skip
        sink.put(
            each.messages(sink, each.batch({1000: {"k": inserts(*wide)}})), Checkpoint(1000, 1)
        )
        (added,) = last_added(each, "k")
        stats = json.loads(added["stats"])
        found.append((stats, added["size"], each.reader.log("shop", "k")))
        sink.close()
    assert found[0] == found[1]
    assert found[0][0]["numRecords"] == 40
    assert found[0][0]["minValues"]["_commit_ts"] == 1000
    assert found[0][0]["nullCount"]["d"] == 1


def test_a_file_of_a_task_that_was_lost_or_done_again_is_in_no_table(log: Log) -> None:
    sink = log.begun()
    batch = log.batch({1000: {"t": inserts(*ROWS)}})
    (unit,) = event_units(batch, sink.encoding, 1)
    answers = [answer(unit.encode()) for _ in range(3)]
    assert len(waiting(log)) == 3
    sink.put([Messages.decode(answers[1])], Checkpoint(1000, 1))
    assert ids(log) == [number for number, _ in ROWS]
    assert len(list((log.folder / "shop/t").glob("*.parquet"))) == 1
    assert len(waiting(log)) == 2


@pytest.mark.parametrize("is_moved", [False, True])
def test_a_drainer_that_dies_before_the_commit_has_each_line_once_after_a_restart(
    log: Log, is_moved: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = log.begun()
    batch = log.batch({1000: {"t": inserts(*ROWS)}, 1001: {"t": [((1, "row 1"), None)]}})
    messages = log.messages(sink, batch, parts=1)

    def crash(*_: object) -> None:
        raise Crash

    with monkeypatch.context() as patched:
        if is_moved:
            patched.setattr(changes_sink, "commit_files", crash)
        else:
            patched.setattr(incoming.Incoming, "move", crash)
        with pytest.raises(Crash):
            sink.put(messages, Checkpoint(1001, 1))
    assert ids(log) == []
    following = log.following()
    following.put(log.messages(following, batch, parts=1), Checkpoint(1001, 1))
    assert sorted(map(str, ids(log))) == sorted([*(str(n) for n, _ in ROWS), "1"])
    assert len(DeltaTable(log.folder / "shop/t").file_uris()) == 1
    assert len(list((log.folder / "shop/t").glob("*.parquet"))) == 1 + is_moved


def test_a_failed_commit_is_tried_again_with_the_file_that_was_moved(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = log.begun()
    real, tries = incoming.commit_files, []

    def once(*arguments: Any) -> None:
        tries.append(arguments)
        if len(tries) == 1:
            raise OSError(11, "Resource temporarily unavailable")
        real(*arguments)

    monkeypatch.setattr(changes_sink, "commit_files", once)
    log.put(sink, t=inserts(*ROWS))
    assert len(tries) == 2
    assert ids(log) == [number for number, _ in ROWS]


def test_a_commit_of_somebody_else_beside_ours_stops_the_drainer(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether it came before our commit or right after it."""
    sink = log.begun()
    log.put(sink, t=inserts(*ROWS))
    real = DeltaTable.create_write_transaction

    def followed(table: DeltaTable, *arguments: Any, **named: Any) -> None:
        real(table, *arguments, **named)
        rows = DeltaTable(log.folder / "shop/t").to_pyarrow_table().slice(0, 1)
        write_deltalake(log.folder / "shop/t", rows, mode="append")

    with monkeypatch.context() as patched:
        patched.setattr(DeltaTable, "create_write_transaction", followed)
        log.put(sink, t=inserts(*((n + 100, v) for n, v in ROWS)))
    with pytest.raises(NeedsOperator, match="somebody else changed the Delta table"):
        log.put(sink, t=inserts(*((n + 200, v) for n, v in ROWS)))


def test_a_batch_of_which_a_table_has_the_first_part_adds_the_rest_of_a_file(log: Log) -> None:
    sink = log.begun()
    first: dict[int, dict[str, list[Change]]] = {1000: {"t": inserts(*ROWS)}}
    sink.put(log.messages(sink, log.batch(first)), Checkpoint(1000, 1))
    more: list[Change] = [((n, v), None) for n, v in ROWS]
    sink.put(log.messages(sink, log.batch({**first, 1001: {"t": more}}), 1), Checkpoint(1001, 1))
    assert [line[2] for line in log.lines()] == ["insert"] * 40 + ["delete"] * 40
    assert waiting(log) == []


def test_a_table_gets_small_blocks_and_files_of_a_batch_in_one_commit(log: Log) -> None:
    sink = log.begun()
    before = DeltaTable(log.folder / "shop/t").version()
    parts = [log.batch({1000: {"t": inserts(*ROWS)}}), log.batch({1001: {"t": inserts((99, "z"))}})]
    messages = [made for part in parts for made in log.messages(sink, part)]
    sink.put(messages, Checkpoint(1001, 1))
    assert DeltaTable(log.folder / "shop/t").version() == before + 1
    assert len(last_added(log, "t")) == 2
    assert ids(log) == [*(number for number, _ in ROWS), 99]


READERS: dict[str, Callable[[Path], list[dict[str, Any]]]] = {
    "pyarrow": lambda path: DeltaTable(path).to_pyarrow_table().to_pylist(),
    "datafusion": lambda path: pl.DataFrame(
        QueryBuilder().register("t", DeltaTable(path)).execute("SELECT * FROM t").read_all()
    ).to_dicts(),
    "polars": lambda path: pl.read_delta(str(path)).to_dicts(),
}


def with_spark(table: Path) -> list[dict[str, Any]]:
    with SparkReader(table.parents[2] / "spark") as spark:
        found: list[dict[str, Any]] = spark.read(table).to_pylist()
    return found


@pytest.mark.parametrize(
    "read",
    [*READERS.values(), pytest.param(with_spark, marks=pytest.mark.slow)],
    ids=[*READERS, "spark"],
)
def test_readers_find_columns_by_name_whatever_order_and_columns_a_file_has(
    log: Log, read: Callable[[Path], list[dict[str, Any]]]
) -> None:
    sink = log.begun()
    log.ddl(sink, "CREATE TABLE k (id INT PRIMARY KEY, n TINYINT, gone VARCHAR(9))")
    log.put(sink, k=inserts(*((n, n, "old") for n in range(30))))
    log.ddl(sink, "ALTER TABLE k DROP COLUMN gone, ADD COLUMN w INT FIRST")
    log.put(sink, k=inserts(*((7, n, 1) for n in range(30, 60))))
    (added,) = last_added(log, "k")
    assert "gone" not in json.loads(added["stats"])["nullCount"]
    found = sorted(read(log.folder / "shop/k"), key=lambda row: int(row["id"]))
    rows = [(row["id"], row["n"], row["gone"], row["w"]) for row in found]
    assert rows == [
        *((n, n, "old", None) for n in range(30)),
        *((n, 1, None, 7) for n in range(30, 60)),
    ]


def test_a_file_of_a_narrower_type_than_the_table_is_written_again_by_the_drainer(log: Log) -> None:
    sink = log.begun()
    log.ddl(sink, "CREATE TABLE k (id INT PRIMARY KEY, n BIGINT)")
    log.ddl(sink, "ALTER TABLE k MODIFY n TINYINT")
    log.put(sink, k=inserts(*((n, n) for n in range(30))))
    assert [line["n"] for line in log.reader.log("shop", "k")] == list(range(30))
    assert "int64" in str(DeltaTable(log.folder / "shop/k").to_pyarrow_table().schema.field("n"))
    assert waiting(log) == []


def test_a_task_that_does_not_see_the_lakes_folder_reports_the_path_and_the_remedy(
    log: Log,
) -> None:
    sink = log.begun()
    batch = log.batch({1000: {"t": inserts(*ROWS)}})
    shutil.rmtree(sink.encoding.folder)
    with pytest.raises(NeedsOperator, match=r"cannot write into the folder .*/incoming/") as raised:
        log.messages(sink, batch)
    assert "at the same path on every executor" in raised.value.hint
    assert not Path(sink.encoding.folder).exists()


@pytest.mark.parametrize("step", ["mkdir", "fsync"])
def test_a_task_whose_disk_is_full_sends_the_rows_and_leaves_no_file(
    log: Log, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = log.begun()

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(Path if step == "mkdir" else os, step, full)
        messages = log.messages(sink, log.batch({1000: {"t": inserts(*ROWS)}}))
    assert list(Path(sink.encoding.folder).iterdir()) == []
    sink.put(messages, Checkpoint(1000, 1))
    assert ids(log) == [number for number, _ in ROWS]


def test_an_executor_without_deltalake_sends_the_rows(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = log.begun()
    with monkeypatch.context() as patched:
        patched.setitem(sys.modules, "deltalake.exceptions", None)
        messages = log.messages(sink, log.batch({1000: {"t": inserts(*ROWS)}}))
    assert list(Path(sink.encoding.folder).iterdir()) == []
    sink.put(messages, Checkpoint(1000, 1))
    assert ids(log) == [number for number, _ in ROWS]


@pytest.mark.parametrize("is_cut", [False, True])
def test_a_file_that_is_missing_or_cut_at_the_commit_ends_the_run_and_is_written_again(
    log: Log, is_cut: bool
) -> None:
    sink = log.begun()
    batch = log.batch({1000: {"t": inserts(*ROWS)}})
    messages = log.messages(sink, batch)
    (file,) = waiting(log)
    if is_cut:
        os.truncate(file, 100)
    else:
        file.unlink()
    with pytest.raises(Retryable, match="which a task wrote with"):
        sink.put(messages, Checkpoint(1000, 1))
    assert ids(log) == []
    following = log.following()
    following.put(log.messages(following, batch), Checkpoint(1000, 1))
    assert ids(log) == [number for number, _ in ROWS]


def test_upkeep_removes_what_no_commit_has_taken_for_a_day_and_folders_of_ended_runs(
    log: Log,
) -> None:
    sink = log.begun()

    def leave(sink: EventSink, batch: Batch) -> None:
        log.messages(sink, batch)

    leave(sink, log.batch({1000: {"t": inserts(*ROWS)}}))
    (old,) = waiting(log)
    following = log.following()
    day_s = time.time() - 90_000
    os.utime(old.parent, (day_s, day_s))
    os.utime(old.parent.parent, (day_s, day_s))
    leave(following, log.batch({1000: {"t": inserts(*ROWS)}}))
    (fresh,) = set(waiting(log)) - {old}
    following.save_checkpoint(Checkpoint(999, 1))
    assert waiting(log) == [fresh]
    os.utime(old.parent.parent, (day_s, day_s))
    last = log.following()
    last.save_checkpoint(Checkpoint(1000, 1))
    assert not old.parent.parent.exists()
    assert waiting(log) == [fresh]


# --- a mirror ----------------------------------------------------------------------------------


@pytest.fixture
def lake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lake]:
    """Return a lake into which tasks merge all changes."""
    monkeypatch.setattr(sink_module, "MERGE_ROWS_MIN", 0)
    made = Lake(tmp_path / "mirror")
    yield made
    for sink in made.sinks:
        sink.close()


KEYS: dict[str, tuple[str, list[object], int]] = {
    "int": ("BIGINT", [1, 2, 10**12, 10**12 + 1, -5, -4], 1),
    "unsigned": ("BIGINT UNSIGNED", [1, 2, 2**63 - 1, 2**63, 2**64 - 2, 2**64 - 1], 1),
    "text": ("VARCHAR(99)", ["a", "b", "x" * 80, "x" * 81, "\U0010ffff" * 20, "é"], 1),
    "day": ("DATE", ["2020-01-01", "2020-01-02", "2021-01-01", "2021-01-02", "1999-01-01",
                     "1999-01-02"], 1),
    "time": ("DATETIME(6)", [f"2020-01-01 00:00:00.12345{n}" for n in range(6)], 3),
    "decimal": ("DECIMAL(38,18)", [f"{n}.123456789012345678" for n in range(6)], 3),
}  # fmt: skip
"""Six keys of a type, two for each of three files, and how many of these a merge must read.

deltalake's statistics do not tell keys from 2^63 - 1 on apart."""


@pytest.mark.parametrize("kind", KEYS)
def test_a_merge_reads_the_files_that_may_have_a_key_and_finds_every_key(
    lake: Lake, kind: str
) -> None:
    sql, keys, count = KEYS[kind]
    sink = lake.begun("optimize=0")
    lake.ddl(sink, f"CREATE TABLE k (id {sql} PRIMARY KEY, n INT)")
    for at in (0, 2, 4):
        lake.put(sink, k=inserts(*((key, 0) for key in keys[at : at + 2])))
    for at in (0, 2, 4):
        (changes,) = by_table(lake.blocks({"k": [((keys[at], 0), (keys[at], 1))]}))
        found = candidates(lake.table("k"), changes)
        assert len(found) == (3 if kind == "unsigned" and at else count)
    for key in keys:
        lake.put(sink, k=[((key, 0), (key, 7))])
    assert [row[1] for row in lake.rows("k")] == [7] * 6
    lake.put(sink, k=[((key, 7), None) for key in keys[1:]])
    assert len(lake.rows("k")) == 1
    assert lake.asked == 3 + 6 + 1


def test_statistics_of_a_merge_are_those_that_deltalake_writes_in_the_drainer(
    lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = Lake(tmp_path / "other")
    found = []
    for each, rows_min in ((lake, 0), (other, 1000)):
        monkeypatch.setattr(sink_module, "MERGE_ROWS_MIN", rows_min)
        sink = each.begun()
        each.ddl(sink, "CREATE TABLE k (id INT PRIMARY KEY, w TIMESTAMP, s TEXT, d DECIMAL(9,2))")
        each.put(sink, k=inserts(*((n, "2026-11-01 00:00:00", "é" * n, f"{n}.50")
                                   for n in range(40))))  # fmt: skip
        each.put(sink, k=[((7, "2026-11-01 00:00:00", "é" * 7, "7.50"), (7, None, None, None))])
        entry = max((each.folder / "shop/k/_delta_log").glob("*.json"))
        actions = [json.loads(line) for line in entry.read_text(encoding="utf-8").splitlines()]
        (added,) = (action["add"] for action in actions if "add" in action)
        (removed,) = (action["remove"] for action in actions if "remove" in action)
        names = {path.name for path in (each.folder / "shop/k").glob("*.parquet")}
        assert {added["path"], removed["path"]} == names
        assert removed["size"] > 0
        assert removed["dataChange"] is True
        found.append((json.loads(added["stats"]), each.rows("k")))
        sink.close()
    assert found[0] == found[1]
    assert found[0][0]["nullCount"]["s"] == 1
    assert (lake.asked, other.asked) == (2, 0)
    assert list((lake.folder / "_penstock/incoming").glob("*/*")) == []


def test_a_drainer_that_dies_between_a_merge_and_its_commit_changes_each_row_once(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = lake.begun()
    lake.put(sink, t=inserts((1, "a"), (2, "b")), heap=inserts((1, "x"), (1, "x")))
    changes: dict[str, list[Change]] = {
        "t": [((1, "a"), (1, "A")), ((2, "b"), None)],
        "heap": [((1, "x"), None), (None, (2, "y"))],
    }
    real, commits = incoming.commit_files, []

    def crash(*arguments: Any) -> None:
        commits.append(arguments)
        if len(commits) == 2:
            raise Crash
        real(*arguments)

    point = lake.point()
    with monkeypatch.context() as patched:
        patched.setattr(sink_module, "commit_files", crash)
        with pytest.raises(Crash):
            sink.apply(lake.blocks(changes), point)
    following = lake.open()
    following.load_checkpoint()
    following.apply(lake.blocks(changes), point)
    assert lake.rows() == [(1, "A")]
    assert lake.rows("heap") == [(1, "x"), (2, "y")]


def test_rows_of_a_merge_in_files_of_tasks_are_merged_in_the_order_of_the_blocks(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A key that is deleted in one block and inserted by another is there, wherever they are."""
    monkeypatch.setattr(lake_files, "FILE_ROWS_MIN", 2)
    sink = lake.begun()
    lake.put(sink, t=inserts(*ROWS))
    moved: list[Change] = [((2, "row 2"), None), ((1, "row 1"), (2, "moved")), ((3, "row 3"), None)]
    point = lake.point()
    blocks = lake.blocks({"t": moved})
    assert [bool(Block.decode(each).files) for each in blocks] == [True, False]
    assert not any(b"moved" in each for each in blocks[:1])
    assert len(list(Path(sink.dialect.removeprefix(ARROW)).iterdir())) == 1
    sink.apply(blocks, point)
    assert lake.rows() == sorted([ROWS[0], (2, "moved"), *ROWS[4:]], key=repr)
    assert list(Path(sink.dialect.removeprefix(ARROW)).iterdir()) == []


def test_the_drainer_merges_if_a_task_cannot(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    sink = lake.begun()
    lake.put(sink, t=inserts((1, "a")))

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(lake_merge, "create_table_with_add_actions", fail)
        lake.put(sink, t=[((1, "a"), (1, "A"))])
    assert lake.rows() == [(1, "A")]
    assert lake.asked == 2
    assert list((lake.folder / "_penstock/incoming").glob("*/*")) == []
    lake.put(sink, t=[((9, "gone"), None)])  # Nothing to remove: the answer has no file.
    assert lake.rows() == [(1, "A")]


def test_the_drainer_merges_for_an_executor_without_deltalake(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = lake.begun()
    with monkeypatch.context() as patched:
        patched.setitem(sys.modules, "drainer.task.sql.lake_merge", None)
        lake.put(sink, t=inserts((1, "a")))
    assert lake.rows() == [(1, "a")]
    (commit,) = lake.table().history(1)
    assert (lake.asked, commit["operation"]) == (1, "MERGE")


def test_the_drainer_merges_into_a_table_with_properties_of_others(lake: Lake) -> None:
    sink = lake.begun("accept=shop.t@2")
    lake.put(sink, t=inserts((1, "a")))
    lake.table().alter.set_table_properties({"delta.enableChangeDataFeed": "true"})
    lake.put(sink, t=[((1, "a"), (1, "A"))])
    asked = lake.asked  # A merge into the version before, which was not committed, included.
    lake.put(sink, t=[((1, "A"), (1, "AA"))])
    assert lake.rows() == [(1, "AA")]
    assert lake.asked == asked
    (commit,) = lake.table().history(1)
    assert commit["operation"] == "MERGE"


def test_a_task_that_does_not_see_the_folder_of_a_mirror_stops_the_drainer(lake: Lake) -> None:
    sink = lake.begun()
    (run,) = (lake.folder / "_penstock/incoming").iterdir()
    run.rmdir()
    with pytest.raises(NeedsOperator, match="cannot write into the folder"):
        lake.put(sink, t=inserts((1, "a")))
    assert lake.rows() == []


def test_a_connected_task_merges_for_the_strategy_of_a_drainer(lake: Lake) -> None:
    """With the dispatcher, the loop of a task and the sink's thread, as in a Drainer."""
    sink = lake.begun()
    units = [lake.batch_of({ts: {"t": changes}}) for ts, changes in (
        (1000, inserts(*ROWS)), (1001, [((1, "row 1"), (1, "changed")), ((2, "row 2"), None)]),
    )]  # fmt: skip

    async def drain() -> None:
        dispatcher, thread = Dispatcher(), SinkThread()
        await dispatcher.start()
        address = ("127.0.0.1", dispatcher.port)
        task = asyncio.create_task(asyncio.to_thread(serve, address, dispatcher.token, 0, answer))
        components: Any = SimpleNamespace(
            dispatcher=dispatcher, task_count=1, sink=sink, thread=thread
        )
        config = DrainerConfig(sink=f"delta://{lake.folder}")
        strategy, _ = build_strategy(config, components, Checkpoint(0, 0))
        for number, batch in enumerate(units):
            held = HeldBatch(number, batch.tables, commit_ts=batch.commit_ts)
            prepared: Any = await strategy.prepare(held)  # No batch of a lake begins early.
            await prepared(Checkpoint(batch.commit_ts[-1], 1))
        await thread.close(10)
        await dispatcher.close()
        await task

    asyncio.run(drain())
    assert lake.rows() == sorted([ROWS[0], (1, "changed"), *ROWS[3:]], key=repr)
    assert [each["operation"] for each in lake.table().history(2)] == ["WRITE", "WRITE"]


def test_a_sink_that_is_closed_does_not_wait_for_tasks(lake: Lake) -> None:
    sink = lake.begun()
    closing = threading.Thread(target=sink.close)

    def ask(units: list[bytes]) -> Future[list[bytes]]:
        closing.start()
        return Future()

    sink.use_tasks(ask)
    with pytest.raises(Retryable, match="closed while tasks merge"):
        lake.put(sink, t=inserts((1, "a")))
    closing.join()
