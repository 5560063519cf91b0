"""Single datums: byte vectors, round trips, the order of memcomparable forms, damage."""

import math
from collections.abc import Callable
from contextlib import suppress

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from penstock.datum import values
from penstock.datum.rows import fields, row_codec
from penstock.errors import Malformed
from penstock.wire import protowire
from tests.unit.penstock.datum_tables import UNHURRIED, cut_all

INT64 = st.integers(values.INT64_MIN, values.INT64_MAX)
UINT64 = st.integers(0, values.UINT64_MAX)
FLOATS = st.floats(allow_nan=False)


def encode_bytes_comparable(value: bytes) -> bytes:
    """Return groups of eight that sort like the bytes; an extra group follows a full last."""
    groups = [value[start : start + 8] for start in range(0, len(value) + 1, 8)]
    return b"".join(each.ljust(8, b"\0") + bytes([0xFF - 8 + len(each)]) for each in groups)


@pytest.mark.parametrize(
    ("value", "expected"),
    [(1, "0802"), (-1, "0801"), (values.INT64_MIN, "08ffffffffffffffffff01"), (0, "0800")],
)
def test_an_int_is_a_zigzag_varint(value: int, expected: str) -> None:
    assert values.int_datum(value).hex() == expected
    assert fields.read_int(bytes.fromhex(expected), 0) == (value, len(expected) // 2)


def test_a_uint_is_a_varint() -> None:
    assert values.uint_datum(300).hex() == "09ac02"


@pytest.mark.parametrize(
    ("value", "expected"),
    [(1.0, "05bff0000000000000"), (-1.0, "05400fffffffffffff"), (0.0, "058000000000000000")],
)
def test_a_float_sorts_as_bytes(value: float, expected: str) -> None:
    assert values.float_datum(value).hex() == expected


def test_a_negative_zero_keeps_its_sign_and_sorts_before_zero() -> None:
    assert values.float_datum(-0.0) < values.float_datum(0.0)
    assert math.copysign(1, values.read_float_comparable(values.float_datum(-0.0), 1)[0]) == -1


def test_a_string_has_its_length_as_a_signed_varint() -> None:
    assert values.bytes_datum(b"abc").hex() == "0206616263"


def test_memcomparable_bytes_stand_in_padded_groups() -> None:
    assert encode_bytes_comparable(b"").hex() == "0000000000000000f7"
    assert encode_bytes_comparable(b"abc").hex() == "6162630000000000fa"
    full = encode_bytes_comparable(b"12345678").hex()
    assert full == "3132333435363738ff" + "0000000000000000f7"


def test_a_memcomparable_int_has_its_sign_flipped() -> None:
    assert values.encode_int_comparable(1).hex() == "8000000000000001"
    assert values.encode_int_comparable(-1).hex() == "7fffffffffffffff"


def encode_varint(value: int) -> bytes:
    return protowire.encode_uvarint(value << 1 if value >= 0 else ~value << 1 | 1)


def encode_uint_comparable(value: int) -> bytes:
    return value.to_bytes(8, "big")


ROUND_TRIPS = [
    (encode_varint, values.read_varint, INT64),
    (protowire.encode_uvarint, values.read_uvarint, UINT64),
    (values.encode_int_comparable, values.read_int_comparable, INT64),
    (encode_uint_comparable, values.read_uint_comparable, UINT64),
    (values.encode_float_comparable, values.read_float_comparable, FLOATS),
    (values.encode_bytes, values.read_bytes, st.binary()),
    (encode_bytes_comparable, values.read_bytes_comparable, st.binary()),
]


@pytest.mark.parametrize(("encode", "read", "inputs"), ROUND_TRIPS)
@UNHURRIED
@given(data=st.data())
def test_what_is_written_reads_back_and_any_cut_is_malformed(
    encode: Callable[..., bytes],
    read: Callable[[bytes, int], tuple[object, int]],
    inputs: st.SearchStrategy[object],
    data: st.DataObject,
) -> None:
    value, tail = data.draw(inputs), data.draw(st.binary(max_size=3))
    raw = encode(value)
    assert read(b"??" + raw + tail, 2) == (value, 2 + len(raw))
    for end in range(len(raw)):
        with pytest.raises(Malformed):
            read(raw[:end], 0)


@pytest.mark.parametrize(
    ("encode", "inputs"),
    [
        (values.encode_int_comparable, INT64),
        (encode_uint_comparable, UINT64),
        (values.encode_float_comparable, FLOATS),
        (encode_bytes_comparable, st.binary()),
    ],
)
@UNHURRIED
@given(data=st.data())
def test_memcomparable_forms_sort_like_their_values(
    encode: Callable[..., bytes], inputs: st.SearchStrategy[object], data: st.DataObject
) -> None:
    one, other = data.draw(inputs), data.draw(inputs)
    assume(one != other)  # -0.0 and 0.0 are equal and have two forms.
    assert (encode(one) < encode(other)) == (one < other)  # type: ignore[operator]


@pytest.mark.parametrize("raw", ["ff" * 10, "ff" * 9 + "02", "80" * 11])
def test_a_varint_beyond_64_bits_is_malformed(raw: str) -> None:
    with pytest.raises(Malformed, match="64 bits"):
        values.read_uvarint(bytes.fromhex(raw), 0)


def test_padding_that_is_not_zero_is_malformed() -> None:
    with pytest.raises(Malformed, match="padded"):
        values.read_bytes_comparable(bytes.fromhex("6162630000000001fa"), 0)
    with pytest.raises(Malformed, match="padded"):
        values.read_bytes_comparable(bytes.fromhex("6162630000000000f0"), 0)


@pytest.mark.parametrize(
    "datum",
    [
        "00",
        "01" + "6162630000000000fa",
        "0206616263",
        "038000000000000001",
        "040000000000000001",
        "05bff0000000000000",
        "060e04810dfb38d204d2",
        "078000000000000001",
        "08ffffffffffffffffff01",
        "09ac02",
        "0a0c0178",
        "0a0402",
        "0a090100000000000000",
        "0a0d0c0178",
        "0a01020000002a0000001e00000001001f000000010009200000000c2800000061620100000000000000"
        + "0178",
    ],
)
def test_cutting_one_datum_finds_its_end_whatever_its_flag(datum: str) -> None:
    raw = bytes.fromhex(datum)
    assert row_codec.cut_one(b"?" + raw + b"\xff\xff", 1) == 1 + len(raw)
    assert cut_all(raw * 3) == [raw] * 3
    for end in range(len(raw)):
        with pytest.raises(Malformed):
            row_codec.cut_one(raw[:end], 0)


@UNHURRIED
@given(st.binary(max_size=64))
def test_cutting_random_bytes_ends_or_is_malformed(raw: bytes) -> None:
    with suppress(Malformed):
        assert 0 < row_codec.cut_one(raw, 0) <= len(raw)


@pytest.mark.parametrize("raw", ["02feffffffffffffffff01", "02ffffffffffffffffff01", "0201"])
def test_a_length_that_no_bytes_back_is_malformed_and_allocates_nothing(raw: str) -> None:
    with pytest.raises(Malformed):
        row_codec.cut_one(bytes.fromhex(raw), 0)
