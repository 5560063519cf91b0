"""DDL moment: the time at which a DDL runs downstream, so that it fills old rows as upstream did.

`ADD COLUMN … DEFAULT CURRENT_TIMESTAMP` gives older rows one moment. A writer of ours takes that of
the DDL's commit_ts. A TiDB takes its own clock's, and keeps it as the column's origin default: as a
text in UTC for a TIMESTAMP, in the server's zone for a DATETIME. Sessions here are at +00:00, so in
both cases the text, taken as UTC, is the moment under which the same text comes out.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from penstock.codes import Code
from penstock.ddl import adopted
from penstock.ddl.tables.default_values import is_now
from penstock.errors import NeedsOperator
from penstock.ts import physical_ms

if TYPE_CHECKING:
    from penstock.ddl import SchemaChange
    from penstock.schema.model import ColumnInfo, TableInfo

_FORMS = ("%Y-%m-%d %H:%M:%S", "%Y-%m-%d %H:%M:%S.%f", "%Y-%m-%d")


def moment_s(change: SchemaChange) -> float:
    """Return the moment for a DDL, in seconds since 1970.

    Two columns that no one moment fills as they were raise NeedsOperator.
    """
    moment = physical_ms(change.job.finished_ts) / 1000
    filled = list(_filled_with_now(change))
    others = [text for column, text in filled if _shown(moment, column, text) != text]
    if not others:
        return moment
    moment = _parsed(others[0])
    if any(_shown(moment, column, text) != text for column, text in filled):
        raise NeedsOperator(
            f"columns of {change.job.query!r} got different moments upstream",
            hint="add them downstream one by one, each after SET TIMESTAMP to the moment that"
            " older rows have upstream, then track this DDL",
            code=Code.SINK_DDL_MOMENT,
        )
    return moment


def _filled_with_now(change: SchemaChange) -> Iterator[tuple[ColumnInfo, str]]:
    """Yield each new column whose default is the current time, and what older rows have there."""
    pairs: list[tuple[TableInfo, TableInfo]] = [(old, new) for _, old, new in change.altered]
    for before, after in pairs + [(old, new) for _, old, _, new in change.renamed]:
        known = {c.id for c in adopted(change.job, before, after).columns}
        for column in after.columns:
            text = column.origin_default
            if column.id not in known and is_now(column.default) and text and not is_now(text):
                yield column, text


def _shown(moment: float, column: ColumnInfo, text: str) -> str:
    """Return what a moment would be in a column, in the form of `text`."""
    shown = datetime.fromtimestamp(moment, UTC).strftime("%Y-%m-%d %H:%M:%S.%f")
    return shown[: len(text)] if column.decimal > 0 else shown[:19]


def _parsed(text: str) -> float:
    for form in _FORMS:
        try:
            return datetime.strptime(text, form).replace(tzinfo=UTC).timestamp()
        except ValueError:
            continue
    raise NeedsOperator(
        f"older rows have {text!r} as the moment of their new column, which is none",
        hint="do it by hand downstream, then track this DDL",
        code=Code.SINK_DDL_MOMENT,
    )
