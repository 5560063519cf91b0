"""`merge` in `snapshot` mode: the last writer of every row, one transaction with the checkpoint.

The downstream steps from one state that the upstream really had to the next, so a crash leaves
one or the other and needs no repair.
"""

from __future__ import annotations

from drainer.apply.work import Batch
from drainer.generation import Generation
from drainer.sink_thread import SinkThread
from drainer.sinks import Checkpoint, Sink
from drainer.strategies import Prepared


class Snapshot:
    """See `Strategy`; an upsert needs no row to be there, so none is missed."""

    missed_rows = 0

    def __init__(self, generation: Generation, sink: Sink, thread: SinkThread) -> None:
        """Wire the way; `thread` is the one that may call `sink`."""
        self._generation = generation
        self._sink = sink
        self._thread = thread

    async def prepare(self, batch: Batch) -> Prepared:
        """Compact here, let the tasks write the SQL."""
        generating = self._generation.statements(batch)
        del batch  # Whoever turns rows into SQL also decides how long they are needed.
        return _Statements(await generating, self._sink, self._thread)


class _Statements:
    def __init__(self, statements: list[bytes], sink: Sink, thread: SinkThread) -> None:
        self._statements = statements
        self._sink = sink
        self._thread = thread

    async def commit(self, checkpoint: Checkpoint) -> None:
        """Run all statements in one transaction that stores the checkpoint."""
        statements, self._statements = self._statements, []
        await self._thread.call(lambda: self._sink.apply(statements, checkpoint))
