"""Encoder of Maxwell JSON: a message for each row, short and without types.

    key      {"database":"db","table":"t","pk.id":1}
    value    {"database","table","type":"insert|update|delete","ts": commit time in s,
              "xid": commit_ts,"xoffset":n | "commit":true,"data":{…},"old":{changed columns}}

The last row of a transaction has `commit`, the others their number in it, starting at 0. Rows of a
transaction that is too large for memory have neither, because it comes in parts. Numbers, including
DECIMAL, are numbers; bytes are base64, a SET is a list, JSON is JSON, dates and times are texts as
MySQL writes them.

Source: https://maxwells-daemon.io/dataformat/ and its page on producers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from drainer.task.events.messages import Headers, Message, PerTable, RowEvent
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
    Text,
    base64_text,
    changes_of,
    json_text,
    quoted,
    shortest,
)
from penstock.schema.model import ColumnInfo, DdlJob, DdlType, MysqlType, TableInfo
from penstock.ts import physical_ms

if TYPE_CHECKING:
    from penstock.ddl import SchemaChange

_DDL_TYPES = {
    DdlType.CREATE_SCHEMA: "database-create",
    DdlType.DROP_SCHEMA: "database-drop",
    DdlType.MODIFY_SCHEMA_CHARSET: "database-alter",
    DdlType.CREATE_TABLE: "table-create",
    DdlType.DROP_TABLE: "table-drop",
}
_OTHER_DDL = "table-alter"


class _MaxwellTable(NamedTuple):
    destination: Destination
    head: str
    key_head: str
    rows: JsonRow


class MaxwellJson:
    """See `Encoder`."""

    def __init__(self, destinations: Destinations, *, limit: Limit = NO_LIMIT) -> None:
        self._destinations = destinations
        self._bytes_max = limit.bytes_max
        self._limit = limit
        self._tables = PerTable(self._compiled)

    def transaction(self, commit_ts: int, events: Sequence[RowEvent]) -> Iterator[Message]:
        """Return a message for each row, the last of which commits."""
        made = list(self._changes(events))
        for number, (table, change) in enumerate(made):
            place = f'"xoffset":{number}' if number + 1 < len(made) else '"commit":true'
            yield self._message(table, change, commit_ts, f",{place}")

    def slice(self, commit_ts: int, events: Sequence[RowEvent]) -> Iterator[Message]:
        for table, change in self._changes(events):
            yield self._message(table, change, commit_ts, "")

    def ddl(self, commit_ts: int, change: SchemaChange) -> Iterable[Message]:
        return [self._ddl(commit_ts, job) for job in ddl_jobs(change)]

    def _ddl(self, commit_ts: int, job: DdlJob) -> Message:
        value = {
            "type": _DDL_TYPES.get(DdlType(job.type), _OTHER_DDL),
            "database": job.schema_name,
            "table": job.table_name,
            "ts": physical_ms(commit_ts),
            "sql": job.query,
            "xid": commit_ts,
        }
        return Message(json_text(value).encode(), to=self._destinations.ddl)

    def watermark(self, commit_ts: int) -> Message:
        value = {"type": "watermark", "ts": physical_ms(commit_ts), "xid": commit_ts}
        return Message(json_text(value).encode(), to=self._destinations.ddl)

    def _changes(self, events: Sequence[RowEvent]) -> Iterator[tuple[_MaxwellTable, Change]]:
        for event in events:
            table = self._tables.of(event.schema, event.table)
            for change in changes_of(event, table.destination):
                yield table, change

    def _message(self, table: _MaxwellTable, change: Change, commit_ts: int, place: str) -> Message:
        kind, before, row = change
        destination = table.destination
        key = None
        if destination.key:
            key = table.key_head.encode() + table.rows.key(row, destination.key, "pk.")[1:]
        seconds = physical_ms(commit_ts) // 1000
        head = f'{table.head}"{kind.lower()}","ts":{seconds},"xid":{commit_ts}{place}'
        old = "" if before is None else f',"old":{table.rows.changed(before, row)}'
        value = f'{head},"data":{table.rows.whole(row)}{old}}}'.encode()
        headers: Headers = ()
        if self._bytes_max and len(value) > self._bytes_max and destination.key:
            headers = self._limit.headers(value)
            data = table.rows.some(row, (each.at for each in destination.key))
            value = f'{head},"only_key":true,"data":{data}}}'.encode()
        return Message(value, key, destination.to(key), headers)

    def _compiled(self, schema: str, table: TableInfo) -> _MaxwellTable:
        names = f'"database":{quoted(schema)},"table":{quoted(table.name)},'
        destination = self._destinations.of(schema, table)
        return _MaxwellTable(
            destination, f'{{{names}"type":', f"{{{names}", JsonRow(table, _text_of)
        )


def _text_of(column: ColumnInfo) -> Text:
    tp = column.tp
    if tp in NUMBERS:
        return str
    if tp in (MysqlType.FLOAT, MysqlType.DOUBLE):
        return shortest(column)
    if tp is MysqlType.NEWDECIMAL:
        return lambda value: f"{value:f}"
    if tp is MysqlType.SET:
        return lambda value: json_text(value.split(",") if value else [])
    if tp is MysqlType.JSON:
        return str
    if tp is MysqlType.GEOMETRY:
        return base64_text
    if column.is_binary:
        return lambda value: base64_text(value) if isinstance(value, bytes) else quoted(value)
    return quoted
