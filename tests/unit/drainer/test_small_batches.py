"""When a batch that is not full is cut: at once, or so that it is ready when a commit ends."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from drainer.apply.strategies import Prepared, Strategy
from drainer.planner import RowsStep
from drainer.sinks.checkpoint import Checkpoint
from tests.kit.fakes.bare_pipeline import START, bare_pipeline
from tests.kit.wait import turn, until

LONG_S = 1000.0


class Drain:
    """A pipeline whose commits end when they may, and a planner that has `rows` to be cut."""

    repeated = 0

    def __init__(self) -> None:
        self.rows = 0
        self.cuts = 0
        self.hurries = 0
        self.is_in_repair = False
        self.may_commit = asyncio.Event()
        self.arrived = asyncio.Event()
        strategy: Any = Strategy(START)
        strategy.prepare = self._prepare
        self.pipeline = bare_pipeline(self, strategy, arrived=self.arrived, hurry=self._hurry)

    def next_step(self) -> None:
        """All that came is in the open batch."""

    def cut(self) -> RowsStep | None:
        if not self.rows or self.is_in_repair:
            return None
        self.cuts += 1
        table: Any = SimpleNamespace(name="shop.t", kinds=b"", rows=())
        step = RowsStep(self.cuts, transactions=1, rows=self.rows, tables=[table])
        self.rows = 0
        return step

    def _hurry(self) -> None:
        self.hurries += 1

    async def _prepare(self, batch: Any) -> Prepared:
        async def commit(checkpoint: Checkpoint) -> None:
            await self.may_commit.wait()

        return commit

    async def arrive(self, rows: int) -> None:
        self.rows = rows
        self.arrived.set()
        for _ in range(20):
            await turn()


@pytest.mark.parametrize(
    ("commit_s", "rows", "is_cut"),
    [(LONG_S, 1, False), (LONG_S, 1000, True), (0.0, 1, True)],
    ids=["a long commit", "many rows", "a short commit"],
)
async def test_a_batch_is_cut_during_a_commit_only_if_it_would_not_wait(
    commit_s: float, rows: int, is_cut: bool
) -> None:
    drain = Drain()
    running = asyncio.create_task(drain.pipeline.run())
    await drain.arrive(1)
    assert drain.cuts == 1, "nothing is in progress"
    drain.pipeline.progress.commit_s = commit_s
    await drain.arrive(rows)
    assert drain.cuts == 1 + is_cut
    drain.may_commit.set()
    await until(lambda: drain.cuts == 2)
    await until(lambda: drain.pipeline.progress.checkpoint.commit_ts == 2)
    drain.pipeline.stop()
    await running


async def test_a_batch_in_repair_which_must_grow_asks_for_what_it_lacks() -> None:
    drain = Drain()
    drain.is_in_repair = True
    drain.may_commit.set()
    running = asyncio.create_task(drain.pipeline.run())
    for _ in range(20):
        await turn()
    before = drain.hurries
    await drain.arrive(1)
    assert drain.cuts == 0
    assert drain.hurries > before
    drain.is_in_repair = False
    await drain.arrive(2)
    await until(lambda: drain.pipeline.progress.checkpoint.commit_ts == 1)
    drain.pipeline.stop()
    await running
