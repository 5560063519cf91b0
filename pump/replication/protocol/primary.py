"""Primary: ships a log to its replicas, and reports the data that all of them have.

One group at a time is written, synced and shipped in parallel. It is acknowledged when every listed
disk has synced it, and only then the next group may be appended. The primary starts a segment
whenever the epoch changes, with the list in force from there on:

    segment   7 (epoch 4)        8 (epoch 5)      9 (epoch 6)
              … g1 g2 g3         no frames        g4 …
                      └ waits    a replica left   another one joined: it has 7 from its start

Nothing is appended in an epoch before the start of its segment is on enough disks, together with
everything before it. So a segment with a frame proves that everything before that segment is on
enough disks; all doubtful data lies in the last segment that has frames. A new replica is given the
log from that segment on, and has everything that is acknowledged while it is on the list. A group
that waits while the list changes stays where it is.

Earlier segments are given to the replica afterwards, newest first. Until it has everything that a
Drainer needs, it counts as a replica of new groups and may not take over.

A replica on a *draining* disk is replaced first. Another replica joins, and the old replica leaves
the list only when `copies` complete replicas stay without it. The log itself moves in the same way:
the target disk joins if it has no replica, `copies` others become complete, and then the primary
gives the log away by a swap that makes the target the primary. Groups that are acknowledged while
the swap is undecided are on the target as well, because it stays listed until it is the primary.

A damaged replica is re-initialised, but only off the list, and in an epoch that began after it had
reported the damage. A listed or eligible disk may claim the log, with whatever data it has by then.
A late answer from before the damage would list the replica again before it is complete. The swap
that takes the replica off the list prevents both, because nothing of an earlier epoch counts,
neither a swap nor an answer.

A replica that lacks the entry's mark, or a segment that the entry lists, was restored to an older
state. It leaves every list in the same way before it is given the rest. With a part of the rest it
would pass for complete.

A claim promises the epoch after the entry's. A replica that has promised that epoch may have helped
a claim that was lost, and the primary starts it. A replica that has promised a higher epoch has
heard of a newer primary. A listed replica with a segment of another history shows that the entry
was restored (`chain.py`). In both cases the primary stops serving, and never outbids.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from penstock.cluster.log_entry import Copy, LogEntry, Mark
from penstock.log.segment import BEGIN
from penstock.log.segments import Place
from pump.replication.protocol.chain import Chain, Link, foreign, lacks
from pump.replication.protocol.messages import (
    Acknowledge,
    Actions,
    Answer,
    Append,
    Ask,
    Begin,
    Confirmed,
    Damaged,
    Have,
    Prepend,
    ReadEntry,
    Refusal,
    ReplicaState,
    Send,
    StepDown,
    Swap,
)
from pump.replication.protocol.replica import Proposal

PIECE_BYTES_MAX = 4 << 20
_NOTHING = Place(0, 0)


class Follower:
    """The primary's knowledge of one replica."""

    def __init__(self, copy: Copy) -> None:
        self.copy = copy
        self.at: Place | None = None
        """Up to where its log is known to agree; None until it has reported its position."""
        self.sent: Place | None = None
        """The end of the request that it has not answered yet."""
        self.have = _NOTHING
        """The place up to which it has synced; it counts from the first segment of the epoch on."""
        self.first = copy.first
        """The first segment that it had when it reported `have`."""
        self.confirmed = 0
        """The last question of `confirm` that it answered."""
        self.given: int | None = None
        """The segment in transfer that is to come before its first one.

        The answer to a live group may be the first to report that it arrived.
        """
        self.instead_of: tuple[Link, ...] | None = None
        """The log that it must drop for a replica of this one."""
        self.damage = 0
        """The damage in place of which it must be re-initialised."""


class Primary:
    """The primary of one log, in successive epochs; create it with a claim that was won.

    `revision` is the entry's: a status is put into etcd only if the entry is still there.
    """

    def __init__(
        self,
        copy: Copy,
        chain: Chain,
        won: tuple[LogEntry, int],
        *,
        piece_bytes_max: int = PIECE_BYTES_MAX,
    ) -> None:
        self._copy = copy
        self.chain = chain
        self.entry, self.revision = won
        self._piece_bytes_max = piece_bytes_max
        self.acknowledged = self.synced = self._base = _NOTHING
        self.is_over = False
        self._followers: dict[str, Follower] = {}
        self._learner: Follower | None = None
        self._silent: set[str] = set()
        self._damaged: dict[str, tuple[int, int]] = {}
        """Damage of replicas, and the epoch of its report; until they are re-initialised."""
        self._repaired: dict[str, int] = {}
        """Their last damage that is gone; an answer that names it comes late."""
        self._older: set[str] = set()
        """Disks of the entry that were restored to an older state."""
        self._draining: frozenset[str] = frozenset()
        self._moves_to = ""
        self._gives_away = False
        self._needed = self.entry.needed
        self._marks = _NOTHING
        self._promised = 0  # By a replica, for a primary that may never have existed.
        self._promised_by = ""
        self.foreign_disks: dict[str, Link] = {}
        """Disks that are not listed and have another history of this log, by a segment of it."""
        self._proposal: Proposal | None = None
        self.confirms = 0
        """The number of the last question of `confirm`."""

    @property
    def is_ready(self) -> bool:
        """True if the next group may be appended: nothing awaits acknowledgement."""
        return not self.is_over and self.acknowledged == self.chain.end

    @property
    def learner(self) -> str | None:
        return None if self._learner is None else self._learner.copy.disk

    @property
    def needs_replica(self) -> bool:
        """True while a candidate is accepted: too few listed disks stay, and none is joining."""
        is_possible = not self.is_over and self._learner is None
        return is_possible and len(self._staying()) < self.entry.copies

    @property
    def staying_complete(self) -> list[str]:
        """The listed disks that stay and may take over; the own disk only if the log stays."""
        return [copy.disk for copy in self._staying() if copy.first <= self.entry.needed]

    def missing_bytes(self, disk: str) -> int | None:
        """Return how much needed data a replica lacks; None for a disk without a replica."""
        follower = self._follower(disk)
        if follower is None:
            return None
        lacking = 0
        for number, _, end, _ in self.chain.links:
            if number >= self.entry.needed:
                is_older = follower.have == _NOTHING or number < follower.first
                held = follower.have.offset if number == follower.have.segment else 0
                is_there = not is_older and number < follower.have.segment
                lacking += 0 if is_there else end if is_older else max(0, end - held)
        return lacking

    @property
    def is_marked(self) -> bool:
        """True if the mark in the entry is of this epoch."""
        return self._marked_upto >= self._base

    @property
    def _marked_upto(self) -> Place:
        mark = self.entry.mark
        return _NOTHING if mark is None else Place(mark.segment, mark.offset)

    @property
    def droppable_before(self) -> int:
        """The segment before which a purge may drop everything."""
        return self.entry.needed

    # The own log.

    def start(self) -> Actions:
        for copy in self.entry.replicas:
            self._followers[copy.disk] = Follower(copy)
        return self._begin()

    def appended(self, end: Place) -> Actions:
        assert self.is_ready, "a group waits for the one before"
        if end.segment != self.chain.end.segment:
            self.chain.begin(end.segment, self.entry.epoch, self.entry.id)
        self.chain.extend(end.offset)
        return self._ship_all()

    def own_synced(self) -> Actions:
        if self.is_over:
            return []
        self.synced = self.chain.end
        return self._settled()

    def abandoned(self, end: Place) -> Actions:
        """Handle a failed write or sync: the log ends at `end`, and continues in another segment.

        The appended data is not acknowledged, and its writers may be answered accordingly.
        """
        if self.is_over:
            return []
        self.chain.cut(end)
        begin = Begin(end.segment + 1, self.entry.epoch, self.entry.id)
        self.chain.begin(*begin)
        self._base = self.synced = self.chain.end
        return [begin, *self._ship_all()]

    def dropped(self, segment: int) -> None:
        self.chain.drop_before(segment)

    # Confirming.

    def confirm(self) -> Actions:
        """Ask all disks that an acknowledgement needs whether they have promised a later epoch.

        Once none has, no other primary had acknowledged anything before the question. The first
        other primary was a disk that this primary had listed. All of them are counted here, also
        while it is not known whether a change of the list has won. Before that disk acknowledged
        anything, it had begun a segment of its epoch, so that even a crash does not make it forget
        its promise, and it refuses. Where eligible disks may also take over, nothing is confirmed.
        """
        self.confirms += 1
        ask = Ask(self.entry.epoch, confirms=self.confirms)
        return [Send(follower.copy, ask) for follower in self._counted()]

    @property
    def confirmed(self) -> int:
        """The number of the last question that was confirmed; 0 if none is."""
        if self.is_over or not self.entry.may_acknowledge:
            return 0
        return min([self.confirms, *(follower.confirmed for follower in self._counted())])

    # Answers of replicas, and changes of the replica set.

    def answered(self, disk: str, answer: Answer) -> Actions:
        if isinstance(answer, Refusal):
            # Start an epoch that the replica accepts, unless another primary exists already.
            if answer.promised > self._promised:
                self._promised, self._promised_by = answer.promised, disk
            return self._proposed()
        follower = self._follower(disk)
        if self.is_over or follower is None or answer.epoch != self.entry.epoch:
            return []
        self._silent.discard(disk)
        if isinstance(answer, Damaged):
            return self._is_damaged(follower, answer)
        known = self._damaged.get(disk)
        if known is not None and known[1] < self.entry.epoch:  # It may be from before.
            self._repaired[disk] = self._damaged.pop(disk)[0]
        if isinstance(answer, Confirmed):
            follower.confirmed = max(follower.confirmed, answer.confirms)
            return []
        if isinstance(answer, ReplicaState):
            return self._stands(follower, answer)
        return self._has(follower, answer)

    def outran(self, epoch: int) -> Actions:
        """Handle that the own disk promised another primary's epoch and rejects this epoch."""
        if self.is_over or epoch <= self.entry.epoch:
            return []
        return self._step_down(f"this disk has promised epoch {epoch}")

    def connected(self, disk: str) -> Actions:
        """Handle a replica that became reachable: requests sent to it before may be lost."""
        follower = self._follower(disk)
        if self.is_over or follower is None:
            return []
        follower.sent = follower.given = None
        return [Send(follower.copy, Ask(self.entry.epoch))]

    def silent(self, disk: str) -> Actions:
        if self._learner is not None and self._learner.copy.disk == disk:
            if self._proposal is None or self._proposal.entry.replica(disk) is None:
                self._learner = None
        elif disk in self._followers:
            self._silent.add(disk)
        return self._proposed()

    def candidate(self, copy: Copy) -> Actions:
        """Offer a Pump's disk; it is taken if too few replicas stay or the log moves to it."""
        barred = {self._copy.disk, *self._followers, *self._draining}
        if self.is_over or self._learner is not None or copy.disk in barred:
            return []
        if not self.needs_replica and copy.disk != self._moves_to:
            return []
        self._learner = Follower(copy)
        return self.connected(copy.disk)

    def draining(self, disks: Collection[str]) -> Actions:
        """Set the complete list of draining disks, whose replicas are replaced first."""
        self._draining = frozenset(disks)
        return self._proposed()

    def moves_to(self, disk: str) -> Actions:
        """Move the log to another disk, which gets a replica; if empty, the log stays."""
        self._moves_to, self._gives_away = disk, False
        return self._proposed()

    def gives_away(self) -> Actions:
        """Make the move's target the primary as soon as its replica is complete."""
        self._gives_away = True
        return self._proposed()

    # The entry.

    def needs(self, segment: int) -> Actions:
        self._needed = max(self._needed, min(segment, self.acknowledged.segment))
        return self._proposed()

    def marks(self) -> Actions:
        """Update the entry's mark to the acknowledged end of the log (`chain.lacks`)."""
        self._marks = self.acknowledged
        return self._proposed()

    def swapped(self, revision: int | None) -> Actions:
        if self.is_over or self._proposal is None:
            return []
        return [ReadEntry()] if revision is None else self._won(revision)

    def entry_seen(self, entry: LogEntry, revision: int) -> Actions:
        """Accept an entry that was read or watched; it may be old."""
        if self.is_over or revision <= self.revision:
            if self.is_over or self._proposal is None or revision < self.revision:
                return []
            return [Swap(*self._proposal)]
        if self._proposal is not None and self._proposal.is_won(entry, revision):
            return self._won(revision)
        return self._step_down(f"{entry.primary.pump} is the primary in epoch {entry.epoch}")

    def _won(self, revision: int) -> Actions:
        assert self._proposal is not None
        heir = self._proposal.entry.primary
        if heir.disk != self._copy.disk:  # No status may be put with its revision any longer.
            return self._step_down(f"the log was moved to pump {heir.pump}")
        before, self.entry, self.revision = self.entry, self._proposal.entry, revision
        self._proposal = None
        if self.entry.epoch == before.epoch:
            return self._proposed()
        known = dict(self._followers)
        if self._learner is not None:
            known[self._learner.copy.disk] = self._learner
        if self._learner is not None and self.entry.replica(self._learner.copy.disk) is not None:
            self._learner = None
        self._followers = {copy.disk: known[copy.disk] for copy in self.entry.replicas}
        self._older &= {copy.disk for copy in self.entry.copies_known}
        for copy in self.entry.replicas:
            self._followers[copy.disk].copy = copy
        self._silent &= set(self._followers)
        return self._begin()

    def _begin(self) -> Actions:
        number = self.chain.end.segment + 1 if self.chain.links else 0
        begin = Begin(number, self.entry.epoch, self.entry.id)
        self.chain.begin(*begin)
        self._base = self.synced = self.chain.end
        actions: Actions = [begin]
        for follower in self._all_followers():
            follower.sent = follower.given = None
            if follower.at is None:
                actions.append(Send(follower.copy, Ask(self.entry.epoch)))
        return [*actions, *self._ship_all(), *self._settled()]

    def _proposed(self) -> Actions:
        if self.is_over or self._proposal is not None:
            return []
        if self._promised > self.entry.epoch + 1:
            return self._step_down(
                f"disk {self._promised_by} has promised epoch {self._promised}, this is epoch"
                f" {self.entry.epoch}: there is a newer primary, or etcd was restored"
            )
        wanted = self._wanted()
        if wanted is None:
            return []
        self._proposal = Proposal(self.revision, wanted)
        return [Swap(*self._proposal)]

    def _wanted(self) -> LogEntry | None:
        damaged = [disk for disk in self._damaged if not self._may_reinitialise(disk)]
        if damaged or self._older:
            return self.entry.without_damaged([*damaged, *self._older])
        if self._silent:
            return self.entry.without(self._silent)
        if self._promised > self.entry.epoch:
            return self.entry.claimed(self._copy)
        heir = self.entry.replica(self._moves_to) if self._gives_away else None
        if heir is not None and heir.first <= self.entry.needed:
            return self.entry.claimed(heir)
        if self._learner is not None and self._is_complete(self._learner):
            return self.entry.joined(replace(self._learner.copy, first=self._learner.first))
        for copy in self.entry.replicas:
            first = self._followers[copy.disk].first
            if first <= self.entry.needed < copy.first:
                return self.entry.extended(copy.disk, first)
        if self._needed > self.entry.needed:
            return self.entry.needing(self._needed)
        dispensable = self._dispensable()
        return self._marked() if dispensable is None else self.entry.without([dispensable.disk])

    def _marked(self) -> LogEntry | None:
        """Return the entry with the requested mark, if all listed disks have reached it.

        Data that was acknowledged in an earlier epoch is marked with the start of this epoch.
        """
        place = self.acknowledged
        link = self.chain.find(place.segment)
        if not self._marked_upto < self._marks or place < self._base or link is None:
            return None
        return self.entry.marked(Mark(*place, link.epoch, link.epoch_id))

    def _staying(self) -> list[Copy]:
        own = [] if self._moves_to else [self._copy]
        return own + [copy for copy in self.entry.replicas if copy.disk not in self._draining]

    def _dispensable(self) -> Copy | None:
        if not self._are_enough_complete():
            return None
        replicas, staying = self.entry.replicas, self._staying()
        for copy in replicas:
            if copy.disk in self._draining:
                return copy
        if len(staying) <= self.entry.copies:
            return None
        over = [copy for copy in reversed(replicas) if copy.disk != self._moves_to]
        return max(over, key=lambda copy: copy.first > self.entry.needed, default=None)

    def _are_enough_complete(self) -> bool:
        return len(self.staying_complete) >= self.entry.copies

    def _is_complete(self, learner: Follower) -> bool:
        return learner.have >= max(self._base, self.acknowledged)

    # Acknowledging.

    def _settled(self) -> Actions:
        """Acknowledge the data held by every disk that is listed, or may be by now."""
        if not self.entry.may_acknowledge:
            return []
        place = min([self.synced, *(follower.have for follower in self._counted())])
        if place < self._base or place <= self.acknowledged:
            return []
        self.acknowledged = place
        return [Acknowledge(place)]

    def _counted(self) -> list[Follower]:
        counted = list(self._followers.values())
        if self._learner is not None and self._proposal is not None:
            disk = self._learner.copy.disk
            if self._proposal.entry.replica(disk) is not None:  # The swap may have won by now.
                counted.append(self._learner)
        return counted

    # Shipping.

    def _follower(self, disk: str) -> Follower | None:
        if self._learner is not None and self._learner.copy.disk == disk:
            return self._learner
        return self._followers.get(disk)

    def _all_followers(self) -> list[Follower]:
        learner = [self._learner] if self._learner is not None else []
        return [*self._followers.values(), *learner]

    def _stands(self, follower: Follower, standing: ReplicaState) -> Actions:
        """Continue where the logs part; the replica has synced everything before, and has promised.

        If a replica shares nothing with this log, nothing in it was acknowledged, because
        acknowledged data would be in both. If it is listed, having part of a log whose end was
        never acknowledged, it joins again.
        """
        if (strange := foreign(self.entry, standing.links)) is not None:
            return self._is_foreign(follower, strange)
        self.foreign_disks.pop(follower.copy.disk, None)
        follower.sent = follower.given = follower.instead_of = None
        follower.damage = 0
        if self._is_older(follower, standing):
            self._older.add(follower.copy.disk)
            follower.at = None
            return self._proposed()
        follower.at = self.chain.agreement(standing.links)
        if follower.at is None and follower is not self._learner:
            return self.silent(follower.copy.disk)
        begin = self._copy_begins()
        # A joining replica is given the log from `begin` on, not all missing data; but an eligible
        # replica keeps the data that it may have to take over with.
        disk = follower.copy.disk
        may_clear = follower is self._learner and disk not in {c.disk for c in self.entry.eligible}
        if follower.at is None or (may_clear and follower.at.segment + 1 < begin):
            follower.at = Place(begin, 0)
            follower.instead_of = standing.links
            return self._ship(follower)
        return self._has(follower, Have(standing.epoch, follower.at, standing.links[0].number))

    def _is_older(self, follower: Follower, standing: ReplicaState) -> bool:
        """Return whether a disk lacks the entry's mark, or a segment that the entry lists.

        A replica gets older segments last, so it may lack them and have the mark. It drops only
        segments before `needed`. What counts is the list at the beginning of the epoch: an answer
        may be from before the list was changed within the epoch.
        """
        if follower.copy.disk not in {copy.disk for copy in self.entry.copies_known}:
            return False
        chain, first = Chain(standing.links), max(follower.copy.first, self.entry.needed)
        return chain.first > first or lacks(chain, self.entry.mark)

    def _is_foreign(self, follower: Follower, strange: Link) -> Actions:
        """Stop serving if a listed disk has another history; bar other such disks from joining."""
        disk, entry = follower.copy.disk, self.entry
        if disk in {copy.disk for copy in entry.copies_known}:
            return self._step_down(
                f"disk {disk} of pump {follower.copy.pump} has segment {strange.number} of epoch"
                f" {strange.epoch} (id {strange.epoch_id:06x}), which is of another history than"
                f" epoch {entry.epoch} (id {entry.id:06x}) in etcd"
            )
        self.foreign_disks[disk] = strange
        if self._proposal is None or self._proposal.entry.replica(disk) is None:
            self._learner = None
        return self._proposed()

    def _is_damaged(self, follower: Follower, answer: Damaged) -> Actions:
        disk = follower.copy.disk
        if answer.damage == self._repaired.get(disk):
            return []
        known = self._damaged.get(disk)
        if known is None or known[0] != answer.damage:
            self._damaged[disk] = (answer.damage, self.entry.epoch)
        follower.sent = follower.given = follower.instead_of = follower.at = None
        follower.have = _NOTHING
        if follower is self._learner and self._may_reinitialise(disk):
            follower.at, follower.damage = Place(self._copy_begins(), 0), answer.damage
            return self._ship(follower)
        return self._proposed()

    def _may_reinitialise(self, disk: str) -> bool:
        copies = (*self.entry.replicas, *self.entry.eligible)
        is_listed = any(copy.disk == disk for copy in copies)
        return not is_listed and self._damaged[disk][1] < self.entry.epoch

    def _copy_begins(self) -> int:
        return self.chain.last_with_frames()

    def _has(self, follower: Follower, have: Have) -> Actions:
        if have.place >= follower.have:
            follower.have, follower.first = have.place, have.first
        elif have.place.segment == follower.first == have.first + 1:  # The answer to a Prepend.
            follower.first, follower.given = have.first, None
        if follower.at is None or have.place > follower.at:
            link = self.chain.find(have.place.segment)
            if link is not None:
                follower.at = Place(link.number, min(link.end, have.place.offset))
        if follower.sent is not None and have.place >= follower.sent:
            follower.sent = follower.instead_of = None
            follower.damage = 0
        return [*self._settled(), *self._proposed(), *self._ship(follower)]

    def _ship_all(self) -> Actions:
        return [action for each in self._all_followers() for action in self._ship(each)]

    def _ship(self, follower: Follower) -> Actions:
        if follower.sent is not None or follower.at is None:
            return []
        segment, offset = follower.at
        if segment < self.chain.first:  # Purged by now: ask for its position again.
            follower.at = None
            return [Send(follower.copy, Ask(self.entry.epoch))]
        link = self.chain.find(segment)
        if link is not None and offset >= link.end:
            link, offset = self.chain.find(segment + 1), 0
        if link is None:
            return self._ship_older(follower)
        end = min(link.end, offset + self._piece_bytes_max) if offset else BEGIN
        follower.sent = Place(link.number, end)
        request = Append(
            *(self.entry.epoch, link.number, link.epoch, offset, end),
            previous=self.chain.find(link.number - 1) if offset == 0 else None,
            instead_of=follower.instead_of if offset == 0 else None,
            needed=self.entry.needed,
            damage=follower.damage if offset == 0 else 0,
            epoch_id=link.epoch_id,
        )
        return [Send(follower.copy, request)]

    def _ship_older(self, follower: Follower) -> Actions:
        if follower is self._learner or follower.first <= self.entry.needed:
            return []
        link = self.chain.find(follower.first - 1)
        if link is None or follower.given == link.number or follower.have == _NOTHING:
            return []
        follower.given = link.number
        return [Send(follower.copy, Prepend(self.entry.epoch, link))]

    def _step_down(self, why: str) -> Actions:
        self.is_over = True
        return [StepDown(why)]
