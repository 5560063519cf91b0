"""Server checks: engines without transactions, missing privileges, and missing tables.

**Engines.** A table of an engine without transactions (MyISAM, Aria, MEMORY) keeps the rows of a
batch that was rolled back, so the checkpoint says nothing about it. Hence:

    the Drainer's own tables    are created with ENGINE=InnoDB; an existing one that has no
                                transactions is refused
    a DDL that names such an    runs with InnoDB in its place; if the server refuses that, for
    engine                      example an AUTO_INCREMENT within a key, it runs unchanged
    other tables without        are logged once. After a crash their rows are written again, which
    transactions                is right for tables with a key only

**Privileges.** A Drainer that fails at its first row, or at a DDL at night, should have reported
the missing privilege at its start. SHOW GRANTS lists the privileges of an account on every server,
including those that MariaDB grants to PUBLIC. Privileges of a role are not listed everywhere, so an
account with a role is assumed to have every privilege that it needs.

**Missing tables** are those that the checkpoint says are downstream but that do not exist. Rows and
checkpoint are tables of one server. A server that was restored as a whole has both in the same
state. After a single database was dropped or restored, its tables lack rows that the checkpoint
says are there. Neither its definition nor its creation time distinguishes a table that was created
again from a table that an ALTER has rebuilt. Only `penstock verify` can therefore find rows that
are missing in an existing table. A table that does not exist is reported here: its own rows will
stop the Drainer, and its absence means that the other tables of its database must be compared.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Iterator
from typing import Any

import pymysql

from drainer.sinks.mysql.session import OWN_ENGINE, Connection, many, one, passes
from penstock.codes import Code
from penstock.ddl.syntax.lexer import Kind, quote_path, read
from penstock.ddl.syntax.statements import Edit, edited
from penstock.errors import NeedsOperator

log = logging.getLogger(__name__)

_WITHOUT_TRANSACTIONS = (
    "SELECT t.table_schema, t.table_name, t.engine FROM information_schema.tables t"
    " JOIN information_schema.engines e ON e.engine = t.engine"
    " WHERE t.table_type = 'BASE TABLE' AND e.transactions <> 'YES'"
)
_REPLACED = {"MYISAM", "ARIA", "MEMORY", "HEAP", "ISAM", "ARCHIVE", "CSV"}
_LISTED = 10
Name = tuple[str, str]


class Engines:
    """The tables of one downstream that have no transactions, as far as they were checked."""

    def __init__(self) -> None:
        self._known: set[Name] = set()

    def look_at(self, connection: Any, names: Iterable[Name]) -> None:
        """Log, once, each of these tables whose engine is not transactional."""
        wanted = {(schema.lower(), table.lower()) for schema, table in names} - self._known
        found = [each for each in _without(connection, wanted) if each[0] in wanted]
        if not found:
            return
        self._known |= {name for name, _ in found}
        listed = ", ".join(f"{quote_path(*name)} ({engine})" for name, engine in found[:_LISTED])
        log.warning(
            "%d tables of the downstream have an engine without transactions: %s%s. A crash can"
            " leave a part of a batch in them until the Drainer continues, and rows twice where a"
            " table has no key (ALTER TABLE … ENGINE=InnoDB ends that)",
            len(self._known), listed, ", …" if len(found) > _LISTED else "",
        )  # fmt: skip


def check_own(connection: Any, names: Iterable[Name]) -> None:
    """Raise `NeedsOperator` when one of the Drainer's own tables has no transactions."""
    wanted = {(schema.lower(), table.lower()) for schema, table in names}
    for name, engine in _without(connection, wanted):
        table = quote_path(*name)
        raise NeedsOperator(
            f"table {table} of the Drainer has the engine {engine}, which has no transactions",
            f"ALTER TABLE {table} {OWN_ENGINE}",
            Code.ENGINE_WITHOUT_TRANSACTIONS,
        )


def _without(connection: Any, wanted: set[Name]) -> Iterator[tuple[Name, str]]:
    if not wanted:
        return
    schemas = ",".join(connection.escape(schema) for schema in sorted({s for s, _ in wanted}))
    where = f" AND LOWER(t.table_schema) IN ({schemas})"
    for schema, table, engine in many(connection, _WITHOUT_TRANSACTIONS + where):
        name = str(schema), str(table)
        if tuple(map(str.lower, name)) in wanted:
            yield (name[0].lower(), name[1].lower()), str(engine)


def with_transactions(sql: str) -> str:
    """Replace a non-transactional engine by InnoDB in CREATE or ALTER TABLE."""
    try:
        tokens = read(sql).tokens
    except NeedsOperator:
        return sql  # Not of our grammar: an operator's own statement.
    edits: list[Edit] = []
    depth, has_partitions = 0, False
    for at, token in enumerate(tokens):
        depth += {"(": 1, ")": -1}.get(token.text, 0) if token.kind is Kind.SIGN else 0
        has_partitions |= token.upper == "PARTITION"
        # Within parentheses it is a column in an expression, except for a partition's engine.
        if token.upper == "ENGINE" and (not depth or has_partitions):
            value = tokens[at + (2 if tokens[at + 1].text == "=" else 1)]
            if value.text.upper() in _REPLACED:
                edits.append(Edit(value.start, value.end, "InnoDB"))
    return edited(sql, 0, len(sql), edits) if edits else sql


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
            raise NeedsOperator(f"{problem}: it cannot {what}", hint, Code.SINK_GRANT)
        log.warning("%s: it cannot %s, and stops at the first one (%s)", problem, what, hint)


_GRANT = re.compile(r"GRANT (.+?) ON (?:TABLE )?(.+?)\.(.+?) TO ", re.IGNORECASE | re.DOTALL)
_COLUMNS = re.compile(r"\([^)]*\)")


def _granted(connection: Connection, schema: str) -> set[str]:
    found: set[str] = set()
    for (line,) in many(connection, "SHOW GRANTS"):
        grant = _GRANT.match(str(line))
        # In the pattern of a schema, `_` and `%` may be escaped.
        named = "" if grant is None else re.sub(r"\\([_%])", r"\1", grant[2].strip("`"))
        if grant is not None and named.lower() != schema.lower():
            found |= {name.strip().upper() for name in _COLUMNS.sub("", grant[1]).split(",")}
    return {*_ROWS, *_DDL} if found & {"ALL", "ALL PRIVILEGES"} else found - {"USAGE"}


def _has_a_role(connection: Connection) -> bool:
    try:
        role = one(connection, "SELECT CURRENT_ROLE()")[0]
    except pymysql.err.MySQLError as error:
        if passes(error):
            raise
        return False  # A server of a version without roles.
    return role not in (None, "", "NONE")


def missing_tables(connection: Any, names: Iterable[Name]) -> list[Name]:
    """Return the tables that the server does not have, ignoring letter case."""
    wanted = {(schema.lower(), table.lower()): (schema, table) for schema, table in names}
    if not wanted:
        return []
    schemas = ",".join(connection.escape(schema) for schema in sorted({s for s, _ in wanted}))
    found = many(
        connection,
        "SELECT table_schema, table_name FROM information_schema.tables"  # noqa: S608
        f" WHERE LOWER(table_schema) IN ({schemas})",
    )
    for schema, table in found:
        wanted.pop((str(schema).lower(), str(table).lower()), None)
    return list(wanted.values())


def report_missing(connection: Any, names: Iterable[Name]) -> None:
    found = missing_tables(connection, names)
    if found:
        listed = ", ".join(quote_path(*name) for name in found[:_LISTED])
        log.warning(
            "%d tables that the checkpoint says are downstream do not exist there: %s%s. If a"
            " database was dropped or restored from an older backup, its other tables lack rows"
            " too: compare them with penstock verify. Leave a table that is dropped for good out"
            " by a filter",
            len(found), listed, ", …" if len(found) > _LISTED else "",
        )  # fmt: skip
