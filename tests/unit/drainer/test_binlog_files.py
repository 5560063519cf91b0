"""Files in TiDB-Binlog's format: their bytes, crashes at every call, disks that fail."""

import errno
import fcntl
import gzip
import os
import random
import tomllib
from collections.abc import Generator, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from drainer.settings.targets import FilesTarget
from drainer.sinks.checkpoint import Checkpoint
from drainer.sinks.files.savepoint import read_schema
from drainer.sinks.files.sink import FileSink, Upkeep
from drainer.sinks.protocol import FileCounts
from drainer.task.events.messages import Messages
from drainer.task.events.tidb_binlog import framed
from penstock.errors import Corrupt, Malformed, NeedsOperator, Retryable
from penstock.log.files import Files
from tests.kit.fakes.files import MemoryFiles
from tests.kit.files import plain_reader
from tests.kit.sink_target import sink_target
from tests.kit.workloads.sink_stream import CREATE, InsertStream

CLUSTER = 7
SMALL = "max-file-size=300"


def opened(
    folder: Path, options: str = SMALL, files: Files | None = None, retry_s_max: float = 0.0
) -> FileSink:
    target = sink_target(FilesTarget, f"file://{folder}?{options}")
    return FileSink(target, cluster_id=CLUSTER, retry_s_max=retry_s_max, files=files)


def begin(stream: InsertStream, sink: FileSink) -> FileSink:
    """Start a sink on a fresh folder, and create the stream's table."""
    sink.load_checkpoint()
    sink.look_at(stream.catalog)
    stream.create(sink)
    return sink


@pytest.fixture
def stream() -> InsertStream:
    return InsertStream()


@pytest.fixture
def begun(tmp_path: Path, stream: InsertStream) -> Iterator[FileSink]:
    with closing(begin(stream, opened(tmp_path))) as sink:
        yield sink


def ids(folder: Path) -> list[int]:
    return ids_of(plain_reader.entries(folder))


def ids_of(entries: list[plain_reader.Entry]) -> list[int]:
    changes = [change for entry in entries for change in entry.changes]
    return [change.after["id"] for change in changes if change.after is not None]


def test_a_record_is_what_tidb_binlog_documents() -> None:
    assert framed(b"hello").hex() == "04051b1c050000000000000068656c6c6f4cbb719a"


def test_a_transaction_has_the_bytes_that_protobuf_writes(
    tmp_path: Path, stream: InsertStream, begun: FileSink
) -> None:
    point = stream.put(begun, 7)
    data = b"".join(path.read_bytes() for path in sorted(tmp_path.glob("binlog-*")))
    column = "0a0269641201031a03696e742202080e"
    event = f"0a0473686f70120174180022{len(column) // 2:02x}{column}"
    events = f"0a{len(event) // 2:02x}{event}"
    payload = bytes.fromhex(f"080010{point.commit_ts:02x}1a{len(events) // 2:02x}{events}")
    assert data.endswith(framed(payload))


def test_files_are_numbered_without_a_gap_and_each_has_its_schema(
    tmp_path: Path, stream: InsertStream, begun: FileSink
) -> None:
    for number in range(20):
        stream.put(begun, number)
    names = sorted(path.name for path in tmp_path.glob("binlog-*"))
    assert len(names) >= 4
    assert [int(name.split("-")[1]) for name in names] == list(range(len(names)))
    for number in range(len(names)):
        assert (tmp_path / f"schema-{number:016d}").exists()
    assert ids(tmp_path) == list(range(20))
    saved = tomllib.loads((tmp_path / "savepoint").read_text())
    assert (saved["commitTS"], saved["cluster-id"]) == (stream.ts, CLUSTER)


def began_after(folder: Path) -> int:
    return read_schema(folder / "schema-0000000000000000").after_ts


def test_the_first_file_begins_where_the_first_drainer_did(tmp_path: Path) -> None:
    for start_ts in (0, 50):
        folder, stream = tmp_path / str(start_ts), InsertStream()
        with closing(opened(folder)) as sink:
            sink.load_checkpoint()
            sink.change_overrides(lambda now: {})
            sink.load_checkpoint()
            sink.save_checkpoint(Checkpoint(start_ts, 0))
            sink.save_checkpoint(Checkpoint(70, 0))  # Nothing but time has moved on.
        with closing(opened(folder)) as sink:
            sink.load_checkpoint()
            sink.save_checkpoint(Checkpoint(90, 0))
            stream.create(sink)
        assert began_after(folder) == start_ts


class Died(BaseException):
    """The process ends within a call."""


def workload(stream: InsertStream, sink: FileSink, done: list[int]) -> None:
    """Go through the stream from the sink's checkpoint on, noting the ids that are committed."""
    number = len(done)
    while number < 7:
        if number == 3:
            point, some = stream.point(), list(range(100, 160))
            batches = [
                stream.batch({point.commit_ts: some[at : at + 20]}, is_slice=True)
                for at in (0, 20, 40)
            ]

            def slices(batches: list[object] = batches) -> Generator[Messages]:  # type: ignore[assignment]
                for batch in batches:
                    yield from stream.messages(sink, batch)  # type: ignore[arg-type]

            sink.put_slices(slices, point)
        else:
            stream.put(sink, number)
        done.append(number)
        number += 1


WANTED = [0, 1, 2, *range(100, 160), 4, 5, 6]


@pytest.mark.fault(
    "any call to the disk is the last one, of the process or of the machine, while files are"
    " written",
    "each transaction once, nothing that was committed is lost",
    cases="each 5th / each of some 50 calls, twice",
)
@pytest.mark.parametrize("kind", ["the process", "the machine"])
@pytest.mark.parametrize("step", [5, pytest.param(1, marks=pytest.mark.slow)])
def test_whatever_call_is_the_last_one_each_transaction_is_there_once(
    step: int, kind: str, tmp_path: Path
) -> None:
    chance = random.Random(kind)
    calls = 0
    while True:
        calls += step
        stream, files = InsertStream(), MemoryFiles()
        left = calls

        def fail(name: str, path: Path) -> None:
            nonlocal left
            left -= 1
            if left == 0:
                raise Died

        done: list[int] = []
        with closing(begin(stream, opened(tmp_path, files=files))) as sink:
            files.fail = fail
            try:
                workload(stream, sink, done)
            except Died:
                files = files.after_kill() if kind == "the process" else files.after_crash(chance)
            else:
                break
        with closing(opened(tmp_path, files=files)) as sink:
            found = sink.load_checkpoint()
            assert found is not None
            assert found.commit_ts >= stream.ts - 1, "what was committed is lost"
            # What the Drainer pulls again: the transaction in doubt, if it is not in.
            if found.commit_ts == stream.ts:
                done.append(len(done))
            stream.ts = found.commit_ts
            sink.look_at(stream.catalog)
            workload(stream, sink, done)
        contents = {path.name: bytes(node.data) for path, node in files.nodes.items()}
        entries = plain_reader.entries_of(contents)
        assert ids_of(entries) == WANTED, calls
        stamps = [entry.commit_ts for entry in entries]
        assert stamps == sorted(set(stamps))
    assert calls > 45


@pytest.mark.fault(
    "the disk of the files is full, at any call; stays full; fails",
    "waited for, and named; an error that can be tried again; an operator is asked",
    cases="5 + 1 + 1",
)
@pytest.mark.parametrize("call", ["write", "sync", "create", "rename", "sync_folder"])
def test_a_full_disk_is_waited_for_and_then_nothing_is_there_twice(
    call: str, tmp_path: Path, stream: InsertStream
) -> None:
    files = MemoryFiles()
    with closing(begin(stream, opened(tmp_path, files=files, retry_s_max=60))) as sink:
        for each in range(3):
            files.fail_once(call, errno.ENOSPC)
            stream.put(sink, each)
        assert sink.waits_for() == ""
    contents = {path.name: bytes(node.data) for path, node in files.nodes.items()}
    assert ids_of(plain_reader.entries_of(contents)) == list(range(3))


def test_a_disk_that_stays_full_is_an_error_that_can_be_tried_again(
    tmp_path: Path, stream: InsertStream
) -> None:
    files = MemoryFiles()
    sink = begin(stream, opened(tmp_path, files=files))
    before = sink.load_checkpoint()

    def fail(name: str, path: Path) -> None:
        if name == "write":
            raise OSError(errno.ENOSPC, "No space left on device", str(path))

    files.fail = fail
    with pytest.raises(Retryable, match="No space left"):
        stream.put(sink, 1)
    assert "No space left" in sink.waits_for()
    files.fail = lambda name, path: None
    assert sink.load_checkpoint() == before


def test_a_broken_disk_needs_an_operator(tmp_path: Path, stream: InsertStream) -> None:
    files = MemoryFiles()
    sink = opened(tmp_path, files=files)
    sink.load_checkpoint()
    files.fail_once("sync")
    with pytest.raises(NeedsOperator, match="cannot be written"):
        stream.create(sink)


@pytest.mark.fault(
    "files, a savepoint or a schema that are gone, cut, flipped or of others",
    "refused, by name; nothing is written or restored",
    cases="12 flips + 9",
)
def test_files_that_lack_what_the_savepoint_says_are_damage(
    tmp_path: Path, stream: InsertStream, begun: FileSink
) -> None:
    stream.put(begun, 1)
    begun.close()
    last = sorted(tmp_path.glob("binlog-*"))[-1]
    os.truncate(last, last.stat().st_size - 1)
    again = opened(tmp_path)
    again.load_checkpoint()
    with pytest.raises(Corrupt, match=last.name):
        stream.put(again, 2)
    last.unlink()
    with pytest.raises(NeedsOperator, match="no file number"):
        stream.put(again, 2)


def test_a_gap_between_files_is_refused(
    tmp_path: Path, stream: InsertStream, begun: FileSink
) -> None:
    for number in range(12):
        stream.put(begun, number)
    begun.close()
    sorted(tmp_path.glob("binlog-*"))[1].unlink()
    again = opened(tmp_path)
    again.load_checkpoint()
    with pytest.raises(NeedsOperator, match="is a gap"):
        stream.put(again, 20)


def test_files_without_a_savepoint_are_left_alone(
    tmp_path: Path, stream: InsertStream, begun: FileSink
) -> None:
    stream.put(begun, 1)
    begun.close()
    (tmp_path / "savepoint").unlink()
    before = sorted(tmp_path.iterdir())
    with pytest.raises(NeedsOperator, match="no savepoint"):
        opened(tmp_path).load_checkpoint()
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.fault(
    "the checkpoint is damaged: no JSON, a field missing, negative, of another type, NULL, 15"
    " in all"
)
@pytest.mark.parametrize(
    "damage",
    ["", "commitTS", "commitTS = -5", "commitTS = 1.5", 'commitTS = "7"', "consistent = true",
     "commitTS = 7\nconsistent = 1", "commitTS = 18446744073709551616", "\0\0\0\0"],
)  # fmt: skip
def test_a_damaged_savepoint_is_refused_and_never_taken_for_none(
    damage: str, tmp_path: Path
) -> None:
    (tmp_path / "savepoint").write_text(damage)
    with pytest.raises(Malformed, match="damaged"):
        opened(tmp_path).load_checkpoint()


def test_a_savepoint_whose_commit_ts_was_edited_is_refused(
    tmp_path: Path, stream: InsertStream, begun: FileSink
) -> None:
    stream.put(begun, 1)
    path = tmp_path / "savepoint"
    path.write_text(path.read_text().replace(f"commitTS = {stream.ts}", "commitTS = 5"))
    with pytest.raises(Malformed, match="not that of the checkpoint"):
        opened(tmp_path).load_checkpoint()


def test_files_of_tidb_binlog_are_continued_and_what_is_behind_its_savepoint_goes(
    tmp_path: Path, stream: InsertStream
) -> None:
    with closing(begin(stream, opened(tmp_path / "ours", ""))) as sink:
        points = [stream.put(sink, number) for number in range(5)]
    (ours,) = (tmp_path / "ours").glob("binlog-*")
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    (theirs / ours.name).write_bytes(ours.read_bytes())
    (theirs / "savepoint").write_text(f"consistent = false\ncommitTS = {points[2].commit_ts}\n")
    with closing(opened(theirs, "")) as sink:
        assert sink.load_checkpoint() == Checkpoint(points[2].commit_ts, 0)
        sink.look_at(stream.catalog)
        for number in (3, 4):
            stream.put(sink, number)
    assert ids(theirs) == [0, 1, 2, 3, 4]
    assert len(list(theirs.glob("binlog-*"))) == 2, "from here on there are schemas"


def test_another_time_zone_is_refused(tmp_path: Path, stream: InsertStream) -> None:
    begin(stream, opened(tmp_path)).close()
    with pytest.raises(NeedsOperator, match=r"time zone \+00:00"):
        opened(tmp_path, "time-zone=%2B08:00").load_checkpoint()


def test_a_program_that_holds_the_lock_is_waited_for(
    tmp_path: Path, stream: InsertStream, begun: FileSink
) -> None:
    lock = os.open(tmp_path / ".lock", os.O_WRONLY)
    fcntl.flock(lock, fcntl.LOCK_EX)
    with pytest.raises(Retryable, match=r"another program holds \.lock"):
        stream.put(begun, 1)
    os.close(lock)
    stream.put(begun, 2)
    assert ids(tmp_path) == [2]


def filled(folder: Path, stream: InsertStream, options: str) -> FileSink:
    sink = begin(stream, opened(folder, options))
    for number in range(20):
        stream.put(sink, number)
    return sink


def packed_below_the_last(folder: Path, options: str) -> FileCounts:
    last = max(int(path.name.split("-")[1]) for path in folder.glob("binlog-*"))
    counts = FileCounts()
    Upkeep(sink_target(FilesTarget, f"file://{folder}?{options}"), counts).pack(last)
    return counts


def size_of(files: list[Path]) -> int:
    return sum(path.stat().st_size for path in files)


def test_what_is_written_and_what_packing_saves_is_counted(
    tmp_path: Path, stream: InsertStream
) -> None:
    with closing(filled(tmp_path, stream, SMALL)) as sink:
        before = list(tmp_path.glob("binlog-*"))
        written = sink.file_counts
        assert (written.files_added, written.bytes_added) == (len(before), size_of(before))
        assert written.commits == 20 + len(CREATE.split("; "))
        commits, last_s = written.commits, written.last_commit_s
        sink.save_checkpoint(stream.point())
        assert (written.commits, written.last_commit_s) == (commits, last_s)
        stream.put(sink, 21)
        assert written.last_commit_s > last_s > 0
    before = list(tmp_path.glob("binlog-*"))
    bytes_before = size_of(before)
    packed = packed_below_the_last(tmp_path, f"{SMALL}&compress=gzip")
    assert packed.compactions == len(before) - 1
    assert packed.bytes_removed == bytes_before - size_of(list(tmp_path.glob("binlog-*")))


def test_full_files_are_packed_and_are_read_as_before(tmp_path: Path, stream: InsertStream) -> None:
    options = f"{SMALL}&compress=gzip"
    filled(tmp_path, stream, options).close()
    packed_below_the_last(tmp_path, options)
    with closing(opened(tmp_path, options)) as sink:
        sink.load_checkpoint()
        sink.look_at(stream.catalog)
        stream.put(sink, 20)
    packed_below_the_last(tmp_path, options)
    names = sorted(path.name for path in tmp_path.glob("binlog-*"))
    assert [name.endswith(".gz") for name in names] == [True] * (len(names) - 1) + [False]
    assert gzip.decompress((tmp_path / names[0]).read_bytes())[:4].hex() == "04051b1c"
    assert ids(tmp_path) == list(range(21))


def test_a_sink_that_closes_leaves_packing_undone_and_nothing_of_it_behind(
    tmp_path: Path, stream: InsertStream
) -> None:
    filled(tmp_path, stream, SMALL).close()
    before = sorted(tmp_path.iterdir())
    upkeep = Upkeep(sink_target(FilesTarget, f"file://{tmp_path}?compress=gzip"), FileCounts())
    upkeep.close()
    upkeep.pack(2)
    assert sorted(tmp_path.iterdir()) == before


def test_full_files_expire_oldest_first_and_never_the_one_that_is_written(
    tmp_path: Path, stream: InsertStream
) -> None:
    filled(tmp_path, stream, SMALL).close()
    names = sorted(path.name for path in tmp_path.glob("binlog-*"))
    for name in (*names[:2], names[3], names[-1]):
        os.utime(tmp_path / name, (0, 0))
    counts = FileCounts()
    two_bytes = size_of([tmp_path / name for name in names[:2]])
    upkeep = Upkeep(sink_target(FilesTarget, f"file://{tmp_path}?retention=1d"), counts)
    upkeep.expire(int(names[-1].split("-")[1]), now_s=10**9)
    # The fourth is old, too, but a gap would be before it.
    assert sorted(path.name for path in tmp_path.glob("binlog-*")) == names[2:]
    assert (counts.files_removed, counts.bytes_removed) == (2, two_bytes)
    assert not (tmp_path / "schema-0000000000000001").exists()
    for name in names:
        if (tmp_path / name).exists():
            os.utime(tmp_path / name, (0, 0))
    upkeep.expire(int(names[-1].split("-")[1]), now_s=10**9)
    assert [path.name for path in tmp_path.glob("binlog-*")] == names[-1:]


def test_a_folder_is_absolute_or_not_as_its_url_says() -> None:
    assert sink_target(FilesTarget, "file:///a/b%20c").folder == Path("/a/b c")
    assert sink_target(FilesTarget, "file:a/b").folder == Path("a/b")
