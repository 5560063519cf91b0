"""Finds transaction boundaries in a run of events, and the GTIDs that are complete.

A transaction starts with its GTID, or with BEGIN where servers have no GTIDs. It ends with XID,
XA_PREPARE or TRANSACTION_PAYLOAD, with COMMIT or ROLLBACK as a statement, or, without BEGIN, with
its one statement. No SQL is parsed: the first words of a statement suffice. Pure.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from enum import IntEnum

from pumpclient.mysql.events.compressed import decompress_block
from pumpclient.mysql.events.files import GtidList, PreviousGtids
from pumpclient.mysql.events.frame import HEADER_SIZE, ROWS_TYPES, Checksum, EventType, body_of
from pumpclient.mysql.events.statements import Query
from pumpclient.mysql.events.transactions import GtidFlag, mysql_gtid_of
from pumpclient.mysql.gtid import Gtid, GtidSet, MariadbGtid, MariadbGtidSet, MysqlGtid

_MARIADB_GTID = struct.Struct("<QIB")
_SERVER_ID = struct.Struct("<I")
_SERVER_ID_AT = 5
_SHOWN_BYTES = 64
_STANDALONE = int(GtidFlag.STANDALONE)  # An IntFlag's own `&` takes a microsecond.

_ENDS = frozenset({EventType.XID, EventType.XA_PREPARE, EventType.TRANSACTION_PAYLOAD})
_LISTS = frozenset({EventType.PREVIOUS_GTIDS, EventType.GTID_LIST})
_BEGINS = frozenset({EventType.TABLE_MAP, *ROWS_TYPES})
_QUERIES = frozenset({EventType.QUERY, EventType.QUERY_COMPRESSED})
_GTIDS = frozenset({EventType.GTID, EventType.ANONYMOUS_GTID, EventType.GTID_TAGGED})


class Inside(IntEnum):
    """The place of a run of events relative to a transaction."""

    NONE = 0
    GTID = 1  # After a GTID: a statement without BEGIN is the whole transaction.
    TRANSACTION = 2


class TransactionTracker:
    """Follows one run of events; `gtids` grows only where transactions end."""

    def __init__(self, gtids: GtidSet) -> None:
        """Start outside of a transaction; `gtids` are already complete."""
        self.gtids = gtids
        self.inside = Inside.NONE
        self.checksum = Checksum.NONE
        self._pending: Gtid | None = None
        self._handlers: dict[int, Callable[[int, bytes], None]] = {
            EventType.MARIADB_GTID: self._mariadb_gtid,
            **dict.fromkeys(_BEGINS, self._begin),
            **dict.fromkeys(_ENDS, self._xid),
            **dict.fromkeys(_QUERIES, self._query),
            **dict.fromkeys(_GTIDS, self._gtid),
            **dict.fromkeys(_LISTS, self._list),
        }

    def begin_file(self, checksum: Checksum) -> None:
        """Continue with a file, or resume after a complete transaction."""
        self.checksum = checksum
        self.inside = Inside.NONE
        self._pending = None

    def take(self, type_: int, event: bytes) -> None:
        handle = self._handlers.get(type_)
        if handle is not None:
            handle(type_, event)

    def _begin(self, type_: int, event: bytes) -> None:
        self.inside = Inside.TRANSACTION

    def _mariadb_gtid(self, type_: int, event: bytes) -> None:
        sequence, domain, flags = _MARIADB_GTID.unpack_from(event, HEADER_SIZE)
        (server,) = _SERVER_ID.unpack_from(event, _SERVER_ID_AT)
        self._pending = MariadbGtid(domain, server, sequence)
        self.inside = Inside.GTID if flags & _STANDALONE else Inside.TRANSACTION

    def _xid(self, type_: int, event: bytes) -> None:
        self._end()

    def _gtid(self, type_: int, event: bytes) -> None:
        self._pending = mysql_gtid_of(type_, event, self.checksum)
        self.inside = Inside.GTID

    def _end(self) -> None:
        self.inside = Inside.NONE
        gtid, self._pending = self._pending, None
        if gtid is None:
            return
        if isinstance(self.gtids, MariadbGtidSet):
            assert isinstance(gtid, MariadbGtid), "one flavour has one kind of GTID"
            self.gtids.add(gtid)
        else:
            assert isinstance(gtid, MysqlGtid), "one flavour has one kind of GTID"
            self.gtids.add(gtid)

    def _list(self, type_: int, event: bytes) -> None:
        body = body_of(event, self.checksum)
        if type_ == EventType.GTID_LIST:
            assert isinstance(self.gtids, MariadbGtidSet), "one flavour has one kind of set"
            self.gtids = self.gtids.union(GtidList.decode(body).gtids)
        else:
            assert not isinstance(self.gtids, MariadbGtidSet), "one flavour has one kind of set"
            self.gtids = self.gtids.union(PreviousGtids.decode(body).gtids)

    def _query(self, type_: int, event: bytes) -> None:
        statement = Query.decode(body_of(event, self.checksum)).statement
        if type_ == EventType.QUERY_COMPRESSED:
            statement = decompress_block(statement)
        words = statement[:_SHOWN_BYTES].upper().split()
        if self.inside is Inside.TRANSACTION:
            if _is_end(words):
                self._end()
        elif _is_beginning(words) or statement[-_SHOWN_BYTES:].upper().split()[-2:] == _START:
            self.inside = Inside.TRANSACTION
        elif words[:1] != [b"SAVEPOINT"]:
            self._end()


_START = [b"START", b"TRANSACTION"]  # The end of CREATE TABLE ... SELECT since MySQL 8.0.21.


def _is_beginning(words: list[bytes]) -> bool:
    return words == [b"BEGIN"] or words[:2] in ([b"XA", b"START"], [b"XA", b"BEGIN"], _START)


def _is_end(words: list[bytes]) -> bool:
    if words[:1] == [b"ROLLBACK"]:
        return b"TO" not in words[1:3]
    return words[:1] == [b"COMMIT"] or words[:2] in ([b"XA", b"COMMIT"], [b"XA", b"ROLLBACK"])
