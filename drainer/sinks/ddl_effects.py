"""DDL effects: a DDL's effects on existing rows, and its time and zone, as upstream had them.

`ADD COLUMN … DEFAULT CURRENT_TIMESTAMP` gives older rows one point in time. For a MySQL or a
MariaDB it is in the job's context, with the zone. A writer of ours takes the time of the DDL's
commit_ts, in UTC. A TiDB takes the time of its clock and stores it as the column's origin default:
as a text in UTC for a TIMESTAMP, in the session's zone for a DATETIME. It stores the zone only if
it rewrites rows. Otherwise the texts imply the zone: two of them denote the same point in time, and
a TIMESTAMP's literal default is stored in UTC but written in the zone.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta, tzinfo
from typing import TYPE_CHECKING, Any

from penstock.codes import Code
from penstock.datum.rows.defaults import missing_datum
from penstock.datum.rows.fields import compile_field
from penstock.ddl import adopted
from penstock.ddl.parse.parser import parse
from penstock.ddl.rewrite.explicit import defined_columns
from penstock.ddl.syntax.statements import ValueKind
from penstock.ddl.tables.default_values import is_now
from penstock.errors import NeedsOperator
from penstock.schema.ddl_context import DdlContext, offset_text, zone_named
from penstock.schema.model import ColumnInfo, DdlType, MysqlType
from penstock.ts import physical_ms

if TYPE_CHECKING:
    from penstock.ddl import SchemaChange
    from penstock.schema.model import TableInfo

ROWS_BY_PARTITION = (
    DdlType.DROP_PARTITION,
    DdlType.TRUNCATE_PARTITION,
    DdlType.EXCHANGE_PARTITION,
    DdlType.CONVERT_PARTITION,
    DdlType.CONVERT_TABLE,
)
"""Clauses that move or remove rows that only a server with partitions can identify."""


def default_value(column: ColumnInfo) -> Any:
    """Return the value that rows older than the column read as, None for NULL."""
    datum = missing_datum(column)
    return None if datum is None else compile_field(column).decode(datum, 0)[0]


def stored_default(column: ColumnInfo) -> Any:
    """Return `default_value` in the storage form of `penstock.datum.columnar.decode`."""
    datum = missing_datum(column)
    return None if datum is None else compile_field(column).store(datum, 0)[0]


_FORMS = ("%Y-%m-%d %H:%M:%S", "%Y-%m-%d %H:%M:%S.%f", "%Y-%m-%d")
_UTC = "+00:00"
_QUARTER_S = 900
"""Current zones differ from UTC by whole quarters of an hour."""


def moment_of(change: SchemaChange) -> tuple[float, str]:
    """Return the point in time for a DDL, in seconds since 1970, and its time zone.

    Raises NeedsOperator for columns that no single time and zone fill as upstream did.
    """
    context = change.job.context
    zone = None if context is None else context.time_zone
    if context is not None and context.moment_us is not None:
        return context.moment_us / 1_000_000, zone or _UTC
    moment = physical_ms(change.job.finished_ts) / 1000
    filled = list(_filled_with_now(change))
    if zone is None:
        if _all_shown(moment, UTC, filled):
            found = {_UTC} if filled else set()
        else:  # The texts show the zone, if there is one in UTC.
            in_utc = [_parsed(text, UTC) for c, text in filled if c.tp is MysqlType.TIMESTAMP]
            local = [_parsed(text, UTC) for c, text in filled if c.tp is not MysqlType.TIMESTAMP]
            moment = (in_utc or local)[0]
            found = {_zone_between(local[0], in_utc[0])} if in_utc and local else set()
        found |= _written_in(change)
        if len(found) > 1 or not all(zone_named(each) for each in found):
            raise _mixed(change)
        zone = next(iter(found), _UTC)
    known = zone_named(zone)
    if filled and known is not None and not _all_shown(moment, known, filled):
        column, text = filled[0]
        moment = _parsed(text, UTC if column.tp is MysqlType.TIMESTAMP else known)
    if filled and (known is None or not _all_shown(moment, known, filled)):
        raise _mixed(change)
    return moment, zone


def session_of(change: SchemaChange) -> DdlContext | None:
    """Return a DDL's session for callers that have only its text, None for UTC at its commit_ts.

    If columns got different times, its `timestamp` is one that no server accepts.
    """
    context = change.job.context
    if context is not None and context.moment_us is not None:
        return context
    known = context or DdlContext()
    try:
        moment_s, zone = moment_of(change)
    except NeedsOperator:
        return replace(known, variables=(*known.variables, ("timestamp", "different moments")))
    if (moment_s, zone) == (physical_ms(change.job.finished_ts) / 1000, _UTC):
        return context
    at = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=moment_s)
    offset = at.astimezone(zone_named(zone)).utcoffset() or timedelta()
    moment_us, offset_s = round(moment_s * 1_000_000), round(offset.total_seconds())
    return replace(known, moment_us=moment_us, time_zone=zone, offset_s=offset_s)


def _mixed(change: SchemaChange) -> NeedsOperator:
    return NeedsOperator(
        f"columns of {change.job.query!r} got values of different moments or time zones upstream",
        "add them downstream one by one, each after SET TIMESTAMP to the moment that older"
        " rows have upstream, then track this DDL",
        Code.SINK_DDL_MOMENT,
    )


def _zone_between(local_s: float, utc_s: float) -> str:
    return offset_text(round((local_s - utc_s) / _QUARTER_S) * _QUARTER_S)


def _written_in(change: SchemaChange) -> set[str]:
    table = change.job.table
    if table is None or change.job.start_ts == 0:
        return set()
    try:
        columns = [c for each in parse(change.job.query)[1] for c in defined_columns(each)]
    except NeedsOperator:
        return set()
    found = set()
    for column in columns:
        default, known = column.default, table.column(column.name)
        is_literal = default is not None and default.kind is ValueKind.TEXT
        if column.type.name != "TIMESTAMP" or not is_literal or known is None:
            continue
        assert default is not None
        try:
            stored = _parsed(known.default or "", UTC)
            found.add(_zone_between(_parsed(default.text, UTC), stored))
        except NeedsOperator:
            continue  # Zeros denote no point in time, and are equal in each zone.
    return found


def _filled_with_now(change: SchemaChange) -> Iterator[tuple[ColumnInfo, str]]:
    """Yield each new column that defaults to the current time, and its text in older rows."""
    pairs: list[tuple[TableInfo, TableInfo]] = [(old, new) for _, old, new in change.altered]
    for before, after in pairs + [(old, new) for _, old, _, new in change.renamed]:
        known = {c.id for c in adopted(change.job, before, after).columns}
        for column in after.columns:
            text = column.origin_default
            if column.id not in known and is_now(column.default) and text and not is_now(text):
                yield column, text


def _all_shown(moment: float, zone: tzinfo, filled: list[tuple[ColumnInfo, str]]) -> bool:
    return all(
        _shown(moment, UTC if c.tp is MysqlType.TIMESTAMP else zone, c, text) == text
        for c, text in filled
    )


def _shown(moment: float, zone: tzinfo, column: ColumnInfo, text: str) -> str:
    at = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=moment)
    shown = at.astimezone(zone).strftime("%Y-%m-%d %H:%M:%S.%f")
    return shown[: len(text)] if column.decimal > 0 else shown[:19]


def _parsed(text: str, zone: tzinfo) -> float:
    for form in _FORMS:
        try:
            return datetime.strptime(text, form).replace(tzinfo=zone).timestamp()
        except ValueError:
            continue
    raise NeedsOperator(
        f"older rows have {text!r} as the moment of their new column, which is none",
        "do it by hand downstream, then track this DDL",
        Code.SINK_DDL_MOMENT,
    )
