"""What a checkpoint in a file promises: the last one saved, or a refusal, never a guess."""

import random
from pathlib import Path

import pytest

from drainer.sinks.checkpoint import Checkpoint
from penstock.errors import Malformed, Retryable
from penstock.log.files import Files, OsFiles
from tests.kit.fakes.checkpoint_file import NAME, CheckpointFile
from tests.kit.fakes.files import MemoryFiles

FIRST = Checkpoint(5, 1)
LAST = Checkpoint(2**64 - 1, 7, consistent=True, ddl_intent_ts=2**63)


@pytest.fixture(params=["disk", "memory"])
def files(request: pytest.FixtureRequest) -> Files:
    return OsFiles() if request.param == "disk" else MemoryFiles()


def test_without_a_file_there_is_no_checkpoint(files: Files, tmp_path: Path) -> None:
    assert CheckpointFile(tmp_path / "new", files).load() is None


def test_what_was_saved_last_is_loaded(files: Files, tmp_path: Path) -> None:
    file = CheckpointFile(tmp_path, files)
    file.save(FIRST)
    file.save(LAST)
    assert CheckpointFile(tmp_path, files).load() == LAST


def test_a_file_of_tidb_binlog_is_continued(tmp_path: Path) -> None:
    (tmp_path / NAME).write_text("commitTS = 414529105591271429\nconsistent = true\nother = 1\n")
    found = CheckpointFile(tmp_path).load()
    assert found == Checkpoint(414529105591271429, 0, consistent=True)


@pytest.mark.fault(
    "the checkpoint is damaged: no JSON, a field missing, negative, of another type, NULL, 15"
    " in all"
)
@pytest.mark.parametrize(
    "damage",
    ["", "commitTS", "commitTS = -5", "commitTS = 1.5", 'commitTS = "7"', "consistent = true",
     "commitTS = 7\nconsistent = 1", "commitTS = 18446744073709551616", "\0\0\0\0"],
)  # fmt: skip
def test_a_damaged_file_is_refused_and_never_taken_for_none(damage: str, tmp_path: Path) -> None:
    (tmp_path / NAME).write_text(damage)
    with pytest.raises(Malformed, match="damaged"):
        CheckpointFile(tmp_path).load()


@pytest.mark.parametrize("call", ["create", "write", "sync", "rename", "sync_folder"])
def test_a_save_that_fails_leaves_the_old_checkpoint_or_the_new_one(call: str) -> None:
    files = MemoryFiles()
    file = CheckpointFile(Path("/data"), files)
    file.save(FIRST)
    files.fail_once(call)
    with pytest.raises(Retryable, match="savepoint"):
        file.save(LAST)
    for after in (files.after_kill(), files.after_crash(), files.after_crash(random.Random(1))):
        assert CheckpointFile(Path("/data"), after).load() in (FIRST, LAST)
    file.save(LAST)
    assert CheckpointFile(Path("/data"), files.after_crash()).load() == LAST
