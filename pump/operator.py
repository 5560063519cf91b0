"""What an operator can ask of a Pump: status, pause, go offline, purge; and the hourly purge.

    online ── Pause ──> pausing ──────────────────────────────────────────────> paused
    online ── Close ──> closing ── every Drainer's checkpoint passed our end ──> offline

Paused means "will be back with the binlogs it holds", so the Drainers wait for it; offline means
"everything here was applied, forget me". A Drainer that is dead but not offline will want its
binlogs when it starts again: it holds up both `Close` and the purge, and the log says so.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from penstock.errors import NeedsOperator, PenstockError
from penstock.pb import penstock_pb2 as pb
from penstock.registry import NodeState
from penstock.ts import LOGICAL_BITS

if TYPE_CHECKING:
    from penstock.registry import NodeStatus
    from pump.clock import ClusterClock
    from pump.fake import Faker
    from pump.membership import Membership
    from pump.storage import Storage

log = logging.getLogger(__name__)

_DAY_MS = 24 * 3600 * 1000
_GC_EVERY_S = 3600.0
_CLOSE_TICK_S = 0.5
_PROGRESS_EVERY_S = 5.0


class Retention:
    """Purges binlogs by age, never past the checkpoint of a Drainer that is not offline."""

    def __init__(
        self, storage: Storage, membership: Membership, clock: ClusterClock, *, gc_days: float
    ) -> None:
        self._storage = storage
        self._membership = membership
        self._clock = clock
        self._gc_days = gc_days
        self._busy = asyncio.Lock()

    async def run(self) -> None:
        """Purge once an hour, for ever; failures are logged and tried again in an hour."""
        while True:
            await asyncio.sleep(_GC_EVERY_S)
            try:
                log.info("hourly purge: %s", await self.purge())
            except (PenstockError, OSError) as error:
                log.warning("the hourly purge failed: %s", error)

    async def purge(self) -> str:
        """Purge what may go and return a sentence about it; `Retryable` without etcd."""
        if self._busy.locked():
            return "a purge is under way already"
        async with self._busy:
            age_ms = int(self._gc_days * _DAY_MS)
            before_ts = max(0, self._clock.now_ts() - (age_ms << LOGICAL_BITS))
            told = f"binlogs older than {self._gc_days:g} days may go"
            for drainer in await self._membership.drainers():
                if drainer.max_commit_ts < before_ts:
                    before_ts = drainer.max_commit_ts
                    told = f"drainer {drainer.node_id} ({drainer.state}) still needs"
                    told += f" binlogs after {before_ts}, which are older than gc-days"
                    log.warning("%s (start it, or mark it offline with binlogctl)", told)
            segments = await asyncio.to_thread(self._storage.gc, before_ts)
            return f"{told}; {segments} segments went, all up to {self._storage.purged_ts} is gone"


class Operator:
    """The verbs of `penstock.Pump`, and the reasons for which the process ends."""

    def __init__(
        self,
        *,
        node_id: str,
        storage: Storage,
        membership: Membership,
        faker: Faker,
        retention: Retention,
        details: Callable[[], dict[str, str]],
    ) -> None:
        self._node_id = node_id
        self._storage = storage
        self._membership = membership
        self._faker = faker
        self._retention = retention
        self._details = details
        self._closing: asyncio.Task[None] | None = None
        self.ended = asyncio.Event()
        self.drained = False

    def status(self) -> pb.StatusReply:
        """Return the state, the greatest commit_ts, and details line by line."""
        return pb.StatusReply(
            node_id=self._node_id,
            state=str(self._membership.state),
            max_commit_ts=self._storage.max_commit_ts,
            details=self._details(),
        )

    async def pause(self, node_id: str) -> None:
        """Refuse Prewrites from now on and end the process; `NeedsOperator` unless online."""
        self._check(node_id)
        await self._membership.enter(NodeState.PAUSING)
        self.ended.set()

    async def close(self, node_id: str) -> None:
        """Refuse Prewrites from now on, end when all is drained; `NeedsOperator` unless online."""
        self._check(node_id)
        await self._membership.enter(NodeState.CLOSING)
        self._closing = asyncio.create_task(self._drain())

    async def trigger_gc(self) -> str:
        """Purge now what may be purged, and say what happened."""
        return await self._retention.purge()

    async def stop(self) -> None:
        """Give up waiting for the Drainers: a Pump stopped while closing is paused, not offline."""
        if self._closing is not None and not self._closing.done():
            log.warning("stopped before every Drainer had everything: paused, not offline")
            self._closing.cancel()
            await asyncio.gather(self._closing, return_exceptions=True)

    def _check(self, node_id: str) -> None:
        if node_id != self._node_id:
            raise NeedsOperator(
                f"this is pump {self._node_id}, not {node_id}",
                hint="its address changed hands; list the Pumps again",
            )
        if self._membership.state is not NodeState.ONLINE:
            raise NeedsOperator(
                f"pump {node_id} is {self._membership.state}",
                hint="only an online Pump can do that",
            )

    async def _drain(self) -> None:
        """Set `ended` once every Drainer's checkpoint has passed everything this Pump holds."""
        end_ts = 0
        told_s = float("-inf")
        while True:
            try:
                # Every transaction here commits before this, as no Prewrite is taken any more.
                end_ts = end_ts or await self._faker.write()
                behind = await self._behind(end_ts)
            except (PenstockError, OSError) as error:
                behind = [f"trying again: {error}"]
            if not behind:
                break
            if time.monotonic() - told_s >= _PROGRESS_EVERY_S:
                told_s = time.monotonic()
                log.info("not offline yet: %s", "; ".join(behind))
            await asyncio.sleep(_CLOSE_TICK_S)
        self.drained = True
        log.info("every Drainer has everything up to %d", end_ts)
        self.ended.set()

    async def _behind(self, end_ts: int) -> list[str]:
        if self._storage.max_commit_ts < end_ts:
            return [f"transactions before {end_ts} are open here, the resolver asks about them"]
        late = [d for d in await self._membership.drainers() if d.max_commit_ts < end_ts]
        return [self._lateness(drainer, end_ts) for drainer in late]

    def _lateness(self, drainer: NodeStatus, end_ts: int) -> str:
        behind_s = ((end_ts - drainer.max_commit_ts) >> LOGICAL_BITS) / 1000
        text = f"drainer {drainer.node_id} ({drainer.state}) is {behind_s:.1f} s behind"
        if not self._membership.is_live(drainer):
            text += ", and not running (start it, or mark it offline with binlogctl)"
        return text
