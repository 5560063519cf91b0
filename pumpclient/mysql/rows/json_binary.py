"""Decodes MySQL's binary JSON, as columns store it and binlogs carry it, and partial updates.

    type (1) | value; "small" has numbers of 2 bytes where "large" has 4

    00 01 object  small, large    count, size, count × key entry, count × value entry, keys, values
    02 03 array   small, large    count, size, count × value entry, values
    04 literal    00 null, 01 true, 02 false
    05 06 int16, uint16    07 08 int32, uint32    09 0a int64, uint64    0b double
    0c string     length of 7 bits a byte, lowest first, the high bit means more follow; UTF-8
    0f opaque     a column's type (1), length as in 0c, bytes

    key entry     offset, length (2)
    value entry   type (1), then the offset, or the value itself: literals, int16 and uint16, and in
                  large ones int32 and uint32

Offsets count from `count`. An object's keys are ordered by length, then as bytes, and print in this
order. DECIMAL, DATE, TIME, DATETIME and TIMESTAMP are opaque: precision, scale and digits; or eight
bytes of packed time, little-endian. (MariaDB's JSON is a text, and arrives as text.)

The size of values is counted, so that overlapping parts cannot expand to gigabytes.

A partial update (`binlog_row_value_options=PARTIAL_JSON`) is a list of changes:

    1   operation: 0 replace, 1 insert, 2 remove
    n   path, length-encoded length in front: `$.name[0]."a b"`
    n   the new value as binary JSON, length in front; not when removing

They change, one after the other, the value in the image before. A path that leads nowhere is
malformed: the server wrote a change that it had made itself.
"""

import base64
import json
import math
import re
import struct
from dataclasses import dataclass
from decimal import Decimal
from enum import IntEnum
from typing import NamedTuple

from penstock.codes import Code
from penstock.datum import jsonb, times
from penstock.datum.decimals import read_decimal_text
from penstock.datum.jsonb import TypedJson
from penstock.errors import Malformed
from penstock.wire.protowire import encode_uvarint
from pumpclient.mysql.events.frame import BodyReader
from pumpclient.mysql.rows.table_map import WireType

SMALL_OBJECT, LARGE_OBJECT, SMALL_ARRAY, LARGE_ARRAY, LITERAL = range(5)
DOUBLE, STRING, OPAQUE = 0x0B, 0x0C, 0x0F
_OPAQUE_BYTE = bytes([OPAQUE])
DEPTH_MAX = 100
"""The server's own limit."""
INTEGERS = {0x05: "<h", 0x06: "<H", 0x07: "<i", 0x08: "<I", 0x09: "<q", 0x0A: "<Q"}
LITERALS: tuple[bool | None, ...] = (None, True, False)
_SMALL_INLINE = {LITERAL, 0x05, 0x06}
_LARGE_INLINE = _SMALL_INLINE | {0x07, 0x08}
_HINT = "bytes of the event are lost, or its server writes a layout that is unknown here"
_VARLEN_BYTES_MAX = 5
_FRACTION_BITS = 24

_FIXED_POINT_MAX = 15  # Doubles with their point farther away print with an exponent.


class Opaque(NamedTuple):
    """A value of a column's type inside JSON."""

    type: int
    data: bytes


def malformed(problem: str) -> Malformed:
    return Malformed(f"JSON: {problem}", _HINT, Code.ROWS_EVENT)


def inlined(is_large: bool) -> set[int]:
    return _LARGE_INLINE if is_large else _SMALL_INLINE


def read_json(data: bytes) -> object:
    """Return a value as dict, list, str, int, float, bool, None or `Opaque`.

    Raises `Malformed` for invalid JSON. Like the server, it reads empty bytes as null.
    """
    if not data:
        return None
    try:
        return _Reader(data).value(data[0], 1, 1)
    except (struct.error, IndexError, UnicodeDecodeError) as error:
        raise malformed(str(error)) from error


def json_text(data: bytes) -> str:
    """Return a value as the server prints it; a `TypedJson` if it has opaque values."""
    value = read_json(data)
    return typed_text(value) if _OPAQUE_BYTE in data else text_of(value)


def typed_text(value: object) -> str:
    text = text_of(value)
    return TypedJson.of(text, jsonb.encode(_typed(value))) if _has_opaque(value) else text


def _has_opaque(value: object) -> bool:
    if isinstance(value, Opaque):
        return True
    if isinstance(value, dict):
        return any(map(_has_opaque, value.values()))
    return isinstance(value, list) and any(map(_has_opaque, value))


def _typed(value: object) -> object:
    if isinstance(value, Opaque):
        return _typed_scalar(value)
    if isinstance(value, dict):
        return {key: _typed(item) for key, item in value.items()}
    return [_typed(item) for item in value] if isinstance(value, list) else value


class _Reader:
    def __init__(self, data: bytes) -> None:
        self._data = data
        self._left = len(data)

    def _spend(self, count: int) -> None:
        self._left -= count
        if self._left < 0:
            raise malformed("its parts overlap")

    def value(self, type_: int, at: int, depth: int) -> object:
        if depth > DEPTH_MAX + 1:
            raise malformed(f"nested deeper than {DEPTH_MAX}")
        if type_ <= LARGE_ARRAY:
            is_large = bool(type_ & 1)
            return self._container(at, depth, is_large=is_large, is_object=type_ <= LARGE_OBJECT)
        if type_ == LITERAL:
            return self._literal(self._data[at])
        if type_ in INTEGERS:
            return struct.unpack_from(INTEGERS[type_], self._data, at)[0]
        if type_ == DOUBLE:
            number = struct.unpack_from("<d", self._data, at)[0]
            if not math.isfinite(number):
                raise malformed("infinity, or no number")
            return number
        if type_ == STRING:
            return self._bytes(at).decode("utf-8")
        if type_ == OPAQUE:
            return Opaque(self._data[at], self._bytes(at + 1))
        raise malformed(f"type {type_:#04x} is unknown")

    def _literal(self, code: int) -> object:
        if code >= len(LITERALS):
            raise malformed(f"literal {code:#04x} is unknown")
        return LITERALS[code]

    def _bytes(self, at: int) -> bytes:
        length = shift = 0
        for n in range(_VARLEN_BYTES_MAX):
            byte = self._data[at + n]
            length |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return self._slice(at + n + 1, length)
        raise malformed("a length of more than five bytes")

    def _slice(self, at: int, length: int) -> bytes:
        if at + length > len(self._data):
            raise malformed(f"{length} bytes wanted at {at} of {len(self._data)}")
        self._spend(length)
        return self._data[at : at + length]

    def _container(self, base: int, depth: int, *, is_large: bool, is_object: bool) -> object:
        number, width = ("<I", 4) if is_large else ("<H", 2)
        (count,) = struct.unpack_from(number, self._data, base)
        at = base + 2 * width
        self._spend(2 * width + count * (1 + width + (width + 2) * is_object))
        keys = []
        for _ in range(count if is_object else 0):
            offset, length = struct.unpack_from(number + "H", self._data, at)
            keys.append(self._slice(base + offset, length).decode("utf-8"))
            at += width + 2
        values = []
        for _ in range(count):
            type_, (offset,) = self._data[at], struct.unpack_from(number, self._data, at + 1)
            where = at + 1 if type_ in inlined(is_large) else base + offset
            values.append(self.value(type_, where, depth + 1))
            at += 1 + width
        return dict(zip(keys, values, strict=True)) if is_object else values


def text_of(value: object) -> str:
    """Return a value as the server prints it: `{"k": v}`, `[a, b]`, whole doubles with `.0`."""
    if isinstance(value, Opaque):
        return _opaque_text(value)
    if isinstance(value, dict):
        return "{" + ", ".join(f"{quoted(k)}: {text_of(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(text_of, value)) + "]"
    if isinstance(value, float):
        text = double_text(value)
        return text if "." in text or "e" in text else text + ".0"
    return quoted(value) if isinstance(value, str) else json.dumps(value)


def quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _opaque_text(value: Opaque) -> str:
    type_, data = value
    if type_ == WireType.NEWDECIMAL:
        return read_decimal_text(data, 0)[0]
    if type_ in (WireType.DATE, WireType.NEWDATE, WireType.DATETIME, WireType.TIMESTAMP):
        whole, micros = divmod(_packed_time(data), 1 << _FRACTION_BITS)
        months, day = whole >> 22, whole >> 17 & 31
        date = f"{months // 13:04d}-{months % 13:02d}-{day:02d}"
        if type_ in (WireType.DATE, WireType.NEWDATE):
            return f'"{date}"'
        return f'"{date} {_clock(whole & 0x1FFFF)}.{micros:06d}"'
    if type_ == WireType.TIME:
        packed = _packed_time(data)
        whole, micros = divmod(abs(packed), 1 << _FRACTION_BITS)
        return f'"{"-" if packed < 0 else ""}{_clock(whole)}.{micros:06d}"'
    return f'"base64:type{type_}:{base64.b64encode(data).decode()}"'


_CORE_TIMES: dict[int, tuple[int, int]] = {
    WireType.DATE: (jsonb.DATE, 0b1110),
    WireType.NEWDATE: (jsonb.DATE, 0b1110),
    WireType.DATETIME: (jsonb.DATETIME, 6 << 1),
    WireType.TIMESTAMP: (jsonb.TIMESTAMP, 6 << 1 | 1),
}
"""TiDB's type, and the low bits of a core time: its type, and six digits of a fraction."""
_FRACTION_DIGITS = struct.pack("<I", 6)
_WORD = (1 << 64) - 1


def _typed_scalar(value: Opaque) -> Decimal | jsonb.Scalar | str:
    """Return an opaque value in TiDB's JSON form, or as text if TiDB has no such value."""
    text = _opaque_text(value)
    if value.type == WireType.NEWDECIMAL:
        return Decimal(text)
    made = _scalar(value)
    try:
        is_same = jsonb.read_text(bytes([made.tp]) + made.body, 0)[0] == text
    except Malformed:
        is_same = False
    return made if is_same else text[1:-1]


def _scalar(value: Opaque) -> jsonb.Scalar:
    type_, data = value
    if (core := _CORE_TIMES.get(type_)) is not None:
        whole, micros = divmod(_packed_time(data), 1 << _FRACTION_BITS)
        year, month = divmod(whole >> 22, 13)
        clock = (whole >> 12 & 31, whole >> 6 & 63, whole & 63, micros)
        if core[0] == jsonb.DATE:
            clock = (0, 0, 0, 0)
        packed = times.pack_core((year, month, whole >> 17 & 31, *clock), core[1])
        return jsonb.Scalar(core[0], struct.pack("<Q", packed & _WORD))
    if type_ == WireType.TIME:
        packed = _packed_time(data)
        whole, micros = divmod(abs(packed), 1 << _FRACTION_BITS)
        seconds = (whole >> 12 & 0x3FF) * 3600 + (whole >> 6 & 63) * 60 + (whole & 63)
        nanos = (seconds * times.MICROS + micros) * times.NANOS_PER_MICRO
        body = struct.pack("<q", -nanos if packed < 0 else nanos) + _FRACTION_DIGITS
        return jsonb.Scalar(jsonb.DURATION, body)
    body = bytes([type_]) + encode_uvarint(len(data)) + data
    return jsonb.Scalar(jsonb.OPAQUE, body)


def _clock(packed: int) -> str:
    return f"{packed >> 12 & 0x3FF:02d}:{packed >> 6 & 63:02d}:{packed & 63:02d}"


def _packed_time(data: bytes) -> int:
    if len(data) != 8:
        raise malformed(f"a time of {len(data)} bytes")
    return int.from_bytes(data, "little", signed=True)


_LEG = re.compile(r'\s*(?:\.\s*("(?:[^"\\]|\\.)*"|[^\s."\[]+)|\[\s*(\d+)\s*\])')


class Operation(IntEnum):
    """The effect of a change at its path."""

    REPLACE = 0
    INSERT = 1
    REMOVE = 2


@dataclass(frozen=True, slots=True)
class JsonChange:
    """One change; `value` has no meaning when removing."""

    operation: Operation
    path: str
    value: object = None


def read_changes(data: bytes) -> list[JsonChange]:
    """Return the changes of a partial value; raise `Malformed` if it is invalid."""
    body = BodyReader(data, "partial JSON")
    changes = []
    while body.left:
        number = body.uint(1)
        if number not in list(Operation):
            raise body.malformed(f"operation {number} is unknown")
        path = body.text(body.packed())
        value = None
        if number != Operation.REMOVE:
            value = read_json(body.take(body.packed()))
        changes.append(JsonChange(Operation(number), path, value))
    return changes


def path_legs(path: str) -> list[str | int]:
    """Return the names and indexes of a path; raise `Malformed` if it is invalid."""
    legs: list[str | int] = []
    if path[:1] != "$":
        raise malformed(f"path {path!r} does not begin with $")
    at = 1
    while at < len(path):
        match = _LEG.match(path, at)
        if match is None:
            raise malformed(f"path {path!r} cannot be read")
        name, index = match.groups()
        try:
            legs.append(int(index) if name is None else _unquoted(name))
        except ValueError as error:
            raise malformed(f"path {path!r}: {error}") from error
        at = match.end()
    return legs


def _unquoted(name: str) -> str:
    return str(json.loads(name, strict=False)) if name[0] == '"' else name


def apply_changes(value: object, changes: list[JsonChange]) -> object:
    """Return `value` after all changes; it is modified in place."""
    for change in changes:
        legs = path_legs(change.path)
        if not legs:
            if change.operation is not Operation.REPLACE:
                raise malformed(f"{change.operation.name} of the whole value")
            value = change.value
            continue
        parent = value
        for leg in legs[:-1]:
            parent = _step(parent, leg, change)
        _apply(parent, legs[-1], change)
    return value


def _step(parent: object, leg: str | int, change: JsonChange) -> object:
    if isinstance(parent, dict) and leg in parent:
        return parent[leg]
    if isinstance(parent, list) and isinstance(leg, int) and leg < len(parent):
        return parent[leg]
    raise malformed(f"path {change.path!r} leads nowhere")


def _apply(parent: object, leg: str | int, change: JsonChange) -> None:
    if change.operation is Operation.INSERT:
        _insert(parent, leg, change)
        return
    _step(parent, leg, change)
    assert isinstance(parent, (dict, list)), "it has this member"
    if change.operation is Operation.REPLACE:
        parent[leg] = change.value  # type: ignore[index]
    else:
        del parent[leg]  # type: ignore[arg-type]


def _insert(parent: object, leg: str | int, change: JsonChange) -> None:
    if isinstance(parent, list) and isinstance(leg, int):
        parent.insert(leg, change.value)
        return
    if not isinstance(parent, dict) or not isinstance(leg, str) or leg in parent:
        raise malformed(f"nothing can be inserted at {change.path!r}")
    parent[leg] = change.value
    ordered = sorted(parent.items(), key=lambda item: key_order(item[0]))
    parent.clear()
    parent.update(ordered)


def key_order(key: str) -> tuple[int, bytes]:
    raw = key.encode()
    return len(raw), raw


def double_text(value: float) -> str:
    """Format a DOUBLE as MySQL and MariaDB do: shortest digits, `1e15` past 15 digits."""
    if value == 0:
        return "-0" if str(value)[0] == "-" else "0"
    sign, digits, exponent = Decimal(repr(value)).as_tuple()
    assert isinstance(exponent, int), "a column holds neither infinity nor NaN"
    text = "".join(map(str, digits)).rstrip("0")
    point = len(digits) + exponent
    minus = "-" if sign else ""
    if point <= -_FIXED_POINT_MAX or (point > _FIXED_POINT_MAX and len(text) <= point):
        rest = f".{text[1:]}" if len(text) > 1 else ""
        return f"{minus}{text[0]}{rest}e{point - 1}"
    if point <= 0:
        return f"{minus}0.{'0' * -point}{text}"
    if len(text) <= point:
        return minus + text.ljust(point, "0")
    return f"{minus}{text[:point]}.{text[point:]}"
