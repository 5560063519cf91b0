"""Proposal: a compare-and-swap of a log's entry, tracked until its outcome is known.

The answer "not swapped" and a missing answer are treated alike: the swap may have won, or may still
win, so the entry is read. While the entry is still at the swap's revision, the same swap is
requested once more; nothing else may be proposed until then.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from penstock.cluster.log_entry import LogEntry


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
