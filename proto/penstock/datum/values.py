"""Datums: one value as bytes, a flag byte and then the form that the flag names.

    flag  form                         bytes after the flag
    ----  ---------------------------  -----------------------------------------------------
       0  NULL                         none
       1  bytes, memcomparable         groups of 8, each followed by 0xFF minus its padding
       2  bytes, compact               varint length, data
       3  int, memcomparable           8, big-endian, sign bit flipped
       4  uint, memcomparable          8, big-endian
       5  float                        8, big-endian; positive: sign bit set, negative: inverted
       6  decimal                      precision, frac, MySQL's binary decimal (`decimals.py`)
       7  duration, memcomparable      8, nanoseconds in the form of flag 3
       8  int, compact                 zig-zag varint
       9  uint, compact                varint
      10  JSON                         type, value (`jsonb.py`)

Memcomparable forms sort as bytes like their values do, and are used in keys; rows use the compact
forms. Every reader takes `(data, at)` and returns `(value, next_at)`. It checks a length against
the available bytes before it allocates anything, and raises only `Malformed`.
"""

from __future__ import annotations

import struct

from penstock.codes import Code
from penstock.errors import Malformed
from penstock.wire import protowire
from penstock.wire.protowire import encode_uvarint

NULL_FLAG = 0
BYTES_FLAG = 1
COMPACT_BYTES_FLAG = 2
INT_FLAG = 3
UINT_FLAG = 4
FLOAT_FLAG = 5
DECIMAL_FLAG = 6
DURATION_FLAG = 7
VARINT_FLAG = 8
UVARINT_FLAG = 9
JSON_FLAG = 10

INT64_MIN = -(1 << 63)
INT64_MAX = (1 << 63) - 1
UINT64_MAX = (1 << 64) - 1

_U64 = struct.Struct(">Q")
_F64 = struct.Struct(">d")
_SIGN = 1 << 63
_GROUP = 8
_MARKER_FULL = 0xFF
_PADDING = bytes(_GROUP)


def damaged(what: str) -> Malformed:
    """Return the error for bytes that violate the row format; the caller must raise it."""
    return Malformed(
        what, "the bytes are damaged or not in TiDB's row format", Code.BINLOG_UNDECODABLE
    )


def read_uvarint(data: bytes, at: int) -> tuple[int, int]:
    """Read an unsigned varint; more than 64 bits are malformed."""
    try:
        if (value := data[at]) < 0x80:  # The most frequent case.
            return value, at + 1
        value, end = protowire.read_uvarint(data, at)
    except IndexError:
        raise damaged(f"a varint is cut off at byte {max(at, len(data))}") from None
    except OverflowError:
        value, end = UINT64_MAX + 1, at + 10
    if value > UINT64_MAX:
        raise damaged(f"the varint before byte {end - 1} has more than 64 bits")
    return value, end


def read_varint(data: bytes, at: int) -> tuple[int, int]:
    raw, at = read_uvarint(data, at)
    return (raw >> 1) ^ -(raw & 1), at


def take(data: bytes, at: int, length: int) -> tuple[bytes, int]:
    """Cut `length` bytes out of `data`; fewer than that are malformed."""
    end = at + length
    if length < 0 or end > len(data):
        raise damaged(f"{length} bytes wanted at byte {at} of {len(data)}")
    return data[at:end], end


def encode_int_comparable(value: int) -> bytes:
    """Return eight bytes that sort like signed 64-bit integers."""
    return _U64.pack(value + _SIGN)


def read_int_comparable(data: bytes, at: int) -> tuple[int, int]:
    value, at = read_uint_comparable(data, at)
    return value - _SIGN, at


def read_uint_comparable(data: bytes, at: int) -> tuple[int, int]:
    raw, at = take(data, at, 8)
    value: int = _U64.unpack(raw)[0]
    return value, at


def encode_float_comparable(value: float) -> bytes:
    """Return eight bytes that sort like floats do, -0.0 before 0.0.

    A TiDB writes -0.0 as 0.0, and reads both forms.
    """
    bits: int = _U64.unpack(_F64.pack(value))[0]
    return _U64.pack(bits ^ UINT64_MAX if bits & _SIGN else bits | _SIGN)


def read_float_comparable(data: bytes, at: int) -> tuple[float, int]:
    bits, at = read_uint_comparable(data, at)
    value: float = _F64.unpack(_U64.pack(bits ^ _SIGN if bits & _SIGN else bits ^ UINT64_MAX))[0]
    return value, at


def read_bytes_comparable(data: bytes, at: int) -> tuple[bytes, int]:
    """Read groups of eight, an extra one after a full last; non-zero padding is malformed."""
    out = bytearray()
    while True:
        group, at = take(data, at, _GROUP + 1)
        pad = _MARKER_FULL - group[_GROUP]
        if pad == 0:
            out += group[:_GROUP]
            continue
        if pad > _GROUP or group[_GROUP - pad : _GROUP] != _PADDING[:pad]:
            raise damaged(f"the bytes group before byte {at} is not padded as it says")
        out += group[: _GROUP - pad]
        return bytes(out), at


def encode_bytes(value: bytes) -> bytes:
    """Return the compact form: a varint length and the bytes."""
    return encode_uvarint(len(value) << 1) + value


def read_bytes(data: bytes, at: int) -> tuple[bytes, int]:
    length, at = read_varint(data, at)
    return take(data, at, length)


def int_datum(value: int) -> bytes:
    return b"\x08" + encode_uvarint(value << 1 if value >= 0 else ~value << 1 | 1)


def uint_datum(value: int) -> bytes:
    return b"\x09" + encode_uvarint(value)


def bytes_datum(value: bytes) -> bytes:
    return b"\x02" + encode_uvarint(len(value) << 1) + value


def float_datum(value: float) -> bytes:
    return b"\x05" + encode_float_comparable(value)


def flag_at(data: bytes, at: int) -> int:
    if at >= len(data):
        raise damaged(f"a datum is missing at byte {at}")
    return data[at]
