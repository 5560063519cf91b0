"""A whole replication for a test: Pumps, a writer with a model, and a Drainer into a downstream."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.cluster.etcd import EtcdClient
from penstock_local.etcd import EtcdServer
from penstock_local.sql_server import SqlServer
from pumpclient import PumpClient
from tests.kit.servers.fix_drainer import DrainerFactory, DrainerProcess
from tests.kit.servers.fix_pump import PumpProcess
from tests.kit.workloads.random_writer import RandomWriter, in_mariadb, in_sqlite


class Replication:
    """Starts nothing by itself; what was started is stopped with the test.

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
        self.etcd = etcd
        self.url = url
        self.path = path
        self.pumps: list[PumpProcess] = []
        self.client: PumpClient
        self.writer: RandomWriter
        self._pump_factory = pump_factory
        self._drainer_factory = drainer_factory
        self._server: SqlServer | None = None
        self._clients: list[PumpClient] = []

    @property
    def sink(self) -> str:
        return f"sqlite:///{self.path}" if self._server is None else self._server.url

    def add_pump(self) -> PumpProcess:
        self.pumps.append(self._pump_factory(self.url))
        return self.pumps[-1]

    def add_drainer(self, **settings: Any) -> DrainerProcess:
        """Make a Drainer of the downstream; `started=False` leaves it to be started."""
        return self._drainer_factory(self.url, self.sink, **settings)

    def start(
        self, server: SqlServer | None = None, *, pumps: int = 1, **settings: Any
    ) -> DrainerProcess:
        self._server = server
        for _ in range(pumps):
            self.add_pump()
        return self.add_drainer(**settings)

    def connect(self) -> PumpClient:
        """Return a client of the Pumps, also as `client`."""
        self.client = PumpClient.connect(self.url)
        self._clients.append(self.client)
        return self.client

    def begin(self, seed: int = 1) -> RandomWriter:
        self.writer = RandomWriter(self.connect(), seed=seed)
        self.writer.create()
        return self.writer

    def check(self) -> None:
        found = in_sqlite(self.path) if self._server is None else in_mariadb(self._server)
        assert found == self.writer.expected()

    def close(self) -> None:
        for client in self._clients:
            client.close()


@pytest.fixture
def replication(
    etcd: EtcdClient,
    etcd_server: EtcdServer,
    pump_factory: Callable[..., PumpProcess],
    drainer_factory: DrainerFactory,
    tmp_path: Path,
) -> Iterator[Replication]:
    made = Replication(etcd, etcd_server.url, pump_factory, drainer_factory, tmp_path / "down.db")
    yield made
    made.close()
