"""Server connection: turns one peer's frames into calls, and answers into frames; does no I/O.

    bytes ─► receive ─► frames ─► a call on the fast path, answered by `answer` or `fail`
                          │            prepared replies ─┐
                          └──► streams of other calls ───┤► frames ─► one write a turn
                                 (`server_calls.py`)     ┘

The fast path is one check: the header block begins with the bytes of the last such call's block,
and the next frame is its whole message. Everything else goes frame by frame.

*Input* is bounded by windows. On the fast path, and for messages that are not whole yet, everything
is given back immediately, so that a message may be larger than a window; such messages are bounded
together, on the whole server. A whole message waits for its handler, and is given back when the
handler takes it.

*Output* waits for the peer's windows and for the socket. A peer that reads nothing makes the
handlers of its streams wait, and when prepared answers pile up, no more is read from it.

*Faults* are of a stream (RST_STREAM) or of the connection (GOAWAY, then the end). Whatever bytes
come, `receive` raises nothing. Frames on a stream that this side has ended are expected for a
while, and ignored.

This is one state machine, longer than a module should be: the effect of a frame depends on its
stream, on the connection and on the frame before it. Independent parts are separate modules: header
blocks, messages, limits, and all output (`server_stream.py`).
"""

import asyncio
import logging
import struct
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Final

import grpc

from penstock.http2 import frames
from penstock.http2.frames import (
    ACK,
    END_HEADERS,
    END_STREAM,
    HEAD_SIZE,
    PREFACE,
    STREAM_ID_BITS,
    WINDOW_MAX,
    ConnectionFault,
    ErrorCode,
    StreamFault,
)
from penstock.http2.header_blocks import (
    PACKED_200,
    BadHeaders,
    Cut,
    HeaderDecoder,
    RequestHead,
    check_field,
    encode,
)
from penstock.http2.messages import ENCODINGS, BadMessage, metadata_out, packed_text
from penstock.http2.server_limits import Noise
from penstock.http2.server_stream import Load, Receiver, ServerOutgoing, ServerStream
from penstock.http2.unary import Reply, UnaryCall, UnaryHandler

log = logging.getLogger(__name__)

_TWO_HEADS: Final = struct.Struct(">HBBBLBL")
"""The head of a DATA frame and that of the message in it."""
_ENDED_IDS_KEPT: Final = 2_000
_KEPT_PIECES_MAX: Final = 64

HEADERS_OK: Final = PACKED_200 + encode([(b"content-type", b"application/grpc")])
_TRAILERS_OK: Final = encode([(b"grpc-status", b"0")])
_HTTP1_METHODS: Final = ("GET ", "POST", "PUT ", "HEAD", "DELE", "OPTI", "PATC", "CONN", "TRAC")

OpenCall = Callable[["ServerConnection", ServerStream, bytes], Receiver]
"""Starts a call on a new stream with the given time-out."""


class ServerConnection:
    """One connection of a server. For one thread, that of the event loop."""

    def __init__(
        self,
        wire: asyncio.Transport,
        load: Load,
        *,
        peer: str,
        fast: Mapping[bytes, UnaryHandler],
        open_call: OpenCall,
        later: Callable[[Callable[[], None]], object],
        now_s: Callable[[], float],
    ) -> None:
        """`fast` maps paths to the handlers of the fast path; `later` is the loop's next turn."""
        limits = load.limits
        self._wire, self.load, self._limits = wire, load, limits
        self._peer, self._fast, self._open_call = peer, fast, open_call
        self.out = ServerOutgoing(wire, later, limits.unsent_bytes_max)
        self.auth: Mapping[str, Any] = {}
        """Facts about the peer from its certificate."""
        self.streams: dict[int, ServerStream | int] = {}
        """Calls in progress; a number: on the fast path, with the gain of its window."""
        self.waiting: dict[Receiver, None] = {}
        """Calls that have more to send than the peer or the socket takes, in order of arrival.

        They add and remove themselves.
        """
        self.is_over = False
        """True once nothing more is read or sent."""
        self.is_leaving = False
        """True once new calls are no longer taken."""
        self.has_begun = False
        self.is_heard = True
        """Set whenever bytes come; others may clear it."""
        self.on_idle: Callable[[], None] | None = None
        """Called when the last call of a connection that is leaving has ended."""
        self._has_settings = False
        self._last_id = 0
        self._ended: OrderedDict[int, None] = OrderedDict()
        self._decoder = HeaderDecoder(list_bytes_max=limits.header_bytes_max)
        self._hot: tuple[Cut, UnaryHandler] | None = None
        self._block: tuple[int, int, bytearray] | None = None
        self._noise = Noise(limits, now_s)

        self._kept: list[bytes] = []
        self._kept_bytes = self._needed = 0
        self._receive_window = frames.WINDOW_DEFAULT
        self._owed = 0

    def peer(self) -> str:
        return self._peer

    # Input.

    def receive(self, data: bytes) -> None:
        if self.is_over:
            return
        self.is_heard = True
        if self.out.useful:
            self._noise.forgive(2 * self.out.useful)
            self.out.useful = 0
        try:
            self._read(data, self._complete(data) if self._kept else 0)
        except ConnectionFault as fault:
            self.fail_connection(fault.code, str(fault))
        self.out.flush()

    def _complete(self, data: bytes) -> int:
        """Read the kept frame, once it is whole, and return where the next frame begins.

        Only the missing bytes are taken out of the new bytes, which may be many.
        """
        at = 0
        while self._kept and at < len(data):
            piece = data[at : at + self._needed - self._kept_bytes]
            at += len(piece)
            self._kept.append(piece)
            self._kept_bytes += len(piece)
            is_whole = self._kept_bytes == self._needed
            if is_whole or len(self._kept) > _KEPT_PIECES_MAX:
                whole = b"".join(self._kept)
                self._kept.clear()
                if is_whole:
                    self._read(whole, 0)
                else:
                    self._kept.append(whole)
        return at

    def _keep(self, data: bytes, needed: int) -> None:
        self._kept.append(data)
        self._kept_bytes, self._needed = len(data), needed

    def _read(self, data: bytes, at: int) -> None:
        end = len(data)
        if self.is_over:
            return
        if not self.has_begun and at < end:
            if end < len(PREFACE) and PREFACE.startswith(data):
                self._keep(data, len(PREFACE))
                return
            at = self._begin(data)
        unpack = frames.HEAD.unpack_from
        while not self.is_over:
            if self._hot is not None and self._block is None:
                at = self._read_fast(data, at, end, *self._hot)
            begin = at + HEAD_SIZE
            if begin > end:
                break
            high, low, kind, flags, stream_id = unpack(data, at)
            stop = begin + (high << 8 | low)
            if stop > end:
                if stop - begin > self._limits.frame_bytes_max:
                    self._refuse_frame(kind, stop - begin)
                self._keep(data[at:], stop - at)
                return
            self._on_frame(kind, flags, stream_id & STREAM_ID_BITS, data, begin, stop)
            at = stop
        if at < end and not self.is_over:
            self._keep(data[at:], HEAD_SIZE)

    def _begin(self, data: bytes) -> int:
        if not data.startswith(PREFACE):
            self._refuse_stranger(data)
            return len(data)
        self.has_begun = True
        limits = self._limits
        self._receive_window = limits.connection_window
        self.out.send(
            frames.settings(
                {
                    frames.HEADER_TABLE_SIZE: limits.header_table_bytes,
                    frames.MAX_CONCURRENT_STREAMS: limits.streams_max,
                    frames.INITIAL_WINDOW_SIZE: limits.stream_window,
                    frames.MAX_FRAME_SIZE: limits.frame_bytes_max,
                    frames.MAX_HEADER_LIST_SIZE: limits.header_bytes_max,
                }
            )
        )
        if (more := limits.connection_window - frames.WINDOW_DEFAULT) > 0:
            self.out.send(frames.window_update(0, more))
        return len(PREFACE)

    def _refuse_stranger(self, data: bytes) -> None:
        """Report, to the log and if possible to the peer, which protocol this port speaks."""
        self.is_over = True
        self.out.end()
        start = data[:4].decode("latin-1")
        if start in _HTTP1_METHODS:
            log.warning("%s speaks HTTP/1 to the port for gRPC", self._peer)
            text = b"This port speaks gRPC (HTTP/2); pages are at another one, see status-addr.\n"
            self._wire.write(
                b"HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain\r\nConnection: close\r\n"
                b"Content-Length: %d\r\n\r\n%b" % (len(text), text)
            )
        elif data.startswith(b"\x16\x03"):
            log.warning("%s speaks TLS to a port without it", self._peer)
        else:
            log.warning("%s does not speak HTTP/2: it begins with %r", self._peer, data[:24])
            self._wire.write(frames.goaway(0, ErrorCode.PROTOCOL_ERROR, "this is no HTTP/2"))
        self._wire.close()

    def _refuse_frame(self, kind: int, size: int) -> None:
        raise ConnectionFault(
            ErrorCode.FRAME_SIZE_ERROR, f"a frame of kind {kind} with {size} bytes"
        )

    # All checks for a call like the previous call, in one place: each of tens of thousands of
    # calls a second costs this much.
    def _read_fast(self, data: bytes, at: int, end: int, cut: Cut, handle: UnaryHandler) -> int:
        """Handle all calls like the last call; return the offset of the first other frame."""
        taken = 0
        unpack, unpack_two = frames.HEAD.unpack_from, _TWO_HEADS.unpack_from
        while at + HEAD_SIZE < end:
            high, low, kind, flags, stream_id = unpack(data, at)
            begin = at + HEAD_SIZE
            stop = begin + (high << 8 | low)
            if kind == frames.DATA:
                size = stop - begin
                if stop > end or size + taken > self._receive_window:
                    break
                if not self._grow(stream_id, flags, data[begin:stop]):
                    break
                taken += size
                at = stop
                continue
            if kind != frames.HEADERS or flags != END_HEADERS or stop > end:
                break
            if not cut.matches(data, begin, stop) or not self._is_new(stream_id):
                break
            self._last_id = stream_id
            self.load.calls += 1
            at, body = stop, stop + _TWO_HEADS.size
            if body <= end:
                high, low, kind, flags, data_id, is_compressed, size = unpack_two(data, stop)
                after, size = body + size, size + frames.MESSAGE_HEAD.size
                is_whole = not kind and flags == END_STREAM and high << 8 | low == size
                is_here = after <= end and size + taken <= self._receive_window
                if is_whole and is_here and data_id == stream_id and not is_compressed:
                    taken += size
                    self.streams[stream_id] = 0
                    self._handle(handle, data[body:after], stream_id)
                    at = after
                    continue
            stream = ServerStream(stream_id, cut.head, self._limits, self.out.peer_window)
            stream.fast = handle
            self.streams[stream_id] = stream
        self._receive_window -= taken
        self.owe(taken)
        return at

    def _grow(self, stream_id: int, flags: int, payload: bytes) -> bool:
        """Add to a message that has begun on the fast path, and handle it once it is whole.

        False: nothing was done, because the bytes are not just the next part of a message.
        """
        stream, size = self.streams.get(stream_id), len(payload)
        if not isinstance(stream, ServerStream) or stream.fast is None:
            return False
        is_last = flags == END_STREAM
        if (
            not (is_last or flags == 0)
            or size > stream.receive_window
            or not stream.reader.grow(payload, is_last=is_last)
        ):
            return False
        stream.received_bytes += size
        stream.receive_window -= size
        if is_last:
            stream.take([stream.reader.grown()], size)
            self._end_request(stream_id)
            return True
        stream.owed += size
        if stream.owed * 2 >= self._limits.stream_window:
            self._widen_request(stream)
        if not self.load.count(stream):
            self._refuse_unfinished(stream)
        return True

    def _is_new(self, stream_id: int) -> bool:
        return (
            stream_id > self._last_id
            and stream_id & 1 == 1
            and stream_id <= STREAM_ID_BITS
            and not self.is_leaving
            and len(self.streams) < self._limits.streams_max
            and self.load.calls < self._limits.calls_max
        )

    def _handle(self, handle: UnaryHandler, message: bytes, stream_id: int) -> None:
        try:
            handle(message, UnaryCall(self, stream_id))
        except Exception as error:
            log.exception("a call of %s failed", self._peer)
            self.fail(stream_id, grpc.StatusCode.UNKNOWN, f"Unexpected {type(error)}: {error}")

    def _on_frame(
        self, kind: int, flags: int, stream_id: int, data: bytes, begin: int, stop: int
    ) -> None:
        if stop - begin > self._limits.frame_bytes_max:
            self._refuse_frame(kind, stop - begin)
        if self._block is not None and (kind != frames.CONTINUATION or stream_id != self._block[0]):
            raise ConnectionFault(
                ErrorCode.PROTOCOL_ERROR, f"a frame of kind {kind} within a header block"
            )
        if not self._has_settings and (kind != frames.SETTINGS or flags & ACK):
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "the first frame is not SETTINGS")
        handle = self._KINDS.get(kind)
        if handle is None:
            self._noise.add("an unknown kind of frame")
            return
        try:
            handle(self, flags, stream_id, data[begin:stop])
        except StreamFault as fault:
            log.info("a stream of %s is reset: %s", self._peer, fault)
            self._noise.add("one that broke a rule")
            self.reset(fault.stream_id, fault.code)

    # Header blocks.

    def _on_headers(self, flags: int, stream_id: int, payload: bytes) -> None:
        if not stream_id & 1:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, f"HEADERS on stream {stream_id}")
        payload, depends_on = frames.fragment(flags, payload)
        if flags & END_HEADERS:
            self._on_block(stream_id, flags, payload)
        else:
            self._block = (stream_id, flags, bytearray(payload))
        if depends_on == stream_id:
            raise StreamFault(stream_id, ErrorCode.PROTOCOL_ERROR, "a stream depends on itself")

    def _on_continuation(self, flags: int, stream_id: int, payload: bytes) -> None:
        if self._block is None:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "CONTINUATION without HEADERS")
        _, first_flags, block = self._block
        block += payload
        if len(block) > self._limits.header_bytes_max:
            problem = f"a header block of more than {self._limits.header_bytes_max} bytes"
            raise ConnectionFault(ErrorCode.ENHANCE_YOUR_CALM, problem)
        if not payload and not flags & END_HEADERS:
            self._noise.add("an empty CONTINUATION", 100)
        if flags & END_HEADERS:
            self._block = None
            self._on_block(stream_id, first_flags, bytes(block))

    def _on_block(self, stream_id: int, flags: int, block: bytes) -> None:
        if len(block) > self._limits.header_bytes_max:
            problem = f"a header block of {len(block)} bytes"
            raise ConnectionFault(ErrorCode.ENHANCE_YOUR_CALM, problem)
        if stream_id <= self._last_id:
            self._on_trailers(stream_id, flags, block)
            return
        # Whatever becomes of the stream: the decoder must see every block.
        self._last_id = stream_id if not self.is_leaving else self._last_id
        try:
            head, timeout, cut = self._decoder.request(block)
        except BadHeaders as error:
            raise StreamFault(stream_id, ErrorCode.PROTOCOL_ERROR, str(error)) from error
        if self.is_leaving:
            return
        if len(self.streams) >= self._limits.streams_max:
            self._noise.add("a stream too many")
            self.reset(stream_id, ErrorCode.REFUSED_STREAM)
            return
        stream = ServerStream(stream_id, head, self._limits, self.out.peer_window)
        stream.is_request_over = bool(flags & END_STREAM)
        self._open(stream, timeout, cut)
        if stream.is_request_over and stream_id in self.streams:
            self._end_request(stream_id)

    def _open(self, stream: ServerStream, timeout: bytes, cut: Cut | None) -> None:
        head = stream.head
        self.streams[stream.id] = stream
        self.load.calls += 1
        before, kind, after = head.content_type.partition(b"application/grpc")
        if before or not kind or after[:1] not in (b"", b"+", b";") or head.method != b"POST":
            self._refuse_http(stream)
            return
        if self.load.calls > self.load.limits.calls_max:
            text = f"the server has {self.load.limits.calls_max} calls under way"
            self._refuse(stream, grpc.StatusCode.RESOURCE_EXHAUSTED, text)
            return
        if head.encoding not in ENCODINGS.split(b","):
            text = f"messages are compressed with {head.encoding.decode('latin-1')!r}"
            self._refuse(
                stream, grpc.StatusCode.UNIMPLEMENTED, text, (b"grpc-accept-encoding", ENCODINGS)
            )
            return
        handle = self._fast.get(head.path)
        if handle is None or head.encoding != b"identity":
            stream.call = self._open_call(self, stream, timeout)
            return
        stream.fast = handle
        if cut is not None:
            self._hot = (cut, handle)

    def _refuse_http(self, stream: ServerStream) -> None:
        stream.refusal = (b"415", "this port speaks gRPC, whose content-type is application/grpc")
        if stream.head.method != b"POST":
            stream.refusal = (b"405", "this port speaks gRPC, whose method is POST")
        stream.call = self._open_call(self, stream, b"")

    def _refuse(
        self, stream: ServerStream, status: grpc.StatusCode, text: str, *more: tuple[bytes, bytes]
    ) -> None:
        self.end(stream, HEADERS_OK + trailers(status, text, more))

    def _on_trailers(self, stream_id: int, flags: int, block: bytes) -> None:
        fields = self._decoder.fields(block)
        stream = self.streams.get(stream_id)
        if not isinstance(stream, ServerStream):
            self._on_closed(stream_id, "HEADERS", is_request_over=stream is not None)
            return
        if stream.is_request_over:
            raise StreamFault(stream_id, ErrorCode.STREAM_CLOSED, "HEADERS after the end")
        if not flags & END_STREAM:
            raise StreamFault(stream_id, ErrorCode.PROTOCOL_ERROR, "trailers without an end")
        try:
            for name, value in fields:
                check_field(name, value)
        except BadHeaders as error:
            raise StreamFault(stream_id, ErrorCode.PROTOCOL_ERROR, str(error)) from error
        self._end_request(stream_id)

    def _on_closed(self, stream_id: int, what: str, *, is_request_over: bool = False) -> None:
        if stream_id > self._last_id:
            if self.is_leaving and stream_id & 1:
                return
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, f"{what} on an idle stream")
        if stream_id in self._ended:
            self._noise.add(f"{what} on a stream that has ended")
            return
        if is_request_over:
            raise StreamFault(stream_id, ErrorCode.STREAM_CLOSED, f"{what} after the end")
        raise ConnectionFault(ErrorCode.STREAM_CLOSED, f"{what} on a closed stream")

    # Messages.

    def _on_data(self, flags: int, stream_id: int, payload: bytes) -> None:
        if not stream_id:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "DATA on stream 0")
        size = len(payload)
        if size > self._receive_window:
            raise ConnectionFault(ErrorCode.FLOW_CONTROL_ERROR, "DATA beyond the window")
        self._receive_window -= size
        stream = self.streams.get(stream_id)
        if not isinstance(stream, ServerStream) or stream.is_request_over:
            self.owe(size)
            self._on_closed(stream_id, "DATA", is_request_over=stream is not None)
            return
        if size > stream.receive_window:
            self.owe(size)
            raise StreamFault(stream_id, ErrorCode.FLOW_CONTROL_ERROR, "DATA beyond the window")
        stream.receive_window -= size
        payload = frames.unpadded(flags, payload)
        if not payload and not flags & END_STREAM:
            self._noise.add("an empty DATA")
        self._give_back(stream, size - len(payload))
        self._feed(stream, payload)
        if flags & END_STREAM and stream_id in self.streams:
            self._end_request(stream_id)

    def _feed(self, stream: ServerStream, payload: bytes) -> None:
        stream.received_bytes += len(payload)
        if stream.refusal is not None:
            self._give_back(stream, len(payload))
            return
        try:
            messages = stream.reader.feed(payload)
        except BadMessage as error:
            self.owe(len(payload))
            self._refuse(stream, error.status, str(error))
            return
        stream.take(messages, len(payload))
        if stream.fast is not None or not stream.messages:
            self._give_back(stream, stream.all_held())
        if stream.fast is not None and len(stream.messages) > 1:
            text = "the request has more than one message, and the method takes one"
            self._refuse(stream, grpc.StatusCode.UNIMPLEMENTED, text)
        elif not self.load.count(stream):
            self._refuse_unfinished(stream)

    def _refuse_unfinished(self, stream: ServerStream) -> None:
        text = "the server has too much of unfinished messages"
        self._refuse(stream, grpc.StatusCode.RESOURCE_EXHAUSTED, text)

    def _end_request(self, stream_id: int) -> None:
        stream = self.streams[stream_id]
        assert isinstance(stream, ServerStream)
        stream.is_request_over = True
        announced = stream.head.size_bytes
        if announced not in (-1, stream.received_bytes):
            problem = f"{stream.received_bytes} bytes, but content-length is {announced}"
            raise StreamFault(stream_id, ErrorCode.PROTOCOL_ERROR, problem)
        if not stream.reader.is_between:
            self._refuse(stream, grpc.StatusCode.INTERNAL, "the request ended within a message")
        elif stream.fast is None:
            assert stream.call is not None
            stream.call.wake()
        elif len(stream.messages) != 1:
            text = f"{len(stream.messages)} messages, and the method takes one"
            self._refuse(stream, grpc.StatusCode.UNIMPLEMENTED, text)
        else:
            self.load.forget(stream)
            self.streams[stream_id] = stream.send_window - self.out.peer_window
            self._handle(stream.fast, stream.messages.popleft(), stream_id)

    def owe(self, size: int) -> None:
        """Let the peer send `size` more bytes on the connection, now or with later credits."""
        self._owed += size
        if self._owed * 2 >= self._limits.connection_window:
            self.out.send(frames.window_update(0, self._owed))
            self._receive_window += self._owed
            self._owed = 0

    def _give_back(self, stream: ServerStream, size: int) -> None:
        if not size:
            return
        self.owe(size)
        stream.owed += size
        if stream.owed * 2 >= self._limits.stream_window and not stream.is_request_over:
            self._widen_request(stream)

    def _widen_request(self, stream: ServerStream) -> None:
        self.out.send(frames.window_update(stream.id, stream.owed))
        stream.receive_window += stream.owed
        stream.owed = 0

    def next_message(self, stream: ServerStream) -> bytes | None:
        """Return a complete message and let the peer send as much again, None without any."""
        if not stream.messages:
            return None
        message, held = stream.pop()
        if stream.id in self.streams:
            self._give_back(stream, held)
            self.load.count(stream)
        return message

    # The connection.

    def _on_priority(self, flags: int, stream_id: int, payload: bytes) -> None:
        if not stream_id:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "PRIORITY on stream 0")
        if len(payload) != 5:
            raise StreamFault(
                stream_id, ErrorCode.FRAME_SIZE_ERROR, f"PRIORITY of {len(payload)} bytes"
            )
        self._noise.add("PRIORITY")
        if int.from_bytes(payload[:4], "big") & STREAM_ID_BITS == stream_id:
            raise StreamFault(stream_id, ErrorCode.PROTOCOL_ERROR, "a stream depends on itself")

    def _on_reset(self, flags: int, stream_id: int, payload: bytes) -> None:
        frames.word(payload, "RST_STREAM")
        if not stream_id or stream_id > self._last_id:
            if stream_id & 1 and self.is_leaving:
                return
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "RST_STREAM on an idle stream")
        self._noise.add("RST_STREAM")
        self._forget(stream_id)

    def _on_settings(self, flags: int, stream_id: int, payload: bytes) -> None:
        frames.check_control(frames.SETTINGS, flags, stream_id, payload)
        if flags & ACK:
            self._decoder.limit_table(self._limits.header_table_bytes)
            return
        self._noise.add("SETTINGS", 5)
        self._has_settings = True
        self.out.know_table()
        for name, value in frames.settings_in(payload):
            if name == frames.HEADER_TABLE_SIZE:
                self.out.change_table(value)
            elif name == frames.INITIAL_WINDOW_SIZE:
                self._change_windows(value)
            elif name == frames.MAX_FRAME_SIZE:
                self.out.peer_frame_bytes = value
        self.out.send(frames.frame(frames.SETTINGS, ACK, 0))
        self._let_send()

    def _change_windows(self, size: int) -> None:
        change, self.out.peer_window = size - self.out.peer_window, size
        for stream in self.streams.values():
            if isinstance(stream, ServerStream):
                stream.send_window += change
                if stream.send_window > WINDOW_MAX:
                    raise ConnectionFault(
                        ErrorCode.FLOW_CONTROL_ERROR, "INITIAL_WINDOW_SIZE overflows a window"
                    )

    def _on_push_promise(self, flags: int, stream_id: int, payload: bytes) -> None:
        raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "PUSH_PROMISE by a client")

    def _on_ping(self, flags: int, stream_id: int, payload: bytes) -> None:
        frames.check_control(frames.PING, flags, stream_id, payload)
        if not flags & ACK:
            self._noise.add("PING")
            self.out.send(frames.ping(payload, is_answer=True))

    def _on_goaway(self, flags: int, stream_id: int, payload: bytes) -> None:
        frames.check_control(frames.GOAWAY, flags, stream_id, payload)
        self._noise.add("GOAWAY")

    def _on_window_update(self, flags: int, stream_id: int, payload: bytes) -> None:
        more = frames.word(payload, "WINDOW_UPDATE") & STREAM_ID_BITS
        self._noise.add("WINDOW_UPDATE")
        if not stream_id:
            if not more or self.out.send_window + more > WINDOW_MAX:
                code = ErrorCode.FLOW_CONTROL_ERROR if more else ErrorCode.PROTOCOL_ERROR
                raise ConnectionFault(code, f"WINDOW_UPDATE by {more}")
            self.out.send_window += more
            self._let_send()
            return
        if stream_id > self._last_id and not (self.is_leaving and stream_id & 1):
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "WINDOW_UPDATE on an idle stream")
        stream = self.streams.get(stream_id)
        if not more:
            raise StreamFault(stream_id, ErrorCode.PROTOCOL_ERROR, "WINDOW_UPDATE by 0")
        if stream is not None:
            self._widen(stream_id, stream, more)

    def _widen(self, stream_id: int, stream: ServerStream | int, more: int) -> None:
        window = stream + self.out.peer_window if isinstance(stream, int) else stream.send_window
        if window + more > WINDOW_MAX:
            raise StreamFault(stream_id, ErrorCode.FLOW_CONTROL_ERROR, f"WINDOW_UPDATE by {more}")
        if isinstance(stream, int):
            self.streams[stream_id] = stream + more
            return
        stream.send_window += more
        if stream.call is not None:
            stream.call.let_send()

    _KINDS: ClassVar = {
        frames.DATA: _on_data,
        frames.HEADERS: _on_headers,
        frames.PRIORITY: _on_priority,
        frames.RST_STREAM: _on_reset,
        frames.SETTINGS: _on_settings,
        frames.PUSH_PROMISE: _on_push_promise,
        frames.PING: _on_ping,
        frames.GOAWAY: _on_goaway,
        frames.WINDOW_UPDATE: _on_window_update,
        frames.CONTINUATION: _on_continuation,
    }

    # Output.

    def block(self) -> None:
        self.out.is_blocked = True

    def unblock(self) -> None:
        self.is_heard = True
        self.out.unblock()
        self._let_send()

    def _let_send(self) -> None:
        for call in list(self.waiting):
            call.let_send()

    def answer(self, stream_id: int, reply: Reply) -> None:
        gained, out = self.streams.get(stream_id), self.out
        if not isinstance(gained, int):
            return
        if not (
            reply.is_prepared
            and reply.flow_bytes <= out.send_window
            and reply.flow_bytes <= gained + out.peer_window
        ):
            self._answer_slowly(stream_id, gained, reply)
            return
        del self.streams[stream_id]
        self.load.calls -= 1
        out.reply(stream_id, reply)
        if self.is_leaving:
            self._note_end()

    def _answer_slowly(self, stream_id: int, gained: int, reply: Reply) -> None:
        head = RequestHead(b"POST", b"", b"", b"", b"", -1, ())
        stream = ServerStream(stream_id, head, self._limits, gained + self.out.peer_window)
        stream.is_request_over = True
        self.streams[stream_id] = stream
        stream.prepared = reply
        stream.call = self._open_call(self, stream, b"")

    def fail(
        self, stream_id: int, status: grpc.StatusCode, text: str, metadata: object = ()
    ) -> None:
        if isinstance(self.streams.get(stream_id), int):
            block = trailers(status, text, tuple(metadata_out(metadata)))
            self.out.send_block(stream_id, HEADERS_OK + block, END_STREAM)
            self._forget(stream_id)

    def is_open(self, stream_id: int) -> bool:
        return stream_id in self.streams

    def end(self, stream: ServerStream, block: bytes) -> None:
        if stream.id not in self.streams or self.is_over:
            return
        self.out.send_block(stream.id, block, END_STREAM)
        if not stream.is_request_over:
            self.out.send(frames.rst_stream(stream.id, ErrorCode.NO_ERROR))
            self._remember_ended(stream.id)
        self._forget(stream.id)

    def reset(self, stream_id: int, code: ErrorCode) -> None:
        self.out.send(frames.rst_stream(stream_id, code))
        self._remember_ended(stream_id)
        self._forget(stream_id)

    def _remember_ended(self, stream_id: int) -> None:
        self._ended[stream_id] = None
        if len(self._ended) > _ENDED_IDS_KEPT:
            self._ended.popitem(last=False)

    def _forget(self, stream_id: int) -> None:
        stream = self.streams.pop(stream_id, None)
        if stream is None:
            return
        self.load.calls -= 1
        if isinstance(stream, ServerStream):
            self.load.forget(stream)
            self.owe(stream.all_held())
            # Call and stream refer to each other, and the garbage collector runs rarely.
            call, stream.call = stream.call, None
            if call is not None:
                call.close()
        self._note_end()

    def _note_end(self) -> None:
        if self.is_leaving and not self.streams and self.on_idle is not None:
            self.on_idle()

    # The end.

    def leave(self) -> None:
        """Accept no more calls, and tell the peer which call was the last."""
        if not self.is_leaving and not self.is_over:
            self.is_leaving = True
            if self.has_begun:
                text = "the server is stopping"
                self.out.send(frames.goaway(self._last_id, ErrorCode.NO_ERROR, text))
                self.out.flush()

    def refuse_all(self, status: grpc.StatusCode, text: str) -> None:
        for stream_id, stream in list(self.streams.items()):
            if isinstance(stream, int):
                self.fail(stream_id, status, text)
            elif stream.call is not None:
                stream.call.end_with(status, text)
            else:
                self._refuse(stream, status, text)
        self.out.flush()

    def fail_connection(self, code: ErrorCode, problem: str) -> None:
        if self.is_over:
            return
        log.warning("the connection of %s is ended: %s (%s)", self._peer, problem, code.name)
        self.out.send(frames.goaway(self._last_id, code, problem))
        self.out.flush()
        self.close()
        self._wire.close()

    def close(self) -> None:
        self.is_over = True
        self.out.end()
        self._kept.clear()
        for stream_id in list(self.streams):
            self._forget(stream_id)
        self.on_idle = None


def trailers(
    status: grpc.StatusCode, text: str, more: tuple[tuple[bytes, bytes], ...] = ()
) -> bytes:
    if not more and not text and status is grpc.StatusCode.OK:
        return _TRAILERS_OK
    fields = [(b"grpc-status", b"%d" % status.value[0])]
    if text:
        fields.append((b"grpc-message", packed_text(text)))
    return encode([*fields, *more])
