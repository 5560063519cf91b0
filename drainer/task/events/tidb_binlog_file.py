"""Encoder of TiDB-Binlog's files: one record for each transaction, and one for each DDL.

    Binlog    tp, commit_ts, dml_data { events* }                    of a transaction
              tp, commit_ts, ddl_query                               "use `shop`; ALTER TABLE …;"
              and of a DDL that ran in a session elsewhere ddl_context, as JSON (`DdlContext`)
    event     schema, table, tp, one `column` for each column        (Insert, Update, Delete)
    column    name, tp (MySQL's code), mysql_type, value, changed_value

A value is a datum as in rows (`penstock.datum.values`); but decimals, dates, times and JSON are
texts, ENUM, SET and BIT unsigned numbers. For an update `value` is the old value, `changed_value`
the new value. NULL is also a datum. Generated columns are omitted: a database that the files are
applied to computes them. A TIMESTAMP is text in the time zone that the output names, by default
UTC.

Source: pb_binlog.proto and drainer/translator/pb.go of TiDB-Binlog.

A record:

    offset  size  field
    0       4     magic     0x1C1B0504, little-endian like all that follows
    4       8     length    bytes of payload
    12      n     payload   a serialized `pb_binlog.Binlog` (proto/pb_binlog.proto)
    12+n    4     crc       CRC-32C of the payload

    "hello" is 04051b1c 0500000000000000 68656c6c6f 4cbb719a

Source: package binlogfile of TiDB-Binlog. A payload here begins with its type and its commit_ts, so
that both can be read without the rest. The row changes of a large transaction follow in several
`dml_data`; protobuf readers join the occurrences of one message and therefore see one.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

from google_crc32c import value as crc32c

from drainer.task.events.messages import Message, PerTable, RowEvent, Values
from drainer.task.sql.keys import is_written
from drainer.task.sql.table_sql import quote
from penstock.datum import values
from penstock.datum.rows.fields import compile_field
from penstock.schema.ddl_context import zone_offset
from penstock.schema.model import ColumnInfo, DdlType, MysqlType, TableInfo
from penstock.wire.protowire import LEN, VARINT, encode_uvarint, tag

if TYPE_CHECKING:
    from penstock.ddl import SchemaChange

MAGIC = 0x1C1B0504
HEAD = struct.Struct("<IQ")
TRAILER = struct.Struct("<I")
assert (HEAD.size, TRAILER.size) == (12, 4)  # The table above is the contract.

DML, DDL = 0, 1

TYPE, COMMIT_TS = tag(1, VARINT), tag(2, VARINT)
DML_DATA, DDL_QUERY = tag(3, LEN), tag(4, LEN)
DDL_CONTEXT = tag(15, LEN)
"""Our own field: protobuf readers skip unknown fields."""


def framed(payload: bytes) -> bytes:
    head = HEAD.pack(MAGIC, len(payload))
    return b"".join((head, payload, TRAILER.pack(crc32c(payload))))


def payload_head(kind: int, commit_ts: int) -> bytes:
    return bytes((TYPE, kind, COMMIT_TS)) + encode_uvarint(commit_ts)


def delimited(field_tag: int, content: bytes) -> bytes:
    size = len(content)
    if size < 0x80:  # The usual case.
        return bytes((field_tag, size)) + content
    return bytes((field_tag,)) + encode_uvarint(size) + content


INSERT, UPDATE, DELETE = 0, 1, 2

EVENTS, ROW = tag(1, LEN), tag(4, LEN)
SCHEMA_NAME, TABLE_NAME, EVENT_TYPE = tag(1, LEN), tag(2, LEN), tag(3, VARINT)
NAME, TP, MYSQL_TYPE = tag(1, LEN), tag(2, LEN), tag(3, LEN)
VALUE, CHANGED_VALUE = tag(4, LEN), tag(5, LEN)

_NULL = b"\x00"
_AS_TEXT = frozenset({MysqlType.DATE, MysqlType.DATETIME, MysqlType.TIMESTAMP, MysqlType.DURATION,
                      MysqlType.JSON})  # fmt: skip

Datum = Callable[[Any], bytes]


class _Column(NamedTuple):
    """A written column: its position in a row, its first bytes, the conversion of its values."""

    at: int
    head: bytes
    datum: Datum


class _Table(NamedTuple):
    names: bytes
    columns: tuple[_Column, ...]
    constants: bytes
    constants_twice: bytes
    """The constants for an update's rows, old and new."""


class TidbBinlogFile:
    """See `Encoder`; a message of a slice is a bare `dml_data`, any other is a whole record."""

    def __init__(self, *, time_zone: str = "+00:00") -> None:
        self._offset = zone_offset(time_zone)
        self._tables = PerTable(self._compiled)

    def transaction(self, commit_ts: int, events: Sequence[RowEvent]) -> Iterable[Message]:
        payload = payload_head(DML, commit_ts) + self._dml_data(events)
        return (Message(framed(payload)),)

    def slice(self, commit_ts: int, events: Sequence[RowEvent]) -> Iterable[Message]:
        return (Message(self._dml_data(events)),)

    def ddl(self, commit_ts: int, change: SchemaChange) -> Iterable[Message]:
        job = change.job
        text = f"{job.query.strip().rstrip(';')};"
        if job.schema_name and job.type != DdlType.CREATE_SCHEMA:
            text = f"use {quote(job.schema_name)}; {text}"
        payload = payload_head(DDL, commit_ts) + delimited(DDL_QUERY, text.encode())
        if job.context is not None:
            payload += delimited(DDL_CONTEXT, json.dumps(job.context.to_json()).encode())
        return (Message(framed(payload)),)

    def _dml_data(self, events: Sequence[RowEvent]) -> bytes:
        return delimited(DML_DATA, b"".join(map(self._event, events)))

    def _event(self, event: RowEvent) -> bytes:
        table = self._tables.of(event.schema, event.table)
        if event.before is not None and event.after is not None:
            kind, rows = UPDATE, self._both(table, event.before, event.after)
        elif event.after is not None:
            kind, rows = INSERT, self._one(table, event.after)
        else:
            assert event.before is not None, "a change has a row before or after"
            kind, rows = DELETE, self._one(table, event.before)
        return delimited(EVENTS, b"".join((table.names, bytes((EVENT_TYPE, kind)), *rows)))

    def _one(self, table: _Table, row: Values) -> Iterator[bytes]:
        for at, head, datum in table.columns:
            value = row[at]
            made = _NULL if value is None else datum(value)
            yield delimited(ROW, head + delimited(VALUE, made))
        yield table.constants

    def _both(self, table: _Table, before: Values, after: Values) -> Iterator[bytes]:
        for at, head, datum in table.columns:
            old, new = before[at], after[at]
            made = delimited(VALUE, _NULL if old is None else datum(old))
            changed = delimited(CHANGED_VALUE, _NULL if new is None else datum(new))
            yield delimited(ROW, head + made + changed)
        yield table.constants_twice

    def _compiled(self, schema: str, table: TableInfo) -> _Table:
        columns = tuple(
            _Column(
                at, column_head(column.name, column.tp, mysql_type(column)), self._datum(column)
            )
            for at, column in enumerate(table.columns)
            if is_written(column)
        )
        names = delimited(SCHEMA_NAME, schema.encode()) + delimited(TABLE_NAME, table.name.encode())
        constants = [
            (column_head(name, MysqlType.VARCHAR, "varchar"), values.bytes_datum(text.encode()))
            for name, text in table.constants
        ]
        once = [delimited(ROW, head + delimited(VALUE, datum)) for head, datum in constants]
        twice = [
            delimited(ROW, head + delimited(VALUE, datum) + delimited(CHANGED_VALUE, datum))
            for head, datum in constants
        ]
        return _Table(names, columns, b"".join(once), b"".join(twice))

    def _datum(self, column: ColumnInfo) -> Datum:
        if column.tp is MysqlType.NEWDECIMAL:
            return lambda value: values.bytes_datum(f"{value:f}".encode())
        if column.tp is MysqlType.TIMESTAMP and self._offset:
            return lambda value: values.bytes_datum(shifted(value, self._offset).encode())
        if column.tp in _AS_TEXT:
            return lambda value: values.bytes_datum(value.encode())
        return compile_field(column).encode


def column_head(name: str, tp: int, type_name: str) -> bytes:
    return (
        delimited(NAME, name.encode())
        + delimited(TP, bytes((tp,)))
        + delimited(MYSQL_TYPE, type_name.encode())
    )


def mysql_type(column: ColumnInfo) -> str:
    if column.tp is MysqlType.VAR_STRING:
        return "var_string"
    return replace(column, native="").sql_type.removesuffix(" UNSIGNED").lower()


def shifted(text: str, offset: timedelta) -> str:
    """Shift a date and time by `offset`; a zero date remains unchanged."""
    whole, dot, fraction = text.partition(".")
    if whole.startswith("0000"):
        return text
    moved = datetime.fromisoformat(whole) + offset
    return f"{moved:%Y-%m-%d %H:%M:%S}{dot}{fraction}"
