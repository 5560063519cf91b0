"""Strategies: how a batch becomes changes downstream; the `Strategy` promise, a module for each.

`merge` and `statements` write tables, `events` hands over every change as messages.
"""

from __future__ import annotations

from typing import Protocol

from drainer.sinks.checkpoint import Checkpoint
from drainer.spark.row_batches import RowBatch

__all__ = ["Prepared", "Strategy"]


class Prepared(Protocol):
    """One batch, ready to be committed; one that is dropped has changed nothing downstream."""

    async def commit(self, checkpoint: Checkpoint) -> None:
        """Bring the batch and its `checkpoint` into the downstream; called once.

        Returns when both are there, and lets go of what the batch became. Raises what stops the
        Drainer.
        """
        ...


class Strategy(Protocol):
    """How all batches of a Drainer's run are applied, one after another.

    `prepare` of a batch may run while the batch before is committed; commits follow one another
    in commit order, with DDL steps between them that are no strategy's business.
    """

    missed_rows: int
    """How many updated or deleted rows were not downstream, as far as the strategy looks."""

    partitions_s: tuple[float, ...]
    """How long each partition of the last batch took, where it had any."""

    messages: int
    """How many messages have become of changes; 0 where SQL does."""

    message_bytes: int
    """What their values add up to."""

    async def prepare(self, batch: RowBatch) -> Prepared:
        """Turn rows into SQL or messages.

        It touches nothing downstream, so it may be cancelled at any moment.
        """
        ...
