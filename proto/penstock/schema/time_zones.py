"""Identifies the time zone of a server's SYSTEM by its clock at sample points in time.

A server reports it by an abbreviation such as CET, which does not define rules. Therefore the
server is asked for the local time at points two weeks apart, from 1970 to the end of TIMESTAMP.
Zones that agree at all of these points are one zone here.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from zoneinfo import available_timezones

from penstock.schema.ddl_context import offset_text, zone_named

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MOMENTS_S = range(86_400, 2_147_400_000, 14 * 86_400)

SHOWN_SQL = "SELECT " + ", ".join(f"FROM_UNIXTIME({moment})" for moment in _MOMENTS_S)
"""Queries the local times of a session's zone; the row is for the functions below."""


def zone_shown(row: Sequence[datetime], likely: str = "") -> str | None:
    """Return the zone of a row of `SHOWN_SQL`: an offset or a name, None if no known zone matches.

    `likely` is tried first.
    """
    offsets = {_offset_s(at, moment) for at, moment in zip(row, _MOMENTS_S, strict=True)}
    if len(offsets) == 1:
        return offset_text(offsets.pop())
    names = sorted(available_timezones(), key=lambda name: (name != likely, "/" not in name, name))
    return next((name for name in names if shows(row, name)), None)


def shows(row: Sequence[datetime], name: str) -> bool:
    zone = zone_named(name)
    if zone is None:
        return False
    moments = (_EPOCH + timedelta(seconds=moment) for moment in _MOMENTS_S)
    return all(
        at == moment.astimezone(zone).replace(tzinfo=None)
        for at, moment in zip(row, moments, strict=True)
    )


def _offset_s(shown: datetime, moment_s: int) -> int:
    return round((shown.replace(tzinfo=UTC) - _EPOCH).total_seconds()) - moment_s
