"""Binlog events: `decode_event` decodes an event's body.

TABLE_MAP and rows events stay bytes (`UnreadRows`): `pumpclient.mysql.rows` decodes them, and only
for the tables that are wanted. Every other type has a dataclass with `decode` in one of the
modules. An unknown type is an error unless its server marked it as ignorable.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

from penstock.codes import Code
from penstock.errors import Malformed
from pumpclient.mysql.events.files import (
    BinlogCheckpoint,
    FormatDescription,
    GtidList,
    Heartbeat,
    Incident,
    PreviousGtids,
    Rotate,
    StartEncryption,
)
from pumpclient.mysql.events.frame import (
    CHECKSUM_SIZE,
    HEADER_SIZE,
    ROWS_TYPES,
    Checksum,
    EventFlag,
    EventType,
    Header,
    read_header,
)
from pumpclient.mysql.events.statements import IntVar, Query, Rand, RowsQuery, UserVar
from pumpclient.mysql.events.transactions import (
    Gtid,
    MariadbGtidEvent,
    TransactionPayload,
    XaPrepare,
    Xid,
    decode_tagged,
    decompress_block,
)

__all__ = ["Event", "IgnoredEvent", "Stop", "UnreadRows", "decode_event"]


class UnreadRows(NamedTuple):
    """A TABLE_MAP or rows event that is not decoded yet."""

    type: EventType
    body: bytes


@dataclass(frozen=True, slots=True)
class Stop:
    """The server was shut down cleanly."""


@dataclass(frozen=True, slots=True)
class IgnoredEvent:
    """An event that carries no change of data and is not read further."""

    type: int
    body: bytes


@dataclass(frozen=True, slots=True)
class StatementPart:
    """A part of LOAD DATA in statement format: its data is not in rows."""

    type: EventType
    body: bytes


Event = (
    BinlogCheckpoint | FormatDescription | Gtid | GtidList | Heartbeat | Incident | IntVar
    | MariadbGtidEvent | IgnoredEvent | PreviousGtids | Query | Rand | Rotate | RowsQuery
    | StartEncryption | StatementPart | Stop | TransactionPayload | UnreadRows | UserVar
    | XaPrepare | Xid
)  # fmt: skip


def _query_compressed(body: bytes) -> Query:
    query = Query.decode(body)
    return replace(query, statement=decompress_block(query.statement))


_DECODERS: dict[int, Callable[[bytes], Event]] = {
    EventType.QUERY: Query.decode,
    EventType.STOP: lambda _: Stop(),
    EventType.ROTATE: Rotate.decode,
    EventType.INTVAR: IntVar.decode,
    EventType.RAND: Rand.decode,
    EventType.USER_VAR: UserVar.decode,
    EventType.XID: Xid.decode,
    EventType.INCIDENT: Incident.decode,
    EventType.HEARTBEAT: Heartbeat.decode,
    EventType.HEARTBEAT_V2: Heartbeat.decode_v2,
    EventType.ROWS_QUERY: RowsQuery.decode,
    EventType.ANNOTATE_ROWS: RowsQuery,
    EventType.GTID: Gtid.decode,
    EventType.ANONYMOUS_GTID: Gtid.decode,
    EventType.GTID_TAGGED: decode_tagged,
    EventType.PREVIOUS_GTIDS: PreviousGtids.decode,
    EventType.XA_PREPARE: XaPrepare.decode,
    EventType.TRANSACTION_PAYLOAD: TransactionPayload.decode,
    EventType.MARIADB_GTID: MariadbGtidEvent.decode,
    EventType.GTID_LIST: GtidList.decode,
    EventType.BINLOG_CHECKPOINT: BinlogCheckpoint.decode,
    EventType.START_ENCRYPTION: StartEncryption.decode,
    EventType.QUERY_COMPRESSED: _query_compressed,
}
_UNREAD = {int(type_): type_ for type_ in (EventType.TABLE_MAP, *ROWS_TYPES)}
_FORMAT_DESCRIPTION = int(EventType.FORMAT_DESCRIPTION)
_OPAQUE = frozenset(
    {EventType.IGNORABLE, EventType.TRANSACTION_CONTEXT, EventType.VIEW_CHANGE, EventType.SLAVE}
)
_STATEMENT_PARTS = frozenset(
    {
        EventType.BEGIN_LOAD_QUERY,
        EventType.EXECUTE_LOAD_QUERY,
        EventType.APPEND_BLOCK,
        EventType.DELETE_FILE,
    }
)


def decode_event(event: bytes, checksum: Checksum, header: Header | None = None) -> Event:
    """Return the decoded event; `checksum` is the setting of its file's FORMAT_DESCRIPTION.

    Raises `Malformed` for a body that does not match its type, and for an unknown type that is not
    marked as ignorable.
    """
    header = header or read_header(event)
    type_ = header.type
    if type_ == _FORMAT_DESCRIPTION:
        return FormatDescription.decode(event[HEADER_SIZE:])
    # `body_of`, inlined; most events need only this and the next lookup.
    body = event[HEADER_SIZE:-CHECKSUM_SIZE] if checksum else event[HEADER_SIZE:]
    unread = _UNREAD.get(type_)
    if unread is not None:
        return UnreadRows(unread, body)
    decode = _DECODERS.get(type_)
    if decode is not None:
        return decode(body)
    if type_ in _STATEMENT_PARTS:
        return StatementPart(EventType(type_), body)
    if type_ in _OPAQUE or header.flags & EventFlag.IGNORABLE:
        return IgnoredEvent(type_, body)
    raise Malformed(
        f"{header} is unknown, and its server does not allow to ignore it",
        "a newer version of Penstock may know it",
        Code.EVENT_UNKNOWN,
    )
