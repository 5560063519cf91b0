"""Compiles a SQL expression over the columns of one table into a function of a row.

    compare      numbers as numbers, exactly unless one is a float; a text with a number by the
                 number it starts with; moments and spans only with constants that denote a moment
                 or span (all others are refused immediately); texts by their column's collation
    NULL         makes every comparison and sum NULL, except <=>, IS, AND with false, OR with true
    arithmetic   integers and decimals exactly, / with four more digits, by zero NULL

Ambiguous expressions are refused when they are compiled: two columns with different collations,
ENUM against numbers, JSON, dates against texts that are not dates.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from penstock.codes import Code
from penstock.errors import NeedsOperator
from penstock.filters.expressions.functions import (
    ARITHMETIC,
    FUNCTIONS,
    cast,
    comparison,
    membership,
    pattern_test,
    prepared,
)
from penstock.filters.expressions.syntax_tree import Call, Column, Literal, Node, parse_expression
from penstock.filters.expressions.terms import (
    Row,
    SqlKind,
    Term,
    as_number,
    constant,
    is_true,
    kind_of,
    refuse,
)
from penstock.schema.model import MysqlType, TableInfo

Predicate: TypeAlias = Callable[[Row], bool]

_COMPARISONS = {"=", "<=>", "<>", "<", "<=", ">", ">="}


def check_expression(text: str) -> None:
    _check_names(parse_expression(text), text)


def compile_expression(text: str, table: TableInfo) -> Predicate:
    """Return a test whether the expression is true for a row, as `RowCodec` decodes rows.

    Raises `NeedsOperator` for an unknown column or function, or a comparison that is unclear.
    """
    node = parse_expression(text)
    _check_names(node, text)
    try:
        term = _term(node, table)
    except NeedsOperator as error:
        raise NeedsOperator(
            f"the expression {text!r} does not fit table {table.name!r}: {error.problem}",
            error.hint,
            Code.FILTER_RULE,
        ) from None
    kind, run = term.kind, term.run
    return lambda row: is_true(kind, run(row)) is True


def _check_names(node: Node, text: str) -> None:
    if not isinstance(node, Call):
        return
    count = len(node.args)
    known = FUNCTIONS.get(node.name)
    limits = (known.least, known.most) if known else _CHOICES.get(node.name, (None, (0, 99)))[1]
    if known is None and node.name not in _CHOICES and node.name not in _OPERATORS:
        raise NeedsOperator(
            f"the expression {text!r} calls {node.name}, which is unknown",
            f"functions are {', '.join(sorted([*FUNCTIONS, 'IF', 'IFNULL', 'NULLIF']))}, …",
            Code.FILTER_RULE,
        )
    if not limits[0] <= count <= limits[1]:
        raise NeedsOperator(
            f"the expression {text!r} gives {node.name} {count} arguments",
            f"it takes {limits[0]} to {limits[1]}",
            Code.FILTER_RULE,
        )
    for arg in node.args:
        _check_names(arg, text)


def _term(node: Node, table: TableInfo) -> Term:
    if isinstance(node, Literal):
        return constant(node)
    if isinstance(node, Column):
        return _column(node.name, table)
    args = [_term(arg, table) for arg in node.args]
    if node.name not in ("IS NULL", "ISNULL") and any(a.kind is SqlKind.JSON for a in args):
        raise refuse(f"{node.name} of a JSON column", "only IS NULL can ask about JSON")
    if node.name in _COMPARISONS:
        return comparison(node.name, args[0], args[1])
    if node.name in FUNCTIONS:
        return _function(node.name, args)
    if node.name.startswith("CAST "):
        return cast(node.name.removeprefix("CAST "), args[0])
    build = _OPERATORS.get(node.name) or _CHOICES[node.name][0]
    return build(args)


def _column(name: str, table: TableInfo) -> Term:
    found = table.column(name)
    if found is None:
        raise refuse(f"it has no column {name!r}", "correct the name")
    if found.is_generated and not found.generated_stored:
        raise refuse(f"column {name!r} is computed", "rows do not hold virtual columns")
    at = found.offset
    kind = kind_of(found)
    is_listed = found.tp in (MysqlType.ENUM, MysqlType.SET)
    return Term(kind, lambda row: row[at], collation=found.collate or None, is_listed=is_listed)


def _function(name: str, args: Sequence[Term]) -> Term:
    function = FUNCTIONS[name]
    call = function.run
    steps = [(prepared(function.takes, a.kind), a.run) for a in args]

    def run(row: Row) -> Any:
        values = [prepare(inner(row)) for prepare, inner in steps]
        return None if None in values else call(*values)

    collations = {a.collation for a in args if a.collation and a.kind is SqlKind.TEXT}
    collation = collations.pop() if len(collations) == 1 else None
    return Term(function.gives, run, collation=collation)


def _tests(args: Sequence[Term]) -> list[Callable[[Row], bool | None]]:
    def test(term: Term) -> Callable[[Row], bool | None]:
        kind, run = term.kind, term.run
        return lambda row: is_true(kind, run(row))

    return [test(arg) for arg in args]


def _number(test: Callable[[Row], bool | None]) -> Term:
    def run(row: Row) -> int | None:
        found = test(row)
        return None if found is None else int(found)

    return Term(SqlKind.NUMBER, run)


def _joined(decided: bool) -> Callable[[Sequence[Term]], Term]:
    """Return the builder of AND, which one false term decides, or of OR, which a true one does."""

    def build(args: Sequence[Term]) -> Term:
        left, right = _tests(args)

        def test(row: Row) -> bool | None:
            one = left(row)
            if one is decided:
                return decided
            other = right(row)
            if other is decided:
                return decided
            return None if one is None or other is None else not decided

        return _number(test)

    return build


def _xor(args: Sequence[Term]) -> Term:
    left, right = _tests(args)

    def test(row: Row) -> bool | None:
        one, other = left(row), right(row)
        return None if one is None or other is None else one is not other

    return _number(test)


def _not(args: Sequence[Term]) -> Term:
    (inner,) = _tests(args)

    def test(row: Row) -> bool | None:
        found = inner(row)
        return None if found is None else not found

    return _number(test)


def _is_null(args: Sequence[Term]) -> Term:
    run = args[0].run
    return _number(lambda row: run(row) is None)


def _is(wanted: bool) -> Callable[[Sequence[Term]], Term]:
    def build(args: Sequence[Term]) -> Term:
        (inner,) = _tests(args)
        return _number(lambda row: inner(row) is wanted)

    return build


def _between(args: Sequence[Term]) -> Term:
    value, low, high = args
    return _joined(False)([comparison(">=", value, low), comparison("<=", value, high)])


def _negative(args: Sequence[Term]) -> Term:
    kind, run = args[0].kind, args[0].run

    def negative(row: Row) -> Any:
        number = as_number(kind, run(row))
        return None if number is None else -number

    return Term(SqlKind.NUMBER, negative, is_constant=args[0].is_constant)


def _common(args: Sequence[Term]) -> tuple[SqlKind, str | None]:
    kinds = {a.kind for a in args} - {SqlKind.NULL}
    if len(kinds) > 1:
        raise refuse("one value is of several kinds", "make all results numbers, or all texts")
    collations = {a.collation for a in args if a.collation}
    kind = kinds.pop() if kinds else SqlKind.NULL
    return kind, collations.pop() if len(collations) == 1 else None


def _case(args: Sequence[Term]) -> Term:
    tests, results = _tests(args[:-1:2]), [*args[1:-1:2], args[-1]]
    kind, collation = _common(results)

    def run(row: Row) -> Any:
        for test, result in zip(tests, results, strict=False):
            if test(row):
                return result.run(row)
        return results[-1].run(row)

    return Term(kind, run, collation=collation)


def _coalesce(args: Sequence[Term]) -> Term:
    kind, collation = _common(args)
    runs = [a.run for a in args]
    return Term(
        kind,
        lambda row: next((v for run in runs if (v := run(row)) is not None), None),
        collation=collation,
    )


def _nullif(args: Sequence[Term]) -> Term:
    (same,) = _tests([comparison("=", *args)])
    run = args[0].run
    return Term(
        args[0].kind, lambda row: None if same(row) else run(row), collation=args[0].collation
    )


_Build: TypeAlias = Callable[[Sequence[Term]], Term]

_OPERATORS: dict[str, _Build | None] = {
    "AND": _joined(False), "OR": _joined(True), "XOR": _xor, "NOT": _not,
    "IS NULL": _is_null, "IS TRUE": _is(True),
    "IS FALSE": _is(False), "BETWEEN": _between, "NEGATIVE": _negative, "IN": membership,
    "LIKE": pattern_test("LIKE"), "REGEXP": pattern_test("REGEXP"), "CASE": _case,
    **ARITHMETIC,
    **dict.fromkeys(_COMPARISONS),
    **{f"CAST {to}": None for to in ("SIGNED", "UNSIGNED", "CHAR", "DATE", "DATETIME", "BINARY")},
}  # fmt: skip
_CHOICES: dict[str, tuple[_Build, tuple[int, int]]] = {
    "IF": (_case, (3, 3)),
    "IFNULL": (_coalesce, (2, 2)),
    "COALESCE": (_coalesce, (1, 99)),
    "NULLIF": (_nullif, (2, 2)),
    "ISNULL": (_is_null, (1, 1)),
}
