"""Reads the segments of a data folder as they are: every record and all other bytes.

Opening a log cuts torn ends and makes names durable; this only reads, takes no lock and may read
the folder of a running Pump. After damage it continues at the next place that proves to be a frame.
Bytes at the end of the last segment that are not a frame are the torn end of a crash, unless a
later frame states that the place had been on the disk; see `penstock/log/segment.py`.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from google_crc32c import value

from penstock.codes import Code
from penstock.errors import Corrupt, NeedsOperator
from penstock.log.files import File, Files, OsFiles
from penstock.log.frame import HEADER_SIZE, decode_header
from penstock.log.segment import (
    BEGIN,
    BrokenAt,
    Segment,
    headers,
    open_segment,
    segment_name,
    walk,
    written_bytes,
)

_NAME = re.compile(r"(\d{6,})\.seg")


@dataclass(frozen=True, slots=True)
class Stored:
    """A record with valid checksums; an empty payload is the mark of a clean shutdown."""

    path: Path
    offset: int
    payload: bytes


@dataclass(frozen=True, slots=True)
class Damage:
    """Bytes from `offset` to `end` that differ from the written bytes."""

    path: Path
    offset: int
    end: int
    what: str


@dataclass(frozen=True, slots=True)
class Remark:
    """An observation that is not damage, but worth reporting."""

    path: Path
    offset: int
    what: str


Found = Stored | Damage | Remark


def look(path: Path, files: Files | None = None) -> Iterator[Found]:
    """Yield the contents of a segment file, or of all segments of a data folder, in order.

    Raises `NeedsOperator` when `path` has no segment.
    """
    files = files or OsFiles()
    expected: int | None = None
    for segment_path in segment_paths(path):
        number = _number(segment_path)
        if expected is not None and number is not None and number > expected:
            for missing in range(expected, number):
                gone = segment_path.with_name(segment_name(missing))
                yield Damage(gone, 0, 0, "this segment is missing")
        expected = None if number is None else number + 1
        try:
            yield from _segment(files, segment_path, number)
        except FileNotFoundError:
            yield Remark(segment_path, 0, "went away while it was read: purged")
        except OSError as error:
            yield Damage(segment_path, 0, 0, f"cannot be read: {error}")


def segment_paths(path: Path) -> list[Path]:
    """Return the segment files of a path: itself, or those in the folder, by number."""
    if path.is_file():
        return [path]
    folder = path / "log" if (path / "log").is_dir() else path
    found = [p for p in folder.iterdir() if _NAME.fullmatch(p.name)] if folder.is_dir() else []
    if not found:
        raise NeedsOperator(
            f"there is no segment in {folder}",
            hint="name a Pump's data-dir, or one of the .seg files in its log folder",
            code=Code.COMMAND_INVALID,
        )
    return sorted(found, key=lambda p: int(p.stem))


def _number(path: Path) -> int | None:
    name = _NAME.fullmatch(path.name)
    return int(name[1]) if name else None


def _segment(files: Files, path: Path, number: int | None) -> Iterator[Found]:
    file = files.open(path)
    try:
        size = file.size()
        head = file.read(0, BEGIN)
        stated = int.from_bytes(head[8:12], "little")
        try:
            segment = open_segment(files, path, stated if number is None else number)
        except Corrupt as error:
            yield Damage(path, error.offset, min(BEGIN, size), error.what)
            seed = _likely_seed(file, head)
            if seed is None:
                return
            segment = Segment(stated if number is None else number, path, seed, 0, 0)
        except NeedsOperator as error:  # Another version: its content cannot be judged.
            yield Damage(path, 0, size, error.problem)
            return
        sealed_end, is_last = _sealed_end(files, path, number)
        if sealed_end is not None and sealed_end > size:
            what = f"the file ends here, but its successor knows {sealed_end} bytes"
            yield Damage(path, size, sealed_end, what)
        end = size if sealed_end is None else min(size, sealed_end)
        yield from _frames(file, segment, end, is_last)
        if end < size:
            what = f"sealed here; {size - end} bytes of a failed write after it do not count"
            yield Remark(path, end, what)
    finally:
        file.close()


def _sealed_end(files: Files, path: Path, number: int | None) -> tuple[int | None, bool]:
    """Return the segment's end as its successor records it, and whether it has none."""
    if number is None:
        return None, True
    successor = path.with_name(segment_name(number + 1))
    if not successor.exists():
        return None, not _later_exists(path, number)
    try:
        return open_segment(files, successor, number + 1).previous_end, False
    except (Corrupt, NeedsOperator):  # Reported when its turn comes.
        return None, False


def _later_exists(path: Path, number: int) -> bool:
    return any((_number(other) or 0) > number for other in path.parent.iterdir())


def _likely_seed(file: File, head: bytes) -> int | None:
    """Return the seed of the frames below a damaged header, if one of two guesses fits."""
    if len(head) < BEGIN:
        return None
    frame = file.read(BEGIN, HEADER_SIZE)
    for seed in (struct.unpack_from("<I", head, BEGIN - 4)[0], value(head[: BEGIN - 4])):
        if decode_header(frame, 0, offset=BEGIN, seed=seed) is not None:
            return int(seed)
    return None


def _frames(file: File, segment: Segment, end: int, is_last: bool) -> Iterator[Found]:
    place = BEGIN
    while place < end:
        try:
            for offset, frame in walk(file, place, end, segment.seed):
                yield Stored(segment.path, offset, frame.payload)
                place = frame.end
        except BrokenAt as broken:
            following = headers(file, broken.offset + 1, end, segment.seed)
            resume, header = next(following, (end, None))
            proven = not is_last or (header is not None and header.synced > broken.offset)
            if not proven and not any(h.synced > broken.offset for _, h in following):
                if torn := written_bytes(file, broken.offset, end):
                    what = f"torn end of {torn} bytes ({broken.what}): never proven to have been"
                    yield Remark(segment.path, broken.offset, f"{what} acknowledged")
                return
            yield Damage(segment.path, broken.offset, resume, broken.what)
            place = resume
