"""One Pump's life, from an empty process to a clean end.

port bound, pages ─ storage open ─ etcd, cluster id ─ serving ─ oracle ─ Drainers notified ─ online
     └─ Commits and pulls are served from `serving` on, Prewrites from `online` on
pausing ─ a grace for open transactions ─ pulls ended ─ port closed ─ storage closed ─ paused
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack

from penstock.cluster.etcd import EtcdClient, connect
from penstock.cluster.history import History
from penstock.cluster.labels import parse_labels
from penstock.cluster.registry import NodeState, Registry
from penstock.errors import Retryable
from penstock.log.files import OsFiles
from penstock.oracle.client import open_oracle
from penstock.oracle.server import OracleServer
from penstock.security.tls import Security
from pump.bootstrap import Starting
from pump.cluster.clock import ClusterClock
from pump.cluster.fake_binlogs import Faker
from pump.cluster.identity import Identity, kept_node_id, refuse_other_cluster
from pump.cluster.leaving import last_word_of
from pump.cluster.membership import Membership
from pump.cluster.operator import Operator
from pump.cluster.resolver.choice import open_resolver
from pump.cluster.resolver.resolving import DdlResolver, Resolving, TimeoutResolver
from pump.cluster.retention import Retention
from pump.cluster.score import score_now
from pump.config import PumpConfig
from pump.counters import Figures
from pump.observe.components import Observed
from pump.observe.metered import MeteredFiles, timed
from pump.observe.pages import Pages
from pump.service.admission import Admission
from pump.service.front import CompatibleService, add_service
from pump.service.group_commit import Writer
from pump.service.large_upload import LargeWrites
from pump.service.penstock_service import BatchService
from pump.service.pulls import Pulls
from pump.store.storage import Storage

log = logging.getLogger(__name__)

_ETCD_RETRY_S = 2.0
_GRACE_TICK_S = 0.05
_SERVER_GRACE_S = 0.5
"""For calls under way; streams of batches stay open for ever and are then cut."""


async def run(config: PumpConfig, stop: asyncio.Event) -> None:
    """Live until `stop` is set or an operator's verb ends it; raise what no retry can cure."""
    security = Security(config.security)
    async with AsyncExitStack() as stack:
        figures = Figures()
        starting = Starting(config, security)
        stack.push_async_callback(starting.close)
        await starting.start()
        files = MeteredFiles(OsFiles(), figures)
        storage = await asyncio.to_thread(
            Storage.open, config.data_dir, config.storage, files=files
        )
        stack.push_async_callback(asyncio.to_thread, storage.close)
        etcd = connect(config.etcd_urls, tls=security.etcd_tls)
        stack.push_async_callback(asyncio.to_thread, etcd.close)
        starting.waits_for = f"etcd at {config.etcd_urls} has not answered yet"
        cluster_id = await _first_answer(Registry(etcd).cluster_id, config, stop)
        if cluster_id is None:
            return
        refuse_other_cluster(config.data_dir, cluster_id)
        log.info("cluster %d, greatest commit_ts %d", cluster_id, storage.max_commit_ts)
        await _Node(config, storage, etcd, cluster_id, figures, starting).live(stop)


async def _first_answer(
    ask: Callable[[], int], config: PumpConfig, stop: asyncio.Event
) -> int | None:
    """Return etcd's first answer, None when asked to stop before it came."""
    while not stop.is_set():
        try:
            return await asyncio.to_thread(ask)
        except Retryable as error:
            log.error(
                "etcd at %s does not answer, trying again (start it, or check --etcd-urls): %s",
                config.etcd_urls,
                error,
            )
        await _unless_set(stop, _ETCD_RETRY_S)
    return None


async def _unless_set(event: asyncio.Event, length_s: float) -> None:
    try:
        async with asyncio.timeout(length_s):
            await event.wait()
    except TimeoutError:
        pass


class _Node:
    """The parts of a Pump, wired together."""

    def __init__(
        self,
        config: PumpConfig,
        storage: Storage,
        etcd: EtcdClient,
        cluster_id: int,
        figures: Figures,
        starting: Starting,
    ) -> None:
        self._config = config
        self._storage = storage
        self._figures = figures
        self._server = starting.server
        self._pages = starting.pages
        address = _address(config, starting.port)
        node_id = kept_node_id(config.data_dir, config.node_id, address)
        self._identity = Identity(node_id, address, parse_labels(config.labels))
        self._oracle = None if config.pd_address else OracleServer(etcd, address)
        self._clock = _clock(config, etcd, starting.security)
        self._membership = Membership(
            Registry(etcd),
            storage,
            self._clock,
            identity=self._identity,
            score=lambda: score_now(storage, self._writer, config.data_dir),
            tls=starting.security.tls,
        )
        self._pulls = Pulls(
            storage,
            batch_bytes_max=config.pull_batch_bytes,
            message_bytes_max=config.max_message_bytes,
        )
        self._writer = Writer(
            storage,
            on_indexed=self._pulls.wake,
            group_bytes_max=config.write_group_bytes,
            queue_bytes_max=config.write_queue_bytes,
            figures=figures,
        )
        self._admission = Admission(
            cluster_id=cluster_id,
            state=lambda: self._membership.state,
            check_space=storage.check_space,
            payload_bytes_max=config.max_message_bytes,
            figures=figures,
        )
        self._build_tasks(History(etcd))
        observed = self._observed()
        self._operator = Operator(
            node_id=node_id,
            storage=storage,
            membership=self._membership,
            faker=self._faker,
            retention=self._retention,
            details=lambda: {"status_pages": self._pages.url or "none", **observed.details()},
        )
        self._add_services()
        starting.open(f"Pump {node_id} at {address}", lambda: self._membership.state)
        Pages(Registry(etcd), self._operator, observed).add_to(self._pages)
        log.info("pump %s serves at %s, Prewrites once it is online", node_id, address)

    def _build_tasks(self, history: History) -> None:
        config = self._config
        self._faker = Faker(
            self._storage,
            self._writer,
            self._pulls,
            self._clock.next_ts,
            interval_pulled_s=config.fake_binlog_interval_pulled_s,
            interval_idle_s=config.fake_binlog_interval_s,
        )
        timeout = TimeoutResolver(self._clock.now_ts, txn_timeout_s=config.txn_timeout_s)
        self._resolver = DdlResolver(
            lambda job_id: asyncio.to_thread(history.get, job_id),
            lambda job_id: asyncio.to_thread(history.is_overtaken, job_id),
            open_resolver(config.resolver, timeout),
        )
        self._resolving = Resolving(self._storage, self._writer, self._resolver)
        self._retention = Retention(
            self._storage,
            self._membership,
            self._clock,
            gc_days=config.gc_days,
            force_after_days=config.gc_force_after_days,
        )

    def _add_services(self) -> None:
        compatible = CompatibleService(self._writer, self._pulls, self._admission)
        add_service(self._server, "binlog.Pump", timed(compatible.methods(), self._figures))
        large = LargeWrites(
            self._storage,
            self._writer,
            self._admission,
            bytes_max=self._config.transaction_bytes_max,
            figures=self._figures,
        )
        batches = BatchService(self._writer, large, self._pulls, self._admission, self._operator)
        add_service(self._server, "penstock.Pump", batches.methods())
        if self._oracle is not None:
            self._oracle.add_to_server(self._server)

    def _observed(self) -> Observed:
        return Observed(
            figures=self._figures,
            storage=self._storage,
            writer=self._writer,
            pulls=self._pulls,
            membership=self._membership,
            clock=self._clock,
            faker=self._faker,
            resolving=self._resolving,
            oracle=self._oracle,
            data_dir=self._config.data_dir,
            queue_bytes_max=self._config.write_queue_bytes,
        )

    async def live(self, stop: asyncio.Event) -> None:
        """Serve until `stop`, or until an operator's verb has done its work."""
        try:
            async with asyncio.TaskGroup() as group:
                duties = group.create_task(self._duties())
                reasons = [group.create_task(e.wait()) for e in (stop, self._operator.ended)]
                await asyncio.wait(reasons, return_when=asyncio.FIRST_COMPLETED)
                await self._pause()
                for task in (duties, *reasons):
                    task.cancel()
        finally:
            await self._end()

    async def _duties(self) -> None:
        """Do everything that a Pump does by itself; ends only by failing or being cancelled."""
        if self._oracle is not None:
            await _until_answered(self._oracle.start, "the oracle cannot start")
        await _until_answered(self._clock.next_ts, "nobody tells the time")
        async with asyncio.TaskGroup() as group:
            group.create_task(self._faker.run())
            group.create_task(self._resolving.run())
            group.create_task(self._retention.run())
            await self._membership.join()
            group.create_task(self._membership.heartbeats(self._config.heartbeat_interval_s))

    async def _pause(self) -> None:
        """Leave `online`, and give open transactions a moment for their Commits."""
        await self._operator.stop()
        if self._membership.state is NodeState.ONLINE:
            await self._membership.enter(NodeState.PAUSING)
        if self._membership.state is NodeState.PAUSING:
            ticks = int(self._config.pause_grace_s / _GRACE_TICK_S)
            for _ in range(ticks):
                if not self._storage.unmatched(older_than_s=0):
                    break
                await asyncio.sleep(_GRACE_TICK_S)

    async def _end(self) -> None:
        """Close everything in an order in which nothing acknowledged can be lost."""
        if self._oracle is not None:
            await self._oracle.stop()
        await self._resolver.close()
        await self._clock.close()
        self._pulls.close()
        await self._server.stop(_SERVER_GRACE_S)
        await self._writer.close()
        await self._pages.close()
        if self._membership.state is not NodeState.PAUSED:
            offline = self._operator.drained
            state = NodeState.OFFLINE if offline else NodeState.PAUSED
            word = await asyncio.to_thread(last_word_of, self._identity.node_id, self._storage)
            await self._membership.leave(state, word)


async def _until_answered(ask: Callable[[], Awaitable[object]], problem: str) -> None:
    while True:
        try:
            await ask()
        except Retryable as error:
            log.error("%s, trying again: %s", problem, error)
            await asyncio.sleep(_ETCD_RETRY_S)
        else:
            return


def _clock(config: PumpConfig, etcd: EtcdClient, security: Security) -> ClusterClock:
    pd_address = config.pd_address or None
    return ClusterClock(open_oracle(etcd, pd_address, security.tls, pd_tls=security.pd_tls))


def _address(config: PumpConfig, port: int) -> str:
    """Return the address that others reach this Pump at, with the port that was really bound."""
    host, _, wanted = (config.advertise_addr or config.addr).rpartition(":")
    return f"{host}:{port if int(wanted) == 0 else wanted}"
