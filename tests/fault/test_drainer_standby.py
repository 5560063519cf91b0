"""Two Drainers on one downstream: one writes, the other stands by; whichever way the first ends,
the second goes on within seconds, and they never stop each other."""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from deploy.local.etcd import EtcdServer
from penstock.drainer_runs import standbys
from penstock.registry import NodeKind, Registry
from pumpclient import PumpClient
from pumpclient.binlogctl import main as binlogctl
from tests.kit.fix_drainer import DrainerFactory, DrainerProcess
from tests.kit.fix_mariadb import MariadbServer
from tests.kit.shop import Shop, in_mariadb, in_sqlite
from tests.kit.wait import eventually

pytestmark = pytest.mark.fault

_BUSY_S = 60.0
"""What a loaded machine may take for what takes a quiet one a second or two."""


def _stands_by(drainer: DrainerProcess) -> None:
    drainer.wait_for("this Drainer stands by(.|\n)*1 in all", 180)


def _is_standby(etcd: Any, node_id: str) -> bool:
    return node_id in {each.node_id for each in standbys(etcd)}


def _goes_on(etcd: Any, drainer: DrainerProcess, commit_ts: int) -> float:
    """Return the seconds until a Drainer has published a checkpoint from there on."""
    began_s = time.monotonic()
    eventually(lambda: drainer.checkpoint_ts() >= commit_ts, _BUSY_S)
    return time.monotonic() - began_s


def test_a_standby_takes_over_from_a_killed_drainer_which_then_stands_by_itself(
    etcd: Any,
    etcd_server: EtcdServer,
    pump_factory: Any,
    drainer_factory: DrainerFactory,
    mariadb: MariadbServer,
    capsys: pytest.CaptureFixture[str],
) -> None:
    pump_factory(etcd_server.url)
    registry = Registry(etcd)
    one = drainer_factory(etcd_server.url, mariadb.url, spark_tasks=1)
    # Another way to write the same server.
    other_url = mariadb.url.replace("127.0.0.1", "localhost") + "?params=lock_wait_timeout%3D99"
    two = drainer_factory(etcd_server.url, other_url, spark_tasks=1, started=False)
    with PumpClient.connect(etcd_server.url) as client:
        shop = Shop(client, seed=31)
        shop.create()
        one.wait_until(shop.trade(20))
        two.spawn()
        _stands_by(two)
        two.addr = two.wait_for(r"status pages")[0] and standbys(etcd)[0].host
        status = two.status()
        assert status.state == "standby"
        assert status.details["standby_for"] == one.node_id
        assert registry.get(NodeKind.DRAINER, two.node_id) is None, "Pumps would keep for it"
        assert binlogctl(["drainers", "--etcd-urls", etcd_server.url]) == 0
        assert "standby" in capsys.readouterr().out

        one.wait_until(shop.trade(20))
        assert "stands by" not in one.log_text(), "the healthy one was disturbed"

        one.kill()
        took_s = _goes_on(etcd, two, shop.trade(5))
        assert took_s < _BUSY_S
        eventually(lambda: one.state() == "offline", 60)  # No Pump keeps anything for it.

        one.spawn()
        _stands_by(one)
        two.wait_until(shop.trade(20))
        assert two.is_running
        assert in_mariadb(mariadb) == shop.expected()


def test_a_hand_over_changes_who_writes_and_back_again(
    etcd: Any,
    etcd_server: EtcdServer,
    pump_factory: Any,
    drainer_factory: DrainerFactory,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = tmp_path / "down.db"
    pump_factory(etcd_server.url)
    drainers = [
        drainer_factory(etcd_server.url, f"sqlite:///{path}", spark_tasks=1, started=False)
        for _ in range(2)
    ]
    one, two = drainers
    hand_over = ["hand-over", "--etcd-urls", etcd_server.url, "--node-id"]
    with PumpClient.connect(etcd_server.url) as client:
        shop = Shop(client, seed=32)
        one.start()
        shop.create()
        one.wait_until(shop.trade(10))
        assert binlogctl([*hand_over, one.node_id]) == 2
        assert "no standby waits" in capsys.readouterr().err
        two.spawn()
        _stands_by(two)
        for active, idle in ((one, two), (two, one)):
            assert binlogctl([*hand_over, active.node_id]) == 0
            assert idle.node_id in capsys.readouterr().out
            _goes_on(etcd, idle, shop.trade(10))
            eventually(partial(_is_standby, etcd, active.node_id), _BUSY_S)
            assert active.is_running
        assert in_sqlite(path) == shop.expected()
        assert binlogctl([*hand_over, two.node_id]) == 2
        assert f"is a standby of {one.node_id}" in capsys.readouterr().err


def test_a_frozen_drainer_is_replaced_and_stands_by_when_it_wakes(
    etcd: Any,
    etcd_server: EtcdServer,
    pump_factory: Any,
    drainer_factory: DrainerFactory,
    tmp_path: Path,
) -> None:
    path = tmp_path / "down.db"
    pump_factory(etcd_server.url)
    one = drainer_factory(etcd_server.url, f"sqlite:///{path}", spark_tasks=1)
    two = drainer_factory(etcd_server.url, f"sqlite:///{path}", spark_tasks=1, started=False)
    with PumpClient.connect(etcd_server.url) as client:
        shop = Shop(client, seed=33)
        shop.create()
        one.wait_until(shop.trade(10))
        two.spawn()
        _stands_by(two)
        one.freeze()
        _goes_on(etcd, two, shop.trade(10))
        one.thaw()
        one.wait_for("this Drainer writes no more(.|\n)*this Drainer stands by", 60)
        two.wait_until(shop.trade(10))
        assert one.is_running
        assert in_sqlite(path) == shop.expected()


@pytest.mark.slow
def test_a_copy_of_a_downstream_is_not_waited_for(
    etcd: Any,
    etcd_server: EtcdServer,
    pump_factory: Any,
    drainer_factory: DrainerFactory,
    tmp_path: Path,
) -> None:
    path, copy = tmp_path / "down.db", tmp_path / "copy.db"
    pump_factory(etcd_server.url)
    one = drainer_factory(etcd_server.url, f"sqlite:///{path}", spark_tasks=1)
    with PumpClient.connect(etcd_server.url) as client:
        shop = Shop(client, seed=34)
        shop.create()
        one.wait_until(shop.trade(10))
        one.kill()
        for file in tmp_path.glob("down.db*"):
            copy.with_name(file.name.replace("down", "copy")).write_bytes(file.read_bytes())
        one.start()
        two = drainer_factory(etcd_server.url, f"sqlite:///{copy}", spark_tasks=1, started=False)
        two.spawn()
        last_ts = shop.trade(10)
        one.wait_until(last_ts)
        two.wait_until(last_ts)
        assert in_sqlite(path) == in_sqlite(copy) == shop.expected()
