"""Build: constructs every part of a Drainer in order, and hands it over.

    build_components   lock ─ Spark begins to start ─ etcd, oracle ─ relay log ─ downstream
                       once for a process, whatever it is then: a standby, or the active Drainer
    build_active       checkpoint ─ schema ─ relay stage ─ merger ─ Pumps ─ pipeline
                       for each time as the active Drainer, which `drainer.node` then runs
    build_pipeline     the last of these alone; `drainer.recovery` feeds one from the relay log

Building contacts etcd, the oracle and the downstream, through outages: `insist` asks again until
there is an answer, and `StoppedEarly` ends it all when a signal comes first.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import os
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, cast

from drainer.batching.filters import compiled, fetch_settings, selection_of
from drainer.batching.planner import DdlStep, LargeStep, Planner, RowsStep, Step
from drainer.cluster.membership import Membership
from drainer.cluster.server import Front
from drainer.counters import Counters
from drainer.data_dir import Home
from drainer.ddl.catch_up import CatchUp
from drainer.ddl.follower import DdlFollower, NotedJobs, with_way_out
from drainer.ddl.job_source import JobSource, open_job_source
from drainer.ddl.starting_schema import (
    SnapshotFile,
    StartingSchema,
    recorded_overrides,
    schema_from,
)
from drainer.ddl.tidb_jobs import TidbJobs
from drainer.ddl.unlogged import Unlogged
from drainer.intake.merger import Merger
from drainer.intake.puller import Who
from drainer.intake.pump_set import Pumps
from drainer.intake.spool import Spool
from drainer.pipeline.large import LargeTransactions
from drainer.pipeline.pipeline import Downstream, Feed, Merge, Pipeline, Source
from drainer.pipeline.progress import Progress
from drainer.relay_log.log import RelayLog
from drainer.relay_log.stage import NoRelay, Relay, RelayStage
from drainer.settings.config import ApplyConfig, DrainerConfig, RelayConfig
from drainer.sinks.checkpoint import Checkpoint, went_back
from drainer.sinks.file_counts import FileCounts
from drainer.sinks.opening import open_sink, output_of
from drainer.sinks.protocol import (
    EventSink,
    FileCountingSink,
    GatheringSink,
    PartitionedSink,
    Sink,
    SqlSink,
    TableSink,
)
from drainer.sinks.thread import SinkThread
from drainer.spark.dispatcher import Dispatcher
from drainer.spark.java import use_java
from drainer.spark.job import SparkJob, SparkSettings
from drainer.spark.row_batches import Fetching, Generation
from drainer.spark.task_watch import watch_tasks
from drainer.strategies import Prepared, Strategy
from drainer.strategies.events import Events
from drainer.strategies.merge import Parallel, Snapshot
from drainer.strategies.statements import EachChange, Queues
from drainer.task.row_fetch_unit import FetchSettings
from drainer.task.version import Bundle
from penstock.cluster.etcd import EtcdClient, connect, warn_of_version
from penstock.cluster.node_registry import NodeKind, NodeState, Registry
from penstock.codes import Code
from penstock.errors import NeedsOperator, Retryable
from penstock.oracle.client import Oracle, open_oracle
from penstock.oracle.cluster_id import find_cluster_id
from penstock.schema.model import DdlJob
from penstock.security.tls import Security, Tls

log = logging.getLogger(__name__)

_RETRY_S = 2.0
_SINK_CLOSE_S = 5.0
_SPARK_WAITS_S = 2.0
_CRYPTO = "spark.network.crypto.enabled=true"
"""How long Spark waits for all to be checked; longer than that, something is away."""

T = TypeVar("T")


# --- what a process opens once -----------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Components:
    """What a Drainer is made of, opened and ready."""

    home: Home
    dispatcher: Dispatcher
    task_count: int
    etcd: EtcdClient
    oracle: Oracle
    thread: SinkThread
    sink: Sink
    cluster_id: int
    security: Security
    executors_fetch: bool = False
    """True when Spark's tasks get the rows from the Pumps."""
    relay_log: RelayLog | None = None
    is_upstream_gone: bool = False
    """True when etcd could not be reached in time; then `cluster_id` is the relay log's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ends:
    """Both ends of a Drainer: where its transactions come from, and where they go."""

    etcd: EtcdClient
    oracle: Oracle
    thread: SinkThread
    sink: Sink
    cluster_id: int
    relay_log: RelayLog | None
    is_upstream_gone: bool


async def build_components(
    config: DrainerConfig, stack: AsyncExitStack, stop: asyncio.Event
) -> Components:
    """Open everything; the stack closes it, the last opened first.

    Spark comes last, because what stops a Drainer is to be said before it takes its seconds; but
    it does not wait for an etcd or a downstream that is away, and starts in the meantime.
    """
    compiled(config)  # A rule that cannot be is reported before anything is opened.
    open_sink(config.downstream, cluster_id=0)  # Contacts nothing: its URL, options, password.
    security = Security(config.security)
    home = stack.enter_context(Home(config.data_dir))
    java = asyncio.create_task(asyncio.to_thread(use_java, home.path / "java"))
    fetch = fetch_settings(config)
    os.environ["JAVA_HOME"] = str(await java)
    opening = asyncio.create_task(_open_ends(config, security, stack, stop))
    try:
        await asyncio.wait((opening,), timeout=_SPARK_WAITS_S)
        if opening.done():
            opening.result()
        dispatcher, task_count = await _start_spark(config, fetch, home, security.tls, stack)
        ends = await opening
    finally:
        opening.cancel()
        await asyncio.wait((opening,))
    return Components(
        home=home,
        dispatcher=dispatcher,
        task_count=task_count,
        etcd=ends.etcd,
        oracle=ends.oracle,
        thread=ends.thread,
        sink=ends.sink,
        cluster_id=ends.cluster_id,
        security=security,
        executors_fetch=fetch is not None,
        relay_log=ends.relay_log,
        is_upstream_gone=ends.is_upstream_gone,
    )


async def _open_ends(
    config: DrainerConfig, security: Security, stack: AsyncExitStack, stop: asyncio.Event
) -> _Ends:
    """Reach etcd and the downstream, through outages; raise what only an operator can mend."""
    etcd = connect(config.etcd_urls, tls=security.etcd_tls)
    stack.push_async_callback(asyncio.to_thread, etcd.close)
    pd_address = config.pd_address or None
    oracle = open_oracle(etcd, pd_address, security.tls, pd_tls=security.pd_tls)
    stack.push_async_callback(asyncio.to_thread, oracle.close)
    relay_log = await asyncio.to_thread(_open_relay_log, config.relay, stack)
    ask = functools.partial(find_cluster_id, etcd, pd_address, security.pd_tls, within_s=_RETRY_S)
    found = None
    if relay_log is not None and relay_log.cluster_id is not None:
        found = await _within(config.relay.upstream_timeout_s, insist(stop, "the cluster id", ask))
        cluster_id = relay_log.cluster_id if found is None else found
    else:
        found = cluster_id = await insist(stop, "the cluster id", ask)
    if found is not None:
        await asyncio.to_thread(warn_of_version, etcd)
    thread = SinkThread()
    sink = open_sink(config.downstream, cluster_id=cluster_id)

    async def close_sink() -> None:
        sink.close()
        if not await thread.close(_SINK_CLOSE_S):
            log.warning("the downstream does not answer; its open transaction will roll back")

    stack.push_async_callback(close_sink)
    stored = await unless_stopped(thread.call(sink.load_checkpoint), stop)
    if stored is not None and stored.is_torn:
        _refuse_torn(config.apply, stored.commit_ts)
    return _Ends(
        etcd=etcd,
        oracle=oracle,
        thread=thread,
        sink=sink,
        cluster_id=cluster_id,
        relay_log=relay_log,
        is_upstream_gone=found is None,
    )


async def with_new_sink(
    config: DrainerConfig, components: Components, stack: AsyncExitStack
) -> Components:
    """Return the same with a sink that knows nothing of an earlier time as the writer."""
    components.sink.close()
    sink = open_sink(config.downstream, cluster_id=components.cluster_id)
    stack.callback(sink.close)
    return replace(components, sink=sink)


def _open_relay_log(config: RelayConfig, stack: AsyncExitStack) -> RelayLog | None:
    """Return the relay log, None when there is to be none; the stack closes it."""
    if not config.log_dir:
        return None
    folder = Path(config.log_dir)
    stack.enter_context(Home(folder))  # For its lock.
    relay_log = RelayLog.open(folder, file_bytes_max=config.max_file_size)
    stack.callback(relay_log.close)
    return relay_log


async def _start_spark(
    config: DrainerConfig,
    fetch: FetchSettings | None,
    home: Home,
    tls: Tls | None,
    stack: AsyncExitStack,
) -> tuple[Dispatcher, int]:
    """Start the resident job in the background: it takes seconds."""
    spark = config.spark
    settings = SparkSettings(
        work_dir=home.spark_dir,
        output=home.path / "spark.log",
        master=spark.master,
        tasks=spark.tasks,
        driver_memory=spark.driver_memory,
        executor_memory=spark.executor_memory,
        host=spark.host,
        conf=spark.conf,
    )
    if tls is not None and not settings.is_local and _CRYPTO not in settings.conf:
        log.warning(
            "Spark passes the tasks' token to its executors in plain text: encrypt its own calls"
            " (spark.conf: spark.authenticate=true, %s)", _CRYPTO,
        )  # fmt: skip
    bundle = await asyncio.to_thread(Bundle.of_this_code)
    dispatcher = Dispatcher(spark.host, version=bundle.version, tls=tls)
    await dispatcher.start()
    address = (dispatcher.host, dispatcher.port)
    job = SparkJob(settings, bundle, address, dispatcher.token, fetch, dispatcher.digest)
    stack.push_async_callback(asyncio.to_thread, job.stop)
    stack.push_async_callback(dispatcher.close)
    job.start()
    watching = asyncio.create_task(watch_tasks(dispatcher, job.replace_session))
    stack.callback(watching.cancel)
    return dispatcher, settings.task_count


# --- what the active Drainer is made of --------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Active:
    """What follows the Pumps and writes the downstream, from one checkpoint on."""

    membership: Membership
    pumps: Pumps
    pipeline: Pipeline
    unlogged: Unlogged | None
    """Of a TiDB's stream."""


async def build_active(
    config: DrainerConfig,
    components: Components,
    front: Front,
    stack: AsyncExitStack,
    stop: asyncio.Event,
    former: str,
) -> Active:
    """Build what continues from the downstream's checkpoint; nothing of it runs yet.

    `former` is the node id of the one whose place this Drainer takes, empty if there was none.
    """
    pd_tls = components.security.pd_tls
    open_source = functools.partial(open_job_source, config.pd_address, components.etcd, pd_tls)
    source = await insist(stop, "the source of DDL jobs", open_source)
    checkpoint = await starting_point(config, components, source, stop)
    schema = await _starting_schema(config, components, source, checkpoint, stop, former)
    checkpoint = replace(checkpoint, overrides=schema.overrides, has_all_overrides=True)
    relay = await _relay_stage(components, checkpoint, schema.jobs, stack)
    sink, tls = components.sink, components.security.tls
    jobs = NotedJobs(source, schema, relay)
    progress = Progress(
        checkpoint,
        waits_for=sink.waits_for,
        ddl_waits_for=jobs.waits_for,
        stand_ins=sink.stand_ins,
        file_counts=sink.file_counts if isinstance(sink, FileCountingSink) else FileCounts(),
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
    pumps = Pumps(merger, membership, who, config.buffer_bytes, checkpoint.pumps)
    note = functools.partial(components.home.note_downstream, output_of(config.downstream))
    progress.on_commit = functools.partial(_count, pumps.counters, membership.lag_s, note)
    stream = Stream(
        feed=pumps,
        merger=merger,
        fetch_job=jobs.fetch,
        relay=relay,
        checkpoint_interval_s=config.checkpoint_interval_s,
        fetching=Fetching(*pumps.ids, pumps.addresses, schema.tracker) if fetches else None,
        catch_up=jobs.catch_up(source, checkpoint) if isinstance(source, TidbJobs) else None,
    )
    pipeline = build_pipeline(config, components, stream, schema, progress)
    unlogged = None
    if config.pd_address:  # The tracker's catalog is another object after an override.
        unlogged = Unlogged(components.etcd, lambda: schema.tracker.catalog.tables())
    return Active(membership=membership, pumps=pumps, pipeline=pipeline, unlogged=unlogged)


def _count(
    counters: Counters,
    lag_s: Callable[[], float],
    note: Callable[[], None],
    step: Step,
    commit_s: float,
) -> None:
    """Count a step that is downstream now."""
    note()
    is_ddl = isinstance(step, DdlStep)
    has_changes = not isinstance(step, RowsStep) or step.rows > 0
    counters.committed(commit_s, lag_s(), is_ddl=is_ddl, has_changes=has_changes)


async def starting_point(
    config: DrainerConfig, components: Components, source: JobSource, stop: asyncio.Event
) -> Checkpoint:
    """Return where to continue; on a fresh downstream, where the settings say to start."""
    load = components.thread.call(components.sink.load_checkpoint)
    found = await unless_stopped(load, stop)
    await check_not_behind(config, components, found, stop)
    if found is not None and (found.commit_ts or found.ddl_intent_ts):
        if found.is_torn:
            _refuse_torn(config.apply, found.commit_ts)
        log.info("continuing after commit_ts %d", found.commit_ts)
        if found.ddl_intent_ts:
            log.info("the DDL at %d may have run already", found.ddl_intent_ts)
        return found
    start_ts = config.initial_commit_ts
    if start_ts < 0:
        start_ts = await insist(stop, "the present timestamp", components.oracle.get_ts)
    if start_ts > 0:  # A DDL that was committed by then may still be without a job.
        await insist(stop, "the schema of the beginning", source.check_settled)
    log.info("the downstream has no checkpoint; starting after commit_ts %d", start_ts)
    fresh = Checkpoint(start_ts, 0)
    if found is None:
        return fresh
    # An operator was there before any Drainer.
    return replace(fresh, overrides=found.overrides, has_all_overrides=found.has_all_overrides)


async def check_not_behind(
    config: DrainerConfig, components: Components, found: Checkpoint | None, stop: asyncio.Event
) -> None:
    """Raise `NeedsOperator` for a downstream that lacks what this Drainer had brought to it.

    How far that was is in etcd, and which downstream it was in the data directory. Tables that
    went back together with their checkpoint are continued there, for that is the right state; of
    messages readers would get some twice, or see them replaced.
    """
    home = components.home
    if home.downstream() != output_of(config.downstream):
        if found is not None and found.commit_ts:
            home.note_downstream(output_of(config.downstream))
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


def _refuse_torn(config: ApplyConfig, commit_ts: int) -> None:
    """Raise `NeedsOperator` where rows of later transactions may be downstream, in parts.

    Statements in their safe form replace what is there already.
    """
    problem = (
        f"TiDB-Binlog's Drainer, whose checkpoint is at {commit_ts}, did not end in order: rows of"
        " transactions after it may be in the downstream already"
    )
    if config.strategy == "statements" and config.safe_mode:
        log.warning("%s; safe mode writes them again", problem)
        return
    raise NeedsOperator(
        problem,
        hint="start that Drainer again and let it end in order (binlogctl pause-drainer), which"
        " makes the checkpoint consistent; then start this one",
        code=Code.CHECKPOINT_INCONSISTENT,
    )


async def _starting_schema(
    config: DrainerConfig,
    components: Components,
    source: JobSource,
    checkpoint: Checkpoint,
    stop: asyncio.Event,
    former: str,
) -> StartingSchema:
    """Return the schema at the checkpoint, through outages of etcd, or of a TiDB.

    A history that does not lead to the checkpoint's schema version raises NeedsOperator.
    """
    etcd, home = components.etcd, components.home
    recorded = {}
    if not checkpoint.has_all_overrides:
        node_id = home.known_node_id(config.node_id, config.advertise_addr or config.addr)
        ask = functools.partial(recorded_overrides, etcd, [node_id, *filter(None, [former])])
        recorded = await insist(stop, "the overrides of DDL", ask)
    overrides = checkpoint.overrides_with(recorded)
    file = SnapshotFile(home.path, components.cluster_id, source, overrides)
    # A relay log keeps the jobs themselves, for the day when etcd is gone.
    whole = bool(config.relay.log_dir)
    load = functools.partial(schema_from, source, file, checkpoint, overrides, whole=whole)
    return await insist(stop, "the DDL history", load)


async def _relay_stage(
    components: Components, checkpoint: Checkpoint, jobs: Sequence[DdlJob], stack: AsyncExitStack
) -> Relay:
    """Return the relay log's stage, continuing after the checkpoint, if there is to be one."""
    relay_log = components.relay_log
    if relay_log is None:
        return NoRelay()
    await asyncio.to_thread(relay_log.start, components.cluster_id, checkpoint.commit_ts, jobs)
    stage = RelayStage(relay_log)
    stack.push_async_callback(stage.close)
    log.info("the relay log in %s continues after %d", relay_log.folder, relay_log.last_ts)
    return stage


# --- the pipeline ------------------------------------------------------------------------------


class Stream(NamedTuple):
    """What a pipeline is fed from: the Pumps by way of the merger, or the relay log."""

    feed: Feed
    merger: Merge
    fetch_job: Callable[[DdlStep], Awaitable[DdlJob]]
    relay: Relay
    checkpoint_interval_s: float
    fetching: Fetching | None = None
    catch_up: CatchUp | None = None


def build_pipeline(
    config: DrainerConfig,
    components: Components,
    stream: Stream,
    schema: StartingSchema,
    progress: Progress,
) -> Pipeline:
    """Build what takes a stream to the downstream, from the checkpoint in `progress` on."""
    checkpoint, schemas = progress.checkpoint, schema.tracker
    selection = selection_of(config, schemas)
    sink = components.sink
    gathering = sink.gathering if isinstance(sink, GatheringSink) else None
    planner = Planner(
        selection.lookup,
        rows_max=gathering.rows_max if gathering else config.batch_rows_max,
        bytes_max=gathering.bytes_max if gathering else _batch_bytes_max(config, sink),
        ignored_ts=config.ignored_ts,
        whole_ts=checkpoint.applying_ts if config.strategy in ("merge", "events") else 0,
        origins=checkpoint.origins,
        ahead=None if stream.catch_up is None else stream.catch_up.ahead,
    )
    way_out = functools.partial(with_way_out, flags=config.as_flags)
    follower = DdlFollower(
        schemas,
        stream.fetch_job,
        overrides=schema.overrides,
        ignored_ts=config.ignored_ts,
        route=selection.route,
        way_out=way_out,
    )
    source = Source(
        merger=stream.merger,
        planner=planner,
        pumps=stream.feed,
        schemas=schemas,
        follow_ddl=follower.follow,
        way_out=way_out,
        relay=stream.relay,
        fetching=stream.fetching,
        catch_up=stream.catch_up,
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
        source,
        downstream,
        progress,
        checkpoint_interval_s=gathering.seconds if gathering else stream.checkpoint_interval_s,
        gathers=gathering is not None,
    )


def _batch_bytes_max(config: DrainerConfig, sink: Sink) -> int:
    """Return at how many bytes a batch is cut: where the settings say, or the downstream before."""
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
"""How a transaction that lies on the disk is prepared."""


def build_strategy(
    config: DrainerConfig, components: Components, start: Checkpoint
) -> tuple[Strategy, Large]:
    """Build the strategy that the settings name, for a downstream that is at `start`.

    Raises `NeedsOperator` when the downstream cannot be written in that way.
    """
    sink, thread = components.sink, components.thread
    if config.strategy == "events":
        events_sink = cast(EventSink, sink)  # The settings were checked: its URL is of such a one.
        parts = components.task_count
        events = Events(components.dispatcher, events_sink, thread, parts=parts)
        large = LargeTransactions(events.of_slice, events_sink.put_slices, sink, thread)
        return events, large.prepare
    table_sink = cast(TableSink, sink)
    generation = Generation(
        components.dispatcher, parts=components.task_count, dialect=table_sink.dialect
    )
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
        sql_sink = cast(SqlSink, sink)  # The settings were checked here, too.
        queues = Queues(
            workers=config.worker_count,
            txn_batch=config.txn_batch,
            dispatch=config.dispatch,
            safe_mode=config.safe_mode,
        )
        return EachChange(
            components.dispatcher,
            sql_sink,
            thread,
            queues=queues,
            parts=components.task_count,
            start=start,
        )
    if config.mode == "snapshot":
        return Snapshot(generation, sink, thread, start)
    if not isinstance(sink, PartitionedSink):
        raise NeedsOperator(
            "mode parallel needs a downstream that takes commits on several connections at once",
            hint="use mode snapshot for this downstream",
            code=Code.SETTINGS_CONTRADICT,
        )
    return Parallel(generation, sink, thread, connections=config.connections, start=start)


# --- waiting through outages -------------------------------------------------------------------


class StoppedEarly(Exception):
    """Asked to stop before the Drainer was up."""


async def unless_stopped(asking: Coroutine[Any, Any, T], stop: asyncio.Event) -> T:
    """Return the answer; raise `StoppedEarly` when asked to stop before there is one."""
    answering, stopping = asyncio.create_task(asking), asyncio.create_task(stop.wait())
    try:
        await asyncio.wait((answering, stopping), return_when=asyncio.FIRST_COMPLETED)
        if not answering.done():
            raise StoppedEarly
        return answering.result()
    finally:
        answering.cancel()
        stopping.cancel()


async def _within(timeout_s: float, asking: Coroutine[Any, Any, T]) -> T | None:
    """Return the answer, None when there is none in time."""
    try:
        async with asyncio.timeout(timeout_s):
            return await asking
    except TimeoutError:
        return None


async def insist(stop: asyncio.Event, what: str, ask: Callable[[], T]) -> T:
    """Return the first answer, through outages; raise `StoppedEarly` when asked to stop before."""
    while not stop.is_set():
        try:
            return await asyncio.to_thread(ask)
        except Retryable as error:
            log.error("cannot get %s, trying again: %s", what, error)
        try:
            async with asyncio.timeout(_RETRY_S):
                await stop.wait()
        except TimeoutError:
            continue
    raise StoppedEarly
