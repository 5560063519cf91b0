"""Membership: joins the cluster, keeps this Pump's entry in etcd, and records its last word there.

    serving ──> `paused` in etcd ──> Notify every live Drainer ──> `online` in etcd ──> Prewrites
       └─ its last word is withdrawn first; the next one is recorded when it stops

A notified Drainer has this Pump in its merge before any writer can choose the Pump, so no binlog
can be overtaken. A Drainer that cannot be notified, and whose heartbeat does not change for ten
seconds, is dead and skipped; when it starts, it finds this Pump in etcd. Each Pump watches all
Drainers and records the silent ones in etcd, so that a joining Pump need not wait for that. etcd
calls run in threads; while etcd is unreachable, only the status becomes outdated.

Each heartbeat carries a score from 0 to 1000, for clients that choose by `score`:

    score = 1000 × space × queue × latency, at least 1 while new transactions are accepted

    space      free bytes above the reserve / bytes of the volume above the reserve
    queue      the empty part of the write queue
    latency    1 / (1 + average append / 10 ms): one half where a group takes 10 ms

Each factor is 1 for an idle Pump with an empty disk. Clients choose each Pump in proportion to its
score. A Pump whose disk is nine tenths full therefore gets a tenth of the transactions of an empty
Pump, and the disks fill up together. A Pump that is out of space, or whose queue is full, scores 0
and gets none while another Pump scores more. New appends replace a slow append in the average, and
fake binlogs ensure that new appends occur.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import grpc
import grpc.aio

from penstock.cluster.node_registry import (
    Heartbeats,
    NodeKind,
    NodeState,
    NodeStatus,
    published_labels,
)
from penstock.cluster.records import Gap, LastWord
from penstock.codes import Code
from penstock.errors import Malformed, NeedsOperator, PenstockError, Retryable
from penstock.pb import cistern_pb2, cistern_pb2_grpc, penstock_pb2, penstock_pb2_grpc
from penstock.security.tls import Tls, open_aio_channel

if TYPE_CHECKING:
    from penstock.cluster.node_registry import Registry
    from pump.cluster.clock import ClusterClock
    from pump.cluster.identity import Identity
    from pump.store.storage import Storage

log = logging.getLogger(__name__)

NOTIFY_WITHIN_S = 10.0
SCORE_MAX = 1000
LATENCY_HALF_S = 0.010
_AGAIN_S = 0.2
_RETRY_S = 1.0
_LATE_S = 1.0
_LAST_WORD_TRIES = 60
_SAME_NAME_WITHIN_S = 2.0
_STOPPED_WITHIN_S = 3.0

Notify = Callable[[NodeStatus, Tls | None], Coroutine[Any, Any, None]]
"""Asks a Drainer to list the Pumps now; `Retryable` if it did not."""


class Membership:
    """This Pump's entry in the registry, and its view of the Drainers."""

    def __init__(
        self,
        registry: Registry,
        storage: Storage,
        clock: ClusterClock,
        *,
        identity: Identity,
        score: Callable[[], int],
        tls: Tls | None = None,
        holds_log: bool = False,
    ) -> None:
        """Prepare; nothing is published before `join`.

        `holds_log` is True when an entry in etcd lists this process as the primary of the log.
        Another process of its name may run, but can neither acknowledge nor publish anything.
        """
        self.retry_s = _RETRY_S
        self.notify: Notify = _notify
        """Notifies a live Drainer."""
        self.notify_stopped: Notify = _notify_stopped
        """Notifies a Drainer that is listed as stopped."""
        self.watched = Heartbeats()
        """Heartbeats of the Drainers."""
        self.namesakes = Heartbeats()
        """Heartbeats of a Pump elsewhere that has our name."""
        self._holds_log = holds_log
        self._registry = registry
        self._storage = storage
        self._clock = clock
        self.identity = identity
        self._node_id = identity.node_id
        self._host = identity.host
        self._score = score
        self._tls = tls
        self.state = NodeState.PAUSED
        self.etcd_is_away = False
        self._word: LastWord | None = None

    async def join(self) -> None:
        """Return once this Pump is online; log each failure and retry until then."""
        while True:
            try:
                now_ts = await self._clock.next_ts()
                await self._check_name()
                self._storage.begin(now_ts)
                await self._enter_cluster(now_ts)
                await asyncio.to_thread(self._registry.forget_last_word, self._node_id)
                await self._put(NodeState.PAUSED)
                await self._notify_drainers()
                await self._put(NodeState.ONLINE)
            except Retryable as error:
                log.error("not online yet, trying again: %s", error)
                await asyncio.sleep(self.retry_s)
            else:
                self.state = NodeState.ONLINE
                log.info("pump %s is online at %s", self._node_id, self._host)
                return

    async def enter(self, state: NodeState) -> None:
        """Enter a state immediately and publish it; without etcd the next heartbeat does."""
        self.state = state
        log.info("pump %s is %s", self._node_id, state)
        await self._beat()

    async def leave(self, state: NodeState, word: LastWord | None) -> None:
        """Enter the last state, once nothing can be written any longer, and record what is held.

        The last word comes first, so that a reader who sees an offline Pump can know the reason.
        Offline Pumps send no heartbeat, so publishing that state is retried for a minute.
        """
        self._word = word
        await self.enter(state)
        if state is NodeState.OFFLINE and self.etcd_is_away:
            await self._insist()
        elif self.etcd_is_away:  # Such as after a concurrent change of the replica set.
            await asyncio.sleep(_AGAIN_S)
            await self._beat()

    async def heartbeats(self, interval_s: float) -> None:
        """Renew the status indefinitely; `NeedsOperator` if another Pump took this node's name."""
        while True:
            await asyncio.sleep(interval_s)
            with suppress(Retryable, Malformed):
                await self._check_name()
            await self._beat()
            with suppress(Retryable, Malformed):
                await asyncio.to_thread(self._watch_drainers)

    @property
    def score(self) -> int:
        return self._score()

    async def drainers(self) -> list[NodeStatus]:
        """Return the Drainers that still need binlogs: all not offline, dead Drainers included."""
        listed = await asyncio.to_thread(self._watch_drainers)
        return [drainer for drainer in listed if drainer.state is not NodeState.OFFLINE]

    async def note_gaps(self, drainers: Sequence[NodeStatus], up_to_ts: int) -> None:
        """Record the binlogs that Drainers will miss; they refuse to start with such a gap."""
        for drainer in drainers:
            gap = Gap(
                drainer=drainer.node_id,
                pump=self._node_id,
                after_ts=drainer.max_commit_ts,
                up_to_ts=up_to_ts,
            )
            await asyncio.to_thread(self._registry.put_gap, gap)

    def is_live(self, drainer: NodeStatus) -> bool:
        """Return whether a Drainer is not stopped, and its heartbeat came, or may still come."""
        return self.watched.is_live(drainer)

    def _watch_drainers(self) -> list[NodeStatus]:
        """List all Drainers and record in etcd which are silent; blocking."""
        silent, listed = self._registry.silent(), self._registry.list(NodeKind.DRAINER)
        self.watched.note(listed, silent)
        for drainer in listed:
            is_known = silent.get(drainer.node_id) == drainer.update_ts
            if not is_known and self.watched.is_silent(drainer):
                self._registry.put_silent(drainer)
                log.info("drainer %s is silent: no heartbeat came for seconds", drainer.node_id)
        return listed

    async def _enter_cluster(self, now_ts: int) -> None:
        """Record when this Pump may start to hold binlogs that Drainers lack, unless done before.

        A Drainer that meets this Pump only later can then see which binlogs it missed. If the last
        word in etcd lacks transactions that are here, etcd was restored from a backup, and the time
        of that word is recorded.
        """
        if self._node_id not in await asyncio.to_thread(self._registry.entered):
            word = (await asyncio.to_thread(self._registry.last_words)).get(self._node_id)
            held_ts = await asyncio.to_thread(self._storage.holds_up_to_ts)
            since_ts = word.up_to_ts if word is not None and word.up_to_ts < held_ts else now_ts
            await asyncio.to_thread(self._registry.put_entered, self._node_id, since_ts)

    async def _insist(self) -> None:
        """Publish the final state, with retries: Drainers would wait for this Pump indefinitely."""
        for _ in range(_LAST_WORD_TRIES):
            await asyncio.sleep(self.retry_s)
            await self._beat()
            if not self.etcd_is_away:
                return
        log.error(
            "etcd never heard that pump %s is %s, so Drainers wait for it (when etcd is back, start"
            " this Pump again and take it offline once more)",
            *(self._node_id, self.state),
        )

    async def _beat(self) -> None:
        begin_s = time.monotonic()
        try:
            if self._word is not None:
                await asyncio.to_thread(self._registry.put_last_word, self._word)
                if self.state is NodeState.OFFLINE:
                    await asyncio.to_thread(self._registry.forget_entered, self._node_id)
            await self._put(self.state)
        except PenstockError as error:
            if not self.etcd_is_away:
                log.warning("the status in etcd grows old, writes and pulls continue: %s", error)
            self.etcd_is_away = True
        else:
            if self.etcd_is_away:
                log.info("etcd is back, the status is fresh again")
            self.etcd_is_away = False
            took_s = time.monotonic() - begin_s
            if took_s > _LATE_S:
                log.warning(
                    "etcd took %.1f s for a heartbeat, writes and pulls do not wait for it", took_s
                )

    async def _put(self, state: NodeState) -> None:
        status = NodeStatus(
            node_id=self._node_id,
            host=self._host,
            state=state,
            score=self.score,
            label=published_labels(self.identity.labels),
            max_commit_ts=self._storage.logged_ts,
            update_ts=self._clock.now_ts(),
        )
        await asyncio.to_thread(self._registry.put, NodeKind.PUMP, status)

    async def _check_name(self) -> None:
        """Raise `NeedsOperator` if we were declared lost, or another running Pump has our name.

        A Pump that does not answer may still run: raises `Retryable` until its heartbeat has not
        changed for long enough. If its port refuses connections, no process is left.
        """
        lost = (await asyncio.to_thread(self._registry.lost)).get(self._node_id)
        if lost is not None:
            raise lost.refuse_return()
        if self._holds_log:
            return
        other = await asyncio.to_thread(self._registry.get, NodeKind.PUMP, self._node_id)
        self.namesakes.note([other] if other is not None else [])
        if other is None or other.host == self._host or not self.namesakes.is_live(other):
            return
        async with open_aio_channel(other.host, self._tls) as channel:
            stub: Any = penstock_pb2_grpc.PumpStub(channel)  # type: ignore[no-untyped-call]
            try:
                status = await stub.Status(
                    penstock_pb2.StatusRequest(), timeout=_SAME_NAME_WITHIN_S
                )
            except grpc.aio.AioRpcError as error:
                if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
                    raise Retryable(
                        f"the Pump {self._node_id} at {other.host} does not answer, but was heard"
                        " of a moment ago (wait until it is taken for dead, or stop it)",
                        Code.NODE_ID_TAKEN,
                    ) from error
                return
        is_us = status.details["instance"] == self.identity.instance  # At our former address.
        if status.node_id == self._node_id and not is_us:
            raise NeedsOperator(
                f"a Pump at {other.host} already has the node id {self._node_id}",
                "give this one another --node-id, and remove .node from its data-dir",
                Code.NODE_ID_TAKEN,
            )

    async def _notify_drainers(self) -> None:
        notified = []
        for drainer in await asyncio.to_thread(self._watch_drainers):
            if drainer.is_reader:
                continue  # It lists the Pumps before it continues, and accepts no calls.
            if drainer.state in (NodeState.PAUSED, NodeState.OFFLINE):
                if not self.watched.is_silent(drainer):
                    notified.append(self.notify_stopped(drainer, self._tls))
            elif self.watched.is_silent(drainer):
                log.info("drainer %s is not running, not notified", drainer.node_id)
            else:
                notified.append(self._notify_if_live(drainer))
        await asyncio.gather(*notified)

    async def _notify_if_live(self, drainer: NodeStatus) -> None:
        """Return once a Drainer was notified, or is known to be dead; `Retryable` if it lives."""
        try:
            await self.notify(drainer, self._tls)
        except Retryable:
            while not self.watched.is_silent(drainer):
                await asyncio.sleep(min(self.retry_s, _AGAIN_S))
                for found in await asyncio.to_thread(self._watch_drainers):
                    if found.node_id == drainer.node_id and found.update_ts != drainer.update_ts:
                        raise
            log.warning(
                "drainer %s is not running, not notified: it does not answer, and no heartbeat of"
                " it came while this Pump watched", drainer.node_id,
            )  # fmt: skip


async def _notify_stopped(drainer: NodeStatus, tls: Tls | None) -> None:
    """Notify a recently live Drainer that is listed as stopped: anyone can list it so."""
    async with open_aio_channel(drainer.host, tls) as channel:
        stub: Any = cistern_pb2_grpc.CisternStub(channel)  # type: ignore[no-untyped-call]
        with suppress(grpc.RpcError):
            await stub.Notify(cistern_pb2.NotifyReq(), timeout=_STOPPED_WITHIN_S)
            log.warning("drainer %s runs, though etcd says %s", drainer.node_id, drainer.state)


async def _notify(drainer: NodeStatus, tls: Tls | None) -> None:
    """Return once the Drainer merges this Pump; `Retryable` if it does not in ten seconds."""
    loop = asyncio.get_running_loop()
    deadline_s = loop.time() + NOTIFY_WITHIN_S
    async with open_aio_channel(drainer.host, tls) as channel:
        stub: Any = cistern_pb2_grpc.CisternStub(channel)  # type: ignore[no-untyped-call]
        while True:
            left_s = deadline_s - loop.time()
            try:
                await stub.Notify(cistern_pb2.NotifyReq(), timeout=max(left_s, 0.1))
                log.info("drainer %s was notified", drainer.node_id)
                return
            except grpc.RpcError as error:
                if left_s < _RETRY_S:
                    answer: Any = error
                    raise Retryable(
                        f"drainer {drainer.node_id} at {drainer.host} is alive but did not take"
                        f" notice within {NOTIFY_WITHIN_S:.0f} s: {answer.code().name}:"
                        f" {answer.details()} (look at its log; a dead one is skipped once no"
                        " heartbeat of it has come for some seconds)",
                        Code.DRAINER_NOT_NOTIFIED,
                    ) from error
                await asyncio.sleep(_RETRY_S)


def last_word_of(node_id: str, storage: Storage) -> LastWord | None:
    """Return the last word after all writes have ended; None if the index cannot be read."""
    try:
        up_to_ts = storage.holds_up_to_ts()
    except PenstockError as error:
        log.error("it cannot be said up to where this Pump holds transactions: %s", error)
        return None
    return LastWord(
        pump=node_id,
        up_to_ts=up_to_ts,
        open_count=len(storage.unmatched()),
        made=datetime.now(UTC).isoformat(timespec="seconds"),
    )


def score_of(stats: Mapping[str, int], volume_bytes: int, fill: float, average_s: float) -> int:
    """Return the score from a storage's stats, the queue's fill and the average append.

    The higher, the better.
    """
    reserve_bytes = stats["stop_write_at_available_bytes"]
    usable = stats["available_bytes"] - reserve_bytes
    if usable <= 0 or fill >= 1:
        return 0
    space = usable / max(volume_bytes - reserve_bytes, usable)
    latency = 1 / (1 + average_s / LATENCY_HALF_S)
    return max(1, round(SCORE_MAX * space * (1 - fill) * latency))
