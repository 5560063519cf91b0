"""Open what a Drainer is made of, through outages: lock, etcd, oracle, downstream, Spark."""

from __future__ import annotations

import asyncio
import functools
import logging
import os
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from drainer.home import Home
from drainer.relay_log.log import RelayLog
from drainer.settings.config import DrainerConfig, RelayConfig
from drainer.sinks.checkpoint import Checkpoint
from drainer.sinks.opening import open_sink
from drainer.sinks.protocol import Sink
from drainer.sinks.thread import SinkThread
from drainer.spark.coordinator import Coordinator
from drainer.spark.fetch_batch import fetch_settings
from drainer.spark.job import SparkJob, SparkSettings
from drainer.spark.jvm import use_java
from drainer.task.fetch_unit import FetchSettings
from drainer.task.version import Bundle
from penstock.cluster.etcd import EtcdClient, connect
from penstock.cluster.registry import Registry
from penstock.errors import Retryable
from penstock.oracle.client import Oracle, open_oracle
from penstock.security.tls import Security

log = logging.getLogger(__name__)

_RETRY_S = 2.0
_SINK_CLOSE_S = 5.0
_SPARK_WAITS_S = 2.0
"""How long Spark waits for all to be checked; longer than that, something is away."""

T = TypeVar("T")


class StoppedEarly(Exception):
    """Asked to stop before the Drainer was up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """What a Drainer is made of, opened and ready."""

    home: Home
    coordinator: Coordinator
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


async def open_parts(config: DrainerConfig, stack: AsyncExitStack, stop: asyncio.Event) -> Parts:
    """Open everything; the stack closes it, the last opened first.

    Spark comes last, because what stops a Drainer is to be said before it takes its seconds; but
    it does not wait for an etcd or a downstream that is away, and starts in the meantime.
    """
    open_sink(config.downstream, cluster_id=0)  # Contacts nothing: its URL, options, password.
    security = Security(config.security)
    java = asyncio.create_task(asyncio.to_thread(use_java))
    home = stack.enter_context(Home(config.data_dir))
    fetch = fetch_settings(config)
    os.environ["JAVA_HOME"] = str(await java)
    opening = asyncio.create_task(_open_ends(config, security, stack, stop))
    try:
        await asyncio.wait((opening,), timeout=_SPARK_WAITS_S)
        if opening.done():
            opening.result()
        coordinator, task_count = await _start_spark(config, fetch, home, stack)
        ends = await opening
    finally:
        opening.cancel()
        await asyncio.wait((opening,))
    return Parts(
        home=home,
        coordinator=coordinator,
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
    relay_log = await asyncio.to_thread(open_relay_log, config.relay, stack)
    ask = functools.partial(_cluster_id, etcd, oracle if config.pd_address else None)
    found = None
    if relay_log is not None and relay_log.cluster_id is not None:
        found = await within(config.relay.upstream_timeout_s, insist(stop, "the cluster id", ask))
        cluster_id = relay_log.cluster_id if found is None else found
    else:
        found = cluster_id = await insist(stop, "the cluster id", ask)
    thread = SinkThread()
    sink = open_sink(config.downstream, cluster_id=cluster_id)

    async def close_sink() -> None:
        sink.close()
        if not await thread.close(_SINK_CLOSE_S):
            log.warning("the downstream does not answer; its open transaction will roll back")

    stack.push_async_callback(close_sink)
    await unless_stopped(thread.call(sink.load_checkpoint), stop)
    return _Ends(
        etcd=etcd,
        oracle=oracle,
        thread=thread,
        sink=sink,
        cluster_id=cluster_id,
        relay_log=relay_log,
        is_upstream_gone=found is None,
    )


async def with_new_sink(config: DrainerConfig, parts: Parts, stack: AsyncExitStack) -> Parts:
    """Return the same with a sink that knows nothing of an earlier stint as the writer."""
    parts.sink.close()
    sink = open_sink(config.downstream, cluster_id=parts.cluster_id)
    stack.callback(sink.close)
    return replace(parts, sink=sink)


def open_relay_log(config: RelayConfig, stack: AsyncExitStack) -> RelayLog | None:
    """Return the relay log, None when there is to be none; the stack closes it."""
    if not config.log_dir:
        return None
    folder = Path(config.log_dir)
    stack.enter_context(Home(folder))  # For its lock.
    relay_log = RelayLog.open(folder, file_bytes_max=config.max_file_size)
    stack.callback(relay_log.close)
    return relay_log


def _cluster_id(etcd: EtcdClient, pd: Oracle | None) -> int:
    """Ask etcd, and PD if there is one: both must answer for the upstream to be there."""
    if pd is not None:
        pd.get_ts()
    return Registry(etcd).cluster_id()


async def _start_spark(
    config: DrainerConfig, fetch: FetchSettings | None, home: Home, stack: AsyncExitStack
) -> tuple[Coordinator, int]:
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
    bundle = await asyncio.to_thread(Bundle.of_this_code)
    coordinator = Coordinator(spark.host, version=bundle.version)
    await coordinator.start()
    address = (coordinator.host, coordinator.port)
    job = SparkJob(settings, bundle, address, coordinator.token, fetch)
    stack.push_async_callback(asyncio.to_thread, job.stop)
    stack.push_async_callback(coordinator.close)
    job.start()
    return coordinator, settings.task_count


async def starting_point(config: DrainerConfig, parts: Parts, stop: asyncio.Event) -> Checkpoint:
    """Return where to continue; on a fresh downstream, where the settings say to start."""
    found = await unless_stopped(parts.thread.call(parts.sink.load_checkpoint), stop)
    if found is not None and (found.commit_ts or found.ddl_intent_ts):
        log.info("continuing after commit_ts %d", found.commit_ts)
        if found.ddl_intent_ts:
            log.info("the DDL at %d may have run already", found.ddl_intent_ts)
        return found
    start_ts = config.initial_commit_ts
    if start_ts < 0:
        start_ts = await insist(stop, "the present timestamp", parts.oracle.get_ts)
    log.info("the downstream has no checkpoint; starting after commit_ts %d", start_ts)
    fresh = Checkpoint(start_ts, 0)
    if found is None:
        return fresh
    # An operator was there before any Drainer.
    return replace(fresh, overrides=found.overrides, has_all_overrides=found.has_all_overrides)


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


async def within(timeout_s: float, asking: Coroutine[Any, Any, T]) -> T | None:
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
            log.error("cannot get %s, trying again (is etcd up? --etcd-urls): %s", what, error)
        try:
            async with asyncio.timeout(_RETRY_S):
                await stop.wait()
        except TimeoutError:
            continue
    raise StoppedEarly
