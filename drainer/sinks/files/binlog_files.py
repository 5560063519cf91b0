"""Binlog files: their names in a folder, the tail that records are appended to, and reading.

A file is full once a record has made it as large as the limit; the next record starts another. A
tail is opened at the savepoint's position, and first cuts the bytes behind it.

`records` returns each record as a position in the file, not as bytes: a record may be larger than
memory. For the same reason a
packed file is first unpacked into an unnamed file. Each record's checksum is verified before any of
it is used. If the end of a file is known, the file must match it: fewer bytes, more bytes or
another last record is damage, and raises `Corrupt`. A partial record at the end of the last file
was being written when its writer died; anywhere else it is damage.
"""

from __future__ import annotations

import gzip
import logging
import os
import re
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import IO

import numpy as np
from google_crc32c import extend
from google_crc32c import value as crc32c

from drainer.sinks.files.savepoint import FileEnd, FilePosition
from drainer.task.events.messages import Messages
from drainer.task.events.tidb_binlog import COMMIT_TS, DML, HEAD, MAGIC, TRAILER, TYPE, payload_head
from penstock.codes import Code
from penstock.errors import Corrupt, Malformed, NeedsOperator
from penstock.log.files import File, Files
from penstock.wire.protowire import Source, fields

log = logging.getLogger(__name__)

COMPRESSED = ".gz"
_NAME = re.compile(r"binlog-(\d{16,20})(?:-(\d{14}))?(\.gz)?", re.ASCII)
_LENGTH_AT = 4


@dataclass(frozen=True, slots=True, order=True)
class BinlogFile:
    """One file by its name."""

    number: int
    name: str

    @property
    def is_compressed(self) -> bool:
        return self.name.endswith(COMPRESSED)


def binlog_files(names: Iterable[str], folder: Path) -> list[BinlogFile]:
    """Return the files among names, by number; of a file that also exists packed, the unpacked one.

    Raises `NeedsOperator` if a number between the first and the last file is missing.
    """
    found: dict[int, BinlogFile] = {}
    for name in sorted(names, reverse=True):  # So that the unpacked file comes last.
        match = _NAME.fullmatch(name)
        if match is not None:
            found[int(match[1])] = BinlogFile(int(match[1]), name)
    numbers = sorted(found)
    for before, number in pairwise(numbers):
        if number != before + 1:
            raise NeedsOperator(
                f"in {folder} there is no binlog file between {found[before].name} and"
                f" {found[number].name}: what is missing is a gap in the changes",
                "put the missing files back",
                Code.FILES_GAP,
            )
    return [found[number] for number in numbers]


def object_name(number: int, digits: str) -> str:
    """Return the name of a file in an object store, whose `digits` are those of a run."""
    return f"binlog-{number:016d}-{digits}"


class Tail:
    """The end at which records are appended; `sync` makes them durable. Any `OSError` ends it.

    Open another after an `OSError`. Before a file, `begin(number, after_ts, before)` is called,
    once all records up to `after_ts` are in the previous files; `before` is the end of the last of
    them, None without any.
    """

    def __init__(
        self,
        files: Files,
        folder: Path,
        *,
        bytes_max: int,
        begin: Callable[[int, int, FileEnd | None], None],
    ) -> None:
        self._files = files
        self._folder = folder
        self._bytes_max = bytes_max
        self._begin = begin
        self._file: File | None = None
        self._is_new = False
        self._last_ts = 0
        self.last_crc: int | None = None
        """The checksum of the record that ends at `position`."""
        self.position: FilePosition | None = None
        self.bytes_appended = 0

    def cut(self, position: FilePosition | None, last_ts: int, last_crc: int | None = None) -> None:
        """Continue at a position, after the record of `last_ts`, and cut the bytes behind it.

        Raises `Corrupt` if the file is shorter or another record ends there, and `NeedsOperator` if
        the file does not exist. Nothing is changed then.
        """
        self._last_ts, self.position = last_ts, position
        found = binlog_files(self._files.names(self._folder), self._folder)
        number = -1 if position is None else position.file
        if position is not None:
            self._open(position, found, last_crc)
        for each in reversed(found):
            if each.number > number:
                log.warning("%s was begun and never committed: it is removed", each.name)
                self._files.remove(self._folder / each.name)
        if self._file is not None and position is not None:
            size = self._file.size()
            if size > position.offset:
                log.info(
                    "%s: %d bytes were never committed", self._file.path, size - position.offset
                )
                self._file.truncate(position.offset)

    def _open(self, position: FilePosition, found: list[BinlogFile], last_crc: int | None) -> None:
        mine = [each for each in found if each.number == position.file]
        if not mine or mine[0].is_compressed:
            raise NeedsOperator(
                f"{self._folder} has no file number {position.file} to continue, unpacked",
                "put the last binlog file back, as it was; or give the Drainer a folder of its"
                " own, and the initial-commit-ts up to which these files are whole",
                Code.FILES_GAP,
            )
        self._file = file = self._files.open(self._folder / mine[0].name, writable=True)
        size = file.size()
        if size < position.offset:
            what = f"the file ends here, the savepoint says at {position.offset}"
            raise Corrupt(str(file.path), size, what, code=Code.FILES_DAMAGED)
        self.last_crc = last_crc_of(file.read, position.offset)
        if last_crc is not None and self.last_crc != last_crc:
            raise other_record(str(file.path), position.offset, last_crc, self.last_crc)

    @property
    def is_in_place(self) -> bool:
        """False once the file was removed or replaced, or its size is not the written size."""
        if self._file is None or self.position is None:
            return True
        return self._file.is_named() and self._file.size() == self.position.offset

    def append(self, messages: Messages) -> None:
        """Append whole records, starting a new file whenever a file becomes full."""
        data, ends = messages.joined()
        stamps = messages.commit_ts
        at, begin, count = 0, 0, len(messages)
        while at < count:
            file, offset = self._room()
            left = max(1, self._bytes_max - offset)
            last = min(int(np.searchsorted(ends, begin + left)), count - 1)
            end = int(ends[last])
            written = bytes(data[begin:end])
            file.write([written], offset)
            (self.last_crc,) = TRAILER.unpack(written[-TRAILER.size :])
            self._moved(offset + end - begin, int(stamps[last]))
            at, begin = last + 1, end

    def append_parts(self, parts: Iterator[Messages], commit_ts: int) -> None:
        """Append one record whose payload comes in parts; without parts there is no record.

        Its length is written last; until the commit the savepoint ends before the record anyway.
        """
        file: File | None = None
        start = offset = crc = 0
        for part in parts:
            if file is None:
                file, start = self._room()
                head = payload_head(DML, commit_ts)
                file.write([HEAD.pack(MAGIC, 0), head], start)
                offset, crc = start + HEAD.size + len(head), crc32c(head)
            content = bytes(part.joined()[0])
            file.write([content], offset)
            offset, crc = offset + len(content), extend(crc, content)
            del part, content
        if file is None:
            return
        length = offset - start - HEAD.size
        file.write([TRAILER.pack(crc)], offset)
        file.write([HEAD.pack(MAGIC, length)[_LENGTH_AT:]], start + _LENGTH_AT)
        self.last_crc = crc
        self._moved(offset + TRAILER.size, commit_ts)

    def sync(self) -> None:
        if self._file is not None:
            self._file.sync()
        if self._is_new:
            self._files.sync_folder(self._folder)
            self._is_new = False

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def begin_file(self) -> None:
        """Start a new file for the next record, whatever room is left."""
        if self._file is not None:
            self._file.sync()
            self.close()

    def _moved(self, offset: int, last_ts: int) -> None:
        assert self.position is not None
        self.bytes_appended += offset - self.position.offset
        self.position, self._last_ts = FilePosition(self.position.file, offset), last_ts

    def _room(self) -> tuple[File, int]:
        position = self.position
        if self._file is not None and position is not None and position.offset < self._bytes_max:
            return self._file, position.offset
        self.begin_file()
        number = 0 if position is None else position.file + 1
        before = None if position is None else FileEnd(position.offset, self.last_crc)
        self._begin(number, self._last_ts, before)
        name = f"binlog-{number:016d}-{time.strftime('%Y%m%d%H%M%S')}"
        self._file = self._files.create(self._folder / name)
        self._is_new, self.position = True, FilePosition(number, 0)
        return self._file, 0


def last_crc_of(read: Source, offset: int) -> int | None:
    """Return the checksum stored at a record's end; None if there cannot be one."""
    stored = read(offset - TRAILER.size, TRAILER.size) if offset > TRAILER.size else b""
    return int(TRAILER.unpack(stored)[0]) if len(stored) == TRAILER.size else None


def other_record(path: str, offset: int, wanted: int, found: int | None) -> Corrupt:
    has = "no record" if found is None else f"the record with the checksum {found:#x}"
    what = f"{has} ends here, and the one written had {wanted:#x}: it is a file of another history"
    return Corrupt(path, offset, what, code=Code.FILES_DAMAGED)


_CHUNK_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Record:
    """One record: its payload is what `source` has in [begin, end)."""

    kind: int
    commit_ts: int
    source: Source
    begin: int
    end: int
    stop: int
    """Where the next record begins."""


def records(
    folder: Path, file: BinlogFile, ends: FileEnd | None, *, is_last: bool
) -> Iterator[Record]:
    """Yield the records of a file up to its known end, or all; raise `Corrupt` for damage.

    In the last file, if its end is not known, half a record at its end is the end.
    """
    with opened_file(folder / file.name) as (source, size):
        path, at = str(folder / file.name), 0
        end = size
        if ends is not None:
            check_end(path, source, size, ends)
            end = ends.size
        while at < end:
            head = source(at, HEAD.size)
            whole = len(head) == HEAD.size
            magic, length = HEAD.unpack(head) if whole else (MAGIC, 0)
            if magic != MAGIC:
                raise Corrupt(
                    path,
                    at,
                    f"no record begins here: its magic is {magic:#x}",
                    code=Code.FILES_DAMAGED,
                )
            begin = at + HEAD.size
            stopped = begin + length + TRAILER.size
            if not whole or stopped > end:
                if is_last and ends is None:
                    return
                raise Corrupt(path, at, "the file ends within a record", code=Code.FILES_DAMAGED)
            _check(path, source, at, begin, length)
            yield _record(path, source, begin, begin + length, stopped)
            at = stopped


def check_end(path: str, source: Source, size: int, ends: FileEnd) -> None:
    if size < ends.size or (ends.is_sealed and size > ends.size):
        what = f"the file ends here, it was written up to {ends.size}"
        raise Corrupt(path, size, what, code=Code.FILES_DAMAGED)
    found = last_crc_of(source, ends.size)
    if ends.last_crc is not None and found != ends.last_crc:
        raise other_record(path, ends.size, ends.last_crc, found)


def check_packed_end(path: Path, ends: FileEnd) -> None:
    """Raise `Corrupt` for a packed file whose trailer says another size, without unpacking it."""
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - 4))
        said = int.from_bytes(file.read(4), "little")
    if said != ends.size % (1 << 32):
        what = f"it unpacks to {said} bytes by its own word, and {ends.size} were written"
        raise Corrupt(str(path), size, what, code=Code.FILES_DAMAGED)


def _check(path: str, source: Source, at: int, begin: int, length: int) -> None:
    crc, end = 0, begin + length
    for offset in range(begin, end, _CHUNK_BYTES):
        crc = extend(crc, source(offset, min(_CHUNK_BYTES, end - offset)))
    (stored,) = TRAILER.unpack(source(end, TRAILER.size))
    if stored != crc:
        raise Corrupt(
            path,
            at,
            f"the record's checksum is {stored:#x}, its bytes have {crc:#x}",
            code=Code.FILES_DAMAGED,
        )


def _record(path: str, source: Source, begin: int, end: int, stop: int) -> Record:
    kind = commit_ts = 0
    try:
        for found, _, value, _ in fields(source, begin, end):
            if found == TYPE:
                kind = value
            elif found == COMMIT_TS:
                commit_ts = value
                break
    except Malformed as error:
        raise Corrupt(
            path, begin, f"no binlog: {error.problem}", code=Code.FILES_DAMAGED
        ) from error
    return Record(kind, commit_ts, source, begin, end, stop)


@contextmanager
def opened_file(path: Path) -> Iterator[tuple[Source, int]]:
    """Open a file, packed or not, for reads at any offset; also return its size."""
    packed = path.with_name(path.name + COMPRESSED)
    if not path.exists() and packed.exists():  # It was packed since it was found.
        path = packed
    with path.open("rb") as file:
        if path.suffix == COMPRESSED:
            with _unpacked(path, file) as plain:
                yield _source(plain), os.fstat(plain.fileno()).st_size
        else:
            yield _source(file), os.fstat(file.fileno()).st_size


def _source(file: IO[bytes]) -> Source:
    descriptor = file.fileno()
    return lambda offset, count: os.pread(descriptor, count, offset)


@contextmanager
def _unpacked(path: Path, file: IO[bytes]) -> Iterator[IO[bytes]]:
    with tempfile.TemporaryFile() as plain:
        try:
            with gzip.GzipFile(fileobj=file) as packed:
                shutil.copyfileobj(packed, plain, _CHUNK_BYTES)
        except (EOFError, gzip.BadGzipFile) as error:
            raise Corrupt(
                str(path), 0, f"it cannot be unpacked: {error}", code=Code.FILES_DAMAGED
            ) from error
        plain.flush()
        yield plain


def end_of(folder: Path, files: Sequence[BinlogFile], commit_ts: int) -> FilePosition | None:
    """Return where the records up to a commit_ts end, in files whose savepoint does not say it.

    None if there are no such records. It reads from the last file backwards, because the end is
    near it.
    """
    for at in range(len(files) - 1, -1, -1):
        place = None
        for record in records(folder, files[at], None, is_last=at == len(files) - 1):
            if record.commit_ts > commit_ts:
                break
            place = FilePosition(files[at].number, record.stop)
        if place is not None:
            return place
    return None
