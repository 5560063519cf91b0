"""One Drainer's life, from an empty process to a clean end.

lock ─ Spark begins to start ─ etcd, cluster id ─ checkpoint ─ schema ─ serving ─ online ─ pulling
pausing ─ pulls ended ─ steps under way committed ─ checkpoint `consistent` ─ paused ─ Spark ended

All that must survive a crash is in the downstream's checkpoint: the next life reads it and goes
on after its `commit_ts`, with the schema as it was then.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from enum import Enum
from typing import Any, NamedTuple

from drainer.cluster.membership import Membership
from drainer.cluster.presence import Presence
from drainer.ddl.follower import DdlFollower
from drainer.ddl.job_lookup import fetch_job
from drainer.differences.overrides import Override
from drainer.front import Front
from drainer.intake.merger import Merger
from drainer.intake.puller import Who
from drainer.intake.pump_set import Pumps
from drainer.intake.spool import Spool
from drainer.observe.pages import Pages
from drainer.pipeline.large import Large
from drainer.pipeline.pipeline import Downstream, Feed, Merge, Pipeline, Source
from drainer.plan.filters import compiled, selection_of
from drainer.plan.planner import DdlStep, Planner, RowsStep, Step
from drainer.recovery import Replay, recover
from drainer.relay_log.stage import NoRelay, Relay
from drainer.schema.tracker import SchemaTracker
from drainer.settings.config import DrainerConfig
from drainer.sinks.checkpoint import Checkpoint, Overridden, TakenOver
from drainer.spark.fetch_batch import Fetching
from drainer.spark.generation import Generation
from drainer.standby import EndedAsStandby, stand_by
from drainer.startup.parts import Parts, StoppedEarly, open_parts, starting_point, with_new_sink
from drainer.startup.relay import relay_stage
from drainer.startup.schema_start import Followed, schema_at
from drainer.startup.strategy import strategy_of
from penstock.cluster.drainer_runs import DrainerRun, run_named, standbys
from penstock.cluster.history import History
from penstock.cluster.registry import NodeState, Registry
from penstock.errors import NeedsOperator
from penstock.node.http_status import HttpStatus
from penstock.pb import penstock_pb2
from penstock.schema.model import DdlJob

log = logging.getLogger(__name__)
_REPLAY_CHECKPOINT_S = 0.1


async def run(config: DrainerConfig, stop: asyncio.Event) -> None:
    """Live until `stop` or an operator's verb; raise what no retry can cure."""
    compiled(config)  # A rule that cannot be is told before anything is opened.
    try:
        async with AsyncExitStack() as stack:
            parts = await open_parts(config, stack, stop)
            if parts.is_upstream_gone:
                wire = functools.partial(_wired_to_log, config, parts)
                if await recover(parts, wire, stop):
                    return
            front = Front(config, parts)
            stack.push_async_callback(front.close)
            handed_over = ""
            while True:
                former = await stand_by(parts, front, stop, handed_over=handed_over)
                end = await _stint(config, parts, front, stop, former)
                if end is End.STOPPED:
                    return
                handed_over = parts.sink.writer if end is End.REPLACED else ""
                parts = await with_new_sink(config, parts, stack)
    except StoppedEarly:
        log.info("stopped before the Drainer was up")
    except EndedAsStandby:
        log.info("ended as a standby, as asked")


class End(Enum):
    """What ended a time as the active Drainer."""

    STOPPED = "stopped"
    REPLACED = "replaced"
    """Another Drainer is to write the downstream from now on."""
    OVERRIDDEN = "overridden"
    """An operator changed overrides of DDL, which are to be read."""


async def _stint(
    config: DrainerConfig, parts: Parts, front: Front, stop: asyncio.Event, former: str
) -> End:
    """Be the active Drainer.

    `former` is the node id of the one whose place this one takes.
    """
    this = DrainerRun(node_id=front.node_id, host=front.address)
    async with AsyncExitStack() as stack:
        presence = Presence(parts.etcd, parts.sink.writer, lambda: this)
        stack.push_async_callback(presence.end)
        await presence.begin(stop)
        checkpoint = await starting_point(config, parts, stop)
        followed = await schema_at(config, parts, checkpoint, stop, former)
        relay = await relay_stage(parts, checkpoint, followed, stack)
        node = _Node(config, parts, front, checkpoint, followed, relay)
        try:
            return End.REPLACED if await node.live(stop, former) else End.STOPPED
        except Overridden as error:
            log.warning("%s: reading them, and going on from the checkpoint", error.problem)
            return End.OVERRIDDEN
        except TakenOver as error:
            # Whoever writes now is waited for if it can be seen; else there is something to mend.
            stored = await parts.thread.call(parts.sink.load_checkpoint)
            find = functools.partial(run_named, parts.etcd, stored.writer if stored else "")
            if await asyncio.to_thread(find) is None:
                raise
            log.error("this Drainer writes no more: %s", error.problem)
            return End.REPLACED


class Stream(NamedTuple):
    """What a pipeline is fed from."""

    feed: Feed
    merger: Merge
    fetch_job: Callable[[DdlStep], Awaitable[DdlJob]]
    relay: Relay
    checkpoint_interval_s: float
    fetching: Callable[[SchemaTracker], Fetching] | None = None


class _Node:
    """The Drainer once it knows where it stands."""

    def __init__(
        self,
        config: DrainerConfig,
        parts: Parts,
        front: Front,
        checkpoint: Checkpoint,
        followed: Followed,
        relay: Relay,
    ) -> None:
        self._config = config
        self._parts = parts
        self._front = front
        self._ended = asyncio.Event()
        self._final = NodeState.PAUSED
        self._is_handing_over = False
        self._began_s = time.monotonic()
        node_id = front.node_id
        merger = Merger(checkpoint.commit_ts, config.ignored_ts)
        self._membership = Membership(
            Registry(parts.etcd),
            parts.oracle,
            node_id=node_id,
            host=front.address,
            checkpoint_ts=lambda: self._pipeline.progress.checkpoint.commit_ts,
            tls=parts.security.tls,
        )
        spool = Spool(parts.home.path / "spool", bytes_max=config.batch_bytes_max)
        tls, metadata_only = parts.security.tls, parts.executors_fetch
        who = Who(parts.cluster_id, node_id, spool, tls=tls, metadata_only=metadata_only)
        self._pumps = Pumps(merger, self._membership, who, config.buffer_bytes, checkpoint.pumps)
        self._pipeline = self._wired(merger, followed, checkpoint, relay)

    async def refresh(self) -> None:
        """Make one pass over the list of Pumps."""
        await self._pumps.refresh()

    def pause(self, asked: str) -> None:
        """Begin to end, keeping its place."""
        self._end(asked, NodeState.PAUSED)

    def close(self, asked: str) -> None:
        """Begin to leave."""
        self._end(asked, NodeState.OFFLINE)

    async def hand_over(self, asked: str) -> Sequence[str]:
        """Begin to make room for a standby; return those that wait for this Drainer."""
        waiting = await asyncio.to_thread(standbys, self._parts.etcd)
        found = [each.node_id for each in waiting if each.writer == self._parts.sink.writer]
        if not found:
            raise NeedsOperator(
                f"no standby waits for drainer {self._membership.node_id}",
                hint="start another Drainer with the same sink, its own --data-dir and --node-id",
            )
        self._end(asked, NodeState.PAUSED)
        self._is_handing_over = True
        return found

    def _wired(
        self, merger: Merger, followed: Followed, checkpoint: Checkpoint, relay: Relay
    ) -> Pipeline:
        """Return the way from the merge to the downstream."""
        history = History(self._parts.etcd)

        async def noted_job(step: DdlStep) -> DdlJob:
            job = await fetch_job(history, step)
            await followed.before(job)
            relay.note_job(job)
            return job

        ids, interval_s = self._pumps.ids, self._config.checkpoint_interval_s
        way = functools.partial(Fetching, *ids, self._pumps.addresses)
        fetching = way if self._parts.executors_fetch else None
        stream = Stream(self._pumps, merger, noted_job, relay, interval_s, fetching)
        return _wired(
            self._config, self._parts, stream, followed.tracker, followed.overrides, checkpoint
        )

    def add_pages(self, pages: HttpStatus) -> None:
        """Add the pages of an active Drainer."""
        Pages(
            status=self.status,
            progress=lambda: self._pipeline.progress,
            pumps=self._pumps,
            lag_s=self._membership.lag_s,
            synced_check_s=60.0 * self._config.synced_check_time,
            end=self._end,
        ).add_to(pages)
        figures, lag_s = self._pumps.figures, self._membership.lag_s

        def count(step: Step, commit_s: float) -> None:
            is_ddl = isinstance(step, DdlStep)
            has_changes = not isinstance(step, RowsStep) or step.rows > 0
            figures.committed(commit_s, lag_s(), is_ddl=is_ddl, has_changes=has_changes)

        self._pipeline.progress.on_commit = count

    async def live(self, stop: asyncio.Event, former: str = "") -> bool:
        """Serve until `stop`, until an operator's verb, or until something fails.

        True when it has made room for a standby.
        """
        tasks: list[asyncio.Task[Any]] = []
        retiring: asyncio.Task[None] | None = None
        try:
            await self._front.serve(self)
            await self._membership.refuse_namesake()
            await self._membership.refuse_gap()
            log.info("drainer %s serves at %s", self._membership.node_id, self._membership.host)
            pipeline = asyncio.create_task(self._pipeline.run(), name="pipeline")
            pumps = self._pumps.run(self._config.heartbeat_interval_s)
            tasks = [pipeline, *map(asyncio.create_task, (self._membership.keep_time(), pumps))]
            tasks += [asyncio.create_task(event.wait()) for event in (stop, self._ended)]
            retiring = asyncio.create_task(self._membership.retire(former))
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            if stop.is_set() or self._ended.is_set():
                try:
                    await self._pause(pipeline)
                except Overridden as error:
                    log.warning("%s as it ended: a batch under way is not done", error.problem)
                    return self._is_handing_over and not stop.is_set()
            for task in tasks:
                if task.done():
                    task.result()
            return self._is_handing_over and not stop.is_set()
        finally:
            await _cancelled([*tasks, *filter(None, [retiring])])
            await self._pumps.close()
            await self._membership.leave(self._final, is_new=self._parts.sink.is_new)

    async def _pause(self, pipeline: asyncio.Task[None]) -> None:
        """Commit what is under way, take nothing new, and say that the downstream is consistent."""
        offline = self._final is NodeState.OFFLINE
        await self._membership.publish(NodeState.CLOSING if offline else NodeState.PAUSING)
        await self._pumps.close()
        self._pipeline.stop()
        await asyncio.wait((pipeline,), timeout=self._config.stop_timeout_s)
        if not pipeline.done():
            log.warning("a batch under way is given up; the checkpoint stands before it")
            return
        pipeline.result()
        last = self._pipeline.progress.checkpoint
        last = replace(last, consistent=not last.ddl_intent_ts)
        await self._parts.thread.call(lambda: self._parts.sink.save_checkpoint(last))

    def _end(self, asked: str, final: NodeState) -> None:
        """Begin to end in the state `final`; refuse a verb that was meant for someone else."""
        if asked != self._membership.node_id:
            raise NeedsOperator(
                f"this is drainer {self._membership.node_id}, not {asked}",
                hint="the address is stale: list the nodes again",
            )
        if self._ended.is_set():
            raise NeedsOperator(f"drainer {asked} is ending already", hint="wait for it")
        self._final = final
        self._ended.set()

    def status(self) -> penstock_pb2.StatusReply:
        """Return state, checkpoint and one line per thing worth knowing."""
        progress = self._pipeline.progress
        details = {
            "uptime_s": f"{time.monotonic() - self._began_s:.0f}",
            "status_pages": self._front.pages.url or "none",
            "writer": self._parts.sink.writer,
            "lag_s": f"{self._membership.lag_s():.3f}",
            "lag_clock": self._membership.clock_is_from(),
            "spark_tasks": str(self._parts.coordinator.tasks),
            "spark_tasks_lost": str(self._parts.coordinator.lost_tasks),
            **progress.describe(),
            **self._pumps.describe(),
        }
        return penstock_pb2.StatusReply(
            node_id=self._membership.node_id,
            state=str(self._membership.state),
            max_commit_ts=progress.checkpoint.commit_ts,
            details=details,
        )


def _wired(
    config: DrainerConfig,
    parts: Parts,
    stream: Stream,
    schemas: SchemaTracker,
    overrides: Mapping[int, Override],
    checkpoint: Checkpoint,
) -> Pipeline:
    """Return the way from a stream to the downstream."""
    checkpoint = replace(checkpoint, overrides=overrides, has_all_overrides=True)
    selection = selection_of(config, schemas)
    planner = Planner(
        selection.lookup,
        rows_max=config.batch_rows_max,
        bytes_max=config.batch_bytes_max,
        ignored_ts=config.ignored_ts,
        whole_ts=checkpoint.applying_ts if config.apply.strategy == "merge" else 0,
        origins=checkpoint.origins,
    )
    follower = DdlFollower(
        schemas,
        stream.fetch_job,
        overrides=overrides,
        ignored_ts=config.ignored_ts,
        route=selection.route,
    )
    source = Source(
        merger=stream.merger,
        planner=planner,
        pumps=stream.feed,
        schemas=schemas,
        follow_ddl=follower.follow,
        relay=stream.relay,
        fetching=stream.fetching(schemas) if stream.fetching else None,
    )
    generation = Generation(parts.coordinator, parts=parts.task_count, dialect=parts.sink.dialect)
    downstream = Downstream(
        strategy=strategy_of(config.apply, parts, checkpoint),
        large=Large(generation.statements, parts.sink, parts.thread).prepare,
        sink=parts.sink,
        thread=parts.thread,
        checkpoint=checkpoint,
        tables=lambda: [table for _, table in schemas.tables_downstream()],
    )
    return Pipeline(source, downstream, checkpoint_interval_s=stream.checkpoint_interval_s)


def _wired_to_log(
    config: DrainerConfig,
    parts: Parts,
    source: Replay,
    schemas: SchemaTracker,
    overrides: Mapping[int, Override],
    checkpoint: Checkpoint,
) -> Pipeline:
    """Return the way from the relay log to the downstream."""
    stream = Stream(source, source, source.fetch_job, NoRelay(), _REPLAY_CHECKPOINT_S)
    return _wired(config, parts, stream, schemas, overrides, checkpoint)


async def _cancelled(tasks: list[asyncio.Task[Any]]) -> None:
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks)
