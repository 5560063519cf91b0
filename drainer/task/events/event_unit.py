"""Event unit: a run of whole transactions for one task, and the task's answer.

The unit (its first bytes are not those of an Arrow stream):

    | part   | bytes | content                                                                  |
    |--------|-------|--------------------------------------------------------------------------|
    | magic  | 8     | `PSTEVENT`                                                               |
    | rows   | rest  | an Arrow IPC stream: table, transaction, kind, row; the header is JSON   |

`transaction` numbers the header's commit_ts, `table` its tables, and rows of one transaction and
table are in their order. The answer is `Messages`, in commit order.

    batch, by tables     A: 0 0 2 3 3 7    B: 1 2 2 7          a number is a transaction
    units                A: 0 0 2, B: 1 2 2  |  A: 3 3 7, B: 7

The unit names the encoder of its output with the options (`Encoding`). A few small rows are sent as
JSON instead, in commit order:

    | magic  | 8     | `PSTEVFEW`                                                               |
    | rows   | rest  | the header and `changes`: [transaction, table, kind, row]                |
"""

from __future__ import annotations

import gc
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from itertools import groupby, pairwise, repeat
from operator import itemgetter
from typing import Any, Self

import numpy as np
import pyarrow as pa

from drainer.task.events.messages import Encoder, Message, Messages, RowEvent, StreamEncoder
from drainer.task.events.topics.destination import BY_TABLE, Destinations, Limit
from drainer.task.sql import generate
from drainer.task.sql.lake_files import MERGE_MAGIC, NOT_MERGED, in_files
from drainer.task.sql.lake_rows import Block, change_blocks
from drainer.task.sql.rows import row_change, row_changes
from drainer.task.work_unit import (
    Batch,
    arrow_batch,
    arrow_stream,
    bytes_of,
    few_encoded,
    reading,
    table_of,
    table_text,
)
from penstock.codes import Code
from penstock.errors import Malformed
from penstock.schema.model import TableInfo

MAGIC, FEW_MAGIC = b"PSTEVENT", b"PSTEVFEW"
UNIT_ROWS_MIN = 500
"""For fewer rows, sending a unit to a task costs more than encoding it."""

_SCHEMA = pa.schema(
    [
        ("table", pa.uint32()),
        ("transaction", pa.uint32()),
        ("kind", pa.uint8()),
        ("row", pa.large_binary()),
    ]
)

Ints = np.ndarray[Any, np.dtype[Any]]
Target = tuple[str, TableInfo]


@dataclass(frozen=True, slots=True, kw_only=True)
class EventUnit:
    """Changes of consecutive transactions; with `is_slice`, of a part of a large transaction."""

    encoding: Encoding
    commit_ts: Sequence[int]
    tables: Sequence[Target]
    rows: pa.RecordBatch
    is_slice: bool = False
    start_ts: Sequence[int | None] = ()
    """Each transaction's, as far as it is known, for an encoding that has them in its messages."""

    def encode(self) -> bytes:
        header = {
            "encoding": _options(self.encoding),
            "commit_ts": list(self.commit_ts),
            "tables": [(schema, table_text(table)) for schema, table in self.tables],
            "is_slice": self.is_slice,
            "start_ts": list(self.start_ts),
        }
        return arrow_stream(self.rows, header, MAGIC)

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Decode a unit whose rows share memory with `data`; raise `Malformed`."""
        with reading("event unit"):
            header, rows = arrow_batch(data, MAGIC)
            return cls(
                encoding=Encoding(**header["encoding"]),
                commit_ts=header["commit_ts"],
                tables=[(schema, table_of(text)) for schema, text in header["tables"]],
                rows=rows,
                is_slice=header["is_slice"],
                start_ts=header["start_ts"],
            )


def encoded_units(batch: Batch, encoding: Encoding, parts: int) -> list[bytes]:
    """Return the batch in at most `parts` encoded units, whose answers follow one another."""
    if batch.is_few and encoding.format not in (DELTA_CHANGES, ROWS):
        return [_few_encoded(batch, encoding)]
    return [unit.encode() for unit in event_units(batch, encoding, parts)]


def _few_encoded(batch: Batch, encoding: Encoding) -> bytes:
    changes: list[tuple[int, int, int, bytes]] = []
    for number, each in enumerate(batch.tables):
        assert each.transactions is not None, "the batch says which rows belong together"
        transactions, kinds = each.transactions.tolist(), each.kind_array().tolist()
        changes += zip(transactions, repeat(number), kinds, each.rows.to_pylist(), strict=False)
    changes.sort(key=itemgetter(0))
    few = {
        "encoding": _options(encoding),
        "commit_ts": list(batch.commit_ts),
        "tables": [(each.schema, table_text(each.table)) for each in batch.tables],
        "is_slice": batch.displaces,
        "changes": changes,
    }
    return FEW_MAGIC + few_encoded(few)


def event_units(batch: Batch, encoding: Encoding, parts: int) -> list[EventUnit]:
    """Return the batch in at most `parts` units, whose answers follow one another.

    A batch that `displaces` is a slice of a transaction, and one unit.
    """
    count = len(batch.commit_ts)
    sizes = np.zeros(count, np.int64)
    for each in batch.tables:
        assert each.transactions is not None, "the batch says which rows belong together"
        sizes += np.bincount(each.transactions, minlength=count)
    runs = runs_of(sizes, parts, UNIT_ROWS_MIN)
    units = [_unit(batch, encoding, begin, end) for begin, end in runs]
    return [unit for unit in units if len(unit.rows)]


def runs_of(sizes: Any, parts: int, size_min: int) -> Iterator[tuple[int, int]]:
    """Divide transactions into at most `parts` runs of like size, on average `size_min` or more."""
    ends = np.cumsum(sizes)
    total = int(ends[-1]) if len(ends) else 0
    wanted = max(1, min(parts, total // size_min))
    inner = np.searchsorted(ends, total * np.arange(1, wanted) / wanted) + 1
    return pairwise(sorted({0, len(ends), *(int(cut) for cut in inner if cut < len(ends))}))


def _unit(batch: Batch, encoding: Encoding, begin: int, end: int) -> EventUnit:
    found = []
    for each in batch.tables:
        first, stop = map(int, np.searchsorted(each.transactions, (begin, end)))
        if first < stop:
            found.append((each, slice(first, stop)))
    columns = [pa.array((), field.type) for field in _SCHEMA]
    if found:
        counts = [part.stop - part.start for _, part in found]
        numbers = np.concatenate([each.transactions[part] for each, part in found])
        columns = [
            np.repeat(np.arange(len(found), dtype=np.uint32), counts),
            (numbers - begin).astype(np.uint32),
            np.concatenate([each.kind_array()[part] for each, part in found]),
            pa.concat_arrays([each.rows[part].cast(pa.large_binary()) for each, part in found]),
        ]
    stamps, starts = batch.commit_ts[begin:end], batch.starts
    started = stamps if encoding.format == DELTA_CHANGES else ()
    return EventUnit(
        encoding=encoding,
        commit_ts=stamps,
        tables=[(each.schema, each.table) for each, _ in found],
        rows=pa.record_batch(columns, schema=_SCHEMA),
        is_slice=batch.displaces,
        start_ts=[starts[ts].start_ts if ts in starts else None for ts in started],
    )


def answer(payload: bytes) -> bytes:
    """Return `Messages` for an `EventUnit`, SQL for a `WorkUnit`, files for a lake's merge.

    It is a pure function, except that the rows of a lake may be in new files (`lake_files`).
    Raises `Malformed` for row bytes that do not fit their table, and for values without a form.
    """
    if payload.startswith(MERGE_MAGIC):
        try:
            from drainer.task.sql.lake_merge import answer_merge
        except ImportError:  # An executor without deltalake.
            return NOT_MERGED
        return answer_merge(payload)
    if payload.startswith(FEW_MAGIC):
        return _few_messages(payload[len(FEW_MAGIC) :]).encode()
    if not payload.startswith(MAGIC):
        return generate.answer(payload)
    return encoded_messages(EventUnit.decode(payload)).encode()


def _few_messages(data: bytes) -> Messages:
    with reading("event unit"):
        few = json.loads(data)
        encoder = encoder_of(Encoding(**few["encoding"]))
        tables = [(schema, table_of(text)) for schema, text in few["tables"]]
        stamps, changes = few["commit_ts"], few["changes"]
    encode = encoder.slice if few["is_slice"] else encoder.transaction
    made: list[tuple[int, Message]] = []
    for number, group in groupby(changes, itemgetter(0)):
        events = []
        for _, of, kind, row in group:
            schema, table = tables[of]
            before, after = row_change(table, kind, bytes_of(row))
            events.append(RowEvent(schema, table, before, after))
        made += zip(repeat(stamps[number]), encode(stamps[number], events), strict=False)
    return Messages.of(made)


def encoded_messages(unit: EventUnit) -> Messages:
    """Return the messages of a unit, in commit order."""
    # All rows and messages of the unit live until its end, and none refers back to another. The
    # collector would scan them repeatedly and find nothing.
    gc.disable()
    try:
        return _encoded(unit)
    finally:
        gc.enable()


def _encoded(unit: EventUnit) -> Messages:
    if unit.encoding.format == DELTA_CHANGES:
        blocks = [Message(block.encode()) for block in _blocks(unit)]
        return Messages.at([unit.commit_ts[-1]] * len(blocks), blocks)
    if unit.encoding.format == ROWS:
        return Messages.at([unit.commit_ts[-1]], [Message(unit.encode())])
    encoder = encoder_of(unit.encoding)
    encode = encoder.slice if unit.is_slice else encoder.transaction
    stamps: list[int] = []
    made: list[Message] = []
    events, ends = _events(unit)
    begin = 0
    for commit_ts, end in zip(unit.commit_ts, ends, strict=True):
        if begin < end:
            made += encode(commit_ts, events[begin:end])
            stamps += repeat(commit_ts, len(made) - len(stamps))
        begin = end
    return Messages.at(stamps, made)


def _blocks(unit: EventUnit) -> Iterator[Block]:
    folder = "" if unit.is_slice else unit.encoding.folder
    for block in change_blocks(unit.tables, unit.commit_ts, unit.start_ts, unit.rows):
        yield in_files(block, folder, unit.commit_ts[0]) if folder else block


def _events(unit: EventUnit) -> tuple[list[RowEvent], list[int]]:
    columns = unit.rows
    transactions = columns.column("transaction").to_numpy()
    of_table = columns.column("table").to_numpy()
    kinds, rows = columns.column("kind").to_numpy(), columns.column("row")
    # A table's rows are contiguous, and the tables in their order.
    bounds = np.searchsorted(of_table, np.arange(len(unit.tables) + 1)).tolist()
    events: list[RowEvent] = []
    for (schema, table), (first, stop) in zip(unit.tables, pairwise(bounds), strict=True):
        changes = row_changes(table, kinds[first:stop], rows.slice(first, stop - first))
        events += [RowEvent(schema, table, before, after) for before, after in changes]
    # Stable: within a transaction each table stays contiguous, and its rows in their order.
    order = np.argsort(transactions, kind="stable")
    ends = np.searchsorted(transactions[order], np.arange(1, len(unit.commit_ts) + 1))
    return [events[at] for at in order.tolist()], ends.tolist()


TIDB_BINLOG_FILE = "tidb-binlog-file"
CANAL_JSON, DEBEZIUM, MAXWELL = "canal-json", "debezium", "maxwell"
TIDB_BINLOG = "tidb-binlog"
DELTA_CHANGES = "delta-changes"
"""Blocks of whole units, which `change_blocks` makes instead of an `Encoder`."""
ROWS = "rows"
"""Units as they are, for a sink that decodes the rows itself."""


@dataclass(frozen=True, slots=True)
class Encoding:
    """An encoder's name, and the options of all encoders."""

    format: str
    prefix: str = ""
    topic: str = ""
    """The template of a table's topic, or the topic of all messages."""
    partition: str = BY_TABLE
    bytes_max: int = 0
    """The size above which only a row's key is sent; 0: no limit."""
    keeps_whole: bool = False
    """True if the full message is stored elsewhere then."""
    only_changed: bool = False
    """True if a row before an update has changed columns only."""
    schemas: bool = False
    tombstones: bool = True
    decimals: str = "precise"
    time_zone: str = "+00:00"
    folder: str = ""
    """The folder into which tasks write files for a lake; empty: they send all rows."""


_options = lru_cache(maxsize=16)(asdict)


@lru_cache(maxsize=16)
def encoder_of(encoding: Encoding) -> Encoder:
    """Return the (cached) encoder; raise `Malformed` for an unsupported format."""
    if encoding.format == TIDB_BINLOG_FILE:
        from drainer.task.events.tidb_binlog import TidbBinlogFile

        return TidbBinlogFile(time_zone=encoding.time_zone)
    if encoding.format == TIDB_BINLOG:
        from drainer.task.events.tidb_binlog import TidbBinlogTopic

        return TidbBinlogTopic(topic=encoding.topic, time_zone=encoding.time_zone)
    return stream_encoder_of(encoding)


def destinations_of(encoding: Encoding) -> Destinations:
    """Return the destinations of a format in which a message is a row."""
    return Destinations(prefix=encoding.prefix, topic=encoding.topic, partition=encoding.partition)


@lru_cache(maxsize=16)
def stream_encoder_of(encoding: Encoding) -> StreamEncoder:
    """Return the (cached) encoder with watermarks; raise `Malformed` as `encoder_of` does."""
    destinations = destinations_of(encoding)
    limit = Limit(encoding.bytes_max, encoding.keeps_whole)
    if encoding.format == CANAL_JSON:
        from drainer.task.events.topics.canal_json import CanalJson

        return CanalJson(destinations, limit=limit, only_changed=encoding.only_changed)
    if encoding.format == MAXWELL:
        from drainer.task.events.topics.maxwell_json import MaxwellJson

        return MaxwellJson(destinations, limit=limit)
    if encoding.format == DEBEZIUM:
        from drainer.task.events.topics.debezium import DebeziumJson

        return DebeziumJson(
            destinations,
            name=encoding.prefix,
            limit=limit,
            schemas=encoding.schemas,
            tombstones=encoding.tombstones,
            decimals=encoding.decimals,
        )
    raise Malformed(
        f"no encoder for the format {encoding.format!r}",
        "Drainer and Spark tasks must run the same version of Penstock",
        Code.SPARK_VERSION,
    )
