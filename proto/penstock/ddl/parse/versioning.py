"""MariaDB's system-versioned tables, which are tracked as plain tables with their current rows.

    written                                              here
    WITH SYSTEM VERSIONING, of a table or a column       omitted; noted in `TableInfo.period`
    WITHOUT SYSTEM VERSIONING of a column                omitted
    s TIMESTAMP(6) GENERATED ALWAYS AS ROW START …       omitted, with PERIOD FOR SYSTEM_TIME
    PRIMARY KEY (id, e), which a server extends by e     PRIMARY KEY (id)
    ADD, DROP SYSTEM VERSIONING                          sets or clears `period`
    PARTITION BY SYSTEM_TIME …                           omitted; ALTER: no other partitions either

Refused: bounds that are numbers of transactions (their tables' changes are logged as statements),
unique keys over ROW START (they allow several current rows that are alike without it), CHECKs and
generated columns over a bound, changes of a bound's definition.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from penstock.codes import Code
from penstock.ddl.parse.cursor import Cursor
from penstock.ddl.syntax import statements as ast
from penstock.ddl.syntax.lexer import Kind
from penstock.errors import NeedsOperator
from penstock.schema.model import DdlType, TableInfo

IMPLICIT = ("row_start", "row_end")
"""The columns of a table that names none; only its rows show them."""
_WHAT = "system-versioned tables"
_HINT = "leave the table out, or keep its history in a table of its own, by triggers"


def named_period(cur: Cursor) -> tuple[str, ...]:
    begun = cur.at
    try:
        while not cur.at_end():
            if cur.is_word("PERIOD", "FOR", "SYSTEM_TIME") and cur.peek(3).text == "(":
                cur.at += 3
                return tuple(name.lower() for name in cur.names())
            cur.at += 1
        return ()
    finally:
        cur.at = begun


def take_period(cur: Cursor) -> tuple[str, ...] | None:
    """Skip PERIOD FOR SYSTEM_TIME (a, b) and return the names; None if it is absent."""
    if not cur.take("PERIOD", "FOR", "SYSTEM_TIME"):
        return None
    return cur.names()


def take_clause(cur: Cursor) -> bool:
    return cur.dropped("WITH", "SYSTEM", "VERSIONING")


def take_partitions(cur: Cursor, instead: str = "") -> bool:
    """Skip PARTITION BY SYSTEM_TIME with all its clauses; `instead` replaces it."""
    start = cur.token.start
    if not cur.take("PARTITION", "BY", "SYSTEM_TIME"):
        return False
    while not cur.at_end() and cur.token.upper not in ("SELECT", "AS"):
        if cur.is_sign("("):
            cur.parenthesised()
        else:
            cur.next()
    cur.edits.append(ast.Edit(start, cur.last_end, instead))
    return True


def column_attribute(cur: Cursor, column: ast.ColumnDef) -> ast.ColumnDef | None:
    begun = cur.at
    if take_clause(cur):
        return replace(column, is_versioned=True)
    if cur.dropped("WITHOUT", "SYSTEM", "VERSIONING"):
        return column
    cur.take("GENERATED", "ALWAYS")
    if not cur.take("AS", "ROW"):
        cur.at = begun
        return None
    if not cur.take_any("START", "END"):
        cur.fail("START or END")
    if column.type.name != "TIMESTAMP":
        cur.refuse(
            f"{_WHAT} with {column.type.name} as ROW START or ROW END",
            "their changes are logged as statements: use TIMESTAMP(6), or leave the table out",
        )
    return replace(column, is_bound=True)


def check_unique(cur: Cursor, first: int) -> None:
    """Refuse a unique key over ROW START; the key's columns start at token `first`."""
    tokens = cur.source.tokens[first : cur.at]
    if any(_is_name(token.kind) and token.text.lower() == cur.period[0] for token in tokens):
        cur.refuse(f"{_WHAT} with a unique key over ROW START", _HINT)


def check_expressions(cur: Cursor, first: int) -> None:
    """Refuse a table element, from token `first` on, with an expression over a bound."""
    depth = 0
    for token in cur.source.tokens[first : cur.at]:
        if token.kind is Kind.SIGN:
            depth += {"(": 1, ")": -1}.get(token.text, 0)
        elif depth and _is_name(token.kind) and token.text.lower() in cur.period:
            cur.refuse(f"{_WHAT} with an expression over {token.text!r}", _HINT)


def _is_name(kind: Kind) -> bool:
    return kind in (Kind.WORD, Kind.QUOTED)


def is_over_period(cur: Cursor, keys: Sequence[ast.KeyDef]) -> bool:
    """Return whether a key has only bounds; bounds are omitted from other keys."""
    parts = [part.name.lower() for key in keys for part in key.parts]
    return bool(parts) and all(name in cur.period for name in parts)


def take_operation(cur: Cursor) -> ast.Versioning | None:
    """Read ADD or DROP of versioning or of its period; None for any other operation."""
    begun = cur.at
    verb = cur.take_any("ADD", "DROP")
    if verb and cur.take("SYSTEM", "VERSIONING"):
        return ast.Versioning(None if verb == "ADD" else ())
    if verb == "ADD" and (names := take_period(cur)) is not None:
        return ast.Versioning(names)
    if verb == "DROP" and cur.take("PERIOD", "FOR", "SYSTEM_TIME"):
        return ast.Versioning(())
    cur.at = begun
    return None


def is_of_period(cur: Cursor, operation: ast.Operation) -> bool:
    """Return whether an operation adds a bound or a key over bounds; refuse other bounds."""
    if isinstance(operation, ast.KeyDef):
        return is_over_period(cur, [operation])
    if isinstance(operation, ast.ChangeColumn) and operation.column.is_bound:
        cur.refuse(f"{_WHAT} whose ROW START or ROW END changes", _HINT)
    if not isinstance(operation, ast.AddColumns):
        return False
    bounds = [column.is_bound for column in operation.columns]
    if any(bounds) and not all(bounds):
        cur.refuse("ADD (…) with ROW START or ROW END among others", "add them one by one")
    return any(bounds)


def versioned(
    table: TableInfo, parts: Sequence[ast.Part]
) -> tuple[tuple[str, ...], tuple[ast.Part, ...]]:
    """Return a table's period after an ALTER TABLE, and the operations on the rest of it."""
    given = [part.operation.names for part in parts if isinstance(part.operation, ast.Versioning)]
    period = next((names for names in given if names), table.period)
    if () in given:
        period = ()
    elif None in given:
        period = period or IMPLICIT
    rest: list[ast.Part] = []
    bounds = {name.lower() for name in table.period}
    for part in parts:
        operation = part.operation
        if isinstance(operation, ast.RenameColumn) and operation.old.lower() in bounds:
            old = operation.old.lower()
            period = tuple(operation.new if n.lower() == old else n for n in period)
        elif isinstance(operation, ast.Versioning) or (
            isinstance(operation, ast.DropColumn) and operation.name.lower() in bounds
        ):
            continue
        elif not (table.period or period) or not _is_of_history(table, operation):
            rest.append(part)
    return period, tuple(rest)


_MOVES_ROWS = (
    DdlType.TRUNCATE_PARTITION, DdlType.EXCHANGE_PARTITION,
    DdlType.CONVERT_PARTITION, DdlType.CONVERT_TABLE,
)  # fmt: skip


def _is_of_history(table: TableInfo, operation: ast.Operation) -> bool:
    """Return whether an operation concerns partitions by SYSTEM_TIME, which are not tracked.

    A server drops only historical partitions of these. An operation that may touch current rows is
    refused.
    """
    if table.partitions != ():
        return False
    if isinstance(operation, ast.Partitions) and operation.type in _MOVES_ROWS:
        raise NeedsOperator(
            f"table {table.name!r}: it is partitioned by SYSTEM_TIME there, not here",
            "skip the statement if it touches no partition of current rows",
            Code.DDL_UNSUPPORTED,
        )
    return isinstance(operation, ast.Partitions) or operation == ast.PartitionBy(())
