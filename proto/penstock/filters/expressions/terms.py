"""Values and terms of expressions: MySQL's kinds of value, their conversion, and `Term`.

    kind      Python value                        from columns of type
    NUMBER    int, Decimal, float                 integers, YEAR, BIT, DECIMAL, FLOAT, DOUBLE
    TEXT      str                                 CHAR, VARCHAR, TEXT, ENUM, SET
    BYTES     bytes                               BINARY, VARBINARY, BLOB, geometries
    MOMENT    str, YYYY-MM-DD hh:mm:ss[.f]        DATE, DATETIME, TIMESTAMP (in UTC)
    SPAN      str, [-]hhh:mm:ss[.f]               TIME
    JSON      str                                 JSON: only IS NULL can ask about it
    NULL      None                                the constant

NULL is None in every kind. A text's number is the number at its start, 0 if it starts with none. A
`Term` is a part of a compiled expression: its kind, and how to compute it from a row.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import ROUND_HALF_UP, Context, Decimal
from enum import Enum, auto
from typing import Any, TypeAlias

from penstock.codes import Code
from penstock.datum.rows.fields import STRING_TYPES
from penstock.ddl.charsets import pads
from penstock.errors import NeedsOperator
from penstock.filters.expressions.syntax_tree import Literal
from penstock.schema.model import ColumnInfo, MysqlType

Row: TypeAlias = Sequence[Any]

_NO_ROW: Row = ()


@dataclass(frozen=True, slots=True)
class Term:
    """A part of an expression; `is_listed` marks a column of listed texts (ENUM, SET)."""

    kind: SqlKind
    run: Callable[[Row], Any]
    is_constant: bool = False
    collation: str | None = None
    is_listed: bool = False

    @property
    def value(self) -> Any:
        assert self.is_constant
        return self.run(_NO_ROW)


def fixed(kind: SqlKind, value: Any) -> Term:
    return Term(kind, lambda _: value, is_constant=True)


def constant(node: Literal) -> Term:
    """Return the term of a literal; raise `NeedsOperator` for DATE '…' with an invalid date."""
    value = node.value
    if node.kind:
        assert isinstance(value, str)
        is_span = node.kind == "TIME"
        if (span(value) if is_span else moment(value)) is None:
            raise refuse(f"{node.kind} {value!r} is none", "write YYYY-MM-DD or hh:mm:ss")
        return fixed(SqlKind.SPAN if is_span else SqlKind.MOMENT, value)
    if value is None:
        return fixed(SqlKind.NULL, None)
    if isinstance(value, str):
        return fixed(SqlKind.TEXT, value)
    return fixed(SqlKind.BYTES if isinstance(value, bytes) else SqlKind.NUMBER, value)


def refuse(problem: str, hint: str) -> NeedsOperator:
    return NeedsOperator(problem, hint, Code.FILTER_RULE)


Number: TypeAlias = int | float | Decimal

CONTEXT = Context(prec=65, rounding=ROUND_HALF_UP)
"""MySQL's decimals have at most 65 digits."""

_NUMBER = re.compile(r"\s*([+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)")
_MOMENT = re.compile(
    r"(\d{4})-(\d{1,2})-(\d{1,2})(?:[ T](\d{1,2}):(\d{1,2})(?::(\d{1,2})(\.\d*)?)?)?"
)
_SPAN = re.compile(r"(-?)(\d{1,3}):(\d{1,2})(?::(\d{1,2})(\.\d*)?)?")
_FRACTION_DIGITS = 6


class SqlKind(Enum):
    """The kind of an expression's value."""

    NUMBER = auto()
    TEXT = auto()
    BYTES = auto()
    MOMENT = auto()
    SPAN = auto()
    JSON = auto()
    NULL = auto()


_KINDS = {
    MysqlType.DATE: SqlKind.MOMENT,
    MysqlType.DATETIME: SqlKind.MOMENT,
    MysqlType.TIMESTAMP: SqlKind.MOMENT,
    MysqlType.DURATION: SqlKind.SPAN,
    MysqlType.JSON: SqlKind.JSON,
    MysqlType.ENUM: SqlKind.TEXT,
    MysqlType.SET: SqlKind.TEXT,
}


def kind_of(column: ColumnInfo) -> SqlKind:
    if column.tp in STRING_TYPES:
        return SqlKind.BYTES if column.is_binary else SqlKind.TEXT
    return _KINDS.get(column.tp, SqlKind.NUMBER)


def leading_number(text: str) -> float:
    """Return the number at the start of a text, 0 if it has none."""
    match = _NUMBER.match(text)
    return float(match[1]) if match else 0.0


def whole_number(text: str) -> int | None:
    """Return the integer that is the entire text, None for any other text."""
    stripped = text.strip()
    return int(stripped) if re.fullmatch(r"[+-]?\d+", stripped, re.ASCII) else None


def moment(text: str) -> str | None:
    """Return a date or time of a date in a single sortable form, None if it is neither."""
    match = _MOMENT.fullmatch(text.strip())
    if match is None:
        return None
    year, month, day, hour, minute, second = (int(part or 0) for part in match.groups()[:6])
    if month > 12 or day > 31 or hour > 23 or minute > 59 or second > 59:
        return None
    fraction = (match[7] or ".")[1:][:_FRACTION_DIGITS].ljust(_FRACTION_DIGITS, "0")
    return f"{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02}.{fraction}"


def is_real_day(text: str) -> bool:
    """Return whether a moment names a day of the calendar."""
    try:
        datetime.strptime(text[:10], "%Y-%m-%d")  # noqa: DTZ007  -- only the day is looked at.
    except ValueError:
        return False
    return True


def span(text: str) -> int | None:
    """Return a TIME in microseconds, None if the text is not a time."""
    match = _SPAN.fullmatch(text.strip())
    if match is None or int(match[3]) > 59 or int(match[4] or 0) > 59:
        return None
    seconds = int(match[2]) * 3600 + int(match[3]) * 60 + int(match[4] or 0)
    fraction = (match[5] or ".")[1:][:_FRACTION_DIGITS].ljust(_FRACTION_DIGITS, "0")
    micros = seconds * 1_000_000 + int(fraction)
    return -micros if match[1] else micros


def as_number(kind: SqlKind, value: object) -> Number | None:
    if value is None or isinstance(value, int | float | Decimal):
        return value
    if isinstance(value, bytes):
        return leading_number(value.decode("utf-8", "replace"))
    assert isinstance(value, str), value
    if kind is SqlKind.TEXT:
        return leading_number(value)
    whole, _, fraction = value.partition(".")
    digits = re.sub(r"[^0-9]", "", whole)
    number: Number = Decimal(f"{digits}.{fraction}") if fraction else int(digits)
    return -number if value.startswith("-") else number


def as_text(value: object) -> str | None:
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if isinstance(value, Decimal):
        return format(value, "f")
    if isinstance(value, float):
        return f"{value:.0f}" if value == int(value) and abs(value) < 1e15 else repr(value)
    return str(value)


def is_true(kind: SqlKind, value: object) -> bool | None:
    """Return whether a value counts as true; None for NULL."""
    number = as_number(kind, value)
    return None if number is None else number != 0


def collated(text: str, collation: str) -> str:
    """Return a text that is equal for two texts exactly when the collation considers them equal.

    `_ci` compares letters without case and accents. It uses Unicode's decomposition and not the
    server's table of weights, which may differ beyond the European scripts. Trailing blanks count
    only in collations that do not pad.
    """
    if pads(collation):
        text = text.rstrip(" ")
    if collation.endswith("_ci"):
        apart = unicodedata.normalize("NFD", text.casefold())
        keep = "_as_" in collation
        text = "".join(c for c in apart if keep or not unicodedata.combining(c))
    return text
