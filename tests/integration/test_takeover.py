"""When a Pump with a copy takes over, and when it leaves a log alone.

The Pump that is started is a small program here: what it is does not matter to who starts it.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

from penstock.cluster.log_entry import Copy, LogEntry
from penstock.cluster.node_registry import NodeState
from pump.copies.followed_logs import Copies
from pump.copies.takeover import Surroundings, TakeOvers, command_of
from pump.replicas.messages import Ask
from pump.replicas.wire import Name, SignOfLife
from tests.kit.wait import until

CLUSTER, OWN, DEAD = 7, Copy("pump-3", "3" * 32), Copy("pump-1", "1" * 32)
NAME = Name(CLUSTER, "pump-1", OWN.disk)
LISTED = LogEntry(epoch=4, primary=DEAD, replicas=(OWN,))
AFTER_S = 0.05
_WAITS = [sys.executable, "-c", "import time; time.sleep(60)"]
_ENDS = [sys.executable, "-c", ""]


class Rig:
    def __init__(self, folder: Path) -> None:
        self.copies = Copies(folder, node_id="pump-3", cluster_id=CLUSTER, disk=OWN.disk)
        self.entry: LogEntry | None = LISTED
        self.state: NodeState | None = NodeState.ONLINE
        self.command = _WAITS
        self.asked = 0
        around = Surroundings(
            OWN.disk,
            entry=lambda node_id: self.entry,
            state=self._state,
            command=lambda node_id, folder: self.command,
        )
        self.takeovers = TakeOvers(self.copies, around, AFTER_S)

    def _state(self, node_id: str) -> NodeState | None:
        self.asked += 1
        return self.state


def run(folder: Path, test: Callable[[Rig], Awaitable[None]], **facts: object) -> None:
    """Run a test while a rig watches over the copy of a log that it was given once."""

    async def body() -> None:
        rig = Rig(folder)
        for name, fact in facts.items():
            setattr(rig, name, fact)
        await rig.copies.follow(NAME, Ask(4), b"")
        watching = asyncio.create_task(rig.takeovers.run())
        try:
            await test(rig)
        finally:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)
            await rig.takeovers.close()
            await rig.copies.close()

    asyncio.run(body())


async def left_alone(rig: Rig) -> None:
    await until(lambda: rig.asked > 0)
    await asyncio.sleep(4 * AFTER_S)
    assert rig.takeovers.running == []


def test_a_silent_primary_s_log_is_taken_over_by_who_is_listed(tmp_path: Path) -> None:
    async def body(rig: Rig) -> None:
        await until(lambda: rig.takeovers.running == ["pump-1"])
        assert not rig.copies.is_held("pump-1")

    run(tmp_path, body)


def test_a_disk_that_is_the_primary_already_has_its_pump_started_again(tmp_path: Path) -> None:
    async def body(rig: Rig) -> None:
        await until(lambda: rig.takeovers.running == ["pump-1"])

    run(tmp_path, body, entry=LISTED.claimed(OWN), state=NodeState.PAUSED)


def test_a_pump_that_stopped_in_order_is_waited_for(tmp_path: Path) -> None:
    run(tmp_path, left_alone, state=NodeState.PAUSED)


def test_a_copy_that_is_not_listed_or_not_whole_takes_nothing_over(tmp_path: Path) -> None:
    run(tmp_path / "other", left_alone, entry=LogEntry(epoch=4, primary=DEAD))
    half = Copy(OWN.pump, OWN.disk, first=2)
    run(tmp_path / "half", left_alone, entry=LogEntry(epoch=4, primary=DEAD, replicas=(half,)))


def test_a_primary_that_gives_a_sign_of_life_keeps_its_log(tmp_path: Path) -> None:
    async def body(rig: Rig) -> None:
        for _ in range(30):
            await rig.copies.follow(NAME, SignOfLife(4), b"")
            await asyncio.sleep(AFTER_S / 5)
            assert rig.takeovers.running == []

    run(tmp_path, body)


def test_a_log_is_followed_again_once_the_pump_on_it_has_ended(tmp_path: Path) -> None:
    async def body(rig: Rig) -> None:
        await until(lambda: rig.takeovers.running == ["pump-1"])
        rig.entry = None
        await until(lambda: rig.copies.is_held("pump-1") and not rig.takeovers.running)
        await rig.copies.follow(NAME, Ask(5), b"")

    run(tmp_path, body, command=_ENDS)


def test_a_pump_is_started_as_its_parent_was_but_for_what_must_differ() -> None:
    command = command_of(
        ["--copies", "2", "--node-id=pump-3"],
        pump="pump-3",
        address="10.0.0.3:8250",
        bind="0.0.0.0:8250",
    )
    arguments = command("pump-1", Path("/data/copies/pump-1"))
    assert arguments[1:6] == ["-m", "pump", "--copies", "2", "--node-id=pump-3"]
    assert arguments[6:] == [
        "--node-id=pump-1",
        "--data-dir=/data/copies/pump-1",
        "--taken-over-by=pump-3",
        "--addr=0.0.0.0:0",
        "--advertise-addr=10.0.0.3:0",
        "--status-addr=",
    ]
