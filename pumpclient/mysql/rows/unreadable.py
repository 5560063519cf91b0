"""Describes unreadable values: the column in a rows event, and the type that it was read as."""

from __future__ import annotations

import struct
from collections.abc import Sequence

from penstock.codes import Code
from penstock.errors import Malformed
from pumpclient.mysql.events.frame import EventType
from pumpclient.mysql.rows.reader_code import read_rows
from pumpclient.mysql.rows.rows_event_header import RowsEvent
from pumpclient.mysql.rows.table_map import BINARY, Column, TableMap, WireType, charset_name
from pumpclient.mysql.rows.values.reading import Reading

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
    return Malformed(f"rows of {table_map.name}: {problem}", hint=hint, code=code)


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
