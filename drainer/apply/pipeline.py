"""Pipeline: runs the stages from the merge to the downstream, and bounds the queues between them.

    merge ──> plan ──────────> prepare (Spark tasks) ───> commit
              batch n+2 fills   batch n+1 becomes SQL      batch n and its checkpoint

At most two steps are under way after the planner: one being prepared, one committing. The strategy
prepares and commits a batch (`drainer.apply.strategies`). When a slot is free and no more binlogs
wait to be merged, the gathered changes are cut and sent. During a commit, a small batch whose rows
pass through the Drainer is cut only in time to be prepared when the commit ends, by the times of
the last batch. A batch is therefore as small as the load allows and as large as the backlog makes
it. Steps commit in stream order. A DDL is a step: later steps may be prepared during it but are not
committed before it. If tasks commit, there are more slots, and a batch begins while earlier ones
are in progress, if it shares no key value with them.
`Progress` has the downstream's position and costs, for status, pages and log.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from drainer.apply.admission import Admission
from drainer.apply.batches import FetchBatch, Fetching, HeldBatch, RowBatch
from drainer.apply.strategies import Begins, Prepared, Strategy
from drainer.ddl.catch_up import CatchUp
from drainer.ddl.follower import DdlFollower, FollowedDdl
from drainer.differences import Counts, SkippedTotals
from drainer.facts import ProgressFacts, TableCounts
from drainer.intake.merger import Merged
from drainer.planner import AheadStep, DdlStep, LargeStep, Planner, RowsStep, Step
from drainer.relay_log.log import RelayStage
from drainer.sinks.checkpoint import Checkpoint, TakenOver
from drainer.sinks.opening import SinkThread
from drainer.sinks.protocol import FileCounts, Refused, Sink, located
from drainer.task.work_unit import TableRows
from penstock.ddl import Catalog
from penstock.errors import NeedsOperator
from penstock.failpoints import point
from penstock.wire.binlog import MutationType

log = logging.getLogger(__name__)

STEPS_UNDER_WAY_MAX = 2
_OVERLAPPING_ROWS = 1000
"""A smaller batch is cut so that it is prepared when the commit before it ends."""

_merged = point("drainer.merged")
_ddl_followed = point("drainer.ddl_followed")
_planned = point("drainer.planned")
_generated = point("drainer.generated")
_before_sink = point("drainer.before_sink")
_checkpoint_known = point("drainer.checkpoint_known")


@dataclass(frozen=True, slots=True, kw_only=True)
class Downstream:
    """A destination of steps: batches by `strategy`, DDL by `sink`.

    `large` prepares a transaction that is in a spool file; `catalog` returns the initial catalog.
    """

    strategy: Strategy
    large: Callable[[LargeStep], Coroutine[Any, Any, Prepared]]
    sink: Sink
    thread: SinkThread
    catalog: Callable[[], Catalog] = Catalog


@dataclass(slots=True)
class _Work:
    """A step in progress: `prepared` makes a batch ready, the checkpoint is known."""

    step: Step
    checkpoint: Checkpoint
    ddl: FollowedDdl | None = None
    number: int = 0
    prepared: asyncio.Task[Prepared | Begins] | None = None
    begun: asyncio.Task[Prepared] | None = None
    """Applies the batch, up to its last transaction."""
    relayed: asyncio.Future[None] | None = None
    fetched: FetchBatch | None = None


class Pipeline:
    """The stages from the merge to the downstream; `run` it in one event loop."""

    def __init__(
        self,
        feed: Feed,
        planner: Planner,
        follower: DdlFollower,
        downstream: Downstream,
        progress: Progress,
        *,
        relay: RelayStage | None = None,
        fetching: Fetching | None = None,
        catch_up: CatchUp | None = None,
        checkpoint_interval_s: float = 3.0,
        gathers: bool = False,
    ) -> None:
        """Connect the stages; the downstream is at the checkpoint in `progress`.

        `fetching` is set if the rows do not pass through the Drainer, `catch_up` if rows may come
        before their DDL. An idle stream advances the checkpoint each `checkpoint_interval_s`. With
        `gathers`, a batch that is not full also waits for that interval.
        """
        self.progress = progress
        self._begin = progress.checkpoint
        self._feed = feed
        self._planner = planner
        self._follower = follower
        self._relay = relay
        self._fetching = fetching
        self._catch_up = catch_up
        self._wake = feed.arrived
        self._downstream = downstream
        self._checkpoint_interval_s = checkpoint_interval_s
        self._gathers = gathers
        self._intent_ts = progress.checkpoint.ddl_intent_ts
        self._slots = STEPS_UNDER_WAY_MAX if fetching is None else fetching.batches_max
        self._slots_max = self._slots
        self._commit_since_s = math.inf
        self._queue: asyncio.Queue[_Work | None] = asyncio.Queue()
        self._begun: asyncio.Queue[_Work | None] = asyncio.Queue()
        self._admission = Admission()
        self._finished = asyncio.Event()
        self._plan_task: asyncio.Task[None] | None = None
        self._preparing: set[asyncio.Task[Any]] = set()
        self._last_step_s = time.monotonic()
        self._batch_id = 0

    async def run(self) -> None:
        """Run until `stop`, then finish work in progress; raises the error that stops it."""
        commit = asyncio.create_task(self._commit(), name="commit")
        beginning = asyncio.create_task(self._begin_in_turn(), name="begin")
        self._plan_task = asyncio.create_task(self._plan(), name="plan")
        tasks = (self._plan_task, beginning, commit)
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in (beginning, commit):
                if task.done():
                    task.result()
            failure = None if self._plan_task.cancelled() else self._plan_task.exception()
            if failure is not None:
                log.error("cannot continue after what is under way: %s", failure)
            self._queue.put_nowait(None)
            await asyncio.gather(beginning, commit)
            if failure is not None:
                raise failure
        finally:
            for task in (*tasks, *self._preparing):
                task.cancel()
            await asyncio.wait(tasks)

    def stop(self) -> None:
        """Take nothing more from the merge; `run` returns when the steps in progress are done."""
        if self._plan_task is not None:
            self._plan_task.cancel()

    async def _plan(self) -> None:
        while True:
            self._wake.clear()
            step = self._planner.next_step()
            if isinstance(step, AheadStep):
                await self._run_ahead(step)
            elif step is not None:
                await self._run_before(step)
                await self._start_in_turn(step)
            elif self._gather():
                await asyncio.sleep(0)  # Let the pulls, the tasks and the heartbeat run.
            elif self._slots > 0 and (step := self._open_batch()) is not None:
                await self._start(step)
            else:
                await self._wait()
            del step  # Only the step in progress must hold its rows.

    async def _run_ahead(self, ahead: AheadStep) -> None:
        catch_up = self._catch_up
        assert catch_up is not None, "no one asked about rows"
        steps = await catch_up.steps(ahead)
        if steps and (before := self._planner.cut_before_ddl()) is not None:
            await self._start_in_turn(before)
        for step in steps:
            await self._start_in_turn(step)

    async def _run_before(self, step: Step) -> None:
        """Run the DDL that the rows of a large transaction need, unseen by the planner."""
        catch_up = self._catch_up
        if not isinstance(step, LargeStep) or catch_up is None or step.is_ignored:
            return
        ddl = await catch_up.before(step.commit_ts, step.payload, step.lookup, step.limits)
        if ddl:
            self._planner.cut_before_ddl()  # Nothing is open: a large transaction stands alone.
        for each in ddl:
            await self._start_in_turn(each)

    async def _start_in_turn(self, step: Step) -> None:
        while self._slots == 0:
            self._wake.clear()
            await self._wake.wait()
        await self._start(step)

    def _gather(self) -> bool:
        merged = self._feed.take()
        if merged is None:
            return False
        if self._relay is not None:
            self._relay.offer(merged)
        self._planner.offer(merged)
        _merged()
        return True

    def _open_batch(self) -> RowsStep | None:
        """Cut the open batch if its rows, or the checkpoint, are due."""
        return self._planner.cut() if self._due_in_s() <= 0 else None

    def _due_in_s(self) -> float:
        rows = 0 if self._gathers else self._planner.rows
        due_s = -math.inf if rows else self._last_step_s + self._checkpoint_interval_s
        is_small = self._fetching is None and 0 < rows < _OVERLAPPING_ROWS
        if is_small and self._slots < self._slots_max:
            # Prepared earlier, it would only wait for the commit, and later changes for the next.
            due_s = self._commit_since_s + self.progress.commit_s - self.progress.generate_s
        return due_s - time.monotonic()

    async def _wait(self) -> None:
        due_in_s = self._due_in_s()
        if self._slots == 0 or due_in_s == math.inf:
            await self._wake.wait()
            return
        self._feed.hurry()
        try:
            async with asyncio.timeout(due_in_s if due_in_s > 0 else None):
                await self._wake.wait()
        except TimeoutError:
            return

    async def _start(self, step: Step) -> None:
        ddl = None
        if isinstance(step, DdlStep):
            ddl = await self._follower.follow(step)
            if step.is_repeated:
                ddl = ddl._replace(run=None, skipped=Counts())
            _ddl_followed()
        self._slots -= 1
        self._last_step_s = time.monotonic()
        # A crash left a DDL half done: its intent stays on record until it has run.
        intent_ts = self._intent_ts if self._intent_ts > step.commit_ts else 0
        begin = self._begin
        checkpoint = Checkpoint(
            step.commit_ts,
            self._follower.schemas.version,
            ddl_intent_ts=intent_ts,
            origins=step.origins,
            pumps=self._feed.participants(),
            overrides=begin.overrides,
            has_all_overrides=begin.has_all_overrides,
            ahead=dict(self._follower.schemas.ahead),
        )
        work = _Work(
            step, checkpoint, ddl, relayed=None if self._relay is None else self._relay.flush()
        )
        if isinstance(step, RowsStep) and (step.rows or step.remote):
            self._batch_id += 1
            self.progress.begun(step.tables)
            batch: RowBatch = HeldBatch(
                self._batch_id, step.tables, commit_ts=step.stamps, starts=step.starts
            )
            if step.remote is not None:
                assert self._fetching is not None, "no one asked for metadata only"
                work.fetched = batch = self._fetching.begin(self._batch_id, step.remote)
            work.prepared = asyncio.create_task(self._prepared(batch))
            self._preparing.add(work.prepared)
            work.prepared.add_done_callback(self._preparing.discard)
            work.step = replace(step, tables=[], stamps=[], starts={})
        elif isinstance(step, LargeStep):
            # Wait for it, because a DDL after it must not change its tables' definitions.
            work.prepared = asyncio.create_task(self._downstream.large(step))
            await asyncio.wait((work.prepared,))
        self._queue.put_nowait(work)
        _planned()

    async def _prepared(self, batch: RowBatch) -> Prepared | Begins:
        started_s = time.monotonic()
        preparing = self._downstream.strategy.prepare(batch)
        del batch  # The preparation decides how long the rows are needed.
        prepared = await preparing
        _generated()
        self.progress.generate_s = time.monotonic() - started_s
        return prepared

    async def _begin_in_turn(self) -> None:
        """Hand steps to `_commit`, in stream order, once no earlier one stands in their way."""
        number = 0
        while (work := await self._queue.get()) is not None:
            work.number = number = number + 1
            self._admission.begin(number)
            begins = None
            if work.prepared is not None:
                await asyncio.wait((work.prepared,))
                begins = _begins(work.prepared)
            if begins is not None:
                self._admission.know(number, begins.touched)
            while not self._admission.admits(number):
                self._finished.clear()
                await self._finished.wait()
            if begins is not None:
                work.begun = asyncio.create_task(begins.begin(work.checkpoint))
                self._preparing.add(work.begun)
                work.begun.add_done_callback(self._preparing.discard)
            self._begun.put_nowait(work)
        self._begun.put_nowait(None)

    async def _commit(self) -> None:
        """Commit steps in stream order; only here and in `begun` does the downstream change."""
        downstream, begin = self._downstream, replace(self.progress.checkpoint, consistent=False)
        catalog = downstream.catalog()  # Now, before any DDL of this run is followed.
        await downstream.thread.call(lambda: downstream.sink.save_checkpoint(begin))
        await downstream.thread.call(lambda: downstream.sink.look_at(catalog))
        while (work := await self._begun.get()) is not None:
            if work.relayed is not None:
                await work.relayed
            _before_sink()
            started_s = self._commit_since_s = time.monotonic()
            self._wake.set()
            await self._apply(work)
            _checkpoint_known()
            self._commit_since_s = math.inf
            self.progress.committed(work.step, work.checkpoint, time.monotonic() - started_s)
            strategy = self._downstream.strategy
            self.progress.missed_rows = strategy.missed_rows
            self.progress.messages = strategy.messages
            self.progress.message_bytes = strategy.message_bytes
            self.progress.repeated = self._planner.repeated
            self.progress.partitions_s = strategy.partitions_s
            if self._relay is not None:
                self._relay.trim(work.checkpoint.commit_ts)
            self._admission.finish(work.number)
            self._finished.set()
            self._slots += 1
            self._wake.set()

    async def _apply(self, work: _Work) -> None:
        sink, call = self._downstream.sink, self._downstream.thread.call
        after_ts = self.progress.checkpoint.commit_ts
        nothing_left = work.fetched is not None and not self._note_fetched(work, work.fetched)
        checkpoint = work.checkpoint = replace(
            work.checkpoint, skipped=self.progress.skipped.after(_skipped(work))
        )
        if work.ddl is not None and work.ddl.run is not None:
            assert isinstance(work.step, DdlStep)
            maybe_done = work.step.maybe_done or self._intent_ts == checkpoint.commit_ts
            await self._run_ddl(work.ddl, checkpoint, maybe_done=maybe_done)
        elif work.prepared is None:
            await call(lambda: sink.save_checkpoint(checkpoint))
        else:
            try:
                commit = await (work.begun or work.prepared)
                assert not isinstance(commit, Begins), "it has begun"
                work.prepared = work.begun = None
                if nothing_left:
                    await call(lambda: sink.save_checkpoint(checkpoint))
                    return
                committing = commit(checkpoint)
                del commit  # The statements are released as soon as the sink is done with them.
                await committing
            except Refused as error:
                raise located(error, after_ts, checkpoint.commit_ts) from error

    async def _run_ddl(self, ddl: FollowedDdl, checkpoint: Checkpoint, *, maybe_done: bool) -> None:
        change, ddl_ts, sink = ddl.run, checkpoint.commit_ts, self._downstream.sink
        assert change is not None
        log.info("DDL at %d: %s", ddl_ts, change.job.query)
        try:
            await self._downstream.thread.call(
                lambda: sink.run_ddl(change, checkpoint, maybe_done=maybe_done)
            )
        except TakenOver:
            raise  # No decision about the DDL would help.
        except NeedsOperator as error:
            raise self._follower.refused(error, ddl.ts or ddl_ts, ddl.upstream) from error

    def _note_fetched(self, work: _Work, batch: FetchBatch) -> bool:
        """Count the task's results, now final; False if nothing is left to apply."""
        assert isinstance(work.step, RowsStep)
        work.step = batch.counted(work.step)
        self.progress.kinds.update(batch.facts.kinds)
        for name, rows in batch.facts.tables.items():
            self.progress.tables.note(name, rows)
        return work.step.rows > 0


def _begins(prepared: asyncio.Task[Prepared | Begins]) -> Begins | None:
    """Return the result if it may begin early; a failure is raised in its turn, by `_commit`."""
    if prepared.cancelled() or prepared.exception() is not None:
        return None
    result = prepared.result()
    return result if isinstance(result, Begins) else None


def _skipped(work: _Work) -> Counts:
    if isinstance(work.step, DdlStep):
        return Counts() if work.ddl is None else work.ddl.skipped
    return work.step.skipped


class Feed(Protocol):
    """The arrival of the merger's binlogs."""

    arrived: asyncio.Event
    """Set when the merger got something; the pipeline also sets it to wake itself."""

    def hurry(self) -> None:
        """Request progress of a blocked merge, if something waits for it."""

    def take(self) -> Merged | None:
        """Return the next run of the merged stream, None if there is none yet."""

    def participants(self) -> Mapping[str, int]: ...


def _nothing(step: Step, commit_s: float) -> None: ...


@dataclass(slots=True)
class Progress:
    """The downstream's position and its costs; `checkpoint` is the saved one."""

    checkpoint: Checkpoint
    steps: int = 0
    transactions: int = 0
    rows: int = 0
    last_rows: int = 0
    generate_s: float = 0.0
    commit_s: float = 0.0
    changed_s: float = field(default_factory=time.monotonic)
    """When the downstream last changed, or the Drainer started."""
    missed_rows: int = 0
    """Updated and deleted rows that were missing downstream, if the strategy checks."""
    messages: int = 0
    """Messages made of changes, if the downstream takes messages."""
    message_bytes: int = 0
    repeated: int = 0
    """Transactions that a source sent again and that were skipped."""
    partitions_s: tuple[float, ...] = ()
    """The seconds that each partition of the last batch took, in mode parallel."""
    kinds: Counter[int] = field(default_factory=Counter)
    """Row changes by their kind, of all started batches."""
    tables: TableCounts = field(default_factory=TableCounts)
    """The same by table, without large transactions."""
    on_commit: Callable[[Step, float], None] = _nothing
    """Called with each step that is now downstream, and the seconds it took."""
    waits_for: Callable[[], str] = str
    """The reason why the downstream takes no changes, empty if it takes them."""
    ddl_waits_for: Callable[[], str] = str
    """The DDL that waits for its job, empty if none does."""
    stand_ins: Callable[[], Mapping[str, str]] = dict
    """Collations that the downstream lacks, and the collations that its tables have instead."""
    file_counts: FileCounts = field(default_factory=FileCounts)
    """The counts of a sink that writes files."""
    skipped: SkippedTotals = field(init=False)
    """Totals of the changes that are not applied downstream."""

    def __post_init__(self) -> None:
        self.skipped = SkippedTotals(self.checkpoint.skipped)

    def begun(self, tables: Sequence[TableRows]) -> None:
        for table in tables:
            self.tables.note(table.name, len(table.rows))
            for kind in MutationType:
                self.kinds[kind] += table.kinds.count(kind)

    def committed(self, step: Step, checkpoint: Checkpoint, commit_s: float) -> None:
        self.checkpoint = checkpoint
        self.skipped.reached(checkpoint.skipped)
        self.steps += 1
        self.on_commit(step, commit_s)
        if not isinstance(step, RowsStep) or step.rows:
            self.changed_s = time.monotonic()
        if isinstance(step, LargeStep):
            self.transactions += 1
            self.commit_s = commit_s
        if isinstance(step, RowsStep) and step.rows:
            self.transactions += step.transactions
            self.rows += step.rows
            self.last_rows = step.rows
            self.commit_s = commit_s
            log.debug(
                "committed %d rows up to %d: generated in %.0f ms, committed in %.0f ms",
                step.rows, step.commit_ts, self.generate_s * 1e3, commit_s * 1e3,
            )  # fmt: skip

    def facts(self) -> ProgressFacts:
        pairs = [f"{there} for {name}" for name, there in sorted(self.stand_ins().items())]
        return ProgressFacts(
            schema_version=self.checkpoint.schema_version,
            downstream_waits_for=self.waits_for() or "nothing",
            ddl_waits_for=self.ddl_waits_for() or "nothing",
            downstream_collations=", ".join(pairs) or None,
            steps=self.steps,
            transactions=self.transactions,
            rows=self.rows,
            missed_rows=self.missed_rows,
            repeated_transactions=self.repeated,
            last_batch=f"{self.last_rows} rows, generated in {self.generate_s * 1e3:.0f} ms, "
            f"committed in {self.commit_s * 1e3:.0f} ms",
            tables=self.tables.facts(),
            skipped=self.skipped.facts(),
        )
