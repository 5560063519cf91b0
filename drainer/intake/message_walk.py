"""Walk serialized protobuf messages from wherever they lie, with bounded memory.

    field   varint  number << 3 | wire type      value
            0  VARINT  a varint                  1  I64  8 bytes little-endian
            2  LEN     a varint, then so many bytes      5  I32  4 bytes little-endian

Groups (wire types 3 and 4) and field number 0 are refused, and so is whatever does not end where
its message ends: `Malformed`, with the offset. Reading goes forward in chunks of `CHUNK_BYTES`;
what no one asked for is jumped over.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from penstock.errors import Malformed

CHUNK_BYTES = 256 << 10
_HEAD_BYTES_MAX = 20
"""Two varints: a tag, and a value or a length."""

VARINT, I64, LEN, I32 = 0, 1, 2, 5
_FIXED = {I64: 8, I32: 4}

Source = Callable[[int, int], bytes]
"""(offset, count) to that many bytes, fewer only at the end of what there is."""

Field = tuple[int, int, int, int]
"""(tag, where the tag is, the varint's value or where the content is, where the field ends)."""


def malformed(at: int, what: str) -> Malformed:
    """Return the error for bytes that are no message."""
    return Malformed(
        f"undecodable binlog, {what} at its byte {at}",
        hint="the writer, the Pumps and the Drainer must speak the same binlog.proto",
    )


def tag(number: int, wire_type: int) -> int:
    """Return a field's tag."""
    return number << 3 | wire_type


def fields(source: Source, start: int, end: int) -> Iterator[Field]:
    """Yield the fields of the message in [start, end); raise `Malformed` for anything else."""
    for found, at, value, stop, _ in walk(source, start, end, -1):
        yield found, at, value, stop


def raw_fields(source: Source, start: int, end: int, wanted: int) -> Iterator[bytes]:
    """Yield the fields with the tag `wanted`, each with its tag and length in front."""
    for found, _, _, _, raw in walk(source, start, end, wanted):
        if found == wanted:
            yield raw


def walk(
    source: Source, start: int, end: int, wanted: int
) -> Iterator[tuple[int, int, int, int, bytes]]:
    """Yield each field, those with the tag `wanted` with all their bytes (others with none)."""
    buffer, base, held = b"", start, 0
    at = start
    while at < end:
        if at - base + _HEAD_BYTES_MAX > held and base + held < end:
            buffer, base = _read(source, at, min(CHUNK_BYTES, end - at)), at
            held = len(buffer)
        found, value, index, size = _head(buffer, at - base, at)
        content = base + index
        stop = content + size
        if stop > end:
            raise malformed(at, "a field that ends behind its message")
        raw = b""
        if found == wanted:
            raw = buffer[at - base : stop - base]
            if len(raw) < stop - at:
                raw = _read(source, at, stop - at)
        yield found, at, value if found & 7 == VARINT else content, stop, raw
        at = stop


def _read(source: Source, at: int, count: int) -> bytes:
    data = source(at, count)
    if len(data) < count:
        raise malformed(at, "bytes are missing")
    return data


def _head(buffer: bytes, index: int, at: int) -> tuple[int, int, int, int]:
    """Return a field's tag, its varint, the index behind them, and how many bytes then follow."""
    try:
        found, index = _varint(buffer, index, at)
        kind = found & 7
        if found >> 3 == 0:
            raise malformed(at, "a field without a number")
        if kind == LEN:
            size, index = _varint(buffer, index, at)
            return found, 0, index, size
        if kind == VARINT:
            value, index = _varint(buffer, index, at)
            return found, value, index, 0
    except IndexError:
        raise malformed(at, "the message ends within a field") from None
    if kind not in _FIXED:
        raise malformed(at, f"a field of wire type {kind}")
    return found, 0, index, _FIXED[kind]


def _varint(buffer: bytes, index: int, at: int) -> tuple[int, int]:
    value = buffer[index]
    index += 1
    if value < 0x80:
        return value, index
    value &= 0x7F
    shift = 7
    while True:
        byte = buffer[index]
        index += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & 0xFFFF_FFFF_FFFF_FFFF, index
        shift += 7
        if shift >= 70:
            raise malformed(at, "a number of more than ten bytes")


def signed(value: int) -> int:
    """Return what a varint means in an int64 field."""
    return value - (1 << 64) if value >> 63 else value
