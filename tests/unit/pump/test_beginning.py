"""How a Pump comes to its log: of two that claim the same one in turn, one gives way."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from penstock.cluster.log_entry import Copy, LogEntries, LogEntry
from penstock.codes import Code
from penstock.errors import Retryable
from penstock.log.segments import Segments, begin_log
from pump.node import Startup
from pump.replication.claiming import Claimed, Fenced, Wanted, claim
from pump.replication.peers import Peers
from pump.replication.protocol.chain import Chain, Link
from pump.replication.shipping import Shipping
from tests.kit.fakes.etcd import MemoryEtcd
from tests.kit.fakes.files import MemoryFiles

OWN, OTHER = Copy("pump-1", "d1"), Copy("pump-3", "d3")
LOG = "pump-2"


class Rig:
    """One of two disks with a whole copy of a log, and the list of both."""

    def __init__(self, *, is_failover: bool) -> None:
        self.is_failover = is_failover
        self.entries = LogEntries(MemoryEtcd())
        self.entries.swap(LOG, 0, LogEntry(epoch=1, primary=OTHER, eligible=(OWN,)))
        self.log = Segments.open(Path("/log"), files=MemoryFiles())
        self.shipped: list[Shipping] = []
        self.claims = 0
        self.on_second_claim: Callable[[], object] = lambda: None

    # What `Startup` asks of a replication and a storage.

    def claim(self, storage: object) -> Claimed | None:
        self.claims += 1
        if self.claims == 2:
            self.on_second_claim()
        chain = Chain(Link(*link) for link in self.log.links())
        return claim(self.entries, LOG, OWN, chain, Wanted(2, 2))

    def ship(self, claimed: Claimed, storage: object) -> Shipping:
        shipping = Shipping(
            *(claimed, self.log),
            node_id=LOG,
            entries=self.entries,
            peers=Peers(1, OWN),
            replica_timeout_s=1.0,
        )
        self.shipped.append(shipping)
        return shipping

    def ship_with(self, shipping: Shipping) -> None:
        """After the first claim, the other one claims the log."""
        if self.claims == 1:
            found = self.entries.read(LOG)
            assert found is not None
            self.entries.swap(LOG, found[1], found[0].claimed(OTHER))

    @property
    def is_primary(self) -> bool:
        found = self.entries.read(LOG)
        return found is not None and found[0].primary.disk == OWN.disk

    def relisted(self, fenced: Fenced) -> LogEntry | None:
        raise AssertionError("a whole copy is not displaced")

    def reinitialise(self, entry: LogEntry) -> None:
        raise AssertionError("a whole copy is not displaced")


class FullDisk(Rig):
    """A Pump whose log another disk had, on a disk that has no room at first."""

    def __init__(self) -> None:
        super().__init__(is_failover=False)
        self.asked: list[str] = []

    def claim(self, storage: object) -> Claimed | None:
        found = self.entries.read(LOG)
        assert found is not None
        if storage is self:
            raise Fenced(LOG, found)
        return None

    def relisted(self, fenced: Fenced) -> LogEntry | None:
        return fenced.found[0]

    def close(self) -> None:
        self.asked.append("close")

    def reinitialise(self, entry: LogEntry) -> None:
        self.asked.append("begin again")
        if self.asked.count("begin again") == 1:
            raise Retryable("/data: No space left on device", code=Code.LOG_WRITE_FAILED)


async def _never() -> object:
    raise AssertionError("nothing begins again")


def begin(
    rig: Rig, reopened: Callable[[], Awaitable[object]] = _never, say: Callable[[str], object] = len
) -> object:
    """Return what a beginning comes to; it is asked to stop at the second claim."""

    async def run() -> object:
        stop, loop = asyncio.Event(), asyncio.get_running_loop()
        rig.on_second_claim = lambda: loop.call_soon_threadsafe(stop.set)
        beginning = Startup(rig, say, stop)  # type: ignore[arg-type]
        async with asyncio.timeout(10), AsyncExitStack() as stack:
            return await beginning.run(rig, reopened, stack)  # type: ignore[arg-type]

    return asyncio.run(run())


@pytest.mark.fault(
    "two Pumps on copies claim the same log in turn",
    "the one that lost it ends, and its copy is followed again",
    cases="1",
)
def test_a_pump_on_a_copy_gives_way_to_another_one_that_claims_the_log() -> None:
    rig = Rig(is_failover=True)
    assert begin(rig) is None
    assert rig.claims == 1
    found = rig.entries.read(LOG)
    assert found is not None
    assert (found[0].primary, found[0].eligible) == (OTHER, (OWN,))


def test_the_pump_whose_log_it_is_claims_it_again_and_leaves_nothing_behind() -> None:
    rig = Rig(is_failover=False)
    assert begin(rig) is None
    assert rig.claims == 2
    assert rig.is_primary
    assert all(shipping.over for shipping in rig.shipped)
    assert rig.entries._etcd.watches == []


def test_a_pump_that_begins_again_waits_for_room_on_its_disk() -> None:
    rig, said = FullDisk(), list[str]()

    async def reopened() -> object:
        rig.asked.append("open")
        if rig.asked.count("open") == 1:
            raise Retryable("/data/index: No space left on device", code=Code.LOG_WRITE_FAILED)
        return LOG

    assert begin(rig, reopened, said.append) == (LOG, None)
    assert rig.asked == ["close", "begin again", "begin again", "open", "open"]
    assert [text for text in said if "No space left" in text] == said[1:]


@pytest.mark.parametrize("call", ["write", "sync", "rename"])
def test_a_log_that_could_not_be_begun_leaves_nothing_behind(call: str) -> None:
    files, folder = MemoryFiles(), Path("/log")
    files.fail_once(call)
    with pytest.raises(OSError, match="made to fail"):
        begin_log(files, folder, 7)
    begin_log(files, folder, 7)
    assert [epoch for _, epoch, *_ in Segments.open(folder, files=files).links()] == [7]
