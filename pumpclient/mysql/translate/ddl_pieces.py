"""Splits a QUERY's statement into DDL pieces of one job each, with the target's names.

    text ── skipped by its first words ──────────────────────────> nothing, with the reason
         ── changes rows (statement format) ─────────────────────> NeedsOperator
         ── penstock.ddl reads it ── filters ── online DDL ── routes

A RENAME or a DROP of several tables is one piece: it is one step, and a reader downstream must not
see a partial swap. If it involves an online DDL's copies or merged tables, some pairs or tables are
not executed at all, or have another meaning: then a RENAME is executed pair by pair, and these
tables are dropped one by one. The same goes for a RENAME with a skipped table.

An unreadable statement stops the source; an operator's override of this place (skip it, run other
statements instead, run other statements before it) takes precedence. Each piece becomes one job, so
that its origin shows whether it was done: the last piece has the statement's own position, each
piece before it one less.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum

from penstock.codes import Code
from penstock.ddl.parse.parser import parse
from penstock.ddl.rewrite.routing import rename_tables
from penstock.ddl.syntax.lexer import quote_name
from penstock.ddl.syntax.statements import (
    AlterSchema,
    CreateSchema,
    DropTables,
    IndexStatement,
    KeyDef,
    RenameTables,
    Statement,
    TableRef,
)
from penstock.errors import NeedsOperator
from penstock.wire.binlog import Origin
from pumpclient.mysql.rows.table_map import Name
from pumpclient.mysql.translate.online_ddl import Kept, OnlineDdl
from pumpclient.mysql.translate.statement_objects import RowsChanged, rows_changed, skip_reason

_CHANGES_ROWS = re.compile(
    r"^(INSERT|UPDATE|DELETE|REPLACE|LOAD|WITH|CALL|DO|SELECT|ANALYZE)\b", re.IGNORECASE
)
_OR_REPLACE = re.compile(
    r"^CREATE\s+OR\s+REPLACE(?=\s+(TABLE|DATABASE|SCHEMA|((UNIQUE|FULLTEXT|SPATIAL)\s+)?INDEX)\b)",
    re.IGNORECASE,
)
_ALTER_DATABASE = re.compile(r"^ALTER\s+(DATABASE|SCHEMA)\b", re.IGNORECASE)
_FROM_SELECT = re.compile(r"\s+START\s+TRANSACTION$", re.IGNORECASE)
_HINT = (
    "run one of the listed commands: `reload` gives a table the server's state, `replace` runs"
    " other statements instead"
)


class Verb(Enum):
    """An operator's decision about a statement."""

    SKIP = "skip"
    REPLACE = "replace"
    INJECT = "inject"


@dataclass(frozen=True, slots=True)
class Override:
    """An operator's override of one place of a binlog; statements name their schemas."""

    verb: Verb
    statements: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Piece:
    """One DDL with the target's names; `tables` are the source's, for filters by kind."""

    sql: str
    tables: tuple[Name, ...]
    source_sql: str
    is_override: bool = False
    """An operator wrote it."""


@dataclass(frozen=True, slots=True)
class Translation:
    """The pieces to execute, in order; `kept` is the state of online DDL afterwards."""

    pieces: tuple[Piece, ...]
    kept: Kept
    skipped: str = ""
    """Why nothing is executed."""
    left_out: tuple[Name, ...] | None = None
    """The tables of a skipped and counted statement; empty if they are not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Translator:
    """The rules of one source: the replicated tables, their names, and its online DDL."""

    is_replicated: Callable[[str, str], bool] = lambda schema, table: True
    target: Callable[[str, str], Name] = lambda schema, table: (schema, table)
    online: OnlineDdl | None = field(default_factory=OnlineDdl)
    is_merged: Callable[[str, str], bool] = lambda schema, table: False
    """Whether other tables are routed to the same target."""
    side_effects: Callable[[RowsChanged], str] = lambda changed: ""
    """Why a statement on skipped tables may change others; empty if it cannot."""

    def translate(
        self,
        text: str,
        schema: str,
        kept: Kept,
        override: Override | None = None,
        *,
        written_out: Callable[[str], str] = lambda sql: sql,
    ) -> Translation:
        """Return the translation of a statement that is already in plain text.

        `schema` is its default schema, "" for none; `written_out` returns a part of it, or an
        operator's statement, with its session's defaults written out. Raises `NeedsOperator` if the
        statement cannot be followed, unless `override` decides.
        """
        if override is not None and override.verb is not Verb.INJECT:
            return self._overridden(override, kept, written_out)
        before = Translation((), kept)
        if override is not None:
            before = self._overridden(override, kept, written_out)
        own = self._translated(text, schema, kept, written_out)
        return replace(own, pieces=(*before.pieces, *own.pieces))

    def _overridden(
        self, override: Override, kept: Kept, written_out: Callable[[str], str]
    ) -> Translation:
        pieces = tuple(
            Piece(written_out(part), _names(statement, ""), sql, is_override=True)
            for sql in override.statements
            for part, statement in split(sql)
        )
        return Translation(pieces, kept, "" if pieces else "an operator wants it so")

    def _translated(
        self, text: str, schema: str, kept: Kept, written_out: Callable[[str], str]
    ) -> Translation:
        if (why := skip_reason(text)) is not None:
            return Translation((), kept, why)
        if _CHANGES_ROWS.match(text):
            return self._rows_as_statement(text, schema, kept)
        pieces: list[Piece] = []
        try:
            parts = list(split(text))
        except NeedsOperator as error:
            raise NeedsOperator(f"{error.problem}: {text[:200]!r}", _HINT, error.code) from error
        for whole, parsed in parts:
            for sql, statement in self._each(whole, parsed, schema):
                made, kept = self._piece(written_out(sql), statement, schema, kept)
                pieces += made
        skipped = "" if pieces else "its tables are not replicated, or are an online DDL's"
        return Translation(tuple(pieces), kept, skipped)

    def _rows_as_statement(self, text: str, schema: str, kept: Kept) -> Translation:
        """Skip a statement that changes no replicated table, whatever the default schema is."""
        found = rows_changed(text, schema)
        tables = ", ".join(".".join(name) for name in found.tables) if found else ""
        why = "its text does not say on which tables"
        if found is not None:
            if any(self.is_replicated(*name) for name in found.tables):
                why = f"{tables}: replicated"
            elif not (why := self.side_effects(found)):
                return Translation((), kept, f"{tables}: not replicated")
        raise NeedsOperator(
            f"the binlog has changes of rows as a statement ({why}): {text[:200]!r}",
            "set the server's binlog_format to ROW and reconnect its clients; skip this"
            " statement, then reload the replicated tables that it changed",
            Code.BINLOG_INCOMPLETE,
        )

    def _each(self, sql: str, statement: Statement, schema: str) -> Iterable[tuple[str, Statement]]:
        """Split a RENAME or DROP into the fewest parts; return any other statement unchanged."""
        if not isinstance(statement, (DropTables, RenameTables)):
            return [(sql, statement)]
        names = _names(statement, schema)
        is_copy = self.online.is_copy if self.online is not None else lambda table: False
        alone = {name for name in names if is_copy(name[1]) or self.is_merged(*name)}
        if len(names) == 1 + isinstance(statement, RenameTables):
            return [(sql, statement)]
        if isinstance(statement, DropTables):
            refs = list(zip(statement.refs, names, strict=True))
            rest = [r for r, name in refs if name not in alone and self.is_replicated(*name)]
            groups = [[ref] for ref, name in refs if name in alone] + [rest] * bool(rest)
            return [read for group in groups for read in _read(_drop(statement, group))]
        if alone:
            return _pairs(statement)
        kept = [
            pair
            for pair, old, new in zip(statement.pairs, names[::2], names[1::2], strict=True)
            if self.is_replicated(*old) or self.is_replicated(*new)
        ]
        return _read(_renames(statement, kept)) if kept else []

    def _piece(
        self, sql: str, statement: Statement, schema: str, kept: Kept
    ) -> tuple[list[Piece], Kept]:
        if isinstance(statement, AlterSchema) and statement.name is None:
            sql = _ALTER_DATABASE.sub(lambda verb: f"{verb[0]} {quote_name(schema)}", sql, count=1)
            statement = parse(sql)[1][0]
        tables = _names(statement, schema)
        if self.online is not None and tables and all(table for _, table in tables):
            steps, kept = self._online(sql, statement, tables, kept)
            if steps is not None:
                return self._of_shadow(steps, tables, schema), kept
        passed = [self.is_replicated(*name) for name in tables]
        if not any(passed):
            return [], kept
        if not all(passed):
            raise NeedsOperator(
                f"{sql!r} concerns replicated tables and others that filters skip",
                _HINT,
                Code.FILTER_STOPS,
            )
        return [Piece(rename_tables(sql, schema or None, self.target), tables, sql)], kept

    def _online(
        self, sql: str, statement: Statement, tables: Sequence[Name], kept: Kept
    ) -> tuple[Sequence[str] | None, Kept]:
        assert self.online is not None
        if isinstance(statement, RenameTables):
            return self.online.renamed(tables[0], tables[1], kept)
        return self.online.changed(sql.split(None, 1)[0].upper(), tables[0], sql, kept)

    def _of_shadow(self, steps: Sequence[str], tables: Sequence[Name], schema: str) -> list[Piece]:
        if not steps:
            return []
        shadow, real = tables[0], tables[-1]
        if not self.is_replicated(*real):
            return []

        def target(owner: str, table: str) -> Name:
            return self.target(*real) if (owner, table) == shadow else self.target(owner, table)

        return [Piece(rename_tables(sql, schema or None, target), (real,), sql) for sql in steps]


def origins_of(origin: Origin, count: int) -> list[Origin]:
    """Return increasing origins for a statement's pieces; the last is the statement's."""
    return [replace(origin, position=origin.position - n) for n in range(count - 1, -1, -1)]


def split(text: str) -> Iterator[tuple[str, Statement]]:
    """Yield the statements of a text; CREATE OR REPLACE TABLE is two."""
    if _OR_REPLACE.match(text):
        text = _OR_REPLACE.sub("CREATE", text, count=1)
        yield from split(_drop_before(parse(_FROM_SELECT.sub("", text))[1][0]))
    source, statements = parse(_FROM_SELECT.sub("", text))
    for statement in statements:
        yield source.text[statement.start : statement.end].strip(), statement


def _drop_before(made: Statement) -> str:
    if isinstance(made, CreateSchema):
        return f"DROP DATABASE IF EXISTS {quote_name(made.name)}"
    table = _written(made.refs[0])
    if isinstance(made, IndexStatement) and isinstance(made.operation, KeyDef):
        return f"DROP INDEX IF EXISTS {quote_name(made.operation.name or '')} ON {table}"
    return f"DROP TABLE IF EXISTS {table}"


def pair_by_pair(piece: Piece) -> list[Piece]:
    """Split a RENAME of several tables into one piece per pair; keep any other piece."""
    if not isinstance(made := parse(piece.sql)[1][0], RenameTables) or len(made.pairs) == 1:
        return [piece]
    source = parse(piece.source_sql)[1][0]
    assert isinstance(source, RenameTables), "only names differ"
    return [
        replace(piece, sql=sql, source_sql=source_sql, tables=piece.tables[2 * n : 2 * n + 2])
        for n, ((sql, _), (source_sql, _)) in enumerate(
            zip(_pairs(made), _pairs(source), strict=True)
        )
    ]


def table_by_table(piece: Piece) -> list[Piece]:
    """Split a DROP of several tables into one piece per table; keep any other piece."""
    if piece.is_override:
        return [piece]
    if not isinstance(made := parse(piece.sql)[1][0], DropTables) or len(made.refs) == 1:
        return [piece]
    source = parse(piece.source_sql)[1][0]
    assert isinstance(source, DropTables), "only names differ"
    return [
        replace(piece, sql=_drop(made, [here]), source_sql=_drop(source, [there]), tables=(name,))
        for here, there, name in zip(made.refs, source.refs, piece.tables, strict=True)
    ]


def together(pieces: Sequence[Piece]) -> Piece:
    """Join pieces that `table_by_table` split; at least one is required."""
    if len(pieces) == 1:
        return pieces[0]
    return replace(
        pieces[0],
        sql=_joined(each.sql for each in pieces),
        source_sql=_joined(each.source_sql for each in pieces),
        tables=tuple(name for each in pieces for name in each.tables),
    )


def _joined(drops: Iterable[str]) -> str:
    statements = [parse(text)[1][0] for text in drops]
    assert isinstance(statements[0], DropTables)
    return _drop(statements[0], [each.refs[0] for each in statements])


def _pairs(statement: RenameTables) -> Iterator[tuple[str, Statement]]:
    for pair in statement.pairs:
        yield from _read(_renames(statement, [pair]))


def _read(sql: str) -> list[tuple[str, Statement]]:
    return [(sql, parse(sql)[1][0])]


def _renames(statement: RenameTables, pairs: Iterable[tuple[TableRef, TableRef]]) -> str:
    exists = "IF EXISTS " if statement.if_exists else ""
    clauses = ", ".join(f"{_written(old)} TO {_written(new)}" for old, new in pairs)
    return f"RENAME TABLE {exists}{clauses}"


def _drop(statement: DropTables, refs: Iterable[TableRef]) -> str:
    exists = "IF EXISTS " if statement.if_exists else ""
    return f"DROP {statement.kind} {exists}{', '.join(map(_written, refs))}"


def _written(ref: TableRef) -> str:
    return ".".join(quote_name(part) for part in (ref.schema, ref.name) if part)


def _names(statement: Statement, schema: str) -> tuple[Name, ...]:
    if isinstance(statement, RenameTables):
        refs: Sequence[TableRef] = [ref for pair in statement.pairs for ref in pair]
    else:
        refs = statement.refs
    return tuple((ref.schema or schema, ref.name) for ref in refs)
