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
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from penstock.codes import Code
from penstock.datum import values
from penstock.datum.rows import fields
from penstock.datum.rows.fields import Decode, Encode, Field, refused
from penstock.datum.rows.reader import (
    EMPTY_ROW,
    ROW_ID,
    RowReader,
    Stored,
    handle_parts,
    handle_position,
    stored_columns,
)
from penstock.errors import Malformed
from penstock.schema.model import ColumnInfo, MysqlType, TableInfo

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
        reader = RowReader(table, _decode)
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


def _decode(field: Field) -> Decode:
    return field.decode


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
