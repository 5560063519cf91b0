from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import Malformed, NeedsOperator
from pumpclient.mysql.gtid import Flavor, MariadbGtidSet
from pumpclient.mysql.relay.layout import (
    FileName,
    Location,
    Meta,
    RelayFolder,
    SubDir,
    read_index,
    write_index,
)

bases = st.text("abc-_0", min_size=1, max_size=9)
numbers = st.integers(1, 2_000_000)
files = st.builds(FileName, bases, numbers)
locations = st.builds(Location, st.integers(1, 1_200_000), files, st.integers(0, 2**40))
A = "7e427cc0-091c-11e9-9e45-72b7c59d52d7"


@given(files, locations)
def test_names_and_places_survive_their_text(file: FileName, location: Location) -> None:
    assert FileName.parse(str(file)) == file
    assert Location.parse(str(location)) == location
    assert SubDir.parse(str(SubDir(A, location.suffix))) == SubDir(A, location.suffix)


def test_files_are_ordered_by_their_number() -> None:
    assert FileName.parse("mysql-bin.999999") < FileName.parse("mysql-bin.1000000")
    assert str(FileName.parse("mysql-bin.1000000")) == "mysql-bin.1000000"


def test_places_are_ordered_by_sub_directory_then_file_then_position() -> None:
    texts = [
        "bin|000001.000009:400",
        "bin|000002.000001:4",
        "bin|000002.000001:70",
        "bin|000002.000010:4",
    ]
    places = [Location.parse(text) for text in texts]
    assert sorted(reversed(places)) == places
    assert [str(place) for place in places] == texts
    assert places[0].at(7) == Location.parse("bin|000001.000009:7")


@pytest.mark.parametrize(
    "text", ["bin", "bin.", "bin.0", "a.b.1", ".1", "bin.1x", "../bin.1", "b|1.1"]
)
def test_what_is_no_binlog_file_is_refused(text: str) -> None:
    with pytest.raises(Malformed):
        FileName.parse(text)


@pytest.mark.parametrize(
    "text", ["bin.000001:4", "bin|0.1:4", "bin|000000.000001:4", "bin|000001.000001"]
)
def test_what_is_no_place_is_refused(text: str) -> None:
    with pytest.raises(Malformed):
        Location.parse(text)


def test_an_index_whose_numbers_do_not_follow_each_other_is_refused() -> None:
    listed = [SubDir(A, 3), SubDir("0-1", 4)]
    assert read_index(write_index(listed)) == listed
    assert read_index("") == []
    for wrong in ([SubDir(A, 3), SubDir(A, 5)], [SubDir(A, 3), SubDir(A, 2)]):
        with pytest.raises(NeedsOperator, match="does not follow"):
            read_index(write_index(wrong))
    with pytest.raises(Malformed):
        read_index("nonsense\n")


def test_a_relay_log_is_what_was_last_saved(tmp_path: Path) -> None:
    folder = RelayFolder(tmp_path / "relay", Flavor.MARIADB)
    assert folder.current is None
    first = folder.add("0-1")
    assert not folder.load(first).file
    meta = Meta("mysql-bin.000007", 1234, MariadbGtidSet.parse("0-1-9"))
    folder.save(meta)
    again = RelayFolder(tmp_path / "relay", Flavor.MARIADB)
    assert again.current == SubDir("0-1", 1)
    assert again.load(first) == meta
    assert meta.file


def test_another_server_begins_a_sub_directory_and_the_gtids_continue(tmp_path: Path) -> None:
    folder = RelayFolder(tmp_path, Flavor.MARIADB)
    folder.add("0-1")
    folder.save(Meta("mysql-bin.000007", 1234, MariadbGtidSet.parse("0-1-9")))
    second = folder.add("0-2")
    assert second == SubDir("0-2", 2)
    assert folder.load(second) == Meta("", 4, MariadbGtidSet.parse("0-1-9"))
    assert folder.add("0-2") == SubDir("0-2", 3)


def test_lines_of_sub_directories_that_were_purged_leave_the_index(tmp_path: Path) -> None:
    folder = RelayFolder(tmp_path, Flavor.MARIADB)
    first, second, third = (folder.add("0-1") for _ in range(3))
    for sub_dir in (second, first):
        assert folder.trim() == []
        for file in folder.path(sub_dir).iterdir():
            file.unlink()
        folder.path(sub_dir).rmdir()
    assert folder.trim() == [first, second]
    assert RelayFolder(tmp_path, Flavor.MARIADB).sub_dirs == [third]


def test_a_directory_that_a_crash_left_unnamed_is_taken_a_strange_one_is_not(
    tmp_path: Path,
) -> None:
    folder = RelayFolder(tmp_path, Flavor.MARIADB)
    (tmp_path / "0-1.000001").mkdir()
    (tmp_path / "0-1.000001" / "relay.meta.new").touch()
    assert folder.add("0-1") == SubDir("0-1", 1)
    (tmp_path / "0-1.000002").mkdir()
    (tmp_path / "0-1.000002" / "mysql-bin.000001").touch()
    with pytest.raises(NeedsOperator, match=r"mysql-bin\.000001"):
        folder.add("0-1")
    assert folder.current == SubDir("0-1", 1)


def test_a_relay_log_without_its_current_sub_directory_is_refused(tmp_path: Path) -> None:
    folder = RelayFolder(tmp_path, Flavor.MARIADB)
    folder.path(folder.add("0-1")).rename(tmp_path / "moved")
    with pytest.raises(NeedsOperator, match="not there"):
        RelayFolder(tmp_path, Flavor.MARIADB)


@pytest.mark.parametrize(
    "text",
    ["", "x", 'binlog-name = "a.1"\n', 'binlog-name = "a.1"\nbinlog-pos = "4"\nbinlog-gtid = ""\n',
     'binlog-name = "a.1"\nbinlog-pos = -4\nbinlog-gtid = ""\n',
     'binlog-name = "a.1"\nbinlog-pos = 4\nbinlog-gtid = "?"\n'],
)  # fmt: skip
def test_what_is_no_meta_is_refused(text: str) -> None:
    with pytest.raises(Malformed):
        Meta.parse(text, Flavor.MARIADB)
