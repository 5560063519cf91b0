"""Grants: finds what an account lacks downstream, before anything is written.

A Drainer that finds out at its first row, or at a DDL in the night, has stopped where it could have
said so at its start. The server's own tables list what the account was granted; rights that come
with a role are not among them, so an account with a role is believed to have what it needs. TiDB's
tables do not list rights on schemas; there SHOW GRANTS is read.
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


def check_grants(
    connection: Connection, schema: str, checkpoint_table: str, *, is_tidb: bool
) -> None:
    """Raise `NeedsOperator` when rows or the checkpoint cannot be written; warn of DDL.

    `schema` is the checkpoint's. Both statements touch no row: they fail like those of a batch when
    a right is missing.
    """
    connection.query(f"UPDATE {checkpoint_table} SET checkPoint = checkPoint WHERE 1 = 0")  # noqa: S608
    connection.query(
        f"INSERT INTO {checkpoint_table} SELECT clusterID, checkPoint"  # noqa: S608
        f" FROM {checkpoint_table} WHERE 1 = 0"
    )
    account = str(one(connection, "SELECT CURRENT_USER()")[0])
    granted = _granted(connection, account, schema, is_tidb=is_tidb)
    if granted is None:
        return
    for needed, what in ((_ROWS, "write rows"), (_DDL, "follow every DDL")):
        missing = [each for each in needed if each not in granted]
        if not missing:
            continue
        problem = f"the downstream's account {account} has no right to {', '.join(missing)}"
        hint = f"GRANT {', '.join((*_ROWS, *_DDL))} on *.*, or on the schemas that are written"
        if needed is _ROWS:
            raise NeedsOperator(f"{problem}: it cannot {what}", hint=hint, code=Code.SINK_GRANT)
        log.warning("%s: it cannot %s, and stops at the first one (%s)", problem, what, hint)


def _granted(
    connection: Connection, account: str, schema: str, *, is_tidb: bool
) -> set[str] | None:
    """Return all that the account was granted on anything; None when that cannot be known."""
    if _has_a_role(connection):
        return None
    if is_tidb:
        return _listed(connection, schema)
    user, _, host = account.rpartition("@")
    grantee = connection.escape(f"'{user}'@'{host}'")
    not_ours = f"TABLE_SCHEMA <> {connection.escape(schema)}"
    queries = [
        f"SELECT PRIVILEGE_TYPE FROM information_schema.{table}"  # noqa: S608
        f" WHERE GRANTEE = {grantee} AND {condition}"
        for table, condition in (
            ("USER_PRIVILEGES", "1 = 1"),
            ("SCHEMA_PRIVILEGES", not_ours),
            ("TABLE_PRIVILEGES", not_ours),
        )
    ]
    found = {str(row[0]).upper() for row in many(connection, " UNION ".join(queries))}
    return found - {"USAGE"}


_GRANT = re.compile(r"GRANT (.+?) ON (?:TABLE )?(.+?)\.(.+?) TO ", re.IGNORECASE | re.DOTALL)
_COLUMNS = re.compile(r"\([^)]*\)")


def _listed(connection: Connection, schema: str) -> set[str]:
    """Return what SHOW GRANTS says that the account has, on more than the schema."""
    found: set[str] = set()
    for (line,) in many(connection, "SHOW GRANTS"):
        grant = _GRANT.match(str(line))
        if grant is not None and grant[2].strip("`").lower() != schema.lower():
            found |= {name.strip().upper() for name in _COLUMNS.sub("", grant[1]).split(",")}
    return {*_ROWS, *_DDL} if found & {"ALL", "ALL PRIVILEGES"} else found - {"USAGE"}


def _has_a_role(connection: Connection) -> bool:
    try:
        role = one(connection, "SELECT CURRENT_ROLE()")[0]
    except pymysql.err.MySQLError as error:
        if passes(error):
            raise
        return False  # A server from before there were roles.
    return role not in (None, "", "NONE")
