"""Binlogs survive their bytes, and bytes that are no binlog are refused."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import Malformed
from penstock.pb import binlog_pb2
from penstock.wire.binlog import (
    Binlog,
    BinlogType,
    MutationType,
    PrewriteValue,
    TableMutation,
    fake_binlog,
)
from penstock.wire.codec import (
    decode_binlog,
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
