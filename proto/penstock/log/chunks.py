"""Chunks: the format of a binlog in a log that is too large for one frame.

A chunk and a chunk list are frame payloads. They start with a zero byte, with which no protobuf
message can start, so they cannot be taken for a binlog. Integers are little-endian.

    offset  size  field of a chunk
    0       1     mark     0
    1       1     kind     1
    2       2     format   1
    4       4     number   chunks of the same binlog before this one
    8       8     start_ts
    16      8     offset   of `data` in the binlog
    24      n     data

    offset  size  field of a chunk list
    0       1     mark     0
    1       1     kind     2
    2       2     format   1
    4       4     crc      CRC-32C of the whole binlog
    8       8     start_ts
    16      8     size     bytes of the whole binlog
    24      4     count    of chunks
    28      4     head     bytes of `head`
    32      16n   where each chunk is: segment u32, offset u64, length u32 of the frame's payload
    …       m     head     the binlog's fields before its prewrite_value: a `binlog.Binlog`

Only the chunk list makes the binlog exist. It is written when all chunks are durable. Chunks
without a list are remains of a broken stream or a crash, and mean nothing. The row changes,
`prewrite_value`, are the last field of such a binlog, so its head has all other fields.
"""

import itertools
import struct
from typing import NamedTuple

from google.protobuf.message import DecodeError
from google_crc32c import value

from penstock.codes import Code
from penstock.errors import Malformed
from penstock.log.segments import Position
from penstock.pb import binlog_pb2
from penstock.wire.protowire import encode_uvarint, read_uvarint, scan

CHUNK, CHUNK_LIST = 1, 2
FORMAT = 1
HEAD_BYTES_MAX = 64 << 10
"""A binlog's fields before its row changes: timestamps, a key for the resolver, an origin."""

_MARK = 0
_MARKED = struct.Struct("<BBH")
_CHUNK = struct.Struct("<BBHIQQ")
_CHUNK_LIST = struct.Struct("<BBHIQQII")
_POSITION = struct.Struct("<IQI")
assert (_CHUNK.size, _CHUNK_LIST.size, _POSITION.size) == (24, 32, 16)
DATA_BYTES = (1 << 20) - _CHUNK.size
"""Bytes of data in a chunk: with its head 1 MiB, so that a few chunks make a group."""

_VALUE_TAG = 0x2A
_HEAD_NUMBERS = (0x08, 0x10, 0x18, 0x38, 0x40)
_HEAD_CONTENTS = dict.fromkeys((0x22, 0x32, 0x7A))
"""Allowed before `prewrite_value`: numbers, and fields whose bytes are skipped."""

_HINT = "this Penstock reads format 1; was the log written by a newer one?"


class Chunk(NamedTuple):
    """A part of a large binlog; `data` belongs at `offset`."""

    start_ts: int
    number: int
    offset: int
    data: bytes


class ChunkList(NamedTuple):
    """The record that makes the chunks a Prewrite."""

    start_ts: int
    size_bytes: int
    crc: int
    positions: tuple[Position, ...]
    head: bytes

    @property
    def first_segment(self) -> int:
        """The segment of the first chunk; all others are in it or in later segments."""
        return self.positions[0].segment


def is_special(payload: bytes) -> bool:
    return payload[:1] == b"\0"


def special_kind(payload: bytes) -> int:
    """Return CHUNK or CHUNK_LIST for a payload that `is_special`; raise `Malformed`."""
    if len(payload) >= _MARKED.size:
        mark, kind, form = _MARKED.unpack_from(payload)
        if mark == _MARK and kind in (CHUNK, CHUNK_LIST) and form == FORMAT:
            return int(kind)
    raise Malformed(f"a record of unknown kind: {payload[:4].hex()}", _HINT, Code.BINLOG_INVALID)


def encode_chunk(start_ts: int, number: int, offset: int, data: bytes | memoryview) -> bytes:
    return b"".join((_CHUNK.pack(_MARK, CHUNK, FORMAT, number, start_ts, offset), data))


def decode_chunk(payload: bytes) -> Chunk:
    if special_kind(payload) != CHUNK or len(payload) <= _CHUNK.size:
        raise Malformed(f"{len(payload)} bytes that are no chunk", _HINT, Code.BINLOG_INVALID)
    _, _, _, number, start_ts, offset = _CHUNK.unpack_from(payload)
    return Chunk(start_ts, number, offset, payload[_CHUNK.size :])


def chunk_start_ts(payload: bytes) -> int:
    """Return the start_ts of a chunk without copying its data; raise `Malformed`."""
    if len(payload) <= _CHUNK.size:
        raise Malformed(f"{len(payload)} bytes that are no chunk", _HINT, Code.BINLOG_INVALID)
    return int(_CHUNK.unpack_from(payload)[4])


def encode_chunk_list(chunk_list: ChunkList) -> bytes:
    start_ts, size_bytes, crc, positions, head = chunk_list
    fixed = _CHUNK_LIST.pack(
        *(_MARK, CHUNK_LIST, FORMAT, crc, start_ts, size_bytes, len(positions), len(head))
    )
    return b"".join([fixed, *itertools.starmap(_POSITION.pack, positions), head])


def decode_chunk_list(payload: bytes) -> ChunkList:
    if special_kind(payload) != CHUNK_LIST or len(payload) < _CHUNK_LIST.size:
        raise Malformed(f"{len(payload)} bytes that are no chunk list", _HINT, Code.BINLOG_INVALID)
    _, _, _, crc, start_ts, size_bytes, count, head_bytes = _CHUNK_LIST.unpack_from(payload)
    places_end = _CHUNK_LIST.size + count * _POSITION.size
    if count == 0 or len(payload) != places_end + head_bytes:
        raise Malformed(
            f"a chunk list of {count} chunks in {len(payload)} bytes", _HINT, Code.BINLOG_INVALID
        )
    places = itertools.starmap(
        Position, _POSITION.iter_unpack(payload[_CHUNK_LIST.size : places_end])
    )
    return ChunkList(start_ts, size_bytes, crc, tuple(places), payload[places_end:])


def identity(payload: bytes) -> tuple[int, int]:
    """Return length and CRC-32C of the binlog in `payload` or of its chunk list's binlog."""
    if is_special(payload):
        found = decode_chunk_list(payload)
        return found.size_bytes, found.crc
    return len(payload), value(payload)


def head_of(data: bytes, size_bytes: int) -> bytes:
    """Return the part of a binlog before its `prewrite_value`, given the binlog's first bytes.

    Raises `Malformed` unless `prewrite_value` is the last of the binlog's `size_bytes` bytes, and
    everything before it is in `data` and small.
    """
    at = _value_at(data[: HEAD_BYTES_MAX + 16])
    if at is None or at > HEAD_BYTES_MAX:
        raise Malformed(
            f"a large binlog whose row changes do not begin within {HEAD_BYTES_MAX} bytes",
            "prewrite_value must be its last field, the fields before it in the first chunk",
            Code.BINLOG_INVALID,
        )
    length, begin = read_uvarint(data, at + 1)
    if begin + length != size_bytes:
        raise Malformed(
            f"a large binlog of {size_bytes} bytes whose row changes are bytes {begin} to"
            f" {begin + length}",
            "prewrite_value must be its last field",
            Code.BINLOG_INVALID,
        )
    return data[:at]


def before_rows(head: bytes, value_bytes: int) -> bytes:
    """Return the start of a large binlog: `head`, then tag and length of `prewrite_value`."""
    return head + bytes((_VALUE_TAG,)) + encode_uvarint(value_bytes)


def parsed_head(head: bytes) -> binlog_pb2.Binlog:
    try:
        return binlog_pb2.Binlog.FromString(head)
    except DecodeError as error:
        raise Malformed(
            f"undecodable head of a large binlog: {error}", _HINT, Code.BINLOG_INVALID
        ) from error


def _value_at(data: bytes) -> int | None:
    """Return the index of the tag of `prewrite_value`, None if it is not in `data`."""
    at = scan(data, dict.fromkeys(_HEAD_NUMBERS, 0), _HEAD_CONTENTS, until=_VALUE_TAG)
    if at < 0 or data[at : at + 1] != bytes((_VALUE_TAG,)):
        return None
    try:
        read_uvarint(data, at + 1)
    except (IndexError, OverflowError):
        return None
    return at
