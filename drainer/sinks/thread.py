"""Sink thread: makes all calls to the downstream, so that a slow commit blocks nothing else.

It is a daemon thread, because a downstream that hangs must not keep a Drainer from stopping. The
downstream rolls back a transaction that is open at that time.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
from collections.abc import Callable
from typing import Any, TypeVar

log = logging.getLogger(__name__)

T = TypeVar("T")
_Call = tuple[Callable[[], Any], asyncio.Future[Any]]


class SinkThread:
    """Calls run one after another, in the order in which they were made."""

    def __init__(self) -> None:
        """Start the thread, which belongs to the running event loop."""
        self._loop = asyncio.get_running_loop()
        self._calls: queue.SimpleQueue[_Call | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._serve, name="sink", daemon=True)
        self._thread.start()

    async def call(self, function: Callable[[], T]) -> T:
        done: asyncio.Future[T] = self._loop.create_future()
        self._calls.put((function, done))
        return await done

    async def close(self, timeout_s: float) -> bool:
        """End the thread after its pending calls; False if that exceeds `timeout_s`."""
        self._calls.put(None)
        await asyncio.to_thread(self._thread.join, timeout_s)
        return not self._thread.is_alive()

    def _serve(self) -> None:
        while (call := self._calls.get()) is not None:
            function, done = call
            try:
                value, error = function(), None
            except BaseException as raised:
                value, error = None, raised
            self._hand_back(done, value, error)
            del call, function, done, value, error  # A batch of SQL must not outlive its commit.

    def _hand_back(
        self, done: asyncio.Future[Any], value: Any, error: BaseException | None
    ) -> None:
        def resolve() -> None:
            if done.cancelled():
                return
            if error is None:
                done.set_result(value)
            else:
                done.set_exception(error)

        try:
            self._loop.call_soon_threadsafe(resolve)
        except RuntimeError:
            log.warning("the downstream answered after the Drainer had stopped waiting")
