"""A TCP proxy on loopback that does to connections what bad networks do.

It delivers late (`delay_s`, on the way to the server only: an operation of one message takes so
much longer, and many on one connection overtake nothing), or in drops (`bytes_per_s`, on the way
back), or not at all and without a word (`is_black_hole`: connections stay open, new ones open and
are mute), or it resets all connections (`reset`). All may be changed while connections are open.

Callers that use addresses of their own to reach it are told apart: `client` limits all of that to
the connections of one of them. Other ports of the same machine may be added and removed (`forward`,
`unforward`): what concerns the proxy concerns their connections, too.
"""

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
        self._target = target
        self.delay_s = delay_s
        self.bytes_per_s = 0
        self.is_black_hole = False
        self.client = ""
        self._listen_port = listen_port
        self._callers = callers or {"127.0.0.1": ""}
        self.accepted = 0
        self.url = ""
        self._open: dict[asyncio.StreamWriter, str] = {}
        self._targets: dict[int, str] = {}
        self._listening: dict[int, asyncio.Server] = {}
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

    def redirect(self, target: str) -> None:
        """Lead connections to come at `url` to another server."""
        self._targets[int(self.url.rpartition(":")[2])] = target

    def forward(self, port: int, target: str) -> None:
        """Listen at a port as well, for the server at `target`; raise `OSError` if it is taken."""
        asyncio.run_coroutine_threadsafe(self._listen(port, target), self._loop).result(10)

    def unforward(self, port: int) -> None:
        """Listen at a port no longer; connections that are open end with the server's."""
        self._loop.call_soon_threadsafe(self._listening.pop(port).close)

    async def _listen(self, port: int, target: str) -> str:
        server = await asyncio.start_server(self._accept, list(self._callers), port)
        host, port = server.sockets[0].getsockname()[:2]
        self._targets[port], self._listening[port] = target, server
        return f"{host}:{port}"

    def _concerns(self, client: str) -> bool:
        return self.client in ("", client)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        listening = self._listen(self._listen_port, self._target)
        self.url = self._loop.run_until_complete(listening)
        self._ready.set()
        self._loop.run_forever()
        for server in self._listening.values():
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
        address, port = writer.get_extra_info("sockname")[:2]
        client, target = self._callers[address], self._targets[port]
        self._open[writer] = client
        self._serving.add(self._loop.create_task(self._serve(reader, writer, client, target)))

    async def _serve(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, client: str, target: str
    ) -> None:
        host, _, port = target.rpartition(":")
        try:
            up_reader, up_writer = await asyncio.open_connection(host, int(port))
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
