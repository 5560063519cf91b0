"""A client of HTTP/2 that does what it is asked to, also what no client may do.

It sends frames as they are given, reads frames as they come, and keeps no rules: it gives no
window back, answers no settings and no ping unless a test does it. `call` alone behaves.
"""

import contextlib
import socket
import ssl
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Self

import hpack

from penstock.http2 import frames
from penstock.http2.frames import ErrorCode

_WAIT_S = 20.0
_READ_BYTES = 1 << 16


class Frame(NamedTuple):
    """One frame as it came."""

    kind: int
    flags: int
    stream_id: int
    payload: bytes

    @property
    def code(self) -> ErrorCode:
        """Why a stream or the connection was ended: of RST_STREAM and GOAWAY."""
        at = 4 if self.kind == frames.GOAWAY else 0
        return ErrorCode(int.from_bytes(self.payload[at : at + 4], "big"))


@dataclass
class Answer:
    """All that came for one call."""

    headers: list[tuple[str, str]] = field(default_factory=list)
    data: bytes = b""
    reset: ErrorCode | None = None

    @property
    def messages(self) -> list[bytes]:
        found, at = [], 0
        while at < len(self.data):
            _, size = frames.MESSAGE_HEAD.unpack_from(self.data, at)
            at += frames.MESSAGE_HEAD.size + size
            found.append(self.data[at - size : at])
        assert at == len(self.data), "a message was cut off"
        return found

    @property
    def status(self) -> int | None:
        """gRPC's status; None when there was none."""
        return next((int(value) for name, value in self.headers if name == "grpc-status"), None)

    @property
    def http_status(self) -> str:
        return dict(self.headers)[":status"]

    @property
    def text(self) -> str:
        return dict(self.headers).get("grpc-message", "")


Fields = Sequence[tuple[str, str]]


def request(path: str, *more: tuple[str, str]) -> list[tuple[str, str]]:
    return [
        (":method", "POST"),
        (":scheme", "http"),
        (":path", path),
        (":authority", "localhost"),
        ("content-type", "application/grpc"),
        ("te", "trailers"),
        *more,
    ]


def message(data: bytes) -> bytes:
    return frames.MESSAGE_HEAD.pack(0, len(data)) + data


class RawPeer:
    """One connection; greets unless it is made with `greets=False`."""

    def __init__(
        self,
        host: str,
        port: int,
        *,
        greets: bool = True,
        settings: dict[int, int] | None = None,
        tls: ssl.SSLContext | None = None,
        receive_buffer_bytes: int = 0,
    ) -> None:
        self.socket: socket.socket = socket.socket()
        if receive_buffer_bytes:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer_bytes)
        self.socket.settimeout(_WAIT_S)
        self.socket.connect((host, port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if tls is not None:
            self.socket = tls.wrap_socket(self.socket, server_hostname="localhost")
        self._decoder = hpack.Decoder()
        self._has_sent_block = False
        self._held = b""
        self._next_id = 1
        if greets:
            self.send(frames.PREFACE + frames.settings(settings or {}))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        self.socket.close()

    # What is sent.

    def send(self, data: bytes) -> None:
        """Send bytes as they are."""
        self.socket.sendall(data)

    def send_frame(self, kind: int, flags: int, stream_id: int, payload: bytes = b"") -> None:
        self.send(frames.frame(kind, flags, stream_id, payload))

    def block(self, fields: Fields) -> bytes:
        """Return a header block; the first one also gives up the dynamic table."""
        start = b"" if self._has_sent_block else b"\x20"
        self._has_sent_block = True
        return start + self.stateless_block(fields)

    @staticmethod
    def stateless_block(fields: Fields) -> bytes:
        """Return a header block without Huffman's code, which needs no dynamic table."""
        literal = [hpack.NeverIndexedHeaderTuple(*each) for each in fields]
        return hpack.Encoder().encode(literal, huffman=False)

    def next_id(self) -> int:
        self._next_id += 2
        return self._next_id - 2

    def open(self, path: str, *more: tuple[str, str], ends: bool = False) -> int:
        stream_id = self.next_id()
        flags = frames.END_HEADERS | (frames.END_STREAM if ends else 0)
        self.send_frame(frames.HEADERS, flags, stream_id, self.block(request(path, *more)))
        return stream_id

    def send_message(self, stream_id: int, data: bytes, *, ends: bool = True) -> None:
        flags = frames.END_STREAM if ends else 0
        self.send_frame(frames.DATA, flags, stream_id, message(data))

    # What comes.

    def frames(self) -> Iterator[Frame]:
        """Yield frames as they come, until the server closes the connection."""
        while True:
            while len(self._held) < frames.HEAD_SIZE or len(self._held) < self._first_size():
                if not self._read_more():
                    return
            size = self._first_size()
            _, _, kind, flags, stream_id = frames.HEAD.unpack_from(self._held)
            payload = self._held[frames.HEAD_SIZE : size]
            self._held = self._held[size:]
            yield Frame(kind, flags, stream_id, payload)

    def _first_size(self) -> int:
        return frames.HEAD_SIZE + int.from_bytes(self._held[:3], "big")

    def _read_more(self) -> bool:
        try:
            more = self.socket.recv(_READ_BYTES)
        except ConnectionError:
            return False
        self._held += more
        return bool(more)

    def wait_for(self, is_it: Callable[[Frame], bool]) -> Frame:
        """Return the first frame that is it; fail when the connection ends before."""
        for frame in self.frames():
            if is_it(frame):
                return frame
        raise AssertionError("the connection was closed before it came")

    def wait_for_kind(self, kind: int, *, is_ack: bool = False) -> Frame:
        """Return the next frame of that kind: an answer, of SETTINGS and PING, or none."""
        return self.wait_for(lambda f: f.kind == kind and bool(f.flags & frames.ACK) == is_ack)

    def until_closed(self) -> list[Frame]:
        """Return all frames until the server closes the connection."""
        return list(self.frames())

    def goaway(self) -> ErrorCode | None:
        """Wait until the server closes the connection and return its reason; None without one."""
        found = [frame for frame in self.until_closed() if frame.kind == frames.GOAWAY]
        return found[-1].code if found else None

    def fields(self, block: bytes) -> list[tuple[str, str]]:
        """Return the fields of a header block; each must be given here once, in order."""
        return [(str(name), str(value)) for name, value in self._decoder.decode(block)]

    def answer(self, stream_id: int) -> Answer:
        """Return what comes for a call until its end, giving back what it takes of the windows."""
        found = Answer()
        for frame in self.frames():
            if frame.kind == frames.HEADERS:
                fields = self.fields(frame.payload)
                if frame.stream_id == stream_id:
                    found.headers += fields
            if frame.kind == frames.DATA and frame.payload:
                with contextlib.suppress(ConnectionError):
                    self.send(frames.window_update(0, len(frame.payload)))
                    if frame.stream_id == stream_id and not frame.flags & frames.END_STREAM:
                        self.send(frames.window_update(stream_id, len(frame.payload)))
            if frame.stream_id != stream_id:
                continue
            if frame.kind == frames.DATA:
                found.data += frame.payload
            if frame.kind == frames.RST_STREAM:
                found.reset = frame.code
                return found
            if frame.kind in (frames.DATA, frames.HEADERS) and frame.flags & frames.END_STREAM:
                return found
        raise AssertionError("the connection was closed before the call ended")

    def call(self, path: str, data: bytes, *more: tuple[str, str]) -> Answer:
        stream_id = self.open(path, *more)
        self.send_message(stream_id, data)
        return self.answer(stream_id)

    def ping(self) -> None:
        """Send a PING and wait for its answer: all that was sent before has been read then."""
        self.send(frames.ping(b"are you?"))
        self.wait_for_kind(frames.PING, is_ack=True)
