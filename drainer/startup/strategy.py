"""The strategy that the settings name."""

from __future__ import annotations

from drainer.settings.config import ApplyConfig
from drainer.sinks.checkpoint import Checkpoint
from drainer.sinks.protocol import PartitionedSink
from drainer.spark.generation import Generation
from drainer.startup.parts import Parts
from drainer.strategies import Strategy
from drainer.strategies.merge import Parallel, Snapshot
from drainer.strategies.statements import EachChange, Lanes
from penstock.errors import NeedsOperator


def strategy_of(config: ApplyConfig, parts: Parts, start: Checkpoint) -> Strategy:
    """Return the strategy, wired to the Drainer's tasks and downstream, which is at `start`.

    Raises `NeedsOperator` when the downstream cannot be written in that way.
    """
    if config.strategy == "statements":
        lanes = Lanes(
            workers=config.worker_count,
            txn_batch=config.txn_batch,
            dispatch=config.dispatch,
            safe_mode=config.safe_mode,
        )
        return EachChange(
            parts.coordinator,
            parts.sink,
            parts.thread,
            lanes=lanes,
            parts=parts.task_count,
            start=start,
        )
    generation = Generation(parts.coordinator, parts=parts.task_count, dialect=parts.sink.dialect)
    if config.mode == "snapshot":
        return Snapshot(generation, parts.sink, parts.thread, start)
    if not isinstance(parts.sink, PartitionedSink):
        raise NeedsOperator(
            "mode parallel needs a downstream that takes commits on several connections at once",
            hint="use mode snapshot for this downstream",
        )
    connections = config.connections
    return Parallel(generation, parts.sink, parts.thread, connections=connections, start=start)
