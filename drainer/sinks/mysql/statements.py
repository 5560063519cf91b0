"""Statements: runs the statements of rows; of a refused statement, names the row.

An upsert that `drainer.task.sql.upserts` guards fails if it finds a row with another key. It also
fails if it conflicts with two rows. The server names at best a value, so this module reads the rows
in the transaction that is about to end, and names both of them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import pymysql
from pymysql.constants import ER

from drainer.sinks.mysql.session import (
    OUT_OF_RANGE,
    Connection,
    code_of,
    many,
    one,
    passes,
    refused,
)
from drainer.sinks.protocol import Refused, pairs, row_of
from penstock import refused_inserts
from penstock.codes import Code
from penstock.ddl.syntax.lexer import quote_name

_CONFLICTS = (OUT_OF_RANGE, ER.DUP_ENTRY)

_UPSERT = " ON DUPLICATE KEY UPDATE "
_GUARD = re.compile(r"`(?:[^`]|``)+`=IF\((.*?) OR 1\+LENGTH\(")
_GUARD_SUM = str((1 << 64) - 1)
_TEXT = re.compile(r"CAST\((`(?:[^`]|``)+`) AS BINARY\)=")
_INDEX, _COLUMN, _PREFIX = 2, 4, 7
"""Columns of SHOW INDEX."""
_COMPARE = (
    "one of the two is not as upstream has it: compare the tables, and repair or delete that row;"
    " or let it be replaced with strategy statements and safe-mode"
)
_FINER = (
    "the downstream takes two values for equal that upstream tells apart: give the column there a"
    " collation that compares as upstream's does, or one that ends in _bin; nothing was changed"
)

_Parts = list[tuple[str, int | None]]
"""The quoted columns of an index, each with its number of indexed characters, None for all."""
_Row = dict[str, str]


def query(connection: Connection, statement: str | bytes) -> int:
    try:
        return int(connection.query(statement))
    except pymysql.err.MySQLError as error:
        may_be = code_of(error) in refused_inserts.CODES
        changed = refused_inserts.written(connection, statement) if may_be else None
        if changed is None:
            raise
        return changed


def run(connection: Connection, statement: str | bytes) -> None:
    """Run a multi-row statement; raise `Refused`, naming the row where it is known."""
    try:
        query(connection, statement)
    except pymysql.err.MySQLError as error:
        if passes(error):
            raise
        conflicting = _met(connection, statement) if code_of(error) in _CONFLICTS else None
        if conflicting is not None:
            raise conflicting from error
        text = statement if isinstance(statement, str) else statement.decode(errors="replace")
        is_guarded = _GUARD.match(text.rpartition(_UPSERT)[2]) is not None
        # A generated column that is out of range has the same code.
        if is_guarded and error.args[0] == OUT_OF_RANGE and _GUARD_SUM in str(error):
            raise Refused(
                f"an upsert of {row_of(statement, '').removeprefix('a row of ')} met another row"
                " than its own, which is not found any more",
                hint="start the Drainer again; if it comes back, compare the tables' unique"
                " indexes",
                code=Code.SINK_REFUSES,
            ) from error
        raise refused(error, row_of(statement, str(error))) from error


def _met(connection: Any, statement: str | bytes) -> Refused | None:
    text = statement if isinstance(statement, str) else statement.decode(errors="replace")
    guard = _GUARD.match(text.rpartition(_UPSERT)[2])
    found = refused_inserts.inserted(text)
    if found is None or guard is None:
        return None
    table, names, values = found
    key = list(dict.fromkeys(refused_inserts.names_in(guard[1])))
    texts = frozenset(_TEXT.findall(guard[1]))
    rows = [dict(zip(names, row, strict=False)) for row in values]
    indexes: dict[str, _Parts] = {}
    for part in many(connection, f"SHOW INDEX FROM {table} WHERE Non_unique = 0"):
        name = "" if part[_COLUMN] is None else quote_name(part[_COLUMN])
        indexes.setdefault(part[_INDEX], []).append((name, part[_PREFIX]))
    for row in rows:
        for index, parts in indexes.items():
            other = _other(connection, table, key, texts, row, parts)
            if other is not None:
                what = f"{table} holds a value of the row"
                return _refused(what, index, parts, dict(zip(key, other, strict=True)), row, key)
    for index, parts in indexes.items():
        pair = _pair(connection, table, rows, parts)
        if pair is not None:
            what = f"{table}, which upstream changed at the same time, has a value of the row"
            return _refused(what, index, parts, *pair, key)
    return None


def _refused(
    what: str, index: str, parts: _Parts, one: _Row, two: _Row, key: Sequence[str]
) -> Refused:
    held = [name for name, _ in parts]
    is_key = set(held) <= set(key)
    return Refused(
        f"the downstream's row {pairs(key, [one[name] for name in key])} of {what}"
        f" {pairs(key, [two[name] for name in key])}: {index} is unique, and the latter"
        f" is to have {pairs(held, [two[name] for name in held])}",
        hint=_FINER if is_key or "at the same time" in what else _COMPARE,
        code=Code.SINK_REFUSES,
    )


def _collides(row: _Row, parts: _Parts) -> bool:
    return all(row.get(name, "NULL") != "NULL" for name, _ in parts)


def _other(
    connection: Any, table: str, key: Sequence[str], texts: frozenset[str], row: _Row, parts: _Parts
) -> list[str] | None:
    if not _collides(row, parts):
        return None
    same = " AND ".join(
        f"LEFT({name},{length})=LEFT({row[name]},{length})" if length else f"{name}={row[name]}"
        for name, length in parts
    )
    mine = " AND ".join(
        f"CAST(CONVERT({name} USING utf8mb4) AS BINARY)<=>CAST({row[name]} AS BINARY)"
        if name in texts
        else f"{name}<=>{row[name]}"
        for name in key
    )
    asked = f"SELECT {','.join(key)} FROM {table} WHERE {same} AND NOT ({mine}) LIMIT 1"  # noqa: S608
    found = one(connection, asked)
    return None if found is None else [connection.escape(value) for value in found]


def _pair(
    connection: Any, table: str, rows: Sequence[_Row], parts: _Parts
) -> tuple[_Row, _Row] | None:
    names = [name for name, _ in parts]
    lines = [
        f"SELECT {n},{','.join(row[name] for name in names)}"
        for n, row in enumerate(rows)
        if _collides(row, parts)
    ]
    if len(lines) < 2:
        return None
    # The table's own columns come first, so that their collations compare.
    columns = ",".join(f"{name} AS c{n}" for n, name in enumerate(names))
    own = f"SELECT -1 AS n,{columns} FROM {table} WHERE 1=0"  # noqa: S608
    made = " UNION ALL ".join([own, *lines])
    same = " AND ".join(
        f"LEFT(a.c{n},{length})=LEFT(b.c{n},{length})" if length else f"a.c{n}=b.c{n}"
        for n, (_, length) in enumerate(parts)
    )
    both = f"({made}) a JOIN ({made}) b"
    found = one(connection, f"SELECT a.n, b.n FROM {both} ON a.n < b.n AND {same} LIMIT 1")  # noqa: S608
    return None if found is None else (rows[found[0]], rows[found[1]])
