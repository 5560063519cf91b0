"""Finds foreign keys that change rows without logging them; refuses or reports these keys.

InnoDB executes CASCADE and SET NULL itself, below the binlog: the binlog has the parent's row but
none of its children's. RESTRICT, NO ACTION and SET DEFAULT (which InnoDB does not do) change no
row. The table that has the key decides; the parent need not be replicated.

    at a start         in SHOW CREATE TABLE of each replicated table: a MariaDB's
                       information_schema hides such keys from a user who has only SELECT
    in a reload        in SHOW CREATE TABLE of its tables, before they are dropped downstream
    in the stream      in each replicated DDL, before it is executed
    logged             a server may cascade above its storage engine, and log it: nothing to judge
    "stop"             `NeedsOperator` names table and key
    "accept"           a warning names them, once in a process
    an operator's SQL  a warning as well: the operator chose it

Why the Drainer does not cascade instead, with foreign key checks on and strategy `statements`:
after an unclean stop it sends rows again as REPLACE, which would delete a parent and with it
children that are not sent again. Workers order transactions by the rows that they name, and the
cascaded rows are not among these. With filters, routes and sessions with checks off upstream, the
tables and keys downstream also differ from the server's.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass

import pymysql

from penstock.codes import Code
from penstock.ddl.parse.parser import parse
from penstock.ddl.syntax.statements import (
    AddColumns,
    AlterTable,
    ChangeColumn,
    ColumnDef,
    CreateTable,
    KeyDef,
    Operation,
    Statement,
)
from penstock.errors import NeedsOperator
from penstock.filters import Rules
from penstock.node.checks import Check
from pumpclient.mysql.gtid import Flavor
from pumpclient.mysql.protocol.server import Connection, ServerAddress, logs_cascades
from pumpclient.mysql.rows.table_map import Name
from pumpclient.mysql.source.config import ACCEPT, SourceConfig
from pumpclient.mysql.source.ddl.table_mapping import server_tables, show_create
from pumpclient.mysql.translate.ddl_pieces import Piece
from pumpclient.mysql.translate.online_ddl import OnlineDdl
from pumpclient.mysql.translate.statement_text import Dialect

_BELOW_BINLOG = ("CASCADE", "SET NULL")
_INLINE_SINCE = {Flavor.MARIADB: 100500, Flavor.MYSQL: 90000}
"""Older versions accept a REFERENCES within a column's definition, and ignore it."""


@dataclass(frozen=True, slots=True)
class Cascade:
    """A foreign key: its table on the server, its name or columns, and its action."""

    table: Name
    key: str
    actions: tuple[str, ...]

    def __str__(self) -> str:
        return f"{'.'.join(self.table)}: {self.key} {' '.join(self.actions)}"


def cascades_of_table(table: Name, create_table: str) -> list[Cascade]:
    """Return a table's keys from its SHOW CREATE TABLE, which writes none inline.

    Raises `NeedsOperator` for an unreadable definition.
    """
    if not any(action in create_table for action in _BELOW_BINLOG):
        return []
    return [each for statement in parse(create_table)[1] for each in _of(table, statement, False)]


def cascades_of_piece(piece: Piece, dialect: Dialect) -> list[Cascade]:
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
    if isinstance(operation, KeyDef):
        keys.append(operation)
    elif isinstance(operation, AddColumns):
        columns += operation.columns
    elif isinstance(operation, ChangeColumn):
        columns.append(operation.column)


def _below_binlog(actions: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(action for action in actions if action.endswith(_BELOW_BINLOG))


log = logging.getLogger(__name__)

_CHECK, _NONE = "foreign keys", "none changes rows by itself"
_NAMED_MAX = 10
_NO_TABLE = 1146
_WHAT = "by foreign keys the server changes rows that its binlog does not have"
_HINT = (
    "change these keys to RESTRICT on the server, and let the application change the children's"
    " rows; or skip these tables (penstock source skip-table);"
    ' or set cascades = "accept", and repair differences with penstock verify --repair'
)
_HINT_OF_DDL = (
    "change the key to RESTRICT on the server, and let the application change the children's rows,"
    " then load the table again with penstock source reload;"
    ' or set cascades = "accept", and repair differences with penstock verify --repair'
)


class Cascades:
    """The cascading foreign keys of one source, and how they are treated."""

    def __init__(
        self,
        policy: str,
        is_replicated: Callable[[str, str], bool],
        online: OnlineDdl | None,
        are_logged: Callable[[], bool],
    ) -> None:
        """Check the tables that are replicated and are not copies of `online`.

        `are_logged` asks the server whether its binlog has the changes made by its foreign keys.
        """
        self._is_accepted = policy == ACCEPT
        self._are_logged = are_logged
        self._is_replicated = is_replicated
        self._online = online
        self._reported: set[Cascade] = set()

    @classmethod
    def of(cls, config: SourceConfig) -> Cascades:
        rules = Rules(config.filter)
        address = config.source.address()

        def are_logged() -> bool:
            with address.session() as connection:
                return logs_cascades(connection)

        return cls(config.cascades, rules.is_replicated, config.online_ddl.rules(), are_logged)

    def checks(self, address: ServerAddress) -> list[Check]:
        """Return one check, with the cascades on the server if they are not logged."""
        found = self._on_server(address)
        if not found or self._are_logged():
            which = "the binlog has the rows that they change" if found else _NONE
            return [Check(_CHECK, True, which)]
        return [Check(
            _CHECK, False, f"{len(found)} change rows that the binlog does not have", _HINT,
            required=not self._is_accepted, names=tuple(map(str, found)),
        )]  # fmt: skip

    def look_at_server(
        self,
        address: ServerAddress,
        left_out: Collection[Name] = (),
        only: Collection[Name] | None = None,
    ) -> None:
        """Raise `NeedsOperator` or warn about the server's cascades, except of skipped tables.

        With `only`, look at these tables only.
        """
        found = [each for each in self._on_server(address, only) if each.table not in left_out]
        self._judge(found, f"{address}: {_WHAT}", _HINT)

    def look_at(self, pieces: Iterable[Piece], dialect: Dialect) -> None:
        """Raise `NeedsOperator` or warn about the cascades that these pieces of DDL create."""
        for piece in pieces:
            found = cascades_of_piece(piece, dialect)
            self._judge(found, _WHAT, _HINT_OF_DDL, is_decided=piece.is_override)

    def _judge(
        self, found: Sequence[Cascade], what: str, hint: str, *, is_decided: bool = False
    ) -> None:
        if not found or self._are_logged():
            return
        if not (self._is_accepted or is_decided):
            names = "; ".join(map(str, found[:_NAMED_MAX]))
            more = len(found) - _NAMED_MAX
            raise NeedsOperator(
                f"{what}: {names}" + (f" and {more} more" if more > 0 else ""),
                hint,
                Code.FOREIGN_KEY_ACTIONS,
            )
        new = [each for each in found if each not in self._reported]
        self._reported.update(new)
        if new:
            log.warning("%s: %s: compare with penstock verify", what, "; ".join(map(str, new)))

    def _on_server(
        self, address: ServerAddress, only: Collection[Name] | None = None
    ) -> list[Cascade]:
        with address.session() as connection:
            with connection.cursor() as cursor:
                cursor.execute("SET SESSION sql_mode = '', sql_quote_show_create = 1")
            names = server_tables(connection) if only is None else only
            tables = [name for name in names if self._is_followed(name)]
            return [each for name in tables for each in _of_table(connection, name)]

    def _is_followed(self, name: Name) -> bool:
        is_copy = self._online is not None and self._online.is_copy(name[1])
        return self._is_replicated(*name) and not is_copy


def _of_table(connection: Connection, name: Name) -> list[Cascade]:
    try:
        sql = show_create(connection, name)
    except pymysql.err.ProgrammingError as error:
        if error.args[0] == _NO_TABLE:
            return []  # It was dropped after it was listed: the binlog has the DROP.
        raise
    try:
        return cascades_of_table(name, sql)
    except NeedsOperator as error:
        raise NeedsOperator(f"{'.'.join(name)}: {error.problem}", error.hint, error.code) from error
