"""Repair: finds corrupted bytes of a segment, and repairs them from other disks.

    frame   frame   ?????????????   frame   frame
                    └── damage ──┘ up to the next frame that is whole here

Bytes of another disk are put back frame by frame, and only if they prove themselves: their
checksums match, and those of the header are made for this segment and this very offset. The other
disk need not be trusted: bytes that are also corrupted there, or belong to another log, are
skipped. Nothing is written over a whole frame, and a header that is still whole here must be the
same there. If both disks are damaged at different places, each can be repaired from the other.

The bytes are written in place. A crash in the middle leaves the place damaged as before. A disk
that could not read a sector allocates another sector for the write.

`ClosedLog` repairs a segment of a log that cannot be opened, in its folder. The seeds and ends of
an open log are known; here they must be found. The end of a segment is in the header of its
successor; without a successor, its frames record how much of it was on the disk. A damaged header
is taken from another disk only if it proves itself: a frame here is made for it, or the segments
before and after fit it. A missing segment is fetched under a draft's name, and gets its name in the
folder once all of it is whole.

The end of the last segment is known only by its last frames. A place there is repaired only if a
whole frame comes after it. Otherwise the repair could stop anywhere, and acknowledged data after it
would be lost silently. In a replica, frames after the start of some parts prove nothing (see
`replica.py`).
"""

import contextlib
import errno
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

from google_crc32c import value

from penstock.codes import Code
from penstock.errors import NeedsOperator, PenstockError
from penstock.log.files import DRAFT, File, Files, Readable
from penstock.log.frame import HEADER_SIZE, Header, decode_header
from penstock.log.segment import (
    BEGIN,
    BLOCK_BYTES,
    BrokenAt,
    Head,
    blocks,
    headers,
    last_frame_end,
    segment_name,
    walk,
)
from penstock.log.segments import Place

_STEP_BYTES = 8 << 20
"""The bytes that are requested at a time; more only for a frame that is larger."""
_PAGE_BYTES = 4096


class Damage(NamedTuple):
    """Bytes of one segment that are not whole frames or a header; nothing whole lies in them."""

    begin: int
    end: int
    what: str
    is_followed: bool = True
    """True if a whole frame comes after them; otherwise they end at the end of the read."""


class Patch(NamedTuple):
    """Whole frames, or a header, that belong at an offset."""

    offset: int
    data: bytes


class Donor(Protocol):
    """Another disk that may have the same log."""

    def fetch(self, number: int, begin: int, end: int) -> bytes:
        """Return bytes of a segment, fewer at its end; raises a `PenstockError`."""


Write = Callable[[Patch], None]
"""Puts bytes in their place; they are durable when it returns."""


class Repaired(NamedTuple):
    """The outcome of a repair."""

    put_back: int
    """The number of repaired bytes."""
    left: tuple[Damage, ...]
    """The remaining damage."""
    problems: tuple[str, ...] = ()
    """The reasons why the disks that were asked did not help."""


class Salvaged:
    """A file whose unreadable sectors read as zeros, which never form a frame."""

    def __init__(self, file: Readable) -> None:
        self._file = file

    def read(self, offset: int, length: int) -> bytes:
        try:
            return self._file.read(offset, length)
        except OSError as error:
            if error.errno != errno.EIO:
                raise
        return b"".join(self._pages(offset, offset + length))

    def _pages(self, begin: int, end: int) -> Iterator[bytes]:
        while begin < end:
            size = min(end, (begin // _PAGE_BYTES + 1) * _PAGE_BYTES) - begin
            try:
                page = self._file.read(begin, size)
            except OSError as error:
                if error.errno != errno.EIO:
                    raise
                page = bytes(size)
            yield page
            if len(page) < size:
                return
            begin += size


def find_damage(
    file: Readable, begin: int, end: int, seed: int, block_bytes: int = BLOCK_BYTES
) -> Iterator[Damage]:
    """Yield every damaged place from `begin` to `end`, by offset.

    Both are boundaries of frames; 0 is the start of the header. `seed` is the segment's. The file
    is read and checked in blocks of `block_bytes`.
    """
    if begin == 0:
        if not is_header(file.read(0, BEGIN), seed):
            yield Damage(0, BEGIN, "not a segment header")
        begin = BEGIN
    while begin < end:
        try:
            for block in blocks(file, begin, end, seed, block_bytes):
                begin = block.end
        except BrokenAt as broken:
            following = next_frame(file, broken.offset + 1, end, seed)
            begin = end if following is None else following
            yield Damage(broken.offset, begin, broken.what, following is not None)


def is_header(data: bytes, seed: int) -> bool:
    head = Head.received(data)
    return head is not None and value(head.encoded()) == seed


def next_frame(file: Readable, begin: int, end: int, seed: int) -> int | None:
    """Return the first offset from `begin` of a complete frame that ends before `end`."""
    for offset, header in headers(file, begin, end, seed):
        payload = offset + HEADER_SIZE
        if payload + header.length <= end and (
            value(file.read(payload, header.length)) == header.payload_crc
        ):
            return offset
    return None


def repair_segment(
    file: Readable,
    number: int,
    seed: int,
    damages: Iterable[Damage],
    *,
    sources: Iterable[Donor],
    write: Write,
) -> Repaired:
    """Repair the damages in a segment, which `file` reads, with bytes of the `sources`.

    The sources are asked one after the other, until nothing is damaged. Raises the errors of
    `write`.
    """
    left, put_back = tuple(damages), 0
    problems: dict[str, None] = {}
    for source in sources if left else ():
        for damage in left:
            patches = _patches(file, damage, source, number, seed)
            while True:
                try:
                    patch = next(patches, None)
                except PenstockError as error:
                    problems[str(error)] = None
                    break
                if patch is None:
                    break
                write(patch)
                put_back += len(patch.data)
        again = (find_damage(file, d.begin, d.end, seed) for d in left)
        left = tuple(itertools.chain.from_iterable(again))
        if not left:
            break
    return Repaired(put_back, left, tuple(problems))


def _patches(
    file: Readable, damage: Damage, source: Donor, number: int, seed: int
) -> Iterator[Patch]:
    if damage.begin == 0:
        data = source.fetch(number, 0, BEGIN)
        if is_header(data, seed):
            yield Patch(0, data)
        return
    place, size = damage.begin, _STEP_BYTES
    while place < damage.end:
        end = min(damage.end, place + size)
        data, done = source.fetch(number, place, end), place
        own = file.read(place, len(data))
        for patch in _whole(data, place, seed):
            _compare(own, place, patch, seed)
            yield patch
            done = patch.offset + len(patch.data)
        if done > place:
            place, size = done, _STEP_BYTES
        elif end == damage.end or len(data) < end - place:
            return
        else:
            place, size = _next_step(data, place, seed)


def _next_step(data: bytes, place: int, seed: int) -> tuple[int, int]:
    """Return where to continue after `data` without a whole frame, and with how many bytes.

    It continues at a frame that `data` has only the start of, so that no more of a damaged area is
    in memory than the largest frame.
    """
    end = place + len(data)
    for offset, header in headers(_Sent(data, place), place, end, seed):
        size = HEADER_SIZE + header.length
        if offset + size > end:
            return offset, max(_STEP_BYTES, size)
    return end - HEADER_SIZE + 1, _STEP_BYTES


def _whole(data: bytes, offset: int, seed: int) -> Iterator[Patch]:
    sent, begin, end = _Sent(data, offset), offset, offset + len(data)
    for damage in find_damage(sent, begin, end, seed):
        if begin < damage.begin:
            yield Patch(begin, sent.read(begin, damage.begin - begin))
        begin = damage.end
    if begin < end:
        yield Patch(begin, sent.read(begin, end - begin))


class _Sent:
    def __init__(self, data: bytes, offset: int) -> None:
        self._data = data
        self._offset = offset

    def read(self, offset: int, length: int) -> bytes:
        at = offset - self._offset
        return self._data[at : at + length]


def _compare(own: bytes, offset: int, patch: Patch, seed: int) -> None:
    """Raise unless the intact headers in `own` equal the headers of the patch."""
    sent, end = _Sent(patch.data, patch.offset), patch.offset + len(patch.data)
    for place, frame in walk(sent, patch.offset, end, seed):
        header = decode_header(own, place - offset, offset=place, seed=seed)
        theirs = Header(len(frame.payload), frame.synced, value(frame.payload))
        if header is not None and header != theirs:
            raise NeedsOperator(
                f"another disk has another frame at offset {place}, and both are whole",
                "keep a copy of both files, and report it as a defect",
                Code.SEGMENT_DAMAGED,
            )


_GONE = "this segment is missing"


class ClosedLog:
    """The folder of a log that no process has open, with other disks that may have the same log."""

    def __init__(self, files: Files, folder: Path, catching_up: Place | None = None) -> None:
        """`catching_up` is the start of a replica's part in which frames prove nothing."""
        self._files = files
        self._folder = folder
        self._catching_up = catching_up

    def repair(self, number: int, sources: Sequence[Donor]) -> Repaired:
        """Repair the damage in a segment; raises `OSError` when the own disk fails."""
        path = self._folder / segment_name(number)
        if path.name not in self._files.names(self._folder):
            return self._replaced(number, path, _GONE, sources)
        file = self._files.open(path, writable=True)
        try:
            return self._repaired(number, file, sources)
        finally:
            file.close()

    def _repaired(self, number: int, file: File, sources: Sequence[Donor]) -> Repaired:
        salvaged = Salvaged(file)
        size = file.size()
        header = self._header(number, salvaged, size, sources)
        if header is None:
            return self._replaced(number, file.path, "not a segment header", sources)
        seed = value(Head.decoded(header).encoded())
        end = self._end(number, sources)
        lost: list[Damage] = []
        if end is not None:
            damages = list(find_damage(salvaged, 0, end, seed))
        else:
            end, after = self._last_end(number, salvaged, size, seed)
            damages = list(find_damage(salvaged, 0, end, seed))
            is_open = bool(damages) and not damages[-1].is_followed
            if is_open and next_frame(salvaged, end, after, seed) is None:
                lost.append(damages.pop())

        def write(patch: Patch) -> None:
            file.write([patch.data], patch.offset)
            file.sync()

        if damages and damages[0].begin == 0:
            write(Patch(0, header))
            found = repair_segment(
                salvaged, number, seed, damages[1:], sources=sources, write=write
            )
            found = found._replace(put_back=found.put_back + BEGIN)
        else:
            found = repair_segment(salvaged, number, seed, damages, sources=sources, write=write)
        return found._replace(left=(*found.left, *lost))

    def _replaced(self, number: int, path: Path, what: str, sources: Sequence[Donor]) -> Repaired:
        gone = Damage(0, BEGIN, what, is_followed=False)
        end = self._end(number, sources)
        header, problems = self._fitting(number, sources)
        if end is None or header is None:
            return Repaired(0, (gone,), problems)
        draft = self._files.create(path.with_name(f"{number:06d}.mended{DRAFT}"))
        try:
            draft.write([header], 0)
            found = repair_segment(
                draft,
                number,
                value(Head.decoded(header).encoded()),
                [Damage(BEGIN, end, what, is_followed=False)] if end > BEGIN else [],
                sources=sources,
                write=lambda patch: draft.write([patch.data], patch.offset),
            )
            if found.left:
                with contextlib.suppress(OSError):  # The next opening of the log removes it.
                    self._files.remove(draft.path)
                return Repaired(0, (gone,), found.problems)
            draft.sync()
        finally:
            draft.close()
        self._files.rename(draft.path, path)
        self._files.sync_folder(self._folder)
        return found._replace(put_back=found.put_back + BEGIN)

    def _end(self, number: int, sources: Sequence[Donor]) -> int | None:
        """Return the end of a segment according to its successor's header, None without that."""
        head = self._head(number + 1)
        if head is None and any(n > number for n in self._numbers()):
            self.repair(number + 1, sources)
            head = self._head(number + 1)
        return None if head is None else head.previous_end

    def _last_end(self, number: int, file: Salvaged, size: int, seed: int) -> tuple[int, int]:
        """Return the end of synced data in the last segment, and the end of verifiable data."""
        if self._catching_up is not None and self._catching_up.segment == number:
            return self._catching_up.offset, self._catching_up.offset
        synced = (header.synced for _, header in headers(file, BEGIN, size, seed))
        return max(BEGIN, max(synced, default=0)), size

    def _header(
        self, number: int, file: Salvaged, size: int, sources: Sequence[Donor]
    ) -> bytes | None:
        own = file.read(0, BEGIN)
        if (head := Head.received(own)) is not None and head.number == number:
            return own
        for data, head in self._sent(number, sources, []):
            if next_frame(file, BEGIN, size, value(head.encoded())) is not None:
                return data
        return None

    def _fitting(
        self, number: int, sources: Sequence[Donor]
    ) -> tuple[bytes | None, tuple[str, ...]]:
        problems: list[str] = []
        for data, head in self._sent(number, sources, problems):
            if self._fits(head):
                return data, ()
            problems.append(f"the header that was sent for segment {number} does not fit in here")
        return None, tuple(problems)

    def _sent(
        self, number: int, sources: Sequence[Donor], problems: list[str]
    ) -> Iterator[tuple[bytes, Head]]:
        for source in sources:
            try:
                data = source.fetch(number, 0, BEGIN)
            except PenstockError as error:
                problems.append(str(error))
                continue
            head = Head.received(data)
            if head is not None and head.number == number:
                yield data, head

    def _fits(self, head: Head) -> bool:
        before, after = self._head(head.number - 1), self._head(head.number + 1)
        if after is not None and not _may_follow(head, after):
            return False
        if before is None:
            return after is not None
        if not _may_follow(before, head):
            return False
        file = self._files.open(self._folder / segment_name(head.number - 1))
        try:
            end = last_frame_end(Salvaged(file), head.previous_end, value(before.encoded()))
        finally:
            file.close()
        return end == head.previous_end

    def _head(self, number: int) -> Head | None:
        if number not in self._numbers():
            return None
        file = self._files.open(self._folder / segment_name(number))
        try:
            head = Head.received(Salvaged(file).read(0, BEGIN))
        finally:
            file.close()
        return head if head is not None and head.number == number else None

    def _numbers(self) -> set[int]:
        names = self._files.names(self._folder)
        return {int(name[:-4]) for name in names if name.endswith(".seg")}


def _may_follow(before: Head, after: Head) -> bool:
    if before.epoch == after.epoch:
        return before.epoch_id == after.epoch_id
    return before.epoch < after.epoch
