"""Writes out the collations, and the defaults of TIMESTAMP, that a statement leaves to the server.

Pure.

    written                        is written out as
    CREATE DATABASE d              … CHARACTER SET and COLLATE of the session's server
    CHARACTER SET x, anywhere      … COLLATE with the session's collation for x
    CREATE TABLE t (…)             the same, because the catalog knows its database's; if the
                                   catalog's differs from the server's, the server must be asked
    CHARACTER SET DEFAULT          MariaDB: … COLLATE DEFAULT, which is its built-in default

Explicit clauses stay unchanged, so that a repeated run does no harm. For a TiDB's statements the
server's choice is known from the resulting table or schema: `as_made` writes that out.

For a server that implicitly adds NOT NULL and defaults to a TIMESTAMP, `explicit_timestamps` writes
out NULL, or DEFAULT '0000-00-00 00:00:00' for a NOT NULL column without a default.

The planner also writes out the names of keys with these edits. A server chooses a free name, which
differs downstream if an index was added there. The index of a foreign key is written as a key,
because a server drops an index that it made itself as soon as another serves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from penstock.codes import Code
from penstock.ddl.charsets import built_in, charset_of_collation, full_name, our_own
from penstock.ddl.parse.parser import parse, rewritten
from penstock.ddl.syntax import statements as ast
from penstock.ddl.syntax.lexer import quote_name
from penstock.errors import NeedsOperator
from penstock.schema.model import SchemaInfo, TableInfo

CollationOf = Callable[[str], str]
"""The collation of a character set that is written without a collation."""


def _column_edits(column: ast.ColumnDef, collation_of: CollationOf = our_own) -> list[ast.Edit]:
    given = column.type.charset
    is_binary = column.type.binary or given.charset == "binary"
    return [] if is_binary else collate_edits(given, collation_of)


def own_column_edits(column: ast.ColumnDef, table: TableInfo) -> list[ast.Edit]:
    given = column.type.charset
    if given.says_nothing and given.collate_is_default:
        return [ast.Edit(given.end, given.end, f" COLLATE {built_in(table.charset)}")]
    return _column_edits(column)


def collate_edits(given: ast.CharsetClause, collation_of: CollationOf = our_own) -> list[ast.Edit]:
    if given.charset is None or given.collate is not None:
        return []
    return [ast.Edit(given.end, given.end, f" COLLATE {collation_of(given.charset)}")]


def option_edits(options: ast.TableOptions, table: TableInfo) -> list[ast.Edit]:
    given = options.charset
    if given.says_nothing:
        clause = f" DEFAULT CHARSET={table.charset} COLLATE={table.collate}"
        return [ast.Edit(options.end, options.end, clause)]
    return collate_edits(given)


def period_edits(keys: Iterable[ast.KeyDef], table: TableInfo) -> list[ast.Edit]:
    """Return edits that replace periods WITHOUT OVERLAPS by their columns.

    A key over both ends is unique as well. Rows that are applied in another order than upstream may
    overlap in between.
    """
    columns = ", ".join(quote_name(name) for name in table.own_period[:0:-1])
    parts = (part for key in keys for part in key.parts if part.is_period)
    return [ast.Edit(*part.period_at, columns) for part in parts]


def key_edits(unnamed: Sequence[tuple[ast.KeyDef, str]], verb: str) -> list[ast.Edit]:
    """Return edits that name unnamed keys as servers would; `verb` is "ADD " in ALTER TABLE."""
    out = []
    for key, name in unnamed:
        if key.name_at >= 0:
            out.append(ast.Edit(key.name_at, key.name_at, f" {quote_name(name)}"))
            continue
        columns = ", ".join(quote_name(part.name) for part in key.parts)
        kind = "UNIQUE KEY" if key.unique else "KEY"
        out.append(ast.Edit(key.at, key.at, f", {verb}{kind} {quote_name(name)} ({columns})"))
        out += [key.inline] if key.inline is not None else []
    return out


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionCollations:
    """The collations that a session uses where a statement names none."""

    server: str | None = None
    """collation_server; None where it is not known."""
    by_charset: Mapping[str, str] = field(default_factory=dict)
    """The collations of character sets, where they differ from the built-in defaults."""
    is_reset: bool = False
    """CHARACTER SET DEFAULT takes the built-in default collation of a set, and not the schema's:
    MariaDB's behaviour.
    """

    def of(self, charset: str) -> str:
        plain = "utf8mb3" if charset == "utf8" else charset
        return self.by_charset.get(plain) or built_in(plain)


DatabaseOf = Callable[[ast.TableRef], str | None]
"""The collation of a table's database if the catalog's is wrong, else None."""


def explicit(
    sql: str, session: SessionCollations, database: DatabaseOf = lambda table: None
) -> str:
    """Return statements in which the server chooses nothing that the catalog does not know.

    Raises NeedsOperator for an unreadable statement.
    """
    return rewritten(sql, lambda statement, _: _edits(statement, session, database))


def as_made(sql: str, made: TableInfo | SchemaInfo) -> str:
    """Return a statement with the character set, collations and key names of its result.

    Its comments stay, because a TiDB's own syntax is in comments. Raises NeedsOperator for an
    unreadable statement.
    """
    source, statements = parse(sql)
    assert len(source.text) == len(sql), "a comment leaves its place empty"
    edits: list[ast.Edit] = []
    for statement in statements:
        if isinstance(made, TableInfo):
            edits += _table_as_made(statement, made)
        elif isinstance(statement, ast.CreateSchema) and statement.charset.says_nothing:
            clause = f" CHARACTER SET {made.charset} COLLATE {made.collate}"
            edits.append(ast.Edit(statement.end, statement.end, clause))
        elif isinstance(statement, ast.CreateSchema | ast.AlterSchema):
            edits += collate_edits(statement.charset, lambda _: made.collate)
    return ast.edited(sql, 0, len(sql), edits)


def _table_as_made(statement: ast.Statement, made: TableInfo) -> Iterator[ast.Edit]:
    keys: Sequence[ast.KeyDef] = ()
    if isinstance(statement, ast.CreateTable):
        keys, given = statement.keys, statement.options.charset
        if given.says_nothing:
            yield from option_edits(statement.options, made)
        else:
            yield from collate_edits(given, lambda _: made.collate)
    elif isinstance(statement, ast.AlterTable):
        operations = [part.operation for part in statement.parts]
        keys = [each for each in operations if isinstance(each, ast.KeyDef)]
        for given in filter(None, map(_charset_of, operations)):
            yield from collate_edits(given, lambda _: made.collate)
    yield from key_edits(_named_as_made(keys, made), "")
    known = {column.name.lower(): column.collate for column in made.columns}
    for definition in defined_columns(statement):
        collation = known.get(definition.name.lower())
        if collation is not None:
            yield from _column_edits(definition, partial(_same, collation))


def _named_as_made(keys: Sequence[ast.KeyDef], made: TableInfo) -> list[tuple[ast.KeyDef, str]]:
    """Return keys without a name with the names of the newest indexes like them.

    A key that is written with its column stays there, and so does a key over an expression.
    """
    found = []
    written = {key.name.lower() for key in keys if key.name is not None}
    spare = sorted(
        (index for index in made.indexes if index.name.lower() not in written),
        key=lambda index: index.id,
    )
    for key in reversed([key for key in keys if key.name_at >= 0]):
        wanted = [part.name.lower() for part in key.parts], key.unique
        at = next(
            (n for n in range(len(spare) - 1, -1, -1)
             if ([c.name.lower() for c in spare[n].columns], spare[n].unique) == wanted),
            None,
        )  # fmt: skip
        if at is not None:
            found.append((key, spare.pop(at).name))
    return found


def _same(collation: str, charset: str) -> str:
    return collation


def defined_columns(statement: ast.Statement) -> Iterator[ast.ColumnDef]:
    if isinstance(statement, ast.CreateTable):
        yield from statement.columns
    for part in statement.parts if isinstance(statement, ast.AlterTable) else ():
        if isinstance(part.operation, ast.AddColumns):
            yield from part.operation.columns
        elif isinstance(part.operation, ast.ChangeColumn):
            yield part.operation.column


def _charset_of(operation: ast.Operation) -> ast.CharsetClause | None:
    match operation:
        case ast.TableOptions(charset=charset) | ast.Convert(charset=charset):
            return charset
    return None


def _edits(
    statement: ast.Statement, session: SessionCollations, database: DatabaseOf
) -> Iterator[ast.Edit]:
    match statement:
        case ast.CreateSchema() | ast.AlterSchema():
            yield from _of_schema(statement, session)
        case ast.CreateTable(options=options):
            given = options.charset
            if given.says_nothing and (own := database(statement.ref)) is not None:
                own = built_in(charset_of_collation(own)) if _is_default(given) else own
                yield ast.Edit(options.end, options.end, f" COLLATE={own}")
            else:
                yield from _collations(given, session)
        case ast.AlterTable():
            for part in statement.parts:
                if (clause := _charset_of(part.operation)) is not None:
                    yield from _collations(clause, session)
    for column in defined_columns(statement):
        given = column.type.charset
        if given.says_nothing and given.collate_is_default and session.by_charset:
            raise _unclear()
        yield from _column_edits(column, session.of)


def _of_schema(
    statement: ast.CreateSchema | ast.AlterSchema, session: SessionCollations
) -> Iterator[ast.Edit]:
    given, end = statement.charset, statement.end
    if isinstance(statement, ast.AlterSchema):
        if given.is_default and given.says_nothing:
            yield ast.Edit(end, end, f" COLLATE {_as_server(session)}")
        elif given.is_default:
            yield from _in_full(given, session, end)
        yield from _collations(given, session)
        return
    if given.says_nothing and session.server is not None:
        # The character set follows from it.
        taken = _as_server(session) if _is_default(given) else session.server
        yield ast.Edit(end, end, f" COLLATE {taken}")
    else:
        yield from _in_full(given, session, end)
    yield from collate_edits(given, session.of)


def _is_default(given: ast.CharsetClause) -> bool:
    return given.is_default or given.collate_is_default


def _as_server(session: SessionCollations) -> str:
    if session.server is None or session.by_charset:
        raise _unclear()
    return built_in(charset_of_collation(session.server))


def _in_full(given: ast.CharsetClause, session: SessionCollations, at: int) -> Iterator[ast.Edit]:
    if given.charset is None and given.collate is not None and session.server is not None:
        name = full_name(given.collate, charset_of_collation(session.server))
        if name != given.collate:
            yield ast.Edit(at, at, f" COLLATE {name}")


def _unclear() -> NeedsOperator:
    return NeedsOperator(
        "DEFAULT stands for a collation that its session chose, of a character set that is not"
        " written",
        "replace the statement by one that names the collation",
        Code.CHARSET,
    )


def _collations(given: ast.CharsetClause, session: SessionCollations) -> Iterator[ast.Edit]:
    if given.says_nothing and _is_default(given) and session.is_reset:
        if session.by_charset:
            raise _unclear()
        if not given.collate_is_default:
            yield ast.Edit(given.end, given.end, " COLLATE DEFAULT")
    yield from collate_edits(given, session.of)


def explicit_timestamps(sql: str) -> str:
    """Return statements that such a server takes literally; NeedsOperator for bad syntax."""
    return rewritten(sql, lambda statement, _: _timestamp_edits(statement))


def _timestamp_edits(statement: ast.Statement) -> Iterator[ast.Edit]:
    for column in defined_columns(statement):
        at = column.type.charset.end
        if column.type.name != "TIMESTAMP" or column.generated:
            continue
        if column.not_null is None:
            yield ast.Edit(at, at, " NULL")
        elif column.not_null and column.default is None:
            yield ast.Edit(at, at, " DEFAULT '0000-00-00 00:00:00'")
