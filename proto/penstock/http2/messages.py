"""Messages: reads gRPC's messages from the bytes of a stream, and encodes its text fields.

    one byte: 1 if the message is compressed │ four bytes: its size │ the message │ the next …

A message may begin and end anywhere in the DATA frames that carry it.
"""

import base64
import binascii
import zlib
from typing import Any, Final
from urllib.parse import quote, unquote_to_bytes

import grpc
from google.protobuf.message import DecodeError

from penstock.codes import Code
from penstock.errors import PenstockError, code_fields, coded
from penstock.http2.frames import MESSAGE_HEAD

_PIECE_BYTES_MIN: Final = 4096
_TEXT_BYTES_MAX: Final = 2048
_UNIT_S: Final = {
    "H": 3600.0, "M": 60.0, "S": 1.0, "m": 1e-3, "u": 1e-6, "n": 1e-9,
}  # fmt: skip
_TIMEOUT_DIGITS_MAX: Final = 8
_GZIP: Final = 16 + zlib.MAX_WBITS

ENCODINGS: Final = b"identity,gzip"
"""The compressions of messages, as `grpc-accept-encoding` lists them."""


class BadMessage(Exception):
    """A message that ends its call; the stream and the connection are whole."""

    def __init__(self, status: grpc.StatusCode, text: str) -> None:
        super().__init__(text)
        self.status = status


class MessageReader:
    """Assembles the messages of one stream; the bytes may come in any pieces."""

    def __init__(self, bytes_max: int, encoding: bytes = b"identity") -> None:
        self._bytes_max = bytes_max
        self._encoding = encoding
        self._head = b""
        self._pieces: list[bytes | bytearray] = []
        self._missing = -1
        self._is_compressed = False
        self.partial_bytes = 0
        """The kept bytes of a message that is not whole yet."""

    @property
    def is_between(self) -> bool:
        """True if a stream may end here: no message has started."""
        return self._missing < 0 and not self._head

    def feed(self, data: bytes) -> list[bytes]:
        """Return the messages that end in `data`; raise `BadMessage` for an invalid message."""
        messages: list[bytes] = []
        at, end = 0, len(data)
        while at < end or self._missing == 0:
            if self._missing < 0:
                at = self._read_head(data, at)
                continue
            if not self._pieces and end - at >= self._missing:
                messages.append(self._whole(data[at : at + self._missing]))
                at, self._missing = at + self._missing, -1
                continue
            at += self._keep(data, at)
            if self._missing == 0:
                messages.append(self.grown())
        return messages

    def grow(self, data: bytes, *, is_last: bool) -> bool:
        """Keep the next part of a message that has begun, if it is no more and no less than that.

        The last part must complete the message, which `grown` then returns; no other part may.
        False: it was not kept, because `feed` must look at it.
        """
        left = self._missing - len(data)
        if self._missing < 0 or (left != 0 if is_last else left <= 0):
            return False
        if not is_last and len(data) < _PIECE_BYTES_MIN:
            return False
        self._pieces.append(data)
        self._missing = left
        self.partial_bytes += len(data)
        return True

    def grown(self) -> bytes:
        message = self._whole(b"".join(self._pieces))
        self._pieces.clear()
        self.partial_bytes, self._missing = 0, -1
        return message

    def _read_head(self, data: bytes, at: int) -> int:
        take = min(MESSAGE_HEAD.size - len(self._head), len(data) - at)
        self._head += data[at : at + take]
        if len(self._head) == MESSAGE_HEAD.size:
            flag, size = MESSAGE_HEAD.unpack(self._head)
            self._head = b""
            if flag > 1 or (flag and self._encoding == b"identity"):
                text = f"Compressed flag is {flag} in a stream that names no compression"
                raise BadMessage(grpc.StatusCode.INTERNAL, text)
            self._check_size(size)
            self._missing, self._is_compressed = size, bool(flag)
        return at + take

    def _keep(self, data: bytes, at: int) -> int:
        piece = data[at : at + self._missing] if at or self._missing < len(data) else data
        # Many small pieces would cost many times their content.
        if self._pieces and len(self._pieces[-1]) < _PIECE_BYTES_MIN:
            last = self._pieces[-1]
            if not isinstance(last, bytearray):
                last = self._pieces[-1] = bytearray(last)
            last += piece
        else:
            self._pieces.append(piece)
        self._missing -= len(piece)
        self.partial_bytes += len(piece)
        return len(piece)

    def _whole(self, data: bytes) -> bytes:
        if not self._is_compressed:
            return data
        unpacking = zlib.decompressobj(_GZIP)
        try:
            message = unpacking.decompress(data, self._bytes_max + 1)
        except zlib.error as error:
            text = f"a message that is not {self._encoding.decode()}: {error}"
            raise BadMessage(grpc.StatusCode.INTERNAL, text) from error
        self._check_size(len(message))
        return message

    def _check_size(self, size: int) -> None:
        if size > self._bytes_max:
            text = f"SERVER: Received message larger than max ({size} vs. {self._bytes_max})"
            raise BadMessage(grpc.StatusCode.RESOURCE_EXHAUSTED, text)


def timeout_s(text: bytes) -> float | None:
    """Return the seconds in a `grpc-timeout` value; None if it is not a duration."""
    digits, unit = text[:-1].decode("latin-1"), text[-1:].decode("latin-1")
    if unit not in _UNIT_S or not digits.isascii() or not digits.isdigit():
        return None
    return int(digits) * _UNIT_S[unit] if len(digits) <= _TIMEOUT_DIGITS_MAX else None


def packed_text(text: str) -> bytes:
    """Encode a status text for `grpc-message`, truncated to the limits of a peer."""
    data = text.encode("utf-8", "replace")[:_TEXT_BYTES_MAX].decode("utf-8", "ignore")
    return quote(data, safe=" !\"#$&'()*+,-./:;<=>?@[\\]^_`{|}~").encode("ascii")


def unpacked_text(data: bytes) -> str:
    return unquote_to_bytes(data).decode("utf-8", "replace")


def metadata_in(fields: tuple[tuple[bytes, bytes], ...]) -> tuple[tuple[str, str | bytes], ...]:
    """Return header fields as applications see them: `-bin` as bytes, the others as text."""
    return tuple((name.decode("ascii"), _value_in(name, value)) for name, value in fields)


def _value_in(name: bytes, value: bytes) -> str | bytes:
    if not name.endswith(b"-bin"):
        return value.decode("utf-8", "replace")
    try:
        return base64.b64decode(value + b"=" * (-len(value) % 4))
    except (binascii.Error, ValueError) as error:
        text = f"the value of {name.decode('ascii')} is not base64"
        raise BadMessage(grpc.StatusCode.INTERNAL, text) from error


def metadata_out(metadata: object) -> list[tuple[bytes, bytes]]:
    """Return an application's metadata, pairs of a name and a value, as header fields."""
    fields: list[tuple[bytes, bytes]] = []
    for name, value in metadata or ():  # type: ignore[attr-defined]
        key = name.lower().encode("ascii")
        data = value.encode("utf-8") if isinstance(value, str) else bytes(value)
        if key.endswith(b"-bin"):
            data = base64.b64encode(data).rstrip(b"=")
        fields.append((key, data))
    return fields


async def parsed(context: Any, message: Any, data: bytes, *, code: Code | None = None) -> Any:
    """Parse `data` as a message of a class, or end the call with INVALID_ARGUMENT, and `code`.

    With a deserializer in the handler gRPC would answer INTERNAL or UNKNOWN, as for a defect.
    """
    try:
        return message.FromString(data)
    except DecodeError as error:
        text = f"undecodable {message.DESCRIPTOR.name} of {len(data)} bytes: {error}"
        fields: tuple[tuple[str, str], ...] = ()
        if code is not None:
            refusal = PenstockError(text, code)
            text, fields = coded(refusal), code_fields(refusal)
        await context.abort(grpc.StatusCode.INVALID_ARGUMENT, text, fields)
        raise AssertionError("abort has raised") from error
