"""Recognises statements that name an object of a single server, such as a routine or an account.

Pure. Only the words at the start of a statement decide, never a later word:

    verb  modifiers  kind  name …        CREATE OR REPLACE DEFINER = a@b  TRIGGER  t …
    kinds of tables                      left to the parser, whatever the rest of the statement is
    kinds of a server                    skipped: routines, accounts, servers, events, plug-ins …
    another kind                         skipped, unless its words before the first name, or ON,
                                         could mean a table: that the parser refuses

So a statement of a newer server is skipped where it makes an object that no row depends on.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import islice

from penstock.codes import Code
from penstock.errors import NeedsOperator
from pumpclient.mysql.translate.statements.statement_text import Dialect

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
        text = _VERSIONED.sub(partial(_run_by, dialect), text, count=_HEAD_TOKENS)
    head = list(islice(_tokens(text), _HEAD_TOKENS))
    return bool(head) and head[0][1] in ("CREATE", "ALTER") and _kind(head)[0] in _ROUTINES


def _run_by(dialect: Dialect, comment: re.Match[str]) -> str:
    runs = dialect.runs(is_for_mariadb=bool(comment[1]), version=int(comment[2] or 0))
    return comment[0] if runs else " "


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
            hint="set the server's binlog_format to ROW and reconnect its clients; replace this"
            " statement by a CREATE TABLE as SHOW CREATE TABLE prints it",
            code=Code.BINLOG_INCOMPLETE,
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
