"""The statements that turn a session into a replica's, by flavour; in this order."""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

from pumpclient.mysql.gtid import Flavor, MariadbGtidSet

_MARIADB_CAPABILITY = 4
"""Understands MariaDB's GTIDs; without it they come as QUERY "BEGIN", and files differ."""

_NS_PER_S = 1_000_000_000


@dataclass(frozen=True, slots=True)
class ReplicaSession:
    """How a session wants its stream. `start_behind` makes MariaDB start by GTID."""

    heartbeat_s: float
    replica_uuid: UUID
    semi_sync: bool = False
    start_behind: MariadbGtidSet | None = None
    gtid_strict_mode: bool = True


Statement = tuple[str, tuple[object, ...]]


def session_statements(flavor: Flavor, wanted: ReplicaSession) -> list[Statement]:
    """Return statements with their parameters.

    MySQL renamed its variables in 8.0.26 and dropped the old names in 8.4: a session variable of
    either name may be set everywhere, so both are.
    """
    period_ns = round(wanted.heartbeat_s * _NS_PER_S)
    statements: list[Statement] = [
        ("SET @master_binlog_checksum = @@global.binlog_checksum", ()),
        ("SET @master_heartbeat_period = %s", (period_ns,)),
    ]
    if flavor is Flavor.MARIADB:
        statements.append(("SET @mariadb_slave_capability = %s", (_MARIADB_CAPABILITY,)))
        if wanted.start_behind is not None:
            statements += _mariadb_start(wanted.start_behind, strict=wanted.gtid_strict_mode)
    else:
        uuid = str(wanted.replica_uuid)
        statements += [
            ("SET @source_binlog_checksum = @@global.binlog_checksum", ()),
            ("SET @source_heartbeat_period = %s", (period_ns,)),
            ("SET @slave_uuid = %s, @replica_uuid = %s", (uuid, uuid)),
        ]
    if wanted.semi_sync:
        statements.append(("SET @rpl_semi_sync_slave = 1", ()))
        if flavor is Flavor.MYSQL:
            statements.append(("SET @rpl_semi_sync_replica = 1", ()))
    return statements


def _mariadb_start(gtids: MariadbGtidSet, *, strict: bool) -> list[Statement]:
    behind = ",".join(map(str, gtids.position()))
    return [
        ("SET @slave_connect_state = %s", (behind,)),
        ("SET @slave_gtid_strict_mode = %s", (int(strict),)),
        ("SET @slave_gtid_ignore_duplicates = 0", ()),
    ]
