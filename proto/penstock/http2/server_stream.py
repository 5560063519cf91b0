"""Server streams: a server's calls that are not on the fast path, their load, and their output.

Frames are collected, and leave in one write a turn of the event loop, or as soon as there are many.
The answers of the fast path are prepared (`unary.Reply`), and shortest once two header fields have
been put into the peer's table. A peer with a smaller table than usual gets all fields in full.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from enum import Enum
from typing import Any, Final, Protocol

import grpc

from penstock.http2 import frames
from penstock.http2.frames import MESSAGE_HEAD
from penstock.http2.header_blocks import NO_TABLE, RequestHead
from penstock.http2.messages import MessageReader
from penstock.http2.server_limits import ServerLimits
from penstock.http2.unary import STREAM_ID, Pieces, Reply, UnaryHandler

_FLUSH_BYTES: Final = 128 << 10
_PUSH_BYTES: Final = 256 << 10
_TABLE_BYTES_DEFAULT: Final = 4096


class Receiver(Protocol):
    """The interface of a call that its connection uses. No method waits or raises."""

    def wake(self) -> None:
        """Handle a complete message or the end of the request."""

    def let_send(self) -> None:
        """There may be room to send again."""

    def close(self) -> None:
        """The stream has ended, by this side or by the peer."""

    def end_with(self, status: grpc.StatusCode, text: str) -> None: ...

    def give_up(self) -> None:
        """End the call, because the server holds too much that its peers do not take."""


class ServerStream:
    """The state of one stream; its connection changes it.

    Received bytes that were not given back to the peer's window are *held*: for each message that
    waits for its handler, and for the message that is not whole yet.
    """

    __slots__ = (
        "_held",
        "_held_partial",
        "_held_whole",
        "_whole_bytes",
        "call",
        "counted_bytes",
        "fast",
        "head",
        "id",
        "is_request_over",
        "messages",
        "owed",
        "prepared",
        "reader",
        "receive_window",
        "received_bytes",
        "refusal",
        "send_window",
    )

    def __init__(
        self, stream_id: int, head: RequestHead, limits: ServerLimits, send_window: int
    ) -> None:
        self.id = stream_id
        self.head = head
        self.send_window = send_window
        self.receive_window = limits.stream_window
        self.owed = 0
        """Bytes that may be given back to the peer's window, and were not yet."""
        self.received_bytes = 0
        self.counted_bytes = 0
        """The bytes of this stream that the server's load has counted."""
        self.reader = MessageReader(limits.message_bytes_max, head.encoding)
        self.messages: deque[bytes] = deque()
        self.is_request_over = False
        self.call: Receiver | None = None
        self.fast: UnaryHandler | None = None
        self.prepared: Reply | None = None
        """The answer of a call on the fast path that must wait for the peer's window."""
        self.refusal: tuple[bytes, str] | None = None
        """HTTP's status and a text for a request that is not gRPC's; its body is thrown away."""
        self._held: deque[int] = deque()
        self._held_whole = self._held_partial = 0
        self._whole_bytes = 0

    def take(self, messages: list[bytes], size: int) -> None:
        self._held_partial += size
        for message in messages:
            held = min(MESSAGE_HEAD.size + len(message), self._held_partial)
            self._held_partial -= held
            self._held_whole += held
            self._held.append(held)
            self._whole_bytes += len(message)
        if messages:
            self.messages.extend(messages)
            if self.call is not None:
                self.call.wake()

    def pop(self) -> tuple[bytes, int]:
        """Return the message that waited longest, and the bytes to give back for it.

        With the last message that includes the received bytes of the next, which is not complete.
        """
        message, held = self.messages.popleft(), self._held.popleft()
        self._whole_bytes -= len(message)
        self._held_whole -= held
        if not self.messages:
            held += self._held_partial
            self._held_partial = 0
        return message, held

    def all_held(self) -> int:
        """Return all held bytes, and stop holding them."""
        held = self._held_partial + self._held_whole
        self._held_partial = self._held_whole = 0
        self._held = deque([0] * len(self._held))
        return held

    @property
    def loose_bytes(self) -> int:
        """Bytes kept for the stream that none of its windows bounds."""
        kept = self._whole_bytes + self.reader.partial_bytes
        return max(0, kept - self._held_partial - self._held_whole)


class Load:
    """The data that all connections of a server hold together; in the event loop's thread only."""

    __slots__ = (
        "_given_up",
        "_waiting",
        "calls",
        "ending_bytes",
        "limits",
        "partial_bytes",
        "waiting_bytes",
    )

    def __init__(self, limits: ServerLimits) -> None:
        self.limits = limits
        self.calls = 0
        self.partial_bytes = 0
        self.waiting_bytes = 0
        self.ending_bytes = 0
        """Bytes of calls that were given up and whose tasks have not run since."""
        self._waiting: dict[Receiver, int] = {}
        self._given_up: dict[Receiver, int] = {}

    def wait(self, call: Receiver, size: int) -> None:
        """Count bytes that a call cannot send now, until `proceed`; may end it or earlier calls.

        An ended call releases its bytes in the next turn of the loop. If a turn brings more than
        twice the budget, the call that brings it is ended, which frees it in this turn.
        """
        if call in self._waiting:
            return
        most = self.limits.waiting_bytes_max
        held = self.waiting_bytes + self.ending_bytes
        if held and held + size > 2 * most:
            call.give_up()
            return
        self._waiting[call] = size
        self.waiting_bytes += size
        while self.waiting_bytes > most and len(self._waiting) > 1:
            first = next(iter(self._waiting))
            size = self._given_up[first] = self._waiting.pop(first)
            self.waiting_bytes -= size
            self.ending_bytes += size
            first.give_up()

    def proceed(self, call: Receiver) -> None:
        """Stop counting a call's bytes: it could send some, or has ended."""
        self.waiting_bytes -= self._waiting.pop(call, 0)
        self.ending_bytes -= self._given_up.pop(call, 0)

    def count(self, stream: ServerStream) -> bool:
        """Count the bytes that a stream now keeps; return whether that growth is allowed."""
        more = stream.loose_bytes - stream.counted_bytes
        stream.counted_bytes += more
        self.partial_bytes += more
        limits = self.limits
        most = max(limits.partial_bytes_max, limits.message_bytes_max)
        return more <= 0 or self.partial_bytes <= most

    def forget(self, stream: ServerStream) -> None:
        self.partial_bytes -= stream.counted_bytes
        stream.counted_bytes = 0


class _Table(Enum):
    UNKNOWN = 0
    EMPTY = 1
    """It has its usual size, and nothing of ours in it."""
    FILLED = 2
    REDUCED = 3
    """It is not used; the next block must be preceded by that announcement."""
    UNUSED = 4


class ServerOutgoing:
    """The frames that will leave on one connection."""

    def __init__(
        self,
        wire: asyncio.Transport,
        later: Callable[[Callable[[], None]], object],
        unsent_bytes_max: int,
    ) -> None:
        """`later` calls a function in the loop's next turn."""
        self._wire = wire
        self._later = later
        self._unsent_bytes_max = unsent_bytes_max
        self.send_window = frames.WINDOW_DEFAULT
        """The bytes that the peer accepts on all streams together."""
        self.peer_window = frames.WINDOW_DEFAULT
        """The bytes that it accepts on a new stream."""
        self.peer_frame_bytes = frames.FRAME_BYTES_DEFAULT
        self.is_blocked = False
        """True while the socket accepts nothing more."""
        self.is_over = False
        """True once nothing more is sent."""
        self.useful = 0
        """Frames with an answer in them, since a caller last set it to 0."""
        self._parts: list[Any] = []
        self._bytes = 0
        self._is_flush_due = False
        self._table = _Table.UNKNOWN

    def send(self, data: bytes) -> None:
        if self.is_over:
            return
        self._parts.append(data)
        self._bytes += len(data)
        if not self._is_flush_due:
            self._is_flush_due = True
            self._later(self.flush)

    def flush(self) -> None:
        """Send all queued data in a single write; stop reading from a peer that does not read."""
        self._is_flush_due = False
        if not self._parts:
            return
        data = b"".join(self._parts)
        self._parts.clear()
        self._bytes = 0
        wire = self._wire
        wire.write(data)
        if self.is_blocked and wire.get_write_buffer_size() > self._unsent_bytes_max:
            wire.pause_reading()

    def end(self) -> None:
        """Send nothing more, regardless of queued data."""
        self.is_over = True
        self._parts.clear()

    def unblock(self) -> None:
        self.is_blocked = False
        if not self.is_over and not self._wire.is_reading():
            self._wire.resume_reading()

    def reply(self, stream_id: int, reply: Reply) -> None:
        """Send a prepared answer; the caller has checked that the windows have room for it."""
        self.send_window -= reply.flow_bytes
        self.useful += 1
        pieces = reply.indexed if self._table is _Table.FILLED else self._unindexed(reply)
        self._parts.append(STREAM_ID.pack(stream_id).join(pieces))
        if not self._is_flush_due:
            self._is_flush_due = True
            self._later(self.flush)

    def _unindexed(self, reply: Reply) -> Pieces:
        if self._table is _Table.EMPTY:
            self._table = _Table.FILLED
            return reply.inserting
        if self._table is _Table.REDUCED:
            self._table = _Table.UNUSED
            head, block, data, end = reply.literal
            size = int.from_bytes(head[:3]) + len(NO_TABLE)
            return size.to_bytes(3) + head[3:], NO_TABLE + block, data, end
        return reply.literal

    def push(self, stream: ServerStream, view: memoryview) -> int:
        size = min(len(view), stream.send_window, self.send_window, _PUSH_BYTES)
        if size <= 0 or self.is_blocked or self.is_over:
            return 0
        step = self.peer_frame_bytes
        for at in range(0, size, step):
            part = view[at : min(at + step, size)]
            self._parts.append(frames.head(len(part), frames.DATA, 0, stream.id))
            self._parts.append(part)
            self.useful += 1
        stream.send_window -= size
        self.send_window -= size
        self._bytes += size
        if self._bytes >= _FLUSH_BYTES:
            self.flush()
        elif not self._is_flush_due:
            self._is_flush_due = True
            self._later(self.flush)
        return size

    def send_block(self, stream_id: int, block: bytes, flags: int) -> None:
        if self._table is _Table.REDUCED:
            self._table = _Table.UNUSED
            block = NO_TABLE + block
        for each in frames.block_frames(stream_id, flags, block, self.peer_frame_bytes):
            self.send(each)
        self.useful += 1

    def know_table(self) -> None:
        """Note that the peer has sent settings, which may have changed its table."""
        if self._table is _Table.UNKNOWN:
            self._table = _Table.EMPTY

    def change_table(self, size: int) -> None:
        """Do not use a table smaller than usual, and announce that before the next block."""
        if size < _TABLE_BYTES_DEFAULT and self._table is not _Table.UNUSED:
            self._table = _Table.REDUCED
