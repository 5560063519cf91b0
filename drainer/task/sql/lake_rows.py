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

A column's type in Arrow, and so in Delta:

    upstream                          Arrow               Delta
    TINYINT, SMALLINT, INT, BIGINT    int8 … int64        byte, short, integer, long
    the same, UNSIGNED                the next larger     BIGINT: decimal(20,0)
    YEAR                              int16               short
    FLOAT, DOUBLE                     float, double       float, double
    DECIMAL(p,s), p up to 38          decimal128(p,s)     decimal(p,s)
    DECIMAL above that                string              string, with the column's scale
    texts, ENUM, SET, JSON            string              string
    binaries, BIT, geometries         binary              binary
    DATE                              date32              date
    DATETIME                          timestamp[us]       timestamp_ntz
    TIMESTAMP                         timestamp[us, UTC]  timestamp
    TIME                              string              string, as MySQL prints it: -838:59:59

A lake has only valid dates from the year 1 on; MySQL's other dates (`0000-00-00`, `2020-02-00`)
become NULL, and are counted. CHAR has no trailing spaces and BINARY(n) all its zero bytes, as MySQL
reads them, so that a key has the same bytes whichever form a writer sends.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from drainer.task.sql.images import Columns, Kinds, after_columns, before_columns
from drainer.task.sql.keys import apply_key, is_written
from drainer.task.sql.literals import Family, family, names_array, padded_length
from drainer.task.work_unit import Op, Statements, WorkUnit, arrow_header, arrow_stream
from penstock.codes import Code
from penstock.datum.rows.fields import decimal_size
from penstock.errors import Malformed
from penstock.schema.model import ColumnInfo, MysqlType, TableInfo
from penstock.wire.binlog import MutationType

DECIMAL_DIGITS_MAX = 38
_SIGNED = {
    MysqlType.TINY: pa.int8(),
    MysqlType.SHORT: pa.int16(),
    MysqlType.INT24: pa.int32(),
    MysqlType.LONG: pa.int32(),
    MysqlType.LONGLONG: pa.int64(),
    MysqlType.YEAR: pa.int16(),
}
_UNSIGNED = {
    MysqlType.TINY: pa.int16(),
    MysqlType.SHORT: pa.int32(),
    MysqlType.INT24: pa.int32(),
    MysqlType.LONG: pa.int64(),
    MysqlType.LONGLONG: pa.decimal128(20, 0),
    MysqlType.YEAR: pa.int16(),
}
_TEMPORAL = {
    MysqlType.DATE: pa.date32(),
    MysqlType.DATETIME: pa.timestamp("us"),
    MysqlType.TIMESTAMP: pa.timestamp("us", "UTC"),
    MysqlType.DURATION: pa.string(),
}
_FIRST_YEAR = b"0001"


def lake_type(column: ColumnInfo) -> pa.DataType:
    """Return the column's type in a lake; raise `Malformed` for a type that is never stored."""
    kind = family(column)
    if kind is Family.INT:
        return (_UNSIGNED if column.is_unsigned else _SIGNED)[column.tp]
    if kind is Family.FLOAT:
        return pa.float32() if column.tp is MysqlType.FLOAT else pa.float64()
    if kind is Family.DECIMAL:
        digits, scale = decimal_size(column)
        return pa.string() if digits > DECIMAL_DIGITS_MAX else pa.decimal128(digits, scale)
    if kind is Family.TEMPORAL:
        return _TEMPORAL[column.tp]
    return pa.binary() if kind in (Family.BYTES, Family.BIT) else pa.string()


def lake_array(column: ColumnInfo, stored: pa.Array) -> pa.Array:
    """Return values in the storage form of `decode_columns` as the lake has them.

    Values that a lake cannot represent are NULL.
    """
    kind, wanted = family(column), lake_type(column)
    if kind is Family.TEMPORAL and column.tp is not MysqlType.DURATION:
        return _moments(stored, wanted)
    if kind is Family.BIT:
        return _bits(stored, (column.flen + 7) // 8)
    if kind in (Family.ENUM, Family.SET):
        return names_array(column, stored).cast(wanted)
    if length := padded_length(column):
        padded = [None if v is None else v.ljust(length, b"\0") for v in stored.to_pylist()]
        return pa.array(padded, wanted)
    if kind is Family.TEXT and column.tp is MysqlType.STRING:
        stored = pc.utf8_rtrim(stored, " ")
    return stored.cast(wanted)


def _bits(stored: pa.Array, length: int) -> pa.Array:
    """Return bit masks in MySQL's output form: bytes, the highest bits first."""
    values = stored.fill_null(0).to_numpy(zero_copy_only=False).astype(">u8")
    data = values.view(np.uint8).reshape(-1, 8)[:, 8 - length :].tobytes()
    whole = pa.FixedSizeBinaryArray.from_buffers(
        pa.binary(length), len(stored), [None, pa.py_buffer(data)]
    ).cast(pa.binary())
    return pc.if_else(stored.is_valid(), whole, pa.scalar(None, pa.binary()))


def _moments(stored: pa.Array, wanted: pa.DataType) -> pa.Array:
    """Parse printed dates or times; a value that is invalid in a lake becomes NULL."""
    texts = stored.cast(pa.string())
    before = pc.less(texts.cast(pa.binary()), pa.scalar(_FIRST_YEAR, pa.binary()))
    texts = pc.if_else(before, pa.scalar(None, pa.string()), texts)
    try:
        return _parsed(texts, wanted)
    except pa.ArrowInvalid:  # One of them is not a day of the calendar.
        return pa.concat_arrays([_one(texts.slice(i, 1), wanted) for i in range(len(texts))])


def _one(text: pa.Array, wanted: pa.DataType) -> pa.Array:
    try:
        return _parsed(text, wanted)
    except pa.ArrowInvalid:
        return pa.nulls(1, wanted)


def _parsed(texts: pa.Array, wanted: Any) -> pa.Array:
    if not pa.types.is_timestamp(wanted):
        return texts.cast(wanted)
    local = texts.cast(pa.timestamp("us"))
    return local if wanted.tz is None else pc.assume_timezone(local, wanted.tz)


OP = "_penstock_op"
GOES, COMES = 0, 1


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
        header = {
            "schema": self.schema, "name": self.name, "key": self.key, "nulled": self.nulled,
        }  # fmt: skip
        return arrow_stream(self.rows, header)

    @classmethod
    def decode(cls, data: bytes | str) -> Block:
        """Decode a block whose rows share memory with `data`."""
        with pa.ipc.open_stream(pa.py_buffer(data)) as reader:
            header = arrow_header(reader.schema)
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
                "change the row upstream to a real date, or leave the table out",
                Code.SINK_REFUSES,
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
