"""Engines: keeps a downstream's tables in engines with transactions, and reports the others.

A table of an engine without transactions (MyISAM, Aria, MEMORY) keeps the rows of a batch that was
rolled back, so the checkpoint says nothing about it. Hence:

    the Drainer's own tables    are created with ENGINE=InnoDB; an existing one that has no
                                transactions is refused
    a DDL that names such an    runs with InnoDB in its place; if the server refuses that, for
    engine                      example an AUTO_INCREMENT within a key, it runs unchanged
    other tables without        are logged once. After a crash their rows are written again, which
    transactions                is right for tables with a key only
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from typing import Any

from drainer.sinks.mysql.session import OWN_ENGINE, many
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
            hint=f"ALTER TABLE {table} {OWN_ENGINE}",
            code=Code.ENGINE_WITHOUT_TRANSACTIONS,
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
