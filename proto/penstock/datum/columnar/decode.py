"""Decodes the rows of a batch column by column, into Arrow arrays of stored values.

Four steps, each over all rows together: *walk* the rows and note where every value lies (`walk`),
in an order of columns that a `Plan` works out once per table version; *render* each column from
these notes (`render`); read all rows that the first two cannot handle *row by row* with the reader
that `RowCodec` also has; *patch* their values in. So a row gives the same values, or the same
`Malformed`, on either path.

    stored value    of which columns
    int64, uint64   integers and YEAR, by the column's unsigned flag
    uint64          BIT, ENUM (1-based number), SET (mask)
    double          FLOAT, DOUBLE
    string          text; DECIMAL with the column's scale; times as MySQL prints them; JSON text
    binary          BINARY, VARBINARY, BLOB, geometries

Texts of a batch with more than 2 GiB get Arrow's large types.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.codes import Code
from penstock.datum import values
from penstock.datum.columnar.render import arrow_type, handle_flag, render, row_flag
from penstock.datum.columnar.walk import (
    HEADER_BYTES_MAX,
    MISSING,
    NULL,
    Cells,
    Ints,
    Mask,
    RowBytes,
    Step,
    Walk,
    same_columns,
)
from penstock.datum.jsonb import TypedJson
from penstock.datum.rows.row_codec import (
    ROW_ID,
    Row,
    RowReader,
    Stored,
    handle_parts,
    handle_position,
    stored_columns,
)
from penstock.errors import Malformed
from penstock.schema.model import IndexColumn, TableInfo
from penstock.wire.binlog import MutationType

UNKNOWN = -1
"""The position of columns that are in a table's rows but unknown to the table."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The facts that are computed once per table version."""

    table: TableInfo
    reader: RowReader
    stored: dict[int, Stored]
    steps: dict[int, Step]
    handle: int | None
    parts: tuple[IndexColumn, ...]

    def order(self, kind: MutationType, sample: Sequence[int] = ()) -> list[Step]:
        """Return the steps in the order of `sample`, other columns after their predecessors."""
        ids = list(dict.fromkeys(sample))
        previous = -1
        for column_id in self.steps:
            if column_id not in ids:
                ids.insert(previous + 1, column_id)
            previous = ids.index(column_id)
        if kind is MutationType.INSERT and self.handle is not None:
            # The handle is that column's value, whatever the row says.
            handle_id = self.table.columns[self.handle].id
            ids = [column_id for column_id in ids if column_id != handle_id]
        steps = [self.steps.get(i) or Step(values.int_datum(i), UNKNOWN, 0) for i in ids]
        return [step for step in steps if len(step.header) <= HEADER_BYTES_MAX]


@lru_cache(maxsize=256)
def plan_of(table: TableInfo) -> Plan:
    """Return the plan of a table version; recent plans are cached."""
    stored = stored_columns(table)
    steps = {
        s.column.id: Step(values.int_datum(s.column.id), s.position, row_flag(s.column))
        for s in stored
    }
    parts = handle_parts(table)
    if handle_position(table) is None and not parts:
        steps[ROW_ID] = Step(values.int_datum(ROW_ID), UNKNOWN, 0)
    by_position = {s.position: s for s in stored}
    reader = RowReader(table, lambda field: field.store)
    return Plan(table, reader, by_position, steps, handle_position(table), parts)


ORDERS_MAX = 4
"""Maximum number of column orders tried on a batch; rows in no such order are read row by row."""
ROWS_WORTH_A_WALK = 64
"""With fewer rows left over, reading them one by one costs less than another walk."""

Image = dict[int, Cells]


@dataclass(frozen=True, slots=True)
class Images:
    """One array per requested column; `before` and `after` are None where no such row exists."""

    before: list[pa.Array] | None
    after: list[pa.Array] | None


class Side(Enum):
    """The wanted images of an update; other kinds have only one image."""

    BOTH = (True, True)
    BEFORE = (True, False)
    AFTER = (False, True)


def decode_columns(
    table: TableInfo,
    kind: MutationType,
    rows: pa.Array,
    positions: Sequence[int] | None = None,
    side: Side = Side.BOTH,
    *,
    marks_json: bool = False,
) -> Images:
    """Decode columns of rows of one kind; `positions` index `table.columns`, None means all.

    With `marks_json`, a document with types that text cannot express becomes `TypedJson.marked`.

    Equal to decoding row by row; raises `Malformed` if any row is malformed. Columns and images
    that were not requested are skipped, their values unchecked, and are None.
    """
    if positions is None:
        positions = range(len(table.columns))
    plan = plan_of(table)
    return _Batch(plan, kind, rows, positions, side=side, marks_json=marks_json).decode()


def decode_keys(
    table: TableInfo, kind: MutationType, rows: pa.Array
) -> tuple[list[pa.Array] | None, list[pa.Array] | None]:
    """Decode the columns of `table.row_key` without reading beyond them."""
    key = table.row_key
    assert key is not None, f"table {table.name!r} has no key that names its rows"
    positions = [part.offset for part in key.columns]
    plan = plan_of(table)
    for position in positions:
        if position not in plan.stored:
            # A key of NULLs would make all rows equal.
            raise Malformed(
                f"key column {table.columns[position].name!r} of {table.name!r} is not in its rows",
                "use a primary key of columns that are stored",
                Code.TABLE_KEY,
            )
    images = _Batch(plan, kind, rows, positions, keys_only=True).decode()
    return images.before, images.after


class _Batch:
    """The work of one call: the cells of the wanted columns, and the rows to be read one by one."""

    def __init__(
        self,
        plan: Plan,
        kind: MutationType,
        rows: pa.Array,
        positions: Sequence[int],
        *,
        side: Side = Side.BOTH,
        keys_only: bool = False,
        marks_json: bool = False,
    ) -> None:
        self._marks_json = marks_json
        self._plan = plan
        self._kind = kind
        self._rows = _checked(rows)
        self._positions = positions
        self._keys_only = keys_only
        self._data = RowBytes(self._rows)
        self._count = len(self._rows)
        self._odd: Mask = np.zeros(self._count, np.bool_)
        wanted = {p for p in positions if p in plan.stored}
        self._sides = side.value if kind is MutationType.UPDATE else (True,)
        self._images: list[Image] = [
            {p: Cells(self._count) for p in wanted} if asked else {} for asked in self._sides
        ]

    def decode(self) -> Images:
        self._walk()
        by_image = [
            self._render(image) if asked else None
            for image, asked in zip(self._images, self._sides, strict=True)
        ]
        self._patch(by_image)
        if self._kind is MutationType.UPDATE:
            return Images(by_image[0], by_image[1])
        is_insert = self._kind is MutationType.INSERT
        return Images(None, by_image[0]) if is_insert else Images(by_image[0], None)

    def _walk(self) -> None:
        """Fill the cells; rows that fit no order become odd."""
        rows: Ints | None = None
        order = self._plan.order(self._kind)
        for _ in range(ORDERS_MAX):
            left = self._walk_once(rows, order)
            if not left.size:
                return
            for image in self._images:
                for cells in image.values():
                    cells.forget(left)
            previous, order = order, self._learned(int(left[0]))
            if left.size < ROWS_WORTH_A_WALK or order in (previous, []):
                break
            rows = left
        self._odd[left] = True

    def _learned(self, row: int) -> list[Step]:
        is_insert = self._kind is MutationType.INSERT
        try:
            sample = self._plan.reader.column_ids(self._rows[row].as_py(), is_insert=is_insert)
        except Malformed:
            return []
        return self._plan.order(self._kind, sample)

    def _walk_once(self, rows: Ints | None, order: list[Step]) -> Ints:
        walk = Walk(self._data, rows)
        if self._kind is MutationType.INSERT:
            self._read_handle(walk)
            if self._keys_only and self._plan.handle is not None:
                left: Mask = np.zeros(len(walk.at), np.bool_)
                return self._settle(walk, rows, left)
            walk.refuse_nothing()
            walk.skip_empty()
        else:
            walk.refuse_nothing()
        if self._stops_early():
            return self._settle(walk, rows, self._walk_to_key(walk, order))
        had = walk.columns(order, self._images[0])
        if self._kind is MutationType.UPDATE:
            again = walk.columns(order, self._images[1])
            different = ~same_columns(had, again, len(walk.at))
            return self._settle(walk, rows, walk.unfinished() | different)
        return self._settle(walk, rows, walk.unfinished())

    def _settle(self, walk: Walk, rows: Ints | None, left: Mask) -> Ints:
        left &= ~walk.broken
        if rows is None:
            self._odd |= walk.broken
            return np.flatnonzero(left)
        self._odd[rows[walk.broken]] = True
        return rows[left]

    def _stops_early(self) -> bool:
        """True when a walk may stop after the last key column of a row.

        Not for an update, whose second image lies after all columns of the first, and not for an
        insert with a common handle, whose row may or may not repeat a key column.
        """
        in_row = self._kind is MutationType.DELETE or not self._plan.parts
        return self._keys_only and in_row and self._kind is not MutationType.UPDATE

    def _walk_to_key(self, walk: Walk, order: list[Step]) -> Mask:
        wanted = set(self._images[0])
        last = max(i for i, step in enumerate(order) if step.position in wanted)
        left: Mask = np.zeros(len(walk.at), np.bool_)
        for step, which in zip(
            order, walk.columns(order[: last + 1], self._images[0]), strict=False
        ):
            if step.position in wanted and not isinstance(which, slice):
                without: Mask = np.ones(len(walk.at), np.bool_)
                if which is not None:
                    without[which] = False
                left |= without
        return left

    def _read_handle(self, walk: Walk) -> None:
        plan, image = self._plan, self._images[0]
        if not plan.parts:
            walk.read(
                values.VARINT_FLAG, image.get(UNKNOWN if plan.handle is None else plan.handle)
            )
        for part in plan.parts:
            if part.length == -1:
                column = plan.table.columns[part.offset]
                walk.read(handle_flag(column), image.get(part.offset))
            else:
                walk.cut()

    def _render(self, image: Image) -> list[pa.Array]:
        """Return an array per wanted column with odd rows NULL; more rows may become odd."""
        arrays = []
        for position in self._positions:
            column = self._plan.table.columns[position]
            cells = image.get(position)
            if cells is None:
                arrays.append(pa.nulls(self._count, arrow_type(column)))
                continue
            cells.state[self._odd] = NULL
            array, bad = render(column, cells, self._data, marks_json=self._marks_json)
            if bad is not None:
                self._odd |= bad
            arrays.append(self._fill_missing(array, position, cells))
        return arrays

    def _fill_missing(self, array: pa.Array, position: int, cells: Cells) -> pa.Array:
        missing = (cells.state == MISSING) & ~self._odd
        if not missing.any():
            return array
        default = self._plan.reader.missing(position)
        if default is None:
            return array
        return pc.if_else(pa.array(missing), pa.scalar(default, array.type), array)

    def _patch(self, by_image: list[list[pa.Array] | None]) -> None:
        if not self._odd.any():
            return
        reader, raws = self._plan.reader, self._rows.filter(pa.array(self._odd)).to_pylist()
        if self._kind is MutationType.UPDATE:
            odd: list[tuple[Row, ...]] = [reader.update(raw) for raw in raws]
        else:
            read = reader.insert if self._kind is MutationType.INSERT else reader.delete
            odd = [(read(raw),) for raw in raws]
        mask = pa.array(self._odd)
        for i, arrays in enumerate(by_image):
            if arrays is None:
                continue
            for k, position in enumerate(self._positions):
                found = [images[i][position] for images in odd]
                if self._marks_json:
                    found = [v.marked if isinstance(v, TypedJson) else v for v in found]
                column = pa.array(found, arrays[k].type)
                arrays[k] = pc.replace_with_mask(arrays[k], mask, column)


def _checked(rows: pa.Array | pa.ChunkedArray) -> pa.Array:
    """Return the rows as a single array; `Malformed` unless every row holds bytes."""
    if isinstance(rows, pa.ChunkedArray):
        rows = rows.combine_chunks()
    if rows.type not in (pa.binary(), pa.large_binary()) or rows.null_count:
        raise Malformed(
            f"rows come as {rows.type} with {rows.null_count} NULLs",
            "hand over a binary array with the bytes of a row in every place",
            Code.BINLOG_UNDECODABLE,
        )
    return rows
