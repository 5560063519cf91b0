"""Replica: decides how a disk answers the primary of a log, and how it becomes the primary.

A replica accepts nothing of an epoch before the promised epoch, appends only where its log agrees
with the primary's, cuts data that the primary does not have, and reports data only after it is
synced. It parses nothing and knows no transactions.

The cut data was never acknowledged: every primary has everything that was, and the cut starts where
the two logs part. But bytes that come late or twice must not cut the bytes after them. Within an
epoch a primary abandons bytes only by a failed sync, by starting another segment of the same epoch
after them. So a request never cuts a segment of its own epoch.

A promise needs no separate file: after a crash it is the epoch of the last segment. An answer
counts for a primary from the first segment of its epoch on, so the data that counted was kept in a
segment of that epoch, and nothing earlier is accepted after it. A crash may make a disk forget a
promise and then accept data of an old epoch. That data comes earlier. If the disk is claiming an
epoch itself, its first segment comes after those bytes; if not, the next primary cuts them, unless
they were acknowledged, and then that primary has them as well.

A damaged replica has no readable log and no readable promise. It accepts only the request to be
re-initialised in place of this very damage. Only a primary sends it that has taken the replica off
every list since it heard of the damage (`primary.py`).

A disk becomes the primary of a log by a claim, at each start and at a failover:

    entry read ── may this disk? ── promise the next epoch ── swap ── won: start the epoch

The promise comes first, so that no claim is won on a disk that would still help the replaced
primary. Every start claims an epoch, even for the Pump that is already the primary. Otherwise bytes
that its last run sent and did not sync would stand where other bytes of the same epoch do.

A disk whose log has a segment of another history than the entry claims nothing (`chain.py`): it was
restored, or etcd was.

Nothing here depends on time. An unneeded failover costs a move and loses nothing.

A `Proposal` is a compare-and-swap of the entry, tracked until its outcome is known. The answer
"not swapped" and a missing answer are treated alike: the swap may have won, or may still
win, so the entry is read. While the entry is still at the swap's revision, the same swap is
requested once more; nothing else may be proposed until then.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from penstock.cluster.log_entry import Copy, LogEntry
from penstock.log.segments import Place
from pump.replication.protocol.chain import Chain, Link, foreign
from pump.replication.protocol.messages import (
    Actions,
    Append,
    Ask,
    Clear,
    Confirmed,
    Cut,
    Damaged,
    DropBefore,
    Have,
    Prepend,
    ReadEntry,
    Refusal,
    ReplicaState,
    Reply,
    Request,
    SetAside,
    Swap,
    Sync,
    Write,
    WriteBefore,
)


class Replica:
    """One replica of one log; create it again whenever its folder is opened.

    The returned actions are carried out one after the other; when one fails, open the folder
    again.
    """

    def __init__(self, chain: Chain, damage: int = 0) -> None:
        """`damage` is that of a replica that cannot be opened; its chain is empty."""
        self.chain = chain
        self.damage = damage
        self.promised = chain.links[-1].epoch if chain.links else 0

    def promise(self, epoch: int) -> None:
        """From now on, accept nothing of an epoch before `epoch`."""
        self.promised = max(self.promised, epoch)

    def receive(self, request: Request) -> Actions:
        """Return the actions for a request, its answer last."""
        if self._is_fenced(request.epoch):
            return [Reply(Refusal(self.promised))]
        self.promise(request.epoch)
        if self.damage:
            named = request.damage if isinstance(request, Append) and not request.offset else None
            if named is None or not self._is_this(named):
                return [Reply(Damaged(request.epoch, self.damage))]
        if isinstance(request, Append):
            return self._append(request)
        if isinstance(request, Prepend):
            return self._prepend(request)
        assert isinstance(request, Ask)
        if request.confirms:
            return [Reply(Confirmed(request.epoch, request.confirms))]
        return [self._standing(request.epoch)]

    def _is_fenced(self, epoch: int) -> bool:
        return epoch < self.promised

    def _is_this(self, damage: int) -> bool:
        return damage == self.damage

    def _append(self, request: Append) -> Actions:
        actions = self._fitted(request)
        if actions is None:
            return [self._standing(request.epoch)]
        place = Place(request.segment, request.end)
        link = self.chain.find(request.segment)
        if link is None:
            self.chain.begin(request.segment, request.segment_epoch, request.epoch_id)
        end = 0 if link is None else link.end
        if end < request.end:
            self.chain.extend(request.end)
            write = Write(request.segment, request.segment_epoch, end, request.epoch_id)
            actions += [write, Sync()]
        if self.chain.first < min(request.needed, self.chain.end.segment):
            self.chain.drop_before(request.needed)
            actions.append(DropBefore(self.chain.first))
        return [*actions, Reply(Have(request.epoch, place, self.chain.first))]

    def _fitted(self, request: Append) -> Actions | None:
        """Cut data that disagrees and return the actions; None if the bytes do not fit."""
        known = self.chain.find(request.segment)
        if known is not None and request.is_of(known):
            if request.offset > known.end:
                return None
            if request.end <= known.end:
                return []
            return self._cut(Place(known.number, known.end), request.epoch)
        if request.offset > 0:
            return None
        if self.damage:
            self.damage = 0
            return [SetAside()]
        if request.instead_of is not None:
            return self._cleared(request.instead_of)
        if request.previous is None:
            return None if self.chain.links else []
        previous = request.previous
        if not self._agrees(self.chain.find(previous.number), previous):
            return None
        return self._cut(Place(previous.number, previous.end), request.epoch)

    def _agrees(self, own: Link | None, previous: Link) -> bool:
        return own is not None and own.is_same(previous) and own.end >= previous.end

    def _cut(self, place: Place, epoch: int) -> Actions | None:
        if self._is_late(place, epoch):
            return None
        if place == self.chain.end:
            return []
        self.chain.cut(place)
        return [Cut(place)]

    def _is_late(self, place: Place, epoch: int) -> bool:
        """Return whether a cut at `place` would drop a segment of the requesting epoch."""
        last = self.chain.links[-1]
        return last.number > place.segment and last.epoch == epoch

    def _cleared(self, instead_of: tuple[Link, ...]) -> Actions | None:
        """Drop the replica if it is unchanged since it was reported to the primary."""
        if not self._is_still(instead_of):
            return None
        if not self.chain.links:
            return []
        self.chain.clear()
        return [Clear()]

    def _is_still(self, links: tuple[Link, ...]) -> bool:
        return tuple(self.chain.links) == links

    def _prepend(self, request: Prepend) -> Actions:
        first = self.chain.first
        if not self.chain.links or first != request.link.number + 1:
            return [self._standing(request.epoch)]
        self.chain.prepend(request.link)
        # The bytes after it were agreed on before, so any place in them can report the new `first`.
        have = Have(request.epoch, Place(first, 0), request.link.number)
        return [WriteBefore(request.link), Reply(have)]

    def _standing(self, epoch: int) -> Reply:
        return Reply(ReplicaState(epoch, tuple(self.chain.links)))


class Proposal(NamedTuple):
    """An entry that is to follow the entry at `revision`."""

    revision: int
    entry: LogEntry

    def is_won(self, entry: LogEntry, revision: int) -> bool | None:
        """Return whether an entry and its revision show that this won; None while it is open.

        Equality is enough: the proposed epoch was free at `revision`, only this disk proposes
        itself for it, and only one of its runs at a time knows that revision.
        """
        return entry == self.entry if revision > self.revision else None


class Claim:
    """One attempt of a disk; after success, `won` has the entry and its revision."""

    def __init__(self, copy: Copy, replica: Replica, *, gives_ids: bool = True) -> None:
        """Without `gives_ids`, the epoch has no id because some Pumps do not know epoch ids."""
        self._gives_ids = gives_ids
        self._copy = copy
        self._replica = replica
        self._proposal: Proposal | None = None
        self.won: tuple[LogEntry, int] | None = None
        self.is_over = False

    def start(self) -> Actions:
        return [ReadEntry()]

    def entry_seen(self, entry: LogEntry, revision: int) -> Actions:
        """Accept etcd's current entry, from a linearizable read and not from a watch."""
        if self.is_over:
            return []
        if self._proposal is None:
            if not self._may_claim(entry):
                self.is_over = True
                return []
            self._proposal = Proposal(revision, self._claimed(entry))
            self._replica.promise(self._proposal.entry.epoch)
            return [Swap(*self._proposal)]
        is_won = self._proposal.is_won(entry, revision)
        if is_won is None:
            return [Swap(*self._proposal)]
        if is_won:
            return self.swapped(revision)
        self.is_over = True
        return []

    def swapped(self, revision: int | None) -> Actions:
        """Accept the result of a swap: the new revision, or None if refused or unanswered."""
        if self.is_over or self._proposal is None:
            return []
        if revision is None:
            return [ReadEntry()]
        self.is_over = True
        if self._replica.promised == self._proposal.entry.epoch:  # Otherwise another disk has it.
            self.won = (self._proposal.entry, revision)
        return []

    def _may_claim(self, entry: LogEntry) -> bool:
        is_foreign = foreign(entry, self._replica.chain.links) is not None
        return entry.may_claim(self._copy.disk) and not is_foreign

    def _claimed(self, entry: LogEntry) -> LogEntry:
        claimed = entry.claimed(self._copy)
        return claimed.with_ids() if self._gives_ids else replace(claimed, ids=())
