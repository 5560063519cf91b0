"""Assumed settings: makes conditions that prove that a DDL's session had the global settings.

Pure. No event carries a session's `default_week_format`, `div_precision_increment` and `old_mode`.
A context has the global values. Where a statement depends on a setting, the server itself shows
whether the session had the global value:

    a / b, EXTRACT(WEEK FROM d)     in stored columns, and in the default of a new column: the
                                    values that the table's rows have
    WEEK(d) on a MariaDB            the same; MariaDB accepts it in defaults only
    WEEK(d) on a MySQL              the definition, in which the server writes the mode
    TIME to DATETIME or TIMESTAMP   the values, on a MariaDB: whether the year is 0
    utf8                            the character sets of the columns, on a MariaDB

Nothing else depends on them. YEARWEEK(d) has the mode 0, and partitions allow none of these.
Columns that are not stored, and a MariaDB's CHECK, are computed in each session that needs them.
The rows of CREATE TABLE … SELECT, which may contain AVG, are logged as rows, and its columns with
their types.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from penstock.datum.rows.fields import INTEGER_BITS
from penstock.ddl.syntax.lexer import Kind, Token, quote_name, read
from penstock.ddl.syntax.statements import (
    AddColumns,
    AlterTable,
    Statement,
    ValueKind,
)
from penstock.schema.model import ColumnInfo, MysqlType, TableInfo

DIV, OLD, WEEK = "div_precision_increment", "old_mode", "default_week_format"
_ZERO_DATE_CAST = "ZERO_DATE_TIME_CAST"
_WHOLE = frozenset({*INTEGER_BITS, MysqlType.YEAR})
_TEXTS = frozenset({MysqlType.VARCHAR, MysqlType.VAR_STRING, MysqlType.STRING, MysqlType.BLOB,
                    MysqlType.TINY_BLOB, MysqlType.MEDIUM_BLOB, MysqlType.LONG_BLOB})  # fmt: skip
_DATED = frozenset({MysqlType.DATETIME, MysqlType.TIMESTAMP})


def conditions(
    statement: Statement,
    before: TableInfo | None,
    after: TableInfo | None,
    variables: Mapping[str, str],
    *,
    is_mariadb: bool,
) -> list[str]:
    """Return conditions that no row meets if a statement's session had the global `variables`.

    `before` and `after` are its table before and after the statement.
    """
    if not isinstance(statement, AlterTable) or after is None:
        return []
    computed = {c.name: c.generated_expr for c in after.columns if c.generated_stored}
    computed |= _added_defaults(statement)
    found = [
        f"NOT ({quote_name(column.name)} <=> {_stored(computed[column.name], column)})"
        for column in after.columns
        if column.name in computed and _is_open(computed[column.name], is_mariadb=is_mariadb)
    ]
    if is_mariadb and before is not None:
        is_zero = _ZERO_DATE_CAST in variables.get(OLD, "").upper()
        found += (
            f"YEAR({quote_name(new.name)}) {'<>' if is_zero else '='} 0"
            for old, new in _kept(before, after)
            if old.tp is MysqlType.DURATION and new.tp in _DATED
        )
    return found


def week_modes(sql: str) -> list[str]:
    tokens = read(sql).tokens
    return [
        _second(tokens[at + 2 :])
        for at, token in enumerate(tokens[:-2])
        if token.upper == "WEEK" and tokens[at + 1].text == "("
    ]


def _added_defaults(statement: AlterTable) -> dict[str, str]:
    added = (p.operation.columns for p in statement.parts if isinstance(p.operation, AddColumns))
    return {
        column.name: column.default.text
        for columns in added
        for column in columns
        if column.default is not None and column.default.kind is ValueKind.EXPRESSION
    }


def _is_open(expression: str, *, is_mariadb: bool) -> bool:
    tokens = read(expression).tokens
    for at, token in enumerate(tokens):
        if token.kind is Kind.SIGN and token.text == "/":
            return True
        if token.upper == "EXTRACT" and [each.upper for each in tokens[at + 2 : at + 3]] == [
            "WEEK"
        ]:
            return True
    return is_mariadb and "" in week_modes(expression)


def _stored(expression: str, column: ColumnInfo) -> str:
    if column.tp in _WHOLE:
        return f"ROUND({expression})"
    if column.tp is MysqlType.NEWDECIMAL:
        return f"ROUND({expression}, {max(column.decimal, 0)})"
    return f"CAST(({expression}) AS CHAR)" if column.tp in _TEXTS else f"({expression})"


def _kept(before: TableInfo, after: TableInfo) -> Iterator[tuple[ColumnInfo, ColumnInfo]]:
    old = {column.id: column for column in before.columns}
    by_name = {column.name.lower(): column for column in before.columns}
    for column in after.columns:
        known = old.get(column.id) or by_name.get(column.name.lower())
        if known is not None:
            yield known, column


def _second(tokens: Sequence[Token]) -> str:
    depth, begins = 0, -1
    for at, token in enumerate(tokens):
        if token.kind is Kind.SIGN:
            if depth == 0 and token.text == ")":
                return "".join(t.text for t in tokens[begins:at]) if begins >= 0 else ""
            if depth == 0 and token.text == ",":
                begins = at + 1
            depth += {"(": 1, ")": -1}.get(token.text, 0)
    return ""
