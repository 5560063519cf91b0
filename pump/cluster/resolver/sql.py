"""Asks the writers' own databases: an outbox row that is there is a commit, else a fence goes in.

Why the answers are right, whatever a writer does at whatever moment, is argued in
`penstock.outbox`. This module keeps a bad database from harming anything else:

    one thread asks           up to 4 threads per database, each with a connection of its own
    it is slow                a question takes `timeout_s` at most, in the driver and in its locks
    it is away or broken      nobody tries again for a second: the others' questions fail at once
                              and come again
    too many ask              256 per database may wait, the others come again

A transaction with an outbox key is never decided by its age, however long its database is away:
what it committed must reach the downstream. To give a database up for lost, set `kind = "none"`.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from penstock import outbox
from penstock.errors import NeedsOperator, PenstockError, Retryable
from pump.cluster.resolver.databases import is_locked, opener, split
from pump.cluster.resolver.resolving import (
    ROLLED_BACK,
    UNKNOWN,
    Outcome,
    Question,
    Resolution,
    Resolver,
)
from pump.config import ResolverConfig

log = logging.getLogger(__name__)

_THREADS = 4
_WAITING_MAX = 256
_AWAY_S = 1.0

_Connection = Any


class Database:
    """One database with an outbox; blocking, safe to share between threads."""

    def __init__(self, name: str, table: str, connect: Callable[[], _Connection]) -> None:
        self.name = name
        self._table = table
        self._connect = connect
        self._idle: queue.SimpleQueue[_Connection] = queue.SimpleQueue()
        self._away_until_s = float("-inf")
        self._away_because = ""
        self._closed = False

    def settle(self, key: bytes, start_ts: int, *, fence: bool) -> int | None:
        """Answer as `outbox.settle` does; raise `Retryable` when the database does not."""
        if time.monotonic() < self._away_until_s:
            raise Retryable(self._away_because)
        connection = None
        try:
            connection = self._take()
            found = outbox.settle(connection, self._table, key, start_ts, fence=fence)
        except BaseException as error:
            # In whatever state it is: a lock may be held, half of an answer may be on its way.
            if connection is not None:
                _close(connection)
            if isinstance(error, PenstockError) or not isinstance(error, Exception):
                raise
            raise self._failed(error) from error
        self._idle.put(connection)
        if self._closed:
            self.close()
        return found

    def close(self) -> None:
        """Close the connections that are not in use, and later those that are."""
        self._closed = True
        self._drop_idle()

    def _take(self) -> _Connection:
        try:
            return self._idle.get_nowait()
        except queue.Empty:
            return self._connect()

    def _failed(self, error: Exception) -> Retryable:
        """Return what to raise for a driver's error, and keep others from meeting the same."""
        if is_locked(error):
            return Retryable(f"the writer has its outbox row in {self.name} locked: {error}")
        self._away_because = f"the database {self.name} does not answer: {error}"
        self._away_until_s = time.monotonic() + _AWAY_S
        self._drop_idle()  # What was connected to a server that is gone is of no use.
        return Retryable(self._away_because)

    def _drop_idle(self) -> None:
        while True:
            try:
                _close(self._idle.get_nowait())
            except queue.Empty:
                return


class _Desk:
    """The threads that ask one database, and who waits for them."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self.threads = ThreadPoolExecutor(_THREADS, f"pump-resolver-{database.name}")
        self.waiting = 0


class SqlResolver:
    """Resolves transactions with an outbox key; passes the others on."""

    def __init__(
        self, databases: Mapping[str, Database], otherwise: Resolver, *, fence_after_s: float
    ) -> None:
        """Take databases by the name in their keys; the name "" is for all other names."""
        self._desks = {name: _Desk(database) for name, database in databases.items()}
        self._otherwise = otherwise
        self._fence_after_s = fence_after_s

    async def resolve(self, question: Question) -> Resolution:
        """Ask the key's database, which fences a writer that was silent for too long."""
        name = outbox.name_in(question.prewrite_key)
        if name is None:
            return await self._otherwise.resolve(question)
        desk = self._desks.get(name) or self._desks.get("")
        if desk is None:
            raise NeedsOperator(
                f"nobody told this Pump where the outbox {name!r} is",
                hint=f"add {name}=URL to resolver.url",
            )
        if desk.waiting >= _WAITING_MAX:
            raise Retryable(f"too many questions to the database {desk.database.name}")
        desk.waiting += 1
        try:
            found = await asyncio.get_running_loop().run_in_executor(
                desk.threads, self._ask, desk.database, question
            )
        finally:
            desk.waiting -= 1
        if found is None:
            return UNKNOWN
        return Resolution(Outcome.COMMITTED, found) if found else ROLLED_BACK

    async def close(self) -> None:
        """Leave the threads to end what they do, which their time-outs bound."""
        for desk in self._desks.values():
            desk.threads.shutdown(wait=False, cancel_futures=True)
            desk.database.close()
        await self._otherwise.close()

    def _ask(self, database: Database, question: Question) -> int | None:
        fence = question.waited_s >= self._fence_after_s
        return database.settle(question.prewrite_key, question.start_ts, fence=fence)


def databases(config: ResolverConfig) -> dict[str, Database]:
    """Return the configured databases by name; raise `NeedsOperator` for what cannot be right."""
    found: dict[str, Database] = {}
    for entry in config.url:
        name, url = split(entry)
        if name in found:
            raise NeedsOperator(
                f"resolver.url names the outbox {name!r} twice", hint="give each a name: name=URL"
            )
        shown, connect = opener(url, timeout_s=config.timeout_s)
        found[name] = Database(f"{name} at {shown}" if name else shown, config.table, connect)
    return found


def _close(connection: _Connection) -> None:
    try:
        connection.close()
    except Exception as error:
        log.debug("closing a broken connection: %s", error)
