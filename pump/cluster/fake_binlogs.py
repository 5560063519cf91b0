"""Fake binlogs: advance the stream of an idle Pump, so that it does not block the merge.

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

The oracle is asked in a separate thread. When it is stuck, only time stops, not writes.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from penstock.errors import PenstockError
from penstock.waiting import set_within
from penstock.wire.binlog import BinlogType, fake_binlog
from penstock.wire.codec import encode_binlog
from pump.store.record import Record

if TYPE_CHECKING:
    from pump.service.group_commit import GroupCommit
    from pump.service.pull_binlogs import Pulls
    from pump.store.storage import Storage

log = logging.getLogger(__name__)


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
        """Write a fake binlog whenever one is due, indefinitely; log failures and retry."""
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
