"""A file replaced as a whole is the old one or the new one, never half of it."""

import os
from pathlib import Path

import pytest

from penstock.log.files import DRAFT, replace_file


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
    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="no space"):
        replace_file(path, b"new")
    assert path.read_bytes() == b"old"
