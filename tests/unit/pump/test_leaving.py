"""Before a Pump ends: whose copies it waits for, and what an operator reads of them."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from penstock.cluster.log_entry import Copy, Disk, LogEntry, Offered
from penstock.cluster.node_registry import NodeState
from penstock.codes import Code
from penstock.errors import Retryable
from pump.replication.draining import Draining
from pump.replication.peers import Peers
from pump.replication.protocol.messages import Ask, Name
from pump.replication.replicas import Replicas
from tests.kit.wait import until

CLUSTER, OWN, FIRST, THIRD = 7, Copy("pump-2", "2" * 32), Copy("pump-1", "d1"), Copy("pump-3", "d3")
LISTED = LogEntry(epoch=4, primary=FIRST, replicas=(OWN,))
SOON_S, ENOUGH_S = 0.2, 300.0
"""Real time, since threads take part. `ENOUGH_S` is how long it would wait where it must not."""


class Listed(Offered):
    """The disk in etcd."""

    def __init__(self, disks: dict[str, Disk]) -> None:
        self.disks = disks
        self.said: list[bool] = []
        self.is_away = False

    def set_draining(self, is_draining: bool) -> None:
        if self.is_away:
            raise Retryable("etcd does not answer", code=Code.ETCD_AWAY)
        self.said.append(is_draining)
        self.disks[OWN.disk] = replace(self.disks[OWN.disk], is_draining=is_draining)

    def renew(self) -> None: ...

    def close(self) -> None: ...


class Logs(dict[str, LogEntry]):
    """The entries, and how often they were looked at."""

    looks = 0

    def get(self, *asked: Any) -> Any:
        self.looks += 1
        return super().get(*asked)


class SeenPeers(Peers):
    pump_state: NodeState | None = NodeState.ONLINE

    def state(self, node_id: str) -> NodeState | None:
        return self.pump_state


class Rig:
    def __init__(self, copies: Replicas) -> None:
        self.disks = {c.disk: Disk(c.disk, c.pump, "host:1") for c in (FIRST, OWN, THIRD)}
        self.logs = Logs({"pump-1": LISTED})
        self.peers = SeenPeers(CLUSTER, OWN)
        self.peers.disks, self.peers.logs = self.disks, self.logs
        self.listed = Listed(self.disks)
        self.draining = Draining(self.peers, self.listed, copies)

    async def looked_at(self) -> None:
        """Return when all that is waited for was looked at again."""
        looks = self.logs.looks
        await until(lambda: self.logs.looks > looks + 3)

    async def drain(self, within_s: float = ENOUGH_S) -> float:
        began_s = time.monotonic()
        await self.draining.drain(within_s)
        return time.monotonic() - began_s


@asynccontextmanager
async def running(folder: Path) -> AsyncIterator[Rig]:
    copies = Replicas(folder, node_id=OWN.pump, cluster_id=CLUSTER, disk=OWN.disk)
    await copies.follow(Name(CLUSTER, "pump-1", OWN.disk), Ask(4), b"")
    try:
        yield Rig(copies)
    finally:
        await copies.close()


async def test_a_pump_waits_until_another_one_has_the_copy_and_no_longer(tmp_path: Path) -> None:
    async with running(tmp_path) as rig:
        done = asyncio.create_task(rig.drain())
        await rig.looked_at()
        assert not done.done()
        rig.logs["pump-1"] = LISTED.joined(THIRD)
        await rig.looked_at()
        assert not done.done()
        rig.logs["pump-1"] = LISTED.joined(THIRD).without([OWN.disk])
        assert await done < ENOUGH_S
        assert rig.listed.said == [True]
        assert await rig.draining.remaining() == []


async def test_it_does_not_wait_for_longer_than_it_may(tmp_path: Path) -> None:
    async with running(tmp_path) as rig:
        assert SOON_S < await rig.drain(SOON_S) < ENOUGH_S
        (kept,) = await rig.draining.remaining()
        assert kept.startswith("the copy of pump-1's log is here, ")
        assert kept.endswith(" bytes, and another Pump is given one")


async def test_it_does_not_wait_where_no_other_pump_could_take_the_copy(tmp_path: Path) -> None:
    async with running(tmp_path) as rig:
        rig.disks[THIRD.disk] = replace(rig.disks[THIRD.disk], is_draining=True)
        assert await rig.drain() < ENOUGH_S
        assert rig.listed.said == []
        (kept,) = await rig.draining.remaining()
        assert kept.endswith("and no other Pump can take one (start one more)")


async def test_it_does_not_wait_for_an_etcd_that_is_away(tmp_path: Path) -> None:
    async with running(tmp_path) as rig:
        rig.listed.is_away = True
        assert await rig.drain() < ENOUGH_S


async def test_no_one_needs_the_log_of_a_pump_that_is_offline(tmp_path: Path) -> None:
    async with running(tmp_path) as rig:
        rig.peers.pump_state = NodeState.OFFLINE
        assert await rig.draining.remaining() == []
        rig.peers.pump_state = None
        rig.logs["pump-1"] = LISTED.claimed(OWN)
        (kept,) = await rig.draining.remaining()
        assert kept.startswith("the log of pump-1 was taken over here and is served until every")
        assert kept.endswith("penstock ctl move-log pump-1 --to PUMP)")
