"""Pulls that fail are counted by what was wrong."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.codes import Code
from penstock.errors import Retryable
from pump.service.pull_binlogs import Pulls
from pump.store.record import PurgedRange
from pump.store.storage import Storage
from tests.kit.fakes.storage import commit, opened, prewrite, write


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
