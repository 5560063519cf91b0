"""What a Pump finds damaged on its disk is mended from another one, in its log and in copies."""

import asyncio
import logging
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from penstock.codes import Code
from penstock.errors import Corrupt, NeedsOperator, Retryable
from penstock.log.files import DRAFT, Files
from penstock.log.repair import Donor
from penstock.log.segment import BEGIN, segment_name
from penstock.log.segments import Place, Segments
from penstock.node.output import lines_of
from pump.replication.protocol.messages import (
    READ_BYTES_MAX,
    Ask,
    ReplicaState,
    Stretch,
    decode_bytes,
    decode_read,
    encode_bytes,
    encode_read,
)
from pump.replication.repair import OwnLogRepair, Repairs
from pump.replication.scrubbing import Scrubbed, Scrubbing, copy_of
from tests.kit.wait import eventually
from tests.unit.pump.test_copies import NAME, running, shipped, upstream

PAYLOADS = [bytes([n]) * 90 for n in range(30)]


class Folder:
    """Another disk, whose folder has the same log."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.asked: list[Stretch] = []

    def fetch(self, number: int, begin: int, end: int) -> bytes:
        self.asked.append(Stretch(number, begin, end - begin))
        path = self.folder / segment_name(number)
        if not path.exists():
            raise Retryable("not here", code=Code.BYTES_NOT_HERE)
        return path.read_bytes()[begin:end]


@contextmanager
def only(donor: Donor, node_id: str = "") -> Iterator[Iterable[Donor]]:
    yield [donor]


def filled(folder: Path) -> Segments:
    """Return a log of some segments, open; each group is synced."""
    segments = Segments.open(folder, segment_bytes_max=500)
    for payload in PAYLOADS:
        segments.append([payload])
        segments.sync()
    return segments


def copied(folder: Path, to: Path) -> Folder:
    to.mkdir(parents=True, exist_ok=True)
    for path in folder.glob("*.seg"):
        (to / path.name).write_bytes(path.read_bytes())
    return Folder(to)


def flip(path: Path, offset: int) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        byte = file.read(1)[0]
        file.seek(offset)
        file.write(bytes([byte ^ 8]))


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Segments]:
    segments = filled(tmp_path / "log")
    yield segments
    segments.close()


def own_repair(
    log: Segments, other: Donor, repairs: Repairs, place: Place | None = None
) -> OwnLogRepair:
    return OwnLogRepair(
        log, Files(), repairs, sources=partial(only, other), acknowledged=lambda: place or log.end
    )


def test_a_read_that_meets_damage_returns_what_was_written_and_counts(
    log: Segments, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    other, repairs = copied(log.folder, tmp_path / "other"), Repairs()
    log.repair_with(own_repair(log, other, repairs))
    positions = [position for position, _ in log.scan()]
    for position in positions:
        flip(log.folder / segment_name(position.segment), position.offset + 50)
    with caplog.at_level(logging.WARNING):
        assert log.read_many(positions) == PAYLOADS
    assert [payload for _, payload in log.scan()] == PAYLOADS
    assert repairs.repaired_places == len({position.segment for position in positions})
    assert repairs.repaired_bytes == sum(24 + len(payload) for payload in PAYLOADS)
    assert repairs.left() == {}
    assert "were put back from another disk [PS-3001]" in caplog.text


def test_what_is_not_acknowledged_is_not_taken_from_another_disk(
    log: Segments, tmp_path: Path
) -> None:
    other, repairs = copied(log.folder, tmp_path / "other"), Repairs()
    *_, before, last = [position for position, _ in log.scan()]
    assert before.segment == last.segment
    log.repair_with(own_repair(log, other, repairs, Place(last.segment, last.offset)))
    for position in (before, last):
        flip(log.folder / segment_name(position.segment), position.offset + 50)
    assert log.read(before) == PAYLOADS[-2]
    with pytest.raises(Corrupt, match=f"offset {last.offset}"):
        log.read(last)
    assert all(asked.offset + asked.length <= last.offset for asked in other.asked)


def test_what_no_disk_has_whole_is_named_once_and_asked_for_again_only_later(
    log: Segments, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    position = next(position for position, _ in log.scan())
    path = log.folder / segment_name(position.segment)
    flip(path, position.offset + 50)
    other, repairs = copied(log.folder, tmp_path / "other"), Repairs()
    log.repair_with(own_repair(log, other, repairs))
    for _ in range(3):
        with pytest.raises(Corrupt, match=f"offset {position.offset}"):
            log.read(position)
    assert len(other.asked) == 1
    assert list(repairs.left()) == [(str(path), position.offset)]
    assert caplog.text.count("no other disk has mended it") == 1
    path.unlink()
    assert repairs.left() == {}


async def test_a_copy_whose_header_is_damaged_is_mended_before_it_is_opened(tmp_path: Path) -> None:
    up = upstream(12)
    folder = tmp_path / "copies" / "pump-1" / "log"
    async with running(tmp_path) as copies:
        await shipped(copies, up)
    other = copied(folder, tmp_path / "other")
    path = min(folder.glob("*.seg"))
    was = path.read_bytes()
    flip(path, 5)
    repairs = Repairs()

    async with running(tmp_path, repairs=repairs, sources=partial(only, other)) as copies:
        standing = await copies.follow(NAME, Ask(up.epoch), b"")
        assert standing == ReplicaState(up.epoch, tuple(up.chain().links))
    assert path.read_bytes() == was
    assert repairs.repaired_bytes == BEGIN


async def test_a_copy_that_no_disk_can_mend_says_so_to_its_primary_and_stays_as_it_is(
    tmp_path: Path,
) -> None:
    up = upstream(12)
    folder = tmp_path / "copies" / "pump-1" / "log"
    async with running(tmp_path) as copies:
        await shipped(copies, up)
    path = min(folder.glob("*.seg"))
    flip(path, 5)
    before = {each.name: each.read_bytes() for each in folder.iterdir()}

    async with running(tmp_path) as copies:
        with pytest.raises(Corrupt, match="not a segment header"):
            await copies.follow(NAME, Ask(up.epoch), b"")
        assert "not a segment header" in copies.facts()[0].summary
    assert {each.name: each.read_bytes() for each in folder.iterdir()} == before


async def test_a_scrub_of_a_copy_mends_all_of_it_but_the_end_that_may_lie_within_a_frame(
    tmp_path: Path,
) -> None:
    up = upstream(12)
    folder = tmp_path / "copies" / "pump-1" / "log"
    async with running(tmp_path) as copies:
        await shipped(copies, up)
    other = copied(folder, tmp_path / "other")
    was = {each.name: each.read_bytes() for each in folder.glob("*.seg")}
    repairs = Repairs()

    async with running(tmp_path, repairs=repairs, sources=partial(only, other)) as copies:
        for path in sorted(folder.glob("*.seg"))[:-1]:
            flip(path, path.stat().st_size // 2)
            flip(path, 7)
        scrub = Scrubbing(
            tmp_path, lambda: [copy_of(copies, "pump-1")], repairs, bytes_per_s=1e9, every_days=0
        )
        await asyncio.to_thread(scrub.scrub)
        assert scrub.facts().scrub.endswith("0 places are damaged still")
    assert {each.name: each.read_bytes() for each in folder.glob("*.seg")} == was
    assert repairs.repaired_places == len(was) - 1


async def test_any_disk_answers_with_the_bytes_of_its_own_log_and_of_copies(tmp_path: Path) -> None:
    up = upstream()
    (tmp_path / "log").mkdir()
    (tmp_path / "log" / segment_name(3)).write_bytes(b"own log")

    async with running(tmp_path) as copies:
        await shipped(copies, up)
        own = NAME._replace(node_id="pump-9")
        assert await copies.read(own, Stretch(3, 4, 100)) == b"log"
        number = up.chain().links[0].number
        assert await copies.read(NAME, Stretch(number, 0, BEGIN)) == up.data(number, 0, BEGIN)
        await copies.close_one("pump-1")  # Another Pump may run on it.
        assert await copies.read(NAME, Stretch(number, 0, BEGIN)) == up.data(number, 0, BEGIN)
        for name, error, code in (
            (NAME._replace(cluster_id=78), NeedsOperator, Code.CLUSTER_MISMATCH),
            (NAME._replace(disk="f" * 32), NeedsOperator, Code.COPY_OTHER_DISK),
            (NAME._replace(node_id="../.."), Retryable, Code.BYTES_NOT_HERE),
            (NAME._replace(node_id="pump-7"), Retryable, Code.BYTES_NOT_HERE),
        ):
            with pytest.raises(error) as refused:
                await copies.read(name, Stretch(0, 0, 10))
            assert refused.value.code is code


def test_what_is_asked_for_and_sent_comes_as_it_was() -> None:
    assert decode_read(encode_read(NAME, Stretch(7, 1 << 33, 12))) == (
        NAME,
        Stretch(7, 1 << 33, 12),
    )
    assert decode_read(encode_read(NAME, Stretch(7, 0, 1 << 30)))[1].length == READ_BYTES_MAX
    sent = encode_bytes(b"some bytes")
    assert decode_bytes(sent) == b"some bytes"
    with pytest.raises(NeedsOperator, match="their CRC is another one"):
        decode_bytes(sent.replace(b"some", b"more"))


def scrubbing(log: Segments, folder: Path, repairs: Repairs, **schedule: float) -> Scrubbing:
    """Return the scrubs of a log without copies."""

    def segments() -> list[object]:
        return [log.find(number) for number, *_ in log.links()]

    logs = [
        Scrubbed(
            segments,  # type: ignore[arg-type]
            end=lambda segment: segment.synced,
            ends_anywhere=False,
            repair=lambda segment, damages: repairs.keep(segment.path, damages),
        )
    ]
    fields = {"bytes_per_s": 1e9, "every_days": 0.0, **schedule}
    return Scrubbing(folder, lambda: logs, repairs, **fields)  # type: ignore[arg-type]


def test_a_scrub_without_copies_names_each_damaged_place_until_it_is_whole(
    log: Segments, tmp_path: Path
) -> None:
    repairs = Repairs()
    scrub = scrubbing(log, tmp_path, repairs)
    damaged = [position for position, _ in log.scan()][3::7]
    paths = [log.folder / segment_name(position.segment) for position in damaged]
    for position, path in zip(damaged, paths, strict=True):
        flip(path, position.offset + 30)
    scrub.scrub()
    places = {(str(p), d.offset) for p, d in zip(paths, damaged, strict=True)}
    assert set(repairs.left()) == places
    assert scrub.facts().damaged_places == len(places)
    assert f"damage {paths[0]} offset {damaged[0].offset}" in lines_of(scrub.facts())
    assert scrub.scrubbed_bytes >= log.size()[1] - BEGIN * log.size()[0]
    for position, path in zip(damaged, paths, strict=True):
        flip(path, position.offset + 30)
    scrub.scrub()
    assert repairs.left() == {}


def test_a_pump_starts_where_the_time_of_a_scrub_cannot_be_noted(
    log: Segments, tmp_path: Path
) -> None:
    (tmp_path / f".scrubbed{DRAFT}").mkdir()  # As on a full disk, nothing can be written there.
    scrub = scrubbing(log, tmp_path, Repairs())
    assert not scrub.is_running
    with pytest.raises(OSError, match="scrubbed"):
        scrub.scrub()


def test_a_scrub_reads_no_faster_than_it_may(log: Segments, tmp_path: Path) -> None:
    size = log.size()[1]
    scrub = scrubbing(log, tmp_path, Repairs(), bytes_per_s=size / 0.5)
    begun_s = time.monotonic()
    scrub.scrub()
    assert time.monotonic() - begun_s >= 0.4


async def test_a_scrub_is_due_some_days_after_the_last_one_also_after_a_restart(
    log: Segments, tmp_path: Path
) -> None:
    first = scrubbing(log, tmp_path, Repairs(), every_days=7)
    assert not first._is_due()
    long_ago = time.time() - 8 * 86400
    (tmp_path / ".scrubbed").write_text(f"{long_ago:.0f}\n")
    never = scrubbing(log, tmp_path, Repairs(), every_days=0)
    assert not never._is_due()
    scrub = scrubbing(log, tmp_path, Repairs(), every_days=7)
    running = asyncio.create_task(scrub.run())
    await asyncio.to_thread(eventually, lambda: not scrub._is_due())
    assert scrub.scrubbed_bytes > 0
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert not scrubbing(log, tmp_path, Repairs(), every_days=7)._is_due()


async def test_one_that_is_asked_for_begins_at_once_and_ends_when_the_pump_stops(
    log: Segments, tmp_path: Path
) -> None:
    scrub = scrubbing(log, tmp_path, Repairs(), bytes_per_s=100.0)
    running = asyncio.create_task(scrub.run())
    assert scrub.progress() == "not since the start"
    assert scrub.ask().startswith("a scrub begins: ")
    assert scrub.progress() == "begins"
    await asyncio.to_thread(eventually, lambda: scrub.scrubbed_bytes > 0)
    assert scrub.ask().startswith("a scrub is under way: reads ")
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert not scrub.is_running
    assert scrub.scrubbed_bytes < log.size()[1], "it was stopped, and did not read the rest"


def test_damage_of_a_segment_that_is_read_by_many_is_mended_once(
    log: Segments, tmp_path: Path
) -> None:
    other, repairs = copied(log.folder, tmp_path / "other"), Repairs()
    log.repair_with(own_repair(log, other, repairs))
    position = next(position for position, _ in log.scan())
    flip(log.folder / segment_name(position.segment), position.offset + 50)
    found: list[bytes] = []
    threads = [threading.Thread(target=lambda: found.append(log.read(position))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [PAYLOADS[0]] * 8
    assert repairs.repaired_places == 1
