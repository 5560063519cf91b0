"""All filters and routes of one replication behind a small interface.

An expression filter skips changes of a table's rows because of their values:

    insert-value-expr       true for the new row: the insert is skipped
    update-old-value-expr   true for the row before, and
    update-new-value-expr   true for the row after (of those that are given): the update is skipped
    delete-value-expr       true for the deleted row: the delete is skipped

The change is skipped, not the row: an update to a row whose insert was skipped updates nothing or
writes the whole row, depending on how its table is written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from penstock.codes import Code
from penstock.datum.rows.row_codec import RowCodec
from penstock.ddl import SchemaChange
from penstock.errors import NeedsOperator
from penstock.filters.events import Decision, EventFilter, operations
from penstock.filters.expressions.compiler import Predicate, check_expression, compile_expression
from penstock.filters.routes import Router
from penstock.filters.settings import ExpressionRule, FilterConfig
from penstock.filters.table_lists import SYSTEM_SCHEMAS, TableFilter, block_allow_list
from penstock.schema.model import TableInfo
from penstock.wire.binlog import MutationType

_EVENTS = {
    MutationType.INSERT: "insert",
    MutationType.UPDATE: "update",
    MutationType.DELETE: "delete",
}

IsKept = Callable[[int, bytes], bool]
"""Whether a change is replicated, by the kind of the change and the row bytes."""


@dataclass(frozen=True, slots=True)
class RowPolicy:
    """The decision about rows of one table version: first by kind, then by the test of values."""

    dropped: frozenset[MutationType]
    is_kept: IsKept | None
    refused: frozenset[MutationType] = frozenset()

    @property
    def takes_nothing(self) -> bool:
        return len(self.dropped) == len(MutationType)

    @property
    def takes_all(self) -> bool:
        return not self.dropped and self.is_kept is None and not self.refused

    def check(self, kinds: bytes) -> None:
        met = [kind for kind in self.refused if kind in kinds]
        if met:
            raise _refused(f"rows with {', '.join(_EVENTS[kind] for kind in met)}")

    def passing(self, kind: MutationType, rows: Sequence[bytes]) -> Sequence[bytes]:
        """Return the rows of a kind of change that pass; raise as `check`."""
        if self.takes_all:
            return rows
        self.check(bytes([kind]))
        if kind in self.dropped:
            return ()
        is_kept = self.is_kept
        return rows if is_kept is None else [row for row in rows if is_kept(kind, row)]


_ALL = RowPolicy(frozenset(), None)
_NOTHING = RowPolicy(frozenset(MutationType), None)


class Rules:
    """Compiled settings; raises `NeedsOperator` for invalid settings."""

    def __init__(
        self,
        config: FilterConfig | None = None,
        *,
        lists: Sequence[TableFilter] = (),
        protected: Iterable[str] = (),
        source_id: str = "",
    ) -> None:
        """Compile; `lists` must agree as well, `protected` schemas stay untouched downstream.

        `source_id` is the value that routes with extract-source add to every row.
        """
        config = config or FilterConfig()
        own = SYSTEM_SCHEMAS | {name.lower() for name in protected}
        self._protected = own
        self._lists: list[TableFilter] = [block_allow_list(config), *lists]
        self._events = EventFilter(config.events, case_sensitive=config.case_sensitive)
        self._expressions = by_table(config.expressions)
        self.router = Router(
            config.routes, case_sensitive=config.case_sensitive, protected=own, source_id=source_id
        )

    def is_replicated(self, schema: str, table: str) -> bool:
        """Return whether any part of a table, or of a schema if `table` is empty, is replicated."""
        if schema.lower() in self._protected:
            return False
        return all(passes(schema, table) for passes in self._lists)

    def of_rows(self, schema: str, table: TableInfo) -> RowPolicy:
        """Return the decision about rows of this table version.

        Raises `NeedsOperator` when an expression does not fit the table.
        """
        if not self.is_replicated(schema, table.name):
            return _NOTHING
        dropped, refused = set(), set()
        for kind, event in _EVENTS.items():
            decision = self._events.decision(schema, table.name, (frozenset({event}),))
            if decision is Decision.ERROR:
                refused.add(kind)
            elif decision is not Decision.DO:
                dropped.add(kind)
        if len(dropped) == len(_EVENTS):
            return _NOTHING
        rule = self._expressions.get((schema.lower(), table.name.lower()))
        is_kept = None if rule is None else row_test(rule, table)
        if not (dropped or refused or is_kept):
            return _ALL
        return RowPolicy(frozenset(dropped), is_kept, frozenset(refused))

    def takes_all_rows(self, schema: str, table: str) -> bool:
        """Return whether no rule about rows concerns a table."""
        decisions = (
            self._events.decision(schema, table, (frozenset({event}),))
            for event in _EVENTS.values()
        )
        has_rule = (schema.lower(), table.lower()) in self._expressions
        return not has_rule and all(each is Decision.DO for each in decisions)

    def of_ddl(self, change: SchemaChange, places: Iterable[tuple[str, str]] | None = None) -> bool:
        """Return whether a DDL is executed downstream.

        `places` are the tables that the rules must be applied to, if they have other names in
        `change`. Raises `NeedsOperator` when a rule has action Error, or when only a part of the
        DDL passes.
        """
        asked = _places(change) if places is None else set(places)
        passed = {place for place in asked if self.is_replicated(*place)}
        done = operations(change) if passed else ()
        for place in set(passed):
            decision = self._events.decision(*place, done, change.job.query)
            if decision is Decision.ERROR:
                raise _refused(f"the DDL {change.job.query!r}")
            if decision is Decision.MIXED:
                raise NeedsOperator(
                    f"event rules take only some of what {change.job.query!r} does",
                    "execute by hand what shall happen downstream, and let this DDL be"
                    " tracked only (ignore-txn-commit-ts);"
                    " upstream, write one operation in each statement",
                    Code.FILTER_STOPS,
                )
            if decision is not Decision.DO:
                passed.discard(place)
        if passed and len(passed) < len(asked):
            kept = ", ".join(sorted(".".join(filter(None, place)) for place in passed))
            raise NeedsOperator(
                f"{change.job.query!r} concerns {kept}, and other tables that filters leave out",
                "execute the replicated part by hand downstream, and let this DDL be tracked"
                " only (ignore-txn-commit-ts)",
                Code.FILTER_STOPS,
            )
        return bool(passed)

    def target(self, schema: str, table: str) -> tuple[str, str]:
        """Return the downstream names; `NeedsOperator` when two routes match the table."""
        return self.router.target(schema, table)

    def check(self, tables: Iterable[tuple[str, TableInfo]]) -> None:
        for schema, table in tables:
            if self.of_rows(schema, table) is not _NOTHING:
                self.target(schema, table.name)


def _places(change: SchemaChange) -> set[tuple[str, str]]:
    """Return schema and name of every affected table; only the schema for a change to a schema."""
    schemas = {(name, "") for name in (*change.schemas_created, *change.schemas_dropped)}
    if schemas:
        return schemas
    found = {(schema, t.name) for schema, t in (*change.created, *change.dropped)}
    found |= {(schema, before.name) for schema, before, _ in change.altered}
    for old_schema, old, new_schema, new in change.renamed:
        found |= {(old_schema, old.name), (new_schema, new.name)}
    return found or {(change.job.schema_name, change.job.table_name)}


def _refused(what: str) -> NeedsOperator:
    return NeedsOperator(
        f"{what} meet an event rule that says Error",
        "decide what shall happen, change the rule, and start again",
        Code.FILTER_STOPS,
    )


_KEYS = ("insert_value_expr", "update_old_value_expr", "update_new_value_expr", "delete_value_expr")


def by_table(rules: Sequence[ExpressionRule]) -> dict[tuple[str, str], ExpressionRule]:
    """Return the expression rules by their tables, in lower case; each table has at most one.

    Raises `NeedsOperator` for an expression that is invalid for every table.
    """
    found: dict[tuple[str, str], ExpressionRule] = {}
    for rule in rules:
        place = (rule.schema.lower(), rule.table.lower())
        name = f"{rule.schema}.{rule.table}"
        if not all(place):
            raise NeedsOperator(
                f"an expression filter is for {name!r}",
                "give it a schema and a table",
                Code.FILTER_RULE,
            )
        if place in found:
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
        found[place] = rule
    return found


def row_test(rule: ExpressionRule, table: TableInfo) -> IsKept:
    """Return the test for rows of this version of a table.

    Raises `NeedsOperator` for an expression that does not fit the table.
    """

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
