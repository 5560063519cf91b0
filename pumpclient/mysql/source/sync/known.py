"""Leaves out transactions by what stands at their beginning: their GTID, or their moment. Pure."""

from __future__ import annotations

import struct
from uuid import UUID

from pumpclient.mysql.events import body_of
from pumpclient.mysql.events.frame import HEADER, HEADER_SIZE, Checksum, EventType
from pumpclient.mysql.events.transactions import decode_tagged
from pumpclient.mysql.gtid import GtidSet, MariadbGtid, MariadbGtidSet, MysqlGtid

_MARIADB = struct.Struct("<QI")
_MYSQL = struct.Struct("<x16sQ")
_BEGINS = frozenset(
    {EventType.MARIADB_GTID, EventType.GTID, EventType.GTID_TAGGED, EventType.ANONYMOUS_GTID}
)
_KEPT = frozenset(
    {
        EventType.FORMAT_DESCRIPTION,
        EventType.ROTATE,
        EventType.STOP,
        EventType.PREVIOUS_GTIDS,
        EventType.GTID_LIST,
        EventType.BINLOG_CHECKPOINT,
    }
)


class KnownTransactions:
    """Tells of each event whether it belongs to a transaction that is left out."""

    def __init__(self, gtids: GtidSet | None, since_s: int) -> None:
        """Leave out what `gtids` has, and what was before `since_s` until the first that was not.

        Without both, nothing is left out.
        """
        self._gtids = gtids
        self._since_s = since_s
        self._leaves_out = since_s > 0
        self.count = 0

    @property
    def is_needed(self) -> bool:
        """Tell whether anything can still be left out."""
        return self._gtids is not None or self._since_s > 0

    def is_left_out(self, event: bytes, checksum: Checksum) -> bool:
        """Take the next event."""
        timestamp_s, type_, server_id, _, _, _ = HEADER.unpack_from(event)
        if type_ in _BEGINS:
            if self._since_s and timestamp_s >= self._since_s:
                self._since_s = 0
            self._leaves_out = self._since_s > 0 or self._has(type_, event, server_id, checksum)
            self.count += self._leaves_out
        return self._leaves_out and type_ not in _KEPT

    def _has(self, type_: int, event: bytes, server_id: int, checksum: Checksum) -> bool:
        gtids = self._gtids
        if gtids is None or type_ == EventType.ANONYMOUS_GTID:
            return False
        if type_ == EventType.MARIADB_GTID:
            assert isinstance(gtids, MariadbGtidSet), "one flavour has one kind of GTID"
            sequence, domain = _MARIADB.unpack_from(event, HEADER_SIZE)
            return MariadbGtid(domain, server_id, sequence) in gtids
        assert not isinstance(gtids, MariadbGtidSet), "one flavour has one kind of GTID"
        if type_ == EventType.GTID_TAGGED:
            tagged = decode_tagged(body_of(event, checksum)).gtid
            return tagged is not None and tagged in gtids
        source, number = _MYSQL.unpack_from(event, HEADER_SIZE)
        return MysqlGtid(UUID(bytes=source), number) in gtids
