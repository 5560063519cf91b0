"""MySQL's binary decimals: the reference's vectors, exact digits, damage."""

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.datum import decimals
from penstock.errors import Malformed
from tests.unit.penstock.datum_tables import UNHURRIED

SIZES = st.integers(1, 65).flatmap(
    lambda precision: st.tuples(st.just(precision), st.integers(0, min(30, precision)))
)


@pytest.mark.parametrize(
    ("text", "size", "expected"),
    [
        ("1234567890.1234", (14, 4), "0e04810dfb38d204d2"),
        ("-1234567890.1234", (14, 4), "0e047ef204c72dfb2d"),
        ("-1.50", (5, 2), "05027ffecd"),
    ],
)
def test_the_bytes_are_mysqls(text: str, size: tuple[int, int], expected: str) -> None:
    assert decimals.encode_decimal(Decimal(text), *size).hex() == expected
    assert decimals.read_decimal_text(bytes.fromhex(expected), 0) == (text, len(expected) // 2)


@UNHURRIED
@given(st.data())
def test_every_digit_of_every_size_comes_back(data: st.DataObject) -> None:
    precision, frac = data.draw(SIZES)
    limit = 10**precision - 1
    number = data.draw(st.integers(-limit, limit) | st.sampled_from([-limit, -1, 0, 1, limit]))
    raw = decimals.encode_unscaled(number, precision, frac)
    assert len(raw) == 2 + decimals.binary_size(precision, frac)
    assert decimals.read_unscaled(raw, 0) == (number, frac, len(raw))
    text, _ = decimals.read_decimal_text(raw, 0)
    assert Decimal(text).as_tuple().exponent == -frac
    assert decimals.encode_decimal(Decimal(text), precision, frac) == raw


@UNHURRIED
@given(st.data())
def test_decimals_of_one_size_sort_as_bytes(data: st.DataObject) -> None:
    precision, frac = data.draw(SIZES)
    numbers = st.integers(-(10**precision) + 1, 10**precision - 1)
    one, other = data.draw(numbers), data.draw(numbers)
    raws = [decimals.encode_unscaled(n, precision, frac) for n in (one, other)]
    assert (raws[0] < raws[1]) == (one < other)


@pytest.mark.parametrize(
    ("text", "expected"), [("-1.50", (3, 2)), ("0.05", (2, 2)), ("1E+3", (4, 0)), ("0", (1, 0))]
)
def test_without_a_size_the_value_has_its_own(text: str, expected: tuple[int, int]) -> None:
    assert tuple(decimals.encode_decimal(Decimal(text))[:2]) == expected


def test_digits_beyond_the_scale_are_rounded_half_away_from_zero() -> None:
    for text, expected in [("1.005", "1.01"), ("-1.005", "-1.01"), ("1.0049", "1.00")]:
        raw = decimals.encode_decimal(Decimal(text), 5, 2)
        assert decimals.read_decimal_text(raw, 0)[0] == expected


@pytest.mark.parametrize("text", ["1000", "999.995", "1E+999999", "NaN", "Infinity"])
def test_a_value_too_large_for_its_column_is_malformed(text: str) -> None:
    with pytest.raises(Malformed):
        decimals.encode_decimal(Decimal(text), 5, 2)


def test_another_scale_is_taken_only_when_no_digit_is_lost() -> None:
    raw = decimals.encode_decimal(Decimal("1.50"), 5, 2)
    assert decimals.read_decimal_text(raw, 0, 4)[0] == "1.5000"
    assert decimals.read_decimal_text(raw, 0, 1)[0] == "1.5"
    with pytest.raises(Malformed, match="fraction digits"):
        decimals.read_decimal_text(raw, 0, 0)


def test_a_word_with_too_many_digits_is_malformed() -> None:
    with pytest.raises(Malformed, match="word below 1000000000"):
        decimals.read_unscaled(bytes.fromhex("0900bfffffff"), 0)


def test_inverted_zero_reads_as_zero() -> None:
    assert decimals.read_decimal_text(bytes.fromhex("05027fffff"), 0)[0] == "0.00"


@UNHURRIED
@given(st.binary(max_size=40))
def test_random_bytes_are_a_decimal_or_malformed(raw: bytes) -> None:
    try:
        text, end = decimals.read_decimal_text(raw, 0)
    except Malformed:
        return
    assert end <= len(raw)
    assert len(text) <= 84
