"""Cluster clock: timestamps from the oracle, asked in a thread, and an estimate that never waits.

`next_ts` is a timestamp of the oracle. `now_ts` is the last timestamp, advanced by the local
monotonic clock; it serves for ages and heartbeats, and must not order binlogs.

A binlog with a timestamp that the oracle cannot have issued yet would keep a Pump from accepting a
smaller timestamp, and block the merge. A timestamp more than `AHEAD_S_MAX` ahead of `now_ts`
therefore counts as ahead until the oracle has reached it. The oracle is asked immediately, because
its clock may have moved.

Fake binlogs advance the stream of an idle Pump, so that it does not block the merge.
The Drainer can emit a transaction only when every Pump's stream has passed it, so a silent Pump
blocks all others. When the greatest commit_ts has not moved for an interval, a timestamp is taken
from the oracle and written as a Rollback with both timestamps equal. The timestamp is taken before
the append, so every transaction with a smaller commit_ts had its Prewrite durable here before.

    a puller waits at the end:  immediately if idle that long already, then every 100 ms
    a merge waits for it:       immediately, as often as a Drainer asks
    no one pulls:               every 3 s, so that the status in etcd advances
    a fake binlog is blocked by an unmatched Prewrite:  none is added until it is through
    a writer's clock ran ahead:  the stream does not move until the oracle reaches that time; the
                                 rate of fake binlogs is the same as for a stream that moves
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TYPE_CHECKING

from penstock.codes import Code
from penstock.errors import NeedsOperator, PenstockError, Retryable
from penstock.ts import LOGICAL_BITS
from penstock.waiting import set_within
from penstock.wire.binlog import BinlogType, fake_binlog
from penstock.wire.codec import encode_binlog
from pump.store.record import Record

if TYPE_CHECKING:
    from penstock.oracle.client import Oracle
    from pump.service.group_commit import GroupCommit
    from pump.service.pull_binlogs import Pulls
    from pump.store.storage import Storage

log = logging.getLogger(__name__)

AHEAD_S_MAX = 10.0
_AHEAD = int(AHEAD_S_MAX * 1000) << LOGICAL_BITS


class ClusterClock:
    """One Pump's view of the cluster's time."""

    def __init__(
        self, oracle: Oracle, *, monotonic_s: Callable[[], float] = time.monotonic
    ) -> None:
        self._oracle = oracle
        self._monotonic_s = monotonic_s
        self._thread = ThreadPoolExecutor(1, "pump-oracle")
        self._last_ts = 0
        self._last_s = 0.0
        self._asking: asyncio.Task[None] | None = None
        self.horizon_ts = 1 << 63
        """A timestamp that is not above this limit is not ahead."""

    @property
    def is_set(self) -> bool:
        return self._last_ts > 0

    async def next_ts(self) -> int:
        """Return a new timestamp; `Retryable` when the oracle does not answer in time.

        Raises `NeedsOperator` when the oracle refuses the first call. A later refusal is Retryable
        as well: a running Pump has its place in the cluster, and certificates can be replaced
        without a restart.
        """
        loop = asyncio.get_running_loop()
        try:
            ts = await loop.run_in_executor(self._thread, self._oracle.get_ts)
        except NeedsOperator as error:
            if not self.is_set:
                raise
            log.error("no timestamp: %s", error)
            raise Retryable(str(error), error.code) from error
        self._last_ts, self._last_s = ts, self._monotonic_s()
        self.horizon_ts = ts + _AHEAD
        return ts

    def is_ahead(self, ts: int) -> bool:
        if ts <= self.horizon_ts:
            return False
        self.horizon_ts = self.now_ts() + _AHEAD
        if ts <= self.horizon_ts:
            return False
        if self._asking is None or self._asking.done():
            self._asking = asyncio.get_running_loop().create_task(self._ask())
        return True

    async def _ask(self) -> None:
        with suppress(Retryable):
            await self.next_ts()

    def now_ts(self) -> int:
        """Estimate the present time without asking; `Retryable` until `next_ts` has succeeded."""
        if not self._last_ts:
            raise Retryable(
                "this Pump does not know the time yet: the oracle has not answered",
                Code.ORACLE_AWAY,
            )
        elapsed_ms = int((self._monotonic_s() - self._last_s) * 1000)
        return self._last_ts + (elapsed_ms << LOGICAL_BITS)

    async def close(self) -> None:
        await asyncio.to_thread(self._oracle.close)
        self._thread.shutdown(wait=False)


class FakeBinlogs:
    """The task that advances an idle Pump's stream."""

    def __init__(
        self,
        storage: Storage,
        group_commit: GroupCommit,
        pulls: Pulls,
        next_ts: Callable[[], Awaitable[int]],
        *,
        interval_pulled_s: float = 0.1,
        interval_idle_s: float = 3.0,
    ) -> None:
        self._storage = storage
        self._group_commit = group_commit
        self._pulls = pulls
        self._next_ts = next_ts
        self._interval_pulled_s = interval_pulled_s
        self._interval_idle_s = interval_idle_s
        self.retry_s = 1.0
        self._last_ts = 0
        self._written_at_s = float("-inf")
        self.written = 0

    async def run(self) -> None:
        failing = False
        while True:
            await self._until_due()
            try:
                await self.write()
                failing = False
            except PenstockError as error:
                if not failing:
                    log.warning("no timestamp for an idle stream, trying again: %s", error)
                failing = True
                await asyncio.sleep(self.retry_s)

    async def write(self) -> int:
        """Write one fake binlog and return its timestamp; it is durable, maybe not yet sorted."""
        ts = await self._next_ts()
        payload = encode_binlog(fake_binlog(ts))
        await self._group_commit.write([Record(BinlogType.ROLLBACK, ts, ts, payload)])
        self._last_ts, self._written_at_s = ts, asyncio.get_running_loop().time()
        self.written += 1
        return ts

    async def _until_due(self) -> None:
        loop, pulls = asyncio.get_running_loop(), self._pulls
        while True:
            pulls.asked.clear()
            now_s, at_ts = loop.time(), self._storage.max_commit_ts
            is_waited_for = pulls.puller_waits.is_set()
            interval_s = self._interval_pulled_s if is_waited_for else self._interval_idle_s
            left_s = max(pulls.moved_at_s, self._written_at_s) + interval_s - now_s
            is_asked = is_waited_for and at_ts < pulls.asked_ts
            if at_ts >= self._last_ts and (left_s <= 0 or is_asked):
                pulls.asked_ts = 0  # One fake binlog per request.
                return
            left_s = left_s if left_s > 0 else interval_s
            await set_within(pulls.asked if is_waited_for else pulls.puller_waits, left_s)
