"""Routes: a table's name downstream, the columns that a route adds, and DDL of merged tables.

Rules with a `table-pattern` precede rules without one. Two rules that match the same table at one
level are a conflict, and an error that names them. A table without a match keeps its name; with an
empty `target-table`, it keeps the table's part of it. A statement about a schema alone is routed by
the rules without a `table-pattern`.

A route may also add columns with the origin of a row, or a part of its source's name:

    extract-table = { table-regexp = "orders_(.*)", target-column = "c_table" }

The groups of the regular expression, one after the other, are the value for every row of the table;
a name without a match gives an empty text. Letter case counts.

A table into which several are replicated has the columns and indexes of all its sources downstream,
so that rows of all of them fit. Which DDL runs there, and when:

    a source joins      it must have nothing that the others do not have; nothing runs
    adds a column, …    the first source's statement runs; the same from the others is already done
    drops one           nothing runs until the last source drops it
    changes one         the first source's statement runs; the others may be one change behind
    TRUNCATE, DROP      would also affect the rows of the others: refused, as is RENAME COLUMN
    all untracked       (comments, engines, partitions, foreign keys) runs each time

The answer follows only from the current tables; no other state is kept. A statement of which only a
part must run is refused. A refusal raises NeedsOperator.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum, auto
from hashlib import blake2b
from typing import Any

from penstock.codes import Code
from penstock.errors import NeedsOperator
from penstock.filters.settings import RouteRule
from penstock.filters.table_lists import Matches, either, regex
from penstock.schema.model import PUBLIC, ColumnFlag, ColumnInfo, IndexColumn, IndexInfo, TableInfo

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
            route = self._matching(schema, table)
            found = schema, table
            if route is not None:
                found = route.target_schema, (table and (route.target_table or table))
            self._known[schema, table] = found
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


Item = tuple[str, str]
_KEY_FLAGS = ColumnFlag.PRI_KEY | ColumnFlag.UNIQUE_KEY | ColumnFlag.MULTIPLE_KEY


class Vote(Enum):
    """The consequence of one difference."""

    RUN = auto()
    DONE = auto()
    WAIT = auto()


def stable_id(*names: str) -> int:
    """Return an id for these names, the same for all sources and runs."""
    joined = "\0".join(name.lower() for name in names)
    return int.from_bytes(blake2b(joined.encode(), digest_size=7).digest(), "big") | 1 << 56


def routed_table(schema: str, name: str, table: TableInfo, constants: Constants = ()) -> TableInfo:
    """Return a table as it is known downstream: ids of table and indexes follow from the names.

    Columns keep their ids, because rows carry them. Sources whose rows get other `constants` are
    separate tables here, and one table downstream. Raises `NeedsOperator` when a source has such a
    column.
    """
    for column, _ in constants:
        if table.column(column) is not None:
            raise NeedsOperator(
                f"a route adds the column {column!r} to rows of {table.name!r}, which has one",
                "extract into a column of another name",
                Code.ROUTE_CONFLICT,
            )
    indexes = tuple(replace(i, id=stable_id("index", i.name)) for i in table.indexes)
    return replace(
        table,
        id=stable_id(schema, name, *(f"={text}" for _, text in constants)),
        name=name,
        constants=constants,
        indexes=indexes,
        max_column_id=0,
        max_index_id=0,
        comment="",
        partitions=None,
    )


def check_newcomer(name: str, table: TableInfo, others: Sequence[TableInfo]) -> None:
    """Raise `NeedsOperator` unless a new source fits the table of the other sources."""
    known: dict[Item, Any] = {}
    for other in others:
        known.update(_items(other))
    for item, shape in _items(table).items():
        if known.get(item) != shape:
            raise _unfit(name, f"a new source has another {item[0]} {item[1]!r} than the others")
    lacking = known.keys() - _items(table).keys()
    for other in others:
        for column in other.columns:
            if ("column", column.name.lower()) in lacking and _is_demanding(column):
                raise _unfit(
                    name, f"a new source lacks column {column.name!r}, which needs a value"
                )


def runs_alter(name: str, before: TableInfo, after: TableInfo, others: Sequence[TableInfo]) -> bool:
    old, new = _items(before), _items(after)
    shapes = [_items(other) for other in others]
    votes = {
        item: _vote(name, item, old.get(item), new.get(item), [s.get(item) for s in shapes])
        for item in old.keys() | new.keys()
        if old.get(item) != new.get(item)
    }
    for item, vote in votes.items():
        _check_rows_fit(name, item, vote, before if item not in new else after, shapes)
    asked = set(votes.values())
    if Vote.RUN in asked and len(asked) > 1:
        found = ", ".join(f"{kind} {thing!r}" for kind, thing in sorted(votes))
        raise _unfit(name, f"only a part of the change ({found}) can be made while sources differ")
    return not asked or Vote.RUN in asked


def united(table: TableInfo, others: Iterable[TableInfo]) -> TableInfo:
    """Return a table with the additional columns and indexes of its fellow sources.

    All ids follow from names, so that a column has the same id in all sources.
    """
    columns: dict[str, ColumnInfo] = {}
    indexes: dict[str, IndexInfo] = {}
    for each in (table, *others):
        for column in each.columns:
            columns.setdefault(column.name.lower(), column)
        for index in each.indexes:
            indexes.setdefault(index.name.lower(), index)
    placed = {
        name: replace(column, id=stable_id("column", name), offset=offset)
        for offset, (name, column) in enumerate(columns.items())
    }

    def part(each: IndexColumn) -> IndexColumn:
        return replace(each, offset=placed[each.name.lower()].offset)

    return replace(
        table,
        columns=tuple(placed.values()),
        indexes=tuple(
            replace(index, id=stable_id("index", name), columns=tuple(map(part, index.columns)))
            for name, index in indexes.items()
        ),
    )


def _items(table: TableInfo) -> dict[Item, Any]:
    found: dict[Item, Any] = {}
    for c in table.columns:
        if c.state == PUBLIC:
            found["column", c.name.lower()] = (
                c.tp, c.flag & ~_KEY_FLAGS, c.flen, c.decimal, c.charset, c.collate, c.elems,
                c.default, c.default_is_expr, c.generated_expr, c.generated_stored,
            )  # fmt: skip
    keys = [i for i in table.indexes if i.state == PUBLIC and not i.primary]
    primary = table.primary_key
    for index in [*keys, *([primary] if primary else [])]:
        parts = tuple((part.name.lower(), part.length) for part in index.columns)
        label = "primary" if index.primary else index.name.lower()
        found["index", label] = (index.unique, parts)
    return found


def _vote(name: str, item: Item, old: Any, new: Any, others: Sequence[Any]) -> Vote:
    there = [each for each in others if each is not None]
    if new is None:
        return Vote.WAIT if there else Vote.RUN
    if any(each not in (old, new) for each in there):
        raise _unfit(name, f"sources have different shapes of {item[0]} {item[1]!r}")
    return Vote.DONE if new in there else Vote.RUN


def _check_rows_fit(
    name: str, item: Item, vote: Vote, table: TableInfo, shapes: Sequence[dict[Item, Any]]
) -> None:
    column = table.column(item[1]) if item[0] == "column" else None
    if column is None or not _is_demanding(column):
        return
    if vote is Vote.WAIT or (vote is Vote.RUN and any(item not in s for s in shapes)):
        raise _unfit(name, f"column {column.name!r} is NOT NULL, without default, and not in all")


def _is_demanding(column: ColumnInfo) -> bool:
    auto = ColumnFlag.AUTO_INCREMENT in column.flag
    return column.is_not_null and column.default is None and not auto and not column.is_generated


def _unfit(name: str, why: str) -> NeedsOperator:
    return NeedsOperator(
        f"several tables are replicated into {name}, and {why}",
        "change the downstream's table by hand so that rows of all sources fit, and let"
        " this DDL be tracked only (ignore-txn-commit-ts)",
        Code.ROUTE_CONFLICT,
    )
