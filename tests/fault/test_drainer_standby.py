"""Two Drainers on one downstream: one writes, the other stands by; whichever way the first ends,
the second continues within seconds, and they never stop each other."""

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from penstock.cluster.etcd import read_prefix
from penstock.cluster.node_registry import NodeKind, Registry
from penstock.cluster.records import RUNS, standbys
from penstock.ctl.commands import main as ctl
from penstock.local.etcd import EtcdServer
from tests.fault.test_drainer_ddl import Site
from tests.kit.servers.fix_drainer import DrainerFactory, DrainerProcess
from tests.kit.servers.fix_mariadb import MariadbServer
from tests.kit.servers.fix_replication import Replication
from tests.kit.wait import eventually
from tests.kit.workloads.random_writer import RandomWriter, in_sqlite

pytestmark = pytest.mark.fault

_BUSY_S = 60.0
"""What a loaded machine may take for what takes a quiet one a second or two."""


def _stands_by(drainer: DrainerProcess) -> None:
    drainer.wait_for("this Drainer stands by(.|\n)*1 in all", 180)


def _is_standby(etcd: Any, node_id: str) -> bool:
    return node_id in {each.node_id for each in standbys(etcd)}


def _continues(drainer: DrainerProcess, commit_ts: int) -> None:
    """Return once a Drainer has published a checkpoint from there on."""
    eventually(lambda: drainer.checkpoint_ts() >= commit_ts, _BUSY_S)


def test_a_standby_takes_over_from_a_killed_drainer_which_then_stands_by_itself(
    replication: Replication,
    drainer_factory: DrainerFactory,
    mariadb: MariadbServer,
    capsys: pytest.CaptureFixture[str],
) -> None:
    registry = Registry(replication.etcd)
    one = replication.start(mariadb, spark_tasks=1)
    # Another way to write the same server.
    other_url = mariadb.url.replace("127.0.0.1", "localhost") + "?params=lock_wait_timeout%3D99"
    two = drainer_factory(replication.url, other_url, spark_tasks=1, started=False)
    writer = replication.begin(seed=31)
    one.wait_until(writer.transact(20))
    two.spawn()
    _stands_by(two)
    two.addr = two.wait_for(r"status pages")[0] and standbys(replication.etcd)[0].host
    status = two.status()
    assert status.state == "standby"
    assert status.details["standby_for"] == one.node_id
    assert registry.get(NodeKind.DRAINER, two.node_id) is None, "Pumps would keep for it"
    assert ctl(["drainers", "--etcd-urls", replication.url]) == 0
    assert "standby" in capsys.readouterr().out

    one.wait_until(writer.transact(20))
    assert "stands by" not in one.log_text(), "the healthy one was disturbed"

    one.kill()
    _continues(two, writer.transact(5))
    eventually(lambda: one.state() == "offline", 60)  # No Pump keeps anything for it.

    one.spawn()
    _stands_by(one)
    two.wait_until(writer.transact(20))
    assert two.is_running
    replication.check()


@pytest.mark.slow
def test_a_hand_over_changes_who_writes_and_back_again(
    replication: Replication, capsys: pytest.CaptureFixture[str]
) -> None:
    one = replication.start(spark_tasks=1)
    two = replication.add_drainer(spark_tasks=1, started=False)
    hand_over = ["hand-over", "--etcd-urls", replication.url, "--node-id"]
    writer = replication.begin(seed=32)
    one.wait_until(writer.transact(10))
    assert ctl([*hand_over, one.node_id]) == 2
    assert "no standby waits" in capsys.readouterr().err
    two.spawn()
    _stands_by(two)
    for active, idle in ((one, two), (two, one)):
        assert ctl([*hand_over, active.node_id]) == 0
        assert idle.node_id in capsys.readouterr().out
        _continues(idle, writer.transact(10))
        eventually(partial(_is_standby, replication.etcd, active.node_id), _BUSY_S)
        assert active.is_running
    replication.check()
    assert ctl([*hand_over, two.node_id]) == 2
    assert f"is a standby of {one.node_id}" in capsys.readouterr().err


def _replaced_while_frozen(
    replication: Replication, seed: int
) -> tuple[DrainerProcess, DrainerProcess, RandomWriter]:
    """Return a Drainer that is frozen, the one that took its place, and a writer."""
    one = replication.start(spark_tasks=1)
    two = replication.add_drainer(spark_tasks=1, started=False)
    writer = replication.begin(seed=seed)
    one.wait_until(writer.transact(10))
    two.spawn()
    _stands_by(two)
    one.freeze()
    _continues(two, writer.transact(10))
    return one, two, writer


@pytest.mark.slow
@pytest.mark.parametrize("etcd_is_away", [False, True])
def test_a_frozen_drainer_is_replaced_and_stands_by_when_it_wakes(
    replication: Replication, etcd_server: EtcdServer, etcd_is_away: bool
) -> None:
    one, two, writer = _replaced_while_frozen(replication, seed=33)
    if etcd_is_away:
        etcd_server.freeze()
    one.thaw()
    if etcd_is_away:
        one.wait_for("cannot get who writes the downstream now", _BUSY_S)
        etcd_server.thaw()
    one.wait_for("this Drainer writes no more(.|\n)*this Drainer stands by", 60)
    two.wait_until(writer.transact(10))
    assert one.is_running
    replication.check()


@pytest.mark.fault(
    "etcd lets the leases of both Drainers go while one is being replaced",
    "the replaced one looks for the writer until it is listed again, and stands by",
    cases="1",
)
@pytest.mark.slow
def test_a_replaced_drainer_waits_for_a_writer_that_etcd_does_not_list_for_a_moment(
    replication: Replication,
) -> None:
    one, two, writer = _replaced_while_frozen(replication, seed=37)
    two.freeze()
    eventually(lambda: not read_prefix(replication.etcd, RUNS)[0], _BUSY_S)
    one.thaw()
    one.wait_for("etcd does not list the Drainer that writes the downstream", _BUSY_S)
    two.thaw()
    one.wait_for("this Drainer writes no more(.|\n)*this Drainer stands by", 60)
    two.wait_until(writer.transact(10))
    assert one.is_running
    replication.check()


@pytest.mark.fault(
    "a frozen Drainer is replaced, and its successor is killed before it thaws",
    "the first one finds in etcd that its cluster had that run, and takes over again; a run"
    " of another cluster stops it (PS-7103)",
    cases="1",
)
@pytest.mark.slow
def test_a_replaced_drainer_takes_over_again_if_its_successor_is_gone(
    replication: Replication,
) -> None:
    one, two, writer = _replaced_while_frozen(replication, seed=41)
    two.kill()
    eventually(lambda: not read_prefix(replication.etcd, RUNS)[0], _BUSY_S)
    one.thaw()
    one.wait_for("this Drainer writes no more", 60)
    writer.transact(10)
    replication.check(one)


def _said(site: Site, capsys: pytest.CaptureFixture[str], *words: object) -> Any:
    """Run `penstock drainer ddl` with the settings of the site's Drainer; return its answer."""
    capsys.readouterr()
    assert site.ddl_command(*words, "-o", "json") == 0
    return json.loads(capsys.readouterr().out)


def _parts(site: Site) -> int:
    site.ddl("CREATE DATABASE shop")
    return site.ddl("CREATE TABLE shop.parts (id INT PRIMARY KEY)")


@pytest.mark.slow
def test_an_override_counts_at_once_for_a_drainer_that_runs(
    replication: Replication, capsys: pytest.CaptureFixture[str]
) -> None:
    drainer = replication.start(spark_tasks=1)
    site = Site(replication.connect(), replication.url, drainer, replication.path)
    drainer.wait_until(_parts(site))
    drainer.freeze()  # So that the DDL is still to come when the operator decides.
    added_ts = site.ddl("ALTER TABLE shop.parts ADD COLUMN extra INT")
    _said(site, capsys, "skip", added_ts)
    drainer.thaw()
    drainer.wait_until(site.add("parts", id=1, extra=1))
    assert "the checkpoint is not as this Drainer read it" in drainer.log_text()
    assert drainer.is_running
    assert site.rows("parts") == [(1,)]


@pytest.mark.slow
def test_the_one_that_takes_over_continues_with_the_overrides_of_the_one_before(
    replication: Replication, capsys: pytest.CaptureFixture[str]
) -> None:
    one = replication.start(spark_tasks=1)
    two = replication.add_drainer(spark_tasks=1, started=False)
    site = Site(replication.connect(), replication.url, one, replication.path)
    other = Site(replication.client, replication.url, two, replication.path)
    one.wait_until(_parts(site))
    two.spawn()
    _stands_by(two)
    # What stops the first stops the second; a decision with either's settings is for both.
    site.by_hand('ALTER TABLE "shop.parts" ADD COLUMN extra INTEGER')
    stopped_ts = site.ddl("ALTER TABLE shop.parts ADD COLUMN extra INT")
    assert one.wait(_BUSY_S) == two.wait(_BUSY_S) == 2
    _said(site, capsys, "skip", stopped_ts)
    two.start()
    two.wait_until(site.add("parts", id=1, extra=1))
    later_ts = stopped_ts + (1 << 40)
    _said(site, capsys, "skip", later_ts)  # Of a DDL that is to come some day.
    two.wait_until(site.add("parts", id=2, extra=2))
    assert two.status().details["values_left_out"] == "2"
    found = _said(site, capsys, "list")
    assert [(o["commit_ts"], o["is_passed"]) for o in found["overrides"]] == [
        (stopped_ts, True), (later_ts, False),
    ]  # fmt: skip
    assert _said(other, capsys, "list")["overrides"] == found["overrides"]
    # Nothing is said any more by one that is killed: its standby has read what holds.
    one.spawn()
    _stands_by(one)
    two.kill()
    _continues(one, site.add("parts", id=3, extra=3))
    assert one.status().details["values_left_out"] == "3"
    assert _said(site, capsys, "list")["overrides"] == found["overrides"]
    assert site.rows("parts") == [(1, None), (2, None), (3, None)]


@pytest.mark.slow
def test_a_copy_of_a_downstream_is_not_waited_for(
    replication: Replication, drainer_factory: DrainerFactory, tmp_path: Path
) -> None:
    copy = tmp_path / "copy.db"
    one = replication.start(spark_tasks=1)
    writer = replication.begin(seed=34)
    one.wait_until(writer.transact(10))
    one.kill()
    for file in tmp_path.glob("down.db*"):
        copy.with_name(file.name.replace("down", "copy")).write_bytes(file.read_bytes())
    one.start()
    two = drainer_factory(replication.url, f"sqlite:///{copy}", spark_tasks=1, started=False)
    two.spawn()
    last_ts = writer.transact(10)
    one.wait_until(last_ts)
    two.wait_until(last_ts)
    assert in_sqlite(replication.path) == in_sqlite(copy) == writer.expected()
