"""The DDL context: the upstream facts besides its text on which a DDL's result depends.

    {"moment_us": int, "time_zone": str, "offset_s": int, "sql_mode": [str], "variables": {…}}

    moment_us   when the statement began in its session: the value of CURRENT_TIMESTAMP
    time_zone   an offset from UTC such as +08:00, or a name such as Europe/Berlin; never SYSTEM
    offset_s    seconds east of UTC of that zone at that time, for readers without the zone
    sql_mode    its modes by name, including modes that the job's text no longer depends on
    variables   others by their names in MySQL and MariaDB

The context is None where a writer of ours made the DDL. Then the time is the job's `finished_ts`,
and literals are in UTC and read strictly. Fields that a session does not give have the values that
apply without a session.

MySQL and TiDB round a fraction of a second that does not fit into a type, MariaDB cuts it off; each
has a mode for the other behaviour. Here only `ROUNDS` decides, for every server.

A server reports its SYSTEM zone by an abbreviation such as CET, which does not define rules.
Therefore it is asked for the local time at points two weeks apart, from 1970 to the end of
TIMESTAMP (`shown_sql`). Zones that agree at all of these points are one zone here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from typing import Any
from zoneinfo import ZoneInfo, available_timezones

from penstock.codes import Code
from penstock.errors import Malformed

ROUNDS, CUTS = "TIME_ROUND_FRACTIONAL", "TIME_TRUNCATE_FRACTIONAL"

_MODES = (
    "REAL_AS_FLOAT", "PIPES_AS_CONCAT", "ANSI_QUOTES", "IGNORE_SPACE", "IGNORE_BAD_TABLE_OPTIONS",
    "ONLY_FULL_GROUP_BY", "NO_UNSIGNED_SUBTRACTION", "NO_DIR_IN_CREATE", "POSTGRESQL", "ORACLE",
    "MSSQL", "DB2", "MAXDB", "NO_KEY_OPTIONS", "NO_TABLE_OPTIONS", "NO_FIELD_OPTIONS", "MYSQL323",
    "MYSQL40", "ANSI", "NO_AUTO_VALUE_ON_ZERO", "NO_BACKSLASH_ESCAPES", "STRICT_TRANS_TABLES",
    "STRICT_ALL_TABLES", "NO_ZERO_IN_DATE", "NO_ZERO_DATE", "ALLOW_INVALID_DATES",
    "ERROR_FOR_DIVISION_BY_ZERO", "TRADITIONAL", "NO_AUTO_CREATE_USER", "HIGH_NOT_PRECEDENCE",
    "NO_ENGINE_SUBSTITUTION", "PAD_CHAR_TO_FULL_LENGTH",
)  # fmt: skip
"""By their bits, which MySQL, MariaDB and TiDB share up to the 32nd."""

_OFFSET = re.compile(r"([+-])(\d{1,}):(\d{2})")
_OFFSET_MAX = timedelta(hours=14)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class DdlContext:
    """The session of one DDL; None stands for an unknown field."""

    moment_us: int | None = None
    time_zone: str | None = None
    offset_s: int = 0
    sql_mode: frozenset[str] | None = None
    variables: tuple[tuple[str, str], ...] = ()
    """In the order of their names, so that equal sessions are equal."""

    def shown(self, *, in_utc: bool) -> datetime | None:
        """Return the value of CURRENT_TIMESTAMP, or the same time in UTC; None if unknown."""
        if self.moment_us is None:
            return None
        offset_us = 0 if in_utc else self.offset_s * 1_000_000
        return _EPOCH + timedelta(microseconds=self.moment_us + offset_us)

    def zone(self) -> tzinfo | None:
        """Return the time zone, UTC if it is unknown, None if this machine lacks it."""
        return UTC if self.time_zone is None else zone_named(self.time_zone)

    def to_json(self) -> dict[str, Any]:
        written: dict[str, Any] = {}
        if self.moment_us is not None:
            written["moment_us"] = self.moment_us
        if self.time_zone is not None:
            written["time_zone"] = self.time_zone
        if self.offset_s:
            written["offset_s"] = self.offset_s
        if self.sql_mode is not None:
            written["sql_mode"] = sorted(self.sql_mode)
        if self.variables:
            written["variables"] = dict(self.variables)
        return written

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> DdlContext:
        """Parse the output of `to_json`; another shape raises ValueError, TypeError or similar."""
        modes = fields.get("sql_mode")
        moment = fields.get("moment_us")
        zone = fields.get("time_zone")
        variables = fields.get("variables") or {}
        return cls(
            moment_us=None if moment is None else int(moment),
            time_zone=None if zone is None else str(zone),
            offset_s=int(fields.get("offset_s", 0)),
            sql_mode=None if modes is None else frozenset(map(str, modes)),
            variables=tuple(sorted((str(name), str(value)) for name, value in variables.items())),
        )


def zone_named(name: str) -> tzinfo | None:
    """Return the zone of an offset such as +08:00 or a name; None if it is neither here."""
    match = _OFFSET.fullmatch(name)
    if match is not None:
        offset = timedelta(hours=int(match[2]), minutes=int(match[3]))
        is_one = offset <= _OFFSET_MAX
        return timezone(-offset if match[1] == "-" else offset) if is_one else None
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError):
        return None


def zone_offset(zone: str) -> timedelta:
    """Return how far a zone such as +08:00 is ahead of UTC; raise `Malformed` for another form.

    Only fixed offsets are allowed: where clocks are set back, an hour's texts would be ambiguous.
    """
    sign, digits = zone[:1], zone[1:].replace(":", "", 1)
    if zone.upper() in ("UTC", "Z"):
        return timedelta()
    if sign not in "+-" or len(digits) != 4 or not digits.isdecimal() or int(digits[2:]) > 59:
        raise Malformed(
            f"{zone!r} is no time zone of a fixed offset",
            "write it like +08:00 or UTC",
            Code.SETTING_VALUE,
        )
    ahead = timedelta(hours=int(digits[:2]), minutes=int(digits[2:]))
    return -ahead if sign == "-" else ahead


def offset_text(seconds: int) -> str:
    minutes = abs(seconds) // 60
    return f"{'-' if seconds < 0 else '+'}{minutes // 60:02}:{minutes % 60:02}"


def modes_of(bits: int) -> frozenset[str]:
    """Return the modes in a numeric sql_mode that have the same number on all servers."""
    return frozenset(name for bit, name in enumerate(_MODES) if bits >> bit & 1)


_MOMENTS_S = range(86_400, 2_147_400_000, 14 * 86_400)


def shown_sql() -> str:
    """Return a query of the local times of a session's zone; the functions below take its row."""
    return "SELECT " + ", ".join(f"FROM_UNIXTIME({moment})" for moment in _MOMENTS_S)


def zone_shown(row: Sequence[datetime], likely: str = "") -> str | None:
    """Return the zone of a row of `shown_sql`: an offset or a name, None if no known zone matches.

    `likely` is tried first.
    """
    offsets = {
        round((at.replace(tzinfo=UTC) - _EPOCH).total_seconds()) - moment
        for at, moment in zip(row, _MOMENTS_S, strict=True)
    }
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
