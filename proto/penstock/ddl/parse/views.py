"""Views: nothing of them is tracked but their name, so only their tables' names need a look."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from penstock.ddl.parse.view_tables import ReadTable, TableScan
from penstock.ddl.syntax.elements import Edit
from penstock.ddl.syntax.lexer import Kind, Source, quote_name, quote_path, read
from penstock.errors import NeedsOperator

Mapping = Callable[[str, str], tuple[str, str]]
"""From (database, table) to those that take their place; a database alone has the table ""."""

_HINT = "write every table in the view as schema.table, or choose the view's own database"


def check_view(select: str, schema: str) -> None:
    """Raise NeedsOperator if a view of schema `schema` relies on another current database."""
    for table in TableScan(read(select)).tables():
        if not table.schema:
            raise NeedsOperator(
                f"a view in {schema!r} names table {table.name!r} without its database", hint=_HINT
            )


def view_edits(select: str, start: int, schema: str, mapping: Mapping) -> list[Edit]:
    """Return the edits that give the tables of a view's SELECT their mapped names.

    `start` is where `select` stands. A table keeps its old name as an alias, so that the columns
    named after it still mean it; where two databases have a table of one name and one of them gets
    another, that raises NeedsOperator.
    """
    source = read(select)
    tables = list(TableScan(source).tables())
    named = [(table, (table.schema or schema, table.name)) for table in tables]
    moved = {old for _, old in named if mapping(*old) != old}
    if moved:
        _check_distinct([old for table, old in named if not table.has_alias], schema)
    edits: list[Edit] = []
    for table, old in named:
        new = mapping(*old)
        edits.append(Edit(start + table.start, start + table.end, quote_path(*new)))
        if new[1] != old[1] and not table.has_alias:
            edits.append(_alias(table, start, schema))
    return edits + _column_edits(source, start, moved, tables)


def _alias(table: ReadTable, start: int, schema: str) -> Edit:
    if table.is_dated:
        raise NeedsOperator(
            f"a view in {schema!r} reads {table.name!r} FOR SYSTEM_TIME, under another name here",
            hint="give the table an alias in the view",
        )
    at = start + table.alias_at
    return Edit(at, at, f" AS {quote_name(table.name)}")


def _check_distinct(names: Sequence[tuple[str, str]], schema: str) -> None:
    plain: dict[str, tuple[str, str]] = {}
    for name in names:
        if plain.setdefault(name[1].lower(), name) != name:
            raise NeedsOperator(
                f"a view in {schema!r} reads two tables called {name[1]!r}",
                hint="give both an alias in the view",
            )


def _column_edits(
    source: Source, start: int, moved: set[tuple[str, str]], tables: Sequence[ReadTable]
) -> list[Edit]:
    """Return the edits that leave the database out of columns like db.table.column."""
    places = {table.start for table in tables}
    wanted = {(schema.lower(), name.lower()) for schema, name in moved}
    tokens = source.tokens
    edits = []
    for at, token in enumerate(tokens[:-4]):
        if token.kind not in (Kind.WORD, Kind.QUOTED) or token.start in places:
            continue
        dots = [t.kind is Kind.SIGN and t.text == "." for t in (tokens[at + 1], tokens[at + 3])]
        begins = at == 0 or tokens[at - 1].text != "."
        if all(dots) and begins and (token.text.lower(), tokens[at + 2].text.lower()) in wanted:
            edits.append(Edit(start + token.start, start + tokens[at + 2].start, ""))
    return edits
