"""Server state: what a server says of itself; identity, end of its binlog, GTID sets and files."""

from __future__ import annotations

from dataclasses import dataclass

import pymysql

from penstock.errors import NeedsOperator
from pumpclient.mysql.gtid import Flavor, GtidSet, parse_gtid_set
from pumpclient.mysql.protocol.address import Connection, rows

_SYNTAX_ERROR = 1064
_HINT = "start the server with log_bin, and grant the user REPLICATION CLIENT"


@dataclass(frozen=True, slots=True)
class ServerIdentity:
    """Which server this is. MariaDB has no uuid: its domain and server id stand for it."""

    uuid: str
    server_id: int
    flavor: Flavor
    version: str


@dataclass(frozen=True, slots=True)
class BinlogFile:
    """One file of a server and its size."""

    name: str
    size_bytes: int


@dataclass(frozen=True, slots=True)
class MasterStatus:
    """Where a server's binlog ends right now, and every GTID in it."""

    file: str
    position: int
    gtids: GtidSet


def identify(connection: Connection) -> ServerIdentity:
    """Return which server the connection leads to."""
    (row,) = rows(connection, "SELECT VERSION() AS version, @@global.server_id AS id")
    version, server_id = row["version"], int(row["id"])
    flavor = Flavor.of_version(version)
    if flavor is Flavor.MARIADB:
        (row,) = rows(connection, "SELECT @@global.gtid_domain_id AS domain")
        return ServerIdentity(f"{row['domain']}-{server_id}", server_id, flavor, version)
    (row,) = rows(connection, "SELECT @@global.server_uuid AS uuid")
    return ServerIdentity(row["uuid"], server_id, flavor, version)


def first_known(connection: Connection, *statements: str) -> list[dict[str, object]]:
    """Return the rows of the first statement that the server's grammar knows."""
    for statement in statements[:-1]:
        try:
            return rows(connection, statement)
        except pymysql.err.ProgrammingError as error:
            if error.args[0] != _SYNTAX_ERROR:
                raise
    return rows(connection, statements[-1])


def master_status(connection: Connection, flavor: Flavor) -> MasterStatus:
    """Return the end of the binlog; raise `NeedsOperator` when the server writes none."""
    found = first_known(connection, "SHOW MASTER STATUS", "SHOW BINARY LOG STATUS")
    if not found:
        raise NeedsOperator("the server writes no binlog", hint=_HINT)
    row = found[0]
    if flavor is Flavor.MARIADB:
        gtids = binlog_gtids(connection, flavor)
    else:
        gtids = parse_gtid_set(str(row["executed_gtid_set"]), flavor)
    return MasterStatus(str(row["file"]), int(str(row["position"])), gtids)


def binlog_gtids(connection: Connection, flavor: Flavor) -> GtidSet:
    """Return every GTID that the server's binlog has or had."""
    name = "gtid_binlog_state" if flavor is Flavor.MARIADB else "gtid_executed"
    (row,) = rows(connection, f"SELECT @@global.{name} AS gtids")
    return parse_gtid_set(row["gtids"], flavor)


def purged_gtids(connection: Connection, flavor: Flavor) -> GtidSet | None:
    """Return what is no longer in the server's files; None from a MariaDB, which does not know."""
    if flavor is Flavor.MARIADB:
        return None
    (row,) = rows(connection, "SELECT @@global.gtid_purged AS gtids")
    return parse_gtid_set(row["gtids"], flavor)


def binlog_files(connection: Connection) -> list[BinlogFile]:
    """Return the server's files, oldest first."""
    found = rows(connection, "SHOW BINARY LOGS")
    return [BinlogFile(row["log_name"], int(row["file_size"])) for row in found]


def logs_cascades(connection: Connection) -> bool:
    """Tell whether the binlog has the rows that foreign keys change.

    From 9.6 on MySQL does CASCADE and SET NULL above its storage engine unless it was started with
    `innodb_native_foreign_keys`, which older servers and MariaDB do not know.
    """
    found = rows(connection, "SHOW GLOBAL VARIABLES LIKE 'innodb\\_native\\_foreign\\_keys'")
    return [str(row["value"]).upper() for row in found] == ["OFF"]


def replica_ids(connection: Connection) -> set[int]:
    """Return the numbers that are taken: the server's own and those of its replicas."""
    found = first_known(connection, "SHOW SLAVE HOSTS", "SHOW REPLICAS")
    taken = {int(str(row["server_id"])) for row in found}
    (row,) = rows(connection, "SELECT @@global.server_id AS id")
    return taken | {int(row["id"])}
