"""Admission: the batches that may be applied while earlier ones are still being applied.

A batch is admitted exactly if it conflicts with no earlier unfinished batch
(`drainer.task.sql.digests`). A batch whose digests are unknown conflicts with every other: until
its tasks have reported them, or for good if it is a barrier, such as a DDL.

    batch      1        2        3          4          5
    digests    a b      c        b d        barrier    e
    waits for  -        -        1          1 2 3      4

The relation between two batches is decided once, when the digests of both are known. So an earlier
batch that finishes admits others at no cost. Batches finish in any order; everything up to
`finished` is downstream and may be the checkpoint. This module is pure.
"""

from __future__ import annotations

from collections import deque

from drainer.task.sql.digests import Digests


class Admission:
    """The batches in progress, in commit order; numbers rise."""

    def __init__(self, finished: int = 0) -> None:
        """`finished` is the number of the last batch before the first one here."""
        self.finished = finished
        """The highest batch such that it and all before it are finished."""
        self._begun: deque[int] = deque()
        """The batches after `finished`."""
        self._waits: dict[int, set[int]] = {}
        """For each unfinished batch the earlier ones that it waits for."""
        self._known: dict[int, Digests] = {}

    def begin(self, number: int) -> None:
        """Add the next batch; it is a barrier until its digests are known."""
        assert number > (self._begun[-1] if self._begun else self.finished), "in commit order"
        self._begun.append(number)
        self._waits[number] = set(self._waits)

    def know(self, number: int, digests: Digests) -> None:
        """Record the digests of a batch; called once for a batch that is not a barrier."""
        for other, known in self._known.items():
            if not digests.shares(known):
                self._waits[max(number, other)].discard(min(number, other))
        self._known[number] = digests

    def admits(self, number: int) -> bool:
        """Return whether the batch may be applied now; once true, it stays true."""
        return not self._waits[number]

    def finish(self, number: int) -> None:
        """Remove an admitted batch, which is downstream now."""
        assert self.admits(number), "a batch that waits is not applied"
        del self._waits[number]
        self._known.pop(number, None)
        for waits in self._waits.values():
            waits.discard(number)
        while self._begun and self._begun[0] not in self._waits:
            self.finished = self._begun.popleft()
