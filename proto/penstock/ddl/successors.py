"""Columns that a MODIFY or CHANGE gave a new id: which column of before each of them is.

A TiDB that has to rewrite a column's values builds it beside the old one, and the column that
remains has a new id. Rows that follow carry the new id; the older values are the same column's.
Penstock's own plans, and a TiDB that rewrites nothing, keep the id. A column that was dropped, with
one of the same name added in its place, is another column: only the statement tells them apart.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from penstock.ddl.parse.parser import parse
from penstock.ddl.syntax.statements import AlterTable, ChangeColumn
from penstock.errors import NeedsOperator
from penstock.schema.model import DdlJob, DdlType, TableInfo


def successors(job: DdlJob, before: TableInfo, after: TableInfo) -> dict[int, int]:
    """Return the new id of each column of `before` that is in `after` under another id."""
    old_ids, ids = {c.id for c in before.columns}, {c.id for c in after.columns}
    if ids <= old_ids:
        return {}
    changed = dict(_changed(job, after))
    found = {}
    for column in after.columns:
        old = before.column(changed.get(column.name.lower(), ""))
        if column.id not in old_ids and old is not None and old.id not in ids:
            found[old.id] = column.id
    return found


def adopted(job: DdlJob, before: TableInfo, after: TableInfo) -> TableInfo:
    """Return `before` with the ids that its columns have in `after`."""
    ids = successors(job, before, after)
    if not ids:
        return before
    columns = tuple(replace(c, id=ids.get(c.id, c.id)) for c in before.columns)
    return replace(before, columns=columns)


def _changed(job: DdlJob, after: TableInfo) -> Iterator[tuple[str, str]]:
    """Yield the names, after and before, of the columns that a job modifies, in lower case."""
    try:
        _, statements = parse(job.query)
    except NeedsOperator:
        # A spelling that only a TiDB knows: the kind of the job still says what it is.
        if job.type == DdlType.MODIFY_COLUMN:
            yield from ((c.name.lower(), c.name.lower()) for c in after.columns)
        return
    for statement in statements:
        for part in statement.parts if isinstance(statement, AlterTable) else ():
            if isinstance(part.operation, ChangeColumn):
                yield part.operation.column.name.lower(), part.operation.old.lower()
