"""Opening: returns the sink of a target, and the thread that makes all calls to it.

The thread keeps a slow commit from blocking anything else. It is a daemon thread, because a
downstream that hangs must not keep a Drainer from stopping. The downstream rolls back a transaction
that is open at that time.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
from collections.abc import Callable
from importlib.metadata import EntryPoint
from typing import Any, TypeVar

from drainer.settings import plugins
from drainer.settings.targets import (
    KafkaTarget,
    MysqlTarget,
    PluginTarget,
    SqliteTarget,
    Target,
    no_sink,
    target_of,
)
from drainer.sinks.protocol import RETRY_S_MAX, Sink, SqlSink


def open_sink(
    target: Target | str,
    *,
    cluster_id: int,
    retry_s_max: float = RETRY_S_MAX,
    accepted_ts: int = -1,
) -> Sink:
    """Return the sink for a target or its URL, of tables, of events or of a lake.

    Contacts nothing yet. Raises `NeedsOperator` for a URL that names no known downstream, and for a
    plug-in that cannot be used. While the checkpoint is at `accepted_ts`, an operator has accepted
    the downstream as it is.
    """
    target = target_of(target) if isinstance(target, str) else target
    if isinstance(target, PluginTarget):
        from drainer.sinks.third_party import PluginSink

        return PluginSink(target, cluster_id=cluster_id, retry_s_max=retry_s_max)
    plugins.check_own(target.scheme)
    how: dict[str, Any] = {"cluster_id": cluster_id, "retry_s_max": retry_s_max}
    if isinstance(target, KafkaTarget):
        how["accepted_ts"] = accepted_ts
    # Each downstream's driver is imported only if it is used.
    opened: Sink = EntryPoint(target.scheme, target.sink, plugins.GROUP).load()(target, **how)
    return opened


def open_table_sink(
    target: Target | str, *, cluster_id: int, retry_s_max: float = RETRY_S_MAX
) -> SqlSink:
    target = target_of(target) if isinstance(target, str) else target
    if not isinstance(target, SqliteTarget | MysqlTarget):
        raise no_sink(target.scheme)
    sink = open_sink(target, cluster_id=cluster_id, retry_s_max=retry_s_max)
    assert isinstance(sink, SqlSink), sink
    return sink


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
