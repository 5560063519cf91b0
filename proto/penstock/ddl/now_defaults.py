"""What older rows read as where a column came with the current time as its default."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

from penstock.ddl.successors import adopted
from penstock.ddl.tables.default_values import is_now
from penstock.schema.model import ColumnInfo, DdlJob, TableInfo
from penstock.ts import physical_ms

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def settled(job: DdlJob, before: TableInfo, after: TableInfo) -> TableInfo:
    """Return the table with the time of the DDL where older rows read as the current time."""
    if job.finished_ts == 0 or not any(is_now(c.origin_default) for c in after.columns):
        return after
    known = {c.id: c.origin_default for c in adopted(job, before, after).columns}
    columns = tuple(
        replace(c, origin_default=_moment(job, c, known.get(c.id)))
        if is_now(c.origin_default)
        else c
        for c in after.columns
    )
    return replace(after, columns=columns)


def _moment(job: DdlJob, column: ColumnInfo, known: str | None) -> str:
    return known if known is not None and not is_now(known) else moment_text(job, column.decimal)


def moment_text(job: DdlJob, decimals: int) -> str:
    """Return the time at which a job finished, in UTC, as MySQL prints it."""
    moment = _EPOCH + timedelta(milliseconds=physical_ms(job.finished_ts))
    text = moment.strftime("%Y-%m-%d %H:%M:%S.%f")
    return text[: len(text) - 6 + decimals] if decimals else text[:-7]
