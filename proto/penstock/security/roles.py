"""Roles: the methods that a caller's certificate allows, if `cert-roles` is set.

    writer      writes binlogs
    drainer     pulls binlogs; programs that read the stream also have this role
    pump        writes replicas of logs, and notifies Drainers
    operator    pauses, closes, moves, purges; may pull as well, to look at binlogs

All of them may ask for the status, for timestamps, and for health probes. A method that is not in
the table is the operator's.
"""

from collections.abc import Iterable, Mapping
from typing import Final

WRITER, DRAINER, PUMP, OPERATOR = "writer", "drainer", "pump", "operator"
ROLES: Final = (WRITER, DRAINER, PUMP, OPERATOR)

_FOR_ALL: Final = ("/grpc.health.v1.Health/", "/grpc.reflection.", "/pdpb.PD/")
_ROLES_OF: Final[Mapping[str, frozenset[str]]] = {
    "/binlog.Pump/WriteBinlog": frozenset({WRITER}),
    "/binlog.Pump/PullBinlogs": frozenset({DRAINER, OPERATOR}),
    "/binlog.Cistern/Notify": frozenset({PUMP}),
    "/penstock.Pump/Write": frozenset({WRITER}),
    "/penstock.Pump/WriteLarge": frozenset({WRITER}),
    "/penstock.Pump/Pull": frozenset({DRAINER, OPERATOR}),
    "/penstock.Pump/Fetch": frozenset({DRAINER, OPERATOR}),
    "/penstock.Pump/Advance": frozenset({DRAINER}),
    "/penstock.Pump/Status": frozenset(ROLES),
    "/penstock.Drainer/Status": frozenset(ROLES),
    "/penstock.Replica/Follow": frozenset({PUMP}),
    "/penstock.Replica/Prepend": frozenset({PUMP}),
    "/penstock.Replica/Read": frozenset({PUMP}),
}
_THE_OPERATORS: Final = frozenset({OPERATOR})


def roles_for(path: str) -> frozenset[str]:
    """Return the roles that may call a method, given as `/package.Service/Method`."""
    if path.startswith(_FOR_ALL):
        return frozenset(ROLES)
    return _ROLES_OF.get(path, _THE_OPERATORS)


def parsed_roles(entries: Iterable[str]) -> dict[str, frozenset[str]]:
    """Return roles by common name from entries `name=role+role`; `ValueError` for others."""
    found: dict[str, frozenset[str]] = {}
    for entry in entries:
        name, equals, text = entry.rpartition("=")
        roles = frozenset(part.strip() for part in text.split("+"))
        if not (equals and name.strip()):
            raise ValueError("write each entry as name=role, or name=role+role")
        if unknown := roles - frozenset(ROLES):
            raise ValueError(f"{min(unknown)!r} is not a role: use {', '.join(ROLES)}")
        found[name.strip()] = found.get(name.strip(), frozenset()) | roles
    return found
