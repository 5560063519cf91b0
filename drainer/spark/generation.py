"""Turn a batch of rows into SQL: compaction here, the SQL itself in the Spark tasks."""

from __future__ import annotations

import asyncio

from drainer.spark.coordinator import Coordinator
from drainer.spark.fetch_batch import FetchBatch
from drainer.task.compaction import plan_units
from drainer.task.fetch_unit import Made
from drainer.task.sql.keys import apply_key, can_meet_others
from drainer.task.work_unit import Batch, Statements, in_order


class Generation:
    """The way of a batch through the tasks and back."""

    def __init__(self, coordinator: Coordinator, *, parts: int, dialect: str) -> None:
        """Prepare; each table of a batch is spread over at most `parts` units."""
        self._coordinator = coordinator
        self._parts = parts
        self._dialect = dialect

    async def statements(self, batch: Batch | FetchBatch) -> list[bytes]:
        """Return the batch's SQL in the order in which it is right."""
        return list(in_order(made for _, made in await self.by_unit(batch)))

    async def by_unit(self, batch: Batch | FetchBatch) -> Made:
        """Return the SQL of unit after unit, and whether its rows can be in others' way."""
        if isinstance(batch, FetchBatch):
            return await batch.by_unit(self._coordinator, self._dialect)
        units = await asyncio.to_thread(self._units, batch)
        del batch  # Its rows are in the units now; SQL needs the room.
        meets = [each for each, _ in units]
        answers = await self._coordinator.run([encoded for _, encoded in units])
        del units
        made = []
        while answers:
            made.append((meets[len(answers) - 1], Statements.decode(answers.pop())))
        return made[::-1]

    def _units(self, batch: Batch) -> list[tuple[bool, bytes]]:
        """Compact and encode; in a thread, because this takes microseconds per row."""
        units = plan_units(batch, self._parts, self._dialect)
        encoded = []
        while units:
            unit = units.pop()
            meets = apply_key(unit.table) is not None and can_meet_others(unit.table)
            encoded.append((meets, unit.encode()))
        return encoded[::-1]
