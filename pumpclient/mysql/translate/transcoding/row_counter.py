"""Rows that are left out are stepped over and counted, whatever can be read of them. Pure.

A table may be left out because its TABLE_MAP, its types or its images cannot be followed, so no
more is asked of an event than its count needs: not a column's sign, charset or name, nor that the
images are whole. What even so cannot be counted is an event with an unknown number of rows.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property

from penstock.errors import PenstockError
from pumpclient.mysql.events.field_reader import BodyReader
from pumpclient.mysql.events.frame import EventType
from pumpclient.mysql.rows.column_types import reading_of
from pumpclient.mysql.rows.columns import Column, WireType
from pumpclient.mysql.rows.generator import ReadRows, read_rows
from pumpclient.mysql.rows.rows_event import Kind, RowsEvent, bitmap_size
from pumpclient.mysql.rows.table_map import TableMap
from pumpclient.mysql.rows.values.reading import Reading

_BINARY = 63
_PARTIAL_JSON = 0x1
_UNREADABLE = (PenstockError, LookupError, ValueError, ArithmeticError, struct.error)


class LeftOutRows:
    """Counts the rows of one table; stands where the transcoder of a followed table stands."""

    def __init__(
        self, name: tuple[str, str], table_map: Callable[[], TableMap], id_size: int
    ) -> None:
        """`table_map` returns the table's TABLE_MAP, or raises for one that cannot be decoded."""
        self.name = name
        self._table_map = table_map
        self._id_size = id_size

    def count(self, type_: int, body: bytes) -> int | None:
        """Return how many rows an event changes, None when its bytes do not show it."""
        try:
            return self._count(RowsEvent.decode(EventType(type_), body, id_size=self._id_size))
        except _UNREADABLE:
            return None

    @cached_property
    def _readings(self) -> Sequence[Reading]:
        return [reading_of(_with_size(column)) for column in self._table_map().columns]

    @cached_property
    def _json_count(self) -> int:
        return sum(column.type is WireType.JSON for column in self._table_map().columns)

    @cached_property
    def _step_whole(self) -> ReadRows:
        return read_rows(self._readings, (), ".".join(self.name))

    def _count(self, event: RowsEvent) -> int:
        full = (1 << len(self._readings)) - 1
        if {event.before, event.after} <= {None, full} and not event.layout.is_partial:
            count = len(self._step_whole(event.images, 0))
            return count // 2 if event.layout.kind is Kind.UPDATE else count
        images = BodyReader(event.images, f"rows of {'.'.join(self.name)}")
        count = 0
        while images.left:
            if event.before is not None:
                self._step(images, event.before)
            if event.after is not None:
                if event.layout.is_partial and images.packed() & _PARTIAL_JSON:
                    images.uint(bitmap_size(self._json_count))
                self._step(images, event.after)
            count += 1
        return count

    def _step(self, images: BodyReader, present: int) -> None:
        nulls = images.uint(bitmap_size(present.bit_count()))
        for index, reading in enumerate(self._readings):
            if not present >> index & 1:
                continue
            is_null, nulls = nulls & 1, nulls >> 1
            if not is_null:
                images.take(images.uint(reading.prefix) if reading.prefix else reading.size)


def _with_size(column: Column) -> Column:
    """Return a column with what its reading wants to know and its size does not depend on."""
    return replace(column, is_unsigned=False, collation=_BINARY)
