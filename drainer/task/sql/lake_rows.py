"""Lake rows: the changes of a unit as Arrow tables, which replace SQL in the dialect `arrow`.

A *block* is an Arrow IPC stream with some of a table's changes. Its columns are the table's, and

    column          type   meaning
    _penstock_op    int8   0 delete, 1 upsert

In a table with a key, deletes have the columns of the key alone, and an upsert replaces the row
with its key. In a table without a key, each line is one row of many that may be equal. The metadata
of the stream's schema has, as JSON under `penstock`, database, table, the names of the key's
columns, and the number of dates per column that a lake cannot represent.

The blocks of a change log have other columns in place of `_penstock_op`, and each change in its
order (`drainer.task.events.change_blocks`).
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from drainer.task.sql.images import Columns, Kinds, after_columns, before_columns
from drainer.task.sql.keys import apply_key, is_written
from drainer.task.sql.lake_types import lake_array, lake_type
from drainer.task.work_unit import Op, Statements, WorkUnit
from penstock.codes import Code
from penstock.errors import Malformed
from penstock.schema.model import TableInfo
from penstock.wire.binlog import MutationType

OP = "_penstock_op"
GOES, COMES = 0, 1
_METADATA_KEY = b"penstock"


@dataclass(frozen=True, slots=True)
class Block:
    """Some changes of one table; `rows` has a column more than the table, see the module."""

    schema: str
    name: str
    key: tuple[str, ...]
    rows: pa.Table
    nulled: Counter[str] = field(default_factory=Counter)
    """The number of values per column that a lake cannot represent."""

    def encode(self) -> bytes:
        header = json.dumps(
            {"schema": self.schema, "name": self.name, "key": self.key, "nulled": self.nulled}
        )
        schema = self.rows.schema.with_metadata({_METADATA_KEY: header.encode()})
        out = pa.BufferOutputStream()
        with pa.ipc.new_stream(out, schema) as writer:
            writer.write_table(self.rows)
        encoded: bytes = out.getvalue().to_pybytes()
        return encoded

    @classmethod
    def decode(cls, data: bytes | str) -> Block:
        """Decode a block whose rows share memory with `data`."""
        with pa.ipc.open_stream(pa.py_buffer(data)) as reader:
            header = json.loads(reader.schema.metadata[_METADATA_KEY])
            rows = reader.read_all().replace_schema_metadata(None)
        key, nulled = tuple(header["key"]), Counter(header["nulled"])
        return cls(header["schema"], header["name"], key, rows, nulled)


def lake_schema(table: TableInfo) -> pa.Schema:
    fields = [(c.name, lake_type(c)) for c in table.columns if is_written(c)]
    return pa.schema(fields + [(name, pa.string()) for name, _ in table.constants])


def lake_rows(unit: WorkUnit) -> Statements:
    """Return the blocks of `unit`; a pure function. Raises `Malformed` as `generate` does."""
    ops = unit.rows.column("op").to_numpy()
    kinds = unit.rows.column("kind").to_numpy()
    rows: Any = unit.rows.column("row")
    if len(ops) and ops[0] == Op.ORDERED:
        return Statements(ordered=_each_row(unit, kinds, rows))
    border = int(np.searchsorted(ops, Op.UPSERT))
    members = unit.members or ((unit.schema, unit.name, border, len(ops) - border),)
    gone = LakeColumns(unit.table, _key_positions(unit.table))
    kept = LakeColumns(unit.table, written_positions(unit.table))
    deletes = gone.before(kinds[:border], rows.slice(0, border)) if border else []
    upserts = kept.after(kinds[border:], rows.slice(border)) if border < len(ops) else []
    made = Statements()
    deleted = written = 0
    for schema, name, delete_count, upsert_count in members:
        if delete_count:
            made.deletes.append(gone.block(schema, name, deletes, deleted, delete_count, GOES))
        if upsert_count:
            made.upserts.append(kept.block(schema, name, upserts, written, upsert_count, COMES))
        deleted, written = deleted + delete_count, written + upsert_count
    return made


def _each_row(unit: WorkUnit, kinds: Kinds, rows: pa.Array) -> list[bytes]:
    columns = LakeColumns(unit.table, written_positions(unit.table))
    made = []
    for op, absent, decode in (
        (GOES, MutationType.INSERT, columns.before),
        (COMES, MutationType.DELETE, columns.after),
    ):
        at = np.flatnonzero(kinds != absent)
        if len(at):
            values = decode(kinds[at], rows.take(pa.array(at)))
            made.append(columns.block(unit.schema, unit.name, values, 0, len(at), op))
    return made


def written_positions(table: TableInfo) -> list[int]:
    return [i for i, column in enumerate(table.columns) if is_written(column)]


def _key_positions(table: TableInfo) -> list[int]:
    key = apply_key(table)
    return [part.offset for part in key.columns] if key else []


Values = list[tuple[pa.Array, "Flags | None"]]
"""Each column, with flags for the values that a lake cannot represent, if any."""
Flags = np.ndarray[Any, np.dtype[np.bool_]]


class LakeColumns:
    """Some columns of a table, turned into blocks; the table's constants are added."""

    def __init__(self, table: TableInfo, positions: Sequence[int]) -> None:
        self._table = table
        self._positions = positions
        self._names = [table.columns[p].name for p in positions]
        self._key = [table.columns[p].name for p in _key_positions(table)]

    def before(self, kinds: Kinds, rows: pa.Array) -> Values:
        return self._converted(before_columns(self._table, kinds, rows, self._positions))

    def after(self, kinds: Kinds, rows: pa.Array) -> Values:
        return self._converted(after_columns(self._table, kinds, rows, self._positions))

    def _converted(self, columns: Columns) -> Values:
        made: Values = []
        for position, stored in zip(self._positions, columns, strict=True):
            column = self._table.columns[position]
            array = lake_array(column, stored)
            lost = None
            if array.null_count > stored.null_count:
                lost = pc.and_(stored.is_valid(), array.is_null()).to_numpy(zero_copy_only=False)
                self._check_not_of_key(column.name)
            made.append((array, lost))
        return made

    def _check_not_of_key(self, column: str) -> None:
        if column in self._key:
            raise Malformed(
                f"a row of {self._table.name} has a key in {column!r} that is no date of a lake",
                hint="change the row upstream to a real date, or leave the table out",
                code=Code.SINK_REFUSES,
            )

    def block(
        self, schema: str, name: str, values: Values, begin: int, count: int, op: int
    ) -> bytes:
        some = [
            (array.slice(begin, count), None if lost is None else lost[begin : begin + count])
            for array, lost in values
        ]
        added = pa.table({OP: pa.array(np.full(count, op, np.int8))})
        return self.block_of(schema, name, some, added)

    def block_of(self, schema: str, name: str, values: Values, added: pa.Table) -> bytes:
        nulled: Counter[str] = Counter()
        for column, (_, lost) in zip(self._names, values, strict=True):
            if lost is not None and (found := int(lost.sum())):
                nulled[column] = found
        constants = self._table.constants
        arrays = [array for array, _ in values]
        arrays += [pa.repeat(pa.scalar(text, pa.string()), len(added)) for _, text in constants]
        names = [*self._names, *(constant for constant, _ in constants), *added.column_names]
        key = (*self._key, *(constant for constant, _ in constants)) if self._key else ()
        rows = pa.Table.from_arrays([*arrays, *added.columns], names=names)
        return Block(schema, name, key, rows, nulled).encode()
