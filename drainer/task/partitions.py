"""Partitions: the SQL of a batch, cut into transactions that commit concurrently.

    units' SQL ──> deletes of tables with further unique keys ──> partitions, phase 1
                   all other deletes, all upserts ──────────────> partitions, phase 2
                   tables without row key ──────────────────────> last, with the checkpoint

`drainer.apply.strategies` states why this is right. The cut depends only on the SQL and on the
number of connections, so that two tasks cut the same batch in the same way.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, count

from drainer.task.work_unit import Statements

Partition = list[bytes]
"""SQL statements of one downstream transaction."""


@dataclass(frozen=True)
class Partitions:
    """Consecutive phases of partitions that may run concurrently; then the `last` one.

    While its phase is in progress, a partition may run any number of times, because its statements
    state the final rows and not changes to them. `last` must run once.
    """

    phases: list[list[Partition]]
    last: Partition

    @cached_property
    def content(self) -> str:
        """A hex id unique to this batch and to the way it is cut."""
        digest = hashlib.blake2b(digest_size=16)
        for number, statements in self.numbered():
            digest.update(b"%d %d\n" % (number, len(statements)))
            for statement in statements:
                digest.update(b"%d\n" % len(statement))
                digest.update(statement)
        return digest.hexdigest()

    @property
    def count(self) -> int:
        return sum(map(len, self.phases))

    def numbered(self) -> Iterator[tuple[int, Partition]]:
        return zip(count(), (each for phase in self.phases for each in phase), strict=False)


def cut_by_bytes(statements: Sequence[bytes], parts_max: int, bytes_min: int) -> list[Partition]:
    """Return runs of about equal size, `parts_max` at most, with `bytes_min` at least on average.

    Runs keep neighbouring keys together, so that each connection walks indexes in their order.
    """
    total = sum(map(len, statements))
    if not statements:
        return []
    parts = max(1, min(parts_max, total // bytes_min, len(statements)))
    cuts: list[Partition] = [[] for _ in range(parts)]
    ends = accumulate(map(len, statements))
    for statement, end in zip(statements, ends, strict=True):
        # A large statement goes to the run that contains its middle.
        middle = end - len(statement) // 2
        cuts[min(parts - 1, middle * parts // max(1, total))].append(statement)
    return [each for each in cuts if each]


PARTITION_BYTES_MIN = 128 << 10
"""A smaller partition costs more time for its own commit and fence than it saves."""


def arranged(
    made: Iterable[tuple[bool, Statements]], *, connections: int, bytes_min: int | None = None
) -> Partitions:
    """Return the SQL of all units in partitions, each with at least `bytes_min` of it.

    SQL that fits into one partition is committed with the checkpoint. The bool with a unit says
    that its rows can conflict with others.
    """
    before: list[bytes] = []
    rows: list[bytes] = []
    ordered: list[bytes] = []
    upserts: list[bytes] = []
    for meets, each in made:
        (before if meets else rows).extend(each.deletes)
        upserts += each.upserts
        ordered += each.ordered
    rows += upserts
    bytes_min = PARTITION_BYTES_MIN if bytes_min is None else bytes_min
    if sum(map(len, before)) + sum(map(len, rows)) < 2 * bytes_min or connections == 1:
        return Partitions([], before + rows + ordered)
    phases = [cut_by_bytes(each, connections, bytes_min) for each in (before, rows)]
    return Partitions([phase for phase in phases if phase], ordered)
