"""The strategy that the settings name."""

from __future__ import annotations

from drainer.config import ApplyConfig
from drainer.generation import Generation
from drainer.parts import Parts
from drainer.sinks import Checkpoint
from drainer.strategies import Strategy
from drainer.strategies.snapshot import Snapshot
from drainer.strategies.statements import EachChange, Lanes
from penstock.errors import NeedsOperator


def strategy_of(config: ApplyConfig, parts: Parts, start: Checkpoint) -> Strategy:
    """Return the strategy, wired to the Drainer's tasks and downstream, which is at `start`.

    Raises `NeedsOperator` when it cannot go on from there.
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
    if start.is_between:
        raise NeedsOperator(
            f"changes up to {start.applying_ts} may be in the downstream in parts, behind the"
            f" checkpoint at {start.commit_ts}; strategy merge cannot go on from there",
            hint="start it with apply.strategy = statements until the checkpoint is past that",
        )
    assert (config.strategy, config.mode) == ("merge", "snapshot"), "the settings are checked"
    generation = Generation(parts.coordinator, parts=parts.task_count, dialect=parts.sink.dialect)
    return Snapshot(generation, parts.sink, parts.thread)
