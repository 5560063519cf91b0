"""The row codec: converts the rows of one table version to TiDB's row bytes and back.

    row      = (column id as int datum, value datum)*     or the one byte 00 for no columns at all
    insert   = handle, row      handle: one int datum, or the datums of a common handle's columns
    update   = row before, row after, with the same columns: the first value of an id is old
    delete   = row

    t(id int primary key, c varchar), ids 1 and 2, insert (7, 'abc'):   080e | 0804 0206616263

An insert omits the handle's columns, and NULLs of columns that read as NULL when they are missing.
Updates and deletes hold every column, and column -1 (the row id) when the table has no handle of
its own. Column ids that the table does not know are skipped: they belong to columns that are being
added or dropped. Virtual generated columns are never stored and read as None, as do columns that
are not public. A row is a sequence with one value per entry of `TableInfo.columns`.

Each column has one compiled function; a datum of an unknown column is skipped without being decoded
(`cut_one`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from penstock.codes import Code
from penstock.datum import decimals, jsonb, values
from penstock.datum.rows import defaults, fields
from penstock.datum.rows.fields import Decode, Encode, Field, refused
from penstock.datum.values import damaged
from penstock.errors import Malformed
from penstock.schema.model import PUBLIC, ColumnInfo, IndexColumn, MysqlType, TableInfo

ROW_ID = -1
"""The column id under which a table without a handle of its own keeps its hidden row id."""
EMPTY_ROW = b"\x00"

Row = tuple[object, ...]


@dataclass(frozen=True, slots=True)
class Stored:
    """A column that rows hold: its place in the table, its reader and its writer."""

    position: int
    column: ColumnInfo
    field: Field
    header: bytes
    omits_null: bool


def stored_columns(table: TableInfo) -> tuple[Stored, ...]:
    """Return the columns that rows of `table` hold, in the order in which they are written."""
    return tuple(
        Stored(
            position,
            column,
            fields.compile_field(column),
            values.int_datum(column.id),
            # An insert may only omit a NULL that will read as NULL again.
            not column.origin_is_expr
            and column.origin_default is None
            and (column.is_generated or not column.is_not_null),
        )
        for position, column in enumerate(table.columns)
        if column.state == PUBLIC and not (column.is_generated and not column.generated_stored)
    )


def handle_position(table: TableInfo) -> int | None:
    key = table.primary_key if table.pk_is_handle else None
    return key.columns[0].offset if key else None


def handle_parts(table: TableInfo) -> tuple[IndexColumn, ...]:
    """Return the columns of a common handle, in index order."""
    key = table.primary_key if table.is_common_handle else None
    return key.columns if key else ()


_FIXED = frozenset({values.INT_FLAG, values.UINT_FLAG, values.FLOAT_FLAG, values.DURATION_FLAG})
_VARINTS = frozenset({values.VARINT_FLAG, values.UVARINT_FLAG})


def cut_one(data: bytes, at: int) -> int:
    """Return the end of the datum at `at`; `Malformed` if it is truncated or has no flag."""
    flag = values.flag_at(data, at)
    at += 1
    if flag in _VARINTS:
        return values.read_uvarint(data, at)[1]
    if flag == values.COMPACT_BYTES_FLAG:
        return values.read_bytes(data, at)[1]
    if flag == values.NULL_FLAG:
        return at
    if flag in _FIXED:
        return values.take(data, at, 8)[1]
    if flag == values.DECIMAL_FLAG:
        return decimals.end_of(data, at)
    if flag == values.JSON_FLAG:
        return at + jsonb.length(data, at)
    if flag == values.BYTES_FLAG:
        return values.read_bytes_comparable(data, at)[1]
    raise damaged(f"no datum has the flag {flag} found at byte {at - 1}")


_ABSENT = object()


class _TextKey(int):
    """A text's key in a handle: with most collations it consists of weights, and is not a text.

    TiDB repeats such a column's value in the row. Only if the row does not have it, the key is the
    text itself (a `_bin` collation, or a cluster without TiDB's new collations).
    """


class RowReader:
    """Reads rows with a function per column; `RowCodec` decodes values, `columnar` stored ones."""

    def __init__(self, table: TableInfo, read: Callable[[Field], Decode]) -> None:
        self._table = table
        self._width = len(table.columns)
        stored = stored_columns(table)
        self._by_id = {s.column.id: (s.position, read(s.field)) for s in stored}
        self._missing = {s.position: _missing_reader(s, read) for s in stored}
        self._handle = handle_position(table)
        self._handle_range = (0, 0)
        self._handle_mask = 0
        if self._handle is not None:
            column = table.columns[self._handle]
            self._handle_range = fields.integer_range(column)
            self._handle_mask = values.UINT64_MAX if column.is_unsigned else -1
        by_position = {s.position: s for s in stored}
        self._handle_parts = [
            (part.offset, read(by_position[part.offset].field), part.length == -1)
            for part in handle_parts(table)
        ]
        self._text_keys = {
            position: decode
            for position, decode, whole in self._handle_parts
            if whole and _is_text(table.columns[position])
        }
        self._steps = [(s.header, s.position, read(s.field)) for s in stored]
        if self._handle is None and not self._handle_parts:
            # The row id goes to a place after the row, and is cut off with it.
            self._steps.append((values.int_datum(ROW_ID), self._width, fields.read_int))
        self._insert_steps = [step for step in self._steps if step[1] != self._handle]

    def insert(self, data: bytes) -> Row:
        try:
            found, at = self._read_handle(data)
            if quick := self._quick(data, at, self._insert_steps, found):
                row, at, _ = quick
                if at == len(data):
                    return self._with_text_keys(row, data) if self._text_keys else row
            return self._with_text_keys(self._insert_in_any_order(data), data)
        except Malformed as problem:
            raise self._in_table(problem) from None

    def update(self, data: bytes) -> tuple[Row, Row]:
        try:
            if before := self._quick(data, 0, self._steps, {}):
                after = self._quick(data, before[1], self._steps, {})
                if after and after[1] == len(data) and before[2] == after[2]:
                    return before[0], after[0]
            old: dict[int, object] = {}
            new: dict[int, object] = {}
            self._read_rows(data, 0, old, new)
            return self._complete(old), self._complete(new)
        except Malformed as problem:
            raise self._in_table(problem) from None

    def delete(self, data: bytes) -> Row:
        try:
            if quick := self._quick(data, 0, self._steps, {}):
                row, at, _ = quick
                if at == len(data):
                    return row
            seen: dict[int, object] = {}
            self._read_rows(data, 0, seen, None)
            return self._complete(seen)
        except Malformed as problem:
            raise self._in_table(problem) from None

    def _quick(
        self, data: bytes, at: int, steps: list[tuple[bytes, int, Decode]], found: dict[int, object]
    ) -> tuple[Row, int, list[int]] | None:
        """Read one row whose columns come in the usual order, None if anything is unusual.

        Returns the row, the next position, and the columns missing in it; `found` has the values of
        the handle. The slow path then finds out whether the row is unusual or malformed.
        """
        row: list[object] = [None] * (self._width + 1)
        for position, value in found.items():
            row[position] = value
        absent: list[int] = []
        start = at
        try:
            for header, position, decode in steps:
                if not data.startswith(header, at):
                    absent.append(position)
                    continue
                at += len(header)
                if data[at]:
                    row[position], at = decode(data, at)
                else:
                    row[position] = None
                    at += 1
        except (Malformed, IndexError):
            return None
        if at == start:
            return None
        for position in absent:
            if position not in found and position < self._width:
                row[position] = self._missing[position]()
        del row[self._width]
        return tuple(row), at, absent

    def _insert_in_any_order(self, data: bytes) -> Row:
        found, at = self._read_handle(data)
        seen = dict(found)
        self._read_rows(data, at, seen, None)
        if self._handle is not None:
            seen[self._handle] = found[self._handle]
        return self._complete(seen)

    def missing(self, position: int) -> object:
        return self._missing[position]()

    def column_ids(self, data: bytes, *, is_insert: bool) -> list[int]:
        """Return a row's column ids in stored order, an update's twice, without reading values."""
        at = self._read_handle(data)[1] if is_insert else 0
        found: list[int] = []
        while at < len(data):
            column_id, at = _read_id(data, at)
            found.append(column_id)
            at = cut_one(data, at)
        return found

    def _in_table(self, problem: Malformed) -> Malformed:
        return Malformed(
            f"table {self._table.name!r}: {problem.problem}", problem.hint, Code.BINLOG_UNDECODABLE
        )

    def _read_handle(self, data: bytes) -> tuple[dict[int, object], int]:
        found: dict[int, object] = {}
        if not self._handle_parts:
            number, at = fields.read_int(data, 0)
            if self._handle is not None:
                found[self._handle] = self._handle_value(number)
            return found, at
        at = 0
        for position, decode, whole in self._handle_parts:
            if position in self._text_keys:
                found[position] = _TextKey(at)
                at = cut_one(data, at)
            elif whole:
                found[position], at = decode(data, at)
            else:
                at = cut_one(data, at)
        return found, at

    def _with_text_keys(self, row: Row, data: bytes) -> Row:
        whole = list(row)
        for position, decode in self._text_keys.items():
            at = whole[position]
            if isinstance(at, _TextKey):
                whole[position] = self._read_value((position, decode), data, at)[0]
        return tuple(whole)

    def _handle_value(self, number: int) -> int:
        number &= self._handle_mask
        low, high = self._handle_range
        if not low <= number <= high:
            raise damaged(f"the handle {number} is not in {low}..{high}")
        return number

    def _read_rows(
        self, data: bytes, at: int, first: dict[int, object], second: dict[int, object] | None
    ) -> None:
        """Read (id, value) pairs to the end; an id's second value goes to `second`."""
        end = len(data)
        ids: set[int] = set()
        ids_again: set[int] = set()
        by_id = self._by_id
        if at == end:
            raise damaged("the row is missing")
        empty = EMPTY_ROW if second is None else EMPTY_ROW * 2
        if end - at == len(empty) and data[at:] == empty:
            return
        while at < end:
            column_id, at = _read_id(data, at)
            target = first
            if column_id in ids:
                if second is None or column_id in ids_again:
                    raise damaged(f"column id {column_id} comes too often")
                target = second
                ids_again.add(column_id)
            ids.add(column_id)
            known = by_id.get(column_id)
            if known is None:
                at = cut_one(data, at)
            elif at < end and data[at] == 0:
                target[known[0]] = None
                at += 1
            else:
                target[known[0]], at = self._read_value(known, data, at)
        if second is not None and ids != ids_again:
            raise damaged("an update's row before and row after have different columns")

    def _read_value(self, known: tuple[int, Decode], data: bytes, at: int) -> tuple[object, int]:
        position, decode = known
        try:
            return decode(data, at)
        except Malformed as problem:
            name = self._table.columns[position].name
            raise damaged(f"column {name!r}: {problem.problem}") from None

    def _complete(self, seen: dict[int, object]) -> Row:
        row: list[object] = [None] * self._width
        for position, missing in self._missing.items():
            value = seen.get(position, _ABSENT)
            row[position] = missing() if value is _ABSENT else value
        return tuple(row)


def _is_text(column: ColumnInfo) -> bool:
    return column.tp in fields.STRING_TYPES and not column.is_binary


def _read_id(data: bytes, at: int) -> tuple[int, int]:
    flag = values.flag_at(data, at)
    if flag != values.VARINT_FLAG:
        raise damaged(f"flag {flag} at byte {at} where a column id begins")
    return values.read_varint(data, at + 1)


def _missing_reader(stored: Stored, read: Callable[[Field], Decode]) -> Callable[[], object]:
    """Return a reader of a missing column; a bad default thus affects only rows needing it."""
    if stored.omits_null:
        return lambda: None

    def missing() -> object:
        datum = defaults.missing_datum(stored.column)
        return None if datum is None else read(stored.field)(datum, 0)[0]

    return missing


_NULL = b"\x00"


class RowCodec:
    """Writes and reads the rows of one version of one table; everything is compiled at the start.

    Values that do not fit their column raise `Malformed` naming column and value, and so do bytes
    that are damaged or belong to another table.
    """

    def __init__(self, table: TableInfo) -> None:
        self.table = table
        self._width = len(table.columns)
        self._stored = stored_columns(table)
        self._handle = handle_position(table)
        self._handle_range = (0, 0)
        if self._handle is not None:
            self._handle_range = fields.integer_range(table.columns[self._handle])
        parts = handle_parts(table)
        by_position = {s.position: s for s in self._stored}
        self._handle_parts = [(by_position[p.offset], p.length) for p in parts]
        in_handle = {p.offset for p in parts if p.length == -1} | {self._handle}
        self._in_insert = _writers(s for s in self._stored if s.position not in in_handle)
        self._in_row = _writers(self._stored)
        self._has_row_id = self._handle is None and not parts
        reader = RowReader(table, lambda field: field.decode)
        self.decode_insert = reader.insert
        self.decode_update = reader.update
        self.decode_delete = reader.delete

    def encode_insert(self, row: Sequence[object], *, rowid: int = 0) -> bytes:
        """Return the bytes of a new row; `rowid` is used only in tables without a handle."""
        self._check_width(row)
        out = [self._encode_handle(row, rowid)]
        for position, header, encode, stored in self._in_insert:
            value = row[position]
            if value is not None:
                out += (header, encode(value))
            elif not stored.omits_null:
                out += (header, _null(stored))
        if len(out) == 1:
            out.append(EMPTY_ROW)
        return b"".join(out)

    def encode_update(
        self, before: Sequence[object], after: Sequence[object], *, rowid: int = 0
    ) -> bytes:
        return self._encode_row(before, rowid) + self._encode_row(after, rowid)

    def encode_delete(self, before: Sequence[object], *, rowid: int = 0) -> bytes:
        return self._encode_row(before, rowid)

    def _encode_row(self, row: Sequence[object], rowid: int) -> bytes:
        self._check_width(row)
        out: list[bytes] = []
        for position, header, encode, stored in self._in_row:
            value = row[position]
            out += (header, _null(stored) if value is None else encode(value))
        if self._has_row_id:
            out += (values.int_datum(ROW_ID), values.int_datum(rowid))
        return b"".join(out) or EMPTY_ROW

    def _encode_handle(self, row: Sequence[object], rowid: int) -> bytes:
        if self._handle_parts:
            return b"".join(_handle_datum(s, row[s.position], n) for s, n in self._handle_parts)
        if self._handle is None:
            return values.int_datum(rowid)
        column = self.table.columns[self._handle]
        number = fields.as_int(column, row[self._handle])
        low, high = self._handle_range
        if not low <= number <= high:
            raise refused(column, number, f"{low} to {high} is the range")
        # The handle is signed whatever the column is: large unsigned keys are negative handles.
        return values.int_datum(number - (1 << 64) if number > values.INT64_MAX else number)

    def _check_width(self, row: Sequence[object]) -> None:
        if len(row) != self._width:
            raise Malformed(
                f"table {self.table.name!r}: a row has {len(row)} values for {self._width} columns",
                "give one value per column of the table's current version",
                Code.ROW_REFUSED,
            )


def _writers(columns: Iterable[Stored]) -> tuple[tuple[int, bytes, Encode, Stored], ...]:
    return tuple((s.position, s.header, s.field.encode, s) for s in columns)


def _null(stored: Stored) -> bytes:
    if stored.column.is_not_null and not stored.column.is_generated:
        raise refused(stored.column, None, "the column is NOT NULL")
    return _NULL


def _handle_datum(stored: Stored, value: object, length: int) -> bytes:
    if value is None:
        raise refused(stored.column, None, "it is part of the primary key")
    datum = stored.field.encode(value)
    if length == -1 and stored.column.tp is MysqlType.DURATION:
        # A handle is part of a key, where a duration keeps its own flag.
        nanos = values.read_varint(datum, 1)[0]
        return b"\x07" + values.encode_int_comparable(nanos)
    if length == -1:
        return datum
    return values.bytes_datum(_prefix(stored.column, datum, length))


def _prefix(column: ColumnInfo, datum: bytes, length: int) -> bytes:
    raw = values.read_bytes(datum, 1)[0]
    return raw[:length] if column.is_binary else raw.decode()[:length].encode()
