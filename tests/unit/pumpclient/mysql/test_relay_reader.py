"""A relay log is read as it grows: any history of writes gives all whole events, each once."""

import os
import random
import time
from functools import partial
from pathlib import Path

import pytest

from penstock.errors import Corrupt, NeedsOperator
from pumpclient.mysql.events.frame import FILE_MAGIC, EventType, make_event
from pumpclient.mysql.gtid import MariadbGtidSet
from pumpclient.mysql.relay import reader as reader_module
from pumpclient.mysql.relay.boundaries import TransactionTracker
from pumpclient.mysql.relay.layout import INDEX_NAME, FileName, Location
from pumpclient.mysql.relay.reader import Chunk, Growth, RelayReader
from pumpclient.mysql.relay.receiver import Transformer
from pumpclient.mysql.relay.writer import RelayWriter
from pumpclient.mysql.source.relay_log import Purger
from tests.kit.mysql.binlogs import BinlogScript

DESCRIPTION = make_event(EventType.FORMAT_DESCRIPTION, b"description")


def event(number: int, size: int = 3) -> bytes:
    return make_event(EventType.HEARTBEAT, str(number).encode() * size)


class Log:
    """A relay log that a test writes, and all whole events of it in order."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.sub_dirs: list[str] = []
        self.events: list[bytes] = []
        self.number = 0
        self.made = 0
        self.growth = Growth()

    def sub_dir(self, uuid: str = "0-1") -> None:
        self.sub_dirs.append(f"{uuid}.{len(self.sub_dirs) + 1:06d}")
        (self.root / self.sub_dirs[-1]).mkdir()
        (self.root / INDEX_NAME).write_text("".join(f"{each}\n" for each in self.sub_dirs))

    @property
    def path(self) -> Path:
        return self.root / self.sub_dirs[-1] / f"mysql-bin.{self.number:06d}"

    @property
    def end(self) -> Location:
        size = self.path.stat().st_size
        return Location(len(self.sub_dirs), FileName("mysql-bin", self.number), size)

    def file(self) -> None:
        self.number += 1
        self.path.write_bytes(FILE_MAGIC + DESCRIPTION)
        self.events.append(DESCRIPTION)

    def add(self, *, size: int = 3, tail: int = 0) -> bytes:
        """Append an event but for its last bytes, which are returned."""
        self.made += 1
        data = event(self.made, size)
        self.events.append(data)
        self.raw(data[: len(data) - tail])
        return data[len(data) - tail :]

    def raw(self, data: bytes) -> None:
        with self.path.open("ab") as file:
            file.write(data)

    def report_end(self) -> None:
        self.growth.report(self.end)


@pytest.fixture
def log(tmp_path: Path) -> Log:
    log = Log(tmp_path)
    log.sub_dir()
    return log


def first() -> Location:
    return Location(1, FileName("mysql-bin", 1), 4)


class Handed:
    """A receiver without its connection: it writes files, and hands over what it wrote."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._writer = RelayWriter(log.root / log.sub_dirs[-1], self._written)
        self._transformer = Transformer(self._writer, TransactionTracker(MariadbGtidSet()))
        self.left: list[bytes] = []
        self.events: list[bytes] = []

    def _written(self, file: FileName, begin: int, events: list[bytes], size: int) -> None:
        self._log.growth.hand_over(Location(1, file, begin), events, size)

    def file(self, number: int, sizes: list[int]) -> None:
        """Begin a file with a transaction of each size, which `take` brings."""
        script = BinlogScript(f"mysql-bin.{number:06d}")
        for sequence, size in enumerate(sizes, 1):
            script.transaction(sequence, partial(script.query, "x" * 50 * size))
        script.rotate(f"mysql-bin.{number + 1:06d}")
        self.left += script.stream
        self.events += script.stream[1:]

    def take(self, count: int) -> None:
        batch, self.left = self.left[:count], self.left[count:]
        self._transformer.take(batch)
        self._writer.flush()
        if self._writer.file is not None:
            self._log.number = self._writer.file.number
            self._log.report_end()


class Reading:
    """A reader, and what it has given."""

    def __init__(self, log: Log, start: Location, growth: Growth | None = None) -> None:
        self.now_s = 0.0
        self.reader = RelayReader(log.root, start, growth, poll_s=0.001, clock=lambda: self.now_s)
        self._chunks = self.reader.chunks()
        self.events: list[bytes] = []
        self.from_memory = 0

    def next(self) -> Chunk:
        chunk = next(self._chunks)
        self.events += chunk.events
        self.from_memory += len(chunk.events) * chunk.is_checked
        return chunk

    def all(self) -> list[bytes]:
        while self.next().events:
            pass
        return self.events


@pytest.mark.fault(
    "a relay log that is written, cut, torn and switched while it is read",
    "all whole events, each once; half an event only before a switch",
    cases="40 random histories, 6",
)
@pytest.mark.parametrize("seed", range(40))
def test_whatever_the_writer_does_the_reader_gives_all_whole_events_once(
    log: Log, seed: int
) -> None:
    chance = random.Random(seed)
    growth = log.growth if seed % 2 else None
    log.file()
    log.report_end()
    reading = Reading(log, first(), growth)
    left = b""
    for _ in range(60):
        step = chance.randrange(10)
        if step < 6:
            log.raw(left)
            left = log.add(size=chance.choice((1, 30)), tail=chance.choice((0, 0, 1, 20)))
        elif step == 6:
            log.raw(left)
            left = b""
            log.file()
        elif step == 7 and not left:
            log.sub_dir("0-2")
            log.number = chance.randrange(5)
            log.file()
        else:
            reading.all()
        if chance.random() < 0.7:  # The writer reports a batch, which may continue in another file.
            log.report_end()
    log.raw(left)
    log.report_end()
    assert reading.all() == log.events


def test_a_file_is_read_to_its_end_when_the_writer_reports_the_next_one(log: Log) -> None:
    log.file()
    log.add()
    log.report_end()
    reading = Reading(log, first(), log.growth)
    assert reading.all() == log.events
    log.add()
    log.file()
    log.add()
    assert len(reading.all()) == 2
    log.report_end()
    assert reading.all() == log.events


@pytest.mark.fault(
    "a relay log that is written and read by one process, which reads late, or within what is kept",
    "all events, each once: from memory, or from the file where they did not fit",
    cases="30 random histories",
)
@pytest.mark.parametrize("seed", range(30))
def test_what_the_writer_hands_over_and_what_is_in_the_files_is_read_once(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader_module, "_HANDED_BYTES_MAX", 600)
    monkeypatch.setattr(reader_module, "_BLOCK_BYTES", 500)
    chance, log = random.Random(seed), Log(tmp_path)
    log.sub_dir()
    handed = Handed(log)
    reading, followers = Reading(log, first(), log.growth), [Reading(log, first(), log.growth)]
    for number in range(1, 6):
        handed.file(number, [chance.choice((1, 2, 9)) for _ in range(chance.randrange(1, 9))])
        while handed.left:
            handed.take(chance.choice((1, 3, 8)))
            for each in (reading, *followers):
                if chance.random() < 0.4:
                    each.all()
    for each in (reading, *followers):
        assert each.all() == handed.events
    assert reading.from_memory + followers[0].from_memory > 0


def test_a_reader_at_the_end_does_not_read_the_file(log: Log) -> None:
    handed = Handed(log)
    handed.file(1, [1, 1])
    handed.take(2)
    reading = Reading(log, first(), log.growth)
    handed.take(2)
    log.path.write_bytes(FILE_MAGIC)
    assert reading.all() == handed.events[:3]
    assert reading.from_memory == 3


def test_what_is_handed_over_is_bounded_in_bytes_and_forgotten_when_its_file_is_cut(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader_module, "_HANDED_BYTES_MAX", 100)
    place, growth = first(), Growth()
    growth.hand_over(place, [bytes(80)], 80)
    growth.hand_over(place.at(84), [bytes(21)], 21)
    growth.hand_over(place.at(105), [bytes(20)], 20)
    growth.report(place.at(125))
    assert growth.take(place) == ([bytes(80)], place.at(105))
    assert growth.take(place.at(84)) == ([], place.at(105))
    growth.forget()
    assert growth.take(place.at(105)) == ([], place.at(125))


def test_an_event_larger_than_a_block_is_given_whole(log: Log) -> None:
    log.file()
    log.add(size=3 << 20)
    log.add()
    assert Reading(log, first()).all() == log.events


def test_within_a_file_the_event_that_describes_it_comes_first(log: Log) -> None:
    log.file()
    log.add()
    begin = log.end
    log.add()
    reading = Reading(log, begin)
    chunk = reading.next()
    assert chunk == Chunk(begin.at(4), [DESCRIPTION])
    assert reading.all() == [DESCRIPTION, log.events[-1]]


def test_half_an_event_before_a_switch_is_dropped(log: Log) -> None:
    log.file()
    log.add()
    log.add(tail=5)
    whole = log.events[:-1]
    reading = Reading(log, first())
    assert reading.all() == whole
    log.sub_dir("0-2")
    log.number = 0
    log.file()
    log.add()
    assert reading.all() == [*whole, *log.events[-2:]]
    assert reading.reader.server() == "0-2"


def test_half_an_event_before_the_next_file_is_damage(log: Log) -> None:
    log.file()
    log.add(tail=5)
    log.file()
    with pytest.raises(Corrupt, match="half an event"):
        Reading(log, first()).all()


def test_what_is_no_event_is_damage_with_its_place(log: Log) -> None:
    log.file()
    log.raw(bytes(40))
    with pytest.raises(Corrupt, match="an event of 0 bytes"):
        Reading(log, first()).all()


def test_a_file_cut_and_written_again_is_read_on_where_it_was(log: Log) -> None:
    log.file()
    log.add()
    reading = Reading(log, first())
    reading.all()
    size = log.path.stat().st_size
    data = log.path.read_bytes()
    os.truncate(log.path, size - 10)
    assert reading.next().events == []
    log.raw(data[-10:])
    log.add()
    assert reading.all() == log.events


def test_a_place_that_is_still_being_fetched_is_waited_for(log: Log) -> None:
    log.file()
    log.add(size=40)
    place, whole = log.end, log.path.read_bytes()
    reading = Reading(log, place)
    for size in range(4, len(whole)):
        log.path.write_bytes(whole[:size])
        assert reading.next() == Chunk(place, [])
        reading.now_s += 0.09  # A file that stands still is waited for 0.1 s.
    log.path.write_bytes(whole)
    assert reading.next().events == [DESCRIPTION]
    log.add()
    assert reading.all() == [DESCRIPTION, log.events[-1]]


def test_a_place_that_is_not_in_the_log_is_refused(log: Log) -> None:
    log.file()
    with pytest.raises(NeedsOperator, match="bytes"):
        list(RelayReader(log.root, first().at(10_000), poll_s=0.0001).chunks())
    with pytest.raises(NeedsOperator, match="is not there"):
        Reading(log, Location(1, FileName("mysql-bin", 0), 4)).all()


def filled(log: Log) -> None:
    for _ in range(3):
        log.file()
    log.sub_dir("0-2")
    for _ in range(2):
        log.file()


def files(log: Log) -> list[str]:
    return sorted(f"{p.parent.name}/{p.name}" for p in log.root.glob("*/mysql-bin.*"))


def test_what_is_read_and_all_behind_it_is_never_purged(log: Log) -> None:
    filled(log)
    purger = Purger(log.root, lambda: Location(1, FileName("mysql-bin", 2), 4))
    assert purger.inactive() == ["0-1.000001/mysql-bin.000001"]
    assert purger.before(FileName("mysql-bin", 5), 2) == []
    assert purger.expired(-1000) == []
    assert len(files(log)) == 4


def test_a_sub_directory_goes_with_its_last_file(log: Log) -> None:
    filled(log)
    (log.root / log.sub_dirs[0] / "relay.meta").write_text("")
    purger = Purger(log.root, lambda: Location(2, FileName("mysql-bin", 5), 4))
    assert len(purger.before(FileName("mysql-bin", 5), 2)) == 4
    assert [p.name for p in log.root.iterdir() if p.is_dir()] == ["0-2.000002"]
    reading = Reading(log, Location(2, FileName("mysql-bin", 5), 4))
    assert reading.all() == [DESCRIPTION]


def test_by_time_it_stops_at_the_first_file_that_is_young(log: Log) -> None:
    filled(log)
    names = files(log)
    for name, age_s in zip(names, (900, 100, 900, 900, 900), strict=True):
        then_s = time.time() - age_s
        os.utime(log.root / name, (then_s, then_s))
    purger = Purger(log.root, lambda: Location(2, FileName("mysql-bin", 5), 4))
    assert purger.expired(500) == names[:1]


def test_without_knowing_what_is_read_nothing_is_purged(log: Log) -> None:
    filled(log)
    with pytest.raises(NeedsOperator, match="no one has said"):
        Purger(log.root, lambda: None).inactive()


def test_space_makes_all_go_that_is_read_and_time_only_when_it_is_set(log: Log) -> None:
    filled(log)
    place = Location(1, FileName("mysql-bin", 3), 4)
    assert Purger(log.root, lambda: place, remain_space_bytes=0).check() == []
    assert len(Purger(log.root, lambda: place, remain_space_bytes=1 << 60).check()) == 2
