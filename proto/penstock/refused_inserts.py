"""Refused inserts: retries statements that a strict session refused, if a lax one may run them.

INSERT and REPLACE are parsed as our programs write them: text is in single quotes, which are
doubled within it, and nothing else is special.

ENUM's error value is index 0, an empty text, which a lax server stores for a wrong value. A strict
session refuses to write it (1265). Ours are strict, because a value that does not fit the
downstream's column would otherwise be cut silently. A refused statement that writes index 0 to an
ENUM is therefore run again in a lax session. It counts only if its warnings are about nothing else:
no more warnings than such values, all about ENUM columns.

A generated column is computed again downstream, from the same values. If a strict session refuses
the result, a lax session upstream cut it to the column's range, and so does the second run:
warnings about generated columns do not count. Warnings about a value within an expression name no
column. In an INSERT, whose values are literals, they can only concern a generated column.
"""

import re
from collections.abc import Iterable, Iterator
from typing import Any

from penstock.ddl.syntax.lexer import quote_name

_HEAD = re.compile(r"(?:INSERT|REPLACE) INTO (\S.*?) \((.*?)\) VALUES ")
_NAME = re.compile(r"`(?:[^`]|``)+`")
_TOKEN = re.compile(r"'(?:[^']|'')*'|[(),]|[^'(),]+")


def inserted(statement: str) -> tuple[str, list[str], Iterator[list[str]]] | None:
    """Return table, columns and rows of an INSERT or REPLACE, exactly as written."""
    head = _HEAD.match(statement)
    if head is None:
        return None
    return head[1], names_in(head[2]), _rows(statement, head.end())


def names_in(text: str) -> list[str]:
    return _NAME.findall(text)


def _rows(text: str, start: int) -> Iterator[list[str]]:
    depth, row, value = 0, [], ""
    for token in _TOKEN.finditer(text, start):
        part = token[0]
        if depth == 1 and part in (",", ")"):
            row.append(value)
            value = ""
        elif depth and not (depth == 1 and part == "("):
            value += part
        depth += (part == "(") - (part == ")")
        if depth == 0 and part == ")":
            yield row
            row = []
        elif depth == 0 and part != ",":
            return


CODE = 1265
"""A server's error for an error value: data truncated."""
_WITHIN = frozenset({1292, 1365, 1411, 1441})
"""Errors for a value within an expression: incorrect, division by 0, no such date or time."""
CODES = frozenset({CODE, 1264, 1366, 1406}) | _WITHIN
"""Errors that a generated value can also cause: out of range, incorrect, excessive length."""
_QUOTED = re.compile(r"'(?:[^']|'')*'")
_UPDATE = re.compile(r"UPDATE (\S+) SET (.*?) WHERE ", re.DOTALL)
_SET = re.compile(r"(`(?:[^`]|``)+`)=0(?=,|$)")
_WARNED = re.compile(r".* for column (?:'(.*)'|(?:`[^`]*`\.)*`(.*)`) at row \d+", re.DOTALL)
_DEPRECATED = 1287
"""MySQL warns of VALUES() in each statement."""
_WARNINGS_MAX = 65_535
"""The most warnings that the servers list."""


def written(connection: Any, statement: str | bytes) -> int | None:
    """Run a refused statement with its error values; None when the refusal is right.

    Returns the number of rows it changed. After None the transaction must not be committed.
    """
    text = statement if isinstance(statement, str) else statement.decode(errors="replace")
    found = _zeros(text)
    if found is None:
        return None
    table, columns = found
    enums, generated = _columns(connection, table)
    count = sum(column in enums for column in columns)
    if not count and not generated:
        return None
    before = _row(connection, "SELECT @@sql_mode, @@max_error_count")
    lax = ",".join(mode for mode in str(before[0]).split(",") if not mode.startswith("STRICT_"))
    _set(connection, lax, _WARNINGS_MAX)
    try:
        changed = int(connection.query(statement))
        with connection.cursor() as cursor:
            cursor.execute("SHOW WARNINGS")
            warnings = [(no, about) for _, no, about in cursor.fetchall() if no != _DEPRECATED]
    finally:
        # This also fails on a lost connection, and the next connection is strict.
        _set(connection, *before)
    ours = {*generated, ""} if generated and inserted(text) is not None else generated
    others = [
        (no, _warned(about))
        for no, about in warnings
        if _warned(about) not in (ours if no in _WITHIN else generated)
    ]
    is_ours = all(no == CODE and column in enums for no, column in others)
    is_listed = len(warnings) < _WARNINGS_MAX
    return changed if is_ours and is_listed and len(others) <= count else None


def written_alone(connection: Any, statement: str | bytes) -> bool:
    """Run and commit a refused statement as `written` does; False if nothing changed."""
    connection.begin()
    if written(connection, statement) is None:
        connection.rollback()
        return False
    connection.commit()
    return True


def _zeros(text: str) -> tuple[str, Iterable[str]] | None:
    found = inserted(text)
    if found is not None:
        table, names, rows = found
        return table, [
            name for row in rows for name, value in zip(names, row, strict=False) if value == "0"
        ]
    update = _UPDATE.match(_QUOTED.sub("''", text))
    return None if update is None else (update[1], _SET.findall(update[2]))


def _columns(connection: Any, table: str) -> tuple[set[str], set[str]]:
    enums, generated = set(), set()
    with connection.cursor() as cursor:
        cursor.execute(f"SHOW COLUMNS FROM {table}")
        for name, kind, *_, extra in cursor.fetchall():
            if str(kind).lower().startswith("enum("):
                enums.add(quote_name(str(name)))
            # MySQL says DEFAULT_GENERATED of a default that is an expression.
            if re.search(r"(VIRTUAL|STORED|PERSISTENT)", str(extra), re.IGNORECASE):
                generated.add(quote_name(str(name)))
    return enums, generated


def _warned(message: str) -> str:
    found = _WARNED.fullmatch(message)
    return "" if found is None else quote_name(found[1] or found[2])


def _row(connection: Any, sql: str) -> tuple[Any, ...]:
    with connection.cursor() as cursor:
        cursor.execute(sql)
        return tuple(cursor.fetchone())


def _set(connection: Any, sql_mode: str, warnings_max: int) -> None:
    mode = connection.escape(sql_mode)
    connection.query(f"SET SESSION sql_mode = {mode}, max_error_count = {warnings_max}")
