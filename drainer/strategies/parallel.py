"""`merge` in `parallel` mode: the last writer of every row, in partitions that commit at once.

    units' SQL ──> deletes of tables with further unique keys ──> partitions, phase 1
                   all other deletes, all upserts ──────────────> partitions, phase 2
                   tables without row key ──────────────────────> last, with the checkpoint

A row of a table without further unique keys occurs once in a batch, so nothing orders its
statements, and one phase is enough. Where rows can be in one another's way, all deletes come before
all upserts, in whatever partition; then no upsert meets another row, as in one transaction.

The downstream is between two states while a batch is under way, and after a crash until its end is
passed: the checkpoint says so. How a start goes on is in `drainer.strategies.snapshot`; what the
fences say of partitions that are in already, in `drainer.sinks.mysql.batch_partitions`. For them to
be believed the batch must be cut where it was, which the planner does.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from drainer.sinks.checkpoint import Checkpoint
from drainer.sinks.protocol import PartitionedSink, Partitions, cut_by_bytes
from drainer.sinks.thread import SinkThread
from drainer.spark.fetch_batch import FetchBatch
from drainer.spark.generation import Generation
from drainer.strategies import Prepared
from drainer.strategies.snapshot import Mending
from drainer.task.work_unit import Batch, Statements

PARTITION_BYTES_MIN = 128 << 10
"""Less SQL than this costs less time than a commit and a fence of its own."""


class Parallel:
    """See `Strategy`; an upsert needs no row to be there, so none is missed."""

    missed_rows = 0

    def __init__(
        self,
        generation: Generation,
        sink: PartitionedSink,
        thread: SinkThread,
        *,
        connections: int,
        start: Checkpoint,
    ) -> None:
        """Wire the way; `thread` is the one that may call `sink`, which is at `start`."""
        self._generation = generation
        self._sink = sink
        self._thread = thread
        self._connections = connections
        self._start = start
        self._mending = Mending(start)
        self.partitions_s: tuple[float, ...] = ()

    async def prepare(self, batch: Batch | FetchBatch) -> Prepared:
        """Compact here, let the tasks write the SQL, cut it into partitions."""
        if self._mending.is_due:
            return await self._resumed(batch)
        generating = self._generation.by_unit(batch)
        del batch  # Whoever turns rows into SQL also decides how long they are needed.
        made = await generating
        return _Ready(await asyncio.to_thread(self._cut, made), self)

    async def _resumed(self, batch: Batch | FetchBatch) -> Prepared:
        """Go on with the batch that an earlier life began, or mend what it left."""
        made = await self._generation.by_unit(batch)
        partitions = await asyncio.to_thread(self._cut, made)
        if await self._thread.call(lambda: self._sink.has_begun(partitions)):
            return _Ready(partitions, self)
        made = await self._generation.by_unit(self._mending.marked(batch))
        return _Ready(await asyncio.to_thread(self._cut, made), self)

    async def apply(self, partitions: Partitions, checkpoint: Checkpoint) -> None:
        """Bring all partitions and the checkpoint into the downstream."""
        took_s = await self._thread.call(
            lambda: self._sink.apply_partitions(partitions, checkpoint, self._start)
        )
        self._mending.committed_ts = checkpoint.commit_ts
        self.partitions_s = tuple(took_s)

    def _cut(self, made: list[tuple[bool, Statements]]) -> Partitions:
        partitions = arranged(made, connections=self._connections, bytes_min=PARTITION_BYTES_MIN)
        if partitions.phases:
            assert partitions.content, "it is computed here, where time does not matter"
        return partitions


def arranged(
    made: Iterable[tuple[bool, Statements]], *, connections: int, bytes_min: int
) -> Partitions:
    """Return the SQL of all units in partitions, each with `bytes_min` of it at least.

    What fits into one partition goes with the checkpoint. The bool with a unit says that its rows
    can be in one another's way.
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
    if sum(map(len, before)) + sum(map(len, rows)) < 2 * bytes_min or connections == 1:
        return Partitions([], before + rows + ordered)
    phases = [cut_by_bytes(each, connections, bytes_min) for each in (before, rows)]
    return Partitions([phase for phase in phases if phase], ordered)


class _Ready:
    def __init__(self, partitions: Partitions, way: Parallel) -> None:
        self._partitions: Partitions | None = partitions
        self._way = way

    async def commit(self, checkpoint: Checkpoint) -> None:
        """Hand over what is to be run, and keep nothing."""
        partitions, self._partitions = self._partitions, None
        assert partitions is not None, "a batch is committed once"
        await self._way.apply(partitions, checkpoint)
