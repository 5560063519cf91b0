"""Completes the rows that an application passes: matches names and fills in defaults.

    insert          a column that is not named takes its default, the same as in MySQL
    before image    every column is named: the old values cannot be guessed, and more than the key
                    is needed: a unique value that is given up is deleted before another row takes
                    it, and filters and readers of the stream may look at the row before
    after image     a column that is not named keeps its value from before, and
                    ON UPDATE CURRENT_TIMESTAMP columns take the time, the same as in MySQL

Rows are mappings by column name (case-insensitive) or sequences in the table's column order.
Generated columns may be omitted everywhere.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Final

from penstock.codes import Code
from penstock.datum.rows.defaults import parse_default
from penstock.datum.rows.row_codec import RowCodec
from penstock.errors import Malformed
from penstock.schema.model import PUBLIC, ColumnFlag, ColumnInfo, MysqlType, TableInfo

Row = Mapping[str, object] | Sequence[object]
Image = tuple[object, ...]
"""One value for each column of the table, in the table's order."""

_NOW: Final = re.compile(r"(current_timestamp|now|localtime|localtimestamp)(\(\d?\))?", re.I)


class Table:
    """One version of one table, ready to take rows."""

    def __init__(self, schema_name: str, info: TableInfo) -> None:
        self.schema_name = schema_name
        self.info = info
        self.codec = RowCodec(info)
        public = [c for c in info.columns if c.state == PUBLIC]
        self._names = [c.name for c in public]
        self._by_name = {c.name.lower(): c for c in public}
        self._all_public = len(public) == len(info.columns)
        self._defaults: dict[int, Callable[[], object]] = {}

    def inserted(self, row: Row) -> Image:
        """Return a new row with every column; raise `Malformed` if the row is invalid."""
        image = self._exact(row)
        if image is not None:
            return image
        given = self._by_id(row)
        return tuple(given[c.id] if c.id in given else self._default(c) for c in self.info.columns)

    def before(self, row: Row) -> Image:
        """Return the image of an existing row; raise `Malformed` if it is incomplete."""
        image = self._exact(row)
        if image is not None:
            return image
        given = self._by_id(row)
        missing = [
            c.name for c in self._by_name.values() if c.id not in given and not c.is_generated
        ]
        if missing:
            raise self._malformed(
                f"the image before the change lacks {', '.join(map(repr, missing))}",
                "name every column with the value it had, not the key alone: unique keys, filters"
                " and programs that read the stream need it; read the row before you change it",
            )
        return tuple(given.get(c.id) for c in self.info.columns)

    def after(self, before: Image, row: Row) -> Image:
        image = self._exact(row)
        if image is not None:
            return image
        given = self._by_id(row)
        old = zip(self.info.columns, before, strict=True)
        new = tuple(given.get(c.id, value) for c, value in old)
        if new == before:
            return new
        return tuple(
            _now(c) if ColumnFlag.ON_UPDATE_NOW in c.flag and c.id not in given else value
            for c, value in zip(self.info.columns, new, strict=True)
        )

    def carried(self, earlier: Table, image: Image) -> Image:
        given = {c.id: v for c, v in zip(earlier.info.columns, image, strict=True)}
        return tuple(given[c.id] if c.id in given else self._default(c) for c in self.info.columns)

    def _exact(self, row: Row) -> Image | None:
        if isinstance(row, Mapping):
            if len(row) != len(self._names) or not self._all_public:
                return None
            try:
                return tuple([row[name] for name in self._names])
            except KeyError:
                return None
        if isinstance(row, Sequence) and not isinstance(row, (str, bytes, bytearray)):
            if len(row) != len(self._names):
                raise self._malformed(
                    f"the row has {len(row)} values for {len(self._names)} columns",
                    f"the columns are {', '.join(self._names)}",
                )
            return tuple(row) if self._all_public else None
        raise self._malformed(
            f"a {type(row).__name__} is not a row", "give a mapping by column name or a sequence"
        )

    def _by_id(self, row: Row) -> dict[int, object]:
        if not isinstance(row, Mapping):
            return {c.id: v for c, v in zip(self._by_name.values(), row, strict=True)}
        given: dict[int, object] = {}
        for name, value in row.items():
            column = self._by_name.get(str(name).lower())
            if column is None:
                raise self._malformed(f"there is no column {name!r}", self._nearest(str(name)))
            if column.id in given:
                raise self._malformed(f"column {column.name!r} is given twice", "keep one of them")
            given[column.id] = value
        return given

    def _nearest(self, name: str) -> str:
        near = difflib.get_close_matches(name.lower(), self._by_name, n=1)
        if near:
            return f"did you mean {self._by_name[near[0]].name!r}?"
        return f"the columns are {', '.join(self._names)}"

    def _default(self, column: ColumnInfo) -> object:
        try:
            make = self._defaults[column.id]
        except KeyError:
            make = self._defaults[column.id] = self._default_maker(column)
        return make()

    def _default_maker(self, column: ColumnInfo) -> Callable[[], object]:
        if column.is_generated:
            return lambda: None
        if column.default is None:
            return self._maker_without_default(column)
        if _NOW.fullmatch(column.default):
            return lambda: _now(column)
        if column.default_is_expr:
            raise self._malformed(
                f"column {column.name!r} has no value and its default {column.default} is an"
                " expression",
                "give the value: expressions are computed by databases only",
            )
        value = parse_default(column, column.default)
        return lambda: value

    def _maker_without_default(self, column: ColumnInfo) -> Callable[[], object]:
        if column.state != PUBLIC or not column.is_not_null:
            return lambda: None
        if ColumnFlag.AUTO_INCREMENT in column.flag:
            hint = "give one: only a database counts AUTO_INCREMENT"
            raise self._malformed(f"column {column.name!r} has no value", hint)
        problem = f"column {column.name!r} has no value, is NOT NULL and has no default"
        raise self._malformed(problem, "give a value")

    def _malformed(self, problem: str, hint: str) -> Malformed:
        return Malformed(
            f"table {self.schema_name}.{self.info.name}: {problem}", hint, Code.ROW_REFUSED
        )


def _now(column: ColumnInfo) -> str:
    """Return the time in UTC, as everywhere in Penstock, at the column's precision."""
    now = datetime.now(UTC)
    if column.tp is MysqlType.DATE:
        return now.strftime("%Y-%m-%d")
    text = now.strftime("%Y-%m-%d %H:%M:%S.%f")
    digits = max(column.decimal, 0)
    return text[: 20 + digits] if digits else text[:19]
