"""`merge` in `snapshot` mode: the last writer of every row, one transaction with the checkpoint.

The downstream steps from one state that the upstream really had to the next, so a crash leaves
one or the other and needs no repair.

A Drainer that worked in another mode or strategy may have left a batch in parts. Until its end is
passed, upserts are the *displacing* ones of a huge transaction's slices: what they remove, because
it has their unique value too early, is a row of the same batch, which is still to be written.
"""

from __future__ import annotations

from dataclasses import replace

from drainer.sinks.checkpoint import Checkpoint
from drainer.sinks.protocol import Sink
from drainer.sinks.thread import SinkThread
from drainer.spark.fetch_batch import FetchBatch
from drainer.spark.generation import Generation
from drainer.strategies import Prepared
from drainer.task.work_unit import Batch


class Mending:
    """Marks batches as displacing as long as a batch may be downstream in parts."""

    def __init__(self, start: Checkpoint) -> None:
        """Begin with the downstream at `start`."""
        self._through_ts = start.applying_ts
        self.committed_ts = start.commit_ts

    @property
    def is_due(self) -> bool:
        """True until all that may be there in parts is there."""
        return self.committed_ts < self._through_ts

    def marked(self, batch: Batch | FetchBatch) -> Batch | FetchBatch:
        """Return the batch as it is to be applied."""
        return replace(batch, displaces=True) if self.is_due else batch


class Snapshot:
    """See `Strategy`; an upsert needs no row to be there, so none is missed."""

    missed_rows = 0
    partitions_s: tuple[float, ...] = ()

    def __init__(
        self, generation: Generation, sink: Sink, thread: SinkThread, start: Checkpoint
    ) -> None:
        """Wire the way; `thread` is the one that may call `sink`, which is at `start`."""
        self._generation = generation
        self._sink = sink
        self._thread = thread
        self._mending = Mending(start)

    async def prepare(self, batch: Batch | FetchBatch) -> Prepared:
        """Compact here, let the tasks write the SQL."""
        generating = self._generation.statements(self._mending.marked(batch))
        del batch  # Whoever turns rows into SQL also decides how long they are needed.
        return _Statements(await generating, self)

    async def apply(self, statements: list[bytes], checkpoint: Checkpoint) -> None:
        """Run all statements in one transaction that stores the checkpoint."""
        await self._thread.call(lambda: self._sink.apply(statements, checkpoint))
        self._mending.committed_ts = checkpoint.commit_ts


class _Statements:
    def __init__(self, statements: list[bytes], way: Snapshot) -> None:
        self._statements = statements
        self._way = way

    async def commit(self, checkpoint: Checkpoint) -> None:
        """Hand over what is to be run, and keep nothing."""
        statements, self._statements = self._statements, []
        await self._way.apply(statements, checkpoint)
