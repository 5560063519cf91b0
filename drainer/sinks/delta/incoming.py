"""Incoming: the folder of the files that tasks have written, and the commits that name them.

`drainer.task.sql.lake_files` describes the folder.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from secrets import token_hex

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable
from deltalake.transaction import AddAction, RemoveAction

from drainer.task.sql.lake_files import read_file
from drainer.task.sql.lake_rows import LakeFile
from penstock.codes import Code
from penstock.errors import Retryable

_UNUSED_S_MAX = 86_400.0
"""How long a file waits for its commit at most, and how long files that no commit takes stay."""


class Incoming:
    """The folder of the files that are not yet in a table; each run has a folder in it.

    A lake in an object store has none: tasks write no files then.
    """

    def __init__(self, folder: Path | None) -> None:
        self.run = None if folder is None else folder / token_hex(8)
        self._folder = folder

    @property
    def _run(self) -> Path:
        assert self.run is not None, "there are no files of tasks"
        return self.run

    def make(self) -> None:
        if self.run is not None:
            self.run.mkdir(parents=True, exist_ok=True)

    def read(self, file: LakeFile) -> pa.Table:
        self._check(file, self._run / file.path)
        return read_file(self._run, file)

    def move(self, file: LakeFile, folder: Path) -> AddAction:
        """Move a file into the folder of its table, unless an earlier try has."""
        path = folder / Path(file.path).name
        if not path.exists():
            self._check(file, self._run / file.path)
            (self._run / file.path).rename(path)
        self._check(file, path)
        return AddAction(path.name, file.size, {}, file.modified_ms, True, file.stats)

    def discard(self, files: Iterable[LakeFile]) -> None:
        for file in files:
            shutil.rmtree((self._run / file.path).parent, ignore_errors=True)

    def remove_old(self) -> None:
        """Remove the files that no commit has taken for a day, and the folders of ended runs."""
        before = time.time() - _UNUSED_S_MAX
        folder = self._folder
        for run in folder.iterdir() if folder is not None and folder.exists() else ():
            old = [each for each in run.iterdir() if each.stat().st_mtime < before]
            for each in old:
                shutil.rmtree(each, ignore_errors=True)
            if run != self.run and run.stat().st_mtime < before:
                with suppress(OSError):  # It has newer files.
                    run.rmdir()

    def _check(self, file: LakeFile, path: Path) -> None:
        size = path.stat().st_size if path.exists() else 0
        if size != file.size:
            raise Retryable(
                f"the file {path}, which a task wrote with {file.size} bytes, has {size} bytes: a"
                " start continues at the checkpoint and writes it again",
                Code.SINK_AWAY,
            )


def commit_files(
    table: DeltaTable,
    added: Iterable[AddAction],
    properties: CommitProperties,
    removed: Iterable[tuple[str, int]] = (),
) -> None:
    """Commit names of files as the version after the one that was read; `removed` have sizes."""
    version, now_ms = table.version() + 1, int(time.time() * 1000)
    gone = [RemoveAction(name, True, now_ms, size, {}) for name, size in removed]
    table.create_write_transaction(
        [*added, *gone], "append", table.schema(), commit_properties=properties
    )
    table.update_incremental()
    if table.version() != version:  # Somebody else's version follows: the next commit reports it.
        table.load_as_version(version)
