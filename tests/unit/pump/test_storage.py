import errno
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.codes import Code
from penstock.errors import Corrupt, NeedsOperator, Retryable
from penstock.log.segments import Place, Position, Segments
from penstock.wire.binlog import Binlog, BinlogType
from penstock.wire.codec import decode_binlog
from pump.store import transactions
from pump.store.storage import (
    Contradiction,
    NoPrewrite,
    NotStored,
    OutOfSpace,
    PurgedRange,
    Record,
    Storage,
    StorageConfig,
)
from tests.kit.fakes.files import MemoryFiles
from tests.kit.fakes.storage import (
    SMALL,
    commit,
    commits,
    die,
    fake,
    index_dump,
    opened,
    prewrite,
    pulled,
    put_index,
    rollback,
    write,
)


@pytest.fixture
def files() -> MemoryFiles:
    return MemoryFiles()


@pytest.fixture
def storage(tmp_path: Path, files: MemoryFiles) -> Iterator[Storage]:
    storage = opened(tmp_path, files)
    yield storage
    storage.close()


def refusal(storage: Storage, *records: Record) -> BaseException:
    with pytest.raises(NotStored) as raised:
        storage.append(records)
    assert len(raised.value.refused) == 1
    return next(iter(raised.value.refused.values()))


def test_a_pulled_binlog_is_prewrite_and_commit_in_one(storage: Storage) -> None:
    write(storage, prewrite(5, b"row changes"))
    assert storage.max_commit_ts == 0
    write(storage, commit(5, 9))
    assert storage.max_commit_ts == 9
    assert pulled(storage) == [
        Binlog(tp=BinlogType.COMMIT, start_ts=5, commit_ts=9, prewrite_value=b"row changes")
    ]


def test_pulls_are_in_commit_order_whatever_the_order_of_arrival(storage: Storage) -> None:
    write(storage, prewrite(1), prewrite(2), prewrite(3))
    write(storage, commit(3, 30), commit(1, 10))
    assert commits(storage) == []
    write(storage, commit(2, 20))
    assert commits(storage) == [(1, 10), (2, 20), (3, 30)]
    assert commits(storage, after_ts=10) == [(2, 20), (3, 30)]
    assert commits(storage, after_ts=30) == []


def test_rolled_back_transactions_are_never_pulled(storage: Storage) -> None:
    write(storage, prewrite(1), prewrite(2))
    write(storage, commit(2, 20))
    write(storage, rollback(1))
    assert commits(storage) == [(2, 20)]


def test_fake_binlogs_are_pulled_in_their_place(storage: Storage) -> None:
    write(storage, fake(3))
    write(storage, prewrite(4), commit(4, 7), fake(9))
    assert [(b.commit_ts, b.is_fake) for b in pulled(storage)] == [(3, True), (7, False), (9, True)]


@pytest.mark.parametrize(("bytes_max", "count_max"), [(1, 1000), (300, 1000), (1 << 20, 3)])
def test_a_pull_keeps_its_bounds_and_always_moves(
    storage: Storage, bytes_max: int, count_max: int
) -> None:
    for ts in range(10, 200, 10):
        write(storage, prewrite(ts, b"v" * ts), commit(ts, ts + 1))
    everything = [(ts, ts + 1) for ts in range(10, 200, 10)]
    found = pulled(storage, bytes_max=bytes_max, count_max=count_max)
    assert [(b.start_ts, b.commit_ts) for b in found] == everything
    batch = storage.pull(0, bytes_max=bytes_max, count_max=count_max)
    assert len(batch.payloads) <= count_max
    assert len(batch.payloads) == 1 or sum(map(len, batch.payloads)) <= bytes_max


def test_an_exhausted_pull_says_how_far_it_is_complete(storage: Storage) -> None:
    write(storage, prewrite(1), commit(1, 5), fake(8))
    batch = storage.pull(8, bytes_max=100, count_max=100)
    assert (batch.payloads, batch.last_ts) == ([], 8)


def test_single_binlogs_are_found_by_timestamp(storage: Storage) -> None:
    write(storage, prewrite(5, b"x"), commit(5, 9), fake(12))
    merged, waiting, idle = storage.get(9), storage.prewrite(5), storage.get(12)
    assert merged is not None
    assert waiting is not None
    assert idle is not None
    assert decode_binlog(merged).prewrite_value == b"x"
    assert decode_binlog(waiting).tp is BinlogType.PREWRITE
    assert decode_binlog(idle).is_fake
    assert (storage.get(5), storage.prewrite(9)) == (None, None)


def test_unmatched_prewrites_are_listed_with_their_bytes(tmp_path: Path) -> None:
    now_s = 100.0
    storage = Storage.open(tmp_path, SMALL, clock=lambda: now_s)
    first, second = prewrite(7), prewrite(3)
    write(storage, first)
    now_s = 102.0
    write(storage, second, fake(9))
    assert [(u.start_ts, u.payload_reader()) for u in storage.unmatched(older_than_s=1)] == [
        (7, first.payload)
    ]
    assert [u.start_ts for u in storage.unmatched()] == [7, 3]
    write(storage, commit(7, 8))
    assert [u.start_ts for u in storage.unmatched()] == [3]
    storage.close()


def test_the_index_of_another_pump_is_refused_also_where_a_frame_ends_at_its_end(
    tmp_path: Path,
) -> None:
    for name, first in ("one", 1000), ("other", 2000):
        storage = opened(tmp_path / name)
        write(storage, prewrite(first))
        write(storage, commit(first, first + 10))
        storage.close()
    index, other = (tmp_path / name / "index" for name in ("one", "other"))
    index.rename(tmp_path / "aside")
    shutil.copytree(other, index)
    with pytest.raises(NeedsOperator, match=r"says that binlog 2010 is at .* another one"):
        opened(tmp_path / "one")
    shutil.rmtree(index)
    storage = opened(tmp_path / "one")
    assert commits(storage) == [(1000, 1010)]
    storage.close()


@pytest.mark.fault("two Pumps, one folder (opened twice)", "the second refuses", cases="1")
def test_two_processes_cannot_open_one_folder(storage: Storage, tmp_path: Path) -> None:
    with pytest.raises(NeedsOperator, match="another Pump runs in"):
        opened(tmp_path)


def test_a_group_is_one_write_and_one_sync(storage: Storage, files: MemoryFiles) -> None:
    files.calls.clear()
    storage.index(storage.append([prewrite(ts) for ts in range(1, 9)]))
    assert [call for call, _ in files.calls] == ["write", "sync"]


def test_without_sync_log_nothing_is_synced(tmp_path: Path) -> None:
    files = MemoryFiles()
    config = StorageConfig(sync_log=False, stop_write_at_available_bytes=0)
    storage = Storage.open(tmp_path, config, files=files)
    files.calls.clear()
    write(storage, prewrite(1), commit(1, 2))
    assert [call for call, _ in files.calls] == ["write"]
    storage.close()


# What writers repeat, and what they get wrong.


@pytest.mark.fault(
    "kill between index and the next step (`pump.after_index`)",
    "acknowledged again when repeated, stored once",
    cases="1 / all passings",
)
def test_repeated_records_are_acknowledged_and_stored_once(storage: Storage) -> None:
    group = [prewrite(1), commit(1, 5), prewrite(2), rollback(2), fake(9)]
    for record in [*group, *group]:
        write(storage, record)
    write(storage, *group)
    assert storage.stats()["appended_records"] == 5
    assert storage.stats()["repeated_records"] == 10
    assert commits(storage) == [(1, 5)]


@pytest.mark.parametrize("restart", ["none", "clean", "without index"])
def test_the_answers_are_the_same_after_a_restart(tmp_path: Path, restart: str) -> None:
    storage = opened(tmp_path)
    write(storage, prewrite(1, b"a"), commit(1, 5), prewrite(2, b"b"), rollback(2), prewrite(3))
    if restart != "none":
        storage.close()
        if restart == "without index":
            put_index(tmp_path, None)
        storage = opened(tmp_path)
    before = storage.stats()["appended_records"]
    write(storage, prewrite(1, b"a"), commit(1, 5), prewrite(2, b"b"), rollback(2), prewrite(3))
    assert storage.stats()["appended_records"] == before
    for wrong in (
        prewrite(1, b"another"),
        prewrite(3, b"another"),
        commit(1, 6),
        commit(2, 7),
        rollback(1),
        commit(3, 5),
    ):
        assert isinstance(refusal(storage, wrong), Contradiction), wrong
    assert commits(storage) == [(1, 5)]
    storage.close()


def test_answers_do_not_change_when_a_transaction_leaves_memory(storage: Storage) -> None:
    storage._ledger.generation_max = 4
    for ts in range(10, 500, 10):
        ends = rollback(ts) if ts % 100 == 0 else commit(ts, ts + 1)
        write(storage, prewrite(ts), ends)
    for ts in range(10, 500, 10):
        write(storage, prewrite(ts))
        if ts % 100 == 0:
            write(storage, rollback(ts))
            assert isinstance(refusal(storage, commit(ts, ts + 2)), Contradiction)
        else:
            write(storage, commit(ts, ts + 1))
            assert isinstance(refusal(storage, commit(ts, ts + 2)), Contradiction)
            assert isinstance(refusal(storage, rollback(ts)), Contradiction)
    assert len(commits(storage)) == 45


def test_a_commit_without_prewrite_is_refused_until_that_arrives(storage: Storage) -> None:
    assert isinstance(refusal(storage, commit(1, 5)), NoPrewrite)
    write(storage, prewrite(1))
    write(storage, commit(1, 5))
    assert commits(storage) == [(1, 5)]


def test_a_rollback_that_overtakes_its_prewrite_ends_it(storage: Storage) -> None:
    write(storage, rollback(1))
    write(storage, prewrite(1), fake(4))
    assert storage.max_commit_ts == 4
    assert storage.unmatched() == []
    assert isinstance(refusal(storage, commit(1, 5)), Contradiction)


def test_a_commit_ts_from_before_its_prewrite_is_refused(storage: Storage) -> None:
    write(storage, prewrite(1), prewrite(2), commit(2, 10))
    write(storage, prewrite(3))
    assert "asked for before" in str(refusal(storage, commit(3, 9)))
    write(storage, commit(1, 5))  # This one's Prewrite was here before the commit at 10.
    assert commits(storage) == [(1, 5), (2, 10)]


def test_two_transactions_cannot_commit_at_the_same_time(storage: Storage) -> None:
    write(storage, prewrite(1), prewrite(2), commit(1, 5))
    assert isinstance(refusal(storage, commit(2, 5)), Contradiction)
    write(storage, commit(2, 6))
    assert commits(storage) == [(1, 5), (2, 6)]


@pytest.mark.parametrize("record", [prewrite(0), commit(0, 5), commit(7, 7), rollback(-1)])
def test_impossible_timestamps_are_refused(storage: Storage, record: Record) -> None:
    write(storage, prewrite(7))
    assert isinstance(refusal(storage, record), Contradiction)


def test_one_refused_record_keeps_its_group_out_and_says_which(storage: Storage) -> None:
    group = [prewrite(1), commit(8, 9), prewrite(2)]
    with pytest.raises(NotStored) as raised:
        storage.append(group)
    assert list(raised.value.refused) == [1]
    assert storage.unmatched() == []
    write(storage, group[0], group[2])
    assert [u.start_ts for u in storage.unmatched()] == [1, 2]


def test_records_of_one_group_know_of_each_other(storage: Storage) -> None:
    write(storage, prewrite(1), prewrite(1), commit(1, 5), commit(1, 5), prewrite(2), rollback(2))
    assert isinstance(refusal(storage, prewrite(6), rollback(6), commit(6, 9)), Contradiction)
    assert isinstance(refusal(storage, prewrite(6), commit(6, 9), commit(6, 8)), Contradiction)
    assert commits(storage) == [(1, 5)]


def test_the_newest_timestamp_is_known_although_an_open_transaction_holds_it_back(
    tmp_path: Path,
) -> None:
    files = MemoryFiles()
    storage = opened(tmp_path, files)
    write(storage, *map(prewrite, (1, 2)))
    write(storage, commit(2, 90), prewrite(95))
    assert (storage.max_commit_ts, storage.newest_ts) == (0, 95)
    storage.close()
    storage = opened(tmp_path, files)
    assert (storage.max_commit_ts, storage.newest_ts) == (0, 95)
    storage.close()


# Watermarks.


def test_a_watermark_completes_the_stream_and_leaves_nothing_on_the_disk(tmp_path: Path) -> None:
    files = MemoryFiles()
    storage = opened(tmp_path, files)
    write(storage, prewrite(1), commit(1, 5))
    end, calls, dump = storage.log.end, list(files.calls), index_dump(storage)
    assert storage.pull_watermark(5) is None
    storage.advance(9)
    storage.advance(7)
    assert (storage.max_commit_ts, storage.logged_ts, storage.newest_ts) == (9, 5, 9)
    found = storage.pull_watermark(5)
    assert found is not None
    assert [decode_binlog(payload).is_fake for payload in found.payloads] == [True]
    assert (storage.log.end, files.calls, index_dump(storage)) == (end, calls, dump)
    assert storage.pull(5, bytes_max=1, count_max=1) == found
    assert storage.pull_watermark(9) is None
    assert storage.pull_watermark(4) is None, "a binlog is left"
    assert storage.pull(4, bytes_max=1, count_max=1).commit_ts == [5, 9]
    storage.close()


def test_a_watermark_goes_no_further_than_an_open_transaction_lets_it(storage: Storage) -> None:
    write(storage, prewrite(1), commit(1, 5), prewrite(6))
    storage.advance(20)
    assert storage.max_commit_ts == 5
    write(storage, prewrite(21))
    assert isinstance(refusal(storage, commit(21, 20)), Contradiction)
    write(storage, commit(6, 7))
    assert (storage.max_commit_ts, commits(storage)) == (20, [(1, 5), (6, 7)])
    write(storage, commit(21, 22))
    assert [binlog.commit_ts for binlog in pulled(storage)] == [5, 7, 22]


def test_no_watermark_is_published_before_the_group_that_may_lie_below(storage: Storage) -> None:
    write(storage, prewrite(1))
    appended = storage.append([commit(1, 5)])
    with pytest.raises(AssertionError):
        storage.advance(9)
    storage.index(appended)
    storage.advance(9)
    assert [binlog.commit_ts for binlog in pulled(storage)] == [5, 9]


@pytest.mark.parametrize("is_rebuilt", [False, True])
def test_a_start_knows_no_watermark_and_puts_new_transactions_above_it(
    tmp_path: Path, is_rebuilt: bool
) -> None:
    files = MemoryFiles()
    storage = opened(tmp_path, files)
    write(storage, prewrite(1), commit(1, 5))
    storage.advance(9)
    write(storage, prewrite(10))
    storage.advance(12)
    storage.flush()
    assert (storage.max_commit_ts, storage.logged_ts) == (9, 9)
    die(storage)
    if is_rebuilt:
        put_index(tmp_path, None)
    storage = opened(tmp_path, files)
    assert storage.max_commit_ts == (5 if is_rebuilt else 9)
    assert storage.log.largest_ts == 10
    assert storage.pull(12, bytes_max=1, count_max=1).last_ts == 12
    storage.begin(15)
    write(storage, prewrite(16), rollback(10))
    assert isinstance(refusal(storage, commit(16, 12)), Contradiction)
    write(storage, commit(16, 17))
    assert commits(storage, 12) == [(16, 17)]
    storage.close()


@given(st.lists(st.tuples(st.sampled_from("pcrfwwiRD"), st.integers(0, 9)), max_size=60))
def test_who_pulls_up_to_watermarks_misses_nothing_whatever_a_restart_forgets(
    steps: list[tuple[str, int]],
) -> None:
    """Each writer asks for its commit_ts after its Prewrite; the Pump, for a watermark."""
    with tempfile.TemporaryDirectory() as folder:
        path, files = Path(folder), MemoryFiles()
        storage, after_ts, found, expected = opened(path, files), 0, list[int](), list[int]()
        for ts, (step, choice) in enumerate(steps, start=1):
            open_ts = [each.start_ts for each in storage.unmatched()]
            if step == "p":
                write(storage, prewrite(ts))
            elif step in "cr" and open_ts:
                start_ts = open_ts[choice % len(open_ts)]
                write(storage, commit(start_ts, ts) if step == "c" else rollback(start_ts))
                expected += [ts] if step == "c" else []
            elif step == "f":
                write(storage, fake(ts))
            elif step == "w":
                storage.advance(ts)
            elif step == "i":
                storage.flush()
            elif step in "RD":
                logged_ts = storage.logged_ts
                die(storage)
                if step == "D":
                    put_index(path, None)
                storage = opened(path, files)
                assert storage.log.largest_ts >= logged_ts
                assert storage.newest_ts <= ts
                storage.begin(ts)
            piece = storage.pull_watermark(after_ts)
            piece = piece or storage.pull(after_ts, bytes_max=1 << 20, count_max=1 + choice)
            binlogs = [decode_binlog(payload) for payload in piece.payloads]
            assert piece.commit_ts == sorted(set(piece.commit_ts))
            assert all(binlog.commit_ts > after_ts for binlog in binlogs)
            found += [binlog.commit_ts for binlog in binlogs if not binlog.is_fake]
            after_ts = piece.last_ts
        for each in storage.unmatched():
            write(storage, rollback(each.start_ts))
        write(storage, fake(len(steps) + 1))
        found += [commit_ts for _, commit_ts in commits(storage, after_ts)]
        storage.close()
    assert found == sorted(expected)


# The newest DDL.


def test_the_newest_ddl_is_that_with_the_largest_commit_ts(storage: Storage) -> None:
    assert storage.newest_ddl == (0, 0)
    write(storage, *map(prewrite, (1, 2, 3)))
    write(storage, commit(1, 30, job=8))
    write(storage, commit(2, 20, job=7), commit(3, 40))
    assert storage.newest_ddl == (30, 8)


@pytest.mark.parametrize("is_rebuilt", [False, True])
def test_the_newest_ddl_is_known_after_a_crash_and_without_an_index(
    tmp_path: Path, is_rebuilt: bool
) -> None:
    files = MemoryFiles()
    storage = opened(tmp_path, files)
    write(storage, *map(prewrite, (1, 2)))
    write(storage, commit(1, 30, job=8))
    storage.flush()
    write(storage, commit(2, 40, job=9))
    die(storage)
    if is_rebuilt:
        put_index(tmp_path, None)
    storage = opened(tmp_path, files)
    assert storage.newest_ddl == (40, 9)
    storage.close()


def test_the_newest_ddl_stays_known_when_it_is_purged(tmp_path: Path) -> None:
    files = MemoryFiles()
    storage = opened(tmp_path, files)
    write(storage, prewrite(1))
    write(storage, commit(1, 2, job=9))
    for start_ts in range(3, 103, 2):
        write(storage, prewrite(start_ts, b"x" * 100), commit(start_ts, start_ts + 1))
    assert storage.gc(100) > 0
    assert storage.get(2) is None
    storage.close()
    storage = opened(tmp_path, files)
    assert storage.newest_ddl == (2, 9)
    storage.close()


def test_a_forgotten_early_rollback_leaves_its_prewrite_to_the_resolver(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transactions, "_EARLY_MAX", 1)
    files = MemoryFiles()
    storage = opened(tmp_path, files)
    write(storage, rollback(1), rollback(2), prewrite(1), prewrite(2))
    assert [each.start_ts for each in storage.unmatched()] == [1]
    write(storage, prewrite(3), commit(3, 9))
    assert commits(storage) == []
    die(storage)
    storage = opened(tmp_path, files)
    assert [each.start_ts for each in storage.unmatched()] == [1]
    write(storage, rollback(1))  # The resolver's.
    assert commits(storage) == [(3, 9)]
    storage.close()


# Disks that fail.


def test_a_full_disk_is_out_of_space_and_pulls_continue(
    storage: Storage, files: MemoryFiles
) -> None:
    write(storage, prewrite(1), commit(1, 5), prewrite(6))
    files.fail_once("write", errno.ENOSPC)
    with pytest.raises(OutOfSpace):
        storage.append([prewrite(7)])
    assert commits(storage) == [(1, 5)]
    write(storage, commit(6, 8))
    assert commits(storage) == [(1, 5), (6, 8)]


@pytest.mark.fault(
    "the reserve is reached (a fake volume, a full one)",
    "Prewrites refused first, then all; pulls continue",
    cases="3",
)
def test_the_reserve_is_kept_for_what_ends_transactions(tmp_path: Path) -> None:
    files = MemoryFiles()
    config = StorageConfig(stop_write_at_available_bytes=1000)
    storage = Storage.open(tmp_path, config, files=files)
    write(storage, prewrite(1), prewrite(2))
    storage.check_space()
    files.free_bytes = 1000
    with pytest.raises(OutOfSpace, match="available: 1000, StopWriteAtAvailableSpace: 1000"):
        storage.check_space()
    with pytest.raises(NotStored, match="no available space") as raised:
        storage.append([prewrite(3), commit(1, 5)])
    assert list(raised.value.refused) == [0]
    write(storage, commit(1, 5), rollback(2), fake(8))
    assert storage.max_commit_ts == 8
    files.free_bytes = 500
    assert isinstance(refusal(storage, fake(9)), OutOfSpace)
    files.free_bytes = 1100
    write(storage, prewrite(9))
    storage.close()


def test_an_index_entry_can_be_written_again_after_a_failure(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    appended = storage.append([prewrite(1), commit(1, 5)])
    with monkeypatch.context() as patched:
        patched.setattr("pump.store.index.Batch.write", _fails)
        with pytest.raises(Retryable):
            storage.index(appended)
        assert storage.max_commit_ts == 0
    storage.index(appended)
    assert commits(storage) == [(1, 5)]


def _fails(batch: object) -> None:
    raise Retryable("made to fail", code=Code.ETCD_AWAY)


# Restarts and purges; crashes and damage are in tests/fault.


def test_a_clean_restart_replays_nothing_and_knows_all(tmp_path: Path) -> None:
    storage = opened(tmp_path)
    for ts in range(10, 300, 10):
        write(storage, prewrite(ts), commit(ts, ts + 1))
    dump, before = index_dump(storage), commits(storage)
    storage.close()
    storage = opened(tmp_path)
    assert storage.stats()["replayed_records"] == 0
    assert (index_dump(storage), commits(storage)) == (dump, before)
    storage.close()


def test_an_open_transaction_survives_any_number_of_restarts(tmp_path: Path) -> None:
    storage = opened(tmp_path)
    write(storage, prewrite(1), commit(1, 2), prewrite(3, b"waits"))
    for ts in range(10, 300, 10):
        write(storage, prewrite(ts), commit(ts, ts + 1))
    for _ in range(3):
        assert storage.max_commit_ts == 2
        assert [u.start_ts for u in storage.unmatched()] == [3]
        storage.close()
        storage = opened(tmp_path)
    write(storage, commit(3, 5))
    assert storage.max_commit_ts == 291
    assert commits(storage)[:3] == [(1, 2), (3, 5), (10, 11)]
    storage.close()


def filled(path: Path, files: MemoryFiles | None = None) -> Storage:
    storage = opened(path, files)
    for ts in range(10, 500, 10):
        write(storage, prewrite(ts, b"v" * 100), commit(ts, ts + 1))
    assert storage.stats()["segments"] > 3
    return storage


@pytest.mark.fault(
    "purge while a Drainer lags (histories with purges; ages of checkpoints)",
    "not past a checkpoint unless forced, and then said; a pull of what is gone is an error",
    cases="among the kills at every step, + 10",
)
def test_purged_binlogs_are_an_error_not_silence(tmp_path: Path) -> None:
    storage = filled(tmp_path)
    everything = commits(storage)
    assert storage.gc(before_ts=250) > 0
    purged_ts = storage.purged_ts
    assert 0 < purged_ts < 250
    with pytest.raises(PurgedRange) as raised:
        storage.pull(purged_ts - 1, bytes_max=100, count_max=1)
    assert (raised.value.after_ts, raised.value.purged_ts) == (purged_ts - 1, purged_ts)
    left = [pair for pair in everything if pair[1] > purged_ts]
    assert commits(storage, purged_ts) == left
    assert (storage.get(purged_ts), storage.prewrite(10)) == (None, None)
    assert storage.gc(before_ts=250) == 0
    storage.close()
    for without_index in (False, True):
        if without_index:
            put_index(tmp_path, None)
        storage = opened(tmp_path)
        assert storage.purged_ts >= purged_ts
        assert commits(storage, storage.purged_ts) == [p for p in left if p[1] > storage.purged_ts]
        with pytest.raises(PurgedRange):
            storage.pull(0, bytes_max=100, count_max=1)
        storage.close()


def test_an_open_prewrite_and_all_after_it_are_never_purged(tmp_path: Path) -> None:
    storage = opened(tmp_path)
    write(storage, prewrite(5, b"waits"))
    for ts in range(10, 500, 10):
        write(storage, prewrite(ts, b"v" * 100), commit(ts, ts + 1))
    assert storage.gc(before_ts=10**9) == 0
    write(storage, commit(5, 600), fake(700))
    assert storage.gc(before_ts=500) == 0, "the first segment holds what commits at 600"
    assert commits(storage)[-1] == (5, 600)
    assert storage.gc(before_ts=650) > 0
    assert storage.purged_ts >= 600
    storage.close()


class BeginsSegments:
    """Copies whose list changes each time that a group is shipped to them."""

    def __init__(self, log: Segments) -> None:
        self._log = log

    @property
    def acknowledged(self) -> Place:
        return self._log.end

    def store(
        self, write: Callable[[], list[Position]], sync: Callable[[], None]
    ) -> list[Position]:
        positions = write()
        sync()
        self._log.begin_next()
        return positions

    def may_drop_before(self, segment: int) -> int:
        return segment


def test_a_group_keeps_its_segment_if_another_began_before_it_was_acknowledged(
    tmp_path: Path,
) -> None:
    storage = opened(tmp_path)
    storage.ship_with(BeginsSegments(storage.log))
    for ts in range(10, 60, 10):
        write(storage, prewrite(ts), commit(ts, ts + 1))
    write(storage, fake(100))
    storage.flush()
    assert storage.needed_from(31) == 2
    storage.gc(before_ts=31)
    assert commits(storage, 30) == [(30, 31), (40, 41), (50, 51)]
    storage.close()


class EndsInAGroup(BeginsSegments):
    """Copies that another Pump takes over while a group waits for them."""

    def store(
        self, write: Callable[[], list[Position]], sync: Callable[[], None]
    ) -> list[Position]:
        write()
        sync()
        raise Retryable("another Pump has the log", code=Code.LOG_DEPOSED)


def test_a_group_in_doubt_is_replayed_though_what_came_after_it_was_stored_before(
    tmp_path: Path,
) -> None:
    storage = opened(tmp_path)
    write(storage, prewrite(10))
    storage._copies = EndsInAGroup(storage.log)
    with pytest.raises(Retryable, match="another Pump"):
        write(storage, commit(10, 11))
    write(storage, prewrite(10))
    storage.flush()
    die(storage)
    storage = opened(tmp_path)
    assert commits(storage) == [(10, 11)]
    storage.close()


def test_nothing_is_purged_before_it_can_be_pulled(tmp_path: Path) -> None:
    storage = filled(tmp_path)
    storage.gc(before_ts=10**18)
    assert storage.purged_ts <= storage.max_commit_ts
    assert commits(storage, storage.purged_ts)[-1] == (490, 491)
    storage.close()


def test_a_log_starts_again_whose_binlogs_are_all_purged(tmp_path: Path) -> None:
    """Epochs in which nothing was written leave segments without binlogs."""
    storage = opened(tmp_path)
    write(storage, prewrite(10), commit(10, 11))
    storage.log.begin_next()
    storage.close()
    storage = opened(tmp_path)
    storage._flusher.join()
    storage.advance(50)
    assert storage.gc(before_ts=40) == 1
    storage.close()
    storage = opened(tmp_path)
    assert storage.purged_ts == 11
    storage.close()
    (tmp_path / "log" / "000001.seg").unlink()
    with pytest.raises(Corrupt, match="this segment is missing"):
        opened(tmp_path)


def test_a_purge_stopped_by_a_crash_is_finished_at_the_next_start(tmp_path: Path) -> None:
    files = MemoryFiles()
    storage = filled(tmp_path, files)
    files.fail_once("remove")
    with pytest.raises(Retryable, match="made to fail"):
        storage.gc(before_ts=250)
    purged_ts = storage.purged_ts
    before = storage.stats()["segments"]
    die(storage)
    storage = opened(tmp_path, files.after_kill())
    assert storage.purged_ts == purged_ts > 0
    assert storage.stats()["segments"] < before
    assert commits(storage, purged_ts)[-1] == (490, 491)
    storage.close()


def test_a_failed_purge_is_finished_by_the_next_one(tmp_path: Path) -> None:
    files = MemoryFiles()
    storage = filled(tmp_path, files)
    for call in ("remove", "sync_folder"):
        files.fail_once(call)
        with pytest.raises(Retryable):
            storage.gc(before_ts=250)
    assert storage.gc(before_ts=250) == 0
    assert len(files.nodes) == storage.stats()["segments"]
    assert commits(storage, storage.purged_ts)[-1] == (490, 491)
    storage.close()


def test_a_missing_oldest_segment_is_damage_not_a_purge(tmp_path: Path) -> None:
    storage = filled(tmp_path)
    storage.close()
    (tmp_path / "log" / "000000.seg").unlink()
    with pytest.raises(Corrupt, match="000000"):
        opened(tmp_path)


def test_pulls_and_purges_run_beside_appends(tmp_path: Path) -> None:
    storage = opened(tmp_path, MemoryFiles())
    stop, failures, seen = threading.Event(), list[BaseException](), list[int]()
    pulled = threading.Event()

    def pull() -> None:
        after_ts = 0
        try:
            while not stop.is_set() or after_ts < storage.max_commit_ts:
                try:
                    batch = storage.pull(after_ts, bytes_max=5000, count_max=50)
                except PurgedRange as purged:
                    after_ts = purged.purged_ts
                    continue
                assert batch.commit_ts == sorted(batch.commit_ts)
                assert all(ts > after_ts for ts in batch.commit_ts)
                expected = [ts for ts in range(after_ts + 1, batch.last_ts + 1) if ts % 10 == 1]
                assert batch.commit_ts == [ts for ts in expected if ts > 1]
                after_ts = batch.last_ts
                seen.append(after_ts)
                pulled.set()
        except BaseException as error:
            failures.append(error)

    def purge() -> None:
        try:
            while not stop.is_set():
                storage.gc(storage.max_commit_ts - 2000)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work) for work in (pull, pull, purge)]
    for thread in threads:
        thread.start()
    for begin in range(10, 20_000, 100):
        starts = range(begin, begin + 100, 10)
        write(storage, *(r for ts in starts for r in (prewrite(ts), commit(ts, ts + 1))))
        assert pulled.wait(10), failures
        pulled.clear()
    stop.set()
    for thread in threads:
        thread.join()
    assert failures == []
    assert seen
    assert storage.purged_ts > 0
    storage.close()
