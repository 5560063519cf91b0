"""Startup: a Pump with replicas keeps trying, at its start, to get a log that it may serve.

claimed ── shipped ── enough replicas have all of it          the log is served
fenced ── until every Drainer has all of the former log ── re-initialised ── claimed …
    └─────── on a replica during a failover: it ends, and the replica is followed again

A Pump on a replica also ends when another Pump claims the log before enough replicas have all of
it. Both replicas may still be complete then. If each kept reclaiming the log from the other,
neither would ever find the other's replica followed, and no primary could acknowledge.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack

from penstock.cluster.log_entry import LogEntry
from penstock.errors import PenstockError, Retryable, coded
from penstock.waiting import set_within
from pump.replication.claiming import Claimed, Fenced
from pump.replication.replication import Replication
from pump.replication.shipping import Deposed, Shipping
from pump.store.storage import Storage

log = logging.getLogger(__name__)

_AGAIN_S = 1.0


class Startup:
    """One start of a Pump; `set_waiting` reports why it waits to callers and operators."""

    def __init__(
        self, replication: Replication, set_waiting: Callable[[str], None], stop: asyncio.Event
    ) -> None:
        self._replication = replication
        self._set_waiting = set_waiting
        self._stop = stop
        self._reported = ""

    async def run(
        self, storage: Storage, reopened: Callable[[], Awaitable[Storage]], stack: AsyncExitStack
    ) -> tuple[Storage, Shipping | None] | None:
        """Return the storage to serve, and its shipping if it has copies.

        Returns None when asked to stop first, or if a failover must not continue. `reopened`
        opens the storage of a re-initialised log, after the former storage was closed.
        """
        while not self._stop.is_set():
            try:
                claimed = await asyncio.to_thread(self._replication.claim, storage)
                if claimed is None:
                    return storage, None
                shipping = await self._shipped(claimed, storage, stack)
                return None if shipping is None else (storage, shipping)
            except Fenced as fenced:
                if self._replication.is_failover:
                    log.warning("nothing is taken over: %s", fenced)
                    return None
                self._report(
                    f"{coded(fenced)}; it waits until every Drainer has all of that", fenced
                )
                entry = await self._relisted(fenced)
                if entry is not None:
                    await asyncio.to_thread(storage.close)
                    if (again := await self._reinitialised(entry, reopened)) is None:
                        return None
                    storage = again
                    continue
            except Deposed as deposed:
                if self._replication.is_failover:
                    log.warning("nothing is taken over: %s", deposed)
                    return None
                self._report(
                    f"another one has claimed its log, it tries again: {coded(deposed)}", deposed
                )
            except Retryable as error:
                self._report(f"its log cannot be claimed, it tries again: {coded(error)}", error)
            await set_within(self._stop, _AGAIN_S)
        return None

    async def _shipped(
        self, claimed: Claimed, storage: Storage, stack: AsyncExitStack
    ) -> Shipping | None:
        shipping = self._replication.ship(claimed, storage)
        storage.ship_with(shipping)
        async with AsyncExitStack() as attempt:
            attempt.push_async_callback(asyncio.to_thread, shipping.close)
            await asyncio.to_thread(shipping.start)
            while not await asyncio.to_thread(shipping.wait_until_complete, _AGAIN_S):
                self._report(shipping.problem() or "its copies are being given the end of its log")
                if self._stop.is_set():
                    return None
            stack.push_async_exit(attempt.pop_all())
        return shipping

    async def _relisted(self, fenced: Fenced) -> LogEntry | None:
        try:
            return await asyncio.to_thread(self._replication.relisted, fenced)
        except Retryable as error:
            self._report(coded(error), error)
            return None

    async def _reinitialised(
        self, entry: LogEntry, reopened: Callable[[], Awaitable[Storage]]
    ) -> Storage | None:
        is_begun = False
        while not self._stop.is_set():
            try:
                if not is_begun:
                    await asyncio.to_thread(self._replication.reinitialise, entry)
                is_begun = True
                return await reopened()
            except Retryable as error:
                self._report(f"its log cannot begin again, it tries again: {coded(error)}", error)
            await set_within(self._stop, _AGAIN_S)
        return None

    def _report(self, what: str, error: PenstockError | None = None) -> None:
        self._set_waiting(what)
        if what != self._reported:
            fields = None if error is None else {"code": str(error.code)}
            log.warning("not serving yet: %s", what, extra=fields)
        self._reported = what
