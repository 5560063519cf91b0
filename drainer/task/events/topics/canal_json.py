"""Encoder of canal-json: a message for each row, with its JDBC and MySQL types.

    {"id":0, "database", "table", "pkNames":[…]|null, "isDdl":false, "type":"INSERT",
     "es": commit time in ms, "ts": the same, "sql":"", "sqlType":{column: JDBC code},
     "mysqlType":{column: text}, "data":[{column: text|null}], "old":[…]|null,
     "_tidb":{"commitTs":n}}

All values are texts. An integer that is too large for its signed type has the code of the next
type, by its value and not by its column. Bytes are characters of ISO-8859-1, ENUM and SET numbers.
For an update `old` is the row before, or, with `old=changed`, only the columns that differ. A row
larger than the message limit has only its key, and `_tidb.onlyHandleKey`.

Source: https://docs.pingcap.com/tidb/stable/ticdc-canal-json, FlatMessage.java of Alibaba's canal.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
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
    NUMBERS,
    Change,
    JsonRow,
    changes_of,
    json_text,
    positional,
    quoted,
    written_columns,
)
from penstock.datum.rows.fields import number_of
from penstock.schema.model import ColumnInfo, DdlJob, DdlType, MysqlType, TableInfo
from penstock.ts import physical_ms

if TYPE_CHECKING:
    from penstock.ddl import SchemaChange

_JDBC = {
    MysqlType.TINY: -6, MysqlType.SHORT: 5, MysqlType.INT24: 4, MysqlType.LONG: 4,
    MysqlType.LONGLONG: -5, MysqlType.FLOAT: 7, MysqlType.DOUBLE: 8, MysqlType.NEWDECIMAL: 3,
    MysqlType.VARCHAR: 12, MysqlType.VAR_STRING: 12, MysqlType.STRING: 1, MysqlType.DATE: 91,
    MysqlType.DURATION: 92, MysqlType.DATETIME: 93, MysqlType.TIMESTAMP: 93, MysqlType.YEAR: 12,
    MysqlType.ENUM: 4, MysqlType.SET: -7, MysqlType.BIT: -7, MysqlType.JSON: 12,
    MysqlType.GEOMETRY: 2004,
}  # fmt: skip
_TEXT_CODE, _BYTES_CODE = 2005, 2004
_BLOBS = frozenset({MysqlType.TINY_BLOB, MysqlType.BLOB, MysqlType.MEDIUM_BLOB,
                    MysqlType.LONG_BLOB})  # fmt: skip
_LARGER = {
    MysqlType.TINY: (1 << 7, 5),
    MysqlType.SHORT: (1 << 15, 4),
    MysqlType.LONG: (1 << 31, -5),
    MysqlType.LONGLONG: (1 << 63, 3),
}
"""Unsigned integers: the value from which on a larger code applies, and that code."""

_DDL_TYPES = {
    DdlType.CREATE_TABLE: "CREATE",
    DdlType.DROP_TABLE: "ERASE",
    DdlType.TRUNCATE_TABLE: "TRUNCATE",
    DdlType.RENAME_TABLE: "RENAME",
    DdlType.RENAME_TABLES: "RENAME",
    DdlType.ADD_INDEX: "CINDEX",
    DdlType.ADD_PRIMARY_KEY: "CINDEX",
    DdlType.DROP_INDEX: "DINDEX",
    DdlType.DROP_PRIMARY_KEY: "DINDEX",
    **dict.fromkeys(
        (
            DdlType.ADD_COLUMN, DdlType.DROP_COLUMN, DdlType.MODIFY_COLUMN, DdlType.SET_DEFAULT,
            DdlType.TABLE_COMMENT, DdlType.RENAME_INDEX, DdlType.ADD_PARTITION,
            DdlType.DROP_PARTITION, DdlType.MODIFY_TABLE_CHARSET, DdlType.TRUNCATE_PARTITION,
            DdlType.MULTI_SCHEMA_CHANGE, DdlType.REORGANIZE_PARTITION,
            DdlType.ALTER_PARTITIONING, DdlType.REMOVE_PARTITIONING,
        ),
        "ALTER",
    ),
}  # fmt: skip
_OTHER_DDL = "QUERY"


class _CanalTable(NamedTuple):
    destination: Destination
    head: str
    rows: JsonRow
    codes: str
    """sqlType of a row whose unsigned integers are small."""
    unsigned: tuple[tuple[int, int], ...]
    """Position in a row, and the value from which on its code differs."""
    code_of: Callable[[Values], str]
    types: str


class CanalJson:
    """See `Encoder`."""

    def __init__(
        self, destinations: Destinations, *, limit: Limit = NO_LIMIT, only_changed: bool = False
    ) -> None:
        """With `only_changed`, a before image contains only the columns that differ."""
        self._destinations = destinations
        self._bytes_max = limit.bytes_max
        self._limit = limit
        self._only_changed = only_changed
        self._tables = PerTable(self._compiled)

    def transaction(self, commit_ts: int, events: Sequence[RowEvent]) -> Iterable[Message]:
        ms = physical_ms(commit_ts)
        times = f'"es":{ms},"ts":{ms},"sql":"","sqlType":'
        tail = f'"_tidb":{{"commitTs":{commit_ts}'
        for event in events:
            table = self._tables.of(event.schema, event.table)
            for change in changes_of(event, table.destination):
                yield self._message(table, change, times, tail)

    slice = transaction

    def ddl(self, commit_ts: int, change: SchemaChange) -> Iterable[Message]:
        return [self._ddl(commit_ts, job) for job in ddl_jobs(change)]

    def _ddl(self, commit_ts: int, job: DdlJob) -> Message:
        value = _envelope(commit_ts) | {
            "database": job.schema_name,
            "table": job.table_name,
            "isDdl": True,
            "type": _DDL_TYPES.get(DdlType(job.type), _OTHER_DDL),
            "sql": job.query,
            "_tidb": {"commitTs": commit_ts},
        }
        return Message(json_text(value).encode(), to=self._destinations.ddl)

    def watermark(self, commit_ts: int) -> Message:
        value = _envelope(commit_ts) | {
            "type": "TIDB_WATERMARK",
            "_tidb": {"watermarkTs": commit_ts},
        }
        return Message(json_text(value).encode(), to=self._destinations.ddl)

    def _message(self, table: _CanalTable, change: Change, times: str, tail: str) -> Message:
        kind, before, row = change
        codes = table.codes
        for at, bound in table.unsigned:
            value = row[at]
            if value is not None and value >= bound:
                codes = table.code_of(row)
                break
        old = "null"
        if before is not None:
            shown = table.rows.changed(before, row) if self._only_changed else ""
            old = f"[{shown or table.rows.whole(before)}]"
        destination = table.destination
        key = table.rows.key(row, destination.key) if destination.goes_by_key else None
        head = f'{table.head}"{kind}",{times}{codes},"mysqlType":{table.types},"data":['
        value = f'{head}{table.rows.whole(row)}],"old":{old},{tail}}}}}'.encode()
        headers: Headers = ()
        if self._bytes_max and len(value) > self._bytes_max and destination.key:
            headers = self._limit.headers(value)
            positions = [each.at for each in destination.key]
            data = table.rows.some(row, positions)
            if before is not None:
                old = f"[{table.rows.some(before, positions)}]"
            value = f'{head}{data}],"old":{old},{tail},"onlyHandleKey":true}}}}'.encode()
        return Message(value, key, destination.to(key), headers)

    def _compiled(self, schema: str, table: TableInfo) -> _CanalTable:
        destination = self._destinations.of(schema, table)
        names = [each.column.name for each in destination.key] or None
        columns = written_columns(table)
        at_of = {column.name: at for at, column in enumerate(table.columns)}
        constants = [name for name, _ in table.constants]

        def codes(row: Values | None) -> str:
            found = {c.name: _code(c, row[at_of[c.name]] if row else None) for c in columns}
            return json_text(found | dict.fromkeys(constants, 12))

        rows = JsonRow(table, _text_of)
        return _CanalTable(
            destination=destination,
            head=f'{{"id":0,"database":{quoted(schema)},"table":{quoted(table.name)},'
            f'"pkNames":{json_text(names)},"isDdl":false,"type":',
            rows=rows,
            codes=codes(None),
            unsigned=tuple(
                (at_of[c.name], _LARGER[c.tp][0])
                for c in columns
                if c.is_unsigned and c.tp in _LARGER
            ),
            code_of=codes,
            types=json_text(
                {c.name: c.sql_type.lower() for c in columns} | dict.fromkeys(constants, "varchar")
            ),
        )


def _envelope(commit_ts: int) -> dict[str, Any]:
    ms = physical_ms(commit_ts)
    return {
        "id": 0, "database": "", "table": "", "pkNames": None, "isDdl": False, "type": "",
        "es": ms, "ts": ms, "sql": "", "sqlType": None, "mysqlType": None, "data": None,
        "old": None,
    }  # fmt: skip


def _code(column: ColumnInfo, value: Any) -> int:
    if column.tp in _BLOBS:
        return _BYTES_CODE if column.is_binary else _TEXT_CODE
    if column.is_binary and column.tp in (
        MysqlType.STRING, MysqlType.VARCHAR, MysqlType.VAR_STRING,
    ):  # fmt: skip
        return _BYTES_CODE
    if column.is_unsigned and value is not None and column.tp in _LARGER:
        bound, larger = _LARGER[column.tp]
        if value >= bound:
            return larger
    return _JDBC[column.tp]


def _text_of(column: ColumnInfo) -> Callable[[Any], str]:
    tp = column.tp
    if tp in (MysqlType.FLOAT, MysqlType.DOUBLE):
        written = positional(column)
        return lambda value: f'"{written(value)}"'
    if tp is MysqlType.NEWDECIMAL:
        return lambda value: f'"{value:f}"'
    if tp in (MysqlType.ENUM, MysqlType.SET):
        number = number_of(column)
        return lambda value: f'"{number(value)}"'
    if tp is MysqlType.GEOMETRY or (column.is_binary and column.tp is not MysqlType.JSON):
        return lambda value: (
            quoted(value.decode("latin-1")) if isinstance(value, bytes) else f'"{value}"'
        )
    return (lambda value: f'"{value}"') if tp in NUMBERS else quoted
