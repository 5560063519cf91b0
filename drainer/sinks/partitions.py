"""A merged batch in partitions: each is a transaction of its own, on a connection of its own.

begin      the checkpoint says that the batch may be there in parts
phase 1    | deletes | deletes |           of tables with further unique keys
-------    a barrier
phase 2    | rows | rows | rows | rows |   everything else
-------    a barrier
last       tables without row key, and the checkpoint
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, count
from typing import Protocol, runtime_checkable

from drainer.sinks.checkpoint import Checkpoint
from penstock.failpoints import point

partition_committed = point("drainer.partition_committed")

Partition = list[bytes]
"""SQL statements that reach the downstream in one transaction."""


@dataclass(frozen=True)
class Partitions:
    """Phases, one after another, of partitions that may run at once; then the `last` one.

    It does not matter how often a partition is run while the batch is under way, as long as its
    phase is: its statements say how rows end, and not what happens to them. `last` must run once.
    """

    phases: list[list[Partition]]
    last: Partition

    @cached_property
    def content(self) -> str:
        """What tells this batch, cut in this way, from every other (hex)."""
        digest = hashlib.blake2b(digest_size=16)
        for number, statements in self.numbered():
            digest.update(b"%d %d\n" % (number, len(statements)))
            for statement in statements:
                digest.update(b"%d\n" % len(statement))
                digest.update(statement)
        return digest.hexdigest()

    @property
    def count(self) -> int:
        """How many partitions all phases have."""
        return sum(map(len, self.phases))

    def numbered(self) -> Iterator[tuple[int, Partition]]:
        """Yield all partitions with their numbers in the batch."""
        return zip(count(), (each for phase in self.phases for each in phase), strict=False)


@runtime_checkable
class PartitionedSink(Protocol):
    """A sink with connections enough to commit partitions at once."""

    def has_begun(self, partitions: Partitions) -> bool:
        """Tell whether this very batch is the last that was begun, maybe by an earlier life."""
        ...

    def apply_partitions(
        self, partitions: Partitions, checkpoint: Checkpoint, start: Checkpoint
    ) -> list[float]:
        """Run all phases, then the last partition with `checkpoint`; return each one's seconds.

        Before the first phase the stored checkpoint, or `start` where there is none, says that
        changes up to the new one may be there in parts. What a life before this one committed of
        the same batch, cut in the same way, is not run again. No partition of a Drainer that was
        replaced is committed after its successor's first checkpoint.
        """
        ...


def cut_by_bytes(statements: Sequence[bytes], parts_max: int, bytes_min: int) -> list[Partition]:
    """Return runs of about equal size, `parts_max` at most, with `bytes_min` at least on average.

    Runs, because neighbouring keys stay together, and each connection walks indexes in their order.
    """
    total = sum(map(len, statements))
    if not statements:
        return []
    parts = max(1, min(parts_max, total // bytes_min, len(statements)))
    cuts: list[Partition] = [[] for _ in range(parts)]
    ends = accumulate(map(len, statements))
    for statement, end in zip(statements, ends, strict=True):
        # By where its middle is, so that a large one goes where most of it belongs.
        middle = end - len(statement) // 2
        cuts[min(parts - 1, middle * parts // max(1, total))].append(statement)
    return [each for each in cuts if each]
