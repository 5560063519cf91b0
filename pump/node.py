"""Node: one run of a Pump, from an empty process to a clean shutdown.

port bound, pages ─ storage open ─ etcd, cluster id ─ serving ─ oracle ─ Drainers notified ─ online
     └─ Commits and pulls are served from `serving` on, Prewrites from `online` on
pausing ─ a grace for open transactions ─ pulls ended ─ port closed ─ storage closed ─ paused
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from functools import partial
from typing import TypeVar

from penstock.cluster.etcd import connect, warn_of_version
from penstock.cluster.log_entry import LogEntry
from penstock.cluster.node_registry import NodeState, Registry
from penstock.codes import Code
from penstock.errors import Corrupt, PenstockError, Retryable, coded
from penstock.node import service
from penstock.oracle.client import find_cluster_id
from penstock.security.tls import Security
from penstock.waiting import set_within
from pump.build import build, identity_of
from pump.cluster.identity import begin_run, has_disk_id, refuse_foreign, refuse_other_cluster
from pump.cluster.membership import last_word_of
from pump.config import PumpConfig
from pump.counters import Counters, MeteredFiles
from pump.facts import Components
from pump.operator import Operator
from pump.pages import Pages
from pump.replication.claiming import Claimed, Fenced
from pump.replication.replicas import REPLICA_SERVICE, ReplicaService
from pump.replication.replication import Replication
from pump.replication.shipping import Deposed, Shipping
from pump.service.grpc_server import SERVER_GRACE_S, Entrance
from pump.store.storage import Storage

log = logging.getLogger(__name__)

T = TypeVar("T")

_ETCD_RETRY_S = 2.0
_GROUPS_END_S = 5.0
_PD_ANSWERS_S = 2.0
_GRACE_TICK_S = 0.05
_AGAIN_S = 1.0


async def run(config: PumpConfig, stop: asyncio.Event) -> None:
    """Run until `stop` is set or a command ends the Pump; raise errors no retry can cure."""
    security = Security(config.security)
    refuse_foreign(config.data_dir, is_failover=bool(config.taken_over_by))
    async with AsyncExitStack() as stack:
        counters = Counters()
        entrance = Entrance(config, security)
        stack.push_async_callback(entrance.close)
        await entrance.start()
        opening = await _opened_or_damaged(config, counters, stack)
        etcd = connect(config.etcd_urls, tls=security.etcd_tls)
        stack.push_async_callback(asyncio.to_thread, etcd.close)
        entrance.waits_for = f"{_sources(config)} has not answered yet"
        pd = (config.pd_address, security.pd_tls)
        ask = partial(find_cluster_id, etcd, *pd, within_s=_PD_ANSWERS_S)
        if (cluster_id := await _first_answer(ask, config, stop)) is None:
            return
        refuse_other_cluster(config.data_dir, cluster_id)
        log.info("cluster %d", cluster_id)
        await asyncio.to_thread(warn_of_version, etcd)
        identity = identity_of(config, entrance.port)
        opens = partial(Replication, config, identity, etcd, cluster_id, security.tls)
        if (replication := await _first_answer(opens, config, stop)) is None:
            return
        stack.push_async_callback(replication.end)
        if (taken := await replication.take_copies()) is not None:
            ReplicaService(taken).add_to(entrance.server)
            entrance.let_in.add(f"/{REPLICA_SERVICE}/")
            await _first_answer(replication.offer, config, stop)
        opened = partial(_opened, config, counters, stack)
        repaired = _repaired(opening, replication, opened, entrance, stop)
        if (storage := await repaired) is None:
            return
        start = Startup(replication, partial(setattr, entrance, "waits_for"), stop)
        found = await start.run(storage, opened, stack)
        if found is None:
            await replication.drain()
            return
        storage, shipping = found
        if shipping is None:
            held_ts = storage.log.largest_ts if config.storage.sync_log else None
            ran = partial(begin_run, Registry(etcd), identity.node_id, config.data_dir, held_ts)
            await _first_answer(ran, config, stop)
        parts = build(
            *(config, entrance, counters),
            etcd=etcd,
            identity=identity,
            storage=storage,
            shipping=shipping,
            replication=replication,
        )
        await _Node(entrance, *parts, replication).serve(Registry(etcd), stop)


async def _opened(config: PumpConfig, counters: Counters, stack: AsyncExitStack) -> Storage:
    files = MeteredFiles(counters)
    storage = await asyncio.to_thread(Storage.open, config.data_dir, config.storage, files=files)
    stack.push_async_callback(asyncio.to_thread, storage.close)
    return storage


async def _opened_or_damaged(
    config: PumpConfig, counters: Counters, stack: AsyncExitStack
) -> Storage | Corrupt:
    """Open the data folder, or return the damage of a log that other disks may also have."""
    try:
        return await _opened(config, counters, stack)
    except Corrupt as damage:
        if not has_disk_id(config.data_dir):
            raise
        log.error("the log cannot be opened before it is mended: %s", damage)
        return damage


async def _repaired(
    opening: Storage | Corrupt,
    replication: Replication,
    opened: Callable[[], Awaitable[Storage]],
    entrance: Entrance,
    stop: asyncio.Event,
) -> Storage | None:
    """Return the storage, opened after everything that prevented opening it was repaired.

    Returns None when asked to stop earlier. Raises the damage if no listed disk could repair it.
    Waits for a listed disk that is unreachable, except in a Pump that runs on a replica: waiting
    would keep that Pump from its primary.
    """
    repair = replication.closed_log_repair()
    while isinstance(opening, Corrupt):
        entrance.waits_for = f"its log is to be mended from another disk: {coded(opening)}"
        if await asyncio.to_thread(repair, opening):
            damage = opening
            try:
                opening = await opened()
            except Corrupt as again:
                if str(again) == str(damage):
                    raise
                opening = again
        elif replication.is_failover or not (absent := replication.absent()):
            raise opening
        else:
            log.error("pump %s, which may mend the log, does not run", ", ".join(absent))
            await set_within(stop, _ETCD_RETRY_S)
            if stop.is_set():
                return None
    return opening


async def _first_answer(ask: Callable[[], T], config: PumpConfig, stop: asyncio.Event) -> T | None:
    while not stop.is_set():
        try:
            return await asyncio.to_thread(ask)
        except Retryable as error:
            log.error("%s does not answer, trying again: %s", _sources(config), error)
        await set_within(stop, _ETCD_RETRY_S)
    return None


def _sources(config: PumpConfig) -> str:
    etcd = f"etcd at {config.etcd_urls}"
    return f"{etcd} or PD at {config.pd_address}" if config.pd_address else etcd


class Startup:
    """Keeps trying, at a start with replicas, to get a log that this Pump may serve.

    claimed ── shipped ── enough replicas have all of it          the log is served
    fenced ── until every Drainer has all of the former log ── re-initialised ── claimed …
        └─────── on a replica during a failover: it ends, and the replica is followed again

    A Pump on a replica also ends when another Pump claims the log before enough replicas have all
    of it. Both replicas may still be complete then. If each kept reclaiming the log from the other,
    neither would ever find the other's replica followed, and no primary could acknowledge.

    `set_waiting` reports to callers and operators why it waits.
    """

    def __init__(
        self, replication: Replication, set_waiting: Callable[[str], None], stop: asyncio.Event
    ) -> None:
        self._replication = replication
        self._set_waiting = set_waiting
        self._stop = stop
        self._reported = ""

    async def run(
        self, storage: Storage, reopened: Callable[[], Awaitable[Storage]], stack: AsyncExitStack
    ) -> tuple[Storage, Shipping | None] | None:
        """Return the storage to serve, and its shipping if it has copies.

        Returns None when asked to stop first, or if a failover must not continue. `reopened`
        opens the storage of a re-initialised log, after the former storage was closed.
        """
        while not self._stop.is_set():
            try:
                claimed = await asyncio.to_thread(self._replication.claim, storage)
                if claimed is None:
                    return storage, None
                shipping = await self._shipped(claimed, storage, stack)
                return None if shipping is None else (storage, shipping)
            except Fenced as fenced:
                if self._replication.is_failover:
                    log.warning("nothing is taken over: %s", fenced)
                    return None
                self._report(
                    f"{coded(fenced)}; it waits until every Drainer has all of that", fenced
                )
                entry = await self._relisted(fenced)
                if entry is not None:
                    await asyncio.to_thread(storage.close)
                    if (again := await self._reinitialised(entry, reopened)) is None:
                        return None
                    storage = again
                    continue
            except Deposed as deposed:
                if self._replication.is_failover:
                    log.warning("nothing is taken over: %s", deposed)
                    return None
                self._report(
                    f"another one has claimed its log, it tries again: {coded(deposed)}", deposed
                )
            except Retryable as error:
                self._report(f"its log cannot be claimed, it tries again: {coded(error)}", error)
            await set_within(self._stop, _AGAIN_S)
        return None

    async def _shipped(
        self, claimed: Claimed, storage: Storage, stack: AsyncExitStack
    ) -> Shipping | None:
        shipping = self._replication.ship(claimed, storage)
        storage.ship_with(shipping)
        async with AsyncExitStack() as attempt:
            attempt.push_async_callback(asyncio.to_thread, shipping.close)
            await asyncio.to_thread(shipping.start)
            while not await asyncio.to_thread(shipping.wait_until_complete, _AGAIN_S):
                self._report(shipping.problem() or "its copies are being given the end of its log")
                if self._stop.is_set():
                    return None
            stack.push_async_exit(attempt.pop_all())
        return shipping

    async def _relisted(self, fenced: Fenced) -> LogEntry | None:
        try:
            return await asyncio.to_thread(self._replication.relisted, fenced)
        except Retryable as error:
            self._report(coded(error), error)
            return None

    async def _reinitialised(
        self, entry: LogEntry, reopened: Callable[[], Awaitable[Storage]]
    ) -> Storage | None:
        is_begun = False
        while not self._stop.is_set():
            try:
                if not is_begun:
                    await asyncio.to_thread(self._replication.reinitialise, entry)
                is_begun = True
                return await reopened()
            except Retryable as error:
                self._report(f"its log cannot begin again, it tries again: {coded(error)}", error)
            await set_within(self._stop, _AGAIN_S)
        return None

    def _report(self, what: str, error: PenstockError | None = None) -> None:
        self._set_waiting(what)
        if what != self._reported:
            fields = None if error is None else {"code": str(error.code)}
            log.warning("not serving yet: %s", what, extra=fields)
        self._reported = what


class _Node:
    def __init__(
        self,
        entrance: Entrance,
        components: Components,
        operator: Operator,
        replication: Replication,
    ) -> None:
        self._replication = replication
        self._deposed = asyncio.Event()
        self._entrance = entrance
        self._components = components
        self._operator = operator
        self._oracle = components.oracle
        self._membership = components.membership

    async def serve(self, registry: Registry, stop: asyncio.Event) -> None:
        """Serve until `stop`, or until an operator's command has done its work.

        Raises `Deposed` when another Pump has the log now.
        """
        identity = self._membership.identity
        node_id, host = identity.node_id, identity.host
        self._entrance.open(f"Pump {node_id} at {host}", lambda: self._membership.state)
        Pages(registry, self._operator, self._components).add_to(self._entrance.pages)
        log.info("pump %s serves at %s, Prewrites once it is online", node_id, host)
        if (copies := self._components.copies) is not None:
            loop = asyncio.get_running_loop()
            copies.on_over = partial(loop.call_soon_threadsafe, self._deposed.set)
            if copies.over:  # The Pump was deposed earlier.
                self._deposed.set()
        try:
            async with asyncio.TaskGroup() as group:
                duties = group.create_task(self._duties())
                ends = (stop, self._operator.ended, self._deposed)
                reasons = [group.create_task(event.wait()) for event in ends]
                await asyncio.wait(reasons, return_when=asyncio.FIRST_COMPLETED)
                await self._pause()
                for task in (duties, *reasons):
                    task.cancel()
        finally:
            await self._end()

    async def _duties(self) -> None:
        parts, oracle = self._components, self._oracle
        if oracle is not None:
            await _until_answered(oracle.start, "the oracle cannot start")
        await _until_answered(parts.clock.next_ts, "no oracle answers")
        async with asyncio.TaskGroup() as group:
            group.create_task(parts.fake_binlogs.run())
            group.create_task(parts.resolving.run())
            group.create_task(parts.retention.run())
            replicated = self._replication.run(
                *(parts.storage, parts.membership, parts.copies),
                oracle_lease=lambda: 0 if oracle is None else oracle.lease_id,
            )
            group.create_task(replicated)
            group.create_task(parts.scrubbing.run())
            await self._membership.join()
            if parts.config.taken_over_by:
                await self._operator.close(self._operator.node_id)
            service.notify(service.READY, "STATUS=online")
            group.create_task(self._membership.heartbeats(parts.config.heartbeat_interval_s))

    async def _pause(self) -> None:
        await self._operator.stop()
        if self._deposed.is_set():
            return
        await self._replication.drain()
        if self._membership.state is NodeState.ONLINE:
            await self._membership.enter(NodeState.PAUSING)
        if self._membership.state is NodeState.PAUSING:
            ticks = int(self._components.config.pause_grace_s / _GRACE_TICK_S)
            for _ in range(ticks):
                if not self._components.storage.unmatched(older_than_s=0):
                    break
                await asyncio.sleep(_GRACE_TICK_S)

    async def _end(self) -> None:
        """Close everything in an order that cannot lose acknowledged data."""
        if self._oracle is not None:
            await self._oracle.stop()
        await self._components.resolver.close()
        await self._components.clock.close()
        await self._components.decided.close()
        self._components.pulls.close()
        await self._entrance.server.stop(SERVER_GRACE_S)
        await self._end_groups()
        await self._entrance.pages.close()
        if self._deposed.is_set():
            assert self._components.copies is not None
            raise Deposed(self._components.copies.over, code=Code.LOG_DEPOSED)
        if self._membership.state is not NodeState.PAUSED:
            offline = self._operator.drained
            state = NodeState.OFFLINE if offline else NodeState.PAUSED
            word = await asyncio.to_thread(
                last_word_of, self._operator.node_id, self._components.storage
            )
            await self._membership.leave(state, word)

    async def _end_groups(self) -> None:
        copies = self._components.copies
        if copies is not None:
            try:
                async with asyncio.timeout(_GROUPS_END_S):
                    await self._components.group_commit.close()
                    return
            except TimeoutError:
                copies.on_over = lambda: None
                await asyncio.to_thread(copies.close)
        await self._components.group_commit.close()


async def _until_answered(ask: Callable[[], Awaitable[object]], problem: str) -> None:
    while True:
        try:
            await ask()
        except Retryable as error:
            log.error("%s, trying again: %s", problem, error)
            await asyncio.sleep(_ETCD_RETRY_S)
        else:
            return
