"""Functions, arithmetic, casts and comparisons of expressions, with MySQL's semantics.

    on texts      CONCAT, LEFT, RIGHT, SUBSTRING, LOWER, UPPER, TRIM, LTRIM, RTRIM, REPLACE,
                  REVERSE, LENGTH (bytes), CHAR_LENGTH, INSTR, LOCATE
    on numbers    ABS, SIGN, FLOOR, CEIL, MOD, + - * / DIV %
    on moments    DATE, YEAR, MONTH, DAY, HOUR, MINUTE, SECOND
    any kind      CAST; IF, IFNULL, COALESCE, NULLIF, ISNULL (in `compiler`, since they choose)

Each yields NULL when an argument is NULL, except the functions that choose. The common type of two
compared terms is determined at compile time.
"""

from __future__ import annotations

import math
import operator
import re
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
    collated,
    fixed,
    is_real_day,
    moment,
    refuse,
    span,
    whole_number,
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


def _right(text: str, count: str) -> str:
    wanted = max(int(float(count)), 0)
    return text[len(text) - min(wanted, len(text)) :]


def _locate(wanted: str, text: str, start: str = "1") -> int:
    first = int(float(start))
    return 0 if first < 1 else text.lower().find(wanted.lower(), first - 1) + 1


def _rounded(rounding: Callable[[Any], int]) -> Callable[[Number], Number]:
    return lambda number: float(rounding(number)) if isinstance(number, float) else rounding(number)


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


_TEXT, _NUMBER, _MOMENT = SqlKind.TEXT, SqlKind.NUMBER, SqlKind.MOMENT

FUNCTIONS: dict[str, Function] = {
    "CONCAT": Function(lambda *texts: "".join(texts), _TEXT, _TEXT, 1, 99),
    "LEFT": Function(lambda text, n: text[: max(int(float(n)), 0)], _TEXT, _TEXT, 2, 2),
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
    "SIGN": Function(lambda n: (n > 0) - (n < 0), _NUMBER, _NUMBER, 1, 1),
    "FLOOR": Function(_rounded(math.floor), _NUMBER, _NUMBER, 1, 1),
    "CEIL": Function(_rounded(math.ceil), _NUMBER, _NUMBER, 1, 1),
    "MOD": Function(remainder, _NUMBER, _NUMBER, 2, 2),
    "DATE": Function(lambda text: text[:10] if is_real_day(text) else None, _MOMENT, _MOMENT, 1, 1),
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
    "-": _arithmetic(lambda left, right: _sum(left, -right)),
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


_DEFAULT_COLLATION = "utf8mb4_bin"
_COMPARE: dict[str, Callable[[Any, Any], bool]] = {
    "=": operator.eq, "<=>": operator.eq, "<>": operator.ne, "<": operator.lt,
    "<=": operator.le, ">": operator.gt, ">=": operator.ge,
}  # fmt: skip

Convert = Callable[[Any], Any]


def comparison(name: str, left: Term, right: Term) -> Term:
    """Return the term of `left <name> right`; `NeedsOperator` for an ambiguous comparison."""
    left, right, convert = _aligned(left, right)
    one, other, compare = left.run, right.run, _COMPARE[name]
    null_safe = name == "<=>"

    def run(row: Row) -> int | None:
        a, b = one(row), other(row)
        if a is None or b is None:
            return int(a is b) if null_safe else None
        a, b = convert[0](a), convert[1](b)
        if a is None or b is None:
            return int(a is b) if null_safe else None
        if isinstance(a, float) or isinstance(b, float):
            a, b = float(a), float(b)
        return int(compare(a, b))

    return Term(SqlKind.NUMBER, run)


def membership(args: Sequence[Term]) -> Term:
    if len(args) < 2:
        raise refuse("IN () has no values", "give at least one")
    tests = [comparison("=", args[0], each).run for each in args[1:]]

    def run(row: Row) -> int | None:
        found = [test(row) for test in tests]
        return 1 if 1 in found else None if None in found else 0

    return Term(SqlKind.NUMBER, run)


def _aligned(left: Term, right: Term) -> tuple[Term, Term, tuple[Convert, Convert]]:
    left, right = _constant_like(left, right), _constant_like(right, left)
    kinds = {left.kind, right.kind}
    if SqlKind.NULL in (left.kind, right.kind):
        return left, right, (_same, _same)
    if kinds == {SqlKind.TEXT}:
        by = _collation(left, right)
        return left, right, (lambda a: collated(a, by), lambda b: collated(b, by))
    if kinds == {SqlKind.MOMENT}:
        return left, right, (moment, moment)
    if kinds == {SqlKind.SPAN}:
        return left, right, (span, span)
    if SqlKind.NUMBER in kinds:
        return left, right, (_numeric(left.kind), _numeric(right.kind))
    if kinds <= {SqlKind.TEXT, SqlKind.BYTES}:
        return left, right, (_as_bytes, _as_bytes)
    raise refuse(
        f"{left.kind.name} and {right.kind.name} values are compared",
        "compare dates with dates such as '2026-11-21', times with times such as '08:30:00'",
    )


def _constant_like(term: Term, other: Term) -> Term:
    if not (term.is_constant and term.kind is SqlKind.TEXT):
        if term.is_listed and other.kind is SqlKind.NUMBER:
            raise refuse("an ENUM or SET is compared with a number", "compare it with a text")
        return term
    if other.kind is SqlKind.NUMBER:
        whole = whole_number(term.value)
        return term if whole is None else fixed(SqlKind.NUMBER, whole)
    for kind, read in ((SqlKind.MOMENT, moment), (SqlKind.SPAN, span)):
        if other.kind is kind:
            if read(term.value) is None:
                raise refuse(
                    f"{term.value!r} is no {'date' if kind is SqlKind.MOMENT else 'time'}",
                    "write 2026-11-21, 2026-11-21 08:30:00 or 08:30:00",
                )
            return fixed(kind, term.value)
    return term


def _collation(left: Term, right: Term) -> str:
    collations = {t.collation for t in (left, right) if t.collation}
    if len(collations) > 1:
        exact = {c for c in collations if c.endswith("_bin")}
        if len(exact) != 1:
            raise refuse(
                f"texts of collations {' and '.join(sorted(collations))} are compared",
                "compare columns of one collation",
            )
        return exact.pop()
    return collations.pop() if collations else _DEFAULT_COLLATION


def _same(value: Any) -> Any:
    return value


def _numeric(kind: SqlKind) -> Convert:
    return lambda value: as_number(kind, value)


def _as_bytes(value: Any) -> bytes:
    return value if isinstance(value, bytes) else str(value).encode()


def pattern_test(name: str) -> Callable[[Sequence[Term]], Term]:
    """Return the builder of LIKE or REGEXP; the pattern must be a constant."""

    def build(args: Sequence[Term]) -> Term:
        value, pattern = args[0], args[1]
        if not all(a.is_constant for a in args[1:]):
            raise refuse(f"the pattern of {name} is computed", "write it as a text")
        if pattern.value is None:
            return fixed(SqlKind.NULL, None)
        text = str(as_text(pattern.value))
        ignore_case = bool(value.collation and value.collation.endswith("_ci"))
        flags = re.DOTALL | (re.IGNORECASE if ignore_case else re.NOFLAG)
        try:
            source = _like(text, str(as_text(args[2].value))) if name == "LIKE" else text
            compiled = re.compile(source, flags)
        except re.error as error:
            raise refuse(f"{text!r} is no regular expression: {error}", "correct it") from None
        run = value.run
        search = compiled.fullmatch if name == "LIKE" else compiled.search

        def test(row: Row) -> int | None:
            found = as_text(run(row))
            return None if found is None else int(search(found) is not None)

        return Term(SqlKind.NUMBER, test)

    return build


def _like(pattern: str, escape: str) -> str:
    if len(escape) > 1:
        raise refuse(f"ESCAPE {escape!r} is longer than one character", "give one character")
    out = []
    at = 0
    while at < len(pattern):
        sign = pattern[at]
        if sign == escape and at + 1 < len(pattern):
            at += 1
            out.append(re.escape(pattern[at]))
        else:
            out.append({"%": ".*", "_": "."}.get(sign) or re.escape(sign))
        at += 1
    return "".join(out)
