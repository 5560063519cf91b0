import pytest
from google_crc32c import value
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import Malformed
from penstock.log.chunks import (
    HEAD_BYTES_MAX,
    Chunk,
    ChunkList,
    chunk_start_ts,
    decode_chunk,
    decode_chunk_list,
    encode_chunk,
    encode_chunk_list,
    head_of,
    identity,
    is_special,
    parsed_head,
)
from penstock.log.segments import Position
from penstock.pb import penstock_pb2
from penstock.wire.batch import encode_pull_piece, encode_write_piece
from penstock.wire.binlog import Binlog, BinlogType
from penstock.wire.codec import encode_binlog
from tests.kit.workloads.large import large_prewrite

U32 = st.integers(0, 2**32 - 1)
U64 = st.integers(0, 2**64 - 1)
POSITIONS = st.builds(Position, U32, U64, U32)


@given(st.builds(Chunk, U64, U32, U64, st.binary(min_size=1)))
def test_a_chunk_comes_back_as_it_was(chunk: Chunk) -> None:
    payload = encode_chunk(*chunk)
    assert decode_chunk(payload) == chunk
    assert chunk_start_ts(payload) == chunk.start_ts
    assert is_special(payload)


@given(
    st.builds(
        ChunkList,
        U64,
        U64,
        U32,
        st.lists(POSITIONS, min_size=1, max_size=9).map(tuple),
        st.binary(),
    )
)
def test_a_chunk_list_comes_back_as_it_was(chunk_list: ChunkList) -> None:
    payload = encode_chunk_list(chunk_list)
    assert decode_chunk_list(payload) == chunk_list
    assert identity(payload) == (chunk_list.size_bytes, chunk_list.crc)


@given(st.binary(max_size=80))
def test_other_bytes_are_named_and_nothing_else_happens(data: bytes) -> None:
    for decode in (decode_chunk, decode_chunk_list):
        try:
            again = decode(b"\0" + data)
        except Malformed:
            continue
        encoded = encode_chunk(*again) if isinstance(again, Chunk) else encode_chunk_list(again)
        assert encoded == b"\0" + data


def test_every_cut_of_a_chunk_list_is_named() -> None:
    whole = encode_chunk_list(
        ChunkList(7, 100, 5, (Position(0, 32, 60), Position(1, 32, 90)), b"hd")
    )
    for length in range(1, len(whole)):
        with pytest.raises(Malformed):
            decode_chunk_list(whole[:length])


@given(st.integers(1, 2**62), st.binary(max_size=50), st.binary(min_size=1, max_size=300))
def test_a_binlogs_head_is_all_that_comes_before_its_row_changes(
    start_ts: int, key: bytes, rows: bytes
) -> None:
    data = large_prewrite(start_ts, rows, key)
    head = head_of(data, len(data))
    assert (parsed_head(head).start_ts, parsed_head(head).prewrite_key) == (start_ts, key)
    assert data.endswith(rows)
    binlog = Binlog(
        tp=BinlogType.PREWRITE, start_ts=start_ts, prewrite_key=key, prewrite_value=rows
    )
    assert identity(data) == (len(data), value(data)) == identity(encode_binlog(binlog))


def test_a_binlog_whose_rows_are_not_last_or_come_late_is_refused() -> None:
    data = large_prewrite(5, b"rows")
    for wrong, size in (
        (data, len(data) + 1),
        (data + b"\x38\x07", len(data) + 2),
        (b"\x4a\x01x" + data, len(data) + 3),
        (data[:-5], len(data)),
        (data[:1], len(data)),
        (large_prewrite(5, b"rows", b"k" * HEAD_BYTES_MAX), len(data) + HEAD_BYTES_MAX),
        (encode_binlog(Binlog(tp=BinlogType.PREWRITE, start_ts=5)), 8),
    ):
        with pytest.raises(Malformed):
            head_of(wrong, size)


@given(U64, st.integers(1, 2**62), U64, st.binary(min_size=1, max_size=300))
def test_chunks_on_the_wire_are_what_protobuf_would_make_of_them(
    cluster_id: int, ts: int, size: int, data: bytes
) -> None:
    written = encode_write_piece(cluster_id, ts, size, data)
    assert penstock_pb2.WritePiece.FromString(written) == penstock_pb2.WritePiece(
        cluster_id=cluster_id, start_ts=ts, bytes=size, data=data
    )
    pulled = encode_pull_piece(ts, size, cluster_id, data)
    piece = penstock_pb2.PullPiece(commit_ts=ts, bytes=size, offset=cluster_id, data=data)
    assert penstock_pb2.PullBatch.FromString(pulled) == penstock_pb2.PullBatch(piece=piece)
