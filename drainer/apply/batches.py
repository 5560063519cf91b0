"""Batches of rows that become SQL or messages, whether the rows are here or still on the Pumps.

    HeldBatch    rows ──> a task: SQL; or runs of transactions ──> tasks: messages
    FetchBatch   commit_ts, Pump, size ── a unit, with the Pumps' current addresses ──> a task: SQL
                 or runs of transactions ── such units ──> tasks: messages; and facts
                 a Pump is unreachable: the unit is made and sent again
                 the task may also keep the SQL, to commit it (`drainer.apply.in_tasks`)

The schema of a fetched batch is taken when the batch begins, before a later DDL changes it, and
packed once per version. Its `Facts` are recorded once, when it is committed, however often it was
processed.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import starmap
from typing import Any, TypeVar

import numpy as np

from drainer.planner import RowsStep
from drainer.schema.snapshot import pack_for_tasks
from drainer.schema.tracker import SchemaTracker
from drainer.spark.dispatcher import Catalog, Dispatcher, Task
from drainer.task.events.event_unit import Encoding, encoded_units, runs_of
from drainer.task.events.messages import Messages
from drainer.task.held_unit import Made, answered, held_unit
from drainer.task.row_fetch import (
    Away,
    Cut,
    Facts,
    FetchUnit,
    RemoteTransactions,
    decode_cut,
    decode_made,
    decode_messages,
)
from drainer.task.work_unit import Batch, in_order

log = logging.getLogger(__name__)

_RETRY_S = 1.0
FETCHES_UNDER_WAY_MAX = 3
"""If one task takes a whole batch, two prepare while one commits."""
_UNIT_BYTES_MIN = 128 << 10
"""About `UNIT_ROWS_MIN` rows, whose number is not known before they are fetched."""
_ALL = slice(None)
T = TypeVar("T")


class Generation:
    """The tasks that turn batches into SQL of a dialect."""

    def __init__(self, dispatcher: Dispatcher, *, dialect: str) -> None:
        self.dispatcher = dispatcher
        self.dialect = dialect

    async def statements(self, batch: RowBatch) -> list[bytes]:
        """Return the batch's SQL in the order in which it must run."""
        made = batch.by_unit(self)
        del batch  # Its rows are needed only until they are in a unit.
        return list(in_order(each for _, each in await made))


@dataclass(frozen=True, slots=True)
class HeldBatch(Batch):
    """A batch whose rows are here."""

    def displacing(self) -> HeldBatch:
        """Return the batch with upserts that remove any other row with the same unique value."""
        return replace(self, displaces=True)

    async def by_unit(self, generation: Generation) -> Made:
        """Return the batch's SQL, which a task makes; rows without other references are freed.

        Raises the dispatcher's errors.
        """
        units = [await self._made(held_unit, generation.dialect)]
        del self  # Its rows are in the unit now; SQL needs the room.
        return answered((await generation.dispatcher.run(units)).pop())

    async def messages(
        self, dispatcher: Dispatcher, encoding: Encoding, parts: int
    ) -> list[Messages]:
        """Return the messages, which tasks make in at most `parts` units."""
        starts = self.starts
        units = await self._made(encoded_units, encoding, parts)
        del self
        return [Messages.decode(each, starts) for each in await dispatcher.run(units)]

    async def _made(self, make: Callable[..., T], *asked: object) -> T:
        """Return what `make` makes of the batch; for a few rows a thread would cost more."""
        return make(self, *asked) if self.is_few else await asyncio.to_thread(make, self, *asked)


@dataclass(slots=True, eq=False)
class FetchBatch:
    """A batch whose rows are on the Pumps, where a task fetches them."""

    batch_id: int
    remote: RemoteTransactions
    catalog: asyncio.Task[Catalog]
    fetching: Fetching
    facts: Facts = field(default_factory=Facts)
    """The result of the last task that processed the batch."""
    displaces: bool = False

    def displacing(self) -> FetchBatch:
        self.displaces = True
        return self

    async def by_unit(self, generation: Generation) -> Made:
        """Return the batch's SQL; wait for unreachable Pumps without a time limit."""
        (made, self.facts), _ = await self._answered(
            generation.dispatcher, decode_made, dialect=generation.dialect
        )
        return made

    async def messages(
        self, dispatcher: Dispatcher, encoding: Encoding, parts: int
    ) -> list[Messages]:
        """Return the messages, which tasks make in at most `parts` units; wait as `by_unit`."""
        decode = partial(decode_messages, starts=self.remote.starts())
        runs = starmap(slice, runs_of(self.remote.sizes, parts, _UNIT_BYTES_MIN))
        answers = await asyncio.gather(
            *(self._answered(dispatcher, decode, run=run, encoding=encoding) for run in runs)
        )
        self.facts = sum((facts for (_, facts), _ in answers), Facts())
        return [each for (made, _), _ in answers for each in made]

    async def cut(
        self, generation: Generation, connections: int, avoids: Collection[Task] = ()
    ) -> tuple[Cut, Task]:
        """Let a task cut the batch's SQL for so many connections, and keep it to commit it."""
        (cut, self.facts), task = await self._answered(
            generation.dispatcher,
            decode_cut,
            avoids,
            dialect=generation.dialect,
            connections=connections,
            kept_max=self.fetching.batches_max,
        )
        return cut, task

    async def _answered(
        self,
        dispatcher: Dispatcher,
        decode: Callable[[bytes], T],
        avoids: Collection[Task] = (),
        run: slice = _ALL,
        **asked: Any,
    ) -> tuple[T, Task]:
        """Return the decoded answer to a unit of `run` with the fields `asked`, and the task."""
        catalog = await asyncio.shield(self.catalog)
        while True:
            unit = self._unit(catalog[0], asked, run)
            answer, task = await dispatcher.run_on(unit.encode(), catalog, avoids)
            try:
                return decode(answer), task
            except Away as away:
                log.warning("batch %d waits: %s", self.batch_id, away)
                await asyncio.sleep(_RETRY_S)

    def _unit(self, catalog: int, asked: Mapping[str, Any], run: slice = _ALL) -> FetchUnit:
        remote, addresses = self.remote, self.fetching.addresses()
        places, owners = np.unique(remote.owners[run], return_inverse=True)
        return FetchUnit(
            batch_id=self.batch_id,
            displaces=self.displaces,
            catalog=catalog,
            cluster_id=self.fetching.cluster_id,
            drainer_id=self.fetching.drainer_id,
            addresses=[addresses[remote.pumps[place]] for place in places],
            commit_ts=remote.commit_ts[run],
            owners=owners,
            ignored=remote.ignored,
            **asked,
        )

    def counted(self, step: RowsStep) -> RowsStep:
        facts = self.facts
        skipped = step.skipped + facts.skipped
        return replace(step, rows=facts.rows, remote=None, skipped=skipped)


RowBatch = HeldBatch | FetchBatch
"""Row changes that are written downstream together, wherever their rows are."""


class Fetching:
    """The state shared by all batches whose rows are fetched."""

    def __init__(
        self,
        cluster_id: int,
        drainer_id: str,
        addresses: Callable[[], Mapping[str, str]],
        schemas: SchemaTracker,
        batches_max: int = FETCHES_UNDER_WAY_MAX,
    ) -> None:
        """`addresses` returns the current address of each Pump."""
        self.batches_max = batches_max
        self.cluster_id = cluster_id
        self.drainer_id = drainer_id
        self.addresses = addresses
        self._schemas = schemas
        self._catalog: tuple[int, asyncio.Task[Catalog]] | None = None

    def begin(self, batch_id: int, remote: RemoteTransactions) -> FetchBatch:
        version = self._schemas.version
        if self._catalog is None or self._catalog[0] != version:
            packing = asyncio.to_thread(packed_catalog, self._schemas.copy())
            self._catalog = version, asyncio.create_task(packing)
        return FetchBatch(batch_id, remote, self._catalog[1], self)


def packed_catalog(schemas: SchemaTracker) -> Catalog:
    """Return a schema in the form sent to tasks, with a number unique to it."""
    data = pack_for_tasks(schemas)
    return int.from_bytes(hashlib.sha256(data).digest()[:8], "little"), data
