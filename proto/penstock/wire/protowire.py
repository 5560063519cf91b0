"""The protobuf wire format by hand: varints, and messages walked field by field in bounded memory.

    field   varint  number << 3 | wire type      value
            0  VARINT  a varint                  1  I64  8 bytes little-endian
            2  LEN     a varint, then so many bytes      5  I32  4 bytes little-endian

`scan` is for a message in memory of which a few numbers and contents are wanted. `fields` and
`raw_fields` walk a message wherever it lies, forward in chunks of `CHUNK_BYTES`, and skip contents
that were not requested. Groups (wire types 3 and 4) and field number 0 are refused, and so is a
field that does not end where its message ends: `Malformed`, with the offset.

Rows also consist of varints (`penstock.datum.values`).
"""

from collections.abc import Callable, Iterator, Mapping

from penstock.codes import Code
from penstock.errors import Malformed

CHUNK_BYTES = 256 << 10
_HEAD_BYTES_MAX = 20
"""Two varints: a tag, and a value or a length."""

_UINT64 = (1 << 64) - 1
_SHIFTS = tuple(range(7, 70, 7))

VARINT, I64, LEN, I32 = 0, 1, 2, 5
_FIXED = {I64: 8, I32: 4}

Source = Callable[[int, int], bytes]
"""(offset, count) to that many bytes, fewer only at the end of the data."""

Field = tuple[int, int, int, int]
"""(tag, where the tag is, the varint's value or where the content is, where the field ends)."""


# Most of a row is varints, so two bytes of them come from tables at a time: the last bytes of
# a varint, and bytes after which more will come.
LAST_BYTES = tuple(
    bytes((n,)) if n < 0x80 else bytes((n & 0x7F | 0x80, n >> 7)) for n in range(1 << 14)
)
MORE_BYTES = tuple(bytes((n & 0x7F | 0x80, n >> 7 | 0x80)) for n in range(1 << 14))


def encode_uvarint(value: int) -> bytes:
    """Return an unsigned LEB128 varint of `value`, at most ten bytes."""
    assert 0 <= value <= _UINT64, value
    if value < 1 << 14:
        return LAST_BYTES[value]
    out = MORE_BYTES[value & 0x3FFF]
    value >>= 14
    while value >= 1 << 14:
        out += MORE_BYTES[value & 0x3FFF]
        value >>= 14
    return out + LAST_BYTES[value]


def read_uvarint(data: bytes | bytearray, at: int) -> tuple[int, int]:
    """Return the number at index `at`, of at most 70 bits, and the index after it.

    `IndexError` at the end of `data`, `OverflowError` for a number of more than ten bytes.
    """
    value = data[at]
    at += 1
    if value < 0x80:
        return value, at
    value &= 0x7F
    for shift in _SHIFTS:
        byte = data[at]
        at += 1
        if byte < 0x80:
            return value | byte << shift, at
        value |= (byte & 0x7F) << shift
    raise OverflowError("a varint of more than ten bytes")


def scan(
    data: bytes,
    numbers: dict[int, int],
    contents: Mapping[int, list[bytes] | None],
    until: int = -1,
) -> int:
    """Read a message whose tags have one byte into `numbers` and `contents`, both by tag.

    Contents without a list are skipped. Returns the index of the tag `until`, or the end of the
    data; -1 for anything unusual, including a tag that is in neither, which protobuf must judge.
    """
    at, end = 0, len(data)
    try:
        while at < end:
            tag = data[at]
            if tag == until:
                return at
            number, after = read_uvarint(data, at + 1)
            if tag in contents:
                at = after + number
                found = contents[tag]
                if found is not None:
                    found.append(data[after:at])
            elif tag in numbers:
                numbers[tag] = number
                at = after
            else:
                return -1
    except (IndexError, OverflowError):
        return -1
    return at


def malformed(at: int, what: str) -> Malformed:
    return Malformed(
        f"undecodable binlog, {what} at its byte {at}",
        "the writer, the Pumps and the Drainer must speak the same binlog.proto",
        Code.BINLOG_UNDECODABLE,
    )


def tag(number: int, wire_type: int) -> int:
    return number << 3 | wire_type


def fields(source: Source, start: int, end: int) -> Iterator[Field]:
    """Yield the fields of the message in [start, end); raise `Malformed` if it is invalid."""
    for found, at, value, stop, _ in walk(source, start, end, -1):
        yield found, at, value, stop


def raw_fields(source: Source, start: int, end: int, wanted: int) -> Iterator[bytes]:
    """Yield the fields with the tag `wanted`, each with its tag and length prefix."""
    for found, _, _, _, raw in walk(source, start, end, wanted):
        if found == wanted:
            yield raw


def walk(
    source: Source, start: int, end: int, wanted: int
) -> Iterator[tuple[int, int, int, int, bytes]]:
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
    """Return a field's tag, its varint, the index after them, and how many bytes then follow."""
    try:
        found, index = read_uvarint(buffer, index)
        kind = found & 7
        if not 0 < found >> 3 < 1 << 29:
            raise malformed(at, f"a field with the number {found >> 3}")
        if kind == LEN:
            size, index = read_uvarint(buffer, index)
            return found, 0, index, size
        if kind == VARINT:
            value, index = read_uvarint(buffer, index)
            return found, value & _UINT64, index, 0
    except IndexError:
        raise malformed(at, "the message ends within a field") from None
    except OverflowError:
        raise malformed(at, "a number of more than ten bytes") from None
    if kind not in _FIXED:
        raise malformed(at, f"a field of wire type {kind}")
    return found, 0, index, _FIXED[kind]


def signed(value: int) -> int:
    return value - (1 << 64) if value >> 63 else value
