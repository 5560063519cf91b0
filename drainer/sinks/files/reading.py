"""Reading of binlog files: returns each record as a position in the file, not as bytes.

A record may be larger than memory, so its payload is read from the file. For the same reason a
packed file is first unpacked into an unnamed file. Each record's checksum is verified before any of
it is used. If the end of a file is known, the file must match it: fewer bytes, more bytes or
another last record is damage, and raises `Corrupt`. A partial record at the end of the last file
was being written when its writer died; anywhere else it is damage.
"""

from __future__ import annotations

import gzip
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from google_crc32c import extend

from drainer.sinks.files.binlog_files import COMPRESSED, BinlogFile, last_crc_of, other_record
from drainer.sinks.files.savepoint import FileEnd, FilePosition
from drainer.task.events.binlog_record import COMMIT_TS, HEAD, MAGIC, TRAILER, TYPE
from penstock.codes import Code
from penstock.errors import Corrupt, Malformed
from penstock.wire.protowire import Source, fields

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
    """Raise `Corrupt` for a file that does not end as it was written."""
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
