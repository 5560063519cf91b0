"""Strategies: how a batch becomes changes downstream; the `Strategy` promise, a module for each.

`merge` and `statements` write tables; `events` emits every change as a message.
"""

from __future__ import annotations

from typing import Protocol

from drainer.sinks.checkpoint import Checkpoint
from drainer.spark.row_batches import RowBatch

__all__ = ["Prepared", "Strategy"]


class Prepared(Protocol):
    """One batch, ready to be committed; discarding it leaves the downstream unchanged."""

    async def commit(self, checkpoint: Checkpoint) -> None:
        """Write the batch and its `checkpoint` downstream; called once.

        Returns when both are stored, and releases the batch's statements or messages. Raises errors
        that stop the Drainer.
        """
        ...


class Strategy(Protocol):
    """The way in which all batches of a Drainer's run are applied, one after another.

    A batch may be prepared while the previous batch is committed. Commits follow one another in
    commit order, with DDL steps between them that a strategy does not handle.
    """

    missed_rows: int
    """The number of updated or deleted rows that were missing downstream, as far as checked."""

    partitions_s: tuple[float, ...]
    """The seconds that each partition of the last batch took, if it had any."""

    messages: int
    """The number of messages made of changes; 0 if the strategy makes SQL."""

    message_bytes: int
    """The total size of their values."""

    async def prepare(self, batch: RowBatch) -> Prepared:
        """Turn rows into SQL or messages.

        It does not touch the downstream, so it may be cancelled at any time.
        """
        ...
