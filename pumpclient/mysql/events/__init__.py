"""Binlog events: `decode_event` decodes the events that frame, or report, changes.

TABLE_MAP and rows events stay bytes: `pumpclient.mysql.rows` decodes them, and only for the tables
that are wanted. An unknown type is an error unless its server marked it as ignorable.
"""

from collections.abc import Callable
from typing import NamedTuple

from penstock.codes import Code
from penstock.errors import Malformed
from pumpclient.mysql.events.frame import (
    HEADER_SIZE,
    ROWS_TYPES,
    BodyReader,
    Checksum,
    EventFlag,
    EventType,
    FormatDescription,
    Header,
    body_of,
)
from pumpclient.mysql.events.transactions import Incident, Query, TransactionPayload, XaPrepare


class StatementPart(NamedTuple):
    """A part of LOAD DATA in statement format: its data is not in rows."""

    type: EventType


Event = FormatDescription | Incident | Query | StatementPart | TransactionPayload | XaPrepare

_DECODERS: dict[int, Callable[[bytes], Event]] = {
    EventType.QUERY: Query.decode,
    EventType.QUERY_COMPRESSED: Query.decode_compressed,
    EventType.INCIDENT: Incident.decode,
    EventType.XA_PREPARE: XaPrepare.decode,
    EventType.TRANSACTION_PAYLOAD: TransactionPayload.decode,
}
_STATEMENT_PARTS = frozenset(
    {
        EventType.BEGIN_LOAD_QUERY,
        EventType.EXECUTE_LOAD_QUERY,
        EventType.APPEND_BLOCK,
        EventType.DELETE_FILE,
    }
)
_OF_ASSEMBLER = frozenset({EventType.XID, EventType.MARIADB_GTID, EventType.TABLE_MAP, *ROWS_TYPES})
"""Types that are read without this function where their size can be right."""
_IGNORED = frozenset(EventType) - _OF_ASSEMBLER - {EventType.START_V3}


def decode_event(event: bytes, checksum: Checksum, header: Header) -> Event | None:
    """Return the decoded event, None for an event without a change of data.

    `checksum` is the setting of its file's FORMAT_DESCRIPTION. Raises `Malformed` for a body that
    does not match its type, and for an unknown type that is not marked as ignorable.
    """
    type_ = header.type
    if type_ == EventType.FORMAT_DESCRIPTION:
        return FormatDescription.decode(event[HEADER_SIZE:])
    body = body_of(event, checksum)
    if decode := _DECODERS.get(type_):
        return decode(body)
    if type_ in _STATEMENT_PARTS:
        return StatementPart(EventType(type_))
    if type_ in _IGNORED or header.flags & EventFlag.IGNORABLE:
        return None
    if type_ in _OF_ASSEMBLER:
        raise BodyReader(body, EventType(type_).name).malformed(f"{len(body)} bytes")
    raise Malformed(
        f"{header} is unknown, and its server does not allow to ignore it",
        "a newer version of Penstock may know it",
        Code.EVENT_UNKNOWN,
    )
