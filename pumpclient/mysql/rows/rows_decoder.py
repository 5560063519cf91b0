"""Decodes rows events to values; a decoder is made for each table map, and kept.

`Decoder` generates one (see `read_rows`). Partial updates, and images that do not have all
columns, are read value by value. A value is

    int      integers, BIT, YEAR, ENUM and SET (numbers; `Column.labels` has their texts)
    float    FLOAT by its shortest digits, DOUBLE
    Decimal  DECIMAL
    str      texts, dates and times, JSON as the server prints it, uuid, inet4, inet6
    bytes    BINARY, VARBINARY, BLOB, GEOMETRY (SRID and WKB)
    tuple    VECTOR

and None for NULL. The error for an unreadable value names its column, and the type as which it was
read.
"""

import struct
from bisect import bisect_left
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cached_property
from typing import Any

from penstock.codes import Code
from penstock.errors import Malformed, NeedsOperator
from pumpclient.mysql.events.frame import BodyReader, EventType
from pumpclient.mysql.rows.column_types import reading_of
from pumpclient.mysql.rows.json_binary import apply_changes, read_changes, read_json, typed_text
from pumpclient.mysql.rows.rows_event import (
    HEAD_AT,
    Kind,
    Reading,
    RowsEvent,
    bitmap_size,
    read_rows,
    usual_heads,
)
from pumpclient.mysql.rows.table_map import BINARY, Column, TableMap, WireType, charset_name

UNREADABLE = LookupError, ValueError, ArithmeticError, struct.error
"""Errors of reading bytes that are not rows; `Malformed` is another."""

_HINT = "bytes of the event are lost, or its table was not what its TABLE_MAP says"
_TEXT_HINT = (
    "correct the value on the server, or make the column VARBINARY there, which keeps its bytes;"
    " then load the table again with penstock source reload"
)
_SHOWN_BYTES = 32


def unreadable(
    table_map: TableMap, readings: Sequence[Reading], type_: int, body: bytes, error: Exception
) -> Malformed:
    """Return the error for an event that raised `error`: it names the column if only one fails."""
    problem, hint, code = f"cannot be read: {error}", _HINT, Code.ROWS_EVENT
    if isinstance(error, Malformed):
        problem, hint, code = error.problem, error.hint, error.code
    found = _first(table_map, readings, type_, body)
    if found is not None and not problem.startswith("column "):
        index, cause = found
        column = table_map.columns[index]
        if isinstance(cause, UnicodeDecodeError):
            problem, hint = f"cannot be read: {_undecodable(column, cause)}", _TEXT_HINT
        name = f"number {index + 1}" if column.name is None else repr(column.name)
        problem = f"column {name} ({format_of(column)}) {problem}"
        if isinstance(error, Malformed):
            problem = f"column {name} ({format_of(column)}): {error.problem}"
    return Malformed(f"rows of {table_map.name}: {problem}", hint, code)


def format_of(column: Column) -> str:
    kind = column.real_type
    if kind is WireType.NEWDECIMAL:
        return f"DECIMAL({column.metadata >> 8},{column.metadata & 0xFF})"
    if column.declared is not None:
        return column.declared
    if column.collation in (None, BINARY):
        return kind.name
    assert column.collation is not None
    return f"{kind.name} in {charset_name(column.collation)}"


def _undecodable(column: Column, error: UnicodeDecodeError) -> str:
    raw = bytes(error.object)
    more = "" if len(raw) <= _SHOWN_BYTES else f" and {len(raw) - _SHOWN_BYTES} more bytes"
    is_text = column.collation not in (None, BINARY)
    charset = charset_name(column.collation or 0) if is_text else error.encoding
    return (
        f"0x{raw[:_SHOWN_BYTES].hex()}{more} is not valid {charset}"
        f" (byte {error.start}: {error.reason})"
    )


def _first(
    table_map: TableMap, readings: Sequence[Reading], type_: int, body: bytes
) -> tuple[int, Exception | None] | None:
    def error_of(columns: Sequence[int]) -> Exception | None:
        try:
            read_rows(readings, columns, table_map.name)(event.images, 0)
        except (*UNREADABLE, Malformed) as error:
            return error
        return None

    width = len(readings)
    with suppress(*UNREADABLE, Malformed):
        event = RowsEvent.decode(EventType(type_), body)
        if event.width == width and event.is_whole and error_of(()) is None:
            # Trying one column after the other takes minutes for a thousand.
            index = bisect_left(range(width), 1, key=lambda n: bool(error_of(range(n + 1))))
            return (index, error_of((index,))) if index < width else None
    return None


PARTIAL_JSON = 0x1
"""The option of a value: a list of changes."""
Row = tuple[Any, ...]


def value_reader(reading: Reading) -> Callable[[bytes], Any]:
    if reading.prefix:
        source = f"lambda raw: {reading.value('raw')}"
        return eval(source, dict(reading.names))  # type: ignore[no-any-return]
    layout = struct.Struct("<" + "".join(reading.codes))
    raw = [f"r{n}" for n in range(len(reading.codes))]
    inner = eval(f"lambda {', '.join(raw)}: {reading.value(*raw)}", dict(reading.names))
    return lambda data: inner(*layout.unpack(data))


RowChanges = list[tuple[Row | None, Row | None]]
"""A row before and after; None before an insert and after a delete."""


class Decoder:
    """Reads the rows events of one table.

    Making a decoder takes about a millisecond for ten columns: keep it. A row without a value for
    an `optional` column has None there. Raises `NeedsOperator` when the map does not have signs and
    charsets: complete it (`completed`).
    """

    def __init__(self, table_map: TableMap, optional: frozenset[int] = frozenset()) -> None:
        self.table_map = table_map
        self._optional = optional
        width = len(table_map.columns)
        if not width:
            raise Malformed(f"table {table_map.name} has no columns", _HINT, Code.ROWS_EVENT)
        self._readings = [reading_of(column) for column in table_map.columns]
        self._read = read_rows(self._readings, range(width), table_map.name)
        self._json = [n for n, c in enumerate(table_map.columns) if c.type is WireType.JSON]
        self._heads = usual_heads(width)

    def changes(self, type_: int, body: bytes) -> RowChanges:
        """Return the rows of a whole rows event, before and after.

        Raises `Malformed` for bytes that are not rows of this table, and `NeedsOperator` when the
        images do not have all columns (`binlog_row_image` MINIMAL or NOBLOB).
        """
        try:
            known = self._heads.get(type_)
            if known is not None:
                kind, head, images_at = known
                if body.startswith(head, HEAD_AT):
                    return _PAIRS[kind](self._read(body, images_at))
            event = RowsEvent.decode(EventType(type_), body)
            if event.width != len(self._readings):
                raise ValueError(f"{event.width} columns where the map has {len(self._readings)}")
            if event.is_whole:
                return _PAIRS[event.layout.kind](self._read(event.images, 0))
            return self.value_by_value(event)
        except UNREADABLE as error:
            raise unreadable(self.table_map, self._readings, type_, body, error) from error

    @cached_property
    def _values(self) -> list[Callable[[bytes], Any]]:
        return [value_reader(reading) for reading in self._readings]

    def value_by_value(self, event: RowsEvent) -> RowChanges:
        """Return the rows before and after, whichever columns the images have.

        A column that is missing only in the image after keeps its value
        (`binlog_row_image=FULL_NODUP`). Raises `NeedsOperator` when a row cannot be completed.
        """
        body = BodyReader(event.images, f"rows of {self.table_map.name}")
        out: RowChanges = []
        while body.left:
            before = after = None
            old: list[bytes | None] = [None] * len(self._readings)
            if event.before is not None:
                self._check(event.before)
                old = self._slices(body, event.before, old)
                before = self._row(old)
            if event.after is not None:
                if before is None:
                    self._check(event.after)
                after = self._after(body, event, event.after, old)
            out.append((before, after))
        return out

    def _check(self, present: int) -> None:
        absent = (n for n in range(len(self._readings)) if not present >> n & 1)
        missing = [n for n in absent if n not in self._optional]
        if missing:
            raise NeedsOperator(
                f"the images of {self.table_map.name} do not have its columns {missing}",
                "set the server's binlog_row_image to FULL, and reconnect its clients",
                Code.BINLOG_INCOMPLETE,
            )

    def _after(
        self, body: BodyReader, event: RowsEvent, present: int, old: list[bytes | None]
    ) -> Row:
        partial: set[int] = set()
        if event.layout.is_partial and body.packed() & PARTIAL_JSON:
            bits = body.uint(bitmap_size(len(self._json)))
            partial = {column for n, column in enumerate(self._json) if bits >> n & 1}
        new = self._slices(body, present, old)
        row = list(self._row([None if n in partial else raw for n, raw in enumerate(new)]))
        for n in partial:
            raw, base = new[n], old[n]
            if raw is None or base is None or not present >> n & 1:
                raise body.malformed(f"changes of column {n}, which has no value")
            row[n] = typed_text(apply_changes(read_json(base), read_changes(raw)))
        return tuple(row)

    def _slices(
        self, body: BodyReader, present: int, absent: Sequence[bytes | None]
    ) -> list[bytes | None]:
        nulls = body.uint(bitmap_size(present.bit_count()))
        out: list[bytes | None] = []
        for index, reading in enumerate(self._readings):
            if not present >> index & 1:
                out.append(absent[index])
                continue
            is_null, nulls = nulls & 1, nulls >> 1
            if is_null:
                out.append(None)
            else:
                size = body.uint(reading.prefix) if reading.prefix else reading.size
                out.append(body.take(size))
        return out

    def _row(self, raw: Sequence[bytes | None]) -> Row:
        return tuple(
            None if data is None else read(data)
            for read, data in zip(self._values, raw, strict=True)
        )


def _inserted(rows: list[Row]) -> RowChanges:
    if len(rows) == 1:
        return [(None, rows[0])]
    return [(None, row) for row in rows]


def _updated(rows: list[Row]) -> RowChanges:
    if len(rows) % 2:
        raise ValueError("a row before its update lacks the row after")
    return list(zip(rows[::2], rows[1::2], strict=True))


_PAIRS: dict[Kind, Callable[[list[Row]], RowChanges]] = {
    Kind.INSERT: _inserted,
    Kind.UPDATE: _updated,
    Kind.DELETE: lambda rows: [(row, None) for row in rows],
}
