"""Verifies DDL that depends on settings no event carries: it is followed if the server agrees.

`assumed_settings` gives the definition that the server shows if the session had the global
settings. Where the server shows another definition, or no longer has the table, the statement is
refused before it is executed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager

from penstock.codes import Code
from penstock.ddl import SchemaChange
from penstock.ddl.syntax.lexer import quote_path
from penstock.ddl.syntax.statements import (
    AlterTable,
    CreateTable,
    CreateView,
    IndexStatement,
    Statement,
)
from penstock.errors import NeedsOperator
from penstock.schema.ddl_context import DdlContext
from penstock.schema.model import SchemaInfo, TableInfo
from pumpclient.mysql.protocol.address import Connection, rows
from pumpclient.mysql.rows.table_map import Name
from pumpclient.mysql.translate.statements.assumed_settings import WEEK, conditions, week_modes
from pumpclient.mysql.translate.statements.ddl_pieces import Piece

Opens = Callable[[], AbstractContextManager[Connection]]

_MODES = frozenset({"HIGH_NOT_PRECEDENCE", "NO_UNSIGNED_SUBTRACTION", "PAD_CHAR_TO_FULL_LENGTH"})
"""Modes that change values, and not how the text is read, which is in plain text here."""
_VARIABLES = ("default_week_format", "div_precision_increment")


def check_session(
    piece: Piece,
    statements: Sequence[Statement],
    changes: Sequence[SchemaChange],
    context: DdlContext,
    opens: Opens,
    *,
    is_mariadb: bool,
    says_utf8: bool,
) -> None:
    """Raise `NeedsOperator` unless the server shows a session that `context` describes.

    `says_utf8` means that the statement has a character set by a name whose meaning `old_mode`
    decides. `opens` gives a session of the server; it is used for statements that depend on one.
    """
    for statement in statements:
        if isinstance(statement, (CreateTable, CreateView, AlterTable, IndexStatement)):
            settings = dict(context.variables)
            before, after = _tables_of(changes)
            found = conditions(statement, before, after, settings, is_mariadb=is_mariadb)
            if found and _rows_meet(opens, piece.tables[0], found, context):
                raise _unproved(piece, "values that the table's rows have")
            modes = [] if is_mariadb else week_modes(piece.sql)
            if "" in modes:
                known = {settings.get(WEEK, "0"), *modes}
                if not _modes_there(opens, piece.tables[0]) <= known:
                    raise _unproved(piece, "the mode of WEEK in its definition")
    if says_utf8:
        _check_charsets(piece, changes, opens)


def _tables_of(changes: Sequence[SchemaChange]) -> tuple[TableInfo | None, TableInfo | None]:
    pairs = [(old, new) for change in changes for _, old, new in change.altered]
    pairs += [(old, new) for change in changes for _, old, _, new in change.renamed]
    return (pairs[0][0], pairs[-1][1]) if pairs else (None, None)


def _rows_meet(opens: Opens, name: Name, found: Sequence[str], context: DdlContext) -> bool:
    sql = f"SELECT 1 FROM {quote_path(*name)} WHERE {' OR '.join(found)} LIMIT 1"  # noqa: S608
    modes = ",".join(sorted(_MODES & (context.sql_mode or frozenset())))
    numbers = {name: value for name, value in context.variables if name in _VARIABLES}
    settings = [f"{each} = {int(value)}" for each, value in sorted(numbers.items())]
    with opens() as connection:
        with connection.cursor() as cursor:
            cursor.execute(
                f"SET SESSION time_zone = %s, sql_mode = %s{''.join(f', {s}' for s in settings)}",
                (context.time_zone or "+00:00", modes),
            )
        return bool(rows(connection, sql))


def _modes_there(opens: Opens, name: Name) -> set[str]:
    with opens() as connection:
        (row,) = rows(connection, f"SHOW CREATE TABLE {quote_path(*name)}")
    return set(week_modes(str(row.get("create table") or row.get("create view"))))


def _check_charsets(piece: Piece, changes: Sequence[SchemaChange], opens: Opens) -> None:
    """Raise `NeedsOperator` where a column has another character set on the server."""
    made = [table for change in changes for _, table in change.created]
    made += [table for change in changes for _, _, table in change.altered]
    made += [table for change in changes for _, _, _, table in change.renamed]
    schema = next((c.job.schema for c in changes if c.schemas_created), None)
    if not made and schema is None:
        return
    with opens() as connection:
        there = _charsets_there(connection, piece.tables[0])
    here = _charsets(made[-1]) if made else _charset_of(schema)
    wrong = sorted(name for name in here.keys() & there.keys() if here[name] != there[name])
    if wrong:
        raise _unproved(piece, f"the character set of {', '.join(filter(None, wrong)) or 'it'}")


def _charsets_there(connection: Connection, name: Name) -> dict[str, str]:
    schema, table = name
    if not table:
        sql = ("SELECT '' AS name, default_character_set_name AS charset"
               " FROM information_schema.schemata WHERE schema_name = %s")  # fmt: skip
        found = rows(connection, sql, schema)
    else:
        sql = (
            "SELECT column_name AS name, character_set_name AS charset"
            " FROM information_schema.columns WHERE table_schema = %s AND table_name = %s"
        )
        found = rows(connection, sql, schema, table)
    return {str(row["name"]).lower(): _utf8mb3(row["charset"]) for row in found if row["charset"]}


def _charsets(table: TableInfo) -> dict[str, str]:
    return {column.name.lower(): _utf8mb3(column.charset) for column in table.columns}


def _charset_of(schema: SchemaInfo | None) -> dict[str, str]:
    return {} if schema is None else {"": _utf8mb3(schema.charset)}


def _utf8mb3(name: object) -> str:
    return "utf8mb3" if name == "utf8" else str(name)


def _unproved(piece: Piece, shown: str) -> NeedsOperator:
    return NeedsOperator(
        "the statement depends on a setting of its session that the binlog does not have, and"
        f" the server's global setting does not give {shown}",
        hint="replace the statement by one that gives the server's values and does not depend on"
        " default_week_format, div_precision_increment or old_mode",
        code=Code.DDL_UNREADABLE,
    )
