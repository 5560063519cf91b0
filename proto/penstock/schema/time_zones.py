"""Time zones: which one a server's SYSTEM is, found by what its clocks show at sample moments.

A server calls it by an abbreviation, as CET, which names no rules. So it is asked what it shows at
moments two weeks apart, from 1970 on for as long as a TIMESTAMP lasts. Zones that show the same at
all of these are one zone here.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from zoneinfo import available_timezones

from penstock.schema.ddl_context import offset_text, zone_named

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MOMENTS_S = range(86_400, 2_147_400_000, 14 * 86_400)

SHOWN_SQL = "SELECT " + ", ".join(f"FROM_UNIXTIME({moment})" for moment in _MOMENTS_S)
"""Asks a session what its zone shows; the row is for the functions below."""


def zone_shown(row: Sequence[datetime], likely: str = "") -> str | None:
    """Return the zone of a row of `SHOWN_SQL`: an offset or a name, None for one of no known rules.

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
