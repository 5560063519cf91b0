"""A MariaDB that writes a binlog, and what tests compare a relay log of it with."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from deploy.local.mariadb import binlog_options
from deploy.local.programs import program
from pumpclient.mysql.events.types import EventFlag
from pumpclient.mysql.protocol.address import ServerAddress
from tests.kit.fix_mariadb import MariadbServer
from tests.kit.wait import eventually

FLAGS_AT = 4 + 17
PURGE_S_MAX = 90


class BinlogServer(MariadbServer):
    """Writes row events with checksums, unless told otherwise; its uuid is `0-<server_id>`."""

    def __init__(self, home: Path, server_id: int = 1, *more: str) -> None:
        options = (
            *binlog_options(server_id),
            "--max-allowed-packet=1G",
            "--innodb-flush-log-at-trx-commit=0",
            *more,
        )
        super().__init__(home, buffer_pool_mib=32, options=options)

    @property
    def address(self) -> ServerAddress:
        """Where it is, for a replica."""
        return ServerAddress(self.host, self.port, self.user, self.password)

    @property
    def logs(self) -> list[str]:
        """The names of its files."""
        return [str(row[0]) for row in self.query("SHOW BINARY LOGS")]

    def file(self, name: str) -> Path:
        """Where a file is."""
        return self.home / "data" / name

    def insert(self, count: int, first: int = 0, table: str = "shop.t") -> None:
        """Commit `count` transactions of one row."""
        rows = (f"INSERT INTO {table} VALUES ({first + i}, 'row {i}')" for i in range(count))
        self.run(*rows)

    def dump_threads(self) -> list[int]:
        """The numbers of the sessions that send binlog."""
        found = self.query(
            "SELECT id FROM information_schema.processlist WHERE command LIKE 'Binlog Dump%'"
        )
        return [int(row[0]) for row in found]

    def purge(self) -> None:
        """Purge all files but the newest, and return once they are gone.

        A server keeps, without an error, what a session still sends, be its replica dead, and what
        InnoDB may still ask for.
        """
        newest = self.logs[-1]

        def is_purged() -> bool:
            self.run(f"PURGE BINARY LOGS TO '{newest}'")
            return self.logs == [newest]

        eventually(is_purged, PURGE_S_MAX)

    def raw(self, into: Path, first: str) -> None:
        """Let mariadb-binlog fetch all files from `first` on into a folder."""
        command = [program("mariadb-binlog", "mysqlbinlog"), "--no-defaults", "--raw"]
        command += ["--read-from-remote-server", f"--host={self.host}", f"--port={self.port}"]
        command += [f"--user={self.user}", f"--password={self.password}", "--to-last-log"]
        command += [f"--result-file={into}/", first]
        subprocess.run(command, check=True, capture_output=True, timeout=120)


@contextmanager
def binlog_server(home: Path, server_id: int = 1, *more: str) -> Iterator[BinlogServer]:
    """Install and start one, with a table `shop.t (id, v)`."""
    server = BinlogServer(home, server_id, *more)
    server.install()
    server.start()
    try:
        make_table(server)
        yield server
    finally:
        server.stop()


def make_table(server: BinlogServer) -> None:
    """Create `shop.t`."""
    server.run("CREATE DATABASE shop", "CREATE TABLE shop.t (id INT PRIMARY KEY, v LONGTEXT)")


def as_sent(data: bytes) -> bytes:
    """Return a server's file as it sends it: the mark that it is being written is not sent."""
    flags = data[FLAGS_AT] & ~EventFlag.BINLOG_IN_USE
    return data[:FLAGS_AT] + bytes([flags]) + data[FLAGS_AT + 1 :]
