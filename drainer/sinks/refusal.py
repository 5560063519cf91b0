"""What a downstream will not take, and which row of a statement it was.

A statement of many rows is refused as a whole, with a message that counts: `Data too long for
column 'v' at row 3`. The row is in the statement, in the form of `drainer.apply.sql`: text in
single quotes, which are doubled within it, and nothing else is special.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import islice

from penstock.errors import NeedsOperator

_HEAD = re.compile(r"(?:INSERT|REPLACE) INTO (\S.*?) \((.*?)\) VALUES ")
_DELETE = re.compile(r"DELETE FROM (\S.*?) WHERE ")
_AT_ROW = re.compile(r" at row (\d+)")
_TOKEN = re.compile(r"'(?:[^']|'')*'|[(),]|[^'(),]+")
_VALUE_SHOWN = 40
_COLUMNS_SHOWN = 6


class Refused(NeedsOperator):
    """The downstream refuses a change, and will again."""


def row_of(statement: str | bytes, message: str) -> str:
    """Return table and row that a refused statement is about, as far as the message tells."""
    text = statement if isinstance(statement, str) else statement.decode(errors="replace")
    head = _HEAD.match(text)
    if head is None:
        deleting = _DELETE.match(text)
        return f"rows of {deleting[1]} to be deleted" if deleting else ""
    number = _AT_ROW.search(message)
    if number is None:
        return f"a row of {head[1]}"
    row = next(islice(_rows(text, head.end()), int(number[1]) - 1, None), [])
    pairs = [f"{name} = {_shown(value)}" for name, value in zip(head[2].split(","), row)]  # noqa: B905
    more = ", …" if len(pairs) > _COLUMNS_SHOWN else ""
    return f"{head[1]} {', '.join(pairs[:_COLUMNS_SHOWN])}{more}"


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


def _shown(value: str) -> str:
    return value if len(value) <= _VALUE_SHOWN else value[:_VALUE_SHOWN] + "…"


def located(error: Refused, after_ts: int, through_ts: int) -> Refused:
    """Return the error with the batch it came from, and with ways to go on."""
    return Refused(
        f"{error.problem}; this is in the batch of the transactions after commit_ts {after_ts}"
        f" and up to {through_ts}, and nothing behind that was applied",
        hint=f"{error.hint}; then start the Drainer again. Or leave the transaction out with"
        " ignore-txn-commit-ts: with --batch-rows-max 1 each batch is one transaction, and"
        " the commit_ts it goes up to is that one's",
    )
