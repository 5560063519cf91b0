"""Flipped bits and missing files: named with file and offset, or harmless, but never silent."""

import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest.mock import Mock

import plyvel
import pytest

from penstock.errors import Corrupt, Retryable
from penstock.log.segment import segment_name
from penstock.log.segments import Segments
from pump.store.storage import Storage
from tests.kit.fakes.files import MemoryFiles
from tests.kit.fakes.storage import (
    commit,
    commits,
    copy_index,
    die,
    fake,
    index_dump,
    opened,
    prewrite,
    put_index,
    rollback,
    write,
)

pytestmark = pytest.mark.fault

EXPECTED = [(ts, ts + 5) for ts in range(10, 150, 10)]


def filled(path: Path, files: MemoryFiles | None = None) -> Storage:
    storage = opened(path, files)
    for start_ts, commit_ts in EXPECTED:
        write(storage, prewrite(start_ts, b"some row changes " * 5), prewrite(start_ts + 1))
        write(storage, commit(start_ts, commit_ts), rollback(start_ts + 1))
    write(storage, fake(1000))
    assert storage.stats()["segments"] > 1
    return storage


def flips(files: MemoryFiles, step: int) -> Iterator[tuple[Path, int, MemoryFiles]]:
    """Yield copies of a disk, each with one bit flipped; `step` is in bytes."""
    chance = random.Random(7)
    for path, node in sorted(files.nodes.items()):
        for offset in range(0, len(node.data), step):
            damaged = files.after_crash()
            damaged.nodes[path].data[offset] ^= 1 << chance.randrange(8)
            yield path, offset, damaged


def stream_of(path: Path, files: MemoryFiles | None = None) -> list[tuple[int, int]] | Corrupt:
    """Return what can be pulled, or the damage that was reported, whichever comes first."""
    try:
        storage = opened(path, files)
    except Corrupt as corrupt:
        return corrupt
    try:
        return commits(storage)
    except Corrupt as corrupt:
        return corrupt
    finally:
        die(storage)


def scanned(files: MemoryFiles) -> list[bytes] | Corrupt:
    """Return what a log in memory holds, or the damage that was reported."""
    try:
        segments = Segments.open(Path("/log"), files=files, segment_bytes_max=100)
        return [payload for _, payload in segments.scan()]
    except Corrupt as corrupt:
        return corrupt


@pytest.mark.fault(
    "flipped bit in a payload (one bit of each byte of log and index, 3 KB of log)",
    "`Corrupt` with file and offset, or no difference; never a shorter stream",
    cases="each 13th byte, with index and without: 476 / each byte: 6,176",
)
@pytest.mark.parametrize("step", [13, pytest.param(1, marks=pytest.mark.slow)])
def test_a_flipped_bit_in_the_log_is_named(tmp_path: Path, step: int) -> None:
    files = MemoryFiles()
    storage = filled(tmp_path / "pump", files)
    copy_index(tmp_path / "pump", tmp_path / "copy")
    die(storage)
    named = 0
    for path, offset, damaged in flips(files, step):
        put_index(tmp_path / "pump", tmp_path / "copy")
        found = stream_of(tmp_path / "pump", damaged)
        if isinstance(found, Corrupt):
            named += 1
            assert found.path == str(path)
            assert found.offset <= offset
        else:
            assert found == EXPECTED, f"{path}, offset {offset}: silently lost"
    assert named > 0


@pytest.mark.thorough
@pytest.mark.parametrize("step", [13, pytest.param(1, marks=pytest.mark.slow)])
def test_a_flipped_bit_is_named_without_an_index_too(tmp_path: Path, step: int) -> None:
    files = MemoryFiles()
    filled(tmp_path, files).close()
    for path, offset, damaged in flips(files, step):
        put_index(tmp_path, None)
        found = stream_of(tmp_path, damaged)
        if isinstance(found, Corrupt):
            assert found.path == str(path)
        else:
            assert found == EXPECTED, f"{path}, offset {offset}: silently lost"


@pytest.mark.fault(
    "index ahead of the log (each segment cut to each length)",
    "refuses to start, names the file",
    cases="each 29th: 107 / each byte: 3,088",
)
@pytest.mark.fault(
    "index ahead of the log: and the index is gone",
    "a sealed segment: the same; the last: what is left of the stream",
    cases="107 / 3,088",
)
@pytest.mark.main_case("True")
@pytest.mark.parametrize("with_index", [True, False])
@pytest.mark.parametrize("step", [29, pytest.param(1, marks=pytest.mark.slow)])
def test_a_segment_cut_at_any_byte_is_named_unless_nothing_knows_of_it(
    tmp_path: Path, step: int, with_index: bool
) -> None:
    files = MemoryFiles()
    storage = filled(tmp_path / "pump", files)
    copy_index(tmp_path / "pump", tmp_path / "copy")
    end = storage._segments.end
    die(storage)
    for path, node in files.nodes.items():
        is_last = path.name == segment_name(end.segment)
        for length in range(0, end.offset if is_last else len(node.data), step):
            damaged = files.after_crash()
            damaged.nodes[path].truncate(length)
            put_index(tmp_path / "pump", tmp_path / "copy" if with_index else None)
            found = stream_of(tmp_path / "pump", damaged)
            if isinstance(found, Corrupt):
                assert found.path == str(path)
            else:
                assert not with_index, f"{path}, cut to {length}: silently lost"
                assert path == max(files.nodes)
                assert found == EXPECTED[: len(found)]


@pytest.mark.fault(
    "flipped bit in a header (every bit of a stopped log)",
    "named before the length is used",
    cases="3,360 bits",
)
def test_every_flipped_bit_of_a_stopped_log_is_named_or_harmless() -> None:
    files = MemoryFiles()
    segments = Segments.open(Path("/log"), files=files, segment_bytes_max=100)
    payloads = [b"payload %d" % n * 4 for n in range(5)]
    for payload in payloads:
        segments.append([payload])
        segments.sync()
    segments.close()
    for path, node in files.nodes.items():
        for bit in range(len(node.data) * 8):
            damaged = files.after_crash()
            damaged.nodes[path].data[bit // 8] ^= 1 << bit % 8
            found = scanned(damaged)
            if isinstance(found, Corrupt):
                assert found.path == str(path)
                assert found.offset <= bit // 8
            else:
                assert found == payloads


def test_only_the_last_group_of_a_killed_log_can_pass_for_torn() -> None:
    files = MemoryFiles()
    segments = Segments.open(Path("/log"), files=files, segment_bytes_max=1000)
    groups = [[b"group %d" % n, b"its second"] for n in range(4)]
    for group in groups:
        positions = segments.append(group)
        segments.sync()
    last = positions[0].offset
    (node,) = files.nodes.values()
    for offset in range(32, len(node.data)):
        damaged = files.after_crash()
        next(iter(damaged.nodes.values())).data[offset] ^= 0x10
        found = scanned(damaged)
        if isinstance(found, Corrupt):
            assert found.offset <= offset < last
        else:
            assert offset >= last
            assert found[:6] == [payload for group in groups[:3] for payload in group]


def _index_files(path: Path) -> list[Path]:
    return sorted(p for p in (path / "index").iterdir() if p.name not in ("LOCK", "LOG", "LOG.old"))


@pytest.mark.fault(
    "index damaged (a bit at 25 places of each file; each file missing, empty, zeros, cut;"
    " damage that only a read finds)",
    "rebuilt from the log by the start, or by the next one; the stream never changes",
    cases="about 220",
)
@pytest.mark.parametrize("flushed", [False, True])
def test_a_damaged_index_never_changes_the_stream(tmp_path: Path, flushed: bool) -> None:
    files = MemoryFiles()
    storage = filled(tmp_path / "pump", files)
    dump = index_dump(storage)
    if flushed:
        storage.flush()
    copy_index(tmp_path / "pump", tmp_path / "copy")
    die(storage)
    put_index(tmp_path / "pump", tmp_path / "copy")
    for name in [path.name for path in _index_files(tmp_path / "pump")]:
        size = (tmp_path / "copy" / name).stat().st_size
        for offset in range(0, size, max(1, size // 25)):
            put_index(tmp_path / "pump", tmp_path / "copy")
            damaged = tmp_path / "pump" / "index" / name
            data = bytearray(damaged.read_bytes())
            data[offset] ^= 0x04
            damaged.write_bytes(data)
            found = stream_of(tmp_path / "pump", files.after_kill())
            if isinstance(found, Corrupt):  # A read of the running Pump found it.
                assert found.path == str(tmp_path / "pump" / "index")
                found = stream_of(tmp_path / "pump", files.after_kill())
            assert found == EXPECTED, f"{name}, offset {offset}"
    put_index(tmp_path / "pump", None)
    storage = opened(tmp_path / "pump", files.after_kill())
    assert index_dump(storage) == dump
    storage.close()


_DAMAGES: dict[str, Callable[[Path], object]] = {
    "missing": Path.unlink,
    "empty": lambda path: path.write_bytes(b""),
    "zeros": lambda path: path.write_bytes(bytes(path.stat().st_size)),
    "cut": lambda path: path.write_bytes(path.read_bytes()[: path.stat().st_size // 2]),
}


@pytest.mark.parametrize("damage", _DAMAGES)
def test_a_damaged_file_of_the_index_makes_a_start_build_it_again(
    tmp_path: Path, damage: str
) -> None:
    files = MemoryFiles()
    storage = filled(tmp_path / "pump", files)
    storage.flush()
    write(storage, prewrite(2000), commit(2000, 2001))
    copy_index(tmp_path / "pump", tmp_path / "copy")
    die(storage)
    put_index(tmp_path / "pump", tmp_path / "copy")
    for name in [path.name for path in _index_files(tmp_path / "pump")]:
        put_index(tmp_path / "pump", tmp_path / "copy")
        _DAMAGES[damage](tmp_path / "pump" / "index" / name)
        assert stream_of(tmp_path / "pump", files.after_kill()) == [*EXPECTED, (2000, 2001)], name


def test_damage_that_only_a_read_finds_is_left_to_the_next_start(tmp_path: Path) -> None:
    files = MemoryFiles()
    storage = filled(tmp_path / "pump", files)
    storage.flush()
    die(storage)
    index = tmp_path / "pump" / "index"
    (index / "DAMAGED").touch()
    assert stream_of(tmp_path / "pump", files.after_kill()) == EXPECTED
    assert not (index / "DAMAGED").exists()


def test_a_disk_that_does_not_give_the_index_is_waited_for_and_nothing_is_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = MemoryFiles()
    die(filled(tmp_path / "pump", files))
    error = plyvel.IOError(b"IO error: 000005.ldb: Input/output error")
    with monkeypatch.context() as patched:
        patched.setattr(plyvel, "DB", Mock(side_effect=error))
        with pytest.raises(Retryable, match="Input/output"):
            opened(tmp_path / "pump", files.after_kill())
    assert (tmp_path / "pump" / "index" / "CURRENT").exists()


def test_a_log_from_another_pump_is_not_taken_for_ours(tmp_path: Path) -> None:
    filled(tmp_path / "a").close()
    storage = opened(tmp_path / "b")
    for ts in range(10, 400, 10):
        write(storage, prewrite(ts, b"other changes, of another length"), commit(ts, ts + 1))
    storage.close()
    shutil.rmtree(tmp_path / "a" / "log")
    shutil.copytree(tmp_path / "b" / "log", tmp_path / "a" / "log")
    assert isinstance(stream_of(tmp_path / "a"), Corrupt)
