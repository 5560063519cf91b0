"""Reads the fields of an event's body, which is untrusted input."""

from __future__ import annotations

from penstock.codes import Code
from penstock.errors import Malformed

_LENGTH_BYTES = {0xFC: 2, 0xFD: 3, 0xFE: 8}
_HINT = "bytes of the event are lost, or its server writes a layout that is unknown here"


class BodyReader:
    """A cursor over a body; every read checks that the bytes exist."""

    __slots__ = ("_what", "at", "data", "end")

    def __init__(self, data: bytes, what: str, *, at: int = 0) -> None:
        self.data = data
        self.at = at
        self.end = len(data)
        self._what = what

    @property
    def left(self) -> int:
        return self.end - self.at

    def take(self, count: int) -> bytes:
        """Return the next `count` bytes; raise `Malformed` when there are fewer."""
        if count > self.end - self.at:
            raise self.malformed(f"{count} bytes wanted at {self.at} of {self.end}")
        start = self.at
        self.at += count
        return self.data[start : self.at]

    def rest(self) -> bytes:
        return self.take(self.left)

    def uint(self, size: int) -> int:
        return int.from_bytes(self.take(size), "little")

    def packed(self) -> int:
        """Return MySQL's length-encoded number: one byte below 251, else a mark and 2, 3 or 8."""
        first = self.uint(1)
        if first < 0xFB:
            return first
        if first not in _LENGTH_BYTES:
            raise self.malformed(f"{first:#x} begins no length")
        return self.uint(_LENGTH_BYTES[first])

    def text(self, size: int) -> str:
        """Return `size` bytes as UTF-8 text, as names are stored; invalid bytes are an error."""
        data = self.take(size)
        try:
            return data.decode("utf-8")
        except UnicodeDecodeError as error:
            raise self.malformed(f"a name that is not UTF-8: {data!r}") from error

    def finish(self) -> None:
        """Raise `Malformed` if any bytes are unread."""
        if self.left:
            raise self.malformed(f"{self.left} bytes too many")

    def malformed(self, problem: str) -> Malformed:
        return Malformed(f"{self._what}: {problem}", hint=_HINT, code=Code.EVENT_MALFORMED)


def pack_number(number: int) -> bytes:
    """Return MySQL's length-encoded number."""
    if number < 0xFB:
        return bytes([number])
    for mark, size in _LENGTH_BYTES.items():
        if number < 1 << 8 * size:
            return bytes([mark]) + number.to_bytes(size, "little")
    raise ValueError(f"{number} needs more than 8 bytes")


def pack_uint(number: int, size: int) -> bytes:
    return number.to_bytes(size, "little")
