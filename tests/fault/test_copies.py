"""Pumps with copies lose disks, freeze and come back; each acknowledged transaction is there once.

A Pump that a test declares dead is killed with -9 and its data folder deleted. The judge is a
reader of the stream (`tests/kit/workloads/judged_stream.py`).
"""

import itertools
import time
from pathlib import Path
from typing import Any

import pytest

from penstock.cluster.log_entry import LogEntries
from penstock.local.etcd import EtcdServer
from tests.kit.crash.disks import Volume, small_disk
from tests.kit.servers.fix_copies import WAIT_S, MakePump, Trio, lose_disk
from tests.kit.servers.fix_pump import PumpProcess
from tests.kit.servers.fix_replication import Nodes
from tests.kit.wait import eventually, present
from tests.kit.workloads.judged_stream import judged_stream

pytestmark = [pytest.mark.fault, pytest.mark.alone]

LOAD_S = 1.0


@pytest.mark.fault(
    "a Pump is killed under load and its disk deleted; in turn each of three, twice",
    "the Pump with the copy takes over; the lost one comes back empty, under its name",
    cases="1 / 7",
)
def test_a_pump_whose_disk_is_deleted_under_load_loses_nothing_and_comes_back_empty(
    trio: Trio, etcd_server: EtcdServer, tmp_path: Path
) -> None:
    lost = trio.pumps[0]
    with judged_stream(etcd_server.url, tmp_path / "audit.db") as writer:
        eventually(lambda: len(writer.items) > 100)
        lose_disk(lost)
        trio.until_moved(lost)
        lost.spawn()
        trio.until_online(lost)
        time.sleep(LOAD_S)
    assert (lost.data_dir / "displaced").is_dir()


@pytest.mark.fault(
    "a primary freezes, and runs on after another one has its log",
    "it acknowledges nothing more and ends (PS-3305)",
    cases="0 / 1",
)
@pytest.mark.slow
def test_a_pump_that_freezes_finds_out_that_it_is_deposed_and_acknowledges_nothing_more(
    trio: Trio, etcd_server: EtcdServer, tmp_path: Path
) -> None:
    frozen = trio.pumps[1]
    with judged_stream(etcd_server.url, tmp_path / "audit.db", seed=2):
        time.sleep(LOAD_S)
        frozen.freeze()
        trio.until_moved(frozen)
        time.sleep(LOAD_S)
        frozen.thaw()
        eventually(lambda: not frozen.is_running, WAIT_S)
        frozen.spawn()
        trio.until_online(frozen)
        time.sleep(LOAD_S)
    assert "PS-3305" in frozen.log.read_text()


@pytest.mark.fault(
    "a copy freezes",
    "put off the list, another one joins; later it takes part again",
    cases="0 / 1",
)
@pytest.mark.slow
def test_a_copy_that_freezes_is_put_off_the_list_and_takes_part_again_later(
    trio: Trio, etcd_server: EtcdServer, tmp_path: Path
) -> None:
    pump = trio.pumps[0]
    frozen = trio.other(pump)
    with judged_stream(etcd_server.url, tmp_path / "audit.db", seed=3):
        time.sleep(LOAD_S)
        frozen.freeze()
        eventually(lambda: trio.holder(pump) not in (None, frozen), WAIT_S)
        time.sleep(LOAD_S)
        frozen.thaw()
        time.sleep(3 * LOAD_S)
        lose_disk(pump)
        trio.until_moved(pump)
        pump.spawn()
        trio.until_online(pump)


@pytest.mark.fault(
    "a disk with a copy is full",
    "put off the list although its Pump answers, another one joins; later it takes part again",
    cases="0 / 1",
)
@pytest.mark.slow
def test_a_copy_on_a_full_disk_is_put_off_the_list_and_takes_part_again_later(
    pump_factory: MakePump, etcd: Any, etcd_server: EtcdServer, tmp_path: Path
) -> None:
    numbers = itertools.count(1)
    with small_disk(tmp_path / "small", 128 << 20) as small:

        def make(url: str, **settings: Any) -> PumpProcess:
            on_small = {"data_dir": small / "data"} if next(numbers) == 2 else {}
            return pump_factory(url, **on_small, **settings)

        trio, volume = Trio(make, etcd_server.url, etcd), Volume(small)
        full = trio.pumps[1]
        copied = next(each for each in trio.pumps if trio.holder(each) is full)
        with judged_stream(etcd_server.url, tmp_path / "audit.db", seed=8):
            time.sleep(LOAD_S)
            volume.fill()
            eventually(lambda: trio.holder(copied) not in (None, full), WAIT_S)
            time.sleep(LOAD_S)
            volume.free()
            trio.until_whole()
            time.sleep(LOAD_S)


@pytest.mark.slow
def test_disks_are_lost_one_after_the_other_and_nothing_with_them(
    trio: Trio, etcd_server: EtcdServer, tmp_path: Path
) -> None:
    with judged_stream(etcd_server.url, tmp_path / "audit.db", seed=4):
        for pump in [*trio.pumps, *trio.pumps]:
            time.sleep(LOAD_S)
            lose_disk(pump)
            trio.until_moved(pump)
            pump.spawn()
            for each in trio.pumps:
                trio.until_online(each)


@pytest.mark.fault(
    "a Pump is restarted at once; is paused for long", "it keeps its log", cases="0 / 2"
)
@pytest.mark.slow
def test_a_pump_that_is_restarted_at_once_keeps_its_log(
    trio: Trio, etcd_server: EtcdServer, tmp_path: Path
) -> None:
    pump = trio.pumps[2]
    epoch = trio.entry(pump).epoch
    with judged_stream(etcd_server.url, tmp_path / "audit.db", seed=5):
        time.sleep(LOAD_S)
        pump.restart()
        time.sleep(LOAD_S)
    assert trio.entry(pump).primary.pump == pump.node_id
    assert trio.entry(pump).epoch > epoch


@pytest.mark.fault(
    "a Pump is paused and comes back without its disk",
    "the Pump with the copy takes over, and the one that came back begins again",
    cases="0 / 1",
)
@pytest.mark.slow
def test_a_pump_that_was_paused_and_comes_back_without_its_disk_gets_its_log_from_the_copy(
    trio: Trio, etcd_server: EtcdServer, tmp_path: Path
) -> None:
    pump = trio.pumps[0]
    with judged_stream(etcd_server.url, tmp_path / "audit.db", seed=9) as writer:
        eventually(lambda: len(writer.items) > 100)
        pump.stop()
        lose_disk(pump)
        pump.spawn()
        trio.until_moved(pump)
        trio.until_online(pump)
        time.sleep(LOAD_S)
    assert (pump.data_dir / "displaced").is_dir()


@pytest.mark.fault(
    "there are too few Pumps, or none in another zone",
    "new transactions are refused, and it says why",
    cases="1 / 2",
)
@pytest.mark.thorough
def test_more_copies_than_pumps_refuse_new_transactions_and_say_why(nodes: Nodes) -> None:
    alone = nodes.add_pump(waiting=False, copies=2)
    alone.wait_for("not serving yet: 1 of 2 copies of this Pump's log are there")
    assert "there is no other Pump whose disk could take one" in alone.log_text()
    lose_disk(alone)  # No one has written to it: it begins again although no Drainer knows of it.
    alone.spawn()
    other = nodes.add_pump(waiting=False, copies=2)
    for pump in (alone, other):
        pump.wait_for(r"pump \S+ is online at")


@pytest.mark.slow
def test_copies_that_must_be_apart_wait_for_a_pump_in_another_zone(nodes: Nodes) -> None:
    settings = {"waiting": False, "copies": 2, "copies_apart": "zone"}
    near = [nodes.add_pump(labels="zone=a", **settings) for _ in range(2)]
    near[0].wait_for("there is no other Pump with another zone whose disk could take one")
    far = nodes.add_pump(labels="zone=b", **settings)
    for pump in (*near, far):
        pump.wait_for(r"pump \S+ is online at")
    entries = LogEntries(nodes.etcd)
    for pump in near:
        found = present(entries.read(pump.node_id))
        assert [copy.pump for copy in found[0].replicas] == [far.node_id]


@pytest.mark.fault(
    "a primary freezes until its log is to be taken over, which then comes too late",
    "the Pump on the copy ends, and the copy is followed again",
    cases="0 / 1",
)
@pytest.mark.slow
def test_a_pump_on_a_copy_that_comes_too_late_ends_and_the_copy_is_followed_again(
    trio: Trio, etcd_server: EtcdServer, tmp_path: Path
) -> None:
    pump = trio.pumps[0]
    with judged_stream(etcd_server.url, tmp_path / "audit.db", seed=6):
        for each in trio.pumps[1:]:
            each.kill()
            each.spawn("pump.open.log_opened=sleep(4)")
            trio.until_whole()
        late = trio.other(pump)
        pump.freeze()
        late.wait_for("the log of pump pump-1 is taken over", WAIT_S)
        pump.thaw()
        late.wait_for("nothing is taken over: the log of pump pump-1", WAIT_S)
        late.wait_for("the Pump on the copy of pump pump-1 has ended with code 0", WAIT_S)
        trio.until_whole()


@pytest.mark.fault(
    "a Pump that begins again dies after it was listed, and with half of its files set aside",
    "what it had before never counts as its new log",
    cases="0 / 3",
)
@pytest.mark.slow
@pytest.mark.parametrize("fault", ["listed_again=kill", "set_aside=kill@1", "set_aside=kill@2"])
def test_a_pump_that_dies_while_it_begins_again_does_not_come_back_with_its_former_log(
    trio: Trio, etcd_server: EtcdServer, tmp_path: Path, fault: str
) -> None:
    pump = trio.pumps[0]
    with judged_stream(etcd_server.url, tmp_path / "audit.db", seed=7):
        time.sleep(LOAD_S)
        pump.kill()
        trio.until_moved(pump)
        pump.spawn(f"copies.{fault}")
        eventually(lambda: not pump.is_running, WAIT_S)
        pump.spawn()
        trio.until_whole()
        time.sleep(LOAD_S)
    assert "begins again" in pump.log_text()
