"""What is in a MariaDB's binlog files, read by Penstock."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from io import BytesIO

from pumpclient.mysql.events import body_of
from pumpclient.mysql.events.frame import ROWS_TYPES, Checksum, EventType
from pumpclient.mysql.gtid import Flavor
from pumpclient.mysql.rows import Changes, Decoder, TableMap, decoder_for
from tests.kit.mysql.binlog_file import BinlogFile
from tests.kit.mysql.table_maps import TableMaps
from tests.kit.servers.fix_mariadb import MariadbServer


def current_file(server: MariadbServer) -> str:
    """Return the name of the file that the server writes to."""
    return str(server.query("SHOW MASTER STATUS")[0][0])


def read_file(server: MariadbServer, name: str) -> bytes:
    """Return a file's bytes."""
    return (server.home / "data" / name).read_bytes()


def rows_of(
    data: bytes, choose: Callable[[TableMap], Decoder | None] = decoder_for
) -> Iterator[tuple[str, bool, Changes]]:
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
