"""A folder of files that lacks something is refused by a restore, however it lacks it."""

import gzip
import itertools
import json
import os
import re
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from drainer.reparo.reparo_config import ReparoConfig
from drainer.reparo.restore import run
from drainer.settings.targets import FilesTarget
from drainer.sinks.files.binlog_files import binlog_files, records
from drainer.sinks.files.sink import FileSink
from penstock.codes import Code
from penstock.errors import Corrupt, NeedsOperator
from tests.kit.sink_target import sink_target
from tests.kit.workloads.sink_stream import InsertStream

ROWS = 60


class Written:
    """A folder of some small files, and the stream that they hold."""

    def __init__(self, folder: Path, count: int = ROWS) -> None:
        self.folder = folder
        self.stream = InsertStream()
        self.sink = FileSink(
            sink_target(FilesTarget, f"file://{folder}?max-file-size=300"),
            cluster_id=7,
            retry_s_max=0,
        )
        self.sink.load_checkpoint()
        self.stream.create(self.sink)
        self.of_ts = {self.stream.put(self.sink, row).commit_ts: row for row in range(count)}

    def copy(self, to: Path) -> Path:
        return Path(shutil.copytree(self.folder, to))


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Written]:
    made = Written(tmp_path_factory.mktemp("files"))
    with closing(made.sink):
        yield made


def files(folder: Path) -> list[Path]:
    return sorted(folder.glob("binlog-*"))


def restored(folder: Path, stop_tso: int = 0) -> str:
    target = folder.with_suffix(".db")
    return str(
        run(ReparoConfig(data_dir=str(folder), sink=f"sqlite:///{target}", stop_tso=stop_tso))
    )


def test_the_last_line_of_a_restore_is_an_object_with_json(
    written: Written, tmp_path: Path
) -> None:
    folder = written.copy(tmp_path / "files")
    # In a process of its own, because a program leaves its log's handler behind.
    command = [sys.executable, "-m", "drainer.reparo", "--data-dir", str(folder), "-o", "json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    *changes, last = map(json.loads, done.stdout.splitlines())
    inserts = [each for each in changes if each.get("type") == "insert"]
    assert len(changes) == len(inserts) + last["ddls"]
    assert last["done"] == "printed"
    assert last["rows"] == {"shop.t": len(inserts)}
    assert last["through_ts"] >= max(written.of_ts)


def removed(paths: Iterable[Path]) -> None:
    for path in paths:
        path.unlink()


def rows(folder: Path) -> int:
    with closing(sqlite3.connect(folder.with_suffix(".db"))) as connection:
        (count,) = connection.execute('SELECT COUNT(*) FROM "shop.t"').fetchone()
    return int(count)


def cut_at_record(path: Path) -> None:
    (file,) = binlog_files([path.name], path.parent)
    ends = [each.stop for each in records(path.parent, file, None, is_last=True)]
    os.truncate(path, ends[-2] if len(ends) > 1 else 0)


def swap(one: Path, other: Path) -> None:
    first, second = one.read_bytes(), other.read_bytes()
    one.write_bytes(second)
    other.write_bytes(first)


def packed(path: Path, data: bytes) -> None:
    path.with_name(path.name + ".gz").write_bytes(gzip.compress(data))
    path.unlink()


DAMAGES: dict[str, Callable[[list[Path]], object]] = {
    "the newest is missing": lambda found: found[-1].unlink(),
    "the newest three are missing": lambda found: removed(found[-3:]),
    "one in the middle is missing": lambda found: found[3].unlink(),
    "one in the middle is empty": lambda found: found[3].write_bytes(b""),
    "the newest is empty": lambda found: found[-1].write_bytes(b""),
    "the newest is cut in a record": lambda found: os.truncate(found[-1], 20),
    "one in the middle is cut in a record": lambda found: os.truncate(found[3], 200),
    "one in the middle is cut between records": lambda found: cut_at_record(found[3]),
    "the newest is cut between records": lambda found: cut_at_record(found[-1]),
    "two are swapped": lambda found: swap(found[2], found[4]),
    "one is there twice": lambda found: shutil.copy(found[3], found[4]),
    "the newest is an older one": lambda found: shutil.copy(found[-2], found[-1]),
    "one has more behind its end": lambda found: found[3].write_bytes(
        found[3].read_bytes() + found[4].read_bytes()
    ),
    "a packed one is empty": lambda found: packed(found[3], b""),
    "a packed one is cut": lambda found: packed(found[3], found[3].read_bytes()[:-150]),
    "no schema file": lambda found: schema(found[4]).unlink(),
    "a schema file is empty": lambda found: schema(found[4]).write_bytes(b""),
    "no savepoint": lambda found: (found[0].parent / "savepoint").unlink(),
}


def schema(path: Path) -> Path:
    return path.with_name(f"schema-{path.name.split('-')[1]}")


@pytest.mark.fault(
    "a copy of a folder of files lacks files, the end of a file, a schema file or the"
    " savepoint; has files swapped, twice, or with more behind their end",
    "the restore is refused before anything is changed, and names up to where the files hold;"
    " up to there it can be restored",
    cases="22",
)
@pytest.mark.parametrize("damage", DAMAGES)
def test_a_folder_that_lacks_something_is_refused_before_anything_is_restored(
    damage: str, written: Written, tmp_path: Path
) -> None:
    folder = written.copy(tmp_path / "copy")
    assert len(files(folder)) > 8
    DAMAGES[damage](files(folder))
    with pytest.raises((NeedsOperator, Corrupt)) as refused:
        restored(folder)
    assert refused.value.code in (Code.FILES_GAP, Code.FILES_DAMAGED, Code.CHECKPOINT_DAMAGED)
    with closing(sqlite3.connect(folder.with_suffix(".db"))) as connection:
        tables = connection.execute("SELECT name FROM sqlite_master WHERE name LIKE 'shop%'")
        assert tables.fetchall() == []


def test_a_packed_file_that_is_another_of_the_same_size_is_found_by_reading_it(
    written: Written, tmp_path: Path
) -> None:
    folder = written.copy(tmp_path / "copy")
    packed(files(folder)[3], files(folder)[2].read_bytes())
    with pytest.raises(Corrupt, match="another history"):
        restored(folder)


def test_a_whole_folder_is_restored_packed_or_not_and_all_of_it_is_proved(
    written: Written, tmp_path: Path
) -> None:
    folder = written.copy(tmp_path / "copy")
    for path in files(folder)[2:5]:
        packed(path, path.read_bytes())
    said = restored(folder)
    assert rows(folder) == ROWS
    assert f"up to {max(written.of_ts)} " in said
    assert "proved" not in said


@pytest.mark.parametrize("lacks", ["the newest three are missing", "no savepoint"])
def test_what_a_folder_holds_can_be_restored_by_naming_an_end_in_it(
    lacks: str, written: Written, tmp_path: Path
) -> None:
    folder = written.copy(tmp_path / "copy")
    DAMAGES[lacks](files(folder))
    with pytest.raises(NeedsOperator) as refused:
        restored(folder)
    named = re.search(r"stop-tso = (\d+)", refused.value.hint)
    assert named is not None
    held_ts = int(named[1])
    with pytest.raises(NeedsOperator):
        restored(folder, stop_tso=held_ts + 1)
    restored(folder, stop_tso=held_ts)
    assert rows(folder) == written.of_ts[held_ts] + 1


def test_damage_behind_the_end_that_is_named_keeps_nobody_from_restoring(
    written: Written, tmp_path: Path
) -> None:
    folder = written.copy(tmp_path / "copy")
    files(folder)[-2].write_bytes(b"")
    stop_ts = list(written.of_ts)[10]
    assert f"up to {stop_ts} " in restored(folder, stop_tso=stop_ts)
    assert rows(folder) == 11


@pytest.mark.fault(
    "a copy of a folder of files lacks files: files of TiDB-Binlog or an earlier version,"
    " which do not say how they end",
    "restored; what is not proved is said",
    cases="2",
)
def test_what_cannot_be_proved_of_tidb_binlogs_files_is_said(
    written: Written, tmp_path: Path
) -> None:
    folder = written.copy(tmp_path / "copy")
    for path in folder.glob("schema-*"):
        path.unlink()
    end_ts = max(written.of_ts)
    (folder / "savepoint").write_text(f"consistent = true\ncommitTS = {end_ts + 50}\n")
    cut_at_record(files(folder)[-1])
    said = restored(folder)
    held = rows(folder)
    assert held < ROWS
    # It says what was read, and not what the savepoint hopes for.
    assert f"up to {list(written.of_ts)[held - 1]} " in said
    assert "cannot be proved" in said


def test_files_of_an_earlier_version_are_restored_and_what_is_not_proved_is_said(
    written: Written, tmp_path: Path
) -> None:
    folder = written.copy(tmp_path / "copy")
    for path in folder.glob("schema-*"):
        body = json.loads(gzip.decompress(path.read_bytes()))
        del body["before"]
        path.write_bytes(gzip.compress(json.dumps(body).encode()))
    saved = (folder / "savepoint").read_text()
    (folder / "savepoint").write_text(re.sub(r"last-crc = \d+\n", "", saved))
    said = restored(folder)
    assert rows(folder) == ROWS
    assert "cannot be proved" in said


# --- the Drainer itself ------------------------------------------------------------------------


def put_back(folder: Path, copy: Path) -> None:
    shutil.rmtree(folder)
    shutil.copytree(copy, folder)


UNDER_THE_DRAINER: dict[str, Callable[[Path, Path], object]] = {
    "the folder is deleted": lambda folder, _: shutil.rmtree(folder),
    "the folder is renamed": lambda folder, _: folder.rename(folder.with_name("away")),
    "the folder is an older one": put_back,
    "the savepoint is deleted": lambda folder, _: (folder / "savepoint").unlink(),
    "the savepoint is an older one": lambda folder, copy: shutil.copy(copy / "savepoint", folder),
    "the newest file is deleted": lambda folder, _: files(folder)[-1].unlink(),
    "the newest file is cut": lambda folder, _: cut_at_record(files(folder)[-1]),
    "the newest file is another": lambda folder, _: shutil.copy(
        files(folder)[-2], files(folder)[-1]
    ),
    "all files are deleted": lambda folder, _: removed(files(folder)),
}


@pytest.mark.fault(
    "the folder, the savepoint or the newest file is removed, cut, or replaced by an older"
    " one while the Drainer writes",
    "it stops before its checkpoint moves; a whole copy in the same place is continued",
    cases="11",
)
@pytest.mark.parametrize("change", UNDER_THE_DRAINER)
def test_a_folder_that_changes_under_the_drainer_stops_it_before_its_checkpoint_moves(
    change: str, tmp_path: Path
) -> None:
    made = Written(tmp_path / "files", 12)
    copy = made.copy(tmp_path / "before")
    with closing(made.sink):
        made.stream.put(made.sink, 12)
        UNDER_THE_DRAINER[change](made.folder, copy)
        saved = made.folder / "savepoint"
        before = saved.read_bytes() if saved.exists() else b""
        for row in itertools.islice(itertools.count(13), 2):
            with pytest.raises((NeedsOperator, Corrupt)):
                made.stream.put(made.sink, row)
        assert (saved.read_bytes() if saved.exists() else b"") == before


def test_a_folder_that_was_moved_to_another_disk_with_all_of_it_is_continued(
    tmp_path: Path,
) -> None:
    made = Written(tmp_path / "files", 12)
    with closing(made.sink):
        put_back(made.folder, made.copy(tmp_path / "copy"))
        made.stream.put(made.sink, 12)
    assert "proved" not in restored(made.folder)
    assert rows(made.folder) == 13


def test_a_restart_refuses_a_newest_file_of_another_history(tmp_path: Path) -> None:
    made = Written(tmp_path / "files", 12)
    made.sink.close()
    newest = files(made.folder)[-1]
    newest.write_bytes(files(made.folder)[-2].read_bytes() * 2)
    with closing(
        FileSink(sink_target(FilesTarget, f"file://{made.folder}"), cluster_id=7, retry_s_max=0)
    ) as sink:
        sink.load_checkpoint()
        before = newest.read_bytes()
        with pytest.raises(Corrupt, match="another history"):
            made.stream.put(sink, 12)
        assert newest.read_bytes() == before
