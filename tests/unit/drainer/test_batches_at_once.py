"""Several batches at once: random batches with common keys end where they end one by one."""

import asyncio
import random
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from drainer.apply.strategies import Begins, Prepared, Strategy
from drainer.planner import RowsStep
from drainer.sinks.checkpoint import Checkpoint
from drainer.task.sql.digests import Digests
from tests.kit.fakes.bare_pipeline import START, bare_pipeline
from tests.kit.wait import turn
from tests.kit.workloads.changes import examples


class Slow(Strategy):
    """Batches that write their keys one after the other, with turns of the event loop between.

    A batch with an odd number of keys is a barrier, as a DDL is.
    """

    def __init__(self, batches: Sequence[Sequence[int]], seed: int, fails: int = 0) -> None:
        super().__init__(START)
        self.state: dict[int, int] = {}
        self.begun: list[int] = []
        self.ended: list[int] = []
        self.most = 0
        self._batches = batches
        self._random = random.Random(seed)
        self._fails = fails
        self._under_way: set[int] = set()

    async def prepare(self, batch: Any) -> Prepared | Begins:
        number = batch.batch_id
        keys = self._batches[number - 1]
        await self._pause()

        async def begin(checkpoint: Checkpoint) -> Prepared:
            for other in self._under_way:
                assert not {*keys} & {*self._batches[other - 1]}, (number, other)
            self.begun.append(number)
            self._under_way.add(number)
            self.most = max(self.most, len(self._under_way))
            for key in keys:
                await self._pause()
                if number == self._fails:
                    raise RuntimeError("the downstream refused it")
                self.state[key] = number
            return end

        async def end(checkpoint: Checkpoint) -> None:
            self.ended.append(checkpoint.commit_ts)
            self._under_way.discard(number)

        async def whole(checkpoint: Checkpoint) -> None:
            assert not self._under_way
            await (await begin(checkpoint))(checkpoint)

        if len(keys) % 2:
            return whole
        return Begins(Digests({1: 2}, np.array(sorted({*keys}), np.uint64)), begin)

    async def _pause(self) -> None:
        for _ in range(self._random.randint(0, 6)):
            await turn()


async def run(strategy: Slow, count: int) -> None:
    steps = [RowsStep(ts, transactions=1, rows=1) for ts in range(count, 0, -1)]

    planner: Any = SimpleNamespace(
        next_step=lambda: steps.pop() if steps else None, rows=0, cut=lambda: None, repeated=0
    )
    fetching = SimpleNamespace(batches_max=4)
    pipeline = bare_pipeline(planner, strategy, arrived=asyncio.Event(), fetching=fetching)
    running = asyncio.create_task(pipeline.run())
    while not running.done() and pipeline.progress.checkpoint.commit_ts < count:
        await turn()
    pipeline.stop()
    await running


BATCHES = st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=6), min_size=1, max_size=12)


@examples(60)
@given(batches=BATCHES, seed=st.integers(0, 1000))
def test_batches_that_share_no_key_are_applied_at_once_and_end_as_one_by_one(
    batches: list[list[int]], seed: int
) -> None:
    strategy = Slow(batches, seed)
    asyncio.run(run(strategy, len(batches)))
    expected = {key: number for number, keys in enumerate(batches, 1) for key in keys}
    assert strategy.state == expected
    assert strategy.begun == strategy.ended == list(range(1, len(batches) + 1))


async def test_as_many_batches_as_there_are_slots_are_under_way() -> None:
    strategy = Slow([(2 * n, 2 * n + 1) for n in range(10)], seed=1)
    await run(strategy, 10)
    assert strategy.most == 4


async def test_batches_of_one_key_are_applied_one_by_one() -> None:
    strategy = Slow([(n, 77) for n in range(10)], seed=1)
    await run(strategy, 10)
    assert strategy.most == 1


async def test_a_batch_that_fails_ends_the_run_after_the_batches_before_it() -> None:
    strategy = Slow([(2 * n, 2 * n + 1) for n in range(10)], seed=1, fails=3)
    with pytest.raises(RuntimeError, match="refused"):
        await run(strategy, 10)
    assert strategy.ended == [1, 2]


async def test_a_defect_in_the_admission_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> bool:
        raise RuntimeError("a defect")

    monkeypatch.setattr(Digests, "shares", broken)
    with pytest.raises(RuntimeError, match="a defect"):
        async with asyncio.timeout(60):  # A run that does not end would wait without a limit.
            await run(Slow([(2 * n, 2 * n + 1) for n in range(10)], seed=1), 10)
