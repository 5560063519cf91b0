"""Lake merge: combines the blocks of a batch into one commit for each table, here or in a task.

In a table with a key, each key is reduced to one line: an upsert or a delete. A table without a key
is a number of rows for each content: inserted minus deleted. If some equal rows are deleted, all of
them are replaced by the number that remains, in the one commit. The number before is counted by
reading the table, which is why a delete costs more there than an insert.

A task makes the same commit in a table of its own, a *draft*, which has the files of the lake's
table under other names:

    <run>/<random>/            as `lake_files` has it
      _delta_log               one version with the files that may have a key of the batch
      table ──> the folder of the lake's table
      part-….parquet           what the merge has written

The answer has the files that the merge added and the files of the table that it removed. The
Drainer commits both in one version of the lake's table, the one after the version that the task
read. The unit (`MERGE_MAGIC`, a length, JSON, blocks) has no schema: the table has it.
"""

from __future__ import annotations

import json
import shutil
import struct
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import url2pathname

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import CommitProperties, DeltaTable, write_deltalake
from deltalake.exceptions import DeltaError
from deltalake.transaction import AddAction, create_table_with_add_actions
from pyarrow.fs import LocalFileSystem, SubTreeFileSystem

from drainer.task.sql.lake_files import (
    MERGE_MAGIC,
    NOT_MERGED,
    new_folder,
    read_file,
    written_files,
)
from drainer.task.sql.lake_rows import COMES, GOES, OP, Block, LakeFile

Place = tuple[str, str]
"""A table's schema and name."""

_AT, _COUNT = "_penstock_at", "_penstock_count"


@dataclass(slots=True)
class LakeChanges:
    """All changes of one table in a batch, or in a part of it."""

    place: Place
    key: tuple[str, ...]
    pieces: list[pa.Table]
    nulled: Counter[str] = field(default_factory=Counter)
    files: list[tuple[LakeFile, pa.Schema]] = field(default_factory=list)
    """The files that tasks have written, with their columns."""
    encoded: list[bytes] = field(default_factory=list)
    """The blocks as they came."""

    def add(self, later: LakeChanges) -> None:
        self.pieces += later.pieces
        self.nulled += later.nulled
        self.files += later.files
        self.encoded += later.encoded

    def rows(self) -> pa.Table:
        return pa.concat_tables(self.pieces, promote_options="default")


def by_table(blocks: Iterable[bytes | str]) -> list[LakeChanges]:
    made: dict[Place, LakeChanges] = {}
    for encoded in blocks:
        assert isinstance(encoded, bytes), "a block is not text"
        block = Block.decode(encoded)
        place = block.schema, block.name
        pieces = [] if block.files else [block.rows]
        files = [(file, block.rows.schema) for file in block.files]
        nulled = Counter(block.nulled)
        changes = LakeChanges(place, block.key, pieces, nulled, files, [encoded])
        if (known := made.setdefault(place, changes)) is not changes:
            known.add(changes)
    return list(made.values())


def pieces_of(changes: LakeChanges, read: Callable[[LakeFile], pa.Table]) -> list[pa.Table]:
    """Return the rows of all blocks in their order, those in files included."""
    blocks = map(Block.decode, changes.encoded)
    return [rows for block in blocks for rows in list(map(read, block.files)) or [block.rows]]


def merge(table: DeltaTable, changes: LakeChanges, properties: CommitProperties) -> int:
    """Commit the changes; return how many rows that they remove are not in the table."""
    if changes.key:
        _merge_by_key(table, changes, properties)
        return 0
    return _merge_by_count(table, changes, properties)


def _merge_by_key(table: DeltaTable, changes: LakeChanges, properties: CommitProperties) -> None:
    rows, key = changes.rows(), list(changes.key)
    keys = rows.select(key).append_column(_AT, pa.array(np.arange(len(rows))))
    last = keys.group_by(key).aggregate([(_AT, "max")]).column(f"{_AT}_max")
    if len(last) < len(rows):
        rows = rows.take(np.sort(last.to_numpy()))
    names = [name for name in rows.column_names if name != OP]
    values = {quoted(name): f"s.{quoted(name)}" for name in names}
    on = " AND ".join(f"t.{quoted(name)} = s.{quoted(name)}" for name in changes.key)
    merger = table.merge(
        rows, on, source_alias="s", target_alias="t", commit_properties=properties
    ).when_matched_delete(f"s.{OP} = {GOES}")
    if COMES in rows.column(OP).unique().to_pylist():
        merger = merger.when_matched_update(values).when_not_matched_insert(
            values, f"s.{OP} = {COMES}"
        )
    merger.execute()


def _merge_by_count(table: DeltaTable, changes: LakeChanges, properties: CommitProperties) -> int:
    counts = net_counts(changes.rows())
    fewer = counts.filter(pc.less(counts.column(_COUNT), 0))
    more = repeated(counts)
    if not len(fewer):
        if len(more):
            write_deltalake(table, more, mode="append", commit_properties=properties)
        return 0
    there = _counted(table, fewer)
    missed = -pc.sum(pc.min_element_wise(there.column(_COUNT), 0)).as_py()
    names = more.column_names
    source = pa.concat_tables(
        [
            fewer.select(names).append_column(OP, pa.array(np.full(len(fewer), GOES, np.int8))),
            *(
                each.append_column(OP, pa.array(np.full(len(each), COMES, np.int8)))
                for each in (repeated(there), more)
            ),
        ]
    )
    same = [f"(t.{quoted(name)} IS NOT DISTINCT FROM s.{quoted(name)})" for name in names]
    on = " AND ".join([f"(s.{OP} = {GOES})", *same])
    values = {quoted(name): f"s.{quoted(name)}" for name in names}
    table.merge(
        source, on, source_alias="s", target_alias="t", commit_properties=properties
    ).when_matched_delete().when_not_matched_insert(values, f"s.{OP} = {COMES}").execute()
    return int(missed)


def net_counts(rows: pa.Table) -> pa.Table:
    """Return each content with its net count, rows added minus removed; omit a net of 0."""
    sign = pc.subtract(pc.multiply(rows.column(OP).cast(pa.int64()), 2), 1)
    counted = rows.drop_columns([OP])
    names = counted.column_names
    summed = counted.append_column(_COUNT, sign).group_by(names).aggregate([(_COUNT, "sum")])
    summed = summed.rename_columns([*names, _COUNT])
    return summed.filter(pc.not_equal(summed.column(_COUNT), 0))


def repeated(counts: pa.Table) -> pa.Table:
    """Repeat each content by its count; a count below 1 omits it."""
    times = np.maximum(counts.column(_COUNT).to_numpy(), 0)
    return counts.drop_columns([_COUNT]).take(np.repeat(np.arange(len(counts)), times))


def _counted(table: DeltaTable, some: pa.Table) -> pa.Table:
    schema = some.drop_columns([_COUNT]).schema
    wanted = some.append_column(_AT, pa.array(np.ones(len(some), np.int64)))
    for rows in rows_of(table, schema):
        ones = pa.array(np.ones(len(rows), np.int64))
        zeros = pa.array(np.zeros(len(rows), np.int64))
        seen = rows.append_column(_COUNT, ones).append_column(_AT, zeros)
        both = pa.concat_tables([wanted, seen.select(wanted.column_names)])
        summed = both.group_by(schema.names).aggregate([(_COUNT, "sum"), (_AT, "max")])
        summed = summed.rename_columns([*schema.names, _COUNT, _AT])
        wanted = summed.filter(pc.equal(summed.column(_AT), 1))
    return wanted.drop_columns([_AT])


def rows_of(table: DeltaTable, schema: pa.Schema) -> Iterable[pa.Table]:
    # Arrow reads the files itself: a commit may ask for these rows, and delta-rs cannot do two
    # things concurrently in its own thread.
    with _files_of(table) as folder:
        dataset = table.to_pyarrow_dataset(filesystem=SubTreeFileSystem(folder, LocalFileSystem()))
        for batch in dataset.to_batches(columns=schema.names):
            if len(batch):
                yield pa.Table.from_batches([batch]).cast(schema)


@contextmanager
def _files_of(table: DeltaTable) -> Iterator[str]:
    address = urlsplit(table.table_uri)
    if address.scheme != "s3":
        yield url2pathname(address.path)
        return
    from drainer.task.sql.lake_objects import downloaded

    with downloaded(table) as folder:
        yield folder


def quoted(name: str) -> str:
    """Return a column's name as an identifier of DataFusion's SQL."""
    return '"' + name.replace('"', '""') + '"'


# --- in a task -------------------------------------------------------------------------------

_LENGTH = struct.Struct("<I")
_TABLE = "table"
_STAT_MAX = 2**63 - 1
"""deltalake stores a larger maximum of a decimal as this number."""


@dataclass(frozen=True, slots=True)
class Merged:
    """The files that a merge added and removed, and its `missed` rows."""

    added: list[LakeFile]
    removed: list[tuple[str, int]]
    """Names in the folder of the table, and sizes."""
    missed: int


def merge_unit(run: Path, table: DeltaTable, changes: LakeChanges) -> bytes:
    """Return the unit of a merge into this version of a table."""
    lengths = [len(each) for each in changes.encoded]
    path = url2pathname(urlsplit(table.table_uri).path)
    fields = {"run": str(run), "path": path, "version": table.version(), "blocks": lengths}
    header = json.dumps(fields).encode()
    return b"".join([MERGE_MAGIC, _LENGTH.pack(len(header)), header, *changes.encoded])


def merged(answer: bytes) -> Merged | None:
    """Decode the answer of a task; None if the Drainer must merge."""
    found = json.loads(answer)
    if not found["added"] and not found["removed"]:
        return None
    added = [LakeFile(*each) for each in found["added"]]
    return Merged(added, [(name, size) for name, size in found["removed"]], found["missed"])


def answer_merge(payload: bytes) -> bytes:
    """Merge in a draft; raise `NeedsOperator` if the folder of the run is out of reach.

    If the merge fails, the answer has no file: the Drainer then merges, and reports the reason.
    """
    at = len(MERGE_MAGIC) + _LENGTH.size
    (length,) = _LENGTH.unpack_from(payload, len(MERGE_MAGIC))
    header = json.loads(payload[at : at + length])
    at += length
    blocks = []
    for size in header["blocks"]:
        blocks.append(payload[at : at + size])
        at += size
    (changes,) = by_table(blocks)
    folder = new_folder(Path(header["run"]))
    try:
        made = _in_draft(folder, DeltaTable(header["path"], version=header["version"]), changes)
    except (DeltaError, OSError):
        shutil.rmtree(folder, ignore_errors=True)
        return NOT_MERGED
    return json.dumps(made).encode()


def _in_draft(folder: Path, table: DeltaTable, changes: LakeChanges) -> dict[str, Any]:
    changes.pieces = pieces_of(changes, partial(read_file, folder.parent))
    (folder / _TABLE).symlink_to(url2pathname(urlsplit(table.table_uri).path))
    found = [
        AddAction(
            f"{_TABLE}/{each['path']}", each["size_bytes"], {}, each["modification_time"], True,
            json.dumps({"numRecords": each["num_records"]}),
        )
        for each in candidates(table, changes).to_pylist()
    ]  # fmt: skip
    create_table_with_add_actions(str(folder), table.schema(), found)
    missed = merge(DeltaTable(folder), changes, CommitProperties())
    (folder / _TABLE).unlink()
    added, removed = written_files(folder, 1, 0)
    below = len(_TABLE) + 1
    return {
        "added": added,
        "removed": [(each["path"][below:], each["size"]) for each in removed],
        "missed": missed,
    }


def candidates(table: DeltaTable, changes: LakeChanges) -> pa.Table:
    """Return the files of a table that may have a key of the batch, by their statistics.

    Texts, dates and whole numbers are compared; Delta's statistics of other types are not exact.
    """
    files = pa.table(table.get_add_actions(flatten=True))
    rows = changes.rows().select(list(changes.key))
    for name in changes.key:
        low, high = (f"{side}.{name}" for side in ("min", "max"))
        kind = rows.schema.field(name).type
        is_exact = (
            pa.types.is_integer(kind) or pa.types.is_date(kind) or pa.types.is_string(kind)
            or (pa.types.is_decimal(kind) and kind.scale == 0)
        )  # fmt: skip
        if not is_exact or low not in files.column_names or high not in files.column_names:
            continue
        span = pc.min_max(rows.column(name))
        first, last = span["min"], span["max"]
        if pa.types.is_decimal(kind) and int(first.as_py()) >= _STAT_MAX:
            continue
        above = pc.greater(files.column(low).cast(kind), last).fill_null(False)
        below = pc.less(files.column(high).cast(kind), first).fill_null(False)
        files = files.filter(pc.invert(pc.or_(above, below)))
    return files
