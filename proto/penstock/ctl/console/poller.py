"""Polls etcd and every node, each at its own pace, independently of the others.

One task asks etcd; each node has its own task, so that an unresponsive node does not delay the
others. All viewers share the results of one poller. Pumps and Drainers are asked through gRPC, as
`penstock ctl status` does, a source at the pages whose URL it keeps in etcd. A node that is stopped
according to etcd is not asked. `changed` is set after each answer.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final, TypeVar

import aiohttp
import grpc
import grpc.aio

from penstock.cluster import etcd
from penstock.cluster.etcd import EtcdClient, read_prefix
from penstock.cluster.fence import writers
from penstock.cluster.node_registry import SOURCES, NodeKind, NodeState, Registry
from penstock.cluster.records import standbys, stops
from penstock.codes import Code
from penstock.ctl.console.observation import (
    DRAINER,
    PUMP,
    SOURCE,
    STREAM,
    Answer,
    Chronicle,
    Facts,
    Listing,
    Named,
    Observation,
    Rates,
    SourceEntry,
    drainer_lag_s,
    listed,
    number,
    text,
)
from penstock.ctl.nodes import error_of
from penstock.errors import Malformed, NeedsOperator, PenstockError, Retryable
from penstock.node.logs import one_line
from penstock.node.output import facts_in
from penstock.pb import penstock_pb2, penstock_pb2_grpc
from penstock.security.tls import Tls, open_aio_channel

log = logging.getLogger(__name__)

Ask = Callable[[], Awaitable[Facts]]
T = TypeVar("T")

EVERY_S: Final = 2.0
WITHIN_S: Final = 3.0
NODES_MAX: Final = 200
"""Nodes beyond this number are listed, and not asked."""
_PAGE_BYTES_MAX: Final = 4 << 20
_CHANNEL: Final = (
    # A node that comes back is asked at the next turn, and not after gRPC's two minutes.
    ("grpc.initial_reconnect_backoff_ms", 500),
    ("grpc.max_reconnect_backoff_ms", 2000),
)
_STUBS: Final[Mapping[str, Any]] = {
    PUMP: penstock_pb2_grpc.PumpStub,
    DRAINER: penstock_pb2_grpc.DrainerStub,
}
_COUNTERS: Final = {
    PUMP: ("binlogs_written", "storage_appended_bytes"),
    DRAINER: ("rows", "transactions"),
    SOURCE: ("transactions",),
}


class Poller:
    """The known state of one cluster."""

    def __init__(
        self,
        etcd_urls: str,
        *,
        etcd_tls: Tls | None = None,
        tls: Tls | None = None,
        every_s: float = EVERY_S,
        flags: str = "",
    ) -> None:
        """Raises `NeedsOperator` for invalid addresses; `run` starts polling.

        `flags` are the options with which a command finds this cluster.
        """
        self._flags = flags
        self._etcd = etcd.connect(etcd_urls, timeout_s=WITHIN_S, tls=etcd_tls)
        self._tls = tls
        self._every_s = every_s
        self._listing: Listing | None = None
        self._problem = ""
        self._silent_since_s: float | None = None
        self._answers: dict[Named, Answer] = {}
        self._tasks: dict[tuple[Named, str], asyncio.Task[None]] = {}
        self._session: aiohttp.ClientSession | None = None
        self._rates: dict[str, Rates] = defaultdict(Rates)
        self.chronicle = Chronicle(time.monotonic())
        self.changed = asyncio.Event()

    def observation(self) -> Observation:
        return Observation(
            now_s=time.time(),
            listing=self._listing,
            etcd_problem=self._problem,
            etcd_silent_since_s=self._silent_since_s,
            answers=dict(self._answers),
            flags=self._flags,
            table_rates={name: rates.now() for name, rates in self._rates.items()},
        )

    async def run(self) -> None:
        timeout = aiohttp.ClientTimeout(total=WITHIN_S)
        async with aiohttp.ClientSession(timeout=timeout, trust_env=False) as self._session:
            try:
                while True:
                    await self._list()
                    self._follow()
                    self.chronicle.forget(time.monotonic())
                    self.changed.set()
                    await asyncio.sleep(self._every_s)
            finally:
                tasks = list(self._tasks.values())
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
                self._etcd.close()

    async def _list(self) -> None:
        try:
            self._listing = await asyncio.to_thread(listing_of, self._etcd)
        except PenstockError as error:
            self._problem = str(error)
            self._silent_since_s = self._silent_since_s or time.time()
        else:
            self._problem, self._silent_since_s = "", None

    def _follow(self) -> None:
        if self._listing is None:
            return
        wanted = asked(self._listing)[:NODES_MAX]
        for key in [key for key in self._tasks if key not in wanted]:
            self._tasks.pop(key).cancel()
        for node, address in wanted:
            if (node, address) not in self._tasks:
                asking = self._keep_asking(node, address)
                self._tasks[node, address] = asyncio.create_task(asking)
        known = named(self._listing)  # The last word of a stopped node is kept.
        for node in [node for node in self._answers if node not in known]:
            del self._answers[node]
            self._rates.pop(node[1], None)

    async def _keep_asking(self, node: Named, address: str) -> None:
        kind, name = node
        async with self._opened(kind, address) as ask:
            while True:
                began_s = time.monotonic()
                try:
                    facts = await ask()
                    said = facts.get("node_id", facts.get("source"))
                    if said != name:
                        raise NeedsOperator(
                            f"at its address answers {said!r}",
                            "its address in etcd is stale: restart it",
                            Code.NODE_OTHER,
                        )
                    self._note(node, facts)
                except PenstockError as error:
                    self._fail(node, str(error))
                except Exception:  # It concerns one node; the others must continue.
                    log.exception("asking %s %s failed", kind, name)
                    self._fail(node, "its answer cannot be read; see this console's log")
                self.changed.set()
                await asyncio.sleep(max(0.1, self._every_s - (time.monotonic() - began_s)))

    @contextlib.asynccontextmanager
    async def _opened(self, kind: str, address: str) -> AsyncIterator[Ask]:
        if kind == SOURCE:
            assert self._session is not None
            yield partial(_page, self._session, address)
            return
        async with open_aio_channel(address, self._tls, _CHANNEL) as channel:
            yield partial(_status, _STUBS[kind](channel), address)

    def _note(self, node: Named, facts: Facts) -> None:
        self._answers[node] = Answer(facts=facts)
        kind, name = node
        now_s, label = time.monotonic(), f"{kind} {name}"
        if kind == DRAINER:
            self.chronicle.gauge(label, "lag_s", now_s, drainer_lag_s(facts))
            tables = {text(t, "name"): number(t, "rows") for t in listed(facts, "tables")}
            self._rates[name].note(now_s, {t: n for t, n in tables.items() if n is not None})
        if kind == SOURCE:
            behind_s = number(facts, "seconds_behind")
            self.chronicle.gauge(label, "seconds_behind", now_s, behind_s)
        for counter in _COUNTERS[kind]:
            self.chronicle.counter(label, counter, now_s, number(facts, counter))
        for stream in listed(facts, "pumps"):
            lag_s = number(stream, "lag_s")
            self.chronicle.gauge(label, f"{STREAM}{text(stream, 'node_id')}", now_s, lag_s)

    def _fail(self, node: Named, problem: str) -> None:
        before = self._answers.get(node, Answer())
        self._answers[node] = Answer(
            facts=before.facts,
            problem=one_line(problem),
            silent_since_s=before.silent_since_s or time.time(),
        )


async def _status(stub: Any, address: str) -> Facts:
    try:
        reply = await stub.Status(penstock_pb2.StatusRequest(), timeout=WITHIN_S)
    except grpc.RpcError as error:
        raise error_of(address, error) from error
    return facts_in(reply)


async def _page(session: aiohttp.ClientSession, url: str) -> Facts:
    try:
        async with session.get(f"{url}status") as answer:
            body = await answer.content.read(_PAGE_BYTES_MAX)
        facts = json.loads(body)
    except (aiohttp.ClientError, TimeoutError) as error:
        cause = getattr(error, "strerror", "") or getattr(error, "message", "")
        if isinstance(error, TimeoutError):
            cause = "no answer in time"
        raise Retryable(f"{url}: {cause or 'no connection'}", Code.NODE_AWAY) from error
    except ValueError as error:
        raise Malformed(
            f"{url} does not answer as a source does", "see its log", Code.NODE_OTHER
        ) from error
    return facts if isinstance(facts, dict) else {}


def asked(listing: Listing) -> list[tuple[Named, str]]:
    """Return the nodes to ask, with their addresses: all that are not stopped according to etcd.

    A Drainer on standby is not in the list of Drainers, but in its own list.
    """
    stopped = (NodeState.PAUSED, NodeState.OFFLINE)
    found = [((PUMP, n.node_id), n.host) for n in listing.pumps if n.state not in stopped]
    drainers = {n.node_id: n.host for n in listing.drainers if n.state not in stopped}
    drainers |= {each.node_id: each.host for each in listing.standbys}
    found += [((DRAINER, name), host) for name, host in sorted(drainers.items())]
    return found + [((SOURCE, s.source_id), s.pages_url) for s in listing.sources if s.pages_url]


def named(listing: Listing) -> set[Named]:
    return {
        *((PUMP, pump.node_id) for pump in listing.pumps),
        *((DRAINER, drainer.node_id) for drainer in listing.drainers),
        *((DRAINER, standby.node_id) for standby in listing.standbys),
        *((SOURCE, source.source_id) for source in listing.sources),
    }


def listing_of(client: EtcdClient) -> Listing:
    """Return etcd's list of the cluster; raises `Retryable` when it does not answer.

    Unreadable entries, such as another version's, are named and skipped.
    """
    registry, problems = Registry(client), list[str]()

    def read(part: Callable[[], Sequence[T]]) -> Sequence[T]:
        try:
            return part()
        except Malformed as error:
            problems.append(str(error))
            return ()

    pumps = read(lambda: registry.list(NodeKind.PUMP))
    drainers = read(lambda: registry.list(NodeKind.DRAINER))
    # A Pump is at the fence for the sources whose decided transactions it stores.
    own_ids = {pump.node_id for pump in pumps}
    return Listing(
        pumps=pumps,
        drainers=drainers,
        standbys=read(lambda: standbys(client)),
        gaps=read(lambda: [gap for each in drainers for gap in registry.gaps(each.node_id)]),
        stops=read(lambda: stops(client)),
        writers=[each for each in writers(client) if each not in own_ids],
        sources=source_entries(read_prefix(client, SOURCES)[0]),
        problems=problems,
    )


def source_entries(items: Mapping[str, bytes]) -> list[SourceEntry]:
    found: dict[str, dict[str, bytes]] = {}
    for key, value in items.items():
        name, _, part = key.removeprefix(SOURCES).partition("/")
        found.setdefault(name, {})[part] = value
    return [
        SourceEntry(
            source_id=name,
            checkpoint=_object(parts.get("", b"")),
            owner=parts.get("owner", b"").decode("utf-8", "replace"),
            pages_url=parts.get("pages", b"").decode("utf-8", "replace"),
        )
        for name, parts in sorted(found.items())
    ]


def _object(data: bytes) -> Facts:
    try:
        found = json.loads(data)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
