"""Build: constructs all parts of a Drainer.

    drainer.components   once for a process, whether on standby or active
    build_active         checkpoint ─ schema ─ relay stage ─ merger ─ Pumps ─ pipeline
                         each time this Drainer becomes active; `drainer.node` then runs it
    build_pipeline       only the pipeline; `drainer.recovery` feeds one from the relay log

Building contacts etcd, the oracle and the downstream. During an outage `insist` retries until it
gets an answer. A signal ends the wait with `StoppedEarly`. `starting_point` decides where a Drainer
continues, from its downstream's checkpoint or the settings.
"""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import Any, cast

from drainer.apply.batches import FETCHES_UNDER_WAY_MAX, Fetching, Generation
from drainer.apply.in_tasks import InTasks
from drainer.apply.large import LargeTransactions
from drainer.apply.pipeline import Downstream, Feed, Pipeline, Progress
from drainer.apply.statements import EachChange
from drainer.apply.strategies import Events, Parallel, Prepared, Snapshot, Strategy
from drainer.cluster.membership import Membership
from drainer.cluster.server import Front
from drainer.components import Components, insist, refuse_torn, selection_of, unless_stopped
from drainer.ddl.catch_up import CatchUp
from drainer.ddl.follower import DdlFollower, NotedJobs, with_overrides
from drainer.ddl.jobs import JobSource, TidbJobs, open_job_source
from drainer.ddl.starting_schema import (
    SnapshotFile,
    StartingSchema,
    recorded_overrides,
    schema_from,
)
from drainer.ddl.tidb_servers import Unlogged
from drainer.facts import Counters
from drainer.intake.merger import Merger
from drainer.intake.puller import Who
from drainer.intake.pump_set import Pumps
from drainer.intake.spool import Spool
from drainer.planner import DdlStep, LargeStep, Planner, RowsStep, Step
from drainer.relay_log.log import RelayStage
from drainer.settings.config import ApplyConfig, DrainerConfig
from drainer.sinks.checkpoint import Checkpoint, went_back
from drainer.sinks.protocol import EventSink, PartitionedSink, Sink, SqlSink, TableSink
from penstock.cluster.node_registry import NodeKind, NodeState, Registry
from penstock.codes import Code
from penstock.errors import NeedsOperator
from penstock.schema.model import DdlJob

log = logging.getLogger(__name__)

_BUFFER_BYTES = 16 << 20
"""The size of all Pumps' binlogs that may wait for the merge."""
_CHECKPOINT_INTERVAL_S = 3.0
"""How often an idle Drainer saves its checkpoint."""


async def build_active(
    config: DrainerConfig,
    components: Components,
    front: Front,
    stack: AsyncExitStack,
    stop: asyncio.Event,
    former: str,
) -> tuple[Membership, Pumps, Pipeline, Unlogged | None]:
    """Build the parts that continue from the downstream's checkpoint; none of them runs yet.

    The last part reports a TiDB's changes that have no binlog.

    `former` is the node id of the Drainer that this Drainer replaces, empty if it replaces none.
    """
    pd_tls = components.security.pd_tls
    open_source = functools.partial(open_job_source, config.pd_address, components.etcd, pd_tls)
    source = await insist(stop, "the source of DDL jobs", open_source)
    checkpoint = await starting_point(config, components, source, stop)
    schema = await _starting_schema(config, components, source, checkpoint, stop, former)
    checkpoint = replace(checkpoint, overrides=schema.overrides, has_all_overrides=True)
    relay = await _relay_stage(components, checkpoint, schema.jobs, stack)
    sink, tls, jobs = components.sink, components.security.tls, NotedJobs(source, schema, relay)
    progress = Progress(
        checkpoint,
        waits_for=lambda: sink.waits_for() or components.dispatcher.downstream_waits_for,
        ddl_waits_for=jobs.waits_for,
        stand_ins=sink.stand_ins,
        file_counts=sink.file_counts,
    )
    membership = Membership(
        Registry(components.etcd),
        components.oracle,
        node_id=front.node_id,
        host=front.address,
        checkpoint_ts=lambda: progress.checkpoint.commit_ts,
        tls=tls,
    )
    merger = Merger(checkpoint.commit_ts, config.ignored_ts)
    spool = Spool(components.home.path / "spool", bytes_max=config.batch_bytes_max)
    fetches = components.executors_fetch
    who = Who(components.cluster_id, front.node_id, spool, tls=tls, metadata_only=fetches)
    pumps = Pumps(merger, membership, who, _BUFFER_BYTES, checkpoint.pumps)
    note = functools.partial(components.home.note_downstream, config.downstream.output)
    progress.on_commit = functools.partial(_count, pumps.counters, membership.lag_s, note)
    pipeline = build_pipeline(
        config,
        components,
        schema,
        progress,
        feed=pumps,
        fetch_job=jobs.fetch,
        relay=relay,
        checkpoint_interval_s=_CHECKPOINT_INTERVAL_S,
        fetching=_fetching(components, pumps, schema) if fetches else None,
        catch_up=jobs.catch_up(source, checkpoint) if isinstance(source, TidbJobs) else None,
    )
    # An override replaces the tracker's catalog.
    unlogged = Unlogged(components.etcd, lambda: schema.tracker.catalog.tables())
    return membership, pumps, pipeline, unlogged if config.pd_address else None


def _fetching(components: Components, pumps: Pumps, schema: StartingSchema) -> Fetching:
    batches_max = FETCHES_UNDER_WAY_MAX
    if components.executors_commit:  # One for each task, and as many again to prepare and to end.
        batches_max = max(batches_max, components.task_count + 2)
    return Fetching(*pumps.ids, pumps.addresses, schema.tracker, batches_max)


def _count(
    counters: Counters,
    lag_s: Callable[[], float],
    note: Callable[[], None],
    step: Step,
    commit_s: float,
) -> None:
    note()
    is_ddl = isinstance(step, DdlStep)
    has_changes = not isinstance(step, RowsStep) or step.rows > 0
    counters.committed(commit_s, lag_s(), is_ddl=is_ddl, has_changes=has_changes)


async def _starting_schema(
    config: DrainerConfig,
    components: Components,
    source: JobSource,
    checkpoint: Checkpoint,
    stop: asyncio.Event,
    former: str,
) -> StartingSchema:
    """Return the schema at the checkpoint; wait through outages of etcd or of a TiDB.

    Raises `NeedsOperator` if the history does not lead to the checkpoint's schema version.
    """
    etcd, home = components.etcd, components.home
    recorded = {}
    if not checkpoint.has_all_overrides:
        node_id = home.known_node_id(config.node_id, config.advertise_addr or config.addr)
        ask = functools.partial(recorded_overrides, etcd, [node_id, *filter(None, [former])])
        recorded = await insist(stop, "the overrides of DDL", ask)
    overrides = checkpoint.overrides_with(recorded)
    file = SnapshotFile(home.path, components.cluster_id, source, overrides)
    # A relay log keeps complete jobs, in case etcd is lost.
    whole = bool(config.relay.log_dir)
    load = functools.partial(schema_from, source, file, checkpoint, overrides, whole=whole)
    return await insist(stop, "the DDL history", load)


async def _relay_stage(
    components: Components, checkpoint: Checkpoint, jobs: Sequence[DdlJob], stack: AsyncExitStack
) -> RelayStage | None:
    relay_log = components.relay_log
    if relay_log is None:
        return None
    await asyncio.to_thread(relay_log.start, components.cluster_id, checkpoint.commit_ts, jobs)
    stage = RelayStage(relay_log)
    stack.push_async_callback(stage.close)
    log.info("the relay log in %s continues after %d", relay_log.folder, relay_log.last_ts)
    return stage


# --- the pipeline ------------------------------------------------------------------------------


def build_pipeline(
    config: DrainerConfig,
    components: Components,
    schema: StartingSchema,
    progress: Progress,
    *,
    feed: Feed,
    fetch_job: Callable[[DdlStep], Awaitable[DdlJob]],
    relay: RelayStage | None = None,
    checkpoint_interval_s: float,
    fetching: Fetching | None = None,
    catch_up: CatchUp | None = None,
) -> Pipeline:
    checkpoint, schemas = progress.checkpoint, schema.tracker
    selection = selection_of(config, schemas)
    sink = components.sink
    bytes_max = sink.gathered_bytes_max if sink.gathers_s else _batch_bytes_max(config, sink)
    planner = Planner(
        selection.lookup,
        rows_max=sink.gathered_rows_max if sink.gathers_s else config.batch_rows_max,
        bytes_max=bytes_max,
        ignored_ts=config.ignored_ts,
        whole_ts=checkpoint.applying_ts if config.strategy in ("merge", "events") else 0,
        origins=checkpoint.origins,
        accepted_gap_ts=config.accepted_gap_ts,
        ahead=None if catch_up is None else catch_up.ahead,
    )
    follower = DdlFollower(
        schemas,
        fetch_job,
        overrides=schema.overrides,
        ignored_ts=config.ignored_ts,
        route=selection.route,
        refused=functools.partial(
            with_overrides, flags=config.as_flags, password_hint=config.password_hint
        ),
    )
    strategy, large = build_strategy(config, components, checkpoint)
    downstream = Downstream(
        strategy=strategy,
        large=large,
        sink=sink,
        thread=components.thread,
        catalog=selection.downstream,
    )
    return Pipeline(
        feed,
        planner,
        follower,
        downstream,
        progress,
        relay=relay,
        fetching=fetching,
        catch_up=catch_up,
        checkpoint_interval_s=sink.gathers_s or checkpoint_interval_s,
        gathers=sink.gathers_s > 0,
    )


def _batch_bytes_max(config: DrainerConfig, sink: Sink) -> int:
    asked, bound = config.batch_bytes_max, sink.batch_bytes_max
    if not 0 < bound < asked:
        return asked
    log.warning(
        "batches are cut at %d bytes, before batch-bytes-max (%d): the downstream bounds the size"
        " of a transaction",
        bound, asked,
    )  # fmt: skip
    return bound


Large = Callable[[LargeStep], Coroutine[Any, Any, Prepared]]
"""Prepares a transaction that is in a spool file."""


def build_strategy(
    config: DrainerConfig, components: Components, start: Checkpoint
) -> tuple[Strategy, Large]:
    """Build the strategy that the settings name, for a downstream that is at `start`.

    Raises `NeedsOperator` if the downstream does not support the strategy.
    """
    sink, thread = components.sink, components.thread
    if config.strategy == "events":
        events_sink = cast(EventSink, sink)  # The settings were checked: its URL names such a sink.
        parts = components.task_count
        events = Events(components.dispatcher, events_sink, thread, parts=parts)
        large = LargeTransactions(events.of_slice, events_sink.put_slices, sink, thread)
        return events, large.prepare
    table_sink = cast(TableSink, sink)
    generation = Generation(components.dispatcher, dialect=table_sink.dialect)
    strategy = _of_tables(config.apply, components, table_sink, generation, start)
    in_slices = LargeTransactions(generation.statements, table_sink.apply_slices, sink, thread)
    return strategy, in_slices.prepare


def _of_tables(
    config: ApplyConfig,
    components: Components,
    sink: TableSink,
    generation: Generation,
    start: Checkpoint,
) -> Strategy:
    thread = components.thread
    if config.strategy == "statements":
        sql_sink = cast(SqlSink, sink)  # The settings were checked here also.
        return EachChange(
            components.dispatcher,
            sql_sink,
            thread,
            config=config,
            parts=components.task_count,
            start=start,
        )
    if config.mode == "snapshot":
        loop, run = asyncio.get_running_loop(), components.dispatcher.run
        sink.use_tasks(lambda units: asyncio.run_coroutine_threadsafe(run(units), loop))
        return Snapshot(generation, sink, thread, start)
    if not isinstance(sink, PartitionedSink):
        raise NeedsOperator(
            "mode parallel needs a downstream that takes commits on several connections at once",
            "use mode snapshot for this downstream",
            Code.SETTING_VALUE,
        )
    kind = InTasks if components.executors_commit else Parallel
    return kind(generation, sink, thread, connections=config.connections, start=start)


async def starting_point(
    config: DrainerConfig, components: Components, source: JobSource, stop: asyncio.Event
) -> Checkpoint:
    load = components.thread.call(components.sink.load_checkpoint)
    found = await unless_stopped(load, stop)
    await check_not_behind(config, components, found, stop)
    if found is not None and (found.commit_ts or found.ddl_intent_ts):
        if found.is_torn:
            refuse_torn(config.apply, found.commit_ts)
        log.info("continuing after commit_ts %d", found.commit_ts)
        if found.ddl_intent_ts:
            log.info("the DDL at %d may have run already", found.ddl_intent_ts)
        return found
    start_ts = config.initial_commit_ts
    if start_ts < 0:
        start_ts = await insist(stop, "the present timestamp", components.oracle.get_ts)
    if start_ts > 0:  # An earlier DDL may still be without a job.
        await insist(stop, "the schema of the beginning", source.check_settled)
    log.info("the downstream has no checkpoint; starting after commit_ts %d", start_ts)
    fresh = Checkpoint(start_ts, 0)
    if found is None:
        return fresh
    # An operator wrote overrides before the first Drainer started.
    return replace(fresh, overrides=found.overrides, has_all_overrides=found.has_all_overrides)


async def check_not_behind(
    config: DrainerConfig, components: Components, found: Checkpoint | None, stop: asyncio.Event
) -> None:
    """Raise `NeedsOperator` if the downstream is behind the state this Drainer had brought it to.

    etcd stores the former position, and the data directory the former downstream. Tables that went
    back together with their checkpoint are continued there, because that state is correct. Readers
    of messages would get some twice, or see them replaced.
    """
    home = components.home
    if home.downstream() != config.downstream.output:
        if found is not None and found.commit_ts:
            home.note_downstream(config.downstream.output)
        return  # Its first start, or an operator has named another downstream.
    node_id = home.known_node_id("", "")
    ask = functools.partial(Registry(components.etcd).get, NodeKind.DRAINER, node_id)
    entry = await insist(stop, "how far this Drainer was", ask)
    known_ts = 0
    if entry is not None and entry.state is not NodeState.OFFLINE:
        known_ts = entry.max_commit_ts
    found_ts = 0 if found is None else found.commit_ts
    accepted = config.initial_commit_ts
    if found_ts >= known_ts or (accepted >= 0 if not found_ts else accepted == found_ts):
        return
    error = went_back(found if found_ts else None, known_ts)
    if not found_ts or config.strategy == "events":
        raise error
    log.warning("%s: continuing after %d", error.problem, found_ts)
