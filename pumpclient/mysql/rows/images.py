"""Images value by value: for partial updates and whatever the generated decoder is not made for."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Any

from penstock.errors import NeedsOperator
from pumpclient.mysql.events.field_reader import BodyReader
from pumpclient.mysql.rows.columns import Column, WireType
from pumpclient.mysql.rows.rows_event import RowsEvent, bitmap_size
from pumpclient.mysql.rows.values.json_binary import read_json, text_of
from pumpclient.mysql.rows.values.json_diff import (
    apply_changes,
    read_changes,
)
from pumpclient.mysql.rows.values.reading import Reading

_PARTIAL_JSON = 0x1
Row = tuple[Any, ...]


def value_reader(reading: Reading) -> Callable[[bytes], Any]:
    """Return a function from a value's bytes, its length in front left out, to the value."""
    if reading.prefix:
        source = f"lambda raw: {reading.value('raw')}"
        return eval(source, dict(reading.names))  # type: ignore[no-any-return]
    layout = struct.Struct("<" + "".join(reading.codes))
    raw = [f"r{n}" for n in range(len(reading.codes))]
    inner = eval(f"lambda {', '.join(raw)}: {reading.value(*raw)}", dict(reading.names))
    return lambda data: inner(*layout.unpack(data))


class ImageReader:
    """Reads the images of one table, whichever columns they have."""

    def __init__(
        self,
        name: str,
        columns: Sequence[Column],
        readings: Sequence[Reading],
        optional: frozenset[int] = frozenset(),
    ) -> None:
        """Of the columns that are `optional` a row without its value has None."""
        self._optional = optional
        self._name = name
        self._columns = columns
        self._readings = readings
        self._values = [value_reader(reading) for reading in readings]
        self._json = [n for n, c in enumerate(columns) if c.type is WireType.JSON]

    def changes(self, event: RowsEvent) -> list[tuple[Row | None, Row | None]]:
        """Return the rows before and after.

        A column that only the image after lacks keeps its value (`binlog_row_image=FULL_NODUP`).
        Raises `NeedsOperator` when a row cannot be made whole.
        """
        body = BodyReader(event.images, f"rows of {self._name}")
        out: list[tuple[Row | None, Row | None]] = []
        while body.left:
            before = after = None
            old: list[bytes | None] = [None] * len(self._columns)
            if event.before is not None:
                self._check(event.before)
                old = self._slices(body, event.before, old)
                before = self._row(old)
            if event.after is not None:
                if before is None:
                    self._check(event.after)
                after = self._after(body, event, old)
            out.append((before, after))
        return out

    def _check(self, present: int) -> None:
        absent = (n for n in range(len(self._columns)) if not present >> n & 1)
        missing = [n for n in absent if n not in self._optional]
        if missing:
            raise NeedsOperator(
                f"the images of {self._name} do not have its columns {missing}",
                hint="set the server's binlog_row_image to FULL, and reconnect its clients",
            )

    def _after(self, body: BodyReader, event: RowsEvent, old: list[bytes | None]) -> Row:
        assert event.after is not None, "the caller checked"
        partial: set[int] = set()
        if event.layout.is_partial and body.packed() & _PARTIAL_JSON:
            bits = body.uint(bitmap_size(len(self._json)))
            partial = {column for n, column in enumerate(self._json) if bits >> n & 1}
        new = self._slices(body, event.after, old)
        row = list(self._row([None if n in partial else raw for n, raw in enumerate(new)]))
        for n in partial:
            raw, base = new[n], old[n]
            if raw is None or base is None or not event.after >> n & 1:
                raise body.malformed(f"changes of column {n}, which has no value")
            row[n] = text_of(apply_changes(read_json(base), read_changes(raw)))
        return tuple(row)

    def _slices(
        self, body: BodyReader, present: int, absent: Sequence[bytes | None]
    ) -> list[bytes | None]:
        """Return the bytes of each column, None for NULL; missing ones from `absent`."""
        nulls = body.uint(bitmap_size(present.bit_count()))
        out: list[bytes | None] = []
        for index, reading in enumerate(self._readings):
            if not present >> index & 1:
                out.append(absent[index])
                continue
            is_null, nulls = nulls & 1, nulls >> 1
            if is_null:
                out.append(None)
            elif reading.prefix:
                out.append(body.take(body.uint(reading.prefix)))
            else:
                out.append(body.take(reading.size))
        return out

    def _row(self, raw: Sequence[bytes | None]) -> Row:
        return tuple(
            None if data is None else read(data)
            for read, data in zip(self._values, raw, strict=True)
        )
