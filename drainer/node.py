"""Node: runs one Drainer from start-up to a clean shutdown.

lock ─ Spark starts ─ etcd, cluster id ─ checkpoint ─ schema ─ serving ─ online ─ pulling
pausing ─ pulls ended ─ current steps committed ─ checkpoint `consistent` ─ paused ─ Spark ended

All state that must survive a crash is in the downstream's checkpoint. The next run reads it and
continues after its `commit_ts`, with the schema of that point in time. `drainer.build` and
`drainer.components` construct the parts; this module starts and stops them.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import replace
from datetime import UTC, datetime
from enum import Enum
from typing import Any

from drainer.apply.pipeline import Pipeline
from drainer.build import build_active
from drainer.cluster.membership import Membership, Presence
from drainer.cluster.server import Front
from drainer.components import (
    Components,
    StoppedEarly,
    build_components,
    insist,
    unless_stopped,
    with_new_sink,
)
from drainer.ddl.follower import DdlRefused
from drainer.ddl.tidb_servers import Unlogged
from drainer.facts import DrainerFacts
from drainer.intake.pump_set import Pumps
from drainer.pages import Pages
from drainer.recovery import recover
from drainer.settings.config import DrainerConfig
from drainer.sinks.checkpoint import Overridden, TakenOver
from drainer.standby import EndedAsStandby, stand_by
from penstock.cluster.node_registry import NodeState
from penstock.cluster.records import (
    DrainerRun,
    DrainerStop,
    forget_stop,
    is_remembered,
    put_stop,
    run_named,
    standbys,
)
from penstock.codes import Code
from penstock.errors import NeedsOperator, PenstockError
from penstock.node import service
from penstock.node.http_status import HttpStatus
from penstock.node.logs import RECENT
from penstock.node.output import reply_of
from penstock.pb import penstock_pb2

log = logging.getLogger(__name__)

_HEARTBEAT_S = 1.0
"""How often the status and the list of Pumps are renewed."""
_WRITER_LOOKS = 20
_WRITER_LOOK_S = 0.5


async def run(config: DrainerConfig, stop: asyncio.Event) -> None:
    """Run until `stop` or an operator's command; raise errors that no retry can cure."""
    try:
        async with AsyncExitStack() as stack:
            components = await build_components(config, stack, stop)
            if components.is_upstream_gone and await recover(config, components, stop):
                return
            front = Front(config, components.security, components.home)
            stack.push_async_callback(front.close)
            service.notify(service.READY)
            handed_over = ""
            while True:
                former = await stand_by(components, front, stop, handed_over=handed_over)
                try:
                    end = await _be_active(config, components, front, stop, former)
                except NeedsOperator as error:
                    await _record_stop(components, front, error)
                    raise
                if end is End.STOPPED:
                    return
                handed_over = components.sink.writer if end is End.REPLACED else ""
                components = await with_new_sink(config, components, stack)
    except StoppedEarly:
        log.info("stopped before the Drainer was up")
    except EndedAsStandby:
        log.info("ended as a standby, as asked")


async def _record_stop(components: Components, front: Front, error: NeedsOperator) -> None:
    record = DrainerStop(
        node_id=front.node_id,
        made=datetime.now(UTC).isoformat(timespec="seconds"),
        problem=error.problem,
        hint=error.hint,
        choices=error.choices if isinstance(error, DdlRefused) else (),
    )
    try:
        await asyncio.to_thread(put_stop, components.etcd, record)
    except PenstockError as failed:
        log.warning("etcd does not take why this Drainer ends: %s", failed)


class End(Enum):
    """Why a period as the active Drainer ended."""

    STOPPED = "stopped"
    REPLACED = "replaced"
    """Another Drainer takes over the downstream."""
    OVERRIDDEN = "overridden"
    """An operator changed overrides of DDL; they must be read."""


async def _be_active(
    config: DrainerConfig, components: Components, front: Front, stop: asyncio.Event, former: str
) -> End:
    """Run as the active Drainer, in the place of the Drainer `former`, if any."""
    this = DrainerRun(node_id=front.node_id, host=front.address)
    async with AsyncExitStack() as stack:
        presence = Presence(components.etcd, components.sink.writer, lambda: this)
        stack.push_async_callback(presence.end)
        await presence.begin(stop)
        parts = await build_active(config, components, front, stack, stop, former)
        with suppress(PenstockError):  # Readers see that this Drainer runs.
            await asyncio.to_thread(forget_stop, components.etcd, front.node_id)
        node = _Node(config, components, front, *parts)
        try:
            return End.REPLACED if await node.run_until_stopped(stop, former) else End.STOPPED
        except Overridden as error:
            log.warning(
                "%s: reading them, and continuing from the checkpoint [%s]",
                error.problem,
                error.code,
            )
            return End.OVERRIDDEN
        except TakenOver as error:
            # A Drainer of another cluster is never listed: an operator must stop one of the two.
            if not await _is_written_by_this_cluster(components, stop):
                raise
            log.error("this Drainer writes no more: %s [%s]", error.problem, error.code)
            return End.REPLACED


async def _is_written_by_this_cluster(components: Components, stop: asyncio.Event) -> bool:
    """Return whether etcd lists the run that is writing the downstream, or listed it today.

    A run is listed before it writes. An outage of etcd ends its lease, and the run is listed again
    shortly after etcd answers. One answer therefore does not prove that the run has ended.
    """
    stored = await components.thread.call(components.sink.load_checkpoint)
    writer = stored.writer if stored else ""
    find = functools.partial(run_named, components.etcd, writer)
    for look in range(_WRITER_LOOKS):
        if await insist(stop, "who writes the downstream now", find) is not None:
            return True
        if look == 0:
            log.info("etcd does not list the Drainer that writes the downstream, looking again")
        await unless_stopped(asyncio.sleep(_WRITER_LOOK_S), stop)
    remembered = functools.partial(is_remembered, components.etcd, writer)
    return await insist(stop, "who wrote the downstream", remembered)


class _Node:
    """The Drainer once its position is known."""

    def __init__(
        self,
        config: DrainerConfig,
        components: Components,
        front: Front,
        membership: Membership,
        pumps: Pumps,
        pipeline: Pipeline,
        unlogged: Unlogged | None,
    ) -> None:
        self._config = config
        self._components = components
        self._front = front
        self._membership = membership
        self._pumps = pumps
        self._pipeline = pipeline
        self._unlogged = unlogged
        self._ended = asyncio.Event()
        self._final = NodeState.PAUSED
        self._is_handing_over = False
        self._began_s = time.monotonic()

    async def refresh(self) -> None:
        await self._pumps.refresh()

    def pause(self, asked: str) -> None:
        self._end(asked, NodeState.PAUSED)

    def close(self, asked: str) -> None:
        self._end(asked, NodeState.OFFLINE)

    async def hand_over(self, asked: str) -> Sequence[str]:
        waiting = await asyncio.to_thread(standbys, self._components.etcd)
        found = [each.node_id for each in waiting if each.writer == self._components.sink.writer]
        if not found:
            raise NeedsOperator(
                f"no standby waits for drainer {self._membership.node_id}",
                "start another Drainer with the same sink, its own --data-dir and --node-id",
                Code.NODE_STATE,
            )
        self._end(asked, NodeState.PAUSED)
        self._is_handing_over = True
        return found

    def add_pages(self, pages: HttpStatus) -> None:
        Pages(
            status=self.status,
            progress=lambda: self._pipeline.progress,
            pumps=self._pumps,
            lag_s=self._membership.lag_s,
            synced_check_s=60.0 * self._config.synced_check_time,
            end=self._end,
            spark_waits_for=self._spark_waits_for,
            unlogged=self._unlogged,
        ).add_to(pages)

    def _spark_waits_for(self) -> str:
        tasks = self._components.dispatcher
        return tasks.waits_for or ("" if tasks.tasks else "no Spark task is connected yet")

    async def run_until_stopped(self, stop: asyncio.Event, former: str = "") -> bool:
        """Serve until `stop`, an operator's command, or a failure.

        Returns True if this Drainer has handed over to a standby.
        """
        tasks: list[asyncio.Task[Any]] = []
        retiring: asyncio.Task[None] | None = None
        try:
            await self._front.serve(self)
            await self._membership.refuse_duplicate()
            await self._membership.refuse_gap()
            log.info("drainer %s serves at %s", self._membership.node_id, self._membership.host)
            pipeline = asyncio.create_task(self._pipeline.run(), name="pipeline")
            pumps = self._pumps.run(_HEARTBEAT_S)
            tasks = [pipeline, *map(asyncio.create_task, (self._membership.keep_time(), pumps))]
            tasks += [asyncio.create_task(event.wait()) for event in (stop, self._ended)]
            if self._unlogged is not None:
                tasks.append(asyncio.create_task(self._unlogged.watch()))
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
            tasks += filter(None, [retiring])
            for task in tasks:
                task.cancel()
            if tasks:
                await asyncio.wait(tasks)
            await self._pumps.close()
            await self._membership.leave(self._final, is_new=self._components.sink.is_new)

    async def _pause(self, pipeline: asyncio.Task[None]) -> None:
        """Commit the current steps, take no new steps, and mark the downstream consistent.

        Waits for an unreachable downstream for `stop-timeout-s` in total at most.
        """
        until_s = time.monotonic() + self._config.stop_timeout_s
        offline = self._final is NodeState.OFFLINE
        await self._membership.publish(NodeState.CLOSING if offline else NodeState.PAUSING)
        await self._pumps.close()
        self._pipeline.stop()
        await asyncio.wait((pipeline,), timeout=self._config.stop_timeout_s)
        if not pipeline.done():
            log.warning("a batch under way is abandoned; the checkpoint stands before it")
            return
        pipeline.result()
        last = self._pipeline.progress.checkpoint
        last = replace(last, consistent=not last.ddl_intent_ts)
        try:
            async with asyncio.timeout(max(1.0, until_s - time.monotonic())):
                await self._components.thread.call(
                    lambda: self._components.sink.save_checkpoint(last)
                )
        except TimeoutError:
            log.warning("the downstream did not take the note that it is consistent")

    def _end(self, asked: str, final: NodeState) -> None:
        """Start to end in the state `final`; refuse a command meant for another node."""
        if asked != self._membership.node_id:
            raise NeedsOperator(
                f"this is drainer {self._membership.node_id}, not {asked}",
                "the address is stale: list the nodes again",
                Code.NODE_OTHER,
            )
        if self._ended.is_set():
            raise NeedsOperator(
                f"drainer {asked} is ending already", "wait for it", Code.NODE_STATE
            )
        self._final = final
        self._ended.set()

    def status(self) -> penstock_pb2.StatusReply:
        progress = self._pipeline.progress
        facts = DrainerFacts(
            uptime_s=round(time.monotonic() - self._began_s),
            status_pages=self._front.pages.url or "none",
            writer=self._components.sink.writer,
            downstream=self._config.downstream.label,
            lag_s=round(self._membership.lag_s(), 3),
            lag_clock=self._membership.clock_is_from(),
            spark_tasks=self._components.dispatcher.tasks,
            spark_tasks_lost=self._components.dispatcher.lost_tasks,
            spark_waits_for=self._components.dispatcher.waits_for,
            progress=progress.facts(),
            merge=self._pumps.facts(),
            unlogged=None if self._unlogged is None else self._unlogged.facts(),
            problems=RECENT.facts() or None,
        )
        return reply_of(
            facts,
            node_id=self._membership.node_id,
            state=str(self._membership.state),
            max_commit_ts=progress.checkpoint.commit_ts,
        )
