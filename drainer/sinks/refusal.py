"""What a downstream will not take, and which row of a statement it was.

A statement of many rows is refused as a whole, with a message that counts: `Data too long for
column 'v' at row 3`. The row is in the statement (`penstock.sql.inserts`).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import islice

from penstock.errors import NeedsOperator
from penstock.sql.inserts import inserted

_DELETE = re.compile(r"DELETE FROM (\S.*?) WHERE ")
_AT_ROW = re.compile(r" at row (\d+)")
_VALUE_SHOWN = 40
_COLUMNS_SHOWN = 6


class Refused(NeedsOperator):
    """The downstream refuses a change, and will again."""


def row_of(statement: str | bytes, message: str) -> str:
    """Return table and row that a refused statement is about, as far as the message tells."""
    text = statement if isinstance(statement, str) else statement.decode(errors="replace")
    found = inserted(text)
    if found is None:
        deleting = _DELETE.match(text)
        return f"rows of {deleting[1]} to be deleted" if deleting else ""
    number = _AT_ROW.search(message)
    table, names, rows = found
    if number is None:
        return f"a row of {table}"
    row = next(islice(rows, int(number[1]) - 1, None), [])
    return f"{table} {pairs(names, row)}"


def pairs(names: Sequence[str], values: Sequence[str]) -> str:
    """Return columns with their values, neither too many nor too long for a line."""
    told = [f"{name} = {_shown(value)}" for name, value in zip(names, values, strict=False)]
    more = ", …" if len(told) > _COLUMNS_SHOWN else ""
    return ", ".join(told[:_COLUMNS_SHOWN]) + more


def _shown(value: str) -> str:
    return value if len(value) <= _VALUE_SHOWN else value[:_VALUE_SHOWN] + "…"


def located(error: Refused, after_ts: int, through_ts: int) -> Refused:
    """Return the error with the batch it came from, and with ways to go on."""
    return Refused(
        f"{error.problem}; this is in the batch of the transactions after commit_ts {after_ts}"
        f" and up to {through_ts}, and nothing behind that was applied",
        hint=f"{error.hint}; then start the Drainer again. Or leave the whole transaction out with"
        " ignore-txn-commit-ts: its rows are missing downstream then, and are counted. With"
        " --batch-rows-max 1 each batch is one transaction, and the commit_ts it goes up to is"
        " that one's",
    )
