"""Frames: the bytes of HTTP/2 (RFC 9113), and the two ways in which a peer can break its rules.

    offset  size  field
    0       3     length     bytes of payload, big-endian like all that follows
    3       1     kind       one of the constants below
    4       1     flags
    5       4     stream id  the highest bit is reserved: sent as 0, ignored
    9       n     payload

A gRPC message in DATA frames has its own prefix: one byte that says whether it is compressed, and
four bytes of length.
"""

import struct
from collections.abc import Iterator, Mapping
from enum import IntEnum
from typing import Final

DATA: Final = 0
HEADERS: Final = 1
PRIORITY: Final = 2
RST_STREAM: Final = 3
SETTINGS: Final = 4
PUSH_PROMISE: Final = 5
PING: Final = 6
GOAWAY: Final = 7
WINDOW_UPDATE: Final = 8
CONTINUATION: Final = 9

END_STREAM: Final = 0x1
ACK: Final = 0x1
END_HEADERS: Final = 0x4
PADDED: Final = 0x8
HAS_PRIORITY: Final = 0x20

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"

HEAD: Final = struct.Struct(">HBBBL")
"""A frame's head; the length is in two parts: `high << 8 | low`."""
HEAD_SIZE: Final = HEAD.size
assert HEAD_SIZE == 9  # The table above is the contract.

MESSAGE_HEAD: Final = struct.Struct(">BL")
"""A gRPC message's prefix: compressed or not, and the length."""

STREAM_ID_BITS: Final = 0x7FFF_FFFF
WINDOW_MAX: Final = 0x7FFF_FFFF
WINDOW_DEFAULT: Final = 65_535
FRAME_BYTES_DEFAULT: Final = 16_384
FRAME_BYTES_LIMIT: Final = (1 << 24) - 1

HEADER_TABLE_SIZE: Final = 1
ENABLE_PUSH: Final = 2
MAX_CONCURRENT_STREAMS: Final = 3
INITIAL_WINDOW_SIZE: Final = 4
MAX_FRAME_SIZE: Final = 5
MAX_HEADER_LIST_SIZE: Final = 6

_SETTING: Final = struct.Struct(">HL")
_U32: Final = struct.Struct(">L")
_GOAWAY: Final = struct.Struct(">LL")


class ErrorCode(IntEnum):
    """The reason why a stream or a connection is ended (RFC 9113, section 7)."""

    NO_ERROR = 0
    PROTOCOL_ERROR = 1
    INTERNAL_ERROR = 2
    FLOW_CONTROL_ERROR = 3
    SETTINGS_TIMEOUT = 4
    STREAM_CLOSED = 5
    FRAME_SIZE_ERROR = 6
    REFUSED_STREAM = 7
    CANCEL = 8
    COMPRESSION_ERROR = 9
    CONNECT_ERROR = 10
    ENHANCE_YOUR_CALM = 11
    INADEQUATE_SECURITY = 12
    HTTP_1_1_REQUIRED = 13


class ConnectionFault(Exception):
    """The peer broke a rule that ends the whole connection."""

    def __init__(self, code: ErrorCode, problem: str) -> None:
        super().__init__(problem)
        self.code = code


class StreamFault(Exception):
    """The peer broke a rule that ends one stream."""

    def __init__(self, stream_id: int, code: ErrorCode, problem: str) -> None:
        super().__init__(problem)
        self.stream_id = stream_id
        self.code = code


def unpadded(flags: int, payload: bytes) -> bytes:
    if not flags & PADDED:
        return payload
    if not payload or payload[0] >= len(payload):
        raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "more padding than payload")
    return payload[1 : len(payload) - payload[0]]


def fragment(flags: int, payload: bytes) -> tuple[bytes, int]:
    """Return a HEADERS frame's part of a block, and the stream that it depends on, -1: none."""
    payload = unpadded(flags, payload)
    if not flags & HAS_PRIORITY:
        return payload, -1
    if len(payload) < 5:
        raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, "HEADERS too short for priority")
    return payload[5:], int.from_bytes(payload[:4]) & STREAM_ID_BITS


def word(payload: bytes, kind: str) -> int:
    """Return the number that is the whole payload of a frame."""
    if len(payload) != _U32.size:
        raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, f"{kind} of {len(payload)} bytes")
    return int.from_bytes(payload)


def check_control(kind: int, flags: int, stream_id: int, payload: bytes) -> None:
    """Raise `ConnectionFault` for a SETTINGS, PING or GOAWAY on a stream or of a wrong size."""
    name = {SETTINGS: "SETTINGS", PING: "PING", GOAWAY: "GOAWAY"}[kind]
    size = len(payload)
    if stream_id:
        raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, f"{name} on stream {stream_id}")
    if kind == SETTINGS:
        is_bad = bool(flags & ACK and payload)
    else:
        is_bad = size != 8 if kind == PING else size < 8
    if is_bad:
        raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, f"{name} of {size} bytes")


def frame(kind: int, flags: int, stream_id: int, payload: bytes = b"") -> bytes:
    return head(len(payload), kind, flags, stream_id) + payload


def head(size: int, kind: int, flags: int, stream_id: int) -> bytes:
    return HEAD.pack(size >> 8, size & 0xFF, kind, flags, stream_id)


def block_frames(stream_id: int, flags: int, block: bytes, bytes_max: int) -> Iterator[bytes]:
    """Yield a header block as a HEADERS frame, and CONTINUATION frames if it is too large."""
    kind = HEADERS
    for at in range(0, len(block), bytes_max):
        ending = END_HEADERS if at + bytes_max >= len(block) else 0
        yield frame(kind, flags | ending, stream_id, block[at : at + bytes_max])
        kind, flags = CONTINUATION, 0


def settings(values: Mapping[int, int]) -> bytes:
    payload = b"".join(_SETTING.pack(name, value) for name, value in values.items())
    return frame(SETTINGS, 0, 0, payload)


def settings_in(payload: bytes) -> Iterator[tuple[int, int]]:
    """Yield the checked settings of a SETTINGS frame; `ConnectionFault` for bad settings."""
    if len(payload) % _SETTING.size:
        raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, f"SETTINGS of {len(payload)} bytes")
    for name, value in _SETTING.iter_unpack(payload):
        if name == ENABLE_PUSH and value > 1:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, f"ENABLE_PUSH is {value}")
        if name == INITIAL_WINDOW_SIZE and value > WINDOW_MAX:
            raise ConnectionFault(ErrorCode.FLOW_CONTROL_ERROR, f"INITIAL_WINDOW_SIZE is {value}")
        if name == MAX_FRAME_SIZE and not FRAME_BYTES_DEFAULT <= value <= FRAME_BYTES_LIMIT:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, f"MAX_FRAME_SIZE is {value}")
        yield name, value


def rst_stream(stream_id: int, code: ErrorCode) -> bytes:
    return frame(RST_STREAM, 0, stream_id, _U32.pack(code))


def window_update(stream_id: int, increment: int) -> bytes:
    """Return a frame that lets the peer send more data; stream 0 is the connection."""
    return frame(WINDOW_UPDATE, 0, stream_id, _U32.pack(increment))


def goaway(last_stream_id: int, code: ErrorCode, problem: str = "") -> bytes:
    text = problem.encode("utf-8", "replace")
    return frame(GOAWAY, 0, 0, _GOAWAY.pack(last_stream_id, code) + text)


def ping(data: bytes, *, is_answer: bool = False) -> bytes:
    return frame(PING, ACK if is_answer else 0, 0, data)
