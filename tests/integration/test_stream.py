"""Programs read the stream: real etcd, Pumps and writers, in commit order, each transaction once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from deploy.local.etcd import EtcdServer
from penstock.stream import Reader, Transaction
from pumpclient import PumpClient
from tests.kit.servers.fix_pump import PumpProcess

MakePump = Callable[..., PumpProcess]


@pytest.fixture
def etcd_url(etcd: Any, etcd_server: EtcdServer) -> str:
    return etcd_server.url


def test_trial(etcd_url: str, pump_factory: MakePump) -> None:
    pump_factory(etcd_url)
    pump_factory(etcd_url)
    with PumpClient.connect(etcd_url) as client:
        client.execute_ddl("CREATE DATABASE shop")
        client.execute_ddl("CREATE TABLE shop.goods (id INT PRIMARY KEY, name VARCHAR(20))")
        with client.begin("shop") as txn:
            txn.insert("goods", {"id": 1, "name": "nut"})
            txn.update("goods", {"id": 1, "name": "nut"}, {"name": "bolt"})
        with Reader.connect(etcd_url) as reader:
            for _ in range(3):
                each = reader.get(10)
                print(each)
                assert each
                print(each.checkpoint)
                if isinstance(each, Transaction):
                    print(list(each.changes))
            import time; t=time.monotonic()
            for n in range(20):
                with client.begin("shop") as txn:
                    txn.insert("goods", {"id": n+10, "name": "nut"})
                each = reader.get(10)
                assert each.commit_ts == txn.commit_ts
            print("per round trip", (time.monotonic()-t)/20)
            print(reader, reader.waits_for(), reader.pumps(), reader.left_out())
            assert reader.get(0.3) is None
            print(reader)
