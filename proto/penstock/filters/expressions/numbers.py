"""Arithmetic and casts of expressions, as MySQL does them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from decimal import ROUND_HALF_UP, Decimal
from typing import Any

from penstock.filters.expressions.functions import remainder
from penstock.filters.expressions.sql_values import (
    CONTEXT,
    Number,
    Value,
    as_number,
    as_text,
    is_real_day,
    moment,
)
from penstock.filters.expressions.term import Row, Term

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

        return Term(Value.NUMBER, compute)

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


def _integer(kind: Value, value: Any, *, signed: bool) -> int:
    number = as_number(kind, value)
    assert number is not None
    # A text is cut where its digits end, a number is rounded.
    whole = math.trunc(number) if kind in (Value.TEXT, Value.BYTES) else _whole(number)
    if signed:
        return min(max(whole, _INT64_MIN), _INT64_MAX)
    return whole % _UINT64 if whole < 0 else min(whole, _UINT64 - 1)


def _moment(value: Any, *, date: bool) -> str | None:
    found = moment(str(as_text(value)))
    if found is None or not is_real_day(found):
        return None
    return found[:10] if date else found[:19]


def cast(to: str, term: Term) -> Term:
    """Return the term of CAST(… AS SIGNED | UNSIGNED | CHAR | DATE | DATETIME | BINARY)."""
    kind, inner = term.kind, term.run
    converters: dict[str, tuple[Value, Callable[[Any], Any]]] = {
        "SIGNED": (Value.NUMBER, lambda v: _integer(kind, v, signed=True)),
        "UNSIGNED": (Value.NUMBER, lambda v: _integer(kind, v, signed=False)),
        "CHAR": (Value.TEXT, as_text),
        "DATE": (Value.MOMENT, lambda v: _moment(v, date=True)),
        "DATETIME": (Value.MOMENT, lambda v: _moment(v, date=False)),
        "BINARY": (Value.BYTES, lambda v: v if isinstance(v, bytes) else str(as_text(v)).encode()),
    }
    gives, convert = converters[to]

    def run(row: Row) -> Any:
        value = inner(row)
        return None if value is None else convert(value)

    return Term(gives, run, collation=term.collation if to == "CHAR" else None)
