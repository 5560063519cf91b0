"""JSON row: the columns of a table as members of one JSON object, compiled once per table.

The standard library escapes texts. Characters beyond ASCII stay unescaped, so that a message is as
short as UTF-8 allows.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable, Iterator, Sequence
from json import JSONEncoder
from json.encoder import encode_basestring
from typing import Any, NamedTuple

import numpy as np

from drainer.task.events.messages import RowEvent, Values
from drainer.task.events.topics.destination import Destination, KeyColumn
from drainer.task.sql.rows import is_written
from penstock.schema.model import ColumnInfo, MysqlType, TableInfo

Row = tuple[Any, ...]
Text = Callable[[Any], str]
"""A value other than NULL as JSON."""

NUMBERS = frozenset({MysqlType.TINY, MysqlType.SHORT, MysqlType.INT24, MysqlType.LONG,
                     MysqlType.LONGLONG, MysqlType.YEAR, MysqlType.BIT})  # fmt: skip
"""Columns whose values are integers."""

quoted: Callable[[str], str] = encode_basestring
"""A text as a JSON string."""


class JsonColumn(NamedTuple):
    """A written column: its position in a row, its name as JSON, the conversion of its values."""

    at: int
    head: str
    text: Text


class JsonRow:
    """Writes rows of one table version."""

    def __init__(self, table: TableInfo, text_of: Callable[[ColumnInfo], Text]) -> None:
        self.columns = tuple(
            JsonColumn(at, f"{quoted(column.name)}:", text_of(column))
            for at, column in enumerate(table.columns)
            if is_written(column)
        )
        self._constants = [f"{quoted(name)}:{quoted(text)}" for name, text in table.constants]
        self._texts = {column.at: column.text for column in self.columns}

    def whole(self, row: Row) -> str:
        return _object(_members(self.columns, row) + self._constants)

    def changed(self, before: Row, after: Row) -> str:
        differing = [column for column in self.columns if before[column.at] != after[column.at]]
        return _object(_members(differing, before))

    def key(self, row: Row, key: Sequence[KeyColumn], prefix: str = "") -> bytes:
        """Return the key of a message: equal keys of rows are equal bytes.

        Names of columns begin with `prefix`.
        """
        texts = self._texts
        members = [
            f"{quoted(prefix + each.column.name)}:{texts[each.at](each.value(row))}" for each in key
        ]
        return _object(members).encode()

    def some(self, row: Row, positions: Iterable[int]) -> str:
        wanted = frozenset(positions)
        return _object(_members((each for each in self.columns if each.at in wanted), row))


def written_columns(table: TableInfo) -> list[ColumnInfo]:
    return [column for column in table.columns if is_written(column)]


def _members(columns: Iterable[JsonColumn], row: Row) -> list[str]:
    # Most of a task's time is spent here: each column's only call writes its value.
    return [
        head + ("null" if (value := row[at]) is None else text(value)) for at, head, text in columns
    ]


def _object(members: Iterable[str]) -> str:
    return "{" + ",".join(members) + "}"


json_text: Callable[[Any], str] = JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
"""Any value as JSON, as short as possible."""


def base64_text(value: bytes) -> str:
    return f'"{base64.b64encode(value).decode()}"'


def positional(column: ColumnInfo) -> Text:
    """Return a writer of floats without exponent, in as few digits as identify them."""
    kind = np.float32 if column.tp is MysqlType.FLOAT else np.float64
    digits = shortest(column)

    def text(value: float) -> str:
        written = digits(value)
        if "e" in written:
            return np.format_float_positional(kind(value), trim="-")
        return written.removesuffix(".0")

    return text


def shortest(column: ColumnInfo) -> Text:
    """Return a writer of floats as JSON numbers, in as few digits as identify them."""
    if column.tp is MysqlType.FLOAT:
        return lambda value: str(np.float32(value))
    return float.__repr__


Change = tuple[str, Values | None, Values]
"""Type of message, the row before if it is included, and the row."""


def changes_of(event: RowEvent, destination: Destination) -> Iterator[Change]:
    """Yield a change's messages: two if the row's key changes and destinations use the key."""
    before, after = event.before, event.after
    if before is None:
        assert after is not None, "a change has a row before or after"
        yield "INSERT", None, after
    elif after is None:
        yield "DELETE", None, before
    elif destination.goes_by_key and destination.moves(before, after):
        yield "DELETE", None, before
        yield "INSERT", None, after
    else:
        yield "UPDATE", before, after
