"""Encoder of TiDB-Binlog's topic: one message for each transaction, and one for each DDL.

    Binlog     type, commit_ts, time_zone, dml_data { tables* }      of a transaction
               type, commit_ts, ddl_data                             of a DDL
    table      schema and table, column_info, unique_keys, mutations
    mutation   type, row, change_row: of an update `row` is the new one, `change_row` the old one

A value's type determines its field (`proto/slave_binlog.proto`). Generated columns and keys over
them are omitted: a database that the messages are applied to computes them. A TIMESTAMP is text in
the time zone that the output names, by default UTC.

A transaction that is too large for memory is also one message. Consecutive protobuf messages are
read as one, so its slices are such messages, and their concatenated bytes are the whole.

Source: secondary_binlog.proto of TiDB's tools, drainer/translator/kafka.go of TiDB-Binlog.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby
from struct import pack
from typing import TYPE_CHECKING, Any, NamedTuple

from drainer.task.events.messages import Message, PerTable, RowEvent, Values
from drainer.task.events.tidb_binlog_file import (
    DELETE,
    DML,
    DML_DATA,
    INSERT,
    UPDATE,
    delimited,
    mysql_type,
    payload_head,
    shifted,
)
from drainer.task.events.topics.destination import topic_name
from drainer.task.sql.keys import is_written
from penstock.datum.rows.fields import INTEGER_BITS, bit_length, compile_field
from penstock.pb import slave_binlog_pb2 as pb
from penstock.schema.ddl_context import zone_offset
from penstock.schema.model import PUBLIC, ColumnInfo, IndexInfo, MysqlType, TableInfo
from penstock.wire.protowire import I64, LEN, VARINT, encode_uvarint, tag

if TYPE_CHECKING:
    from penstock.ddl import SchemaChange

TIME_ZONE, TABLES, MUTATIONS = tag(5, LEN), tag(1, LEN), tag(4, LEN)
MUTATION_TYPE, ROW, CHANGE_ROW, COLUMNS = tag(1, VARINT), tag(2, LEN), tag(3, LEN), tag(1, LEN)
INT64, UINT64, DOUBLE = (bytes((each,)) for each in (tag(2, VARINT), tag(3, VARINT), tag(4, I64)))
BYTES, STRING = tag(5, LEN), tag(6, LEN)

_PRIMARY = "PRIMARY"
_NULL = delimited(COLUMNS, bytes((tag(1, VARINT), 1)))
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
            for key in _keys(table)
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
        return bytes((MUTATION_TYPE, INSERT)) + delimited(ROW, _row(table, after))
    if after is None:
        return bytes((MUTATION_TYPE, DELETE)) + delimited(ROW, _row(table, before))
    rows = delimited(ROW, _row(table, after)) + delimited(CHANGE_ROW, _row(table, before))
    return bytes((MUTATION_TYPE, UPDATE)) + rows


def _row(table: _TopicTable, row: Values) -> bytes:
    made = [
        _NULL if row[at] is None else delimited(COLUMNS, value(row[at]))
        for at, value in table.columns
    ]
    return b"".join(made) + table.constants


def _keys(table: TableInfo) -> Iterator[IndexInfo]:
    """Yield the primary key, and the other unique keys, of columns that are sent.

    A primary key that the downstream table lacks is omitted here also.
    """
    found = [] if table.primary_key is None or table.lacks_key else [table.primary_key]
    found += [i for i in table.indexes if i.unique and not i.primary and i.state == PUBLIC]
    for key in found:
        if all(is_written(table.columns[part.offset]) for part in key.columns):
            yield key
