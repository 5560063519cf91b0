"""A MariaDB's changes through a real source and real Pumps: out comes what its tables hold."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from deploy.local.etcd import EtcdServer
from pumpclient import PumpClient
from tests.kit.binlog_server import BinlogServer, binlog_server
from tests.kit.sourcing import Downstream, SourceProcess, rows_of


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BinlogServer]:
    home = tmp_path_factory.mktemp("source-server")
    with binlog_server(home, 1, "--binlog-row-metadata=FULL") as running:
        yield running


@pytest.fixture
def fresh(server: BinlogServer) -> BinlogServer:
    """The server, without anything that an earlier test made."""
    server.drop_user_databases()
    server.run("RESET MASTER")
    return server


def downstream(etcd: Any, url: str, pumps: list[Any]) -> Downstream:
    with PumpClient.connect(url) as client:
        until_ts = client.session.oracle.get_ts()
    return Downstream(etcd, pumps, until_ts)


def test_rows_and_ddl_come_out_as_they_are_on_the_server(
    etcd: Any, etcd_server: EtcdServer, pump_factory: Any, fresh: BinlogServer, tmp_path: Path
) -> None:
    pumps = [pump_factory(etcd_server.url) for _ in range(2)]
    source = SourceProcess(tmp_path / "source", etcd_server.url, fresh)
    fresh.run("CREATE DATABASE shop", "CREATE TABLE shop.t (id INT PRIMARY KEY, v LONGTEXT)")
    fresh.insert(200)
    source.start()
    try:
        source.catch_up(fresh)
        fresh.run(
            "ALTER TABLE shop.t ADD COLUMN n BIGINT UNSIGNED",
            "UPDATE shop.t SET n = id * 2 WHERE id % 3 = 0",
            "DELETE FROM shop.t WHERE id % 7 = 0",
            "INSERT INTO shop.t VALUES (1000, 'x', 18446744073709551615)",
            "BEGIN", "INSERT INTO shop.t VALUES (1001, 'y', 1)", "DELETE FROM shop.t WHERE id = 1",
            "COMMIT",
        )  # fmt: skip
        source.catch_up(fresh)
    finally:
        assert source.stop() == 0
    found = downstream(etcd, etcd_server.url, pumps)
    assert found.rows("shop.t") == rows_of(fresh, "shop.t")
    assert found.repeated == 0
    assert found.origins == sorted(set(found.origins))
