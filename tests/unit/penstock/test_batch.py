"""Batches by hand are what protobuf makes of them, for everything protobuf takes or refuses."""

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st

from penstock.pb import binlog_pb2, penstock_pb2, pump_pb2
from penstock.wire import protowire

BIG = bytes(300_000)
SIZES = st.sampled_from([0, 1, 127, 128, 1000, 16_383, 16_384, 300_000])
INT64 = st.integers(-(1 << 63), (1 << 63) - 1)


def same_heads(payload: bytes) -> None:
    """Assert that peeking is the same as parsing, failure included."""
    try:
        binlog = binlog_pb2.Binlog.FromString(payload)
    except DecodeError:
        with pytest.raises(DecodeError):
            protowire.peek_binlog(payload)
        return
    expected = (binlog.tp, binlog.start_ts, binlog.commit_ts, binlog.prewrite_key)
    assert protowire.peek_binlog(payload) == expected


@given(st.integers(0, (1 << 64) - 1), st.integers(0, (1 << 64) - 1), st.lists(SIZES, max_size=6))
def test_a_write_batch_is_read_as_it_was_written(
    cluster_id: int, seq: int, sizes: list[int]
) -> None:
    payloads = [bytes(size) for size in sizes]
    message = penstock_pb2.WriteBatch(cluster_id=cluster_id, seq=seq, payloads=payloads)
    data = b"".join(protowire.write_batch_pieces(cluster_id, seq, payloads))
    assert data == message.SerializeToString()
    found = protowire.decode_write_batch(data)
    assert (found[0], found[1], list(found[2])) == (cluster_id, seq, payloads)


@given(st.integers(0, (1 << 64) - 1), SIZES, st.sampled_from([b"", b"\x08\x05", b"\x12\x02xy"]))
def test_a_write_request_is_read_as_protobuf_reads_it(
    cluster_id: int, size: int, tail: bytes
) -> None:
    message = pump_pb2.WriteBinlogReq(clusterID=cluster_id, payload=bytes(size))
    data = message.SerializeToString() + tail  # Of what is there twice, the last counts.
    expected = pump_pb2.WriteBinlogReq.FromString(data)
    assert protowire.decode_write_request(data) == (expected.clusterID, expected.payload)


@pytest.mark.parametrize("cut", [1, 2, 150_000, 300_000])
def test_a_write_request_cut_short_is_refused(cut: int) -> None:
    data = pump_pb2.WriteBinlogReq(clusterID=1, payload=BIG).SerializeToString()
    with pytest.raises(DecodeError):
        protowire.decode_write_request(data[:-cut])


@given(st.lists(st.tuples(SIZES, INT64), max_size=6))
def test_a_pull_batch_is_read_as_it_was_written(entries: list[tuple[int, int]]) -> None:
    payloads, timestamps = [bytes(size) for size, _ in entries], [ts for _, ts in entries]
    beginnings = [payload[: len(payload) // 3] for payload in payloads]
    endings = [payload[len(payload) // 3 :] for payload in payloads]
    data = protowire.encode_pull_batch(timestamps, beginnings, endings)
    message = penstock_pb2.PullBatch.FromString(data)
    assert (list(message.payloads), list(message.commit_ts)) == (payloads, timestamps)


@pytest.mark.parametrize("value", [b"", BIG])
@given(tp=st.integers(0, 4), start_ts=INT64, commit_ts=INT64, job_id=INT64)
def test_a_binlog_is_peeked_at_as_it_is_parsed(
    value: bytes, tp: int, start_ts: int, commit_ts: int, job_id: int
) -> None:
    message = binlog_pb2.Binlog(
        tp=tp,  # type: ignore[arg-type]
        start_ts=start_ts,
        commit_ts=commit_ts,
        ddl_job_id=job_id,
        prewrite_key=b"key",
        prewrite_value=value,
        ddl_query=b"query",
        ddl_schema_state=5,
    )
    same_heads(message.SerializeToString())


@pytest.mark.parametrize(
    "tail",
    [
        b"\x08",  # A field without its value.
        b"\x08\x09",  # A type that there is not: protobuf keeps it among the unknown fields.
        b"\x10\xff\xff",  # A number that does not end.
        b"\x10" + b"\xff" * 10 + b"\x01",  # A number of too many bytes.
        b"\x2a\x7f",  # A length beyond the end.
        b"\x2a\xff\xff\xff\xff\x7f",
        b"\x15\x01\x02\x03\x04",  # A known field of another wire type.
        b"\x9a\x06\x01x",  # An unknown field.
        b"\x07",  # No wire type.
        b"\x08\x01\x10\x05\x10\x07",  # Fields twice: the last counts.
    ],
)
def test_an_unusual_binlog_is_judged_by_protobuf(tail: bytes) -> None:
    message = binlog_pb2.Binlog(tp=1, start_ts=5, prewrite_value=BIG)  # type: ignore[arg-type]
    same_heads(message.SerializeToString() + tail)
    same_heads(tail + message.SerializeToString())


@pytest.mark.parametrize("cut", [1, 2, 150_000, 300_000])
def test_a_batch_cut_short_is_refused(cut: int) -> None:
    data = b"".join(protowire.write_batch_pieces(1, 2, [BIG]))
    with pytest.raises(DecodeError):
        protowire.decode_write_batch(data[:-cut])
