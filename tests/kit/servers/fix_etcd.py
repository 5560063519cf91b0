"""A real etcd on a private port, with its data below pytest's temporary folder."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.cluster.etcd import connect
from penstock.pb.etcd import rpc_pb2
from penstock_local.etcd import EtcdCluster, EtcdServer


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
