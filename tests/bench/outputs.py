"""Changes into a lake and into files, against the bare writing of the same.

    outputs.delta.commit         the sink: changes merged, versions and checkpoint stored, synced
    outputs.delta.blocks         a task: compacted rows to blocks of Arrow, on one core
    outputs.delta.lines          the sink, CPU: lines of a change log that are in files of tasks,
                                 against lines that come as blocks and are written by the sink
    outputs.files.<size>         the sink: batches as the tasks hand them over, savepoint included
    outputs.files.encode.<size>  a task: rows to records, on one core

A lake's batch has 20,000 changes: a half updates, a quarter inserts, a quarter deletes. The bare
side opens its table once, as the sink does, syncs nothing and stores no checkpoint. Batches of
files are as large as a Drainer cuts them. The raw side writes a batch with one `write`, and then
syncs as the sink does: the file, and a small file that is written beside, synced and renamed, and
the folder. The sides take turns, and the best round of each counts: others use the disk, too.
"""

import os
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
from deltalake import DeltaTable

from drainer.settings.targets import FilesTarget
from drainer.sinks.checkpoint import Checkpoint
from drainer.sinks.delta.lake import OWN
from drainer.sinks.files.sink import FileSink
from drainer.task.events.event_unit import TIDB_BINLOG_FILE, Encoding, answer, event_units
from drainer.task.events.messages import Messages
from drainer.task.sql import lake_files
from drainer.task.sql.lake_files import read_file
from drainer.task.sql.lake_merge import by_table, pieces_of
from drainer.task.sql.lake_rows import COMES, GOES, OP
from drainer.task.work_unit import Batch, TableRows
from penstock.datum.rows.row_codec import RowCodec
from penstock.ddl import Catalog, plan_ddl
from penstock.log.files import replace_file
from penstock.wire.binlog import MutationType
from tests.bench.rig import Figure, sized
from tests.kit.opened_sinks import open_event_sink, open_lake_sink
from tests.kit.sink_target import sink_target
from tests.kit.workloads.sink_stream import Change, ChangeStream, LakeStream, inserts

CHANGES = 20_000
LINES = 100_000
ROUNDS = sized(7, 2)
_TEXT = "x" * 100


def measure_delta(home: Path) -> Iterator[Figure]:
    """Yield the seconds of a commit, and the CPU time of a changed row's way to Arrow."""
    stream, ours_s, bare_s, blocks_s = LakeStream(), [], [], []
    url = f"delta://{home}/lake?interval=0&optimize=0"
    with closing(open_lake_sink(url, cluster_id=1)) as sink:
        sink.load_checkpoint()
        columns = "id INT PRIMARY KEY, k INT, c VARCHAR(120)"
        stream.ddl(sink, "CREATE DATABASE shop", f"CREATE TABLE t ({columns})")
        stream.put(sink, t=[(None, (n, 0, _TEXT)) for n in range(CHANGES)])
        bare = DeltaTable.create(home / "bare", DeltaTable(home / "lake/shop/t").schema())
        (run,) = (home / "lake" / OWN / "incoming").iterdir()
        for number in range(ROUNDS):
            units = stream.units({"t": _changes(number)})
            begun_s = time.process_time()
            answers = [answer(unit) for unit in units]
            blocks_s.append(time.process_time() - begun_s)
            blocks = stream.in_order(answers)
            bare_s.append(_bare(bare, blocks, run))
            begun_s = time.monotonic()
            sink.apply(blocks, stream.point())
            ours_s.append(time.monotonic() - begun_s)
    detail = {
        "changes": CHANGES,
        "rounds": ROUNDS,
        "baseline": "deltalake's merge alone: no sync, no versions, no checkpoint",
    }
    yield Figure("outputs.delta.commit", min(ours_s), "s", min(bare_s), detail)
    yield Figure("outputs.delta.blocks", min(blocks_s) / CHANGES * 1e6, "us/row")
    yield from _measure_lines(home)


def _measure_lines(home: Path) -> Iterator[Figure]:
    """Yield the CPU time of a line of a change log in the sink, and in the task beside it."""
    stream = ChangeStream()
    cpu_s: dict[int, list[tuple[float, float]]] = {LINES + 1: [], 1: []}
    url = f"delta://{home}/log?mode=changes&interval=0&optimize=0"
    with closing(open_event_sink(url, cluster_id=1)) as sink:
        sink.load_checkpoint()
        columns = "id INT PRIMARY KEY, k INT, c VARCHAR(120)"
        stream.ddl(sink, "CREATE DATABASE shop", f"CREATE TABLE t ({columns})")
        for _ in range(ROUNDS):
            for rows_min, found in cpu_s.items():
                lake_files.FILE_ROWS_MIN = rows_min
                point = stream.point()
                rows = ((n, n % 7, f"{_TEXT}{n * point.commit_ts}") for n in range(LINES))
                batch = stream.batch({point.commit_ts: {"t": inserts(*rows)}})
                (unit,) = event_units(batch, sink.encoding, 1)
                payload, begun_s = unit.encode(), time.process_time()
                answered, made_s = answer(payload), time.process_time()
                sink.put([Messages.decode(answered)], point)
                found.append((time.process_time() - made_s, made_s - begun_s))
    best = {key: [min(side) / LINES * 1e6 for side in zip(*found, strict=True)]
            for key, found in cpu_s.items()}  # fmt: skip
    (sent, sent_task), (filed, filed_task) = best.values()
    tasks = {"lines": LINES, "task_us_per_row": round(filed_task, 2),
             "task_us_per_row_of_blocks": round(sent_task, 2)}  # fmt: skip
    yield Figure("outputs.delta.lines", filed, "us/row", sent, tasks)


def _changes(number: int) -> list[Change]:
    """Return a round's changes: what one inserts, the next one deletes."""
    half, quarter = CHANGES // 2, CHANGES // 4
    base = (number + 1) * CHANGES
    changes: list[Change] = [((n, number, _TEXT), (n, number + 1, _TEXT)) for n in range(half)]
    changes += [(None, (base + n, 0, _TEXT)) for n in range(quarter)]
    former = [base - CHANGES + n for n in range(quarter)] if number else range(half, half + quarter)
    changes += [((key, 0, _TEXT), None) for key in former]
    return changes


def _bare(table: DeltaTable, blocks: list[bytes], run: Path) -> float:
    """Return the seconds of a merge; `run` has the files that the blocks name."""
    (changes,) = by_table(blocks)
    changes.pieces = pieces_of(changes, partial(read_file, run))
    rows = changes.rows()
    values = {name: f"s.{name}" for name in rows.column_names if name != OP}
    begun_s = time.monotonic()
    (
        table.merge(rows, "t.id = s.id", source_alias="s", target_alias="t")
        .when_matched_delete(f"s.{OP} = {GOES}")
        .when_matched_update(values)
        .when_not_matched_insert(values, f"s.{OP} = {COMES}")
        .execute()
    )
    return time.monotonic() - begun_s


SIZES = {"small": (1, 100), "large": (200, 1000)}
"""Rows of a transaction, and bytes of a row."""
BATCH_BYTES = 8 << 20
TOTAL_BYTES = sized(256, 16) << 20
FILE_BYTES_MAX = 512 << 20
FILE_ROUNDS = 3


def measure_files(home: Path) -> Iterator[Figure]:
    """Yield MB/s of records for each size of transactions."""
    for kind, (rows, row_bytes) in SIZES.items():
        batch = _batch(rows, row_bytes)
        units = [unit.encode() for unit in event_units(batch, Encoding(TIDB_BINLOG_FILE), 1)]
        begun_s = time.process_time()
        answers = [answer(unit) for unit in units]
        encode_s = time.process_time() - begun_s
        messages = [Messages.decode(each) for each in answers]
        size = sum(len(each.joined()[0]) for each in messages)
        batches = max(1, TOTAL_BYTES // size)
        ours_s: list[float] = []
        raw_s: list[float] = []
        for number in range(FILE_ROUNDS):
            raw_s.append(_raw_files(home / f"raw-{number}", messages, batches))
            ours_s.append(_written(home / f"ours-{number}", messages, batches))
        detail = {
            "bytes": batches * size,
            "transactions": batches * len(batch.commit_ts),
            "rounds": FILE_ROUNDS,
            "baseline": "one write and the same syncs per batch",
        }
        yield Figure(
            f"outputs.files.{kind}",
            batches * size / min(ours_s) / 1e6,
            "MB/s",
            batches * size / min(raw_s) / 1e6,
            detail,
        )
        changes = len(batch.tables[0].rows)
        yield Figure(
            f"outputs.files.encode.{kind}",
            size / encode_s / 1e6,
            "MB/s",
            None,
            {"cpu_us_per_row": round(encode_s / changes * 1e6, 2)},
        )


def _batch(rows: int, row_bytes: int) -> Batch:
    catalog, ids = Catalog(), iter(range(1, 10))
    for sql in ("CREATE DATABASE s", "CREATE TABLE s.t (id INT PRIMARY KEY, k INT, c TEXT)"):
        for job in plan_ddl(sql, None, catalog, lambda: next(ids)):
            catalog.apply(job)
    table = catalog.table("s", "t")
    assert table is not None
    codec, text = RowCodec(table), "x" * row_bytes
    transactions = BATCH_BYTES // (rows * (row_bytes + 20))
    made = [codec.encode_insert((n, n % 7, text)) for n in range(rows * transactions)]
    numbers = np.repeat(np.arange(transactions, dtype=np.int32), rows)
    kinds = bytes([MutationType.INSERT]) * len(made)
    held = TableRows("s", table, kinds, pa.array(made, pa.large_binary()), numbers)
    return Batch(1, [held], commit_ts=range(1, transactions + 1))


def _written(folder: Path, messages: Sequence[Messages], batches: int) -> float:
    url = f"file://{folder}?max-file-size={FILE_BYTES_MAX}"
    with closing(FileSink(sink_target(FilesTarget, url), cluster_id=1, retry_s_max=0)) as sink:
        sink.load_checkpoint()
        begun_s = time.monotonic()
        for number in range(batches):
            sink.put(messages, Checkpoint(1000 + number, 1))
        seconds = time.monotonic() - begun_s
    shutil.rmtree(folder)
    return seconds


def _raw_files(folder: Path, messages: Sequence[Messages], batches: int) -> float:
    folder.mkdir()
    content = [bytes(each.joined()[0]) for each in messages]
    descriptor = os.open(folder / "raw", os.O_WRONLY | os.O_CREAT)
    begun_s = time.monotonic()
    for _ in range(batches):
        for each in content:
            os.write(descriptor, each)
        os.fdatasync(descriptor)
        replace_file(folder / "savepoint", bytes(500))
    seconds = time.monotonic() - begun_s
    os.close(descriptor)
    shutil.rmtree(folder)
    return seconds
