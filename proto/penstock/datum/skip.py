"""Steps over one datum without decoding it ("cut one"), whatever its flag."""

from __future__ import annotations

from penstock.datum import decimals, jsonb, values
from penstock.datum.values import damaged

_FIXED = frozenset({values.INT_FLAG, values.UINT_FLAG, values.FLOAT_FLAG, values.DURATION_FLAG})
_VARINTS = frozenset({values.VARINT_FLAG, values.UVARINT_FLAG})


def cut_one(data: bytes, at: int) -> int:
    """Return where the datum at `at` ends; raises `Malformed` if it is cut off or has no flag."""
    flag = values.flag_at(data, at)
    at += 1
    if flag in _VARINTS:
        return values.read_uvarint(data, at)[1]
    if flag == values.COMPACT_BYTES_FLAG:
        return values.read_bytes(data, at)[1]
    if flag == values.NULL_FLAG:
        return at
    if flag in _FIXED:
        return values.take(data, at, 8)[1]
    if flag == values.DECIMAL_FLAG:
        return decimals.end_of(data, at)
    if flag == values.JSON_FLAG:
        return at + jsonb.length(data, at)
    if flag == values.BYTES_FLAG:
        return values.read_bytes_comparable(data, at)[1]
    raise damaged(f"no datum has the flag {flag} found at byte {at - 1}")


def cut_all(data: bytes) -> list[bytes]:
    """Return the datums of which `data` consists, as the handle in a row's key is cut."""
    at, parts = 0, []
    while at < len(data):
        end = cut_one(data, at)
        parts.append(data[at:end])
        at = end
    return parts
