"""The objects that a statement changes, even if the statement cannot be followed.

Tables: if the grammar of `penstock.ddl` reads the statement, its parse tree tells. Otherwise the
words are used where they are unambiguous: the table is the name after TABLE, VIEW, SEQUENCE or ON.
Where the statement may rename a table, or concern several, the result is unknown.

A statement that its server logged with an error: CREATE OR REPLACE TABLE drops the table first. If
it cannot make the new table, MariaDB logs the statement with the error, and the table is gone. If a
DROP of several tables includes a missing table, MariaDB, and MySQL before 8.0, drop the others;
they log it with the error, or MariaDB in its own wording without the error.

Objects of a single server, such as a routine or an account: only the words at the start of a
statement decide, never a later word:

    verb  modifiers  kind  name …        CREATE OR REPLACE DEFINER = a@b  TRIGGER  t …
    kinds of tables                      left to the parser, whatever the rest of the statement is
    kinds of a server                    skipped: routines, accounts, servers, events, plug-ins …
    another kind                         skipped, unless its words before the first name, or ON,
                                         could mean a table: that the parser refuses

So a statement of a newer server is skipped where it makes an object that no row depends on.
"""

import re
from collections.abc import Iterator, Sequence, Set
from itertools import islice, pairwise
from typing import NamedTuple

from penstock.codes import Code
from penstock.ddl.parse.parser import parse
from penstock.ddl.syntax.lexer import Kind, Token, quote_path, read
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
from pumpclient.mysql.translate.statement_text import Dialect

_FROM_SELECT = re.compile(r"\s+START\s+TRANSACTION$", re.IGNORECASE)
_BEFORE_NAMES = {"IF", "NOT", "EXISTS"}
_KINDS = ("TABLE", "VIEW", "SEQUENCE")
_TABLE_VERBS = ("CREATE", "ALTER", "DROP", "TRUNCATE")
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
    if not words or words[0] not in _TABLE_VERBS or _may_rename(words):
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


_REPLACE = re.compile(r"^CREATE\s+OR\s+REPLACE\s+TABLE\b", re.IGNORECASE)
_DROP = re.compile(r"^DROP\s+(TABLES?|VIEW|SEQUENCE)\s+(?!IF\s+EXISTS\b)", re.IGNORECASE)
_BY_SERVER = "/* generated by server */"
_CURRENT = "\0"
"""Stands for the current database, because no database can have this name."""


def may_have_failed(written: str, error_code: int) -> bool:
    """Return whether a logged statement may have been executed only in part."""
    return error_code != 0 or (bool(_DROP.match(written)) and written.rstrip().endswith(_BY_SERVER))


def left_by_failed(text: str) -> str:
    """Return a statement with the effect that `text`, in plain text, had before it failed."""
    if _DROP.match(text):
        return _DROP.sub(lambda found: f"{found[0]}IF EXISTS ", text, count=1)
    names = changed_tables(text, _CURRENT) if _REPLACE.match(text) else ()
    if len(names) != 1:
        return text
    return f"DROP TABLE IF EXISTS {quote_path(*(name for name in names[0] if name != _CURRENT))}"


_TOKEN = re.compile(
    r"""
    (?P<skipped>\s+|/\*M?!\d*|\*/|/\*.*?\*/|(?:--(?=[\s\x00-\x1f]|$)|\#)[^\n]*)
  | (?P<word>[\w$]+)
  | (?P<quoted>`(?:[^`]|``)*`|'(?:[^'\\]|\\.|'')*'|"(?:[^"\\]|\\.|"")*")
  | (?P<sign>.)
    """,
    re.VERBOSE | re.DOTALL,
)
_VERSIONED = re.compile(r"/\*(M)?!(\d{5,6})?.*?\*/", re.DOTALL)
_OF_TABLES = frozenset({"TABLE", "TABLES", "VIEW", "SEQUENCE", "DATABASE", "SCHEMA", "INDEX"})
_ROUTINES = frozenset({"FUNCTION", "PROCEDURE", "PACKAGE", "TRIGGER", "EVENT", "LIBRARY"})
_ACCOUNTS = frozenset({"USER", "ROLE"})
_STORED = frozenset(
    {"TABLESPACE", "SERVER", "LOGFILE", "INSTANCE", "RESOURCE", "REFERENCE", "CATALOG"}
)
_MODIFIERS = frozenset(
    {"OR", "REPLACE", "AGGREGATE", "UNDO", "ONLINE", "OFFLINE", "IGNORE", "UNIQUE", "FULLTEXT",
     "SPATIAL", "SQL", "SECURITY", "INVOKER", "DEFINER", "ALGORITHM"}
)  # fmt: skip
_ON_OBJECTS = ("CREATE", "ALTER", "DROP", "RENAME")
_MAINTENANCE = ("OPTIMIZE", "ANALYZE", "REPAIR", "CHECK", "CHECKSUM")
_BELONGS = "what runs or stores on a server belongs to it"
_ACCOUNT = "accounts belong to one server"
_SERVER_ONLY = "it concerns this server only"
_VERBS = {
    "SAVEPOINT": "no part of it is undone in a binlog",
    "RELEASE": "no part of it is undone in a binlog",
    **dict.fromkeys(
        ("FLUSH", "RESET", "CACHE", "KILL", "CHANGE", "PURGE", "RESTART"), _SERVER_ONLY
    ),
    **dict.fromkeys(("GRANT", "REVOKE"), _ACCOUNT),
    **dict.fromkeys(("INSTALL", "UNINSTALL"), "plug-ins belong to one server"),
}
TEMPORARY = "temporary tables live in a session"
_ON_TEMPORARY = {("ALTER", "TABLE"), ("CREATE", "INDEX"), ("DROP", "INDEX")}
_COPY_TOKENS = 12
"""CREATE OR REPLACE TABLE IF NOT EXISTS a.b ( LIKE"""
_OF_CONNECTION = "CONNECTION_ID"
_HEAD_TOKENS = 64
"""More than precede the kind of a routine; its body need not be read."""

Tokens = Sequence[tuple[str, str]]


def _tokens(text: str) -> Iterator[tuple[str, str]]:
    for match in _TOKEN.finditer(text):
        kind = match.lastgroup or ""
        if kind != "skipped":
            yield kind, match.group().upper() if kind == "word" else match.group()


def _after_value(head: Tokens, at: int) -> int:
    at += 1
    while at < len(head) and head[at][1] in ("@", "(", ")"):
        at += 2 if head[at][1] == "@" else 1
    return at


def _kind(head: Tokens) -> tuple[str, list[str]]:
    at = 1
    while at < len(head) and head[at][1] in _MODIFIERS:
        at += 1
        if at < len(head) and head[at][1] == "=":
            at = _after_value(head, at + 1)
    words: list[str] = []
    while at < len(head) and head[at][0] == "word":
        words.append(head[at][1])
        at += 1
    return (words[0] if words else ""), words


def is_routine(text: str, dialect: Dialect | None = None) -> bool:
    """Return whether a statement, as written, creates a routine, whatever its body contains.

    A comment for other servers than `dialect` was not executed.
    """
    if dialect is not None:

        def kept(comment: re.Match[str]) -> str:
            runs = dialect.runs(is_for_mariadb=bool(comment[1]), version=int(comment[2] or 0))
            return comment[0] if runs else " "

        text = _VERSIONED.sub(kept, text, count=_HEAD_TOKENS)
    head = list(islice(_tokens(text), _HEAD_TOKENS))
    return bool(head) and head[0][1] in ("CREATE", "ALTER") and _kind(head)[0] in _ROUTINES


def skip_reason(text: str) -> str | None:
    """Return why a statement is irrelevant to replication, None if it may be relevant."""
    head = islice(_tokens(text), 3)
    words = [word if kind == "word" else "" for kind, word in head]
    verb, after = (words[0] if words else ""), words[1:]
    if verb in _ON_OBJECTS:
        return _object_reason(verb, list(_tokens(text)))
    if verb in _MAINTENANCE:
        is_plain = {"TABLE", "TABLES", "VIEW"} & set(after)
        return "it changes no row" if is_plain else None
    if verb == "SET" and (after[:1] in (["PASSWORD"], ["ROLE"]) or after == ["DEFAULT", "ROLE"]):
        return _ACCOUNT
    if verb == "SET" and after == ["RESOURCE", "GROUP"]:
        return _BELONGS
    return _VERBS.get(verb)


def temporary_reason(text: str) -> str | None:
    """Return why a statement that used its session's objects is not replicated, or None.

    In binlog_format STATEMENT, and a MariaDB's MIXED, servers log changes of a temporary table. It
    may hide a table of its name, which the statement did not change. If a table is copied from a
    temporary table, the binlog does not contain its columns: that raises `NeedsOperator`.
    """
    tokens = list(_tokens(text))
    words = [word for _, word in tokens]
    if not tokens or _OF_CONNECTION in words:
        return None
    kind = _kind(tokens)[0]
    if words[0] == "TRUNCATE" or (words[0], kind) in _ON_TEMPORARY:
        return TEMPORARY
    if words[0] == "CREATE" and kind == "TABLE" and ("word", "LIKE") in tokens[:_COPY_TOKENS]:
        raise NeedsOperator(
            f"the statement copies a temporary table, which the binlog does not describe: {text}",
            "set the server's binlog_format to ROW and reconnect its clients; replace this"
            " statement by a CREATE TABLE as SHOW CREATE TABLE prints it",
            Code.BINLOG_INCOMPLETE,
        )
    return None


def _object_reason(verb: str, head: Tokens) -> str | None:
    kind, words = _kind(head)
    if kind == "TEMPORARY" and verb != "ALTER":
        return TEMPORARY
    if kind in _ACCOUNTS:
        return _ACCOUNT
    if kind in _ROUTINES | _STORED:
        return _BELONGS
    if not kind or _OF_TABLES & set(words) or ("word", "ON") in head:
        return None
    return f"a {kind.lower()} belongs to its server"
