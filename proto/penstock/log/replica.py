"""Replica: the segments of a log on another disk than its primary's, byte for byte.

    log/000007.seg    the primary's bytes, and behind them the zeros by which the file was extended
    log/000006.3.new  an older segment that is still on its way
    log/catching-up   only while a part is written whose frames prove nothing

It parses no frames: bytes are written where the caller says, and are durable after a sync. A torn
end is cut as on a primary, where frames help that record how much of the file was on the disk. In a
replica, though, they record it of the primary's disk. For a part that is one group this makes no
difference, because the group's statement about the file is true on this disk as well. A replica
that is missing many groups gets them in one part. After a crash, later groups may exist and state
that earlier groups were on the disk although they are not, which would pass for damage.

The last frame of a part is therefore examined. If it records more than is on this disk, the start
of the part is written to a separate file before the part, and that file is removed as soon as the
part is synced. While the file exists, bad bytes after the start are a torn end. A replica in step
syncs once for each group, and needs no such file.

    offset  size  field of `catching-up`
    0       4     magic    "PCUP"
    4       4     segment
    8       8     offset
    16      4     crc      CRC-32C of bytes 0..16

After any error but `Malformed` the log must be reopened, because the content of the disk is then
unknown.
"""

from __future__ import annotations

import contextlib
import logging
import struct
from collections.abc import Iterator
from pathlib import Path

from google_crc32c import value

from penstock.codes import Code
from penstock.errors import Corrupt, Malformed, Retryable
from penstock.log.files import DRAFT, File, Files
from penstock.log.repair import Patch
from penstock.log.segment import (
    BEGIN,
    BrokenAt,
    Head,
    Segment,
    blocks,
    create_segment,
    find_end,
    last_synced,
    open_segment,
    segment_name,
)
from penstock.log.segments import EXTENDED_BYTES, Place, WriteFailed, open_chain

log = logging.getLogger(__name__)

_MARK_FILE = "catching-up"
_MARK_MAGIC = b"PCUP"
_MARK = struct.Struct("<4sIQ")
_CRC = struct.Struct("<I")
assert _MARK.size == 16  # The table above is the contract.

_SYNCED_EVERY_BYTES = 8 << 20
"""Bytes of an older segment per sync, because live groups may wait for it."""
_HINT = "the primary has a defect, is a newer Penstock, or its bytes were changed on the way"


class ReplicaSegments:
    """The folder of a replica, open for writing; for one thread."""

    def __init__(
        self, folder: Path, files: Files, segments: dict[int, Segment], live: File | None
    ) -> None:
        self.folder = folder
        self._files = files
        self._segments = segments
        self._file = live
        self._is_marked = False  # True while `catching-up` exists.
        self._extended = 0  # The live file's length, if that is more than its end.

    @classmethod
    def open(cls, folder: Path, *, files: Files | None = None) -> ReplicaSegments:
        """Open the replica in `folder`, which may be empty, and sync everything that it holds.

        A torn end is cut. Raises `Corrupt` for damage that a crash cannot explain, and `Retryable`.
        """
        files = files or Files()
        try:
            found = open_chain(files, folder)
            for sealed in sorted(found)[:-1]:
                _trim(files, found[sealed])
            live = _open_live(files, folder, found[max(found)]) if found else None
            return cls(folder, files, found, live)
        except OSError as error:
            raise Retryable(f"{folder}: {error}", Code.DISK_FAILING) from error

    def links(self) -> list[tuple[int, int, int, int]]:
        """Return (number, epoch, end, epoch id) of each segment, oldest first."""
        return [(s.number, s.epoch, s.end, s.epoch_id) for _, s in sorted(self._segments.items())]

    def find(self, number: int) -> Segment | None:
        return self._segments.get(number)

    def put_back(self, segment: Segment, patch: Patch) -> None:
        """Write frames in their place in a segment that was found, and sync; raise `WriteFailed`.

        Raises `Retryable` if that segment is gone, or ends before them.
        """
        if self.find(segment.number) is not segment or segment.end < patch.offset + len(patch.data):
            raise Retryable(f"{segment.path} has changed since it was read", Code.COPY_NOT_FOLLOWED)
        try:
            file = self._files.open(segment.path, writable=True)
            try:
                file.write([patch.data], patch.offset)
                file.sync()
            finally:
                file.close()
        except OSError as error:
            raise WriteFailed(segment.path, error) from error

    def write(
        self, segment: int, epoch: int, offset: int, data: bytes, *, epoch_id: int = 0
    ) -> None:
        """Write `data` at the end of the log; `sync` makes them durable.

        Data at offset 0 start with a header, and the segment is created durably. Raises `Malformed`
        if the header differs from the arguments, or does not fit the log; `WriteFailed`.
        """
        try:
            if offset == 0:
                self._begin((segment, epoch, epoch_id), data)
                offset, data = BEGIN, data[BEGIN:]
            live = self._live
            assert (segment, offset) == (live.number, live.end), "a copy is written at its end"
            if data:
                self._append(live, data)
        except OSError as error:
            raise WriteFailed(self.folder / segment_name(segment), error) from error

    def sync(self) -> None:
        """Return once everything written is on the disk; raise `WriteFailed`."""
        live = self._live
        try:
            self._live_file.sync()
            if self._is_marked:
                _remove_mark(self._files, self.folder)
                self._is_marked = False
        except OSError as error:
            raise WriteFailed(live.path, error) from error
        live.synced = live.end

    def cut(self, place: Place) -> None:
        """Drop all data after `place`, the last segment first, durably; raise `WriteFailed`."""
        # A mark belongs to an unsynced part, and its place would be behind the end after a cut.
        assert not self._is_marked, "a part is synced, or the log opened again, before a cut"
        log.info("%s: cut after offset %d of segment %d", self.folder, place.offset, place.segment)
        try:
            while (last := max(self._segments)) != place.segment:
                self._remove(last)
            live = self._live
            if self._file is None:
                self._file = self._files.open(live.path, writable=True)
            self._file.truncate(place.offset)
            self._file.sync()
        except OSError as error:
            raise WriteFailed(self.folder / segment_name(place.segment), error) from error
        live.end = live.synced = self._extended = place.offset

    def clear(self) -> None:
        """Drop everything, the last segment first, durably; raise `WriteFailed`."""
        log.info("%s: dropped, its primary begins another copy here", self.folder)
        self._drop(sorted(self._segments, reverse=True))

    def drop_before(self, number: int) -> None:
        """Drop the segments before `number`, oldest first, durably; raise `WriteFailed`."""
        old = sorted(n for n in self._segments if n < number)
        assert len(old) < len(self._segments), "the live segment is never purged"
        self._drop(old)

    def write_before(self, older: OlderSegment) -> None:
        """Durably put a whole segment before the first segment.

        Raises `Malformed` if the first segment records another end of it, and `WriteFailed`.
        """
        first = self._segments[min(self._segments)]
        if (older.number + 1, older.end) != (first.number, first.previous_end):
            raise _malformed(
                f"segment {older.number} of {older.end} bytes, but {first.path.name} comes after"
                f" {first.previous_end} bytes of segment {first.number - 1}"
            )
        path = self.folder / segment_name(older.number)
        try:
            self._files.rename(older.path, path)
            self._files.sync_folder(self.folder)
            found = open_segment(self._files, path, older.number)
        except OSError as error:
            raise WriteFailed(path, error) from error
        found.end = found.synced = older.end
        self._segments[older.number] = found

    def close(self) -> None:
        """Close the files; nothing is written that the primary does not have."""
        if self._file is not None:
            if self._extended > self._live.end:
                with contextlib.suppress(OSError):  # Zeros behind the end do no harm.
                    self._file.truncate(self._live.end)
            self._file.close()
            self._file = None

    @property
    def _live(self) -> Segment:
        return self._segments[max(self._segments)]

    @property
    def _live_file(self) -> File:
        assert self._file is not None, "the log is empty, or closed"
        return self._file

    def _begin(self, which: tuple[int, int, int], data: bytes) -> None:
        """Create the next segment; it seals the live segment, which must be fully synced."""
        head = received_head(data, *which)
        number = head.number
        if self._segments:
            live = self._live
            assert live.synced == live.end, "a segment is sealed when it is on the disk"
            if (head.number - 1, head.previous_end) != (live.number, live.end):
                raise _malformed(
                    f"segment {head.number} after {head.previous_end} bytes, but the copy ends at"
                    f" offset {live.end} of segment {live.number}"
                )
            if head.epoch < live.epoch:
                raise _malformed(f"segment {head.number} of epoch {head.epoch} after {live.epoch}")
        segment, file = create_segment(self._files, self.folder, head)
        self.close()
        self._segments[number] = segment
        self._file, self._extended = file, segment.end

    def _append(self, live: Segment, data: bytes) -> None:
        file, end = self._live_file, live.end + len(data)
        said = last_synced(data, live.end, live.seed)
        if said > live.synced and not self._is_marked:
            _write_mark(self._files, self.folder, Place(live.number, live.synced))
            self._is_marked = True
        if end > self._extended:
            self._extended = max(end, file.extend(end + EXTENDED_BYTES))
        file.write([data], live.end)
        live.end = end

    def _drop(self, numbers: list[int]) -> None:
        for number in numbers:
            try:
                self._remove(number)
            except OSError as error:
                raise WriteFailed(self.folder / segment_name(number), error) from error

    def _remove(self, number: int) -> None:
        if number == max(self._segments) and self._file is not None:
            self._file.close()
            self._file = None
        self._files.remove(self._segments[number].path)
        self._files.sync_folder(self.folder)
        del self._segments[number]


class OlderSegment:
    """A whole segment, written under a draft's name and checked before a replica adopts it.

    For one thread at a time, which may differ from the replica's thread.
    """

    def __init__(
        self, files: Files, folder: Path, link: tuple[int, int, int, int], serial: int
    ) -> None:
        """Create the draft; `serial` distinguishes it from other drafts of the segment."""
        self.number, self._epoch, self.end, self._epoch_id = link
        self.path = folder / f"{self.number:06d}.{serial}{DRAFT}"
        self._files = files
        self._size = self._synced = 0
        with self._as_write_failed():
            files.names(folder)  # This creates it.
            self._file = files.create(self.path)

    def write(self, data: bytes) -> None:
        """Append data; raise `Malformed` beyond the announced size, or `WriteFailed`."""
        if self._size + len(data) > self.end:
            raise _malformed(f"more than the {self.end} bytes of segment {self.number}")
        with self._as_write_failed():
            self._file.write([data], self._size)
            self._size += len(data)
            if self._size - self._synced >= _SYNCED_EVERY_BYTES:
                self._file.sync()
                self._synced = self._size

    def finish(self) -> None:
        """Check all frames and return once all are on disk; raise `Malformed`, `WriteFailed`."""
        if self._size != self.end:
            raise _malformed(f"{self._size} of the {self.end} bytes of segment {self.number}")
        with self._as_write_failed():
            head = received_head(
                self._file.read(0, BEGIN), self.number, self._epoch, self._epoch_id
            )
            seed = value(head.encoded())
            try:
                for _ in blocks(self._file, BEGIN, self.end, seed):
                    pass
            except BrokenAt as broken:
                raise _malformed(
                    f"segment {self.number}, offset {broken.offset}: {broken.what}"
                ) from broken
            self._file.sync()

    def drop(self) -> None:
        """Discard the draft, unless a replica has already adopted it."""
        self._file.close()
        with contextlib.suppress(OSError):  # The next opening removes the draft.
            self._files.remove(self.path)

    @contextlib.contextmanager
    def _as_write_failed(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise WriteFailed(self.path, error) from error


def set_aside(files: Files, folder: Path, aside: Path) -> tuple[int, int]:
    """Move all files of a replica to `aside`, the last segment first, durably.

    Returns their number and their bytes; raises `WriteFailed`. A crash leaves the start of the
    replica here, whole or damaged. Files of the same names in `aside` are replaced.
    """
    try:
        files.names(aside)  # This creates it.
        names = sorted(files.names(folder), reverse=True)
        size = sum(_size(files, folder / name) for name in names)
        for name in names:
            files.rename(folder / name, aside / name)
            files.sync_folder(aside)
            files.sync_folder(folder)
    except OSError as error:
        raise WriteFailed(folder, error) from error
    return len(names), size


def _size(files: Files, path: Path) -> int:
    file = files.open(path)
    try:
        return file.size()
    finally:
        file.close()


def received_head(data: bytes, number: int, epoch: int, epoch_id: int = 0) -> Head:
    """Return the header of a received segment; `Malformed` if it is not of this segment."""
    head = Head.received(data)
    if head is None:
        raise _malformed(f"no header of a segment of version 1 to 3, for segment {number}")
    if (head.number, head.epoch, head.epoch_id) != (number, epoch, epoch_id):
        raise _malformed(
            f"segment {head.number} of epoch {head.epoch} ({head.epoch_id:06x}), sent as {number}"
            f" of epoch {epoch} ({epoch_id:06x})"
        )
    return head


def _malformed(problem: str) -> Malformed:
    return Malformed(f"a copy was sent {problem}", _HINT, Code.COPY_MALFORMED)


def _trim(files: Files, sealed: Segment) -> None:
    """Cut the bytes behind the end of a sealed segment.

    A Pump that ran on the folder and abandoned a write leaves such bytes. They must not count again
    when the successor is dropped.
    """
    file = files.open(sealed.path, writable=True)
    try:
        if file.size() > sealed.end:
            file.truncate(sealed.end)
            file.sync()
    finally:
        file.close()


def _open_live(files: Files, folder: Path, last: Segment) -> File:
    mark = read_mark(files, folder)
    file = files.open(last.path, writable=True)
    try:
        since = mark.offset if mark is not None and mark.segment == last.number else None
        find_end(file, last, BEGIN, catching_up_from=since)
        if mark is not None:
            file.sync()  # Cut bytes must not come back once nothing marks them as torn.
            _remove_mark(files, folder)
    except BaseException:
        file.close()
        raise
    return file


def read_mark(files: Files, folder: Path) -> Place | None:
    """Return the start of a part in which frames prove nothing; None if it is not recorded."""
    path = folder / _MARK_FILE
    if _MARK_FILE not in files.names(folder):
        return None
    file = files.open(path)
    try:
        data = file.read(0, _MARK.size + _CRC.size)
    finally:
        file.close()
    if len(data) == _MARK.size + _CRC.size:
        magic, segment, offset = _MARK.unpack_from(data)
        if magic == _MARK_MAGIC and _CRC.unpack_from(data, _MARK.size)[0] == value(data[:16]):
            return Place(segment, offset)
    raise Corrupt(str(path), 0, "not the place of a part", code=Code.SEGMENT_DAMAGED)


def _write_mark(files: Files, folder: Path, place: Place) -> None:
    path = folder / _MARK_FILE
    checked = _MARK.pack(_MARK_MAGIC, *place)
    file = files.create(path.with_name(_MARK_FILE + DRAFT))
    try:
        file.write([checked + _CRC.pack(value(checked))], 0)
        file.sync()
    finally:
        file.close()
    files.rename(path.with_name(_MARK_FILE + DRAFT), path)
    files.sync_folder(folder)


def _remove_mark(files: Files, folder: Path) -> None:
    files.remove(folder / _MARK_FILE)
    files.sync_folder(folder)
