"""Dates and times in row images, decoded to the text that the server prints.

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
from collections.abc import Callable

from penstock.codes import Code
from penstock.errors import Malformed
from pumpclient.mysql.rows.values.reading import Reading, fixed

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
        raise Malformed(
            f"{fsp} fraction digits", hint="the TABLE_MAP is damaged", code=Code.ROWS_EVENT
        )
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
    return fixed(
        ("H", "B"),
        "dates[{0} | {1} << 16]",
        dates=DATES,
    )


def old_timestamp() -> Reading:
    """Return the reading of TIMESTAMP as servers before MySQL 5.6 wrote it."""
    return fixed(
        "I",
        "epoch_text({0})",
        epoch_text=epoch_text,
    )


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
