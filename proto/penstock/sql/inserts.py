"""INSERT and REPLACE as our programs write them, read again: what of them a server refused.

Text is in single quotes, which are doubled within it, and nothing else is special.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

_HEAD = re.compile(r"(?:INSERT|REPLACE) INTO (\S.*?) \((.*?)\) VALUES ")
_NAME = re.compile(r"`(?:[^`]|``)+`")
_TOKEN = re.compile(r"'(?:[^']|'')*'|[(),]|[^'(),]+")


def inserted(statement: str) -> tuple[str, list[str], Iterator[list[str]]] | None:
    """Return table, columns and rows of an INSERT or REPLACE, all as they are written there."""
    head = _HEAD.match(statement)
    if head is None:
        return None
    return head[1], names_in(head[2]), _rows(statement, head.end())


def names_in(text: str) -> list[str]:
    """Return the quoted names in a piece of a statement."""
    return _NAME.findall(text)


def _rows(text: str, start: int) -> Iterator[list[str]]:
    """Yield the values of each row in parentheses."""
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
