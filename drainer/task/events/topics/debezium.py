"""Encoder of Debezium JSON: a message for each row, like those of Debezium's MySQL connector.

    key      {"id":1}
    value    {"before":{…}|null, "after":{…}|null, "source":{…}, "op":"c|u|d", "ts_ms":ms,
              "transaction":{"id", "total_order", "data_collection_order"}|null}

With `schemas`, both are {"schema":…, "payload":…}. Each delete is followed by a tombstone, a
message of the same key without a value, unless `tombstones` is off. A row whose key changes is
deleted and created. `source.commit_ts` and `source.pos` are the transaction's commit_ts, which
never falls.

The topic of transactions has messages for the begin and the end of each transaction:

    {"status":"BEGIN","id":"…","ts_ms":…,"event_count":null,"data_collections":null}
    {"status":"END",…,"event_count":3,"data_collections":[{"data_collection":…,"event_count":3}]}

A transaction that is too large for memory has none, and its rows belong to no numbered transaction:
they arrive in parts, and no part knows the total.

    MySQL                          schema type   semantic name                       JSON
    -----------------------------  ------------  ----------------------------------  ---------------
    TINYINT, SMALLINT              int16         -                                   number
    MEDIUMINT, INT, SMALLINT U.    int32         -                                   number
    INT UNSIGNED, BIGINT           int64         -                                   number
    BIGINT UNSIGNED                -             -                                   number
             in schemas            bytes         o.a.kafka.connect.data.Decimal      base64
    FLOAT, DOUBLE                  float, double -                                   number
    DECIMAL  precise               bytes         o.a.kafka.connect.data.Decimal      base64
             string, double        string …      -                                   text, number
    DATE                           int32         io.debezium.time.Date               days
    DATETIME(0..3), (4..6)         int64         io.debezium.time.[Micro]Timestamp   ms, µs
    TIMESTAMP                      string        io.debezium.time.ZonedTimestamp     text in UTC
    TIME                           int64         io.debezium.time.MicroTime          µs
    YEAR                           int32         io.debezium.time.Year               number
    BIT(1); BIT(n)                 boolean;bytes -; io.debezium.data.Bits            base64, LE
    ENUM, SET, JSON                string        io.debezium.data.Enum EnumSet Json  text
    CHAR, TEXT; BINARY, BLOB       string; bytes -                                   text; base64
    GEOMETRY                       struct        io.debezium.data.geometry.Geometry  wkb, srid

A BIGINT UNSIGNED is a decimal in schemas (Debezium's mode `precise`), because readers silently
take an int64 above 2^63 as a negative number. Without a schema that says int64 it is a number. An
invalid date, such as 0000-00-00, is NULL, or the epoch if the column cannot be NULL.

Source: https://debezium.io/documentation/reference/stable/connectors/mysql.html, data types.
"""

from __future__ import annotations

import base64
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import date
from decimal import Context, Decimal
from typing import TYPE_CHECKING, Any, NamedTuple

from drainer.task.events.messages import Headers, Message, PerTable, RowEvent, Values
from drainer.task.events.topics.destination import (
    NO_LIMIT,
    Destination,
    Destinations,
    Limit,
    ddl_jobs,
)
from drainer.task.events.topics.json_row import (
    JsonRow,
    Text,
    base64_text,
    json_text,
    quoted,
    shortest,
    written_columns,
)
from penstock.schema.model import ColumnInfo, DdlJob, MysqlType, TableInfo
from penstock.ts import physical_ms

if TYPE_CHECKING:
    from penstock.ddl import SchemaChange

PRECISE, STRING, DOUBLE = "precise", "string", "double"

_TIME = "io.debezium.time."
_DATA = "io.debezium.data."
_EPOCH = date(1970, 1, 1).toordinal()
_ALL_DIGITS = Context(prec=100)
_DAY_US = 86_400_000_000
_BASE_INTS = {
    MysqlType.TINY: "int16",
    MysqlType.SHORT: "int16",
    MysqlType.INT24: "int32",
    MysqlType.LONG: "int32",
    MysqlType.LONGLONG: "int64",
}
_UNSIGNED_INTS = {MysqlType.SHORT: "int32", MysqlType.LONG: "int64"}


class DebeziumType(NamedTuple):
    """How values are written, and the field's schema without its name."""

    text: Text
    schema: dict[str, Any]


def debezium_type(column: ColumnInfo, decimals: str, *, has_schema: bool) -> DebeziumType:
    tp = column.tp
    if has_schema and tp is MysqlType.LONGLONG and column.is_unsigned:
        return _PRECISE_INTEGER
    if tp in _BASE_INTS:
        found = _UNSIGNED_INTS.get(tp) if column.is_unsigned else None
        return DebeziumType(str, {"type": found or _BASE_INTS[tp]})
    if tp in (MysqlType.FLOAT, MysqlType.DOUBLE):
        return DebeziumType(shortest(column), {"type": tp.name.lower()})
    if tp is MysqlType.NEWDECIMAL:
        return _decimal(column, decimals)
    if tp is MysqlType.BIT:
        return _bit(column)
    if tp in (MysqlType.ENUM, MysqlType.SET):
        name = _DATA + ("Enum" if tp is MysqlType.ENUM else "EnumSet")
        parameters = {"allowed": ",".join(column.elems)}
        return DebeziumType(quoted, _named("string", name, parameters))
    if tp in _OTHERS:
        return _OTHERS[tp](column)
    if column.is_binary:
        return DebeziumType(base64_text, {"type": "bytes"})
    return DebeziumType(quoted, {"type": "string"})


def _named(kind: str, name: str, parameters: dict[str, str] | None = None) -> dict[str, Any]:
    more = {"parameters": parameters} if parameters else {}
    return {"type": kind, "name": name, "version": 1, **more}


def _decimal(column: ColumnInfo, decimals: str) -> DebeziumType:
    if decimals == STRING:
        return DebeziumType(lambda value: f'"{value:f}"', {"type": "string"})
    if decimals == DOUBLE:
        return DebeziumType(lambda value: repr(float(value)), {"type": "double"})
    scale = max(0, column.decimal)

    def text(value: Decimal) -> str:
        return base64_text(_twos_complement(int(value.scaleb(scale, _ALL_DIGITS))))

    precision = max(1, column.flen)
    return DebeziumType(text, _decimal_schema(precision, scale))


def _decimal_schema(precision: int, scale: int) -> dict[str, Any]:
    parameters = {"scale": str(scale), "connect.decimal.precision": str(precision)}
    return _named("bytes", "org.apache.kafka.connect.data.Decimal", parameters)


def _twos_complement(number: int) -> bytes:
    """Return a number in the form of Java's BigInteger: big-endian, as few bytes as hold it."""
    bits = (number if number >= 0 else ~number).bit_length()
    return number.to_bytes(bits // 8 + 1, "big", signed=True)


_PRECISE_INTEGER = DebeziumType(
    lambda value: base64_text(_twos_complement(value)), _decimal_schema(20, 0)
)
"""A BIGINT UNSIGNED, of up to 20 digits."""


def _bit(column: ColumnInfo) -> DebeziumType:
    length = max(1, column.flen)
    if length == 1:
        return DebeziumType(lambda value: "true" if value else "false", {"type": "boolean"})
    size = (length + 7) // 8
    schema = _named("bytes", f"{_DATA}Bits", {"length": str(length)})
    return DebeziumType(lambda value: base64_text(int(value).to_bytes(size, "little")), schema)


_GEOMETRY = _named("struct", f"{_DATA}geometry.Geometry") | {
    "fields": [
        {"type": "bytes", "optional": False, "field": "wkb"},
        {"type": "int32", "optional": True, "field": "srid"},
    ]
}


def _geometry(value: bytes) -> str:
    srid = int.from_bytes(value[:4], "little") or "null"
    return f'{{"wkb":"{base64.b64encode(value[4:]).decode()}","srid":{srid}}}'


def _date(column: ColumnInfo) -> DebeziumType:
    nothing = "0" if column.is_not_null else "null"

    def text(value: str) -> str:
        days = _days(value)
        return nothing if days is None else str(days)

    return DebeziumType(text, _named("int32", f"{_TIME}Date"))


def _datetime(column: ColumnInfo) -> DebeziumType:
    divisor, name = (1, "MicroTimestamp") if column.decimal > 3 else (1000, "Timestamp")
    nothing = "0" if column.is_not_null else "null"

    def text(value: str) -> str:
        days = _days(value[:10])
        return nothing if days is None else str((days * _DAY_US + _clock_us(value[11:])) // divisor)

    return DebeziumType(text, _named("int64", f"{_TIME}{name}"))


def _timestamp(column: ColumnInfo) -> DebeziumType:
    nothing = '"1970-01-01T00:00:00Z"' if column.is_not_null else "null"

    def text(value: str) -> str:
        return nothing if value.startswith("0000") else f'"{value[:10]}T{value[11:]}Z"'

    return DebeziumType(text, _named("string", f"{_TIME}ZonedTimestamp"))


_OTHERS: dict[MysqlType, Callable[[ColumnInfo], DebeziumType]] = {
    MysqlType.DATE: _date,
    MysqlType.DATETIME: _datetime,
    MysqlType.TIMESTAMP: _timestamp,
    MysqlType.DURATION: lambda _: DebeziumType(
        lambda value: str(_clock_us(value)), _named("int64", f"{_TIME}MicroTime")
    ),
    MysqlType.YEAR: lambda _: DebeziumType(str, _named("int32", f"{_TIME}Year")),
    MysqlType.JSON: lambda _: DebeziumType(quoted, _named("string", f"{_DATA}Json")),
    MysqlType.GEOMETRY: lambda _: DebeziumType(_geometry, _GEOMETRY),
}


def _days(text: str) -> int | None:
    """Return a date's days since the epoch, or None if it is not a valid date."""
    try:
        return date.fromisoformat(text).toordinal() - _EPOCH
    except ValueError:
        return None


def _clock_us(text: str) -> int:
    """Return the microseconds of a time such as -838:59:59.5."""
    sign = -1 if text.startswith("-") else 1
    whole, _, fraction = text.lstrip("-").partition(".")
    hours, minutes, seconds = map(int, whole.split(":"))
    micros = int(fraction.ljust(6, "0")) if fraction else 0
    return sign * (((hours * 60 + minutes) * 60 + seconds) * 1_000_000 + micros)


VERSION = "3.7.0.Final"
"""The release of Debezium whose messages are imitated."""

_NULL = "null"


def _field(kind: str, name: str, *, optional: bool, **more: object) -> dict[str, object]:
    return {"type": kind, "optional": optional, **more, "field": name}


_SOURCE_FIELDS = [
    *(_field("string", name, optional=False) for name in ("version", "connector", "name")),
    _field("int64", "ts_ms", optional=False),
    _field("string", "snapshot", optional=True, default="false"),
    _field("string", "db", optional=False),
    _field("string", "sequence", optional=True),
    _field("string", "table", optional=True),
    _field("int64", "server_id", optional=False),
    _field("string", "gtid", optional=True),
    _field("string", "file", optional=False),
    _field("int64", "pos", optional=False),
    _field("int32", "row", optional=False),
    _field("int64", "thread", optional=True),
    _field("string", "query", optional=True),
    _field("int64", "commit_ts", optional=False),
]
_TRANSACTION_FIELDS = [
    _field("string", "id", optional=False),
    _field("int64", "total_order", optional=False),
    _field("int64", "data_collection_order", optional=False),
]


class _DebeziumTable(NamedTuple):
    destination: Destination
    rows: JsonRow
    collection: str
    source: str
    """The members of `source` that all rows of the table share."""
    value_head: str
    key_head: str


class _Change(NamedTuple):
    op: str
    before: Values | None
    after: Values | None


class DebeziumJson:
    """See `Encoder`."""

    def __init__(
        self,
        destinations: Destinations,
        *,
        name: str,
        limit: Limit = NO_LIMIT,
        schemas: bool = False,
        tombstones: bool = True,
        decimals: str = PRECISE,
    ) -> None:
        self._destinations = destinations
        self._name = name
        self._bytes_max = limit.bytes_max
        self._limit = limit
        self._schemas = schemas
        self._tombstones = tombstones
        self._decimals = decimals
        self._tables = PerTable(self._compiled)
        self._transactions = destinations.transactions
        self._end = "}" if schemas else ""

    def transaction(self, commit_ts: int, events: Sequence[RowEvent]) -> Iterator[Message]:
        """Return the transaction's begin, a message or more for each row, and its end."""
        counts: Counter[str] = Counter()
        total = 0
        yield self._status(commit_ts, "BEGIN", None)
        for event in events:
            table = self._tables.of(event.schema, event.table)
            for change in _changes(event, table.destination):
                counts[table.collection] += 1
                total += 1
                order = (
                    f'{{"id":"{commit_ts}","total_order":{total},'
                    f'"data_collection_order":{counts[table.collection]}}}'
                )
                yield from self._messages(table, change, commit_ts, order)
        yield self._status(commit_ts, "END", counts)

    def slice(self, commit_ts: int, events: Sequence[RowEvent]) -> Iterator[Message]:
        for event in events:
            table = self._tables.of(event.schema, event.table)
            for change in _changes(event, table.destination):
                yield from self._messages(table, change, commit_ts, _NULL)

    def ddl(self, commit_ts: int, change: SchemaChange) -> Iterable[Message]:
        return [self._ddl(commit_ts, job) for job in ddl_jobs(change)]

    def _ddl(self, commit_ts: int, job: DdlJob) -> Message:
        ms = physical_ms(commit_ts)
        value = {
            "source": self._source(commit_ts, job.schema_name, job.table_name),
            "ts_ms": ms,
            "databaseName": job.schema_name,
            "schemaName": None,
            "ddl": job.query,
            "tableChanges": [],
        }
        key = json_text({"databaseName": job.schema_name}).encode()
        return Message(json_text(value).encode(), key, self._destinations.ddl)

    def watermark(self, commit_ts: int) -> Message:
        value = {
            "source": self._source(commit_ts, "", ""),
            "ts_ms": physical_ms(commit_ts),
            "watermark_ts": commit_ts,
        }
        return Message(json_text(value).encode(), to=self._destinations.ddl)

    def _source(self, commit_ts: int, schema: str, table: str) -> dict[str, object]:
        return {
            "version": VERSION,
            "connector": "mysql",
            "name": self._name,
            "snapshot": "false",
            "db": schema,
            "sequence": None,
            "table": table,
            "server_id": 0,
            "gtid": None,
            "file": "",
            "row": 0,
            "thread": None,
            "query": None,
            "ts_ms": physical_ms(commit_ts),
            "pos": commit_ts,
            "commit_ts": commit_ts,
        }

    def _status(self, commit_ts: int, status: str, counts: Counter[str] | None) -> Message:
        events = collections = _NULL
        if counts is not None:
            events = str(counts.total())
            each = (
                f'{{"data_collection":{quoted(name)},"event_count":{count}}}'
                for name, count in counts.items()
            )
            collections = f"[{','.join(each)}]"
        value = (
            f'{{"status":"{status}","id":"{commit_ts}","ts_ms":{physical_ms(commit_ts)},'
            f'"event_count":{events},"data_collections":{collections}}}'
        )
        key = f'{{"id":"{commit_ts}"}}'
        return Message(value.encode(), key.encode(), self._transactions)

    def _messages(
        self, table: _DebeziumTable, change: _Change, commit_ts: int, order: str
    ) -> Iterator[Message]:
        destination, row = table.destination, change.after or change.before
        assert row is not None
        key = None
        if destination.key:
            key = table.key_head.encode() + table.rows.key(row, destination.key)
            key += self._end.encode()
        ms = physical_ms(commit_ts)
        head = table.value_head
        tail = (
            f',"source":{{{table.source},"ts_ms":{ms},"pos":{commit_ts},"commit_ts":{commit_ts}}},'
            f'"op":"{change.op}","ts_ms":{ms},"transaction":{order}}}{self._end}'
        )
        images = (_NULL if each is None else table.rows.whole(each) for each in change[1:])
        value = '{}{{"before":{},"after":{}{}'.format(head, *images, tail).encode()
        headers: Headers = ()
        if self._bytes_max and len(value) > self._bytes_max and destination.key:
            headers = self._limit.headers(value)
            at = [each.at for each in destination.key]
            keys = (_NULL if each is None else table.rows.some(each, at) for each in change[1:])
            tail = tail.replace('"commit_ts":', '"only_key":true,"commit_ts":', 1)
            value = '{}{{"before":{},"after":{}{}'.format(head, *keys, tail).encode()
        to = destination.to(key)
        yield Message(value, key, to, headers)
        if change.op == "d" and self._tombstones and key is not None:
            yield Message(None, key, to)

    def _compiled(self, schema: str, table: TableInfo) -> _DebeziumTable:
        destination = self._destinations.of(schema, table)
        types = {
            c.name: debezium_type(c, self._decimals, has_schema=self._schemas)
            for c in written_columns(table)
        }
        fields = [
            {**types[c.name].schema, "optional": not c.is_not_null, "field": c.name}
            for c in written_columns(table)
        ]
        fields += [_field("string", name, optional=True) for name, _ in table.constants]
        source = self._source(0, schema, table.name)
        for name in ("ts_ms", "pos", "commit_ts"):
            del source[name]
        value_head = key_head = ""
        if self._schemas:
            keys = {each.column.name for each in destination.key}
            key_fields = [each for each in fields if each["field"] in keys]
            value_head = f'{{"schema":{json_text(_envelope(destination.topic, fields))},"payload":'
            key_schema = _struct(f"{destination.topic}.Key", key_fields, optional=False)
            key_head = f'{{"schema":{json_text(key_schema)},"payload":'
        return _DebeziumTable(
            destination=destination,
            rows=JsonRow(table, lambda column: types[column.name].text),
            collection=f"{schema}.{table.name}",
            source=json_text(source)[1:-1],
            value_head=value_head,
            key_head=key_head,
        )


def _struct(name: str, fields: list[dict[str, Any]], *, optional: bool) -> dict[str, Any]:
    return {"type": "struct", "fields": fields, "optional": optional, "name": name}


def _envelope(topic: str, fields: list[dict[str, Any]]) -> dict[str, Any]:
    row = _struct(f"{topic}.Value", fields, optional=True)
    source = _struct("io.debezium.connector.mysql.Source", _SOURCE_FIELDS, optional=False)
    block = _struct("event.block", _TRANSACTION_FIELDS, optional=True) | {"version": 1}
    made = _struct(
        f"{topic}.Envelope",
        [
            {**row, "field": "before"},
            {**row, "field": "after"},
            {**source, "field": "source"},
            _field("string", "op", optional=False),
            _field("int64", "ts_ms", optional=True),
            {**block, "field": "transaction"},
        ],
        optional=False,
    )
    return made | {"version": 2}


def _changes(event: RowEvent, destination: Destination) -> Iterator[_Change]:
    before, after = event.before, event.after
    if before is not None and after is not None and destination.moves(before, after):
        yield _Change("d", before, None)
        yield _Change("c", None, after)
    else:
        yield _Change("c" if before is None else "d" if after is None else "u", before, after)
