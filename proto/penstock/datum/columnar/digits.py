"""Writes numbers as decimal digits into a matrix of ASCII, one row of the matrix per value.

DECIMAL(5,2)   | - | 1 | 2 | 3 | . | 4 | 5 |     all rows equally wide, zeros in front
                         ^ start of 23.45        then each row's text is a slice of the matrix
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from penstock.datum import decimals, times
from penstock.datum.columnar.lanes import Bytes, Ints, Lanes, Mask, Words

_ZERO, _MINUS, _DOT, _COLON, _SPACE = b"0-.: "

Matrix = np.ndarray[Any, np.dtype[np.uint8]]


@cache
def _quads() -> Bytes:
    """Return the four digits of every number below 10,000."""
    numbers = np.arange(10_000)
    digits = [numbers // 1000, numbers // 100 % 10, numbers // 10 % 10, numbers % 10]
    quads: Bytes = (np.stack(digits, axis=1) + _ZERO).astype(np.uint8)
    return quads


def put_digits(matrix: Matrix, column: int, value: Words, digits: int) -> None:
    """Write `value`, which has at most `digits` digits, with leading zeros from `column` on."""
    end = column + digits
    while digits > 4:
        rest = value // np.uint64(10_000)
        matrix[:, end - 4 : end] = _quads()[value - rest * np.uint64(10_000)]
        value, end, digits = rest, end - 4, digits - 4
    if digits:
        matrix[:, end - digits : end] = _quads()[value][:, 4 - digits :]


def datetime_matrix(packed: Words, fsp: int, *, is_date: bool) -> tuple[Matrix, Mask]:
    """Return packed times as text of equal width, and which of them are no such time."""
    micro = packed & np.uint64(0xFFFFFF)
    clock = packed >> np.uint64(24)
    date = packed >> np.uint64(41)
    day, hour = date & np.uint64(31), clock >> np.uint64(12) & np.uint64(31)
    minute, second = clock >> np.uint64(6) & np.uint64(63), clock & np.uint64(63)
    date >>= np.uint64(5)
    year = date // np.uint64(13)
    month = date - year * np.uint64(13)
    bad = (year > 9999) | (hour > 23) | (minute > 59) | (second > 59)
    if is_date:
        bad |= (packed & np.uint64((1 << 41) - 1)) != 0
    year = np.where(bad, np.uint64(0), year)
    matrix: Matrix = np.empty(
        (len(packed), 10 if is_date else 19 + (fsp + 1 if fsp else 0)), np.uint8
    )
    put_digits(matrix, 0, year, 4)
    matrix[:, 4] = matrix[:, 7] = _MINUS
    put_digits(matrix, 5, month, 2)
    put_digits(matrix, 8, day, 2)
    if not is_date:
        matrix[:, 10] = _SPACE
        _put_clock(matrix, 11, (hour, minute, second), 2)
        bad |= _put_fraction(matrix, 19, micro, fsp)
    return matrix, bad


def _put_clock(matrix: Matrix, column: int, parts: tuple[Words, Words, Words], width: int) -> None:
    """Write hh:mm:ss, the hours `width` digits wide."""
    put_digits(matrix, column, parts[0], width)
    for part in parts[1:]:
        column += width
        matrix[:, column] = _COLON
        column, width = column + 1, 2
        put_digits(matrix, column, part, 2)


def _put_fraction(matrix: Matrix, column: int, micro: Words, fsp: int) -> Mask:
    """Write the fraction digits; return where they do not suffice or there is a full second."""
    unit = np.uint64(10 ** (6 - fsp))
    kept = micro // unit
    bad: Mask = (kept * unit != micro) | (micro >= times.MICROS)
    if fsp:
        matrix[:, column] = _DOT
        put_digits(matrix, column + 1, np.where(bad, np.uint64(0), kept), fsp)
    return bad


def duration_matrix(nanos: Ints, fsp: int) -> tuple[Matrix, Ints, Mask]:
    """Return durations as text, where each begins in its row, and which of them are none."""
    magnitude = np.abs(nanos).view(np.uint64)
    micros = magnitude // np.uint64(times.NANOS_PER_MICRO)
    bad = micros * np.uint64(times.NANOS_PER_MICRO) != magnitude
    bad |= micros > times.DURATION_MAX_MICROS
    micros = np.where(bad, np.uint64(0), micros)
    seconds = micros // np.uint64(times.MICROS)
    minutes = seconds // np.uint64(60)
    hours = minutes // np.uint64(60)
    matrix: Matrix = np.empty((len(nanos), 10 + (fsp + 1 if fsp else 0)), np.uint8)
    parts = (hours, minutes - hours * np.uint64(60), seconds - minutes * np.uint64(60))
    _put_clock(matrix, 1, parts, 3)
    bad |= _put_fraction(matrix, 10, micros - seconds * np.uint64(times.MICROS), fsp)
    first = np.where(hours < 100, 2, 1)
    return matrix, _signed(matrix, first, nanos < 0), bad


def _signed(matrix: Matrix, first: Ints, negative: Mask) -> Ints:
    """Put a minus before the first digit where it belongs; return where the text begins."""
    rows = np.flatnonzero(negative)
    matrix[rows, first[rows] - 1] = _MINUS
    start: Ints = first - negative
    return start


def decimal_matrix(
    lanes: Lanes, at: Ints, size: tuple[int, int], scale: int
) -> tuple[Matrix, Ints, Mask]:
    """Return decimals of one precision and frac, `scale` being at least frac, like durations."""
    precision, frac = size
    integer, fraction = decimals.word_sizes(precision, frac)
    whole = max(precision - frac, 1)
    matrix: Matrix = np.full((len(at), 1 + whole + (scale + 1 if scale else 0)), _ZERO, np.uint8)
    negative = lanes.bytes[at] < 0x80
    invert = np.where(negative, np.uint64(0xFFFFFFFF), np.uint64(0))
    bad: Mask = np.zeros(len(at), np.bool_)
    not_zero: Mask = np.zeros(len(at), np.bool_)
    column = 1
    for i, digits in enumerate(integer + fraction):
        if i == len(integer):
            column = 1 + whole + 1
        count = decimals.WORD_BYTES[digits]
        word = lanes.word(at).byteswap() >> np.uint64(64 - 8 * count)
        if i == 0:
            word ^= np.uint64(0x80 << 8 * (count - 1))
        word ^= invert & np.uint64((1 << 8 * count) - 1)
        at = at + count
        too_big = word >= 10**digits
        bad |= too_big
        word = np.where(too_big, np.uint64(0), word) if too_big.any() else word
        not_zero |= word != 0
        put_digits(matrix, column, word, digits)
        column += digits
    if scale:
        matrix[:, 1 + whole] = _DOT
    return matrix, _signed(matrix, _first_digit(matrix, whole), negative & not_zero), bad


def _first_digit(matrix: Matrix, whole: int) -> Ints:
    """Return the column of the first digit that is not zero, at least the last before the dot."""
    # The last integer digit always counts, so the search needs no special case for zero.
    counts = matrix[:, 1 : 1 + whole] != _ZERO
    counts[:, -1] = True
    first: Ints = counts.argmax(axis=1)
    return first + 1
