import asyncio
import threading
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest

from penstock.codes import Code
from penstock.errors import Retryable
from penstock.wire.binlog import BinlogType
from pump.counters import Counters
from pump.service.group_commit import GroupCommit
from pump.store.record import NotStored, Record
from tests.kit.wait import turn, until


@dataclass
class Appended:
    records: list[Record]


class Disk:
    """A storage that notes what is asked of it, and fails on demand."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, list[int]]] = []
        self.threads: set[int] = set()
        self.append_errors: list[Exception] = []
        self.index_errors: list[Exception] = []
        self.refuse: set[int] = set()

    def append(self, records: Sequence[Record]) -> Appended:
        self.threads.add(threading.get_ident())
        self.calls.append(("append", [record.start_ts for record in records]))
        if self.append_errors:
            raise self.append_errors.pop()
        refused = {
            i: Retryable("no", code=Code.ETCD_AWAY)
            for i, r in enumerate(records)
            if r.start_ts in self.refuse
        }
        if refused:
            raise NotStored(refused)
        return Appended(list(records))

    def index(self, appended: Appended) -> None:
        if self.index_errors:
            raise self.index_errors.pop()
        self.calls.append(("index", [record.start_ts for record in appended.records]))

    def groups(self, kind: str) -> list[list[int]]:
        return [stamps for name, stamps in self.calls if name == kind]


@pytest.fixture
def counters() -> Counters:
    return Counters()


def record(start_ts: int, size_bytes: int = 10) -> Record:
    return Record(BinlogType.PREWRITE, start_ts, 0, b"x" * size_bytes)


@asynccontextmanager
async def committing(
    disk: Disk | None = None, **settings: Any
) -> AsyncIterator[tuple[GroupCommit, Disk]]:
    disk = disk or Disk()
    writer = GroupCommit(disk, **settings)  # type: ignore[arg-type]
    try:
        yield writer, disk
    finally:
        await writer.close()


async def test_what_waits_together_is_one_append() -> None:
    async with committing() as (writer, disk):
        await asyncio.gather(*(writer.write([record(ts)]) for ts in range(1, 101)))
    assert disk.groups("append") == [list(range(1, 101))]


async def test_a_group_is_indexed_before_the_next_is_appended() -> None:
    async with committing(group_bytes_max=200) as (writer, disk):
        await asyncio.gather(*(writer.write([record(ts, 100)]) for ts in range(1, 8)))
    assert [name for name, _ in disk.calls] == ["append", "index"] * 4
    assert disk.groups("append") == disk.groups("index") == [[1, 2], [3, 4], [5, 6], [7]]


async def test_a_record_above_the_group_limit_goes_alone() -> None:
    async with committing(group_bytes_max=100) as (writer, disk):
        sizes = {1: 10, 2: 10_000, 3: 10}
        await asyncio.gather(*(writer.write([record(ts, size)]) for ts, size in sizes.items()))
    assert disk.groups("append") == [[1], [2], [3]]


async def test_what_is_enqueued_is_settled_once_durable_in_order_and_before_the_index() -> None:
    settled: dict[int, Any] = {}

    async with committing() as (writer, disk):
        disk.refuse = {2}
        for ts in (1, 2, 3):
            writer.enqueue([record(ts)], partial(settled.__setitem__, ts))
        assert settled == {}
        await writer.submit([record(4)])
        assert list(settled) == [1, 2, 3]
        assert disk.groups("append")[-1] == [1, 3, 4]
        assert disk.groups("index") == []
        assert settled[1] == settled[3] == {}
        assert isinstance(settled[2][0], Retryable)


async def test_a_failed_append_settles_its_own_group_and_no_other() -> None:
    disk = Disk()
    error = OSError(28, "No space left on device")
    disk.append_errors = [error]
    settled: dict[int, object] = {}

    async with committing(disk) as (writer, disk):
        for ts in (1, 2):
            writer.enqueue([record(ts)], partial(settled.__setitem__, ts))
        await until(lambda: len(settled) == 2)
        writer.enqueue([record(3)], partial(settled.__setitem__, 3))
        await until(lambda: 3 in settled)
    assert settled == {1: error, 2: error, 3: {}}


async def test_every_submission_s_wait_is_counted(counters: Counters) -> None:
    begin_s = time.perf_counter()
    async with committing(counters=counters) as (writer, _):
        first = writer.submit([record(1), record(2)])
        await asyncio.gather(first, *(writer.submit([record(ts)]) for ts in range(3, 50)))
    took_s = time.perf_counter() - begin_s
    assert counters.acknowledge_s.count == 48
    # No wait is longer than all of it, however long that takes.
    assert 0 < counters.acknowledge_s.sum < 48 * took_s


async def test_a_refused_record_does_not_hold_up_its_neighbours() -> None:
    disk = Disk()
    disk.refuse = {2, 5}

    async with committing(disk) as (writer, disk):
        one = writer.submit([record(1)])
        batch = writer.submit([record(2), record(3), record(4), record(5)])
        assert not await one
        assert sorted(await batch) == [0, 3]
        assert disk.groups("append")[-1] == [1, 3, 4]
        with pytest.raises(Retryable, match="no"):
            await writer.write([record(2)])


async def test_a_failed_index_is_tried_again_before_anything_else(
    caplog: pytest.LogCaptureFixture,
) -> None:
    disk = Disk()
    disk.index_errors = [OSError("twice"), OSError("once")]

    async with committing(disk) as (writer, disk):
        writer.index_retry_s = 0.01
        await writer.write([record(1)])
        await writer.write([record(2)])
    assert disk.calls == [("append", [1]), ("index", [1]), ("append", [2]), ("index", [2])]
    assert "indexing failed" in caplog.text


async def test_a_full_queue_refuses_a_call_and_makes_a_stream_wait() -> None:
    async with committing(queue_bytes_max=1000) as (writer, disk):
        writer.submit([record(1, 600)])
        writer.submit([record(2, 600)])
        assert writer.is_full
        with pytest.raises(Retryable, match="overloaded: 1200 bytes"):
            writer.submit([record(3)])
        await writer.room()
        await writer.write([record(4)])
    assert disk.groups("append") == [[1, 2], [4]]


async def test_a_fast_disk_is_used_from_the_event_loop_and_a_slow_one_from_a_thread() -> None:
    threads = []
    for inline_below_s in (1.0, 0):
        async with committing(inline_below_s=inline_below_s) as (writer, disk):
            for ts in range(1, 4):
                await writer.write([record(ts)])
        threads.append(disk.threads)
    here = threading.get_ident()
    assert threads[0] == {here}
    assert here not in threads[1]


async def test_a_thread_keeps_the_order_too() -> None:
    async with committing(inline_below_s=0, group_bytes_max=1000) as (writer, disk):
        await asyncio.gather(*(writer.write([record(ts, 100)]) for ts in range(1, 200)))
    assert [ts for group in disk.groups("append") for ts in group] == list(range(1, 200))
    assert disk.groups("append") == disk.groups("index")
    assert [name for name, _ in disk.calls[:4]] == ["append", "index"] * 2


@pytest.mark.parametrize("inline_below_s", [1.0, 0])
async def test_what_comes_between_two_groups_waits_for_all_that_was_queued_before(
    inline_below_s: float,
) -> None:
    seen = list[tuple[str, int]]()

    async with committing(inline_below_s=inline_below_s) as (writer, disk):

        def note() -> None:
            assert len(disk.groups("append")) == len(disk.groups("index"))
            seen.append(("between", sum(map(len, disk.groups("index")))))

        await writer.between_groups(note)
        first, second = writer.submit([record(1)]), writer.submit([record(2)])
        between = asyncio.create_task(writer.between_groups(note))
        await turn()
        third = writer.submit([record(3)])
        await asyncio.gather(first, second, between, third)
        await writer.between_groups(note)
    assert seen == [("between", 0), ("between", 2), ("between", 3)]
    assert disk.groups("append")[-1] == [3]


async def test_what_comes_between_waits_for_an_index_that_fails() -> None:
    disk = Disk()
    disk.index_errors = [OSError("once")]

    async with committing(disk) as (writer, disk):
        writer.index_retry_s = 0.01
        writer.submit([record(1)])
        await writer.between_groups(lambda: disk.calls.append(("between", [])))
    assert disk.calls == [("append", [1]), ("index", [1]), ("between", [])]


async def test_a_caller_that_goes_away_takes_no_one_with_it() -> None:
    async with committing() as (writer, disk):
        gone = asyncio.create_task(writer.write([record(1)]))
        await turn()
        gone.cancel()
        await writer.write([record(2)])
        assert gone.cancelled()
    assert disk.groups("append") == [[1, 2]]
