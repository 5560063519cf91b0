"""Pre-checks: whether a server can be replicated from; each with what was found and what to do."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from dataclasses import dataclass

from penstock.errors import NeedsOperator
from pumpclient.mysql.gtid import Flavor
from pumpclient.mysql.protocol.address import Connection, ServerAddress, rows
from pumpclient.mysql.protocol.server import ServerIdentity, identify

log = logging.getLogger(__name__)

KEEP_S_MIN = 3600
_DAY_S = 86400


@dataclass(frozen=True, slots=True)
class Check:
    """One answer. A check that failed but is not `required` is a warning."""

    name: str
    passed: bool
    found: str
    hint: str = ""
    required: bool = True


Variables = dict[str, str]


def check_server(connection: Connection, *, with_gtids: bool = False) -> list[Check]:
    """Return all answers, failed or not, in a fixed order."""
    identity = identify(connection)
    variables = {
        str(row["variable_name"]).lower(): str(row["value"])
        for row in rows(connection, "SHOW GLOBAL VARIABLES")
    }
    grants = [str(next(iter(row.values()))) for row in rows(connection, "SHOW GRANTS")]
    return judge(identity, variables, grants, with_gtids=with_gtids)


def judge(
    identity: ServerIdentity, variables: Variables, grants: list[str], *, with_gtids: bool
) -> list[Check]:
    """Return the answers for what a server said; pure."""
    wanted: list[tuple[str, str, Callable[[str], bool], str]] = [
        ("log_bin", "OFF", lambda v: v in ("ON", "1"), "start the server with log_bin"),
        ("binlog_format", "STATEMENT", lambda v: v == "ROW",
         "SET GLOBAL binlog_format = 'ROW', and let sessions that are open reconnect"),
        ("binlog_row_image", "FULL", lambda v: v == "FULL",
         "SET GLOBAL binlog_row_image = 'FULL': rows with columns left out cannot be applied"),
        ("server_id", "0", lambda v: v != "0", "give the server a server_id that is not 0"),
        ("binlog_checksum", "NONE", lambda v: v in ("CRC32", "NONE"),
         "SET GLOBAL binlog_checksum = 'CRC32'"),
    ]  # fmt: skip
    checks = []
    for name, absent, holds, hint in wanted:
        found = variables.get(name, absent)
        checks.append(
            Check(name, holds(found.upper()), found, "" if holds(found.upper()) else hint)
        )
    if with_gtids:
        checks.append(_gtids(identity, variables))
    checks += [_privileges(grants), _kept(variables)]
    return checks


def _gtids(identity: ServerIdentity, variables: Variables) -> Check:
    if identity.flavor is Flavor.MARIADB:
        return Check("gtid", True, "always on")
    found = variables.get("gtid_mode", "OFF")
    passed = found.upper() == "ON"
    return Check("gtid", passed, found, "" if passed else "set gtid_mode=ON on the server")


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
        # Tables may be granted one by one; which are needed, the filters know.
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


def _kept(variables: Variables) -> Check:
    seconds = float(variables.get("binlog_expire_logs_seconds", "0") or 0)
    seconds = seconds or float(variables.get("expire_logs_days", "0") or 0) * _DAY_S
    passed = seconds == 0 or seconds >= KEEP_S_MIN
    hint = (
        ""
        if passed
        else (
            f"keep binlogs for at least {KEEP_S_MIN} s, or a pause loses changes"
            " (binlog_expire_logs_seconds)"
        )
    )
    return Check(
        "binlog kept", passed, "for ever" if seconds == 0 else f"{seconds:g} s", hint, False
    )


def checked_flavor(address: ServerAddress) -> Flavor:
    """Return the server's flavor; raise `NeedsOperator` for what keeps us from replicating."""
    with address.session() as connection:
        for check in check_server(connection):
            if check.passed:
                continue
            finding = f"{check.name} is {check.found}"
            if check.required:
                raise NeedsOperator(f"{address}: {finding}", hint=check.hint)
            log.warning("%s: %s: %s", address, finding, check.hint)
        return identify(connection).flavor
