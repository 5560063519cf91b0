"""A gRPC server of either engine with methods of a test, in a thread with a loop of its own."""

import asyncio
import contextlib
import socket
import threading
from collections.abc import Callable, Coroutine, Iterator, Mapping
from typing import Any, TypeVar

import grpc

from penstock.security.tls import Security, SecurityConfig
from pump.config import PumpConfig
from pump.service.grpc_server import add_service, build_server, listen

SERVICE = "test.Service"
T = TypeVar("T")


class ServedMethods:
    """A server that runs; calls to it come from other threads."""

    def __init__(self, config: PumpConfig, methods: Mapping[str, Any]) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._config, self._methods = config, methods
        self.server: Any = None
        self.port = self.run(self._start())

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(30)

    async def _start(self) -> int:
        security = Security(self._config.security)
        self.server = build_server(self._config, security)
        add_service(self.server, SERVICE, self._methods)
        port = listen(self.server, self._config, security)
        await self.server.start()
        return port

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def stop(self, grace_s: float = 0) -> None:
        self.run(self.server.stop(grace_s))

    def tasks(self) -> list[str]:

        async def names() -> list[str]:
            others = asyncio.all_tasks() - {asyncio.current_task()}
            return [repr(task) for task in others]

        return self.run(names())

    def end(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


@contextlib.contextmanager
def served(
    engine: str,
    methods: Mapping[str, Any],
    *,
    security: SecurityConfig | None = None,
    **settings: Any,
) -> Iterator[ServedMethods]:
    """Serve methods by an engine while the block runs; settings are those of a Pump."""
    settings = {"addr": "127.0.0.1:0", **settings}
    config = PumpConfig(server_engine=engine, security=security or SecurityConfig(), **settings)
    running = ServedMethods(config, methods)
    try:
        yield running
    finally:
        running.stop()
        running.end()


@contextlib.contextmanager
def stranger(serve: Callable[[socket.socket], None]) -> Iterator[str]:
    """Serve one connection in a thread by a function, as a peer that is no gRPC server."""
    listening = socket.create_server(("127.0.0.1", 0))

    def accept() -> None:
        accepted, _ = listening.accept()
        with accepted, contextlib.suppress(OSError):
            serve(accepted)

    thread = threading.Thread(target=accept)
    thread.start()
    try:
        yield f"127.0.0.1:{listening.getsockname()[1]}"
    finally:
        thread.join(30)
        listening.close()
        assert not thread.is_alive()


def unary(behavior: Any) -> Any:
    """Return a handler of bytes."""
    return grpc.unary_unary_rpc_method_handler(behavior)


def path(name: str) -> str:
    return f"/{SERVICE}/{name}"
