"""Routes: a table's name downstream, and the columns that a route adds to its rows.

Rules with a `table-pattern` precede rules without one. Two rules that match the same table at one
level are a conflict, and an error that names them. A table without a match keeps its name; with an
empty `target-table`, it keeps the table's part of it. A statement about a schema alone is routed by
the rules without a `table-pattern`.

A route may also add columns with the origin of a row, or a part of its source's name:

    extract-table = { table-regexp = "orders_(.*)", target-column = "c_table" }

The groups of the regular expression, one after the other, are the value for every row of the table;
a name without a match gives an empty text. Letter case counts.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from penstock.codes import Code
from penstock.errors import NeedsOperator
from penstock.filters.patterns import Matches, either, regex
from penstock.filters.settings import RouteRule

Constants = tuple[tuple[str, str], ...]
"""Column and text, for every row of a table."""


@dataclass(frozen=True, slots=True)
class Extraction:
    """One column and the source of its value: `table`, `schema` or `source`."""

    column: str
    origin: str
    pattern: re.Pattern[str]

    def value(self, names: Mapping[str, str]) -> str:
        found = self.pattern.search(names[self.origin])
        return "".join(each or "" for each in found.groups()) if found else ""


def extractions(rule: RouteRule, label: str, source_id: str) -> tuple[Extraction, ...]:
    """Return the columns that a route adds; raise `NeedsOperator` for an invalid rule."""
    asked = (
        ("table", rule.extract_table.table_regexp, rule.extract_table.target_column),
        ("schema", rule.extract_schema.schema_regexp, rule.extract_schema.target_column),
        ("source", rule.extract_source.source_regexp, rule.extract_source.target_column),
    )
    made: list[Extraction] = []
    for origin, pattern, column in asked:
        if not pattern and not column:
            continue
        key = f"{label}: extract-{origin}"
        if not pattern or not column:
            raise NeedsOperator(
                f"{key} needs a {origin}-regexp and a target-column",
                "set them both",
                Code.FILTER_RULE,
            )
        compiled = regex(pattern, case_sensitive=True)
        if not compiled.groups:
            raise NeedsOperator(
                f"{key}: {pattern!r} has no group, so nothing is extracted",
                "put parentheses around what the column is to hold, as in (.*)",
                Code.FILTER_RULE,
            )
        if origin == "source" and not source_id:
            raise NeedsOperator(
                f"{key}: this upstream has no name", "set source-id", Code.FILTER_RULE
            )
        if column.lower() in (each.column.lower() for each in made):
            raise NeedsOperator(
                f"{key}: column {column!r} is extracted twice",
                "name another column",
                Code.FILTER_RULE,
            )
        made.append(Extraction(column, origin, compiled))
    return tuple(made)


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
        """Compile; raise `NeedsOperator` for an invalid rule, or a rule into a protected schema."""
        self._source_id = source_id
        kept = {name.lower() for name in protected}
        seen: dict[tuple[str, str], str] = {}
        self._routes = []
        for number, rule in enumerate(rules, 1):
            route = _compiled(rule, number, case_sensitive, source_id)
            if rule.target_schema.lower() in kept:
                raise NeedsOperator(
                    f"{route.label} leads into {rule.target_schema!r}",
                    "that schema belongs to the server or to the Drainer itself",
                    Code.FILTER_RULE,
                )
            place = (rule.schema_pattern, rule.table_pattern)
            key = place if case_sensitive else (place[0].lower(), place[1].lower())
            if key in seen:
                raise NeedsOperator(
                    f"{seen[key]} and {route.label} have the same patterns",
                    "remove one",
                    Code.ROUTE_CONFLICT,
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
        """Return whether a rule matches, even if it leaves the name unchanged."""
        return self._matching(schema, table) is not None

    def check_merged(self, names: Sequence[tuple[str, str]]) -> None:
        """Raise `NeedsOperator` unless routes merge these tables explicitly.

        That is one route for all of them, or a route for each that names the common target.
        """
        places = {self.target(*name) for name in names}
        one, other = (".".join(name) for name in (names[0], names[-1]))
        if len(places) > 1:
            raise NeedsOperator(
                f"{one} and {other} become {' and '.join('.'.join(p) for p in sorted(places))},"
                " which differ in letter case only",
                "name the table that both lead to by target-table in their routes, or route"
                " one of them to another name",
                Code.ROUTE_CONFLICT,
            )
        routes = [self._matching(*name) for name in names]
        if len(set(routes)) > 1 and not all(route and route.target_table for route in routes):
            pairs = zip(names, routes, strict=True)
            unnamed = " and ".join(
                ".".join(name) for name, route in pairs if not (route and route.target_table)
            )
            raise NeedsOperator(
                f"{one} and {other} both become {'.'.join(places.pop())}, and no route names that"
                f" table for {unnamed}",
                f"to merge them, write a route with that target-schema and target-table for"
                f" {unnamed}; otherwise route one of them to another name, or leave it out by a"
                " filter",
                Code.FILTER_RULE,
            )

    def extracted(self, schema: str, table: str) -> Constants:
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
                "make their patterns tell the tables apart",
                Code.ROUTE_CONFLICT,
            )
        return level[0] if level else None


def _compiled(rule: RouteRule, number: int, case_sensitive: bool, source_id: str) -> _Route:
    label = f"route {number} ({rule.schema_pattern!r}, {rule.table_pattern!r})"
    if not rule.schema_pattern or not rule.target_schema:
        raise NeedsOperator(
            f"{label} needs a schema-pattern and a target-schema", "set them both", Code.FILTER_RULE
        )
    if rule.target_table and not rule.table_pattern:
        raise NeedsOperator(
            f"{label} has a target-table and no table-pattern",
            "use the table-pattern * to merge all tables of a schema into one",
            Code.FILTER_RULE,
        )

    def compiled(pattern: str) -> Matches:
        return either(pattern, case_sensitive=case_sensitive)

    table = compiled(rule.table_pattern) if rule.table_pattern else None
    return _Route(
        label, compiled(rule.schema_pattern), table, rule.target_schema, rule.target_table,
        extractions(rule, label, source_id),
    )  # fmt: skip
