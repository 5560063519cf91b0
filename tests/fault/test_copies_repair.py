"""Bits flip in a log with copies: they are put back from the other disk, whoever meets them."""

import random
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from penstock.cluster.node_registry import NodeKind, NodeState, NodeStatus, Registry
from penstock.local.etcd import EtcdServer
from penstock.log.segment import BEGIN
from penstock.wire.binlog import Binlog
from pumpclient import PumpClient
from tests.kit.servers.fix_copies import WAIT_S, MakePump, Trio, lose_disk
from tests.kit.servers.fix_pump import PumpProcess, streamed
from tests.kit.servers.fix_replication import Nodes
from tests.kit.wait import eventually
from tests.kit.workloads.random_writer import RandomWriter

pytestmark = [pytest.mark.fault, pytest.mark.alone]

SEGMENT_BYTES_MAX = 60_000


@pytest.fixture
def small(pump_factory: MakePump, etcd: Any, etcd_server: EtcdServer) -> Trio:
    return Trio(
        pump_factory,
        etcd_server.url,
        etcd,
        storage_segment_bytes_max=SEGMENT_BYTES_MAX,
        fake_binlog_interval_s=60,
    )


class World:
    """The Trio after some transactions, and what each Pump has of them."""

    def __init__(self, trio: Trio, etcd: Any, etcd_url: str) -> None:
        self.trio = trio
        self.registry = Registry(etcd)
        # While it lacks everything, a log that was taken over is served and not drained.
        lacking = NodeStatus(node_id="drainer-1", host="127.0.0.1:1", state=NodeState.PAUSED)
        self.registry.put(NodeKind.DRAINER, lacking)
        self.cluster_id = self.registry.cluster_id()
        self.until_ts = 0
        self.expected: list[list[Binlog]] = []
        self.write(etcd_url)
        eventually(lambda: all(trio.holder(pump) for pump in trio.pumps), WAIT_S)

    def write(self, etcd_url: str) -> None:
        """Let transactions come, and take note of what each Pump streams then."""
        with PumpClient.connect(etcd_url) as client:
            writer = RandomWriter(client)
            if self.expected:
                writer.execute_ddl("DROP DATABASE shop")
            writer.create()
            for _ in range(12):
                writer.transact(20)
                writer.bulk(300)
            self.until_ts = client.session.oracle.get_ts()
        self.expected = [self.pulled(pump) for pump in self.trio.pumps]

    def pulled(self, pump: PumpProcess) -> list[Binlog]:
        return streamed(pump, self.cluster_id, self.until_ts)

    def until_served_elsewhere(self, pump: PumpProcess) -> None:
        """Wait until another Pump serves a log that was taken over."""

        def is_served() -> bool:
            status = self.registry.get(NodeKind.PUMP, pump.node_id)
            pump.addr = "" if status is None else status.host
            return status is not None and status.state is NodeState.CLOSING

        eventually(is_served, WAIT_S)

    def is_intact(self) -> bool:
        """Return whether every Pump streams what it did before."""
        return [self.pulled(pump) for pump in self.trio.pumps] == self.expected


@pytest.fixture
def world(small: Trio, etcd: Any, etcd_server: EtcdServer) -> World:
    return World(small, etcd, etcd_server.url)


def busiest(trio: Trio) -> PumpProcess:
    return max(trio.pumps, key=lambda pump: len(sealed(pump.data_dir / "log")))


def sealed(folder: Path) -> list[Path]:
    found = sorted(folder.glob("*.seg"))[:-1]
    return [path for path in found if path.stat().st_size > BEGIN]


def flip(path: Path, chance: random.Random, times: int = 3) -> None:
    """Flip some bits of a file, as a disk does, from the header on."""
    data = bytearray(path.read_bytes())
    for offset in chance.sample(range(len(data)), times):
        data[offset] ^= 1 << chance.randrange(8)
    with path.open("r+b") as file:
        file.write(data)


def copy_of(trio: Trio, pump: PumpProcess) -> Path:
    holder = trio.other(pump)
    return holder.data_dir / "copies" / pump.node_id / "log"


@pytest.mark.fault(
    "bits flip in sealed segments of a running primary; with it stopped, bits flip, a header"
    " and its frames are zeros, and a file is gone",
    "a pull gets what was there, the bytes are as before; it starts",
    cases="2",
)
@pytest.mark.thorough
def test_a_damaged_primary_serves_what_it_did_and_starts(world: World) -> None:
    pump = busiest(world.trio)
    paths = sealed(pump.data_dir / "log")
    assert len(paths) > 2
    before = [path.read_bytes() for path in paths]
    for path in paths:
        flip(path, random.Random(path.name))
    assert world.is_intact()
    mended = re.findall(r"(\d+\.seg): \d+ damaged bytes were put back", pump.log_text())
    assert len(mended) > 1
    for path, was in zip(paths, before, strict=True):
        assert path.name not in mended or path.read_bytes() == was
    pump.stop()
    flip(paths[0], random.Random(1), times=40)
    with paths[1].open("r+b") as file:  # Its header, and its first frame with it.
        file.write(bytes(200))
    paths[2].unlink()
    pump.spawn()
    world.trio.until_online(pump)
    assert "damaged bytes were put back from another disk" in pump.log_text()
    assert world.is_intact()


def scrubbed(pump: PumpProcess, etcd_url: str) -> tuple[int, str]:
    """Run `penstock ctl scrub --wait`, and return its exit code and all that it printed."""
    command = [sys.executable, "-m", "penstock.ctl.commands", "scrub", pump.node_id, "--wait"]
    done = subprocess.run(
        [*command, "--etcd-urls", etcd_url], capture_output=True, text=True, timeout=120
    )
    return done.returncode, done.stdout + done.stderr


@pytest.mark.fault(
    "bits flip in each segment of a log, every second time in its copy",
    "a scrub of each Pump mends both, byte for byte; then the primary's disk is deleted, and"
    " all is there",
    cases="1",
)
def test_a_scrub_mends_primary_and_copy_and_then_the_primary_may_be_lost(
    world: World, etcd_server: EtcdServer
) -> None:
    trio = world.trio
    pump = busiest(trio)
    own, other = pump.data_dir / "log", copy_of(trio, pump)
    holder = trio.other(pump)
    paths = sealed(own)
    before = {path.name: path.read_bytes() for path in paths}
    for number, path in enumerate(paths):  # Each is damaged on one of both disks only.
        flip((own, other)[number % 2] / path.name, random.Random(number), times=5)
    for each, folder in ((pump, own), (holder, other)):
        code, said = scrubbed(each, etcd_server.url)
        assert code == 0, said
        assert "0 places are damaged still" in said
        found = {name: (folder / name).read_bytes()[: len(data)] for name, data in before.items()}
        assert found == before
        assert int(each.status().details["mended"].split()[0]) > 0
    expected = world.expected[trio.pumps.index(pump)]
    lose_disk(pump)
    trio.until_moved(pump)
    taken_over = holder.wait_for(rf"log of pump {pump.node_id} is taken over")
    assert taken_over
    world.until_served_elsewhere(pump)
    assert world.pulled(pump) == expected


@pytest.mark.fault(
    "the same bit flips on both disks",
    "named, alerted, nothing is changed; mended once one disk has it whole again",
    cases="0 / 1",
)
@pytest.mark.slow
def test_what_is_damaged_on_both_disks_is_named_and_nothing_is_changed(
    world: World, etcd_server: EtcdServer
) -> None:
    trio = world.trio
    pump = busiest(trio)
    own, other = pump.data_dir / "log", copy_of(trio, pump)
    path = sealed(own)[1]
    both = [path, other / path.name]
    for each in both:
        flip(each, random.Random(5), times=1)
    damaged = [each.read_bytes() for each in both]
    code, said = scrubbed(pump, etcd_server.url)
    assert code == 2, said
    assert "PS-3001" in said
    assert str(path) in said
    assert [each.read_bytes() for each in both] == damaged
    assert pump.status().details["damaged_places"] == "1"
    with path.open("r+b") as file:  # An operator has found the bytes elsewhere.
        file.write(damaged[0])
    flip(path, random.Random(5), times=1)
    code, said = scrubbed(pump, etcd_server.url)
    assert code == 0, said
    assert "damaged_places" not in pump.status().details


@pytest.mark.fault(
    "a header of a copy is zeros when its Pump starts",
    "mended before it is opened, and stays on the list",
    cases="0 / 1",
)
@pytest.mark.slow
def test_a_copy_that_cannot_be_opened_is_mended_and_stays_on_the_list(world: World) -> None:
    trio = world.trio
    pump = busiest(trio)
    holder = trio.other(pump)
    folder = copy_of(trio, pump)
    name = sealed(folder)[1].name
    whole = (pump.data_dir / "log" / name).read_bytes()
    holder.stop()
    with (folder / name).open("r+b") as file:
        file.write(bytes(100))
    holder.spawn()
    trio.until_online(holder)
    eventually(lambda: (folder / name).read_bytes()[: len(whole)] == whole, WAIT_S)
    assert "damaged bytes were put back from another disk" in holder.log_text()
    trio.until_whole()


@pytest.mark.fault(
    "bits flip in an old segment of a primary while another disk is given its log",
    "the new copy takes no damaged segment; a disk that is off the list by now mends it",
    cases="0 / 1",
)
@pytest.mark.slow
def test_a_damaged_primary_is_mended_by_a_disk_off_the_list_before_another_copy_has_it(
    world: World,
) -> None:
    trio = world.trio
    pump = busiest(trio)
    holder = trio.other(pump)
    path = sealed(pump.data_dir / "log")[0]
    was = path.read_bytes()
    holder.freeze()
    flip(path, random.Random(3))
    eventually(lambda: trio.holder(pump) not in (None, holder), WAIT_S)
    pump.wait_for("PS-3302", WAIT_S)  # The new copy takes no older segment that is damaged.
    holder.thaw()

    def is_whole() -> bool:
        entry = trio.entry(pump)
        return any(copy.first <= entry.needed for copy in entry.replicas)

    eventually(is_whole, 2 * WAIT_S)
    assert path.read_bytes() == was
    assert (copy_of(trio, pump) / path.name).read_bytes()[: len(was)] == was


@pytest.mark.fault(
    "a log and its copy are damaged in different segments, so that neither can be opened, and"
    " all Pumps start",
    "the log is mended from that copy, which is mended or replaced",
    cases="0 / 1",
)
@pytest.mark.slow
def test_a_log_and_its_copy_neither_of_which_can_be_opened_are_whole_again(world: World) -> None:
    trio = world.trio
    pump = busiest(trio)
    own, other = pump.data_dir / "log", copy_of(trio, pump)
    first, second, *_ = sealed(own)
    before = [path.read_bytes() for path in (first, second)]
    for each in trio.pumps:
        each.stop()
    for path in (first, other / second.name):  # Each is whole on one disk only.
        with path.open("r+b") as file:
            file.write(bytes(300))
    for each in trio.pumps:
        each.spawn()
    for each in trio.pumps:
        trio.until_online(each)
    assert world.is_intact()
    trio.until_whole()  # On the same disk, or on another one that was quicker.
    for folder in (own, copy_of(trio, pump)):
        for path, data in zip((first, second), before, strict=True):
            assert (folder / path.name).read_bytes()[: len(data)] == data


def garble(path: Path) -> bytes:
    """Overwrite a whole segment with bytes that nothing in it proves; return them."""
    data = random.Random(path.name).randbytes(path.stat().st_size)
    with path.open("r+b") as file:
        file.write(data)
    return data


@pytest.mark.fault(
    "the last segment of a copy is random bytes when its Pump starts; there are two Pumps",
    "the copy begins again within seconds, its files are set aside; then the primary's disk"
    " is deleted, and all is there",
    cases="1",
)
@pytest.mark.thorough
def test_a_copy_that_no_disk_can_mend_begins_again_and_then_the_primary_may_be_lost(
    pump_factory: MakePump, etcd: Any, etcd_server: EtcdServer
) -> None:
    settings = {"storage_segment_bytes_max": SEGMENT_BYTES_MAX, "fake_binlog_interval_s": 60}
    duo = Trio(pump_factory, etcd_server.url, etcd, number=2, **settings)
    world = World(duo, etcd, etcd_server.url)
    pump = busiest(duo)
    holder = duo.other(pump)
    last = sorted(copy_of(duo, pump).glob("*.seg"))[-1]
    holder.stop()
    garbled = garble(last)
    holder.spawn()
    holder.wait_for(r"this copy begins again; its \d+ files, \d+ bytes, are set aside", WAIT_S)
    for each in duo.pumps:
        duo.until_online(each)
    duo.until_whole()
    assert (last.parents[1] / "damaged" / last.name).read_bytes() == garbled
    assert "set aside in" in holder.status().details[f"kept_replica {pump.node_id} damaged"]
    world.write(etcd_server.url)  # Nothing is acknowledged with less than two copies.
    expected = world.expected[duo.pumps.index(pump)]
    assert len(expected) > 12
    duo.add()
    lose_disk(pump)
    duo.until_moved(pump)
    world.until_served_elsewhere(pump)
    assert world.pulled(pump) == expected


@pytest.mark.fault(
    "a bit flips in a log without copies", "a scrub names file and offset", cases="1"
)
@pytest.mark.thorough
def test_a_pump_without_copies_scrubs_and_names_what_is_damaged(nodes: Nodes) -> None:
    pump = nodes.add_pump(storage_segment_bytes_max=SEGMENT_BYTES_MAX)
    with PumpClient.connect(nodes.url) as client:
        writer = RandomWriter(client)
        writer.create()
        for _ in range(4):
            writer.bulk(500)
    code, said = scrubbed(pump, nodes.url)
    assert code == 0, said
    path = sealed(pump.data_dir / "log")[0]
    with path.open("r+b") as file:
        file.seek(BEGIN + 1)
        file.write(b"?")
    code, said = scrubbed(pump, nodes.url)
    assert code == 2, said
    assert f"{path} offset {BEGIN}" in said
    assert f"{path}, offset {BEGIN}: not a frame header" in pump.log_text()
