"""Rows ahead: detects rows of a TiDB that already have a DDL's columns, before its binlog.

    versions   44 … 49               50                    51 … 53            the job's binlog
    rows have  id, a, b, _new_a, z   id, new_a, b, z       …                  much later
               the table before      the table after: MODIFY a, ADD z; DROP b is in progress

All parts of a multi-schema change take effect at one version, its swap, and its only binlog comes
after its last part: a DROP takes three versions more. Rows from the swap on hold a modified column
under its new id alone, and values of added columns. Read with the table before, such a column is
NULL, and such a value is lost. Rows of the version before the swap hold both, so the table after is
right for them also.

All rows of a table that are of one version hold the same columns, but an insert omits NULLs. Ids of
columns grow: a column unknown to a table has a larger id than all known columns.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from drainer.schema.tracker import SchemaTracker
from penstock.datum.rows.defaults import missing_datum
from penstock.datum.rows.fields import compile_field
from penstock.datum.rows.row_codec import (
    RowCodec,
    RowReader,
    handle_parts,
    handle_position,
    stored_columns,
)
from penstock.datum.values import int_datum
from penstock.errors import Malformed
from penstock.schema.model import PUBLIC, DdlJob, TableInfo
from penstock.wire.binlog import MutationType

_ONE_BYTE_IDS = 64
"""Ids below this are one byte in a row, after the flag of a number."""
_TABLES_KEPT = 1024


@dataclass(frozen=True, slots=True)
class AheadRow:
    """A row with columns that its table, as tracked so far in the stream, does not have."""

    table: TableInfo
    since: int
    """The schema version from which on that table is tracked."""
    version: int
    """The row's."""
    column_ids: frozenset[int]
    kind: MutationType
    data: bytes

    @property
    def unknown(self) -> frozenset[int]:
        """The ids of the row's columns that the table lacks."""
        known = {column.id for column in self.table.columns}
        return frozenset(i for i in self.column_ids if i not in known and i > 0)

    @property
    def is_certain(self) -> bool:
        """True if the row lacks a column that every row of the table holds: it was replaced."""
        return any(i not in self.column_ids for i in _always_held(self.table, self.kind))


def rows_ahead(tracker: SchemaTracker, value: Any) -> Iterator[AheadRow]:
    """Yield the rows of a transaction that have columns which their tracked tables lack.

    Updates and deletes hold every column, so the first update or delete of a table decides for the
    others.
    """
    for mutation in value.mutations:
        found = tracker.newest(mutation.table_id)
        if found is None or value.schema_version <= found[0]:
            continue
        since, table = found
        for kind, rows in (
            (MutationType.UPDATE, mutation.updated_rows),
            (MutationType.DELETE, mutation.deleted_rows),
            (MutationType.INSERT, mutation.inserted_rows),
        ):
            for data in rows:
                ids = _ids(table, kind, data)
                row = AheadRow(table, since, value.schema_version, ids, kind, data)
                if row.unknown:
                    yield row
                elif kind is not MutationType.INSERT:
                    break


def is_past(row: AheadRow, job: DdlJob) -> bool:
    """Return whether a row belongs to the table after a job, and not to the table before.

    The job is one of those that have the row's unknown columns. If it lacks the version of its
    swap, the row's own columns decide; if they do not, both tables read the row alike.
    """
    assert job.table is not None
    if row.version >= job.swap_version or row.is_certain:
        return True
    if _is_replaced(row, job.table, {added for _, added in job.parts}):
        return True
    # Until it is public, an added column has its origin default in each row.
    added = [
        (position, missing_datum(column), compile_field(column))
        for position, column in enumerate(job.table.columns)
        if column.id in row.column_ids and any(column.id == part[1] for part in job.parts)
    ]
    return any(
        image[position] != (None if datum is None else codec.decode(datum, 0)[0])
        for image in (_images(job.table, row) if added else ())
        for position, datum, codec in added
    )


def _is_replaced(row: AheadRow, after: TableInfo, added: set[int]) -> bool:
    """Return whether a row holds a column that a job put in another's place, without that one.

    Before the swap it would hold both, or none if both are NULL. A column with another name also
    replaces one of the removed columns.
    """
    old = {column.id: column.name.lower() for column in row.table.columns}
    names = {column.name.lower() for column in after.columns}
    gone = {i for i, name in old.items() if name not in names}
    for column in after.columns:
        if column.id in old or column.id in added or column.id not in row.column_ids:
            continue
        name = column.name.lower()
        replaced = {i for i, other in old.items() if other == name} or gone
        if replaced and replaced.isdisjoint(row.column_ids):
            return True
    return False


def may_be_of(row: AheadRow, table: TableInfo) -> bool:
    """Return whether a table has one of the row's unknown columns in public state."""
    public = {column.id for column in table.columns if column.state == PUBLIC}
    return not public.isdisjoint(row.unknown)


def _images(table: TableInfo, row: AheadRow) -> list[tuple[object, ...]]:
    codec = RowCodec(table)
    if row.kind is MutationType.INSERT:
        return [codec.decode_insert(row.data)]
    if row.kind is MutationType.DELETE:
        return [codec.decode_delete(row.data)]
    return list(codec.decode_update(row.data))


def _ids(table: TableInfo, kind: MutationType, data: bytes) -> frozenset[int]:
    """Return a row's column ids; empty for an insert that surely has no unknown column."""
    reader, newer = _reader(table)
    is_insert = kind is MutationType.INSERT
    if is_insert and newer.search(data) is None:
        return frozenset()
    try:
        return frozenset(reader.column_ids(data, is_insert=is_insert))
    except Malformed:
        return frozenset()  # Reading its values reports the error, or recognizes the empty row.


@functools.lru_cache(maxsize=_TABLES_KEPT)
def _reader(table: TableInfo) -> tuple[RowReader, re.Pattern[bytes]]:
    largest = max((column.id for column in table.columns), default=0)
    flag = int_datum(0)[:1]
    small = b"".join(re.escape(int_datum(i)[1:]) for i in range(largest + 1, _ONE_BYTE_IDS))
    pattern = re.escape(flag) + b"[" + small + b"\x80-\xff]"
    return RowReader(table, lambda field: field.decode), re.compile(pattern, re.DOTALL)


@functools.lru_cache(maxsize=_TABLES_KEPT)
def _always_held(table: TableInfo, kind: MutationType) -> frozenset[int]:
    """Return the ids of the columns that every row of a kind holds, whatever its values."""
    stored = stored_columns(table)
    if kind is not MutationType.INSERT:
        return frozenset(each.column.id for each in stored)
    in_handle = {handle_position(table), *(part.offset for part in handle_parts(table))}
    return frozenset(
        each.column.id for each in stored if not each.omits_null and each.position not in in_handle
    )
