"""Folders: a lake's folder, on a disk or in an object store, and the differences between them.

`ObjectPath` has those methods of `Path` that a lake uses. An object is durable once it is written.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias
from urllib.parse import unquote

from deltalake import DeltaTable

from drainer.settings.targets import LakeTarget
from penstock.codes import Code
from penstock.errors import NeedsOperator
from penstock.log.files import sync_folder

if TYPE_CHECKING:
    from drainer.sinks.objects import ObjectPath

Folder: TypeAlias = "Path | ObjectPath"
"""A folder of a lake, or a file in it."""


def folder_of(target: LakeTarget) -> Folder:
    """Return the folder of a lake, on a disk or in an object store."""
    if not target.bucket:
        return target.folder
    from drainer.sinks.objects import Bucket, ObjectPath

    return ObjectPath(Bucket(target.bucket), unquote(target.path))


def table_in(path: Folder) -> DeltaTable:
    return DeltaTable(str(path), storage_options=options_of(path))


def options_of(path: Folder) -> dict[str, str] | None:
    return None if isinstance(path, Path) else path.bucket.options


def mark_of(path: Folder) -> tuple[Any, ...]:
    """Return what differs once a file was replaced; raise `FileNotFoundError`."""
    if not isinstance(path, Path):
        return (path.head()["e_tag"],)
    found = os.stat(path)
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


def modified_s(folder: Folder) -> float:
    if isinstance(folder, Path):
        return folder.stat().st_mtime
    stamps = [each["last_modified"].timestamp() for each in folder.objects()]
    return float(max(stamps, default=0.0))


def sync(file: Folder) -> None:
    if isinstance(file, Path):
        descriptor = os.open(file, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def sync_names(*folders: Folder) -> None:
    for folder in folders:
        if isinstance(folder, Path):
            sync_folder(folder)


def remove(folder: Folder) -> None:
    if isinstance(folder, Path):
        shutil.rmtree(folder)
    else:
        folder.remove_all()


def is_moved(new: Folder) -> bool:
    """Return whether a move to `new` has ended."""
    return new.exists() and not is_moving(new)


def is_moving(new: Folder) -> bool:
    return not isinstance(new, Path) and new.is_moving()


def move(old: Folder, new: Folder) -> None:
    """Move a folder; raise `NeedsOperator` if the new name already exists."""
    try:
        if not isinstance(old, Path):
            assert not isinstance(new, Path), "a lake is in one place"
            old.move(new)
            return
        assert isinstance(new, Path), "a lake is in one place"
        if new.exists():
            raise FileExistsError
    except FileExistsError as error:
        raise NeedsOperator(
            f"{new} is there, where a table is to be moved", "move it away", Code.DELTA_TABLE
        ) from error
    new.parent.mkdir(parents=True, exist_ok=True)
    os.rename(old, new)
    sync_names(new.parent, new.parent.parent, old.parent)
