"""Held changes: what a folder of binlog files holds, from where on, up to where, without a gap.

    held after   the first file begins there: all that came before is not in the folder
    held up to   the savepoint's commit_ts; unknown without one, and the files' end then

A commit_ts comes once. TiDB-Binlog's Drainer, when it is killed, writes again what came after its
own savepoint; what comes a second time is left out, and counted.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Generator
from pathlib import Path

from drainer.sinks.files.binlog_files import BinlogFile, binlog_files
from drainer.sinks.files.reading import Record, records
from drainer.sinks.files.savepoint import Savepoint, load_savepoint
from drainer.sinks.files.schema_file import FileSchema, read_schema, schema_name, schema_numbers
from penstock.codes import Code
from penstock.ddl import Catalog
from penstock.errors import NeedsOperator
from penstock.log.files import OsFiles

log = logging.getLogger(__name__)

_HINT = "name the folder of the binlog files"


class HeldChanges:
    """A folder, as it is when it is looked at; it may grow meanwhile."""

    def __init__(self, folder: Path) -> None:
        """Look; raise `NeedsOperator` for a folder without binlog files, or with a gap."""
        if not folder.is_dir():
            raise NeedsOperator(f"{folder} is no folder", hint=_HINT, code=Code.PATH_UNUSABLE)
        self.folder = folder
        names = os.listdir(folder)
        self._files = binlog_files(names, folder)
        if not self._files:
            raise NeedsOperator(f"{folder} has no binlog files", hint=_HINT, code=Code.FILES_GAP)
        self._schemas = schema_numbers(names)
        self.savepoint: Savepoint | None = load_savepoint(OsFiles(), folder)
        self.repeated = 0
        """How many records came a second time and were left out."""
        self.read_bytes = 0
        """How much was read, of `size_bytes` from a start on."""

    @property
    def cluster_id(self) -> int:
        """Whose changes these are, 0 where no one says it."""
        return 0 if self.savepoint is None else self.savepoint.cluster_id or 0

    @property
    def last_ts(self) -> int | None:
        """All up to here is held; None where no one says it."""
        return None if self.savepoint is None else self.savepoint.checkpoint.commit_ts

    def check_stop(self, stop_ts: int) -> None:
        """Raise `NeedsOperator` for a stop that the files do not reach."""
        if self.last_ts is None:
            log.warning("%s has no savepoint: where the files end is not known", self.folder)
        elif stop_ts > self.last_ts:
            raise NeedsOperator(
                f"the files in {self.folder} hold everything up to {self.last_ts} only, and"
                f" {stop_ts} is to be the end",
                hint="wait until the Drainer is there, give an earlier end, or none for all that"
                " there is",
                code=Code.RESTORE_PLACE,
            )

    def start(self, after_ts: int) -> tuple[list[BinlogFile], FileSchema]:
        """Return the files to read for all after a commit_ts, and the schema where they begin.

        Raises `NeedsOperator` where something between that commit_ts and the first file is missing.
        """
        begin, schema = 0, FileSchema(0, Catalog())
        for at, file in enumerate(self._files):
            if file.number in self._schemas:
                found = read_schema(self.folder / schema_name(file.number))
                if found.after_ts > after_ts and at > 0:
                    break
                begin, schema = at, found
        files = self._files[begin:]
        first_ts = self._first_ts(files[0])
        if files[0].number in self._schemas:
            held_after_ts = schema.after_ts
        else:  # TiDB-Binlog's: what is before its first record is known of file 0 only.
            held_after_ts = 0 if files[0].number == 0 else first_ts
        if held_after_ts > after_ts:
            raise NeedsOperator(
                f"the files in {self.folder} begin after {held_after_ts}, and the target is at"
                f" {after_ts}: what came between is not there",
                hint="put the older files back; or begin with a copy of the tables that is of"
                f" {held_after_ts} or later, and name its commit_ts (initial-commit-ts)",
                code=Code.FILES_GAP,
            )
        return files, schema

    def size_bytes(self, files: list[BinlogFile]) -> int:
        """Return how much there is to read."""
        return sum((self.folder / file.name).stat().st_size for file in files)

    def records(self, files: list[BinlogFile]) -> Generator[Record]:
        """Yield the records of these files, each commit_ts once."""
        last_ts = 0
        position = None if self.savepoint is None else self.savepoint.position
        for file in files:
            if position is not None and file.number > position.file:
                return  # It was begun and never committed.
            stop = (
                position.offset if position is not None and file.number == position.file else None
            )
            found = records(self.folder, file, stop, is_last=file == self._files[-1])
            read_bytes, before = self.read_bytes, 0
            for record in found:
                self.read_bytes = read_bytes + (before if file.is_compressed else record.stop)
                if record.commit_ts > last_ts:
                    last_ts = record.commit_ts
                    yield record
                else:
                    self.repeated += 1
            self.read_bytes = read_bytes + (self.folder / file.name).stat().st_size

    def _first_ts(self, file: BinlogFile) -> int:
        is_last = file == self._files[-1]
        first = next(records(self.folder, file, None, is_last=is_last), None)
        return 0 if first is None else first.commit_ts
