"""Large transactions: apply the slices of a spool file in one downstream transaction.

    file ──> slice n+1 ──> SQL ──┐ one waits ready while
             slice n   ──> SQL ──┴─> the sink thread runs the slice before ──> checkpoint, commit

The sink asks for one list of statements after the other and runs them all in the transaction that
stores the checkpoint. If its connection breaks, the sink and the walk through the file start again.
Two slices exist at a time, one as statements and one in preparation, however large the transaction
is.

If the sink takes events, slices become messages. As SQL they are applied one by one, each compacted
separately, with *displacing* upserts: if an upsert meets another row with the same unique value, it
removes that row. The state between two slices is a state of the transaction itself, in which no
such row exists. Some writers, however, note a transaction's changes by key and not as they
happened; with them such a row exists, and a later slice deletes it or writes it again.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import time
from collections.abc import Awaitable, Callable, Generator, Iterator
from contextlib import closing, suppress
from functools import partial
from itertools import islice
from typing import Generic, TypeVar

from drainer.apply.batches import HeldBatch
from drainer.apply.strategies import Prepared
from drainer.differences import IGNORED, LOOP_BACK, ROWS, TRANSACTIONS, Counts, Skipped
from drainer.intake.payload import SpooledRows
from drainer.planner import LargeStep
from drainer.sinks.checkpoint import Checkpoint
from drainer.sinks.opening import SinkThread
from drainer.sinks.protocol import Sink, Slices
from drainer.task.row_changes import Collector, MarkTable, Screened, name_of, read_changes
from drainer.task.work_unit import TransactionStart
from penstock.codes import Code
from penstock.errors import Retryable
from penstock.failpoints import point
from penstock.pb import binlog_pb2 as pb

log = logging.getLogger(__name__)

_REPORT_S = 10.0
_LOOK_S = 0.5

_committed = point("drainer.large_committed")

T = TypeVar("T")

_Ready = queue.SimpleQueue[T | Exception | None]
Generate = Callable[[HeldBatch], Awaitable[T]]
Apply = Callable[[Slices[T], Checkpoint], None]
"""A sink's method that takes slice after slice, and the checkpoint with them."""


class LargeTransactions(Generic[T]):
    """Applies all large steps."""

    def __init__(
        self, generate: Generate[T], apply: Apply[T], sink: Sink, thread: SinkThread
    ) -> None:
        """Prepare; `generate` turns a slice into the input of the `sink`'s `apply`.

        `thread` may call the sink.
        """
        self._generate = generate
        self._apply = apply
        self._sink = sink
        self._thread = thread

    async def prepare(self, step: LargeStep) -> Prepared:
        """Look up the step's tables now, before a later DDL changes them.

        Raises `Malformed` if the step holds no row changes, and the errors of a table's look-up.
        """
        rows = await asyncio.to_thread(SpooledRows, step.payload, step.lookup, step.limits)
        is_applied = True
        targets = rows.targets.values()
        if step.is_ignored or not {MarkTable, Screened}.isdisjoint(map(type, targets)):
            is_applied, counts = await asyncio.to_thread(_counted, step.is_ignored, rows)
            step.skipped.update(counts)  # They are committed with the transaction.
        return partial(self._commit, step, rows, is_applied)

    async def _commit(
        self, step: LargeStep, rows: SpooledRows, is_applied: bool, checkpoint: Checkpoint
    ) -> None:
        """Run all slices in one transaction with the checkpoint, and delete the file."""
        payload, began_s = step.payload, time.monotonic()
        log.info("applying the %d bytes of transaction %d", payload.size, step.commit_ts)
        if is_applied:
            handover = _Handover(lambda: _batches(step, rows), self._generate)
            try:
                await self._thread.call(lambda: self._apply(handover.slices, checkpoint))
            finally:
                handover.close()
        else:
            await self._thread.call(lambda: self._sink.save_checkpoint(checkpoint))
        _committed()
        payload.release()
        log.info(
            "transaction %d of %d bytes is downstream after %.1f s",
            step.commit_ts, payload.size, time.monotonic() - began_s,
        )  # fmt: skip


def _counted(is_ignored: bool, rows: SpooledRows) -> tuple[bool, Counts]:
    """Return whether any of a transaction goes downstream, and the counts of the rest."""
    found = Counts([Skipped(TRANSACTIONS, IGNORED)]) if is_ignored else Counts()
    with closing(rows.values()) as values:
        for value in values:
            for mutation in pb.PrewriteValue.FromString(value).mutations:
                target = rows.targets.get(mutation.table_id)
                if is_ignored:
                    name = name_of(rows.target, mutation.table_id, rows.version)
                    found[Skipped(ROWS, IGNORED, name)] += len(mutation.sequence)
                elif isinstance(target, MarkTable) and target.stops(mutation):
                    return False, Counts([Skipped(TRANSACTIONS, LOOP_BACK)])
            for change in () if is_ignored else read_changes(value, rows.target):
                found.update(change.skipped or {})
    return not is_ignored, found


def _batches(step: LargeStep, rows: SpooledRows) -> Iterator[HeldBatch]:
    """Yield the slices from the first on; each call is a separate pass."""
    report_s = time.monotonic() + _REPORT_S
    read_bytes, number = 0, 0
    begun = step.payload.outline
    starts = {step.commit_ts: TransactionStart(begun.start_ts, begun.origin)}
    with closing(rows.values()) as values:
        for value in values:
            changes = [each for each in read_changes(value, rows.target) if each.rows]
            read_bytes += len(value)
            if changes:
                number += 1
                collector = Collector()
                collector.add(changes, len(value))
                del value, changes
                yield HeldBatch(
                    number, collector.tables(), displaces=True, commit_ts=[step.commit_ts],
                    starts=starts,
                )  # fmt: skip  # No name for its tables: they go as soon as they are in units.
            if time.monotonic() > report_s:
                report_s = time.monotonic() + _REPORT_S
                size = step.payload.size
                log.info("transaction %d: %d of %d bytes", step.commit_ts, read_bytes, size)


class _Handover(Generic[T]):
    """Passes slices from the event loop, which makes them, to the sink thread, which requests them.

    It is a plain queue, because a future that crosses threads keeps its result until the garbage
    collector runs, which is rare where a few objects hold megabytes each.
    """

    def __init__(self, batches: Callable[[], Iterator[HeldBatch]], generate: Generate[T]) -> None:
        self._batches = batches
        self._generate = generate
        self._loop = asyncio.get_running_loop()
        self._making: asyncio.Task[None] | None = None
        self._closed = False

    def slices(self) -> Generator[T]:
        """Yield the result of each slice; called in the sink thread, once per attempt."""
        batches = self._batches()
        ready: _Ready[T] = queue.SimpleQueue()
        self._call(self._begin, batches, ready)
        try:
            while (made := self._waited(ready)) is not None:
                self._call(self._begin, batches, ready)
                yield made
                del made
        finally:
            self._call(self._cancel)

    def close(self) -> None:
        self._closed = True
        self._cancel()

    def _call(self, function: Callable[..., None], *arguments: object) -> None:
        with suppress(RuntimeError):  # The loop is closed; the sink thread notices.
            self._loop.call_soon_threadsafe(function, *arguments)

    def _waited(self, ready: _Ready[T]) -> T | None:
        while not self._closed:
            try:
                made = ready.get(timeout=_LOOK_S)
            except queue.Empty:
                continue
            if isinstance(made, Exception):
                raise made
            return made
        raise Retryable("the Drainer ends while it applies a large transaction", Code.CLOSED)

    def _begin(self, batches: Iterator[HeldBatch], ready: _Ready[T]) -> None:
        if not self._closed:
            self._making = self._loop.create_task(self._make(batches, ready))

    def _cancel(self) -> None:
        if self._making is not None:
            self._making.cancel()

    async def _make(self, batches: Iterator[HeldBatch], ready: _Ready[T]) -> None:
        try:
            made: list[HeldBatch] = []
            await asyncio.to_thread(lambda: made.extend(islice(batches, 1)))
            ready.put(await self._generate(made.pop()) if made else None)
        except Exception as error:
            ready.put(error)
