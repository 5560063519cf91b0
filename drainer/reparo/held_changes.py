"""Held changes: the range of changes that a folder of binlog files holds without a gap.

    held after   the first file begins there: all earlier changes are not in the folder
    held up to   the savepoint's commit_ts, once its position was reached; else the last
                 record's

Before anything is restored, each file that must be read has to end as its successor's schema file
says, and the last file as the savepoint says. Files of TiDB-Binlog, and of older versions, do not
record their ends. It cannot be proved that nothing is missing there, which `unproved` says.

A commit_ts comes once. When TiDB-Binlog's Drainer is killed, it rewrites the changes after its own
savepoint; records that come a second time are skipped and counted.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Generator
from pathlib import Path

from drainer.sinks.files.binlog_files import (
    COMPRESSED,
    BinlogFile,
    Record,
    binlog_files,
    check_end,
    check_packed_end,
    opened_file,
    records,
)
from drainer.sinks.files.savepoint import (
    FileEnd,
    FileSchema,
    Savepoint,
    load_savepoint,
    read_beginning,
    read_schema,
    schema_name,
    schema_numbers,
)
from penstock.codes import Code
from penstock.ddl import Catalog
from penstock.errors import Corrupt, NeedsOperator
from penstock.log.files import Files

log = logging.getLogger(__name__)

_HINT = "name the folder of the binlog files"


class HeldChanges:
    """A folder, as it is when it is read; it may grow later."""

    def __init__(self, folder: Path) -> None:
        if not folder.is_dir():
            raise NeedsOperator(f"{folder} is no folder", _HINT, Code.PATH_UNUSABLE)
        self.folder = folder
        # First, because a Drainer may be writing: all files that it names exist then.
        self.savepoint: Savepoint | None = load_savepoint(Files(), folder)
        names = os.listdir(folder)
        self._files = binlog_files(names, folder)
        if not self._files:
            raise NeedsOperator(f"{folder} has no binlog files", _HINT, Code.FILES_GAP)
        self._schemas = schema_numbers(names)
        self.unproved = ""
        """The part of the files that cannot be proved complete; empty if all is."""
        self.repeated = 0
        """The number of records that came a second time and were skipped."""
        self.read_bytes = 0
        """The bytes read, of `size_bytes` from a start on."""

    @property
    def cluster_id(self) -> int:
        return 0 if self.savepoint is None else self.savepoint.cluster_id or 0

    @property
    def _reaches_ts(self) -> int | None:
        """The commit_ts up to which the savepoint says all is held; None without a savepoint."""
        return None if self.savepoint is None else self.savepoint.checkpoint.commit_ts

    def check_stop(self, stop_ts: int) -> None:
        if self._reaches_ts is not None and stop_ts > self._reaches_ts:
            raise NeedsOperator(
                f"the files in {self.folder} hold everything up to {self._reaches_ts} only, and"
                f" {stop_ts} is to be the end",
                "wait until the Drainer is there, give an earlier end, or none for all that"
                " there is",
                Code.COMMAND_INVALID,
            )

    def held_ts(self, last_ts: int, stop_ts: int, *, is_passed: bool) -> int:
        """Return up to where all was read, when `last_ts` is the last record that was.

        `is_passed`: a record behind `stop_ts` was met, so nothing up to there is missing.
        """
        if is_passed:
            return max(last_ts, stop_ts)
        if self.savepoint is None or self.savepoint.is_of_tidb_binlog:
            return last_ts
        return max(last_ts, stop_ts or self.savepoint.checkpoint.commit_ts)

    def start(self, after_ts: int, stop_ts: int) -> tuple[list[BinlogFile], FileSchema]:
        """Return the files to read for all changes after a commit_ts, and their starting schema.

        Raises `NeedsOperator` or `Corrupt` if changes between that commit_ts and the first file are
        missing, or any part of the files up to `stop_ts`, which is 0 for all of them.
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
        else:  # TiDB-Binlog's: only file 0 has a known beginning.
            held_after_ts = 0 if files[0].number == 0 else first_ts
        if held_after_ts > after_ts:
            raise NeedsOperator(
                f"the files in {self.folder} begin after {held_after_ts}, and the target is at"
                f" {after_ts}: what came between is not there",
                "put the older files back; or begin with a copy of the tables that is of"
                f" {held_after_ts} or later, and name its commit_ts (initial-commit-ts)",
                Code.FILES_GAP,
            )
        self._check_ends(files, stop_ts)
        return files, schema

    def _check_ends(self, files: list[BinlogFile], stop_ts: int) -> None:
        """Check that all files with records up to `stop_ts` are complete."""
        unknown, saved = 0, self.savepoint
        position = None if saved is None else saved.position
        for at, file in enumerate(files[:-1]):
            if position is not None and file.number >= position.file:
                continue
            begins_ts, ends = self._beginning(files[at + 1])
            unknown += ends is None or ends.last_crc is None
            if ends is not None:
                self._check_end(file, ends)
            elif not (self.folder / file.name).stat().st_size:
                what = "the file is empty, and another one follows it"
                raise Corrupt(str(self.folder / file.name), 0, what, code=Code.FILES_DAMAGED)
            if stop_ts and begins_ts >= stop_ts:
                break
        else:
            self._check_newest(stop_ts)
        if saved is None or saved.is_of_tidb_binlog:
            self.unproved = "that no records are missing at the end of the newest file"
        elif unknown or saved.last_crc is None:
            self.unproved = "that no records are missing at the end of files of older versions"

    def _beginning(self, file: BinlogFile) -> tuple[int, FileEnd | None]:
        """Return the commit_ts after which a file begins, and its predecessor's end if known."""
        if file.number in self._schemas:
            return read_beginning(self.folder / schema_name(file.number))
        if file.number > min(self._schemas, default=file.number):
            raise NeedsOperator(
                f"{self.folder} has no {schema_name(file.number)}, which says how the file before"
                f" {file.name} ends",
                "copy the folder again, with all of its files",
                Code.FILES_GAP,
            )
        return 0, None

    def _check_end(self, file: BinlogFile, ends: FileEnd) -> None:
        path = self.folder / file.name
        packed = path if file.is_compressed else path.with_name(path.name + COMPRESSED)
        if packed.exists() and (file.is_compressed or not path.exists()):
            if ends.is_sealed:
                check_packed_end(packed, ends)
            return
        with opened_file(path) as (source, size):
            check_end(str(path), source, size, ends)

    def _check_newest(self, stop_ts: int) -> None:
        saved, last = self.savepoint, self._files[-1]
        if saved is not None and saved.is_of_tidb_binlog:
            return
        if saved is None and not self._schemas:
            return
        problem = f"{self.folder} has no savepoint, which says where its files end"
        code = Code.CHECKPOINT_DAMAGED
        if saved is not None:
            if (position := saved.position) is None:
                return
            mine = [each for each in self._files if each.number == position.file]
            if mine:
                self._check_end(mine[0], FileEnd(position.offset, saved.last_crc, is_sealed=False))
                return
            problem = (
                f"the savepoint in {self.folder} says that the files end in number {position.file},"
                f" and there are the numbers {self._files[0].number} to {last.number} only"
            )
            code = Code.FILES_GAP
        held_ts = self._last_ts()
        if stop_ts and stop_ts <= held_ts:
            return
        raise NeedsOperator(
            f"{problem}; their last record is of {held_ts}",
            "copy the folder again, the savepoint first and then all files; or restore what is"
            f" held: end it by stop-tso = {held_ts} or earlier",
            code,
        )

    def size_bytes(self, files: list[BinlogFile]) -> int:
        return sum((self.folder / file.name).stat().st_size for file in files)

    def records(self, files: list[BinlogFile]) -> Generator[Record]:
        last_ts = 0
        position = None if self.savepoint is None else self.savepoint.position
        for at, file in enumerate(files):
            if position is not None and file.number > position.file:
                return  # It was begun and never committed.
            begins_ts, _ = self._beginning(file)
            ends, is_last = self._end_of(files, at), file == self._files[-1]
            read_bytes, before = self.read_bytes, 0
            for record in records(self.folder, file, ends, is_last=is_last):
                self.read_bytes = read_bytes + (before if file.is_compressed else record.stop)
                if record.commit_ts < begins_ts:
                    what = f"a record of {record.commit_ts} is in a file that begins after"
                    path = str(self.folder / file.name)
                    raise Corrupt(
                        path, record.begin, f"{what} {begins_ts}", code=Code.FILES_DAMAGED
                    )
                if record.commit_ts > last_ts:
                    last_ts = record.commit_ts
                    yield record
                else:
                    self.repeated += 1
            self.read_bytes = read_bytes + (self.folder / file.name).stat().st_size

    def _end_of(self, files: list[BinlogFile], at: int) -> FileEnd | None:
        saved = self.savepoint
        position = None if saved is None else saved.position
        if saved is not None and position is not None and files[at].number == position.file:
            return FileEnd(position.offset, saved.last_crc, is_sealed=False)
        return None if at + 1 == len(files) else self._beginning(files[at + 1])[1]

    def _last_ts(self) -> int:
        for file in reversed(self._files):
            found = [
                record.commit_ts
                for record in records(self.folder, file, None, is_last=file == self._files[-1])
            ]
            if found:
                return found[-1]
        return 0

    def _first_ts(self, file: BinlogFile) -> int:
        is_last = file == self._files[-1]
        first = next(records(self.folder, file, None, is_last=is_last), None)
        return 0 if first is None else first.commit_ts
