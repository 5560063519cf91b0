"""Unary: the argument of a method's handler on the fast path, and answers that are made once.

A method that is called tens of thousands of times a second gets no task, no future and no context.
The connection's reader hands over the message's bytes and a `UnaryCall`. The handler queues both
and returns, and answers when a whole group of them is done. All answers that belong to one
connection leave in one write.

    def handle(message: bytes, call: UnaryCall) -> None:
        queue.append((message, call))

    WRITTEN = Reply(WriteBinlogResp().SerializeToString())
    for message, call in queue:
        call.answer(WRITTEN)

A `Reply` is the response headers, the message and the trailers as the bytes of three frames in
which only the stream id is missing:

    HEADERS :status 200, content-type  │ id │  DATA message  │ id │  HEADERS grpc-status 0  │ id │ …
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Final, Protocol

from penstock.http2 import frames

if TYPE_CHECKING:
    import grpc

# HPACK (RFC 7541). A literal with a name of the static table: 0x0f 0x10 is content-type without
# indexing, 0x5f with; 0x00 and 0x40 are followed by a name. 0xbe and 0xbf are the last and the
# last but one that were put into the dynamic table.
_STATUS_200: Final = b"\x88"
_TYPE: Final = b"\x10application/grpc"
_STATUS_OK: Final = b"\x0bgrpc-status\x010"

_LITERAL: Final = (_STATUS_200 + b"\x0f\x10" + _TYPE, b"\x00" + _STATUS_OK)
_INSERTING: Final = (_STATUS_200 + b"\x5f" + _TYPE, b"\x40" + _STATUS_OK)
_INDEXED: Final = (_STATUS_200 + b"\xbf", b"\xbe")

_PREPARED_BYTES_MAX: Final = frames.FRAME_BYTES_DEFAULT - frames.MESSAGE_HEAD.size
"""The payload of one frame of the smallest kind that all peers accept."""

Pieces = tuple[bytes, bytes, bytes, bytes]


class Reply:
    """A message as the whole answer to a unary call, made once and sent to many.

    `pack(stream_id).join(pieces)` are the bytes to send. `literal` needs nothing of the peer;
    `inserting` puts the two header fields into its dynamic table, and after that `indexed` names
    them with one byte each, which spares both sides some work. A message that is too large for one
    frame is sent like that of any other call.
    """

    __slots__ = ("flow_bytes", "indexed", "inserting", "is_prepared", "literal", "message")

    def __init__(self, message: bytes) -> None:
        self.message = message
        self.is_prepared = len(message) <= _PREPARED_BYTES_MAX
        """False for a message that needs more than one frame."""
        if not self.is_prepared:
            return
        self.flow_bytes = frames.MESSAGE_HEAD.size + len(message)
        """The bytes that it takes of the peer's flow-control windows."""
        self.literal = _pieces(message, *_LITERAL)
        self.inserting = _pieces(message, *_INSERTING)
        self.indexed = _pieces(message, *_INDEXED)


def _pieces(message: bytes, headers: bytes, trailers: bytes) -> Pieces:
    data = frames.MESSAGE_HEAD.pack(0, len(message)) + message
    ending = frames.END_HEADERS | frames.END_STREAM
    return (
        _head(len(headers), frames.HEADERS, frames.END_HEADERS),
        headers + _head(len(data), frames.DATA, 0),
        data + _head(len(trailers), frames.HEADERS, ending),
        trailers,
    )


def _head(size: int, kind: int, flags: int) -> bytes:
    return frames.head(size, kind, flags, 0)[:-4]


class Answering(Protocol):
    """The interface of a connection that the calls on it use."""

    def answer(self, stream_id: int, reply: Reply) -> None:
        """Send a reply, unless the call has already ended."""

    def fail(
        self, stream_id: int, status: grpc.StatusCode, text: str, metadata: object = ()
    ) -> None:
        """End a call with a status and no message, unless it has already ended."""

    def is_open(self, stream_id: int) -> bool: ...

    def peer(self) -> str:
        """Return the peer's address as in gRPC: `ipv4:127.0.0.1:4000`."""


class UnaryCall:
    """A call that waits for its one answer: `answer` or `fail`, whichever comes first.

    Both take no time and never raise, even when the caller is long gone. They belong to the event
    loop's thread.
    """

    __slots__ = ("_connection", "stream_id")

    def __init__(self, connection: Answering, stream_id: int) -> None:
        self._connection = connection
        self.stream_id = stream_id

    def answer(self, reply: Reply) -> None:
        self._connection.answer(self.stream_id, reply)

    def fail(self, status: grpc.StatusCode, text: str, metadata: object = ()) -> None:
        self._connection.fail(self.stream_id, status, text, metadata)

    def is_open(self) -> bool:
        """Return whether the caller still waits: not answered, cancelled or disconnected."""
        return self._connection.is_open(self.stream_id)

    def peer(self) -> str:
        return self._connection.peer()


UnaryHandler = Callable[[bytes, UnaryCall], None]
"""Called from the reader of a connection, so it must neither wait nor take long.

An exception ends the call with UNKNOWN.
"""


class MessageBlock:
    """Many messages of a stream that leave together: each with gRPC's prefix, one after another.

    A method that streams may yield it in place of a message where its context's
    `takes_message_blocks` is true. No message may be cut at the end of a block.
    """

    __slots__ = ("data",)

    def __init__(self, data: bytes | bytearray | memoryview) -> None:
        self.data = data

    @classmethod
    def of(cls, messages: Iterable[bytes]) -> MessageBlock:
        pack = frames.MESSAGE_HEAD.pack
        return cls(b"".join(part for m in messages for part in (pack(0, len(m)), m)))

    def messages(self) -> Iterator[bytes]:
        """Yield the messages; raise `struct.error` or `ValueError` if it is not a block."""
        view, at = memoryview(self.data), 0
        while at < len(view):
            is_compressed, size = frames.MESSAGE_HEAD.unpack_from(view, at)
            at += frames.MESSAGE_HEAD.size
            if is_compressed or at + size > len(view):
                raise ValueError(f"{size} bytes at {at} of a block of {len(view)}")
            yield bytes(view[at : at + size])
            at += size


STREAM_ID: Final = struct.Struct(">L")
"""`STREAM_ID.pack(stream_id).join(pieces)`."""
