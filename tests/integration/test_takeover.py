"""When a Pump with a copy takes over, and when it leaves a log alone.

The Pump that is started is a small program here: what it is does not matter to who starts it.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, closing, contextmanager
from dataclasses import replace
from pathlib import Path
from subprocess import PIPE, Popen, check_output

import psutil
import pytest
from google_crc32c import value
from psutil import Process

from penstock.cluster.etcd import connect
from penstock.cluster.log_entry import Copy, LogEntry, Mark
from penstock.cluster.node_registry import NodeState
from penstock.local.etcd import EtcdServer
from penstock.log.segment import BEGIN, Head
from penstock.log.segments import Place
from penstock.node import command
from pump.replication import failover
from pump.replication.failover import Failovers, StandbyProcess, arguments_for
from pump.replication.peers import Peers
from pump.replication.protocol.messages import Append, Ask, Have, Name, ReplicaState, SignOfLife
from pump.replication.replicas import Replicas
from tests.kit.wait import present, until

CLUSTER, OWN, DEAD = 7, Copy("pump-3", "3" * 32), Copy("pump-1", "1" * 32)
NAME = Name(CLUSTER, "pump-1", OWN.disk)
LISTED = LogEntry(epoch=4, primary=DEAD, replicas=(OWN,))
AFTER_S = 0.05
_WAITS = [sys.executable, "-c", "import time; time.sleep(60)"]
_ENDS = [sys.executable, "-c", ""]


class SeenPeers(Peers):
    """What a rig says of the log, its Pump and the disks."""

    def __init__(self, rig: Rig) -> None:
        super().__init__(CLUSTER, OWN)
        self._rig = rig

    def state(self, node_id: str) -> NodeState | None:
        self._rig.asked += 1
        self._rig.meanwhile()
        return self._rig.state

    @property
    def draining(self) -> set[str]:
        return self._rig.draining


class Rig:
    def __init__(self, folder: Path) -> None:
        self.copies = Replicas(folder, node_id="pump-3", cluster_id=CLUSTER, disk=OWN.disk)
        self.peers = SeenPeers(self)
        self.entry = LISTED
        self.state: NodeState | None = NodeState.ONLINE
        self.command = _WAITS
        self.asked = 0
        self.meanwhile: Callable[[], object] = lambda: None
        """What happens before etcd has answered."""
        self.draining: set[str] = set()
        self.copy_begins: int | None = 0
        self.failovers = Failovers(
            self.copies,
            self.peers,
            lambda node_id, folder: asyncio.create_subprocess_exec(*self.command),
            after_s=AFTER_S,
        )

    @property
    def entry(self) -> LogEntry | None:
        return self.peers.logs.get("pump-1")

    @entry.setter
    def entry(self, entry: LogEntry | None) -> None:
        self.peers.logs = {} if entry is None else {"pump-1": entry}


async def given(copies: Replicas, first: int | None) -> None:
    """Give a copy an empty segment, if any, as the primary does in whose epoch it is."""
    standing = await copies.follow(NAME, Ask(4), b"")
    assert standing == ReplicaState(4, ())
    if first is not None:
        checked = Head(first, 0, 0, 4).encoded()
        head = checked + value(checked).to_bytes(4, "little")
        request = Append(4, first, 4, 0, BEGIN, None, (), 0)
        assert await copies.follow(NAME, request, head) == Have(4, Place(first, BEGIN), first)


@asynccontextmanager
async def running(folder: Path, **facts: object) -> AsyncIterator[Rig]:
    """A rig that watches over the copy of a log that it was given once."""
    rig = Rig(folder)
    for name, fact in facts.items():
        setattr(rig, name, fact)
    await given(rig.copies, rig.copy_begins)
    watching = asyncio.create_task(rig.failovers.run())
    try:
        yield rig
    finally:
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
        await rig.failovers.close()
        await rig.copies.close()


async def left_alone(folder: Path, **facts: object) -> None:
    async with running(folder, **facts) as rig:
        await until(lambda: rig.asked > 0)
        await asyncio.sleep(4 * AFTER_S)
        assert rig.failovers.running == []


async def test_a_silent_primary_s_log_is_taken_over_by_who_is_listed(tmp_path: Path) -> None:
    async with running(tmp_path) as rig:
        await until(lambda: rig.failovers.running == ["pump-1"])
        assert not rig.copies.is_held("pump-1")


@pytest.mark.fault(
    "the folder of a Pump with a copy is replaced by the one of a backup, and the primary is away"
)
async def test_a_copy_that_was_put_back_to_before_the_mark_takes_nothing_over(
    tmp_path: Path,
) -> None:
    marked = replace(LISTED, mark=Mark(0, BEGIN + 1, 4))
    await left_alone(tmp_path, entry=marked)
    await left_alone(tmp_path / "primary", entry=marked.claimed(OWN))


async def test_a_disk_that_is_the_primary_already_has_its_pump_started_again(
    tmp_path: Path,
) -> None:
    async with running(tmp_path, entry=LISTED.claimed(OWN), state=NodeState.PAUSED) as rig:
        await until(lambda: rig.failovers.running == ["pump-1"])


async def test_a_pump_that_stopped_in_order_is_waited_for(tmp_path: Path) -> None:
    await left_alone(tmp_path, state=NodeState.PAUSED)


@pytest.mark.main_case("paused")
@pytest.mark.parametrize("state", [NodeState.PAUSED, NodeState.OFFLINE])
async def test_a_copy_that_is_newer_than_a_restored_etcd_is_taken_over_whatever_the_state_there(
    tmp_path: Path, state: NodeState
) -> None:
    async with running(tmp_path, entry=LogEntry(epoch=3, primary=DEAD), state=state) as rig:
        await until(lambda: rig.failovers.running == ["pump-1"])


async def test_a_copy_that_is_not_listed_or_not_whole_takes_nothing_over(tmp_path: Path) -> None:
    await left_alone(tmp_path / "other", entry=LogEntry(epoch=4, primary=DEAD))
    half = Copy(OWN.pump, OWN.disk, first=2)
    await left_alone(tmp_path / "half", entry=LogEntry(epoch=4, primary=DEAD, replicas=(half,)))


@pytest.mark.main_case("None")
@pytest.mark.parametrize("begins", [None, 3])
async def test_a_copy_that_lacks_what_the_list_says_takes_nothing_over_and_is_followed_again(
    tmp_path: Path, begins: int | None, caplog: pytest.LogCaptureFixture
) -> None:
    async with running(tmp_path, copy_begins=begins, entry=replace(LISTED, needed=2)) as rig:
        await until(lambda: "cannot take over" in caplog.text)
        assert rig.failovers.running == []
        await until(lambda: rig.copies.is_held("pump-1"))
        await rig.copies.follow(NAME, Ask(5), b"")


@pytest.mark.thorough
async def test_a_copy_whose_files_were_deleted_by_hand_takes_nothing_over(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with running(tmp_path, entry=None) as rig:
        shutil.rmtree(rig.copies.folder("pump-1") / "log")
        rig.entry = LISTED
        await until(lambda: "cannot take over" in caplog.text)
        assert rig.failovers.running == []


async def test_a_primary_that_gives_a_sign_of_life_keeps_its_log(tmp_path: Path) -> None:
    async with running(tmp_path) as rig:
        for _ in range(30):
            await rig.copies.follow(NAME, SignOfLife(4), b"")
            await asyncio.sleep(AFTER_S / 5)
            assert rig.failovers.running == []


@pytest.mark.main_case("online")
@pytest.mark.parametrize("state", [NodeState.ONLINE, NodeState.OFFLINE])
async def test_a_primary_that_is_back_before_etcd_answers_keeps_its_log_and_its_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, state: NodeState
) -> None:
    monkeypatch.setattr(failover, "_UNNEEDED_S", 2 * AFTER_S)
    monkeypatch.setattr(failover, "_STATE_EVERY_S", 0.0)

    async with running(tmp_path, state=state) as rig:
        rig.meanwhile = lambda: rig.copies._heard(rig.copies._copies["pump-1"], 4)
        await until(lambda: rig.asked > 1)
        assert (rig.failovers.running, rig.copies.names()) == ([], ["pump-1"])


async def test_a_process_that_was_stopped_itself_takes_no_primary_for_silent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(failover, "_LATE_S", -1.0)  # Each look comes late.
    monkeypatch.setattr(failover, "_TICK_S", AFTER_S / 5)

    async with running(tmp_path) as rig:
        await asyncio.sleep(10 * AFTER_S)
        assert (rig.failovers.running, rig.asked) == ([], 0)


@pytest.mark.thorough
async def test_a_log_that_is_followed_again_has_its_time_before_it_is_taken_over_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(failover, "_AGAIN_S", 0.0)

    async with running(tmp_path, command=_ENDS) as rig:
        await until(lambda: rig.failovers.running == ["pump-1"])
        rig.failovers._after_s = 60.0
        await until(lambda: not rig.failovers.running)
        await asyncio.sleep(0.5)
        assert rig.failovers.running == []


@pytest.mark.thorough
async def test_a_disk_that_leaves_takes_nothing_over_where_another_copy_can(tmp_path: Path) -> None:
    other = Copy("pump-4", "4" * 32)
    listed = LogEntry(epoch=4, primary=DEAD, replicas=(OWN, other))

    async with running(tmp_path / "other", entry=listed, draining={OWN.disk}) as rig:
        await asyncio.sleep(12 * AFTER_S)
        assert rig.failovers.running == []

    async with running(tmp_path / "alone", draining={OWN.disk}) as rig:
        await until(lambda: rig.failovers.running == ["pump-1"])


async def test_a_log_is_followed_again_once_the_pump_on_it_has_ended(tmp_path: Path) -> None:
    async with running(tmp_path, command=_ENDS) as rig:
        await until(lambda: rig.failovers.running == ["pump-1"])
        rig.entry = None
        await until(lambda: rig.copies.is_held("pump-1") and not rig.failovers.running)
        await rig.copies.follow(NAME, Ask(5), b"")


def test_a_pump_is_started_as_its_parent_was_but_for_what_must_differ() -> None:
    arguments = arguments_for(
        ["--copies", "2", "--node-id=pump-3"],
        pump="pump-3",
        address="10.0.0.3:8250",
        bind="0.0.0.0:8250",
    )
    found = arguments("pump-1", Path("/data/copies/pump-1"))
    assert found[:3] == ["--copies", "2", "--node-id=pump-3"]
    assert found[3:] == [
        "--node-id=pump-1",
        "--data-dir=/data/copies/pump-1",
        "--taken-over-by=pump-3",
        "--addr=0.0.0.0:0",
        "--advertise-addr=10.0.0.3:0",
        "--status-addr=",
    ]


def test_a_stand_in_is_a_pump_as_soon_as_it_has_its_arguments(tmp_path: Path) -> None:
    async def body() -> int:
        standby = StandbyProcess(tmp_path / "copies")
        await standby.keep()
        waiting = present(standby.process)
        assert waiting.returncode is None
        process = await standby.take(["--copies", "many"])
        assert process is waiting
        assert standby.process is None
        return await process.wait()

    assert asyncio.run(body()) == command.NEEDS_OPERATOR


async def test_a_stand_in_that_died_is_replaced_when_it_is_wanted(tmp_path: Path) -> None:
    standby = StandbyProcess(tmp_path / "copies")
    await standby.keep()
    first = present(standby.process)
    first.kill()
    await first.wait()
    process = await standby.take(["--version"])
    assert process.pid != first.pid
    assert await process.wait() == 0


_STANDS_IN = (
    "import asyncio, pathlib, sys; from pump.replication.failover import StandbyProcess\n"
    "async def wait():\n"
    "    standby = StandbyProcess(pathlib.Path(sys.argv[1]), sys.argv[3:])\n"
    "    await standby.keep(int(sys.argv[2]))\n"
    "    print(standby.process.pid, flush=True)\n"
    "    await asyncio.to_thread(sys.stdin.read)\n"
    "    await standby.close()\n"
    "asyncio.run(wait())\n"
)
"""A process with a stand-in, until its input ends."""


@contextmanager
def standing_in(folder: Path, lease: int, *arguments: str) -> Iterator[tuple[Popen[str], Process]]:
    command = [sys.executable, "-c", _STANDS_IN, str(folder), str(lease), *arguments]
    with Popen(command, stdin=PIPE, stdout=PIPE, text=True) as parent:
        assert parent.stdout is not None
        yield parent, psutil.Process(int(parent.stdout.readline()))
        parent.kill()


@pytest.mark.thorough
def test_a_stand_in_has_grpc_log_as_every_pump_does() -> None:
    program = (
        "import os, sys\n"
        "class Hook:\n"
        "    def find_spec(self, name, *rest):\n"
        "        if name == 'grpc':\n"
        "            print(os.environ.get('GRPC_VERBOSITY'))\n"
        "sys.meta_path.insert(0, Hook())\n"
        "import pump.standby\n"
    )
    env = {name: value for name, value in os.environ.items() if name != "GRPC_VERBOSITY"}
    assert check_output([sys.executable, "-c", program], env=env, text=True) == "INFO\n"


@contextmanager
def leading(
    folder: Path, etcd_server: EtcdServer
) -> Iterator[tuple[Popen[str], Process, Callable[[], object]]]:
    """The same of one that leads by a key on its lease, and what returns that key's value."""
    with closing(connect(etcd_server.url)) as etcd:
        lease = etcd.lease(600)
        etcd.put("led", "by the parent", lease)
        with standing_in(folder, lease.id, f"--etcd-urls={etcd_server.url}") as (parent, child):
            yield parent, child, lambda: etcd.get("led")[0]


@pytest.mark.thorough
def test_a_stand_in_gives_the_oracles_lease_back_when_its_parent_has_died(
    tmp_path: Path, etcd_server: EtcdServer
) -> None:
    with leading(tmp_path, etcd_server) as (parent, child, led):
        assert led() == b"by the parent"
        parent.kill()
        child.wait(20)
        assert led() is None


@pytest.mark.thorough
def test_a_stand_in_whose_parent_ends_in_order_leaves_the_lease_to_it(
    tmp_path: Path, etcd_server: EtcdServer
) -> None:
    with leading(tmp_path, etcd_server) as (parent, child, led):
        parent.communicate()
        assert parent.returncode == 0
        child.wait(20)
        assert led() == b"by the parent"


def test_a_stand_in_ends_without_a_word_when_no_one_wants_it_or_its_parent_dies(
    tmp_path: Path,
) -> None:
    with standing_in(tmp_path, 0) as (parent, child):
        parent.kill()
        assert child.wait(20) in (0, None)  # None: it is no child of ours.

    async def body() -> int | None:
        standby = StandbyProcess(tmp_path)
        await standby.keep()
        process = standby.process
        await standby.close()
        assert process is not None
        return process.returncode

    assert asyncio.run(body()) == 0
