"""Penstock's own oracle: one Pump, elected in etcd, answers PD's two methods for the whole cluster.

    /penstock/v1/oracle/leader   host:port, on a lease of `ttl_s`; the one that creates it leads
    /penstock/v1/oracle/window   decimal ms that no timestamp handed out so far has reached

Two things make timestamps grow across leaders, whatever their clocks say. A leader issues only
timestamps below the saved window, which it moves ahead in a transaction that fails once it is
deposed; and a new leader starts at the window it finds. So two leaders can never issue the same
timestamp. The lease ensures that the deposed leader does not issue *smaller* ones later: its end is
judged by the local clock before each answer, from before the last renewal was sent.

Within one leader `Allocator` makes them: a clock that never goes back, and a counter below it. Each
candidate watches the window, so that it knows by its monotonic clock how much time has passed since
another leader moved it. Where the wall clock is ahead of that, such as after it was set, time runs
at double speed until it has caught up, and not at all faster where it is `FOLLOWED_S_MAX` ahead. A
candidate that has seen no window move, such as the first after an outage, has only its wall clock;
if that is far ahead of the window, it lets others stand first.

A machine that is too slow for its lease loses it although no one else leads. Requests then wait for
the next term, as long as no other leader is known. If this is the only Pump, each next lease is
twice as long, up to four times.

An etcd that was restored from a backup has an older window. So timestamps also start above those
that this Pump and, by their entries, the others already have.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import grpc

from penstock.cluster.etcd import EtcdClient, Lease, Watch, read_at, transact
from penstock.cluster.node_registry import NodeKind, Registry
from penstock.codes import Code
from penstock.errors import PenstockError, Retryable, code_fields, coded
from penstock.http2.messages import parsed
from penstock.oracle.client import COUNT_MAX, LEADER_KEY
from penstock.pb import pdpb_pb2
from penstock.ts import LOGICAL_END, compose, physical_ms

log = logging.getLogger(__name__)

ORACLE = "/penstock/v1/oracle/"
WINDOW_KEY = "/penstock/v1/oracle/window"
_CHECK_S = 0.25
_RETRY_S = 0.2
_REGAIN_S = 0.05
_LEASE_GROWS_MAX = 4


@dataclass(slots=True)
class _Term:
    lease: Lease
    created_revision: int
    window_revision: int
    allocator: Allocator


class _Deposed(Retryable):
    """The leader's key is no longer ours."""


class OracleServer:
    """A candidate for the cluster's oracle, to be added to a Pump's gRPC server.

    Answers Tso while it leads and UNAVAILABLE otherwise; GetMembers names the leader either way.
    Everything runs in the event loop that calls `start`, blocking calls to etcd in its threads.
    """

    def __init__(
        self,
        etcd: EtcdClient,
        advertise_addr: str,
        *,
        ttl_s: int = 2,
        held_ts: Callable[[], int] = lambda: 0,
        wall_ms: Callable[[], float] = lambda: time.time() * 1000,
    ) -> None:
        """`held_ts` is the newest timestamp in this Pump's log."""
        self._etcd = etcd
        self._address = advertise_addr
        self._ttl_s = self._lease_s = ttl_s
        self._held_ts = held_ts
        self._window: tuple[int, float | None] = (-1, None)
        """The window as last seen, and when it moved, by the monotonic clock."""
        self._has_let_others_stand = False
        self._unbelieved_ts = 0
        self._wall_ms = wall_ms
        self._cluster_id = 0
        self._term: _Term | None = None
        self._leader_address = ""
        self._changed = asyncio.Event()
        self._saving = asyncio.Lock()
        self._watch: Watch | None = None
        self._task: asyncio.Task[None] | None = None

    def add_to_server(self, server: grpc.aio.Server) -> None:
        """Register pdpb.PD on a server, which must not have started yet."""
        handlers = {
            "Tso": grpc.stream_stream_rpc_method_handler(
                self._tso, response_serializer=pdpb_pb2.TsoResponse.SerializeToString
            ),
            "GetMembers": grpc.unary_unary_rpc_method_handler(
                self._get_members, response_serializer=pdpb_pb2.GetMembersResponse.SerializeToString
            ),
        }
        service = grpc.method_handlers_generic_handler("pdpb.PD", handlers)
        server.add_generic_rpc_handlers((service,))

    @property
    def is_leader(self) -> bool:
        """True while this oracle may issue timestamps."""
        return self._term is not None and self._term.lease.is_held()

    @property
    def lease_id(self) -> int:
        """The etcd lease of the leader's key; 0 while this oracle is not the leader."""
        return self._term.lease.id if self._term is not None else 0

    def take_now(self, count: int) -> range | None:
        """Return timestamps as the leader, None if this is not it or must first move the window.

        More than `COUNT_MAX` would not lie in one millisecond, and could pass the window's end.
        """
        term = self._term
        if term is None or not term.lease.is_held() or count > COUNT_MAX:
            return None
        last_ts = term.allocator.take(count)
        return None if last_ts is None else range(last_ts - count + 1, last_ts + 1)

    async def start(self) -> None:
        """Take part in elections from now on; `Retryable` when etcd is unavailable."""
        loop = asyncio.get_running_loop()
        self._cluster_id = await asyncio.to_thread(Registry(self._etcd).cluster_id)

        def on_items(items: dict[str, bytes]) -> None:
            self._see_window(int(items.get(WINDOW_KEY, b"0")))
            loop.call_soon_threadsafe(self._see_leader, items.get(LEADER_KEY, b"").decode())

        self._watch = await asyncio.to_thread(Watch, self._etcd, ORACLE, on_items)
        self._task = asyncio.create_task(self._stand())
        self._task.add_done_callback(_report_bug)

    async def stop(self) -> None:
        """Resign; another candidate takes over immediately."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None
        if self._watch is not None:
            await asyncio.to_thread(self._watch.cancel)
            self._watch = None

    # The two methods of PD.

    async def _tso(
        self, requests: AsyncIterator[bytes], context: Any
    ) -> AsyncIterator[pdpb_pb2.TsoResponse]:
        header = pdpb_pb2.ResponseHeader(cluster_id=self._cluster_id)
        async for data in requests:
            request = await parsed(context, pdpb_pb2.TsoRequest, data)
            last_ts = await self._answer(request, context)
            yield pdpb_pb2.TsoResponse(
                header=header,
                count=request.count,
                timestamp=pdpb_pb2.Timestamp(
                    physical=physical_ms(last_ts), logical=last_ts % LOGICAL_END
                ),
            )

    async def _get_members(self, data: bytes, context: Any) -> pdpb_pb2.GetMembersResponse:
        await parsed(context, pdpb_pb2.GetMembersRequest, data)
        answer = pdpb_pb2.GetMembersResponse(
            header=pdpb_pb2.ResponseHeader(cluster_id=self._cluster_id)
        )
        if self._leader_address:
            urls = [f"http://{self._leader_address}"]
            leader = pdpb_pb2.Member(name=self._leader_address, client_urls=urls)
            answer.members.append(leader)
            answer.leader.CopyFrom(leader)
        return answer

    async def _answer(self, request: pdpb_pb2.TsoRequest, context: Any) -> int:
        problem: tuple[Any, ...]
        problem = (grpc.StatusCode.INVALID_ARGUMENT, f"count must be 1 to {COUNT_MAX}")
        if request.header.cluster_id not in (0, self._cluster_id):
            what = f"this is cluster {self._cluster_id}, not {request.header.cluster_id}"
            problem = (grpc.StatusCode.FAILED_PRECONDITION, what)
        elif 1 <= request.count <= COUNT_MAX:
            try:
                return await self._take(request.count)
            except PenstockError as error:
                problem = (grpc.StatusCode.UNAVAILABLE, coded(error), code_fields(error))
        await context.abort(*problem)
        raise AssertionError("abort has raised")

    async def _take(self, count: int) -> int:
        until_s = time.monotonic() + 2 * self._ttl_s
        while True:
            if (taken := self.take_now(count)) is not None:
                return taken[-1]
            term = self._term
            if term is not None and term.lease.is_held():
                try:
                    await self._extend(term)
                except _Deposed:
                    if self._term is term:
                        self._term = None
                continue
            is_led_by_another = self._leader_address not in ("", self._address)
            if is_led_by_another or time.monotonic() > until_s:
                raise Retryable(f"{self._address} is not the oracle's leader", Code.ORACLE_AWAY)
            await asyncio.sleep(_REGAIN_S)

    # Election.

    def _see_leader(self, address: str) -> None:
        if address not in ("", self._address):
            self._lease_s = self._ttl_s
        if address != self._leader_address:
            self._leader_address = address
            self._changed.set()

    def _see_window(self, window_ms: int) -> None:
        seen_ms, _ = self._window
        if window_ms != seen_ms:
            is_first = seen_ms < 0
            self._window = (window_ms, None if is_first else time.monotonic())

    async def _let_others_stand(self) -> None:
        """Wait briefly if only this machine's clock says that so much time has passed."""
        window_ms, moved_s = self._window
        ahead_s = (self._wall_ms() - window_ms) / 1000
        if self._has_let_others_stand or moved_s is not None or window_ms <= 0:
            return
        if ahead_s > OTHERS_FIRST_S:
            self._has_let_others_stand = True
            log.warning(
                "this machine's clock is %.0f s ahead of the last time that was handed out (right,"
                " if no oracle ran for so long; otherwise correct the clock)", ahead_s,
            )  # fmt: skip
            await asyncio.sleep(2 * self._ttl_s)

    async def _stand(self) -> None:
        while True:
            self._changed.clear()
            if self._leader_address:
                await self._changed.wait()
                continue
            await self._let_others_stand()
            if self._leader_address:
                continue
            try:
                term = await self._campaign()
            except PenstockError as error:
                log.info("the election must wait: %s", error)
                await asyncio.sleep(_RETRY_S)
                continue
            if term is not None:
                await self._serve(term)

    async def _campaign(self) -> _Term | None:
        campaign = asyncio.ensure_future(asyncio.to_thread(self._create_leader_key))
        try:
            return await asyncio.shield(campaign)
        except asyncio.CancelledError:
            # The thread cannot be stopped; a term that it wins must not outlive us.
            term = (await asyncio.gather(campaign, return_exceptions=True))[0]
            if isinstance(term, _Term):
                await asyncio.to_thread(term.lease.close)
            raise

    def _create_leader_key(self) -> _Term | None:
        lease = Lease(self._etcd, self._lease_s)
        won = False
        try:
            do = self._etcd.transactions
            won, _ = transact(
                self._etcd,
                compare=[do.create(LEADER_KEY) == 0],
                success=[do.put(LEADER_KEY, self._address, lease=lease.id)],
            )
            if not won:
                return None
            won = False
            created_revision = read_at(self._etcd, LEADER_KEY)[2]
            floor, _, revision = read_at(self._etcd, WINDOW_KEY)
            floor_ms = int(floor or 0)
            seen_ms, moved_s = self._window
            if floor_ms > seen_ms and moved_s is not None:
                moved_s = time.monotonic()
            # A restored etcd has an older window than was seen before.
            floor_ms = max(floor_ms, seen_ms)
            allocator = Allocator(floor_ms, wall_ms=self._wall_ms, since_s=moved_s)
            allocator.raise_floor(self._newest_ts())
            won = True
            return _Term(lease, created_revision, revision, allocator)
        finally:
            if not won:
                lease.close()

    def _newest_ts(self) -> int:
        pumps = Registry(self._etcd).list(NodeKind.PUMP)
        held = [self._held_ts(), *(pump.max_commit_ts for pump in pumps)]
        most_ts = compose(int(self._wall_ms()) + FOLLOWED_S_MAX * 1000, 0)
        if max(held) > most_ts and max(held) != self._unbelieved_ts:
            self._unbelieved_ts = max(held)
            log.error(
                "a Pump has timestamp %d, which is more than %d s ahead of this machine's clock"
                " (correct the clock; or find the writer that did not ask the oracle)",
                self._unbelieved_ts, FOLLOWED_S_MAX,
            )  # fmt: skip
        return max((ts for ts in held if ts <= most_ts), default=0)

    @property
    def clock_ahead_s(self) -> float:
        """Seconds by which this machine's clock is ahead of the time it issues as leader."""
        return self._term.allocator.ahead_s if self._term is not None else 0.0

    async def _serve(self, term: _Term) -> None:
        log.info("%s leads the oracle", self._address)
        self._term, said_s = term, float("-inf")
        try:
            while not term.lease.is_lost():
                if term.allocator.limit_ms - term.allocator.now_ms() < WINDOW_MS / 2:
                    try:
                        await self._extend(term)
                    except _Deposed:
                        break
                    except PenstockError as error:
                        log.warning("the oracle's window stays where it is: %s", error)
                if term.allocator.ahead_s > AHEAD_S and time.monotonic() - said_s > _SAID_EVERY_S:
                    said_s = time.monotonic()
                    _warn_ahead(term.allocator.ahead_s)
                await asyncio.sleep(_CHECK_S)
        finally:
            self._term = None
            log.info("%s no longer leads the oracle", self._address)
            if term.lease.is_lost():
                await asyncio.to_thread(self._ask_for_longer)
            await asyncio.to_thread(term.lease.close)

    def _ask_for_longer(self) -> None:
        """After a lost lease, request a longer lease if no other Pump could lead until then."""
        with suppress(PenstockError):
            if len(Registry(self._etcd).list(NodeKind.PUMP)) <= 1:
                self._lease_s = min(2 * self._lease_s, _LEASE_GROWS_MAX * self._ttl_s)

    async def _extend(self, term: _Term) -> None:
        """Save a window further ahead, unless another task did so while this task waited."""
        seen_ms = term.allocator.limit_ms
        async with self._saving:
            if term.allocator.limit_ms == seen_ms:
                newest_ts = await asyncio.to_thread(self._newest_ts)
                term.allocator.raise_floor(newest_ts)
                limit_ms = term.allocator.wanted_limit_ms()
                term.allocator.limit_ms = await asyncio.to_thread(self._save, term, limit_ms)

    def _save(self, term: _Term, limit_ms: int) -> int:
        """Save a window; return the saved window, which may come from a save thought lost."""
        do = self._etcd.transactions
        # Comparing the window's revision keeps a late save of ours, which timed out, from putting
        # the window back.
        saved, answers = transact(
            self._etcd,
            compare=[
                do.create(LEADER_KEY) == term.created_revision,
                do.mod(WINDOW_KEY) == term.window_revision,
            ],
            success=[do.put(WINDOW_KEY, str(limit_ms)), do.get(WINDOW_KEY)],
            failure=[do.get(LEADER_KEY), do.get(WINDOW_KEY)],
        )
        leaders, windows = answers
        if not saved and (not leaders or leaders[0][1].create_revision != term.created_revision):
            raise _Deposed(
                f"{self._address} was deposed as the oracle's leader", code=Code.ORACLE_AWAY
            )
        value, meta = windows[0]
        term.window_revision = meta.mod_revision
        return int(value)


def _report_bug(task: asyncio.Task[None]) -> None:
    """Log a defect that ends a candidate's election, which must not end silently."""
    if not task.cancelled() and task.exception() is not None:
        log.critical("the oracle's election stopped", exc_info=task.exception())


def _warn_ahead(ahead_s: float) -> None:
    pace = "runs at double speed until it has come up"
    if ahead_s > FOLLOWED_S_MAX:
        pace = "does not follow it"
    log.error(
        "this machine's clock is %.0f s ahead of the cluster's time, which %s (set the clock right"
        " by NTP; if it is right, restart this Pump while no other one can lead)", ahead_s, pace,
    )  # fmt: skip


WINDOW_MS = 3000
"""How far ahead of time an oracle saves its limit."""
AHEAD_S = 5.0
"""A wall clock that is further ahead is reported."""
FOLLOWED_S_MAX = 24 * 3600
"""A wall clock that is further ahead is not followed."""
OTHERS_FIRST_S = 3600.0
_SAID_EVERY_S = 60.0


class Allocator:
    """Issues timestamps from `floor_ms` on, below a limit that moves up. Pure but for its clock.

    Time follows the wall clock. When that jumps back, or the floor lies ahead of it, time continues
    at half speed until the wall clock has caught up: ages keep growing, order keeps. When it jumps
    ahead, time continues at double speed; at normal speed, if the jump is implausible.
    """

    def __init__(
        self,
        floor_ms: int,
        *,
        wall_ms: Callable[[], float] = lambda: time.time() * 1000,
        monotonic_s: Callable[[], float] = time.monotonic,
        since_s: float | None = None,
    ) -> None:
        """`since_s` is when, by the monotonic clock, time was at the floor at most; None: unknown.

        Then the wall clock is believed, once.
        """
        self._wall_ms = wall_ms
        self._monotonic_s = monotonic_s
        self._clock_ms = float(floor_ms)
        self._seen_s = monotonic_s() if since_s is None else since_s
        self._is_known = since_s is not None
        self.ahead_s = 0.0
        """How far the wall clock was ahead when it was last read."""
        self._next = compose(floor_ms, 0)
        self.limit_ms = floor_ms

    def now_ms(self) -> int:
        """Return the minimum milliseconds of a timestamp taken now."""
        now_s, wall_ms = self._monotonic_s(), self._wall_ms()
        passed_ms = (now_s - self._seen_s) * 1000
        most_ms = wall_ms
        if self._is_known:
            ahead_ms = wall_ms - self._clock_ms - passed_ms
            is_followed = ahead_ms <= FOLLOWED_S_MAX * 1000
            most_ms = self._clock_ms + passed_ms * (2 if is_followed else 1)
        self._clock_ms = max(min(wall_ms, most_ms), self._clock_ms + passed_ms / 2)
        self._seen_s, self._is_known = now_s, True
        self.ahead_s = max(0.0, wall_ms - self._clock_ms) / 1000
        return int(self._clock_ms)

    def raise_floor(self, ts: int) -> None:
        """Issue nothing at or below a timestamp from now on."""
        self._next = max(self._next, ts + 1)
        self._clock_ms = max(self._clock_ms, float(physical_ms(ts)))

    def take(self, count: int) -> int | None:
        """Return the last of `count` new consecutive timestamps, None if beyond the limit."""
        first = max(self._next, compose(self.now_ms(), 0))
        if first % LOGICAL_END + count > LOGICAL_END:
            first = compose(physical_ms(first) + 1, 0)
        if physical_ms(first) >= self.limit_ms:
            return None
        self._next = first + count
        return first + count - 1

    def wanted_limit_ms(self) -> int:
        """Return the limit that leaves room for the next `WINDOW_MS`."""
        return max(self.now_ms(), physical_ms(self._next)) + WINDOW_MS
