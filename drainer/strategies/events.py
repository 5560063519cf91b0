"""Strategy `events`: every change in commit order, as messages that the sink's encoder makes.

    batch ──> units, each a run of transactions ──> tasks: decode, encode ──> messages, in order
                                                    sink: stores them, with the checkpoint

Nothing is compacted, and nothing is applied twice: the sink stores the checkpoint together with the
messages, so a crash leaves both or neither. A large transaction is written slice by slice.
"""

from __future__ import annotations

import asyncio

from drainer.sinks.checkpoint import Checkpoint
from drainer.sinks.protocol import EventSink
from drainer.sinks.thread import SinkThread
from drainer.spark.dispatcher import Dispatcher
from drainer.spark.row_batches import HeldBatch, RowBatch
from drainer.strategies import Prepared
from drainer.task.events.event_unit import event_units
from drainer.task.events.messages import Messages


class Events:
    """See `Strategy`; it reads no row downstream, so it counts none as missing."""

    missed_rows = 0
    partitions_s: tuple[float, ...] = ()

    def __init__(
        self, dispatcher: Dispatcher, sink: EventSink, thread: SinkThread, *, parts: int
    ) -> None:
        """Only `thread` may call `sink`; a batch becomes `parts` units."""
        self._dispatcher = dispatcher
        self._sink = sink
        self._thread = thread
        self._parts = parts
        self.messages = self.message_bytes = 0

    async def prepare(self, batch: RowBatch) -> Prepared:
        assert isinstance(batch, HeldBatch), "with this strategy payloads come here"
        making = self._messages(batch)
        del batch  # Its rows are needed only until they are in units.
        return _ReadyMessages(await making, self)

    async def of_slice(self, batch: HeldBatch) -> Messages:
        (made,) = await self._messages(batch)
        return made

    async def _messages(self, batch: HeldBatch) -> list[Messages]:
        units, beginnings = await asyncio.to_thread(self._units, batch), batch.beginnings
        del batch
        answers = await self._dispatcher.run(units)
        made = [Messages.decode(each, beginnings) for each in answers]
        self.messages += sum(map(len, made))
        self.message_bytes += sum(len(each.joined()[0]) for each in made)
        return made

    def _units(self, batch: HeldBatch) -> list[bytes]:
        return [unit.encode() for unit in event_units(batch, self._sink.encoding, self._parts)]

    async def put(self, messages: list[Messages], checkpoint: Checkpoint) -> None:
        await self._thread.call(lambda: self._sink.put(messages, checkpoint))


class _ReadyMessages:
    def __init__(self, messages: list[Messages], strategy: Events) -> None:
        self._messages = messages
        self._strategy = strategy

    async def commit(self, checkpoint: Checkpoint) -> None:
        messages, self._messages = self._messages, []
        await self._strategy.put(messages, checkpoint)
