"""Binlogs survive their bytes, and bytes that are no binlog are refused."""

import contextlib
from dataclasses import replace

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import Malformed
from penstock.log.chunks import before_rows, head_of, parsed_head
from penstock.pb import binlog_pb2, penstock_pb2, pump_pb2
from penstock.wire import batch
from penstock.wire.binlog import (
    Binlog,
    BinlogType,
    MutationType,
    Origin,
    PrewriteValue,
    TableMutation,
    fake_binlog,
)
from penstock.wire.codec import (
    decode_binlog,
    decode_origin,
    decode_prewrite_value,
    encode_binlog,
    encode_prewrite_value,
)

ts = st.integers(0, 2**63 - 1)
binlogs = st.builds(
    Binlog,
    tp=st.sampled_from(BinlogType),
    start_ts=ts,
    commit_ts=ts,
    prewrite_key=st.binary(max_size=20),
    prewrite_value=st.binary(max_size=40),
    ddl_query=st.binary(max_size=20),
    ddl_job_id=ts,
    ddl_schema_state=st.integers(0, 5),
)


@st.composite
def mutations(draw: st.DrawFn) -> TableMutation:
    changes = draw(st.lists(st.tuples(st.sampled_from(MutationType), st.binary(max_size=9))))
    rows = {kind: tuple(row for k, row in changes if k is kind) for kind in MutationType}
    return TableMutation(
        table_id=draw(st.integers(1, 2**40)),
        inserted_rows=rows[MutationType.INSERT],
        updated_rows=rows[MutationType.UPDATE],
        deleted_rows=rows[MutationType.DELETE],
        sequence=tuple(kind for kind, _ in changes),
    )


@given(binlogs)
def test_a_binlog_survives_its_bytes(binlog: Binlog) -> None:
    assert decode_binlog(encode_binlog(binlog)) == binlog


@given(st.builds(PrewriteValue, schema_version=ts, mutations=st.lists(mutations()).map(tuple)))
def test_row_changes_survive_their_bytes(value: PrewriteValue) -> None:
    assert decode_prewrite_value(encode_prewrite_value(value)) == value


def test_prewrite_bytes_followed_by_commit_bytes_are_the_merged_binlog() -> None:
    prewrite = Binlog(tp=BinlogType.PREWRITE, start_ts=5, prewrite_value=b"rows", ddl_job_id=3)
    commit = Binlog(tp=BinlogType.COMMIT, start_ts=5, commit_ts=9)
    merged = decode_binlog(encode_binlog(prewrite) + encode_binlog(commit))
    assert (merged.tp, merged.commit_ts) == (BinlogType.COMMIT, 9)
    assert (merged.prewrite_value, merged.ddl_job_id) == (b"rows", 3)


def test_only_a_rollback_with_equal_timestamps_is_fake() -> None:
    assert fake_binlog(7).is_fake
    assert not Binlog(tp=BinlogType.COMMIT, start_ts=7, commit_ts=7).is_fake
    assert not Binlog(tp=BinlogType.ROLLBACK, start_ts=7).is_fake


@given(st.binary(min_size=1, max_size=60))
def test_random_bytes_are_a_binlog_or_malformed(data: bytes) -> None:
    for decode in (decode_binlog, decode_prewrite_value):
        with contextlib.suppress(Malformed):
            decode(data)


def test_obsolete_forms_are_refused_and_not_skipped() -> None:
    with pytest.raises(Malformed, match="obsolete type 3"):
        decode_binlog(binlog_pb2.Binlog(tp=binlog_pb2.PreDDL).SerializeToString())
    value = binlog_pb2.PrewriteValue()
    value.mutations.add(table_id=4, deleted_ids=[1], sequence=[binlog_pb2.DeleteID])
    with pytest.raises(Malformed, match="table 4"):
        decode_prewrite_value(value.SerializeToString())


def test_a_sequence_that_disagrees_with_the_lists_is_malformed() -> None:
    value = binlog_pb2.PrewriteValue()
    value.mutations.add(table_id=4, inserted_rows=[b"x"], sequence=[])
    with pytest.raises(Malformed, match="sequence"):
        decode_prewrite_value(value.SerializeToString())


BIG = bytes(300_000)
SIZES = st.sampled_from([0, 1, 127, 128, 1000, 16_383, 16_384, 300_000])
INT64 = st.integers(-(1 << 63), (1 << 63) - 1)


def same_heads(payload: bytes) -> None:
    """Assert that peeking is the same as parsing, failure included."""
    try:
        binlog = binlog_pb2.Binlog.FromString(payload)
    except DecodeError:
        with pytest.raises(DecodeError):
            batch.peek_binlog(payload)
        return
    expected = (binlog.tp, binlog.start_ts, binlog.commit_ts, binlog.prewrite_key)
    assert batch.peek_binlog(payload) == expected


@given(st.integers(0, (1 << 64) - 1), st.integers(0, (1 << 64) - 1), st.lists(SIZES, max_size=6))
def test_a_write_batch_is_read_as_it_was_written(
    cluster_id: int, seq: int, sizes: list[int]
) -> None:
    payloads = [bytes(size) for size in sizes]
    message = penstock_pb2.WriteBatch(cluster_id=cluster_id, seq=seq, payloads=payloads)
    data = b"".join(batch.write_batch_pieces(cluster_id, seq, payloads))
    assert data == message.SerializeToString()
    found = batch.decode_write_batch(data)
    assert (found[0], found[1], list(found[2])) == (cluster_id, seq, payloads)


@given(st.integers(0, (1 << 64) - 1), SIZES, st.sampled_from([b"", b"\x08\x05", b"\x12\x02xy"]))
def test_a_write_request_is_read_as_protobuf_reads_it(
    cluster_id: int, size: int, tail: bytes
) -> None:
    message = pump_pb2.WriteBinlogReq(clusterID=cluster_id, payload=bytes(size))
    data = message.SerializeToString() + tail  # Of what is there twice, the last counts.
    expected = pump_pb2.WriteBinlogReq.FromString(data)
    assert batch.decode_write_request(data) == (expected.clusterID, expected.payload)


@pytest.mark.parametrize("cut", [1, 2, 150_000, 300_000])
def test_a_write_request_cut_short_is_refused(cut: int) -> None:
    data = pump_pb2.WriteBinlogReq(clusterID=1, payload=BIG).SerializeToString()
    with pytest.raises(DecodeError):
        batch.decode_write_request(data[:-cut])


@given(st.lists(st.tuples(SIZES, INT64), max_size=6))
def test_a_pull_batch_is_read_as_it_was_written(entries: list[tuple[int, int]]) -> None:
    payloads, timestamps = [bytes(size) for size, _ in entries], [ts for _, ts in entries]
    beginnings = [payload[: len(payload) // 3] for payload in payloads]
    endings = [payload[len(payload) // 3 :] for payload in payloads]
    data = batch.encode_pull_batch(timestamps, beginnings, endings)
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
    data = b"".join(batch.write_batch_pieces(1, 2, [BIG]))
    with pytest.raises(DecodeError):
        batch.decode_write_batch(data[:-cut])


NUMBER = st.integers(0, (1 << 64) - 1)
ORIGIN = st.builds(
    Origin, source=st.text(max_size=40), epoch=NUMBER, file=NUMBER, position=NUMBER,
    gtid=st.text(max_size=60), previous=st.none() | st.tuples(NUMBER, NUMBER),
    history=st.integers(0, (1 << 32) - 1), after=st.none() | st.tuples(NUMBER, NUMBER, NUMBER),
)  # fmt: skip
HERE = Origin(source="db-1", epoch=3, file=999_999, position=5 << 30, gtid="0-1-77")


@given(ORIGIN)
def test_an_origin_survives_the_way_through_the_bytes(origin: Origin) -> None:
    binlog = Binlog(tp=BinlogType.PREWRITE, start_ts=7, prewrite_value=b"rows", origin=origin)
    data = encode_binlog(binlog)
    assert decode_binlog(data) == binlog
    assert decode_origin(binlog_pb2.Binlog.FromString(data).origin.SerializeToString()) == origin


def test_an_origin_without_a_history_has_the_bytes_of_before() -> None:
    data = encode_binlog(Binlog(tp=BinlogType.PREWRITE, start_ts=7, origin=HERE))
    written = binlog_pb2.Binlog.FromString(data).origin.SerializeToString()
    assert written.hex() == "0a0464622d31100318bf843d2080808080142a06302d312d3737"


def test_a_binlog_without_an_origin_has_none_and_no_byte_more() -> None:
    plain = Binlog(tp=BinlogType.PREWRITE, start_ts=7, prewrite_value=b"rows")
    assert decode_binlog(encode_binlog(plain)).origin is None
    assert len(encode_binlog(plain)) < len(encode_binlog(replace(plain, origin=HERE)))


def test_a_commit_behind_a_prewrite_leaves_its_origin() -> None:
    prewrite = Binlog(tp=BinlogType.PREWRITE, start_ts=7, prewrite_value=b"rows", origin=HERE)
    commit = Binlog(tp=BinlogType.COMMIT, start_ts=7, commit_ts=9)
    merged = decode_binlog(encode_binlog(prewrite) + encode_binlog(commit))
    assert (merged.origin, merged.commit_ts) == (HERE, 9)


def test_a_large_binlog_with_an_origin_is_walked_and_not_copied() -> None:
    large = Binlog(tp=BinlogType.PREWRITE, start_ts=7, prewrite_value=bytes(200 << 10), origin=HERE)
    numbers = {0x08: 0, 0x10: 0, 0x18: 0, 0x38: 0}
    assert batch._is_plain(encode_binlog(large), numbers, {**batch._JUMPED_OVER, 0x22: []})
    assert tuple(numbers.values()) == (0, 7, 0, 0)


@given(ORIGIN)
def test_before_the_rows_of_a_large_transaction_the_head_names_the_origin(origin: Origin) -> None:
    prewrite = Binlog(tp=BinlogType.PREWRITE, start_ts=7, prewrite_key=b"key", origin=origin)
    head, rows = encode_binlog(prewrite), b"r" * 1000
    found = head_of(before_rows(head, len(rows)) + rows, len(before_rows(head, 1000)) + 1000)
    assert found == head
    assert decode_origin(parsed_head(found).origin.SerializeToString()) == origin
    whole = decode_binlog(before_rows(head, len(rows)) + rows)
    assert whole == replace(prewrite, prewrite_value=rows)
