"""A piece of a compiled expression: what kind of value it yields, and how to get it from a row."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from penstock.errors import NeedsOperator
from penstock.filters.expressions.sql_values import Value, moment, span
from penstock.filters.expressions.syntax_tree import Literal

Row: TypeAlias = Sequence[Any]

_NO_ROW: Row = ()


@dataclass(frozen=True, slots=True)
class Term:
    """A piece; `is_listed` is a column that only takes listed texts (ENUM, SET)."""

    kind: Value
    run: Callable[[Row], Any]
    is_constant: bool = False
    collation: str | None = None
    is_listed: bool = False

    @property
    def value(self) -> Any:
        """The value of a constant."""
        assert self.is_constant
        return self.run(_NO_ROW)


def fixed(kind: Value, value: Any) -> Term:
    """Return a constant."""
    return Term(kind, lambda _: value, is_constant=True)


def constant(node: Literal) -> Term:
    """Return the term of a literal; raise `NeedsOperator` for DATE '…' that is no date."""
    value = node.value
    if node.kind:
        assert isinstance(value, str)
        is_span = node.kind == "TIME"
        if (span(value) if is_span else moment(value)) is None:
            raise refuse(f"{node.kind} {value!r} is none", "write YYYY-MM-DD or hh:mm:ss")
        return fixed(Value.SPAN if is_span else Value.MOMENT, value)
    if value is None:
        return fixed(Value.NULL, None)
    if isinstance(value, str):
        return fixed(Value.TEXT, value)
    return fixed(Value.BYTES if isinstance(value, bytes) else Value.NUMBER, value)


def refuse(problem: str, hint: str) -> NeedsOperator:
    """Return the error for what an expression may not do."""
    return NeedsOperator(problem, hint=hint)
