import errno
import logging
import os
import random
import struct
from pathlib import Path
from unittest.mock import Mock

import pytest
from google_crc32c import value
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import Corrupt, NeedsOperator, Retryable
from penstock.log.frame import HEADER_SIZE, decode_header, encode_frames
from penstock.log.segment import BEGIN, CutShort, segment_name
from penstock.log.segments import Place, Position, Segments, WriteFailed
from tests.kit.fakes.files import MemoryFiles

LOG = Path("/log")
FIRST, SECOND = LOG / segment_name(0), LOG / segment_name(1)


def opened(files: MemoryFiles, bytes_max: int = 1 << 20, known: Place | None = None) -> Segments:
    return Segments.open(LOG, files=files, segment_bytes_max=bytes_max, known_end=known)


def stored(segments: Segments, *payloads: bytes, largest_ts: int = 0) -> list[Position]:
    positions = segments.append(payloads, largest_ts=largest_ts)
    segments.sync()
    return positions


def scanned(segments: Segments) -> list[bytes]:
    return [payload for _, payload in segments.scan()]


@given(st.lists(st.lists(st.binary(min_size=1, max_size=90), min_size=1, max_size=4), max_size=8))
def test_what_was_synced_is_read_back_in_order_after_any_crash(groups: list[list[bytes]]) -> None:
    files = MemoryFiles()
    segments = opened(files, bytes_max=200)
    positions = [place for group in groups for place in stored(segments, *group)]
    everything = [payload for group in groups for payload in group]
    assert segments.read_many(positions) == everything
    again = opened(files.after_crash(), bytes_max=200)
    assert scanned(again) == everything
    assert again.end == segments.end
    assert [place for place, _ in again.scan()] == positions


def test_a_file_larger_than_the_blocks_of_a_read_comes_back_whole(tmp_path: Path) -> None:
    payloads = [random.Random(n).randbytes(n) for n in (1, 70_000, 65_536, 5_000_000, 300)]
    segments = Segments.open(tmp_path)
    positions = stored(segments, *payloads)
    shuffled = positions[::-1]
    assert segments.read_many(shuffled) == payloads[::-1]
    segments.close()
    again = Segments.open(tmp_path)
    assert scanned(again) == payloads
    again.close()


@pytest.mark.fault(
    "EIO on fdatasync (memory; preloaded library on a storage process and on a Pump)",
    "the file is abandoned, never synced again; the next group goes to a new segment; a"
    " restart writes the doubtful group again",
    cases="4 / 92",
)
def test_what_a_failed_sync_abandons_is_not_said_to_be_in_the_log() -> None:
    files = MemoryFiles()
    segments = opened(files)
    stored(segments, b"kept", largest_ts=5)
    segments.append([b"lost"], largest_ts=8)
    segments.append([b"lost, too"], largest_ts=9)
    files.fail_once("sync")
    with pytest.raises(WriteFailed):
        segments.sync()
    stored(segments, b"next", largest_ts=6)
    assert (segments.earlier_largest_ts(1), segments.largest_ts) == (5, 6)
    segments.close()


def test_a_full_segment_is_sealed_by_its_successor(tmp_path: Path) -> None:
    segments = Segments.open(tmp_path, segment_bytes_max=100)
    for ts in (5, 9, 7):
        stored(segments, b"x" * 80, largest_ts=ts)
    assert segments.size()[0] == 3
    assert [segments.earlier_largest_ts(n) for n in range(3)] == [0, 5, 9]
    segments.close()
    again = Segments.open(tmp_path)
    assert again.size()[0] == 3
    assert scanned(again) == [b"x" * 80] * 3
    again.close()


def test_bytes_that_were_never_synced_may_be_lost_but_nothing_else() -> None:
    for seed in range(200):
        files = MemoryFiles()
        segments = opened(files)
        stored(segments, b"a" * 700, b"b" * 700)
        segments.append([b"c" * 700, b"d" * 1500, b"e" * 10])
        found = scanned(opened(files.after_crash(random.Random(seed))))
        assert found[:2] == [b"a" * 700, b"b" * 700]
        assert found[2:] == [b"c" * 700, b"d" * 1500, b"e" * 10][: len(found) - 2]


def test_a_torn_end_is_cut_and_appending_continues_cleanly() -> None:
    files = MemoryFiles()
    segments = opened(files)
    stored(segments, b"kept")
    end = segments.end.offset
    stored(segments, b"torn away")
    whole = bytes(files.nodes[FIRST].data[: segments.end.offset])
    for cut in range(end, len(whole)):
        crashed = MemoryFiles()
        crashed.create(FIRST).write([whole[:cut]], 0)
        again = opened(crashed)
        assert scanned(again) == [b"kept"]
        assert again.end.offset == end
        stored(again, b"new")
        assert scanned(opened(crashed)) == [b"kept", b"new"]


@pytest.mark.fault(
    'tail of zeros (recorder ("zeros", "then zeros"); written zeros)',
    "end of the log, cut",
    cases="among the parts of a group, + 1",
)
def test_a_tail_of_zeros_is_cut_and_said(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    files = MemoryFiles()
    segments = opened(files)
    stored(segments, b"kept")
    files.nodes[FIRST].data.extend(bytes(5000))
    assert scanned(opened(files)) == [b"kept"]
    assert f"000000.seg: ends at offset {segments.end.offset}, with zeros" in caplog.text


def test_zeros_behind_a_torn_end_are_no_part_of_it(caplog: pytest.LogCaptureFixture) -> None:
    files = MemoryFiles()
    segments = opened(files)
    stored(segments, b"kept")
    end = segments.end.offset
    stored(segments, b"torn away")
    del files.nodes[FIRST].data[segments.end.offset - 3 :]
    files.nodes[FIRST].data.extend(bytes(9_000_000))
    again = opened(files)
    assert scanned(again) == [b"kept"]
    torn = HEADER_SIZE + len(b"torn away") - 3
    assert f"unfinished write, {torn} bytes from offset {end}" in caplog.text
    stored(again, b"new")
    assert scanned(opened(files)) == [b"kept", b"new"]


@pytest.mark.parametrize("extends", [True, False])
def test_a_file_is_as_long_as_what_is_in_it_once_it_is_sealed_or_stopped(
    tmp_path: Path, extends: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not extends:
        full = OSError(errno.ENOSPC, "no space")
        monkeypatch.setattr(os, "posix_fallocate", Mock(side_effect=full))
    segments = Segments.open(tmp_path, segment_bytes_max=1 << 20)
    stored(segments, bytes(600_000))
    first = tmp_path / "000000.seg"
    assert first.stat().st_size == (1 << 20 if extends else segments.end.offset)
    stored(segments, bytes(600_000))
    sealed_at = segments.end.offset
    stored(segments, b"in the next")
    assert first.stat().st_size == sealed_at
    end = segments.end.offset
    segments.close()
    assert (tmp_path / "000001.seg").stat().st_size == end + HEADER_SIZE
    assert len(scanned(Segments.open(tmp_path))) == 3


def test_a_volume_without_plenty_of_space_is_not_taken_ahead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    little = os.statvfs_result((4096, 4096, 250_000, 250_000, 250_000, 1, 1, 1, 0, 255))
    monkeypatch.setattr(os, "fstatvfs", lambda descriptor: little)
    segments = Segments.open(tmp_path)
    stored(segments, b"small")
    assert (tmp_path / "000000.seg").stat().st_size == segments.end.offset


def test_damage_before_a_later_group_is_damage_not_a_torn_end() -> None:
    files = MemoryFiles()
    segments = opened(files)
    first, second = stored(segments, b"first"), stored(segments, b"second")
    files.nodes[FIRST].data[first[0].offset + 25] ^= 1
    with pytest.raises(Corrupt) as raised:
        opened(files)
    assert (raised.value.path, raised.value.offset) == (str(FIRST), first[0].offset)
    assert second[0].offset > first[0].offset


def test_a_forged_frame_in_a_payload_can_only_make_a_torn_end_pass_for_damage() -> None:
    files = MemoryFiles()
    segments = opened(files)
    stored(segments, b"kept")
    end = segments.end.offset
    seed = segments._live.seed
    # A writer guesses where its payload comes to lie, and the seed: the next-to-impossible case.
    place = end + 2 * HEADER_SIZE + len(b"torn away" + b"filler")
    forged = encode_frames([b"forged"], offset=place, synced=place, seed=seed)
    segments.append([b"torn away", b"filler" + b"".join(forged)])
    data = bytearray(files.nodes[FIRST].data[: segments.end.offset])
    assert decode_header(bytes(data), place, offset=place, seed=seed) is not None
    whole = MemoryFiles()
    whole.create(FIRST).write([bytes(data)], 0)
    assert len(scanned(opened(whole))) == 3
    data[end + HEADER_SIZE] ^= 1  # The group was never synced, and its first frame is torn.
    torn = MemoryFiles()
    torn.create(FIRST).write([bytes(data)], 0)
    with pytest.raises(Corrupt) as raised:
        opened(torn)
    assert raised.value.offset == end


def test_damage_to_the_last_group_is_damage_after_a_clean_stop() -> None:
    files = MemoryFiles()
    segments = opened(files)
    (last,) = stored(segments, b"acknowledged")
    segments.close()
    files.nodes[FIRST].data[last.offset + 25] ^= 1
    with pytest.raises(Corrupt):
        opened(files)


def test_damage_before_what_the_caller_remembers_is_never_cut() -> None:
    files = MemoryFiles()
    segments = opened(files)
    (only,) = stored(segments, b"acknowledged")
    files.nodes[FIRST].data[only.offset + 25] ^= 1
    again = opened(files, known=segments.end)
    with pytest.raises(Corrupt, match="checksum"):
        scanned(again)
    with pytest.raises(Corrupt, match="have changed"):
        again.read(only)


def test_a_log_shorter_than_the_caller_remembers_is_refused() -> None:
    files = MemoryFiles()
    segments = opened(files, bytes_max=100)
    stored(segments, b"x" * 100)
    end = segments.end
    del files.nodes[FIRST].data[-1:]
    with pytest.raises(CutShort):
        opened(files, known=end)
    with pytest.raises(CutShort):
        opened(MemoryFiles(), known=end)


def test_a_sealed_segment_that_lost_bytes_is_refused() -> None:
    files = MemoryFiles()
    segments = opened(files, bytes_max=100)
    stored(segments, b"x" * 100)
    stored(segments, b"y" * 100)
    del files.nodes[FIRST].data[-1:]
    with pytest.raises(CutShort, match="000001"):
        opened(files)


@pytest.mark.fault(
    "a segment missing (removed: the oldest, in the middle, several; with index and without)",
    "refuses to start, names it and the timestamps that were in it; with"
    " `accept-loss-up-to-ts` it continues, and a pull from before is refused with the range",
    cases="12 gaps, a Pump, 2 crashes",
)
def test_a_missing_segment_is_named() -> None:
    files = MemoryFiles()
    segments = opened(files, bytes_max=10)
    for _ in range(3):
        stored(segments, b"x" * 100)
    del files.nodes[SECOND]
    with pytest.raises(Corrupt, match="000001"):
        opened(files)


@pytest.mark.fault(
    "damaged footer (there is none: the successor's header seals a segment; flips of it as of"
    " a payload)",
    "`Corrupt`, names the file",
    cases="among the flips of a payload",
)
def test_a_damaged_segment_header_is_damage() -> None:
    files = MemoryFiles()
    stored(opened(files), b"x")
    whole = bytes(files.nodes[FIRST].data)
    for bit in range(BEGIN * 8):
        files.nodes[FIRST].data[:] = whole
        files.nodes[FIRST].data[bit // 8] ^= 1 << bit % 8
        with pytest.raises(Corrupt):
            opened(files)


def test_a_failed_sync_is_never_repeated_on_that_file() -> None:
    files = MemoryFiles()
    segments = opened(files)
    stored(segments, b"before")
    segments.append([b"lost"])
    files.fail_once("sync")
    with pytest.raises(WriteFailed):
        segments.sync()
    files.calls.clear()
    stored(segments, b"after")
    assert not [call for call in files.calls if call[1] == "000000.seg"]
    assert scanned(segments) == [b"before", b"after"]
    assert scanned(opened(files.after_crash())) == [b"before", b"after"]
    assert scanned(opened(files.after_kill())) == [b"before", b"after"]


def test_what_a_failed_sync_left_in_memory_is_on_the_disk_after_a_restart() -> None:
    files = MemoryFiles()
    segments = opened(files)
    stored(segments, b"before")
    segments.append([b"in the cache only"])
    files.fail_once("sync")
    with pytest.raises(WriteFailed):
        segments.sync()
    again = opened(files.after_kill())
    survivors = scanned(again)
    stored(again, b"after")
    files = again._files  # type: ignore[assignment]
    assert scanned(opened(files.after_crash())) == [*survivors, b"after"]


@pytest.mark.fault(
    "short writes (preloaded library: at most 100 bytes a call; memory: half a write, then an"
    " error)"
)
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
def test_a_failed_write_leaves_nothing_behind(number: int) -> None:
    files = MemoryFiles()
    segments = opened(files)
    stored(segments, b"before")
    files.fail_once("write", number)
    with pytest.raises(WriteFailed) as raised:
        segments.append([b"x" * 1000])
    assert raised.value.errno == number
    stored(segments, b"after")
    assert scanned(segments) == [b"before", b"after"]
    assert scanned(opened(files.after_kill())) == [b"before", b"after"]


@pytest.mark.parametrize("call", ["create", "write", "sync", "rename", "sync_folder"])
def test_a_successor_that_cannot_be_created_is_tried_again(call: str) -> None:
    files = MemoryFiles()
    segments = opened(files, bytes_max=10)
    stored(segments, b"before")
    files.fail_once(call, errno.ENOSPC)
    with pytest.raises(WriteFailed):
        segments.append([b"never"])
    stored(segments, b"after")
    for found in (files.after_kill(), files.after_crash()):
        assert scanned(opened(found)) == [b"before", b"after"]


@pytest.mark.fault(
    "EIO on read (memory; failpoint on a Pump)",
    "the pull ends with the reason; writers and the next pull continue",
    cases="1 / 2",
)
def test_a_disk_that_cannot_be_read_is_retryable() -> None:
    files = MemoryFiles()
    segments = opened(files)
    (position,) = stored(segments, b"x")
    files.fail_once("read")
    with pytest.raises(Retryable, match="cannot be read"):
        segments.read(position)
    assert segments.read(position) == b"x"


def test_dropped_segments_are_gone_oldest_first() -> None:
    files = MemoryFiles()
    segments = opened(files, bytes_max=10)
    for n in range(4):
        stored(segments, b"%d" % n, largest_ts=n + 1)
    segments.drop_before(2)
    assert segments.first == 2
    assert [call for call in files.calls if call[0] == "remove"] == [
        ("remove", "000000.seg"),
        ("remove", "000001.seg"),
    ]
    again = opened(files.after_crash())
    assert scanned(again) == [b"2", b"3"]
    assert again.earlier_largest_ts(2) == 2


def test_a_segment_whose_name_was_not_durable_is_made_so_before_it_is_used() -> None:
    files = MemoryFiles()
    segments = opened(files, bytes_max=10)
    stored(segments, b"before")
    files.fail_once("sync_folder")
    with pytest.raises(WriteFailed):
        segments.append([b"never"])
    again = opened(files.after_kill(), bytes_max=10)
    stored(again, b"after")
    assert scanned(opened(again._files.after_crash())) == [b"before", b"after"]  # type: ignore[attr-defined]


@pytest.mark.fault(
    "segment of another version (one byte changed)",
    "refused by its version's number; an index of the format before is read",
    cases="2",
)
def test_an_unknown_version_is_named() -> None:
    files = MemoryFiles()
    stored(opened(files), b"x")
    header = struct.pack("<4sIIQQ", b"PSEG", 3, 0, 0, 0)
    files.nodes[FIRST].data[:BEGIN] = header + struct.pack("<I", value(header))
    with pytest.raises(NeedsOperator, match="version 3"):
        opened(files)


def test_a_log_without_copies_is_written_as_before_epochs_were() -> None:
    files = MemoryFiles()
    segments = opened(files)
    stored(segments, b"x" * 10, largest_ts=7)
    segments.begin_next()
    header = struct.pack("<4sIIQQ", b"PSEG", 1, 1, BEGIN + HEADER_SIZE + 10, 7)
    assert files.nodes[SECOND].data[:BEGIN] == header + struct.pack("<I", value(header))
    assert opened(files).links() == [(0, 0, BEGIN + HEADER_SIZE + 10, 0), (1, 0, BEGIN, 0)]


@given(st.lists(st.tuples(st.integers(0, 3), st.binary(max_size=50)), max_size=6))
def test_segments_know_the_epoch_that_began_them_after_any_crash(
    steps: list[tuple[int, bytes]],
) -> None:
    files = MemoryFiles()
    segments = opened(files, bytes_max=100)
    epoch, everything = 0, []
    for rise, payload in steps:
        epoch += rise
        if rise:
            segments.begin_next(epoch)
        if payload:
            stored(segments, payload)
            everything.append(payload)
        assert segments.links()[-1][1] == epoch
    again = opened(files.after_crash(), bytes_max=100)
    assert again.links() == segments.links()
    assert scanned(again) == everything


def test_a_damaged_header_with_an_epoch_is_damage() -> None:
    files = MemoryFiles()
    segments = opened(files)
    segments.begin_next(2**32 - 1)
    stored(segments, b"x")
    whole = bytes(files.nodes[SECOND].data)
    assert struct.unpack_from("<4sIIIIQ", whole) == (b"PSEG", 2, 1, BEGIN, 2**32 - 1, 0)
    for bit in range(BEGIN * 8):
        files.nodes[SECOND].data[:] = whole
        files.nodes[SECOND].data[bit // 8] ^= 1 << bit % 8
        with pytest.raises(Corrupt):
            opened(files)
    for length in range(BEGIN):
        files.nodes[SECOND].data[:] = whole[:length]
        with pytest.raises(Corrupt):
            opened(files)
