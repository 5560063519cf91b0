"""A TCP proxy on loopback that does to connections what bad networks do.

It delivers late (`delay_s`, on the way to the server only: an operation of one message takes so
much longer, and many on one connection overtake nothing), or in drops (`bytes_per_s`, on the way
back), or not at all and without a word (`is_black_hole`: connections stay open, new ones open and
are mute), or it resets all connections (`reset`). All may be changed while connections are open.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import threading
from typing import Self

_CHUNK_BYTES = 64 << 10


class SlowProxy:
    """Listens at `url` for the server at `target`; a thread of its own does the work."""

    def __init__(self, target: str, *, delay_s: float = 0.0) -> None:
        self._host, _, port = target.rpartition(":")
        self._port = int(port)
        self.delay_s = delay_s
        self.bytes_per_s = 0
        self.is_black_hole = False
        self.accepted = 0
        self.url = ""
        self._open: set[asyncio.StreamWriter] = set()
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
        self._loop.call_soon_threadsafe(self._reset)

    def _reset(self) -> None:
        for writer in self._open:
            # Without lingering the peer is sent RST, and what was under way is gone.
            raw = writer.get_extra_info("socket")
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            writer.transport.abort()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        server = self._loop.run_until_complete(asyncio.start_server(self._accept, "127.0.0.1", 0))
        self.url = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
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
        self._open.add(writer)
        self._serving.add(self._loop.create_task(self._serve(reader, writer)))

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            up_reader, up_writer = await asyncio.open_connection(self._host, self._port)
        except OSError:
            self._close(writer)
            return
        self._open.add(up_writer)
        late: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()
        ways = (
            self._hold(reader, late),
            self._deliver(late, up_writer),
            self._copy(up_reader, writer),
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
        self._open.discard(writer)

    async def _hold(
        self, reader: asyncio.StreamReader, late: asyncio.Queue[tuple[float, bytes]]
    ) -> None:
        while data := await reader.read(_CHUNK_BYTES):
            if not self.is_black_hole:
                late.put_nowait((self._loop.time() + self.delay_s, data))

    async def _deliver(
        self, late: asyncio.Queue[tuple[float, bytes]], writer: asyncio.StreamWriter
    ) -> None:
        while True:
            due_s, data = await late.get()
            await asyncio.sleep(due_s - self._loop.time())
            writer.write(data)
            await writer.drain()

    async def _copy(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(self._most_bytes()):
            if self.is_black_hole:
                continue
            writer.write(data)
            await writer.drain()
            if self.bytes_per_s:
                await asyncio.sleep(len(data) / self.bytes_per_s)

    def _most_bytes(self) -> int:
        """Return how much to pass on at once: a fifth of a second of a slow way."""
        return min(_CHUNK_BYTES, self.bytes_per_s // 5 or _CHUNK_BYTES)
