"""Statements with the character sets and collations that their session left to the server. Pure.

    written                        is written out as
    CREATE DATABASE d              … CHARACTER SET and COLLATE of the session's server
    CHARACTER SET x, anywhere      … COLLATE what the session takes for x
    CREATE TABLE t (…)             the same, for the catalog knows its database's; a database that
                                   it does not know as the server does has to be asked for

What is explicit already stays as it is, so that writing it out twice does no harm.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from penstock.ddl.charsets import built_in
from penstock.ddl.operations import AddColumns, ChangeColumn, Convert, Operation, SetOptions
from penstock.ddl.parse import parse
from penstock.ddl.spelling import CollationOf, collate_edits, column_edits
from penstock.ddl.statements import AlterSchema, AlterTable, CreateSchema, CreateTable, Statement
from penstock.ddl.syntax import Charset, Edit, TableRef, edited


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionCollations:
    """What a session took where a statement says nothing."""

    server: str | None = None
    """collation_server; None where nobody told."""
    by_charset: Mapping[str, str] = field(default_factory=dict)
    """The collations of character sets, where they are not those that servers were built with."""

    def of(self, charset: str) -> str:
        """Return the collation of a character set that is written without one."""
        plain = "utf8mb3" if charset == "utf8" else charset
        return self.by_charset.get(plain) or built_in(plain)


DatabaseOf = Callable[[TableRef], str | None]
"""The collation of a table's database where the catalog would not tell the right one, else None."""


def _as_catalogued(table: TableRef) -> str | None:
    return None


def explicit(sql: str, session: SessionCollations, database: DatabaseOf = _as_catalogued) -> str:
    """Return statements with nothing left to the server but what the catalog knows.

    Raises NeedsOperator for what cannot be read.
    """
    source, statements = parse(sql)
    out = []
    for statement in statements:
        edits = list(_edits(statement, session, database))
        out.append(edited(source.text, statement.start, statement.end, edits))
    return "; ".join(out)


def _edits(
    statement: Statement, session: SessionCollations, database: DatabaseOf
) -> Iterator[Edit]:
    match statement:
        case CreateSchema(charset=given):
            if _says_nothing(given) and session.server is not None:
                # The character set follows from it.
                yield Edit(statement.end, statement.end, f" COLLATE {session.server}")
            yield from collate_edits(given, session.of)
        case AlterSchema(charset=given):
            yield from collate_edits(given, session.of)
        case CreateTable(options=options):
            if _says_nothing(options.charset) and (own := database(statement.ref)) is not None:
                yield Edit(options.end, options.end, f" COLLATE={own}")
            yield from collate_edits(options.charset, session.of)
            for column in statement.columns:
                yield from column_edits(column, session.of)
        case AlterTable():
            for part in statement.parts:
                yield from _of_operation(part.operation, session.of)


def _says_nothing(given: Charset) -> bool:
    return given.charset is None and given.collate is None


def _of_operation(operation: Operation, collation_of: CollationOf) -> Iterator[Edit]:
    match operation:
        case AddColumns(columns):
            for column in columns:
                yield from column_edits(column, collation_of)
        case ChangeColumn(_, column):
            yield from column_edits(column, collation_of)
        case SetOptions(options):
            yield from collate_edits(options.charset, collation_of)
        case Convert(charset):
            yield from collate_edits(charset, collation_of)
