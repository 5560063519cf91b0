"""Tracks the tables that the numbers in rows events denote, and caches their transcoders.

Rows of a skipped table are counted without being decoded. A table may be skipped because its
TABLE_MAP, its types or its images cannot be followed. Therefore only the facts that a count needs
are required of an event: not a column's sign, charset or name, nor complete images. If even the
count is impossible, the result is an event with an unknown number of rows.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property, partial

from penstock.errors import Malformed, NeedsOperator, PenstockError
from pumpclient.mysql.events.field_reader import BodyReader
from pumpclient.mysql.events.frame import CHECKSUM_SIZE, HEADER_SIZE, Checksum, EventType
from pumpclient.mysql.gtid import Flavor
from pumpclient.mysql.rows.column_types import reading_of
from pumpclient.mysql.rows.reader_code import ReadRows, read_rows
from pumpclient.mysql.rows.rows_event_header import STMT_END, Kind, RowsEvent, bitmap_size
from pumpclient.mysql.rows.table_map import NO_TABLE, Column, TableMap, WireType, names_of
from pumpclient.mysql.rows.values.reading import Reading
from pumpclient.mysql.translate.outputs import Refused, RowsLeftOut, TableChanges
from pumpclient.mysql.translate.transcoding.sequences import SequenceRows
from pumpclient.mysql.translate.transcoding.transcode import Transcoder

_BINARY = 63
_PARTIAL_JSON = 0x1
_UNREADABLE = (PenstockError, LookupError, ValueError, ArithmeticError, struct.error)


class LeftOutRows:
    """Counts the rows of a skipped table; used in place of its transcoder."""

    def __init__(
        self, name: tuple[str, str], table_map: Callable[[], TableMap], id_size: int
    ) -> None:
        """`table_map` returns the table's TABLE_MAP, or raises if it cannot be decoded."""
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
    return replace(column, is_unsigned=False, collation=_BINARY)


_KEPT_MAX = 4096

Choose = Callable[[TableMap], Transcoder | SequenceRows | None]
"""A table's current transcoder, None if its rows are not wanted; called once for each map."""

IsLeftOut = Callable[[str, str], bool]
"""Whether rows of a table, by schema and name, are counted instead of being followed."""


def nothing_left_out(schema: str, table: str) -> bool:
    return False


class MappedTables:
    """Follows TABLE_MAPs; numbers are valid until a statement ends, transcoders until `forget`."""

    def __init__(
        self, choose: Choose, id_size: int, is_left_out: IsLeftOut = nothing_left_out
    ) -> None:
        self._choose = choose
        self._is_left_out = is_left_out
        self._id_size = id_size
        self._rest_at = HEADER_SIZE + id_size
        self._no_table = NO_TABLE.to_bytes(id_size, "little")
        self._kept: dict[bytes, Transcoder | SequenceRows | LeftOutRows | None] = {}
        self.read_with(Checksum.NONE)
        self.statement_is_over()

    def read_with(self, checksum: Checksum) -> None:
        self._cut = -CHECKSUM_SIZE if checksum else None

    def forget(self) -> None:
        self._kept.clear()
        self.statement_is_over()

    def statement_is_over(self) -> None:
        self._of_id: dict[bytes, Transcoder | SequenceRows | LeftOutRows | None]
        self._of_id = {self._no_table: None}

    def take_map(self, event: bytes, flavor: Flavor, *, is_wanted: bool) -> None:
        number, rest = event[HEADER_SIZE : self._rest_at], event[self._rest_at : self._cut]
        if not is_wanted:
            self._of_id[number] = None
        elif rest in self._kept:
            self._of_id[number] = self._kept[rest]
        else:
            made = self._made(event[HEADER_SIZE : self._cut], flavor)
            if len(self._kept) >= _KEPT_MAX:
                self._kept.clear()
            self._of_id[number] = self._kept[rest] = made

    def leave_out(self, event: bytes, flavor: Flavor) -> None:
        """Take a TABLE_MAP whose rows are only counted until the statement ends."""
        made = self._left_out(event[HEADER_SIZE : self._cut], flavor)
        self._of_id[event[HEADER_SIZE : self._rest_at]] = made

    def name_of(self, event: bytes) -> tuple[str, str] | None:
        """Return the schema and table that a TABLE_MAP names, None if it is damaged."""
        try:
            return names_of(event[HEADER_SIZE : self._cut], self._id_size)
        except Malformed:
            return None

    def _made(self, body: bytes, flavor: Flavor) -> Transcoder | SequenceRows | LeftOutRows | None:
        if self._is_left_out(*names_of(body, self._id_size)):
            return self._left_out(body, flavor)
        return self._choose(TableMap.decode(body, flavor, id_size=self._id_size))

    def _left_out(self, body: bytes, flavor: Flavor) -> LeftOutRows:
        decode = partial(TableMap.decode, body, flavor, id_size=self._id_size)
        return LeftOutRows(names_of(body, self._id_size), decode, self._id_size)

    def rows(
        self, type_: int, event: bytes, is_skipped: Callable[[], bool] = bool
    ) -> tuple[TableChanges | RowsLeftOut, ...] | None:
        """Return the changes of a rows event, None when they are not wanted.

        Raises `KeyError` when no TABLE_MAP named its table. Errors of its transcoder are raised as
        `Refused`, unless `is_skipped` then returns that the event must be skipped.
        """
        body = event[HEADER_SIZE : self._cut]
        transcoder = self._of_id[body[: self._id_size]]
        if body[self._id_size] & STMT_END:
            self.statement_is_over()
        if transcoder is None:
            return None
        if isinstance(transcoder, LeftOutRows):
            return (RowsLeftOut(transcoder.name, transcoder.count(type_, body)),)
        try:
            if isinstance(transcoder, SequenceRows):
                transcoder.take(type_, body)
                return None
            if transcoder.is_versioned:
                return tuple(
                    TableChanges(transcoder, each) for each in transcoder.steps(type_, body)
                )
            return (TableChanges(transcoder, transcoder.changes(type_, body)),)
        except NeedsOperator as error:
            found = transcoder.table_map
            name = found.schema, found.table
            if not is_skipped():
                raise Refused(error, name) from error
            counter = LeftOutRows(name, lambda: found, self._id_size)
            return (RowsLeftOut(name, counter.count(type_, body)),)
