"""Files that tasks write for a change log: each is in its table once, or in no table at all."""

import json
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from deltalake import DeltaTable, QueryBuilder, write_deltalake

from drainer.sinks.checkpoint import Checkpoint
from drainer.sinks.delta import changes_sink
from drainer.sinks.protocol import EventSink
from drainer.task.events.event_unit import answer, event_units
from drainer.task.events.messages import Messages
from drainer.task.sql import lake_files
from drainer.task.work_unit import Batch
from penstock.errors import NeedsOperator, Retryable
from tests.contract.test_lake_changes import Log
from tests.contract.test_lake_sink import Crash
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


def incoming(log: Log) -> list[Path]:
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
    assert len(incoming(log)) == 1
    sink.put(messages, Checkpoint(1000, 1))
    assert ids(log) == [number for number, _ in ROWS]
    assert log.lines("u") == [(1000, 40, "insert", 1, "x")]
    assert log.reader.log("shop", "t")[7]["_start_ts"] == 999
    assert incoming(log) == []
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
    assert len(incoming(log)) == 3
    sink.put([Messages.decode(answers[1])], Checkpoint(1000, 1))
    assert ids(log) == [number for number, _ in ROWS]
    assert len(list((log.folder / "shop/t").glob("*.parquet"))) == 1
    assert len(incoming(log)) == 2


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
            patched.setattr(changes_sink.Incoming, "move", crash)
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
    real, tries = changes_sink.commit_files, []

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
    assert incoming(log) == []


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
    assert incoming(log) == []


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
    (file,) = incoming(log)
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
    (old,) = incoming(log)
    following = log.following()
    day_s = time.time() - 90_000
    os.utime(old.parent, (day_s, day_s))
    os.utime(old.parent.parent, (day_s, day_s))
    leave(following, log.batch({1000: {"t": inserts(*ROWS)}}))
    (fresh,) = set(incoming(log)) - {old}
    following.save_checkpoint(Checkpoint(999, 1))
    assert incoming(log) == [fresh]
    os.utime(old.parent.parent, (day_s, day_s))
    last = log.following()
    last.save_checkpoint(Checkpoint(1000, 1))
    assert not old.parent.parent.exists()
    assert incoming(log) == [fresh]
