"""Claim: how a disk becomes the primary of a log, at each start and at a failover.

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
from enum import Enum
from typing import NamedTuple

from penstock.cluster.log_entry import Copy, LogEntry
from pump.replication.protocol.chain import foreign
from pump.replication.protocol.messages import Actions, ReadEntry, Swap
from pump.replication.protocol.replica import Replica


class Fate(Enum):
    """The outcome of a proposal, as a read entry shows it."""

    OPEN = "open"
    WON = "won"
    LOST = "lost"


class Proposal(NamedTuple):
    """An entry that is to follow the entry at `revision`."""

    revision: int
    entry: LogEntry

    def fate(self, entry: LogEntry, revision: int) -> Fate:
        """Return the fate that an entry and its revision show.

        Equality is enough: the proposed epoch was free at `revision`, only this disk proposes
        itself for it, and only one of its runs at a time knows that revision (`claim.py`).
        """
        if revision <= self.revision:
            return Fate.OPEN
        return Fate.WON if entry == self.entry else Fate.LOST


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
            return self._propose(entry, revision)
        fate = self._proposal.fate(entry, revision)
        if fate is Fate.OPEN:
            return [Swap(*self._proposal)]
        if fate is Fate.WON:
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

    def _propose(self, entry: LogEntry, revision: int) -> Actions:
        if not self._may_claim(entry):
            self.is_over = True
            return []
        self._proposal = Proposal(revision, self._claimed(entry))
        self._replica.promise(self._proposal.entry.epoch)
        return [Swap(*self._proposal)]

    def _may_claim(self, entry: LogEntry) -> bool:
        return entry.may_claim(self._copy.disk) and not self._is_foreign(entry)

    def _is_foreign(self, entry: LogEntry) -> bool:
        return foreign(entry, self._replica.chain.links) is not None

    def _claimed(self, entry: LogEntry) -> LogEntry:
        claimed = entry.claimed(self._copy)
        return claimed.with_ids() if self._gives_ids else replace(claimed, ids=())
