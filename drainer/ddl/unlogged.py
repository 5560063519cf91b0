"""Unlogged changes: which rows a TiDB cluster changes without a binlog, as far as detectable.

    etcd     /tidb/server/info/<uuid>   "binlog_status": "Off", or "Skipping" after an error
    schema   a table with TTL           TiDB deletes its expired rows without a binlog

Such rows differ downstream, and the stream does not show it. Each server and each table is
therefore reported in the log when it is first seen, and counted in status and metrics.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Iterable

from drainer.ddl.status_ports import SERVERS
from penstock.cluster.etcd import EtcdClient, read_prefix
from penstock.errors import PenstockError
from penstock.schema.model import TableInfo

log = logging.getLogger(__name__)

_LOGGED = ("On", "Unknown", "")
"""Unknown is a server that has no binlog configured yet, "" one that does not report it."""
_TICK_S = 5.0


def servers_without_binlog(items: Iterable[bytes]) -> dict[str, str]:
    """Return the status of each TiDB server that writes no binlog, by its address."""
    found = {}
    for value in items:
        try:
            fields = json.loads(value)
            status = str(fields.get("binlog_status", ""))
            if status not in _LOGGED:
                found[f"{fields['ip']}:{fields['listening_port']}"] = status
        except (ValueError, KeyError, AttributeError):
            continue  # `StatusPorts` reports an entry that cannot be read.
    return found


class Unlogged:
    """The servers and tables of one TiDB cluster whose changes have no binlog."""

    def __init__(
        self, etcd: EtcdClient, tables: Callable[[], Iterable[tuple[str, TableInfo]]]
    ) -> None:
        self._etcd = etcd
        self._tables = tables
        self.servers: dict[str, str] = {}
        self.expiring: set[str] = set()

    async def watch(self) -> None:
        while True:
            try:
                items, _ = await asyncio.to_thread(read_prefix, self._etcd, SERVERS)
            except PenstockError as error:
                log.debug("cannot list the TiDB servers: %s", error)
            else:
                self.note(servers_without_binlog(items.values()))
            await asyncio.sleep(_TICK_S)

    def note(self, servers: dict[str, str]) -> None:
        for address, status in servers.items():
            if self.servers.get(address) != status:
                log.error(
                    "TiDB server %s writes no binlog (binlog_status %s): rows that it changes are"
                    " missing downstream; set [binlog] enable = true, restart it, then compare"
                    " the tables with `penstock verify`",
                    address, status,
                )  # fmt: skip
        self.servers = servers
        expiring = {f"{schema}.{table.name}" for schema, table in self._tables() if table.expires}
        for name in sorted(expiring - self.expiring):
            log.warning(
                "table %s has a TTL: TiDB deletes its expired rows without a binlog, and they stay"
                " downstream",
                name,
            )
        self.expiring = expiring

    def describe(self) -> dict[str, str]:
        servers = ", ".join(f"{at} ({status})" for at, status in sorted(self.servers.items()))
        return {
            "tidb_servers_without_binlog": servers or "none",
            "tidb_tables_with_ttl": ", ".join(sorted(self.expiring)) or "none",
        }
