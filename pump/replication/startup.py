"""Beginning: a Pump with copies keeps trying, at its start, to get a log that it may serve.

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
from penstock.node.waiting import set_within
from pump.replication.claiming import Claimed, Displaced
from pump.replication.replication import Replication
from pump.replication.shipping import Deposed, Shipping
from pump.store.storage import Storage

log = logging.getLogger(__name__)

_AGAIN_S = 1.0


class Beginning:
    """One start of a Pump; `say` reports the reason for waiting to callers and operators."""

    def __init__(
        self, replication: Replication, say: Callable[[str], None], stop: asyncio.Event
    ) -> None:
        self._replication = replication
        self._say = say
        self._stop = stop
        self._said = ""

    async def run(
        self,
        storage: Storage,
        opened_again: Callable[[], Awaitable[Storage]],
        stack: AsyncExitStack,
    ) -> tuple[Storage, Shipping | None] | None:
        """Return the storage to serve, and its shipping if it has copies.

        Returns None when asked to stop first, or if a failover must not continue. `opened_again`
        opens the storage of a re-initialised log, after the former storage was closed.
        """
        while not self._stop.is_set():
            try:
                claimed = await asyncio.to_thread(self._replication.claim, storage)
                if claimed is None:
                    return storage, None
                shipping = await self._shipped(claimed, storage, stack)
                return None if shipping is None else (storage, shipping)
            except Displaced as displaced:
                if self._replication.is_guest:
                    log.warning("nothing is taken over: %s", displaced)
                    return None
                self._tell(
                    f"{coded(displaced)}; it waits until every Drainer has all of that", displaced
                )
                entry = await self._listed_again(displaced)
                if entry is not None:
                    await asyncio.to_thread(storage.close)
                    if (again := await self._begun_again(entry, opened_again)) is None:
                        return None
                    storage = again
                    continue
            except Deposed as deposed:
                if self._replication.is_guest:
                    log.warning("nothing is taken over: %s", deposed)
                    return None
                self._tell(
                    f"another one has claimed its log, it tries again: {coded(deposed)}", deposed
                )
            except Retryable as error:
                self._tell(f"its log cannot be claimed, it tries again: {coded(error)}", error)
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
            while not await asyncio.to_thread(shipping.wait_until_whole, _AGAIN_S):
                self._tell(shipping.problem() or "its copies are being given the end of its log")
                if self._stop.is_set():
                    return None
            stack.push_async_exit(attempt.pop_all())
        return shipping

    async def _listed_again(self, displaced: Displaced) -> LogEntry | None:
        try:
            return await asyncio.to_thread(self._replication.listed_again, displaced)
        except Retryable as error:
            self._tell(coded(error), error)
            return None

    async def _begun_again(
        self, entry: LogEntry, opened_again: Callable[[], Awaitable[Storage]]
    ) -> Storage | None:
        is_begun = False
        while not self._stop.is_set():
            try:
                if not is_begun:
                    await asyncio.to_thread(self._replication.begin_again, entry)
                is_begun = True
                return await opened_again()
            except Retryable as error:
                self._tell(f"its log cannot begin again, it tries again: {coded(error)}", error)
            await set_within(self._stop, _AGAIN_S)
        return None

    def _tell(self, what: str, error: PenstockError | None = None) -> None:
        self._say(what)
        if what != self._said:
            fields = None if error is None else {"code": str(error.code)}
            log.warning("not serving yet: %s", what, extra=fields)
        self._said = what
