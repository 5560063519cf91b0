"""Defaults of date and time columns: the many ways MySQL reads them into the one it prints.

More decimals than the column has are refused, where MySQL would round: a default that is not what
is written helps nobody.
"""

from __future__ import annotations

import re

from penstock.ddl.syntax.elements import Value, ValueKind
from penstock.schema.model import ColumnInfo, MysqlType

_DATE = r"(\d{4}|\d{2})[-/.:](\d{1,2})[-/.:](\d{1,2})"
_CLOCK = r"(\d{1,2}):(\d{1,2})(?::(\d{1,2})(?:\.(\d*))?)?"
_DAYS = (31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)


def date_text(column: ColumnInfo, value: Value) -> str:
    """Return a DATE, DATETIME or TIMESTAMP as MySQL prints it; ValueError if it is none."""
    text = value.text.strip()
    if re.fullmatch(r"\d{8}|\d{6}", text):
        text = f"{text[:-4]}-{text[-4:-2]}-{text[-2:]}"
    elif re.fullmatch(r"\d{14}|\d{12}", text):
        day, clock = text[:-6], text[-6:]
        day = f"{day[:-4]}-{day[-4:-2]}-{day[-2:]}"
        text = f"{day} {clock[:2]}:{clock[2:4]}:{clock[4:]}"
    elif value.kind is ValueKind.NUMBER and text == "0":
        text = "0000-00-00"
    match = re.fullmatch(rf"{_DATE}(?:[ T]+{_CLOCK})?", text)
    if match is None or value.kind in (ValueKind.HEX, ValueKind.BITS):
        raise ValueError(text)
    day = _day(match[1], int(match[2]), int(match[3]))
    if column.tp is MysqlType.DATE:
        return day
    return f"{day} {_clock(column, match.groups()[3:], 23)}"


def _day(year_text: str, month: int, day: int) -> str:
    year = int(year_text)
    if len(year_text) == 2:
        year += 2000 if year < 70 else 1900
    if month > 12 or day > (_DAYS[month - 1] if month else 31):
        raise ValueError(f"{year_text}-{month}-{day}")
    leap = year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)
    if month == 2 and day == 29 and not leap:
        raise ValueError(f"{year_text}-{month}-{day}")
    return f"{year:04}-{month:02}-{day:02}"


def _clock(column: ColumnInfo, groups: tuple[str | None, ...], hours_max: int) -> str:
    hour, minute, second = (int(g or 0) for g in groups[:3])
    fraction = (groups[3] or "").ljust(6, "0")
    if hour > hours_max or minute > 59 or second > 59 or len(groups[3] or "") > 6:
        raise ValueError("no time of day")
    if fraction[column.decimal :].strip("0"):
        raise ValueError("more decimals than the column has")
    tail = f".{fraction[: column.decimal]}" if column.decimal else ""
    return f"{hour:02}:{minute:02}:{second:02}{tail}"


def duration_text(column: ColumnInfo, value: Value) -> str:
    """Return a TIME as MySQL prints it; ValueError if it is none."""
    text = value.text.strip()
    minus = "-" if text.startswith("-") else ""
    text = text.removeprefix("-")
    if re.fullmatch(r"\d{1,7}(\.\d*)?", text):
        whole, _, part = text.partition(".")
        whole = whole.zfill(6)
        text = f"{whole[:-4]}:{whole[-4:-2]}:{whole[-2:]}" + (f".{part}" if part else "")
    match = re.fullmatch(_CLOCK.replace(r"(\d{1,2})", r"(\d{1,3})", 1), text)
    if match is None or value.kind in (ValueKind.HEX, ValueKind.BITS):
        raise ValueError(text)
    return minus + _clock(column, match.groups(), 838)
