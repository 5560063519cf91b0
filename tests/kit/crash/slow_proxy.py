"""A TCP proxy on loopback that does to connections what bad networks do.

It delivers late (`delay_s`, on the way to the server only: an operation of one message takes so
much longer, and many on one connection overtake nothing), or in drops (`bytes_per_s`, on the way
back), or not at all and without a word (`is_black_hole`: connections stay open, new ones open and
are mute), or it resets all connections (`reset`). All may be changed while connections are open.

Callers that use addresses of their own to reach it are told apart: `client` limits all of that to
the connections of one of them.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import threading
from collections.abc import Mapping
from typing import Self

_CHUNK_BYTES = 64 << 10


class SlowProxy:
    """Listens at `url` for the server at `target`; a thread of its own does the work."""

    def __init__(
        self,
        target: str,
        *,
        delay_s: float = 0.0,
        listen_port: int = 0,
        callers: Mapping[str, str] | None = None,
    ) -> None:
        """Prepare; `callers` are those who are told apart: address of loopback to name."""
        self._host, _, port = target.rpartition(":")
        self._port = int(port)
        self.delay_s = delay_s
        self.bytes_per_s = 0
        self.is_black_hole = False
        self.client = ""
        self._listen_port = listen_port
        self._callers = callers or {"127.0.0.1": ""}
        self.accepted = 0
        self.url = ""
        self._open: dict[asyncio.StreamWriter, str] = {}
        self._serving: set[asyncio.Task[None]] = set()
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, name="slow proxy", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._ready.wait(10)
        return self

    def __exit__(self, *error: object) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def reset(self) -> None:
        """Break all connections that are open, both ends of each; those to come are let be."""
        done = threading.Event()
        self._loop.call_soon_threadsafe(self._reset, done)
        assert done.wait(10)

    def _reset(self, done: threading.Event) -> None:
        for writer, client in self._open.items():
            if not self._concerns(client):
                continue
            # Without lingering the peer is sent RST, and what was under way is gone.
            raw = writer.get_extra_info("socket")
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            writer.transport.abort()
        done.set()

    def _concerns(self, client: str) -> bool:
        return self.client in ("", client)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        listening = asyncio.start_server(self._accept, list(self._callers), self._listen_port)
        server = self._loop.run_until_complete(listening)
        host, port = server.sockets[0].getsockname()
        self.url = f"{host}:{port}"
        self._ready.set()
        self._loop.run_forever()
        server.close()
        self._loop.run_until_complete(self._end())

    async def _end(self) -> None:
        """Cancel what runs and cut what is open: a connection may be at any step."""
        while others := asyncio.all_tasks() - {asyncio.current_task()}:
            for task in others:
                task.cancel()
            await asyncio.wait(others)
        for writer in self._open:
            writer.transport.abort()
        await asyncio.sleep(0)  # The transports close their sockets.

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted += 1
        client = self._callers[writer.get_extra_info("sockname")[0]]
        self._open[writer] = client
        self._serving.add(self._loop.create_task(self._serve(reader, writer, client)))

    async def _serve(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, client: str
    ) -> None:
        try:
            up_reader, up_writer = await asyncio.open_connection(self._host, self._port)
        except OSError:
            self._close(writer)
            return
        self._open[up_writer] = client
        late: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()
        ways = (
            self._hold(reader, late, client),
            self._deliver(late, up_writer),
            self._copy(up_reader, writer, client),
        )
        tasks = [self._loop.create_task(way) for way in ways]
        try:
            with contextlib.suppress(asyncio.CancelledError):  # The proxy ends.
                await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self._close(writer)
            self._close(up_writer)

    def _close(self, writer: asyncio.StreamWriter) -> None:
        writer.close()
        self._open.pop(writer, None)

    async def _hold(
        self, reader: asyncio.StreamReader, late: asyncio.Queue[tuple[float, bytes]], client: str
    ) -> None:
        while data := await reader.read(_CHUNK_BYTES):
            is_concerned = self._concerns(client)
            if not (is_concerned and self.is_black_hole):
                delay_s = self.delay_s if is_concerned else 0.0
                late.put_nowait((self._loop.time() + delay_s, data))

    async def _deliver(
        self, late: asyncio.Queue[tuple[float, bytes]], writer: asyncio.StreamWriter
    ) -> None:
        while True:
            due_s, data = await late.get()
            await asyncio.sleep(due_s - self._loop.time())
            writer.write(data)
            await writer.drain()

    async def _copy(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, client: str
    ) -> None:
        while data := await reader.read(self._most_bytes()):
            is_concerned = self._concerns(client)
            if is_concerned and self.is_black_hole:
                continue
            writer.write(data)
            await writer.drain()
            if is_concerned and self.bytes_per_s:
                await asyncio.sleep(len(data) / self.bytes_per_s)

    def _most_bytes(self) -> int:
        """Return how much to pass on at once: a fifth of a second of a slow way."""
        return min(_CHUNK_BYTES, self.bytes_per_s // 5 or _CHUNK_BYTES)
