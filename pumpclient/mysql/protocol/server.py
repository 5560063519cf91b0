"""Queries a server's state, and checks whether it can be replicated from.

The state is its identity, the end of its binlog, GTID sets and files. Each answer of `check_server`
reports the finding and the remedy.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pymysql

from penstock.codes import Code
from penstock.errors import NeedsOperator
from pumpclient.mysql.gtid import Flavor, GtidSet, parse_gtid_set
from pumpclient.mysql.protocol.address import Connection, ServerAddress, rows

_SYNTAX_ERROR = 1064
_ACCESS_DENIED = 1227
_HINT = "start the server with log_bin, and grant the user REPLICATION CLIENT"


@dataclass(frozen=True, slots=True)
class ServerIdentity:
    """A server's identity. MariaDB has no uuid: its domain and server id stand for it."""

    uuid: str
    server_id: int
    flavor: Flavor
    version: str


@dataclass(frozen=True, slots=True)
class BinlogPlace:
    """A place in a server's binlog, and every GTID before it, as text."""

    file: str
    position: int
    gtids: str = ""

    @property
    def floor(self) -> tuple[int, int]:
        """Number in the file's name, and position."""
        return int(self.file.rpartition(".")[2]), self.position

    def __str__(self) -> str:
        return f"{self.file}:{self.position}"


def version_of(connection: Connection) -> str:
    greeted: Any = connection
    return str(greeted.server_version)


def is_tidb(connection: Connection) -> bool:
    return "tidb" in version_of(connection).lower()


def cluster_ts(connection: Connection) -> int:
    """Return a current TiDB timestamp; all earlier commits have lower timestamps."""
    with connection.cursor() as cursor:
        cursor.execute("BEGIN")
        cursor.execute("SELECT @@tidb_current_ts")
        (ts,) = cursor.fetchone() or (0,)
        cursor.execute("ROLLBACK")
    return int(ts)


def identify(connection: Connection) -> ServerIdentity:
    (row,) = rows(connection, "SELECT VERSION() AS version, @@global.server_id AS id")
    version, server_id = row["version"], int(row["id"])
    flavor = Flavor.of_version(version)
    if flavor is Flavor.MARIADB:
        (row,) = rows(connection, "SELECT @@global.gtid_domain_id AS domain")
        return ServerIdentity(f"{row['domain']}-{server_id}", server_id, flavor, version)
    (row,) = rows(connection, "SELECT @@global.server_uuid AS uuid")
    return ServerIdentity(row["uuid"], server_id, flavor, version)


def first_known(connection: Connection, *statements: str) -> list[dict[str, object]]:
    """Return the rows of the first statement that the server can parse."""
    for statement in statements[:-1]:
        try:
            return rows(connection, statement)
        except pymysql.err.ProgrammingError as error:
            if error.args[0] != _SYNTAX_ERROR:
                raise
    return rows(connection, statements[-1])


def master_status(connection: Connection, flavor: Flavor) -> BinlogPlace:
    """Return the end of the binlog; raise `NeedsOperator` if the server writes no binlog."""
    found = first_known(connection, "SHOW MASTER STATUS", "SHOW BINARY LOG STATUS")
    if not found:
        raise NeedsOperator("the server writes no binlog", _HINT, Code.SERVER_SETTING)
    row = found[0]
    if flavor is Flavor.MARIADB:
        gtids = binlog_gtids(connection, flavor)
    else:
        gtids = parse_gtid_set(str(row["executed_gtid_set"]), flavor)
    return BinlogPlace(str(row["file"]), int(str(row["position"])), str(gtids))


def binlog_gtids(connection: Connection, flavor: Flavor) -> GtidSet:
    """Return every GTID that the server's binlog contains or once contained."""
    name = "gtid_binlog_state" if flavor is Flavor.MARIADB else "gtid_executed"
    (row,) = rows(connection, f"SELECT @@global.{name} AS gtids")
    return parse_gtid_set(row["gtids"], flavor)


def binlog_files(connection: Connection) -> dict[str, int]:
    """Return the server's files with their sizes in bytes, oldest first."""
    found = rows(connection, "SHOW BINARY LOGS")
    return {str(row["log_name"]): int(row["file_size"]) for row in found}


def logs_cascades(connection: Connection) -> bool:
    """Return whether the binlog has the rows that foreign keys change.

    From 9.6 on MySQL does CASCADE and SET NULL above its storage engine unless it was started with
    `innodb_native_foreign_keys`, which older servers and MariaDB do not know.
    """
    found = rows(connection, "SHOW GLOBAL VARIABLES LIKE 'innodb\\_native\\_foreign\\_keys'")
    return [str(row["value"]).upper() for row in found] == ["OFF"]


def replica_ids(connection: Connection) -> set[int]:
    """Return the server ids in use: the server's own and those of its replicas.

    MariaDB shows its replicas only to an administrator, which a source need not be. In that case a
    drawn number collides with another source's with a chance of 1 in 100,000.
    """
    try:
        found = first_known(connection, "SHOW SLAVE HOSTS", "SHOW REPLICAS")
    except pymysql.err.OperationalError as error:
        if error.args[0] != _ACCESS_DENIED:
            raise
        found = []
    taken = {int(str(row["server_id"])) for row in found}
    (row,) = rows(connection, "SELECT @@global.server_id AS id")
    return taken | {int(row["id"])}


log = logging.getLogger(__name__)

KEEP_S_MIN = 3600
_DAY_S = 86400


@dataclass(frozen=True, slots=True)
class Check:
    """One answer. A failed check that is not `required` is a warning."""

    name: str
    passed: bool
    found: str
    hint: str = ""
    required: bool = True


def check_server(connection: Connection) -> list[Check]:
    """Return all check results, passed or failed, in a fixed order."""
    variables = {
        str(row["variable_name"]).lower(): str(row["value"])
        for row in rows(connection, "SHOW GLOBAL VARIABLES")
    }
    grants = [str(next(iter(row.values()))) for row in rows(connection, "SHOW GRANTS")]
    return judge(variables, grants)


def judge(variables: dict[str, str], grants: list[str]) -> list[Check]:
    wanted: list[tuple[str, str, Callable[[str], bool], str]] = [
        ("log_bin", "OFF", lambda v: v in ("ON", "1"), "start the server with log_bin"),
        ("binlog_format", "STATEMENT", lambda v: v == "ROW",
         "SET GLOBAL binlog_format = 'ROW', and let sessions that are open reconnect"),
        ("binlog_row_image", "FULL", lambda v: v == "FULL",
         "SET GLOBAL binlog_row_image = 'FULL': rows with columns missing cannot be applied"),
        ("server_id", "0", lambda v: v != "0", "give the server a server_id that is not 0"),
        ("binlog_checksum", "NONE", lambda v: v in ("CRC32", "NONE"),
         "SET GLOBAL binlog_checksum = 'CRC32'"),
    ]  # fmt: skip
    checks = []
    for name, absent, holds, hint in wanted:
        found = variables.get(name, absent)
        passed = holds(found.upper())
        checks.append(Check(name, passed, found, "" if passed else hint))
    seconds = float(variables.get("binlog_expire_logs_seconds", "0") or 0)
    seconds = seconds or float(variables.get("expire_logs_days", "0") or 0) * _DAY_S
    passed = seconds == 0 or seconds >= KEEP_S_MIN
    hint = (
        f"keep binlogs for at least {KEEP_S_MIN} s, or a pause loses changes"
        " (binlog_expire_logs_seconds)"
    )
    kept = "indefinitely" if seconds == 0 else f"{seconds:g} s"
    is_kept = Check("binlog kept", passed, kept, "" if passed else hint, required=False)
    return [*checks, _privileges(grants), is_kept]


_WANTED_GRANTS = {
    "REPLICATION SLAVE": ("REPLICATION SLAVE", "REPLICATION REPLICA"),
    "REPLICATION CLIENT": ("REPLICATION CLIENT", "BINLOG MONITOR", "SUPER"),
    "SELECT": ("SELECT",),
}
_GLOBAL = re.compile(r"GRANT (.*) ON \*\.\* TO ", re.IGNORECASE | re.DOTALL)
_ANY_SCOPE = re.compile(r"GRANT (.*) ON .* TO ", re.IGNORECASE | re.DOTALL)


def _privileges(grants: list[str]) -> Check:
    on_all = _names(_GLOBAL, grants)
    anywhere = _names(_ANY_SCOPE, grants)
    missing = [
        wanted
        for wanted, names in _WANTED_GRANTS.items()
        # Tables may be granted one by one; only the filters know which are needed.
        if not {"ALL PRIVILEGES", "ALL", *names} & (anywhere if wanted == "SELECT" else on_all)
    ]
    if not missing:
        return Check("privileges", True, "enough")
    hint = f"GRANT {', '.join(missing)} ON *.* TO the user"
    return Check("privileges", False, f"without {', '.join(missing)}", hint)


def _names(scope: re.Pattern[str], grants: list[str]) -> set[str]:
    found = (scope.match(grant) for grant in grants)
    return {
        name.strip().upper()
        for match in found
        if match
        for name in re.sub(r"\([^)]*\)", "", match[1]).split(",")
    }


def checked_flavor(address: ServerAddress) -> Flavor:
    """Return the server's flavor; raise `NeedsOperator` if it cannot be replicated."""
    with address.session() as connection:
        for check in check_server(connection):
            if check.passed:
                continue
            finding = f"{check.name} is {check.found}"
            if check.required:
                raise NeedsOperator(f"{address}: {finding}", check.hint, Code.SERVER_SETTING)
            log.warning("%s: %s: %s", address, finding, check.hint)
        return identify(connection).flavor
