"""JSON values: reads and writes TiDB's binary form.

    type (1) | value, all numbers little-endian

    01 object   count u32 | size u32 | count × key entry | count × value entry | keys | values
    03 array    count u32 | size u32 | count × value entry | values
    04 literal  00 null, 01 true, 02 false         0c string    uvarint length, UTF-8
    09 int64    8 bytes                            0d opaque    MySQL type (1), as 0c
    0a uint64   8 bytes                            0e date, 0f datetime, 10 timestamp  8, core time
    0b double   8 bytes                            11 duration  8, nanoseconds; u32 fraction digits

    key entry    offset u32 | length u16
    value entry  type u8 | offset u32, or the literal itself in its first byte

A decimal, which TiDB's JSON does not have, is an opaque of MySQL type 246 with a decimal datum as
its bytes. Inside an object or array it is the nearest double instead, and between that double and
the next value stand the byte f6 and the decimal datum: a reader that does not know them, such as an
older Drainer, reads the double.

Offsets and the size count from the start of `count`. Keys are sorted as bytes. A writer writes keys
and values in the order of their entries, and the reader requires this order: with parts that
overlap or point backwards, a few bytes could expand to gigabytes or form a loop.

A document is also written as an SQL literal from which a MySQL makes each scalar with its type.

If text expresses the document completely, the literal is that text. Otherwise it is

    /*!50708 JSON_SET(CAST(*/'{"a": 1.10}'/*!50708 AS JSON),'$."a"',CAST('1.10' AS DECIMAL(3,2)))*/

A MariaDB, whose JSON is text, skips comments for versions between 5.7 and its own, up to the first
end of a comment: inside them, a path has its asterisks and quotes escaped.

    scalar                         in a MySQL
    DECIMAL, DATE, TIME, DATETIME  the same
    bytes of VARBINARY (type 15)   the same
    TIMESTAMP                      DATETIME
    bytes of BLOB, BIT and others  their text as a string

The last two types can only be made by a subquery over JSON_TABLE, which a TiDB does not have.
"""

from __future__ import annotations

import base64
import json
import math
import struct
from binascii import hexlify
from collections.abc import Iterator
from decimal import Decimal
from typing import NamedTuple

from penstock.datum import decimals, times
from penstock.datum.values import INT64_MAX, INT64_MIN, UINT64_MAX, damaged, read_uvarint, take
from penstock.wire.protowire import encode_uvarint

OBJECT, ARRAY, LITERAL, INT64, UINT64, DOUBLE, STRING = 0x01, 0x03, 0x04, 0x09, 0x0A, 0x0B, 0x0C
OPAQUE, DATE, DATETIME, TIMESTAMP, DURATION = 0x0D, 0x0E, 0x0F, 0x10, 0x11
DEPTH_MAX = 100
"""MySQL's limit."""
DECIMAL = 0xF6
"""The type of an opaque that is a decimal, and the byte in front of a decimal in a gap."""
MARK = "\0"
_DIGITS_MAX, _SCALE_MAX = 65, 30
"""The maxima of MySQL's decimals."""

_HEAD = struct.Struct("<II")
_KEY = struct.Struct("<IH")
_VALUE = struct.Struct("<BI")
_U32 = struct.Struct("<I")
_I64 = struct.Struct("<q")
_U64 = struct.Struct("<Q")
_F64 = struct.Struct("<d")
_COLUMN_TYPES = {DATE: 10, DATETIME: 12, TIMESTAMP: 7, DURATION: 11}
_LITERALS: tuple[bool | None, ...] = (None, True, False)
_LITERAL_TEXTS = ("null", "true", "false")
FIXED_SIZES = {INT64: 8, UINT64: 8, DOUBLE: 8, DATE: 8, DATETIME: 8, TIMESTAMP: 8, DURATION: 12}


class Scalar(NamedTuple):
    """A scalar that JSON text cannot express: its type and the bytes of its value."""

    tp: int
    body: bytes


class TypedJson(str):
    """The text of a document with scalars that text does not distinguish; `binary` has them all.

    Where only text is possible, for example in Arrow, `marked` stands for it.
    """

    __slots__ = ("binary",)

    binary: bytes

    @classmethod
    def of(cls, text: str, binary: bytes) -> TypedJson:
        """Return a document as text and in this module's binary form."""
        made = cls(text)
        made.binary = binary
        return made

    @property
    def marked(self) -> str:
        """The document as text that is not JSON: `MARK`, then `binary` in hexadecimal."""
        return MARK + self.binary.hex()


def encode_text(text: str) -> bytes:
    """Return the binary form of a JSON text; text that is not JSON is malformed.

    A number becomes a decimal if a double cannot keep its digits, or prints other digits.
    """
    if isinstance(text, TypedJson):
        return text.binary
    try:
        value = json.loads(text, parse_constant=_refuse, parse_float=json_number)
    except (ValueError, RecursionError) as problem:
        raise damaged(f"this is not JSON: {problem}") from None
    return encode(value)


def _refuse(name: str) -> None:
    raise ValueError(f"{name} is not a JSON number")


def json_number(text: str) -> float | Decimal:
    """Return a number with a point or exponent: a Decimal where a double prints differently."""
    number = float(text)
    if text == repr(number) or "e" in text or "E" in text or not math.isfinite(number):
        return number
    plain = format(Decimal(repr(number)), "f")
    return number if text in (plain, plain + ".0") else Decimal(text)


def encode(value: object) -> bytes:
    """Return type and value of a dict, list, str, int, float, Decimal, bool, None or `Scalar`."""
    tp, body = _encode(value, 1)
    if tp == DOUBLE and len(body) > _F64.size:
        raw = body[_F64.size + 1 :]
        tp, body = OPAQUE, bytes((DECIMAL,)) + encode_uvarint(len(raw)) + raw
    return bytes((tp,)) + body


def _encode(value: object, depth: int) -> tuple[int, bytes]:
    if depth > DEPTH_MAX:
        raise damaged(f"JSON is nested deeper than {DEPTH_MAX}")
    if isinstance(value, str):
        raw = _utf8(value)
        return STRING, encode_uvarint(len(raw)) + raw
    if value is None or isinstance(value, bool):
        return LITERAL, bytes((_LITERALS.index(value),))
    if isinstance(value, (int, float, Decimal)):
        return _encode_number(value)
    if isinstance(value, dict):
        return OBJECT, _encode_object(value, depth)
    if isinstance(value, Scalar):
        return value
    if isinstance(value, (list, tuple)):
        return ARRAY, _encode_parts([], [_encode(item, depth + 1) for item in value])
    raise damaged(f"JSON has no {type(value).__name__}")


def _encode_number(value: int | float | Decimal) -> tuple[int, bytes]:
    if isinstance(value, int):
        if INT64_MIN <= value <= INT64_MAX:
            return INT64, _I64.pack(value)
        if 0 < value <= UINT64_MAX:
            return UINT64, _U64.pack(value)
    try:
        double = float(value)
    except OverflowError:
        double = math.inf
    if not math.isfinite(double):
        raise damaged("JSON has no such number")
    return DOUBLE, _F64.pack(double) + (b"" if isinstance(value, float) else _digits(value))


def _digits(value: int | Decimal) -> bytes:
    """Return the bytes after a decimal's double, empty if it has more digits than in MySQL."""
    exact = Decimal(value)
    exponent = exact.as_tuple().exponent
    assert isinstance(exponent, int), "it is finite"
    if exponent < -_SCALE_MAX or decimals.natural_precision(exact)[0] > _DIGITS_MAX:
        return b""
    return bytes((DECIMAL,)) + decimals.encode_decimal(exact)


def _utf8(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise damaged("JSON text holds half of a surrogate pair") from None


def _encode_object(value: dict[object, object], depth: int) -> bytes:
    members: list[tuple[bytes, tuple[int, bytes]]] = []
    for key, item in value.items():
        if not isinstance(key, str):
            raise damaged(f"a JSON object's key is text, not {key!r}")
        raw = _utf8(key)
        if len(raw) > 0xFFFF:
            raise damaged(f"a JSON object's key has {len(raw)} bytes, 65535 are the most")
        members.append((raw, _encode(item, depth + 1)))
    members.sort(key=lambda member: member[0])
    return _encode_parts([key for key, _ in members], [item for _, item in members])


def _encode_parts(keys: list[bytes], items: list[tuple[int, bytes]]) -> bytes:
    at = _HEAD.size + len(keys) * _KEY.size + len(items) * _VALUE.size
    entries = bytearray()
    for key in keys:
        entries += _KEY.pack(at, len(key))
        at += len(key)
    values = bytearray()
    for tp, body in items:
        if tp == LITERAL:
            entries += _VALUE.pack(tp, body[0])
            continue
        entries += _VALUE.pack(tp, at + len(values))
        values += body
    size = at + len(values)
    if size > 0xFFFFFFFF:
        raise damaged(f"a JSON value of {size} bytes is too long")
    return _HEAD.pack(len(items), size) + bytes(entries) + b"".join(keys) + bytes(values)


def length(data: bytes, at: int) -> int:
    if at >= len(data):
        raise damaged(f"a JSON value is missing at byte {at}")
    return 1 + _body_length(data, data[at], at + 1)


def _body_length(data: bytes, tp: int, at: int) -> int:
    if tp in (OBJECT, ARRAY):
        size: int = _U32.unpack(take(data, at + 4, 4)[0])[0]
    elif tp == LITERAL:
        size = 1
    elif tp in FIXED_SIZES:
        size = FIXED_SIZES[tp]
    elif tp in (STRING, OPAQUE):
        count, start = read_uvarint(data, at + (tp == OPAQUE))
        size = start + count - at
    else:
        raise damaged(f"JSON has no type {tp:#04x}")
    if at + size > len(data):
        raise damaged(f"JSON of {size} bytes wanted at byte {at} of {len(data)}")
    return size


def read_text(data: bytes, at: int) -> tuple[str, int]:
    """Read the JSON at `at` as text: `{"k": v}`, `[a, b]`, doubles always recognisable as such.

    It is a `TypedJson` if a scalar is neither text, number, truth nor null.
    """
    end = at + length(data, at)
    out = _Out()
    _write(data[at + 1 : end], data[at], 0, out, 1)
    text = "".join(out)
    return TypedJson.of(text, data[at:end]) if out.is_typed else text, end


def unmarked(text: str) -> str:
    return read_text(bytes.fromhex(text[1:]), 0)[0] if text[:1] == MARK else text


class _Out(list[str]):
    """The pieces of a text."""

    is_typed = False


def _write(data: bytes, tp: int, at: int, out: _Out, depth: int) -> int:
    if depth > DEPTH_MAX:
        raise damaged(f"JSON is nested deeper than {DEPTH_MAX}")
    end = at + _body_length(data, tp, at)
    if tp in (OBJECT, ARRAY):
        _write_parts(data[at:end], tp, out, depth)
        return end
    if tp >= OPAQUE:
        out.is_typed = True
    out.append(_scalar(tp, data[at:end]))
    return end


def _write_parts(data: bytes, tp: int, out: _Out, depth: int) -> None:
    values_at, keys, floor = _head(data, tp)
    out.append("{" if tp == OBJECT else "[")
    double_at = 0
    for i, at in enumerate(range(values_at, values_at + _count(data) * _VALUE.size, _VALUE.size)):
        item, offset = _VALUE.unpack_from(data, at)
        out.append((", " if i else "") + (_quoted(keys[i]) + ": " if keys else ""))
        if item == LITERAL:
            out.append(_literal(offset & 0xFF))
            continue
        if offset < floor:
            raise damaged("JSON values overlap or point backwards")
        if double_at and offset > floor:
            _put_decimal(data[floor:offset], out, double_at)
        floor = _write(data, item, offset, out, depth + 1)
        double_at = len(out) - 1 if item == DOUBLE else 0
    if double_at and len(data) > floor:
        _put_decimal(data[floor:], out, double_at)
    out.append("}" if tp == OBJECT else "]")


def _count(data: bytes) -> int:
    count: int = _U32.unpack_from(data)[0]
    return count


def _head(data: bytes, tp: int) -> tuple[int, list[bytes], int]:
    if len(data) < _HEAD.size:
        raise damaged(f"a JSON object of {len(data)} bytes is too short")
    count = _count(data)
    values_at = _HEAD.size + (count * _KEY.size if tp == OBJECT else 0)
    floor = values_at + count * _VALUE.size
    if floor > len(data):
        raise damaged(f"{count} JSON entries do not fit {len(data)} bytes")
    if tp != OBJECT:
        return values_at, [], floor
    keys, floor = _read_keys(data, count, floor)
    return values_at, keys, floor


def _put_decimal(gap: bytes, out: _Out, at: int) -> None:
    if gap[:1] == bytes([DECIMAL]):  # The gap is empty where the next value is damaged.
        out[at] = decimals.read_decimal_text(gap, 1)[0]
        out.is_typed = True


class Typed(NamedTuple):
    """A scalar of MySQL that JSON text cannot express.

    The path has an object's keys as text and an array's indexes; `type` is a column's type, and the
    value is text for a decimal, a date or a time, else bytes.
    """

    path: tuple[str | int, ...]
    type: int
    value: str | bytes


def typed_scalars(binary: bytes) -> Iterator[Typed]:
    """Yield the scalars that make a document a `TypedJson`, in its order."""
    return _typed(binary[1:], binary[0], ())


def _typed(data: bytes, tp: int, path: tuple[str | int, ...]) -> Iterator[Typed]:
    if tp in _COLUMN_TYPES:
        yield Typed(path, _COLUMN_TYPES[tp], _scalar(tp, data)[1:-1])
    elif tp == OPAQUE:
        raw = data[read_uvarint(data, 1)[1] :]
        is_decimal = data[0] == DECIMAL
        yield Typed(path, data[0], decimals.read_decimal_text(raw, 0)[0] if is_decimal else raw)
    elif tp == DOUBLE and data[_F64.size : _F64.size + 1] == bytes((DECIMAL,)):
        yield Typed(path, DECIMAL, decimals.read_decimal_text(data, _F64.size + 1)[0])
    if tp not in (OBJECT, ARRAY):
        return
    values_at, keys, _ = _head(data, tp)
    entries = [
        (i, *_VALUE.unpack_from(data, values_at + i * _VALUE.size)) for i in range(_count(data))
    ]
    entries = [entry for entry in entries if entry[1] != LITERAL]
    ends = [offset for _, _, offset in entries[1:]] + [len(data)]
    for (i, item, offset), end in zip(entries, ends, strict=False):
        yield from _typed(data[offset:end], item, (*path, keys[i].decode() if keys else i))


def _read_keys(data: bytes, count: int, floor: int) -> tuple[list[bytes], int]:
    keys: list[bytes] = []
    for i in range(count):
        start, size = _KEY.unpack_from(data, _HEAD.size + i * _KEY.size)
        if start < floor:
            raise damaged("JSON keys overlap or point backwards")
        raw, floor = take(data, start, size)
        keys.append(raw)
    return keys, floor


def _scalar(tp: int, body: bytes) -> str:
    if tp == STRING:
        return _quoted(body[read_uvarint(body, 0)[1] :])
    if tp == LITERAL:
        return _literal(body[0])
    if tp == INT64:
        return str(_I64.unpack(body)[0])
    if tp == UINT64:
        return str(_U64.unpack(body)[0])
    if tp == DOUBLE:
        return json_double(_F64.unpack(body)[0])
    if tp == OPAQUE:
        raw = body[read_uvarint(body, 1)[1] :]
        if body[0] == DECIMAL:
            return decimals.read_decimal_text(raw, 0)[0]
        return f'"base64:type{body[0]}:{base64.b64encode(raw).decode()}"'
    if tp == DURATION:
        return f'"{times.duration_text(_I64.unpack_from(body)[0], 6)}"'
    fields = times.unpack_core(_U64.unpack(body)[0])
    return f'"{times.date_text(fields) if tp == DATE else times.datetime_text(fields, 6)}"'


def _literal(code: int) -> str:
    if code >= len(_LITERAL_TEXTS):
        raise damaged(f"JSON has no literal {code:#04x}")
    return _LITERAL_TEXTS[code]


def _quoted(raw: bytes) -> str:
    try:
        return json.dumps(raw.decode(), ensure_ascii=False)
    except UnicodeDecodeError:
        raise damaged("JSON text is not UTF-8") from None


def json_double(value: float) -> str:
    """Return the shortest digits that read back as `value`, in JavaScript's layout.

    One difference: a whole number keeps ".0", or the next reader would make it an integer.
    """
    if not math.isfinite(value):
        raise damaged("JSON has no infinity and no NaN")
    text = repr(value)
    if "e" not in text:
        return text
    digits, _, exponent = text.partition("e")
    power = int(exponent)
    if -7 < power < 21:
        # JavaScript writes these out in full; Python does not, from 1e16 up and 1e-5 down.
        plain = format(Decimal(text), "f")
        return plain if "." in plain else plain + ".0"
    return f"{digits}e{'+' if power > 0 else '-'}{abs(power)}"


_TIMES = {7: "DATETIME(6)", 10: "DATE", 11: "TIME(6)", 12: "DATETIME(6)"}
_VARBINARY = 15


def text_literal(text: str) -> str:
    """Return a text as a literal for sessions without NO_BACKSLASH_ESCAPES."""
    return "'" + text.replace("\\", "\\\\").replace("'", "''") + "'"


def json_literal(text: str) -> str:
    quoted = text_literal(text)
    if not isinstance(text, TypedJson):
        return quoted
    sets = "".join(map(_set, typed_scalars(text.binary)))
    return f"/*!50708 JSON_SET(CAST(*/{quoted}/*!50708 AS JSON){sets})*/" if sets else quoted


def literal_of_text(text: str) -> str:
    """Return the literal of a document that a server printed; its row would give the same.

    Numbers keep their digits. Keys have the order of the binary form: in a MariaDB, whose JSON is
    text, a table without a key has no other way to find the row again.
    """
    return json_literal(read_text(encode_text(text), 0)[0])


def _set(scalar: Typed) -> str:
    made = _expression(scalar.type, scalar.value)
    return f",{text_literal(_path(scalar.path))},{made}" if made else ""


def _expression(type_: int, value: str | bytes) -> str:
    if isinstance(value, bytes):
        return f"x'{hexlify(value).decode()}'" if type_ == _VARBINARY else ""
    if type_ != DECIMAL:
        return f"CAST('{value}' AS {_TIMES[type_]})"
    whole, _, fraction = value.lstrip("-").partition(".")
    digits = max(len(whole.lstrip("0")) + len(fraction), 1)
    return f"CAST('{value}' AS DECIMAL({digits},{len(fraction)}))"


def _path(path: tuple[str | int, ...]) -> str:
    legs = [f"[{leg}]" if isinstance(leg, int) else f".{json.dumps(leg)}" for leg in path]
    return "$" + "".join(legs).replace("*", "\\u002a").replace("'", "\\u0027")
