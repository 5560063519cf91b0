"""Proposal: a compare-and-swap of a log's entry, followed until it is known what became of it.

An answer that says "not swapped" and one that never comes are the same here: the swap may have
won, or may yet win, so the entry is read. While it is still at the revision from which the swap
was to be made, the same swap is asked for once more; nothing else may be proposed until then.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from penstock.cluster.log_entry import LogEntry


class Fate(Enum):
    """What became of a proposal, as an entry shows that was read."""

    OPEN = "open"
    WON = "won"
    LOST = "lost"


class Proposal(NamedTuple):
    """An entry that is to follow the one at `revision`."""

    revision: int
    entry: LogEntry

    def fate(self, entry: LogEntry, revision: int) -> Fate:
        """Return what an entry and its revision say.

        That it is equal is enough: its epoch was free at `revision`, only this disk proposes itself
        for it, and of its runs only one at a time knows that revision (`claim.py`).
        """
        if revision <= self.revision:
            return Fate.OPEN
        return Fate.WON if entry == self.entry else Fate.LOST
