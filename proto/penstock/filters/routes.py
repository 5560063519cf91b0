"""Under which name a table is replicated.

Rules with a `table-pattern` go before rules without one. Two that match the same table at one level
are a conflict, and an error that names them. No match leaves the name as it is, and so does an
empty `target-table` for the table's part of it. A statement about a schema alone is routed by the
rules without a `table-pattern`.

A route may also add columns that tell where a row came from (`extraction`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from penstock.errors import NeedsOperator
from penstock.filters.extraction import Constants, Extraction, extractions
from penstock.filters.patterns import Matches, either
from penstock.filters.settings import RouteRule


@dataclass(frozen=True, slots=True)
class _Route:
    label: str
    schema: Matches
    table: Matches | None
    target_schema: str
    target_table: str
    extractions: tuple[Extraction, ...]


class Router:
    """All route rules, compiled."""

    def __init__(
        self,
        rules: Sequence[RouteRule],
        *,
        case_sensitive: bool = False,
        protected: Iterable[str] = (),
        source_id: str = "",
    ) -> None:
        """Compile; raise `NeedsOperator` for a rule that cannot be, or into a protected schema."""
        self._source_id = source_id
        kept = {name.lower() for name in protected}
        seen: dict[tuple[str, str], str] = {}
        self._routes = []
        for number, rule in enumerate(rules, 1):
            route = _compiled(rule, number, case_sensitive, source_id)
            if rule.target_schema.lower() in kept:
                raise NeedsOperator(
                    f"{route.label} leads into {rule.target_schema!r}",
                    hint="that schema belongs to the server or to the Drainer itself",
                )
            place = (rule.schema_pattern, rule.table_pattern)
            key = place if case_sensitive else (place[0].lower(), place[1].lower())
            if key in seen:
                raise NeedsOperator(
                    f"{seen[key]} and {route.label} have the same patterns", hint="remove one"
                )
            seen[key] = route.label
            self._routes.append(route)
        self._known: dict[tuple[str, str], tuple[str, str]] = {}

    @property
    def is_empty(self) -> bool:
        """True when every table keeps its name."""
        return not self._routes

    def target(self, schema: str, table: str) -> tuple[str, str]:
        """Return schema and table downstream; an empty table stands for the schema itself.

        Raises `NeedsOperator` when two rules claim the table.
        """
        found = self._known.get((schema, table))
        if found is None:
            found = self._known[schema, table] = self._found(schema, table)
        return found

    def is_routed(self, schema: str, table: str) -> bool:
        """Tell whether a rule matches, even one that leads to the same name."""
        return self._matching(schema, table) is not None

    def extracted(self, schema: str, table: str) -> Constants:
        """Return the columns that every row of a table gets besides, with their text."""
        route = self._matching(schema, table)
        if route is None or not route.extractions:
            return ()
        names = {"table": table, "schema": schema, "source": self._source_id}
        return tuple((each.column, each.value(names)) for each in route.extractions)

    def _found(self, schema: str, table: str) -> tuple[str, str]:
        route = self._matching(schema, table)
        if route is None:
            return schema, table
        return route.target_schema, (table and (route.target_table or table))

    def _matching(self, schema: str, table: str) -> _Route | None:
        here = [route for route in self._routes if route.schema(schema)]
        of_table = [r for r in here if r.table is not None and table and r.table(table)]
        level = of_table or [r for r in here if r.table is None]
        if len(level) > 1:
            place = f"{schema}.{table}" if table else schema
            raise NeedsOperator(
                f"{' and '.join(r.label for r in level)} both match {place}",
                hint="make their patterns tell the tables apart",
            )
        return level[0] if level else None


def _compiled(rule: RouteRule, number: int, case_sensitive: bool, source_id: str) -> _Route:
    label = f"route {number} ({rule.schema_pattern!r}, {rule.table_pattern!r})"
    if not rule.schema_pattern or not rule.target_schema:
        raise NeedsOperator(
            f"{label} needs a schema-pattern and a target-schema", hint="set them both"
        )
    if rule.target_table and not rule.table_pattern:
        raise NeedsOperator(
            f"{label} has a target-table and no table-pattern",
            hint="use the table-pattern * to merge all tables of a schema into one",
        )

    def compiled(pattern: str) -> Matches:
        return either(pattern, case_sensitive=case_sensitive)

    table = compiled(rule.table_pattern) if rule.table_pattern else None
    return _Route(
        label, compiled(rule.schema_pattern), table, rule.target_schema, rule.target_table,
        extractions(rule, label, source_id),
    )  # fmt: skip
