"""Writing files of events, against the same bytes written raw with the same syncs.

    outputs.files.<size>         the sink: batches as the tasks hand them over, savepoint included
    outputs.files.encode.<size>  a task: rows to records, on one core; without a baseline

Batches are as large as a Drainer cuts them. The raw side writes a batch with one `write`, and then
syncs as the sink does: the file, and a small file that is written beside, synced and renamed, and
the folder. The sides take turns, and the best round of each counts: others use the disk, too.
"""

import os
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path

import numpy as np
import pyarrow as pa

from drainer.settings.targets import FilesTarget
from drainer.sinks.checkpoint import Checkpoint
from drainer.sinks.files.sink import FileSink
from drainer.task.events.event_unit import TIDB_BINLOG_FILE, Encoding, answer, event_units
from drainer.task.events.messages import Messages
from drainer.task.work_unit import Batch, TableRows
from penstock.datum.rows.row_codec import RowCodec
from penstock.ddl import Catalog, plan_ddl
from penstock.log.files import replace_file
from penstock.wire.binlog import MutationType
from tests.bench.figure import Figure
from tests.kit.sink_target import sink_target

SIZES = {"small": (1, 100), "large": (200, 1000)}
"""Rows of a transaction, and bytes of a row."""
BATCH_BYTES = 8 << 20
TOTAL_BYTES = 256 << 20
FILE_BYTES_MAX = 512 << 20
ROUNDS = 3


def measure(home: Path) -> Iterator[Figure]:
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
        for number in range(ROUNDS):
            raw_s.append(_raw(home / f"raw-{number}", messages, batches))
            ours_s.append(_written(home / f"ours-{number}", messages, batches))
        load = round(os.getloadavg()[0], 1)
        yield Figure(
            name=f"outputs.files.{kind}",
            value=batches * size / min(ours_s) / 1e6,
            unit="MB/s",
            baseline=batches * size / min(raw_s) / 1e6,
            detail={
                "bytes": batches * size,
                "transactions": batches * len(batch.commit_ts),
                "rounds": ROUNDS,
                "machine_load": load,
                "baseline": "one write and the same syncs per batch",
            },
        )
        changes = len(batch.tables[0].rows)
        yield Figure(
            name=f"outputs.files.encode.{kind}",
            value=size / encode_s / 1e6,
            unit="MB/s",
            detail={"cpu_us_per_row": round(encode_s / changes * 1e6, 2), "machine_load": load},
        )


def _batch(rows: int, row_bytes: int) -> Batch:
    """Return as many transactions of so many rows as a batch holds."""
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


def _raw(folder: Path, messages: Sequence[Messages], batches: int) -> float:
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
