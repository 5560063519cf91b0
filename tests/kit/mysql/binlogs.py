"""Binlog files: read event by event, from a server or in memory, and made event by event."""

from collections.abc import Callable, Iterable, Iterator

from pumpclient.mysql.events.frame import (
    FILE_MAGIC,
    HEADER_SIZE,
    ROWS_TYPES,
    Checksum,
    EventFlag,
    EventType,
    FormatDescription,
    Header,
    checksum_holds,
    make_event,
    read_header,
)
from pumpclient.mysql.events.transactions import GtidFlag, Query
from pumpclient.mysql.gtid import Flavor, MariadbGtid, MariadbGtidSet, MysqlGtidSet, encode_sids
from pumpclient.mysql.rows.rows_decoder import Decoder, RowChanges
from pumpclient.mysql.rows.rows_event import STMT_END
from pumpclient.mysql.rows.table_map import NO_TABLE, TABLE_ID_SIZE, TableMap
from tests.kit.mysql.encoding import format_description, gtid_list, mariadb_gtid, rotate, xid
from tests.kit.servers.fix_mariadb import MariadbServer


def current_file(server: MariadbServer) -> str:
    return str(server.query("SHOW MASTER STATUS")[0][0])


def read_file(server: MariadbServer, name: str) -> bytes:
    """Return a file's bytes."""
    return (server.home / "data" / name).read_bytes()


def events_of(data: bytes) -> Iterator[tuple[Header, bytes]]:
    """Yield header and bytes of each event of a whole file; all checksums hold."""
    assert data.startswith(FILE_MAGIC)
    at, checksum = len(FILE_MAGIC), Checksum.NONE
    while at < len(data):
        header = read_header(data, at)
        event = data[at : at + header.size]
        if header.type == EventType.FORMAT_DESCRIPTION:
            checksum = FormatDescription.decode(event[HEADER_SIZE:]).checksum
        assert not checksum or checksum_holds(event), f"{header} at {at}"
        yield header, event[:-4] if checksum else event
        at += header.size
    assert at == len(data), f"the file ends within the event at {at - header.size}"


def rows_of(
    events: Iterable[tuple[Header, bytes]], choose: Callable[[TableMap], Decoder | None] = Decoder
) -> Iterator[tuple[bool, RowChanges]]:
    kept: dict[bytes, Decoder | None] = {}
    of_id: dict[bytes, Decoder | None] = {NO_TABLE.to_bytes(TABLE_ID_SIZE, "little"): None}
    for header, event in events:
        body = event[HEADER_SIZE:]
        number, rest = body[:TABLE_ID_SIZE], body[TABLE_ID_SIZE:]
        if header.type == EventType.TABLE_MAP:
            if rest not in kept:
                kept[rest] = choose(TableMap.decode(body, Flavor.MARIADB))
            of_id[number] = kept[rest]
        elif header.type in ROWS_TYPES:
            decoder = of_id[number]  # Each has a TABLE_MAP before it.
            if decoder is not None:
                yield bool(rest[0] & STMT_END), decoder.changes(header.type, body)


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
        self.describe = format_description(version, checksum, created_s)
        self.add(EventType.FORMAT_DESCRIPTION, self.describe)
        if flavor is Flavor.MARIADB:
            self.add(EventType.GTID_LIST, gtid_list(MariadbGtidSet.parse(gtids)))
        else:
            known = encode_sids(MysqlGtidSet.parse(gtids))
            self.add(EventType.PREVIOUS_GTIDS, known)

    def event(
        self, type_: int, body: bytes, end: int, *, at_s: int = 1000, flags: int = 0
    ) -> bytes:
        # A FORMAT_DESCRIPTION always ends in four bytes for its checksum.
        checksum = Checksum.CRC32 if type_ == EventType.FORMAT_DESCRIPTION else self.checksum
        return make_event(
            type_, body, header=Header(1000, 0, SERVER_ID, 0, end & _MASK, flags), checksum=checksum
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
        body = rotate(position, self.name)
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
        body = mariadb_gtid(MariadbGtid(0, SERVER_ID, sequence), flags)
        return self.add(EventType.MARIADB_GTID, body)

    def transaction(self, sequence: int, inside: Callable[[], object] = lambda: None) -> None:
        self.begin(sequence)
        self.add(EventType.TABLE_MAP, b"map" * 5)
        inside()
        self.add(EventType.WRITE_ROWS_V1, b"rows" * 9)
        self.add(EventType.XID, xid(sequence))

    def rotate(self, name: str) -> bytes:
        return self.add(EventType.ROTATE, rotate(4, name))
