"""Any damage of a log is put back from another disk that has the place whole, and from no other."""

import copy
import errno
import random
from pathlib import Path

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from penstock.codes import Code
from penstock.errors import Corrupt, Retryable
from penstock.log import repair
from penstock.log.frame import HEADER_SIZE, encode_frames
from penstock.log.repair import ClosedLog, Repaired, Salvaged, find_damage, repair_segment
from penstock.log.segment import BEGIN, segment_name
from penstock.log.segments import Place, Segments
from tests.kit.fakes.files import MemoryFiles

FOLDER = Path("/log")
GROUPS = 14


def written(seed: int = 1, *, is_closed: bool = True) -> tuple[MemoryFiles, list[bytes]]:
    """Return a log of some segments and epochs, and all that was appended."""
    chance, files = random.Random(seed), MemoryFiles()
    segments = Segments.open(FOLDER, files=files, segment_bytes_max=600)
    payloads: list[bytes] = []
    for group in range(GROUPS):
        made = [chance.randbytes(chance.randint(1, 120)) for _ in range(chance.randint(1, 3))]
        segments.append(made)
        segments.sync()
        payloads += made
        if group % 5 == 4:
            segments.begin_next(group)
    if is_closed:
        segments.close()
    return files, payloads


class Other:
    """The same log on another disk."""

    def __init__(self, files: MemoryFiles) -> None:
        self.files = files
        self.asked: list[tuple[int, int, int]] = []

    def fetch(self, number: int, begin: int, end: int) -> bytes:
        self.asked.append((number, begin, end))
        path = FOLDER / segment_name(number)
        if path not in self.files.nodes:
            raise Retryable("gone there, too", code=Code.DISK_FAILING)
        return bytes(self.files.nodes[path].data[begin:end])


def bytes_of(files: MemoryFiles) -> dict[str, bytes]:
    return {path.name: bytes(node.data) for path, node in files.nodes.items()}


def opened(files: MemoryFiles) -> Segments | Corrupt:
    try:
        segments = Segments.open(FOLDER, files=files, segment_bytes_max=600)
        for _ in segments.scan():
            pass
    except Corrupt as error:
        return error
    return segments


def mended(files: MemoryFiles, other: Other) -> Segments | Corrupt:
    """Open a log as a Pump does: whatever is damaged is mended, as long as that helps."""
    before = None
    while isinstance(found := opened(files), Corrupt):
        place = (found.path, found.offset)
        if place == before:
            return found
        before = place
        ClosedLog(files, FOLDER).repair(int(Path(found.path).stem), [other])
    return found


def numbers(files: MemoryFiles) -> list[int]:
    return sorted(int(path.stem) for path in files.nodes)


@st.composite
def damages(draw: st.DrawFn) -> tuple[str, float, float, bytes]:
    kind = draw(st.sampled_from(["flip", "zero", "noise", "cut", "taken out", "gone"]))
    return kind, draw(st.floats(0, 1)), draw(st.floats(0, 1)), draw(st.binary(min_size=1))


def damage(files: MemoryFiles, number: int, how: tuple[str, float, float, bytes]) -> None:
    kind, where, size, noise = how
    path = FOLDER / segment_name(number)
    data = files.nodes[path].data
    begin = min(len(data) - 1, int(where * len(data)))
    end = begin + 1 + int(size * (len(data) - begin - 1))
    if kind == "flip":
        data[begin] ^= 1 << noise[0] % 8
    elif kind == "zero":
        data[begin:end] = bytes(end - begin)
    elif kind == "noise":
        data[begin:end] = (noise * (end - begin))[: end - begin]
    elif kind == "cut":
        del data[begin:]
    elif kind == "taken out":
        del data[begin:end]
    else:
        del files.nodes[path]
        return
    files.nodes[path].durable = bytearray(data)


@pytest.mark.fault(
    "any range of any segment is flipped, zeros, noise, cut off, cut out, or the file is gone",
    "mended byte for byte from another disk; from two that are damaged at different frames;"
    " never from another log, nor where both are damaged",
    cases="900",
)
@given(st.integers(0, 5), st.integers(0, 100), damages())
def test_any_damage_of_a_sealed_segment_is_put_back_byte_for_byte(
    seed: int, which: int, how: tuple[str, float, float, bytes]
) -> None:
    whole, payloads = written(seed)
    files, _ = written(seed)
    sealed = numbers(files)[:-1]
    number = sealed[which % len(sealed)]
    assume(not (how[0] == "gone" and number == 0))  # Then nothing says that there was one.
    damage(files, number, how)
    if how[0] == "flip" or bytes_of(files) != bytes_of(whole):
        found = mended(files, Other(whole))
        assert isinstance(found, Segments)
        assert [payload for _, payload in found.scan()] == payloads
        assert bytes_of(files)[segment_name(number)].startswith(
            bytes_of(whole)[segment_name(number)]
        )


@given(st.integers(0, 5), st.floats(0, 0.999), st.integers(0, 7))
def test_a_flipped_bit_of_the_last_segment_is_put_back_where_it_was_on_the_disk(
    seed: int, where: float, bit: int
) -> None:
    whole, payloads = written(seed)  # A clean stop has marked that all of it was.
    files, _ = written(seed)
    last = FOLDER / segment_name(numbers(files)[-1])
    data = files.nodes[last].data
    begin = int(where * (len(data) - HEADER_SIZE)) if len(data) > BEGIN else 0
    data[begin] ^= 1 << bit
    found = mended(files, Other(whole))
    if len(data) == BEGIN and len(numbers(files)) == 1:
        return
    assert isinstance(found, Segments)
    assert [payload for _, payload in found.scan()] == payloads


@given(st.integers(0, 5), st.data())
def test_both_disks_damaged_at_different_frames_are_both_mended(
    seed: int, data: st.DataObject
) -> None:
    whole, payloads = written(seed)
    sides = [written(seed)[0], written(seed)[0]]
    number = data.draw(st.sampled_from(numbers(whole)[:-1]))
    frames = frames_of(whole, number)
    assume(len(frames) > 1)
    for files, (begin, end) in zip(sides, data.draw(st.permutations(frames)), strict=False):
        at = data.draw(st.integers(begin, end - 1))
        files.nodes[FOLDER / segment_name(number)].data[at] ^= 0x40
    for files, other in (sides, sides[::-1]):
        found = mended(files, Other(other))
        assert isinstance(found, Segments)
        assert [payload for _, payload in found.scan()] == payloads
    assert bytes_of(sides[0]) == bytes_of(sides[1])


@given(st.integers(0, 5), st.data())
def test_what_is_damaged_on_both_disks_is_named_and_nothing_is_changed(
    seed: int, data: st.DataObject
) -> None:
    whole, _ = written(seed)
    sides = [written(seed)[0], written(seed)[0]]
    number = data.draw(st.sampled_from(numbers(whole)[:-1]))
    frames = frames_of(whole, number)
    assume(frames)
    begin, end = data.draw(st.sampled_from(frames))
    for files in sides:
        at = data.draw(st.integers(begin, end - 1))
        files.nodes[FOLDER / segment_name(number)].data[at] ^= 0x40
    before = [bytes_of(files) for files in sides]
    for files, other in (sides, sides[::-1]):
        found = mended(files, Other(other))
        assert isinstance(found, Corrupt)
        assert (Path(found.path).name, found.offset) == (segment_name(number), begin)
    assert [bytes_of(files) for files in sides] == before


def frames_of(files: MemoryFiles, number: int) -> list[tuple[int, int]]:
    found = opened(files)
    assert isinstance(found, Segments)
    return [
        (position.offset, position.offset + HEADER_SIZE + position.length)
        for position, _ in found.scan()
        if position.segment == number
    ]


def test_another_log_proves_nothing_here() -> None:
    files, _ = written(1)
    other, _ = written(2)
    path = FOLDER / segment_name(1)
    begin, end = frames_of(files, 1)[0]
    files.nodes[path].data[begin + 2 : end] = bytes(end - begin - 2)
    before = bytes_of(files)
    assert isinstance(mended(files, Other(other)), Corrupt)
    assert bytes_of(files) == before


def test_a_frame_that_differs_from_a_header_that_is_whole_here_is_not_taken() -> None:
    files, _ = written(1)
    path = FOLDER / segment_name(1)
    begin, end = frames_of(files, 1)[0]
    segments = opened(files)
    assert isinstance(segments, Segments)
    seed = segments._segments[1].seed
    forged = MemoryFiles()
    forged.nodes = {each: type(node)() for each, node in files.nodes.items()}
    for each, node in files.nodes.items():
        forged.nodes[each].data = bytearray(node.data)
    length = end - begin - HEADER_SIZE
    frame = b"".join(encode_frames([b"x" * length], offset=begin, synced=BEGIN, seed=seed))
    forged.nodes[path].data[begin:end] = frame
    files.nodes[path].data[end - 1] ^= 1
    before = bytes_of(files)
    result = ClosedLog(files, FOLDER).repair(1, [Other(forged)])
    assert result.put_back == 0
    assert [place.begin for place in result.left] == [begin]
    assert "both are whole" in result.problems[0]
    assert bytes_of(files) == before


@pytest.mark.parametrize("is_gone", [True, False])
def test_a_last_segment_that_ends_nobody_knows_where_is_not_mended_up_to_somewhere(
    is_gone: bool,
) -> None:
    whole, _ = written(3)
    files, _ = written(3)
    last = numbers(files)[-1]
    path = FOLDER / segment_name(last)
    known_end = Place(last, len(files.nodes[path].data))
    if is_gone:
        del files.nodes[path]
    else:  # From the middle of a frame to the end, with all that was acknowledged there.
        begin, _ = frames_of(whole, last)[0]
        data = files.nodes[path].data
        data[begin + 5 :] = bytes(len(data) - begin - 5)
    before = bytes_of(files)
    for _ in range(2):
        with pytest.raises(Corrupt):
            Segments.open(FOLDER, files=files, known_end=known_end)
        assert ClosedLog(files, FOLDER).repair(last, [Other(whole)]).put_back == 0
    assert bytes_of(files) == before


@pytest.mark.parametrize("offset", [5, 40])
def test_the_frames_after_the_place_where_a_part_of_a_copy_begins_prove_nothing(
    offset: int,
) -> None:
    whole, _ = written(3)
    files, _ = written(3)
    last = numbers(files)[-1]
    frames = frames_of(whole, last)
    mark = Place(last, frames[1][0])
    begin, end = frames[0] if offset == 5 else frames[1]
    files.nodes[FOLDER / segment_name(last)].data[begin + 5] ^= 1
    before = bytes_of(files)
    found = ClosedLog(files, FOLDER, mark).repair(last, [Other(whole)])
    assert (found.put_back, bytes_of(files)) == (0, before)
    marked_later = Place(last, frames[-1][1])
    found = ClosedLog(files, FOLDER, marked_later).repair(last, [Other(whole)])
    assert (found.put_back, bytes_of(files)) == (end - begin, bytes_of(whole))


def test_the_torn_end_of_a_crash_is_not_fetched() -> None:
    whole, _ = written(3, is_closed=False)
    files, _ = written(3, is_closed=False)
    last = numbers(files)[-1]
    begin, _ = frames_of(whole, last)[-1]
    files.nodes[FOLDER / segment_name(last)].data[begin + 5] ^= 1
    before = bytes_of(files)
    other = Other(whole)
    assert ClosedLog(files, FOLDER).repair(last, [other]) == Repaired(0, ())
    assert (other.asked, bytes_of(files)) == ([], before)


def test_sectors_that_cannot_be_read_are_damage_like_any_other(tmp_path: Path) -> None:
    whole, _ = written(1)
    node = whole.nodes[FOLDER / segment_name(1)]
    segments = opened(whole)
    assert isinstance(segments, Segments)
    seed, size = segments._segments[1].seed, len(node.data)
    healed: list[bytes] = []

    class Failing:
        def read(self, offset: int, length: int) -> bytes:
            if not healed:
                raise OSError(errno.EIO, "made to fail")
            return bytes(node.data[offset : offset + length])

    salvaged = Salvaged(Failing())
    found = list(find_damage(salvaged, BEGIN, size, seed))
    assert [(place.begin, place.end) for place in found] == [(BEGIN, size)]
    result = repair_segment(
        salvaged,
        1,
        seed,
        found,
        sources=[Other(whole)],
        write=lambda patch: healed.append(patch.data),
    )
    assert (result.put_back, result.left) == (size - BEGIN, ())
    assert healed == [bytes(node.data[BEGIN:])]


def test_a_file_that_fails_otherwise_is_not_taken_for_damaged() -> None:
    class Failing:
        def read(self, offset: int, length: int) -> bytes:
            raise OSError(errno.EACCES, "made to fail")

    with pytest.raises(OSError, match="made to fail"):
        list(find_damage(Salvaged(Failing()), BEGIN, 1000, 7))


def test_no_more_of_a_damaged_area_is_fetched_at_a_time_than_the_largest_frame(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(repair, "_STEP_BYTES", 200)
    payloads = [random.Random(n).randbytes(700 if n == 30 else 90) for n in range(60)]
    files = MemoryFiles()
    segments = Segments.open(FOLDER, files=files)
    segments.append(payloads)
    segments.sync()
    segments.begin_next()
    segments.close()
    whole = bytes_of(files)[segment_name(0)]
    both = MemoryFiles()
    both.nodes = {path: copy.deepcopy(node) for path, node in files.nodes.items()}
    lost = FOLDER / segment_name(0)
    files.nodes[lost].data[BEGIN:] = bytes(len(whole) - BEGIN)
    both.nodes[lost].data[2000:3000] = bytes(1000)  # The other disk is damaged, too.
    other = Other(both)
    found = ClosedLog(files, FOLDER).repair(0, [other])
    assert found.put_back > 2 * len(whole) // 3
    assert max(end - begin for _, begin, end in other.asked) == 700 + HEADER_SIZE
    assert bytes_of(files)[segment_name(0)][BEGIN:1900] == whole[BEGIN:1900]
    assert bytes_of(files)[segment_name(0)][3200:] == whole[3200:]
