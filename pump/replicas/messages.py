"""Messages between a primary and the replicas of its log, and the actions that either asks for.

                    Ask(epoch) ──────────────>
    primary         <────────────── Standing(links)          where the replica's log is
                    Append(bytes of one segment) ────>       written and synced, then
                    <────────────── Have(place, first)
                    Prepend(an older segment) ───────>       written and synced, then
                    <────────────── Have(place, first)
                    <────────────── Refusal(promised)        to anything of an earlier epoch
                    <────────────── Damaged(damage)          to an Ask, instead of a Standing

The bytes of an Append or a Prepend travel beside it: the core looks at places only.
"""

from __future__ import annotations

from typing import NamedTuple

from penstock.cluster.log_entry import Copy, LogEntry
from penstock.log.segments import Place
from pump.replicas.chain import Link


class Ask(NamedTuple):
    """Accept nothing of an earlier epoch from now on, and report the position of the log."""

    epoch: int
    takes_damaged: bool = True
    """False for the primary of an older Penstock, which does not know that answer."""


class Append(NamedTuple):
    """Bytes of one segment, from `offset` on; bytes from 0 start with its header."""

    epoch: int
    segment: int
    segment_epoch: int
    offset: int
    end: int
    previous: Link | None
    """With offset 0: the segment before, up to where it counts; None at the log's start."""
    instead_of: tuple[Link, ...] | None
    """With offset 0: start a replica here, if the existing log is still this log."""
    needed: int
    """Earlier segments may go."""
    damage: int = 0
    """With offset 0: start a replica here, if the existing replica still has this damage."""
    epoch_id: int = 0
    """The id of `segment_epoch`."""

    def is_of(self, link: Link) -> bool:
        return link.is_same(Link(self.segment, self.segment_epoch, 0, self.epoch_id))


class Prepend(NamedTuple):
    """A whole segment, for a replica that starts with its successor."""

    epoch: int
    link: Link


class Standing(NamedTuple):
    """The log of a replica that has promised `epoch`; it need not agree with the primary's."""

    epoch: int
    links: tuple[Link, ...]


class Have(NamedTuple):
    """From segment `first` to `place`, the log of this epoch's primary is synced here."""

    epoch: int
    place: Place
    first: int


class Damaged(NamedTuple):
    """The replica cannot be opened, and no other disk has repaired it."""

    epoch: int
    damage: int
    """A number that no other damage has; it differs after each start."""


class Refusal(NamedTuple):
    """The request is of an earlier epoch than `promised`."""

    promised: int


Request = Ask | Append | Prepend
Answer = Standing | Have | Damaged | Refusal


class Reply(NamedTuple):
    """Answer the primary that asked."""

    answer: Answer


class Cut(NamedTuple):
    """Drop everything after `place`, the last segment first, durably."""

    place: Place


class Clear(NamedTuple):
    """Drop the whole replica, the last segment first, durably."""


class SetAside(NamedTuple):
    """Set the files of a damaged replica aside, and start an empty one, durably."""


class Write(NamedTuple):
    """Write the request's bytes, from `offset` of `segment` on; from 0 on, create it."""

    segment: int
    epoch: int
    offset: int
    epoch_id: int = 0


class WriteBefore(NamedTuple):
    """Write the request's whole segment, durably, before the first segment."""

    link: Link


class Sync(NamedTuple):
    """Sync everything that was written."""


class DropBefore(NamedTuple):
    """Drop the segments before `segment`, oldest first."""

    segment: int


class Begin(NamedTuple):
    """Seal the live segment at its end, and start segment `number` of `epoch`, durably."""

    number: int
    epoch: int
    epoch_id: int = 0


class Send(NamedTuple):
    """Send a request, with the bytes that it is about."""

    to: Copy
    request: Request


class Acknowledge(NamedTuple):
    """Everything before `place` may be answered, indexed and streamed."""

    place: Place


class Swap(NamedTuple):
    """Ask etcd to put `entry`, if the key is still at `revision`."""

    revision: int
    entry: LogEntry


class ReadEntry(NamedTuple):
    """Ask etcd for the entry, by a linearizable read."""


class StepDown(NamedTuple):
    """Stop serving: another primary exists, or may exist."""

    why: str


Action = (
    Reply
    | Cut
    | Clear
    | SetAside
    | Write
    | WriteBefore
    | Sync
    | DropBefore
    | Begin
    | Send
    | Acknowledge
    | Swap
    | ReadEntry
    | StepDown
)
Actions = list[Action]
