"""Writes out implicit TIMESTAMP defaults where a session leaves them to its server.

Pure.

    written                              meaning in such a session
    TIMESTAMP NULL …, DEFAULT NULL       the same
    TIMESTAMP [NOT NULL]                 NOT NULL DEFAULT CURRENT_TIMESTAMP ON UPDATE …, where it is
                                         the table's first TIMESTAMP; else NOT NULL and all zeros
    TIMESTAMP DEFAULT …                  NOT NULL DEFAULT …
    TIMESTAMP ON UPDATE …                NOT NULL, all zeros, ON UPDATE …

MariaDB logs the setting in a bit of `flags2` since 10.8; before, no session had the setting on
unless the server had, against its default. MySQL logs it in a status variable since 8.0.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from penstock.ddl.parse.parser import parse
from penstock.ddl.syntax.statements import (
    AddColumns,
    AlterTable,
    ChangeColumn,
    ColumnDef,
    ColumnPlace,
    CreateTable,
    DropColumn,
    Edit,
    RenameColumn,
    TableRef,
    ValueKind,
    edited,
)
from penstock.schema.model import MysqlType, TableInfo
from pumpclient.mysql.events.statements import StatusVariables
from pumpclient.mysql.gtid import Flavor
from pumpclient.mysql.translate.statements.statement_text import Dialect

_EXPLICIT_BIT = 1 << 24
_MYSQL_EXPLICIT_SINCE = 80000
_CONCERNED = re.compile(r"^(CREATE|ALTER)\b.*\bTIMESTAMP\b", re.IGNORECASE | re.DOTALL)
_ZEROS = "0000-00-00 00:00:00"


def is_implicit(variables: StatusVariables, dialect: Dialect) -> bool:
    if dialect.flavor is Flavor.MARIADB:
        return variables.flags2 is not None and not variables.flags2 & _EXPLICIT_BIT
    is_explicit = variables.explicit_defaults_ts
    return not is_explicit if is_explicit is not None else dialect.version < _MYSQL_EXPLICIT_SINCE


def may_hold_timestamps(sql: str) -> bool:
    return _CONCERNED.match(sql) is not None


def written_out(sql: str, table_of: Callable[[TableRef], TableInfo | None]) -> str:
    """Return statements with implicit defaults; `table_of` gives a table's previous state."""
    source, statements = parse(sql)
    out = []
    for statement in statements:
        edits: list[Edit] = []
        if isinstance(statement, CreateTable):
            order = [_Place.of(column) for column in statement.columns]
            edits = list(_edits(statement.columns, order))
        elif isinstance(statement, AlterTable):
            edits = list(_edits(*_altered(statement, table_of(statement.ref))))
        out.append(edited(source.text, statement.start, statement.end, edits))
    return "; ".join(out)


@dataclass(frozen=True, slots=True)
class _Place:
    """A column in a table's order; `name` in lower case."""

    name: str
    is_timestamp: bool

    @classmethod
    def of(cls, column: ColumnDef) -> _Place:
        return cls(column.name.lower(), column.type.name == "TIMESTAMP")


def _altered(
    statement: AlterTable, before: TableInfo | None
) -> tuple[list[ColumnDef], list[_Place]]:
    defined: list[ColumnDef] = []
    columns = before.columns if before is not None else ()
    order = [_Place(c.name.lower(), c.tp is MysqlType.TIMESTAMP) for c in columns]
    for part in statement.parts:
        operation = part.operation
        if isinstance(operation, AddColumns):
            for column in operation.columns:
                defined.append(column)
                order.insert(_position(order, column, len(order)), _Place.of(column))
        elif isinstance(operation, ChangeColumn):
            defined.append(operation.column)
            at = _take(order, operation.old)
            order.insert(_position(order, operation.column, at), _Place.of(operation.column))
        elif isinstance(operation, DropColumn):
            _take(order, operation.name)
        elif isinstance(operation, RenameColumn):
            order = [
                _Place(operation.new.lower(), each.is_timestamp)
                if each.name == operation.old.lower()
                else each
                for each in order
            ]
    return defined, order


def _take(order: list[_Place], name: str) -> int:
    for at, each in enumerate(order):
        if each.name == name.lower():
            del order[at]
            return at
    return len(order)


def _position(order: list[_Place], column: ColumnDef, otherwise: int) -> int:
    if column.place is ColumnPlace.FIRST:
        return 0
    if column.place is ColumnPlace.AFTER:
        names = [each.name for each in order]
        return names.index(column.after.lower()) + 1 if column.after.lower() in names else otherwise
    return otherwise


def _edits(columns: list[ColumnDef] | tuple[ColumnDef, ...], order: list[_Place]) -> Iterator[Edit]:
    first = next((each.name for each in order if each.is_timestamp), None)
    for column in columns:
        is_null = column.default is not None and column.default.kind is ValueKind.NULL
        if column.type.name != "TIMESTAMP" or column.generated or is_null:
            continue
        if column.not_null is False:
            continue
        added = "" if column.not_null else " NOT NULL"
        if column.default is None:
            is_promoted = column.name.lower() == first and not column.on_update_now
            added += _now(column) if is_promoted else f" DEFAULT '{_ZEROS}'"
        at = column.type.charset.end
        yield Edit(at, at, added)


def _now(column: ColumnDef) -> str:
    digits = f"({column.type.numbers[0]})" if column.type.numbers else ""
    now = f"CURRENT_TIMESTAMP{digits}"
    return f" DEFAULT {now} ON UPDATE {now}"
