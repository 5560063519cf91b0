"""Disks that are full, fail or are slow, and a process that runs out of descriptors."""

import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from penstock.errors import Retryable
from pump.store.storage import NotStored, OutOfSpace, Storage
from tests.fault.test_storage_failpoints import ran, survives
from tests.kit.crash.disks import faulty_disk, small_disk
from tests.kit.fakes.storage import SMALL, commit, commits, die, opened, prewrite, write

pytestmark = pytest.mark.fault

CONFIG = replace(SMALL, segment_bytes_max=256 << 10, index_write_buffer_bytes=64 << 10)
Pair = tuple[int, int]


def fill(storage: Storage, value: bytes) -> tuple[list[Pair], Exception]:
    """Commit until the disk is full; return what was acknowledged, and the refusal."""
    acknowledged: list[Pair] = []
    for ts in range(10, 1_000_000, 10):
        try:
            write(storage, prewrite(ts, value))
            appended = storage.append([commit(ts, ts + 5)])
            acknowledged.append((ts, ts + 5))
            storage.index(appended)
        except (Retryable, NotStored) as error:
            return acknowledged, error
    raise AssertionError("this disk is never full")


@pytest.mark.fault(
    "disk full during append (small disk)",
    "`OutOfSpace`; pulls continue; resumes with space",
    cases="2",
)
def test_a_full_disk_refuses_writes_serves_pulls_and_resumes_with_space(tmp_path: Path) -> None:
    with small_disk(tmp_path / "small", 8 << 20) as disk:
        ballast = disk / "ballast"
        ballast.write_bytes(bytes(4 << 20))
        storage = opened(disk / "pump", config=CONFIG)
        acknowledged, refusal = fill(storage, b"v" * 60_000)
        reason = refusal.refused[0] if isinstance(refusal, NotStored) else refusal
        assert isinstance(reason, OutOfSpace)
        assert len(acknowledged) > 10
        assert commits(storage) == acknowledged
        ballast.unlink()
        for unmatched in storage.unmatched():
            write(storage, commit(unmatched.start_ts, unmatched.start_ts + 5))
        write(storage, prewrite(2_000_000), commit(2_000_000, 2_000_005))
        found = commits(storage)
        assert found[: len(acknowledged)] == acknowledged
        assert found[-1] == (2_000_000, 2_000_005)
        die(storage)
        storage = opened(disk / "pump", config=CONFIG)
        assert commits(storage) == found
        storage.close()


@pytest.mark.fault(
    "disk full under LevelDB (small disk, three sizes of record)",
    "nothing lost after a restart with space",
    cases="3",
)
@pytest.mark.main_case("300]")
@pytest.mark.parametrize("value_bytes", [1, 300, 3000])
def test_a_disk_that_fills_under_leveldb_loses_nothing(tmp_path: Path, value_bytes: int) -> None:
    with small_disk(tmp_path / "small", 3 << 20) as disk:
        ballast = disk / "ballast"
        ballast.write_bytes(bytes(2400 << 10))
        storage = opened(disk / "pump", config=CONFIG)
        acknowledged, _ = fill(storage, b"v" * value_bytes)
        die(storage)
        ballast.unlink()
        storage = opened(disk / "pump", config=CONFIG)
        for unmatched in storage.unmatched():
            write(storage, commit(unmatched.start_ts, unmatched.start_ts + 5))
        assert commits(storage)[: len(acknowledged)] == acknowledged
        storage.close()


@contextmanager
def no_descriptors() -> Iterator[None]:
    """Let every `open` fail with EMFILE."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest = os.open(os.devnull, os.O_RDONLY)
    os.close(lowest)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


@pytest.mark.fault(
    "no descriptors (`RLIMIT_NOFILE`)",
    "appends and pulls fail with the reason; no half segment; resumes",
    cases="1",
)
def test_without_descriptors_a_rotation_fails_clearly_and_leaves_no_half_segment(
    tmp_path: Path,
) -> None:
    storage = opened(tmp_path)
    acknowledged = []
    for ts in range(10, 200, 10):
        write(storage, prewrite(ts, b"v" * 100), commit(ts, ts + 5))
        acknowledged.append((ts, ts + 5))
    with no_descriptors():
        for ts in range(200, 1000, 10):
            try:
                write(storage, prewrite(ts, b"v" * 100), commit(ts, ts + 5))
            except Retryable as error:
                assert "Too many open files" in str(error)  # noqa: PT017
                break
            acknowledged.append((ts, ts + 5))
        else:
            pytest.fail("no segment was full")
        with pytest.raises(Retryable, match="Too many open files"):
            commits(storage)
    assert not list((tmp_path / "log").glob("*.new"))
    write(storage, prewrite(2000), commit(2000, 2005))
    assert commits(storage) == [*acknowledged, (2000, 2005)]
    die(storage)
    storage = opened(tmp_path)
    assert commits(storage) == [*acknowledged, (2000, 2005)]
    storage.close()


@pytest.mark.fault(
    "short writes (preloaded library: at most 100 bytes a call; memory: half a write, then an"
    " error)",
    "completed, or cut back",
    cases="3",
)
def test_a_process_whose_every_write_is_short_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LD_PRELOAD", str(faulty_disk(tmp_path)))
    monkeypatch.setenv("FAULTY_MATCH", "/log/")
    monkeypatch.setenv("FAULTY_SHORT", "100")
    code, said = ran(tmp_path / "pump", "")
    assert code == 0
    survives(tmp_path / "pump", said)


@pytest.mark.parametrize("number", [3, pytest.param(range(1, 90), marks=pytest.mark.slow)])
def test_a_process_whose_sync_fails_acknowledges_nothing_more_on_that_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int | range
) -> None:
    monkeypatch.setenv("LD_PRELOAD", str(faulty_disk(tmp_path)))
    monkeypatch.setenv("FAULTY_MATCH", "/log/")
    for n in [number] if isinstance(number, int) else number:
        monkeypatch.setenv("FAULTY_SYNC", str(n))
        code, said = ran(tmp_path / str(n), "")
        if code == 0:  # It failed where no one waits for it: in the mark of a clean stop.
            assert n > 3
        monkeypatch.delenv("FAULTY_SYNC")
        survives(tmp_path / str(n), said)
