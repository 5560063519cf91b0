"""Fake binlogs: say that nothing older than this is still to come from an idle Pump.

The Drainer can emit a transaction only when every Pump's stream has passed it, so a silent Pump
holds up all others. When the greatest commit_ts has not moved for an interval, a timestamp is
taken from the Oracle and written as a Rollback with both timestamps equal. It is taken before it
is appended: every transaction with a smaller commit_ts had its Prewrite durable here before that.

    a puller waits at the end:  at once if idle that long already, then every 100 ms
    a merge waits for it:       at once, as often as a Drainer asks
    no one pulls:               every 3 s, so that the status in etcd moves on
    a fake binlog is held up by an unmatched Prewrite:  no further one until it is through
    a writer's clock ran ahead:  the stream does not move until the Oracle's time is there; no more
                                 are written in the meantime than when it moves

The Oracle is asked in a thread of its own: when it is stuck, only time stands still, not writes.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from penstock.errors import PenstockError
from penstock.wire.binlog import BinlogType, fake_binlog
from penstock.wire.codec import encode_binlog
from pump.store.record import Record

if TYPE_CHECKING:
    from pump.service.group_commit import GroupCommit
    from pump.service.pull_binlogs import Pulls
    from pump.store.storage import Storage

log = logging.getLogger(__name__)


class FakeBinlogs:
    """The task that keeps an idle Pump's stream moving."""

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
                pulls.asked_ts = 0  # One for each time that someone asks.
                return
            left_s = left_s if left_s > 0 else interval_s
            await _at_most(left_s, pulls.asked if is_waited_for else pulls.puller_waits)


async def _at_most(length_s: float, event: asyncio.Event) -> None:
    try:
        async with asyncio.timeout(length_s):
            await event.wait()
    except TimeoutError:
        pass
