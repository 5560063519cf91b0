"""Cluster clock: timestamps from the oracle, asked in a thread, and an estimate that never waits.

`next_ts` is a timestamp of the oracle. `now_ts` is the last timestamp, advanced by the local
monotonic clock; it serves for ages and heartbeats, and must not order binlogs.

A binlog with a timestamp that the oracle cannot have issued yet would keep a Pump from accepting a
smaller timestamp, and block the merge. A timestamp more than `AHEAD_S_MAX` ahead of `now_ts`
therefore counts as ahead until the oracle has reached it. The oracle is asked immediately, because
its clock may have moved.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TYPE_CHECKING

from penstock.codes import Code
from penstock.errors import NeedsOperator, Retryable
from penstock.ts import LOGICAL_BITS

if TYPE_CHECKING:
    from penstock.oracle.client import Oracle

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
        """True once `next_ts` has succeeded."""
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
