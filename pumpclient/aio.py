"""The client for asyncio programs: each call is a coroutine.

    async with await AsyncPumpClient.connect("127.0.0.1:2379") as client:
        async with client.begin("shop") as txn:
            await txn.insert("orders", {"id": 1, "what": "nut"})
        print(txn.commit_ts)

It wraps `PumpClient` and runs its calls on up to `threads` dedicated threads, so commits of many
tasks still share messages. Cancelling a task does not undo a call that has started: a commit in
progress continues, and `commit_ts` shows its outcome.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Any, ParamSpec, Self, TypeVar

from penstock.errors import NeedsOperator
from penstock.schema.model import TableInfo
from penstock.wire.binlog import Origin
from pumpclient.client import PumpClient
from pumpclient.errors import closed
from pumpclient.rows import Row
from pumpclient.transaction import Transaction

__all__ = ["AsyncPumpClient", "AsyncTransaction"]

THREADS = 64

T = TypeVar("T")
P = ParamSpec("P")


class AsyncPumpClient:
    """A writer's connection to a Penstock cluster; made by `connect`, shared by all tasks."""

    def __init__(self, client: PumpClient, threads: ThreadPoolExecutor) -> None:
        self._client = client
        self._threads = threads

    @classmethod
    async def connect(
        cls, etcd_urls: str = "127.0.0.1:2379", *, threads: int = THREADS, **settings: Any
    ) -> Self:
        """Return a client; `settings` and errors are those of `PumpClient.connect`."""
        pool = ThreadPoolExecutor(threads, thread_name_prefix="pumpclient aio")
        try:
            client = await _on(pool, PumpClient.connect, etcd_urls, **settings)
        except BaseException:
            pool.shutdown(wait=False)
            raise
        return cls(client, pool)

    def begin(self, schema: str | None = None, *, origin: Origin | None = None) -> AsyncTransaction:
        return AsyncTransaction(self._client.begin(schema, origin=origin), self._threads)

    async def execute_ddl(
        self, sql: str, schema: str | None = None, *, origin: Origin | None = None
    ) -> list[int]:
        return await _on(self._threads, self._client.execute_ddl, sql, schema, origin=origin)

    async def table(self, name: str, schema: str | None = None) -> TableInfo:
        """Return a table's current version; raise `NeedsOperator` if it does not exist."""
        return await _on(self._threads, self._client.table, name, schema)

    async def close(self) -> None:
        """Deliver pending writes, for some seconds at most, and end all threads."""
        with contextlib.suppress(NeedsOperator):  # The client is already closed.
            await _on(self._threads, self._client.close)
        self._threads.shutdown(wait=False)

    def __repr__(self) -> str:
        return repr(self._client).replace("PumpClient", "AsyncPumpClient", 1)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()


class AsyncTransaction:
    """Row changes that are committed together; for one task at a time.

    With `async with` it commits at the end of the block and rolls back when the block raises.
    """

    def __init__(self, transaction: Transaction, threads: ThreadPoolExecutor) -> None:
        self._transaction = transaction
        self._threads = threads

    @property
    def commit_ts(self) -> int | None:
        """The commit timestamp; 0 for an empty transaction, None before the commit."""
        return self._transaction.commit_ts

    async def insert(self, table: str, row: Row) -> None:
        await _on(self._threads, self._transaction.insert, table, row)

    async def insert_many(self, table: str, rows: Iterable[Row]) -> int:
        return await _on(self._threads, self._transaction.insert_many, table, rows)

    async def update(self, table: str, before: Row, after: Row) -> None:
        await _on(self._threads, self._transaction.update, table, before, after)

    async def delete(self, table: str, before: Row) -> None:
        await _on(self._threads, self._transaction.delete, table, before)

    async def commit(self) -> int:
        return await _on(self._threads, self._transaction.commit)

    async def rollback(self) -> None:
        await _on(self._threads, self._transaction.rollback)

    def __repr__(self) -> str:
        return repr(self._transaction).replace("Transaction", "AsyncTransaction", 1)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await _on(self._threads, self._transaction.__exit__, kind, error, trace)


async def _on(
    threads: ThreadPoolExecutor, call: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs
) -> T:
    loop = asyncio.get_running_loop()
    try:
        called = loop.run_in_executor(threads, lambda: call(*args, **kwargs))
    except RuntimeError as error:  # The threads have ended.
        raise closed() from error
    return await called
