"""Turn a batch of rows into SQL: compaction here, the SQL itself in the Spark tasks."""

from __future__ import annotations

import asyncio

from drainer.apply.compaction import plan_units
from drainer.apply.work import Batch, Statements, in_order
from drainer.coordinator import Coordinator


class Generation:
    """The way of a batch through the tasks and back."""

    def __init__(self, coordinator: Coordinator, *, parts: int, dialect: str) -> None:
        """Prepare; each table of a batch is spread over at most `parts` units."""
        self._coordinator = coordinator
        self._parts = parts
        self._dialect = dialect

    async def statements(self, batch: Batch) -> list[bytes]:
        """Return the batch's SQL in the order in which it is right."""
        units = await asyncio.to_thread(self._units, batch)
        del batch  # Its rows are in the units now; SQL needs the room.
        answers = await self._coordinator.run(units)
        parts = []
        while answers:
            parts.append(Statements.decode(answers.pop()))
        return list(in_order(reversed(parts)))

    def _units(self, batch: Batch) -> list[bytes]:
        """Compact and encode; in a thread, because this takes microseconds per row."""
        units = plan_units(batch, self._parts, self._dialect)
        encoded = []
        while units:
            encoded.append(units.pop().encode())
        return encoded[::-1]
