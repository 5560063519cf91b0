"""Lake rows: the changes of a unit as Arrow tables, which replace SQL in the dialect `arrow`.

A *block* is an Arrow IPC stream with some of a table's changes. Its columns are the table's, and

    column          type   meaning
    _penstock_op    int8   0 delete, 1 upsert

In a table with a key, deletes have the columns of the key alone, and an upsert replaces the row
with its key. In a table without a key, each line is one row of many that may be equal. The metadata
of the stream's schema has, as JSON under `penstock`, database, table, the names of the key's
columns, and the number of dates per column that a lake cannot represent.

**A change log** has each change in its order, in blocks with these columns first, so that Delta's
statistics cover them, however many columns upstream has:

    column         type                meaning
    _commit_ts     int64               the transaction's commit_ts, or the DDL's
    _seq           int64               numbers the lines of a transaction, over all its tables
    _op            string              insert, delete, update_preimage, update_postimage, truncate
    _commit_time   timestamp[us, UTC]  the time of the commit_ts, to the millisecond
    _start_ts      int64               the transaction's start_ts; NULL for DDL

An update is two lines, the row before and the row after, named as in Delta's own change data feed.
Without the row before, readers could not follow a key that changes, or a table without a key. The
feed's column names are not used, because a table that has one of them cannot have such a feed. A
message is a block, and has the unit's last commit_ts. The rows of a large block are in files
(`lake_files`). Their names are in the block's metadata, and the block has the columns without rows.

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
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from drainer.task.sql.literals import Family, family, names_array, padded_length
from drainer.task.sql.rows import (
    Columns,
    Kinds,
    after_columns,
    apply_key,
    before_columns,
    is_written,
)
from drainer.task.work_unit import Op, Statements, WorkUnit, arrow_header, arrow_stream
from penstock.codes import Code
from penstock.datum.rows.fields import decimal_size
from penstock.errors import Malformed
from penstock.schema.model import ColumnInfo, MysqlType, TableInfo
from penstock.ts import LOGICAL_BITS
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
        if len(texts) == 1:
            return pa.nulls(1, wanted)
        halves = stored[: len(stored) // 2], stored[len(stored) // 2 :]
        return pa.concat_arrays([_moments(half, wanted) for half in halves])


def _parsed(texts: pa.Array, wanted: Any) -> pa.Array:
    if not pa.types.is_timestamp(wanted):
        return texts.cast(wanted)
    local = texts.cast(pa.timestamp("us"))
    return local if wanted.tz is None else pc.assume_timezone(local, wanted.tz)


OP = "_penstock_op"
GOES, COMES = 0, 1


class LakeFile(NamedTuple):
    """A Parquet file that no commit names yet; `path` is below the folder of the run."""

    path: str
    size: int
    modified_ms: int
    stats: str
    """Delta's statistics of the file, as JSON."""
    first_ts: int
    """No row is of a transaction with a smaller commit_ts."""


@dataclass(frozen=True, slots=True)
class Block:
    """Some changes of one table; `rows` has more columns than the table, see the module."""

    schema: str
    name: str
    key: tuple[str, ...]
    rows: pa.Table
    nulled: Counter[str] = field(default_factory=Counter)
    """The number of values per column that a lake cannot represent."""
    files: tuple[LakeFile, ...] = ()
    """The files that have the rows, if `rows` has only their columns."""

    def encode(self) -> bytes:
        header = {
            "schema": self.schema, "name": self.name, "key": self.key, "nulled": self.nulled,
            "files": self.files,
        }  # fmt: skip
        return arrow_stream(self.rows, header)

    @classmethod
    def decode(cls, data: bytes | str) -> Block:
        """Decode a block whose rows share memory with `data`."""
        with pa.ipc.open_stream(pa.py_buffer(data)) as reader:
            header = arrow_header(reader.schema)
            rows = reader.read_all().replace_schema_metadata(None)
        key, nulled = tuple(header["key"]), Counter(header["nulled"])
        files = tuple(LakeFile(*each) for each in header["files"])
        return cls(header["schema"], header["name"], key, rows, nulled, files)


def lake_schema(table: TableInfo) -> pa.Schema:
    fields = [(c.name, lake_type(c)) for c in table.columns if is_written(c)]
    return pa.schema(fields + [(name, pa.string()) for name, _ in table.constants])


def lake_rows(unit: WorkUnit, stored: Callable[[Block], Block] | None = None) -> Statements:
    """Return the blocks of `unit`, after `stored` has put the rows of large blocks into files.

    Raises `Malformed` as `generate` does.
    """
    stored = stored or _same
    ops = unit.rows.column("op").to_numpy()
    kinds = unit.rows.column("kind").to_numpy()
    rows: Any = unit.rows.column("row")
    if len(ops) and ops[0] == Op.ORDERED:
        each_row = _each_row(unit, kinds, rows)
        return Statements(ordered=[stored(each).encode() for each in each_row])
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
            block = gone.block(schema, name, deletes, deleted, delete_count, GOES)
            made.deletes.append(stored(block).encode())
        if upsert_count:
            block = kept.block(schema, name, upserts, written, upsert_count, COMES)
            made.upserts.append(stored(block).encode())
        deleted, written = deleted + delete_count, written + upsert_count
    return made


def _same(block: Block) -> Block:
    return block


def _each_row(unit: WorkUnit, kinds: Kinds, rows: pa.Array) -> list[Block]:
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
Ints = np.ndarray[Any, np.dtype[Any]]


class Lines(NamedTuple):
    """Lines of a change log: the columns, and of each line its change, whether it is an update's
    second line, and its `_op`."""

    values: Values
    at: Ints
    is_second: Ints
    ops: pa.Array


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
                if column.name in self._key:
                    raise Malformed(
                        f"a row of {self._table.name} has a key in {column.name!r} that is no date"
                        " of a lake",
                        "change the row upstream to a real date, or leave the table out",
                        Code.SINK_REFUSES,
                    )
            made.append((array, lost))
        return made

    def lines(self, kinds: Ints, rows: pa.Array) -> Lines:
        """Return the lines of a change log: an update's line before precedes its line after."""
        had, has = (np.flatnonzero(kinds != k) for k in (MutationType.INSERT, MutationType.DELETE))
        pieces: list[Values] = []
        if len(had):
            pieces.append(self.before(kinds[had], rows.take(pa.array(had))))
        if len(has):
            pieces.append(self.after(kinds[has], rows.take(pa.array(has))))
        places = np.concatenate((2 * had, 2 * has + 1))
        order = np.argsort(places, kind="stable")
        at, is_after = places[order] // 2, places[order] % 2
        is_update = kinds[at] == MutationType.UPDATE
        codes = np.where(is_update, 2 + is_after, is_after).astype(np.int8)
        ops = pa.DictionaryArray.from_arrays(pa.array(codes), _OPS).cast(pa.string())
        second = np.where(is_update, is_after, 0)
        return Lines(_joined(pieces, pa.array(order)), at, second, ops)

    def block(
        self, schema: str, name: str, values: Values, begin: int, count: int, op: int
    ) -> Block:
        some = [
            (array.slice(begin, count), None if lost is None else lost[begin : begin + count])
            for array, lost in values
        ]
        added = pa.table({OP: pa.array(np.full(count, op, np.int8))})
        return self.block_of(schema, name, some, added)

    def block_of(self, schema: str, name: str, values: Values, added: pa.Table) -> Block:
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
        return Block(schema, name, key, rows, nulled)


COMMIT_TS, SEQ, CHANGE_OP = "_commit_ts", "_seq", "_op"
COMMIT_TIME, START_TS = "_commit_time", "_start_ts"
_TIME = pa.timestamp("us", "UTC")
OWN_COLUMNS = pa.schema(
    [(COMMIT_TS, pa.int64()), (SEQ, pa.int64()), (CHANGE_OP, pa.string()), (COMMIT_TIME, _TIME),
     (START_TS, pa.int64())]
)  # fmt: skip
INSERT, DELETE, TRUNCATE = "insert", "delete", "truncate"
BEFORE, AFTER = "update_preimage", "update_postimage"

_OPS = pa.array([DELETE, INSERT, BEFORE, AFTER])


def change_schema(table: TableInfo) -> pa.Schema:
    """Return a change log's columns; raise `Malformed` if an upstream column has such a name."""
    schema = lake_schema(table)
    for name in schema.names:
        if name.lower() in OWN_COLUMNS.names:
            raise Malformed(
                f"table {table.name!r} has a column {name!r}, which a change log has of its own",
                "leave the table out by a filter, or name the column otherwise upstream",
                Code.SINK_DDL,
            )
    return pa.schema([*OWN_COLUMNS, *schema])


def commit_times(commit_ts: Ints) -> pa.Array:
    return pa.array((commit_ts >> LOGICAL_BITS) * 1000).cast(_TIME)


def change_blocks(
    tables: Sequence[tuple[str, TableInfo]],
    commit_ts: Sequence[int],
    start_ts: Sequence[int | None],
    rows: pa.RecordBatch,
) -> Iterator[Block]:
    """Yield a block for each table of a unit; its rows are as `EventUnit` has them.

    Raises `Malformed` for row bytes that do not fit their table, and for values without a form.
    """
    of_table = rows.column("table").to_numpy()
    transactions = rows.column("transaction").to_numpy()
    kinds = rows.column("kind").to_numpy()
    firsts = first_lines(transactions, kinds)
    stamps = np.asarray(commit_ts, np.int64)[transactions]
    starts = pa.array(start_ts, pa.int64()).take(rows.column("transaction"))
    bounds = np.searchsorted(of_table, np.arange(len(tables) + 1)).tolist()
    for (schema, table), (begin, end) in zip(tables, pairwise(bounds), strict=True):
        wanted = change_schema(table)
        some = slice(begin, end)
        placed = stamps[some], firsts[some], starts[some]
        block = _block(schema, table, kinds[some], rows.column("row")[some], placed)
        yield replace(block, rows=block.rows.select(wanted.names))


def first_lines(transactions: Ints, kinds: Ints) -> Ints:
    """Return the number of each row's first line in its transaction; an update has two lines."""
    order = np.argsort(transactions, kind="stable")
    counts = 1 + (kinds == MutationType.UPDATE).astype(np.int64)
    before = np.cumsum(counts[order]) - counts[order]
    begins = np.searchsorted(transactions[order], transactions[order])
    made = np.empty(len(order), np.int64)
    made[order] = before - before[begins]
    return made


def _block(
    schema: str, table: TableInfo, kinds: Ints, rows: pa.Array, placed: tuple[Ints, Ints, pa.Array]
) -> Block:
    stamps, firsts, starts = placed
    columns = LakeColumns(table, written_positions(table))
    lines = columns.lines(kinds, rows)
    added = pa.Table.from_arrays(
        [
            pa.array(stamps[lines.at]),
            pa.array(firsts[lines.at] + lines.is_second),
            lines.ops,
            commit_times(stamps[lines.at]),
            starts.take(pa.array(lines.at)),
        ],
        schema=OWN_COLUMNS,
    )
    return columns.block_of(schema, table.name, lines.values, added)


def _joined(pieces: Sequence[Values], order: pa.Array) -> Values:
    made: Values = []
    for column in zip(*pieces, strict=True):
        array = pa.concat_arrays([array for array, _ in column]).take(order)
        lost = [flags for _, flags in column if flags is not None]
        made.append((array, np.concatenate(lost) if lost else None))
    return made
