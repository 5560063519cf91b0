"""Frame: one record in an append-only file; Pump logs and relay logs use the same frames.

    offset  size  field
    0       4     magic        "PBL1"
    4       4     length       bytes of payload, little-endian like all that follows
    8       8     synced       how much of this file was on the disk when this frame was written
    16      4     payload_crc  CRC-32C of payload
    20      4     header_crc   CRC-32C of bytes 0..20, started with `seed` xor the frame's offset
    24      n     payload      an encoded Binlog; empty only in the mark of a clean shutdown

Why two checksums: a crash may leave half a frame at the end of a file. It was never acknowledged,
so it reads as the end. With one checksum a flipped bit in `length` would look just like that and
hide every frame after it; it would also decide how much memory a reader allocates.

Why `synced`: the frame after a damaged frame shows whether the damaged frame had reached the disk.
If it had, it was acknowledged, and the damage must be reported; if not, it is the torn end of a
crash.

Why seed and offset: a header proves its place. Bytes of another file, or of this file at another
offset (a payload may well contain a copy of a log), never pass for a frame. A writer that means to
forge a frame must guess the offset and the seed's 32 bits, of which an epoch's id makes 24 random.
A forgery could make the torn end of a crash pass for damage: the log then stops or is repaired. No
payload is ever replaced, as each is checked by its header.
"""

import struct
from collections.abc import Sequence
from typing import NamedTuple

from google_crc32c import extend, value

MAGIC = b"PBL1"
HEADER = struct.Struct("<4sIQII")
HEADER_SIZE = HEADER.size
assert HEADER_SIZE == 24  # The table above is the contract.

PAYLOAD_CRC_AT = 16
PAYLOAD_BYTES_MAX = 0xFFFF_FFFF

_CHECKED = struct.Struct("<4sIQI")
_pack_checked, _pack_u32 = _CHECKED.pack, struct.Struct("<I").pack
SEED_BITS = 0xFFFF_FFFF
CHECKED_SIZE = _CHECKED.size
"""The bytes of a header that its checksum covers."""


class Header(NamedTuple):
    """A header that was found intact and in its place."""

    length: int
    synced: int
    payload_crc: int


class Frame(NamedTuple):
    """A frame that was found intact; `end` is the offset of the next one."""

    payload: bytes
    synced: int
    end: int


def encode_frames(
    payloads: Sequence[bytes], *, offset: int = 0, synced: int = 0, seed: int = 0
) -> list[bytes]:
    """Return the buffers to write at `offset`: headers and payloads alternating."""
    buffers: list[bytes] = []
    pack_checked, pack_u32, crc = _pack_checked, _pack_u32, value
    for payload in payloads:
        length = len(payload)
        assert length <= PAYLOAD_BYTES_MAX, "writers are limited to less than a frame can hold"
        checked = pack_checked(MAGIC, length, synced, crc(payload))
        header_crc = extend((seed ^ offset) & SEED_BITS, checked)
        buffers += (checked + pack_u32(header_crc), payload)
        offset += HEADER_SIZE + length
    return buffers


def decode_header(data: bytes, at: int, *, offset: int, seed: int = 0) -> Header | None:
    """Return the header at index `at` of `data`, None if none there is made for `offset`."""
    if len(data) < at + HEADER_SIZE:
        return None
    magic, length, synced, payload_crc, header_crc = HEADER.unpack_from(data, at)
    if magic != MAGIC:
        return None
    if extend((seed ^ offset) & SEED_BITS, data[at : at + _CHECKED.size]) != header_crc:
        return None
    return Header(length, synced, payload_crc)
