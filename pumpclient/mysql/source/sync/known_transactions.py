"""Recognises transactions to skip by the GTID or the time in their first event.

Pure.
"""

from __future__ import annotations

import struct

from pumpclient.mysql.events.files import GtidList, PreviousGtids
from pumpclient.mysql.events.frame import HEADER, HEADER_SIZE, Checksum, EventType, body_of
from pumpclient.mysql.events.transactions import mysql_gtid_of
from pumpclient.mysql.gtid import (
    Flavor,
    GtidSet,
    MariadbGtid,
    MariadbGtidSet,
    parse_gtid_set,
)

_MARIADB = struct.Struct("<QI")
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
    """Tells for each event whether it belongs to a skipped transaction."""

    def __init__(self, gtids: GtidSet | None, since_s: int) -> None:
        """Skip the transactions in `gtids`, and all before the first at or after `since_s`.

        With neither, nothing is skipped.
        """
        self._gtids = gtids
        self._since_s = since_s
        self._leaves_out = since_s > 0
        self.count = 0

    @property
    def is_needed(self) -> bool:
        return self._gtids is not None or self._since_s > 0

    def is_left_out(self, event: bytes, checksum: Checksum) -> bool:
        """Take the next event; return whether it is skipped."""
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
        found = mysql_gtid_of(type_, event, checksum)
        return found is not None and found in gtids


LISTS = (int(EventType.GTID_LIST), int(EventType.PREVIOUS_GTIDS))
"""The types of events that list the transactions of all earlier files."""


class SeenGtids:
    """Grows with each transaction, and with the list at a file's start."""

    def __init__(self, text: str, flavor: Flavor) -> None:
        self._flavor = flavor
        self._gtids: GtidSet = parse_gtid_set(text, flavor)

    def __str__(self) -> str:
        return str(self._gtids)

    def copy(self) -> GtidSet:
        return self._gtids.copy()

    def clear(self) -> None:
        """Forget all GTIDs, because the server's history starts again."""
        self._gtids = parse_gtid_set("", self._flavor)

    def add(self, gtid: str) -> None:
        if isinstance(self._gtids, MariadbGtidSet):
            self._gtids.add(MariadbGtid(*map(int, gtid.split("-"))))
        else:
            self._gtids = self._gtids.union(type(self._gtids).parse(gtid))

    def add_list(self, type_: int, event: bytes, checksum: Checksum) -> None:
        """Add the GTIDs of all earlier files, which were all replicated or skipped."""
        body = body_of(event, checksum)
        if isinstance(self._gtids, MariadbGtidSet):
            if type_ == EventType.GTID_LIST:
                self._gtids = self._gtids.union(GtidList.decode(body).gtids)
        elif type_ == EventType.PREVIOUS_GTIDS:
            self._gtids = self._gtids.union(PreviousGtids.decode(body).gtids)
