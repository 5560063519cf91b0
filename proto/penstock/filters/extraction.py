"""Columns that a route adds to its tables' rows: what their source is called, or a part of it.

    extract-table = { table-regexp = "orders_(.*)", target-column = "c_table" }

The groups of the regular expression, one behind the other, are the value for every row of the
table; a name that it is not found in gives an empty text. Letter case counts.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from penstock.errors import NeedsOperator
from penstock.filters.patterns import regex
from penstock.filters.settings import RouteRule

Constants = tuple[tuple[str, str], ...]
"""Column and text, for every row of a table."""


@dataclass(frozen=True, slots=True)
class Extraction:
    """One column and where its value comes from: `table`, `schema` or `source`."""

    column: str
    origin: str
    pattern: re.Pattern[str]

    def value(self, names: Mapping[str, str]) -> str:
        """Return the column's text for a table with these names."""
        found = self.pattern.search(names[self.origin])
        return "".join(each or "" for each in found.groups()) if found else ""


def extractions(rule: RouteRule, label: str, source_id: str) -> tuple[Extraction, ...]:
    """Return what a route adds; raise `NeedsOperator` for what cannot be."""
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
                f"{key} needs a {origin}-regexp and a target-column", hint="set them both"
            )
        compiled = regex(pattern, case_sensitive=True)
        if not compiled.groups:
            raise NeedsOperator(
                f"{key}: {pattern!r} has no group, so nothing is extracted",
                hint="put parentheses around what the column is to hold, as in (.*)",
            )
        if origin == "source" and not source_id:
            raise NeedsOperator(f"{key}: this upstream has no name", hint="set source-id")
        if column.lower() in (each.column.lower() for each in made):
            raise NeedsOperator(
                f"{key}: column {column!r} is extracted twice", hint="name another column"
            )
        made.append(Extraction(column, origin, compiled))
    return tuple(made)
