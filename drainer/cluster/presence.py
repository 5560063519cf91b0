"""Presence: keeps this run's entry in etcd while it runs, as a downstream's writer or a standby."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable

from penstock.cluster.drainer_runs import (
    DrainerRun,
    Entry,
    LeasedEntry,
    Standby,
    key_of,
    remember_run,
    text_of,
)
from penstock.cluster.etcd import EtcdClient
from penstock.errors import PenstockError

log = logging.getLogger(__name__)

_TTL_S = 3
_EVERY_S = 0.5


class Presence:
    """An entry under a lease; if it is lost, it is replaced as soon as etcd answers."""

    def __init__(
        self, etcd: EtcdClient, writer: str, current: Callable[[], DrainerRun | Standby]
    ) -> None:
        """`current` returns the entry to be listed now."""
        self._etcd = etcd
        self._writer = writer
        self._current = current
        self._entry: Entry | None = None
        self._listed = ""
        self._ending = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def begin(self, stop: asyncio.Event) -> None:
        """List the entry, waiting for etcd unless asked to stop, then keep it listed."""
        listed = asyncio.Event()
        self._task = asyncio.create_task(self._keep(listed), name="presence")
        waits = [asyncio.create_task(event.wait()) for event in (listed, stop)]
        await asyncio.wait((self._task, *waits), return_when=asyncio.FIRST_COMPLETED)
        for each in waits:
            each.cancel()

    async def end(self) -> None:
        self._ending.set()
        if self._task is not None:
            await asyncio.wait((self._task,))  # A running call may be about to list it.
        entry, self._entry = self._entry, None
        if entry is not None:
            await asyncio.to_thread(entry.close)

    async def _keep(self, listed: asyncio.Event) -> None:
        is_reported = False
        while not self._ending.is_set():
            try:
                await asyncio.to_thread(self._put)
                listed.set()
                is_reported = False
            except PenstockError as error:
                if not is_reported:
                    log.warning("etcd does not list this Drainer as %s: %s", self._what(), error)
                is_reported = True
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_EVERY_S):
                    await self._ending.wait()

    def _put(self) -> None:
        if self._entry is None or self._entry.is_lost():
            self._entry, self._listed = LeasedEntry(self._etcd, _TTL_S), ""
        entry = self._current()
        if isinstance(entry, DrainerRun) and not self._listed:
            remember_run(self._etcd, self._writer, entry)
        text = text_of(entry)
        if text != self._listed:
            self._entry.put(key_of(entry, self._writer), text)
            self._listed = text

    def _what(self) -> str:
        return "a standby" if isinstance(self._current(), Standby) else "its downstream's writer"
