"""Servers that write a binlog, of every flavour, and what a relay log of them is compared with."""

import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pymysql
import pytest

from penstock.local.process import Unpacked, program
from penstock.local.sql_server import SqlServer, mariadb_binlog_options, unpacked_program
from pumpclient.mysql.events.frame import EventFlag
from pumpclient.mysql.protocol.server import ServerAddress
from tests.kit.servers.fix_mariadb import MariadbServer, drop_user_databases
from tests.kit.wait import eventually

FLAGS_AT = 4 + 17
PURGE_S_MAX = 90
MARIADB, MYSQL, MARIADB_NEW = "mariadb-10.11", "mysql-9", "mariadb-11.8"
TIDB = "tidb"
"""A server to write into; it writes no binlog that a source reads."""
KINDS = MARIADB, MYSQL, MARIADB_NEW
OF_EACH_FLAVOR = MARIADB, MYSQL
LOST_LOCKS = (1205, 1213)
"""A lock waited for too long, and a deadlock: what a writer on a busy server tries again."""


class MysqlServer(SqlServer):
    """One MySQL with the defaults of its release, charset and collation included."""

    def __init__(
        self, home: Path, *, buffer_pool_mib: int = 128, options: tuple[str, ...] = ()
    ) -> None:
        """`options` come last on the command line and override."""
        command = unpacked_program(Unpacked("mysql"), "sbin/mysqld", "mysql")
        command += ["--mysqlx=OFF", "--secure-file-priv=NULL"]
        super().__init__(home, command, [f"--innodb-buffer-pool-size={buffer_pool_mib}M", *options])

    def install(self) -> None:
        self._write_users()
        self._run_setup("--initialize-insecure")


def mysql_binlog_options(server_id: int = 1) -> tuple[str, ...]:
    return (
        "--log-bin=mysql-bin",
        f"--server-id={server_id}",
        "--gtid-mode=ON",
        "--enforce-gtid-consistency=ON",
    )


def on_servers(*fast: str, kinds: Sequence[str] = KINDS) -> list[Any]:
    """Return the parameters of a test for servers; on those not named it is slow."""
    return [
        pytest.param(
            kind,
            marks=[
                pytest.mark.mysql if kind == MYSQL else pytest.mark.mariadb,
                *[pytest.mark.slow] * (kind not in fast),
            ],
        )
        for kind in kinds
    ]


def on_downstreams(*fast: str, kinds: Sequence[str] = KINDS) -> list[Any]:
    """Return the same for servers to write into, of which a TiDB is one."""
    return [*on_servers(*fast, kinds=kinds), pytest.param(TIDB, marks=pytest.mark.tidb)]


def numbers(count: int) -> str:
    """Return a table expression with the numbers from 1 on in its column `seq`, for any server."""
    places = range(len(str(count)))
    terms = " + ".join(f"{10**place} * d{place}.n" for place in places)
    tables = ", ".join(f"digits AS d{place}" for place in places)
    digits = " UNION ALL ".join(f"SELECT {digit}" for digit in range(10))
    return (
        f"(WITH digits (n) AS ({digits}), counted (seq) AS (SELECT {terms} FROM {tables})"
        f" SELECT seq FROM counted WHERE seq BETWEEN 1 AND {count}) AS numbers"
    )


def run_until_done(server: SqlServer, *statements: str) -> None:
    """Run one transaction on a busy server: all of it again when a deadlock took its locks away."""
    while True:
        try:
            return server.run(*statements)
        except pymysql.err.OperationalError as error:
            if error.args[0] not in LOST_LOCKS:
                raise


class _Binlogs(SqlServer):
    """What tests ask of a server that writes a binlog."""

    is_mysql = False

    @property
    def address(self) -> ServerAddress:
        return ServerAddress(self.host, self.port, self.user, self.password)

    @property
    def logs(self) -> list[str]:
        return [str(row[0]) for row in self.query("SHOW BINARY LOGS")]

    @property
    def gtids(self) -> str:
        name = "gtid_executed" if self.is_mysql else "gtid_binlog_pos"
        return str(self.query(f"SELECT @@global.{name}")[0][0]).replace("\n", "")

    def file(self, name: str) -> Path:
        return self.home / "data" / name

    def reset_binlog(self) -> None:
        """Begin the binlog again, with file number 1 and no GTIDs."""
        self.run("RESET BINARY LOGS AND GTIDS" if self.is_mysql else "RESET MASTER")

    def end_prepared(self) -> None:
        if self.is_mysql:
            for format_, global_size, _, name in self.query("XA RECOVER CONVERT XID"):
                digits = str(name).removeprefix("0x")
                parts = digits[: 2 * global_size], digits[2 * global_size :]
                self.run(f"XA ROLLBACK X'{parts[0]}', X'{parts[1]}', {format_}")
        else:
            for *_, name in self.query("XA RECOVER FORMAT='SQL'"):
                self.run(f"XA ROLLBACK {name}")

    def insert(self, count: int, first: int = 0, table: str = "shop.t") -> None:
        """Commit `count` transactions of one row."""
        rows = (f"INSERT INTO {table} VALUES ({first + i}, 'row {i}')" for i in range(count))
        self.run(*rows)

    def dump_threads(self) -> list[int]:
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

    def drop_user_databases(self) -> None:
        drop_user_databases(self)

    def raw(self, into: Path, first: str) -> None:
        """Let mariadb-binlog fetch all files from `first` on into a folder."""
        command = [program("mariadb-binlog", "mysqlbinlog"), "--no-defaults", "--raw"]
        command += ["--read-from-remote-server", f"--host={self.host}", f"--port={self.port}"]
        command += [f"--user={self.user}", f"--password={self.password}", "--to-last-log"]
        command += [f"--result-file={into}/", first]
        subprocess.run(command, check=True, capture_output=True, timeout=120)


_OPTIONS = ("--max-allowed-packet=1G", "--innodb-flush-log-at-trx-commit=0")


class BinlogServer(_Binlogs, MariadbServer):
    """A MariaDB; writes row events with checksums, unless its options say otherwise.

    Its uuid is `0-<server_id>`.
    """

    def __init__(
        self, home: Path, server_id: int = 1, *more: str, unpacked: Unpacked | None = None
    ) -> None:
        """`unpacked` is not the machine's own."""
        options = (*mariadb_binlog_options(server_id), *_OPTIONS, *more)
        super().__init__(home, buffer_pool_mib=32, options=options, unpacked=unpacked)


class MysqlBinlogServer(_Binlogs, MysqlServer):
    """A MySQL 9, with GTIDs."""

    is_mysql = True

    def __init__(self, home: Path, server_id: int = 1, *more: str) -> None:
        options = (*mysql_binlog_options(server_id), *_OPTIONS, *more)
        super().__init__(home, buffer_pool_mib=32, options=options)


AnyBinlogServer = BinlogServer | MysqlBinlogServer


def make_server(home: Path, server_id: int = 1, *more: str, kind: str = MARIADB) -> AnyBinlogServer:
    """Return a server of a kind, not yet installed."""
    if kind == MYSQL:
        return MysqlBinlogServer(home, server_id, *more)
    unpacked = Unpacked("mariadb") if kind == MARIADB_NEW else None
    return BinlogServer(home, server_id, *more, unpacked=unpacked)


@contextmanager
def binlog_server(home: Path, server_id: int = 1, *more: str) -> Iterator[BinlogServer]:
    """Install and start a MariaDB, with a table `shop.t (id, v)`."""
    with running(BinlogServer(home, server_id, *more)) as server:
        assert isinstance(server, BinlogServer)
        yield server


@contextmanager
def running(server: AnyBinlogServer) -> Iterator[AnyBinlogServer]:
    """Install and start a server, with a table `shop.t (id, v)`."""
    server.install()
    server.start()
    try:
        make_table(server)
        yield server
    finally:
        server.stop()


def module_server(
    kinds: Sequence[Any], options: Sequence[str] = ("--binlog-row-metadata=FULL",)
) -> Any:
    """Return a fixture for a module: a server of each of these kinds, with `shop.t (id, v)`."""

    @pytest.fixture(scope="module", params=kinds)
    def server(
        request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
    ) -> Iterator[AnyBinlogServer]:
        home = tmp_path_factory.mktemp("server")
        with running(make_server(home, 1, *options, kind=request.param)) as running_server:
            yield running_server

    return server


def make_table(server: SqlServer) -> None:
    """Create `shop.t`."""
    server.run("CREATE DATABASE shop", "CREATE TABLE shop.t (id INT PRIMARY KEY, v LONGTEXT)")


def as_sent(data: bytes) -> bytes:
    """Return a server's file as it sends it: the mark that it is being written is not sent."""
    flags = data[FLAGS_AT] & ~EventFlag.BINLOG_IN_USE
    return data[:FLAGS_AT] + bytes([flags]) + data[FLAGS_AT + 1 :]
