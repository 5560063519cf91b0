"""Session context: the facts of a QUERY and its server on which a statement's result depends.

Pure.

    of the event         time, to the microsecond where its session asked for it; time zone,
                         sql_mode, lc_time_names, auto_increment_*, collation_connection and the
                         meaning of utf8mb4, all as the session had them
    of the server        its version; the meaning of SYSTEM as a time zone; global values of
                         `GLOBALS`, which no event has: `assumed_settings` detects other values

A server writes a time zone only where the statement used it, and numbers of `auto_increment_*` and
`lc_time_names` only where they are not the usual ones.

Omitted, because a statement that the server accepted has the same effect without them:
`foreign_key_checks`, `unique_checks` and `check_constraint_checks`, which only refuse;
`explicit_defaults_for_timestamp` (`timestamps`), and character sets and collations of tables, which
are written into the statement.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from penstock.codes import Code
from penstock.ddl.charsets import collation_name
from penstock.errors import NeedsOperator
from penstock.schema.ddl_context import CUTS, ROUNDS, DdlContext, modes_of, zone_named
from pumpclient.mysql.events.statements import StatusVariables
from pumpclient.mysql.gtid import Flavor
from pumpclient.mysql.translate.statements.statement_text import Dialect

GLOBALS = ("default_week_format", "div_precision_increment", "old_mode")
"""Variables that change values; a server may not have all of them."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MARIADB_MODES = {32: "EMPTY_STRING_IS_NULL", 33: "SIMULTANEOUS_ASSIGNMENT", 34: ROUNDS}
_MYSQL_CUTS = 1 << 32
_OLD_MODES = ("UTF8_IS_UTF8MB3", "ZERO_DATE_TIME_CAST")
_OLD_MODE_OF_ALIAS_SINCE = 100601


@dataclass(frozen=True, slots=True)
class ServerDefaults:
    """A server's global settings."""

    system_zone: str | None = None
    """None where it has no name."""
    variables: Mapping[str, str] = field(default_factory=dict)
    """The server's values of `GLOBALS`."""


def context_of(
    variables: StatusVariables,
    dialect: Dialect,
    timestamp_s: int,
    defaults: Callable[[], ServerDefaults],
) -> DdlContext:
    """Return a QUERY's session context; raise `NeedsOperator` for an unknown time zone."""
    fraction_us = variables.microseconds or variables.mariadb_hrnow_us or 0
    moment_us = timestamp_s * 1_000_000 + fraction_us
    zone = variables.time_zone
    if zone == "SYSTEM":
        zone = defaults().system_zone
    offset_s = 0
    if variables.time_zone is not None:
        known = None if zone is None else zone_named(zone)
        if known is None:
            raise NeedsOperator(
                f"the statement's time zone {variables.time_zone} is not known here",
                hint="install the machine's time zone data (tzdata), or run the server in a zone"
                " that has a name there; or give a statement to run instead of it",
                code=Code.DDL_UNREADABLE,
            )
        offset = (_EPOCH + timedelta(microseconds=moment_us)).astimezone(known).utcoffset()
        offset_s = round(offset.total_seconds()) if offset is not None else 0
    is_mariadb = dialect.flavor is Flavor.MARIADB
    found = _of_event(variables, is_mariadb) | _of_server(dialect, defaults().variables)
    found["version"] = dialect.version_text
    mode = variables.sql_mode
    return DdlContext(
        moment_us=moment_us,
        time_zone=zone,
        offset_s=offset_s,
        sql_mode=None if mode is None else modes_named(mode, dialect),
        variables=tuple(sorted(found.items())),
    )


def modes_named(mode: int, dialect: Dialect) -> frozenset[str]:
    names = set(modes_of(mode))
    if dialect.flavor is Flavor.MARIADB:
        names |= {name for bit, name in _MARIADB_MODES.items() if mode >> bit & 1}
    elif not mode & _MYSQL_CUTS:
        names.add(ROUNDS)
    assert CUTS not in names, "what does not round cuts"
    return frozenset(names)


def _of_event(variables: StatusVariables, is_mariadb: bool) -> dict[str, str]:
    increment, offset = variables.auto_increment or (1, 1)
    found = {
        "auto_increment_increment": str(increment),
        "auto_increment_offset": str(offset),
        "lc_time_names": str(variables.lc_time_names or 0),
    }
    if variables.charsets is not None:
        number = variables.charsets[1]
        found["collation_connection"] = collation_name(number, is_mariadb=is_mariadb)
    if variables.default_collation_utf8mb4 is not None:
        number = variables.default_collation_utf8mb4
        found["default_collation_for_utf8mb4"] = collation_name(number, is_mariadb=is_mariadb)
    return found


def may_mean_utf8mb4(dialect: Dialect) -> bool:
    """Return whether `old_mode` decides the meaning of utf8; elsewhere it is utf8mb3."""
    return dialect.flavor is Flavor.MARIADB and dialect.version >= _OLD_MODE_OF_ALIAS_SINCE


def means_utf8mb4(variables: Mapping[str, str]) -> bool:
    return _OLD_MODES[0] not in variables.get("old_mode", "").upper()


def _of_server(dialect: Dialect, variables: Mapping[str, str]) -> dict[str, str]:
    found = {name: value for name, value in variables.items() if name != "old_mode"}
    old = [mode for mode in _OLD_MODES if mode in variables.get("old_mode", "").upper()]
    if not may_mean_utf8mb4(dialect) and _OLD_MODES[0] not in old:
        old.insert(0, _OLD_MODES[0])
    return found | {"old_mode": ",".join(old)}
