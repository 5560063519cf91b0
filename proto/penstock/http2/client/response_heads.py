"""Response heads: decodes a server's header blocks, and encodes the blocks of a request.

A client that forbids its peer the dynamic table (SETTINGS_HEADER_TABLE_SIZE 0) gets blocks that
mean the same at any position. A server repeats the same few blocks, so each block is decoded once,
and then recognised by its bytes.

Requests are encoded without any state: all of a request's block but its time-out is a constant of
the connection and the method.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import hpack

from penstock.http2.frames import ConnectionFault, ErrorCode
from penstock.http2.messages import unpacked_text

Field = tuple[bytes, bytes]

OK: Final = 0
CANCELLED: Final = 1
UNKNOWN: Final = 2
PERMISSION_DENIED: Final = 7
RESOURCE_EXHAUSTED: Final = 8
UNIMPLEMENTED: Final = 12
INTERNAL: Final = 13
UNAVAILABLE: Final = 14
UNAUTHENTICATED: Final = 16

_STATUS_OF_HTTP: Final = {
    400: INTERNAL, 401: UNAUTHENTICATED, 403: PERMISSION_DENIED, 404: UNIMPLEMENTED,
    429: UNAVAILABLE, 502: UNAVAILABLE, 503: UNAVAILABLE, 504: UNAVAILABLE,
}  # fmt: skip
"""HTTP statuses of a proxy's answers, according to gRPC's http-grpc-status-mapping.md."""

_STATUS_MAX: Final = 16
_MEMO_COUNT_MAX: Final = 64
_MEMO_BLOCK_BYTES_MAX: Final = 512
_RESERVED: Final = frozenset({b"content-type", b"grpc-encoding", b"grpc-accept-encoding", b"date"})
_DEFAULT_TABLE_SIZE: Final = 4096

NO_TABLE: Final = b"\x20"
"""Sets the size of the dynamic table to 0, at the start of a block (RFC 7541, 6.3)."""

# HPACK (RFC 7541): fields of the static table, and literals that must not be indexed.
_POST: Final = b"\x83"
_SCHEME: Final = {"http": b"\x86", "https": b"\x87"}
_PATH, _AUTHORITY, _CONTENT_TYPE, _USER_AGENT = b"\x04", b"\x01", b"\x0f\x10", b"\x0f\x2b"
_NEW_NAME: Final = b"\x00"

_TIMEOUT_UNITS: Final = ((1e-6, "u"), (1e-3, "m"), (1.0, "S"))
_TIMEOUT_MAX: Final = 10**8 - 1


@dataclass(frozen=True, slots=True)
class ResponseHead:
    """One block of header fields: the first of a response, or its trailers, or both in one."""

    http_status: int
    """0 in trailers, which have none."""
    is_grpc: bool
    """Whether the content is announced as gRPC's."""
    status: int | None
    """gRPC's status; None where the block has none, such as in the first of two."""
    message: str
    metadata: tuple[Field, ...]

    @property
    def is_interim(self) -> bool:
        return 100 <= self.http_status < 200

    def problem(self) -> tuple[int, str] | None:
        """Return status and text for a response that is not gRPC, else None."""
        if self.http_status == 200 and (self.is_grpc or self.status is not None):
            return None
        status = _STATUS_OF_HTTP.get(self.http_status, UNKNOWN)
        what = f"HTTP status {self.http_status}" if self.http_status != 200 else "no content-type"
        return status, f"the answer is not gRPC's: {what}"


class ResponseDecoder:
    """Decodes the blocks of one connection, in their order."""

    def __init__(self, *, list_bytes_max: int) -> None:
        self._decoder = hpack.Decoder(max_header_list_size=list_bytes_max)
        self._known: dict[bytes, ResponseHead] = {}
        self._is_stateless = False

    def forbid_table(self) -> None:
        """Refuse the dynamic table from now on: the peer has acknowledged the setting."""
        self._decoder.max_allowed_table_size = 0
        # A peer should announce it in its next block. Peers that never used the table need not.
        self._decoder.header_table_size = 0
        self._is_stateless = True

    def decode(self, block: bytes) -> ResponseHead:
        """Decode a header block; raise `ConnectionFault` if it cannot be decoded."""
        head = self._known.get(block)
        if head is not None:
            return head
        try:
            fields = [(bytes(name), bytes(value)) for name, value in self._fields(block)]
        # The library lets an IndexError or a ValueError through for some truncated blocks.
        except (hpack.HPACKError, IndexError, ValueError) as error:
            raise ConnectionFault(
                ErrorCode.COMPRESSION_ERROR, f"header block: {type(error).__name__}: {error}"
            ) from error
        head = response_head(fields)
        if self._is_stateless and len(block) <= _MEMO_BLOCK_BYTES_MAX:
            if len(self._known) >= _MEMO_COUNT_MAX:
                self._known.clear()
            self._known[block] = head
        return head

    def _fields(self, block: bytes) -> Iterable[Field]:
        decoded: Iterable[Field] = self._decoder.decode(block, raw=True)
        return decoded


def response_head(fields: Sequence[Field]) -> ResponseHead:
    """Parse header fields; raise `ConnectionFault` if they are not valid HTTP."""
    known = dict(fields)
    http_status = known.pop(b":status", b"0")
    status = known.pop(b"grpc-status", None)
    if not http_status.isdigit() or any(name.startswith(b":") for name in known):
        raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, f"header fields {sorted(known)}")
    is_number = status is not None and status.isdigit() and int(status) <= _STATUS_MAX
    return ResponseHead(
        http_status=int(http_status),
        is_grpc=known.get(b"content-type", b"").startswith(b"application/grpc"),
        status=None if status is None else int(status) if is_number else UNKNOWN,
        message=unpacked_text(known.get(b"grpc-message", b"")),
        metadata=tuple(
            field
            for field in fields
            if field[0] not in _RESERVED
            and not field[0].startswith((b":", b"grpc-status", b"grpc-message"))
        ),
    )


def encode_request(
    path: str, authority: str, *, scheme: str, user_agent: str, metadata: Sequence[Field] = ()
) -> bytes:
    """Return the block of a gRPC request, to which `encode_timeout` may be appended."""
    parts = [
        _POST, _SCHEME[scheme], _PATH, _text(path.encode()), _AUTHORITY, _text(authority.encode()),
        _NEW_NAME, _text(b"te"), _text(b"trailers"),
        _CONTENT_TYPE, _text(b"application/grpc"), _USER_AGENT, _text(user_agent.encode()),
    ]  # fmt: skip
    for name, value in metadata:
        parts += (_NEW_NAME, _text(name), _text(value))
    return b"".join(parts)


def encode_timeout(timeout_s: float) -> bytes:
    unit_s, unit = next(
        (each for each in _TIMEOUT_UNITS if timeout_s / each[0] < _TIMEOUT_MAX), _TIMEOUT_UNITS[-1]
    )
    count = min(max(1, math.ceil(timeout_s / unit_s)), _TIMEOUT_MAX)
    return _NEW_NAME + _text(b"grpc-timeout") + _text(f"{count}{unit}".encode())


def _text(data: bytes) -> bytes:
    size, prefix = len(data), bytearray()
    if size < 0x7F:
        return bytes((size,)) + data
    prefix.append(0x7F)
    size -= 0x7F
    while size >= 0x80:
        prefix.append(size & 0x7F | 0x80)
        size >>= 7
    prefix.append(size)
    return bytes(prefix) + data
