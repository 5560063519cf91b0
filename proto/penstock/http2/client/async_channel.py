"""Async channel: one connection to a gRPC server, for the calls of an event loop that stream.

    AsyncChannel ── server_stream(method, request) ──> AsyncStream ── read, take ──> messages

Received bytes are given back to the server's window only when they are requested, so no more than a
window's worth waits here. A broken connection stays broken; a caller makes another channel. Nothing
is resent automatically.
"""

from __future__ import annotations

import asyncio
import os
from collections import deque
from typing import Any, Final, Self

from penstock.http2.client.channel import (
    CallFailed,
    address_parts,
    lost_text,
    request_block,
    text_of,
)
from penstock.http2.client.client_connection import ClientConnection, ClientStream, Event, Outcome
from penstock.http2.header_blocks import UNAVAILABLE
from penstock.security.tls import Tls

_CONNECT_S: Final = 5.0
_CLOSED: Final = "the channel is closed"


class AsyncStream:
    """The messages that answer one call, one at a time on request; for one task."""

    def __init__(self, channel: AsyncChannel, stream: ClientStream | None) -> None:
        self._channel = channel
        self._stream = stream
        self._came: deque[bytes] = deque()
        self.outcome: Outcome | None = None
        """How the call ended, None while it runs."""
        self._waiter: asyncio.Future[None] | None = None

    async def read(self) -> bytes | None:
        """Return the next message, None after the last; raises `CallFailed` when the call fails."""
        while (message := self.take()) is None:
            if self.outcome is not None:
                if self.outcome.status:
                    raise CallFailed(self.outcome)
                return None
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        return message

    def take(self) -> bytes | None:
        if not self._came:
            return None
        message = self._came.popleft()
        if self._stream is not None:
            self._channel.consumed(self._stream, message)
        return message

    def take_in(self, what: bytes | Outcome) -> None:
        """Note a message or the end; the channel calls this."""
        if isinstance(what, Outcome):
            self.outcome = what
        else:
            self._came.append(what)
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class AsyncChannel(asyncio.Protocol):
    """A connection as a context manager; entering connects, leaving ends all of its calls.

    It moves bytes between the event loop's socket and the state of the connection.
    """

    def __init__(
        self, address: str, tls: Tls | None = None, *, connect_s: float = _CONNECT_S
    ) -> None:
        self._address = address
        self._tls = tls
        self._connect_s = connect_s
        self._state = ClientConnection()
        self._transport: Any = None
        self._ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def __aenter__(self) -> Self:
        """Connect; raises `CallFailed` (UNAVAILABLE), and `NeedsOperator` for unusable files."""
        host, port = address_parts(self._address)
        try:
            context = None if self._tls is None else self._tls.client_context()
            async with asyncio.timeout(self._connect_s):
                await asyncio.get_running_loop().create_connection(
                    lambda: self, host, int(port), ssl=context
                )
                await self._ready  # For the server's settings.
        except (OSError, ValueError) as error:
            self._lose(_CLOSED)
            problem = f"failed to connect to {self._address}: {_why(error)}"
            error.__traceback__ = None  # With the frames of a failed handshake it is in a cycle.
            raise CallFailed(Outcome(UNAVAILABLE, problem, (), True)) from error
        except BaseException:
            self._lose(_CLOSED)
            raise
        return self

    async def __aexit__(self, *error: object) -> None:
        self._lose(_CLOSED)

    def server_stream(self, method: str, request: bytes) -> AsyncStream:
        if self._state.ending is not None:
            call = AsyncStream(self, None)
            call.take_in(Outcome(UNAVAILABLE, self._state.ending, (), True))
            return call
        block = request_block(method, self._address, is_tls=self._tls is not None)
        stream = self._state.open(block)
        stream.is_held = True
        call = AsyncStream(self, stream)
        stream.user = call
        self._state.send(stream, (request,), is_last=True)
        self._flush()
        return call

    def consumed(self, stream: ClientStream, message: bytes) -> None:
        self._state.consumed(stream, message)
        self._flush()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        end = transport.get_extra_info("ssl_object")
        agreed = None if end is None else end.selected_alpn_protocol()
        if agreed not in ("h2", None):
            self._lose(f"the peer speaks {agreed} and not HTTP/2")
        self._flush()

    def data_received(self, data: bytes) -> None:
        self._dispatch(self._state.receive(data))
        if (fault := self._state.fault) is not None:
            self._flush()
            self._lose(f"the server broke a rule of HTTP/2: {fault}")
        elif self._state.is_ready and not self._ready.done():
            self._ready.set_result(None)
        self._flush()

    def connection_lost(self, error: Exception | None) -> None:
        is_ready = self._state.is_ready
        self._lose(lost_text(error, is_ready=is_ready, is_tls=self._tls is not None))

    def _lose(self, problem: str) -> None:
        self._dispatch(self._state.lost(problem))
        if not self._ready.done():
            self._ready.set_exception(ConnectionResetError(self._state.ending))
            self._ready.exception()  # Marks the exception as seen, even if no one waits any longer.
        if self._transport is not None:
            transport, self._transport = self._transport, None
            transport.abort()

    def _dispatch(self, events: list[Event]) -> None:
        for stream, what in events:
            call = stream.user
            assert isinstance(call, AsyncStream)
            if isinstance(what, Outcome):
                stream.user = None  # They refer to each other, and garbage is collected rarely.
            call.take_in(what)

    def _flush(self) -> None:
        if self._transport is not None and self._state.has_output:
            self._transport.write(b"".join(self._state.take()))


def _why(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return "timed out"
    if isinstance(error, ConnectionError) and error.errno:
        return os.strerror(error.errno)  # asyncio has put the address in its place.
    return text_of(error)
