"""Unsigned varints (LEB128) to bytes: of protobuf's messages, and of rows."""

from __future__ import annotations

_MAX = (1 << 64) - 1

# Varints are most of what a row is made of, so two bytes of them come from tables at a time:
# the last ones of a varint, and ones after which more will come.
LAST_BYTES = tuple(
    bytes((n,)) if n < 0x80 else bytes((n & 0x7F | 0x80, n >> 7)) for n in range(1 << 14)
)


MORE_BYTES = tuple(bytes((n & 0x7F | 0x80, n >> 7 | 0x80)) for n in range(1 << 14))


def encode_uvarint(value: int) -> bytes:
    """Return an unsigned LEB128 varint of `value`, at most ten bytes."""
    assert 0 <= value <= _MAX, value
    if value < 1 << 14:
        return LAST_BYTES[value]
    out = MORE_BYTES[value & 0x3FFF]
    value >>= 14
    while value >= 1 << 14:
        out += MORE_BYTES[value & 0x3FFF]
        value >>= 14
    return out + LAST_BYTES[value]
