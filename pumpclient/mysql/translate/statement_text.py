"""Converts a statement's bytes, under its session, to text that `penstock.ddl` reads alike.

    charset                 of the client, by the status variables; UTF-8 where none is
    ANSI_QUOTES             "name" becomes `name`
    NO_BACKSLASH_ESCAPES    the backslashes of strings are doubled
    REAL_AS_FLOAT           REAL becomes FLOAT
    /*! … */, /*!NNNNN … */ where the server ran the contents only the marks go, else all of it
    /*M! … */               the same, for MariaDB only
    other comments          a blank

A session also has collations that a statement uses implicitly (`built_into`):

    server                  collation_server, which CREATE DATABASE takes
    CHARACTER SET utf8mb4   MySQL since 8.0: default_collation_for_utf8mb4, in each QUERY
    CHARACTER SET, any      MariaDB since 11.2: character_set_collations, where it counts

All other defaults are compiled into servers. A table takes its database's collation, not the
session's `collation_database`, which counts for LOAD DATA only.

`written_out` writes out implicit TIMESTAMP defaults where a session leaves them to its server.

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

from penstock.codes import Code
from penstock.ddl.charsets import charset_of_collation, collation_name
from penstock.ddl.parse.parser import parse
from penstock.ddl.rewrite.explicit import SessionCollations
from penstock.ddl.syntax.lexer import Kind, read
from penstock.ddl.syntax.statements import (
    AddColumns,
    AlterTable,
    ChangeColumn,
    ColumnDef,
    CreateTable,
    DropColumn,
    Edit,
    RenameColumn,
    TableRef,
    ValueKind,
    edited,
)
from penstock.errors import NeedsOperator
from penstock.schema.model import MysqlType, TableInfo
from pumpclient.mysql.events.transactions import (
    ALTER_BEGINS,
    ALTER_IS_UNDONE,
    Query,
    StatusVariables,
)
from pumpclient.mysql.gtid import Flavor
from pumpclient.mysql.rows.table_map import charset_of

REAL_AS_FLOAT, PIPES_AS_CONCAT, ANSI_QUOTES = 1, 2, 4
ORACLE, MAXDB = 1 << 9, 1 << 12
NO_BACKSLASH_ESCAPES = 1 << 20
_ORACLE_SINCE = 100300
_SET_STATEMENT = re.compile(r"SET\s+STATEMENT\b", re.IGNORECASE)
_MARIADB_IGNORES = range(50700, 100000)
"""Versions that only MySQL has: MariaDB ignores comments with these versions."""

_PARTS = r"""
    (?P<opens>/\*(?P<maria>M)?!(?P<version>\d{{5,6}})?)
  | (?P<comment>/\*.*?\*/|(?:--(?=[\s\x00-\x1f]|$)|\#)[^\n]*)
  | (?P<closes>\*/)
  | (?P<name>`(?:[^`]|``)*`)
  | (?P<single>'(?:{one}|'')*')
  | (?P<double>"(?:{two}|"")*")
  | (?P<real>\bREAL\b)
  | (?P<pipes>\|\|)
  | (?P<other_type>\b(?:TIMESTAMP|DATE|BLOB|CLOB|NUMBER|RAW|VARCHAR2)\b)
  | (?P<word>[\w$@]+)
  | (?P<other>[^'"`])
"""
_FLAGS = re.VERBOSE | re.DOTALL | re.IGNORECASE
_ESCAPING = re.compile(_PARTS.format(one=r"\\.|[^'\\]", two=r'\\.|[^"\\]'), _FLAGS)
_PLAIN = re.compile(_PARTS.format(one=r"[^']", two=r'[^"]'), _FLAGS)


@dataclass(frozen=True, slots=True)
class Dialect:
    """A server's flavor, and its version as comments write it (80036, 101106)."""

    flavor: Flavor
    version: int

    @property
    def version_text(self) -> str:
        number = f"{self.version // 10_000}.{self.version // 100 % 100}.{self.version % 100}"
        return number + "-MariaDB" * (self.flavor is Flavor.MARIADB)

    def runs(self, *, is_for_mariadb: bool, version: int) -> bool:
        if is_for_mariadb and self.flavor is not Flavor.MARIADB:
            return False
        if self.flavor is Flavor.MARIADB and not is_for_mariadb and version in _MARIADB_IGNORES:
            return False
        return version <= self.version


def dialect_of(server_version: str) -> Dialect:
    """Return the dialect of a server that calls itself `8.0.36` or `10.11.6-MariaDB-log`."""
    found = re.match(r"(\d+)\.(\d+)\.(\d+)", server_version)
    major, minor, patch = map(int, found.groups()) if found else (99, 0, 0)
    is_mariadb = "mariadb" in server_version.lower()
    return Dialect(
        Flavor.MARIADB if is_mariadb else Flavor.MYSQL, major * 10000 + minor * 100 + patch
    )


def statement_text(query: Query) -> str:
    """Return a statement as written; raise `NeedsOperator` if it is invalid in its charset."""
    charsets = query.variables().charsets
    try:
        charset = charset_of(charsets[0]) if charsets else None
        if charset is None or charset.is_binary:
            return query.statement.decode()
        return charset.decode(query.statement)
    except UnicodeDecodeError as error:
        raise NeedsOperator(
            f"a statement is not in its session's character set: {query.statement[:80]!r}",
            "give a statement to run instead of it, or skip it",
            Code.DDL_UNREADABLE,
        ) from error


def phase_to_skip(variables: StatusVariables) -> str:
    """Return why a two-phase ALTER (`binlog_alter_two_phase`) is skipped; "" if it is not."""
    flags = (variables.mariadb_gtid_flags3 or (0, 0))[0]
    if flags & ALTER_BEGINS:
        return "it only begins here: what ends it follows"
    return "the server undid it" if flags & ALTER_IS_UNDONE else ""


def plain_text(text: str, sql_mode: int, dialect: Dialect) -> str:
    """Return the same statement for the default sql_mode and without comments.

    Raises `NeedsOperator` for an unterminated quote or comment, and for `||` where it joins texts.
    """
    pattern = _PLAIN if sql_mode & NO_BACKSLASH_ESCAPES else _ESCAPING
    out: list[str] = []
    kept = [True]
    """For each open mark, and for the text around all of them, whether the server ran it."""
    at = 0
    while at < len(text):
        match = pattern.match(text, at)
        if match is None:
            raise _unended(text, at)
        kind, piece = match.lastgroup or "other", match.group()
        if match["opens"]:
            kept.append(
                kept[-1]
                and dialect.runs(
                    is_for_mariadb=bool(match["maria"]), version=int(match["version"] or 0)
                )
            )
            piece = " "
        elif kind == "closes" and len(kept) > 1:
            kept.pop()
            piece = " "
        elif kept[-1]:
            piece = _rewritten(kind, piece, sql_mode, dialect)
        if kept[-1] or piece == " ":
            out.append(piece)
        at = match.end()
    if len(kept) > 1:
        raise _unended(text, len(text))
    return _without_settings("".join(out).strip().rstrip(";").rstrip())


_BEFORE_CHARSET = ("SET", "CHARSET", "COLLATE", "USING")
_ALIAS = re.compile(r"(_?)utf8(?=_|$)", re.IGNORECASE)


def with_utf8mb4(text: str) -> str:
    """Replace the alias utf8, and its collations, by utf8mb4 in a plain-text statement."""
    tokens = read(text).tokens
    edits: list[Edit] = []
    for at, token in enumerate(tokens):
        behind = [each for each in tokens[max(0, at - 2) : at] if each.text != "="]
        names = bool(behind) and behind[-1].upper in _BEFORE_CHARSET
        introduces = token.text.lower() == "_utf8" and tokens[at + 1].kind is not Kind.SIGN
        if token.kind in (Kind.WORD, Kind.QUOTED, Kind.STRING) and (names or introduces):
            name = _ALIAS.sub(r"\1utf8mb4", token.text, count=1)
            if name != token.text and _ALIAS.match(token.text):
                edits.append(Edit(token.start, token.end, name))
    return edited(text, 0, len(text), edits)


def _without_settings(text: str) -> str:
    """Strip MariaDB's SET STATEMENT prefix; the status variables have its settings."""
    if not _SET_STATEMENT.match(text):
        return text
    depth = 0
    for token in read(text).tokens:
        if token.kind is Kind.SIGN:
            depth += {"(": 1, ")": -1}.get(token.text, 0)
        elif token.upper == "FOR" and not depth:
            return text[token.end :].strip()
    return text


def _means_another(word: str, sql_mode: int, dialect: Dialect) -> bool:
    if dialect.flavor is not Flavor.MARIADB:
        return False
    if word == "TIMESTAMP":
        return bool(sql_mode & MAXDB)
    return bool(sql_mode & ORACLE) and dialect.version >= _ORACLE_SINCE


def _rewritten(kind: str, piece: str, sql_mode: int, dialect: Dialect) -> str:
    if kind == "comment":
        return " "
    if kind == "double" and sql_mode & ANSI_QUOTES:
        return "`" + piece[1:-1].replace('""', '"').replace("`", "``") + "`"
    if kind in ("single", "double") and sql_mode & NO_BACKSLASH_ESCAPES:
        return piece.replace("\\", "\\\\")
    if kind == "real" and sql_mode & REAL_AS_FLOAT:
        return "FLOAT"
    if kind == "other_type" and _means_another(piece.upper(), sql_mode, dialect):
        raise NeedsOperator(
            f"{piece} means another type under its session's sql_mode",
            "give the statement with the types that SHOW CREATE TABLE prints instead of it",
            Code.DDL_UNREADABLE,
        )
    if kind == "pipes" and sql_mode & PIPES_AS_CONCAT:
        raise NeedsOperator(
            "a DDL joins texts by ||, which means another thing under the default sql_mode",
            "give the statement with CONCAT instead of it",
            Code.DDL_UNREADABLE,
        )
    return piece


def _unended(text: str, at: int) -> NeedsOperator:
    return NeedsOperator(
        f"a statement holds a quote or comment that never ends near {text[at : at + 30]!r}",
        "give a statement to run instead of it, or skip it",
        Code.DDL_UNREADABLE,
    )


_UCA9_SINCE = 80000
_UCA9 = "utf8mb4_0900_ai_ci"


def built_into(dialect: Dialect) -> SessionCollations:
    """Return the collations that a server uses, or omits in SHOW CREATE, by default."""
    is_newer = dialect.flavor is Flavor.MYSQL and dialect.version >= _UCA9_SINCE
    return SessionCollations(by_charset={"utf8mb4": _UCA9} if is_newer else {})


def session_collations(variables: StatusVariables, dialect: Dialect) -> SessionCollations:
    """Return a QUERY's session collations; raise `NeedsOperator` for an unknown collation."""
    is_mariadb = dialect.flavor is Flavor.MARIADB

    def named(number: int) -> str:
        return collation_name(number, is_mariadb=is_mariadb)

    by_charset = dict(built_into(dialect).by_charset)
    if variables.default_collation_utf8mb4 is not None:
        by_charset["utf8mb4"] = named(variables.default_collation_utf8mb4)
    for _, number in variables.mariadb_collations or ():
        by_charset[charset_of_collation(named(number))] = named(number)
    server = None if variables.charsets is None else named(variables.charsets[2])
    return SessionCollations(server=server, by_charset=by_charset, is_reset=is_mariadb)


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
    if column.after == "":
        return 0
    if column.after is not None:
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
