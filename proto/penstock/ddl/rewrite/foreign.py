"""A job's statement as a server of one flavor can read it, and what of it that server lacks. Pure.

    written                                    MySQL                     MariaDB
    UUID, INET4, INET6                         CHAR(n) in ascii
    sequences, DEFAULT NEXTVAL(s)              none, none
    COMPRESSED, IF EXISTS of a constraint      none
    YEAR(2)                                    YEAR
    Aria, page compression, encryption         none
    indexes over expressions                   UNIQUE ones are plain     none
    CHECK … NOT ENFORCED, ALTER CHECK          as written                none
    ALTER COLUMN … SET VISIBLE                 as written                none

A TiDB lacks what MySQL does, but it has sequences; and it reads a statement as it was written, with
the words of its own that stand in comments, unless something has to be left out.

No row depends on what is left out. The sink says once what a downstream does not have.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass

from penstock.ddl.parse.parser import parse
from penstock.ddl.syntax.statements import (
    SEQUENCE_DEFAULTS,
    AlterSequence,
    AlterTable,
    CreateSequence,
    DropKey,
    DropTables,
    Edit,
    Flavor,
    ForeignEdit,
    IndexStatement,
    Part,
    RenameKey,
    Statement,
    edited,
)


@dataclass(frozen=True, slots=True)
class Spelled:
    """What a server runs, "" for nothing, and what it lacks."""

    sql: str
    lacking: tuple[str, ...]


def spelled_for(flavor: Flavor, sql: str, expression_indexes: Iterable[str] = ()) -> Spelled:
    """Return one statement for a flavor; `expression_indexes` are its table's, as far as known.

    Raises NeedsOperator for what is no statement of ours.
    """
    source, statements = parse(sql)
    if flavor is Flavor.TIDB and not any(_own(each, flavor) for each in statements):
        return Spelled(sql, ())
    gone = {name.lower() for name in expression_indexes} if flavor is Flavor.MARIADB else set()
    texts: list[str] = []
    lacking: dict[str, None] = {}
    for statement in statements:
        if flavor is Flavor.MYSQL and _is_about_sequences(statement):
            lacking["sequences"] = None
            continue
        own = _own(statement, flavor)
        lacking |= dict.fromkeys(each.what for each in own if each.what)
        text = _spelled(statement, source.text, [each.edit for each in own], gone)
        texts += [text] if text else []
    return Spelled("; ".join(texts), tuple(lacking))


def _own(statement: Statement, flavor: Flavor) -> list[ForeignEdit]:
    """Return how a statement reads on servers of this flavor."""
    if flavor is Flavor.TIDB:
        return [e for e in _own(statement, Flavor.MYSQL) if e.what != SEQUENCE_DEFAULTS]
    return [each for each in statement.foreign if each.flavor is flavor]


def _is_about_sequences(statement: Statement) -> bool:
    if isinstance(statement, DropTables):
        return statement.kind == "SEQUENCE"
    return isinstance(statement, (CreateSequence, AlterSequence))


def _spelled(
    statement: Statement, text: str, edits: Collection[Edit], gone: Collection[str]
) -> str:
    if isinstance(statement, IndexStatement) and _is_gone(statement.operation, gone):
        return ""
    if not isinstance(statement, AlterTable) or not statement.parts:
        return edited(text, statement.start, statement.end, edits)
    pieces = list(_pieces(statement.parts, text, edits, gone))
    if not pieces:
        return ""
    head = edited(text, statement.start, statement.parts[0].start, edits)
    joined = pieces[0]
    for piece in pieces[1:]:
        follows = piece.upper().startswith(("PARTITION BY", "REMOVE PARTITIONING"))
        joined += (" " if follows else ", ") + piece
    return f"{head} {joined}"


def _pieces(
    parts: Iterable[Part], text: str, edits: Collection[Edit], gone: Collection[str]
) -> Iterator[str]:
    for part in parts:
        piece = edited(text, part.start, part.end, edits)
        if piece and not _is_gone(part.operation, gone):
            yield piece


def _is_gone(operation: object, gone: Collection[str]) -> bool:
    if isinstance(operation, DropKey):
        return operation.name.lower() in gone
    return isinstance(operation, RenameKey) and operation.old.lower() in gone
