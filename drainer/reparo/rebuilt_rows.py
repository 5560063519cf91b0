"""Rebuilt rows: converts a record's row changes to the row bytes that a writer would send.

A column is found by its name in the table as it is at this record. Generated columns may be absent.
A record that is too large for memory is read event by event.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

from google.protobuf.message import DecodeError

from drainer.sinks.files.binlog_files import Record
from drainer.task.events.tidb_binlog import DDL_CONTEXT, DDL_QUERY, DML_DATA, EVENTS, shifted
from drainer.task.sql.rows import row_codec
from penstock.codes import Code
from penstock.datum import values
from penstock.datum.times import Held
from penstock.errors import Malformed, NeedsOperator
from penstock.pb import pb_binlog_pb2 as pb
from penstock.schema.ddl_context import DdlContext
from penstock.schema.model import ColumnInfo, MysqlType, TableInfo
from penstock.wire.binlog import MutationType
from penstock.wire.protowire import fields, raw_fields

Target = tuple[str, TableInfo]
Lookup = Callable[[str, str], Target | None]
"""(schema, table) to the current table; None for a table whose rows are skipped."""

Change = tuple[Target, int, bytes]
"""A table, the `MutationType` of a change there, and the change's row bytes."""

_HINT = "the files are damaged or are not TiDB-Binlog's: nothing of this record was applied"
_HELD = frozenset({MysqlType.DATE, MysqlType.DATETIME, MysqlType.TIMESTAMP})
_TEXTS = frozenset({MysqlType.NEWDECIMAL, MysqlType.DURATION, MysqlType.JSON})
_READERS: dict[int, Callable[[bytes, int], tuple[Any, int]]] = {
    values.COMPACT_BYTES_FLAG: values.read_bytes,
    values.BYTES_FLAG: values.read_bytes_comparable,
    values.VARINT_FLAG: values.read_varint,
    values.UVARINT_FLAG: values.read_uvarint,
    values.INT_FLAG: values.read_int_comparable,
    values.UINT_FLAG: values.read_uint_comparable,
    values.FLOAT_FLAG: values.read_float_comparable,
}


def ddl_of(record: Record) -> tuple[str, DdlContext | None]:
    found = {
        tag: record.source(content, end - content)
        for tag, _, content, end in fields(record.source, record.begin, record.end)
        if tag in (DDL_QUERY, DDL_CONTEXT)
    }
    if DDL_QUERY not in found:
        raise Malformed(f"the DDL at {record.commit_ts} has no text", _HINT, Code.FILES_DAMAGED)
    text, session = found[DDL_QUERY].decode("utf-8", "replace"), found.get(DDL_CONTEXT)
    try:
        return text, None if session is None else DdlContext.from_json(json.loads(session))
    except (ValueError, TypeError, AttributeError) as error:
        raise Malformed(
            f"the session of the DDL at {record.commit_ts} cannot be read: {error!r}",
            _HINT,
            Code.FILES_DAMAGED,
        ) from error


def events_of(record: Record, bytes_max: int) -> Iterator[Any]:
    """Yield a record's events; a record up to `bytes_max` is read as a whole."""
    source, begin, end = record.source, record.begin, record.end
    try:
        if end - begin <= bytes_max:
            yield from pb.Binlog.FromString(source(begin, end - begin)).dml_data.events
            return
        for tag, _, content, stop in fields(source, begin, end):
            if tag == DML_DATA:
                for raw in raw_fields(source, content, stop, EVENTS):
                    yield from pb.DMLData.FromString(raw).events
    except DecodeError as error:
        raise Malformed(
            f"the record at {record.commit_ts}: {error}", _HINT, Code.FILES_DAMAGED
        ) from error


class RowBuilder:
    """Builds row bytes; TIMESTAMPs in the files are `ahead` of UTC."""

    def __init__(self, ahead: timedelta) -> None:
        self._back = -ahead

    def change(self, event: Any, target: Target) -> Change:
        """Return an event as a change of its table; raise `Malformed` if it does not fit."""
        table = target[1]
        columns = [pb.Column.FromString(each) for each in event.row]
        named = {column.name.lower(): column for column in columns}
        codec = row_codec(table)
        before = self._row(target, named, lambda column: column.value)
        if event.tp == pb.Insert:
            return target, MutationType.INSERT, codec.encode_insert(before)
        if event.tp == pb.Delete:
            return target, MutationType.DELETE, codec.encode_delete(before)
        after = self._row(target, named, lambda column: column.changed_value)
        return target, MutationType.UPDATE, codec.encode_update(before, after)

    def _row(self, target: Target, named: dict[str, Any], of: Callable[[Any], bytes]) -> list[Any]:
        row: list[Any] = []
        left = len(named)
        for column in target[1].columns:
            found = named.get(column.name.lower())
            left -= found is not None
            row.append(
                None if found is None or column.is_generated else self._value(column, of(found))
            )
        if left:
            schema, table = target
            known = {column.name.lower() for column in table.columns}
            odd = ", ".join(sorted(named.keys() - known))
            raise NeedsOperator(
                f"rows of {schema}.{table.name} have columns that the table has not: {odd}",
                "a DDL of it is missing in the files, or the schema-file is of another time",
                Code.FILES_GAP,
            )
        return row

    def _value(self, column: ColumnInfo, data: bytes) -> Any:
        value = datum_value(data)
        if value is None:
            return None
        if column.tp in _HELD:
            text = value.decode()
            is_moved = column.tp is MysqlType.TIMESTAMP and self._back
            return Held(shifted(text, self._back) if is_moved else text)
        return value.decode() if column.tp in _TEXTS else value


def datum_value(data: bytes) -> Any:
    """Return a datum's value: a number, bytes or None; raise `Malformed` for another kind."""
    if not data or data[0] == values.NULL_FLAG:
        return None
    read = _READERS.get(data[0])
    if read is None:
        raise Malformed(f"a datum of kind {data[0]}", _HINT, Code.FILES_DAMAGED)
    return read(data, 1)[0]
