"""A primary's real log, shipped piece by piece to a real copy on a disk that fails at any call.

`Upstream` is the log with what happens to it; `Downstream` the copy; `ship` does what
`pump.replication.protocol.primary` does for one copy, with pieces cut at any byte.
"""

from __future__ import annotations

import contextlib
import errno
import random
from collections.abc import Iterator, Sequence
from pathlib import Path

from penstock.errors import Retryable
from penstock.log.replica import OlderSegment
from penstock.log.segment import BEGIN, segment_name
from penstock.log.segments import Place, Segments, WriteFailed
from pump.replication.protocol.chain import Chain, Link
from pump.replication.protocol.messages import Append, Ask, Have, Prepend, ReplicaState
from pump.replication.replica_log import ReplicaLog
from tests.kit.fakes.files import MemoryFiles

LOG = Path("/log")
PIECE_BYTES = (1, 40, 700, 5000)


class Died(Exception):
    """The machine or the process of the copy ended at a call of its disk."""


class Upstream:
    """The log of a primary; its disk fails only where it is made to."""

    def __init__(
        self,
        chance: random.Random,
        *,
        files: MemoryFiles | None = None,
        epoch: int = 1,
        segment_bytes: int = 3000,
    ) -> None:
        self.chance = chance
        self.segment_bytes = segment_bytes
        self.epoch = epoch
        self.files = files or MemoryFiles()
        self.segments = self._opened()
        self.segments.begin_next(epoch)
        self.acked: Place | None = None
        """Up to where the copy has said that it has whole frames."""
        self.boundaries: set[Place] = set()

    def _opened(self) -> Segments:
        return Segments.open(LOG, files=self.files, segment_bytes_max=self.segment_bytes)

    def chain(self) -> Chain:
        return Chain(Link(*link) for link in self.segments.links())

    def data(self, number: int, begin: int, end: int) -> bytes:
        return bytes(self.files.nodes[LOG / segment_name(number)].data[begin:end])

    def append(self) -> None:
        sizes = [self.chance.choice((1, 30, 200, 900)) for _ in range(self.chance.randint(1, 4))]
        found = self.segments.append([self.chance.randbytes(size) for size in sizes])
        self.boundaries |= {Place(p.segment, p.offset) for p in found} | {self.segments.end}

    def write(self, groups: int) -> None:
        for _ in range(groups):
            self.append()
            self.segments.sync()

    def fail_sync(self) -> None:
        self.files.fail_once("sync")
        with contextlib.suppress(WriteFailed):
            self.segments.sync()
        self._keep_acked()
        self.segments.begin_next()

    def restart(self) -> None:
        self.reopen()
        self._keep_acked()
        self.epoch += 1
        self.segments.begin_next(self.epoch)

    def reopen(self) -> None:
        if self.chance.random() < 0.5:
            self.segments.close()
        self.files = self.files.after_crash(self.chance)
        self.segments = self._opened()

    def purge(self) -> None:
        self.segments.drop_before(self.chance.randint(self.segments.first, self.segments.end[0]))

    def forked(self) -> Upstream:
        """Return the log of a primary that takes over with all that is here now."""
        return Upstream(self.chance, files=self.files.after_crash(), epoch=self.epoch + 1)

    def live(self) -> None:
        self.chance.choices(
            (lambda: self.write(1), lambda: self.write(7), self.restart, self.purge), (6, 3, 1, 0.5)
        )[0]()

    def _keep_acked(self) -> None:
        if self.acked is not None:
            self.acked = min(self.acked, self.segments.end)


class Downstream:
    """A copy, whose disk fails at the calls in `fail_at`: by a crash, a kill or an error."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.calls = 0
        self.fail_at: dict[int, str] = {}
        self._boot(MemoryFiles())

    def _boot(self, files: MemoryFiles) -> None:
        self.files = files
        files.fail = self._count
        self.log = ReplicaLog(LOG, files)
        self._after: MemoryFiles | None = None

    def _count(self, call: str, path: Path) -> None:
        if self._after is not None:
            raise Died  # What a process does while it dies does not count.
        self.calls += 1
        how = self.fail_at.get(self.calls)
        if how == "error":
            raise OSError(errno.EIO, f"made to fail: {call}", str(path))
        if how is not None:
            # A kill loses nothing that was written.
            crashed = self.files.after_crash(self.chance)
            self._after = self.files.after_kill() if how == "kill" else crashed
            raise Died

    @contextlib.contextmanager
    def failing(self) -> Iterator[None]:
        """Survive what fails: the next request meets the disk as it is then."""
        try:
            yield
        except (Retryable, Died):
            if self._after is not None:
                self._boot(self._after)

    def crash(self) -> None:
        self._boot(self.files.after_crash(self.chance))

    def become(self, deposed: Upstream) -> None:
        """Follow the log in the folder of a Pump that was its primary, and was killed."""
        self._boot(deposed.files.after_kill())

    def links(self) -> tuple[Link, ...]:
        self.log.open()
        return self.log.links

    def data(self, link: Link) -> bytes:
        return bytes(self.files.nodes[LOG / segment_name(link.number)].data[: link.end])


def ship(
    up: Upstream,
    down: Downstream,
    *,
    pieces_max: int = 1000,
    piece_bytes: Sequence[int] = PIECE_BYTES,
) -> bool:
    """Ship until the copy has everything, or some pieces of it; return whether it has.

    Raises what the copy's disk raises; what it has said that it has must be there.
    """
    standing = down.log.answer(Ask(up.epoch), b"")
    assert isinstance(standing, ReplicaState)
    chain = up.chain()
    at = chain.agreement(standing.links)
    if up.acked is not None and chain.find(up.acked.segment) is not None:
        assert at is not None
        assert at >= up.acked, "the copy lost what it had"
    instead_of = None
    if at is None:
        at, instead_of = Place(chain.last_with_frames(), 0), standing.links
    for _ in range(pieces_max):
        found = _next(up, chain, at, instead_of, up.chance.choice(piece_bytes))
        if found is None:
            return _ship_older(up, down)
        request, data = found
        have = down.log.answer(request, data)
        assert isinstance(have, Have), have
        assert have.place == Place(request.segment, request.end)
        at, instead_of = have.place, None
        if at.offset == BEGIN or at in up.boundaries:
            up.acked = at
    return False


def _next(
    up: Upstream, chain: Chain, at: Place, instead_of: tuple[Link, ...] | None, size: int
) -> tuple[Append, bytes] | None:
    link, offset = chain.find(at.segment), at.offset
    if link is not None and offset >= link.end:
        link, offset = chain.find(at.segment + 1), 0
    if link is None:
        return None
    end = min(link.end, offset + size) if offset else BEGIN
    request = Append(
        *(up.epoch, link.number, link.epoch, offset, end),
        previous=chain.find(link.number - 1) if offset == 0 else None,
        instead_of=instead_of if offset == 0 else None,
        needed=chain.first,
    )
    return request, up.data(link.number, offset, end)


def _ship_older(up: Upstream, down: Downstream) -> bool:
    """Ship the segments before the copy's first one, newest first."""
    chain = up.chain()
    while (link := chain.find(down.log.links[0].number - 1)) is not None:
        older = OlderSegment(down.files, LOG, link, serial=0)
        try:
            size = up.chance.choice((50, 5000))
            for begin in range(0, link.end, size):
                older.write(up.data(link.number, begin, min(begin + size, link.end)))
            older.finish()
            have = down.log.prepend(Prepend(up.epoch, link), older)
        finally:
            older.drop()
        assert isinstance(have, Have)
        assert have.first == link.number
    return True


def check_same(up: Upstream, down: Downstream, *, first: int = 0) -> None:
    """The copy is the log from `first` on: segment by segment, byte by byte; a Pump can open it."""
    first = max(first, up.segments.first)  # What was purged last may still be in the copy.
    links = [link for link in down.links() if link.number >= first]
    assert links == [link for link in up.chain().links if link.number >= first]
    for link in links:
        assert down.data(link) == up.data(link.number, 0, link.end)
    files = down.files.after_crash()  # Nothing of it was only in memory.
    opened = Segments.open(LOG, files=files, segment_bytes_max=up.segment_bytes)
    assert [*opened.scan(Place(first, BEGIN))] == [*up.segments.scan(Place(first, BEGIN))]
