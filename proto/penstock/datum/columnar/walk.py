"""The walk: traverses all rows of a batch together, column by column, and notes value positions.

The rows of a batch differ in layout: an insert omits NULLs, so five nullable columns make 32
layouts. But all of them name their columns in the same order. The walk follows that order and
determines for each column the rows in which it comes next:

    order        1          2          3
    row 0    [1][..]    [2][..]    [3][..]     all three
    row 1    [1][..]               [3][..]     2 is missing: not next at its turn
    row 2               [2][..]    [1][..]     out of order: left over

Rows that are not at their end after the last column are left over; the caller tries another order
on them or reads them row by row.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from penstock.datum import values
from penstock.datum.columnar.reads import READERS, Bytes, Datums, Ints, Mask, RowBytes, Words

MISSING, NULL, VALUE = 0, 1, 2
HEADER_BYTES_MAX = 7
"""A column's header and the flag after it must fit one eight-byte word."""

_ALL = slice(None)
Which = slice | Ints
"""The rows meant: all of them as a slice, for which numpy copies nothing, or their numbers."""


class Cells:
    """One column of one image: per row whether it has a value, and its number or its slice."""

    __slots__ = ("raw", "size", "state")

    def __init__(self, count: int) -> None:
        self.state: Bytes = np.zeros(count, np.uint8)
        self.raw: Words = np.zeros(count, np.uint64)
        self.size: Ints = np.zeros(count, np.int64)

    def put(self, rows: Which, datums: Datums, nulls: Mask | None) -> None:
        self.state[rows] = VALUE if nulls is None else np.where(nulls, NULL, VALUE)
        self.raw[rows] = datums.raw
        if datums.size is not None:
            self.size[rows] = datums.size

    def forget(self, rows: Ints) -> None:
        self.state[rows] = MISSING


@dataclass(frozen=True, slots=True)
class Step:
    """One column of the order: the bytes of its header, where its cells are, their flag."""

    header: bytes
    position: int
    flag: int


class Walk:
    """Some rows, each read at its own position. A broken row stays at its end."""

    def __init__(self, data: RowBytes, rows: Ints | None) -> None:
        self._data = data
        self._rows = rows
        self.at: Ints = (data.start if rows is None else data.start[rows]).copy()
        self._end = data.end if rows is None else data.end[rows]
        self.broken: Mask = np.zeros(len(self.at), np.bool_)

    def unfinished(self) -> Mask:
        unfinished: Mask = self.at != self._end
        return unfinished

    def read(self, flag: int, cells: Cells | None, which: Which = _ALL) -> None:
        """Read the next datum of these rows, which must have this flag; NULL is rejected."""
        at = self.at[which]
        wrong = self._data.bytes[at] != flag
        self._take(which, READERS[flag](self._data, at), wrong, None, cells)

    def cut(self, which: Which = _ALL) -> None:
        flags = self._data.bytes[self.at[which]]
        found = np.flatnonzero(np.bincount(flags, minlength=1))
        if len(found) == 1:
            self._cut(which, int(found[0]))
            return
        numbers = np.arange(len(self.at))[which]
        for flag in found:
            self._cut(numbers[flags == flag], int(flag))

    def _cut(self, which: Which, flag: int) -> None:
        if flag in READERS:
            self._take(which, READERS[flag](self._data, self.at[which]), None, None, None)
        else:
            self._break(which, np.ones(len(self.at[which]), np.bool_))

    def step(self, step: Step, cells: Cells | None) -> Which | None:
        """Read a column of the rows where it comes next; return these rows."""
        which, flags = self._next(step.header)
        if which is None:
            return None
        self.at[which] += len(step.header)
        if cells is None:
            self.cut(which)
            return which
        flags = flags[which]
        datums = READERS[step.flag](self._data, self.at[which])
        wrong = flags != step.flag
        if not wrong.any():
            self._take(which, datums, None, None, cells)
            return which
        nulls = flags == values.NULL_FLAG
        datums.next = np.where(nulls, self.at[which] + 1, datums.next)
        if datums.broken is not None:
            datums.broken &= ~nulls
        self._take(which, datums, wrong & ~nulls, nulls, cells)
        return which

    def _next(self, header: bytes) -> tuple[Which | None, Bytes]:
        bits = 8 * len(header)
        word = self._data.word(self.at)
        hit = (word & np.uint64((1 << bits) - 1)) == int.from_bytes(header, "little")
        hit &= self.at < self._end
        flags = (word >> np.uint64(bits)).astype(np.uint8)
        if hit.all():
            return _ALL, flags
        which = np.flatnonzero(hit)
        return (which if which.size else None), flags

    def _take(
        self,
        which: Which,
        datums: Datums,
        wrong: Mask | None,
        nulls: Mask | None,
        cells: Cells | None,
    ) -> None:
        broken = datums.next > self._end[which]
        for amiss in (wrong, datums.broken):
            if amiss is not None:
                broken |= amiss
        if cells is not None:
            cells.put(which if self._rows is None else self._rows[which], datums, nulls)
        self.at[which] = datums.next
        if broken.any():
            self._break(which, broken)

    def _break(self, which: Which, broken: Mask) -> None:
        lost = np.arange(len(self.at))[which][broken]
        self.at[lost] = self._end[lost]
        self.broken[lost] = True

    def refuse_nothing(self) -> None:
        """Break rows that end before their columns; even an empty column list takes a byte."""
        nothing = self.at == self._end
        if nothing.any():
            self._break(_ALL, nothing)

    def skip_empty(self) -> None:
        """Step over the zero byte that stands for a row without columns."""
        alone = np.flatnonzero(self.at + 1 == self._end)
        empty = alone[self._data.bytes[self.at[alone]] == 0]
        self.at[empty] += 1

    def columns(self, order: Sequence[Step], image: Mapping[int, Cells]) -> list[Which | None]:
        return [self.step(step, image.get(step.position)) for step in order]


def same_columns(before: Sequence[Which | None], after: Sequence[Which | None], count: int) -> Mask:
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
