"""A log that an operator moves: what he is answered, and what is taken back when it cannot go.

What ships the log is a small twin here; with real Pumps `tests/fault/test_moves.py` says the same.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from penstock.cluster.log_entry import Copy, Disk, LogEntry
from penstock.cluster.node_registry import NodeState
from penstock.errors import NeedsOperator
from pump.replication.draining import Moving
from pump.replication.peers import Peers
from tests.kit.wait import until

OWN, TWO, THREE, FOUR = (Copy(f"pump-{n}", f"d{n}") for n in (1, 2, 3, 4))
LISTED = LogEntry(epoch=4, primary=OWN, replicas=(TWO,))


class Twin:
    """What ships the log: a disk that it moves to joins, and becomes the primary, at once."""

    def __init__(self, entry: LogEntry) -> None:
        self.entry = entry
        self.over = ""
        self.asked: list[str] = []
        self.is_slow = False

    @property
    def staying_complete(self) -> list[str]:
        return [] if self.is_slow else [copy.disk for copy in self.entry.replicas]

    def missing_bytes(self, disk: str) -> int | None:
        return 3 << 20 if self.entry.replica(disk) else None

    def move_to(self, disk: str) -> None:
        self.asked.append(disk)
        for copy in (TWO, THREE, FOUR):
            is_wanted = disk and (copy.disk == disk or len(self.entry.replicas) < 2)
            if is_wanted and self.entry.replica(copy.disk) is None:
                self.entry = self.entry.joined(copy)

    def give_away(self) -> None:
        self.over = "the log was moved"


class Own:
    """The state of the Pump."""

    def __init__(self) -> None:
        self.state = NodeState.ONLINE
        self.entered: list[NodeState] = []

    async def enter(self, state: NodeState) -> None:
        self.state = state
        self.entered.append(state)


class OwnDisk:
    """The copies that are on the own disk, which an operator may have emptied."""

    def __init__(self, *, is_draining: bool) -> None:
        self.is_draining = is_draining

    async def set_draining(self, is_draining: bool) -> None:
        self.is_draining = is_draining


class Rig:
    def __init__(self, entry: LogEntry = LISTED, apart: str = "") -> None:
        self.disks = {f"d{n}": Disk(f"d{n}", f"pump-{n}", "host:1") for n in (1, 2, 3)}
        self.twin = Twin(entry)
        self.own = Own()
        self.open = 0
        self.peers = Peers(1, OWN, apart=apart)
        self.peers.disks = self.disks
        self.moving = self.move(None)

    def move(self, draining: OwnDisk | None) -> Moving:
        return Moving(
            "pump-1",
            peers=self.peers,
            shipping=self.twin,  # type: ignore[arg-type]
            states=self.own,  # type: ignore[arg-type]
            draining=draining,  # type: ignore[arg-type]
            count_open=lambda: self.open,
            pause_grace_s=0.2,
            leave_grace_s=1.0,
        )

    async def refused(self, to: str) -> str:
        with pytest.raises(NeedsOperator) as found:
            await self.moving.begin(to)
        return str(found.value)

    async def ended(self) -> None:
        await until(lambda: not self.moving.is_under_way)


@asynccontextmanager
async def running(rig: Rig | None = None) -> AsyncIterator[Rig]:
    found = rig or Rig()
    yield found
    await found.moving.stop()


def zoned(*zones: str) -> Rig:
    rig = Rig(apart="zone")
    for number, zone in enumerate(zones, 1):
        labels = {"zone": zone} if zone else {}
        rig.disks[f"d{number}"] = replace(rig.disks[f"d{number}"], labels=labels)
    return rig


async def test_a_log_goes_to_the_pump_that_has_a_copy_unless_another_one_is_named() -> None:
    async with running() as rig:
        assert await rig.moving.begin("") == "pump-2"
    async with running() as rig:
        assert await rig.moving.begin("pump-3") == "pump-3"


async def test_a_log_that_is_moved_takes_no_new_transactions_and_then_is_another_pump_s() -> None:
    async with running() as rig:
        await rig.moving.begin("pump-3")
        await rig.ended()
        assert rig.twin.over
        assert rig.own.entered == [NodeState.PAUSING]
        assert rig.moving.progress == "pump pump-3 serves it"


async def test_open_transactions_have_a_moment_for_their_commits() -> None:
    async with running() as rig:
        rig.open = 2
        await rig.moving.begin("pump-3")
        await until(lambda: rig.moving.progress.startswith("2 open transactions"))
        assert not rig.twin.over
        rig.open = 0
        await rig.ended()
        assert rig.twin.over


async def test_a_log_that_is_being_moved_goes_on_to_where_it_goes() -> None:
    async with running() as rig:
        rig.twin.is_slow = True
        await rig.moving.begin("pump-3")
        assert await rig.moving.begin("") == "pump-3"
        assert await rig.moving.begin("pump-3") == "pump-3"
        assert "is being moved to pump-3: begins" in await rig.refused("pump-2")
        await until(lambda: rig.moving.progress == "pump pump-3 lacks 3.0 MiB of it")
        rig.twin.is_slow = False
        await rig.ended()
        assert rig.twin.over


async def test_a_log_that_was_moved_is_there_and_goes_on_only_where_it_is_sent() -> None:
    rig = Rig(LogEntry(epoch=5, primary=TWO, replicas=(THREE,)))
    rig.disks["d4"] = Disk("d4", "pump-4", "host:1")
    async with running(rig) as rig:
        assert "was moved already: pump pump-2 serves it since epoch 5" in await rig.refused("")
        assert "is served by pump pump-2 already" in await rig.refused("pump-2")
        assert "does not go back" in await rig.refused("pump-1")
        assert await rig.moving.begin("pump-3") == "pump-3"


async def test_a_pump_that_serves_the_log_or_is_not_there_or_leaves_is_refused() -> None:
    async with running() as rig:
        rig.disks["d3"] = replace(rig.disks["d3"], is_draining=True)
        assert "is served by pump pump-1 already" in await rig.refused("pump-1")
        assert "no pump 'pump-9' that takes copies" in await rig.refused("pump-9")
        assert "pump pump-3, which is being emptied itself" in await rig.refused("pump-3")
        assert rig.twin.asked == []


async def test_a_log_does_not_go_where_too_few_copies_would_be_left() -> None:
    async with running() as rig:
        del rig.disks["d3"]
        assert "would have 1 of 2 copies on pump pump-2" in await rig.refused("")
    async with running(Rig(replace(LISTED, copies_min=1))) as rig:
        del rig.disks["d3"]
        assert await rig.moving.begin("") == "pump-2"
        await rig.ended()
        assert rig.twin.over


async def test_copies_that_must_be_apart_are_apart_after_a_move_too() -> None:
    async with running(zoned("a", "b", "b")) as rig:
        said = await rig.refused("pump-3")
        assert "pump pump-3: pump pump-2, which has a copy, is in zone b, too" in said
    async with running(zoned("a", "b", "a")) as rig:
        assert await rig.moving.begin("pump-3") == "pump-3"
    async with running(zoned("a", "b", "")) as rig:
        assert "has no label 'zone'" in await rig.refused("pump-3")


@pytest.mark.fault(
    "a log is moved under load: the other Pump is gone before it has all",
    "the log stays, and takes transactions again",
    cases="2",
)
async def test_a_log_stays_and_takes_transactions_again_when_the_other_pump_is_gone() -> None:
    async with running() as rig:
        rig.twin.is_slow = True
        await rig.moving.begin("pump-3")
        del rig.disks["d3"]
        await rig.ended()
        assert rig.moving.progress.startswith("given up, the log stays: pump pump-3 does not run")
        assert (rig.own.entered, rig.twin.over, rig.twin.asked) == ([], "", ["d3", ""])
    async with running() as rig:
        rig.open = 1
        await rig.moving.begin("pump-3")
        await until(lambda: "open transactions" in rig.moving.progress)
        del rig.disks["d3"]
        await rig.ended()
        assert rig.own.entered == [NodeState.PAUSING, NodeState.ONLINE]
        assert rig.twin.asked == ["d3", ""]
        rig.disks["d3"] = Disk("d3", "pump-3", "host:1")
        assert await rig.moving.begin("pump-3") == "pump-3"


async def test_a_log_that_is_being_drained_can_be_moved_and_stays_closed_if_that_fails() -> None:
    async with running() as rig:
        rig.own.state = NodeState.CLOSING
        rig.open = 1
        await rig.moving.begin("pump-3")
        await until(lambda: "open transactions" in rig.moving.progress)
        del rig.disks["d3"]
        await rig.ended()
        assert rig.own.entered == []


@pytest.mark.parametrize("is_draining", [True, False])
async def test_a_move_that_fails_takes_no_drain_back(is_draining: bool) -> None:
    async with running() as rig:
        rig.twin.is_slow = True
        draining = OwnDisk(is_draining=is_draining)
        rig.moving = rig.move(draining)
        await rig.moving.begin("pump-3")
        del rig.disks["d3"]
        await rig.ended()
        assert draining.is_draining is is_draining
