"""Cluster clock: timestamps of the oracle, asked in a thread, and a guess that never waits.

`next_ts` is a timestamp of the Oracle; `now_ts` is the last one moved on by the local monotonic
clock, good for ages and heartbeats and for nothing that orders binlogs.

A binlog whose timestamp the oracle cannot have handed out yet would keep a Pump from taking any
smaller one, and the merge from passing it. So what is `AHEAD_S_MAX` ahead of `now_ts` counts as
ahead, until the oracle itself has come that far: it is asked at once, as its clock may have moved.
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
        """What is not above it is not ahead."""

    @property
    def is_set(self) -> bool:
        """True once `next_ts` has succeeded."""
        return self._last_ts > 0

    async def next_ts(self) -> int:
        """Return a new timestamp; `Retryable` when the Oracle does not answer in time.

        `NeedsOperator` for what it refuses at the first time. Later that is Retryable too: a Pump
        that runs has a place among the others, and certificates are mended without a restart.
        """
        loop = asyncio.get_running_loop()
        try:
            ts = await loop.run_in_executor(self._thread, self._oracle.get_ts)
        except NeedsOperator as error:
            if not self.is_set:
                raise
            log.error("no timestamp: %s", error)
            raise Retryable(str(error), code=error.code) from error
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
                code=Code.ORACLE_AWAY,
            )
        elapsed_ms = int((self._monotonic_s() - self._last_s) * 1000)
        return self._last_ts + (elapsed_ms << LOGICAL_BITS)

    async def close(self) -> None:
        await asyncio.to_thread(self._oracle.close)
        self._thread.shutdown(wait=False)
