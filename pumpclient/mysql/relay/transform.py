"""From a server's stream to the relay log: what is kept, what is whole, where transactions end.

    type                                     written   what follows from it
    ROTATE, FORMAT_DESCRIPTION               by the writer's own rules
    HEARTBEAT, HEARTBEAT_V2                  no        the server has nothing new
    anything else made for the stream        no
    PREVIOUS_GTIDS, GTID_LIST                yes       all earlier files' GTIDs are known
    XID, XA_PREPARE, TRANSACTION_PAYLOAD,
    QUERY that is a DDL, COMMIT or ROLLBACK  yes       a transaction ends: its GTID counts
    anything else                            yes

Each event's checksum is verified before any of this.
"""

from __future__ import annotations

from collections.abc import Iterable
from zlib import crc32

from penstock.errors import Malformed
from pumpclient.mysql.events.files import FormatDescription
from pumpclient.mysql.events.frame import (
    HEADER,
    HEADER_SIZE,
    EventFlag,
    EventType,
    Header,
    checksum_holds,
)
from pumpclient.mysql.relay.boundaries import TransactionTracker
from pumpclient.mysql.relay.layout import FIRST_POSITION
from pumpclient.mysql.relay.writer import RelayWriter

CRC_OF_WHOLE = 0x2144DF1C
"""What CRC-32 gives for bytes that end in their own CRC-32."""

_HEARTBEATS = frozenset({EventType.HEARTBEAT, EventType.HEARTBEAT_V2})
_FRAMES = frozenset({EventType.ROTATE, EventType.FORMAT_DESCRIPTION})
_ARTIFICIAL = int(EventFlag.ARTIFICIAL)  # An IntFlag's own `&` takes a microsecond.


class Transformer:
    """Feeds a writer and a tracker; what is complete ends at `safe` of the writer's file."""

    def __init__(self, writer: RelayWriter, tracker: TransactionTracker) -> None:
        """Go on where both are."""
        self.writer = writer
        self.tracker = tracker
        self.safe = FIRST_POSITION
        self.last_event_s = 0
        self.is_idle = False

    def take(self, events: Iterable[bytes]) -> None:
        """Take events as they came; raise `Malformed` for one that is not whole."""
        unpack, put, take = HEADER.unpack_from, self.writer.put, self.tracker.take
        writer, tracker = self.writer, self.tracker
        for event in events:
            if len(event) < HEADER_SIZE:
                raise self._damaged("shorter than a header")
            timestamp_s, type_, _, size, end_position, flags = unpack(event)
            if size != len(event):
                raise self._damaged(f"{len(event)} bytes long, its header says {size}")
            if type_ in _FRAMES:
                self._frame(event)
                continue
            if type_ in _HEARTBEATS:
                self.is_idle = True
                continue
            if flags & _ARTIFICIAL:
                continue
            if writer.checksum and crc32(event) != CRC_OF_WHOLE:
                raise self._damaged("its checksum does not hold")
            put(event, end_position, size)
            take(type_, event)
            if not tracker.inside:
                self.safe = writer.at
            self.last_event_s = timestamp_s
            self.is_idle = False

    def _frame(self, event: bytes) -> None:
        header = Header._make(HEADER.unpack_from(event))
        if header.type == EventType.ROTATE:
            if self.writer.checksum and not self._is_rotate_whole(event, header):
                raise self._damaged("its checksum does not hold")
            self.writer.rotate(event, header)
        else:
            file = self.writer.file
            description = FormatDescription.decode(event[HEADER_SIZE:])
            if description.checksum and not checksum_holds(event):
                raise self._damaged("its checksum does not hold")
            self.writer.describe(event, header, description)
            self.tracker.begin_file(description.checksum)
            if file != self.writer.file:
                self.safe = FIRST_POSITION
        if not self.tracker.inside and self.writer.is_open:
            self.safe = max(self.safe, min(self.writer.at, self.writer.offset))

    def _is_rotate_whole(self, event: bytes, header: Header) -> bool:
        # One that was made for the stream follows the session's checksum, not the file's.
        return header.timestamp_s == 0 or header.is_artificial or checksum_holds(event)

    def _damaged(self, what: str) -> Malformed:
        return Malformed(
            f"the event at {self.writer.at} of the server's {self.writer.file} is damaged: {what}",
            hint="mariadb-binlog or mysqlbinlog with --verify-binlog-checksum on the server tells"
            " whether its file is; if so, begin again with an initial load",
        )
