"""Times: converts dates, times of day and durations between TiDB's packed numbers and MySQL's text.

    packed date or time, unsigned 64 bits, 0 being the zero time:

        bits 63..46      45..41   40..36   35..30    29..24    23..0
        year·13 + month  day      hour     minute    second    microsecond

    2022-04-27 04:05:07 is 0x19acb64147000000.

A duration is signed nanoseconds. JSON values hold the *core time* instead, year<<50, month<<46 and
so on, four low bits for type and fraction digits. Fraction digits beyond the column's are rounded
half up when a value is written (MySQL's rule). In stored values they are malformed, since rows are
read with the schema they were written with.
"""

from __future__ import annotations

import datetime as dt
import re

from penstock.datum.values import damaged

MICROS = 1_000_000
NANOS_PER_MICRO = 1000
DURATION_MAX_MICROS = (838 * 3600 + 59 * 60 + 59) * MICROS
DAYS = (31, 31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)
"""The maximum days of each month; month 0 stands for "not known" and allows any day."""
# The times that MySQL's four-byte TIMESTAMP can hold, besides zero.
TIMESTAMP_MIN = (1970, 1, 1, 0, 0, 1)
TIMESTAMP_MAX = (2038, 1, 19, 3, 14, 7)

_DATETIME = re.compile(
    r"(\d{4})-(\d{1,2})-(\d{1,2})(?:[ T](\d{1,2}):(\d{1,2}):(\d{1,2})(?:\.(\d*))?)?", re.ASCII
)
_DURATION = re.compile(r"(-?)(\d{1,3}):(\d{1,2}):(\d{1,2})(?:\.(\d*))?", re.ASCII)

Fields = tuple[int, int, int, int, int, int, int]
"""Year, month, day, hour, minute, second, microsecond."""


class Held(str):
    """A date's text as a server holds it, which with ALLOW_INVALID_DATES may be 31 February."""

    __slots__ = ()


def pack(fields: Fields) -> int:
    year, month, day, hour, minute, second, micro = fields
    date = (year * 13 + month) << 5 | day
    return (date << 17 | hour << 12 | minute << 6 | second) << 24 | micro


def unpack(packed: int) -> Fields:
    """Return the fields of a packed number; impossible fields are malformed."""
    micro = packed & 0xFFFFFF
    clock = packed >> 24 & 0x1FFFF
    date = packed >> 41
    year, month = divmod(date >> 5, 13)
    fields = (year, month, date & 31, clock >> 12, clock >> 6 & 63, clock & 63, micro)
    if not _is_time(fields):
        raise damaged(f"{packed:#x} is not a packed time")
    return fields


def unpack_core(core: int) -> Fields:
    """Return the fields of a core time, the form inside JSON values."""
    fields = (core >> 50, core >> 46 & 15, core >> 41 & 31, core >> 36 & 31,
              core >> 30 & 63, core >> 24 & 63, core >> 4 & 0xFFFFF)  # fmt: skip
    if fields[1] > 12 or not _is_time(fields):
        raise damaged(f"{core:#x} is not a core time")
    return fields


def pack_core(fields: Fields, low: int) -> int:
    """Return the core time of fields; `low` holds its four low bits."""
    year, month, day, hour, minute, second, micro = fields
    date = year << 50 | month << 46 | day << 41
    return date | hour << 36 | minute << 30 | second << 24 | micro << 4 | low


def _is_time(fields: Fields) -> bool:
    year, _, _, hour, minute, second, micro = fields
    return year <= 9999 and hour < 24 and minute < 60 and second < 60 and micro < MICROS


def datetime_text(fields: Fields, fsp: int) -> str:
    """Return "2022-04-27 04:05:07", with `fsp` fraction digits when there are any."""
    year, month, day, hour, minute, second, micro = fields
    whole = f"{year:04d}-{month:02d}-{day:02d} {hour:02d}:{minute:02d}:{second:02d}"
    return whole + fraction_text(micro, fsp)


def fraction_text(micro: int, fsp: int) -> str:
    """Return ".250" for 250000 and three digits; microseconds that need more are malformed."""
    kept, lost = divmod(micro, 10 ** (6 - fsp))
    if lost:
        raise damaged(f"{micro} microseconds have more than {fsp} digits")
    return f".{kept:0{fsp}d}" if fsp else ""


def date_text(fields: Fields) -> str:
    """Return "2022-04-27"; a time of day in a date is malformed."""
    if any(fields[3:]):
        raise damaged(f"a DATE holds {datetime_text(fields, 6)}")
    return f"{fields[0]:04d}-{fields[1]:02d}-{fields[2]:02d}"


def parse_datetime(text: str, fsp: int) -> Fields:
    """Read MySQL's text form of a date with or without a time; zero parts are allowed.

    A `Held` date is not checked against the calendar.
    """
    match = _DATETIME.fullmatch(text.strip())
    if match is None:
        raise damaged(f"{text!r} is not written as YYYY-MM-DD hh:mm:ss")
    year, month, day, hour, minute, second, fraction = match.groups("0")
    micro = rounded_micros(fraction, fsp)
    clock = (int(hour), int(minute), int(second))
    fields = (int(year), int(month), int(day), *clock, micro)
    is_odd = isinstance(text, Held) and micro < MICROS and fields[1] <= 12 and fields[2] <= 31
    return fields if is_odd and _is_time(fields) else checked(fields)


def rounded_micros(digits: str, fsp: int) -> int:
    """Return fraction digits as microseconds, rounded half up to `fsp`; may be a full second."""
    if digits in ("", "0"):
        return 0
    kept = int(digits[:fsp].ljust(fsp, "0") or "0")
    if digits[fsp : fsp + 1] >= "5":
        kept += 1
    return int(kept * 10 ** (6 - fsp))


def checked(fields: Fields) -> Fields:
    """Return the fields, carrying a full second of microseconds; bad dates are malformed."""
    year, month, day, micro = *fields[:3], fields[6]
    if month > 12 or day > DAYS[month] or not _is_time((*fields[:6], 0)):
        raise damaged(f"{datetime_text((*fields[:6], 0), 0)} does not exist")
    is_leap = year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)
    if month == 2 and day == 29 and not is_leap:
        raise damaged(f"{year} has no 29 February")
    if micro < MICROS:
        return fields
    try:
        later = dt.datetime(*fields[:6]) + dt.timedelta(seconds=1)  # noqa: DTZ001 - MySQL's wall clock.
    except (ValueError, OverflowError):
        raise damaged(f"{datetime_text((*fields[:6], 0), 0)} cannot be rounded up") from None
    return later.year, later.month, later.day, later.hour, later.minute, later.second, 0


def datetime_fields(value: object, fsp: int) -> Fields:
    """Parse a text, a date or a datetime; an aware datetime is converted to UTC."""
    if isinstance(value, str):
        return parse_datetime(value, fsp)
    if isinstance(value, dt.datetime):
        if value.tzinfo is not None:
            value = value.astimezone(dt.UTC)
        micro = rounded_micros(f"{value.microsecond:06d}", fsp)
        return checked(
            (value.year, value.month, value.day, value.hour, value.minute, value.second, micro)
        )
    if isinstance(value, dt.date):
        return value.year, value.month, value.day, 0, 0, 0, 0
    raise damaged("a date is given as text, date or datetime")


def duration_micros(value: object, fsp: int) -> int:
    """Read a text, a timedelta or a time of day as signed microseconds, rounded to `fsp` digits."""
    if isinstance(value, str):
        micros = _parse_duration(value, fsp)
    elif isinstance(value, dt.timedelta):
        exact = (value.days * 86400 + value.seconds) * MICROS + value.microseconds
        micros = _rounded(abs(exact), fsp) * (-1 if exact < 0 else 1)
    elif isinstance(value, dt.time):
        seconds = (value.hour * 60 + value.minute) * 60 + value.second
        micros = _rounded(seconds * MICROS + value.microsecond, fsp)
    else:
        raise damaged("a TIME is given as text, timedelta or time")
    if abs(micros) > DURATION_MAX_MICROS:
        raise damaged("a TIME reaches from -838:59:59 to 838:59:59")
    return micros


def _rounded(micros: int, fsp: int) -> int:
    unit = 10 ** (6 - fsp)
    return int((micros + unit // 2) // unit * unit)


def _parse_duration(text: str, fsp: int) -> int:
    match = _DURATION.fullmatch(text.strip())
    if match is None:
        raise damaged(f"{text!r} is not written as [-]hhh:mm:ss")
    hours, minutes, seconds = int(match[2]), int(match[3]), int(match[4])
    if minutes > 59 or seconds > 59:
        raise damaged(f"{text!r} is not a time")
    whole = (hours * 3600 + minutes * 60 + seconds) * MICROS
    return (whole + rounded_micros(match[5] or "", fsp)) * (-1 if match[1] else 1)


def duration_text(nanos: int, fsp: int) -> str:
    """Return "-838:59:59", with `fsp` fraction digits when there are any."""
    micros, lost = divmod(abs(nanos), NANOS_PER_MICRO)
    if lost or micros > DURATION_MAX_MICROS:
        raise damaged(f"{nanos} ns is not a TIME")
    seconds, micro = divmod(micros, MICROS)
    sign = "-" if nanos < 0 else ""
    clock = f"{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}"
    return sign + clock + fraction_text(micro, fsp)
