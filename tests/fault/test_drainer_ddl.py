"""A DDL that stops the Drainer, and what an operator does about it; a schema history gone bad."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from deploy.local.etcd import EtcdServer
from drainer.__main__ import main
from penstock.history import JOBS
from pumpclient import PumpClient
from tests.kit.fix_drainer import DrainerFactory, DrainerProcess
from tests.kit.shop import Shop, in_sqlite

pytestmark = pytest.mark.fault

_END_S = 120.0
EMPTY_P0 = "ALTER TABLE shop.parts TRUNCATE PARTITION p0"


def stopped(drainer: DrainerProcess, words: str) -> None:
    """Wait until the Drainer has ended by itself with exit code 2 and these words."""
    assert drainer.wait(_END_S) == 2
    assert words in drainer.log_text()


def told(drainer: DrainerProcess, etcd_url: str, sink: str, *words: str) -> int:
    settings = ["--etcd-urls", etcd_url, "--data-dir", str(drainer.data_dir), "--sink", sink]
    return main(["ddl", *words, *settings])


def test_a_ddl_that_the_downstream_cannot_run_is_skipped_or_replaced_and_the_stream_goes_on(
    etcd: Any,
    etcd_server: EtcdServer,
    pump_factory: Any,
    drainer_factory: DrainerFactory,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = tmp_path / "down.db"
    sink, url = f"sqlite:///{path}", etcd_server.url
    pump_factory(url)
    drainer = drainer_factory(url, sink)
    with PumpClient.connect(url) as client:
        shop = Shop(client)
        shop.create()
        shop.execute_ddl(
            "CREATE TABLE shop.parts (id INT PRIMARY KEY) PARTITION BY HASH (id) PARTITIONS 2"
        )
        before_ts = shop.trade(20)
        skipped_ts = shop.execute_ddl(EMPTY_P0)
        shop.trade(20)
        replaced_ts = shop.execute_ddl(EMPTY_P0)
        last_ts = shop.trade(20)
        stopped(drainer, f"drainer ddl skip {skipped_ts}")
        assert drainer.checkpoint_ts() < skipped_ts

        assert told(drainer, url, sink, "list") == 0
        assert f"{skipped_ts}  shop  {EMPTY_P0}".replace("shop.parts", "`parts`") in (
            capsys.readouterr().out
        )
        assert told(drainer, url, sink, "skip", str(skipped_ts)) == 0
        drainer.start()
        stopped(drainer, f"drainer ddl skip {replaced_ts}")
        assert told(drainer, url, sink, "skip", str(before_ts)) == 2
        assert "behind the checkpoint" in capsys.readouterr().err
        replacement = "ALTER TABLE shop.item ADD COLUMN instead INT"
        assert told(drainer, url, sink, "replace", str(replaced_ts), replacement) == 0
        drainer.start()
        drainer.wait_until(last_ts)
        assert drainer.stop() == 0
        assert told(drainer, url, sink, "list") == 0
        listed = capsys.readouterr().out
        assert "0 DDLs come after it" in listed
        assert f"replaced by: {replacement}" in listed
    held, wanted = in_sqlite(path), shop.expected()
    assert held.keys() == wanted.keys()
    assert {name: len(rows) for name, rows in held.items()} == {
        name: len(rows) for name, rows in wanted.items()
    }


@pytest.mark.slow
def test_a_drainer_whose_history_was_wiped_refuses_to_start(
    etcd: Any,
    etcd_server: EtcdServer,
    pump_factory: Any,
    drainer_factory: DrainerFactory,
    tmp_path: Path,
) -> None:
    pump_factory(etcd_server.url)
    drainer = drainer_factory(etcd_server.url, f"sqlite:///{tmp_path / 'down.db'}")
    with PumpClient.connect(etcd_server.url) as client:
        shop = Shop(client)
        shop.create()
        drainer.wait_until(shop.trade(10))
    assert drainer.stop() == 0
    etcd.delete_prefix(JOBS)
    drainer.spawn()
    stopped(drainer, "was etcd wiped or put back")
