"""Histories: whether a log's entry in etcd is older than the segments that disks have.

    entry              epoch 2, ids … 7f              restored from a backup of etcd
    this disk          segments of epochs 1, 2
    pump-2's disk      segments of epochs 1, 2, 4     another Pump had the log in the meantime

A segment is created after its epoch was won, so no segment is of an epoch that the entry has not
come to, nor of one to which the entry gives another id. A segment that is so is *foreign*: the
entry was put back, and what the disks acknowledged under the lost entries is not listed. A primary
of the old entry would have the newer copies cut.

Only the disk whose log contains all others continues without an operator, and only when the disks
of all Pumps were seen: then nothing that was acknowledged can be anywhere else. It adopts the log:
it puts an entry with its own last epoch, and itself as the only disk.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from penstock.cluster.log_entry import Copy, LogEntry
from penstock.log.segment import BEGIN
from pump.replicas.chain import Chain, Link


class Seen(NamedTuple):
    """What a disk has of the log, from where it parts from this disk's log on."""

    copy: Copy
    links: tuple[Link, ...]


class Verdict(NamedTuple):
    """What a disk does that is to claim the log."""

    adopted: LogEntry | None = None
    """The entry to put before: this disk has all that any disk has."""
    waits: str = ""
    """Why it does not claim yet: another disk may have more, and may continue the log."""
    refuses: str = ""
    """Why it never claims: the disks have parted, or it cannot be shown which has all."""
    newest: int = 0
    """The newest epoch that was found anywhere."""


def foreign(entry: LogEntry, links: Sequence[Link]) -> Link | None:
    """Return the newest segment that is of another history than the entry; None if none is."""
    found = (link for link in reversed(links) if entry.is_foreign(link.epoch, link.epoch_id))
    return next(found, None)


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
    what = "; ".join(_described(entry, each) for each in all_seen if each.links)
    what = f"etcd lists epoch {_named(entry.epoch, entry.id)} of this log, but disks have: {what}"
    if all(_contains(chain, each) for each in seen) and _contains_entry(chain, entry):
        if missing:
            return Verdict(waits=f"{what}; not seen: {', '.join(missing)}", newest=newest)
        return Verdict(_adopted(entry, own, chain), newest=newest)
    if any(_is_contained(chain, each) for each in seen):
        return Verdict(waits=f"{what}; another disk has more than this one", newest=newest)
    return Verdict(refuses=what, newest=newest)


def _contains(chain: Chain, other: Seen) -> bool:
    """Return whether this disk has all groups that the other one has."""
    if other.links and other.links[0].number < chain.first:
        return False
    held = [link for link in other.links if link.end > BEGIN]
    if not held:
        return True
    own = chain.find(held[-1].number)
    return own is not None and own.is_same(held[-1]) and own.end >= held[-1].end


def _is_contained(chain: Chain, other: Seen) -> bool:
    """Return whether the other disk has all groups that this one has."""
    held = [link for link in chain.links if link.end > BEGIN]
    if not held:
        return True
    theirs = {link.number: link for link in other.links}.get(held[-1].number)
    return theirs is not None and theirs.is_same(held[-1]) and theirs.end >= held[-1].end


def _contains_entry(chain: Chain, entry: LogEntry) -> bool:
    """Return whether the entry is an older state of this disk's history."""
    return any((link.epoch, link.epoch_id) == (entry.epoch, entry.id) for link in chain.links)


def _adopted(entry: LogEntry, own: Copy, chain: Chain) -> LogEntry:
    last = chain.links[-1]
    return replace(
        entry,
        epoch=last.epoch,
        primary=replace(own, first=0),
        replicas=(),
        eligible=(),
        needed=max(entry.needed, chain.first),
        ids=(last.epoch_id,) if last.epoch_id else (),
    )


def _described(entry: LogEntry, seen: Seen) -> str:
    last = seen.links[-1]
    mark = " (foreign)" if foreign(entry, seen.links) else ""
    copy = seen.copy
    return f"{copy.pump}, disk {copy.disk}: {_named(last.epoch, last.epoch_id)}{mark}"


def _named(epoch: int, epoch_id: int) -> str:
    return f"{epoch} (id {epoch_id:06x})" if epoch_id else f"{epoch} (no id)"
