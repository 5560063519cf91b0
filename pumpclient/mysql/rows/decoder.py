"""From rows events to values, by a decoder that is made for each table map and kept.

`decoder_for` generates one (see `generator`); `TableMaps` keeps them for a stream. A value is

    int      integers, BIT, YEAR, ENUM and SET (numbers; `Column.labels` has their texts)
    float    FLOAT by its shortest digits, DOUBLE
    Decimal  DECIMAL
    str      texts, dates and times, JSON as the server prints it, uuid, inet4, inet6
    bytes    BINARY, VARBINARY, BLOB, GEOMETRY (SRID and WKB)
    tuple    VECTOR

and None for NULL.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence

from penstock.errors import Malformed
from pumpclient.mysql.events.frame import EventType
from pumpclient.mysql.rows.column_types import reading_of
from pumpclient.mysql.rows.generator import read_rows
from pumpclient.mysql.rows.images import ImageReader, Row
from pumpclient.mysql.rows.rows_event import Kind, RowsEvent, usual_heads
from pumpclient.mysql.rows.table_map import TABLE_ID_SIZE, TableMap

Changes = list[tuple[Row | None, Row | None]]
"""A row before and after; None before an insert and after a delete."""

_KEPT_MAX = 4096
_HINT = "bytes of the event are lost, or its table was not what its TABLE_MAP says"


class Decoder:
    """Reads the rows events of one table; see `decoder_for`."""

    def __init__(
        self,
        table_map: TableMap,
        columns_wanted: Sequence[int] | None,
        id_size: int,
        optional: frozenset[int] = frozenset(),
    ) -> None:
        self.table_map = table_map
        self._optional = optional
        width = len(table_map.columns)
        if not width:
            raise Malformed(f"table {table_map.name} has no columns", hint=_HINT)
        self._readings = [reading_of(column) for column in table_map.columns]
        self._wanted = columns_wanted
        self._id_size = id_size
        wanted = range(width) if columns_wanted is None else columns_wanted
        self._read = read_rows(self._readings, wanted, table_map.name)
        self._images: ImageReader | None = None
        self._full = (1 << width) - 1
        # The usual event has these bytes behind id and flags, and needs no other look: then where
        # its images begin, and how its rows are paired.
        self._head_at = id_size + 2
        self._heads: dict[int, tuple[bytes, int, Callable[[list[Row]], Changes]]] = {}
        for type_, (kind, head) in usual_heads(width).items():
            self._heads[type_] = head, self._head_at + len(head), _PAIRS[kind]

    def changes(self, type_: int, body: bytes) -> Changes:
        """Return the rows of a whole rows event, before and after.

        Raises `Malformed` for bytes that are no rows of this table, and `NeedsOperator` when the
        images do not have all columns (`binlog_row_image` MINIMAL or NOBLOB).
        """
        try:
            known = self._heads.get(type_)
            if known is not None:
                head, images_at, paired = known
                if body.startswith(head, self._head_at):
                    return paired(self._read(body, images_at))
            return self._unusual(RowsEvent.decode(EventType(type_), body, id_size=self._id_size))
        except (LookupError, ValueError, ArithmeticError, struct.error) as error:
            raise Malformed(
                f"rows of {self.table_map.name} cannot be read: {error}", hint=_HINT
            ) from error

    def _unusual(self, event: RowsEvent) -> Changes:
        """Read what is compressed, partial, has extra data, or is not there in full."""
        if event.width != len(self._readings):
            raise ValueError(f"{event.width} columns where the map has {len(self._readings)}")
        bitmaps = (event.before, event.after)
        if all(b in (None, self._full) for b in bitmaps) and not event.layout.is_partial:
            return _PAIRS[event.layout.kind](self._read(event.images, 0))
        if self._images is None:
            columns = self.table_map.columns
            name = self.table_map.name
            self._images = ImageReader(name, columns, self._readings, self._optional)
        changes = self._images.changes(event)
        if self._wanted is None:
            return changes
        wanted = self._wanted
        return [
            (
                None if before is None else tuple(before[n] for n in wanted),
                None if after is None else tuple(after[n] for n in wanted),
            )
            for before, after in changes
        ]


def _inserted(rows: list[Row]) -> Changes:
    if len(rows) == 1:
        return [(None, rows[0])]
    return [(None, row) for row in rows]


def _deleted(rows: list[Row]) -> Changes:
    return [(row, None) for row in rows]


def _updated(rows: list[Row]) -> Changes:
    if len(rows) % 2:
        raise ValueError("a row before its update lacks the row after")
    return list(zip(rows[::2], rows[1::2], strict=True))


_PAIRS = {Kind.INSERT: _inserted, Kind.UPDATE: _updated, Kind.DELETE: _deleted}


def decoder_for(
    table_map: TableMap,
    columns_wanted: Sequence[int] | None = None,
    *,
    id_size: int = TABLE_ID_SIZE,
    optional: frozenset[int] = frozenset(),
) -> Decoder:
    """Return a decoder of a table's rows events; rows have the wanted columns only, in that order.

    Images may lack columns that are `optional`: these are None. Making a decoder takes about a
    millisecond for ten columns: keep it (`TableMaps` does). Raises `NeedsOperator` when the map
    does not tell signs and charsets: complete it (`completed`).
    """
    return Decoder(table_map, columns_wanted, id_size, optional)
