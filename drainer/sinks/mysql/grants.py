"""Grants: finds an account's missing privileges downstream, before anything is written.

A Drainer that fails at its first row, or at a DDL at night, should have reported the missing
privilege at its start. SHOW GRANTS lists the privileges of an account on every server, including
those that MariaDB grants to PUBLIC. Privileges of a role are not listed everywhere, so an account
with a role is assumed to have every privilege that it needs.
"""

from __future__ import annotations

import logging
import re

import pymysql

from drainer.sinks.mysql.session import Connection, many, one, passes
from penstock.codes import Code
from penstock.errors import NeedsOperator

log = logging.getLogger(__name__)

_ROWS = ("SELECT", "INSERT", "UPDATE", "DELETE")
_DDL = ("CREATE", "ALTER", "DROP", "INDEX")


def check_grants(connection: Connection, schema: str, checkpoint_table: str) -> None:
    """Raise `NeedsOperator` if rows or the checkpoint cannot be written; warn of DDL.

    `schema` is the checkpoint's. Both statements touch no row; without a privilege they fail like
    the statements of a batch.
    """
    connection.query(f"UPDATE {checkpoint_table} SET checkPoint = checkPoint WHERE 1 = 0")  # noqa: S608
    connection.query(
        f"INSERT INTO {checkpoint_table} SELECT clusterID, checkPoint"  # noqa: S608
        f" FROM {checkpoint_table} WHERE 1 = 0"
    )
    account = str(one(connection, "SELECT CURRENT_USER()")[0])
    if _has_a_role(connection):
        return
    granted = _granted(connection, schema)
    for needed, what in ((_ROWS, "write rows"), (_DDL, "follow every DDL")):
        missing = [each for each in needed if each not in granted]
        if not missing:
            continue
        problem = f"the downstream's account {account} has no right to {', '.join(missing)}"
        hint = f"GRANT {', '.join((*_ROWS, *_DDL))} on *.*, or on the schemas that are written"
        if needed is _ROWS:
            raise NeedsOperator(f"{problem}: it cannot {what}", hint=hint, code=Code.SINK_GRANT)
        log.warning("%s: it cannot %s, and stops at the first one (%s)", problem, what, hint)


_GRANT = re.compile(r"GRANT (.+?) ON (?:TABLE )?(.+?)\.(.+?) TO ", re.IGNORECASE | re.DOTALL)
_COLUMNS = re.compile(r"\([^)]*\)")


def _granted(connection: Connection, schema: str) -> set[str]:
    found: set[str] = set()
    for (line,) in many(connection, "SHOW GRANTS"):
        grant = _GRANT.match(str(line))
        if grant is not None and _unescaped(grant[2]).lower() != schema.lower():
            found |= {name.strip().upper() for name in _COLUMNS.sub("", grant[1]).split(",")}
    return {*_ROWS, *_DDL} if found & {"ALL", "ALL PRIVILEGES"} else found - {"USAGE"}


def _unescaped(pattern: str) -> str:
    """Return the schema name of a grant pattern, where `_` and `%` may be escaped."""
    return pattern.strip("`").replace("\\_", "_").replace("\\%", "%")


def _has_a_role(connection: Connection) -> bool:
    try:
        role = one(connection, "SELECT CURRENT_ROLE()")[0]
    except pymysql.err.MySQLError as error:
        if passes(error):
            raise
        return False  # A server of a version without roles.
    return role not in (None, "", "NONE")
