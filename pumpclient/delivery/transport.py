"""Carries calls to a Pump, by our own HTTP/2 or by public grpcio.

Both behave alike for a writer: messages are bytes, and failures are errors that carry gRPC's
`code()` and `details()`.

    http2     the thread that puts a binlog sends it, the writer's own thread reads the answers:
              a lone write is handed over between threads only for its answer
    grpcio    two threads of gRPC's in between; for peers that our own might not get along with
"""

from __future__ import annotations

import queue
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any, Final, Protocol, Self

import grpc

from penstock.http2.client.calls import PendingReply, stream_unary, unary
from penstock.http2.client.channel import CallFailed, Channel, ClientCall
from penstock.http2.client.client_connection import Outcome
from penstock.http2.client.response_heads import UNAVAILABLE
from penstock.security.tls import Tls
from pumpclient.options import open_channel

OnMessage = Callable[[bytes], None]


class Conversation(Protocol):
    """A call with messages both ways."""

    def queue(self, pieces: Sequence[bytes]) -> None:
        """Buffer a message, given in pieces, without any I/O."""

    def flush(self) -> None: ...

    def finish(self) -> None: ...

    def run(self) -> grpc.RpcError | None:
        """Receive the answers in this thread until the call ends; return its error."""


class Reply(Protocol):
    """A pending answer."""

    def result(self) -> bytes: ...


class Transport(AbstractContextManager["Transport"], Protocol):
    """One connection to one node."""

    def connect(self, timeout_s: float) -> None:
        """Connect, unless that is left to the first call; raises `RpcError`."""

    def share(self) -> None:
        """Prepare for `call_later` and `send_all`, which need a reading thread."""

    def call(self, method: str, request: bytes, timeout_s: float) -> bytes: ...

    def call_later(self, method: str, request: bytes, timeout_s: float) -> Reply: ...

    def send_all(self, method: str, messages: Iterable[bytes], timeout_s: float) -> bytes: ...

    def converse(self, method: str, on_message: OnMessage) -> Conversation: ...

    def abort(self) -> None:
        """Break the connection, from any thread, without waiting."""

    def close(self) -> None:
        """End the connection; its calls fail."""


class Http2Transport:
    """A connection by our own HTTP/2."""

    def __init__(self, address: str, tls: Tls | None) -> None:
        self._channel = Channel(address, tls)

    def connect(self, timeout_s: float) -> None:
        self._channel.connect(timeout_s)

    def share(self) -> None:
        self._channel.start()

    def call(self, method: str, request: bytes, timeout_s: float) -> bytes:
        """Make a unary call; this thread reads while it waits."""
        return unary(self._channel, method, request, timeout_s=timeout_s)

    def call_later(self, method: str, request: bytes, timeout_s: float) -> Reply:
        return PendingReply.to(self._channel, method, request, timeout_s=timeout_s)

    def send_all(self, method: str, messages: Iterable[bytes], timeout_s: float) -> bytes:
        return stream_unary(self._channel, method, messages, timeout_s=timeout_s)

    def converse(self, method: str, on_message: OnMessage) -> Conversation:
        return _Http2Conversation(self._channel, method, on_message)

    def abort(self) -> None:
        self._channel.abort()

    def close(self) -> None:
        self._channel.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class _Http2Conversation:
    """The thread in `run` reads the socket and hands over each message directly."""

    def __init__(self, channel: Channel, method: str, on_message: OnMessage) -> None:
        self._channel = channel
        self.on_message = on_message
        self._is_over = False
        self._is_finished = False
        self._error: CallFailed | None = None
        self._call: ClientCall = channel.call(method, self)

    def on_end(self, error: CallFailed | None) -> None:
        self._is_over = True
        self._error = error

    def queue(self, pieces: Sequence[bytes]) -> None:
        self._call.queue(pieces)

    def flush(self) -> None:
        if self._is_finished:
            self._call.end()
        self._call.flush()

    def finish(self) -> None:
        self._is_finished = True

    def run(self) -> grpc.RpcError | None:
        self._channel.serve(lambda: self._is_over)
        return self._error


class GrpcioTransport:
    """A connection by public grpcio."""

    def __init__(self, address: str, tls: Tls | None) -> None:
        self._channel: Any = open_channel(address, tls)

    def connect(self, timeout_s: float) -> None:
        """Leave connecting to the first call."""

    def share(self) -> None:
        """Do nothing: gRPC always has its own threads."""

    def call(self, method: str, request: bytes, timeout_s: float) -> bytes:
        with _ClosedIsUnavailable():
            reply: bytes = self._channel.unary_unary(method)(request, timeout=timeout_s)
        return reply

    def call_later(self, method: str, request: bytes, timeout_s: float) -> Reply:
        with _ClosedIsUnavailable():
            reply: Reply = self._channel.unary_unary(method).future(request, timeout=timeout_s)
        return reply

    def send_all(self, method: str, messages: Iterable[bytes], timeout_s: float) -> bytes:
        sent = _Sent(messages)
        try:
            with _ClosedIsUnavailable():
                call = self._channel.stream_unary(method)
                reply: bytes = call(iter(sent), timeout=timeout_s)
        except grpc.RpcError as error:
            if sent.error is not None:
                raise sent.error from error
            raise
        return reply

    def converse(self, method: str, on_message: OnMessage) -> Conversation:
        with _ClosedIsUnavailable():
            return _GrpcioConversation(self._channel.stream_stream(method), on_message)

    def abort(self) -> None:
        self._channel.close()

    def close(self) -> None:
        self._channel.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class _Sent:
    """The messages that gRPC's thread pulls, and the error of making them."""

    def __init__(self, messages: Iterable[bytes]) -> None:
        self._messages = messages
        self.error: Exception | None = None

    def __iter__(self) -> Iterator[bytes]:
        try:
            yield from self._messages
        except Exception as error:
            self.error = error
            raise


class _GrpcioConversation:
    """gRPC pulls the messages out of an iterator, in a thread of its own."""

    def __init__(self, method: Any, on_message: OnMessage) -> None:
        self._messages: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._on_message = on_message
        self._call = method(iter(self._messages.get, None))

    def queue(self, pieces: Sequence[bytes]) -> None:
        self._messages.put(b"".join(pieces))

    def flush(self) -> None:
        """Do nothing: the sending thread is awake."""

    def finish(self) -> None:
        self._messages.put(None)

    def run(self) -> grpc.RpcError | None:
        try:
            for message in self._call:
                self._on_message(message)
        except grpc.RpcError as error:
            return error
        except ValueError:  # gRPC raises this when the channel has been closed.
            return None
        finally:
            self._messages.put(None)
        return None


class _ClosedIsUnavailable:
    """Turns gRPC's `ValueError` about a closed channel into an error with a code."""

    def __enter__(self) -> None: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if isinstance(error, ValueError):
            problem = "the client is closing"
            raise CallFailed(Outcome(UNAVAILABLE, problem, (), True)) from error


_TRANSPORTS: Final[dict[str, Callable[[str, Tls | None], Transport]]] = {
    "http2": Http2Transport,
    "grpcio": GrpcioTransport,
}


def open_transport(name: str, address: str, tls: Tls | None) -> Transport:
    """Return a transport to a node, by its name in `Options`; nothing is sent yet."""
    return _TRANSPORTS[name](address, tls)
