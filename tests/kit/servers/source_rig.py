"""What tests of a source's faults share: a server, a source, one Pump, and what comes out there."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from deploy.local.sql_server import SqlServer
from pumpclient import PumpClient
from tests.kit.servers.binlog_server import AnyBinlogServer, make_table, numbers
from tests.kit.servers.sourcing import Downstream, SourceProcess, rows_of

_Server = TypeVar("_Server", bound=AnyBinlogServer)


def cleared(server: _Server) -> _Server:
    """Return the server with one file and nothing that an earlier test made but `shop.t`."""
    server.end_prepared()
    server.drop_user_databases()
    server.reset_binlog()
    make_table(server)
    return server


def bulk(server: SqlServer, rows: int, first: int, value_bytes: int) -> None:
    """Commit one transaction of many rows of `shop.t`."""
    server.run(
        f"INSERT INTO shop.t SELECT seq + {first}, REPEAT('x', {value_bytes}) FROM {numbers(rows)}"
    )


class SourceRig:
    """One source from a server to a Pump of its own; `close` stops it."""

    def __init__(
        self, etcd: Any, etcd_url: str, pump_factory: Callable[..., Any], folder: Path
    ) -> None:
        """Start the Pump."""
        self.etcd_url = etcd_url
        self.folder = folder
        self.source: SourceProcess
        self.etcd = etcd
        self.pumps = [pump_factory(etcd_url)]
        self._sources: list[SourceProcess] = []

    def begin(self, server: SqlServer, **settings: Any) -> SourceProcess:
        """Start the source."""
        self.source = SourceProcess(self.folder, self.etcd_url, server, **settings).start()
        self._sources.append(self.source)
        return self.source

    def close(self) -> None:
        """Stop what runs."""
        for source in self._sources:
            source.stop()

    def downstream(self) -> Downstream:
        """Return what came out; each transaction came once, in the server's order."""
        with PumpClient.connect(self.etcd_url) as client:
            until_ts = client.session.oracle.get_ts()
        found = Downstream(self.etcd, self.pumps, until_ts)
        for origins in (found.origins, found.reloaded):
            assert origins == sorted(set(origins))
        return found

    def check(self, server: SqlServer, *tables: str) -> Downstream:
        """Return what came out: it is what the server's tables hold."""
        found = self.downstream()
        for table in tables or ("shop.t",):
            assert found.rows(table) == rows_of(server, table)
        return found
