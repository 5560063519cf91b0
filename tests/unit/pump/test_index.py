from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.errors import Corrupt
from penstock.log.segments import Place, Position
from pump.store.index import (
    COMMIT,
    FAKE,
    ROLLED_BACK,
    TAKEN,
    Checkpoint,
    CommitEntry,
    Index,
    Open,
    Purge,
)

TS_MAX = 2**64 - 1


@pytest.fixture
def index(tmp_path: Path) -> Iterator[Index]:
    index = Index(tmp_path / "index", write_buffer_bytes=1 << 20, cache_bytes=1 << 20)
    yield index
    index.close()


def again(index: Index) -> Index:
    index.close()
    return Index(index.path, write_buffer_bytes=1 << 20, cache_bytes=1 << 20)


def scan(index: Index, after_ts: int, up_to_ts: int) -> list[int]:
    return [ts for chunk, _ in index.commits(after_ts, up_to_ts) for ts in chunk]


def test_entries_come_back_as_they_were_put(index: Index) -> None:
    position, prewritten = Position(3, 2**33, 77), Position(2, 2**40, 2**32 - 1)
    batch = index.batch()
    batch.add([(TAKEN, 400, prewritten, prewritten)])
    batch.add([(ROLLED_BACK, 401, prewritten, prewritten)])
    batch.add([(COMMIT, 500, position, prewritten)])
    batch.add([(FAKE, 501, position, position)])
    batch.write()
    assert index.prewrite(400) == (TAKEN, prewritten)
    assert index.prewrite(401) == (ROLLED_BACK, prewritten)
    assert index.commit(500) == CommitEntry(COMMIT, position, prewritten)
    assert index.commit(501) == CommitEntry(FAKE, position, Position(0, 0, 0))
    assert index.commit(400) is None
    assert index.prewrite(500) is None
    assert index.last_ts() == (401, 501)


def test_commits_are_scanned_in_order_of_their_timestamps(index: Index) -> None:
    batch = index.batch()
    timestamps = [2**n for n in range(63)]
    for ts in reversed(timestamps):
        batch.add([(FAKE, ts, Position(0, ts & 0xFFFF, 1), Position(0, ts & 0xFFFF, 1))])
        batch.add([(TAKEN, ts + 1, Position(0, 0, 1), Position(0, 0, 1))])
    batch.write()
    assert scan(index, 0, TS_MAX) == timestamps
    assert scan(index, 4, 64) == [8, 16, 32, 64]
    assert scan(index, 64, 64) == []
    assert scan(index, TS_MAX, TS_MAX) == []


def test_a_long_scan_comes_in_chunks(index: Index) -> None:
    batch = index.batch()
    for ts in range(1, 2001):
        batch.add([(COMMIT, ts, Position(1, ts, 2), Position(0, ts, 3))])
    batch.write()
    chunks = list(index.commits(0, TS_MAX))
    assert len(chunks) > 1
    assert scan(index, 0, TS_MAX) == list(range(1, 2001))
    assert [row for _, rows in chunks for row in rows][7] == (COMMIT, 1, 8, 2, 0, 8, 3)


def test_the_places_of_restart_are_kept(index: Index) -> None:
    assert index.head() is None
    assert index.checkpoint() is None
    assert index.purge() == Purge(0, 0)
    batch = index.batch()
    batch.head(Place(4, 2**34))
    batch.needed(3, 900)
    batch.write()
    opened = (
        (5, Open(Position(1, 32, 7), 4, 0)),
        (2**63, Open(Position(3, 50, 9), 700, 0, first_segment=2)),
    )
    index.flush(Checkpoint(Place(3, 99), 800, opened))
    index.set_purge(Purge(700, 2))
    index = again(index)
    assert index.head() == Place(4, 2**34)
    assert index.checkpoint() == Checkpoint(Place(3, 99), 800, opened)
    assert index.purge() == Purge(700, 2)
    assert index.needed() == {3: 900}
    index.close()


def test_only_what_lay_in_dropped_segments_is_forgotten(index: Index) -> None:
    batch = index.batch()
    for ts, segment in ((10, 0), (11, 1), (12, 2), (13, 0)):
        batch.add([(FAKE, ts, Position(segment, 0, 1), Position(segment, 0, 1))])
        batch.add([(TAKEN, ts, Position(segment, 0, 1), Position(segment, 0, 1))])
    for segment in range(3):
        batch.needed(segment, 50)
    batch.write()
    assert index.forget(12, 2) == 4
    assert scan(index, 0, TS_MAX) == [12, 13]
    assert index.prewrite(11) is None
    assert index.prewrite(12) is not None
    assert index.needed() == {2: 50}


def test_an_index_of_another_format_is_refused(index: Index) -> None:
    index.flush(Checkpoint(Place(0, 32), 0))
    value = bytearray(index._db.get(b"k"))
    value[0] += 1
    index._db.put(b"k", bytes(value))
    with pytest.raises(Corrupt, match="format 4"):
        index.checkpoint()


def test_the_last_transaction_is_found_behind_fake_binlogs(index: Index) -> None:
    assert index.last_transaction_ts() == 0
    batch = index.batch()
    for ts in (10, 11, 12, 13):
        batch.add([(FAKE, ts, Position(0, ts, 5), Position(0, ts, 5))])
    batch.write()
    assert index.last_transaction_ts() == 0
    batch = index.batch()
    batch.add([(COMMIT, 9, Position(0, 90, 5), Position(0, 80, 5))])
    batch.write()
    assert index.last_transaction_ts() == 9
    assert index.last_transaction_ts(2) == 12, "no less than the last one"
