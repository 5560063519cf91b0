"""Claiming: makes a starting Pump the primary of its log, or finds another disk in that role.

    no entry, one copy wanted           nothing: the log is on this disk alone
    no entry                            an entry is made, with this disk alone on it
    this disk, or a complete replica    the next epoch is claimed
    another disk                        `Fenced`
    this disk, for a replica            `Fenced`, see below
    this disk, for an unstarted log     `PreviousLog`

A fenced Pump has no data that anybody needs once its log's primary has handed the whole log to
every Drainer. Then it may re-initialise, under the same name, with an empty folder and in a new
epoch (`reinitialise`): no segment of the former log can pass for one of the new log. First the disk
is listed, then its folder is emptied. A Pump that dies in between is a `PreviousLog` at its start.

Until then its disk may get a replica of that very log, beside its own folder. Once the disk is on
no list, a durable note (`.former`) records that the folder does not belong to that log, and only
then a replica is accepted. Before the note a list means the folder, after it the replica, and in
between no list has the disk. So the folder is never claimed in place of a listed replica.

A data folder that was restored from a backup still has its disk's id, and so may claim its log; the
replicas would then be cut to its end. So may a replica beside it. Both are refused if that can be
proved (`refuse_older`). So is an entry that was restored, with etcd (`refuse_other_history`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from google_crc32c import value

from penstock import failpoints
from penstock.cluster.log_entry import LOGS, Copy, Found, LogEntries, LogEntry
from penstock.cluster.node_registry import ROOT, NodeKind, NodeState
from penstock.codes import Code
from penstock.errors import NeedsOperator, PenstockError, Retryable
from penstock.log.frame import HEADER_SIZE
from penstock.log.repair import Donor
from penstock.log.segment import BEGIN, CHUNK_BYTES, Head, last_synced
from pump.replication.protocol.chain import (
    Chain,
    Link,
    Seen,
    Verdict,
    described,
    foreign,
    judge,
    lacks,
)
from pump.replication.protocol.messages import Swap
from pump.replication.protocol.replica import Claim, Replica

log = logging.getLogger(__name__)

SEGMENT_BYTES_END = 1 << 32
"""Segments with an epoch are smaller, see the header of one (`penstock.log.segment`)."""

_claimed = failpoints.point("copies.claimed")
_relisted = failpoints.point("copies.listed_again")


class Claimed(NamedTuple):
    """A log whose next epoch is this process's: its disk, its segments, and the won entry."""

    own: Copy
    chain: Chain
    won: Found


class Wanted(NamedTuple):
    """The number of copies that a log needs, and the number below which nothing is acknowledged."""

    copies: int
    copies_min: int
    gives_ids: bool = True
    """False while an older Pump runs, which accepts no segments with an epoch's id."""


class Unseen(NamedTuple):
    """The Pumps in etcd whose disks were not looked at, by their names."""

    running: Sequence[str]
    offline: Sequence[str]
    """A restored etcd may call a Pump offline that has accepted replicas since."""

    @classmethod
    def of(cls, states: Mapping[str, NodeState], seen: Iterable[str]) -> Unseen:
        missing = sorted(states.keys() - set(seen))
        offline = [name for name in missing if states[name] is NodeState.OFFLINE]
        return cls([name for name in missing if name not in offline], offline)

    def named(self) -> list[str]:
        return [*self.running, *(f"{name} (offline)" for name in self.offline)]


class Fenced(Retryable):
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


class PreviousLog(Fenced):
    """This disk is listed for a new log of its Pump, but still has the former log."""

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

    With `former_since` the folder does not belong to the log that began in that epoch.

    Raises `Fenced` when another disk is the primary and this disk has no complete replica, or
    the folder does not belong to the log; `PreviousLog` when this disk has another log than the
    listed one; `Retryable` when etcd does not answer, and the claim must be retried, or when the
    entry is gone under which the log was shipped, and an operator must name a disk.
    """
    if not _is_listed(entries, node_id, own, chain, wanted):
        return None
    attempt = Claim(own, Replica(chain), gives_ids=wanted.gives_ids)
    actions = attempt.start()
    while actions:
        (action,) = actions
        if isinstance(action, Swap):
            actions = attempt.swapped(entries.swap(node_id, action.revision, action.entry))
        else:
            found = _read(entries, node_id)
            if is_out_of(found[0], former_since) or not found[0].may_claim(own.disk):
                raise Fenced(node_id, found)
            if chain.links[0].epoch < found[0].since:
                raise PreviousLog(node_id, found)
            if foreign(found[0], chain.links) is not None:
                raise Retryable(f"{LOGS}{node_id} was put back", Code.LOG_PUT_BACK)
            actions = attempt.entry_seen(*found)
    if attempt.won is None:
        raise Fenced(node_id, _read(entries, node_id))
    _claimed()
    return Claimed(own, chain, attempt.won)


def reinitialise(
    entries: LogEntries, node_id: str, own: Copy, found: Found, wanted: Wanted
) -> LogEntry:
    """List this disk alone, in an epoch after all earlier epochs; return the entry.

    Only for a log that every Drainer has completely. Raises `Retryable` when the entry has changed.
    """
    entry, revision = found
    again = entry.begun_again(own, wanted.copies, wanted.copies_min)
    if entries.swap(node_id, revision, again) is None:
        raise Retryable(f"{LOGS}{node_id} has changed", Code.LOG_DISPLACED)
    _relisted()
    return again


def refuse_gone(
    node_id: str, own: Copy, entry: LogEntry, edges: Sequence[Seen], missing: Unseen
) -> None:
    """Raise `Retryable` with the ways out if no disk that may continue a fenced log has that log.

    The `edges` are the first and the last segment on each disk that answered; `missing` are the
    Pumps of the other disks. Nothing is decided before the disks of all listed Pumps were seen, and
    of all Pumps that are not offline.
    """
    having = [each for each in edges if each.links]
    if not _are_all_seen(own, entry, edges, missing) or any(
        _continues(entry, each) for each in having
    ):
        return
    places = ", ".join(f"{copy.pump}, disk {copy.disk}" for copy in entry.copies_known)
    epoch = max(entry.epoch, *(link.epoch for each in having for link in each.links), 0)
    problem, others = "no disk has it", ""
    if having:
        parts = [
            f"{described(entry, each)}, segments {each.links[0].number} to {each.links[-1].number}"
            for each in having
        ]
        problem = f"no disk that may continue it has it: {'; '.join(parts)}"
        commands = [_adopt(node_id, each.copy, Chain(each.links), epoch) for each in having]
        others = f" Else continue with the disk that served it last: {' or '.join(commands)}."
    if missing.offline:
        problem += f"; not seen: {', '.join(missing.named())}"
    raise Retryable(
        f"etcd lists epoch {entry.epoch} of the log of {node_id} on {places}, but {problem} (was"
        " etcd restored from a backup? Copies are deleted once every Drainer has the log. If every"
        f" Drainer had it, begin a new log: {_adopt_command(node_id, own, epoch)} --empty. What a"
        f" Drainer lacks of the old one is lost then.{others})",
        Code.LOG_PUT_BACK,
    )


def is_nowhere(own: Copy, entry: LogEntry, edges: Sequence[Seen], missing: Unseen) -> bool:
    """Return whether no disk has a log; False before the disks of all Pumps were seen."""
    all_seen = not missing.offline and _are_all_seen(own, entry, edges, missing)
    return all_seen and not any(each.links for each in edges)


def _are_all_seen(own: Copy, entry: LogEntry, edges: Sequence[Seen], missing: Unseen) -> bool:
    listed = {copy.pump for copy in entry.copies_known} - {own.pump}
    return not missing.running and listed <= {each.copy.pump for each in edges}


def _continues(entry: LogEntry, seen: Seen) -> bool:
    """Return whether a failover to a replica needs no operator, see `failover.py`.

    A listed replica without the first needed segment needs one. A restored entry may call segments
    needed that were purged since, but nothing distinguishes them from files that were deleted.
    """
    if seen.links[-1].epoch > entry.epoch and foreign(entry, seen.links) is not None:
        return True
    return entry.may_claim(seen.copy.disk) and seen.links[0].number <= entry.needed


def is_out_of(entry: LogEntry, former_since: int | None) -> bool:
    """Return whether a folder does not belong to a log: its note excludes it from that log.

    An entry that lists such a disk means the replica beside the folder.
    """
    return former_since is not None and entry.since <= former_since


def refuse_older(
    node_id: str, own: Copy, chain: Chain, entry: LogEntry, others: Iterable[Donor]
) -> None:
    """Raise `NeedsOperator` if the log of this disk was longer once, as etcd or another disk shows.

    Etcd shows it by the mark, up to which the listed disks have the log, and by the segment that a
    Drainer needs. If this disk had less than that, other disks show it by segments of the entry's
    epoch. The first segment of an epoch is on its primary's disk before it is sent to any other
    disk. If this disk won that epoch and has no such segment, either it died before that, and no
    disk has one, or it lost the segment. A replica had as much as a later frame calls synced.
    `others` are asked for headers and frames, if necessary, and need not answer.
    """
    last = chain.links[-1]
    if not entry.may_claim(own.disk) or chain.links[0].epoch < entry.since:
        return
    if (proof := _shown_by(entry, chain)) is None and foreign(entry, chain.links) is None:
        is_primary = entry.primary.disk == own.disk
        found = (_shown_by_other(other, entry, last, is_primary) for other in others)
        proof = next(filter(None, found), None)
    if proof is not None:
        raise _older(node_id, own, chain, entry, proof)


def refuse_unmarked(node_id: str, own: Copy, chain: Chain, entry: LogEntry) -> None:
    """Raise `NeedsOperator` if etcd alone shows that the log of this disk was longer once."""
    if (proof := _shown_by(entry, chain)) is not None:
        raise _older(node_id, own, chain, entry, proof)


def refuse_other_history(
    entries: LogEntries,
    node_id: str,
    own: Copy,
    chain: Chain,
    seen: Sequence[Seen],
    missing: Unseen,
    withdraw_offline: Callable[[], None],
) -> None:
    """Raise unless the entry is as new as all disks that were `seen`; see `protocol/chain.py`.

    If this disk has everything that any disk has, the log is adopted by a new entry. Raises
    `Retryable` if the histories have parted and an operator must choose, if another disk may
    continue the log, or if Pumps are `missing`, whatever their state is in a restored etcd. Before
    any of that `withdraw_offline` withdraws the state of this Pump if it is offline there.
    """
    found = entries.read(node_id)
    if found is None and chain.links[-1].epoch > 0:
        return  # `claim` decides.
    entry, revision = found or (LogEntry(epoch=0, primary=own), 0)
    verdict = judge(entry, own, chain, seen, missing.named())
    if verdict == Verdict():
        return
    withdraw_offline()
    if verdict.adopted is None:
        all_seen = [Seen(own, tuple(chain.links)), *seen]
        _raise_put_back(node_id, entry, verdict, all_seen, missing)
    elif entries.swap(node_id, revision, verdict.adopted) is None:
        raise Retryable(f"{LOGS}{node_id} has changed", Code.LOG_PUT_BACK)
    else:
        log.warning(
            "%s%s was put back to epoch %d; this disk has all that any disk has, and continues the"
            " log after epoch %d",
            *(LOGS, node_id, entry.epoch, verdict.adopted.epoch),
        )


def _raise_put_back(
    node_id: str, entry: LogEntry, verdict: Verdict, all_seen: Sequence[Seen], missing: Unseen
) -> None:
    epoch = max(entry.epoch, verdict.newest)
    chains = [(each.copy, Chain(each.links)) for each in all_seen if each.links]
    commands = " or ".join(_adopt(node_id, copy, chain, epoch) for copy, chain in chains)
    # The Pump waits and does not end: its disk may have the newest replicas of other logs. If they
    # were out of sight, other Pumps would serve older replicas of those logs, as etcd lists them.
    text = (
        f"{verdict.refuses} (was etcd or a data folder restored from a backup? Back up the folders"
        f" of these disks, then choose the history that continues: {commands})"
    )
    if verdict.waits:
        keys = ", ".join(f"{ROOT}/{NodeKind.PUMP}/{name}" for name in missing.offline)
        gone = f" If an offline Pump is gone for good, delete its key in etcd: {keys}."
        text = (
            f"{verdict.waits}. Start the Pumps that are down.{gone if keys else ''}"
            f" To decide without them: {commands}"
        )
    raise Retryable(text, Code.LOG_PUT_BACK)


def _adopt(node_id: str, copy: Copy, chain: Chain, epoch: int) -> str:
    return f"{_adopt_command(node_id, copy, epoch)} --from {chain.first}"


def _adopt_command(node_id: str, copy: Copy, epoch: int) -> str:
    return f"penstock ctl adopt-log {node_id} --pump {copy.pump} --disk {copy.disk} --epoch {epoch}"


def _shown_by(entry: LogEntry, chain: Chain) -> str | None:
    """Return the proof in etcd that a log was longer.

    A restored entry proves nothing: the log may have restarted since, from segment 0. All disks are
    compared then, see `refuse_other_history`.
    """
    if foreign(entry, chain.links) is not None:
        return None
    last = chain.links[-1]
    if entry.needed > last.number:
        return f"etcd lists segment {entry.needed} as needed"
    mark = entry.mark
    if mark is None or not lacks(chain, mark):
        return None
    return (
        f"etcd lists segment {mark.segment} of epoch {mark.epoch} as acknowledged up to offset"
        f" {mark.offset}"
    )


def _shown_by_other(other: Donor, entry: LogEntry, last: Link, is_primary: bool) -> str | None:
    epoch = (entry.epoch, entry.id)
    if (last.epoch, last.epoch_id) == epoch and _had_more(other, last):
        return (
            f"another disk has frames of segment {last.number} that say how much more of it this"
            " one had"
        )
    firsts = [copy.first for copy in (*entry.replicas, *entry.eligible)]
    begins = {last.number + 1, *(first for first in firsts if first > last.number)}
    for begin in sorted(begins):
        for head in _heads(other, begin):
            link = Link(head.number, head.epoch, BEGIN, head.epoch_id)
            if (head.epoch, head.epoch_id) == epoch and (is_primary or _had_more(other, link)):
                what = "began" if is_primary else "had"
                return (
                    f"another disk has segment {head.number}, which this one {what} in epoch"
                    f" {head.epoch}"
                )
    return None


def _had_more(other: Donor, last: Link) -> bool:
    """Return whether frames on another disk prove that this disk had more of its last segment.

    Each frame records how much of the file its primary had on the disk. The other disk may have one
    group beyond this disk's end that proves nothing: a crash may have torn that group off here.
    """
    try:
        head = Head.received(other.fetch(last.number, 0, BEGIN))
        if head is None or not last.is_same(Link(head.number, head.epoch, 0, head.epoch_id)):
            return False
        seed, begin = value(head.encoded()), last.end
        while True:
            data = other.fetch(last.number, begin, begin + CHUNK_BYTES)
            if last_synced(data, begin, seed) > last.end:
                return True
            if len(data) < CHUNK_BYTES:
                return False
            begin += len(data) - HEADER_SIZE
    except PenstockError:
        return False


def _heads(other: Donor, number: int) -> Iterator[Head]:
    try:
        while (head := Head.received(other.fetch(number, 0, BEGIN))) is not None:
            if head.number != number:
                return
            yield head
            number += 1
    except PenstockError:
        return


def _older(node_id: str, own: Copy, chain: Chain, entry: LogEntry, proof: str) -> NeedsOperator:
    last = chain.links[-1]
    if entry.primary.disk == own.disk:
        what = "data folder"
        remedy = (
            "was it restored from a backup? Keep it elsewhere, and start this Pump with an empty"
            " data folder: another Pump serves the log from its copy, and nothing is lost"
        )
    else:
        what = f"copy of the log of {node_id}"
        remedy = (
            f"was the data folder of {own.pump} restored from a backup? Start the Pump"
            f" {entry.primary.pump}, or another one with a copy: it has the whole log"
        )
    return NeedsOperator(
        f"the {what} on disk {own.disk} is older than the log: it ends with segment {last.number}"
        f" of epoch {last.epoch} at offset {last.end}, but {proof}",
        f"{remedy}. If no other disk has the log any more, continue with what is here and lose"
        f" what is missing: {_adopt(node_id, own, chain, max(entry.epoch, last.epoch))}",
        Code.LOG_OLDER,
    )


def _is_listed(entries: LogEntries, node_id: str, own: Copy, chain: Chain, wanted: Wanted) -> bool:
    """Return whether the log has an entry; make the entry if the log should have copies."""
    found = entries.read(node_id)
    epoch = chain.links[-1].epoch
    if found is None:
        if epoch > 0:
            # The Pump waits, see `_raise_put_back`. A restored etcd may not list this Pump either,
            # so that other Pumps would not wait for its disk.
            raise Retryable(
                f"{LOGS}{node_id} is not in etcd, but this log was copied in epoch {epoch} (is this"
                " the cluster's etcd? If its data is lost, name the disk that continues the log,"
                f" the one with the highest epoch: {_adopt(node_id, own, chain, epoch)})",
                Code.LOG_ENTRY_GONE,
            )
        if wanted.copies == 1:
            return False
        if chain.end.offset >= SEGMENT_BYTES_END:
            raise NeedsOperator(
                f"the last segment of this log has {chain.end.offset} bytes, and one with copies"
                f" less than {SEGMENT_BYTES_END}",
                "start it with copies = 1 and a smaller storage.segment-bytes-max, until"
                " writers have begun the next segment",
                Code.SETTING_VALUE,
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
        raise Retryable(f"{LOGS}{node_id} is gone from etcd", Code.LOG_ENTRY_GONE)
    return found
