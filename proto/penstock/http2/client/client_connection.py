"""Client connection: a client's end of HTTP/2 with gRPC's calls in it, without any I/O.

    open, send, cancel ──> frames to be sent ──> take ──> (a socket)
    (a socket) ──> receive ──> events: (stream, a message) or (stream, its outcome)

All of it is bookkeeping in memory: the caller does the I/O and holds a lock around each method. It
is one machine, with one state that every kind of frame changes, and so one module.

    stream   waiting ──> open ──> half-closed (all is sent) ──┐
                │          │                                  ├──> over, with one `Outcome`
                └──────────┴──────────────────────────────────┘

A stream waits while the server allows no more concurrent streams. Data waits while the server's
windows (RFC 9113, section 5.2) have no room. The room of our windows is given back to the server as
messages are consumed, and for an incomplete message as its bytes come.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, Self

from penstock.http2 import frames
from penstock.http2.frames import (
    ACK,
    END_HEADERS,
    END_STREAM,
    HEAD,
    HEAD_SIZE,
    MESSAGE_HEAD,
    ConnectionFault,
    ErrorCode,
    StreamFault,
)
from penstock.http2.header_blocks import (
    CANCELLED,
    INTERNAL,
    NO_TABLE,
    OK,
    PERMISSION_DENIED,
    RESOURCE_EXHAUSTED,
    UNAVAILABLE,
    UNKNOWN,
    Field,
    ResponseDecoder,
    ResponseHead,
    encode_timeout,
)
from penstock.http2.messages import BadMessage, MessageReader

_WINDOW_OF_CONNECTION: Final = 1 << 30
_ANSWERS_MAX: Final = 1_000
"""Answers to PING and SETTINGS that wait to be sent; a peer that does not read gets no more."""
_CONTINUATIONS_MAX: Final = 1_000
_LAST_STREAM_ID: Final = frames.STREAM_ID_BITS - 1
_FRAME_BYTES_SENT_MAX: Final = 1 << 20
"""A server may allow more, but its other streams should have their turn."""

_STATUS_OF_RESET: Final = {
    ErrorCode.REFUSED_STREAM: UNAVAILABLE,
    ErrorCode.CANCEL: CANCELLED,
    ErrorCode.ENHANCE_YOUR_CALM: RESOURCE_EXHAUSTED,
    ErrorCode.INADEQUATE_SECURITY: PERMISSION_DENIED,
}
"""The meaning of a server's RST_STREAM for a call, according to gRPC's PROTOCOL-HTTP2.md."""

Piece = bytes | memoryview


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientLimits:
    """The limits of a client for its peer's data."""

    message_bytes_max: int = (1 << 31) - 1
    stream_window_bytes: int = 8 << 20
    """Unconsumed bytes that may come on one stream; one message may be larger."""
    frame_bytes_max: int = 256 << 10
    header_bytes_max: int = 64 << 10
    """The size of one header block, packed and unpacked."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a call ended."""

    status: int
    """gRPC's, 0 for success."""
    text: str = ""
    metadata: tuple[Field, ...] = ()
    never_reached: bool = False
    """True when the server surely has not seen it: the call may be made again."""


@dataclass(slots=True, eq=False)
class ClientStream:
    """One call; only the connection changes its fields."""

    block: bytes
    reader: MessageReader
    window: int = 0
    id: int = 0
    """0 until the server allows one more stream."""
    unsent: deque[memoryview] = field(default_factory=deque)
    unsent_bytes: int = 0
    is_ended: bool = False
    """True once nothing more will be queued."""
    is_half_closed: bool = False
    """True once END_STREAM was sent."""
    is_held: bool = False
    """True when messages count against the window until `consumed`."""
    is_over: bool = False
    head: ResponseHead | None = None
    allowed_bytes: int = 0
    """The bytes that the server may send on this stream now."""
    taken_bytes: int = 0
    """Received bytes that are not yet given back to the server's window."""
    unconsumed_bytes: int = 0
    """The messages that wait for `consumed`."""
    user: object = None
    """Any object of the caller."""

    @classmethod
    def never_opened(cls) -> Self:
        return cls(b"", MessageReader(0), is_over=True)


Event = tuple[ClientStream, bytes | Outcome]


class ClientConnection:
    """A client's end of one connection; see the module for how to drive it."""

    def __init__(self, limits: ClientLimits | None = None) -> None:
        self._limits = limits or ClientLimits()
        self._decoder = ResponseDecoder(list_bytes_max=self._limits.header_bytes_max)
        self._out: list[Piece] = []
        self.unsent_bytes = 0
        """About the number of bytes that wait in `take`."""
        self._answers = 0
        self._rest = b""
        self._streams: dict[int, ClientStream] = {}
        self._waiting: deque[ClientStream] = deque()
        self._blocked: dict[ClientStream, None] = {}
        self._next_id = 1
        self._window = frames.WINDOW_DEFAULT
        self._initial_window = frames.WINDOW_DEFAULT
        self._frame_bytes = frames.FRAME_BYTES_DEFAULT
        self._streams_max = 1 << 31
        self._allowed_bytes = _WINDOW_OF_CONNECTION
        self._returned_bytes = 0
        self._headers: tuple[int, int, list[bytes]] | None = None
        self.is_ready = False
        """True once the server's settings have come."""
        self.ending: str | None = None
        """The reason why no more calls can be made here; None while they can."""
        self.fault: ConnectionFault | None = None
        self._out += (
            frames.PREFACE,
            frames.settings({
                frames.HEADER_TABLE_SIZE: 0,
                frames.ENABLE_PUSH: 0,
                frames.INITIAL_WINDOW_SIZE: self._limits.stream_window_bytes,
                frames.MAX_FRAME_SIZE: self._limits.frame_bytes_max,
                frames.MAX_HEADER_LIST_SIZE: self._limits.header_bytes_max,
            }),
            frames.window_update(0, _WINDOW_OF_CONNECTION - frames.WINDOW_DEFAULT),
        )  # fmt: skip

    @property
    def has_output(self) -> bool:
        return bool(self._out)

    @property
    def streams(self) -> list[ClientStream]:
        return [*self._streams.values(), *self._waiting]

    def take(self) -> list[Piece]:
        out, self._out = self._out, []
        self.unsent_bytes = self._answers = 0
        return out

    def open(self, block: bytes, timeout_s: float | None = None) -> ClientStream:
        """Start a call with that block of header fields; check `ending` first."""
        assert self.ending is None, "a connection that ends takes no calls"
        if timeout_s is not None:
            block += encode_timeout(timeout_s)
        stream = ClientStream(block, MessageReader(self._limits.message_bytes_max))
        if self._waiting or len(self._streams) >= self._streams_max:
            self._waiting.append(stream)
        else:
            self._begin(stream)
        if self._next_id + 2 * len(self._waiting) >= _LAST_STREAM_ID:
            self.ending = "this connection has had all its streams"
        return stream

    def send(self, stream: ClientStream, pieces: Sequence[bytes], *, is_last: bool = False) -> None:
        """Send a message in pieces, which must not change; do nothing if the stream is over."""
        if stream.is_over:
            return
        assert not stream.is_ended, "a message after the last"
        size = sum(map(len, pieces)) if len(pieces) != 1 else len(pieces[0])
        whole = size + MESSAGE_HEAD.size
        stream.is_ended = is_last
        if (
            stream.id
            and not stream.unsent_bytes
            and whole <= self._frame_bytes
            and whole <= stream.window
            and whole <= self._window
        ):
            stream.window -= whole
            self._window -= whole
            stream.is_half_closed = is_last
            head = HEAD.pack(whole >> 8, whole & 0xFF, frames.DATA, int(is_last), stream.id)
            self._out.append(head + MESSAGE_HEAD.pack(0, size))
            self._out += pieces
            self.unsent_bytes += whole
            return
        stream.unsent.append(memoryview(MESSAGE_HEAD.pack(0, size)))
        stream.unsent.extend(memoryview(piece) for piece in pieces if piece)
        stream.unsent_bytes += whole
        self._push(stream)

    def end(self, stream: ClientStream) -> None:
        if not stream.is_over and not stream.is_ended:
            stream.is_ended = True
            self._push(stream)

    def cancel(self, stream: ClientStream, code: ErrorCode = ErrorCode.CANCEL) -> bool:
        """End a stream immediately, without an outcome; False when it was already over."""
        if stream.is_over:
            return False
        if stream.id:
            self._out.append(frames.rst_stream(stream.id, code))
        self._close(stream)
        return True

    def consumed(self, stream: ClientStream, message: bytes) -> None:
        """Return a message's bytes to the window, for streams that are `is_held`."""
        stream.unconsumed_bytes -= len(message) + MESSAGE_HEAD.size
        if not stream.is_over:
            self._give_back(stream)

    def lost(self, problem: str) -> list[Event]:
        self.ending = self.ending or problem
        self._out.clear()
        events: list[Event] = []
        for stream in self.streams:
            events.append(self._over(stream, Outcome(UNAVAILABLE, problem, (), not stream.id)))
        return events

    def receive(self, data: bytes) -> list[Event]:
        """Return the events in these bytes.

        When the server breaks a rule that ends the connection, `fault` names the rule. Nothing may
        be received after that, and `lost` gives the other calls' outcomes. The output also reports
        the fault.
        """
        events: list[Event] = []
        try:
            self._receive(self._rest + data if self._rest else data, events)
        except ConnectionFault as fault:
            self.fault = fault
            self.ending = self.ending or str(fault)
            self._out.append(frames.goaway(0, fault.code, str(fault)))
        return events

    def _receive(self, data: bytes, events: list[Event]) -> None:
        at, end = 0, len(data)
        while end - at >= HEAD_SIZE:
            high, low, kind, flags, stream_id = HEAD.unpack_from(data, at)
            size = high << 8 | low
            if not self.is_ready and (kind != frames.SETTINGS or flags & ACK):
                text = f"the peer does not speak HTTP/2, it begins with {data[at : at + 24]!r}"
                raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, text)
            if size > self._limits.frame_bytes_max:
                raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, f"a frame of {size} bytes")
            stop = at + HEAD_SIZE + size
            if stop > end:
                break
            self._frame(kind, flags, stream_id & frames.STREAM_ID_BITS, data[at + 9 : stop], events)
            at = stop
        self._rest = data[at:]

    def _frame(
        self, kind: int, flags: int, stream_id: int, payload: bytes, events: list[Event]
    ) -> None:
        if self._headers is not None and kind != frames.CONTINUATION:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, f"frame {kind} within a header block")
        try:
            if kind == frames.DATA:
                self._on_data(flags, stream_id, payload, events)
            elif kind == frames.HEADERS:
                self._on_headers(flags, stream_id, payload, events)
            elif kind == frames.CONTINUATION:
                self._on_continuation(flags, stream_id, payload, events)
            elif kind == frames.RST_STREAM:
                self._on_rst_stream(stream_id, payload, events)
            elif kind == frames.WINDOW_UPDATE:
                self._on_window_update(stream_id, payload)
            else:
                self._on_other(kind, flags, stream_id, payload, events)
        except StreamFault as fault:
            stream = self._streams.get(fault.stream_id)
            if stream is not None:
                self._answer(frames.rst_stream(stream.id, fault.code))
                status = fault.status if isinstance(fault, _BadCall) else INTERNAL
                events.append(self._over(stream, Outcome(status, str(fault))))

    def _on_other(
        self, kind: int, flags: int, stream_id: int, payload: bytes, events: list[Event]
    ) -> None:
        if kind == frames.PUSH_PROMISE:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "PUSH_PROMISE, which is switched off")
        if kind not in (frames.SETTINGS, frames.PING, frames.GOAWAY):
            return  # A PRIORITY, or a frame of a later standard.
        frames.check_control(kind, flags, stream_id, payload)
        if kind == frames.SETTINGS:
            self._on_settings(flags, payload)
        elif kind == frames.GOAWAY:
            self._on_goaway(payload, events)
        elif not flags & ACK:
            self._answer(frames.ping(payload, is_answer=True))

    def _on_data(self, flags: int, stream_id: int, payload: bytes, events: list[Event]) -> None:
        size = len(payload)
        self._allowed_bytes -= size
        self._returned_bytes += size
        if self._allowed_bytes < 0:
            raise ConnectionFault(ErrorCode.FLOW_CONTROL_ERROR, "more than the window")
        if self._returned_bytes >= _WINDOW_OF_CONNECTION // 2:
            self._out.append(frames.window_update(0, self._returned_bytes))
            self._allowed_bytes += self._returned_bytes
            self._returned_bytes = 0
        stream = self._streams.get(stream_id)
        if stream is None:
            self._check_was_open(stream_id, "DATA")
            return
        stream.allowed_bytes -= size
        stream.taken_bytes += size
        if stream.allowed_bytes < 0:
            raise StreamFault(stream_id, ErrorCode.FLOW_CONTROL_ERROR, "more than the window")
        if flags & frames.PADDED:
            payload = frames.unpadded(flags, payload)
        if stream.head is None:
            raise StreamFault(stream_id, ErrorCode.PROTOCOL_ERROR, "DATA before HEADERS")
        for message in self._messages(stream, payload):
            if stream.is_held:
                stream.unconsumed_bytes += len(message) + MESSAGE_HEAD.size
            events.append((stream, message))
        if flags & END_STREAM:
            problem = stream.head.problem() or (INTERNAL, "the stream ended without a status")
            events.append(self._answered(stream, Outcome(*problem)))
        else:
            self._give_back(stream)

    def _messages(self, stream: ClientStream, data: bytes) -> Sequence[bytes]:
        if stream.reader.is_between and len(data) >= MESSAGE_HEAD.size:
            flag, size = MESSAGE_HEAD.unpack_from(data)
            # Most frames hold one message and nothing else.
            is_whole = size == len(data) - MESSAGE_HEAD.size
            if is_whole and not flag and size <= self._limits.message_bytes_max:
                return (data[MESSAGE_HEAD.size :],)
        try:
            return stream.reader.feed(data)
        except BadMessage as bad:
            raise _BadCall(stream.id, bad) from bad

    def _give_back(self, stream: ClientStream) -> None:
        size = stream.taken_bytes - stream.unconsumed_bytes
        if size >= self._limits.stream_window_bytes // 2:
            self._out.append(frames.window_update(stream.id, size))
            stream.allowed_bytes += size
            stream.taken_bytes -= size

    def _on_headers(self, flags: int, stream_id: int, payload: bytes, events: list[Event]) -> None:
        payload, _ = frames.fragment(flags, payload)
        if flags & END_HEADERS:
            self._on_block(flags, stream_id, payload, events)
        else:
            self._headers = (stream_id, flags, [payload])

    def _on_continuation(
        self, flags: int, stream_id: int, payload: bytes, events: list[Event]
    ) -> None:
        if self._headers is None or self._headers[0] != stream_id:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "CONTINUATION of no header block")
        _, first_flags, parts = self._headers
        parts.append(payload)
        too_long = sum(map(len, parts)) > self._limits.header_bytes_max
        if too_long or len(parts) > _CONTINUATIONS_MAX:
            raise ConnectionFault(ErrorCode.ENHANCE_YOUR_CALM, "a header block without end")
        if flags & END_HEADERS:
            self._headers = None
            self._on_block(first_flags, stream_id, b"".join(parts), events)

    def _on_block(self, flags: int, stream_id: int, block: bytes, events: list[Event]) -> None:
        head = self._decoder.decode(block)
        stream = self._streams.get(stream_id)
        if stream is None:
            self._check_was_open(stream_id, "HEADERS")
            return
        if stream.head is None and head.is_interim:
            return
        is_end = bool(flags & END_STREAM)
        if stream.head is None:
            if not head.http_status:
                raise StreamFault(stream_id, ErrorCode.PROTOCOL_ERROR, "no :status")
            stream.head = head
        elif not is_end:
            raise StreamFault(stream_id, ErrorCode.PROTOCOL_ERROR, "trailers without an end")
        if is_end:
            events.append(self._answered(stream, _outcome(stream, stream.head, head)))

    def _on_rst_stream(self, stream_id: int, payload: bytes, events: list[Event]) -> None:
        code = _error_code(frames.word(payload, "RST_STREAM"))
        stream = self._streams.get(stream_id)
        if stream is None:
            self._check_was_open(stream_id, "RST_STREAM")
            return
        status = _STATUS_OF_RESET.get(code, INTERNAL)
        text = f"the server ended the stream: {code.name}"
        events.append(
            self._over(stream, Outcome(status, text, (), code is ErrorCode.REFUSED_STREAM))
        )

    def _on_window_update(self, stream_id: int, payload: bytes) -> None:
        increment = frames.word(payload, "WINDOW_UPDATE") & frames.STREAM_ID_BITS
        if stream_id:
            stream = self._streams.get(stream_id)
            if stream is None:
                self._check_was_open(stream_id, "WINDOW_UPDATE")
                return
            if not increment:
                raise StreamFault(stream_id, ErrorCode.PROTOCOL_ERROR, "WINDOW_UPDATE of 0")
            stream.window += increment
            if stream.window > frames.WINDOW_MAX:
                raise StreamFault(stream_id, ErrorCode.FLOW_CONTROL_ERROR, "the window overflows")
            if stream.unsent_bytes:
                self._push(stream)
            return
        if not increment:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "WINDOW_UPDATE of 0")
        self._window += increment
        if self._window > frames.WINDOW_MAX:
            raise ConnectionFault(ErrorCode.FLOW_CONTROL_ERROR, "the window overflows")
        self._push_all()

    def _on_settings(self, flags: int, payload: bytes) -> None:
        if flags & ACK:
            self._decoder.forbid_table()
            return
        for name, value in frames.settings_in(payload):
            if name == frames.INITIAL_WINDOW_SIZE:
                for stream in self._streams.values():
                    stream.window += value - self._initial_window
                    if stream.window > frames.WINDOW_MAX:
                        text = "the window overflows"
                        raise ConnectionFault(ErrorCode.FLOW_CONTROL_ERROR, text)
                self._initial_window = value
            elif name == frames.MAX_FRAME_SIZE:
                self._frame_bytes = min(value, _FRAME_BYTES_SENT_MAX)
            elif name == frames.MAX_CONCURRENT_STREAMS:
                self._streams_max = value
        self.is_ready = True
        self._answer(frames.frame(frames.SETTINGS, ACK, 0))
        self._begin_waiting()
        self._push_all()

    def _on_goaway(self, payload: bytes, events: list[Event]) -> None:
        last_id = int.from_bytes(payload[:4]) & frames.STREAM_ID_BITS
        code = _error_code(int.from_bytes(payload[4:8]))
        text = payload[8:].decode("utf-8", "replace")
        self.ending = f"the server takes no more calls: {code.name}" + (text and f", {text}")
        for stream in self.streams:
            if not stream.id or stream.id > last_id:
                events.append(self._over(stream, Outcome(UNAVAILABLE, self.ending, (), True)))

    def _check_was_open(self, stream_id: int, what: str) -> None:
        """Refuse frames of streams that were never opened; ended streams may still get frames."""
        if stream_id % 2 == 0 or stream_id >= self._next_id:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, f"{what} on stream {stream_id}")

    def _answer(self, data: bytes) -> None:
        self._answers += 1
        if self._answers > _ANSWERS_MAX:
            raise ConnectionFault(ErrorCode.ENHANCE_YOUR_CALM, "a flood that asks for answers")
        self._out.append(data)

    def _begin(self, stream: ClientStream) -> None:
        stream.id = self._next_id
        self._next_id += 2
        stream.window = self._initial_window
        stream.allowed_bytes = self._limits.stream_window_bytes
        self._streams[stream.id] = stream
        # Our blocks use no dynamic table, but a peer that forbids it expects an announcement.
        block = NO_TABLE + stream.block if stream.id == 1 else stream.block
        self._out += frames.block_frames(stream.id, 0, block, self._frame_bytes)
        if stream.unsent_bytes or stream.is_ended:
            self._push(stream)

    def _begin_waiting(self) -> None:
        while self._waiting and len(self._streams) < self._streams_max:
            self._begin(self._waiting.popleft())

    def _push_all(self) -> None:
        while self._blocked and self._window > 0:
            before = self._window
            for stream in list(self._blocked):
                self._push(stream, frames_max=1)
            if self._window == before:
                return

    def _push(self, stream: ClientStream, frames_max: int = 1 << 31) -> None:
        if not stream.id:
            return
        while stream.unsent_bytes and frames_max:
            size = min(stream.unsent_bytes, self._window, stream.window, self._frame_bytes)
            if size <= 0:
                break
            self._cut(stream, size)
            frames_max -= 1
        if stream.unsent_bytes:
            self._blocked[stream] = None
            return
        self._blocked.pop(stream, None)
        if stream.is_ended and not stream.is_half_closed:
            stream.is_half_closed = True
            self._out.append(frames.head(0, frames.DATA, END_STREAM, stream.id))

    def _cut(self, stream: ClientStream, size: int) -> None:
        stream.unsent_bytes -= size
        stream.window -= size
        self._window -= size
        self.unsent_bytes += size
        stream.is_half_closed = stream.is_ended and not stream.unsent_bytes
        flags = END_STREAM if stream.is_half_closed else 0
        self._out.append(frames.head(size, frames.DATA, flags, stream.id))
        while size:
            piece = stream.unsent[0]
            if len(piece) <= size:
                stream.unsent.popleft()
            else:
                stream.unsent[0], piece = piece[size:], piece[:size]
            self._out.append(piece)
            size -= len(piece)

    def _over(self, stream: ClientStream, outcome: Outcome) -> Event:
        self._close(stream)
        return stream, outcome

    def _answered(self, stream: ClientStream, outcome: Outcome) -> Event:
        if not stream.is_half_closed:
            self._answer(frames.rst_stream(stream.id, ErrorCode.CANCEL))
        return self._over(stream, outcome)

    def _close(self, stream: ClientStream) -> None:
        stream.is_over = True
        stream.unsent.clear()
        stream.unsent_bytes = 0
        self._blocked.pop(stream, None)
        if stream.id:
            self._streams.pop(stream.id, None)
            self._begin_waiting()
        else:
            self._waiting.remove(stream)


class _BadCall(StreamFault):
    def __init__(self, stream_id: int, bad: BadMessage) -> None:
        super().__init__(stream_id, ErrorCode.CANCEL, str(bad).removeprefix("SERVER: "))
        self.status: int = bad.status.value[0]


def _outcome(stream: ClientStream, first: ResponseHead, last: ResponseHead) -> Outcome:
    problem = first.problem()
    if problem is not None:
        return Outcome(*problem, last.metadata)
    if last.status is None:
        return Outcome(UNKNOWN, "the answer has no grpc-status", last.metadata)
    if last.status == OK and not stream.reader.is_between:
        return Outcome(INTERNAL, "the stream ended within a message", last.metadata)
    return Outcome(last.status, last.message, last.metadata)


def _error_code(number: int) -> ErrorCode:
    try:
        return ErrorCode(number)
    except ValueError:
        return ErrorCode.INTERNAL_ERROR
