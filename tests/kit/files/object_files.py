"""Files in an object store: found by the savepoint alone, as a program without Penstock would."""

import shutil
import tomllib
from pathlib import Path


def copied(objects: Path, copy: Path) -> Path:
    """Copy the files that the savepoint in a bucket's folder names into a new folder."""
    copy.mkdir()
    shutil.copy(objects / "savepoint", copy)
    saved = tomllib.loads((copy / "savepoint").read_text())
    runs = dict(saved.get("runs", ()))
    for number in range(saved.get("file", -1) + 1):
        digits = runs[max(first for first in runs if first <= number)]
        shutil.copy(objects / f"binlog-{number:016d}-{digits}", copy)
    return copy
