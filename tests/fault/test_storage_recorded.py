"""Every state in which a crash may leave the log, opened with each index it may come with."""

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from penstock.errors import Retryable
from tests.kit.crash.recorder import Disk, Moment, RecordedFiles, disk_of, legal_states
from tests.kit.fakes.files import MemoryFiles
from tests.kit.fakes.storage import (
    commit,
    commits,
    copy_index,
    die,
    fake,
    opened,
    prewrite,
    put_index,
    rollback,
    write,
)

pytestmark = pytest.mark.fault

Pair = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Promised:
    """What the writers, the puller and LevelDB's folder know at one moment."""

    acknowledged: int
    issued: int
    purging_ts: int
    flushed_index: Path | None
    index: Path | None


Case = tuple[str, Promised, Disk, Path | None]
"""What it is called, what was promised, and what is on the disk: log and index."""


class RecordedRun:
    """A storage that does everything once, while its disk is recorded."""

    def __init__(self, folder: Path, rows: bytes) -> None:
        self.rows = rows
        self.folder = folder
        self.path = folder / "pump"
        self.issued: list[Pair] = []
        self.acknowledged = 0
        self.purging_ts = 0
        self.flushed_index: Path | None = None
        self.index: Path | None = None
        self.copies = itertools.count()
        self.files = RecordedFiles(self.promised)
        self.storage = opened(self.path, self.files)

    def promised(self, call: str) -> Promised:
        if call == "remove" and self.purging_ts:
            self.copy()  # What is purged was noted in the index, and that was synced.
            self.flushed_index = self.index
        return Promised(
            self.acknowledged, len(self.issued), self.purging_ts, self.flushed_index, self.index
        )

    def copy(self) -> None:
        self.index = self.folder / str(next(self.copies))
        copy_index(self.path, self.index)

    def commit(self, pairs: list[Pair], fault: str = "") -> None:
        write(self.storage, *(prewrite(pair[0], self.rows) for pair in pairs))
        self.copy()
        self.issued += pairs
        if fault:
            self.files.fail_once(fault)
            with pytest.raises(Retryable):
                self.storage.append([commit(*pair) for pair in pairs])
        appended = self.storage.append([commit(*pair) for pair in pairs])
        self.acknowledged = len(self.issued)
        self.storage.index(appended)
        self.copy()

    def flush(self) -> None:
        self.storage.flush()
        self.copy()
        self.flushed_index = self.index

    def purge(self, before_ts: int) -> None:
        self.purging_ts = before_ts
        assert self.storage.gc(before_ts) > 0
        self.copy()
        self.flushed_index = self.index

    def record(self) -> list[Moment]:
        for ts in range(10, 60, 10):
            self.commit([(ts, ts + 4), (ts + 1, ts + 5)])
        write(self.storage, fake(70), prewrite(71), rollback(71), prewrite(72))
        self.flush()
        self.commit([(80, 85)], fault="sync")
        self.commit([(90, 95), (91, 96), (92, 97), (93, 98)], fault="write")
        self.storage.index(self.storage.append([rollback(72)]))
        self.purge(40)
        self.commit([(100, 105)])
        self.storage.close()
        self.copy()
        self.files.note("closed")
        self.storage = opened(self.path, self.files)
        self.commit([(110, 115)])
        self.files.note("end")
        die(self.storage)
        return self.files.moments


def cases(moments: list[Moment]) -> Iterator[Case]:
    for number, moment in enumerate(moments):
        promised = moment.mark
        assert isinstance(promised, Promised)
        indexes = {promised.flushed_index, promised.index}
        if not promised.purging_ts:
            indexes.add(None)
        for word, disk in legal_states(moment):
            for index in sorted(indexes, key=str):
                name = f"call {number}, {moment.call}: {word}; index {index and index.name}"
                yield name, promised, disk, index


def is_kept(path: Path, files: MemoryFiles, promised: Promised, issued: list[Pair]) -> None:
    storage = opened(path, files)
    after_ts = storage.purged_ts
    assert after_ts <= promised.purging_ts
    for unmatched in storage.unmatched():
        if not any(pair[0] == unmatched.start_ts for pair in issued[: promised.issued]):
            write(storage, rollback(unmatched.start_ts))
        else:
            write(storage, *(commit(*p) for p in issued if p[0] == unmatched.start_ts))
    found = commits(storage, after_ts)
    assert found == sorted(found, key=lambda pair: pair[1])
    assert set(found) <= set(issued[: promised.issued])
    acknowledged = {pair for pair in issued[: promised.acknowledged] if pair[1] > after_ts}
    assert acknowledged <= set(found)
    write(storage, prewrite(900), commit(900, 901))
    assert commits(storage, after_ts) == [*found, (900, 901)]
    die(storage)


def all_kept(path: Path, found: Iterable[Case], issued: list[Pair]) -> int:
    """Open each case's disk with its index, and hold it against what was promised; count them."""
    count = 0
    for name, promised, disk, index in found:
        put_index(path, index)
        try:
            is_kept(path, disk_of(disk), promised, issued)
        except Exception as error:
            raise AssertionError(f"{name}: {error}") from error
        count += 1
    return count


@pytest.mark.fault(
    "any part of a group on the disk (recorder: each unsynced sector kept, dropped, alone,"
    " zero; with the index as it was, as it was flushed, and none)",
    "none of the group was acknowledged; any prefix may survive; no error",
    cases="189 disks × indexes = 403 / 1014 disks, 2100",
)
@pytest.mark.parametrize(
    ("rows_bytes", "cases_min"), [(300, 400), pytest.param(6000, 1500, marks=pytest.mark.slow)]
)
def test_every_legal_state_after_a_crash_opens_with_all_that_was_acknowledged(
    tmp_path: Path, rows_bytes: int, cases_min: int
) -> None:
    run = RecordedRun(tmp_path, b"r" * rows_bytes)
    moments = run.record()
    count = all_kept(tmp_path / "pump", cases(moments), run.issued)
    assert count > cases_min, count
