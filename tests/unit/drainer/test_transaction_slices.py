"""Huge row changes cut into small ones hold the same changes in the same order, or are refused."""

import random
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given, settings
from hypothesis import strategies as st

from drainer.intake.payload import Limits, outline, slices, survey
from penstock.errors import Malformed
from penstock.pb import binlog_pb2 as pb
from penstock.wire import protowire
from penstock.wire.binlog import Binlog, BinlogType
from penstock.wire.codec import encode_binlog
from penstock.wire.protowire import LEN, VARINT, Source, encode_uvarint, fields, raw_fields, tag

Changes = dict[int, list[tuple[int, bytes]]]


def source_of(data: bytes) -> Source:
    return lambda offset, count: data[offset : offset + count]


def changes_of(*values: bytes) -> Changes:
    """Return each table's changes, in order, as protobuf reads them."""
    found: Changes = defaultdict(list)
    for data in values:
        for m in pb.PrewriteValue.FromString(data).mutations:
            lists = {0: iter(m.inserted_rows), 1: iter(m.updated_rows), 4: iter(m.deleted_rows)}
            found[m.table_id] += [(kind, next(lists[kind])) for kind in m.sequence]
            assert all(next(rest, None) is None for rest in lists.values())
    return {table_id: changes for table_id, changes in found.items() if changes}


def sliced(data: bytes, bytes_max: int, rows_max: int = 10**9) -> list[bytes]:
    source = source_of(data)
    version, _ = survey(source, 0, len(data))
    limits = Limits(bytes_max, rows_max)
    return list(slices(source, 0, len(data), version=version, limits=limits))


def a_field(number: int, content: bytes) -> bytes:
    return encode_uvarint(tag(number, LEN)) + encode_uvarint(len(content)) + content


_rows = st.binary(max_size=40)
_changes = st.lists(st.tuples(st.sampled_from([0, 1, 4]), _rows), max_size=40)
_mutations = st.lists(
    st.tuples(st.sampled_from([1, 2, 300, -7]), _changes, st.integers(0, 3)), max_size=8
)


def serialized(table_id: int, changes: list[tuple[int, bytes]], form: int) -> bytes:
    """Return a mutation as some writer may put it."""
    lists = {0: 2, 1: 3, 4: 6}
    fields_of_id = encode_uvarint(tag(1, VARINT)) + encode_uvarint(table_id % 2**64)
    rows = [a_field(lists[kind], row) for kind, row in changes]
    kinds = [bytes([kind]) for kind, _ in changes]
    if form == 0:  # As protobuf writes it.
        grouped = sorted(zip(changes, rows, strict=True), key=lambda pair: pair[0][0])
        field_of_kinds = b"".join(encode_uvarint(tag(7, VARINT)) + kind for kind in kinds)
        return fields_of_id + b"".join(row for _, row in grouped) + field_of_kinds
    if form == 1:  # Packed, in the order of the changes, an unknown field behind it.
        return fields_of_id + b"".join(rows) + a_field(7, b"".join(kinds)) + a_field(99, b"?")
    if form == 2:  # Rows and kinds in turn.
        turns = zip(kinds, rows, strict=True)
        return fields_of_id + b"".join(encode_uvarint(tag(7, VARINT)) + k + row for k, row in turns)
    half = len(kinds) // 2  # The id last, the sequence first and in two parts.
    field_of_kinds = a_field(7, b"".join(kinds[:half])) + a_field(7, b"".join(kinds[half:]))
    return field_of_kinds + b"".join(rows) + fields_of_id


@settings(max_examples=300, deadline=None)
@given(mutations=_mutations, version=st.integers(0, 2**40), bytes_max=st.integers(1, 1500))
def test_slices_hold_the_same_changes_in_the_same_order(
    mutations: Any, version: int, bytes_max: int
) -> None:
    chunk_bytes, protowire.CHUNK_BYTES = protowire.CHUNK_BYTES, 64
    try:
        field_of_version = encode_uvarint(tag(1, VARINT)) + encode_uvarint(version)
        data = (
            b"".join(a_field(2, serialized(*mutation)) for mutation in mutations) + field_of_version
        )
        parts = sliced(data, bytes_max)
    finally:
        protowire.CHUNK_BYTES = chunk_bytes
    assert changes_of(*parts) == changes_of(data)
    assert {pb.PrewriteValue.FromString(part).schema_version for part in parts} <= {version}
    for part in parts:
        rows = sum(len(changes) for changes in changes_of(part).values())
        assert len(part) <= max(bytes_max, 64) or rows <= 1
    tables = {table_id for table_id, _, _ in mutations}
    assert survey(source_of(data), 0, len(data)) == (version, tables)


@settings(max_examples=300, deadline=None)
@given(data=st.data(), mutations=_mutations, bytes_max=st.integers(1, 200))
def test_damaged_bytes_are_malformed_or_hold_what_protobuf_reads(
    data: Any, mutations: Any, bytes_max: int
) -> None:
    value = bytearray(b"".join(a_field(2, serialized(*mutation)) for mutation in mutations))
    for _ in range(data.draw(st.integers(0, 3)) if value else 0):
        value[data.draw(st.integers(0, len(value) - 1))] = data.draw(st.integers(0, 255))
    damaged = bytes(value[: data.draw(st.integers(0, len(value)))])
    try:
        parts = sliced(damaged, bytes_max)
        got = changes_of(*parts)
    except Malformed:
        return
    except (DecodeError, StopIteration, AssertionError, KeyError):
        return  # Small mutations are passed on unread: then it is their reader who refuses.
    assert got == changes_of(damaged)


def test_rows_larger_than_a_slice_are_slices_of_their_own() -> None:
    rows = [bytes(200_000), b"small", bytes(300_000), bytes(5), bytes(5)]
    message = pb.TableMutation(table_id=3, inserted_rows=rows, sequence=[pb.Insert] * 5)
    data = pb.PrewriteValue(schema_version=8, mutations=[message]).SerializeToString()
    parts = sliced(data, 1000)
    found = [[len(row) for _, row in changes_of(part)[3]] for part in parts]
    assert found == [[200_000], [5], [300_000], [5, 5]]
    assert [len(sliced(data, 10**6, rows_max=n)) for n in (1, 5)] == [1, 1]
    assert len(sliced(data, 400_000, rows_max=2)) == 3


@pytest.mark.parametrize(
    ("message", "problem"),
    [
        (
            pb.TableMutation(inserted_rows=[b"x" * 99] * 3, sequence=[pb.Insert] * 2),
            "in the list than",
        ),
        (pb.TableMutation(inserted_rows=[b"x" * 99] * 3, sequence=[pb.Insert] * 4), "in no list"),
        (
            pb.TableMutation(
                inserted_rows=[b"x" * 99] * 3, sequence=[pb.Insert, pb.Insert, pb.Update]
            ),
            "in no list",
        ),
        (pb.TableMutation(inserted_rows=[b"x" * 99] * 3), "in the list than"),
        (pb.TableMutation(inserted_rows=[b"x" * 99] * 3, deleted_ids=[1]), "obsolete"),
        (pb.TableMutation(inserted_rows=[b"x" * 99] * 3, deleted_pks=[b"a"]), "obsolete"),
    ],
)
def test_a_large_mutation_whose_lists_and_sequence_disagree_is_refused(
    message: Any, problem: str
) -> None:
    data = pb.PrewriteValue(mutations=[message]).SerializeToString()
    with pytest.raises(Malformed, match=problem):
        sliced(data, 100)


def test_a_merged_binlog_says_its_last_numbers_and_where_its_changes_are() -> None:
    value = random.Random(1).randbytes(3000)
    prewrite = Binlog(tp=BinlogType.PREWRITE, start_ts=5, prewrite_key=b"k", prewrite_value=value)
    commit = Binlog(tp=BinlogType.COMMIT, start_ts=5, commit_ts=2**61)
    data = encode_binlog(prewrite) + encode_binlog(commit)
    found = outline(source_of(data), len(data))
    assert (found.tp, found.start_ts, found.commit_ts) == (BinlogType.COMMIT, 5, 2**61)
    assert found.ddl_job_id == 0
    assert data[found.value_start : found.value_end] == value
    for cut in range(1, len(data)):
        with pytest.raises(Malformed, match=r"bytes are missing|ends within|ends behind"):
            outline(source_of(data[:cut]), cut + 1)


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"\x00\x01", "the number 0"),
        (b"\x0b", "wire type 3"),
        (b"\x0f\x00", "wire type 7"),
        (b"\x12\x05abc", "ends behind"),
        (b"\x0d\x00\x00", "ends behind"),
        (b"\x08" + b"\xff" * 12, "more than ten bytes"),
        (b"\x08\x80", "ends within"),
        (b"\x92", "ends within"),
    ],
)
def test_what_is_no_message_is_refused_with_its_place(data: bytes, problem: str) -> None:
    good = a_field(1, b"x" * 9)
    with pytest.raises(Malformed, match=rf"{problem}.* at its byte 11"):
        list(fields(source_of(good + data), 0, len(good + data)))


def test_a_file_that_ends_too_early_is_refused() -> None:
    data = a_field(1, bytes(500)) + a_field(2, bytes(300_000))
    short: Callable[[int], Source] = lambda end: source_of(data[:end])  # noqa: E731
    for end in (10, 502, 506, 300_000):
        with pytest.raises(Malformed, match="bytes are missing"):
            list(raw_fields(short(end), 0, len(data), tag(2, LEN)))
