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

Its reads are vectorised: they read the datums of many rows from a numpy array of positions.

    rows as an Arrow binary array    |row 0 ......|row 1 ....|row 2 ........|
    one position per row               ^at[0]       ^at[1]     ^at[2]

The bytes are copied once, with zeros after them, so that eight bytes can be read at every position
without a bounds check. Bytes read after a row's end are meaningless, and the caller discards them
by comparing the datum's end with the row's.

A `Reader` gets the positions of flags and returns `Datums`. It never fails: it marks unreadable
datums as broken, and such a row is then read by `rows/row_codec.py`, which raises the proper error.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.datum import decimals, jsonb, values

Ints = np.ndarray[Any, np.dtype[np.int64]]
Words = np.ndarray[Any, np.dtype[np.uint64]]
Bytes = np.ndarray[Any, np.dtype[np.uint8]]
Mask = np.ndarray[Any, np.dtype[np.bool_]]

_SLACK_WORDS = 8
_HIGH_BITS = 0x8080808080808080
_DATA_BITS = 0x7F7F7F7F7F7F7F7F
_SIGN = 1 << 63


@dataclass(slots=True)
class Datums:
    """One datum per row: its number or the start of its bytes, their count, and the next
    position.
    """

    raw: Words
    size: Ints | None
    next: Ints
    broken: Mask | None


class RowBytes:
    """The bytes of a binary array, with each row's start and end."""

    def __init__(self, rows: pa.Array) -> None:
        offset_type = np.int64 if rows.type == pa.large_binary() else np.int32
        _, offsets, data = rows.buffers()
        count = len(rows)
        if count == 0:
            at: Ints = np.zeros(1, np.int64)
        else:
            bounds = np.frombuffer(offsets, offset_type)[rows.offset : rows.offset + count + 1]
            at = bounds.astype(np.int64)
        first, self.size = int(at[0]), int(at[-1] - at[0])
        at -= first
        self.start: Ints = at[:-1]
        self.end: Ints = at[1:]
        self._words: Words = np.zeros(self.size // 8 + _SLACK_WORDS, "<u8")
        self.bytes: Bytes = self._words.view(np.uint8)
        if self.size:
            source = np.frombuffer(data, np.uint8, self.size, first)
            self.bytes[: self.size] = source

    def word(self, at: Ints) -> Words:
        """Return the eight bytes at each position, little-endian."""
        # Two aligned words and shifts are three times as fast as numpy's unaligned gather; most of
        # the time goes into fresh memory, hence the steps in place.
        index = at >> 3
        shift = ((at & 7) << 3).view(np.uint64)
        low: Words = self._words.take(index, mode="clip")
        low >>= shift
        index += 1
        high: Words = self._words.take(index, mode="clip")
        high <<= np.uint64(1)
        np.subtract(np.uint64(63), shift, out=shift)
        high <<= shift
        low |= high
        return low

    def uvarints(self, at: Ints) -> tuple[Words, Ints, Mask | None]:
        """Return each position's varint and its size, and a mask of invalid varints."""
        word = self.word(at)
        if not (word & np.uint64(0x80)).any():
            return word & np.uint64(0x7F), np.ones(len(at), np.int64), None
        stop = ~word & np.uint64(_HIGH_BITS)
        below = (stop & -stop) - np.uint64(1)
        size: Ints = (np.bitwise_count(below) >> 3).astype(np.int64) + 1
        value = _squeeze(word & below & np.uint64(_DATA_BITS))
        long = np.flatnonzero(stop == 0)
        broken = self._finish(at, long, value, size) if long.size else None
        return value, size, broken

    def _finish(self, at: Ints, long: Ints, value: Words, size: Ints) -> Mask | None:
        """Add bytes nine and ten of the varints that have them; eight bytes are in `value`."""
        ninth = self.bytes[at[long] + 8].astype(np.uint64)
        value[long] |= (ninth & np.uint64(0x7F)) << np.uint64(56)
        size[long] = 9
        longest = long[ninth >= 0x80]
        if not longest.size:
            return None
        tenth = self.bytes[at[longest] + 9]
        value[longest] |= tenth.astype(np.uint64) << np.uint64(63)
        size[longest] = 10
        broken: Mask = np.zeros(len(at), np.bool_)
        broken[longest] = tenth > 1
        return broken


def _squeeze(word: Words) -> Words:
    for low, high, shift in (
        (0x007F007F007F007F, 0x7F007F007F007F00, 1),
        (0x00003FFF00003FFF, 0x3FFF00003FFF0000, 2),
        (0x000000000FFFFFFF, 0x0FFFFFFF00000000, 4),
    ):
        upper = word & np.uint64(high)
        upper >>= np.uint64(shift)
        word &= np.uint64(low)
        word |= upper
    return word


Reader = Callable[[RowBytes, Ints], Datums]
"""Takes the positions of flags that are known to be the reader's own."""


def _read_null(data: RowBytes, at: Ints) -> Datums:
    return Datums(np.zeros(len(at), np.uint64), None, at + 1, None)


def _read_uvarint(data: RowBytes, at: Ints) -> Datums:
    value, size, broken = data.uvarints(at + 1)
    return Datums(value, None, at + 1 + size, broken)


def _read_varint(data: RowBytes, at: Ints) -> Datums:
    value, size, broken = data.uvarints(at + 1)
    return Datums(_unzigzag(value), None, at + 1 + size, broken)


def _unzigzag(value: Words) -> Words:
    return (value >> np.uint64(1)) ^ -(value & np.uint64(1))


def _read_fixed(data: RowBytes, at: Ints) -> Datums:
    return Datums(data.word(at + 1).byteswap(), None, at + 9, None)


def _read_signed(data: RowBytes, at: Ints) -> Datums:
    return Datums(data.word(at + 1).byteswap() ^ np.uint64(_SIGN), None, at + 9, None)


def _read_bytes(data: RowBytes, at: Ints) -> Datums:
    value, size, broken = data.uvarints(at + 1)
    start = at + 1 + size
    return _slice(data, start, _unzigzag(value), broken)


def _slice(data: RowBytes, start: Ints, length: Words, broken: Mask | None) -> Datums:
    """Return slices; a length beyond the data, such as a negative length, breaks the row."""
    too_long = length > data.size
    if too_long.any():
        length = np.where(too_long, np.uint64(0), length)
        broken = too_long if broken is None else broken | too_long
    size = length.view(np.int64)
    return Datums(start.view(np.uint64), size, start + size, broken)


def _read_decimal(data: RowBytes, at: Ints) -> Datums:
    start = at + 1
    pairs = data.bytes[start].astype(np.int64) << 8 | data.bytes[at + 2]
    size = _decimal_sizes()[pairs]
    return _slice(data, start, size.view(np.uint64), None)


@cache
def _decimal_sizes() -> Ints:
    """Return the size of a decimal by precision and frac, -1 for pairs that cannot exist."""
    sizes: Ints = np.full(1 << 16, -1, np.int64)
    for precision in range(1, decimals.PRECISION_MAX + 1):
        for frac in range(min(precision, decimals.FRAC_MAX) + 1):
            sizes[precision << 8 | frac] = 2 + decimals.binary_size(precision, frac)
    return sizes


def _read_json(data: RowBytes, at: Ints) -> Datums:
    start = at + 1
    tp = data.bytes[start]
    size = _json_sizes()[tp]
    broken = size < 0
    nested = np.flatnonzero((tp == jsonb.OBJECT) | (tp == jsonb.ARRAY))
    if nested.size:
        size[nested] = 1 + (data.word(start[nested] + 5) & np.uint64(0xFFFFFFFF)).view(np.int64)
    for code, head in ((jsonb.STRING, 1), (jsonb.OPAQUE, 2)):
        texts = np.flatnonzero(tp == code)
        if texts.size:
            length, varint, bad = data.uvarints(start[texts] + head)
            # A negative length would pass for a short length once the head is added.
            length = np.minimum(length, np.uint64(data.size + 1))
            size[texts] = head + varint + length.view(np.int64)
            broken[texts] = False if bad is None else bad
    return _slice(data, start, np.where(broken, 0, size).view(np.uint64), broken)


@cache
def _json_sizes() -> Ints:
    """Return the size of a JSON value by type; 0: depends on the value, -1: no such type."""
    sizes: Ints = np.full(256, -1, np.int64)
    sizes[[jsonb.OBJECT, jsonb.ARRAY, jsonb.STRING, jsonb.OPAQUE]] = 0
    sizes[jsonb.LITERAL] = 2
    for tp, size in jsonb.FIXED_SIZES.items():
        sizes[tp] = 1 + size
    return sizes


READERS: dict[int, Reader] = {
    values.NULL_FLAG: _read_null,
    values.COMPACT_BYTES_FLAG: _read_bytes,
    values.INT_FLAG: _read_signed,
    values.UINT_FLAG: _read_fixed,
    values.FLOAT_FLAG: _read_fixed,
    values.DECIMAL_FLAG: _read_decimal,
    values.DURATION_FLAG: _read_signed,
    values.VARINT_FLAG: _read_varint,
    values.UVARINT_FLAG: _read_uvarint,
    values.JSON_FLAG: _read_json,
}
"""By flag. Memcomparable bytes have none: rows hold them only where a key was split."""

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
