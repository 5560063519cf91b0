"""JSON's binary form: the reference's vector, text, and bytes that try to unfold into gigabytes."""

import decimal
import json
import struct
from contextlib import suppress
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.datum import jsonb
from penstock.datum.values import read_uvarint
from penstock.errors import Malformed
from tests.unit.penstock.datum_tables import JSON_VALUES, TEXT, UNHURRIED

VECTOR = "01020000002a0000001e00000001001f000000010009200000000c280000006162" + (
    "01000000000000000178"
)

MORNING = 2022 << 50 | 4 << 46 | 27 << 41 | 4 << 36 | 5 << 30 | 7 << 24


def text_of(binary: bytes) -> str:
    text, end = jsonb.read_text(binary, 0)
    assert end == len(binary)
    return text


def test_an_object_is_laid_out_as_tidb_does() -> None:
    assert jsonb.encode_text('{"a":1,"b":"x"}').hex() == VECTOR
    assert text_of(bytes.fromhex(VECTOR)) == '{"a": 1, "b": "x"}'


def test_keys_are_sorted_as_bytes() -> None:
    assert jsonb.encode_text('{"b":"x","a":1}').hex() == VECTOR
    assert text_of(jsonb.encode({"é": 1, "z": 2, "aa": 3, "b": 4})) == (
        '{"aa": 3, "b": 4, "z": 2, "é": 1}'
    )


@UNHURRIED
@given(JSON_VALUES)
def test_every_value_comes_back(value: object) -> None:
    text = text_of(jsonb.encode_text(json.dumps(value)))
    assert json.loads(text) == value
    assert text_of(jsonb.encode(value)) == text
    assert text_of(jsonb.encode_text(text)) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1.0, "1.0"), (1e20, "100000000000000000000.0"), (1e21, "1e+21"), (1.5e300, "1.5e+300"),
        (1e-6, "0.000001"), (1.5e-7, "1.5e-7"), (0.1, "0.1"), (-0.0, "-0.0"),
    ],
)  # fmt: skip
def test_doubles_are_laid_out_as_javascript_does_and_stay_doubles(value: float, text: str) -> None:
    assert jsonb.json_double(value) == text
    assert text_of(jsonb.encode_text(text)) == text


def test_control_characters_are_escaped() -> None:
    assert text_of(jsonb.encode('a"\\\n\x01é')) == '"a\\"\\\\\\n\\u0001é"'


def test_integers_take_the_first_type_that_holds_them() -> None:
    assert jsonb.encode(1 << 63)[0] == jsonb.UINT64
    assert jsonb.encode(-(1 << 63))[0] == jsonb.INT64
    assert jsonb.encode(1 << 64)[:2] == bytes((jsonb.OPAQUE, jsonb.DECIMAL))
    assert jsonb.encode(10**65)[0] == jsonb.DOUBLE


@pytest.mark.parametrize(
    ("binary", "text"),
    [
        ("0dfc0161", '"base64:type252:YQ=="'),
        ("0e" + struct.pack("<Q", 2022 << 50 | 4 << 46 | 27 << 41).hex(), '"2022-04-27"'),
        ("0f" + struct.pack("<Q", MORNING).hex(), '"2022-04-27 04:05:07.000000"'),
        ("11" + struct.pack("<qI", -1_500_000_000, 6).hex(), '"-00:00:01.500000"'),
    ],
)  # fmt: skip
def test_mysqls_own_types_become_text(binary: str, text: str) -> None:
    assert text_of(bytes.fromhex(binary)) == text


@pytest.mark.parametrize(
    "text", ["", "{", "nul", "NaN", "[1,]", '"\\ud800"', "Infinity", "[" * 101 + "]" * 101]
)
def test_what_is_not_json_is_malformed(text: str) -> None:
    with pytest.raises(Malformed):
        jsonb.encode_text(text)
    with pytest.raises(Malformed):
        jsonb.encode_text("[" * 100_000)


@pytest.mark.parametrize(
    "value", [{1: 2}, {"k" * 65536: 1}, {1, 2}, float("nan"), 10**400, "\ud800"]
)
def test_what_json_cannot_hold_is_malformed(value: object) -> None:
    with pytest.raises(Malformed):
        jsonb.encode(value)


@UNHURRIED
@given(JSON_VALUES, st.data())
def test_damaged_json_is_json_or_malformed(value: object, data: st.DataObject) -> None:
    raw = bytearray(jsonb.encode(value))
    for _ in range(data.draw(st.integers(1, 3))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    cut = bytes(raw[: data.draw(st.integers(0, len(raw)))])
    for candidate in (bytes(raw), cut):
        with suppress(Malformed):
            assert len(jsonb.read_text(candidate, 0)[0]) <= 100 * len(candidate) + 400


def test_an_array_that_contains_itself_is_malformed() -> None:
    body = struct.pack("<II", 1, 13) + struct.pack("<BI", jsonb.ARRAY, 0)
    with pytest.raises(Malformed):
        jsonb.read_text(bytes((jsonb.ARRAY,)) + body, 0)


def test_entries_that_share_one_value_are_malformed_before_they_multiply() -> None:
    # Thirty levels whose two entries both point at the next level would be 2^30 values.
    body = struct.pack("<II", 0, 8)
    for _ in range(30):
        head = struct.pack("<II", 2, 18 + len(body))
        body = head + struct.pack("<BI", jsonb.ARRAY, 18) * 2 + body
    with pytest.raises(Malformed, match="overlap"):
        jsonb.read_text(bytes((jsonb.ARRAY,)) + body, 0)


@st.composite
def decimal_values(draw: st.DrawFn) -> Decimal:
    """Return a decimal as MySQL can hold it: up to 65 digits, up to 30 of them a fraction."""
    digits = draw(st.integers(1, 65))
    scale = draw(st.integers(0, min(digits, 30)))
    return Decimal(draw(st.integers(1 - 10**digits, 10**digits - 1))).scaleb(
        -scale, decimal.Context(prec=65)
    )


DOCUMENTS = st.recursive(
    decimal_values() | st.floats(allow_nan=False, allow_infinity=False) | st.none() | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=10,
)


def plain(value: object) -> object:
    """Return a document as a reader has it that knows no decimals."""
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [plain(item) for item in value]
    return float(value) if isinstance(value, Decimal) else value


def digits_of(value: object, path: tuple[str | int, ...] = ()) -> set[jsonb.Typed]:
    if isinstance(value, Decimal):
        return {jsonb.Typed(path, jsonb.DECIMAL, format(value if value else abs(value), "f"))}
    if not isinstance(value, (dict, list)):
        return set()
    items = value.items() if isinstance(value, dict) else enumerate(value)
    return {typed for key, item in items for typed in digits_of(item, (*path, key))}


def read_by_tidb(tp: int, data: bytes) -> object:
    """Read a document by its offsets, as TiDB and older Drainers do."""
    if tp in (jsonb.OBJECT, jsonb.ARRAY):
        (count,) = struct.unpack_from("<I", data)
        at = 8 + 6 * count * (tp == jsonb.OBJECT)
        entries = [struct.unpack_from("<BI", data, at + 5 * i) for i in range(count)]
        items = [
            None if item == jsonb.LITERAL else read_by_tidb(item, data[offset:])
            for item, offset in entries
        ]
        if tp == jsonb.ARRAY:
            return items
        spans = [struct.unpack_from("<IH", data, 8 + 6 * i) for i in range(count)]
        return dict(zip([data[a : a + n].decode() for a, n in spans], items, strict=True))
    if tp == jsonb.DOUBLE:
        return struct.unpack_from("<d", data)[0]
    if tp == jsonb.STRING:
        length, at = read_uvarint(data, 0)
        return data[at : at + length].decode()
    return None


@UNHURRIED
@given(DOCUMENTS)
def test_decimals_keep_their_digits_and_older_readers_see_doubles(value: object) -> None:
    binary = jsonb.encode(value)
    text = text_of(binary)
    wanted = digits_of(value)
    assert set(jsonb.typed_scalars(binary)) == wanted
    assert isinstance(text, jsonb.TypedJson) == bool(wanted)
    assert jsonb.encode_text(text) == binary
    read = json.loads(text, parse_float=str, parse_int=str)
    for path, _, digits in wanted:
        found = read
        for leg in path:
            found = found[leg]
        assert found == digits
    if not isinstance(value, Decimal):
        assert read_by_tidb(binary[0], binary[1:]) == plain(value)


@pytest.mark.parametrize(
    ("text", "is_typed"),
    [
        ('{"a": 1.10}', True), ("[1.1, 2.0, 1e20]", False), ("[0.1234567890123456789, 1]", True),
        ("1.10", True), ("[18446744073709551616]", True), ("[100000000000000000000.0]", False),
        ("[0.00000015]", False), ("[-0.0]", False), (f"[0.{'1' * 31}]", False),
    ],
)  # fmt: skip
def test_numbers_in_text_keep_digits_that_a_double_does_not_print(
    text: str, is_typed: bool
) -> None:
    made = jsonb.read_text(jsonb.encode_text(text), 0)[0]
    assert isinstance(made, jsonb.TypedJson) == is_typed
    assert (made == text) == (is_typed or text in ("[-0.0]", "[100000000000000000000.0]"))


def test_a_value_beyond_the_end_after_a_double_is_damage() -> None:
    head = struct.pack("<II", 2, 26)  # An array of a double at 18 and a text at 60.
    entries = struct.pack("<BIBI", jsonb.DOUBLE, 18, jsonb.STRING, 60)
    with pytest.raises(Malformed):
        jsonb.read_text(bytes([jsonb.ARRAY]) + head + entries + struct.pack("<d", 1.5), 0)
