"""The other end of a server's connection, in memory: frames as bytes in, frames as tuples out."""

import asyncio
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import grpc
import hpack

from penstock.http2 import frames
from penstock.http2.frames import END_HEADERS, END_STREAM
from penstock.http2.server_connection import ServerConnection
from penstock.http2.server_limits import ServerLimits
from penstock.http2.server_stream import Load, ServerStream
from penstock.http2.unary import Reply, UnaryCall, UnaryHandler

FAST, SLOW = "/test.Service/Fast", "/test.Service/Slow"
SETTINGS_ACK = frames.frame(frames.SETTINGS, frames.ACK, 0)


class Frame(NamedTuple):
    """One frame as it came from the server."""

    kind: int
    flags: int
    stream_id: int
    payload: bytes


class MemoryWire(asyncio.Transport):
    """Keeps what is written; what `unread` says is still on its way."""

    def __init__(self) -> None:
        super().__init__()
        self.written = bytearray()
        self.writes = 0
        self.unread = 0
        self.is_closed = False
        self._is_reading = True

    def write(self, data: bytes | bytearray | memoryview) -> None:
        assert not self.is_closed
        self.written += data
        self.writes += 1

    def get_write_buffer_size(self) -> int:
        return self.unread

    def pause_reading(self) -> None:
        self._is_reading = False

    def resume_reading(self) -> None:
        self._is_reading = True

    def is_reading(self) -> bool:
        return self._is_reading

    def close(self) -> None:
        self.is_closed = True


class SlowTurns:
    """An event loop whose turns and whose clock the test moves on."""

    def __init__(self) -> None:
        self.due: list[Callable[[], None]] = []
        self.now_s = 0.0

    def call_soon(self, function: Callable[[], None]) -> None:
        self.due.append(function)

    def turn(self) -> None:
        due, self.due = self.due, []
        for function in due:
            function()


class SeenCall:
    """A call that is not on the fast path, as the connection reports about it."""

    def __init__(self, connection: ServerConnection, stream: ServerStream, timeout: bytes) -> None:
        self.connection, self.stream, self.timeout = connection, stream, timeout
        self.messages: list[bytes] = []
        self.is_taking = True
        self.is_closed = False
        self.room = 0

    def wake(self) -> None:
        while self.is_taking:
            message = self.connection.next_message(self.stream)
            if message is None:
                return
            self.messages.append(message)

    def let_send(self) -> None:
        self.room += 1

    def close(self) -> None:
        self.is_closed = True

    def end_with(self, status: grpc.StatusCode, text: str) -> None:
        self.give_up()

    def give_up(self) -> None:
        self.connection.reset(self.stream.id, frames.ErrorCode.CANCEL)


class Http2Client:
    """A client's end, and the server's connection that it talks to."""

    def __init__(self, limits: ServerLimits | None = None, *, begins: bool = True) -> None:
        self.wire = MemoryWire()
        self.loop = SlowTurns()
        self.load = Load(limits or ServerLimits())
        self.fast: list[tuple[bytes, UnaryCall]] = []
        self.calls: list[SeenCall] = []
        handlers: dict[bytes, UnaryHandler] = {FAST.encode(): self._handle}
        self.server = ServerConnection(
            self.wire,
            self.load,
            peer="ipv4:127.0.0.1:1",
            fast=handlers,
            open_call=self._open,
            later=self.loop.call_soon,
            now_s=lambda: self.loop.now_s,
        )
        self._encoder = hpack.Encoder()
        self._decoder = hpack.Decoder()
        self._seen = 0
        self._is_shrunk = False
        if begins:
            self.send(frames.PREFACE, frames.settings({}), SETTINGS_ACK)

    def _handle(self, message: bytes, call: UnaryCall) -> None:
        self.fast.append((message, call))

    def _open(self, connection: ServerConnection, stream: ServerStream, timeout: bytes) -> SeenCall:
        call = SeenCall(connection, stream, timeout)
        self.calls.append(call)
        return call

    def send(self, *parts: bytes) -> None:
        self.server.receive(b"".join(parts))

    def headers(
        self,
        stream_id: int,
        path: str = FAST,
        more: Iterable[tuple[str, str]] = (),
        *,
        flags: int = END_HEADERS,
    ) -> bytes:
        """Return a HEADERS frame of a gRPC call, as a client sends it that uses no table."""
        return frames.frame(frames.HEADERS, flags, stream_id, self.block(path, more))

    def block(self, path: str = FAST, more: Iterable[tuple[str, str]] = ()) -> bytes:
        fields = [
            (":method", "POST"),
            (":scheme", "http"),
            (":path", path),
            (":authority", "127.0.0.1:1"),
            ("content-type", "application/grpc"),
            ("te", "trailers"),
            *more,
        ]
        return self.encoded(fields)

    def encoded(self, fields: Iterable[tuple[str, str]]) -> bytes:
        if not self._is_shrunk:
            self._encoder.header_table_size = 0
            self._is_shrunk = True
        return self._encoder.encode(fields)

    def take(self) -> list[Frame]:
        """Return what the server has sent since the last time, after a turn of its loop."""
        self.loop.turn()
        found, data = [], bytes(self.wire.written)
        while self._seen + frames.HEAD_SIZE <= len(data):
            high, low, kind, flags, stream_id = frames.HEAD.unpack_from(data, self._seen)
            begin = self._seen + frames.HEAD_SIZE
            self._seen = begin + (high << 8 | low)
            found.append(Frame(kind, flags, stream_id, data[begin : self._seen]))
        return found

    def fields(self, frame: Frame) -> dict[str, str]:
        """Return the header fields in a frame; to be called for each such frame, in order."""
        return {str(name): str(value) for name, value in self._decoder.decode(frame.payload)}

    def goaway(self) -> frames.ErrorCode | None:
        for frame in self.take():
            if frame.kind == frames.GOAWAY:
                return frames.ErrorCode(int.from_bytes(frame.payload[4:8], "big"))
        return None


def data(stream_id: int, message: bytes, *, flags: int = END_STREAM) -> bytes:
    return frames.frame(frames.DATA, flags, stream_id, prefixed(message))


def prefixed(message: bytes) -> bytes:
    return frames.MESSAGE_HEAD.pack(0, len(message)) + message


def answer(client: Http2Client, reply: Reply | None = None) -> None:
    for _, call in client.fast:
        call.answer(reply or Reply(b"done"))
    client.fast.clear()


def kinds(found: list[Frame]) -> list[tuple[int, Any]]:
    return [(frame.kind, frame.stream_id) for frame in found]
