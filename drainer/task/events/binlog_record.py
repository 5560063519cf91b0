"""Binlog record: one record of TiDB-Binlog's files, and the first fields of its payload.

    offset  size  field
    0       4     magic     0x1C1B0504, little-endian like all that follows
    4       8     length    bytes of payload
    12      n     payload   a serialized `pb_binlog.Binlog` (proto/pb_binlog.proto)
    12+n    4     crc       CRC-32C of the payload

    "hello" is 04051b1c 0500000000000000 68656c6c6f 4cbb719a

Source: package binlogfile of TiDB-Binlog. A payload here begins with its type and its commit_ts, so
that both can be read without the rest. The row changes of a large transaction follow in several
`dml_data`; protobuf readers join the occurrences of one message and therefore see one.
"""

from __future__ import annotations

import struct

from google_crc32c import value as crc32c

from penstock.wire.protowire import LEN, VARINT, encode_uvarint, tag

MAGIC = 0x1C1B0504
HEAD = struct.Struct("<IQ")
TRAILER = struct.Struct("<I")
assert (HEAD.size, TRAILER.size) == (12, 4)  # The table above is the contract.

DML, DDL = 0, 1

TYPE, COMMIT_TS = tag(1, VARINT), tag(2, VARINT)
DML_DATA, DDL_QUERY = tag(3, LEN), tag(4, LEN)
DDL_CONTEXT = tag(15, LEN)
"""Our own field: protobuf readers skip unknown fields."""


def framed(payload: bytes) -> bytes:
    head = HEAD.pack(MAGIC, len(payload))
    return b"".join((head, payload, TRAILER.pack(crc32c(payload))))


def payload_head(kind: int, commit_ts: int) -> bytes:
    return bytes((TYPE, kind, COMMIT_TS)) + encode_uvarint(commit_ts)


def delimited(field_tag: int, content: bytes) -> bytes:
    size = len(content)
    if size < 0x80:  # The usual case.
        return bytes((field_tag, size)) + content
    return bytes((field_tag,)) + encode_uvarint(size) + content
