"""`penstock ctl dump` on real data folders: whole, torn, damaged, and in use."""

import json
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from penstock.ctl.commands import main
from penstock.log.segments import Segments
from penstock.wire.binlog import Binlog, BinlogType
from penstock.wire.codec import encode_binlog
from pump.store.record import Record
from pump.store.storage import Storage
from tests.kit.fakes.storage import commit, die, fake, opened, prewrite, rollback, write
from tests.kit.workloads.large import large_prewrite, write_large

Dump = Callable[..., tuple[int, str, str]]


@pytest.fixture
def dump(capsys: pytest.CaptureFixture[str]) -> Dump:
    def run(path: Path, *arguments: str) -> tuple[int, str, str]:
        code = main(["dump", str(path), *arguments])
        return code, *capsys.readouterr()

    return run


def ddl(start_ts: int, query: bytes) -> Record:
    binlog = Binlog(tp=BinlogType.PREWRITE, start_ts=start_ts, ddl_job_id=9, ddl_query=query)
    return Record(BinlogType.PREWRITE, start_ts, 0, encode_binlog(binlog))


def filled(path: Path) -> Storage:
    storage = opened(path)
    for start_ts in range(10, 400, 10):
        write(storage, prewrite(start_ts, b"some row changes " * 5), commit(start_ts, start_ts + 5))
    write(storage, ddl(401, b"ALTER TABLE t\nADD c INT"), prewrite(402), rollback(402))
    write(storage, fake(1000))
    assert storage.stats()["segments"] > 2
    return storage


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    filled(tmp_path / "pump").close()
    return tmp_path / "pump"


def contents(folder: Path) -> dict[Path, tuple[bytes, int]]:
    files = sorted(p for p in (folder / "log").iterdir())
    return {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in files}


def test_every_record_is_printed_with_its_place_and_nothing_is_written(
    folder: Path, dump: Dump
) -> None:
    before = contents(folder)
    code, out, err = dump(folder)
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert lines[0].split()[:6] == ["000000.seg:32", "prewrite", "start_ts", "10", "commit_ts", "-"]
    assert len(lines) == 39 * 2 + 4 + 1
    assert "DDL job 9: ALTER TABLE t ADD c INT" in out
    assert lines[-2].split()[1] == "fake"
    assert "mark of a clean stop" in lines[-1]
    assert contents(folder) == before
    assert dump(folder / "log")[1] == out


def test_a_single_file_knows_its_end_from_its_successor(folder: Path, dump: Dump) -> None:
    first = folder / "log" / "000000.seg"
    whole = dump(first)[1]
    with first.open("ab") as file:
        file.write(b"what a failed write left")
    code, out, _ = dump(first)
    assert code == 0
    assert out.startswith(whole)
    assert "sealed here; 24 bytes of a failed write after it do not count" in out


def test_records_are_picked_by_timestamp_and_shown_in_full(folder: Path, dump: Dump) -> None:
    _, out, _ = dump(folder, "--from-ts", "55", "--to-ts", "60", "--full")
    records = [line for line in out.splitlines() if "start_ts" in line and ".seg" in line]
    assert [line.split()[1] for line in records] == ["commit", "prewrite", "commit"]
    assert "no row changes: undecodable" in out


def test_json_has_a_line_for_each_record_and_one_document_for_the_summary(
    folder: Path, dump: Dump
) -> None:
    text = dump(folder)[1].splitlines()
    code, out, _ = dump(folder, "-o", "json")
    records = [json.loads(line) for line in out.splitlines()]
    assert (code, len(records)) == (0, len(text))
    for record, line in zip(records, text, strict=True):
        assert line.startswith(f"{record['file']}:{record['offset']} ")
        assert f" {record['kind']} " in line
        assert "size_bytes" not in record or f"  {record['size_bytes']} bytes" in line
    assert "ALTER TABLE t\nADD c INT" in {record.get("ddl_query") for record in records}
    totals = json.loads(dump(folder, "--summary", "-o", "json")[1])
    kinds = Counter(record["kind"] for record in records)
    assert totals["records"] == {k: n for k, n in kinds.items() if k != "stop"}
    assert (totals["clean_stop"], totals["damaged_places"]) == (True, 0)


def test_a_summary_adds_up(folder: Path, dump: Dump) -> None:
    code, out, _ = dump(folder, "--summary")
    assert code == 0
    assert ", 82 records, " in out.splitlines()[0]
    assert "1 of the Prewrites are DDL" in out
    assert "1 Prewrites without Commit or Rollback\n  start_ts 401," in out
    assert "ends with the mark of a clean stop" in out
    assert out.endswith("damaged places: 0\n")


def test_damage_is_placed_and_what_lies_behind_it_is_still_printed(
    folder: Path, dump: Dump
) -> None:
    whole = dump(folder)[1].splitlines()
    place = int(whole[2].split()[0].split(":")[1])
    following = int(whole[3].split()[0].split(":")[1])
    path = folder / "log" / "000000.seg"
    data = bytearray(path.read_bytes())
    data[place + 30] ^= 4
    path.write_bytes(data)
    code, out, err = dump(folder)
    assert (code, err) == (1, "penstock ctl: 1 damaged places\n")
    lines = out.splitlines()
    damage = f"DAMAGE up to {following}: the payload does not match its checksum"
    assert lines[2] == f"{f'000000.seg:{place}':22}  {damage}"
    assert lines[:2] + lines[3:] == whole[:2] + whole[3:]
    code, out, _ = dump(folder, "--summary")
    assert (code, damage in out) == (1, True)


def test_a_missing_segment_and_a_short_one_are_damage(folder: Path, dump: Dump) -> None:
    second = folder / "log" / "000001.seg"
    data = second.read_bytes()
    second.write_bytes(data[:-10])
    code, out, _ = dump(folder, "--summary")
    assert code == 1
    assert f"its successor knows {len(data)} bytes" in out
    second.unlink()
    code, out, _ = dump(folder, "--summary")
    assert code == 1
    assert "000001.seg:0" in out
    assert "this segment is missing" in out


def test_the_records_below_a_damaged_header_are_still_read(folder: Path, dump: Dump) -> None:
    path = folder / "log" / "000000.seg"
    whole = dump(path)[1]
    for at in (5, 30):  # In the fields, and in the checksum.
        data = bytearray(path.read_bytes())
        data[at] ^= 1
        path.write_bytes(data)
        code, out, _ = dump(path)
        assert (code, out.split("\n", 1)[1]) == (1, whole)
        assert "DAMAGE up to 32: not a segment header" in out
        data[at] ^= 1
        path.write_bytes(data)


def test_a_torn_end_is_no_damage_and_a_whole_group_behind_it_makes_it_so(
    tmp_path: Path, dump: Dump
) -> None:
    storage = opened(tmp_path)
    write(storage, prewrite(1), commit(1, 5))
    end = storage._segments.end.offset
    die(storage)
    path = tmp_path / "log" / "000000.seg"
    data = path.read_bytes()[:end]
    path.write_bytes(data + data[32:60])
    code, out, _ = dump(tmp_path)
    assert code == 0
    assert "torn end of 28 bytes" in out
    storage = opened(tmp_path)  # Cuts it, and appends a group that knows what was on the disk.
    write(storage, fake(9))
    die(storage)
    damaged = bytearray(path.read_bytes())
    damaged[40] ^= 1
    path.write_bytes(damaged)
    code, out, _ = dump(tmp_path)
    assert (code, "torn" in out) == (1, False)


def test_the_log_of_a_running_pump_can_be_looked_at(tmp_path: Path, dump: Dump) -> None:
    storage = filled(tmp_path)
    code, out, _ = dump(tmp_path, "--summary")
    assert (code, "no clean stop" in out) == (0, True)
    write(storage, fake(2000))
    storage.close()


def test_what_is_no_binlog_is_damage_whatever_its_checksum_says(tmp_path: Path, dump: Dump) -> None:
    segments = Segments.open(tmp_path / "log")
    segments.append([b"\xff\xff"])
    segments.sync()
    segments.close()
    code, out, _ = dump(tmp_path)
    assert code == 1
    assert "DAMAGE up to 58: not a binlog: undecodable" in out


@pytest.mark.parametrize("arguments", [["nowhere"], ["."]])
def test_a_path_without_segments_needs_another_path(
    tmp_path: Path, dump: Dump, arguments: list[str]
) -> None:
    code, out, err = dump(tmp_path / arguments[0])
    assert (code, out) == (2, "")
    assert "data-dir" in err


def flips(data: bytes, step: int) -> Iterator[tuple[int, bytes]]:
    for at in range(0, len(data), step):
        damaged = bytearray(data)
        damaged[at] ^= 1 << at % 8
        yield at, bytes(damaged)


@pytest.mark.fault
@pytest.mark.parametrize("name", ["000000.seg", "000001.seg"])
def test_no_flipped_bit_of_a_sealed_segment_passes_in_silence(
    folder: Path, dump: Dump, name: str
) -> None:
    path = folder / "log" / name
    for at, damaged in flips(path.read_bytes(), 7):
        path.write_bytes(damaged)
        assert dump(path, "--summary")[0] == 1, at


@pytest.mark.fault
def test_a_file_cut_anywhere_is_reported_and_never_a_defect(tmp_path: Path, dump: Dump) -> None:
    storage = opened(tmp_path)
    write(storage, prewrite(1), commit(1, 5))
    storage.close()
    path = tmp_path / "log" / "000000.seg"
    data = path.read_bytes()
    for size in range(len(data)):
        path.write_bytes(data[:size])
        code, out, _ = dump(tmp_path)
        assert code == (1 if size < 32 else 0)
        assert size >= 32 or "DAMAGE" in out


def test_pieces_and_their_assembly_are_shown_with_the_size_of_the_whole(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    storage = Storage.open(tmp_path / "pump")
    write_large(storage, 10, b"rows" * 50)
    write(storage, commit(10, 20))
    storage.close()
    assert main(["dump", str(tmp_path / "pump")]) == 0
    lines = capsys.readouterr().out.splitlines()
    size = len(large_prewrite(10, b"rows" * 50))
    assert [line.split()[1] for line in lines] == [*["piece"] * 4, "prewrite", "commit", "stop"]
    assert f"{size} bytes in 4 pieces from 000000.seg:32 on" in lines[4]
    assert main(["dump", "--summary", str(tmp_path / "pump")]) == 0
    printed = capsys.readouterr().out
    assert "4 pieces of large Prewrites" in printed
    assert "0 Prewrites without Commit or Rollback" in printed
