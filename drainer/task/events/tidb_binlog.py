"""Encoders of TiDB-Binlog's files and of its topic.

**A file** has one record for each transaction, and one for each DDL:

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

**A topic** has one message for each transaction, and one for each DDL:

    Binlog     type, commit_ts, time_zone, dml_data { tables* }      of a transaction
               type, commit_ts, ddl_data                             of a DDL
    table      schema and table, column_info, unique_keys, mutations
    mutation   type, row, change_row: of an update `row` is the new row, `change_row` the old

A value's type determines its field (`proto/slave_binlog.proto`). Generated columns and keys over
them are omitted: a database that the messages are applied to computes them. A TIMESTAMP is text in
the time zone that the output names, by default UTC.

A transaction that is too large for memory is also one message. Consecutive protobuf messages are
read as one, so its slices are such messages, and their concatenated bytes are the whole.

Source: secondary_binlog.proto of TiDB's tools, drainer/translator/kafka.go of TiDB-Binlog.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from itertools import groupby
from struct import pack
from typing import TYPE_CHECKING, Any, NamedTuple

from google_crc32c import value as crc32c

from drainer.task.events.messages import Message, PerTable, RowEvent, Values
from drainer.task.events.topics.destination import topic_name
from drainer.task.sql.rows import is_written
from drainer.task.sql.upserts import quote
from penstock.datum import values
from penstock.datum.rows.fields import INTEGER_BITS, bit_length, compile_field
from penstock.pb import slave_binlog_pb2 as pb
from penstock.schema.ddl_context import zone_offset
from penstock.schema.model import PUBLIC, ColumnInfo, DdlType, IndexInfo, MysqlType, TableInfo
from penstock.wire.protowire import I64, LEN, VARINT, encode_uvarint, tag

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


TIME_ZONE, TABLES, MUTATIONS = tag(5, LEN), tag(1, LEN), tag(4, LEN)
MUTATION_TYPE, NEW_ROW, OLD_ROW, COLUMNS = tag(1, VARINT), tag(2, LEN), tag(3, LEN), tag(1, LEN)
INT64, UINT64, DOUBLE = (bytes((each,)) for each in (tag(2, VARINT), tag(3, VARINT), tag(4, I64)))
BYTES, STRING = tag(5, LEN), tag(6, LEN)

_PRIMARY = "PRIMARY"
_NULL_COLUMN = delimited(COLUMNS, bytes((tag(1, VARINT), 1)))
_UINT64_MAX = (1 << 64) - 1

Value = Callable[[Any], bytes]
"""Encodes a value other than NULL as the content of a `Column`."""


class _TopicTable(NamedTuple):
    head: bytes
    columns: tuple[tuple[int, Value], ...]
    """The position in a row and the encoding of each column that is written."""
    constants: bytes


class TidbBinlogTopic:
    """See `Encoder`; the concatenated bytes of a transaction's slices are its message."""

    def __init__(self, *, topic: str, time_zone: str) -> None:
        """Write everything to partition 0 of `topic`, with TIMESTAMPs in a zone such as +08:00."""
        self._to = f"{topic_name(topic)}/0"
        self._zone = delimited(TIME_ZONE, time_zone.encode())
        self._offset = zone_offset(time_zone)
        self._tables = PerTable(self._compiled)

    def transaction(self, commit_ts: int, events: Sequence[RowEvent]) -> Iterable[Message]:
        tables = [
            self._table(group)
            for _, group in groupby(events, lambda each: (each.schema, id(each.table)))
        ]
        head = payload_head(DML, commit_ts) + self._zone
        return (Message(head + delimited(DML_DATA, b"".join(tables)), to=self._to),)

    slice = transaction

    def ddl(self, commit_ts: int, change: SchemaChange) -> Iterable[Message]:
        job = change.job
        value = pb.Binlog(
            type=pb.DDL,
            commit_ts=commit_ts,
            ddl_data=pb.DDLData(
                schema_name=job.schema_name, table_name=job.table_name, ddl_query=job.query.encode()
            ),
        )
        return (Message(value.SerializeToString(), to=self._to),)

    def _table(self, events: Iterable[RowEvent]) -> bytes:
        made: list[bytes] = []
        for event in events:
            table = self._tables.of(event.schema, event.table)
            made = made or [table.head]
            made.append(delimited(MUTATIONS, _mutation(table, event.before, event.after)))
        return delimited(TABLES, b"".join(made))

    def _compiled(self, schema: str, table: TableInfo) -> _TopicTable:
        written = [(at, each) for at, each in enumerate(table.columns) if is_written(each)]
        keys = {
            key.name if not key.primary else _PRIMARY: [
                table.columns[part.offset].name for part in key.columns
            ]
            for key in _sent_keys(table)
        }
        primary = keys.get(_PRIMARY, [])
        columns = [
            pb.ColumnInfo(
                name=each.name, mysql_type=mysql_type(each), is_primary_key=each.name in primary
            )
            for _, each in written
        ]
        columns += [
            pb.ColumnInfo(name=name, mysql_type="varchar", is_primary_key=False)
            for name, _ in table.constants
        ]
        head = pb.Table(
            schema_name=schema,
            table_name=table.name,
            column_info=columns,
            unique_keys=[pb.Key(name=name, column_names=names) for name, names in keys.items()],
        )
        constants = [
            delimited(COLUMNS, delimited(STRING, text.encode())) for _, text in table.constants
        ]
        return _TopicTable(
            head.SerializeToString(),
            tuple((at, self._value(each)) for at, each in written),
            b"".join(constants),
        )

    def _value(self, column: ColumnInfo) -> Value:
        tp = column.tp
        if tp in (MysqlType.ENUM, MysqlType.SET) or (tp in INTEGER_BITS and column.is_unsigned):
            datum = compile_field(column).encode  # A flag, and the varint that is needed here.
            return lambda value: UINT64 + datum(value)[1:]
        if tp in INTEGER_BITS:
            return lambda value: INT64 + encode_uvarint(value & _UINT64_MAX)
        if tp in (MysqlType.FLOAT, MysqlType.DOUBLE):
            return lambda value: DOUBLE + pack("<d", value)
        if tp is MysqlType.BIT:
            size = (bit_length(column) + 7) // 8
            return lambda value: delimited(BYTES, value.to_bytes(size, "big"))
        if tp is MysqlType.NEWDECIMAL:
            return lambda value: delimited(STRING, f"{value:f}".encode())
        if tp is MysqlType.YEAR:
            return lambda value: delimited(STRING, b"%d" % value)
        if tp is MysqlType.TIMESTAMP and self._offset:
            return lambda value: delimited(STRING, shifted(value, self._offset).encode())
        if tp is MysqlType.JSON:
            return lambda value: delimited(BYTES, value.encode())
        return _text_or_bytes


def _text_or_bytes(value: str | bytes) -> bytes:
    if isinstance(value, bytes):
        return delimited(BYTES, value)
    return delimited(STRING, value.encode())


def _mutation(table: _TopicTable, before: Values | None, after: Values | None) -> bytes:
    if before is None:
        assert after is not None, "a change has a row before or after"
        return bytes((MUTATION_TYPE, INSERT)) + delimited(NEW_ROW, _row(table, after))
    if after is None:
        return bytes((MUTATION_TYPE, DELETE)) + delimited(NEW_ROW, _row(table, before))
    rows = delimited(NEW_ROW, _row(table, after)) + delimited(OLD_ROW, _row(table, before))
    return bytes((MUTATION_TYPE, UPDATE)) + rows


def _row(table: _TopicTable, row: Values) -> bytes:
    made = [
        _NULL_COLUMN if row[at] is None else delimited(COLUMNS, value(row[at]))
        for at, value in table.columns
    ]
    return b"".join(made) + table.constants


def _sent_keys(table: TableInfo) -> Iterator[IndexInfo]:
    """Yield the primary key, and the other unique keys, of columns that are sent.

    A primary key that the downstream table lacks is omitted here also.
    """
    found = [] if table.primary_key is None or table.lacks_key else [table.primary_key]
    found += [i for i in table.indexes if i.unique and not i.primary and i.state == PUBLIC]
    for key in found:
        if all(is_written(table.columns[part.offset]) for part in key.columns):
            yield key
