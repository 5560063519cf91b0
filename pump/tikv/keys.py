"""Keys: how TiDB names its data, and how PD and TiKV order the names.

A key of TiDB is bytes that it chose for their sort order:

    row      t  table id, 8 bytes   _r  handle
    index    t  table id, 8 bytes   _i  index id, values
    meta     m  a name, memcomparable   …                      where DDL jobs are kept

PD and TiKV put another encoding around all keys, memcomparable, in which no key is a prefix of
another key: groups of 8 bytes, the last padded with zeros, each followed by 255 less the number
of bytes of padding. A key of a multiple of 8 bytes, including the empty key, ends with a group of
padding only:

    a b c                  a b c 0 0 0 0 0  250
    a b c d e f g h        a b c d e f g h  255  0 0 0 0 0 0 0 0  247
"""

from __future__ import annotations

_GROUP_BYTES = 8
_FULL = 0xFF
_TABLE_PREFIX_BYTES = 9
_META_MARK_AT = 1 + _GROUP_BYTES


def memcomparable(key: bytes) -> bytes:
    """Encode a key as PD and TiKV order it."""
    encoded = bytearray()
    for begin in range(0, len(key) + 1, _GROUP_BYTES):
        group = key[begin : begin + _GROUP_BYTES]
        encoded += group.ljust(_GROUP_BYTES, b"\0")
        encoded.append(_FULL - (_GROUP_BYTES - len(group)))
    return bytes(encoded)


def is_of_tidb(key: bytes) -> bool:
    """Return whether a Prewrite's key is made by TiDB.

    No key of an outbox is, and no text: the bytes at the end of a meta key's first group occur in
    no UTF-8.
    """
    if key[:1] == b"t":
        kind = key[_TABLE_PREFIX_BYTES : _TABLE_PREFIX_BYTES + 2]
        return kind in (b"_r", b"_i") and len(key) > _TABLE_PREFIX_BYTES + 2
    mark = key[_META_MARK_AT : _META_MARK_AT + 1]
    return key[:1] == b"m" and mark >= bytes((_FULL - _GROUP_BYTES,))
