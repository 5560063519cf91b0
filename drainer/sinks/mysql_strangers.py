"""Whose unique value an upsert met: a row of the downstream that is not the one that was meant.

An upsert that `drainer.apply.sql` guards fails when it finds a row with another key, and so does
one that has two rows in its way. The server tells at best a value; which rows these are is asked
for here, in the transaction that is about to end.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from pymysql.constants import ER

from drainer.sinks.refusal import Refused, inserted, names_in, pairs
from penstock.ddl.lexer import quote_name

OUT_OF_RANGE = 1690
"""What a guard answers, see `drainer.apply.sql`; so may the downstream's own arithmetic."""
CODES = (OUT_OF_RANGE, ER.DUP_ENTRY)

_UPSERT = " ON DUPLICATE KEY UPDATE "
_GUARD = re.compile(r"`(?:[^`]|``)+`=IF\((.*?) OR 1\+LENGTH\(")
_INDEX, _COLUMN, _PREFIX = 2, 4, 7
"""Columns of SHOW INDEX."""

_Parts = list[tuple[str, int | None]]
"""The quoted columns of an index, with how many characters of each count, None for all."""


def met(connection: Any, statement: str | bytes) -> Refused | None:
    """Return what to tell the operator when a guarded upsert met another row, None when not."""
    text = statement if isinstance(statement, str) else statement.decode(errors="replace")
    guard = _GUARD.match(text.rpartition(_UPSERT)[2])
    found = inserted(text)
    if found is None or guard is None:
        return None
    table, names, rows = found
    key = list(dict.fromkeys(names_in(guard[1])))
    indexes = _unique_indexes(connection, table)
    for values in rows:
        row = dict(zip(names, values, strict=False))
        for index, parts in indexes.items():
            other = _other(connection, table, key, row, parts)
            if other is not None:
                held = [name for name, _ in parts]
                return Refused(
                    f"the downstream's row {pairs(key, other)} of {table} holds a value of the row"
                    f" {pairs(key, [row[name] for name in key])}: {index} is unique, and the latter"
                    f" is to have {pairs(held, [row[name] for name in held])}",
                    hint="one of the two is not as upstream has it: compare the tables, and repair"
                    " or delete that row; or let it be replaced with strategy statements and"
                    " safe-mode",
                )
    return None


def _unique_indexes(connection: Any, table: str) -> dict[str, _Parts]:
    indexes: dict[str, _Parts] = {}
    with connection.cursor() as cursor:
        cursor.execute(f"SHOW INDEX FROM {table} WHERE Non_unique = 0")
        for row in cursor.fetchall():
            name = "" if row[_COLUMN] is None else quote_name(row[_COLUMN])
            indexes.setdefault(row[_INDEX], []).append((name, row[_PREFIX]))
    return indexes


def _other(
    connection: Any, table: str, key: Sequence[str], row: dict[str, str], parts: _Parts
) -> list[str] | None:
    """Return the key of a row that has these values under another key; None without one."""
    if any(row.get(name, "NULL") == "NULL" for name, _ in parts):
        return None  # NULLs do not collide; an index on an expression tells nothing here.
    same = " AND ".join(
        f"LEFT({name},{length})=LEFT({row[name]},{length})" if length else f"{name}={row[name]}"
        for name, length in parts
    )
    mine = " AND ".join(f"{name}<=>{row[name]}" for name in key)
    with connection.cursor() as cursor:
        cursor.execute(
            f"SELECT {','.join(key)} FROM {table} WHERE {same} AND NOT ({mine}) LIMIT 1"  # noqa: S608
        )
        found = cursor.fetchone()
    return None if found is None else [connection.escape(value) for value in found]
