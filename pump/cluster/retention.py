"""Retention: purges binlogs by age, never past a Drainer's checkpoint unless forced.

    ──────────────┬───────────────────────┬──────────────────┬──────────────> commit_ts
      older than  │    older than         │                  now
      gc-force-after-days   gc-days       └ a Drainer's checkpoint holds the purge here

Every Drainer that is not offline holds the purge, including a dead Drainer. It needs its binlogs
when it restarts; a full disk only makes writers wait, while a gap can never be closed. A Drainer
that will not come back is marked offline with `penstock ctl update-drainer`. To bound the disk in
any case, set `gc-force-after-days`: older binlogs are purged, and an error in the log names the
Drainers that lost binlogs, and which. Both purges are announced 20 hours ahead, like TiDB-Binlog's.

The current time is the earlier of the cluster's time and this machine's clock, so that one clock
that has jumped ahead makes nothing old.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.cluster.node_registry import NodeStatus
from penstock.errors import PenstockError
from penstock.ts import LOGICAL_BITS, compose, seconds_between

if TYPE_CHECKING:
    from pump.cluster.clock import ClusterClock
    from pump.cluster.membership import Membership
    from pump.store.storage import Storage

log = logging.getLogger(__name__)

_DAY_MS = 24 * 3600 * 1000
_LOOK_EVERY_S = 600.0
_LOOKS_PER_PURGE = 6
NOTICE_S = 20 * 3600.0
"""How long before its checkpoint is reached a Drainer is named; at most half of the age."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The extent of a purge: nothing at or after `before_ts`."""

    before_ts: int
    holding: Sequence[NodeStatus] = ()
    """Drainers that need binlogs old enough to be purged, the latest first."""
    forced: bool = False
    """True when `before_ts` passes the checkpoint of the first of them."""
    warnings: Sequence[str] = ()


def plan(
    now_ts: int, drainers: Sequence[NodeStatus], *, gc_days: float, force_after_days: float
) -> Plan:
    """Plan a purge, given the Drainers that are not offline; 0 days never forces it."""
    old_ts = _before(now_ts, gc_days)
    force_ts = min(_before(now_ts, force_after_days), old_ts) if force_after_days else 0
    furthest_behind = sorted(drainers, key=lambda drainer: drainer.max_commit_ts)
    holding = tuple(d for d in furthest_behind if d.max_commit_ts < old_ts)
    held_ts = holding[0].max_commit_ts if holding else old_ts
    limit_ts, days = (force_ts, force_after_days) if force_ts else (old_ts, gc_days)
    notice_s = min(NOTICE_S, days * _DAY_MS / 2000)
    warnings = []
    for drainer in furthest_behind:
        left_s = seconds_between(limit_ts, drainer.max_commit_ts)
        if left_s < notice_s:
            what = "loses the binlogs after it" if force_ts else "holds up the purge"
            when = f"in {left_s / 3600:.1f} h" if left_s > 0 else "from now on"
            warnings.append(
                f"drainer {drainer.node_id} ({drainer.state}) is at checkpoint"
                f" {drainer.max_commit_ts} and {when} {what} ({_remedy(drainer)})"
            )
    return Plan(max(held_ts, force_ts), holding, force_ts > held_ts, tuple(warnings))


def _before(now_ts: int, days: float) -> int:
    return max(0, now_ts - (int(days * _DAY_MS) << LOGICAL_BITS))


def _remedy(drainer: NodeStatus) -> str:
    return (
        "start it; if it will never run again: penstock ctl update-drainer --node-id"
        f" {drainer.node_id} --state offline lets go of what only it needs, for good"
    )


class Retention:
    """Purges every hour and on request; looks for late Drainers every ten minutes."""

    def __init__(
        self,
        storage: Storage,
        membership: Membership,
        clock: ClusterClock,
        *,
        gc_days: float,
        force_after_days: float = 0.0,
        wall_s: Callable[[], float] = time.time,
    ) -> None:
        self._wall_s = wall_s
        self._storage = storage
        self._membership = membership
        self._clock = clock
        self._gc_days = gc_days
        self._force_after_days = force_after_days
        self._busy = asyncio.Lock()
        self.report = "no purge since the start"

    async def run(self) -> None:
        looks = 0
        while True:
            await asyncio.sleep(_LOOK_EVERY_S)
            looks += 1
            work: Callable[[], Awaitable[object]] = self.look
            if looks % _LOOKS_PER_PURGE == 0:
                work = self.purge
            try:
                await work()
            except (PenstockError, OSError) as error:
                log.warning("the purge failed, it is tried again in an hour at most: %s", error)

    async def look(self) -> Plan:
        """Return the current purge plan and log late Drainers; `Retryable` without etcd."""
        found = plan(
            min(self._clock.now_ts(), compose(int(self._wall_s() * 1000), 0)),
            await self._membership.drainers(),
            gc_days=self._gc_days,
            force_after_days=self._force_after_days,
        )
        for warning in found.warnings:
            log.log(logging.ERROR if self._force_after_days else logging.WARNING, "%s", warning)
        return found

    async def purge(self) -> str:
        """Purge all that may go and return a sentence about it; `Retryable` without etcd."""
        if self._busy.locked():
            return "a purge is under way already"
        async with self._busy:
            found = await self.look()
            purged_ts, log_bytes = self._storage.purged_ts, self._storage.stats()["log_bytes"]
            segments = await asyncio.to_thread(self._storage.gc, found.before_ts)
            freed_bytes = max(0, log_bytes - self._storage.stats()["log_bytes"])
            gone = f"0 segments went, all up to {purged_ts} is gone"
            if segments:
                gone = f"purged ({purged_ts}, {self._storage.purged_ts}]: {segments} segments"
                gone += f", {freed_bytes} bytes"
                self._name_losses(found)
            self.report = f"{gone}; {self._reason(found)}"
            log.info("%s", self.report)
            return self.report

    def _reason(self, found: Plan) -> str:
        old = f"binlogs older than {self._gc_days:g} days may go"
        if not found.holding:
            return old
        first, *others = found.holding
        held = f"drainer {first.node_id} ({first.state}) still needs binlogs after"
        held += f" {first.max_commit_ts}"
        if others:
            held += f", {len(others)} more Drainers are late too"
        if found.forced:
            return f"{held}, those older than {self._force_after_days:g} days went all the same"
        return f"{held}, though {old} ({_remedy(first)})"

    def _name_losses(self, found: Plan) -> None:
        purged_ts = self._storage.purged_ts
        for drainer in found.holding:
            if drainer.max_commit_ts < purged_ts:
                log.error(
                    "drainer %s at checkpoint %d lost binlogs: those in (%d, %d] were purged,"
                    " being older than gc-force-after-days %g (restore its downstream from a newer"
                    " backup and start it at that commit_ts)",
                    *(drainer.node_id, drainer.max_commit_ts, drainer.max_commit_ts, purged_ts),
                    self._force_after_days,
                )
