"""Views: nothing of them is tracked but their name, so only their tables' names need a look."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from penstock.ddl.lexer import quote_name, quote_path
from penstock.ddl.syntax import Edit
from penstock.errors import NeedsOperator

Mapping = Callable[[str, str], tuple[str, str]]
"""From (database, table) to those that take their place; a database alone has the table ""."""

_HINT = "write every table in the view as schema.table, or choose the view's own database"


def check_view(select: str, schema: str) -> None:
    """Raise NeedsOperator if a view of schema `schema` relies on another current database."""
    for table in _tables(_parsed(select, schema)):
        if not table.db:
            raise NeedsOperator(
                f"a view in {schema!r} names table {table.name!r} without its database", hint=_HINT
            )


def view_edits(select: str, start: int, schema: str, mapping: Mapping) -> list[Edit]:
    """Return the edits that give the tables of a view's SELECT their mapped names.

    `start` is where `select` stands. A table keeps its old name as an alias, so that the columns
    named after it still mean it; where two databases have a table of one name, that raises
    NeedsOperator.
    """
    query = _parsed(select, schema)
    edits: list[Edit] = []
    moved: set[tuple[str, str]] = set()
    plain: dict[str, tuple[str, str]] = {}
    for table in _tables(query):
        old = (table.db or schema, table.name)
        new = mapping(*old)
        if not table.alias and plain.setdefault(old[1].lower(), old) != old:
            raise NeedsOperator(
                f"a view in {schema!r} reads two tables called {old[1]!r}",
                hint="give both an alias in the view",
            )
        first, last = table.parts[0].meta["start"], table.parts[-1].meta["end"] + 1
        text = quote_path(*new)
        if not table.alias and new[1] != old[1]:
            text += f" AS {quote_name(old[1])}"
        edits.append(Edit(start + first, start + last, text))
        if new != old:
            moved.add(old)
    return edits + _column_edits(query, start, moved)


def _column_edits(query: Any, start: int, moved: set[tuple[str, str]]) -> list[Edit]:
    """Return the edits that leave the database out of columns like db.table.column."""
    from sqlglot import exp

    edits = []
    for column in query.find_all(exp.Column):
        if (column.db, column.table) in moved:
            parts = column.parts
            at, to = parts[0].meta["start"], parts[1].meta["start"]
            edits.append(Edit(start + at, start + to, ""))
    return edits


def _tables(query: Any) -> Iterator[Any]:
    """Return the tables that a query reads, without what it defines itself."""
    from sqlglot import exp

    local = {cte.alias.lower() for cte in query.find_all(exp.CTE)}
    for table in query.find_all(exp.Table):
        if table.db or table.name.lower() not in local:
            yield table


def _parsed(select: str, schema: str) -> Any:
    # Loaded here because it takes a while and few writers ever create a view.
    import sqlglot
    from sqlglot import exp
    from sqlglot.errors import SqlglotError

    unclear = NeedsOperator(f"the tables of a view in {schema!r} are unclear", hint=_HINT)
    try:
        query = sqlglot.parse_one(select, dialect="mysql")
    except SqlglotError:
        raise unclear from None
    if isinstance(query, exp.Command):
        raise unclear
    return query
