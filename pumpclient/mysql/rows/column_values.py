"""The values of columns in row images: numbers, texts and bytes, choices, dates and times.

    TINY SHORT INT24 LONG LONGLONG     1 2 3 4 8 bytes, little-endian
    FLOAT DOUBLE                       4 8 bytes, IEEE 754, little-endian
    NEWDECIMAL(precision, scale)       words of nine digits, big-endian, see penstock.datum.decimals
    BIT(n)                             (n + 7) / 8 bytes, big-endian
    YEAR                               1 byte, years since 1900; 0 is the year 0000

    CHAR, BINARY, uuid, inet4, inet6   length (1, or 2 past 255), bytes without padding
    VARCHAR, VARBINARY                 length (1, or 2 past 255), bytes
    TEXT, BLOB, GEOMETRY, VECTOR       length (1 to 4, by the metadata), bytes
    … COMPRESSED (MariaDB)             the same; the bytes are 00 and the value, or a block (below)
    ENUM, SET                          1, 2; 1 to 8 bytes, little-endian; labels are the TABLE_MAP's
    GEOMETRY's bytes                   SRID (4), then WKB
    VECTOR's bytes                     4 bytes for each number, IEEE 754

A block of a compressed value: 0x80 | 0x08 when it is deflate without zlib's frame | n, then n bytes
of the length, big-endian, then the stream. An empty value has no bytes at all.

Dates and times are decoded to the text that the server prints.

    DATE, NEWDATE     3 bytes, little-endian: year << 9 | month << 5 | day
    TIME2             3 bytes, big-endian, + 0x800000: hour << 12 | minute << 6 | second
    DATETIME2         5 bytes, big-endian, + 0x8000000000:
                      (year × 13 + month) << 22 | day << 17 | hour << 12 | minute << 6 | second
    TIMESTAMP2        4 bytes, big-endian: seconds since 1970 UTC; 0 is the zero date
    TIME              3 bytes, little-endian, signed: hhmmss as a decimal number    before MySQL 5.6
    DATETIME          8 bytes, little-endian: YYYYMMDDhhmmss as a decimal number    before MySQL 5.6
    TIMESTAMP         4 bytes, little-endian                                        before MySQL 5.6

The "2" types are followed by (fsp + 1) / 2 bytes of fraction in hundredths, ten-thousandths or
millionths, as if the whole were one longer number: a negative TIME is the negative of all of it.
Zero and partial dates stay texts (`0000-00-00`, `2020-00-00`); TIMESTAMP is in UTC.
"""

from __future__ import annotations

import datetime as dt
import decimal
import struct
import zlib
from collections.abc import Callable
from decimal import Decimal
from ipaddress import IPv4Address
from uuid import UUID

from penstock.codes import Code
from penstock.datum.decimals import WORD_BYTES, word_sizes
from penstock.ddl.charsets import Charset
from penstock.errors import Malformed
from pumpclient.mysql.rows.rows_event import Reading, big_endian, fixed, joined, prefixed, unsigned

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
            "the TABLE_MAP is damaged",
            Code.ROWS_EVENT,
        )
    name = f"decimal_{precision}_{scale}"
    read, size = _decimal_reader(precision, scale)
    return fixed(f"{size}s", name + "({0})", **{name: read})


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


_BLOCK, _WITHOUT_FRAME, _LENGTH_BITS = 0x80, 0x08, 0x07
_RAW_DEFLATE = -zlib.MAX_WBITS
_SHORT_MAX = 0xFF
_FLOAT_SIZE = 4
_MAPPED, _COMPATIBLE = b"\0" * 10 + b"\xff\xff", b"\0" * 12


def length_size(bytes_max: int) -> int:
    return 1 if bytes_max <= _SHORT_MAX else 2


def text(prefix: int, charset: Charset, *, pad_to: int = 0, is_compressed: bool = False) -> Reading:
    """Return the reading of a text, or of bytes when the charset is binary.

    `pad_to` is the length of a BINARY, whose zeros at the end are not in binlogs.
    """
    raw = "plain({0})" if is_compressed else "{0}"
    names: dict[str, object] = {"plain": decompressed} if is_compressed else {}

    if charset.is_binary:
        expression = f"{raw}.ljust({pad_to}, b'\\0')" if pad_to else raw
    elif charset.table is not None:
        name = f"decode_{charset.name}"
        expression, names[name] = f"{name}({raw})", charset.decode
    else:
        expression = f"{raw}.decode({charset.codec!r})"
    return prefixed(prefix, expression, **names)


def decompressed(raw: bytes) -> bytes:
    """Return the value of a COMPRESSED column; raise `Malformed` if it is damaged."""
    if not raw:
        return raw
    if not raw[0] & _BLOCK:
        return raw[1:]
    start = 1 + (raw[0] & _LENGTH_BITS)
    length = int.from_bytes(raw[1:start], "big")
    window = _RAW_DEFLATE if raw[0] & _WITHOUT_FRAME else zlib.MAX_WBITS
    unpacking = zlib.decompressobj(window)
    try:
        plain = unpacking.decompress(raw[start:], length + 1)
    except zlib.error as error:
        raise Malformed(
            f"a damaged COMPRESSED value: {error}", "bytes of the event are lost", Code.ROWS_EVENT
        ) from error
    if len(plain) != length:
        raise Malformed(
            f"a COMPRESSED value is not of the {length} bytes it promises",
            "bytes of the event are lost",
            Code.ROWS_EVENT,
        )
    return plain


def geometry(prefix: int) -> Reading:
    """Return the reading of GEOMETRY: bytes of SRID and WKB, as MySQL and TiDB keep it."""
    return prefixed(prefix)


def vector(prefix: int) -> Reading:
    """Return the reading of VECTOR: a tuple of numbers, each with the shortest digits."""
    return prefixed(prefix, "vector({0})", vector=read_vector)


def read_vector(raw: bytes) -> tuple[float, ...]:
    return tuple(map(shortest_float, struct.unpack(f"<{len(raw) // _FLOAT_SIZE}f", raw)))


def choice(size: int) -> Reading:
    """Return the reading of ENUM and SET: a number; see `Column.labels`."""
    if not 1 <= size <= 8:
        raise Malformed(
            f"an ENUM or SET of {size} bytes", "the TABLE_MAP is damaged", Code.ROWS_EVENT
        )
    return unsigned(size)


def uuid_text(raw: bytes) -> str:
    return str(UUID(bytes=raw))


def inet4_text(raw: bytes) -> str:
    return str(IPv4Address(raw))


def inet6_text(raw: bytes) -> str:
    """Format 16 bytes as MariaDB's INET6; mapped and compatible addresses end in IPv4 form."""
    if raw[:12] == _MAPPED:
        return f"::ffff:{inet4_text(raw[12:])}"
    if raw[:12] == _COMPATIBLE and raw[12:14] != b"\0\0":
        return f"::{inet4_text(raw[12:])}"
    groups = [f"{raw[n] << 8 | raw[n + 1]:x}" for n in range(0, 16, 2)]
    marks = "".join("0" if group == "0" else "1" for group in groups)
    zeros = max(marks.split("1"), key=len)
    if not zeros:
        return ":".join(groups)
    # The first of the longest runs of zeros is omitted, even if it is a single group.
    start = marks.index(zeros)
    return ":".join(groups[:start]) + "::" + ":".join(groups[start + len(zeros) :])


_DECLARED: dict[str, tuple[int, Callable[[bytes], str]]] = {
    "uuid": (16, uuid_text),
    "inet4": (4, inet4_text),
    "inet6": (16, inet6_text),
}


def declared(name: str) -> Reading:
    if name not in _DECLARED:
        raise Malformed(
            f"{name!r} is no type that comes as bytes", ", ".join(_DECLARED), Code.ROWS_EVENT
        )
    size, read = _DECLARED[name]
    function = f"{name}_text"
    return prefixed(1, f"{function}({{0}}.ljust({size}, b'\\0'))", **{function: read})


_TIME_BIAS, _DATETIME_BIAS = 0x800000, 0x8000000000
_DAY_S = 86400
_EPOCH = dt.date(1970, 1, 1).toordinal()
_CACHE_MAX = 1 << 16
_CLOCK_BITS = 17
FSP_MAX = 6


class Texts(dict[int, str]):
    """Texts of frequent numbers; cleared before it grows too large."""

    def __init__(self, make: Callable[[int], str]) -> None:
        super().__init__()
        self._make = make

    def __missing__(self, number: int) -> str:
        if len(self) >= _CACHE_MAX:
            self.clear()
        text = self[number] = self._make(number)
        return text


def date_text(packed: int) -> str:
    return f"{packed >> 9:04d}-{packed >> 5 & 15:02d}-{packed & 31:02d}"


DATES = Texts(date_text)
_MONTH_DAYS = Texts(lambda n: date_text((n // 32 // 13) << 9 | (n // 32 % 13) << 5 | n & 31))
_EPOCH_DAYS = Texts(lambda day: dt.date.fromordinal(_EPOCH + day).isoformat())
_CLOCKS = Texts(lambda n: f"{n >> 12 & 0x3FF:02d}:{n >> 6 & 63:02d}:{n & 63:02d}")
_SECONDS = Texts(lambda s: f"{s // 3600:02d}:{s // 60 % 60:02d}:{s % 60:02d}")


def fraction_size(fsp: int) -> int:
    """Return the bytes of `fsp` fraction digits; raise `Malformed` for more than six."""
    if fsp > FSP_MAX:
        raise Malformed(f"{fsp} fraction digits", "the TABLE_MAP is damaged", Code.ROWS_EVENT)
    return (fsp + 1) // 2


def _fraction(number: int, fsp: int) -> str:
    return f".{number:0{2 * fraction_size(fsp)}d}"[: fsp + 1] if fsp else ""


def _split(fsp: int) -> tuple[int, int, int]:
    """Return the fraction's bytes, bits, and the mask of its bits."""
    size = fraction_size(fsp)
    return size, 8 * size, (1 << 8 * size) - 1


def datetime2(fsp: int) -> Reading:
    size, bits, mask = _split(fsp)
    clock_mask = (1 << _CLOCK_BITS) - 1
    days, clocks, from_bytes = _MONTH_DAYS, _CLOCKS, int.from_bytes

    def read_whole(raw: bytes) -> str:
        packed = from_bytes(raw, "big") - _DATETIME_BIAS
        return days[packed >> _CLOCK_BITS] + " " + clocks[packed & clock_mask]

    def read(raw: bytes) -> str:
        number = from_bytes(raw, "big")
        packed = (number >> bits) - _DATETIME_BIAS
        whole = days[packed >> _CLOCK_BITS] + " " + clocks[packed & clock_mask]
        return whole + _fraction(number & mask, fsp)

    name = f"datetime2_{fsp}"
    chosen = read if fsp else read_whole
    return fixed(f"{5 + size}s", name + "({0})", **{name: chosen})


def time2(fsp: int) -> Reading:
    size, bits, mask = _split(fsp)
    bias = _TIME_BIAS << bits
    clocks, from_bytes = _CLOCKS, int.from_bytes

    def read(raw: bytes) -> str:
        number = from_bytes(raw, "big") - bias
        sign = ""
        if number < 0:
            number, sign = -number, "-"
        return sign + clocks[number >> bits] + _fraction(number & mask, fsp)

    name = f"time2_{fsp}"
    return fixed(f"{3 + size}s", name + "({0})", **{name: read})


def epoch_text(seconds: int) -> str:
    """Return seconds since 1970 as a UTC time, 0 as the zero date."""
    if seconds == 0:
        return "0000-00-00 00:00:00"
    return _EPOCH_DAYS[seconds // _DAY_S] + " " + _SECONDS[seconds % _DAY_S]


def timestamp2(fsp: int) -> Reading:
    size, bits, mask = _split(fsp)
    from_bytes = int.from_bytes

    def read(raw: bytes) -> str:
        number = from_bytes(raw, "big")
        return epoch_text(number >> bits) + _fraction(number & mask, fsp)

    name = f"timestamp2_{fsp}"
    return fixed(f"{4 + size}s", name + "({0})", **{name: read})


def date() -> Reading:
    return fixed(("H", "B"), "dates[{0} | {1} << 16]", dates=DATES)


def old_timestamp() -> Reading:
    """Return the reading of TIMESTAMP as servers before MySQL 5.6 wrote it."""
    return fixed("I", "epoch_text({0})", epoch_text=epoch_text)


def _old_time_text(number: int) -> str:
    sign, number = ("-", -number) if number < 0 else ("", number)
    return f"{sign}{number // 10000:02d}:{number // 100 % 100:02d}:{number % 100:02d}"


def old_time() -> Reading:
    """Return the reading of TIME as servers before MySQL 5.6 wrote it."""

    return fixed(("H", "b"), "old_times[{0} | {1} << 16]", old_times=Texts(_old_time_text))


def _old_datetime_text(number: int) -> str:
    day, clock = divmod(number, 10**6)
    whole = f"{day // 10000:04d}-{day // 100 % 100:02d}-{day % 100:02d}"
    return f"{whole} {clock // 10000:02d}:{clock // 100 % 100:02d}:{clock % 100:02d}"


def old_datetime() -> Reading:
    """Return the reading of DATETIME as servers before MySQL 5.6 wrote it."""

    return fixed("Q", "old_datetime({0})", old_datetime=_old_datetime_text)
