"""The strategy that the settings name."""

from __future__ import annotations

from drainer.config import ApplyConfig
from drainer.generation import Generation
from drainer.parts import Parts
from drainer.strategies import Strategy
from drainer.strategies.snapshot import Snapshot


def strategy_of(config: ApplyConfig, parts: Parts) -> Strategy:
    """Return the strategy, wired to the Drainer's tasks and downstream."""
    assert (config.strategy, config.mode) == ("merge", "snapshot"), "the settings are checked"
    generation = Generation(parts.coordinator, parts=parts.task_count, dialect=parts.sink.dialect)
    return Snapshot(generation, parts.sink, parts.thread)
