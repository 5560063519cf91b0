"""The row expression filter: skips changes of a table's rows because of their values.

    insert-value-expr       true for the new row: the insert is skipped
    update-old-value-expr   true for the row before, and
    update-new-value-expr   true for the row after (of those that are given): the update is skipped
    delete-value-expr       true for the deleted row: the delete is skipped

The change is skipped, not the row: an update to a row whose insert was skipped updates nothing or
writes the whole row, depending on how its table is written.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from penstock.codes import Code
from penstock.datum.rows.row_codec import RowCodec
from penstock.errors import NeedsOperator
from penstock.filters.expressions.compiler import Predicate, check_expression, compile_expression
from penstock.filters.settings import ExpressionRule
from penstock.schema.model import TableInfo
from penstock.wire.binlog import MutationType

IsKept = Callable[[int, bytes], bool]
"""Whether a change is replicated, by the kind of the change and the row bytes."""

_KEYS = ("insert_value_expr", "update_old_value_expr", "update_new_value_expr", "delete_value_expr")


class RowFilter:
    """All expression rules; each table has at most one."""

    def __init__(self, rules: Sequence[ExpressionRule]) -> None:
        """Parse all expressions; `NeedsOperator` for an expression invalid for every table."""
        self._rules: dict[tuple[str, str], ExpressionRule] = {}
        for rule in rules:
            place = (rule.schema.lower(), rule.table.lower())
            name = f"{rule.schema}.{rule.table}"
            if not all(place):
                raise NeedsOperator(
                    f"an expression filter is for {name!r}",
                    "give it a schema and a table",
                    Code.FILTER_RULE,
                )
            if place in self._rules:
                raise NeedsOperator(
                    f"{name} has two expression filters", "make one of them", Code.FILTER_RULE
                )
            given = [getattr(rule, key) for key in _KEYS if getattr(rule, key)]
            if not given:
                raise NeedsOperator(
                    f"the expression filter of {name} is empty",
                    "give it an expression",
                    Code.FILTER_RULE,
                )
            for text in given:
                check_expression(text)
            self._rules[place] = rule

    def of(self, schema: str, table: TableInfo) -> IsKept | None:
        """Return the test for rows of this version of a table; None without expressions.

        Raises `NeedsOperator` for an expression that does not fit the table.
        """
        rule = self._rules.get((schema.lower(), table.name.lower()))
        return None if rule is None else _compiled(rule, table)


def _compiled(rule: ExpressionRule, table: TableInfo) -> IsKept:
    def compiled(text: str) -> Predicate | None:
        return compile_expression(text, table) if text else None

    inserted, deleted = compiled(rule.insert_value_expr), compiled(rule.delete_value_expr)
    before, after = compiled(rule.update_old_value_expr), compiled(rule.update_new_value_expr)
    codec = RowCodec(table)

    def is_kept(kind: int, data: bytes) -> bool:
        if kind == MutationType.INSERT:
            return inserted is None or not inserted(codec.decode_insert(data))
        if kind == MutationType.DELETE:
            return deleted is None or not deleted(codec.decode_delete(data))
        if before is None and after is None:
            return True
        old, new = codec.decode_update(data)
        is_out = (before is None or before(old)) and (after is None or after(new))
        return not is_out

    return is_kept
