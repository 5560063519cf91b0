"""A file replaced as a whole is the old one or the new one; and what macOS has of synced files."""

import errno
import fcntl
import os
from pathlib import Path

import pytest

from penstock.codes import Code
from penstock.errors import NeedsOperator
from penstock.log.files import DRAFT, lock_folder, replace_file, sync_data
from penstock.log.segments import Segments
from pumpclient.mysql.gtid import MariadbGtidSet
from pumpclient.mysql.journal import Journal
from pumpclient.mysql.relay.boundaries import TransactionTracker
from pumpclient.mysql.relay.receiver import Transformer
from pumpclient.mysql.relay.writer import RelayWriter
from tests.kit.mysql.binlogs import BinlogScript


def test_a_file_is_replaced_over_a_draft_that_a_crash_left_and_nothing_else_remains(
    tmp_path: Path,
) -> None:
    path = tmp_path / "relay.meta"
    replace_file(path, b"old")
    (tmp_path / f"relay.meta{DRAFT}").write_bytes(b"a longer half")
    replace_file(path, b"new")
    assert path.read_bytes() == b"new"
    assert os.listdir(tmp_path) == ["relay.meta"]


def test_a_disk_that_fails_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(descriptor: int) -> None:
        raise OSError("no space left")

    path = tmp_path / "relay.meta"
    replace_file(path, b"old")
    monkeypatch.setattr(os, "fdatasync", fail)
    with pytest.raises(OSError, match="no space"):
        replace_file(path, b"new")
    assert path.read_bytes() == b"old"


LINUX_ONLY = ("fdatasync", "posix_fallocate", "posix_fadvise")
_FULL_SYNC = 51
"""macOS's number of F_FULLFSYNC."""


@pytest.mark.parametrize("has_full_sync", [False, True])
def test_a_log_a_relay_log_and_a_journal_are_synced_where_only_macos_calls_exist(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_full_sync: bool
) -> None:
    synced: list[str] = []

    def note(descriptor: int, command: int = 0) -> None:
        assert command == (_FULL_SYNC if has_full_sync else 0)
        synced.append(Path(os.readlink(f"/proc/self/fd/{descriptor}")).name)

    for name in LINUX_ONLY:
        monkeypatch.delattr(os, name)
    if has_full_sync:
        monkeypatch.setattr(fcntl, "F_FULLFSYNC", _FULL_SYNC, raising=False)
        monkeypatch.setattr(fcntl, "fcntl", note)
    else:
        monkeypatch.setattr(os, "fsync", note)
    segments = Segments.open(tmp_path / "log", segment_bytes_max=1 << 20)
    segments.append([b"stored"])
    segments.sync()
    (tmp_path / "relay").mkdir()
    script = BinlogScript()
    script.transaction(1)
    relay = Transformer(RelayWriter(tmp_path / "relay"), TransactionTracker(MariadbGtidSet()))
    relay.take(script.stream)
    relay.writer.sync()
    journal = Journal(tmp_path / "journal")
    journal.begin("pump-1", range(1, 4))
    assert {"000000.seg", script.name, "journal"} <= set(synced)
    segments.close()
    relay.writer.close()
    journal.close()


@pytest.mark.parametrize("code", [errno.ENOTSUP, errno.EIO])
def test_only_a_volume_without_a_full_sync_gets_the_ordinary_sync(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    def refuse(descriptor: int, command: int) -> None:
        raise OSError(code, os.strerror(code))

    synced: list[int] = []
    monkeypatch.delattr(os, "fdatasync")
    monkeypatch.setattr(fcntl, "F_FULLFSYNC", _FULL_SYNC, raising=False)
    monkeypatch.setattr(fcntl, "fcntl", refuse)
    monkeypatch.setattr(os, "fsync", synced.append)
    with (tmp_path / "file").open("wb") as file:
        if code == errno.ENOTSUP:
            sync_data(file.fileno())
            assert synced == [file.fileno()]
        else:
            with pytest.raises(OSError, match="Input/output"):
                sync_data(file.fileno())
            assert synced == []


def test_a_data_folder_says_which_kind_of_node_it_is_of(tmp_path: Path) -> None:
    lock = lock_folder(tmp_path, "Pump")
    with pytest.raises(NeedsOperator, match=r"another Pump runs in .* for this Drainer") as taken:
        lock_folder(tmp_path, "Drainer")
    assert taken.value.code is Code.NODE_ID_TAKEN
    os.close(lock)
    with pytest.raises(NeedsOperator, match=r"is the folder of a Pump .name another") as foreign:
        lock_folder(tmp_path, "Drainer")
    assert foreign.value.code is Code.DATA_DIR_OTHER
    os.close(lock_folder(tmp_path, "Pump"))


def test_a_data_folder_of_an_older_version_names_its_kind_from_its_next_start_on(
    tmp_path: Path,
) -> None:
    (tmp_path / ".lock").touch()
    lock = lock_folder(tmp_path, "Drainer")
    with pytest.raises(NeedsOperator, match="another Drainer runs in"):
        lock_folder(tmp_path, "Drainer")
    os.close(lock)
