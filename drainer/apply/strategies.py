"""Strategies: how a batch becomes changes downstream; `drainer.apply.statements` has the third.

**Strategy `merge`** applies the last change of every row. Mode `snapshot` (`Snapshot`) uses one
transaction with the checkpoint. The downstream steps from one real state of the upstream to the
next, so a crash leaves one or the other and needs no repair. A Drainer in another mode or strategy
may have left parts of a batch. Until that batch's end is passed, upserts are the *displacing* ones
of a large transaction's slices. A row that such an upsert removes, because it has the unique value
too early, belongs to the same batch and is still to be written (`is_partial`).

Mode `parallel` (`Parallel`) uses partitions that commit concurrently.

    units' SQL ──> deletes of tables with further unique keys ──> partitions, phase 1
                   all other deletes, all upserts ──────────────> partitions, phase 2
                   tables without row key ──────────────────────> last, with the checkpoint

A row of a table without further unique keys occurs once in a batch. Nothing orders its statements,
and one phase is enough. If rows can conflict, all deletes come before all upserts, in whatever
partition; then no upsert meets another row, just as in one transaction.

The downstream is between two states while a batch is applied, and after a crash until the batch's
end is passed. The checkpoint records this, and a start repairs as above.
`drainer.sinks.mysql.side_connections` describes how fences record the partitions that were
committed. They are valid only if the batch is cut at the same place again, which the planner
ensures.

**Strategy `events`** emits every change in commit order, as messages of the sink's encoder.

    batch ──> units, each a run of transactions, or a unit to fetch ──> tasks: decode, encode
                                                    ──> messages, in order
                                                    sink: stores them, with the checkpoint

Nothing is compacted, and nothing is applied twice: the sink stores the checkpoint together with the
messages, so a crash leaves both or neither. A large transaction is written slice by slice.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from functools import partial
from typing import Any

from drainer.apply.batches import Generation, HeldBatch, RowBatch
from drainer.sinks.checkpoint import Checkpoint
from drainer.sinks.opening import SinkThread
from drainer.sinks.protocol import EventSink, PartitionedSink, TableSink
from drainer.spark.dispatcher import Dispatcher
from drainer.task.events.messages import Messages
from drainer.task.partitions import Partitions, arranged
from drainer.task.sql.digests import Digests
from drainer.task.work_unit import Statements

Prepared = Callable[[Checkpoint], Coroutine[Any, Any, None]]
"""Writes one prepared batch and the checkpoint downstream; called once.

It returns when both are stored. It raises errors that stop the Drainer. A discarded one leaves the
downstream unchanged.
"""


@dataclass(frozen=True, slots=True)
class Begins:
    """A prepared batch that may begin before the batch before it has ended; the keys it touches.

    `begin` is called once, in commit order, while no earlier batch in progress shares a key value.
    Its result ends the batch.
    """

    touched: Digests
    begin: Callable[[Checkpoint], Coroutine[Any, Any, Prepared]]


class Strategy:
    """The way in which all batches of a Drainer's run are applied, one after another.

    A batch may be prepared while the previous batch is committed. Commits follow one another in
    commit order, with DDL steps between them that a strategy does not handle. Only a batch that
    `Begins` may be applied while others are.
    """

    missed_rows = 0
    """The number of updated or deleted rows that were missing downstream, as far as checked."""

    partitions_s: tuple[float, ...] = ()
    """The seconds that each partition of the last batch took, if it had any."""

    messages = 0
    """The number of messages made of changes; 0 if the strategy makes SQL."""

    message_bytes = 0
    """The total size of their values."""

    def __init__(self, start: Checkpoint) -> None:
        """`start` is the downstream's position."""
        self._start = start
        self._committed_ts = start.commit_ts

    @property
    def is_partial(self) -> bool:
        """True until every change that may be partly downstream is complete."""
        return self._committed_ts < self._start.applying_ts

    async def prepare(self, batch: RowBatch) -> Prepared | Begins:
        """Turn rows into SQL or messages.

        It does not touch the downstream, so it may be cancelled at any time.
        """
        raise NotImplementedError


class Snapshot(Strategy):
    """One transaction per batch; an upsert needs no existing row, so none counts as missing."""

    def __init__(
        self, generation: Generation, sink: TableSink, thread: SinkThread, start: Checkpoint
    ) -> None:
        """Only `thread` may call `sink`, which is at `start`."""
        self._generation = generation
        self._sink = sink
        self._thread = thread
        super().__init__(start)

    async def prepare(self, batch: RowBatch) -> Prepared:
        if self.is_partial:
            batch = batch.displacing()
        generating = self._generation.statements(batch)
        del batch  # The conversion to SQL decides how long the rows are needed.
        return partial(self._apply, await generating)

    async def _apply(self, statements: list[bytes], checkpoint: Checkpoint) -> None:
        await self._thread.call(lambda: self._sink.apply(statements, checkpoint))
        self._committed_ts = checkpoint.commit_ts


class Parallel(Strategy):
    """Partitions; an upsert needs no existing row, so none counts as missing."""

    def __init__(
        self,
        generation: Generation,
        sink: PartitionedSink,
        thread: SinkThread,
        *,
        connections: int,
        start: Checkpoint,
    ) -> None:
        """Only `thread` may call `sink`, which is at `start`."""
        self._generation = generation
        self._sink = sink
        self._thread = thread
        self._connections = connections
        super().__init__(start)

    async def prepare(self, batch: RowBatch) -> Prepared | Begins:
        again = batch if self.is_partial else None
        generating = batch.by_unit(self._generation)
        del batch  # The conversion to SQL decides how long the rows are needed.
        partitions = await asyncio.to_thread(self._cut, await generating)
        if again and not await self._thread.call(lambda: self._sink.has_begun(partitions)):
            made = await again.displacing().by_unit(self._generation)
            partitions = await asyncio.to_thread(self._cut, made)
        return partial(self._apply, partitions)

    async def _apply(self, partitions: Partitions, checkpoint: Checkpoint) -> None:
        took_s = await self._thread.call(
            lambda: self._sink.apply_partitions(partitions, checkpoint, self._start)
        )
        self._committed_ts = checkpoint.commit_ts
        self.partitions_s = tuple(took_s)

    def _cut(self, made: list[tuple[bool, Statements]]) -> Partitions:
        partitions = arranged(made, connections=self._connections)
        if partitions.phases:
            assert partitions.content, "it is computed here, where time does not matter"
        return partitions


class Events(Strategy):
    """Messages; it reads no row downstream, so it counts none as missing."""

    def __init__(
        self, dispatcher: Dispatcher, sink: EventSink, thread: SinkThread, *, parts: int
    ) -> None:
        """Only `thread` may call `sink`; a batch becomes at most `parts` units."""
        super().__init__(Checkpoint(0, 0))  # Nothing is ever partly downstream.
        self._dispatcher = dispatcher
        self._sink = sink
        self._thread = thread
        self._parts = parts

    async def prepare(self, batch: RowBatch) -> Prepared:
        making = self._messages(batch)
        del batch  # Its rows are needed only until they are in units.
        return partial(self._put, await making)

    async def of_slice(self, batch: HeldBatch) -> Messages:
        (made,) = await self._messages(batch)
        return made

    async def _messages(self, batch: RowBatch) -> list[Messages]:
        making = batch.messages(self._dispatcher, self._sink.encoding, self._parts)
        del batch
        made = await making
        self.messages += sum(map(len, made))
        self.message_bytes += sum(each.value_bytes for each in made)
        return made

    async def _put(self, messages: list[Messages], checkpoint: Checkpoint) -> None:
        await self._thread.call(lambda: self._sink.put(messages, checkpoint))
