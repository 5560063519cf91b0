"""A source is killed at every step, and at random: each transaction comes downstream once."""

from __future__ import annotations

import random
import time
from pathlib import Path
from typing import Any

import pytest

from penstock.local.etcd import EtcdServer
from pumpclient import PumpClient
from tests.kit.servers.binlog_server import MARIADB, AnyBinlogServer, module_server, on_servers
from tests.kit.servers.fix_pump import PumpProcess
from tests.kit.servers.fix_replication import Nodes
from tests.kit.servers.fix_source import LONG_S, Downstream, SourceProcess, rows_of
from tests.kit.wait import eventually
from tests.kit.workloads.server_writers import HISTORY_TABLES, ServerHistory

pytestmark = pytest.mark.fault

USUAL = ("source.before_decided=kill@2", "source.after_decided=kill@2", "source.after_ddl=kill@1")
ALL = (*USUAL, "source.before_ddl=kill@1", "source.before_checkpoint=kill@2")


server = module_server(on_servers(MARIADB))


@pytest.fixture
def pumps(nodes: Nodes, server: AnyBinlogServer) -> list[PumpProcess]:
    """Two Pumps, and a server without anything that an earlier test made."""
    server.drop_user_databases()
    server.reset_binlog()
    return [nodes.add_pump() for _ in range(2)]


def check(etcd: Any, url: str, pumps: list[Any], server: AnyBinlogServer) -> Downstream:
    with PumpClient.connect(url) as client:
        until_ts = client.session.oracle.get_ts()
    found = Downstream(etcd, pumps, until_ts)
    for table in HISTORY_TABLES:
        assert found.rows(table) == rows_of(server, table)
    assert found.origins == sorted(set(found.origins))
    return found


def killed_at(
    points: tuple[str, ...], server: AnyBinlogServer, source: SourceProcess, history: ServerHistory
) -> None:
    for point in points:
        history.many(15)
        history.ddl()
        history.many(15)
        source.is_killed_at(point)


@pytest.mark.fault(
    "`penstock source` is killed before and after a group is stored, around a DDL and a"
    " checkpoint, and at random",
    "a group that is stored and sent again is dropped as repeated; each transaction downstream"
    " once, in the server's order",
    cases="3 / 8 and 36 random kills",
)
@pytest.mark.parametrize("points", [USUAL, pytest.param(ALL, marks=pytest.mark.slow)])
def test_a_source_killed_at_every_step_brings_each_transaction_once(
    points: tuple[str, ...],
    etcd: Any,
    etcd_server: EtcdServer,
    pumps: list[PumpProcess],
    server: AnyBinlogServer,
    tmp_path: Path,
) -> None:
    history = ServerHistory(server, 1)
    history.begin()
    source = SourceProcess(tmp_path / "source", etcd_server.url, server, sync_group_count_max=8)
    try:
        killed_at(points, server, source, history)
        source.start()
        history.many(20)
        source.catch_up(server)
    finally:
        source.stop()
    check(etcd, etcd_server.url, pumps, server)


PUMP_POINTS = ("pump.after_timestamps=kill@3", "pump.after_write=kill@4")
ALL_PUMP_POINTS = (
    *PUMP_POINTS,
    "pump.before_append=kill@4",
    "pump.after_sync=kill@4",
    "pump.after_index=kill@4",
)


@pytest.mark.fault(
    "a Pump is killed while it stores decided transactions, and their source beside it",
    "the source sends them to the other Pump; each transaction downstream once, in the server's"
    " order",
    cases="2 / 5",
)
@pytest.mark.parametrize(
    "points", [PUMP_POINTS, pytest.param(ALL_PUMP_POINTS, marks=pytest.mark.slow)]
)
def test_a_pump_killed_within_decided_transactions_brings_each_once(
    points: tuple[str, ...],
    etcd: Any,
    etcd_server: EtcdServer,
    pumps: list[PumpProcess],
    server: AnyBinlogServer,
    tmp_path: Path,
) -> None:
    history, pump = ServerHistory(server, 1), pumps[0]
    history.begin()
    source = SourceProcess(tmp_path / "source", etcd_server.url, server, sync_group_count_max=4)
    try:
        for n, point in enumerate(points):
            pump.kill()
            pump.spawn(failpoints=point)
            if not source.is_running:
                source.start()
            history.many(15)
            history.ddl()
            history.many(15)
            eventually(lambda: not pump.is_running, LONG_S)
            if n % 2:
                source.kill()
            pump.start()
        if not source.is_running:
            source.start()
        source.catch_up(server)
    finally:
        source.stop()
    check(etcd, etcd_server.url, pumps, server)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_a_source_killed_at_random_brings_each_transaction_once(
    seed: int,
    etcd: Any,
    etcd_server: EtcdServer,
    pumps: list[PumpProcess],
    server: AnyBinlogServer,
    tmp_path: Path,
) -> None:
    history, chance = ServerHistory(server, seed), random.Random(seed)
    history.begin()
    source = SourceProcess(tmp_path / "source", etcd_server.url, server, sync_group_count_max=16)
    try:
        for _ in range(12):
            source.start()
            eventually(lambda: source.status().get("state") == "syncing", LONG_S)
            for _ in range(4):
                history.many(30)
                history.ddl()
            time.sleep(chance.random() / 4)
            source.kill()
        source.start()
        source.catch_up(server)
    finally:
        source.stop()
    check(etcd, etcd_server.url, pumps, server)
