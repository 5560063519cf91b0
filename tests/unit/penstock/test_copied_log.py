"""A copy takes what fits to it, cuts what a crash tore, and reports what a crash cannot explain."""

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.codes import Code
from penstock.errors import Corrupt, Malformed, Retryable
from penstock.log.replica import OlderSegment, ReplicaSegments
from penstock.log.segment import BEGIN, Head, segment_name
from penstock.log.segments import Place, Segments
from tests.kit.fakes.files import MemoryFiles

LOG = Path("/log")
MARK = LOG / "catching-up"


def primary(
    *groups: int, epoch: int = 1, epoch_id: int = 0, files: MemoryFiles | None = None
) -> Segments:
    """Return a log in which each group has so many records; one segment follows after each 0."""
    segments = Segments.open(LOG, files=files or MemoryFiles())
    segments.begin_next(epoch, epoch_id)
    for records in groups:
        if records:
            segments.append([random.Random(n).randbytes(400) for n in range(records)])
            segments.sync()
        else:
            segments.begin_next()
    return segments


def data_of(segments: Segments, number: int, begin: int = 0, end: int | None = None) -> bytes:
    files = segments._files
    assert isinstance(files, MemoryFiles)
    ends = {n: at for n, _, at, _ in segments.links()}
    return bytes(files.nodes[LOG / segment_name(number)].data[begin : end or ends[number]])


def copied(segments: Segments, files: MemoryFiles, *, first: int = 0) -> ReplicaSegments:
    """Return a copy with all segments from `first` on."""
    log = ReplicaSegments.open(LOG, files=files)
    for number, epoch, _, epoch_id in segments.links():
        if number >= first:
            log.write(number, epoch, 0, data_of(segments, number), epoch_id=epoch_id)
            log.sync()
    return log


def flip(files: MemoryFiles, number: int, offset: int) -> None:
    node = files.nodes[LOG / segment_name(number)]
    node.data[offset] ^= 1
    node.durable[offset] ^= 1


def test_a_copy_in_step_needs_no_more_than_a_write_and_a_sync_for_a_group() -> None:
    segments, files = primary(), MemoryFiles()
    log = copied(segments, files)
    begin = segments.end.offset
    for records in (1, 3, 1):
        segments.append([b"x" * 70] * records)
        files.calls.clear()
        log.write(1, 1, begin, data_of(segments, 1, begin))
        log.sync()
        assert [call for call, _ in files.calls] == ["write", "sync"]
        segments.sync()
        begin = segments.end.offset


def test_the_place_where_a_copy_catches_up_is_kept_only_while_the_bytes_are_not_synced() -> None:
    segments, files = primary(2, 2, 2), MemoryFiles()
    log = ReplicaSegments.open(LOG, files=files)
    for number, epoch, *_ in segments.links():
        log.write(number, epoch, 0, data_of(segments, number, 0, BEGIN))
        log.sync()
    log.write(1, 1, BEGIN, data_of(segments, 1, BEGIN))
    assert MARK in files.after_crash().nodes
    log.sync()
    assert MARK not in files.after_crash().nodes


def test_a_part_that_a_crash_tore_is_cut_and_stays_cut() -> None:
    segments = primary(2, 2, 2, 2)
    cut = 0
    for seed in range(60):
        files = MemoryFiles()
        log = copied(primary(), files)
        log.write(1, 1, BEGIN, data_of(segments, 1, BEGIN))
        files = files.after_crash(random.Random(seed))
        links = ReplicaSegments.open(LOG, files=files).links()
        cut += links != segments.links()
        files = files.after_crash(random.Random(seed))
        assert ReplicaSegments.open(LOG, files=files).links() == links
        assert MARK not in files.nodes
    assert cut > 30


def test_damage_before_what_was_synced_is_reported_also_after_catching_up() -> None:
    segments, files = primary(2, 2, 2), MemoryFiles()
    copied(segments, files)
    flip(files, 1, BEGIN + 10)
    with pytest.raises(Corrupt, match=r"000001\.seg, offset 32"):
        ReplicaSegments.open(LOG, files=files)


def test_damage_before_the_place_where_a_copy_caught_up_is_reported() -> None:
    segments, files = primary(2, 2, 2, 2), MemoryFiles()
    log = ReplicaSegments.open(LOG, files=files)
    log.write(0, 0, 0, data_of(segments, 0))
    middle = BEGIN + 2 * (400 + 24)
    for begin, end in ((0, middle), (middle, segments.end.offset)):
        log.write(1, 1, begin, data_of(segments, 1, begin, end))
        if begin == 0:
            log.sync()
    files = files.after_kill()
    assert MARK in files.nodes
    flip(files, 1, BEGIN + 10)
    with pytest.raises(Corrupt, match=r"000001\.seg, offset 32"):
        ReplicaSegments.open(LOG, files=files)


def test_a_damaged_note_of_catching_up_is_reported() -> None:
    segments, files = primary(2), MemoryFiles()
    copied(segments, files).close()
    files.create(MARK).write([b"PCUP and more than is"], 0)
    with pytest.raises(Corrupt, match="catching-up"):
        ReplicaSegments.open(LOG, files=files)


LIES = {
    "torn": lambda data: data[: BEGIN - 1],
    "flipped": lambda data: data[:9] + bytes((data[9] ^ 1,)) + data[10:],
    "no header": lambda data: bytes(BEGIN) + data,
    "newer": lambda data: data[:4] + b"\x03" + data[5:],
    "another number": lambda data: Head(7, BEGIN, 0, 1).encoded() + data[28:],
}


@pytest.mark.parametrize("lie", LIES)
def test_a_header_that_is_not_what_was_said_is_refused(lie: str) -> None:
    segments, files = primary(1, 0), MemoryFiles()
    log = copied(primary(1), files)
    before, links = dict(files.nodes), log.links()
    with pytest.raises(Malformed) as refused:
        log.write(2, 1, 0, LIES[lie](data_of(segments, 2)))
    assert refused.value.code is Code.COPY_MALFORMED
    assert files.nodes == before
    assert log.links() == links
    log.write(2, 1, 0, data_of(segments, 2))
    assert log.links() == segments.links()


def test_a_segment_that_does_not_follow_is_refused() -> None:
    files = MemoryFiles()
    log = copied(primary(2), files)
    for segments, number in ((primary(1, 0), 2), (primary(2, 0, 0), 3)):
        with pytest.raises(Malformed, match="but the copy ends at"):
            log.write(number, 1, 0, data_of(segments, number))
    assert log.links() == primary(2).links()


def older(
    segments: Segments, files: MemoryFiles, number: int, change: bytes | None = None
) -> OlderSegment:
    link = next(link for link in segments.links() if link[0] == number)
    draft = OlderSegment(files, LOG, link, serial=3)
    data = change if change is not None else data_of(segments, number)
    for begin in range(0, len(data), 300):
        draft.write(data[begin : begin + 300])
    return draft


def test_an_older_segment_is_put_before_the_first_one_when_it_is_whole() -> None:
    segments, files = primary(3, 0, 2), MemoryFiles()
    log = copied(segments, files, first=2)
    draft = older(segments, files, 1)
    draft.finish()
    log.write_before(draft)
    draft.drop()
    assert log.links() == segments.links()[1:]
    again = ReplicaSegments.open(LOG, files=files.after_crash())
    assert again.links() == segments.links()[1:]


def test_a_damaged_older_segment_is_refused_and_leaves_nothing() -> None:
    segments, files = primary(3, 0, 2), MemoryFiles()
    log = copied(segments, files, first=2)
    before, data = dict(files.nodes), bytearray(data_of(segments, 1))
    for offset in (5, BEGIN + 3, BEGIN + 30, len(data) - 1):
        changed = bytearray(data)
        changed[offset] ^= 1
        draft = older(segments, files, 1, bytes(changed))
        with pytest.raises(Malformed):
            draft.finish()
        draft.drop()
    for wrong in (bytes(data[:-1]), bytes(data) + b"x"):
        with pytest.raises(Malformed, match=r"of the|more than"):
            older(segments, files, 1, wrong).finish()
    OlderSegment(files, LOG, (1, 1, len(data), 0), serial=3).drop()
    assert files.nodes == before
    assert log.links() == segments.links()[2:]


def test_an_older_segment_of_another_end_is_refused() -> None:
    files = MemoryFiles()
    log = copied(primary(3, 0, 2), files, first=2)
    draft = older(primary(2, 0, 2), files, 1)
    draft.finish()
    with pytest.raises(Malformed, match="comes after"):
        log.write_before(draft)
    assert [number for number, *_ in log.links()] == [2]


def test_what_a_pump_abandoned_in_a_folder_does_not_count_when_its_successor_is_dropped() -> None:
    """A sync failed; the group can be read, and is no part of the log."""
    files = MemoryFiles()
    segments = primary(1, files=files)
    end = segments.end
    segments.append([b"abandoned"])
    files.fail_once("sync")
    with pytest.raises(Retryable):
        segments.sync()
    segments.begin_next(2)
    files = files.after_kill()
    log = ReplicaSegments.open(LOG, files=files)
    files.fail_once("truncate")
    with pytest.raises(Retryable):
        log.cut(Place(1, BEGIN))
    for found in (files.after_crash(), files.after_kill()):
        assert ReplicaSegments.open(LOG, files=found).links() == [
            (0, 0, BEGIN, 0),
            (1, 1, end.offset, 0),
        ]


WAYS: dict[str, tuple[Callable[[ReplicaSegments], None], list[int]]] = {
    "clear": (ReplicaSegments.clear, []),
    "cut": (lambda log: log.cut(Place(1, BEGIN)), [0, 1]),
    "drop_before": (lambda log: log.drop_before(3), [3]),
}


@pytest.mark.parametrize("way", WAYS)
def test_segments_are_dropped_so_that_no_crash_leaves_a_gap(way: str) -> None:
    drop, left = WAYS[way]
    whole = MemoryFiles()
    copied(primary(1, 0, 1, 0, 1), whole)
    for number in range(1, 20):
        files = whole.after_crash()
        log = ReplicaSegments.open(LOG, files=files)
        files.calls.clear()
        files.fail = failing_at(number, files)
        try:
            drop(log)
        except Retryable:
            files = files.after_crash()  # Opening it would find a gap.
            drop(ReplicaSegments.open(LOG, files=files))
        else:
            break
        finally:
            again = ReplicaSegments.open(LOG, files=files.after_crash())
            assert [found for found, *_ in again.links()] == left
    assert 2 < number < 19


def failing_at(number: int, files: MemoryFiles) -> Callable[[str, Path], None]:
    def fail(call: str, path: Path) -> None:
        if len(files.calls) >= number:
            raise OSError(5, "made to fail", str(path))

    return fail
