"""A real etcd on a private port, with its data below pytest's temporary folder."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

import pytest

from penstock.cluster.etcd import connect
from penstock.codes import Code
from penstock.errors import Retryable
from penstock.local.etcd import START_S_MAX, EtcdServer
from penstock.local.process import free_port
from penstock.pb.etcd import rpc_pb2


class EtcdCluster:
    """Several members on one machine; one of three may fail."""

    def __init__(self, home: Path, *, count: int = 3, durable: bool = True) -> None:
        urls = [f"http://127.0.0.1:{free_port()}" for _ in range(count)]
        members = ",".join(f"m{i}={url}" for i, url in enumerate(urls))
        self.members = [
            EtcdServer(home / f"m{i}", durable=durable, name=f"m{i}", peer_url=url, members=members)
            for i, url in enumerate(urls)
        ]
        self.url = ",".join(member.url for member in self.members)

    def start(self) -> Self:
        for member in self.members:
            member.log.parent.mkdir(parents=True, exist_ok=True)
            member.spawn()
        for member in self.members:
            member.until_healthy()
        return self

    def leader(self, *, but: EtcdServer | None = None) -> EtcdServer:
        """Wait for a leader other than `but`, and return it."""
        deadline = time.monotonic() + START_S_MAX
        while time.monotonic() < deadline:
            for member in self.members:
                if member is not but and member.is_running and member.leads():
                    return member
            time.sleep(0.05)
        raise Retryable("no member of this etcd leads", Code.ETCD_AWAY)

    def stop(self) -> None:
        """Kill all members; without a majority they cannot shut down cleanly anyway."""
        for member in self.members:
            member.kill()


@pytest.fixture(scope="session")
def etcd_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdServer]:
    """One etcd for the whole session; tests must leave it running."""
    server = EtcdServer(tmp_path_factory.mktemp("etcd"), durable=False)
    server.start()
    yield server
    server.stop()


@pytest.fixture
def etcd(etcd_server: EtcdServer) -> Iterator[Any]:
    """A client of an empty etcd."""
    client = connect(etcd_server.url)
    everything = rpc_pb2.DeleteRangeRequest(key=b"\0", range_end=b"\0")
    client.kvstub.DeleteRange(everything, 5)
    yield client
    client.close()


@pytest.fixture
def etcd_url(etcd: Any, etcd_server: EtcdServer) -> str:
    return etcd_server.url


@pytest.fixture
def fresh_etcd(tmp_path: Path) -> Iterator[EtcdServer]:
    folder = tmp_path / "etcd"
    folder.mkdir()
    server = EtcdServer(folder, durable=False)
    server.start()
    yield server
    server.stop()


@pytest.fixture
def etcd_cluster(tmp_path: Path) -> Iterator[EtcdCluster]:
    cluster = EtcdCluster(tmp_path / "etcd-cluster", durable=False)
    cluster.start()
    yield cluster
    cluster.stop()
