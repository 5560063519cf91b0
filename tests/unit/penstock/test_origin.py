"""A binlog says where its transaction comes from, and everything that reads binlogs bears that."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from penstock.log.chunks import before_rows, head_of, parsed_head
from penstock.pb import binlog_pb2
from penstock.wire import protowire
from penstock.wire.binlog import Binlog, BinlogType, Origin
from penstock.wire.codec import decode_binlog, decode_origin, encode_binlog

NUMBER = st.integers(0, (1 << 64) - 1)
ORIGIN = st.builds(
    Origin, source=st.text(max_size=40), epoch=NUMBER, file=NUMBER, position=NUMBER,
    gtid=st.text(max_size=60), previous=st.none() | st.tuples(NUMBER, NUMBER),
)  # fmt: skip
HERE = Origin(source="db-1", epoch=3, file=999_999, position=5 << 30, gtid="0-1-77")


@given(ORIGIN)
def test_an_origin_survives_the_way_through_the_bytes(origin: Origin) -> None:
    binlog = Binlog(tp=BinlogType.PREWRITE, start_ts=7, prewrite_value=b"rows", origin=origin)
    data = encode_binlog(binlog)
    assert decode_binlog(data) == binlog
    assert decode_origin(binlog_pb2.Binlog.FromString(data).origin.SerializeToString()) == origin


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
    assert protowire._is_plain(encode_binlog(large), numbers, {**protowire._JUMPED_OVER, 0x22: []})
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
