"""The relay log on a disk that fails, tears and forgets: it has what was applied, or says so."""

import contextlib
import errno
import json
import random
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from drainer.differences import SKIP, Override
from drainer.intake.payload import Spooled, outline
from drainer.intake.payload import opened as source_of
from drainer.relay_log.log import RelayLog
from drainer.relay_log.records import (
    RECORD_BYTES_MAX,
    Chunk,
    ChunkSpool,
    NotARecord,
    Run,
    Start,
    decode,
)
from penstock.errors import Corrupt, NeedsOperator, PenstockError, Retryable
from penstock.log.files import Files
from penstock.log.segments import Segments
from penstock.schema.model import DdlJob, SchemaInfo
from penstock.wire.binlog import Binlog, BinlogType, fake_binlog
from penstock.wire.codec import encode_binlog
from tests.kit.fakes.files import MemoryFiles

FOLDER = Path("/relay")
CLUSTER = 2**63 + 5
FILE_BYTES_MAX = 1000


def binlog(ts: int, size: int = 60) -> bytes:
    value = random.Random(ts).randbytes(size)
    return encode_binlog(
        Binlog(tp=BinlogType.COMMIT, start_ts=ts - 1, commit_ts=ts, prewrite_value=value)
    )


def entries(*stamps: int, size: int = 60) -> list[tuple[int, bytes]]:
    return [(ts, binlog(ts, size)) for ts in stamps]


def fake(ts: int) -> tuple[int, bytes]:
    return ts, encode_binlog(fake_binlog(ts))


def job(number: int) -> DdlJob:
    return DdlJob(
        id=number, type=1, schema_id=number, schema_name=f"s{number}", query="CREATE DATABASE s",
        schema_version=number, finished_ts=number, schema=SchemaInfo(id=number, name=f"s{number}"),
    )  # fmt: skip


def opened(files: Files, file_bytes_max: int = FILE_BYTES_MAX) -> RelayLog:
    return RelayLog.open(FOLDER, file_bytes_max=file_bytes_max, files=files)


def started(files: Files, checkpoint_ts: int = 0, **options: int) -> RelayLog:
    log = opened(files, **options)
    log.start(CLUSTER, checkpoint_ts, [])
    return log


def stored(log: RelayLog, after_ts: int = 0) -> list[tuple[int, bytes]]:
    return [
        (ts, payload)
        for run in log.runs(after_ts)
        for ts, payload in zip(run.commit_ts, run.payloads, strict=True)
        if isinstance(payload, bytes)
    ]


def names(files: MemoryFiles) -> list[str]:
    return sorted(files.names(FOLDER))


def append(log: RelayLog, *groups: Sequence[tuple[int, bytes]]) -> None:
    for group in groups:
        log.append(group)
        log.sync()


@pytest.mark.parametrize(
    "record",
    [
        Start(2**64 - 1, 2**63, False),
        Start(1, 0, True),
        Run([1, 2**64 - 1], [b"", b"xyz"]),
        Chunk(5, 10, 3, b"1234567"),
    ],
)
def test_a_record_survives_its_bytes(record: Start | Run | Chunk) -> None:
    assert decode(record.encode()) == record


@given(st.binary(max_size=60))
def test_bytes_are_a_record_or_say_why_not(data: bytes) -> None:
    for kind in (b"", b"S", b"B", b"P"):
        with contextlib.suppress(NotARecord):
            decode(kind + data)


def test_what_was_appended_is_read_in_order_after_any_timestamp() -> None:
    files = MemoryFiles()
    log = started(files)
    append(log, entries(10, 20, 30), entries(40))
    for reader in (log, opened(files)):
        assert stored(reader) == entries(10, 20, 30, 40)
        assert stored(reader, 20) == entries(30, 40)
        assert (reader.after_ts, reader.last_ts, reader.cluster_id) == (0, 40, CLUSTER)


def test_of_fake_binlogs_only_the_last_one_is_kept() -> None:
    log = started(MemoryFiles())
    append(log, [fake(5), *entries(10), fake(15), *entries(20), fake(25), fake(30)], [fake(40)])
    assert stored(log) == [*entries(10), *entries(20), fake(30), fake(40)]


def test_a_file_ends_with_a_transaction_once_it_is_full_and_the_next_knows_its_place() -> None:
    files = MemoryFiles()
    files.extends = False
    log = started(files)
    append(log, entries(*range(1, 101)))
    assert len(names(files)) == log.size()[0] > 5
    sizes = [node.data for path, node in files.nodes.items() if path.parent == FOLDER]
    biggest = FILE_BYTES_MAX + len(binlog(1)) + 200
    assert all(len(data) <= biggest for data in sizes)
    assert sum(len(data) >= FILE_BYTES_MAX for data in sizes) == len(sizes) - 1
    assert stored(opened(files)) == entries(*range(1, 101))
    # Each file alone says where it begins.
    alone = MemoryFiles()
    last = names(files)[-1]
    alone.nodes = {p: n for p, n in files.nodes.items() if p.parent != FOLDER or p.name == last}
    rest = opened(alone)
    assert stored(rest) == entries(*range(rest.after_ts + 1, 101))


def test_a_binlog_larger_than_a_record_is_in_pieces_and_comes_back_whole() -> None:
    files = MemoryFiles()
    log = started(files)
    large = entries(20, size=2 * RECORD_BYTES_MAX + 17)
    append(log, [*entries(10), *large, *entries(30)])
    assert stored(opened(files)) == [*entries(10), *large, *entries(30)]
    assert len(names(files)) == 2  # It is not split over files, however small those are.


def test_a_binlog_that_lies_on_the_disk_goes_through_the_log_piece_by_piece(tmp_path: Path) -> None:
    payload = binlog(20, 3 * RECORD_BYTES_MAX)
    path = tmp_path / "spooled"
    path.write_bytes(payload)
    with source_of(path) as read:
        spooled = Spooled(path, len(payload), b"", outline(read, len(payload)))
    files = MemoryFiles()
    log = started(files)
    log.append([*entries(10), (20, spooled), *entries(30)])
    log.sync()
    assert stored(log) == [*entries(10), (20, payload), *entries(30)]
    back = tmp_path / "back"
    back.mkdir()
    runs = list(opened(files).runs(0, ChunkSpool(back, RECORD_BYTES_MAX)))
    assert [list(run.commit_ts) for run in runs] == [[10], [20], [30]]
    (found,) = runs[1].payloads
    assert isinstance(found, Spooled)
    assert (found.path.read_bytes(), found.outline) == (payload, spooled.outline)
    found.release()
    assert not list(back.iterdir())


def test_files_go_when_all_in_them_is_downstream_but_never_the_live_one() -> None:
    files = MemoryFiles()
    log = started(files)
    append(log, entries(*range(1, 101)))
    for checkpoint_ts in range(0, 100, 7):
        log.trim(checkpoint_ts)
        assert stored(log, checkpoint_ts) == entries(*range(checkpoint_ts + 1, 101))
        assert log.after_ts <= checkpoint_ts
        assert stored(opened(files), checkpoint_ts) == entries(*range(checkpoint_ts + 1, 101))
    log.trim(10**6)
    assert len(names(files)) == 1
    append(log, entries(101))
    assert opened(files).last_ts == 101


def test_a_run_that_continues_writes_nothing_twice() -> None:
    files = MemoryFiles()
    append(started(files), entries(10, 20, 30))
    log = started(files, 10)
    append(log, entries(20, 30, 40))
    assert stored(log) == entries(10, 20, 30, 40)


@pytest.mark.parametrize("checkpoint_ts", [5, 50])
def test_a_log_that_does_not_reach_the_checkpoint_begins_again(checkpoint_ts: int) -> None:
    files = MemoryFiles()
    append(started(files, 8), entries(10, 20, 30))
    log = started(files, checkpoint_ts)
    append(log, entries(60))
    for reader in (log, opened(files)):
        assert (reader.after_ts, reader.last_ts) == (checkpoint_ts, 60)
        assert stored(reader, checkpoint_ts) == entries(60)


@pytest.mark.fault(
    "the last group is torn at every byte: a range is missing, before or behind; a real"
    " Drainer's log is damaged or torn",
    "exit code 2 with the range; 1 with file and offset; cut and applied",
)
def test_what_is_missing_is_said_with_its_range() -> None:
    files = MemoryFiles()
    with pytest.raises(NeedsOperator, match=r"is empty"):
        opened(files).check_range(5)
    log = started(files, 8)
    append(log, entries(10, 20, 30))
    log.check_range(8)
    log.check_range(30, 30)
    with pytest.raises(NeedsOperator, match=r"ends at 30: \(30, 31\] is missing"):
        log.check_range(10, 31)
    with pytest.raises(NeedsOperator, match=r"begins after 8: \(5, 8\] is missing"):
        log.check_range(5)
    with pytest.raises(NeedsOperator, match=r"ends at 30: all after the checkpoint 31 is missing"):
        log.check_range(31)


def test_a_relay_log_of_another_cluster_is_refused() -> None:
    files = MemoryFiles()
    started(files)
    with pytest.raises(NeedsOperator, match="is of cluster"):
        opened(files).start(7, 0, [])


def test_jobs_of_ddl_are_kept_once_and_for_good() -> None:
    files = MemoryFiles()
    log = opened(files)
    log.start(CLUSTER, 0, [job(2), job(1)])
    log.note_jobs([job(2), job(3)])
    log.sync()
    log.close()
    again = started(files, 10**6)
    again.note_jobs([job(3)])
    assert again.ddl.jobs() == [job(1), job(2), job(3)]


def test_overrides_that_an_older_version_wrote_are_read() -> None:
    files = MemoryFiles()
    started(files, 10**6).close()
    skipped = Override(commit_ts=7, verb=SKIP, made="then")
    records = [{"decision": ts, **skipped.to_json()} for ts in (7, 8)]
    segments = Segments.open(FOLDER / "ddl", files=files)
    segments.append([json.dumps(each).encode() for each in (*records, {"decision": 8})])
    segments.close()
    assert started(files, 10**6).ddl.overrides() == {7: skipped}


@pytest.mark.fault(
    "the last group is torn at every byte; one bit of each byte is flipped; the disk is full;"
    " crashes at random",
    "cut and written again; `Corrupt` with file and offset; exit code 2; in 60 histories"
    " nothing that was synced is missing",
)
def test_the_last_group_cut_at_every_byte_is_torn_off_and_written_again() -> None:
    files = MemoryFiles()
    log = started(files, file_bytes_max=1 << 20)
    append(log, entries(10, 20))
    begin = log.size()[1]
    append(log, entries(30, 40), [fake(50)])
    (name,) = names(files)
    for size in range(begin, log.size()[1] + 1):
        torn = files.after_kill()
        node = torn.nodes[FOLDER / name]
        whole = bytes(node.data)
        torn.nodes = dict(files.nodes)
        torn.nodes[FOLDER / name] = type(node)()
        torn.nodes[FOLDER / name].data = bytearray(whole[:size])
        found = started(torn, 10, file_bytes_max=1 << 20)
        assert stored(found)[:2] == entries(10, 20)
        assert stored(found) in (
            entries(10, 20), entries(10, 20, 30, 40), [*entries(10, 20, 30, 40), fake(50)]
        )  # fmt: skip
        append(found, entries(20, 30, 40, 60))
        real = [entry for entry in stored(opened(torn)) if entry != fake(50)]
        assert real == entries(10, 20, 30, 40, 60)


def test_a_flipped_bit_is_damage_with_file_and_offset_or_changes_nothing() -> None:
    files = MemoryFiles()
    log = started(files)
    append(log, *[entries(ts, ts + 1) for ts in range(10, 40, 2)])
    log.note_jobs([job(1)])
    log.sync()
    log.close()
    whole = stored(opened(files.after_kill()))
    corrupt = 0
    for path, node in list(files.nodes.items()):
        for at in range(len(node.data)):
            bad = files.after_kill()
            bad.nodes[path] = type(node)()
            bad.nodes[path].data = bytearray(node.data)
            bad.nodes[path].data[at] ^= 1 << (at % 8)
            try:
                found = opened(bad)
                same = (stored(found), found.ddl.jobs()) == (whole, [job(1)])
            except Corrupt as error:
                same = error.path.startswith(str(FOLDER))
                corrupt += 1
            except NeedsOperator as error:
                same = "segment of version" in str(error)
            assert same, f"{path} at {at}"
    assert corrupt > 1000


@pytest.mark.parametrize("call", ["write", "sync"])
def test_a_full_disk_is_said_and_a_restart_with_room_continues(call: str) -> None:
    files = MemoryFiles()
    log = started(files)
    append(log, entries(10))
    files.fail_once(call, errno.ENOSPC)
    with pytest.raises(NeedsOperator, match="no space for the relay log"):
        append(log, entries(20))
    again = started(files, 10)
    append(again, entries(20, 30))
    assert stored(opened(files)) == entries(10, 20, 30)


def test_a_disk_error_stops_without_a_claim() -> None:
    files = MemoryFiles()
    log = started(files)
    files.fail_once("sync", errno.EIO)
    with pytest.raises(Retryable):
        append(log, entries(10))


@settings(max_examples=60, deadline=None)
@given(st.randoms(use_true_random=False))
def test_whatever_was_synced_survives_any_number_of_crashes(rng: random.Random) -> None:
    files = MemoryFiles()
    stamp, checkpoint_ts, synced_ts = 0, 0, 0
    truth: list[tuple[int, bytes]] = []
    for _ in range(4):
        log = started(files, checkpoint_ts, file_bytes_max=600)
        for _ in range(rng.randint(0, 6)):
            fresh = [entry for entry in truth if entry[0] > checkpoint_ts]
            for _ in range(rng.randint(0, 5)):
                stamp += rng.randint(1, 9)
                fresh.append((stamp, binlog(stamp, rng.randint(0, 300))))
                truth.append(fresh[-1])
            log.append([entry for entry in fresh if entry[0] > log.last_ts])
            if rng.random() < 0.7:
                log.sync()
                synced_ts = max(synced_ts, stamp)
                if rng.random() < 0.5:
                    checkpoint_ts = rng.randint(checkpoint_ts, synced_ts)
                    log.trim(checkpoint_ts)
        files = files.after_crash(rng)
        try:
            found = opened(files)
        except PenstockError as error:
            pytest.fail(str(error))
        found.check_range(checkpoint_ts)
        assert found.last_ts >= synced_ts
        wanted = [e for e in truth if checkpoint_ts < e[0] <= found.last_ts]
        assert stored(found, checkpoint_ts) == wanted
