"""Cluster clock: timestamps from the oracle, asked in a thread, and an estimate that never waits.

`next_ts` is a timestamp of the oracle. `now_ts` is the last timestamp, advanced by the local
monotonic clock; it serves for ages and heartbeats, and must not order binlogs.

A binlog with a timestamp that the oracle cannot have issued yet would keep a Pump from accepting a
smaller timestamp, and block the merge. A timestamp more than `AHEAD_S_MAX` ahead of `now_ts`
therefore counts as ahead until the oracle has reached it. The oracle is asked immediately, because
its clock may have moved.

Watermarks and fake binlogs advance the stream of an idle Pump, so that it does not block the merge.
The Drainer can emit a transaction only when every Pump's stream has passed it, so a silent Pump
blocks all others. Both are a timestamp of the oracle up to which the stream is complete. A fake
binlog is a Rollback with both timestamps equal in the log. A watermark is in memory only; a puller
that has received everything else receives it as a fake binlog.

    a puller waits at the end:  a watermark, immediately if idle that long already, then each 100 ms
    a merge waits for it:       a watermark, immediately, as often as a Drainer asks
    the log has not moved:      a fake binlog every 3 s, so that the status in etcd advances
    blocked by an unmatched Prewrite:  nothing is added until the last one is through
    a writer's clock ran ahead:  the stream does not move until the oracle reaches that time; the
                                 rate of watermarks is the same as for a stream that moves

Why nothing at or below a watermark T can still enter the stream:

* *Order.* T is taken first. A writer asks for its commit_ts after this log acknowledged its
  Prewrite. A writer with a commit_ts below T asked before T was handed out, so its Prewrite was
  acknowledged before that, and is in the sorter: decided, or open. An open Prewrite, also of a DDL
  or of a dead writer, limits the watermark to its floor (`pump/store/transactions.py`). This is the
  argument of a fake binlog, and needs of the oracle what that needs: a timestamp that is handed out
  later is larger, whichever Pump or PD leads it and whatever its clock says.
* *Decided transactions.* A Pump asks for their commit_ts before their Prewrites are in its log, but
  after it has held its stream. If one is below T, it was asked for before T was handed out, so its
  hold was in the sorter by then. The hold limits a watermark as an open Prewrite does, until the
  group is in the log, or has failed and is in no log. Its floor is the largest timestamp that the
  sorter had, of the log or a watermark. All of these were handed out before the hold, so none of
  the group's commit_ts is refused; nothing above the floor was shown, so none comes late.
* *Groups.* A group that is in the log but not in the index would enter the stream below T. The
  watermark is therefore published between two groups, behind all that was queued before.
* *Another primary.* Of a log with copies, another Pump may have acknowledged a Prewrite before T
  was handed out. A fake binlog is durable on all listed disks, which a fenced Pump cannot achieve.
  For a watermark, all disks that an acknowledgement would need are asked after T was taken whether
  they have promised a later epoch (`Primary.confirm`). The only copy of a log is locked by its
  process.
* *Restart, failover.* The next process, here or on a copy, does not know T, and its stream may end
  below it. A puller that has T waits until the stream is beyond. All Prewrites of before are found
  in the log. Later ones are accepted after the new process took a timestamp, which is above T and
  becomes their floor (`Storage.begin`). So only of a Prewrite that was open at the restart may a
  Commit at or below T pass the ledger's check, if its writer took the commit_ts too early.
* *Comparisons with the log.* A checkpoint, and the after_ts of a pull, may be above the log's last
  timestamp. The status in etcd must not be: a start compares it with the log, to detect an older
  folder. It has `Storage.logged_ts`. The last word of a Pump counts transactions only. The end of a
  Pump that goes offline is a fake binlog.
* *A restored etcd.* An oracle's leader starts above its Pump's watermarks, and above the other
  Pumps' status, which their watermarks exceed by at most 3 s while they run.
* *TiDB-Binlog.* Its Pumps write fake binlogs, are not asked, and are merged as before. Its Drainers
  cannot tell a watermark from a fake binlog.
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
    from penstock.oracle.server import OracleServer
    from pump.service.group_commit import GroupCommit
    from pump.service.pull_binlogs import Pulls
    from pump.store.storage import Storage

log = logging.getLogger(__name__)

AHEAD_S_MAX = 10.0
_AHEAD = int(AHEAD_S_MAX * 1000) << LOGICAL_BITS


class ClusterClock:
    """One Pump's view of the cluster's time."""

    def __init__(
        self,
        oracle: Oracle,
        own: OracleServer | None = None,
        *,
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """`own` is asked first, because it needs no call while it leads."""
        self.oracle = oracle
        self.take_now = (lambda count: None) if own is None else own.take_now
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
            if (taken := self.take_now(1)) is not None:
                ts = taken[0]
            else:
                ts = await loop.run_in_executor(self._thread, self.oracle.get_ts)
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
        await asyncio.to_thread(self.oracle.close)
        self._thread.shutdown(wait=False)


class FakeBinlogs:
    """The task that advances an idle Pump's stream, by watermarks and by fake binlogs."""

    def __init__(
        self,
        storage: Storage,
        group_commit: GroupCommit,
        pulls: Pulls,
        next_ts: Callable[[], Awaitable[int]],
        *,
        confirm: Callable[[], None] | None = None,
        interval_pulled_s: float = 0.1,
        interval_idle_s: float = 3.0,
    ) -> None:
        """`confirm` is the shipping's; None for a log with one copy."""
        self._storage = storage
        self._group_commit = group_commit
        self._pulls = pulls
        self._next_ts = next_ts
        self._confirm = confirm
        self._interval_pulled_s = interval_pulled_s
        self._interval_idle_s = interval_idle_s
        self.retry_s = 1.0
        self._last_ts = 0
        self._advanced_at_s = self._written_at_s = float("-inf")
        self.written = 0

    async def run(self) -> None:
        failing = False
        while True:
            advance = await self._until_due()
            try:
                await advance()
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
        self._note(ts)
        self._written_at_s = self._advanced_at_s
        self.written += 1
        return ts

    async def advance(self) -> int:
        """Publish one watermark and return it; `Retryable` if another Pump may have the log."""
        ts = await self._next_ts()
        if self._confirm is not None:
            await asyncio.to_thread(self._confirm)

        def publish() -> None:
            self._storage.advance(ts)
            self._pulls.wake()

        await self._group_commit.between_groups(publish)
        self._note(ts)
        return ts

    def _note(self, ts: int) -> None:
        self._last_ts, self._advanced_at_s = ts, asyncio.get_running_loop().time()

    async def _until_due(self) -> Callable[[], Awaitable[int]]:
        loop, pulls = asyncio.get_running_loop(), self._pulls
        while True:
            pulls.asked.clear()
            now_s, at_ts = loop.time(), self._storage.max_commit_ts
            is_waited_for = pulls.puller_waits.is_set()
            log_s = max(pulls.logged_at_s, self._written_at_s) + self._interval_idle_s - now_s
            left_s = log_s
            if is_waited_for:
                stream_s = max(pulls.moved_at_s, self._advanced_at_s) + self._interval_pulled_s
                left_s = min(log_s, stream_s - now_s)
            is_asked = is_waited_for and at_ts < pulls.asked_ts
            if at_ts >= self._last_ts and (left_s <= 0 or is_asked):
                pulls.asked_ts = 0  # One watermark per request.
                return self.write if log_s <= 0 else self.advance
            if left_s <= 0:
                left_s = self._interval_pulled_s if is_waited_for else self._interval_idle_s
            await set_within(pulls.asked if is_waited_for else pulls.puller_waits, left_s)
