"""Closed log: repairs a segment of a log that cannot be opened, in its folder.

The seeds and ends of an open log are known. Here they must be found. The end of a segment is in the
header of its successor; without a successor, its frames record how much of it was on the disk. A
damaged header is taken from another disk only if it proves itself: a frame here is made for it, or
the segments before and after fit it. A missing segment is fetched under a draft's name, and gets
its name in the folder once all of it is whole.

The end of the last segment is known only by its last frames. A place there is repaired only if a
whole frame comes after it. Otherwise the repair could stop anywhere, and acknowledged data after it
would be lost silently. In a replica, frames after the start of some parts prove nothing (see
`copied_log.py`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path

from google_crc32c import value

from penstock.errors import PenstockError
from penstock.log.files import DRAFT, File, Files
from penstock.log.mending import (
    Damage,
    Donor,
    Mended,
    Patch,
    Salvaged,
    find_damage,
    mend,
    next_frame,
    proven_end,
)
from penstock.log.segment import BEGIN, Head, last_frame_end, segment_name
from penstock.log.segments import Place

_GONE = "this segment is missing"


class ClosedLog:
    """The folder of a log that no process has open, with other disks that may have the same log."""

    def __init__(self, files: Files, folder: Path, catching_up: Place | None = None) -> None:
        """`catching_up` is the start of a replica's part in which frames prove nothing."""
        self._files = files
        self._folder = folder
        self._catching_up = catching_up

    def mend(self, number: int, sources: Sequence[Donor]) -> Mended:
        """Repair the damage in a segment; raises `OSError` when the own disk fails."""
        path = self._folder / segment_name(number)
        if path.name not in self._files.names(self._folder):
            return self._replaced(number, path, _GONE, sources)
        file = self._files.open(path, writable=True)
        try:
            return self._mended(number, file, sources)
        finally:
            file.close()

    def _mended(self, number: int, file: File, sources: Sequence[Donor]) -> Mended:
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
            found = mend(salvaged, number, seed, damages[1:], sources=sources, write=write)
            found = found._replace(put_back=found.put_back + BEGIN)
        else:
            found = mend(salvaged, number, seed, damages, sources=sources, write=write)
        return found._replace(left=(*found.left, *lost))

    def _replaced(self, number: int, path: Path, what: str, sources: Sequence[Donor]) -> Mended:
        gone = Damage(0, BEGIN, what, is_followed=False)
        end = self._end(number, sources)
        header, problems = self._fitting(number, sources)
        if end is None or header is None:
            return Mended(0, (gone,), problems)
        draft = self._files.create(path.with_name(f"{number:06d}.mended{DRAFT}"))
        try:
            draft.write([header], 0)
            found = mend(
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
                return Mended(0, (gone,), found.problems)
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
            self.mend(number + 1, sources)
            head = self._head(number + 1)
        return None if head is None else head.previous_end

    def _last_end(self, number: int, file: Salvaged, size: int, seed: int) -> tuple[int, int]:
        """Return the end of synced data in the last segment, and the end of verifiable data."""
        if self._catching_up is not None and self._catching_up.segment == number:
            return self._catching_up.offset, self._catching_up.offset
        return max(BEGIN, proven_end(file, size, seed)), size

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
