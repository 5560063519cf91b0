"""Replica: decides how a replica of a log answers its primary's requests.

It accepts nothing of an epoch before the promised epoch, appends only where its log agrees with the
primary's, cuts data that the primary does not have, and reports data only after it is synced. It
parses nothing and knows no transactions.

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
"""

from __future__ import annotations

from penstock.log.segments import Place
from pump.replication.protocol.chain import Chain, Link
from pump.replication.protocol.messages import (
    Actions,
    Append,
    Ask,
    Clear,
    Cut,
    Damaged,
    DropBefore,
    Have,
    Prepend,
    Refusal,
    ReplicaState,
    Reply,
    Request,
    SetAside,
    Sync,
    Write,
    WriteBefore,
)


class Replica:
    """One replica of one log; create it again whenever its folder is opened.

    The returned actions are carried out in order, each before the next; when one fails, open the
    folder again.
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
        if self.damage and not self._reinitialises(request):
            return [Reply(Damaged(request.epoch, self.damage))]
        if isinstance(request, Append):
            return self._append(request)
        if isinstance(request, Prepend):
            return self._prepend(request)
        assert isinstance(request, Ask)
        return [self._standing(request.epoch)]

    def _is_fenced(self, epoch: int) -> bool:
        return epoch < self.promised

    def _reinitialises(self, request: Request) -> bool:
        if not isinstance(request, Append) or request.offset > 0:
            return False
        return self._is_this(request.damage)

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
        return self._sealed(request.previous, request.epoch)

    def _sealed(self, previous: Link, epoch: int) -> Actions | None:
        own = self.chain.find(previous.number)
        if not self._agrees(own, previous):
            return None
        return self._cut(Place(previous.number, previous.end), epoch)

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
