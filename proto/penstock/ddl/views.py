"""Views: nothing of them is tracked but their name, so only their tables' names need a look."""

from __future__ import annotations

from penstock.errors import NeedsOperator


def check_view(select: str, schema: str) -> None:
    """Raise NeedsOperator if a view of schema `schema` relies on another current database."""
    # Loaded here because it takes a while and few writers ever create a view.
    import sqlglot
    from sqlglot import exp
    from sqlglot.errors import SqlglotError

    hint = "write every table in the view as schema.table, or choose the view's own database"
    try:
        query = sqlglot.parse_one(select, dialect="mysql")
    except SqlglotError:
        raise NeedsOperator(f"the tables of a view in {schema!r} are unclear", hint=hint) from None
    if isinstance(query, exp.Command):
        raise NeedsOperator(f"the tables of a view in {schema!r} are unclear", hint=hint)
    local = {cte.alias.lower() for cte in query.find_all(exp.CTE)}
    for table in query.find_all(exp.Table):
        if not table.db and table.name.lower() not in local:
            raise NeedsOperator(
                f"a view in {schema!r} names table {table.name!r} without its database", hint=hint
            )
