"""Texts, bytes and choices in row images, and the types that MariaDB stores as bytes.

    CHAR, BINARY, uuid, inet4, inet6   length (1, or 2 past 255), bytes without padding
    VARCHAR, VARBINARY                 length (1, or 2 past 255), bytes
    TEXT, BLOB, GEOMETRY, VECTOR       length (1 to 4, by the metadata), bytes
    … COMPRESSED (MariaDB)             the same; the bytes are 00 and the value, or a block (below)
    ENUM, SET                          1, 2; 1 to 8 bytes, little-endian; labels are the TABLE_MAP's
    GEOMETRY's bytes                   SRID (4), then WKB
    VECTOR's bytes                     4 bytes for each number, IEEE 754

A block of a compressed value: 0x80 | 0x08 when it is deflate without zlib's frame | n, then n bytes
of the length, big-endian, then the stream. An empty value has no bytes at all.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable
from ipaddress import IPv4Address
from uuid import UUID

from penstock.codes import Code
from penstock.ddl.charsets import Charset
from penstock.errors import Malformed
from pumpclient.mysql.rows.values.numbers import shortest_float
from pumpclient.mysql.rows.values.reading import Reading, prefixed, unsigned

_BLOCK, _WITHOUT_FRAME, _LENGTH_BITS = 0x80, 0x08, 0x07
_RAW_DEFLATE = -zlib.MAX_WBITS
_SHORT_MAX = 0xFF
_FLOAT_SIZE = 4
_MAPPED, _COMPATIBLE = b"\0" * 10 + b"\xff\xff", b"\0" * 12


def length_size(bytes_max: int) -> int:
    return 1 if bytes_max <= _SHORT_MAX else 2


def text(prefix: int, charset: Charset, *, pad_to: int = 0, is_compressed: bool = False) -> Reading:
    """Return the reading of a text, or of bytes when the charset is binary.

    `pad_to` is the length of a BINARY, whose zeros at the end are not in binlogs.
    """
    raw = "plain({0})" if is_compressed else "{0}"
    names: dict[str, object] = {"plain": decompressed} if is_compressed else {}

    if charset.is_binary:
        expression = f"{raw}.ljust({pad_to}, b'\\0')" if pad_to else raw
    elif charset.table is not None:
        name = f"decode_{charset.name}"
        expression, names[name] = f"{name}({raw})", charset.decode
    else:
        expression = f"{raw}.decode({charset.codec!r})"
    return prefixed(prefix, expression, **names)


def decompressed(raw: bytes) -> bytes:
    """Return the value of a COMPRESSED column; raise `Malformed` if it is damaged."""
    if not raw:
        return raw
    if not raw[0] & _BLOCK:
        return raw[1:]
    start = 1 + (raw[0] & _LENGTH_BITS)
    length = int.from_bytes(raw[1:start], "big")
    window = _RAW_DEFLATE if raw[0] & _WITHOUT_FRAME else zlib.MAX_WBITS
    unpacking = zlib.decompressobj(window)
    try:
        plain = unpacking.decompress(raw[start:], length + 1)
    except zlib.error as error:
        raise Malformed(
            f"a damaged COMPRESSED value: {error}",
            hint="bytes of the event are lost",
            code=Code.ROWS_EVENT,
        ) from error
    if len(plain) != length:
        raise Malformed(
            f"a COMPRESSED value is not of the {length} bytes it promises",
            hint="bytes of the event are lost",
            code=Code.ROWS_EVENT,
        )
    return plain


def geometry(prefix: int) -> Reading:
    """Return the reading of GEOMETRY: bytes of SRID and WKB, as MySQL and TiDB keep it."""
    return prefixed(prefix)


def vector(prefix: int) -> Reading:
    """Return the reading of VECTOR: a tuple of numbers, each with the shortest digits."""
    return prefixed(prefix, "vector({0})", vector=read_vector)


def read_vector(raw: bytes) -> tuple[float, ...]:
    return tuple(map(shortest_float, struct.unpack(f"<{len(raw) // _FLOAT_SIZE}f", raw)))


def choice(size: int) -> Reading:
    """Return the reading of ENUM and SET: a number; see `Column.labels`."""
    if not 1 <= size <= 8:
        raise Malformed(
            f"an ENUM or SET of {size} bytes", hint="the TABLE_MAP is damaged", code=Code.ROWS_EVENT
        )
    return unsigned(size)


def uuid_text(raw: bytes) -> str:
    return str(UUID(bytes=raw))


def inet4_text(raw: bytes) -> str:
    return str(IPv4Address(raw))


def inet6_text(raw: bytes) -> str:
    """Format 16 bytes as MariaDB's INET6; mapped and compatible addresses end in IPv4 form."""
    if raw[:12] == _MAPPED:
        return f"::ffff:{inet4_text(raw[12:])}"
    if raw[:12] == _COMPATIBLE and raw[12:14] != b"\0\0":
        return f"::{inet4_text(raw[12:])}"
    groups = [f"{raw[n] << 8 | raw[n + 1]:x}" for n in range(0, 16, 2)]
    marks = "".join("0" if group == "0" else "1" for group in groups)
    zeros = max(marks.split("1"), key=len)
    if not zeros:
        return ":".join(groups)
    # The first of the longest runs of zeros is omitted, even if it is a single group.
    start = marks.index(zeros)
    return ":".join(groups[:start]) + "::" + ":".join(groups[start + len(zeros) :])


_DECLARED: dict[str, tuple[int, Callable[[bytes], str]]] = {
    "uuid": (16, uuid_text),
    "inet4": (4, inet4_text),
    "inet6": (16, inet6_text),
}


def declared(name: str) -> Reading:
    if name not in _DECLARED:
        raise Malformed(
            f"{name!r} is no type that comes as bytes",
            hint=", ".join(_DECLARED),
            code=Code.ROWS_EVENT,
        )
    size, read = _DECLARED[name]
    function = f"{name}_text"
    return prefixed(1, f"{function}({{0}}.ljust({size}, b'\\0'))", **{function: read})
