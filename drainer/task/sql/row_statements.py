"""Each row change of a work unit as a statement of its own, with what it must not overtake.

    change   usual form      safe form, which may be run again on whatever it left
    insert   INSERT          REPLACE
    update   UPDATE          DELETE of the old image, REPLACE of the new one
    delete   DELETE          DELETE

A table without row key has no safe form: its statements must run once, and who applies them sees
to that. The answer travels as an Arrow stream with one row for each change:

    column    type           meaning
    first     large_binary   the statement
    second    large_binary   the REPLACE behind a safe update's DELETE, else NULL
    row       large_string   which row, for an operator
    b0 b1 …   uint64         causality key of the old image in each key set, as in `causality`
    a0 a1 …   uint64         the same of the new image

The metadata `penstock` of its schema is JSON: "once" for a table without row key, and for each key
set its "tags" and whether two rows cannot share a key ("unique").
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from drainer.task.sql.causality import key_sets, link_sets
from drainer.task.sql.keys import apply_key
from drainer.task.sql.rowwise import Row, row_codec
from drainer.task.sql.table_sql import TableSql, table_sql
from drainer.task.work_unit import Op, WorkUnit
from penstock.errors import Malformed
from penstock.wire.binlog import MutationType

_METADATA_KEY = b"penstock"
_HINT = "Drainer and Spark tasks must run the same version of Penstock"
_UNREADABLE = (pa.ArrowException, OSError, ValueError, LookupError, TypeError, StopIteration)

Keys = np.ndarray[Any, np.dtype[np.uint64]]


@dataclass(frozen=True, slots=True)
class RowStatements:
    """The answer to a unit of single changes; `before` and `after` are (changes × key sets)."""

    once: bool
    tags: list[int]
    unique: list[bool]
    first: list[bytes]
    second: list[bytes | None]
    row: list[str]
    before: Keys
    after: Keys

    def encode(self) -> bytes:
        """Return the answer as one Arrow IPC stream."""
        told = {"once": self.once, "tags": self.tags, "unique": self.unique}
        arrays = [
            pa.array(self.first, pa.large_binary()),
            pa.array(self.second, pa.large_binary()),
            pa.array(self.row, pa.large_string()),
            *map(pa.array, np.ascontiguousarray(self.before.T)),
            *map(pa.array, np.ascontiguousarray(self.after.T)),
        ]
        sets = range(len(self.tags))
        names = ["first", "second", "row", *(f"b{i}" for i in sets), *(f"a{i}" for i in sets)]
        batch = pa.RecordBatch.from_arrays(arrays, names=names)
        schema = batch.schema.with_metadata({_METADATA_KEY: json.dumps(told).encode()})
        out = pa.BufferOutputStream()
        with pa.ipc.new_stream(out, schema) as writer:
            writer.write_batch(batch.replace_schema_metadata(schema.metadata))
        encoded: bytes = out.getvalue().to_pybytes()
        return encoded

    @classmethod
    def decode(cls, data: bytes) -> RowStatements:
        """Return the answer in `data`; raise `Malformed`."""
        try:
            with pa.ipc.open_stream(pa.py_buffer(data)) as reader:
                told = json.loads(reader.schema.metadata[_METADATA_KEY])
                batch = reader.read_next_batch()
            sets, columns = len(told["tags"]), batch.columns
            return cls(
                once=told["once"],
                tags=told["tags"],
                unique=told["unique"],
                first=columns[0].to_pylist(),
                second=columns[1].to_pylist(),
                row=columns[2].to_pylist(),
                before=_matrix(columns[3 : 3 + sets], len(batch)),
                after=_matrix(columns[3 + sets :], len(batch)),
            )
        except _UNREADABLE as error:
            raise Malformed(f"undecodable statements: {error}", hint=_HINT) from error


def _matrix(columns: list[pa.Array], rows: int) -> Keys:
    if not columns:
        return np.zeros((rows, 0), np.uint64)
    return np.column_stack([column.to_numpy() for column in columns])


def row_statements(unit: WorkUnit) -> RowStatements:
    """Return the statements of `unit`, whose ops are all EACH or all SAFE; a pure function.

    Raises `Malformed` for row bytes that do not fit the table.
    """
    table = unit.table
    sql = table_sql(unit.dialect, unit.schema, unit.name, table)
    sets = key_sets(unit.schema, table.renamed(unit.name)) + link_sets(table, unit.links)
    once = apply_key(table) is None
    rows = unit.rows.column("row").to_pylist()
    kinds = unit.rows.column("kind").to_pylist()
    safe = not once and bool(rows) and unit.rows.column("op")[0].as_py() == Op.SAFE
    before = np.zeros((len(rows), len(sets)), np.uint64)
    after = np.zeros((len(rows), len(sets)), np.uint64)
    first: list[bytes] = []
    second: list[bytes | None] = []
    labels: list[str] = []
    codec = row_codec(table)
    for i, (kind, data) in enumerate(zip(kinds, rows, strict=True)):
        old: Row | None = None
        new: Row | None = None
        if kind == MutationType.INSERT:
            new = codec.decode_insert(data)
        elif kind == MutationType.DELETE:
            old = codec.decode_delete(data)
        else:
            old, new = codec.decode_update(data)
        statement, behind = _written(sql, old, new, safe=safe)
        first.append(statement)
        second.append(behind)
        labels.append(sql.label(new if old is None else old))  # type: ignore[arg-type]
        for j, each in enumerate(sets):
            before[i, j], after[i, j] = each.keys(old, new)
    tags, unique = [each.tag for each in sets], [each.is_unique for each in sets]
    return RowStatements(once, tags, unique, first, second, labels, before, after)


def _written(
    sql: TableSql, old: Row | None, new: Row | None, *, safe: bool
) -> tuple[bytes, bytes | None]:
    if new is None:
        assert old is not None, "a change has an image"
        return sql.delete_one(old), None
    if old is None:
        return sql.replace_one(new) if safe else sql.insert_one(new), None
    if safe:
        return sql.delete_one(old), sql.replace_one(new)
    return sql.update_one(old, new), None
