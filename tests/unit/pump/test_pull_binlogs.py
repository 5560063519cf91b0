"""Pulls that fail are counted by what was wrong; pulls that wait get watermarks."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.codes import Code
from penstock.errors import Retryable
from penstock.wire.codec import decode_binlog
from pump.cluster.clock import FakeBinlogs
from pump.service.group_commit import GroupCommit
from pump.service.pull_binlogs import Pulls
from pump.store.record import PurgedRange
from pump.store.storage import Storage
from tests.kit.fakes.storage import commit, fake, opened, prewrite, write
from tests.kit.wait import until


@pytest.fixture
def storage(tmp_path: Path) -> Iterator[Storage]:
    storage = opened(tmp_path)
    write(storage, prewrite(1), commit(1, 2))
    yield storage
    storage.close()


def pulled(pulls: Pulls, name: str) -> Any:
    async def first() -> Any:
        async for batch in pulls.batches(name, 0):
            return batch

    return asyncio.run(first())


def test_who_asks_for_purged_binlogs_is_counted_by_name(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    pulls = Pulls(storage, batch_bytes_max=1000, late_max=2)

    def purged(*_: Any, **__: Any) -> None:
        raise PurgedRange(0, 1)

    monkeypatch.setattr(storage, "pull", purged)
    for name in ("a", "a", "b", "stranger"):
        with pytest.raises(PurgedRange):
            pulled(pulls, name)
    assert pulls.late == {"a": 2, "b": 1}
    assert pulls.failed == 0
    assert pulls.open == {}


def test_a_disk_that_cannot_be_read_is_counted(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    pulls = Pulls(storage, batch_bytes_max=1000)
    assert pulled(pulls, "a").commit_ts == [2]

    def unreadable(*_: Any, **__: Any) -> None:
        raise Retryable("an input/output error", code=Code.ETCD_AWAY)

    monkeypatch.setattr(storage, "pull", unreadable)
    with pytest.raises(Retryable):
        pulled(pulls, "a")
    assert (pulls.failed, pulls.late) == (1, {})


async def test_a_watermark_is_sent_to_who_has_all_else_without_a_read(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    pulls = Pulls(storage, batch_bytes_max=1000)
    writer = GroupCommit(storage, on_indexed=pulls.wake)
    stamps = iter((8, 11))

    async def next_ts() -> int:
        return next(stamps)

    fake_binlogs = FakeBinlogs(storage, writer, pulls, next_ts)
    batches = pulls.batches("drainer", 0)
    assert (await anext(batches)).commit_ts == [2]
    with monkeypatch.context() as patched:
        patched.setattr(storage, "pull", None)
        waiting = asyncio.ensure_future(anext(batches))
        await until(pulls.puller_waits.is_set)
        logged_at_s, moved_at_s = pulls.logged_at_s, pulls.moved_at_s
        assert await fake_binlogs.advance() == 8
        found = await waiting
        assert (pulls.logged_at_s, pulls.moved_at_s > moved_at_s) == (logged_at_s, True)
    assert (found.commit_ts, found.last_ts) == ([8], 8)
    assert [decode_binlog(payload).is_fake for payload in found.payloads] == [True]
    await writer.write([prewrite(9), commit(9, 10)])
    assert await fake_binlogs.advance() == 11
    assert (await anext(batches)).commit_ts == [10, 11]
    assert pulls.logged_at_s > logged_at_s
    await batches.aclose()
    pulls.close()
    await writer.close()


async def test_one_who_is_behind_a_start_waits_until_the_stream_is_there(storage: Storage) -> None:
    pulls = Pulls(storage, batch_bytes_max=1000)
    writer = GroupCommit(storage, on_indexed=pulls.wake)
    batches = pulls.batches("drainer", 5)  # A watermark of the run before, which no log has.
    waiting = asyncio.ensure_future(anext(batches))
    await writer.write([fake(4)])
    await until(pulls.puller_waits.is_set)
    assert not waiting.done()
    await writer.write([prewrite(6), commit(6, 7)])
    assert (await waiting).commit_ts == [7]
    await batches.aclose()
    pulls.close()
    await writer.close()
