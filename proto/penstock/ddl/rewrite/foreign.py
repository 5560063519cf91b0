"""Rewrites a job's statement for a server of one flavor, and lists the features it lacks.

Pure.

    written                                    MySQL                     MariaDB
    UUID, INET4, INET6                         CHAR(n) in ascii
    the same in ADD COLUMN … NOT NULL          with the type's zero as default
    TEXT or BLOB DEFAULT 'x'                   DEFAULT ('x')
    CHECK (json_valid(j)) of the column j      none
    sequences, DEFAULT NEXTVAL(s)              none, none
    COMPRESSED, IF EXISTS of a constraint      none
    YEAR(2)                                    YEAR
    Aria, page compression, encryption         none
    indexes over expressions                   UNIQUE ones are plain     none
    CHECK … NOT ENFORCED, ALTER CHECK          as written                none
    ALTER COLUMN … SET VISIBLE                 as written                none
    VISIBLE and INVISIBLE of an index          as written                [NOT] IGNORED

A TiDB lacks the same features as MySQL, except sequences, which it has. It reads a statement as
written, with TiDB's own syntax in comments, unless something must be omitted.

No row depends on the omitted parts. The sink reports once the features that a downstream lacks.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass

from penstock.ddl.parse.parser import parse
from penstock.ddl.syntax import statements as ast
from penstock.ddl.syntax.lexer import quote_name, quote_path


@dataclass(frozen=True, slots=True)
class Spelled:
    """The statement for a server, "" for nothing, and the features that the server lacks."""

    sql: str
    lacking: tuple[str, ...]


def spelled_for(
    flavor: ast.Flavor,
    sql: str,
    expression_indexes: Iterable[str] = (),
    sequences: Iterable[tuple[str, str]] = (),
) -> Spelled:
    """Return one statement for a flavor; `expression_indexes` are its table's, as far as known.

    `sequences` are those that a RENAME TABLE renames, each with its schema.

    Raises NeedsOperator for a text that is not a statement of ours.
    """
    source, statements = parse(sql)
    if flavor is ast.Flavor.TIDB and not any(_own(each, flavor) for each in statements):
        return Spelled(sql, ())
    gone = {name.lower() for name in expression_indexes} if flavor is ast.Flavor.MARIADB else set()
    renamed = set(sequences)
    texts: list[str] = []
    lacking: dict[str, None] = {}
    for statement in statements:
        if flavor is ast.Flavor.MYSQL and _is_about_sequences(statement):
            lacking["sequences"] = None
            continue
        if flavor is ast.Flavor.MYSQL and isinstance(statement, ast.RenameTables) and renamed:
            lacking["sequences"] = None
            texts += _without(statement, renamed)
            continue
        own = _own(statement, flavor)
        lacking |= dict.fromkeys(each.what for each in own if each.what)
        text = _spelled(statement, source.text, [each.edit for each in own], gone)
        texts += [text] if text else []
    return Spelled("; ".join(texts), tuple(lacking))


def _own(statement: ast.Statement, flavor: ast.Flavor) -> list[ast.ForeignEdit]:
    if flavor is ast.Flavor.TIDB:
        return [e for e in _own(statement, ast.Flavor.MYSQL) if e.what != ast.SEQUENCE_DEFAULTS]
    own = [each for each in statement.foreign if each.flavor is flavor]
    # An index that is left out contains the edit of its own visibility.
    return [e for e in own if not any(_contains(other.edit, e.edit) for other in own)]


def _contains(outer: ast.Edit, inner: ast.Edit) -> bool:
    return outer != inner and outer.start <= inner.start and inner.end <= outer.end


def _is_about_sequences(statement: ast.Statement) -> bool:
    if isinstance(statement, ast.DropTables):
        return statement.kind == "SEQUENCE"
    return isinstance(statement, (ast.CreateSequence, ast.AlterSequence))


def _without(statement: ast.RenameTables, sequences: set[tuple[str, str]]) -> list[str]:
    kept = []
    for old, new in statement.pairs:
        found = {s for s in sequences if s[1] == old.name and old.schema in (None, s[0])}
        if found:
            schema = new.schema or next(iter(found))[0]
            sequences = (sequences - found) | {(schema, new.name)}
        else:
            kept.append(f"{_quoted(old)} TO {_quoted(new)}")
    return [f"RENAME TABLE {', '.join(kept)}"] if kept else []


def _quoted(ref: ast.TableRef) -> str:
    return quote_name(ref.name) if ref.schema is None else quote_path(ref.schema, ref.name)


def _spelled(
    statement: ast.Statement, text: str, edits: Collection[ast.Edit], gone: Collection[str]
) -> str:
    if isinstance(statement, ast.IndexStatement) and _is_gone(statement.operation, gone):
        return ""
    if not isinstance(statement, ast.AlterTable) or not statement.parts:
        return ast.edited(text, statement.start, statement.end, edits)
    pieces = list(_pieces(statement.parts, text, edits, gone))
    if not pieces:
        return ""
    head = ast.edited(text, statement.start, statement.parts[0].start, edits)
    joined = pieces[0]
    for piece in pieces[1:]:
        follows = piece.upper().startswith(("PARTITION BY", "REMOVE PARTITIONING"))
        joined += (" " if follows else ", ") + piece
    return f"{head} {joined}"


def _pieces(
    parts: Iterable[ast.Part], text: str, edits: Collection[ast.Edit], gone: Collection[str]
) -> Iterator[str]:
    for part in parts:
        piece = ast.edited(text, part.start, part.end, edits)
        if piece and not _is_gone(part.operation, gone):
            yield piece


def _is_gone(operation: object, gone: Collection[str]) -> bool:
    if isinstance(operation, ast.DropKey | ast.AlterKey):
        return operation.name.lower() in gone
    return isinstance(operation, ast.RenameKey) and operation.old.lower() in gone
