"""Functions, arithmetic and casts of expressions, with MySQL's semantics.

    on texts      CONCAT, LEFT, RIGHT, SUBSTRING, LOWER, UPPER, TRIM, LTRIM, RTRIM, REPLACE,
                  REVERSE, LENGTH (bytes), CHAR_LENGTH, INSTR, LOCATE
    on numbers    ABS, SIGN, FLOOR, CEIL, MOD, + - * / DIV %
    on moments    DATE, YEAR, MONTH, DAY, HOUR, MINUTE, SECOND
    any kind      CAST; IF, IFNULL, COALESCE, NULLIF, ISNULL (in `compiler`, since they choose)

Each yields NULL when an argument is NULL, except the functions that choose.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import ROUND_HALF_UP, Decimal
from typing import Any

from penstock.filters.expressions.terms import (
    CONTEXT,
    Number,
    Row,
    SqlKind,
    Term,
    as_number,
    as_text,
    is_real_day,
    moment,
    span,
)


@dataclass(frozen=True, slots=True)
class Function:
    """A function: the kind its arguments are converted to, its result kind, and their number."""

    run: Callable[..., Any]
    takes: SqlKind
    gives: SqlKind
    least: int
    most: int


def prepared(takes: SqlKind, kind: SqlKind) -> Callable[[Any], Any]:
    if takes is SqlKind.TEXT:
        return as_text
    if takes is SqlKind.NUMBER:
        return lambda value: as_number(kind, value)
    if kind is SqlKind.SPAN:
        return lambda value: value
    return lambda value: None if value is None else moment(str(as_text(value)))


def _substring(text: str, *places: Number | str) -> str:
    start = int(float(places[0]))
    length = int(float(places[1])) if len(places) > 1 else len(text)
    if start == 0 or length <= 0 or abs(start) > len(text):
        return ""
    begin = start - 1 if start > 0 else len(text) + start
    return text[begin : begin + length]


def _left(text: str, count: str) -> str:
    return text[: max(int(float(count)), 0)]


def _right(text: str, count: str) -> str:
    wanted = max(int(float(count)), 0)
    return text[len(text) - min(wanted, len(text)) :]


def _locate(wanted: str, text: str, start: str = "1") -> int:
    first = int(float(start))
    return 0 if first < 1 else text.lower().find(wanted.lower(), first - 1) + 1


def _rounded(rounding: Callable[[Any], int]) -> Callable[[Number], Number]:
    return lambda number: float(rounding(number)) if isinstance(number, float) else rounding(number)


def _sign(number: Number) -> int:
    return (number > 0) - (number < 0)


def remainder(left: Number, right: Number) -> Number | None:
    """Return the remainder with the dividend's sign; None for a division by zero."""
    if right == 0:
        return None
    if isinstance(left, float) or isinstance(right, float):
        return math.fmod(float(left), float(right))
    if isinstance(left, int) and isinstance(right, int):
        rest = abs(left) % abs(right)
        return -rest if left < 0 else rest
    return CONTEXT.remainder(Decimal(left), Decimal(right))


def _day_part(start: int, end: int) -> Callable[[str], int]:
    return lambda text: int(text[start:end])


def _time_part(divisor: int, modulus: int) -> Callable[[str], int | None]:
    def part(text: str) -> int | None:
        clock = text[11:] if text[4:5] == "-" else text
        micros = span(clock)
        return None if micros is None else abs(micros) // 1_000_000 // divisor % modulus

    return part


def _date(text: str) -> str | None:
    return text[:10] if is_real_day(text) else None


_TEXT, _NUMBER, _MOMENT = SqlKind.TEXT, SqlKind.NUMBER, SqlKind.MOMENT

FUNCTIONS: dict[str, Function] = {
    "CONCAT": Function(lambda *texts: "".join(texts), _TEXT, _TEXT, 1, 99),
    "LEFT": Function(_left, _TEXT, _TEXT, 2, 2),
    "RIGHT": Function(_right, _TEXT, _TEXT, 2, 2),
    "SUBSTRING": Function(_substring, _TEXT, _TEXT, 2, 3),
    "LOWER": Function(str.lower, _TEXT, _TEXT, 1, 1),
    "UPPER": Function(str.upper, _TEXT, _TEXT, 1, 1),
    "TRIM": Function(lambda text: text.strip(" "), _TEXT, _TEXT, 1, 1),
    "LTRIM": Function(lambda text: text.lstrip(" "), _TEXT, _TEXT, 1, 1),
    "RTRIM": Function(lambda text: text.rstrip(" "), _TEXT, _TEXT, 1, 1),
    "REPLACE": Function(lambda t, a, b: t.replace(a, b) if a else t, _TEXT, _TEXT, 3, 3),
    "REVERSE": Function(lambda text: text[::-1], _TEXT, _TEXT, 1, 1),
    "CHAR_LENGTH": Function(len, _TEXT, _NUMBER, 1, 1),
    "LENGTH": Function(lambda text: len(text.encode()), _TEXT, _NUMBER, 1, 1),
    "LOCATE": Function(_locate, _TEXT, _NUMBER, 2, 3),
    "INSTR": Function(lambda text, wanted: _locate(wanted, text), _TEXT, _NUMBER, 2, 2),
    "ABS": Function(abs, _NUMBER, _NUMBER, 1, 1),
    "SIGN": Function(_sign, _NUMBER, _NUMBER, 1, 1),
    "FLOOR": Function(_rounded(math.floor), _NUMBER, _NUMBER, 1, 1),
    "CEIL": Function(_rounded(math.ceil), _NUMBER, _NUMBER, 1, 1),
    "MOD": Function(remainder, _NUMBER, _NUMBER, 2, 2),
    "DATE": Function(_date, _MOMENT, _MOMENT, 1, 1),
    "YEAR": Function(_day_part(0, 4), _MOMENT, _NUMBER, 1, 1),
    "MONTH": Function(_day_part(5, 7), _MOMENT, _NUMBER, 1, 1),
    "DAY": Function(_day_part(8, 10), _MOMENT, _NUMBER, 1, 1),
    "HOUR": Function(_time_part(3600, 10**6), _MOMENT, _NUMBER, 1, 1),
    "MINUTE": Function(_time_part(60, 60), _MOMENT, _NUMBER, 1, 1),
    "SECOND": Function(_time_part(1, 60), _MOMENT, _NUMBER, 1, 1),
}

_DIVISION_DIGITS = 4  # div_precision_increment
_UINT64 = 1 << 64
_INT64_MAX, _INT64_MIN = 2**63 - 1, -(2**63)


def _sum(left: Number, right: Number) -> Number:
    if isinstance(left, float) or isinstance(right, float):
        return float(left) + float(right)
    if isinstance(left, int) and isinstance(right, int):
        return left + right
    return CONTEXT.add(Decimal(left), Decimal(right))


def _difference(left: Number, right: Number) -> Number:
    return _sum(left, -right)


def _product(left: Number, right: Number) -> Number:
    if isinstance(left, float) or isinstance(right, float):
        return float(left) * float(right)
    if isinstance(left, int) and isinstance(right, int):
        return left * right
    return CONTEXT.multiply(Decimal(left), Decimal(right))


def _quotient(left: Number, right: Number) -> Number | None:
    if right == 0:
        return None
    if isinstance(left, float) or isinstance(right, float):
        return float(left) / float(right)
    left = Decimal(left)
    exponent = left.as_tuple().exponent
    assert isinstance(exponent, int)
    digits = max(-exponent, 0) + _DIVISION_DIGITS
    exact = CONTEXT.divide(left, Decimal(right))
    return exact.quantize(Decimal(1).scaleb(-digits), context=CONTEXT)


def _whole_quotient(left: Number, right: Number) -> Number | None:
    if right == 0:
        return None
    whole = abs(Decimal(left)) // abs(Decimal(right))
    return int(whole) if (left < 0) == (right < 0) else -int(whole)


def _arithmetic(run: Callable[[Number, Number], Number | None]) -> Callable[[Sequence[Term]], Term]:
    def build(args: Sequence[Term]) -> Term:
        one, other = args

        def compute(row: Row) -> Number | None:
            left, right = as_number(one.kind, one.run(row)), as_number(other.kind, other.run(row))
            return None if left is None or right is None else run(left, right)

        return Term(SqlKind.NUMBER, compute)

    return build


ARITHMETIC: dict[str, Callable[[Sequence[Term]], Term]] = {
    "+": _arithmetic(_sum),
    "-": _arithmetic(_difference),
    "*": _arithmetic(_product),
    "/": _arithmetic(_quotient),
    "DIV": _arithmetic(_whole_quotient),
    "%": _arithmetic(remainder),
}


def _whole(number: Number) -> int:
    return int(Decimal(number).quantize(Decimal(1), rounding=ROUND_HALF_UP, context=CONTEXT))


def _integer(kind: SqlKind, value: Any, *, signed: bool) -> int:
    number = as_number(kind, value)
    assert number is not None
    # A text is cut where its digits end, a number is rounded.
    whole = math.trunc(number) if kind in (SqlKind.TEXT, SqlKind.BYTES) else _whole(number)
    if signed:
        return min(max(whole, _INT64_MIN), _INT64_MAX)
    return whole % _UINT64 if whole < 0 else min(whole, _UINT64 - 1)


def _moment(value: Any, *, date: bool) -> str | None:
    found = moment(str(as_text(value)))
    if found is None or not is_real_day(found):
        return None
    return found[:10] if date else found[:19]


def cast(to: str, term: Term) -> Term:
    kind, inner = term.kind, term.run
    converters: dict[str, tuple[SqlKind, Callable[[Any], Any]]] = {
        "SIGNED": (SqlKind.NUMBER, lambda v: _integer(kind, v, signed=True)),
        "UNSIGNED": (SqlKind.NUMBER, lambda v: _integer(kind, v, signed=False)),
        "CHAR": (SqlKind.TEXT, as_text),
        "DATE": (SqlKind.MOMENT, lambda v: _moment(v, date=True)),
        "DATETIME": (SqlKind.MOMENT, lambda v: _moment(v, date=False)),
        "BINARY": (
            SqlKind.BYTES,
            lambda v: v if isinstance(v, bytes) else str(as_text(v)).encode(),
        ),
    }
    gives, convert = converters[to]

    def run(row: Row) -> Any:
        value = inner(row)
        return None if value is None else convert(value)

    return Term(gives, run, collation=term.collation if to == "CHAR" else None)
