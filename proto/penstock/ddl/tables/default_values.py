"""Default values: converts a written literal to the text that `ColumnInfo.default` keeps.

    column               text
    integer, YEAR, BIT   whole number                      "5"
    DECIMAL              as many decimals as the column    "1.50"
    FLOAT, DOUBLE        shortest that reads back equal    "1.5"
    DATE … TIME          as MySQL prints it, with fsp decimals; TIMESTAMP in UTC
    text, ENUM           itself                            "a"
    SET                  names in the column's order       "a,b"
    bytes                decoded as UTF-8 (others refused) "ab"
    CURRENT_TIMESTAMP    "CURRENT_TIMESTAMP" or "CURRENT_TIMESTAMP(3)"
    an expression        its SQL, and `default_is_expr` is set

Dates and times are read in the many forms that MySQL reads. More decimals than the column has are
refused, unless a session is known, which determines whether they are rounded or cut off. The
session also determines the time zone of TIMESTAMP literals.

`origin_default`, the value of the column in older rows, has the same forms. For a NOT NULL column
without a default it is the zero of its type. For a column whose default is the current time it is
the time of the DDL, known when the job is finished: `Catalog.apply` fills it in.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import ROUND_DOWN, ROUND_HALF_UP, Decimal, InvalidOperation
from ipaddress import IPv4Address, IPv6Address
from uuid import UUID

from penstock.codes import Code
from penstock.datum import times
from penstock.datum.rows.fields import INTEGER_BITS, integer_range
from penstock.ddl.charsets import charset_named, connection_charset, literal_in
from penstock.ddl.syntax.lexer import Kind, read
from penstock.ddl.syntax.statements import Value, ValueKind
from penstock.errors import Malformed, NeedsOperator
from penstock.schema.ddl_context import ROUNDS, DdlContext
from penstock.schema.model import ColumnFlag, ColumnInfo, MysqlType

_DATE = r"(\d{4}|\d{2})[-/.:](\d{1,2})[-/.:](\d{1,2})"
_CLOCK = r"(\d{1,2}):(\d{1,2})(?::(\d{1,2})(?:\.(\d*))?)?"


def date_text(column: ColumnInfo, value: Value) -> str:
    """Return a DATE, DATETIME or TIMESTAMP as MySQL prints it.

    ValueError or `Malformed` if it is invalid.
    """
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
    year = int(match[1])
    if len(match[1]) == 2:
        year += 2000 if year < 70 else 1900
    text = times.date_text(times.checked((year, int(match[2]), int(match[3]), 0, 0, 0, 0)))
    return (
        text if column.tp is MysqlType.DATE else f"{text} {_clock(column, match.groups()[3:], 23)}"
    )


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
    """Return a TIME as MySQL prints it; ValueError if it is invalid."""
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


_TEXTS = {
    MysqlType.DATE: "0000-00-00",
    MysqlType.DATETIME: "0000-00-00 00:00:00",
    MysqlType.TIMESTAMP: "0000-00-00 00:00:00",
    MysqlType.DURATION: "00:00:00",
    MysqlType.JSON: "null",
    MysqlType.SET: "",
}
_FLOATS = (MysqlType.FLOAT, MysqlType.DOUBLE)
_NUMBERS = (*INTEGER_BITS, *_FLOATS, MysqlType.YEAR, MysqlType.BIT)
NATIVE_ZEROS = {"UUID": "00000000-0000-0000-0000-000000000000", "INET4": "0.0.0.0", "INET6": "::"}
"""For MariaDB's types whose values are texts here."""


def zero_text(column: ColumnInfo) -> str:
    if column.native:
        return NATIVE_ZEROS[column.native]
    if column.tp in _NUMBERS:
        return "0"
    tail = "." + "0" * column.decimal if column.decimal > 0 else ""
    if column.tp is MysqlType.NEWDECIMAL:
        return f"0{tail}"
    if column.tp is MysqlType.ENUM:
        return column.elems[0]
    if column.tp is MysqlType.STRING and column.is_binary:
        return "\0" * column.flen
    text = _TEXTS.get(column.tp, "")
    has_fraction = column.tp in (MysqlType.DATETIME, MysqlType.TIMESTAMP, MysqlType.DURATION)
    return text + tail if has_fraction else text


NOW = "CURRENT_TIMESTAMP"
_FINITE_MAX = 1e308


def default_of(
    column: ColumnInfo, value: Value | None, context: DdlContext | None = None
) -> ColumnInfo:
    """Return the column with that default; a default that does not fit it raises NeedsOperator.

    `context` is the session that wrote it.
    """
    if value is None or value.kind is ValueKind.NULL:
        return replace(column, default=None, default_is_expr=False)
    if value.kind is ValueKind.EXPRESSION:
        return replace(column, default=value.text, default_is_expr=True)
    if value.kind is ValueKind.NOW:
        return replace(column, default=_now(column, value), default_is_expr=False)
    text = _in_session(column, value, context) if context else literal_text(column, value)
    return replace(column, default=text, default_is_expr=False)


_LONG_FRACTION = re.compile(r"(.*\d)\.(\d{1,6})\d*", re.DOTALL)
_MOMENTS = (MysqlType.DATETIME, MysqlType.TIMESTAMP)


def _in_session(column: ColumnInfo, value: Value, context: DdlContext) -> str:
    of_session = connection_charset(context)
    if value.kind is ValueKind.TEXT and of_session is not None and not value.has_charset:
        value = replace(value, text=of_session.kept(value.text))
    is_time = column.tp in (*_MOMENTS, MysqlType.DURATION)
    long = _LONG_FRACTION.fullmatch(value.text) if is_time else None
    if long is not None and long[2][column.decimal :].strip("0"):
        if context.sql_mode is not None and ROUNDS in context.sql_mode:
            return _shifted(column, _rounded(column, value), context)
        digits = long[2][: column.decimal]
        value = replace(value, text=f"{long[1]}.{digits}" if digits else long[1])
    return _shifted(column, literal_text(column, value), context)


def _rounded(column: ColumnInfo, value: Value) -> str:
    if column.tp not in _MOMENTS:
        raise _misfit(column, value.text)
    exact = datetime.fromisoformat(literal_text(replace(column, decimal=6), value))
    unit = 10 ** (6 - column.decimal)
    exact += timedelta(microseconds=unit // 2)
    whole = exact.replace(microsecond=exact.microsecond // unit * unit)
    return literal_text(column, Value(ValueKind.TEXT, whole.strftime("%Y-%m-%d %H:%M:%S.%f")))


def _shifted(column: ColumnInfo, text: str, context: DdlContext) -> str:
    if column.tp is not MysqlType.TIMESTAMP or text.startswith("0000-00-00"):
        return text
    zone, written = context.zone(), datetime.fromisoformat(text)
    early = None if zone is None else written.replace(tzinfo=zone).astimezone(UTC)
    late = None if zone is None else written.replace(tzinfo=zone, fold=1).astimezone(UTC)
    if early is None or early != late:
        raise NeedsOperator(
            f"column {column.name!r}: which time {text!r} is in time zone {context.time_zone!r}"
            " is not known here",
            "replace the statement by one whose literal is in UTC",
            Code.DDL_DEFAULT,
        )
    shown = early.strftime("%Y-%m-%d %H:%M:%S.%f")
    return shown[: len(text)]


def is_now(text: str | None) -> bool:
    return text is not None and re.fullmatch(rf"{NOW}(\(\d\))?", text) is not None


def origin_of(column: ColumnInfo) -> str | None:
    """Return the value of this new column in older rows.

    A default that differs from row to row cannot be known and raises NeedsOperator.
    """
    if column.is_generated:
        return None
    if column.default_is_expr:
        _check_repeatable(column)
        return None
    if ColumnFlag.AUTO_INCREMENT in column.flag:
        raise NeedsOperator(
            f"column {column.name!r}: the numbers that older rows get cannot be known",
            "add a plain column, fill it, then make it AUTO_INCREMENT",
            Code.DDL_DEFAULT,
        )
    if column.default is not None or not column.is_not_null:
        return column.default
    return zero_text(column)


def has_computed_origin(column: ColumnInfo) -> bool:
    """Return whether older rows read as an expression over themselves."""
    return column.default_is_expr and not column.is_generated


_UNREPEATABLE_TEXT = """
    RAND UUID UUID_SHORT UUID_V4 UUID_V7 SYS_GUID RANDOM_BYTES SYSDATE CONNECTION_ID USER
    SESSION_USER SYSTEM_USER CURRENT_USER CURRENT_ROLE DATABASE SCHEMA VERSION LAST_INSERT_ID
    ROW_COUNT FOUND_ROWS NEXTVAL LASTVAL SETVAL NEXT PREVIOUS SLEEP BENCHMARK GET_LOCK RELEASE_LOCK
    RELEASE_ALL_LOCKS IS_FREE_LOCK IS_USED_LOCK LOAD_FILE MASTER_POS_WAIT MASTER_GTID_WAIT
    SOURCE_POS_WAIT ENCRYPT DES_ENCRYPT DES_DECRYPT AES_ENCRYPT AES_DECRYPT PASSWORD OLD_PASSWORD
    BINLOG_GTID_POS DECODE_HISTOGRAM CHARSET COLLATION COERCIBILITY
"""
_UNREPEATABLE = frozenset(_UNREPEATABLE_TEXT.split())
"""Functions whose value differs between sessions, or between calls."""


def _check_repeatable(column: ColumnInfo) -> None:
    """Refuse a default that a downstream would compute differently for existing rows."""
    tokens = read(column.default or "").tokens
    if any(t.text == "@" or t.upper in _UNREPEATABLE for t in tokens if t.kind is not Kind.STRING):
        raise NeedsOperator(
            f"column {column.name!r}: adding a column whose default ({column.default}) has another"
            " value each time",
            "add it without a default, fill the rows, then set the default",
            Code.DDL_DEFAULT,
        )


def _now(column: ColumnInfo, value: Value) -> str:
    if column.tp not in (MysqlType.DATETIME, MysqlType.TIMESTAMP):
        raise _misfit(column, NOW)
    if int(value.text) > column.decimal:
        raise NeedsOperator(
            f"column {column.name!r}: its default has other decimals than the column",
            f"write {NOW}({column.decimal})",
            Code.DDL_DEFAULT,
        )
    return f"{NOW}({value.text})" if value.text != "0" else NOW


def _misfit(column: ColumnInfo, text: str) -> NeedsOperator:
    return NeedsOperator(
        f"column {column.name!r}: {text!r} is no default for its type",
        "give a default that the column can hold",
        Code.DDL_DEFAULT,
    )


def literal_text(column: ColumnInfo, value: Value) -> str:
    """Return a literal in the form of the table above."""
    reader = _native if column.native else _READERS.get(column.tp, _text)
    try:
        return reader(column, value)
    except (ValueError, InvalidOperation, OverflowError, Malformed):
        raise _misfit(column, value.text) from None


def convert(column: ColumnInfo, text: str) -> str | None:
    """Return a default's text as kept by another column type, None if that cannot keep it."""
    if is_now(text):
        return text
    try:
        return literal_text(column, Value(ValueKind.TEXT, text))
    except NeedsOperator:
        return None


def _number(value: Value) -> Decimal:
    if value.kind is ValueKind.HEX:
        return Decimal(int(value.text or "0", 16))
    if value.kind is ValueKind.BITS:
        return Decimal(int(value.text or "0", 2))
    number = Decimal(value.text.strip())
    if not number.is_finite():
        raise ValueError(value.text)
    return number


def _integer(column: ColumnInfo, value: Value) -> str:
    if column.tp is MysqlType.BIT and value.kind is ValueKind.TEXT:
        number = int.from_bytes(value.text.encode(), "big")
    else:
        rounding = ROUND_DOWN if column.tp is MysqlType.BIT else ROUND_HALF_UP
        number = int(_number(value).quantize(Decimal(1), rounding))
    low, high = integer_range(column)
    if not low <= number <= high:
        raise ValueError(value.text)
    return str(number)


def _year(column: ColumnInfo, value: Value) -> str:
    number = int(_number(value))
    if number < 100 and (number or (value.kind is ValueKind.TEXT and len(value.text) < 4)):
        number += 2000 if number < 70 else 1900
    if number and not 1901 <= number <= 2155:
        raise ValueError(value.text)
    return str(number)


def _decimal(column: ColumnInfo, value: Value) -> str:
    number = _number(value).quantize(Decimal(1).scaleb(-column.decimal), ROUND_HALF_UP)
    if (column.is_unsigned and number < 0) or abs(number) >= 10 ** (column.flen - column.decimal):
        raise ValueError(value.text)
    return f"{number or abs(number):f}"


def _float(column: ColumnInfo, value: Value) -> str:
    number = float(_number(value))
    if abs(number) > _FINITE_MAX or (column.is_unsigned and number < 0):
        raise ValueError(value.text)
    if column.decimal >= 0:
        number = round(number, column.decimal)
    return repr(number).removesuffix(".0")


def _text(column: ColumnInfo, value: Value) -> str:
    text = _own_text(column, value)
    if column.tp is MysqlType.STRING and not column.is_binary:
        text = text.rstrip(" ")  # CHAR has none at the end.
    if len(text.encode() if column.is_binary else text) > column.flen:
        raise ValueError(text)
    return text


def _own_text(column: ColumnInfo, value: Value) -> str:
    return literal_in(charset_named(column.charset), value)


_U16_MAX = 0xFFFF


def _native(column: ColumnInfo, value: Value) -> str:
    raw = bytes.fromhex(value.text) if value.kind is ValueKind.HEX else None
    if column.native == "UUID":
        return str(UUID(bytes=raw) if raw is not None else UUID(value.text))
    if column.native == "INET4":
        return str(IPv4Address(value.text if raw is None else raw))
    address = IPv6Address(value.text if raw is None else raw)
    head, last = address.packed[:12], IPv4Address(address.packed[12:])
    if head == bytes(10) + b"\xff\xff":
        return f"::ffff:{last}"
    return f"::{last}" if not any(head) and int(last) > _U16_MAX else address.compressed


def _elem(column: ColumnInfo, text: str) -> str:
    wanted = text.rstrip(" ")
    exact = [e for e in column.elems if e == wanted]
    loose = [e for e in column.elems if e.lower() == wanted.lower()]
    found = exact or ([] if column.collate.endswith("_bin") else loose)
    if not found:
        raise ValueError(text)
    return found[0]


def _labels(column: ColumnInfo, value: Value) -> str:
    if value.kind is ValueKind.NUMBER:
        raise ValueError(value.text)
    text = _own_text(column, value)
    if column.tp is MysqlType.ENUM:
        return _elem(column, text)
    chosen = {_elem(column, part) for part in text.split(",")} if text else set()
    return ",".join(e for e in column.elems if e in chosen)


def _only_expressions(column: ColumnInfo, value: Value) -> str:
    raise ValueError("a JSON column or a geometry takes an expression only")


_READERS: dict[MysqlType, Callable[[ColumnInfo, Value], str]] = {
    **dict.fromkeys((*INTEGER_BITS, MysqlType.BIT), _integer),
    MysqlType.YEAR: _year,
    MysqlType.NEWDECIMAL: _decimal,
    **dict.fromkeys(_FLOATS, _float),
    **dict.fromkeys((MysqlType.DATE, *_MOMENTS), date_text),
    MysqlType.DURATION: duration_text,
    **dict.fromkeys((MysqlType.ENUM, MysqlType.SET), _labels),
    **dict.fromkeys((MysqlType.JSON, MysqlType.GEOMETRY), _only_expressions),
}
