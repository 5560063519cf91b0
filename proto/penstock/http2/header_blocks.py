"""Header blocks: the header fields of a gRPC call, as HPACK (RFC 7541) packs them.

The library `hpack` decodes, some 100 µs a block. A caller sends nearly the same block with each of
its calls, so the result for a block is remembered. That is sound only where the same bytes always
mean the same, which is where the dynamic table has no room. A server announces that in its
settings, and from the peer's first block after it has seen them, blocks are stateless.

Only the time that the caller still waits, `grpc-timeout`, changes from call to call. Around it the
block is constant:

    │ prefix: … and the name grpc-timeout │ length │ value │ suffix: the rest │

A block is cut there only once the library has decoded a block with this very prefix and `walk` has
found that the prefix ends where a name does. How the bytes of a prefix are parsed does not depend
on the rest, so every later block with this prefix has its value in the same place.

A client forbids its peer the dynamic table too. A server repeats the same few blocks, so each block
is decoded once, and then recognised by its bytes.

Blocks are encoded without any state: names and values as they are. All of a request's block but its
time-out is a constant of the connection and the method.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import hpack
from hpack.exceptions import OversizedHeaderListError
from hpack.huffman_table import decode_huffman

from penstock.http2.frames import ConnectionFault, ErrorCode
from penstock.http2.messages import unpacked_text

Field = tuple[bytes, bytes]

_TIMEOUT: Final = b"grpc-timeout"
_INTEGER_END: Final = 0x7F
_ENTRIES_MAX: Final = 64
_MEMO_BYTES_MAX: Final = 32 << 10

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

PACKED_200: Final = b"\x88"
"""`:status 200`, from the static table."""
NO_TABLE: Final = b"\x20"
"""Sets the size of the dynamic table to 0, at the start of a block (RFC 7541, 6.3)."""
# HPACK (RFC 7541): fields of the static table, and literals that must not be indexed.
_POST: Final = b"\x83"
_SCHEME: Final = {"http": b"\x86", "https": b"\x87"}
_PATH, _AUTHORITY, _CONTENT_TYPE, _USER_AGENT = b"\x04", b"\x01", b"\x0f\x10", b"\x0f\x2b"
_NEW_NAME: Final = b"\x00"

_TIMEOUT_UNITS: Final = ((1e-6, "u"), (1e-3, "m"), (1.0, "S"))
_TIMEOUT_MAX: Final = 10**8 - 1


class BadHeaders(Exception):
    """The header fields of one request break HTTP's rules; the block itself was good."""


@dataclass(frozen=True, slots=True)
class RequestHead:
    """The content of a request's header fields."""

    method: bytes
    path: bytes
    content_type: bytes
    encoding: bytes
    """The compression of messages, by `grpc-encoding`."""
    timeout: bytes
    """As sent; empty: the caller waits without end."""
    size_bytes: int
    """The size that `content-length` announces; -1: nothing."""
    metadata: tuple[Field, ...]
    """The application's fields in the received order, names in lower case."""


class Cut(NamedTuple):
    """A block that was decoded before: all but the value between prefix and suffix is known."""

    head: RequestHead
    prefix: bytes
    suffix: bytes | None
    """None: the prefix is the whole block, which has no time-out in it."""

    def matches(self, data: bytes, begin: int, stop: int) -> bool:
        """Return whether the block there is this block, except for the value of the timeout."""
        at = begin + len(self.prefix)
        if not data.startswith(self.prefix, begin):
            return False
        if self.suffix is not None:
            if at >= stop or data[at] & _INTEGER_END == _INTEGER_END:
                return False
            at += 1 + (data[at] & _INTEGER_END)
            if not data.startswith(self.suffix, at):
                return False
            at += len(self.suffix)
        return at == stop


class _Decoder:
    """Decodes the blocks of one connection, in their order."""

    def __init__(self, *, list_bytes_max: int) -> None:
        self._decoder = hpack.Decoder(max_header_list_size=list_bytes_max)

    def fields(self, block: bytes) -> list[Field]:
        """Return all fields of a block; raise `ConnectionFault` for an invalid block."""
        try:
            return [(name, value) for name, value in self._decoder.decode(block, raw=True)]
        except OversizedHeaderListError as error:
            raise ConnectionFault(ErrorCode.ENHANCE_YOUR_CALM, str(error)) from error
        # The library lets an IndexError or a ValueError through for some truncated blocks.
        except (hpack.HPACKError, IndexError, ValueError) as error:
            raise ConnectionFault(ErrorCode.COMPRESSION_ERROR, f"header block: {error}") from error


class HeaderDecoder(_Decoder):
    """A server's decoder."""

    def __init__(self, *, list_bytes_max: int) -> None:
        super().__init__(list_bytes_max=list_bytes_max)
        self._known: dict[bytes, list[Cut]] = {}
        self._known_bytes = 0
        self._count = 0

    def limit_table(self, size_bytes: int) -> None:
        """Set the limit of the dynamic table that the peer has acknowledged."""
        self._decoder.max_allowed_table_size = size_bytes

    @property
    def is_stateless(self) -> bool:
        """True once a block has the same meaning at any position."""
        decoder = self._decoder
        return decoder.max_allowed_table_size == 0 == decoder.header_table.maxsize

    def request(self, block: bytes) -> tuple[RequestHead, bytes, Cut | None]:
        """Return a request's head, its time-out, and a cut that recognises similar blocks.

        Raises `BadHeaders`, or `ConnectionFault`.
        """
        if self.is_stateless and (found := self._find(block)) is not None:
            return found
        head = request_head(self.fields(block))
        cut = self._remember(block, head) if self.is_stateless else None
        return head, head.timeout, cut

    def _find(self, block: bytes) -> tuple[RequestHead, bytes, Cut] | None:
        for cut in self._known.get(block[:_KEY_BYTES], ()):
            if cut.suffix is None:
                if block == cut.prefix:
                    return cut.head, b"", cut
            elif block.startswith(cut.prefix):
                at = len(cut.prefix)
                value = _literal(block, at)
                if value is not None and block[value.end :] == cut.suffix:
                    return cut.head, value.text(), cut
        return None

    def _remember(self, block: bytes, head: RequestHead) -> Cut | None:
        at = timeout_at(block)
        if at is None or (at >= 0) != bool(head.timeout):
            return None
        if at < 0:
            cut = Cut(head, block, None)
        else:
            value = _literal(block, at)
            if value is None:
                return None
            cut = Cut(head, block[:at], block[value.end :])
        size = len(block) + sum(len(name) + len(value) for name, value in head.metadata)
        self._known_bytes += size + _KEY_BYTES
        self._count += 1
        if self._count > _ENTRIES_MAX or self._known_bytes > _MEMO_BYTES_MAX:
            # A peer with endless different blocks gains nothing, and costs no more than this.
            self._known.clear()
            self._known_bytes = self._count = 0
            return None
        self._known.setdefault(block[:_KEY_BYTES], []).append(cut)
        return cut


_KEY_BYTES: Final = 24


class _Literal(NamedTuple):
    data: bytes
    is_huffman: bool
    end: int

    def text(self) -> bytes:
        if not self.is_huffman:
            return self.data
        try:
            decoded: bytes = decode_huffman(self.data)
        except hpack.HPACKError as error:
            raise ConnectionFault(ErrorCode.COMPRESSION_ERROR, f"header block: {error}") from error
        return decoded


def _literal(block: bytes, at: int) -> _Literal | None:
    if at >= len(block):
        return None
    size = block[at] & _INTEGER_END
    end = at + 1 + size
    if size == _INTEGER_END or end > len(block):
        return None
    return _Literal(block[at + 1 : end], bool(block[at] & 0x80), end)


def timeout_at(block: bytes) -> int | None:
    """Return where the value of `grpc-timeout` begins in a block that was decoded, -1: nowhere.

    None: the block has a field that makes it unfit to be recognised by its bytes.
    """
    at, found = 0, -1
    while at < len(block):
        if block[at] & 0x80:  # A field of the static table, which has less than 127.
            at += 1
            continue
        name = _name_at(block, at)
        if name is None or (name.is_timeout and found >= 0):
            return None
        found = name.end if name.is_timeout else found
        value = _literal(block, name.end)
        if value is None:
            return None
        at = value.end
    return found


class _Name(NamedTuple):
    is_timeout: bool
    end: int


def _name_at(block: bytes, at: int) -> _Name | None:
    first = block[at]
    if first & 0xE0 == 0x20:  # A new size of the table.
        return None
    mask = 0x3F if first & 0x40 else 0x0F
    if not first & mask:
        literal = _literal(block, at + 1)
        return literal and _Name(literal.text() == _TIMEOUT, literal.end)
    if first & mask != mask:
        return _Name(False, at + 1)
    # An index of the static table in two bytes; no index needs three.
    return None if block[at + 1] & 0x80 else _Name(False, at + 2)


_CONNECTION_ONLY: Final = frozenset(
    {b"connection", b"keep-alive", b"proxy-connection", b"transfer-encoding", b"upgrade"}
)
_PSEUDO: Final = frozenset({b":method", b":scheme", b":path", b":authority"})
_NEEDED: Final = (b":method", b":scheme", b":path")
_OF_GRPC: Final = frozenset({b"te", b"content-type", b"content-length"})
_NAME_BYTES: Final = frozenset(b"!#$%&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyz")
_VALUE_REFUSED: Final = frozenset(b"\x00\r\n")


def request_head(fields: Iterable[Field]) -> RequestHead:
    """Parse a request's fields; raise `BadHeaders` for fields that HTTP/2 forbids."""
    pseudo: dict[bytes, bytes] = {}
    known: dict[bytes, bytes] = {}
    metadata: list[Field] = []
    for name, value in fields:
        if name.startswith(b":"):
            if name not in _PSEUDO or name in pseudo or known or metadata:
                raise BadHeaders(f"the field {name!r} is not allowed there")
            pseudo[name] = value
            continue
        check_field(name, value)
        if name in _OF_GRPC or name.startswith(b"grpc-"):
            known[name] = value
        elif name != b"host":
            metadata.append((name, value))
    if any(not pseudo.get(name) for name in _NEEDED):
        raise BadHeaders("a request without :method, :scheme or :path")
    size = known.get(b"content-length", b"-1")
    if b"content-length" in known and not size.isdigit():
        raise BadHeaders(f"content-length is {size!r}")
    return RequestHead(
        method=pseudo[b":method"],
        path=pseudo[b":path"],
        content_type=known.get(b"content-type", b""),
        encoding=known.get(b"grpc-encoding", b"identity"),
        timeout=known.get(_TIMEOUT, b""),
        size_bytes=int(size),
        metadata=tuple(metadata),
    )


def check_field(name: bytes, value: bytes) -> None:
    """Raise `BadHeaders` for a field that HTTP/2 forbids in a request or its trailers."""
    if not name or not _NAME_BYTES.issuperset(name):
        raise BadHeaders(f"the field name {name!r}")
    if not _VALUE_REFUSED.isdisjoint(value):
        raise BadHeaders(f"the value of {name!r} has a line break or a zero byte")
    if name in _CONNECTION_ONLY or (name == b"te" and value != b"trailers"):
        raise BadHeaders(f"the field {name!r} is of HTTP/1")


def encode(fields: Iterable[Field]) -> bytes:
    """Encode fields as a block that does not use the peer's table."""
    return b"".join(_NEW_NAME + _text(name) + _text(value) for name, value in fields)


def _text(data: bytes) -> bytes:
    size, prefix = len(data), bytearray()
    if size < _INTEGER_END:
        return bytes((size,)) + data
    prefix.append(_INTEGER_END)
    size -= _INTEGER_END
    while size >= 0x80:
        prefix.append(size & 0x7F | 0x80)
        size >>= 7
    prefix.append(size)
    return bytes(prefix) + data


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


class ResponseDecoder(_Decoder):
    """A client's decoder."""

    def __init__(self, *, list_bytes_max: int) -> None:
        super().__init__(list_bytes_max=list_bytes_max)
        self._known: dict[bytes, ResponseHead] = {}
        self._is_stateless = False

    def forbid_table(self) -> None:
        """Refuse the dynamic table from now on: the peer has acknowledged the setting."""
        self._decoder.max_allowed_table_size = 0
        # A peer should announce it in its next block. Peers that never used the table need not.
        self._decoder.header_table_size = 0
        self._is_stateless = True

    def decode(self, block: bytes) -> ResponseHead:
        head = self._known.get(block)
        if head is not None:
            return head
        head = response_head(self.fields(block))
        if self._is_stateless and len(block) <= _MEMO_BLOCK_BYTES_MAX:
            if len(self._known) >= _MEMO_COUNT_MAX:
                self._known.clear()
            self._known[block] = head
        return head


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


def encode_request(path: str, authority: str, *, scheme: str, user_agent: str) -> bytes:
    """Return the block of a gRPC request, to which `encode_timeout` may be appended."""
    parts = [
        _POST, _SCHEME[scheme], _PATH, _text(path.encode()), _AUTHORITY, _text(authority.encode()),
        _NEW_NAME, _text(b"te"), _text(b"trailers"),
        _CONTENT_TYPE, _text(b"application/grpc"), _USER_AGENT, _text(user_agent.encode()),
    ]  # fmt: skip
    return b"".join(parts)


def encode_timeout(timeout_s: float) -> bytes:
    unit_s, unit = next(
        (each for each in _TIMEOUT_UNITS if timeout_s / each[0] < _TIMEOUT_MAX), _TIMEOUT_UNITS[-1]
    )
    count = min(max(1, math.ceil(timeout_s / unit_s)), _TIMEOUT_MAX)
    return encode([(_TIMEOUT, f"{count}{unit}".encode())])
