"""Reader for programs without asyncio: the same in a dedicated thread, with blocking calls."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from types import TracebackType
from typing import Any, Self, TypeVar

from drainer.differences.left_out import lines
from drainer.intake.merge_holder import PumpView
from drainer.stream.cursor import Cursor
from drainer.stream.decoder import Portion
from drainer.stream.feed import BEGINNING, ReaderFeed, ReaderOptions, Wanted, open_feed
from drainer.stream.reader import closed, describe
from drainer.stream.transaction import Committed
from penstock.filters import FilterConfig
from penstock.security.tls import Tls

T = TypeVar("T")


class Reader:
    """Committed transactions in commit order; made by `connect`.

    One thread reads; any other may close it, and query its state.
    """

    def __init__(self, feed: ReaderFeed, loop: _Loop) -> None:
        self._feed = feed
        self._loop = loop
        self._cursor = Cursor(feed.start, lambda changes: loop.later(changes.release))
        self._asked: Future[Portion | None] | None = None
        self._is_closed = False

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
        wanted = Wanted(
            etcd_urls=etcd_urls,
            after=after,
            name=name,
            filter=filter,
            tls=tls,
            options=options or ReaderOptions(),
        )
        loop = _Loop()
        try:
            return cls(loop.run(open_feed(wanted)), loop)
        except BaseException:
            loop.end()
            raise

    @property
    def checkpoint(self) -> str:
        """The reader's position: everything up to it was given to the program.

        It also moves while no change comes that the program wants, so a program that waits in `get`
        should store it now and then. Within a loop over the reader it is that of the current
        element.
        """
        return self._cursor.reached.text

    def acknowledge(self, checkpoint: str) -> None:
        """Let Pumps purge binlogs before a checkpoint, because the program has stored it.

        It is useful for a reader with a name; other readers hold nothing. Raises `NeedsOperator`
        for a value that is not a checkpoint of an element that this reader has given.
        """
        self._feed.acknowledged_ts = self._cursor.acknowledged(checkpoint)

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

    def _next(self, timeout_s: float | None) -> Committed | None:
        """Return the next element, or None if the reader is closed; raise `TimeoutError`."""
        end_s = None if timeout_s is None else self._loop.now_s() + timeout_s
        while not self._is_closed:
            found = self._cursor.next()
            if found is not None:
                return found
            portion = self._more(None if end_s is None else max(0.0, end_s - self._loop.now_s()))
            if portion is None:
                break
            self._cursor.take(portion)
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

    def waits_for(self) -> str:
        """Return what blocks the stream, and the remedy; empty while it moves.

        An unreachable Pump blocks it, because that Pump may have the next transaction.
        """
        return self._loop.ask(self._feed.waits_for)

    def pumps(self) -> Sequence[PumpView]:
        """Return every Pump as the merge sees it: its condition, the reason, its position."""
        return self._loop.ask(self._feed.pumps)

    def left_out(self) -> Sequence[str]:
        """Return the counts of skipped data since the start, one line per cause and table."""
        return self._loop.ask(lambda: lines(self._feed.decoder.left_out.totals))

    def close(self) -> None:
        """Stop pulling, from any thread; an iteration in progress also ends."""
        if not self._is_closed:
            self._is_closed = True
            self._loop.run(self._feed.close())
            self._loop.end()

    def __repr__(self) -> str:
        return describe(self, self._cursor, is_closed=self._is_closed)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Committed:
        found = self._next(None)
        if found is None:
            raise StopIteration
        return found

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class _Loop:
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

    def ask(self, question: Callable[[], T]) -> T:
        async def answer() -> T:
            return question()

        return self.run(answer())

    def later(self, act: Callable[[], None]) -> None:
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(act)

    def end(self) -> None:
        self.later(lambda: self._ending.set())
        self._thread.join()
