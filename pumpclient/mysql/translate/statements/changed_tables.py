"""Finds the tables that a statement changes, even if the statement cannot be followed.

Pure. If the grammar of `penstock.ddl` reads the statement, its parse tree tells. Otherwise the
words are used where they are unambiguous: the table is the name after TABLE, VIEW, SEQUENCE or ON.
Where the statement may rename a table, or concern several, the result is unknown.
"""

from __future__ import annotations

import re
from collections.abc import Sequence, Set
from itertools import pairwise
from typing import NamedTuple

from penstock.ddl.parse.parser import parse
from penstock.ddl.syntax.lexer import Kind, Token, read
from penstock.ddl.syntax.statements import (
    AlterTable,
    CreateLike,
    DropTables,
    RenameTables,
    RenameTo,
    Statement,
    TableRef,
)
from penstock.errors import NeedsOperator
from pumpclient.mysql.rows.table_map import Name

_FROM_SELECT = re.compile(r"\s+START\s+TRANSACTION$", re.IGNORECASE)
_BEFORE_NAMES = {"IF", "NOT", "EXISTS"}
_KINDS = ("TABLE", "VIEW", "SEQUENCE")
_VERBS = ("CREATE", "ALTER", "DROP", "TRUNCATE")
_PARTS_RENAMED = ("COLUMN", "INDEX", "KEY")
_BEFORE_TARGET = {"LOW_PRIORITY", "HIGH_PRIORITY", "DELAYED", "QUICK", "IGNORE", "INTO", "FROM"}
_JOINS = {"JOIN", "STRAIGHT_JOIN"}


def changed_tables(text: str, schema: str) -> tuple[Name, ...]:
    """Return the tables that a statement changes; empty if that is uncertain."""
    try:
        _, statements = parse(_FROM_SELECT.sub("", text))
    except (NeedsOperator, RecursionError, LookupError):
        return _by_words(text, schema)
    return tuple(name for each in statements for name in changed_by(each, schema))


def changed_by(statement: Statement, schema: str) -> tuple[Name, ...]:
    """Return the tables that a statement changes, in its order; a database has an empty table."""
    if isinstance(statement, RenameTables):
        refs: Sequence[TableRef] = [ref for pair in statement.pairs for ref in pair]
    elif isinstance(statement, AlterTable):
        renamed = [p.operation.ref for p in statement.parts if isinstance(p.operation, RenameTo)]
        refs = [statement.ref, *renamed]
    elif isinstance(statement, DropTables):
        refs = statement.refs
    else:
        refs = statement.refs[:1]
    return tuple((ref.schema or schema, ref.name) for ref in refs)


def likened(statement: Statement, schema: str) -> Name | None:
    if not isinstance(statement, CreateLike):
        return None
    return statement.like.schema or schema, statement.like.name


class RowsChanged(NamedTuple):
    """The names in a row change: its tables, and every function that it may call."""

    tables: tuple[Name, ...]
    functions: tuple[str, ...]


def rows_changed(text: str, schema: str) -> RowsChanged | None:
    """Return the names in an INSERT, REPLACE, UPDATE or DELETE, None if they are uncertain.

    Tables are all those that it may change, without the tables that triggers and functions change.
    """
    try:
        tokens = read(text).tokens
    except NeedsOperator:
        return None
    words = [token.upper for token in tokens]
    at = next((n for n, word in enumerate(words) if n and word not in _BEFORE_TARGET), 0)
    match words[0]:
        case "INSERT" | "REPLACE":
            names = _named(tokens, at, schema)
        case "UPDATE":
            names = _listed(tokens, at, schema, {"SET"})
        case "DELETE" if words[at - 1] == "FROM" and "USING" not in words:
            names = _listed(tokens, at, schema, {"WHERE", "ORDER", "LIMIT", "RETURNING"})
        case _:
            names = ()
    called = {
        token.text
        for token, after in pairwise(tokens)
        if after.text == "(" and token.kind in (Kind.WORD, Kind.QUOTED)
    }
    return RowsChanged(names, tuple(sorted(called))) if names else None


def _listed(tokens: Sequence[Token], at: int, schema: str, ends: Set[str]) -> tuple[Name, ...]:
    found: list[Name] = []
    is_due = True
    for n in range(at, len(tokens)):
        token = tokens[n]
        if token.kind is Kind.END or token.upper in ends:
            break
        if token.text in ("(", ")"):
            return ()
        if is_due:
            names = _named(tokens, n, schema)
            if not names:
                return ()
            found += names
        is_due = (token.kind is Kind.SIGN and token.text == ",") or token.upper in _JOINS
    return tuple(found)


def _by_words(text: str, schema: str) -> tuple[Name, ...]:
    try:
        tokens = read(text).tokens
    except NeedsOperator:
        return ()
    words = [token.upper for token in tokens]
    if words[:2] == ["SET", "STATEMENT"] and "FOR" in words:
        tokens, words = tokens[words.index("FOR") + 1 :], words[words.index("FOR") + 1 :]
    if not words or words[0] not in _VERBS or _may_rename(words):
        return ()
    if words[0] == "TRUNCATE":
        return _named(tokens, 2 if words[1:2] == ["TABLE"] else 1, schema)
    found = [at for at, word in enumerate(words) if word in (*_KINDS, "INDEX")]
    if not found:
        return ()
    at = found[0]
    if words[at] == "INDEX":
        behind = [n for n in range(at, len(words)) if words[n] == "ON"]
        return _named(tokens, behind[0] + 1, schema) if behind else ()
    at += 1
    while at < len(words) and words[at] in _BEFORE_NAMES:
        at += 1
    if words[0] == "DROP" and any(token.text == "," for token in tokens):
        return ()
    return _named(tokens, at, schema)


def _may_rename(words: Sequence[str]) -> bool:
    follows = zip(words, [*words[1:], ""], strict=True)
    return "EXCHANGE" in words or any(
        word == "RENAME" and after not in _PARTS_RENAMED for word, after in follows
    )


def _named(tokens: Sequence[Token], at: int, schema: str) -> tuple[Name, ...]:
    parts: list[str] = []
    at += at < len(tokens) and tokens[at].text == "."
    while at < len(tokens) and tokens[at].kind in (Kind.WORD, Kind.QUOTED) and len(parts) < 2:
        parts.append(tokens[at].text)
        if at + 1 >= len(tokens) or tokens[at + 1].text != ".":
            break
        at += 2
    if len(parts) == 1 and schema:
        return ((schema, parts[0]),)
    return ((parts[0], parts[1]),) if len(parts) == 2 else ()
