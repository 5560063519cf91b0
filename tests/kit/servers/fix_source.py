"""Real `penstock source` processes: to start, kill and ask, and what comes out of their Pumps."""

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Self, TypeVar

import pytest

from drainer.planner import Origins
from penstock.cluster.history import History
from penstock.cluster.node_registry import Registry
from penstock.datum.rows.row_codec import RowCodec
from penstock.ddl import Catalog
from penstock.failpoints import VARIABLE
from penstock.local.etcd import EtcdServer
from penstock.local.sql_server import SqlServer
from penstock.local.upstream import MysqlSource
from penstock.wire.binlog import Binlog, MutationType
from penstock.wire.codec import decode_prewrite_value
from pumpclient import PumpClient
from tests.kit.servers.binlog_server import AnyBinlogServer, make_table, numbers
from tests.kit.servers.fix_pump import streamed
from tests.kit.wait import eventually, present

LONG_S = 150
SHARDS_AS_ONE = """
    [[filter.routes]]
    schema-pattern = "shop_*"
    target-schema = "shop"
    [[filter.routes]]
    schema-pattern = "shop_*"
    table-pattern = "orders_*"
    target-schema = "shop"
    target-table = "orders"
"""
"""Routes of schemas `shop_…` with a table `orders_…` each into one table."""

Row = tuple[Any, ...]


class SourceProcess(MysqlSource):
    """One source, with faults if there are to be any; it begins with the first binlog."""

    def __init__(
        self, folder: Path, etcd_url: str, server: SqlServer, config: str = "", **settings: Any
    ) -> None:
        settings = {"source_id": "db-1", "start": "mysql-bin.000001:4", **settings}
        super().__init__(folder, etcd_url, server, config, **settings)
        self._command = self.command

    def start(self, failpoints: str = "") -> Self:
        """Start it, with faults if there are to be any."""
        environment = [f"{VARIABLE}={failpoints}"] if failpoints else []
        self.command = ["env", *environment, *self._command]
        super().start()
        return self

    def is_killed_at(self, point: str) -> None:
        """Start it, and wait until a failpoint has killed it."""
        self.start(failpoints=point)
        eventually(lambda: not self.is_running, LONG_S)
        assert self.wait() == -9, f"{point}:\n{self.log_tail()}"

    def text(self) -> str:
        return self.log.read_text() if self.log.exists() else ""

    def catch_up(self, server: SqlServer) -> None:
        """Wait until it has all that the server has."""
        eventually(lambda: self.has(server), LONG_S)

    def finish(self, server: SqlServer) -> None:
        """Stop it in order once it has all that the server has."""
        self.catch_up(server)
        assert self.stop() == 0

    def fails(self) -> dict[str, Any]:
        """Wait until it waits for an operator."""
        eventually(lambda: self.status().get("state") == "failed", LONG_S)
        return self.status()


class Downstream:
    """Tables in memory, fed from all Pumps' streams in commit order, repeated origins left out."""

    def __init__(self, etcd: Any, pumps: list[Any], until_ts: int) -> None:
        cluster_id = Registry(etcd).cluster_id()
        binlogs: list[Binlog] = []
        for pump in pumps:
            binlogs += streamed(pump, cluster_id, until_ts)
        binlogs.sort(key=lambda binlog: binlog.commit_ts)
        self.origins: list[tuple[int, int, int]] = []
        self.reloaded: list[tuple[int, int, int]] = []
        """Origins of what reloads brought."""
        self.tables: dict[tuple[str, str], Counter[Row]] = {}
        self._jobs = {job.id: job for job in History(etcd).jobs()}
        self._catalog = Catalog()
        seen = Origins({})
        for binlog in binlogs:
            if seen.is_repeated(binlog.commit_ts, binlog.origin):
                continue
            if (gap := seen.gap(binlog.commit_ts, binlog.origin)) is not None:
                raise gap
            seen.note(binlog.origin)
            if binlog.origin is not None:
                is_reload = "/" in binlog.origin.source
                (self.reloaded if is_reload else self.origins).append(binlog.origin.place)
            if binlog.is_ddl:
                self._ddl(binlog)
            else:
                self._rows(binlog)
        self.repeated = seen.repeated

    def _ddl(self, binlog: Binlog) -> None:
        if binlog.ddl_job_id not in self._jobs:
            return
        change = self._catalog.apply(self._jobs[binlog.ddl_job_id])
        codecs = {t.id: RowCodec(t) for _, t in self._catalog.tables()}
        for schema, table in change.dropped:
            self.tables.pop((schema, table.name), None)
        for schema, table in change.created:
            self.tables[schema, table.name] = Counter()
        for old_schema, old, new_schema, new in change.renamed:
            self.tables[new_schema, new.name] = self.tables.pop((old_schema, old.name))
        for schema, before, after in change.altered:
            self.tables[schema, after.name] = Counter(
                _altered(row, before, after) for row in self.tables[schema, before.name].elements()
            )
        self._codecs = codecs

    def _rows(self, binlog: Binlog) -> None:
        for mutation in decode_prewrite_value(binlog.prewrite_value).mutations:
            found = present(self._catalog.table_by_id(mutation.table_id))
            schema, info = found
            codec, rows = self._codecs[info.id], self.tables[schema, info.name]
            inserts, updates, deletes = map(
                iter, (mutation.inserted_rows, mutation.updated_rows, mutation.deleted_rows)
            )
            for kind in mutation.sequence:
                if kind is MutationType.INSERT:
                    rows[tuple(codec.decode_insert(next(inserts)))] += 1
                elif kind is MutationType.UPDATE:
                    before, after = codec.decode_update(next(updates))
                    _take(rows, tuple(before))
                    rows[tuple(after)] += 1
                else:
                    _take(rows, tuple(codec.decode_delete(next(deletes))))

    def rows(self, table: str) -> list[Row]:
        schema, name = table.split(".")
        return sorted(self.tables[schema, name].elements(), key=repr)


def _take(rows: Counter[Row], row: Row) -> None:
    assert rows[row] > 0, f"{row} goes and is not there"
    rows[row] -= 1


def _altered(row: Row, before: Any, after: Any) -> Row:
    given = {column.name: value for column, value in zip(before.columns, row, strict=True)}
    return tuple(given.get(column.name, column.default) for column in after.columns)


def rows_of(server: SqlServer, table: str) -> list[Row]:
    return sorted((tuple(row) for row in server.query(f"SELECT * FROM {table}")), key=repr)


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
        self.etcd_url = etcd_url
        self.folder = folder
        self.source: SourceProcess
        self.etcd = etcd
        self.pumps = [pump_factory(etcd_url)]
        self._sources: list[SourceProcess] = []

    def make(self, server: SqlServer, **settings: Any) -> SourceProcess:
        """Return a source that is still to be started."""
        self.source = SourceProcess(self.folder, self.etcd_url, server, **settings)
        self._sources.append(self.source)
        return self.source

    def begin(self, server: SqlServer, **settings: Any) -> SourceProcess:
        return self.make(server, **settings).start()

    def close(self) -> None:
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


@pytest.fixture
def rig(
    etcd: Any, etcd_server: EtcdServer, pump_factory: Any, tmp_path: Path
) -> Iterator[SourceRig]:
    made = SourceRig(etcd, etcd_server.url, pump_factory, tmp_path / "source")
    yield made
    made.close()
