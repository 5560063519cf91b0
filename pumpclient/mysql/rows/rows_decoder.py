"""Decodes rows events to values; a decoder is made for each table map, and kept.

`decoder_for` generates one (see `read_rows`). Partial updates, and images that do not have all
columns, are read value by value (`ImageReader`). A value is

    int      integers, BIT, YEAR, ENUM and SET (numbers; `Column.labels` has their texts)
    float    FLOAT by its shortest digits, DOUBLE
    Decimal  DECIMAL
    str      texts, dates and times, JSON as the server prints it, uuid, inet4, inet6
    bytes    BINARY, VARBINARY, BLOB, GEOMETRY (SRID and WKB)
    tuple    VECTOR

and None for NULL. The error for an unreadable value names its column, and the type as which it was
read.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Any

from penstock.codes import Code
from penstock.errors import Malformed, NeedsOperator
from pumpclient.mysql.events.frame import BodyReader, EventType
from pumpclient.mysql.rows.column_types import reading_of
from pumpclient.mysql.rows.json_binary import apply_changes, read_changes, read_json, typed_text
from pumpclient.mysql.rows.rows_event import (
    Kind,
    Reading,
    RowsEvent,
    bitmap_size,
    read_rows,
    usual_heads,
)
from pumpclient.mysql.rows.table_map import (
    BINARY,
    TABLE_ID_SIZE,
    Column,
    TableMap,
    WireType,
    charset_name,
)

UNREADABLE = LookupError, ValueError, ArithmeticError, struct.error
"""Errors of reading bytes that are not rows; `Malformed` is another."""

_HINT = "bytes of the event are lost, or its table was not what its TABLE_MAP says"
_TEXT_HINT = (
    "correct the value on the server, or make the column VARBINARY there, which keeps its bytes;"
    " then load the table again with penstock source reload"
)
_SHOWN_BYTES = 32


def unreadable(
    table_map: TableMap,
    readings: Sequence[Reading],
    type_: int,
    body: bytes,
    id_size: int,
    error: Exception,
) -> Malformed:
    """Return the error for an event that raised `error`: it names the column if only one fails."""
    problem, hint, code = f"cannot be read: {error}", _HINT, Code.ROWS_EVENT
    if isinstance(error, Malformed):
        problem, hint, code = error.problem, error.hint, error.code
    found = _first(table_map, readings, type_, body, id_size)
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
    table_map: TableMap, readings: Sequence[Reading], type_: int, body: bytes, id_size: int
) -> tuple[int, Exception] | None:
    try:
        event = RowsEvent.decode(EventType(type_), body, id_size=id_size)
        full = (1 << len(readings)) - 1
        if event.layout.is_partial or any(
            b not in (None, full) for b in (event.before, event.after)
        ):
            return None
        read_rows(readings, (), table_map.name)(event.images, 0)
    except (*UNREADABLE, Malformed):
        return None
    for index in range(len(readings)):
        try:
            read_rows(readings, (index,), table_map.name)(event.images, 0)
        except (*UNREADABLE, Malformed) as error:
            return index, error
    return None


_PARTIAL_JSON = 0x1
Row = tuple[Any, ...]


def value_reader(reading: Reading) -> Callable[[bytes], Any]:
    if reading.prefix:
        source = f"lambda raw: {reading.value('raw')}"
        return eval(source, dict(reading.names))  # type: ignore[no-any-return]
    layout = struct.Struct("<" + "".join(reading.codes))
    raw = [f"r{n}" for n in range(len(reading.codes))]
    inner = eval(f"lambda {', '.join(raw)}: {reading.value(*raw)}", dict(reading.names))
    return lambda data: inner(*layout.unpack(data))


class ImageReader:
    """Reads the images of one table, whichever columns they have."""

    def __init__(
        self,
        name: str,
        columns: Sequence[Column],
        readings: Sequence[Reading],
        optional: frozenset[int] = frozenset(),
    ) -> None:
        """A row without a value for an `optional` column has None there."""
        self._optional = optional
        self._name = name
        self._columns = columns
        self._readings = readings
        self._values = [value_reader(reading) for reading in readings]
        self._json = [n for n, c in enumerate(columns) if c.type is WireType.JSON]

    def changes(self, event: RowsEvent) -> list[tuple[Row | None, Row | None]]:
        """Return the rows before and after.

        A column that is missing only in the image after keeps its value
        (`binlog_row_image=FULL_NODUP`). Raises `NeedsOperator` when a row cannot be completed.
        """
        body = BodyReader(event.images, f"rows of {self._name}")
        out: list[tuple[Row | None, Row | None]] = []
        while body.left:
            before = after = None
            old: list[bytes | None] = [None] * len(self._columns)
            if event.before is not None:
                self._check(event.before)
                old = self._slices(body, event.before, old)
                before = self._row(old)
            if event.after is not None:
                if before is None:
                    self._check(event.after)
                after = self._after(body, event, old)
            out.append((before, after))
        return out

    def _check(self, present: int) -> None:
        absent = (n for n in range(len(self._columns)) if not present >> n & 1)
        missing = [n for n in absent if n not in self._optional]
        if missing:
            raise NeedsOperator(
                f"the images of {self._name} do not have its columns {missing}",
                "set the server's binlog_row_image to FULL, and reconnect its clients",
                Code.BINLOG_INCOMPLETE,
            )

    def _after(self, body: BodyReader, event: RowsEvent, old: list[bytes | None]) -> Row:
        assert event.after is not None, "the caller checked"
        partial: set[int] = set()
        if event.layout.is_partial and body.packed() & _PARTIAL_JSON:
            bits = body.uint(bitmap_size(len(self._json)))
            partial = {column for n, column in enumerate(self._json) if bits >> n & 1}
        new = self._slices(body, event.after, old)
        row = list(self._row([None if n in partial else raw for n, raw in enumerate(new)]))
        for n in partial:
            raw, base = new[n], old[n]
            if raw is None or base is None or not event.after >> n & 1:
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
            elif reading.prefix:
                out.append(body.take(body.uint(reading.prefix)))
            else:
                out.append(body.take(reading.size))
        return out

    def _row(self, raw: Sequence[bytes | None]) -> Row:
        return tuple(
            None if data is None else read(data)
            for read, data in zip(self._values, raw, strict=True)
        )


RowChanges = list[tuple[Row | None, Row | None]]
"""A row before and after; None before an insert and after a delete."""

_KEPT_MAX = 4096


class Decoder:
    """Reads the rows events of one table; see `decoder_for`."""

    def __init__(
        self,
        table_map: TableMap,
        columns_wanted: Sequence[int] | None,
        id_size: int,
        optional: frozenset[int] = frozenset(),
    ) -> None:
        self.table_map = table_map
        self._optional = optional
        width = len(table_map.columns)
        if not width:
            raise Malformed(f"table {table_map.name} has no columns", _HINT, Code.ROWS_EVENT)
        self._readings = [reading_of(column) for column in table_map.columns]
        self._wanted = columns_wanted
        self._id_size = id_size
        wanted = range(width) if columns_wanted is None else columns_wanted
        self._read = read_rows(self._readings, wanted, table_map.name)
        self._images: ImageReader | None = None
        self._full = (1 << width) - 1
        # The usual event has these bytes after id and flags, and needs no other check: then the
        # offset of its images, and how its rows are paired.
        self._head_at = id_size + 2
        self._heads: dict[int, tuple[bytes, int, Callable[[list[Row]], RowChanges]]] = {}
        for type_, (kind, head) in usual_heads(width).items():
            self._heads[type_] = head, self._head_at + len(head), _PAIRS[kind]

    def changes(self, type_: int, body: bytes) -> RowChanges:
        """Return the rows of a whole rows event, before and after.

        Raises `Malformed` for bytes that are not rows of this table, and `NeedsOperator` when the
        images do not have all columns (`binlog_row_image` MINIMAL or NOBLOB).
        """
        try:
            known = self._heads.get(type_)
            if known is not None:
                head, images_at, paired = known
                if body.startswith(head, self._head_at):
                    return paired(self._read(body, images_at))
            return self._unusual(RowsEvent.decode(EventType(type_), body, id_size=self._id_size))
        except UNREADABLE as error:
            raise unreadable(
                self.table_map, self._readings, type_, body, self._id_size, error
            ) from error

    def _unusual(self, event: RowsEvent) -> RowChanges:
        """Decode rows that are compressed, partial, carry extra data or lack columns."""
        if event.width != len(self._readings):
            raise ValueError(f"{event.width} columns where the map has {len(self._readings)}")
        bitmaps = (event.before, event.after)
        if all(b in (None, self._full) for b in bitmaps) and not event.layout.is_partial:
            return _PAIRS[event.layout.kind](self._read(event.images, 0))
        if self._images is None:
            columns = self.table_map.columns
            name = self.table_map.name
            self._images = ImageReader(name, columns, self._readings, self._optional)
        changes = self._images.changes(event)
        if self._wanted is None:
            return changes
        wanted = self._wanted
        return [
            (
                None if before is None else tuple(before[n] for n in wanted),
                None if after is None else tuple(after[n] for n in wanted),
            )
            for before, after in changes
        ]


def _inserted(rows: list[Row]) -> RowChanges:
    if len(rows) == 1:
        return [(None, rows[0])]
    return [(None, row) for row in rows]


def _deleted(rows: list[Row]) -> RowChanges:
    return [(row, None) for row in rows]


def _updated(rows: list[Row]) -> RowChanges:
    if len(rows) % 2:
        raise ValueError("a row before its update lacks the row after")
    return list(zip(rows[::2], rows[1::2], strict=True))


_PAIRS = {Kind.INSERT: _inserted, Kind.UPDATE: _updated, Kind.DELETE: _deleted}


def decoder_for(
    table_map: TableMap,
    columns_wanted: Sequence[int] | None = None,
    *,
    id_size: int = TABLE_ID_SIZE,
    optional: frozenset[int] = frozenset(),
) -> Decoder:
    """Return a decoder of a table's rows events; rows have the wanted columns only, in that order.

    Images need not have the `optional` columns: if missing, these are None. Making a decoder takes
    about a millisecond for ten columns: keep it (`TableMaps` does). Raises `NeedsOperator` when the
    map does not have signs and charsets: complete it (`completed`).
    """
    return Decoder(table_map, columns_wanted, id_size, optional)
