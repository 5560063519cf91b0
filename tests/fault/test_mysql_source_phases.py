"""A source is killed at every step of its two phases: each transaction comes downstream once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from penstock.local.etcd import EtcdServer
from pumpclient import PumpClient
from tests.kit.servers.binlog_server import MARIADB, AnyBinlogServer, module_server, on_servers
from tests.kit.servers.fix_pump import PumpProcess
from tests.kit.servers.fix_source import (
    Downstream,
    SourceProcess,
    SourceRig,
    bulk,
    cleared,
    rows_of,
)
from tests.kit.workloads.server_writers import HISTORY_TABLES, ServerHistory

pytestmark = pytest.mark.fault

USUAL = (
    "source.after_prewrites=kill@1",
    "source.within_commits=kill@1",
    "source.after_journal=kill@3",
)
ALL = (
    *USUAL,
    *(f"source.{when}_journal=kill@{line}" for when in ("before", "after") for line in (1, 2, 3)),
    "source.before_prewrites=kill@1",
    "source.before_commits=kill@1",
    "source.after_commits=kill@1",
)
"""A group has three lines in the journal: it begins, it is decided, it is done."""
WITHIN = ("source.within_commits=kill@3", "source.within_commits=kill@5")
STEPS = [USUAL, pytest.param(ALL, marks=pytest.mark.slow)]


class PumpWithoutDecided(PumpProcess):
    """A Pump that has no method for decided transactions."""

    module = "tests.kit.servers.pump_without_decided"


server = module_server(on_servers(MARIADB))


@pytest.mark.fault(
    "`penstock source` is killed around the Prewrite, the Commit and each line of the journal of a"
    " transaction that goes in chunks",
    "the journal says whether it is committed or rolled back; each transaction downstream once, in"
    " the server's order",
    cases="3 / 12",
)
@pytest.mark.parametrize("points", STEPS)
def test_a_source_killed_at_every_step_of_a_large_transaction_brings_it_once(
    points: tuple[str, ...], server: AnyBinlogServer, rig: SourceRig
) -> None:
    source = rig.make(cleared(server))
    for n, point in enumerate(points):
        server.insert(3, first=n * 10_000)
        bulk(server, 5000, n * 10_000 + 100, 1000)
        server.run(f"UPDATE shop.t SET v = 'after {n}' WHERE id = {n * 10_000}")
        source.is_killed_at(point)
    source.start()
    source.finish(server)
    found = rig.check(server)
    assert found.repeated > 0, "no group was both committed and read again"


@pytest.mark.fault(
    "`penstock source` is killed around and within the Prewrites, the Commits and each line of the"
    " journal of a group, on Pumps without WriteDecided",
    "the journal says whether the group is committed or rolled back; each transaction downstream"
    " once, in the server's order",
    cases="5 / 14",
)
@pytest.mark.parametrize(
    "points", [(*USUAL, *WITHIN), pytest.param((*ALL, *WITHIN), marks=pytest.mark.slow)]
)
def test_a_source_killed_at_every_step_on_pumps_without_decided_brings_each_transaction_once(
    points: tuple[str, ...],
    etcd: Any,
    etcd_server: EtcdServer,
    pumps_without_decided: Callable[[int], list[PumpWithoutDecided]],
    server: AnyBinlogServer,
    tmp_path: Path,
) -> None:
    server.drop_user_databases()
    server.reset_binlog()
    history, pumps = ServerHistory(server, 3), pumps_without_decided(2)
    history.begin()
    source = SourceProcess(tmp_path / "source", etcd_server.url, server, sync_group_count_max=8)
    try:
        for point in points:
            history.many(30)
            source.is_killed_at(point)
            history.ddl()
        source.start()
        source.finish(server)
        assert "transactions take two phases" in source.text()
    finally:
        source.stop()
    with PumpClient.connect(etcd_server.url) as client:
        until_ts = client.session.oracle.get_ts()
    found = Downstream(etcd, pumps, until_ts)
    for table in HISTORY_TABLES:
        assert found.rows(table) == rows_of(server, table)
    assert found.origins == sorted(set(found.origins))
    assert found.repeated > 0, "no group was both committed and read again"


@pytest.fixture
def pumps_without_decided(etcd_server: EtcdServer, tmp_path: Path) -> Any:
    """Start so many of them; they are killed after the test."""
    made: list[PumpWithoutDecided] = []

    def make(count: int) -> list[PumpWithoutDecided]:
        for number in range(1, count + 1):
            name = f"old-{number}"
            settings = {"etcd_urls": etcd_server.url}
            made.append(PumpWithoutDecided(tmp_path / name, name, settings).start())
        return made

    yield make
    for pump in made:
        pump.kill_all()
