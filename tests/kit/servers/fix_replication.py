"""A whole replication for a test: Pumps, a writer with a model, and a Drainer into a downstream."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest

from penstock.cluster.etcd import EtcdClient
from penstock.local.etcd import EtcdServer
from penstock.local.sql_server import SqlServer
from pumpclient import PumpClient
from pumpclient.options import Tls
from tests.kit.servers.fix_drainer import DrainerFactory, DrainerProcess
from tests.kit.servers.fix_pump import PumpProcess
from tests.kit.servers.pump_session import PumpSession
from tests.kit.workloads.random_writer import RandomWriter, in_mariadb, in_sqlite


class Nodes:
    """An empty etcd and its Pumps; what was started is stopped with the test."""

    def __init__(
        self, etcd: EtcdClient, url: str, pump_factory: Callable[..., PumpProcess]
    ) -> None:
        self.etcd = etcd
        self.url = url
        self.pumps: list[PumpProcess] = []
        self.client: PumpClient
        self.writer: RandomWriter
        self._pump_factory = pump_factory
        self._opened = ExitStack()

    def add_pump(self, **settings: Any) -> PumpProcess:
        self.pumps.append(self._pump_factory(self.url, **settings))
        return self.pumps[-1]

    def connect(self, **settings: Any) -> PumpClient:
        """Return a client of the Pumps, also as `client`."""
        self.client = self._opened.enter_context(PumpClient.connect(self.url, **settings))
        return self.client

    def session(self, pump: PumpProcess, tls: Tls | None = None) -> PumpSession:
        return self._opened.enter_context(closing(PumpSession(self.etcd, pump, tls)))

    def begin(self, seed: int = 1) -> RandomWriter:
        self.writer = RandomWriter(self.connect(), seed=seed)
        self.writer.create()
        return self.writer

    def close(self) -> None:
        self._opened.close()


class Replication(Nodes):
    """Starts nothing by itself.

    The downstream is the SQLite file at `path`, unless a server is given to `start`.
    """

    def __init__(
        self,
        etcd: EtcdClient,
        url: str,
        pump_factory: Callable[..., PumpProcess],
        drainer_factory: DrainerFactory,
        path: Path,
    ) -> None:
        super().__init__(etcd, url, pump_factory)
        self.path = path
        self._drainer_factory = drainer_factory
        self._server: SqlServer | None = None

    @property
    def sink(self) -> str:
        return f"sqlite:///{self.path}" if self._server is None else self._server.url

    def drain_into(self, sink: str, **settings: Any) -> DrainerProcess:
        """Make a Drainer; `started=False` leaves it to be started."""
        return self._drainer_factory(self.url, sink, **settings)

    def add_drainer(self, **settings: Any) -> DrainerProcess:
        return self.drain_into(self.sink, **settings)

    def start(
        self, server: SqlServer | None = None, *, pumps: int = 1, **settings: Any
    ) -> DrainerProcess:
        self._server = server
        for _ in range(pumps):
            self.add_pump()
        return self.add_drainer(**settings)

    def check(self, drainer: DrainerProcess | None = None) -> None:
        """Compare with the model, once the Drainer has all that was written."""
        if drainer is not None:
            drainer.wait_until(self.writer.last_ts)
        found = in_sqlite(self.path) if self._server is None else in_mariadb(self._server)
        assert found == self.writer.expected()


@pytest.fixture
def nodes(
    etcd: EtcdClient, etcd_server: EtcdServer, pump_factory: Callable[..., PumpProcess]
) -> Iterator[Nodes]:
    with closing(Nodes(etcd, etcd_server.url, pump_factory)) as made:
        yield made


@pytest.fixture
def pump(nodes: Nodes) -> PumpProcess:
    return nodes.add_pump()


@pytest.fixture
def replication(
    etcd: EtcdClient,
    etcd_server: EtcdServer,
    pump_factory: Callable[..., PumpProcess],
    drainer_factory: DrainerFactory,
    tmp_path: Path,
) -> Iterator[Replication]:
    path = tmp_path / "down.db"
    with closing(Replication(etcd, etcd_server.url, pump_factory, drainer_factory, path)) as made:
        yield made
