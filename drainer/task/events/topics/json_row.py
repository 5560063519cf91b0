"""JSON row: the columns of a table as members of one JSON object, compiled once per table.

Texts are written by the standard library's own escaping; characters beyond ASCII stay as they are,
so that a message is as short as UTF-8 allows.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable, Sequence
from json import dumps
from json.encoder import encode_basestring
from typing import Any, NamedTuple

import numpy as np

from drainer.task.events.topics.destination import KeyColumn
from drainer.task.sql.keys import is_written
from penstock.schema.model import ColumnInfo, MysqlType, TableInfo

Row = tuple[Any, ...]
Text = Callable[[Any], str]
"""A value that is not NULL as JSON."""

quoted: Callable[[str], str] = encode_basestring
"""A text as a JSON string."""


class JsonColumn(NamedTuple):
    """A column that is written: where it is in a row, its name as JSON, how its values are JSON."""

    at: int
    head: str
    text: Text

    def member(self, row: Row) -> str:
        """Return its member of the object."""
        value = row[self.at]
        return self.head + ("null" if value is None else self.text(value))


class JsonRow:
    """Writes rows of one table version."""

    def __init__(self, table: TableInfo, text_of: Callable[[ColumnInfo], Text]) -> None:
        """Take how the values of a column are written."""
        self.columns = tuple(
            JsonColumn(at, f"{quoted(column.name)}:", text_of(column))
            for at, column in enumerate(table.columns)
            if is_written(column)
        )
        self._constants = tuple(f"{quoted(name)}:{quoted(text)}" for name, text in table.constants)

    def whole(self, row: Row) -> str:
        """Return all columns, those that a route adds at the end."""
        return _object([*(column.member(row) for column in self.columns), *self._constants])

    def changed(self, before: Row, after: Row) -> str:
        """Return the values before of those columns that differ."""
        return _object(
            column.member(before)
            for column in self.columns
            if before[column.at] != after[column.at]
        )

    def key(self, row: Row, key: Sequence[KeyColumn], prefix: str = "") -> bytes:
        """Return the key of a message: equal keys of rows are equal bytes.

        Names of columns begin with `prefix`.
        """
        columns = {column.at: column for column in self.columns}
        return _object(
            f"{quoted(prefix + each.column.name)}:{columns[each.at].text(each.value(row))}"
            for each in key
        ).encode()

    def some(self, row: Row, positions: Iterable[int]) -> str:
        """Return the columns at some positions."""
        wanted = frozenset(positions)
        return _object(column.member(row) for column in self.columns if column.at in wanted)


def written_columns(table: TableInfo) -> list[ColumnInfo]:
    """Return the columns that messages have, in their order."""
    return [column for column in table.columns if is_written(column)]


def _object(members: Iterable[str]) -> str:
    return "{" + ",".join(members) + "}"


def json_text(value: Any) -> str:
    """Return any value as JSON, as short as it can be."""
    return dumps(value, ensure_ascii=False, separators=(",", ":"))


def base64_text(value: bytes) -> str:
    """Return bytes as a JSON string in base64."""
    return f'"{base64.b64encode(value).decode()}"'


def positional(column: ColumnInfo) -> Text:
    """Return what writes a float without an exponent, in as few digits as tell it apart."""
    kind = np.float32 if column.tp is MysqlType.FLOAT else np.float64
    return lambda value: str(np.format_float_positional(kind(value), trim="-"))


def shortest(column: ColumnInfo) -> Text:
    """Return what writes a float as a JSON number, in as few digits as tell it apart."""
    if column.tp is MysqlType.FLOAT:
        return lambda value: str(np.float32(value))
    return float.__repr__
