"""The collations that a statement's session took unasked, from its QUERY's status variables. Pure.

    server                       collation_server, which CREATE DATABASE takes
    CHARACTER SET utf8mb4        MySQL since 8.0: default_collation_for_utf8mb4, in each QUERY
    CHARACTER SET, any           MariaDB since 11.2: character_set_collations, where it counts

All else is what servers were built with. A table takes its database's collation, not the session's
`collation_database`, which counts for LOAD DATA only.
"""

from __future__ import annotations

from penstock.ddl.charsets import charset_of_collation, collation_name
from penstock.ddl.rewrite.explicit_collations import SessionCollations
from pumpclient.mysql.events.query import StatusVariables
from pumpclient.mysql.gtid import Flavor
from pumpclient.mysql.translate.statements.sql import Dialect

_UCA9_SINCE = 80000
_UCA9 = "utf8mb4_0900_ai_ci"


def built_into(dialect: Dialect) -> SessionCollations:
    """Return what a server takes, or leaves out of SHOW CREATE, where nobody chose anything."""
    is_newer = dialect.flavor is Flavor.MYSQL and dialect.version >= _UCA9_SINCE
    return SessionCollations(by_charset={"utf8mb4": _UCA9} if is_newer else {})


def session_collations(variables: StatusVariables, dialect: Dialect) -> SessionCollations:
    """Return what the session of a QUERY took; raise `NeedsOperator` for an unknown collation."""
    is_mariadb = dialect.flavor is Flavor.MARIADB

    def named(number: int) -> str:
        return collation_name(number, is_mariadb=is_mariadb)

    by_charset = dict(built_into(dialect).by_charset)
    if variables.default_collation_utf8mb4 is not None:
        by_charset["utf8mb4"] = named(variables.default_collation_utf8mb4)
    for _, number in variables.mariadb_collations or ():
        by_charset[charset_of_collation(named(number))] = named(number)
    server = None if variables.charsets is None else named(variables.charsets[2])
    return SessionCollations(server=server, by_charset=by_charset, is_reset=is_mariadb)
