"""Reader on asyncio: `async for` over committed transactions.

    async with await AsyncReader.connect("127.0.0.1:2379", after=stored) as reader:
        async for each in reader:
            await store(each.checkpoint)

It runs in the program's event loop: a program that blocks the loop for seconds delays its own
stream, and nothing else.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from types import TracebackType
from typing import Self

from drainer.differences.left_out import lines
from drainer.intake.merge_holder import PumpView
from drainer.stream.cursor import Cursor
from drainer.stream.feed import BEGINNING, ReaderFeed, ReaderOptions, Wanted, open_feed
from drainer.stream.transaction import Changes, Committed
from penstock.codes import Code
from penstock.errors import NeedsOperator
from penstock.filters import FilterConfig
from penstock.security.tls import Tls


def closed() -> NeedsOperator:
    return NeedsOperator(
        "the reader is closed", hint="connect again, after the stored checkpoint", code=Code.CLOSED
    )


class AsyncReader:
    """Committed transactions in commit order, for one task at a time; made by `connect`."""

    def __init__(self, feed: ReaderFeed) -> None:
        self._feed = feed
        self._cursor = Cursor(feed.start, Changes.release)
        self._is_closed = False

    @classmethod
    async def connect(
        cls,
        etcd_urls: str = "127.0.0.1:2379",
        *,
        after: int | str = BEGINNING,
        name: str = "",
        filter: FilterConfig | None = None,
        tls: Tls | None = None,
        options: ReaderOptions | None = None,
    ) -> Self:
        """Connect a reader to a cluster; parameters and errors are those of `Reader.connect`."""
        wanted = Wanted(
            etcd_urls=etcd_urls,
            after=after,
            name=name,
            filter=filter,
            tls=tls,
            options=options or ReaderOptions(),
        )
        return cls(await open_feed(wanted))

    @property
    def checkpoint(self) -> str:
        return self._cursor.reached.text

    def acknowledge(self, checkpoint: str) -> None:
        self._feed.acknowledged_ts = self._cursor.acknowledged(checkpoint)

    async def get(self, timeout_s: float | None = None) -> Committed | None:
        """Return the next element, None if none comes in time; may be cancelled.

        Raises the same errors as iteration, and `NeedsOperator` if the reader is closed.
        """
        try:
            async with asyncio.timeout(timeout_s):
                found = await self._next()
        except TimeoutError:
            return None
        if found is None:
            raise closed()
        return found

    async def _next(self) -> Committed | None:
        while not self._is_closed:
            found = self._cursor.next()
            if found is not None:
                return found
            portion = await self._feed.more()
            if portion is None:
                break
            self._cursor.take(portion)
        return None

    def waits_for(self) -> str:
        return self._feed.waits_for()

    def pumps(self) -> Sequence[PumpView]:
        return self._feed.pumps()

    def left_out(self) -> Sequence[str]:
        return lines(self._feed.decoder.left_out.totals)

    async def close(self) -> None:
        self._is_closed = True
        await self._feed.close()

    def __repr__(self) -> str:
        return describe(self, self._cursor, is_closed=self._is_closed)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Committed:
        found = await self._next()
        if found is None:
            raise StopAsyncIteration
        return found

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()


def describe(reader: object, cursor: Cursor, *, is_closed: bool) -> str:
    cluster_id, checkpoint = cursor.reached
    state = "closed at" if is_closed else "at"
    return f"<{type(reader).__name__} of cluster {cluster_id}, {state} {checkpoint.commit_ts}>"
