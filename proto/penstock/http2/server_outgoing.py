"""Server outgoing: sends one connection's output as fast as the peer and the socket accept it.

Frames are collected, and leave in one write a turn of the event loop, or as soon as there are many.
The answers of the fast path are prepared (`unary.Reply`), and shortest once two header fields have
been put into the peer's table. A peer with a smaller table than usual gets all fields in full.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Any, Final, Protocol

from penstock.http2 import frames
from penstock.http2.frames import END_HEADERS
from penstock.http2.server_stream import ServerStream
from penstock.http2.unary import STREAM_ID, Pieces, Reply

_FLUSH_BYTES: Final = 128 << 10
_PUSH_BYTES: Final = 256 << 10
_TABLE_BYTES_DEFAULT: Final = 4096
_RESIZE_TO_NONE: Final = b"\x20"


class Wire(Protocol):
    """The carrier of the bytes: a transport of asyncio, or a test."""

    def write(self, data: bytes) -> None: ...

    def get_write_buffer_size(self) -> int: ...

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...

    def is_reading(self) -> bool: ...

    def close(self) -> None:
        """Close the connection once everything is sent."""


class _Table(Enum):
    """The known state of the peer's header table."""

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
        self, wire: Wire, later: Callable[[Callable[[], None]], object], unsent_bytes_max: int
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
        """Send with the next flush, and schedule it."""
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
            return _resizing(reply.literal)
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
            block = _RESIZE_TO_NONE + block
        size, kind = self.peer_frame_bytes, frames.HEADERS
        for at in range(0, len(block), size):
            part = block[at : at + size]
            ending = END_HEADERS if at + size >= len(block) else 0
            self.send(frames.frame(kind, flags | ending, stream_id, part))
            kind, flags = frames.CONTINUATION, 0
        self.useful += 1

    def know_table(self) -> None:
        """Note that the peer has sent settings, which may have changed its table."""
        if self._table is _Table.UNKNOWN:
            self._table = _Table.EMPTY

    def change_table(self, size: int) -> None:
        """Do not use a table smaller than usual, and announce that before the next block."""
        if size < _TABLE_BYTES_DEFAULT and self._table is not _Table.UNUSED:
            self._table = _Table.REDUCED


def _resizing(pieces: Pieces) -> Pieces:
    head, block, data, end = pieces
    size = int.from_bytes(head[:3], "big") + 1
    return size.to_bytes(3, "big") + head[3:], _RESIZE_TO_NONE + block, data, end
