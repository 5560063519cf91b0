"""Segments: a log as a folder of numbered append files; keeps synced data, and reports damage.

    000000.seg  000001.seg  000002.seg
    sealed      sealed      live: appended to, synced, and at a limit of bytes succeeded

One thread appends; any number read, at positions that an append returned and a `sync` made
durable. The files are numbered without gaps, each as long as its successor says.

Damage that a read finds is repaired first, if `repair_with` provides a repair.

The live file is longer than its content: it is extended in steps, by zeros, so that a sync need not
write the file's length (on ext4 two thirds of the time). A clean shutdown and a successor cut the
zeros off.

After a failed sync nothing is known about the bytes since the last good one, and asking again
would only return a false success. These bytes are abandoned, and the next append starts a new file.
"""

import contextlib
import errno
import itertools
import logging
import struct
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, Self

from google_crc32c import value

from penstock import failpoints
from penstock.codes import Code
from penstock.errors import Corrupt, Retryable
from penstock.log.files import File, Files
from penstock.log.frame import HEADER_SIZE, PAYLOAD_CRC_AT, encode_frames
from penstock.log.segment import (
    BEGIN,
    BrokenAt,
    CutShort,
    Head,
    Segment,
    blocks,
    create_segment,
    find_end,
    open_segment,
    segment_name,
)

log = logging.getLogger(__name__)

SEGMENT_BYTES_MAX = 512 << 20
EXTENDED_BYTES = 16 << 20
"""The step by which the live file is extended; the unwritten rest is cut at its end."""
_segment_dropped = failpoints.point("log.purge.segment_dropped")
_marked = failpoints.point("log.close.marked")
_new = tuple.__new__

_CRC = struct.Struct("<I")
_FILES_MAX = 128
_BLOCK_BITS = 17
_BLOCK_BYTES = 1 << _BLOCK_BITS
_BLOCKS_MAX = 256
"""Blocks that one call keeps: 32 MiB."""

_ALONE_BYTES = 32 << 10
"""From this length on a block would mostly be read to be thrown away."""


class Place(NamedTuple):
    """A boundary between two frames of the log."""

    segment: int
    offset: int


class Position(NamedTuple):
    """Where a payload is stored: the frame's segment and offset, and the payload's bytes."""

    segment: int
    offset: int
    length: int


class WriteFailed(Retryable):
    """The disk refused a write; nothing of it counts, and the next append may succeed."""

    def __init__(self, path: Path, error: OSError) -> None:
        super().__init__(f"{path}: {error.strerror or error}", code=Code.LOG_WRITE_FAILED)
        self.errno = error.errno


class Segments:
    """A folder of segments, open for appending and reading."""

    def __init__(
        self, folder: Path, files: Files, segments: dict[int, Segment], live: File, bytes_max: int
    ) -> None:
        self.folder = folder
        self._files = files
        self._segments = segments
        self._live = segments[max(segments)]
        self._file = live
        self._bytes_max = bytes_max
        self._extended = self._live.end  # The live file's length, if that is more than its end.
        self._spent = False  # True once the live file must not be written to again.
        self._marked = True  # True while nothing lies after the mark of a clean shutdown.
        self._reader = _Reader(folder, files)
        self._repair: Callable[[int], bool] = lambda number: False
        self._synced_largest_ts = self.largest_ts = self._live.earlier_largest_ts
        """The largest timestamp in the log; its opener raises this to the timestamps it knows."""

    @classmethod
    def open(
        cls,
        folder: Path,
        *,
        files: Files | None = None,
        segment_bytes_max: int = SEGMENT_BYTES_MAX,
        known_end: Place | None = None,
    ) -> Self:
        """Open the log in `folder`, creating it if necessary, and cut a torn end.

        `known_end`, if the caller remembers one, is a place before which all was durable. Raises
        `Corrupt` with file and offset for anything that a crash cannot explain.
        """
        files = files or Files()
        found = open_chain(files, folder)
        if known_end is not None and known_end.segment not in found:
            missing = str(folder / segment_name(known_end.segment))
            raise CutShort(
                missing,
                0,
                "this segment is missing, but its binlogs are known",
                code=Code.SEGMENT_CUT_SHORT,
            )
        if not found:
            segment, file = create_segment(files, folder, Head(0, 0, 0))
            return cls(folder, files, {0: segment}, file, segment_bytes_max)
        last = found[max(found)]
        if known_end is not None and known_end.segment < last.number:
            sealed = found[known_end.segment]
            if sealed.end < known_end.offset:
                raise CutShort(
                    str(sealed.path),
                    sealed.end,
                    "sealed here, but more was on the disk",
                    code=Code.SEGMENT_CUT_SHORT,
                )
        in_last = known_end is not None and known_end.segment == last.number
        file = files.open(last.path, writable=True)
        try:
            find_end(file, last, known_end.offset if known_end and in_last else BEGIN)
        except BaseException:
            file.close()
            raise
        return cls(folder, files, found, file, segment_bytes_max)

    @property
    def first(self) -> int:
        return min(self._segments)

    @property
    def end(self) -> Place:
        return Place(self._live.number, self._live.end)

    def size(self) -> tuple[int, int]:
        """Return the number of segments and their total bytes."""
        segments = list(self._segments.values())
        return len(segments), sum(segment.end for segment in segments)

    def earlier_largest_ts(self, number: int) -> int:
        return self._segments[number].earlier_largest_ts

    def bytes_between(self, begin: Place, end: Place) -> int:
        between = [
            s.end for s in self._segments.values() if begin.segment <= s.number < end.segment
        ]
        return sum(between) + end.offset - begin.offset

    def append(self, payloads: Sequence[bytes], *, largest_ts: int = 0) -> list[Position]:
        """Write `payloads` with one write and return their positions; `sync` makes them durable.

        Raises `WriteFailed`; nothing of the group is then part of the log.
        """
        live = self._live
        if self._spent or live.end >= max(self._bytes_max, BEGIN + 1):
            live = self._succeed()
        offset = live.end
        buffers = encode_frames(payloads, offset=offset, synced=live.synced, seed=live.seed)
        lengths = list(map(len, payloads))
        end = offset + sum(lengths) + HEADER_SIZE * len(lengths)
        if end > self._extended:
            self._extend(end)
        try:
            self._file.write(buffers, offset)
        except OSError as error:
            self._undo()
            raise WriteFailed(live.path, error) from error
        ends = itertools.accumulate((HEADER_SIZE + n for n in lengths), initial=offset)
        # Same as `Position(…)`, at a fifth of the cost: this is the hottest path of a Pump.
        found = zip(itertools.repeat(live.number), ends, lengths, strict=False)
        positions = list(map(_new, itertools.repeat(Position), found))
        if live.end == live.synced:
            self._synced_largest_ts = self.largest_ts
        live.end = end
        self.largest_ts = max(self.largest_ts, largest_ts)
        self._marked = False
        return positions

    def begin_next(self, epoch: int | None = None, epoch_id: int = 0) -> None:
        """Seal the live segment, whatever its size, and start a segment of `epoch`, None: the same.

        Raises `WriteFailed`.
        """
        self._succeed(None if epoch is None else (epoch, epoch_id))

    def links(self) -> list[tuple[int, int, int, int]]:
        """Return (number, epoch, end, epoch id) of each segment, oldest first."""
        return [(s.number, s.epoch, s.end, s.epoch_id) for _, s in sorted(self._segments.items())]

    def sync(self) -> None:
        """Return once everything appended is on the disk.

        Raises `WriteFailed`: the data appended since the last sync is then not part of the log.
        """
        live = self._live
        try:
            self._file.sync()
        except OSError as error:
            self._spent = True
            if live.end > live.synced:
                # Otherwise the next header would claim more data before it than exists, and a
                # Drainer that lacks nothing would be refused as one for which it is purged.
                self.largest_ts = self._synced_largest_ts
            live.end = live.synced
            log.error("%s: sync failed, abandoning the file at offset %d", live.path, live.end)
            raise WriteFailed(live.path, error) from error
        live.synced = live.end

    def read(self, position: Position) -> bytes:
        """Return the payload at `position`; raise `Corrupt`, or `Retryable` if the disk fails."""
        return self.read_many([position])[0]

    def read_many(self, positions: Sequence[tuple[int, int, int]]) -> list[bytes]:
        """Return the payloads at `positions`, best given roughly in the order of the log.

        Damage is repaired first, if possible; this may then take seconds.
        """
        tried: set[int] = set()
        while True:
            try:
                return self._reader.read_many(positions)
            except (Corrupt, Unreadable) as error:
                number = int(Path(error.path).stem)
                if isinstance(error, Unreadable) and error.errno != errno.EIO:
                    raise
                if number in tried or not self._repair(number):
                    raise
                tried.add(number)

    def repair_with(self, repair: Callable[[int], bool]) -> None:
        """Set the function that repairs a segment before a read fails; False: not repaired."""
        self._repair = repair

    def find(self, number: int) -> Segment | None:
        return self._segments.get(number)

    def read_bytes(self, number: int, begin: int, end: int) -> bytes:
        """Return the raw bytes of a segment; `Retryable` if they cannot be read."""
        return self._reader.read(number, begin, end - begin)

    def scan(self, start: Place | None = None) -> Iterator[tuple[Position, bytes]]:
        """Yield each payload from `start` to the end with its position; raise `Corrupt`."""
        for positions, payloads in self.scan_blocks(start):
            yield from zip(positions, payloads, strict=True)

    def scan_blocks(
        self, start: Place | None = None
    ) -> Iterator[tuple[list[Position], list[bytes]]]:
        """Yield the same in blocks of records of a single segment, for scans of millions."""
        start, stop = start or Place(self.first, BEGIN), self.end
        for number in range(start.segment, stop.segment + 1):
            segment = self._segments[number]
            begin = start.offset if number == start.segment else BEGIN
            end = stop.offset if number == stop.segment else segment.end
            try:
                for block in blocks(self._reader.file(number), begin, end, segment.seed):
                    if payloads := block.payloads:
                        found = zip(
                            itertools.repeat(number),
                            block.offsets,
                            map(len, payloads),
                            strict=False,
                        )
                        yield list(map(_new, itertools.repeat(Position), found)), payloads
            except BrokenAt as broken:
                raise Corrupt(
                    str(segment.path), broken.offset, broken.what, code=Code.SEGMENT_DAMAGED
                ) from broken

    def drop_before(self, number: int) -> None:
        """Remove all segments below `number`, oldest first, so that a crash leaves no gap."""
        for old in sorted(n for n in self._segments if n < number):
            assert old != self._live.number, "the live segment is never purged"
            try:
                with contextlib.suppress(FileNotFoundError):  # An earlier attempt got this far.
                    self._files.remove(self._segments[old].path)
                self._files.sync_folder(self.folder)
                _segment_dropped()
            except OSError as error:
                raise Retryable(
                    f"{self._segments[old].path}: {error}", Code.DISK_FAILING
                ) from error
            self._reader.forget(old)
            del self._segments[old]

    def close(self, *, with_mark: bool = True) -> None:
        """Mark the clean shutdown, so that damage to the last frames is not a torn end, and close.

        The mark is an empty frame whose `synced` covers everything before it.
        """
        if with_mark and not self._marked and not self._spent:
            with contextlib.suppress(OSError, WriteFailed):  # Synced data is safe without it.
                self.sync()
                live = self._live
                mark = encode_frames([b""], offset=live.end, synced=live.end, seed=live.seed)
                self._file.write(mark, live.end)
                self._file.truncate(live.end + HEADER_SIZE)
                self._file.sync()
                _marked()
        self._file.close()
        self._reader.forget()

    def _succeed(self, epoch: tuple[int, int] | None = None) -> Segment:
        live = self._live
        of = epoch or (live.epoch, live.epoch_id)
        head = Head(live.number + 1, live.end, self.largest_ts, *of)
        assert head.epoch >= live.epoch, "epochs only rise"
        try:
            if live.synced < live.end:  # Only without sync-log.
                self._file.sync()
            segment, file = create_segment(self._files, self.folder, head)
        except OSError as error:
            raise WriteFailed(live.path, error) from error
        if not self._spent and self._extended > live.end:
            with contextlib.suppress(OSError):  # It is sealed; zeros behind its end do no harm.
                self._file.truncate(live.end)
        log.info("segment %s sealed at %d bytes", live.path, live.end)
        live.synced = live.end
        self._file.close()
        self._file, self._live, self._spent = file, segment, False
        self._extended = segment.end
        self._segments[segment.number] = segment
        return segment

    def _undo(self) -> None:
        """Truncate the remains of a failed write; if that fails, the file is not used again."""
        try:
            self._file.truncate(self._live.end)
        except OSError:
            self._spent = True
        self._extended = self._live.end

    def _extend(self, end: int) -> None:
        """Preallocate for a write that ends at `end`, and some more; failure is harmless."""
        most = max(end, self._bytes_max)
        self._extended = max(end, self._file.extend(min(end + EXTENDED_BYTES, most)))


class Unreadable(Retryable):
    """The disk cannot read stored bytes."""

    def __init__(self, path: Path, offset: int, error: OSError) -> None:
        super().__init__(
            f"{path}, offset {offset}: cannot be read: {error}", code=Code.DISK_FAILING
        )
        self.path = str(path)
        self.errno = error.errno


class _Reader:
    """Open segments, the least recently used of which are closed; for any number of threads.

    A pull wants a Prewrite here and a Commit a little further on, thousands of times. With one
    `pread` for each block of 128 KiB, which serves many neighbouring records, the system calls all
    but vanish; a large payload is read separately. See files.py for why there is no map.
    """

    def __init__(self, folder: Path, files: Files) -> None:
        self._folder = folder
        self._files = files
        self._open: OrderedDict[int, File] = OrderedDict()
        self._lock = threading.Lock()

    def read_many(self, positions: Sequence[tuple[int, int, int]]) -> list[bytes]:
        """Return the payloads at `positions`, in that order.

        Raises `Corrupt` for bytes that have changed, `Retryable` when the disk fails.
        """
        payloads: list[bytes] = []
        blocks: dict[int, bytes] = {}
        unpack, mask = _CRC.unpack_from, _BLOCK_BYTES - 1
        crc_before = HEADER_SIZE - PAYLOAD_CRC_AT
        for segment, offset, length in positions:
            begin = (offset & mask) + HEADER_SIZE
            end = begin + length
            if length >= _ALONE_BYTES or end > _BLOCK_BYTES:
                block = self.read(segment, offset, HEADER_SIZE + length)
                begin, end = HEADER_SIZE, HEADER_SIZE + length
            else:
                key = segment << 48 | offset >> _BLOCK_BITS
                if key not in blocks:
                    if len(blocks) >= _BLOCKS_MAX:
                        blocks.clear()
                    blocks[key] = self.read(segment, offset & ~mask, _BLOCK_BYTES)
                block = blocks[key]
            payload = block[begin:end]
            if len(block) < end or unpack(block, begin - crc_before)[0] != value(payload):
                path = self._folder / segment_name(segment)
                raise Corrupt(
                    str(path),
                    offset,
                    f"the {length} bytes stored here have changed",
                    code=Code.SEGMENT_DAMAGED,
                )
            payloads.append(payload)
        return payloads

    def file(self, number: int) -> File:
        """Return segment `number`, open for reading; raise `OSError`."""
        with self._lock:
            file = self._open.get(number)
            if file is None:
                file = self._open[number] = self._files.open(self._folder / segment_name(number))
                if len(self._open) > _FILES_MAX:  # Closed when its last reader is done.
                    self._open.popitem(last=False)
            else:
                self._open.move_to_end(number)
            return file

    def forget(self, *numbers: int) -> None:
        """Close these segments, or all without any, once their last reader is done."""
        with self._lock:
            for number in numbers or [*self._open]:
                self._open.pop(number, None)

    def read(self, number: int, offset: int, length: int) -> bytes:
        """Return bytes of a segment, fewer only at its end; `Retryable` if the disk fails."""
        try:
            return self.file(number).read(offset, length)
        except OSError as error:
            raise Unreadable(self._folder / segment_name(number), offset, error) from error


class MissingSegments(Corrupt):
    """Segments `first` to `last` are missing, later segments exist.

    All timestamps in them are in (after_ts, up_to_ts], according to the neighbouring headers.
    """

    def __init__(
        self, folder: Path, first: int, last: int, *, after_ts: int, up_to_ts: int
    ) -> None:
        which = segment_name(first) if first == last else f"{first} to {last}, from this one on,"
        super().__init__(
            str(folder / segment_name(first)),
            0,
            f"segment {which} is missing, {segment_name(last + 1)} is there: its binlogs have"
            f" timestamps in ({after_ts}, {up_to_ts}]",
            code=Code.SEGMENT_CUT_SHORT,
        )
        self.first = first
        self.last = last
        self.after_ts = after_ts
        self.up_to_ts = up_to_ts


def begin_log(files: Files, folder: Path, epoch: int, epoch_id: int = 0) -> None:
    """Start a log in an empty folder; its first segment has that epoch; raise `OSError`."""
    assert not files.names(folder), "there is a log already"
    _, file = create_segment(files, folder, Head(0, 0, 0, epoch, epoch_id))
    file.close()


def open_chain(files: Files, folder: Path) -> dict[int, Segment]:
    """Return all segments in `folder`, each but the last with its end.

    Raises `Corrupt`, naming the segment that is missing or too short.
    """
    names = files.names(folder)
    numbers = sorted(int(name[:-4]) for name in names if name.endswith(".seg"))
    for left_over in (name for name in names if name.endswith(".new")):
        files.remove(folder / left_over)  # A crash came before it was named.
    # The previous process may have died between naming a segment and making the name durable.
    files.sync_folder(folder)
    found: dict[int, Segment] = {}
    for number in numbers:
        path = folder / segment_name(number)
        if found and number - 1 not in found:
            before, after = found[max(found)], open_segment(files, path, number)
            raise MissingSegments(
                folder,
                before.number + 1,
                number - 1,
                after_ts=before.earlier_largest_ts,
                up_to_ts=after.earlier_largest_ts,
            )
        found[number] = open_segment(files, path, number)
        if number - 1 in found:
            _seal(files, found[number - 1], found[number])
    return found


def _seal(files: Files, segment: Segment, successor: Segment) -> None:
    file = files.open(segment.path)
    try:
        size = file.size()
    finally:
        file.close()
    if size < successor.previous_end:
        known = f"{successor.path.name} knows {successor.previous_end} bytes"
        raise CutShort(
            str(segment.path), size, f"the file ends here, but {known}", code=Code.SEGMENT_CUT_SHORT
        )
    segment.end = segment.synced = successor.previous_end
