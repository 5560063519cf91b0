"""The oracle's twin in memory, and Penstock's own oracle served by a thread of the test."""

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import grpc

from penstock.cluster.etcd import EtcdClient
from penstock.oracle.server import OracleServer
from penstock.ts import compose
from tests.kit.wait import eventually

T = TypeVar("T")


class MemoryOracle:
    """Timestamps from a counter that follows `now_ms`, a value to be set or a function."""

    def __init__(self, now_ms: int | Callable[[], int] = 1_700_000_000_000) -> None:
        self.now_ms = now_ms
        self._lock = threading.Lock()
        self._last_ts = 0

    def get_ts(self) -> int:
        return self.get_many(1)[0]

    def get_many(self, count: int) -> range:
        now_ms = self.now_ms() if callable(self.now_ms) else self.now_ms
        with self._lock:
            first = max(self._last_ts + 1, compose(now_ms, 0))
            self._last_ts = first + count - 1
            return range(first, first + count)

    def close(self) -> None:
        pass


class FixedHorizon:
    """A Pump's clock that does not go on; nothing is ahead of the default."""

    def __init__(self, horizon_ts: int = 1 << 63) -> None:
        self.horizon_ts = horizon_ts

    def is_ahead(self, ts: int) -> bool:
        return ts > self.horizon_ts


class OracleNode:
    """A candidate with its gRPC server, in an event loop and a thread of its own."""

    def __init__(self, etcd: EtcdClient, *, wall_offset_ms: float = 0, held_ts: int = 0) -> None:
        self.wall_offset_ms = wall_offset_ms
        self._held_ts = held_ts
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._run(self._start(etcd))

    def stop(self) -> None:
        self._run(self._stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.run_until_complete(self._loop.shutdown_default_executor())
        self._loop.close()

    def wait_elected(self, within_s: float = 10) -> None:
        """Wait until this one leads."""
        eventually(lambda: self.oracle.is_leader, within_s)

    def take_now(self, count: int) -> range | None:
        """Take timestamps without a call, in the event loop."""

        async def take() -> range | None:
            return self.oracle.take_now(count)

        return self._run(take())

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(30)

    async def _start(self, etcd: EtcdClient) -> None:
        self._server = grpc.aio.server()
        port = self._server.add_insecure_port("127.0.0.1:0")
        self.address = f"127.0.0.1:{port}"
        self.oracle = OracleServer(
            etcd,
            self.address,
            held_ts=lambda: self._held_ts,
            wall_ms=lambda: time.time() * 1000 + self.wall_offset_ms,
        )
        self.oracle.add_to_server(self._server)
        await self._server.start()
        await self.oracle.start()

    async def _stop(self) -> None:
        await self.oracle.stop()
        await self._server.stop(0)
