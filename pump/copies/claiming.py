"""Claiming: at each start a Pump becomes the primary of its log, or finds out that another one is.

    no entry, one copy wanted     nothing: the log is on this disk alone
    no entry                      one is made, with this disk alone on it
    this disk, or a whole copy    the next epoch is claimed
    another disk                  `Displaced`
    this disk, for a copy         `Displaced`, see below
    this disk, for a log that it has not begun yet    `Former`

A Pump that was displaced has nothing that anybody needs once the one with its log has handed all of
it to every Drainer. Then it may begin again, under the same name, with an empty folder and in an
epoch of its own (`begin_again`): no segment of its former life can pass for one of the new log. The
disk is listed first and its folder emptied then; what dies in between is a `Former` at its start.

Until then its disk may be given a copy of that very log, beside its own folder. So once the disk is
on no list, it is noted durably that the folder is out of that log (`.former`), and only then a copy
is taken. Before the note a list means the folder, after it the copy, and in between none has the
disk: the folder is never claimed for what the copy is listed for.

A data folder that was restored from a backup has its disk's id still, and so may claim its log; the
copies would then be cut to what it has. It is refused where that can be proved (`refuse_older`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from penstock import failpoints
from penstock.cluster.log_entries import Found, LogEntries
from penstock.cluster.log_entry import LOGS, Copy, LogEntry
from penstock.codes import Code
from penstock.errors import NeedsOperator, PenstockError, Retryable
from penstock.log.mending import Donor
from penstock.log.segment import BEGIN, Head
from pump.replicas.chain import Chain, Link
from pump.replicas.claim import Claim
from pump.replicas.messages import Swap
from pump.replicas.replica import Replica

SEGMENT_BYTES_END = 1 << 32
"""Segments with an epoch are smaller, see the header of one (`penstock.log.segment`)."""

_claimed = failpoints.point("copies.claimed")
_listed_again = failpoints.point("copies.listed_again")


class Claimed(NamedTuple):
    """A log whose next epoch is this process's: the own disk, the segments, and what was won."""

    own: Copy
    chain: Chain
    won: Found


class Wanted(NamedTuple):
    """How many copies a log is to have, and with how few nothing is acknowledged."""

    copies: int
    copies_min: int


class Displaced(Retryable):
    """Another disk is the primary of this Pump's log."""

    def __init__(self, node_id: str, found: Found) -> None:
        super().__init__(self._problem(node_id, found[0]), code=Code.LOG_DISPLACED)
        self.found = found

    @staticmethod
    def _problem(node_id: str, entry: LogEntry) -> str:
        return (
            f"the log of pump {node_id} is served by pump {entry.primary.pump}, with another disk"
            f"{' or from a copy' if entry.primary.pump == node_id else ''},"
            f" since epoch {entry.epoch}"
        )


class Former(Displaced):
    """This disk is listed for a new log of its Pump, but has the former one still."""

    @staticmethod
    def _problem(node_id: str, entry: LogEntry) -> str:
        return (
            f"the log of pump {node_id} began again in epoch {entry.since}, this one is before it"
        )


def claim(
    entries: LogEntries,
    node_id: str,
    own: Copy,
    chain: Chain,
    wanted: Wanted,
    *,
    former_since: int | None = None,
) -> Claimed | None:
    """Claim the next epoch of a log; None when it has one copy and none was ever listed.

    With `former_since` the folder is no part of the log that began in that epoch.

    Raises `Displaced` when another disk is the primary and this one is no whole copy, or the folder
    is no part of the log; `Former` when the log that this disk has is not the one that it is listed
    for; `Retryable` when etcd does not answer: then it is to be tried again; and `NeedsOperator`
    when the entry is gone that the log was shipped under.
    """
    if not _is_listed(entries, node_id, own, chain, wanted):
        return None
    attempt = Claim(own, Replica(chain))
    actions = attempt.start()
    while actions:
        (action,) = actions
        if isinstance(action, Swap):
            actions = attempt.swapped(entries.swap(node_id, action.revision, action.entry))
        else:
            found = _read(entries, node_id)
            if is_out_of(found[0], former_since) or not found[0].may_claim(own.disk):
                raise Displaced(node_id, found)
            if chain.links[0].epoch < found[0].since:
                raise Former(node_id, found)
            actions = attempt.entry_seen(*found)
    if attempt.won is None:
        raise Displaced(node_id, _read(entries, node_id))
    _claimed()
    return Claimed(own, chain, attempt.won)


def begin_again(
    entries: LogEntries, node_id: str, own: Copy, found: Found, wanted: Wanted
) -> LogEntry:
    """List this disk alone, in an epoch after all that were; return the entry.

    Only for a log of which every Drainer has all. Raises `Retryable` when the entry has changed.
    """
    entry, revision = found
    again = entry.begun_again(own, wanted.copies, wanted.copies_min)
    if entries.swap(node_id, revision, again) is None:
        raise Retryable(f"{LOGS}{node_id} has changed", code=Code.LOG_DISPLACED)
    _listed_again()
    return again


def is_out_of(entry: LogEntry, former_since: int | None) -> bool:
    """Return whether a folder is no part of a log: it was noted as out of the one that began then.

    Where such a disk is listed, that is for the copy beside the folder.
    """
    return former_since is not None and entry.since <= former_since


def refuse_older(own: Copy, chain: Chain, entry: LogEntry, others: Iterable[Donor]) -> None:
    """Raise `NeedsOperator` if the log of this disk was longer once, as etcd or another disk shows.

    The first segment of an epoch is on its primary's disk before any other one is sent it. So if
    this disk won the entry's epoch and has no such segment, it died before that, and no disk has
    one; or it lost it since. What every Drainer has may be gone elsewhere, but not what the entry
    calls needed. `others` are asked for headers, if need be, and need not answer.
    """
    last = chain.links[-1]
    if entry.primary.disk != own.disk or chain.links[0].epoch < entry.since:
        return
    if entry.needed > last.number:
        raise _older(last, f"etcd lists segment {entry.needed} as needed")
    if last.epoch >= entry.epoch:
        return
    firsts = [copy.first for copy in (*entry.replicas, *entry.eligible)]
    begins = {last.number + 1, *(first for first in firsts if first > last.number)}
    for other in others:
        for begin in sorted(begins):
            for head in _heads(other, begin):
                if head.epoch == entry.epoch:
                    what = f"segment {head.number}, which this one began in epoch {head.epoch}"
                    raise _older(last, f"another disk has {what}")


def _heads(other: Donor, number: int) -> Iterator[Head]:
    """Yield the headers of the segments from `number` on that another disk has."""
    try:
        while (head := Head.received(other.fetch(number, 0, BEGIN))) is not None:
            if head.number != number:
                return
            yield head
            number += 1
    except PenstockError:
        return


def _older(last: Link, proof: str) -> NeedsOperator:
    return NeedsOperator(
        f"the data folder is older than its Pump's log: it ends with segment {last.number} of epoch"
        f" {last.epoch}, but {proof}",
        hint="was it restored from a backup? keep it elsewhere, and start this Pump with an empty"
        " data folder: another one serves the log from its copy, and nothing is lost",
        code=Code.LOG_OLDER,
    )


def _is_listed(entries: LogEntries, node_id: str, own: Copy, chain: Chain, wanted: Wanted) -> bool:
    """Return whether the log has an entry, after making one if it is to have copies."""
    found = entries.read(node_id)
    epoch = chain.links[-1].epoch
    if found is None:
        if epoch > 0:
            raise NeedsOperator(
                f"{LOGS}{node_id} is not in etcd, but this log was copied in epoch {epoch}",
                hint="is this the cluster's etcd? if it lost its data, restore them from a backup",
                code=Code.LOG_ENTRY_GONE,
            )
        if wanted.copies == 1:
            return False
        if chain.end.offset >= SEGMENT_BYTES_END:
            raise NeedsOperator(
                f"the last segment of this log has {chain.end.offset} bytes, and one with copies"
                f" less than {SEGMENT_BYTES_END}",
                hint="start it with copies = 1 and a smaller storage.segment-bytes-max, until"
                " writers have begun the next segment",
                code=Code.SETTING_VALUE,
            )
        entry = LogEntry(
            epoch=0,
            primary=own,
            copies=wanted.copies,
            copies_min=wanted.copies_min,
            needed=chain.first,
        )
        entries.swap(node_id, 0, entry)
        return True
    entry, revision = found
    asked = entry.asking(wanted.copies, wanted.copies_min)
    if entry.primary.disk == own.disk and asked != entry:
        entries.swap(node_id, revision, asked)
    return True


def _read(entries: LogEntries, node_id: str) -> Found:
    found = entries.read(node_id)
    if found is None:
        raise Retryable(f"{LOGS}{node_id} is gone from etcd", code=Code.LOG_ENTRY_GONE)
    return found
