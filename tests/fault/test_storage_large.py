"""Large binlogs in the log: crashes at every step, cuts at every byte, purges, a lost index."""

import itertools
import shutil
from pathlib import Path

import pytest

from penstock.errors import Corrupt
from penstock.log.chunks import decode_chunk_list
from pump.store.record import PurgedRange
from pump.store.storage import Storage, StorageConfig
from tests.fault.test_storage_recorded import RecordedRun, all_kept, cases
from tests.kit.crash.recorder import Moment, disk_of
from tests.kit.fakes.files import MemoryFiles
from tests.kit.fakes.storage import (
    commit,
    commits,
    die,
    fake,
    index_dump,
    opened,
    prewrite,
    pulled,
    rollback,
    write,
)
from tests.kit.workloads.large import chunk_list_of, chunks_of, large_prewrite, write_large

pytestmark = pytest.mark.fault

ROWS = bytes(range(256)) * 2


class LargeRun(RecordedRun):
    """Writes transactions in chunks, others between them, and some that never end."""

    def commit_large(self, start_ts: int, commit_ts: int) -> None:
        payload = large_prewrite(start_ts, self.rows)
        chunks = list(chunks_of(payload, start_ts, 256))
        for number, chunk in enumerate(chunks):
            write(self.storage, chunk)
            if number == 0:
                self.commit([(start_ts + 1, start_ts + 2)])
        write(self.storage, chunk_list_of(payload, start_ts, chunks))
        self.copy()
        self.issued.append((start_ts, commit_ts))
        appended = self.storage.append([commit(start_ts, commit_ts)])
        self.acknowledged = len(self.issued)
        self.storage.index(appended)
        self.copy()

    def record(self) -> list[Moment]:
        """Run, from the first group to a clean stop and a second start."""
        self.commit([(10, 14)])
        self.commit_large(20, 25)
        write_large(self.storage, 30, self.rows, end=False)
        self.flush()
        self.commit_large(40, 45)
        write_large(self.storage, 50, self.rows)
        self.storage.index(self.storage.append([rollback(50)]))
        self.commit([(60, 65)], fault="sync")
        self.storage.incoming.clear()  # Its stream broke off.
        self.purge(26)
        self.commit_large(70, 75)
        self.storage.close()
        self.copy()
        self.files.note("closed")
        self.storage = opened(self.path, self.files)
        self.commit_large(80, 85)
        self.files.note("end")
        die(self.storage)
        return self.files.moments


@pytest.mark.fault(
    "a transaction of 2 GiB: any legal state after a crash; cut at every byte; damaged; index lost",
    "whole or not there; `Corrupt` with its place; rebuilt identically",
    cases="each 5th state / all; every byte of 2 transactions",
)
@pytest.mark.parametrize(
    ("every", "cases_min"), [(5, 100), pytest.param(1, 500, marks=pytest.mark.slow)]
)
def test_every_legal_state_after_a_crash_has_large_binlogs_whole_or_not_at_all(
    tmp_path: Path, every: int, cases_min: int
) -> None:
    run = LargeRun(tmp_path, (ROWS * 2)[:700])
    moments = run.record()
    some = itertools.islice(cases(moments), 0, None, every)
    count = all_kept(tmp_path / "pump", some, run.issued)
    assert count > cases_min, count


def written(folder: Path, files: MemoryFiles) -> Storage:
    storage = opened(folder, files, StorageConfig(stop_write_at_available_bytes=0))
    write(storage, prewrite(5), commit(5, 6))
    write_large(storage, 10, ROWS)
    write(storage, commit(10, 12))
    return storage


@pytest.mark.thorough
@pytest.mark.parametrize("step", [4, pytest.param(1, marks=pytest.mark.slow)])
def test_a_log_cut_at_any_byte_has_the_large_binlog_or_has_it_not(
    tmp_path: Path, step: int
) -> None:
    files = MemoryFiles()
    storage = written(tmp_path / "pump", files)
    path = storage._segments.folder / "000000.seg"
    die(storage)
    whole = bytes(files.nodes[path].data)
    seen = set()
    for length in (*range(32, len(whole), step), len(whole)):
        shutil.rmtree(tmp_path / "pump" / "index", ignore_errors=True)
        disk = disk_of({path: whole[:length]})
        storage = opened(tmp_path / "pump", disk)
        found = pulled(storage)
        open_ts = [u.start_ts for u in storage.unmatched()]
        if [b.start_ts for b in found] == [5, 10]:
            assert found[1].prewrite_value == ROWS
        elif open_ts == [10]:
            write(storage, commit(10, 12))
            assert pulled(storage)[1].prewrite_value == ROWS
        die(storage)
        seen.add((len(found), len(open_ts)))
    assert seen == {(0, 0), (0, 1), (1, 0), (1, 1), (2, 0)}


def test_a_flipped_byte_in_any_chunk_or_chunk_list_ends_the_pull_with_its_place(
    tmp_path: Path,
) -> None:
    files = MemoryFiles()
    storage = written(tmp_path / "pump", files)
    segment = files.nodes[storage._segments.folder / "000000.seg"]
    position = storage._index.prewrite(10)
    assert position is not None
    places = decode_chunk_list(storage._segments.read(position[1])).positions
    for where in (*places, position[1]):
        for at in range(where.offset + 24, where.offset + 24 + where.length, 7):
            segment.data[at] ^= 1
            with pytest.raises(Corrupt, match=f"offset {where.offset}: "):
                pulled(storage)
            segment.data[at] ^= 1
    assert pulled(storage)[1].prewrite_value == ROWS
    die(storage)


@pytest.mark.fault(
    "a transaction of 2 GiB: purges while it is open, sent or needed",
    "the segment of its first chunk stays",
    cases="5",
)
def test_a_segment_with_chunks_of_an_open_or_needed_transaction_stays(tmp_path: Path) -> None:
    files = MemoryFiles()
    storage = opened(tmp_path, files)
    write_large(storage, 10, ROWS * 8)
    first, last = 0, storage._segments.end.segment
    assert last > first + 1, "its chunks fill several segments"
    for ts in range(20, 200, 10):
        write(storage, prewrite(ts, b"rows" * 40), commit(ts, ts + 5))
    storage.flush()
    die(storage)
    storage = opened(tmp_path, files.after_kill())
    assert storage.gc(190) == 0, "open since before all of it, also after a restart"
    write(storage, commit(10, 500), fake(600))
    for ts in range(601, 701, 10):
        write(storage, prewrite(ts, b"rows" * 40), commit(ts, ts + 5))
    assert storage.gc(500) == 0, "its Commit is needed"
    assert next(b.start_ts for b in pulled(storage, 499)) == 10
    assert storage.gc(501) > last
    assert storage.purged_ts >= 500
    with pytest.raises(PurgedRange):
        pulled(storage, 499)
    die(storage)


def test_a_purge_waits_for_chunks_whose_stream_is_still_open(tmp_path: Path) -> None:
    storage = opened(tmp_path, MemoryFiles())
    payload = large_prewrite(10, ROWS)
    record = write_large(storage, 10, ROWS, end=False)
    for ts in range(20, 200, 10):
        write(storage, prewrite(ts, b"rows" * 40), commit(ts, ts + 5))
    assert storage.gc(190) == 0
    write(storage, record)
    storage.incoming.clear()
    write(storage, commit(10, 500))
    assert pulled(storage, 499)[0].prewrite_value == payload[-len(ROWS) :] == ROWS
    die(storage)


def test_chunks_that_a_broken_stream_left_go_with_their_segment(tmp_path: Path) -> None:
    files = MemoryFiles()
    storage = opened(tmp_path, files)
    write_large(storage, 10, ROWS, end=False)
    storage.incoming.clear()
    for ts in range(20, 200, 10):
        write(storage, prewrite(ts, b"rows" * 40), commit(ts, ts + 5))
    assert storage.unmatched() == []
    assert storage.gc(100) > 0
    die(storage)


def test_a_lost_index_is_rebuilt_identically_with_large_binlogs(tmp_path: Path) -> None:
    files = MemoryFiles()
    storage = opened(tmp_path, files)
    for ts in (10, 30, 50):
        write_large(storage, ts, ROWS * 4)
        write(storage, prewrite(ts + 1), commit(ts + 1, ts + 2))
        write(storage, commit(ts, ts + 5) if ts < 50 else rollback(ts))
    write_large(storage, 70, ROWS, end=False)
    before, stream = index_dump(storage), pulled(storage)
    die(storage)
    shutil.rmtree(tmp_path / "index")
    storage = opened(tmp_path, files.after_kill())
    assert index_dump(storage) == before
    assert pulled(storage) == stream
    assert commits(storage) == [(11, 12), (10, 15), (31, 32), (30, 35), (51, 52)]
    die(storage)


def test_a_commit_whose_chunks_were_purged_counts_as_purged_when_the_index_is_gone(
    tmp_path: Path,
) -> None:
    files = MemoryFiles()
    storage = opened(tmp_path, files)
    for chunk in chunks_of(large_prewrite(9, ROWS * 4), 9):
        write(storage, chunk)
    write_large(storage, 10, ROWS * 4)
    write(storage, commit(10, 300))
    first = storage._segments.end.segment
    for ts in range(400, 500, 10):
        write(storage, prewrite(ts, b"rows" * 40), commit(ts, ts + 5))
    assert storage.gc(301) > 0
    assert 0 < storage._segments.first <= first
    die(storage)
    shutil.rmtree(tmp_path / "index")
    storage = opened(tmp_path, files.after_kill())
    assert storage.purged_ts >= 300
    assert [b.start_ts for b in pulled(storage, storage.purged_ts)] == list(range(400, 500, 10))
    die(storage)
