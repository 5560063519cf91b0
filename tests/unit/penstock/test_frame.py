"""One frame of a log: read back as written, refused in any other shape or place."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.log.frame import HEADER_SIZE, Frame, decode_header, encode_frames
from penstock.log.segment import BrokenAt, walk

PAYLOAD = b"a binlog of a few bytes"


def one(payload: bytes = PAYLOAD, *, offset: int = 0, synced: int = 0, seed: int = 0) -> bytes:
    return b"".join(encode_frames([payload], offset=offset, synced=synced, seed=seed))


class Held:
    """Bytes that lie at `offset` of a file."""

    def __init__(self, data: bytes, offset: int) -> None:
        self._data, self._offset = data, offset

    def read(self, offset: int, length: int) -> bytes:
        begin = offset - self._offset
        return self._data[begin : begin + length]


def frames(data: bytes, *, offset: int = 0, seed: int = 0) -> list[Frame]:
    """Return all frames of `data`, which lies at `offset`; raise `BrokenAt`."""
    held: Any = Held(data, offset)
    return [frame for _, frame in walk(held, offset, offset + len(data), seed)]


@given(
    st.lists(st.binary(max_size=200)),
    st.integers(0, 2**40),
    st.integers(0, 2**64 - 1),
    st.integers(0, 2**32 - 1),
)
def test_what_is_framed_is_read_back(
    payloads: list[bytes], offset: int, synced: int, seed: int
) -> None:
    data = b"".join(encode_frames(payloads, offset=offset, synced=synced, seed=seed))
    found = frames(data, offset=offset, seed=seed)
    assert [frame.payload for frame in found] == payloads
    assert {frame.synced for frame in found} <= {synced}


def test_every_flipped_bit_is_noticed() -> None:
    whole = one()
    for bit in range(len(whole) * 8):
        damaged = bytearray(whole)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(BrokenAt):
            frames(bytes(damaged))


def test_every_cut_is_noticed() -> None:
    whole = one()
    for length in range(1, len(whole)):
        with pytest.raises(BrokenAt):
            frames(whole[:length])


def test_a_damaged_length_is_found_before_it_is_used() -> None:
    whole = bytearray(one())
    whole[7] ^= 0x80  # Now 2 GiB.
    assert decode_header(bytes(whole), 0, offset=0) is None


def test_a_frame_counts_only_where_it_was_written() -> None:
    frame = one(offset=1000, seed=7)
    assert [each.payload for each in frames(frame, offset=1000, seed=7)] == [PAYLOAD]
    for offset, seed in ((1001, 7), (1000, 8), (0, 0)):
        with pytest.raises(BrokenAt):
            frames(frame, offset=offset, seed=seed)


def test_the_byte_table_is_what_is_written() -> None:
    frame = one(b"hello", synced=0x1122334455667788)
    assert frame[:4] == b"PBL1"
    assert frame[4:8] == (5).to_bytes(4, "little")
    assert frame[8:16] == (0x1122334455667788).to_bytes(8, "little")
    assert frame[16:20] == (0x9A71BB4C).to_bytes(4, "little")  # CRC-32C of "hello".
    assert frame[HEADER_SIZE:] == b"hello"
