"""Feed: pulls, merges and decodes for one reader, in an event loop, from one place on.

    fill:   merge ── below the limit of the last listing of Pumps ── decode ──> one portion waits
    beside: passes over the list of Pumps, heartbeats under a name, the cluster's time

Memory holds at most `buffer_bytes` in front of the merge, one run that waits and one that is being
decoded (about 1 MiB each, and one message for each Pump), and 5 MiB of a large transaction.

**A reader with a name** has an entry in etcd:

    /tidb-binlog/v1/drainers/<name>   state `reading` while it runs, `paused` after it has closed

`max_commit_ts` there is the program's acknowledged position: Pumps purge nothing after it, and a
Pump that leaves waits for it, as for a Drainer's checkpoint. The host is reader@MACHINE:0, on which
nothing listens, and which identifies such an entry (`NodeStatus.is_reader`). The label names the
run. If two readers take a name at the same moment, the first finds the second's label, and stops.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
import secrets
import socket
import tempfile
import time
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Final

import grpc

from drainer.cluster.membership import Membership
from drainer.ddl.follower import DdlFollower, NotedJobs
from drainer.ddl.jobs import JobSource, TidbJobs, open_job_source
from drainer.ddl.starting_schema import StartingSchema, schema_from_history
from drainer.intake.merge_holder import PumpView
from drainer.intake.merger import Merger
from drainer.intake.puller import Who
from drainer.intake.pump_set import Pumps
from drainer.intake.spool import Spool
from drainer.sinks.checkpoint import Checkpoint
from drainer.stream.decoder import Decoder, Portion, Reached
from drainer.task.row_fetch import HINTS
from drainer.task.selection import Selection
from penstock.cluster.etcd import connect
from penstock.cluster.node_registry import (
    READER,
    NodeKind,
    NodeState,
    NodeStatus,
    Registry,
    Statuses,
)
from penstock.codes import Code
from penstock.ddl import SchemaChange
from penstock.errors import NeedsOperator, Retryable
from penstock.filters import FilterConfig, Rules
from penstock.oracle.client import Oracle, find_cluster_id, open_oracle
from penstock.security.tls import Tls
from penstock.settings.setting import out_of_range

log = logging.getLogger(__name__)

BEGINNING: Final = 0
"""The start of all history."""
NOW: Final = -1
"""Only changes that are committed from now on."""

_RETRY_S = 1.0
_HINTS = {
    **HINTS,
    grpc.StatusCode.OUT_OF_RANGE: "begin with a fresh copy of the data, and read after its"
    " commit_ts; a reader with a name keeps Pumps from purging what it has not acknowledged",
    grpc.StatusCode.FAILED_PRECONDITION: "check the cluster that this reader was pointed at",
    grpc.StatusCode.PERMISSION_DENIED: "check the cluster that this reader was pointed at",
}


@dataclass(frozen=True, kw_only=True)
class ReaderOptions:
    """Settings of a reader that few programs ever need to change."""

    # Addresses of the PDs if a TiDB is the writer, comma-separated; its DDL comes from there.
    pd_address: str = ""
    # For an etcd and a PD at https://; None means the `tls` for the Pumps.
    etcd_tls: Tls | None = None
    pd_tls: Tls | None = None
    # The name of this upstream in routes with extract-source.
    source_id: str = ""
    # commit_ts of transactions that are skipped; a DDL among them is still followed.
    ignored_ts: frozenset[int] = frozenset()
    # commit_ts of transactions before which some of their source may be missing (PS-6015).
    accepted_gap_ts: frozenset[int] = frozenset()
    # How many bytes of all Pumps may wait for the merge.
    buffer_bytes: int = 16 << 20
    # Larger transactions go through a file, one for each Pump at a time.
    large_bytes: int = 8 << 20
    # The folder of those files; None means the system's folder for temporary files.
    spool_dir: str | Path | None = None
    # How often the Pumps are listed while changes arrive: the longest delay that this adds.
    list_interval_s: float = 0.1

    def __post_init__(self) -> None:
        """Raise `NeedsOperator` for a value out of range."""
        for name in ("buffer_bytes", "large_bytes", "list_interval_s"):
            if getattr(self, name) <= 0:
                raise out_of_range(name, getattr(self, name), "it must be above zero")


def _begin(after: int | str, name: str) -> int | Reached:
    """Return the start position; raise `NeedsOperator` if it or the name is invalid."""
    if name:
        check_name(name)
    if isinstance(after, str):
        return Reached.from_text(after)
    if type(after) is not int or not NOW <= after < 1 << 63:
        raise NeedsOperator(
            f"nothing is after {after!r}",
            "give BEGINNING, NOW, a commit_ts or a checkpoint",
            Code.READER_MISUSED,
        )
    return after


async def open_feed(
    etcd_urls: str,
    *,
    after: int | str,
    name: str,
    filter: FilterConfig | None,
    tls: Tls | None,
    options: ReaderOptions | None,
    made: Callable[..., ReaderFeed] | None = None,
) -> ReaderFeed:
    """Connect and start pulling; raise `Retryable` if etcd, oracle or a PD does not answer.

    The feed is `made` by a `ReaderFeed`, or by a class derived from it.
    """
    begin = _begin(after, name)
    options = options or ReaderOptions()
    if tls is not None:
        tls.check()
    pd_tls = options.pd_tls or tls
    async with AsyncExitStack() as stack:
        etcd = connect(etcd_urls, tls=options.etcd_tls or tls)
        stack.push_async_callback(asyncio.to_thread, etcd.close)
        pd_address = options.pd_address or None
        cluster_id = await asyncio.to_thread(find_cluster_id, etcd, pd_address, pd_tls)
        oracle = open_oracle(etcd, pd_address, tls, pd_tls=pd_tls)
        stack.push_async_callback(asyncio.to_thread, oracle.close)
        source = await asyncio.to_thread(open_job_source, options.pd_address, etcd, pd_tls)
        start = await asyncio.to_thread(_start, begin, cluster_id, oracle, source)
        schema = await asyncio.to_thread(schema_from_history, source, start.checkpoint)
        folder = await asyncio.to_thread(_spool_folder, options.spool_dir, stack)
        spool = Spool(folder, bytes_max=options.large_bytes)
        feed = (made or ReaderFeed)(
            start,
            spool,
            Registry(etcd),
            oracle,
            source,
            schema,
            name=name,
            filter=filter,
            tls=tls,
            options=options,
        )
        stack.push_async_callback(feed.end)
        await feed.begin()
        feed.resources = stack.pop_all()
    return feed


def _start(begin: int | Reached, cluster_id: int, oracle: Oracle, source: JobSource) -> Reached:
    if isinstance(begin, Reached):
        if begin.cluster_id != cluster_id:
            raise NeedsOperator(
                f"the checkpoint is of cluster {begin.cluster_id}, and this etcd is that of cluster"
                f" {cluster_id}",
                "check the address of etcd, and whose checkpoint this is",
                Code.CLUSTER_MISMATCH,
            )
        return begin
    start_ts = oracle.get_ts() if begin == NOW else begin
    if start_ts > 0:  # An earlier DDL may still be without a job.
        source.check_settled()
    return Reached(cluster_id, Checkpoint(start_ts, 0))


def _spool_folder(wanted: str | Path | None, stack: AsyncExitStack) -> Path:
    try:
        made = tempfile.TemporaryDirectory(prefix="penstock-reader-", dir=wanted)
    except OSError as error:
        raise NeedsOperator(
            f"there is no place for large transactions: {error}",
            "set spool_dir",
            Code.PATH_UNUSABLE,
        ) from error
    stack.push_async_callback(asyncio.to_thread, made.cleanup)
    return Path(made.name)


def _as_it_is(error: NeedsOperator, ts: int, change: SchemaChange | None) -> NeedsOperator:
    """Return the error of a DDL; a reader has no downstream where a substitute could run."""
    return NeedsOperator(f"DDL at {ts}: {error.problem}", error.hint, error.code)


class ReaderFeed:
    """A reader's source; belongs to one event loop."""

    decoding: ClassVar[type[Decoder]] = Decoder
    metadata_only: ClassVar[bool] = False
    """True for a `decoding` that leaves the rows on the Pumps."""

    def __init__(
        self,
        start: Reached,
        spool: Spool,
        registry: Registry,
        oracle: Oracle,
        source: JobSource,
        schema: StartingSchema,
        *,
        name: str,
        filter: FilterConfig | None,
        tls: Tls | None,
        options: ReaderOptions,
    ) -> None:
        self.start = start
        self.acknowledged_ts = start.checkpoint.commit_ts
        self.resources = AsyncExitStack()
        """Further resources to close at the end."""
        self._name, self._list_interval_s = name, options.list_interval_s
        self._registry = registry
        checkpoint = start.checkpoint
        self._membership = ReaderMembership(registry, oracle, name, lambda: self.acknowledged_ts)
        node_id = self._membership.node_id
        self._merger = Merger(checkpoint.commit_ts, options.ignored_ts)
        who = self._who(start.cluster_id, node_id, spool, tls)
        self._pumps = Pumps(
            self._merger, self._membership, who, options.buffer_bytes, checkpoint.pumps
        )
        schemas = schema.tracker
        selection = Selection(Rules(filter, source_id=options.source_id), schemas)
        self._jobs = NotedJobs(source, schema)
        follower = DdlFollower(
            schemas,
            self._jobs.fetch,
            overrides={},
            ignored_ts=options.ignored_ts,
            route=selection.route,
            refused=_as_it_is,
        )
        catch_up = None
        if isinstance(source, TidbJobs):
            catch_up = self._jobs.catch_up(source, checkpoint)
        self.decoder = self.decoding(
            start,
            schemas,
            lookup=selection.lookup,
            follow=follower.follow,
            ignored_ts=options.ignored_ts,
            accepted_gap_ts=options.accepted_gap_ts,
            catch_up=catch_up,
        )
        self._listed_ts, self._looked_s = checkpoint.commit_ts, float("-inf")
        self._tasks: list[asyncio.Task[None]] = []
        self._portion: Portion | None = None
        self._filled, self._emptied = asyncio.Event(), asyncio.Event()
        self._failure: BaseException | None = None
        self._problem = ""
        self._is_new = False
        self._is_closed = False

    def _who(self, cluster_id: int, node_id: str, spool: Spool, tls: Tls | None) -> Who:
        only = self.metadata_only
        return Who(cluster_id, node_id, spool, tls=tls, metadata_only=only, hints=_HINTS)

    async def begin(self) -> None:
        if self._name:
            self._is_new = not await asyncio.to_thread(take_name, self._registry, self._name)
            await self._membership.refuse_gap()
        await self._pumps.refresh()
        self._is_new = False
        self._begin_task(self._fill())
        self._begin_task(self._pumps.run(HEARTBEAT_S))
        self._begin_task(self._membership.keep_time())

    def _begin_task(self, work: Coroutine[Any, Any, None]) -> None:
        def ended(task: asyncio.Task[None]) -> None:
            if not task.cancelled() and self._failure is None:
                self._failure = task.exception()
                self._filled.set()

        task = asyncio.create_task(work)
        task.add_done_callback(ended)
        self._tasks.append(task)

    async def more(self) -> Portion | None:
        """Return the next portion, None once this is closed; may be cancelled, and loses nothing.

        Raises the error that stopped the stream, at each call.
        """
        while not self._is_closed:
            if self._portion is not None:
                portion, self._portion = self._portion, None
                self._emptied.set()
                return portion
            if self._failure is not None:
                raise self._failure
            self._filled.clear()
            await self._filled.wait()
        return None

    async def _fill(self) -> None:
        while True:
            self._pumps.arrived.clear()
            merged = self._pumps.take(self._listed_ts)
            if merged is not None:
                portion = await self.decoder.decode(merged, self._pumps.participants())
                del merged
                while self._portion is not None:
                    self._emptied.clear()
                    await self._emptied.wait()
                self._portion = portion
                del portion
                self._filled.set()
            elif self._merger.watermark > self._listed_ts:
                await self._look()
            else:
                self._pumps.hurry()
                await self._pumps.arrived.wait()

    async def _look(self) -> None:
        """List the Pumps; binlogs at or below the previous watermark may pass afterwards."""
        loop, interval_s = asyncio.get_running_loop(), self._list_interval_s
        await asyncio.sleep(max(0.0, self._looked_s + interval_s - loop.time()))
        self._looked_s, watermark = loop.time(), self._merger.watermark
        try:
            await self._pumps.refresh()
        except Retryable as error:
            self._problem = f"the list of Pumps cannot be read: {error}"
            await asyncio.sleep(_RETRY_S)
        else:
            self._problem = ""
            self._listed_ts = max(self._listed_ts, watermark)

    def waits_for(self) -> str:
        """Return the cause that blocks the stream and its remedy; empty while it advances."""
        merge = self._pumps.facts()
        reasons = [self._problem, self._jobs.waits_for(), merge.held_by, merge.held_by_remedy]
        return "; ".join(filter(None, reasons))

    def pumps(self) -> list[PumpView]:
        return self._pumps.views()

    def addresses(self) -> dict[str, str]:
        return self._pumps.addresses()

    async def close(self) -> None:
        """Stop everything; `more` returns None from now on."""
        if not self._is_closed:
            self._is_closed = True
            self._filled.set()
            await self.resources.aclose()

    async def end(self) -> None:
        """Stop pulling and leave the cluster; a named reader keeps its position."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        await self._pumps.close()
        await self._membership.leave(NodeState.PAUSED, is_new=self._is_new)


HEARTBEAT_S: Final = 1.0
WATCHED_S: Final = 3.5
"""A running reader shows that it runs within so many seconds."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_LOOK_S: Final = 0.1


class ReaderMembership(Membership):
    """A reader's entry under its name; without a name it writes nothing to etcd."""

    def __init__(
        self, registry: Registry, oracle: Oracle, name: str, acknowledged_ts: Callable[[], int]
    ) -> None:
        machine = socket.gethostname()
        node_id, host = name or f"reader-{machine}-{os.getpid()}", f"{READER}{machine}:0"
        super().__init__(
            registry, oracle, node_id=node_id, host=host, checkpoint_ts=acknowledged_ts
        )
        self.state = NodeState.READING
        self._is_named = bool(name)
        self._label = {"run": secrets.token_hex(8)}
        self._listed_s = float("-inf")

    def _status(self) -> NodeStatus:
        return replace(super()._status(), label=self._label)

    def _publish_and_list(self, status: NodeStatus) -> Statuses:
        """List the Pumps; publish only occasionally, because nothing needs this status to be fresh.

        Raises `NeedsOperator` if another reader has taken the name since.
        """
        now_s = time.monotonic()
        if not self._is_named or now_s - self._listed_s < HEARTBEAT_S / 2:
            return self._list()
        if self._is_listed:
            found = self._registry.get(NodeKind.DRAINER, self.node_id)
            if found is not None and found.is_reader and found.label != self._label:
                self._is_listed = False
                raise _taken(found)
        self._listed_s = now_s
        return super()._publish_and_list(status)

    async def list_again(self, pump: NodeStatus) -> None:
        """List a Pump again; a reader without a name waits for it anyway."""
        if self._is_named:
            await super().list_again(pump)

    async def publish(self, state: NodeState) -> None:
        if self._is_named:
            await super().publish(state)


def check_name(name: str) -> None:
    """Raise `NeedsOperator` for an invalid name."""
    if not _NAME.fullmatch(name):
        raise NeedsOperator(
            f"{name!r} is no name for a reader",
            "up to 100 letters, digits, dots, dashes and underscores, the first one no mark",
            Code.READER_MISUSED,
        )


def take_name(registry: Registry, name: str, *, watched_s: float = WATCHED_S) -> bool:
    """Return whether a reader of that name has existed before; blocking.

    Raises `NeedsOperator` if the name is a Drainer's, or a running reader's.

    A reader that has not reported its stop may have been killed: it is watched for `watched_s`,
    unless a Pump has already found it silent. May be Retryable.
    """
    found = registry.get(NodeKind.DRAINER, name)
    if found is None:
        return False
    if not found.is_reader:
        raise NeedsOperator(
            f"{name} is the name of the Drainer at {found.host}",
            "give the reader another",
            Code.NODE_ID_TAKEN,
        )
    if found.state is not NodeState.READING or registry.silent().get(name) == found.update_ts:
        return True
    end_s = time.monotonic() + watched_s
    while time.monotonic() < end_s:
        time.sleep(_LOOK_S)
        last = registry.get(NodeKind.DRAINER, name)
        if last is None or last.state is not NodeState.READING:
            return True
        if last.update_ts != found.update_ts:
            raise _taken(last)
    return True


def _taken(other: NodeStatus) -> NeedsOperator:
    machine = other.host.removeprefix(READER).rpartition(":")[0]
    return NeedsOperator(
        f"a reader on {machine} runs under the name {other.node_id}",
        "stop it, or give this one another name",
        Code.NODE_ID_TAKEN,
    )
