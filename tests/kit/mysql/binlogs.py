"""Binlog files: read event by event, from a server or in memory, and made event by event.

Positions are counted here and have 64 bits: an event's own `end_position` is modulo 2^32, and 0 in
events that MariaDB 11.4 and later wrote through its cache.
"""

from collections.abc import Callable, Collection, Iterator
from io import BytesIO
from typing import BinaryIO

from penstock.codes import Code
from penstock.errors import Malformed
from pumpclient.mysql.events.frame import (
    FILE_MAGIC,
    HEADER,
    HEADER_SIZE,
    ROWS_TYPES,
    Checksum,
    EventFlag,
    EventType,
    FormatDescription,
    Header,
    body_of,
    checksum_holds,
    make_event,
)
from pumpclient.mysql.events.transactions import GtidFlag, Query
from pumpclient.mysql.gtid import Flavor, MariadbGtid, MariadbGtidSet, MysqlGtidSet, encode_sids
from pumpclient.mysql.rows.rows_decoder import Decoder, RowChanges
from pumpclient.mysql.rows.table_map import TableMap
from tests.kit.mysql.encoding import format_description, gtid_list, mariadb_gtid, rotate, xid
from tests.kit.mysql.table_maps import TableMaps
from tests.kit.servers.fix_mariadb import MariadbServer


def current_file(server: MariadbServer) -> str:
    return str(server.query("SHOW MASTER STATUS")[0][0])


def read_file(server: MariadbServer, name: str) -> bytes:
    """Return a file's bytes."""
    return (server.home / "data" / name).read_bytes()


def rows_of(
    data: bytes, choose: Callable[[TableMap], Decoder | None] = Decoder
) -> Iterator[tuple[str, bool, RowChanges]]:
    """Yield table, whether the statement ends, and changes of each rows event; checksums hold."""
    file = BinlogFile(BytesIO(data), verifies=True)
    maps = TableMaps(Flavor.MARIADB, choose)
    for _, header, event in file:
        checksum = file.description.checksum if file.description else Checksum.NONE
        if header.type == EventType.TABLE_MAP:
            maps.add(body_of(event, checksum))
        elif header.type in ROWS_TYPES:
            body = body_of(event, checksum)
            decoder = maps.decoder_of(body)
            if decoder is not None:
                name = decoder.table_map.name
                yield name, bool(body[6] & 1), decoder.changes(header.type, body)
            maps.forget_if_ended(body)
    assert file.torn_bytes == 0


FIRST_POSITION = len(FILE_MAGIC)
BLOCK_BYTES = 1 << 17  # Larger ones leave the processor's cache: an event takes a tenth more.
_POSITION_BITS = 0xFFFFFFFF
_FORMAT_DESCRIPTION = int(EventType.FORMAT_DESCRIPTION)  # Plain numbers compare fastest.
_HINT = "the file is damaged, or the position is not the beginning of an event"


class BinlogFile:
    """A pass over a file's events from `position` on; `position` moves past each one.

    With `verifies` every checksum that the file's FORMAT_DESCRIPTION promises is checked. A file
    that ends within an event ends the pass: `torn_bytes` says how much of the event is there.
    With `types` only events of these are yielded; the others are checked like them, and passed over
    without being made.
    """

    def __init__(
        self,
        file: BinaryIO,
        position: int = FIRST_POSITION,
        *,
        verifies: bool = False,
        types: Collection[int] | None = None,
        block_bytes: int = BLOCK_BYTES,
    ) -> None:
        self._file = file
        self._block_bytes = block_bytes
        self._types = None if types is None else frozenset(map(int, types))
        self.position = position
        self.torn_bytes = 0
        self.verifies = verifies
        self.description: FormatDescription | None = None

    def __iter__(self) -> Iterator[tuple[int, Header, bytes]]:
        """Return an iterator over position, header and all bytes of each event.

        Raises `Malformed` for a file that is no binlog, a header that cannot be, and, when
        verifying, a checksum that does not hold.
        """
        self._file.seek(0)
        if (magic := self._file.read(FIRST_POSITION)) != FILE_MAGIC:
            raise Malformed(
                f"a file that begins with {magic!r} is no binlog",
                hint=_HINT,
                code=Code.BINLOG_UNDECODABLE,
            )
        if self.position > FIRST_POSITION and self.verifies:
            self.description = self._first_description()
        self._file.seek(self.position)
        return self._events()

    def _events(self) -> Iterator[tuple[int, Header, bytes]]:
        waiting, wanted = b"", HEADER_SIZE
        begin = self.position
        unpack, new, types, verifies = HEADER.unpack_from, tuple.__new__, self._types, self.verifies
        while block := self._file.read(max(self._block_bytes, wanted - len(waiting))):
            waiting += block
            at, end = 0, len(waiting)
            wanted = HEADER_SIZE
            last = end - HEADER_SIZE
            while at <= last:
                fields = unpack(waiting, at)
                type_, size = fields[1], fields[3]  # As `Header` has them.
                if size < HEADER_SIZE:
                    raise Malformed(
                        f"an event of {size} bytes at {begin + at}",
                        hint=_HINT,
                        code=Code.BINLOG_UNDECODABLE,
                    )
                behind = at + size
                if behind > end:
                    wanted = size
                    break
                if verifies or type_ == _FORMAT_DESCRIPTION:
                    self.position = begin + at
                    self._check(Header._make(fields), waiting[at:behind])
                if types is None or type_ in types:
                    self.position = begin + behind
                    # What `Header._make` does, without its call in between.
                    yield begin + at, new(Header, fields), waiting[at:behind]
                at = behind
            waiting = waiting[at:]
            begin += at
            self.position = begin
        self.torn_bytes = len(waiting)

    def _first_description(self) -> FormatDescription | None:
        """Read what the file's first event says of checksums."""
        for _, header, event in BinlogFile(self._file):
            if header.type == EventType.FORMAT_DESCRIPTION:
                return FormatDescription.decode(event[HEADER_SIZE:])
            break
        return None

    def _check(self, header: Header, event: bytes) -> None:
        if header.type == EventType.FORMAT_DESCRIPTION:
            self.description = FormatDescription.decode(event[HEADER_SIZE:])
        if not self.verifies:
            return
        promised = self.description is not None and self.description.checksum is Checksum.CRC32
        if promised and not checksum_holds(event):
            raise Malformed(
                f"the checksum of the {header} at {self.position}",
                hint=_HINT,
                code=Code.BINLOG_UNDECODABLE,
            )


def ends_as_stated(header: Header, end: int) -> bool:
    """Return whether an event that ends at `end` says so, as far as its 32 bits can."""
    return header.end_position in (0, end & _POSITION_BITS)


def first_timestamp(file: BinaryIO) -> int | None:
    """Return the seconds since 1970 of a file's first event that has a time, None when none has."""
    return next(
        (header.timestamp_s for _, header, _ in BinlogFile(file) if header.timestamp_s), None
    )


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
