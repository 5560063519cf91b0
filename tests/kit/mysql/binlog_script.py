"""A server's stream and file, made event by event."""

from __future__ import annotations

from collections.abc import Callable

from pumpclient.mysql.events.files import FormatDescription, GtidList, PreviousGtids, Rotate
from pumpclient.mysql.events.frame import (
    FILE_MAGIC,
    Checksum,
    EventFlag,
    EventType,
    Header,
    make_event,
)
from pumpclient.mysql.events.query import Query
from pumpclient.mysql.events.transactions import GtidFlag, MariadbGtidEvent, Xid
from pumpclient.mysql.gtid import Flavor, MariadbGtid, MariadbGtidSet, MysqlGtidSet
from tests.kit.mysql.encoding import encode

SERVER_ID = 1
_MASK = 0xFFFF_FFFF


class BinlogScript:
    """Keeps `data`, the file, and `stream`, what a replica gets that starts at 4."""

    def __init__(
        self,
        name: str = "mysql-bin.000001",
        *,
        checksum: Checksum = Checksum.CRC32,
        flavor: Flavor = Flavor.MARIADB,
        created_s: int = 1000,
        gtids: str = "",
    ) -> None:
        self.name = name
        self.checksum = checksum
        self.flavor = flavor
        self.data = FILE_MAGIC
        self.stream = [self.fake_rotate()]
        version = "10.11.9-MariaDB" if flavor is Flavor.MARIADB else "8.4.2"
        self.describe = encode(FormatDescription(version, created_s, bytes(40), checksum))
        self.add(EventType.FORMAT_DESCRIPTION, self.describe)
        if flavor is Flavor.MARIADB:
            self.add(EventType.GTID_LIST, encode(GtidList(MariadbGtidSet.parse(gtids))))
        else:
            known = encode(PreviousGtids(MysqlGtidSet.parse(gtids)))
            self.add(EventType.PREVIOUS_GTIDS, known)

    def event(
        self, type_: int, body: bytes, end: int, *, at_s: int = 1000, flags: int = 0
    ) -> bytes:
        # A FORMAT_DESCRIPTION always ends in four bytes for its checksum.
        checksum = Checksum.CRC32 if type_ == EventType.FORMAT_DESCRIPTION else self.checksum
        return make_event(
            type_,
            body,
            header=Header(1000, 0, SERVER_ID, 0, end & _MASK, flags),
            checksum=checksum,
        )

    def add(self, type_: int, body: bytes, *, sent: bool = True) -> bytes:
        """Append an event to the file, and to the stream unless the server leaves it out."""
        size = len(self.event(type_, body, 0))
        event = self.event(type_, body, len(self.data) + size)
        self.data += event
        if sent:
            self.stream.append(event)
        return event

    def fake_rotate(self, position: int = 4) -> bytes:
        body = encode(Rotate(position, self.name))
        flags = int(EventFlag.ARTIFICIAL)
        return make_event(
            EventType.ROTATE,
            body,
            header=Header(0, 0, SERVER_ID, 0, 0, flags),
            checksum=self.checksum,
        )

    def resumed(self, position: int) -> list[bytes]:
        """What a replica gets first that starts within the file."""
        description = self.event(EventType.FORMAT_DESCRIPTION, self.describe, 0)
        return [self.fake_rotate(position), description]

    def query(self, statement: str, *, sent: bool = True) -> bytes:
        return self.add(EventType.QUERY, Query(b"shop", statement.encode()).encode(), sent=sent)

    def begin(self, sequence: int, flags: GtidFlag = GtidFlag.TRANSACTIONAL) -> bytes:
        gtid = MariadbGtid(0, SERVER_ID, sequence)
        body = encode(MariadbGtidEvent(gtid.sequence, gtid.domain, flags, rest=bytes(6)))
        return self.add(EventType.MARIADB_GTID, body)

    def transaction(self, sequence: int, inside: Callable[[], object] = lambda: None) -> None:
        self.begin(sequence)
        self.add(EventType.TABLE_MAP, b"map" * 5)
        inside()
        self.add(EventType.WRITE_ROWS_V1, b"rows" * 9)
        self.add(EventType.XID, encode(Xid(sequence)))

    def rotate(self, name: str) -> bytes:
        return self.add(EventType.ROTATE, encode(Rotate(4, name)))
