"""A downstream MariaDB fed from real Pumps by a Drainer's pipeline in this process, without Spark.

Each `follow` is one run of it: from the checkpoint downstream up to a timestamp of now.
"""

import asyncio
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from penstock.cluster.history import History
from penstock.cluster.node_registry import Registry
from penstock.local.sql_server import SqlServer
from penstock.schema.model import DdlJob
from penstock.wire.binlog import Binlog, BinlogType
from penstock.wire.codec import encode_binlog
from pumpclient import PumpClient
from tests.kit.fakes.local_drainer import Way, run_drainer
from tests.kit.servers.fix_pump import streamed
from tests.kit.workloads.bank import Bank


@dataclass(frozen=True)
class Streams:
    """What the Pumps have, merged, for `local_drainer`."""

    binlogs: list[tuple[int, bytes]]
    jobs: list[DdlJob]
    last_ts: int


class Replica:
    """The downstream and its way there."""

    def __init__(
        self, etcd: Any, url: str, pumps: list[Any], server: SqlServer, folder: Path
    ) -> None:
        self.server = server
        self._etcd = etcd
        self._url = url
        self._pumps = pumps
        self._way = Way(url=server.url, folder=folder)

    def follow(self) -> None:
        with PumpClient.connect(self._url) as client:
            until_ts = client.session.oracle.get_ts()
        asyncio.run(run_drainer(cast(Bank, self._streams(until_ts)), self._way))

    def _streams(self, until_ts: int) -> Streams:
        cluster_id = Registry(self._etcd).cluster_id()
        found = [b for pump in self._pumps for b in streamed(pump, cluster_id, until_ts)]
        found.sort(key=lambda binlog: binlog.commit_ts)
        end = Binlog(tp=BinlogType.ROLLBACK, start_ts=until_ts, commit_ts=until_ts)
        return Streams(
            [(binlog.commit_ts, encode_binlog(binlog)) for binlog in (*found, end)],
            [job for job in History(self._etcd).jobs() if job.finished_ts <= until_ts],
            until_ts,
        )

    def rows(self, table: str, columns: str = "*") -> list[tuple[Any, ...]]:
        found = self.server.query(f"SELECT {columns} FROM {table}")
        return sorted((tuple(row) for row in found), key=repr)

    def columns(self, table: str) -> list[str]:
        return [str(row[0]) for row in self.server.query(f"SHOW COLUMNS FROM {table}")]

    def tables(self, schema: str) -> set[str]:
        return {str(row[0]) for row in self.server.query(f"SHOW TABLES FROM {schema}")}
