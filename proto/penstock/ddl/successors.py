"""Matches columns that a MODIFY or CHANGE gave a new id with the columns before.

A TiDB that must rewrite a column's values builds a new column beside the old column, and the
remaining column has a new id. Later rows carry the new id; the older values belong to the same
column. Penstock's own plans, and a TiDB that rewrites nothing, keep the id. If a column was dropped
and another of the same name was added in its place, these are two columns: only the statement
distinguishes the cases. If only a TiDB knows the statement's spelling, the kind of the job decides:
a TiDB does not do two things to one column in one job, so equal names mean the same column.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from penstock.codes import Code
from penstock.ddl.parse.parser import parse
from penstock.ddl.syntax.statements import AlterTable, ChangeColumn, Statement
from penstock.errors import NeedsOperator
from penstock.schema.model import DdlJob, DdlType, TableInfo


def successors(job: DdlJob, before: TableInfo, after: TableInfo) -> dict[int, int]:
    """Return the new id of each column of `before` that has another id in `after`."""
    old_ids, ids = {c.id for c in before.columns}, {c.id for c in after.columns}
    if ids <= old_ids:
        return {}
    changed = dict(_changed(job, before, after))
    found = {}
    for column in after.columns:
        old = before.column(changed.get(column.name.lower(), ""))
        if column.id not in old_ids and old is not None and old.id not in ids:
            found[old.id] = column.id
    return found


def adopted(job: DdlJob, before: TableInfo, after: TableInfo) -> TableInfo:
    ids = successors(job, before, after)
    if not ids:
        return before
    columns = tuple(replace(c, id=ids.get(c.id, c.id)) for c in before.columns)
    return replace(before, columns=columns)


def check_known(job: DdlJob, before: TableInfo, after: TableInfo) -> None:
    """Raise NeedsOperator if a column may be a successor, but the job does not say so."""
    if job.type != DdlType.MULTI_SCHEMA_CHANGE or _statements(job) is not None:
        return
    known = adopted(job, before, after)
    old, new = {c.id: c.name for c in known.columns}, {c.id: c.name for c in after.columns}
    gone = [name for i, name in old.items() if i not in new]
    came = [name for i, name in new.items() if i not in old]
    if gone and came:
        raise NeedsOperator(
            f"it is not known whether {', '.join(came)} of {after.name} goes on with the values of"
            f" {', '.join(gone)}: {job.query}",
            "change the downstream by hand, then track this DDL",
            Code.DDL_UNSUPPORTED,
        )


def _statements(job: DdlJob) -> list[Statement] | None:
    try:
        return parse(job.query)[1]
    except NeedsOperator:
        return None


def _changed(job: DdlJob, before: TableInfo, after: TableInfo) -> Iterator[tuple[str, str]]:
    """Yield the columns that a job modifies as (name after, name before), in lower case."""
    statements = _statements(job)
    if statements is None:
        if job.type in (DdlType.MODIFY_COLUMN, DdlType.MULTI_SCHEMA_CHANGE):
            yield from ((c.name.lower(), c.name.lower()) for c in after.columns)
        gone = [c for c in before.columns if c.id not in {c.id for c in after.columns}]
        came = [c for c in after.columns if c.id not in {c.id for c in before.columns}]
        if job.type == DdlType.MODIFY_COLUMN and len(gone) == len(came) == 1:
            yield came[0].name.lower(), gone[0].name.lower()
        return
    for statement in statements:
        for part in statement.parts if isinstance(statement, AlterTable) else ():
            if isinstance(part.operation, ChangeColumn):
                yield part.operation.column.name.lower(), part.operation.old.lower()
