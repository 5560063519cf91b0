"""Walk: goes through all rows of a batch at once, column by column, and notes where values lie.

The rows of a batch differ in layout: an insert leaves out NULLs, so that five nullable columns
make 32 layouts. But all of them name their columns in the same order. So the walk goes through that
order and asks of each column: which rows come to it next?

    order        1          2          3
    row 0    [1][..]    [2][..]    [3][..]     all three
    row 1    [1][..]               [3][..]     2 is left out: not next at its turn
    row 2               [2][..]    [1][..]     out of order: left over

Rows that are not at their end after the last column are left over; the caller tries another order
on them or reads them row by row.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from penstock.datum import values
from penstock.datum.columnar.lanes import READERS, Bytes, Datums, Ints, Lanes, Mask, Words

MISSING, NULL, VALUE = 0, 1, 2
HEADER_BYTES_MAX = 7
"""A column's header and the flag after it must fit one eight-byte word."""

_ALL = slice(None)
Lane = slice | Ints
"""Which lanes: all of them as a slice, which numpy copies nothing for, or their numbers."""


class Cells:
    """One column of one image: per row whether there is a value, and its number or its slice."""

    __slots__ = ("raw", "size", "state")

    def __init__(self, count: int) -> None:
        self.state: Bytes = np.zeros(count, np.uint8)
        self.raw: Words = np.zeros(count, np.uint64)
        self.size: Ints = np.zeros(count, np.int64)

    def put(self, rows: Lane, datums: Datums, nulls: Mask | None) -> None:
        """Take the datums of these rows."""
        self.state[rows] = VALUE if nulls is None else np.where(nulls, NULL, VALUE)
        self.raw[rows] = datums.raw
        if datums.size is not None:
            self.size[rows] = datums.size

    def forget(self, rows: Ints) -> None:
        """Drop what was read of these rows."""
        self.state[rows] = MISSING


@dataclass(frozen=True, slots=True)
class Step:
    """One column of the order: the bytes that announce it, where its cells are, their flag."""

    header: bytes
    position: int
    flag: int


class Walk:
    """The lanes of some rows, each at its own position. A broken row stands at its end for good."""

    def __init__(self, lanes: Lanes, rows: Ints | None) -> None:
        self._lanes = lanes
        self._rows = rows
        self.at: Ints = (lanes.start if rows is None else lanes.start[rows]).copy()
        self._end = lanes.end if rows is None else lanes.end[rows]
        self.broken: Mask = np.zeros(len(self.at), np.bool_)

    def unfinished(self) -> Mask:
        """Return which rows are neither broken nor at their end."""
        unfinished: Mask = self.at != self._end
        return unfinished

    def read(self, flag: int, cells: Cells | None, lane: Lane = _ALL) -> None:
        """Read the next datum of these lanes, which must have this flag; NULL is not accepted."""
        at = self.at[lane]
        wrong = self._lanes.bytes[at] != flag
        self._take(lane, READERS[flag](self._lanes, at), wrong, None, cells)

    def cut(self, lane: Lane = _ALL) -> None:
        """Step over the next datum of these lanes, whatever it is."""
        flags = self._lanes.bytes[self.at[lane]]
        found = np.flatnonzero(np.bincount(flags, minlength=1))
        if len(found) == 1:
            self._cut(lane, int(found[0]))
            return
        numbers = np.arange(len(self.at))[lane]
        for flag in found:
            self._cut(numbers[flags == flag], int(flag))

    def _cut(self, lane: Lane, flag: int) -> None:
        if flag in READERS:
            self._take(lane, READERS[flag](self._lanes, self.at[lane]), None, None, None)
        else:
            self._break(lane, np.ones(len(self.at[lane]), np.bool_))

    def step(self, step: Step, cells: Cells | None) -> Lane | None:
        """Read one column of the rows that come to it next; return which these are."""
        lane, flags = self._next(step.header)
        if lane is None:
            return None
        self.at[lane] += len(step.header)
        if cells is None:
            self.cut(lane)
            return lane
        flags = flags[lane]
        datums = READERS[step.flag](self._lanes, self.at[lane])
        wrong = flags != step.flag
        if not wrong.any():
            self._take(lane, datums, None, None, cells)
            return lane
        nulls = flags == values.NULL_FLAG
        datums.next = np.where(nulls, self.at[lane] + 1, datums.next)
        if datums.broken is not None:
            datums.broken &= ~nulls
        self._take(lane, datums, wrong & ~nulls, nulls, cells)
        return lane

    def _next(self, header: bytes) -> tuple[Lane | None, Bytes]:
        """Return the lanes at this header, and for all lanes the byte that follows it."""
        bits = 8 * len(header)
        word = self._lanes.word(self.at)
        hit = (word & np.uint64((1 << bits) - 1)) == int.from_bytes(header, "little")
        hit &= self.at < self._end
        flags = (word >> np.uint64(bits)).astype(np.uint8)
        if hit.all():
            return _ALL, flags
        lane = np.flatnonzero(hit)
        return (lane if lane.size else None), flags

    def _take(
        self,
        lane: Lane,
        datums: Datums,
        wrong: Mask | None,
        nulls: Mask | None,
        cells: Cells | None,
    ) -> None:
        """Move on past the datums and keep them; whatever is amiss breaks its row."""
        broken = datums.next > self._end[lane]
        for amiss in (wrong, datums.broken):
            if amiss is not None:
                broken |= amiss
        if cells is not None:
            cells.put(lane if self._rows is None else self._rows[lane], datums, nulls)
        self.at[lane] = datums.next
        if broken.any():
            self._break(lane, broken)

    def _break(self, lane: Lane, broken: Mask) -> None:
        lost = np.arange(len(self.at))[lane][broken]
        self.at[lost] = self._end[lost]
        self.broken[lost] = True

    def refuse_nothing(self) -> None:
        """Break rows that end where their columns should begin; even no columns are a byte."""
        nothing = self.at == self._end
        if nothing.any():
            self._break(_ALL, nothing)

    def skip_empty(self) -> None:
        """Step over the zero byte that stands for a row without columns."""
        alone = np.flatnonzero(self.at + 1 == self._end)
        empty = alone[self._lanes.bytes[self.at[alone]] == 0]
        self.at[empty] += 1

    def columns(self, order: Sequence[Step], image: Mapping[int, Cells]) -> list[Lane | None]:
        """Read one row image in this order; return the lanes that had each column."""
        return [self.step(step, image.get(step.position)) for step in order]


def same_columns(before: Sequence[Lane | None], after: Sequence[Lane | None], count: int) -> Mask:
    """Return which rows had the same columns in both images."""
    same: Mask = np.ones(count, np.bool_)
    for old, new in zip(before, after, strict=True):
        if isinstance(old, slice) and isinstance(new, slice):
            continue
        in_old: Mask = np.zeros(count, np.bool_)
        in_new: Mask = np.zeros(count, np.bool_)
        if old is not None:
            in_old[old] = True
        if new is not None:
            in_new[new] = True
        same &= in_old == in_new
    return same
