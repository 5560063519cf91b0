"""`statements`: each row change is a statement, for downstreams that must see every change.

    batch ──> units ──> tasks: SQL and causality keys ──> groups ──> lanes, on connections at once
                                                               └──> last, with the checkpoint

While lanes are under way the downstream is between states: its checkpoint says so, with the
`commit_ts` up to which changes may be there (`applying_ts`). After a crash everything up to there
is written in the safe form. Why that ends in the right state, wherever the crash was: every change
of the range runs again, in an order that keeps each key's changes in theirs. Whatever a REPLACE
removes has a unique value that another row had upstream at that moment, so it is a row of the range
too, from a later moment, and its last change is still to come and writes it whole.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass

import pyarrow as pa

from drainer.sinks.checkpoint import Checkpoint
from drainer.sinks.protocol import ForeignKey, InDoubt, Missed, Sink, Split
from drainer.sinks.thread import SinkThread
from drainer.spark.coordinator import Coordinator
from drainer.spark.fetch_batch import FetchBatch
from drainer.strategies import Prepared
from drainer.strategies.grouping import (
    Ints,
    in_commit_order,
    is_crossing,
    links_of,
    spread,
    whole,
)
from drainer.task.sql.row_statements import RowStatements
from drainer.task.work_unit import ROWS_SCHEMA, Batch, Op, TableRows, WorkUnit

log = logging.getLogger(__name__)

UNIT_ROWS_MIN = 1000

ForeignKeys = tuple[ForeignKey, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Lanes:
    """How statements are spread; without `dispatch` transactions stay whole, in one lane."""

    workers: int
    txn_batch: int
    dispatch: bool
    safe_mode: bool


class EachChange:
    """See `Strategy`."""

    partitions_s: tuple[float, ...] = ()

    def __init__(
        self,
        coordinator: Coordinator,
        sink: Sink,
        thread: SinkThread,
        *,
        lanes: Lanes,
        parts: int,
        start: Checkpoint,
    ) -> None:
        """Wire the way; `start` is where the downstream is, `parts` the units at most per table."""
        self._coordinator = coordinator
        self._sink = sink
        self._thread = thread
        self._lanes = lanes
        self._parts = parts
        self._start = start
        self._committed_ts = start.commit_ts
        self._keys: ForeignKeys | None = None
        self.missed_rows = 0
        if self.is_safe:
            log.info("safe mode: inserts replace, updates delete and replace")

    @property
    def is_safe(self) -> bool:
        """True while changes may be in the downstream already, or when the settings say so."""
        return self._lanes.safe_mode or self._committed_ts < self._start.applying_ts

    async def prepare(self, batch: Batch | FetchBatch) -> Prepared:
        """Let the tasks write the SQL, and group it here."""
        assert isinstance(batch, Batch), "with this strategy payloads come here"
        keys = self._keys
        if keys is None:
            keys = await self.foreign_keys()
        split = await self.split(batch, keys, safe=self.is_safe)
        return _Changes(self, batch, keys, split)

    async def foreign_keys(self) -> ForeignKeys:
        """Return the downstream's foreign keys as they are once all before this is committed."""
        self._keys = await self._thread.call(self._sink.foreign_keys)
        return self._keys

    async def split(self, batch: Batch, keys: ForeignKeys, *, safe: bool) -> Split:
        """Return a batch's statements, in lanes."""
        units, numbers = await asyncio.to_thread(self._units, batch, keys, safe)
        answers = await self._coordinator.run(units)
        made = await asyncio.to_thread(self._arranged, answers, numbers, safe)
        return await self.split(batch, keys, safe=True) if made is None else made

    def _units(self, batch: Batch, keys: ForeignKeys, safe: bool) -> tuple[list[bytes], list[Ints]]:
        units: list[bytes] = []
        numbers: list[Ints] = []
        for changes in batch.tables:
            assert changes.transactions is not None, "the batch says which rows belong together"
            table, links = changes.table, links_of(changes.schema, changes.table, keys)
            whole_unit = _rows(changes, Op.SAFE if safe else Op.EACH)
            count = len(whole_unit)
            step = max(UNIT_ROWS_MIN, -(-count // self._parts))
            for at in range(0, count, step):
                unit = WorkUnit(
                    batch.batch_id,
                    len(units),
                    self._sink.dialect,
                    changes.schema,
                    table.name,
                    table,
                    whole_unit.slice(at, step),
                    links=links,
                )
                units.append(unit.encode())
                numbers.append(changes.transactions[at : at + step])
        return units, numbers

    def _arranged(self, answers: list[bytes], numbers: list[Ints], safe: bool) -> Split | None:
        """Return the lanes; None when only the safe form can be run."""
        changes = in_commit_order([RowStatements.decode(answer) for answer in answers], numbers)
        if not safe and is_crossing(changes):
            return None
        if not self._lanes.dispatch:
            return whole(changes, safe=safe)
        lanes, batch = self._lanes.workers, self._lanes.txn_batch
        return spread(changes, lanes=lanes, statements_max=batch, safe=safe)

    async def apply(self, split: Split, checkpoint: Checkpoint) -> None:
        """Bring lanes and checkpoint into the downstream; raise `InDoubt` when to do it again."""
        missed: Missed = await self._thread.call(
            lambda: self._sink.apply_split(split, checkpoint, self._start)
        )
        self._committed_ts = checkpoint.commit_ts
        if missed.count:
            self.missed_rows += missed.count
            log.warning(
                "%d updated or deleted rows up to %d were not in the downstream, such as %s;"
                " somebody else changes it: compare the tables",
                missed.count, checkpoint.commit_ts, "; ".join(missed.examples),
            )  # fmt: skip


def _rows(changes: TableRows, op: Op) -> pa.RecordBatch:
    count = len(changes.rows)
    columns = [
        pa.array([int(op)] * count, pa.uint8()),
        pa.array(changes.kind_array()),
        changes.rows.cast(pa.large_binary()),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=ROWS_SCHEMA)


class _Changes:
    """A batch and its statements; the rows stay until the commit, in case it must be redone."""

    def __init__(self, strategy: EachChange, batch: Batch, keys: ForeignKeys, split: Split) -> None:
        self._strategy = strategy
        self._batch = batch
        self._keys = keys
        self._split: Split | None = split

    async def commit(self, checkpoint: Checkpoint) -> None:
        """Apply; after a commit without an answer once more, in the safe form."""
        split, self._split = self._split, None
        assert split is not None, "a batch is committed once"
        keys = await self._strategy.foreign_keys()
        if keys is not self._keys:  # A DDL ran meanwhile, and other tables are linked now.
            split = await self._strategy.split(self._batch, keys, safe=split.safe)
        try:
            await self._strategy.apply(split, checkpoint)
        except InDoubt as doubt:
            log.warning("%s; the batch up to %d is run again", doubt, checkpoint.commit_ts)
            del split
            safe = await self._strategy.split(self._batch, keys, safe=True)
            await self._strategy.apply(safe, checkpoint)
