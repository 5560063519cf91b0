"""Readers: committed transactions, on asyncio or in a thread; `Cursor` holds their position.

    async with await AsyncReader.connect("127.0.0.1:2379", after=stored) as reader:
        async for each in reader:
            await store(each.checkpoint)

An `AsyncReader` runs in the program's event loop: a program that blocks the loop for seconds delays
its own stream, and nothing else. A `Reader` does the same in a dedicated thread, with blocking
calls.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Coroutine, Iterator, Sequence
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from typing import Any, Self, TypeVar

from drainer.differences import lines
from drainer.intake.merge_holder import PumpView
from drainer.sinks.committed import Changes
from drainer.stream.batches import ROWS_MAX, Batch, batches_of
from drainer.stream.decoder import Committed, Ddl, Portion, Reached, Transaction
from drainer.stream.feed import BEGINNING, ReaderFeed, ReaderOptions, open_feed
from penstock.codes import Code
from penstock.errors import NeedsOperator
from penstock.filters import FilterConfig
from penstock.security.tls import Tls

T = TypeVar("T")


class Cursor:
    """A reader's position, and the elements of the last portion that it has not returned yet."""

    def __init__(self, feed: ReaderFeed) -> None:
        self._feed = feed
        self._reached = self._through = feed.start
        self._waiting: deque[Committed] = deque()
        self._large: Changes | None = None
        self._is_closed = False

    @property
    def checkpoint(self) -> str:
        """The reader's position: everything up to it was given to the program.

        It also moves while no change comes that the program wants, so a program that waits in `get`
        should store it now and then. Within a loop over the reader it is that of the current
        element.
        """
        return self._reached.text

    def acknowledge(self, checkpoint: str) -> None:
        """Let Pumps purge binlogs before a checkpoint, because the program has stored it.

        It is useful for a reader with a name; other readers hold nothing. Raises `NeedsOperator`
        for a value that is not a checkpoint of an element that this reader has given.
        """
        cluster_id, acknowledged = Reached.from_text(checkpoint)
        own, reached = self._reached
        if cluster_id != own or acknowledged.commit_ts > reached.commit_ts:
            raise NeedsOperator(
                f"this reader has given nothing up to the checkpoint at {acknowledged.commit_ts}",
                "acknowledge a checkpoint of this reader, once it is stored",
                Code.READER_MISUSED,
            )
        self._feed.acknowledged_ts = acknowledged.commit_ts

    def waits_for(self) -> str:
        """Return what blocks the stream, and the remedy; empty while it moves.

        An unreachable Pump blocks it, because that Pump may have the next transaction.
        """
        return self._ask(self._feed.waits_for)

    def pumps(self) -> Sequence[PumpView]:
        """Return every Pump as the merge sees it: its condition, the reason, its position."""
        return self._ask(self._feed.pumps)

    def skipped(self) -> Sequence[str]:
        """Return the counts of skipped data since the start, one line per cause and table."""
        return self._ask(lambda: lines(self._feed.decoder.skipped.totals))

    left_out = skipped
    """The former name."""

    def __repr__(self) -> str:
        cluster_id, checkpoint = self._reached
        state = "closed at" if self._is_closed else "at"
        return f"<{type(self).__name__} of cluster {cluster_id}, {state} {checkpoint.commit_ts}>"

    def _ask(self, question: Callable[[], T]) -> T:
        return question()

    def _release(self, changes: Changes) -> None:
        changes.release()

    def _take(self, portion: Portion) -> None:
        assert not self._waiting, "all elements of the previous portion have been returned"
        self._waiting.extend(portion.committed)
        self._through = portion.reached

    def _known(self) -> Committed | None:
        """Return the next element, or None if another portion is needed."""
        if self._large is not None:  # Its turn is over.
            self._large.expire()
            self._release(self._large)
            self._large = None
        if not self._waiting:
            self._reached = self._through
            return None
        one = self._waiting.popleft()
        if isinstance(one, Transaction) and one.is_large:
            self._large = one.changes
        self._reached = one.reached
        return one


def closed() -> NeedsOperator:
    return NeedsOperator(
        "the reader is closed", "connect again, after the stored checkpoint", Code.CLOSED
    )


class AsyncReader(Cursor):
    """Committed transactions in commit order, for one task at a time; made by `connect`."""

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
        feed = open_feed(etcd_urls, after=after, name=name, filter=filter, tls=tls, options=options)
        return cls(await feed)

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
            found = self._known()
            if found is not None:
                return found
            portion = await self._feed.more()
            if portion is None:
                break
            self._take(portion)
        return None

    async def close(self) -> None:
        self._is_closed = True
        await self._feed.close()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Committed:
        found = await self._next()
        if found is None:
            raise StopAsyncIteration
        return found

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()


class Reader(Cursor):
    """Committed transactions in commit order; made by `connect`.

    One thread reads; any other may close it, and query its state.
    """

    def __init__(self, feed: ReaderFeed, loop: LoopThread) -> None:
        super().__init__(feed)
        self._loop = loop
        self._asked: Future[Portion | None] | None = None

    def _ask(self, question: Callable[[], T]) -> T:
        async def answer() -> T:
            return question()

        return self._loop.run(answer())

    def _release(self, changes: Changes) -> None:
        self._loop.later(changes.release)

    @classmethod
    def connect(
        cls,
        etcd_urls: str = "127.0.0.1:2379",
        *,
        after: int | str = BEGINNING,
        name: str = "",
        filter: FilterConfig | None = None,
        tls: Tls | None = None,
        options: ReaderOptions | None = None,
    ) -> Self:
        """Return a reader of the cluster whose nodes are registered in that etcd.

        It starts `after` a commit_ts, at the `BEGINNING`, `NOW`, or at a `checkpoint`. With a
        `name` it is listed beside the Drainers, and Pumps purge nothing that was not acknowledged;
        only one reader at a time may run under a name. `filter` is the same as a Drainer's
        `[filter]`: tables, kinds of change, row expressions, and other names for tables. Raises
        `Retryable` if etcd or the oracle does not answer, `NeedsOperator` for arguments that are
        not possible.
        """
        feed = open_feed(etcd_urls, after=after, name=name, filter=filter, tls=tls, options=options)
        loop = LoopThread()
        try:
            return cls(loop.run(feed), loop)
        except BaseException:
            loop.end()
            raise

    def get(self, timeout_s: float | None = None) -> Committed | None:
        """Return the next element, None if none comes within `timeout_s`.

        Raises `NeedsOperator` for an error that stops the stream permanently, such as purged
        binlogs, and if the reader is closed. During an outage of Pumps or etcd it waits
        (`waits_for`).
        """
        try:
            found = self._next(timeout_s)
        except TimeoutError:
            return None
        if found is None:
            raise closed()
        return found

    def batches(
        self, *, rows_max: int = ROWS_MAX, timeout_s: float | None = None
    ) -> Iterator[Batch | Ddl]:
        """Yield batches of Arrow rows, and DDL, in commit order, until the reader is closed.

        A batch has about `rows_max` rows, and fewer if no more have arrived. With `timeout_s` the
        iteration ends when nothing comes for so long. Raises the errors of `get`, and `Malformed`
        for a table with a column that has the name of a batch's own columns.
        """
        return batches_of(self._next, self._reached, rows_max=rows_max, timeout_s=timeout_s)

    def _next(self, timeout_s: float | None) -> Committed | None:
        """Return the next element, or None if the reader is closed; raise `TimeoutError`."""
        end_s = None if timeout_s is None else self._loop.now_s() + timeout_s
        while not self._is_closed:
            found = self._known()
            if found is not None:
                return found
            portion = self._more(None if end_s is None else max(0.0, end_s - self._loop.now_s()))
            if portion is None:
                break
            self._take(portion)
        return None

    def _more(self, timeout_s: float | None) -> Portion | None:
        if self._asked is None:
            self._asked = self._loop.begin(self._feed.more())
        try:
            portion = self._asked.result(timeout_s)
        except CancelledError:
            return None  # The loop has ended since.
        except TimeoutError:
            raise  # The next call takes the requested element.
        except Exception:
            self._asked = None
            raise
        self._asked = None
        return portion

    def close(self) -> None:
        """Stop pulling, from any thread; an iteration in progress also ends."""
        if not self._is_closed:
            self._is_closed = True
            self._loop.run(self._feed.close())
            self._loop.end()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Committed:
        found = self._next(None)
        if found is None:
            raise StopIteration
        return found

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class LoopThread:
    """An event loop in a dedicated thread."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._ending = asyncio.Event()
        self._thread = threading.Thread(target=self._live, name="penstock reader", daemon=True)
        self._thread.start()

    def _live(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:  # Cancels the rest.
            runner.run(self._ending.wait())

    def now_s(self) -> float:
        return self._loop.time()

    def begin(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        try:
            return asyncio.run_coroutine_threadsafe(work, self._loop)
        except RuntimeError as error:
            work.close()
            raise closed() from error

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self.begin(work).result()

    def later(self, act: Callable[[], None]) -> None:
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(act)

    def end(self) -> None:
        self.later(lambda: self._ending.set())
        self._thread.join()
