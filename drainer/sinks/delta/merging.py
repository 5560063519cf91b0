"""Merging: combines the blocks of a batch into one commit for each table.

In a table with a key, each key is reduced to one line: an upsert or a delete. A table without a key
is a number of rows for each content: inserted minus deleted. If some equal rows are deleted, all of
them are replaced by the number that remains, in the one commit. The number before is counted by
reading the table, which is why a delete costs more there than an insert.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from urllib.parse import urlsplit
from urllib.request import url2pathname

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import CommitProperties, DeltaTable, write_deltalake
from pyarrow.fs import LocalFileSystem, SubTreeFileSystem

from drainer.sinks.delta.lake import Place, text_of
from drainer.task.sql.lake_rows import COMES, GOES, OP, Block, LakeFile

log = logging.getLogger(__name__)

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

    def add(self, later: LakeChanges) -> None:
        self.pieces += later.pieces
        self.nulled += later.nulled
        self.files += later.files

    def rows(self) -> pa.Table:
        return pa.concat_tables(self.pieces, promote_options="default")


def by_table(blocks: Iterable[Block]) -> list[LakeChanges]:
    made: dict[Place, LakeChanges] = {}
    for block in blocks:
        place = block.schema, block.name
        pieces = [] if block.files else [block.rows]
        files = [(file, block.rows.schema) for file in block.files]
        changes = LakeChanges(place, block.key, pieces, Counter(block.nulled), files)
        if (known := made.setdefault(place, changes)) is not changes:
            known.add(changes)
    return list(made.values())


def merge(table: DeltaTable, changes: LakeChanges, properties: CommitProperties) -> None:
    warn_of_nulled(changes)
    if changes.key:
        _merge_by_key(table, changes, properties)
    else:
        _merge_by_count(table, changes, properties)


def warn_of_nulled(changes: LakeChanges) -> None:
    if changes.nulled:
        counts = ", ".join(f"{count} of {name}" for name, count in changes.nulled.items())
        log.warning(
            "%s: dates that a lake has no form for are NULL there: %s", text_of(changes.place),
            counts,
        )  # fmt: skip


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


def _merge_by_count(table: DeltaTable, changes: LakeChanges, properties: CommitProperties) -> None:
    counts = net_counts(changes.rows())
    fewer = counts.filter(pc.less(counts.column(_COUNT), 0))
    more = repeated(counts)
    if not len(fewer):
        if len(more):
            write_deltalake(table, more, mode="append", commit_properties=properties)
        return
    there = _counted(table, fewer)
    missed = -pc.sum(pc.min_element_wise(there.column(_COUNT), 0)).as_py()
    if missed:
        log.warning("%s: %d rows to be removed are not there", text_of(changes.place), missed)
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
    files = SubTreeFileSystem(url2pathname(urlsplit(table.table_uri).path), LocalFileSystem())
    dataset = table.to_pyarrow_dataset(filesystem=files)
    for batch in dataset.to_batches(columns=schema.names):
        if len(batch):
            yield pa.Table.from_batches([batch]).cast(schema)


def quoted(name: str) -> str:
    """Return a column's name as an identifier of DataFusion's SQL."""
    return '"' + name.replace('"', '""') + '"'
