"""How many transactions may be open at once, and what happens to one too many."""

import asyncio
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.errors import NeedsOperator, PenstockError
from penstock.pb import penstock_pb2
from pump.counters import Counters, reason_of
from pump.penstock_service import _code
from pump.service.group_commit import GroupCommit
from pump.store.record import NotStored, TooManyOpen
from pump.store.storage import Record, Storage, StorageConfig
from tests.kit.fakes.storage import commit, commits, prewrite, rollback, write

CONFIG = StorageConfig(stop_write_at_available_bytes=0, open_prewrites_max=3)


@pytest.fixture
def storage(tmp_path: Path) -> Iterator[Storage]:
    storage = Storage.open(tmp_path, CONFIG)
    yield storage
    storage.close()


def refused(storage: Storage, *records: Record) -> dict[int, PenstockError]:
    with pytest.raises(NotStored) as raised:
        storage.append(records)
    return dict(raised.value.refused)


def test_one_too_many_is_refused_and_the_oldest_is_named(storage: Storage) -> None:
    write(storage, prewrite(11), prewrite(12))
    found = refused(storage, prewrite(13), prewrite(14), prewrite(15))
    assert list(found) == [1, 2]
    assert all(isinstance(error, TooManyOpen) for error in found.values())
    assert "the oldest has the start_ts 11 (find out why" in str(found[1])
    write(storage, prewrite(13))
    assert storage.stats()["unmatched"] == 3


def test_what_ends_transactions_and_repetitions_are_taken_and_make_room(storage: Storage) -> None:
    write(storage, prewrite(1), prewrite(2), prewrite(3))
    write(storage, prewrite(1))  # A repetition opens nothing.
    assert 0 in refused(storage, prewrite(4))
    write(storage, commit(1, 10), rollback(2))
    write(storage, prewrite(4), prewrite(5))
    assert 0 in refused(storage, prewrite(6))
    write(storage, rollback(3))
    assert commits(storage) == [(1, 10)]


def test_the_bound_holds_after_a_restart_with_more_open_than_are_allowed(tmp_path: Path) -> None:
    storage = Storage.open(tmp_path, StorageConfig(stop_write_at_available_bytes=0))
    write(storage, *(prewrite(start_ts) for start_ts in range(1, 9)))
    storage.close()
    storage = Storage.open(tmp_path, CONFIG)
    assert 0 in refused(storage, prewrite(9))
    write(storage, *(rollback(start_ts) for start_ts in range(1, 7)))
    write(storage, prewrite(9))
    storage.close()


def test_a_writer_is_sent_elsewhere_and_an_operator_learns_whom_to_blame(
    storage: Storage, caplog: pytest.LogCaptureFixture
) -> None:
    counters = Counters()

    async def main() -> None:
        writer = GroupCommit(storage, on_indexed=lambda: None, counters=counters)
        await writer.write([prewrite(start_ts) for start_ts in (1, 2, 3)])
        with pytest.raises(TooManyOpen) as raised:
            await writer.write([prewrite(4)])
        assert _code(raised.value) == penstock_pb2.Refusal.RESOURCE_EXHAUSTED
        await writer.close()

    with caplog.at_level(logging.WARNING):
        asyncio.run(main())
    assert "new transactions are refused: 3 transactions are open" in caplog.text
    assert "the oldest has the start_ts 1 " in caplog.text
    assert counters.refused == {"too_many_open": 1}
    assert reason_of(TooManyOpen(1, 1)) == "too_many_open"


def test_a_bound_of_none_is_refused() -> None:
    with pytest.raises(NeedsOperator, match=r"storage.open.prewrites.max"):
        StorageConfig(open_prewrites_max=0)
