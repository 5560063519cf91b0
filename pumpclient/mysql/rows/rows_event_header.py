"""The header of a rows event: its table, the columns of its images, and their offset.

6   table id; 4 where its post-header length is 6
2   flags
2   version 2 only: bytes of extra data, these two included; then the data
n   how many columns, length-encoded
…   a bit for each column, lowest first: the images have it; an update has this twice
…   images to the end; in MariaDB's compressed events one compressed block of them

image           a bit for each column that it has (NULL), then the values that are not NULL
insert, delete  one image a row; an update has two, the row before and after
partial update  before the second image: value options (length-encoded); when they have bit 0,
                a bit for each JSON column of the table: its value is a list of changes
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple, Self

from pumpclient.mysql.events.compressed import decompress_block
from pumpclient.mysql.events.field_reader import BodyReader, pack_number, pack_uint
from pumpclient.mysql.events.frame import ROWS_TYPES, EventType
from pumpclient.mysql.rows.table_map import TABLE_ID_SIZE

STMT_END = 0x1
"""The flag of a statement's last rows event: all table ids become invalid after it."""
_EXTRA_SIZE = 2


class Kind(Enum):
    """How a rows event changes its rows."""

    INSERT = "insert"
    UPDATE = "update"
    DELETE = "delete"


class Layout(NamedTuple):
    """The layout of an event's body, by its type."""

    kind: Kind
    has_extra: bool
    is_compressed: bool
    is_partial: bool = False


def _layout(type_: EventType) -> Layout:
    name = type_.name
    kind = next(kind for kind in Kind if kind.name in name.replace("WRITE", "INSERT"))
    has_extra = not (name.startswith("PRE_GA") or name.endswith("V1"))
    return Layout(kind, has_extra, "COMPRESSED" in name, name.startswith("PARTIAL"))


LAYOUTS: dict[int, Layout] = {type_: _layout(type_) for type_ in ROWS_TYPES}
"""Every type of rows event."""


def bitmap_size(count: int) -> int:
    return (count + 7) // 8


@dataclass(frozen=True, slots=True)
class RowsEvent:
    """A decoded rows event; `images` are not compressed.

    `before` and `after` are bitmaps as numbers: the columns that the images have. An insert has
    only `after`, a delete only `before`; the missing bitmap is None.
    """

    type: EventType
    table_id: int
    width: int
    before: int | None
    after: int | None
    images: bytes
    flags: int = STMT_END
    extra: bytes = b""

    @classmethod
    def decode(cls, type_: EventType, data: bytes, *, id_size: int = TABLE_ID_SIZE) -> Self:
        """Decode an event body; raise `Malformed` if it is invalid."""
        layout = LAYOUTS[type_]
        body = BodyReader(data, type_.name)
        table_id, flags = body.uint(id_size), body.uint(2)
        extra = b""
        if layout.has_extra:
            size = body.uint(_EXTRA_SIZE)
            if size < _EXTRA_SIZE:
                raise body.malformed(f"{size} bytes of extra data, which counts itself")
            extra = body.take(size - _EXTRA_SIZE)
        width = body.packed()
        mask = (1 << width) - 1 if width <= body.left * 8 else 0
        bitmaps = [
            body.uint(bitmap_size(width)) & mask for _ in range(1 + (layout.kind is Kind.UPDATE))
        ]
        images = body.rest()
        if layout.is_compressed:
            images = decompress_block(images)
        before = None if layout.kind is Kind.INSERT else bitmaps[0]
        after = None if layout.kind is Kind.DELETE else bitmaps[-1]
        return cls(type_, table_id, width, before, after, images, flags, extra)

    @property
    def layout(self) -> Layout:
        return LAYOUTS[self.type]


def usual_heads(width: int) -> dict[int, tuple[Kind, bytes]]:
    """Return, by type, the bytes after id and flags in the usual event; it has `width` columns.

    Its images have all columns, and are neither compressed nor partial; it has no extra data.
    """
    columns = pack_number(width)
    bitmap = pack_uint((1 << width) - 1, bitmap_size(width))
    heads = {}
    for type_, layout in LAYOUTS.items():
        if not layout.is_compressed and not layout.is_partial:
            extra = pack_uint(_EXTRA_SIZE, _EXTRA_SIZE) if layout.has_extra else b""
            bitmaps = bitmap * (1 + (layout.kind is Kind.UPDATE))
            heads[type_] = layout.kind, extra + columns + bitmaps
    return heads
