"""Chain: the segments of a log without their bytes, which is enough to compare replicas.

    number   0      1      2      3
    epoch    0      0      4      5        of the primary that started the segment
    id       –      –      a9…    3c…      of that epoch, random: its number may be won twice
    end      900    512    700    32       up to where it counts: before its successor, all of it

A primary starts each epoch with a new segment, and no other primary has the same epoch. If two logs
both have segment n of one epoch, they have the same bytes up to the nearer of the two ends there,
and the same log before it. "One epoch" means the same number and the same id: after etcd was
restored from a backup, a number may be won twice.

The same comparison shows whether a log's entry in etcd is older than the segments on disks:

    entry              epoch 2, ids … 7f              restored from a backup of etcd
    this disk          segments of epochs 1, 2
    pump-2's disk      segments of epochs 1, 2, 4     another Pump had the log in the meantime

A segment is created after its epoch was won. So no segment is of an epoch that the entry has not
reached, or of an epoch to which the entry gives another id. A segment that contradicts this is
*foreign*: the entry was restored, and data that the disks acknowledged under the lost entries is
not listed. A primary of the old entry would have the newer replicas cut.

Only the disk whose log contains all others continues without an operator, and only when the disks
of all Pumps were seen, because then no acknowledged data can be anywhere else. A Pump that etcd
calls offline counts like any other, because its state was restored with the entry. The disk adopts
the log: it puts an entry with the newest epoch that was found, and itself as the only disk.

A disk can also be older than the entry, if its data folder was restored from a backup. The entry
has a mark, up to which all listed disks have the log, and a disk that *lacks* it claims nothing.
The primary moves the mark with each epoch and every few seconds; a folder that is newer than the
mark passes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple

from penstock.cluster.log_entry import Copy, LogEntry, Mark
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
        return self.links[0].number if self.links else 0

    @property
    def end(self) -> Place:
        last = self.links[-1]
        return Place(last.number, last.end)

    def find(self, number: int) -> Link | None:
        at = number - self.first
        return self.links[at] if 0 <= at < len(self.links) else None

    def last_with_frames(self) -> int:
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
        self.links[-1] = self.links[-1]._replace(end=end)

    def cut(self, place: Place) -> None:
        del self.links[place.segment - self.first + 1 :]
        self.extend(place.offset)

    def prepend(self, link: Link) -> None:
        self.links.insert(0, link)

    def drop_before(self, number: int) -> None:
        """Drop all segments before `number`, but never the last segment."""
        del self.links[: max(0, min(number - self.first, len(self.links) - 1))]

    def clear(self) -> None:
        self.links.clear()


class Seen(NamedTuple):
    """A disk's part of the log, from the place where it parts from this disk's log on."""

    copy: Copy
    links: tuple[Link, ...]


class Verdict(NamedTuple):
    """The decision of a disk that wants to claim the log."""

    adopted: LogEntry | None = None
    """The entry to put first: this disk has everything that any disk has."""
    waits: str = ""
    """The reason to wait: another disk may have more data, and may continue the log."""
    refuses: str = ""
    """The reason to refuse: the disks have parted, or no disk provably has everything."""
    newest: int = 0
    """The newest epoch that was found anywhere."""


def foreign(entry: LogEntry, links: Sequence[Link]) -> Link | None:
    """Return the newest segment that is of another history than the entry; None if none is.

    An empty segment of an earlier epoch does not count: it is cut like any other.
    """
    for link in reversed(links):
        counts = link.end > BEGIN or link.epoch >= entry.epoch
        if counts and entry.is_foreign(link.epoch, link.epoch_id):
            return link
    return None


def lacks(chain: Chain, mark: Mark | None) -> bool:
    """Return whether a listed disk's log ends before a mark that the disk had reached.

    Epochs never decrease along a log. If the disk purged the marked segment, its first segment is
    of the mark's epoch or a later epoch. An earlier epoch belongs to a former log.
    """
    if mark is None:
        return False
    if mark.segment < chain.first:
        return chain.links[0].epoch < mark.epoch
    link = chain.find(mark.segment)
    if link is None or not link.is_same(Link(mark.segment, mark.epoch, 0, mark.epoch_id)):
        return True
    return link.end < mark.offset


def judge(
    entry: LogEntry, own: Copy, chain: Chain, seen: Sequence[Seen], missing: Sequence[str]
) -> Verdict:
    """Compare the entry with all disks; `missing` are the Pumps whose disks were not seen.

    The disks must have been looked at before the entry was read.
    """
    mine = Seen(own, tuple(chain.links))
    all_seen = [mine, *seen]
    if not any(foreign(entry, each.links) for each in all_seen):
        return Verdict()
    newest = max(entry.epoch, *(link.epoch for each in all_seen for link in each.links))
    what = "; ".join(described(entry, each) for each in all_seen if each.links)
    what = f"etcd lists epoch {_named(entry.epoch, entry.id)} of this log, but disks have: {what}"
    lacking = [each for each in seen if not _contains(entry, chain.links, each.links)]
    needed = [mine, *lacking]
    if any(all(_contains(entry, a.links, b.links) for b in needed if b is not a) for a in lacking):
        return Verdict(waits=f"{what}; another disk has more than this one", newest=newest)
    if missing:
        return Verdict(waits=f"{what}; not seen: {', '.join(missing)}", newest=newest)
    has_oldest = _has_oldest(entry, chain, seen)
    if mine.links and has_oldest and not lacking and _contains_entry(entry, mine, seen):
        return Verdict(_adopted(entry, own, chain, newest), newest=newest)
    return Verdict(refuses=what, newest=newest)


def _contains(entry: LogEntry, mine: Sequence[Link], theirs: Sequence[Link]) -> bool:
    """Return whether one disk has all acknowledged data of another disk.

    Where the logs part, the log with the later epoch is right: its primary had everything that
    was acknowledged before. That holds among epochs of one history, so the first disk must have
    every segment that is foreign to the entry.
    """
    held = [link for link in theirs if link.end > BEGIN]
    at = {link.number: link for link in mine}
    for link in reversed(held):
        own = at.get(link.number)
        if own is not None and own.is_same(link) and own.end >= link.end:
            return True
        after = at.get(link.number + 1) if own is not None and own.is_same(link) else own
        if after is None and mine and link.number > mine[-1].number:
            after = mine[-1]
        is_settled = after is not None and after.epoch > link.epoch
        if not is_settled or entry.is_foreign(link.epoch, link.epoch_id):
            return False
        if own is not None and own.is_same(link):
            return True
    return not held


def _has_oldest(entry: LogEntry, chain: Chain, seen: Sequence[Seen]) -> bool:
    firsts = [each.links[0].number for each in seen if each.links]
    needed = _needed(entry, chain)
    return all(chain.first <= max(first, needed) for first in firsts)


def _contains_entry(entry: LogEntry, mine: Seen, seen: Sequence[Seen]) -> bool:
    """Return whether this disk has all data that was acknowledged under the entry.

    That is so if it has a segment of the entry's epoch. It may have none, if another disk won that
    epoch, or the segment was purged. Then it must have all data of a disk that the entry lists as
    complete: itself, or a disk whose last data is here as well.
    """
    if any((link.epoch, link.epoch_id) == (entry.epoch, entry.id) for link in mine.links):
        return True
    for whole in (mine, *seen):
        if whole.links and entry.may_claim(whole.copy.disk):
            ends = [link for link in whole.links if link.end > BEGIN][-1:]
            if all(any(o.is_same(e) and o.end >= e.end for o in mine.links) for e in ends):
                return True
    return False


def _needed(entry: LogEntry, chain: Chain) -> int:
    """Return the first needed segment of this log; 0 if it was re-initialised since the entry.

    Its segments then have other numbers than those that the entry counts.
    """
    return entry.needed if chain.links and chain.links[0].epoch <= entry.epoch else 0


def _adopted(entry: LogEntry, own: Copy, chain: Chain, newest: int) -> LogEntry:
    last = chain.links[-1]
    return replace(
        entry,
        epoch=newest,
        primary=replace(own, first=0),
        replicas=(),
        eligible=(),
        needed=max(_needed(entry, chain), chain.first),
        ids=(last.epoch_id,) if last.epoch == newest and last.epoch_id else (),
        mark=None,
    )


def described(entry: LogEntry, seen: Seen) -> str:
    last = seen.links[-1]
    mark = " (foreign)" if foreign(entry, seen.links) else ""
    copy = seen.copy
    return f"{copy.pump}, disk {copy.disk}: {_named(last.epoch, last.epoch_id)}{mark}"


def _named(epoch: int, epoch_id: int) -> str:
    return f"{epoch} (id {epoch_id:06x})" if epoch_id else f"{epoch} (no id)"
