"""Server stream: the server's state of one call that is not on the fast path, or not yet whole."""

from __future__ import annotations

from collections import deque
from typing import Protocol

import grpc

from penstock.http2.frames import MESSAGE_HEAD
from penstock.http2.header_blocks import RequestHead
from penstock.http2.messages import MessageReader
from penstock.http2.server_limits import ServerLimits
from penstock.http2.unary import Reply, UnaryHandler


class Receiver(Protocol):
    """The call on a stream, as its connection needs it. None of these waits or raises."""

    def wake(self) -> None:
        """Handle a complete message or the end of the request."""

    def let_send(self) -> None:
        """There may be room to send again."""

    def close(self) -> None:
        """The stream has ended, by this side or by the peer."""

    def end_with(self, status: grpc.StatusCode, text: str) -> None: ...


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
        kept = self._whole_bytes + self.reader.partial_bytes
        return max(0, kept - self._held_partial - self._held_whole)
