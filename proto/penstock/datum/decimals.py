"""Decimals: reads and writes MySQL's binary form, keeping precision and fraction digits exactly.

    precision (1) | frac (1) | integer digits | fraction digits

Nine digits fill four bytes, big-endian. The remaining digits are in a shorter word, at the front of
the integer part or at the end of the fraction: 1 2 3 4 5 6 7 8 digits take 1 1 2 2 3 3 4 4 bytes. A
negative number has every byte inverted; then the first bit is flipped, so that bytes sort like
numbers. The size follows from precision and frac alone.

    (5,2) -1.5   05 02 | 7f fe | cd        integer 001, fraction 50, inverted, first bit flipped
"""

from __future__ import annotations

import decimal
from decimal import Decimal
from functools import cache

from penstock.datum.values import damaged, take

PRECISION_MAX = 81
"""MySQL stops at 65 digits; a datum may carry the nine words of TiDB's own arithmetic."""
FRAC_MAX = 38
WORD_DIGITS = 9
WORD_BYTES = (0, 1, 1, 2, 2, 3, 3, 4, 4, 4)

# Enough digits for any input that can pass the precision check, so that rounding happens once.
_CONTEXT = decimal.Context(prec=400, rounding=decimal.ROUND_HALF_UP)


def word_sizes(precision: int, frac: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return how many digits each word holds, of the integer part and of the fraction."""
    whole, lead = divmod(precision - frac, WORD_DIGITS)
    part, tail = divmod(frac, WORD_DIGITS)
    integer = ((lead,) if lead else ()) + (WORD_DIGITS,) * whole
    return integer, (WORD_DIGITS,) * part + ((tail,) if tail else ())


@cache
def _layout(precision: int, frac: int) -> tuple[tuple[tuple[int, int], ...], int]:
    integer, fraction = word_sizes(precision, frac)
    words = [(10**digits, 8 * WORD_BYTES[digits]) for digits in reversed(integer + fraction)]
    return tuple(words), sum(bits for _, bits in words) // 8


def binary_size(precision: int, frac: int) -> int:
    """Return the size in bytes of digits of this precision, excluding the two leading bytes."""
    return _layout(precision, frac)[1]


def unscaled(value: Decimal, frac: int) -> int:
    """Return `value` times ten to the `frac`, rounded half away from zero as MySQL does."""
    return int(value.scaleb(frac, _CONTEXT).to_integral_value(context=_CONTEXT))


def encode_unscaled(number: int, precision: int, frac: int) -> bytes:
    """Return precision, frac and digits of `number`, which is the value times ten to the `frac`."""
    words, size = _layout(precision, frac)
    rest, bits, shift = abs(number), 0, 0
    for limit, width in words:
        rest, word = divmod(rest, limit)
        bits |= word << shift
        shift += width
    assert rest == 0, "the caller checked the precision"
    if number < 0:
        bits ^= (1 << shift) - 1
    bits ^= 1 << shift - 1
    return bytes((precision, frac)) + bits.to_bytes(size, "big")


def encode_decimal(value: Decimal, precision: int = 0, frac: int = 0) -> bytes:
    """Return a decimal datum without its flag; without a precision the value's own is used.

    Raises `Malformed` when the value has more integer digits than the precision allows.
    """
    if not value.is_finite():
        raise damaged(f"{value} is not a number a DECIMAL can hold")
    if precision == 0:
        precision, frac = natural_precision(value)
    _check_size(precision, frac)
    # A value such as 1E+999999 must not be written out before it is refused.
    number = unscaled(value, frac) if value.adjusted() < PRECISION_MAX else 10**precision
    if abs(number) >= 10**precision:
        raise damaged(f"{value} does not fit DECIMAL({precision},{frac})")
    return encode_unscaled(number, precision, frac)


def _check_size(precision: int, frac: int) -> None:
    if not 0 < precision <= PRECISION_MAX or not 0 <= frac <= min(FRAC_MAX, precision):
        raise damaged(f"a DECIMAL({precision},{frac}) cannot exist")


def natural_precision(value: Decimal) -> tuple[int, int]:
    """Return the precision and frac that `value` itself has: -1.50 has (3, 2), 0.05 has (2, 2)."""
    exponent = value.as_tuple().exponent
    assert isinstance(exponent, int), "only a NaN or an infinity has another exponent"
    frac = min(max(-exponent, 0), FRAC_MAX)
    whole = max(value.adjusted() + 1, 0) if value else 0
    return max(whole + frac, 1), frac


def read_unscaled(data: bytes, at: int) -> tuple[int, int, int]:
    """Read precision, frac and digits; return the unscaled number, frac and the next offset."""
    head, at = take(data, at, 2)
    precision, frac = head
    _check_size(precision, frac)
    words, size = _layout(precision, frac)
    raw, at = take(data, at, size)
    bits = int.from_bytes(raw, "big") ^ (0x80 << 8 * (size - 1))
    negative = raw[0] < 0x80
    if negative:
        bits ^= (1 << 8 * size) - 1
    number, scale = 0, 1
    for limit, width in words:
        word = bits & (1 << width) - 1
        if word >= limit:
            raise damaged(f"a decimal's word below {limit} holds {word}")
        number += word * scale
        scale *= limit
        bits >>= width
    return -number if negative else number, frac, at


def end_of(data: bytes, at: int) -> int:
    """Return the end of the decimal at `at` without reading its digits."""
    (precision, frac), at = take(data, at, 2)
    _check_size(precision, frac)
    return take(data, at, binary_size(precision, frac))[1]


def decimal_text(number: int, frac: int) -> str:
    """Return an unscaled number as MySQL prints it, always with `frac` fraction digits."""
    if frac == 0:
        return str(number)
    digits = str(abs(number)).rjust(frac + 1, "0")
    return f"{'-' if number < 0 else ''}{digits[:-frac]}.{digits[-frac:]}"


def read_decimal_text(data: bytes, at: int, scale: int = -1) -> tuple[str, int]:
    """Read a decimal as text with exactly `scale` fraction digits (-1: as many as are stored).

    Nonzero digits beyond `scale` are malformed: a row is read with the schema it was written with,
    so nothing needs rounding.
    """
    number, frac, at = read_unscaled(data, at)
    if scale < 0 or scale == frac:
        return decimal_text(number, frac), at
    kept, lost = divmod(abs(number) * 10**scale, 10**frac)
    if lost:
        raise damaged(f"{decimal_text(number, frac)} has more than {scale} fraction digits")
    return decimal_text(-kept if number < 0 else kept, scale), at
