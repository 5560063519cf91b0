"""Segment: one file of a segmented log: its header, its frames, and its end after a crash.

    offset  size  field
    0       4     magic              "PSEG"
    4       4     version            1; versions other than 1, 2 and 3 are refused by name
    8       4     number             that of the file's name
    12      8     previous_end       how many bytes of the segment before count; 0 in the first
    20      8     earlier_largest_ts the largest timestamp the log knew when this file began
    28      4     crc                CRC-32C of bytes 0..28; also the seed of the frames' headers
    32      …     frames, see frame.py

Version 2 is for a log with replicas on other Pumps. It records which primary started the segment.
Its header has the same length, so that frames start at one place in all versions:

    12      4     previous_end       below 4 GiB
    16      4     epoch              from 1 on; a segment of version 1 is of epoch 0
    20      8     earlier_largest_ts

Version 3 also has the epoch's id (`penstock/cluster/log_entry.py`). It is random: an epoch that is
issued twice, after etcd was restored from a backup, has two ids.

    4       1     version            3
    5       3     epoch_id           from 1 on; a segment of an earlier version has none

A segment is sealed by its successor's header, not by a footer. A file whose sync failed is
therefore sealed at its last good byte without another write, and the remains of the failed write
after that byte do not count.

Only the last segment may end in bytes that are no frame: zeros by which it was extended ahead of
the writes, and before them the torn end of a crash. They are cut off, unless a later frame records
that the place was already on the disk. Then acknowledged bytes have changed, which is `Corrupt`.
"""

import contextlib
import logging
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Self

from google_crc32c import extend, value

from penstock import failpoints
from penstock.codes import Code
from penstock.errors import Corrupt, NeedsOperator
from penstock.log.files import File, Files, Readable
from penstock.log.frame import (
    CHECKED_SIZE,
    HEADER,
    HEADER_SIZE,
    MAGIC,
    SEED_BITS,
    Frame,
    Header,
    decode_header,
)

log = logging.getLogger(__name__)

SEGMENT_MAGIC = b"PSEG"
VERSION, VERSION_WITH_EPOCH, VERSION_WITH_ID = 1, 2, 3
_VERSION = struct.Struct("<4sII")
_CHECKED = struct.Struct("<4sIIQQ")
_CHECKED_WITH_EPOCH = struct.Struct("<4sIIIIQ")
_CRC = struct.Struct("<I")
BEGIN = _CHECKED.size + _CRC.size
"""The offset of a segment's first frame."""
assert BEGIN == 32  # The tables above are the contract.
assert _CHECKED_WITH_EPOCH.size == _CHECKED.size

CHUNK_BYTES = 4 << 20
BLOCK_BYTES = 1 << 20
"""Small enough for a processor's cache, from which its payloads are copied."""

_header_synced = failpoints.point("log.rotate.header_synced")
_renamed = failpoints.point("log.rotate.renamed")
_created = failpoints.point("log.rotate.created")
_cut = failpoints.point("log.open.cut")
_rewritten = failpoints.point("log.open.rewritten")


class CutShort(Corrupt):
    """A file ends before bytes that are known to have been written to it."""


@dataclass(slots=True)
class Segment:
    """The properties of one segment, without its frames."""

    number: int
    path: Path
    seed: int
    previous_end: int
    earlier_largest_ts: int
    epoch: int = 0
    epoch_id: int = 0
    end: int = BEGIN
    synced: int = BEGIN
    """Everything before is on the disk; equal to `end` when nothing is being written."""


class Head(NamedTuple):
    """The content of a segment's header; epoch 0 is written as version 1, no id as version 2."""

    number: int
    previous_end: int
    earlier_largest_ts: int
    epoch: int = 0
    epoch_id: int = 0

    def encoded(self) -> bytes:
        """Return the header without its checksum."""
        number, previous_end, ts, epoch, epoch_id = self
        if epoch == 0:
            return _CHECKED.pack(SEGMENT_MAGIC, VERSION, number, previous_end, ts)
        assert previous_end < 1 << 32, "a log with copies has segments below 4 GiB"
        version = VERSION_WITH_ID | epoch_id << 8 if epoch_id else VERSION_WITH_EPOCH
        fields = (number, previous_end, epoch, ts)
        return _CHECKED_WITH_EPOCH.pack(SEGMENT_MAGIC, version, *fields)

    @classmethod
    def decoded(cls, data: bytes) -> Self:
        """Parse a header that has already been verified."""
        _, version, number = _VERSION.unpack_from(data)
        if version == VERSION:
            return cls(number, *_CHECKED.unpack_from(data)[3:])
        _, _, _, previous_end, epoch, ts = _CHECKED_WITH_EPOCH.unpack_from(data)
        epoch_id = version >> 8 if version & 0xFF == VERSION_WITH_ID else 0
        return cls(number, previous_end, ts, epoch, epoch_id)

    @classmethod
    def received(cls, data: bytes) -> Self | None:
        """Parse the header at the start of `data`; None unless it matches byte for byte."""
        if len(data) < BEGIN:
            return None
        head = cls.decoded(data)
        checked = head.encoded()
        return head if checked + _CRC.pack(value(checked)) == data[:BEGIN] else None

    def segment(self, path: Path, seed: int) -> Segment:
        number, previous_end, ts, epoch, epoch_id = self
        return Segment(number, path, seed, previous_end, ts, epoch, epoch_id)


def segment_name(number: int) -> str:
    return f"{number:06d}.seg"


def create_segment(files: Files, folder: Path, head: Head) -> tuple[Segment, File]:
    """Create a segment durably and return it, open for appending; raise `OSError`.

    The header is on the disk before the file has its name, so a bad header is always damage.
    """
    checked = head.encoded()
    seed = value(checked)
    path = folder / segment_name(head.number)
    draft = path.with_suffix(".new")
    file = files.create(draft)
    try:
        file.write([checked + _CRC.pack(seed)], 0)
        file.sync()
        _header_synced()
        files.rename(draft, path)
        _renamed()
        files.sync_folder(folder)
        _created()
    except OSError:
        file.close()
        with contextlib.suppress(OSError):  # It may have its name by now, and stays.
            files.remove(draft)
        raise
    file.path = path
    return head.segment(path, seed), file


def open_segment(files: Files, path: Path, number: int) -> Segment:
    """Open the segment in `path`, with its `end` still unknown; raise `Corrupt`."""
    file = files.open(path)
    try:
        data = file.read(0, BEGIN)
    finally:
        file.close()
    if len(data) < BEGIN:
        raise Corrupt(
            str(path),
            len(data),
            "the file ends within the segment header",
            code=Code.SEGMENT_DAMAGED,
        )
    (crc,) = _CRC.unpack_from(data, _CHECKED.size)
    magic, version, written = _VERSION.unpack_from(data)
    if magic != SEGMENT_MAGIC or value(data[: _CHECKED.size]) != crc:
        raise Corrupt(str(path), 0, "not a segment header", code=Code.SEGMENT_DAMAGED)
    has_id = version & 0xFF == VERSION_WITH_ID and version >> 8 > 0
    if version not in (VERSION, VERSION_WITH_EPOCH) and not has_id:
        raise NeedsOperator(
            f"{path} is a segment of version {version & 0xFF}",
            f"this Penstock reads {VERSION}, {VERSION_WITH_EPOCH} and {VERSION_WITH_ID}",
            Code.SEGMENT_VERSION,
        )
    if written != number:
        raise Corrupt(
            str(path),
            8,
            f"this is segment {written}, under the name of another",
            code=Code.SEGMENT_DAMAGED,
        )
    return Head.decoded(data).segment(path, crc)


class BrokenAt(Exception):
    """The frames stop at `offset`, before the place where they should."""

    def __init__(self, offset: int, what: str) -> None:
        super().__init__(offset, what)
        self.offset = offset
        self.what = what


def walk(file: Readable, begin: int, end: int, seed: int) -> Iterator[tuple[int, Frame]]:
    """Yield every frame from `begin` to `end` with its offset; raise `BrokenAt`."""
    place = begin
    while place < end:
        chunk = file.read(place, min(CHUNK_BYTES, end - place))
        at = 0
        while (header := decode_header(chunk, at, offset=place + at, seed=seed)) is not None:
            frame_end = at + HEADER_SIZE + header.length
            if frame_end > len(chunk):
                break
            payload = chunk[at + HEADER_SIZE : frame_end]
            if value(payload) != header[2]:
                raise BrokenAt(place + at, "the payload does not match its checksum")
            yield place + at, Frame(payload, header[1], place + frame_end)
            at = frame_end
        if at == 0:  # A frame larger than a chunk, or none.
            frame = read_large(file, place, end, seed)
            yield place, frame
            at = frame.end - place
        place += at


class Block(NamedTuple):
    """Consecutive frames; empty ones, which mark a clean shutdown, are left out."""

    offsets: list[int]
    payloads: list[bytes]
    end: int
    synced: int
    """The synced length of the file according to the last frame."""


def blocks(
    file: Readable, begin: int, end: int, seed: int, block_bytes: int = BLOCK_BYTES
) -> Iterator[Block]:
    """Yield all frames from `begin` to `end`, then raise `BrokenAt` if they stop before that.

    `walk` yields more about each frame, at three times the cost; a start reads with this one.
    """
    unpack, crc, place = HEADER.unpack_from, value, begin
    while place < end:
        chunk = file.read(place, min(block_bytes, end - place))
        at, synced, size = 0, 0, len(chunk)
        offsets: list[int] = []
        payloads: list[bytes] = []
        broken = None
        while at <= size - HEADER_SIZE:
            magic, length, said, payload_crc, header_crc = unpack(chunk, at)
            checked = chunk[at : at + CHECKED_SIZE]
            if magic != MAGIC or extend((seed ^ place + at) & SEED_BITS, checked) != header_crc:
                break
            body = at + HEADER_SIZE
            after = body + length
            if after > size:
                break
            payload = chunk[body:after]
            if crc(payload) != payload_crc:
                broken = BrokenAt(place + at, "the payload does not match its checksum")
                break
            if length:
                offsets.append(place + at)
                payloads.append(payload)
            at, synced = after, said
        if at == 0 and broken is None:  # A frame larger than a chunk, or none.
            frame = read_large(file, place, end, seed)
            offsets, payloads, at, synced = (
                [place],
                [frame.payload],
                frame.end - place,
                frame.synced,
            )
        place += at
        if at:
            yield Block(offsets, payloads, place, synced)
        if broken is not None:
            raise broken


def read_large(file: Readable, place: int, end: int, seed: int) -> Frame:
    """Return the frame at `place`, regardless of its size; raise `BrokenAt`."""
    header = decode_header(file.read(place, HEADER_SIZE), 0, offset=place, seed=seed)
    if header is None:
        raise BrokenAt(place, "not a frame header")
    if place + HEADER_SIZE + header.length > end:
        there = max(0, end - place - HEADER_SIZE)
        raise BrokenAt(place, f"a payload of {header.length} bytes, of which {there} are there")
    payload = file.read(place + HEADER_SIZE, header.length)
    if value(payload) != header.payload_crc:
        raise BrokenAt(place, "the payload does not match its checksum")
    return Frame(payload, header.synced, place + HEADER_SIZE + header.length)


def find_end(
    file: File, segment: Segment, known_end: int, *, catching_up_from: int | None = None
) -> None:
    """Set the end of the last segment, cut a torn end, and make the rest durable.

    Frames before `known_end` are known to be durable. In a replica, frames describe the primary's
    disk, and those that end after `catching_up_from` prove nothing. Raises `Corrupt` for damage
    before a place that was on the disk, `CutShort` when the file ends before `known_end`.
    """
    size = file.size()
    if size < known_end:
        raise CutShort(
            str(segment.path),
            size,
            f"the file ends here, but it had {known_end} bytes on the disk",
            code=Code.SEGMENT_CUT_SHORT,
        )
    _check_known(file, segment, known_end, size)
    end = proven = known_end
    try:
        for block in blocks(file, known_end, size, segment.seed):
            end = block.end
            proven = max(proven, block.synced)
    except BrokenAt as broken:
        is_proof = catching_up_from is None or (
            _frame_end(file, broken.offset, segment.seed) <= catching_up_from
        )
        if is_proof and _was_synced(file, broken.offset, size, segment.seed):
            raise Corrupt(
                str(segment.path), broken.offset, broken.what, code=Code.SEGMENT_DAMAGED
            ) from broken
        if torn := written_bytes(file, broken.offset, size):
            log.warning(
                "%s: cut the torn end of an unfinished write, %d bytes from offset %d on",
                segment.path,
                torn,
                broken.offset,
            )
        else:
            log.info("%s: ends at offset %d, with zeros behind that", segment.path, broken.offset)
        file.truncate(end)
        _cut()
    if catching_up_from is not None:
        proven = min(proven, catching_up_from)
    if end > proven:
        _rewrite(file, proven, end)
        _rewritten()
    segment.end = segment.synced = end


def written_bytes(file: File, begin: int, end: int) -> int:
    """Return the number of bytes from `begin`, ignoring trailing zeros before `end`."""
    while begin < end:
        place = max(begin, end - CHUNK_BYTES)
        if left := file.read(place, end - place).rstrip(b"\0"):
            return place + len(left) - begin
        end = place
    return 0


def _check_known(file: File, segment: Segment, known_end: int, size: int) -> None:
    """Raise unless a frame ends at `known_end`: the file's length alone proves nothing."""
    last = last_frame_end(file, known_end, segment.seed)
    if last == known_end:
        return
    if written_bytes(file, last, size):
        raise Corrupt(str(segment.path), last, "not a frame header", code=Code.SEGMENT_DAMAGED)
    raise CutShort(
        str(segment.path),
        last,
        f"the frames end here, but there were some up to {known_end}",
        code=Code.SEGMENT_CUT_SHORT,
    )


def last_synced(data: bytes, offset: int, seed: int) -> int:
    """Return the synced length in the last frame that starts in `data`; 0 if none does.

    `data` are a part of the file, from `offset` on, and need not start or end with a frame.
    """
    at = data.rfind(MAGIC)
    while at >= 0:
        header = decode_header(data, at, offset=offset + at, seed=seed)
        if header is not None:
            return header.synced
        at = data.rfind(MAGIC, 0, at + len(MAGIC) - 1)
    return 0


def _frame_end(file: File, place: int, seed: int) -> int:
    header = decode_header(file.read(place, HEADER_SIZE), 0, offset=place, seed=seed)
    return place + HEADER_SIZE + (header.length if header is not None else 0)


def last_frame_end(file: Readable, before: int, seed: int) -> int:
    """Return the largest frame end up to `before`; `BEGIN` if no frame ends there."""
    high = before
    while high > BEGIN:
        low = max(BEGIN, high - CHUNK_BYTES)
        chunk = file.read(low, min(high + HEADER_SIZE, before) - low)
        at = chunk.rfind(MAGIC, 0, high - low + len(MAGIC) - 1)
        while at >= 0:
            header = decode_header(chunk, at, offset=low + at, seed=seed)
            if header is not None:
                end = low + at + HEADER_SIZE + header.length
                if end <= before:
                    return end
            at = chunk.rfind(MAGIC, 0, at + len(MAGIC) - 1)
        high = low
    return BEGIN


def _was_synced(file: File, place: int, size: int, seed: int) -> bool:
    return any(header.synced > place for _, header in headers(file, place + 1, size, seed))


def headers(file: Readable, begin: int, end: int, seed: int) -> Iterator[tuple[int, Header]]:
    """Yield each offset of a frame header from `begin`, whatever lies between headers."""
    while begin < end:
        chunk = file.read(begin, min(CHUNK_BYTES, end - begin))
        at = chunk.find(MAGIC)
        while at >= 0:
            data = chunk[at : at + HEADER_SIZE]
            if len(data) < HEADER_SIZE:
                data = file.read(begin + at, HEADER_SIZE)
            header = decode_header(data, 0, offset=begin + at, seed=seed)
            if header is not None:
                yield begin + at, header
            at = chunk.find(MAGIC, at + 1)
        if len(chunk) < len(MAGIC):
            return
        begin += len(chunk) - len(MAGIC) + 1


def _rewrite(file: File, begin: int, end: int) -> None:
    """Write the last group's bytes once more, and sync.

    The previous process may have died of a failed sync. The kernel then treats the pages as clean
    and serves them, but they are not on the disk. Only writing them again puts them there.
    """
    for place in range(begin, end, CHUNK_BYTES):
        file.write([file.read(place, min(CHUNK_BYTES, end - place))], place)
    file.sync()
