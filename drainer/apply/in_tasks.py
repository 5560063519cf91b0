"""Apply in tasks: the Spark task that made a batch's SQL also commits its partitions.

    Drainer                                   task
    a unit, to be kept ─────────────────────> fetches, compacts, cuts the SQL, keeps it
    <──── facts, the content, the last SQL
    begin: checkpoint and fences
    an order: the content, the passage ─────> phase after phase, each partition under its fence
    <──── committed, or the error
    the last SQL and the checkpoint

No statement of a partition passes through the Drainer. A batch with little SQL has no partitions:
its SQL comes back as the last one, and one transaction of the Drainer commits it with the
checkpoint, which is quicker. So do the statements that must run exactly once: those of tables
without a row key, and those of a batch in which a table's version changes.

**Several batches at once.** A batch begins while earlier ones are in progress, in commit order, if
it shares no key value with them (`drainer.apply.admission`); `Pipeline` decides that. They end in
commit order, each with its checkpoint. Their fences have separate numbers. After a restart this
does not apply before the repair is complete: the downstream may then hold values between those of
the beginning and the end of the repaired batch, which are not among its digests.

If a task is lost, or silent for `SILENT_S`, another task makes the same SQL and gets the same
order; the fences make that safe (`drainer.sinks.mysql.side_connections`). The first answer counts.
The content of the partitions proves that both tasks made the same SQL.

After a restart, the upserts up to the batch in progress are the displacing ones, and its partitions
are all committed again. The Drainer could compare the content of the fences, as it does for the
partitions that it commits. If they differed, the tasks would have to make the SQL a second time,
which costs more than the comparison saves.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from functools import partial
from itertools import count
from typing import Any

from drainer.apply.batches import FetchBatch, Generation, RowBatch
from drainer.apply.strategies import Begins, Parallel, Prepared
from drainer.sinks.checkpoint import Checkpoint
from drainer.sinks.opening import SinkThread
from drainer.sinks.protocol import PartitionedSink
from drainer.sinks.task_orders import Order, outcome_of
from drainer.spark.dispatcher import Task, TaskLost
from drainer.task.row_fetch import Cut
from penstock.codes import Code
from penstock.errors import Malformed, NeedsOperator

log = logging.getLogger(__name__)

SILENT_S = 60.0
"""How long an order may take before another task gets it, too."""
_LOSSES_MAX = 4
_PHASES = 2


class InTasks(Parallel):
    """As `Parallel`, and tasks commit the partitions of batches whose rows they fetch."""

    def __init__(
        self,
        generation: Generation,
        sink: PartitionedSink,
        thread: SinkThread,
        *,
        connections: int,
        start: Checkpoint,
        silent_s: float = SILENT_S,
    ) -> None:
        super().__init__(generation, sink, thread, connections=connections, start=start)
        self._silent_s = silent_s
        self._slots: set[int] = set()
        """The ranges of fences in use."""

    async def prepare(self, batch: RowBatch) -> Prepared | Begins:
        if not isinstance(batch, FetchBatch):
            return await super().prepare(batch)
        is_partial = self.is_partial
        if is_partial:
            batch = batch.displacing()
        cut, task = await batch.cut(self._generation, self._connections)
        begin = partial(self._begin, batch, cut, task)
        return partial(_alone, begin) if is_partial else Begins(cut.touched, begin)

    async def _begin(
        self, batch: FetchBatch, cut: Cut, task: Task, checkpoint: Checkpoint
    ) -> Prepared:
        took_s: list[float] = []
        if cut.count:
            slot = next(number for number in count() if number not in self._slots)
            self._slots.add(slot)
            first = slot * _PHASES * self._connections
            passage = await self._thread.call(
                lambda: self._sink.begin_partitions(
                    range(first, first + cut.count), checkpoint, self._start
                )
            )
            order = Order(cut.content, passage)
            took_s = await _Ordering(self._generation, batch, order, self._connections).done(
                task, self._silent_s
            )
            self._slots.discard(slot)
        return partial(self._end, cut.last, took_s)

    async def _end(self, last: list[bytes], took_s: list[float], checkpoint: Checkpoint) -> None:
        await self._thread.call(lambda: self._sink.apply(last, checkpoint))
        self._committed_ts = checkpoint.commit_ts
        self.partitions_s = tuple(took_s)


async def _alone(
    begin: Callable[[Checkpoint], Coroutine[Any, Any, Prepared]], checkpoint: Checkpoint
) -> None:
    end = await begin(checkpoint)
    await end(checkpoint)


class _Ordering:
    """One order, given to task after task until one has obeyed it."""

    def __init__(
        self, generation: Generation, batch: FetchBatch, order: Order, connections: int
    ) -> None:
        self._generation = generation
        self._batch = batch
        self._order = order
        self._connections = connections
        self._asked: list[Task] = []

    async def done(self, task: Task, silent_s: float) -> list[float]:
        """Return the seconds of each partition; raise the error that a task reports."""
        dispatcher, losses = self._generation.dispatcher, 0
        attempts = {asyncio.create_task(self._attempt(task))}
        try:
            while True:
                answered, attempts = await asyncio.wait(
                    attempts, timeout=silent_s, return_when=asyncio.FIRST_COMPLETED
                )
                for attempt in answered:
                    if (took_s := attempt.result()) is not None:
                        return took_s
                    losses += 1
                    if losses >= _LOSSES_MAX:
                        raise self._lost_again(losses)
                if not attempts or (not answered and dispatcher.tasks > len(attempts)):
                    attempts.add(asyncio.create_task(self._attempt(None)))
        finally:
            for attempt in attempts:
                attempt.cancel()

    async def _attempt(self, task: Task | None) -> list[float] | None:
        """Order one task; None if it is lost, or has lost the SQL."""
        if task is None:
            cut, task = await self._batch.cut(
                self._generation, self._connections, tuple(self._asked)
            )
            if cut.content != self._order.content:
                raise Malformed(
                    f"two Spark tasks made different SQL of the batch up to"
                    f" {self._order.passage.ts}",
                    "Pumps, Drainer and Spark tasks must run compatible versions",
                    Code.SPARK_VERSION,
                )
            log.warning(
                "Spark task %d commits the batch up to %d in the place of another",
                task.partition, self._order.passage.ts,
            )  # fmt: skip
        self._asked.append(task)
        try:
            answer = await self._generation.dispatcher.order(task, self._order.encode())
        except TaskLost:
            return None
        return outcome_of(answer, task.partition)

    def _lost_again(self, losses: int) -> NeedsOperator:
        return NeedsOperator(
            f"{losses} Spark tasks were lost while they committed the batch up to"
            f" {self._order.passage.ts}",
            "see spark.log in the data-dir and the executors' logs: usually an executor without"
            " memory",
            Code.SPARK_TASK,
        )
