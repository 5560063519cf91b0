"""A data folder with one copy of the log: what was not synced may be gone after a crash."""

import random
from typing import NamedTuple

from google_crc32c import value

from penstock.log.segment import BEGIN, Head
from penstock.log.segments import Place
from pump.replication.protocol.chain import Chain, Link
from pump.replication.protocol.messages import Write


class Piece(NamedTuple):
    """What travels beside an Append or a Prepend: frames, and how many are before them."""

    before: int
    frames: tuple[int, ...]


class Stored:
    """A segment; each frame is a number that no other group has, and takes one byte."""

    __slots__ = ("before", "epoch", "epoch_id", "frames", "synced")

    def __init__(self, epoch: int, before: int, epoch_id: int) -> None:
        self.epoch = epoch
        self.epoch_id = epoch_id
        self.before = before
        self.frames: list[int] = []
        self.synced = 0


class Disk:
    def __init__(self, disk_id: str) -> None:
        self.id = disk_id
        self.segments: dict[int, Stored] = {}  # In the order of their numbers.
        self.is_damaged = False
        """True while the folder cannot be opened."""

    def chain(self) -> Chain:
        """Return what a process finds that opens the folder; it makes all of that durable."""
        for stored in self.segments.values():
            stored.synced = len(stored.frames)
        found = self.segments.items()
        return Chain(Link(n, s.epoch, BEGIN + len(s.frames), s.epoch_id) for n, s in found)

    def begin(self, number: int, epoch: int, epoch_id: int, *, before: int | None = None) -> None:
        """Create a segment durably, and with it what lies before it."""
        if before is None:
            before = self.count()
        self.sync()
        self.segments[number] = Stored(epoch, before, epoch_id)

    def count(self) -> int:
        if not self.segments:
            return 0
        last = self.segments[next(reversed(self.segments))]
        return last.before + len(last.frames)

    def index_at(self, place: Place) -> int:
        """Return how many frames the log has before `place`."""
        return self.segments[place.segment].before + place.offset - BEGIN

    def read(self, number: int, offset: int, end: int) -> Piece:
        stored = self.segments[number]
        begin = max(0, offset - BEGIN)
        return Piece(stored.before + begin, tuple(stored.frames[begin : end - BEGIN]))

    def write(self, action: Write, piece: Piece) -> None:
        """Write the end of what was sent, from `offset` on."""
        number, epoch, offset, epoch_id = action
        if offset == 0:
            self.begin(number, epoch, epoch_id, before=piece.before)
            offset = BEGIN
        stored = self.segments[number]
        already = stored.before + offset - BEGIN - piece.before
        stored.frames += piece.frames[already:]

    def write_before(self, link: Link, piece: Piece) -> None:
        stored = Stored(link.epoch, piece.before, link.epoch_id)
        stored.frames = list(piece.frames)
        stored.synced = len(stored.frames)
        self.segments = {link.number: stored, **self.segments}

    def drop_before(self, number: int) -> None:
        for old in [n for n in self.segments if n < number]:
            del self.segments[old]

    def remove_last(self) -> None:
        del self.segments[next(reversed(self.segments))]

    def truncate(self, offset: int) -> None:
        stored = self.segments[next(reversed(self.segments))]
        del stored.frames[offset - BEGIN :]
        stored.synced = min(stored.synced, len(stored.frames))

    def sync(self) -> None:
        if self.segments:  # All others were synced when their successor began.
            stored = self.segments[next(reversed(self.segments))]
            stored.synced = len(stored.frames)

    def crash(self, chance: random.Random) -> None:
        """Lose any part of what was not synced."""
        for stored in self.segments.values():
            if stored.synced < len(stored.frames):
                del stored.frames[chance.randint(stored.synced, len(stored.frames)) :]

    def synced_from(self, index: int) -> tuple[int, list[int]]:
        """Return the synced frames from the index-th on, and the index of the first of them."""
        frames: list[int] = []
        begin = -1
        for stored in self.segments.values():
            end = stored.before + stored.synced
            if end <= index and begin < 0:
                continue
            if begin < 0:
                begin = max(index, stored.before)
            if stored.before != begin + len(frames) and frames:
                break  # A gap: what is after it does not count.
            skipped = max(0, begin - stored.before) if not frames else 0
            frames += stored.frames[skipped : stored.synced]
        return begin, frames

    def segment_of(self, index: int) -> int:
        """Return the number of the segment that has the index-th frame."""
        return next(n for n, s in self.segments.items() if 0 <= index - s.before < len(s.frames))

    def has(self, index: int, value: int) -> bool:
        """Return whether the index-th frame of the log is synced here, and is this one."""
        for stored in self.segments.values():
            at = index - stored.before
            if 0 <= at < stored.synced:
                return stored.frames[at] == value
        return False


class PeerDisk:
    """A disk as a Pump sees it that asks for headers (`penstock.log.repair.Donor`)."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk

    def fetch(self, number: int, begin: int, end: int) -> bytes:
        """Return the header of a segment; its frames say nothing here."""
        stored = self._disk.segments.get(number)
        if stored is None or begin >= BEGIN:
            return b""
        header = Head(number, BEGIN, 0, stored.epoch, stored.epoch_id).encoded()
        checksum: int = value(header)
        return header + checksum.to_bytes(4, "little")
