"""Encoder of MySQL's binary JSON, and of the changes of a partial update."""

import struct

from pumpclient.mysql.events.frame import pack_number
from pumpclient.mysql.rows.json_binary import (
    DEPTH_MAX,
    DOUBLE,
    INTEGERS,
    LARGE_ARRAY,
    LARGE_OBJECT,
    LITERAL,
    LITERALS,
    OPAQUE,
    SMALL_ARRAY,
    SMALL_OBJECT,
    STRING,
    JsonChange,
    Opaque,
    Operation,
    inlined,
    key_order,
    malformed,
)


def write_json(value: object) -> bytes:
    """Return the binary form of a dict, list, str, int, float, bool, None or `Opaque`."""
    type_, body = _write(value, 1)
    return bytes([type_]) + body


def _write(value: object, depth: int) -> tuple[int, bytes]:
    if depth > DEPTH_MAX:
        raise malformed(f"nested deeper than {DEPTH_MAX}")
    if isinstance(value, Opaque):
        return OPAQUE, bytes([value.type]) + _with_length(value.data)
    if value is None or isinstance(value, bool):
        return LITERAL, bytes([LITERALS.index(value)])
    if isinstance(value, int):
        return _integer(value)
    if isinstance(value, float):
        return DOUBLE, struct.pack("<d", value)
    if isinstance(value, str):
        return STRING, _with_length(value.encode())
    if isinstance(value, dict):
        return _container(dict(sorted(value.items(), key=lambda kv: key_order(kv[0]))), depth)
    if isinstance(value, list):
        return _container(value, depth)
    raise malformed(f"there is no {type(value).__name__}")


def _integer(value: int) -> tuple[int, bytes]:
    for type_, code in INTEGERS.items():
        try:
            return type_, struct.pack(code, value)
        except struct.error:
            continue
    raise malformed(f"{value} needs more than 64 bits")


def _with_length(raw: bytes) -> bytes:
    length, out = len(raw), bytearray()
    while length >= 0x80:
        out.append(length & 0x7F | 0x80)
        length >>= 7
    return bytes([*out, length]) + raw


def _container(value: dict[str, object] | list[object], depth: int) -> tuple[int, bytes]:
    is_object = isinstance(value, dict)
    keys = [key.encode() for key in value] if isinstance(value, dict) else []
    items = [
        _write(item, depth + 1) for item in (value.values() if isinstance(value, dict) else value)
    ]
    small = _layout(keys, items, is_large=False)
    if small is not None:
        return (SMALL_OBJECT if is_object else SMALL_ARRAY), small
    large = _layout(keys, items, is_large=True)
    assert large is not None, "a value of 4 GiB is refused by every server"
    return (LARGE_OBJECT if is_object else LARGE_ARRAY), large


def _layout(keys: list[bytes], items: list[tuple[int, bytes]], *, is_large: bool) -> bytes | None:
    """Return the body, or None when it does not fit the small form."""
    width, code = (4, "<I") if is_large else (2, "<H")
    at = 2 * width + len(keys) * (width + 2) + len(items) * (1 + width)
    entries, tail = bytearray(), bytearray()
    try:
        for key in keys:
            entries += struct.pack(code, at + len(tail)) + struct.pack("<H", len(key))
            tail += key
        for type_, body in items:
            entries.append(type_)
            if type_ in inlined(is_large):
                entries += body.ljust(width, b"\0")
                continue
            entries += struct.pack(code, at + len(tail))
            tail += body
        head = struct.pack(code, len(items)) + struct.pack(code, at + len(tail))
    except struct.error:
        return None
    return head + bytes(entries) + bytes(tail)


def write_changes(changes: list[JsonChange]) -> bytes:
    """Return the bytes of changes."""
    out = []
    for change in changes:
        path = change.path.encode()
        out += [bytes([change.operation]), pack_number(len(path)), path]
        if change.operation is not Operation.REMOVE:
            value = write_json(change.value)
            out += [pack_number(len(value)), value]
    return b"".join(out)
