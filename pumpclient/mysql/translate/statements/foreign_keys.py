"""Foreign keys by which a server changes rows that its binlog does not tell of.

InnoDB does CASCADE and SET NULL by itself, below the binlog, which has the parent's row and none of
its children's. RESTRICT, NO ACTION and SET DEFAULT (which InnoDB does not do) change no row.
What counts is the table that has the key; the parent need not be replicated.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from penstock.ddl.parse.parser import parse
from penstock.ddl.syntax.statements import (
    AddColumns,
    AddKey,
    AlterTable,
    ChangeColumn,
    ColumnDef,
    CreateTable,
    KeyDef,
    Operation,
    Statement,
)
from pumpclient.mysql.gtid import Flavor
from pumpclient.mysql.translate.statements.ddl_pieces import Piece
from pumpclient.mysql.translate.statements.online import Name
from pumpclient.mysql.translate.statements.sql import Dialect

_BELOW_BINLOG = ("CASCADE", "SET NULL")
_INLINE_SINCE = {Flavor.MARIADB: 100500, Flavor.MYSQL: 90000}
"""Versions before take a REFERENCES within a column's definition, and forget it."""


@dataclass(frozen=True, slots=True)
class Cascade:
    """One such key: of which table of the server, its name or columns, and what it does."""

    table: Name
    key: str
    actions: tuple[str, ...]

    def __str__(self) -> str:
        """Return it as an operator is to read it."""
        return f"{'.'.join(self.table)}: {self.key} {' '.join(self.actions)}"


def cascades_of_table(table: Name, create_table: str) -> list[Cascade]:
    """Return those of a table as SHOW CREATE TABLE has it, which writes none inline.

    Raises `NeedsOperator` for what cannot be read.
    """
    if not any(action in create_table for action in _BELOW_BINLOG):
        return []
    return [each for statement in parse(create_table)[1] for each in _of(table, statement, False)]


def cascades_of_piece(piece: Piece, dialect: Dialect) -> list[Cascade]:
    """Return those that a DDL brings to a server of this dialect."""
    takes_inline = dialect.version >= _INLINE_SINCE[dialect.flavor]
    return [
        each
        for statement in parse(piece.sql)[1]
        for each in _of(piece.tables[0], statement, takes_inline)
    ]


def _of(table: Name, statement: Statement, takes_inline: bool) -> Iterator[Cascade]:
    keys: list[KeyDef] = []
    columns: list[ColumnDef] = []
    if isinstance(statement, CreateTable):
        keys += statement.keys
        columns += statement.columns
    elif isinstance(statement, AlterTable):
        for part in statement.parts:
            _gather(part.operation, keys, columns)
    for key in keys:
        if actions := _below_binlog(key.actions):
            named = key.name or f"FOREIGN KEY ({', '.join(part.name for part in key.parts)})"
            yield Cascade(table, named, actions)
    for column in columns:
        if takes_inline and (actions := _below_binlog(column.actions)):
            yield Cascade(table, f"column {column.name}", actions)


def _gather(operation: Operation, keys: list[KeyDef], columns: list[ColumnDef]) -> None:
    if isinstance(operation, AddKey):
        keys.append(operation.key)
    elif isinstance(operation, AddColumns):
        columns += operation.columns
    elif isinstance(operation, ChangeColumn):
        columns.append(operation.column)


def _below_binlog(actions: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(action for action in actions if action.endswith(_BELOW_BINLOG))
