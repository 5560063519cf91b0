"""Renders the cells of one column, the result of a walk, into an Arrow array.

Numbers are written as decimal digits into a matrix of ASCII, one row of the matrix per value:

    DECIMAL(5,2)   | - | 1 | 2 | 3 | . | 4 | 5 |     all rows equally wide, zeros in front
                             ^ start of 23.45        then each row's text is a slice of the matrix
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.datum import decimals, jsonb, times, values
from penstock.datum.columnar.walk import VALUE, Bytes, Cells, Ints, Mask, RowBytes, Words
from penstock.datum.jsonb import TypedJson
from penstock.datum.rows import fields
from penstock.errors import Malformed
from penstock.schema.model import ColumnInfo, MysqlType

_ZERO, _MINUS, _DOT, _COLON, _SPACE = b"0-.: "

Matrix = np.ndarray[Any, np.dtype[np.uint8]]


@cache
def _quads() -> Bytes:
    numbers = np.arange(10_000)
    digits = [numbers // 1000, numbers // 100 % 10, numbers // 10 % 10, numbers % 10]
    quads: Bytes = (np.stack(digits, axis=1) + _ZERO).astype(np.uint8)
    return quads


def put_digits(matrix: Matrix, column: int, value: Words, digits: int) -> None:
    """Write `value`, zero-padded, from `column` on; it has at most `digits` digits."""
    end = column + digits
    while digits > 4:
        rest = value // np.uint64(10_000)
        matrix[:, end - 4 : end] = _quads()[value - rest * np.uint64(10_000)]
        value, end, digits = rest, end - 4, digits - 4
    if digits:
        matrix[:, end - digits : end] = _quads()[value][:, 4 - digits :]


def datetime_matrix(packed: Words, fsp: int, *, is_date: bool) -> tuple[Matrix, Mask]:
    """Return packed times as text of equal width, and a mask of invalid times."""
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
    put_digits(matrix, column, parts[0], width)
    for part in parts[1:]:
        column += width
        matrix[:, column] = _COLON
        column, width = column + 1, 2
        put_digits(matrix, column, part, 2)


def _put_fraction(matrix: Matrix, column: int, micro: Words, fsp: int) -> Mask:
    """Write the fraction digits; return where they do not suffice or make a full second."""
    unit = np.uint64(10 ** (6 - fsp))
    kept = micro // unit
    bad: Mask = (kept * unit != micro) | (micro >= times.MICROS)
    if fsp:
        matrix[:, column] = _DOT
        put_digits(matrix, column + 1, np.where(bad, np.uint64(0), kept), fsp)
    return bad


def duration_matrix(nanos: Ints, fsp: int) -> tuple[Matrix, Ints, Mask]:
    """Return durations as text, their start in each row, and a mask of invalid durations."""
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
    rows = np.flatnonzero(negative)
    matrix[rows, first[rows] - 1] = _MINUS
    start: Ints = first - negative
    return start


def decimal_matrix(
    data: RowBytes, at: Ints, size: tuple[int, int], scale: int
) -> tuple[Matrix, Ints, Mask]:
    """Return decimals of equal precision and frac, at most `scale`, like `duration_matrix`."""
    precision, frac = size
    integer, fraction = decimals.word_sizes(precision, frac)
    whole = max(precision - frac, 1)
    matrix: Matrix = np.full((len(at), 1 + whole + (scale + 1 if scale else 0)), _ZERO, np.uint8)
    negative = data.bytes[at] < 0x80
    invert = np.where(negative, np.uint64(0xFFFFFFFF), np.uint64(0))
    bad: Mask = np.zeros(len(at), np.bool_)
    not_zero: Mask = np.zeros(len(at), np.bool_)
    column = 1
    for i, digits in enumerate(integer + fraction):
        if i == len(integer):
            column = 1 + whole + 1
        count = decimals.WORD_BYTES[digits]
        word = data.word(at).byteswap() >> np.uint64(64 - 8 * count)
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
    # The last integer digit always counts, so the search needs no special case for zero.
    counts = matrix[:, 1 : 1 + whole] != _ZERO
    counts[:, -1] = True
    return matrix, _signed(matrix, counts.argmax(axis=1) + 1, negative & not_zero), bad


_UNSIGNED_TYPES = frozenset({MysqlType.BIT, MysqlType.ENUM, MysqlType.SET})
_OFFSET_MAX = (1 << 31) - 1
"""Longer texts take Arrow's large types."""


Rendered = tuple[pa.Array, Mask | None]
"""An array, NULL wherever no value exists, and the rows with an invalid value."""


def is_unsigned(column: ColumnInfo) -> bool:
    return column.tp in _UNSIGNED_TYPES or column.is_unsigned


def arrow_type(column: ColumnInfo) -> pa.DataType:
    if column.tp in fields.INTEGER_BITS or column.tp in _UNSIGNED_TYPES | {MysqlType.YEAR}:
        return pa.uint64() if is_unsigned(column) else pa.int64()
    if column.tp in (MysqlType.FLOAT, MysqlType.DOUBLE):
        return pa.float64()
    if column.tp in fields.STRING_TYPES and column.is_binary:
        return pa.binary()
    return pa.string()


def row_flag(column: ColumnInfo) -> int:
    tp = column.tp
    if tp in fields.INTEGER_BITS:
        return values.UVARINT_FLAG if column.is_unsigned else values.VARINT_FLAG
    if tp in (MysqlType.YEAR, MysqlType.DURATION):
        return values.VARINT_FLAG
    if tp in (MysqlType.FLOAT, MysqlType.DOUBLE):
        return values.FLOAT_FLAG
    if tp is MysqlType.NEWDECIMAL:
        return values.DECIMAL_FLAG
    if tp is MysqlType.JSON:
        return values.JSON_FLAG
    if tp in fields.STRING_TYPES:
        return values.COMPACT_BYTES_FLAG
    return values.UVARINT_FLAG


def handle_flag(column: ColumnInfo) -> int:
    return values.DURATION_FLAG if column.tp is MysqlType.DURATION else row_flag(column)


def render(
    column: ColumnInfo, cells: Cells, data: RowBytes, *, marks_json: bool = False
) -> Rendered:
    """Return a column's cells as an array, with all checks of the row-wise reader."""
    tp = column.tp
    if tp in fields.INTEGER_BITS or tp in _UNSIGNED_TYPES | {MysqlType.YEAR}:
        return _render_ints(column, cells)
    if tp in (MysqlType.FLOAT, MysqlType.DOUBLE):
        return _render_floats(cells)
    if tp is MysqlType.NEWDECIMAL:
        return _render_decimals(column, cells, data)
    if tp in fields.TIME_TYPES:
        return _render_times(column, cells)
    if tp is MysqlType.DURATION:
        return _render_durations(column, cells)
    if tp is MysqlType.JSON:
        return _render_json(cells, data, marks_json)
    return _render_strings(column, cells, data)


def _validity(valid: Mask) -> pa.Buffer | None:
    return None if valid.all() else pa.py_buffer(np.packbits(valid, bitorder="little"))


def _numbers(tp: pa.DataType, numbers: Any, valid: Mask, bad: Mask | None) -> Rendered:
    buffers = [_validity(valid), pa.py_buffer(numbers)]
    return pa.Array.from_buffers(tp, len(valid), buffers), bad


def _render_ints(column: ColumnInfo, cells: Cells) -> Rendered:
    valid = cells.state == VALUE
    low, high = fields.integer_range(column)
    if is_unsigned(column):
        bad = None if high >= values.UINT64_MAX else valid & (cells.raw > np.uint64(high))
        return _numbers(pa.uint64(), cells.raw, valid, bad)
    signed = cells.raw.view(np.int64)
    bad = None
    if high < values.INT64_MAX:
        bad = valid & ((signed < low) | (signed > high))
    return _numbers(pa.int64(), signed, valid, bad)


def _render_floats(cells: Cells) -> Rendered:
    valid = cells.state == VALUE
    positive = cells.raw >= np.uint64(1 << 63)
    bits = np.where(positive, cells.raw ^ np.uint64(1 << 63), ~cells.raw)
    numbers = bits.view(np.float64)
    return _numbers(pa.float64(), numbers, valid, valid & ~np.isfinite(numbers))


def _render_times(column: ColumnInfo, cells: Cells) -> Rendered:
    valid = cells.state == VALUE
    packed = cells.raw if valid.all() else np.where(valid, cells.raw, np.uint64(0))
    is_date = column.tp is MysqlType.DATE
    fsp = fields.fraction_digits(column)
    matrix, bad = datetime_matrix(packed, fsp, is_date=is_date)
    count, width = matrix.shape
    offsets = np.arange(count + 1, dtype=np.int32) * np.int32(width)
    buffers = [_validity(valid), pa.py_buffer(offsets), pa.py_buffer(matrix)]
    return pa.Array.from_buffers(pa.string(), count, buffers), bad & valid


def _render_durations(column: ColumnInfo, cells: Cells) -> Rendered:
    valid = cells.state == VALUE
    nanos = np.where(valid, cells.raw, np.uint64(0)).view(np.int64)
    matrix, start, bad = duration_matrix(nanos, fields.fraction_digits(column))
    return _matrix_texts(matrix, start, valid, valid), bad & valid


def _matrix_texts(matrix: Matrix, start: Ints, rows: Mask, valid: Mask) -> pa.Array:
    width = matrix.shape[1]
    if len(matrix) == len(valid):
        base = np.arange(len(matrix), dtype=np.int64) * width
        return _slices(matrix.reshape(-1), base + start, base + width, valid, pa.string())
    base = (np.cumsum(rows) - rows) * width
    end = base + rows * width
    base[rows] += start
    return _slices(matrix.reshape(-1), base, end, valid, pa.string())


def _render_decimals(column: ColumnInfo, cells: Cells, data: RowBytes) -> Rendered:
    scale = fields.decimal_size(column)[1]
    valid = cells.state == VALUE
    at = cells.raw.view(np.int64)
    if not valid.all():
        at = at[valid]
    if not at.size:
        return pa.nulls(len(valid), pa.string()), None
    sizes = data.bytes[at].astype(np.int64) << 8 | data.bytes[at + 1]
    usual = int(sizes[0])
    bad: Mask = np.zeros(len(valid), np.bool_)
    if not (sizes == usual).all():
        usual = int(np.bincount(sizes).argmax())
        bad[valid] = sizes != usual
        at = at[sizes == usual]
    rows = valid & ~bad
    if usual & 0xFF > scale:
        return pa.nulls(len(valid), pa.string()), valid
    matrix, start, wrong = decimal_matrix(data, at + 2, divmod(usual, 256), scale)
    bad[rows] = wrong
    return _matrix_texts(matrix, start, rows, rows), bad


def _render_strings(column: ColumnInfo, cells: Cells, data: RowBytes) -> Rendered:
    array = _value_slices(cells, data, cells.state == VALUE)
    if column.is_binary:
        return array, None
    large = array.type == pa.large_binary()
    text = pa.large_string() if large else pa.string()
    try:
        return array.cast(text), None
    except pa.ArrowInvalid:
        # Arrow does not report which text is not UTF-8, so they are tried one by one.
        bad = np.fromiter((not _is_text(raw.as_py()) for raw in array), np.bool_, len(array))
        array = _value_slices(cells, data, (cells.state == VALUE) & ~bad)
        return array.cast(text), bad


def _is_text(raw: bytes | None) -> bool:
    try:
        return raw is None or bool(raw.decode()) or True
    except UnicodeDecodeError:
        return False


def _value_slices(cells: Cells, data: RowBytes, valid: Mask) -> pa.Array:
    start, size = cells.raw.view(np.int64), cells.size
    if not valid.all():
        start = np.where(valid, start, data.start)
        size = np.where(valid, size, 0)
    return _slices(data.bytes, start, start + size, valid, pa.binary())


def _slices(data: Matrix, start: Ints, end: Ints, valid: Mask, tp: pa.DataType) -> pa.Array:
    count = len(valid)
    large = data.size > _OFFSET_MAX
    if large:
        tp = pa.large_binary() if tp == pa.binary() else pa.large_string()
    # The wanted slices and the gaps between them make one array; taking every second entry is a
    # plain copy of the bytes inside Arrow.
    offsets = np.empty(2 * count + 1, np.int64 if large else np.int32)
    offsets[0:-1:2], offsets[1:-1:2], offsets[-1] = start, end, end[-1] if count else 0
    both = pa.Array.from_buffers(tp, 2 * count, [None, pa.py_buffer(offsets), pa.py_buffer(data)])
    kept = both.take(pa.array(np.arange(0, 2 * count, 2)))
    validity = _validity(valid)
    if validity is None:
        return kept
    return pa.Array.from_buffers(tp, count, [validity, *kept.buffers()[1:]])


def _render_json(cells: Cells, data: RowBytes, marks_json: bool) -> Rendered:
    valid = cells.state == VALUE
    bad: Mask = np.zeros(len(valid), np.bool_)
    texts: list[str | None] = [None] * len(valid)
    starts: Words = cells.raw
    for row in np.flatnonzero(valid).tolist():
        start = int(starts[row])
        raw = data.bytes[start : start + int(cells.size[row])].tobytes()
        try:
            text = jsonb.read_text(raw, 0)[0]
        except Malformed:
            bad[row] = True
            continue
        texts[row] = text.marked if marks_json and isinstance(text, TypedJson) else text
    return pa.array(texts, pa.string()), bad
