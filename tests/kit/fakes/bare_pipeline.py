"""A Drainer's pipeline between a planner and a strategy of a test; nothing else of it is real."""

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from drainer.apply.pipeline import Downstream, Pipeline, Progress
from drainer.apply.strategies import Strategy
from drainer.sinks.checkpoint import Checkpoint
from drainer.sinks.protocol import FileCounts

START = Checkpoint(0, 0)


def bare_pipeline(
    planner: Any,
    strategy: Strategy,
    *,
    arrived: asyncio.Event,
    hurry: Callable[[], None] = lambda: None,
    **options: Any,
) -> Pipeline:
    """`arrived` is set when the planner has something; `options` are the pipeline's."""

    async def call(function: Any) -> Any:
        return function()

    feed: Any = SimpleNamespace(arrived=arrived, hurry=hurry, take=lambda: None, participants=dict)
    sink: Any = SimpleNamespace(
        save_checkpoint=lambda checkpoint: None,
        look_at=lambda catalog: None,
        file_counts=FileCounts(),
    )
    thread: Any = SimpleNamespace(call=call)
    follower: Any = SimpleNamespace(schemas=SimpleNamespace(version=1, ahead={}))
    large: Any = None
    downstream = Downstream(strategy=strategy, large=large, sink=sink, thread=thread)
    return Pipeline(feed, planner, follower, downstream, Progress(START), **options)
