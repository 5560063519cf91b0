"""A reader lets nothing pass before it knows of every Pump that may have something before it."""

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from drainer.ddl.starting_schema import schema_from_history
from drainer.intake import pump_set
from drainer.intake.puller import Receiver, Who
from drainer.intake.spool import Spool
from drainer.schema.rules import FENCED
from drainer.sinks.checkpoint import Checkpoint
from drainer.stream.decoder import Reached
from drainer.stream.feed import ReaderFeed, ReaderOptions
from penstock.cluster import node_registry
from penstock.cluster.node_registry import NodeKind, NodeState, NodeStatus, Statuses
from penstock.codes import Code
from penstock.errors import NeedsOperator, Retryable
from penstock.schema.model import DdlJob
from penstock.wire.codec import decode_binlog
from tests.kit.fakes.etcd import MemoryEtcd
from tests.kit.wait import never, until
from tests.kit.workloads.bank import Bank

NOW_TS = 1 << 40


class Oracle:
    """Whose time is later than all else."""

    def get_ts(self) -> int:
        return NOW_TS


class Jobs:
    """The bank's DDL history."""

    rules = FENCED
    place = "the bank"

    def __init__(self, bank: Bank) -> None:
        self._jobs = {job.id: job for job in bank.jobs}

    def get(self, job_id: int) -> DdlJob | None:
        return self._jobs.get(job_id)

    def jobs(self, after_mark: int = 0) -> list[DdlJob]:
        return list(self._jobs.values())


def listed(name: str, state: NodeState = NodeState.ONLINE) -> NodeStatus:
    return NodeStatus(node_id=name, host=f"{name}:1", state=state, update_ts=NOW_TS)


class Registry(node_registry.Registry):
    """Does something of the test's before a list of Pumps is read, from the second one on."""

    def __init__(self, before: Callable[[], None] = lambda: None) -> None:
        super().__init__(MemoryEtcd())
        self.looks = 0
        self._before = before

    def list(self, kind: NodeKind) -> Statuses:
        self.looks += 1
        if self.looks > 1:
            self._before()
        return super().list(kind)


@pytest.fixture
def holds(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[tuple[int, bytes]]]:
    """What each Pump sends, in one message."""
    held: dict[str, list[tuple[int, bytes]]] = {}

    class Puller:
        is_original = False
        problem = ""

        def __init__(self, pump: str, address: str, who: Who, receiver: Receiver) -> None:
            self._pump, self._receiver = pump, receiver

        async def run(self) -> None:
            after_ts = self._receiver.received_ts(self._pump)
            sent = [each for each in held[self._pump] if each[0] > after_ts]
            stamps, payloads = zip(*sent, strict=True)
            await self._receiver.receive(self._pump, stamps, payloads)
            await never()

    monkeypatch.setattr(pump_set, "Puller", Puller)
    return held


def feed_of(bank: Bank, registry: Registry, folder: Path, *, name: str = "") -> ReaderFeed:
    source: Any = Jobs(bank)
    checkpoint = Checkpoint(0, 0)
    options = ReaderOptions(list_interval_s=0.001)
    etcd, oracle = registry, Oracle()
    schema = schema_from_history(source, checkpoint)
    spool = Spool(folder / "spool", bytes_max=1 << 20)
    return ReaderFeed(
        Reached(7, checkpoint), spool, etcd, oracle, source, schema,  # type: ignore[arg-type]
        name=name, filter=None, tls=None, options=options,
    )  # fmt: skip


async def everything(bank: Bank, registry: Registry, folder: Path) -> list[int]:
    found: list[int] = []
    feed = feed_of(bank, registry, folder)
    await feed.begin()
    try:
        while True:
            portion = await feed.more()
            assert portion is not None
            found += [each.commit_ts for each in portion.committed]
            if portion.reached.checkpoint.commit_ts >= bank.last_ts:
                return found
    finally:
        await feed.end()


@pytest.mark.fault(
    "a program that reads the stream is killed under load: a Pump joins that no one has"
    " announced to it; another is killed; etcd cannot be read",
    "nothing passes before it knows who takes part; `waits_for` names who or what",
    cases="3",
)
def test_a_pump_that_no_one_has_announced_is_in_the_merge_before_anything_after_it_passes(
    tmp_path: Path, holds: dict[str, list[tuple[int, bytes]]]
) -> None:
    bank = Bank(1)
    committed = [ts for ts, data in bank.binlogs if not decode_binlog(data).is_fake]
    at, last = committed[20], bank.binlogs[-1]
    holds["old"] = [entry for entry in bank.binlogs if entry[0] != at]
    holds["new"] = [entry for entry in bank.binlogs if entry[0] == at or entry == last]

    def join() -> None:
        registry.put_entered("new", at - 5)
        registry.put(NodeKind.PUMP, listed("new"))

    registry = Registry(before=join)
    registry.put(NodeKind.PUMP, listed("old"))
    assert asyncio.run(everything(bank, registry, tmp_path)) == committed


def test_without_etcd_nothing_passes_and_the_reader_says_why(
    tmp_path: Path, holds: dict[str, list[tuple[int, bytes]]]
) -> None:
    bank = Bank(1)
    holds["a"] = bank.binlogs

    def fail() -> None:
        raise Retryable("etcd is away", code=Code.ETCD_AWAY)

    async def body() -> Mapping[str, Any]:
        feed = feed_of(bank, registry, tmp_path)
        await feed.begin()
        await until(lambda: "etcd is away" in feed.waits_for())
        asked = asyncio.create_task(feed.more())
        await until(lambda: registry.looks > 3)
        found = {"done": asked.done(), "why": feed.waits_for()}
        asked.cancel()
        await feed.end()
        return found

    registry = Registry(before=fail)
    registry.put(NodeKind.PUMP, listed("a"))
    found = asyncio.run(body())
    assert not found["done"]
    assert "the list of Pumps cannot be read: etcd is away" in found["why"]


def test_of_two_readers_that_take_a_name_at_once_one_stops_and_the_other_keeps_it(
    tmp_path: Path, holds: dict[str, list[tuple[int, bytes]]]
) -> None:
    bank, registry = Bank(1), Registry()

    async def read_on(feed: ReaderFeed) -> None:
        while await feed.more() is not None:
            pass

    async def body() -> None:
        feeds = [feed_of(bank, registry, tmp_path, name="audit") for _ in range(2)]
        await asyncio.gather(*(each.begin() for each in feeds))
        async with asyncio.timeout(30):
            with pytest.raises(NeedsOperator, match="runs under the name audit"):
                await asyncio.gather(*map(read_on, feeds))
        for each in feeds:
            await each.end()

    holds["a"] = bank.binlogs
    registry.put(NodeKind.PUMP, listed("a"))
    asyncio.run(body())
    found = registry.get(NodeKind.DRAINER, "audit")
    assert found is not None
    assert found.state is NodeState.PAUSED


def test_a_name_is_not_taken_from_a_drainer_and_one_that_comes_to_nothing_is_forgotten(
    tmp_path: Path, holds: dict[str, list[tuple[int, bytes]]]
) -> None:
    bank, registry = Bank(1), Registry()
    registry.put(NodeKind.DRAINER, listed("drainer-1"))
    before = registry.get(NodeKind.DRAINER, "drainer-1")

    async def begin(name: str) -> None:
        feed = feed_of(bank, registry, tmp_path, name=name)
        try:
            await feed.begin()
        finally:
            await feed.end()

    with pytest.raises(NeedsOperator, match="the Drainer at drainer-1:1"):
        asyncio.run(begin("drainer-1"))
    assert registry.get(NodeKind.DRAINER, "drainer-1") == before
    gone = NodeStatus(
        node_id="p", host="p:1", state=NodeState.OFFLINE, max_commit_ts=99, update_ts=NOW_TS
    )
    registry.put(NodeKind.PUMP, gone)
    with pytest.raises(NeedsOperator, match="are missing here"):
        asyncio.run(begin("new"))
    assert registry.get(NodeKind.DRAINER, "new") is None
