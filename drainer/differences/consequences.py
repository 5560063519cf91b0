"""What each override of a DDL would mean, in sentences: for hints, and for `drainer ddl list`."""

from __future__ import annotations

from collections.abc import Iterator

from penstock.ddl import SchemaChange, adopted
from penstock.schema.model import DdlType, TableInfo

_BY_PARTITION = (
    DdlType.ADD_PARTITION,
    DdlType.DROP_PARTITION,
    DdlType.TRUNCATE_PARTITION,
    DdlType.EXCHANGE_PARTITION,
    DdlType.REORGANIZE_PARTITION,
    DdlType.CONVERT_PARTITION,
    DdlType.CONVERT_TABLE,
)
_UNKNOWN = "what it does is not known, so rows of tables that it made are left out"


def subject(change: SchemaChange) -> str:
    """Return the name of the table that a DDL is about, or of the database; one of several."""
    for schema, table in (*change.created, *change.dropped):
        if not change.schemas_dropped:
            return f"{schema}.{table.name}"
    for schema, _, after in change.altered:
        return f"{schema}.{after.name}"
    for schema, before, _, _ in change.renamed:
        return f"{schema}.{before.name}"
    names = (*change.schemas_created, *change.schemas_dropped)
    return names[0] if names else change.job.schema_name


def of_track() -> str:
    """Return what tracking a DDL without running it asks for."""
    return (
        "nothing is left out: the downstream has what the statement does already, or you do it"
        " there by hand before the next start"
    )


def of_replace() -> str:
    """Return what running another statement in a DDL's place means."""
    return (
        "your statement runs instead; what upstream has and it does not bring is left out and"
        " counted"
    )


def of_skip(change: SchemaChange | None) -> str:
    """Return what skipping a DDL would leave out, None for one that cannot be tracked."""
    return "; ".join(_skipped(change)) if change is not None else _UNKNOWN


def _skipped(change: SchemaChange) -> Iterator[str]:
    for name in change.schemas_created:
        yield f"the rows of all tables in {name} are left out and counted"
    for name in change.schemas_dropped:
        yield f"{name} stays as it is, with its tables and their rows"
    yield from _came_and_went(change)
    for old_schema, old, schema, new in change.renamed:
        yield (
            f"the rows of {schema}.{new.name} are left out and counted, and"
            f" {old_schema}.{old.name} stays as it is"
        )
    for schema, before, after in change.altered:
        yield from _altered(f"{schema}.{after.name}", adopted(change.job, before, after), after)
    if change.job.type in _BY_PARTITION:
        yield "rows that it removes or moves stay where they are"
    elif change.is_nothing:
        yield "no row depends on it"


def _came_and_went(change: SchemaChange) -> Iterator[str]:
    dropped = {(schema, table.name) for schema, table in change.dropped}
    created = {(schema, table.name) for schema, table in change.created}
    for schema, table in change.created:
        name = f"{schema}.{table.name}"
        if table.kind != "TABLE":
            yield f"the {table.kind.lower()} {name} stays as it is, or is not there"
        elif (schema, table.name) in dropped:
            yield f"{name} keeps the rows that upstream removed"
        else:
            yield f"the rows of {name} are left out and counted"
    for schema, name in sorted(dropped - created) if not change.schemas_dropped else ():
        yield f"{schema}.{name} stays as it is, with its rows"


def _altered(name: str, before: TableInfo, after: TableInfo) -> Iterator[str]:
    known = {c.id: c for c in before.columns}
    lacking = [c.name for c in after.columns if c.id not in known or known[c.id].name != c.name]
    kept = {c.id for c in after.columns}
    changed = [
        c.name
        for c in after.columns
        if c.id in known and c.name == known[c.id].name
        and (c.tp, c.flen, c.decimal, c.flag, c.elems, c.charset)
        != (known[c.id].tp, known[c.id].flen, known[c.id].decimal, known[c.id].flag,
            known[c.id].elems, known[c.id].charset)
    ]  # fmt: skip
    gone = [c.name for c in before.columns if c.id not in kept]
    if lacking:
        yield f"the values of {_columns(name, lacking)} are left out and counted"
    if changed:
        yield (
            f"{_columns(name, changed)} keeps its definition: a value that does not fit stops the"
            " Drainer, a number or a time may be rounded; such values are counted"
        )
    if gone:
        yield f"{_columns(name, gone)} stays, and rows that are written anew have its default"
    if not (lacking or changed or gone):
        yield f"{name} keeps its indexes, partitions and options as they are"


def _columns(table: str, names: list[str]) -> str:
    return f"column{'s' * (len(names) > 1)} {', '.join(names)} of {table}"
