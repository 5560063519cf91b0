"""Numbers in row images: integers, FLOAT by its shortest digits, DOUBLE, DECIMAL, BIT, YEAR.

TINY SHORT INT24 LONG LONGLONG   1 2 3 4 8 bytes, little-endian
FLOAT DOUBLE                     4 8 bytes, IEEE 754, little-endian
NEWDECIMAL(precision, scale)     words of nine digits, big-endian, see penstock.datum.decimals
BIT(n)                           (n + 7) / 8 bytes, big-endian
YEAR                             1 byte, years since 1900; 0 is the year 0000
"""

from __future__ import annotations

import decimal
import struct
from collections.abc import Callable
from decimal import Decimal

from penstock.codes import Code
from penstock.datum.decimals import WORD_BYTES, word_sizes
from penstock.errors import Malformed
from pumpclient.mysql.rows.values.reading import Reading, big_endian, fixed, joined, unsigned

_FLOAT = struct.Struct("<f")
_EXACT = decimal.Context(prec=100)
_DIGITS_MAX, _SCALE_MAX = 65, 38
_SIGNED_CODES = {1: ("b",), 2: ("h",), 3: ("H", "b"), 4: ("i",), 8: ("q",)}
_FIXED_POINT_MAX = 15  # Doubles with their point farther away print with an exponent.


def integer(size: int, *, is_unsigned: bool) -> Reading:
    if is_unsigned:
        return unsigned(size)
    codes = _SIGNED_CODES[size]
    return fixed(codes, joined(codes))


def shortest_float(value: float) -> float:
    """Return the double with the fewest digits that converts back to the FLOAT `value`."""
    for digits in ".6g", ".7g", ".8g":
        short = float(format(value, digits))
        try:
            if _FLOAT.unpack(_FLOAT.pack(short))[0] == value:
                return short
        except OverflowError:
            continue
    return float(format(value, ".9g"))


def float_reading() -> Reading:
    return fixed("f", "shortest_float({0})", shortest_float=shortest_float)


def year() -> Reading:
    """Return the reading of YEAR, a number; 0 for 0000."""
    return fixed("B", "({0} and {0} + 1900)")


def bit(bits: int) -> Reading:
    """Return the reading of BIT, a number."""
    return big_endian((bits + 7) // 8)


def decimal_reading(precision: int, scale: int) -> Reading:
    """Return the reading of DECIMAL, a `Decimal` with exactly `scale` digits after its point."""
    if not 0 < precision <= _DIGITS_MAX or scale > min(precision, _SCALE_MAX):
        raise Malformed(
            f"a DECIMAL({precision},{scale}) cannot exist",
            hint="the TABLE_MAP is damaged",
            code=Code.ROWS_EVENT,
        )
    name = f"decimal_{precision}_{scale}"
    read, size = _decimal_reader(precision, scale)
    return fixed(
        f"{size}s",
        name + "({0})",
        **{name: read},
    )


def _decimal_reader(precision: int, scale: int) -> tuple[Callable[[bytes], Decimal], int]:
    integer_words, fraction_words = word_sizes(precision, scale)
    terms, shift, factor = [], 0, 1
    for digits in reversed(integer_words + fraction_words):
        width = 8 * WORD_BYTES[digits]
        terms.append(f"(bits >> {shift} & {(1 << width) - 1}) * {factor}")
        shift += width
        factor *= 10**digits
    add_up: Callable[[int], int] = eval(f"lambda bits: {' + '.join(terms)}")
    sign, ones, limit = 1 << shift - 1, (1 << shift) - 1, 10**precision
    from_bytes, scaled = int.from_bytes, _EXACT.scaleb

    def read(raw: bytes) -> Decimal:
        bits = from_bytes(raw, "big") ^ sign
        number = -add_up(bits ^ ones) if bits & sign else add_up(bits)
        if not -limit < number < limit:
            raise ValueError(f"{raw!r} is no DECIMAL({precision},{scale})")
        return scaled(number, -scale) if scale else Decimal(number)

    return read, shift // 8


def double_text(value: float) -> str:
    """Format a DOUBLE as MySQL and MariaDB do: shortest digits, `1e15` past 15 digits."""
    if value == 0:
        return "-0" if str(value)[0] == "-" else "0"
    sign, digits, exponent = Decimal(repr(value)).as_tuple()
    assert isinstance(exponent, int), "a column holds neither infinity nor NaN"
    text = "".join(map(str, digits)).rstrip("0")
    point = len(digits) + exponent
    minus = "-" if sign else ""
    if point <= -_FIXED_POINT_MAX or (point > _FIXED_POINT_MAX and len(text) <= point):
        rest = f".{text[1:]}" if len(text) > 1 else ""
        return f"{minus}{text[0]}{rest}e{point - 1}"
    if point <= 0:
        return f"{minus}0.{'0' * -point}{text}"
    if len(text) <= point:
        return minus + text.ljust(point, "0")
    return f"{minus}{text[:point]}.{text[point:]}"
