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
from penstock.errors import Malformed, NeedsOperator
from pumpclient.mysql.rows.json_binary import json_text
from pumpclient.mysql.rows.rows_event import (
    PREFIX_CODES,
    Reading,
    big_endian,
    fixed,
    joined,
    prefixed,
    unsigned,
)
from pumpclient.mysql.rows.table_map import Column, WireType, charset_of

_FLOAT = struct.Struct("<f")
_EXACT = decimal.Context(prec=100)
_DIGITS_MAX, _SCALE_MAX = 65, 38
_SIGNED_CODES = {1: ("b",), 2: ("h",), 3: ("H", "b"), 4: ("i",), 8: ("q",)}


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


def inet6_text(raw: bytes) -> str:
    """Format 16 bytes as MariaDB's INET6; mapped and compatible addresses end in IPv4 form."""
    if raw[:12] == _MAPPED:
        return f"::ffff:{IPv4Address(raw[12:])}"
    if raw[:12] == _COMPATIBLE and raw[12:14] != b"\0\0":
        return f"::{IPv4Address(raw[12:])}"
    groups = [f"{raw[n] << 8 | raw[n + 1]:x}" for n in range(0, 16, 2)]
    marks = "".join("0" if group == "0" else "1" for group in groups)
    zeros = max(marks.split("1"), key=len)
    if not zeros:
        return ":".join(groups)
    # The first of the longest runs of zeros is omitted, even if it is a single group.
    start = marks.index(zeros)
    return ":".join(groups[:start]) + "::" + ":".join(groups[start + len(zeros) :])


_DECLARED: dict[str, tuple[int, Callable[[bytes], str]]] = {
    "uuid": (16, lambda raw: str(UUID(bytes=raw))),
    "inet4": (4, lambda raw: str(IPv4Address(raw))),
    "inet6": (16, inet6_text),
}


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


def _old_time_text(number: int) -> str:
    sign, number = ("-", -number) if number < 0 else ("", number)
    return f"{sign}{number // 10000:02d}:{number // 100 % 100:02d}:{number % 100:02d}"


def _old_datetime_text(number: int) -> str:
    day, clock = divmod(number, 10**6)
    whole = f"{day // 10000:04d}-{day // 100 % 100:02d}-{day % 100:02d}"
    return f"{whole} {clock // 10000:02d}:{clock // 100 % 100:02d}:{clock % 100:02d}"


_INTEGERS = {
    WireType.TINY: 1,
    WireType.SHORT: 2,
    WireType.INT24: 3,
    WireType.LONG: 4,
    WireType.LONGLONG: 8,
}
_FULL = "set the server's binlog_row_metadata to FULL, or complete the map from the table's schema"


def reading_of(column: Column) -> Reading:
    """Return how values of `column` are read.

    Raises `NeedsOperator` when the server did not send enough (a sign, a charset), and `Malformed`
    for types that no server since MySQL 5.0 writes.
    """
    real = column.real_type
    if real in _INTEGERS:
        if column.is_unsigned is None:
            raise NeedsOperator(
                f"the binlog does not have the sign of {real.name}", _FULL, Code.BINLOG_INCOMPLETE
            )
        return integer(_INTEGERS[real], is_unsigned=column.is_unsigned)
    make = _MAKERS.get(real)
    if make is None:
        raise Malformed(
            f"values of type {real.name} are not known",
            "rebuild the table with the server's own version: ALTER TABLE … FORCE",
            Code.ROWS_EVENT,
        )
    return make(column)


def _charset(column: Column) -> Charset:
    if column.collation is None:
        raise NeedsOperator(
            f"the binlog does not have the charset of {column.name}", _FULL, Code.BINLOG_INCOMPLETE
        )
    return charset_of(column.collation)


def _string(column: Column) -> Reading:
    if (name := column.declared) is not None:
        if name not in _DECLARED:
            raise Malformed(
                f"{name!r} is no type that comes as bytes", ", ".join(_DECLARED), Code.ROWS_EVENT
            )
        size, read = _DECLARED[name]
        return prefixed(1, f"{name}_text({{0}}.ljust({size}, b'\\0'))", **{f"{name}_text": read})
    charset = _charset(column)
    pad_to = column.length if charset.is_binary else 0
    return text(length_size(column.length), charset, pad_to=pad_to)


def _varchar(column: Column) -> Reading:
    is_compressed = column.type is WireType.VARCHAR_COMPRESSED
    prefix = length_size(column.metadata)
    return text(prefix, _charset(column), is_compressed=is_compressed)


def _prefix(column: Column) -> int:
    if column.metadata not in PREFIX_CODES:
        raise Malformed(
            f"a {column.type.name} with lengths of {column.metadata} bytes",
            "the TABLE_MAP is damaged",
            Code.ROWS_EVENT,
        )
    return column.metadata


def _blob(column: Column) -> Reading:
    is_compressed = column.type is WireType.BLOB_COMPRESSED
    return text(_prefix(column), _charset(column), is_compressed=is_compressed)


def _bit(column: Column) -> Reading:
    # The metadata is a pair: bits past the last whole byte, whole bytes.
    bits = (column.metadata & 0xFF) * 8 + (column.metadata >> 8)
    if not 0 < bits <= 64:
        raise Malformed(f"a BIT({bits})", "the TABLE_MAP is damaged", Code.ROWS_EVENT)
    return big_endian((bits + 7) // 8)


def _vector(raw: bytes) -> tuple[float, ...]:
    return tuple(map(shortest_float, struct.unpack(f"<{len(raw) // _FLOAT_SIZE}f", raw)))


def _choice(column: Column) -> Reading:
    if not 1 <= column.length <= 8:
        raise Malformed(
            f"an ENUM or SET of {column.length} bytes", "the TABLE_MAP is damaged", Code.ROWS_EVENT
        )
    return unsigned(column.length)


_DATE = fixed(("H", "B"), "dates[{0} | {1} << 16]", dates=DATES)
_MAKERS: dict[WireType, Callable[[Column], Reading]] = {
    WireType.FLOAT: lambda _: fixed("f", "shortest({0})", shortest=shortest_float),
    WireType.DOUBLE: lambda _: fixed("d"),
    WireType.NEWDECIMAL: lambda c: decimal_reading(c.metadata >> 8, c.metadata & 0xFF),
    WireType.YEAR: lambda _: fixed("B", "({0} and {0} + 1900)"),
    WireType.BIT: _bit,
    WireType.DATE: lambda _: _DATE,
    WireType.NEWDATE: lambda _: _DATE,
    WireType.TIME2: lambda c: time2(c.metadata),
    WireType.DATETIME2: lambda c: datetime2(c.metadata),
    WireType.TIMESTAMP2: lambda c: timestamp2(c.metadata),
    WireType.TIME: lambda _: fixed(
        ("H", "b"), "old_times[{0} | {1} << 16]", old_times=Texts(_old_time_text)
    ),
    WireType.DATETIME: lambda _: fixed("Q", "old_datetime({0})", old_datetime=_old_datetime_text),
    WireType.TIMESTAMP: lambda _: fixed("I", "epoch_text({0})", epoch_text=epoch_text),
    WireType.STRING: _string,
    WireType.VARCHAR: _varchar,
    WireType.VAR_STRING: _varchar,
    WireType.VARCHAR_COMPRESSED: _varchar,
    WireType.BLOB: _blob,
    WireType.TINY_BLOB: _blob,
    WireType.MEDIUM_BLOB: _blob,
    WireType.LONG_BLOB: _blob,
    WireType.BLOB_COMPRESSED: _blob,
    WireType.ENUM: _choice,
    WireType.SET: _choice,
    WireType.GEOMETRY: lambda c: prefixed(_prefix(c)),
    WireType.VECTOR: lambda c: prefixed(_prefix(c), "vector({0})", vector=_vector),
    WireType.JSON: lambda c: prefixed(_prefix(c), "json_text({0})", json_text=json_text),
}
