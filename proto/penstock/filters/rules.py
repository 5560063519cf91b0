"""All filters and routes of one replication behind a small interface."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from penstock.codes import Code
from penstock.ddl import SchemaChange
from penstock.errors import NeedsOperator
from penstock.filters.events import Decision, EventFilter, operations
from penstock.filters.routes import Router
from penstock.filters.row_filter import IsKept, RowFilter
from penstock.filters.settings import FilterConfig
from penstock.filters.table_lists import SYSTEM_SCHEMAS, BlockAllowList, TableFilter
from penstock.schema.model import TableInfo
from penstock.wire.binlog import MutationType

_EVENTS = {
    MutationType.INSERT: "insert",
    MutationType.UPDATE: "update",
    MutationType.DELETE: "delete",
}


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
        """Raise `NeedsOperator` when one of these change kinds matches an Error rule."""
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
        self._lists: list[TableFilter] = [BlockAllowList(config), *lists]
        self._events = EventFilter(config.events, case_sensitive=config.case_sensitive)
        self._rows = RowFilter(config.expressions)
        self.router = Router(
            config.routes, case_sensitive=config.case_sensitive, protected=own, source_id=source_id
        )

    def is_replicated(self, schema: str, table: str) -> bool:
        """Return whether any part of a table, or of a schema if `table` is empty, is replicated."""
        if schema.lower() in self._protected:
            return False
        return all(each.is_replicated(schema, table) for each in self._lists)

    def of_rows(self, schema: str, table: TableInfo) -> RowPolicy:
        """Return the decision about rows of this table version.

        Raises `NeedsOperator` when an expression does not fit the table.
        """
        if not self.is_replicated(schema, table.name):
            return _NOTHING
        dropped, refused = set(), set()
        for kind, event in _EVENTS.items():
            decision = self._events.of_row(schema, table.name, event)
            if decision is Decision.ERROR:
                refused.add(kind)
            elif decision is not Decision.DO:
                dropped.add(kind)
        if len(dropped) == len(_EVENTS):
            return _NOTHING
        is_kept = self._rows.of(schema, table)
        if not (dropped or refused or is_kept):
            return _ALL
        return RowPolicy(frozenset(dropped), is_kept, frozenset(refused))

    def of_ddl(self, change: SchemaChange, places: Iterable[tuple[str, str]] | None = None) -> bool:
        """Return whether a DDL is executed downstream.

        `places` are the tables that the rules must be applied to, if they have other names in
        `change`. Raises `NeedsOperator` when a rule has action Error, or when only a part of the
        DDL passes.
        """
        asked = _Asked(change, places)
        passed = {place for place in asked.places if self.is_replicated(*place)}
        for place in set(passed):
            decision = self._events.of_ddl(*place, asked.operations, change.job.query)
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
        if passed and len(passed) < len(asked.places):
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
        """Raise `NeedsOperator` when a rule or a route does not fit one of these tables."""
        for schema, table in tables:
            if self.of_rows(schema, table) is not _NOTHING:
                self.target(schema, table.name)


class _Asked:
    """The tables that a DDL concerns, and its effect on them."""

    def __init__(
        self, change: SchemaChange, places: Iterable[tuple[str, str]] | None = None
    ) -> None:
        self._change = change
        self._places = None if places is None else set(places)

    @cached_property
    def operations(self) -> list[frozenset[str]]:
        return operations(self._change)

    @property
    def places(self) -> set[tuple[str, str]]:
        """Schema and name of every affected table; only the schema for a change to a schema."""
        if self._places is not None:
            return self._places
        change = self._change
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
