"""Comparisons of expressions: the common type of two terms is determined at compile time."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Sequence
from typing import Any

from penstock.filters.expressions.terms import (
    Row,
    SqlKind,
    Term,
    as_number,
    as_text,
    collated,
    fixed,
    moment,
    refuse,
    span,
    whole_number,
)

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
