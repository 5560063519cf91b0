"""Chain: the segments of a log without their bytes, which is enough to compare replicas.

    number   0      1      2      3
    epoch    0      0      4      5        of the primary that started the segment
    id       –      –      a9…    3c…      of that epoch, random: its number may be won twice
    end      900    512    700    32       up to where it counts: before its successor, all of it

A primary starts each epoch with a new segment, and no other primary has the same epoch. If two logs
both have segment n of one epoch, they have the same bytes up to the nearer of the two ends there,
and the same log before it. "One epoch" means the same number and the same id: after etcd was
restored from a backup, a number may be won twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from penstock.log.segment import BEGIN
from penstock.log.segments import Place


class Link(NamedTuple):
    """One segment: its number, the epoch that started it, and its end."""

    number: int
    epoch: int
    end: int
    epoch_id: int = 0
    """0 for an epoch without an id."""

    def is_same(self, other: Link) -> bool:
        """Return whether both are the same segment of the same epoch, so their bytes are equal."""
        mine = (self.number, self.epoch, self.epoch_id)
        return mine == (other.number, other.epoch, other.epoch_id)


class Chain:
    """The links of one log, oldest first and without gaps; empty for an empty replica."""

    def __init__(self, links: Iterable[Link] = ()) -> None:
        self.links = list(links)

    @property
    def last(self) -> Link | None:
        return self.links[-1] if self.links else None

    @property
    def first(self) -> int:
        """The number of the oldest segment; 0 for an empty chain."""
        return self.links[0].number if self.links else 0

    @property
    def end(self) -> Place:
        last = self.links[-1]
        return Place(last.number, last.end)

    def find(self, number: int) -> Link | None:
        at = number - self.first
        return self.links[at] if 0 <= at < len(self.links) else None

    def last_with_frames(self) -> int:
        """Return the number of the last segment with frames, or else of the first segment."""
        held = (link.number for link in reversed(self.links) if link.end > BEGIN)
        return next(held, self.first)

    def agreement(self, theirs: Sequence[Link]) -> Place | None:
        """Return the place up to which both logs are equal; None if they share no segment."""
        for link in reversed(theirs):
            own = self.find(link.number)
            if own is not None and own.is_same(link):
                return Place(own.number, min(own.end, link.end))
        return None

    def begin(self, number: int, epoch: int, epoch_id: int) -> None:
        self.links.append(Link(number, epoch, BEGIN, epoch_id))

    def extend(self, end: int) -> None:
        """Set the end of the last segment."""
        self.links[-1] = self.links[-1]._replace(end=end)

    def cut(self, place: Place) -> None:
        """Drop everything after `place`, which must lie in the log."""
        del self.links[place.segment - self.first + 1 :]
        self.extend(place.offset)

    def prepend(self, link: Link) -> None:
        self.links.insert(0, link)

    def drop_before(self, number: int) -> None:
        """Drop all segments before `number`, but never the last one."""
        del self.links[: max(0, min(number - self.first, len(self.links) - 1))]

    def clear(self) -> None:
        self.links.clear()
