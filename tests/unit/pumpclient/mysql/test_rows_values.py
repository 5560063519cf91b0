import json
import math
import struct
from contextlib import suppress
from datetime import datetime
from decimal import Decimal

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from penstock.datum import jsonb
from penstock.datum.decimals import encode_unscaled
from penstock.ddl.charsets import charset_named
from penstock.errors import Malformed, NeedsOperator
from pumpclient.mysql.rows.column_types import decompressed, inet6_text, reading_of, shortest_float
from pumpclient.mysql.rows.json_binary import (
    JsonChange,
    Opaque,
    Operation,
    apply_changes,
    double_text,
    json_text,
    path_legs,
    read_changes,
    read_json,
    text_of,
)
from pumpclient.mysql.rows.rows_decoder import Decoder, value_reader
from pumpclient.mysql.rows.table_map import Column, TableMap, WireType, charset_name, charset_of
from tests.kit.mysql.json_encoding import write_changes, write_json
from tests.kit.mysql.row_encoding import compressed, make_image, string_metadata, value_bytes

UTF8, BINARY, LATIN1 = 45, 63, 8


def floats32() -> st.SearchStrategy[float]:
    return st.floats(width=32, allow_nan=False, allow_infinity=False).map(shortest_float)


def integers(size: int, is_unsigned: bool) -> st.SearchStrategy[int]:
    bits = 8 * size
    return (
        st.integers(0, 2**bits - 1)
        if is_unsigned
        else st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    )


def clock(hours: int = 23) -> st.SearchStrategy[str]:
    return st.builds(
        "{:02d}:{:02d}:{:02d}".format, st.integers(0, hours), st.integers(0, 59), st.integers(0, 59)
    )


def dates() -> st.SearchStrategy[str]:
    return st.builds(
        "{:04d}-{:02d}-{:02d}".format, st.integers(0, 9999), st.integers(0, 12), st.integers(0, 31)
    )


def fraction(fsp: int) -> st.SearchStrategy[str]:
    return st.integers(0, 10**fsp - 1).map(f".{{:0{fsp}d}}".format) if fsp else st.just("")


def signed_times(fsp: int) -> st.SearchStrategy[str]:
    text = st.builds("{}{}{}".format, st.sampled_from(["", "-"]), clock(838), fraction(fsp))
    return text.filter(lambda t: t[0] != "-" or any(c in t for c in "123456789"))


def timestamps(fsp: int) -> st.SearchStrategy[str]:
    range_ = st.datetimes(datetime(1971, 1, 1), datetime(2105, 1, 1))  # noqa: DTZ001
    whole = range_.map(lambda d: f"{d:%Y-%m-%d %H:%M:%S}")
    return st.builds("{}{}".format, whole, fraction(fsp))


def decimals(precision: int, scale: int) -> st.SearchStrategy[Decimal]:
    limit = 10**precision - 1
    return st.integers(-limit, limit).map(lambda n: Decimal(f"{n}e-{scale}"))


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.text(max_size=200)
    | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: (
        st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=9), inner, max_size=5)
    ),
)


def texts_of(codec: str, size: int) -> st.SearchStrategy[str]:
    return st.text(st.characters(codec=codec, exclude_categories=["Cs"]), max_size=size)


def columns() -> list[tuple[str, Column, st.SearchStrategy[object]]]:
    sizes = {
        WireType.TINY: 1,
        WireType.SHORT: 2,
        WireType.INT24: 3,
        WireType.LONG: 4,
        WireType.LONGLONG: 8,
    }
    out: list[tuple[str, Column, st.SearchStrategy[object]]] = []
    for type_, size in sizes.items():
        for is_unsigned in (False, True):
            name = f"{type_.name} {'unsigned' * is_unsigned}"
            out.append((name, Column(type_, is_unsigned=is_unsigned), integers(size, is_unsigned)))
    for fsp in range(7):
        out.append((f"TIME({fsp})", Column(WireType.TIME2, fsp), signed_times(fsp)))
        whole = st.builds("{} {}{}".format, dates(), clock(), fraction(fsp))
        out.append((f"DATETIME({fsp})", Column(WireType.DATETIME2, fsp), whole))
        out.append((f"TIMESTAMP({fsp})", Column(WireType.TIMESTAMP2, fsp), timestamps(fsp)))
    for precision, scale in [(1, 0), (9, 9), (10, 2), (18, 9), (38, 38), (65, 0), (65, 30)]:
        column = Column(WireType.NEWDECIMAL, precision << 8 | scale, is_unsigned=False)
        out.append((f"DECIMAL({precision},{scale})", column, decimals(precision, scale)))
    for length in (10, 255, 300, 1000):
        string = string_metadata(WireType.STRING, length)
        out.append(
            (
                f"CHAR({length})",
                Column(WireType.STRING, string, collation=UTF8),
                st.text(st.characters(exclude_categories=["Cs"]), max_size=length // 4),
            )
        )
        binary = st.binary(min_size=length, max_size=length)
        out.append((f"BINARY({length})", Column(WireType.STRING, string, collation=BINARY), binary))
        out.append(
            (
                f"VARCHAR({length})",
                Column(WireType.VARCHAR, length, collation=LATIN1),
                texts_of("latin-1", length).filter(
                    lambda t: not any("\x7f" < c < "\xa0" for c in t)
                ),
            )
        )
    for prefix in (1, 2, 3, 4):
        out.append(
            (
                f"BLOB {prefix}",
                Column(WireType.BLOB, prefix, collation=BINARY),
                st.binary(max_size=255),
            )
        )
    for size in range(1, 9):
        out.append(
            (
                f"SET {size}",
                Column(WireType.STRING, string_metadata(WireType.SET, size)),
                integers(size, True),
            )
        )
    return [
        *out,
        ("FLOAT", Column(WireType.FLOAT, 4), floats32()),
        ("DOUBLE", Column(WireType.DOUBLE, 8), st.floats(allow_nan=False)),
        ("YEAR", Column(WireType.YEAR), st.just(0) | st.integers(1901, 2155)),
        ("BIT(1)", Column(WireType.BIT, 0x0100), st.integers(0, 1)),
        ("BIT(17)", Column(WireType.BIT, 0x0102), st.integers(0, 2**17 - 1)),
        ("BIT(64)", Column(WireType.BIT, 0x0008), integers(8, True)),
        ("DATE", Column(WireType.DATE), dates()),
        ("old TIME", Column(WireType.TIME), signed_times(0)),
        ("old DATETIME", Column(WireType.DATETIME), st.builds("{} {}".format, dates(), clock())),
        ("old TIMESTAMP", Column(WireType.TIMESTAMP), timestamps(0)),
        ("ENUM", Column(WireType.STRING, string_metadata(WireType.ENUM, 2)), integers(2, True)),
        ("GEOMETRY", Column(WireType.GEOMETRY, 4), st.binary(max_size=99)),
        ("VECTOR", Column(WireType.VECTOR, 4), st.lists(floats32(), max_size=9).map(tuple)),
        (
            "uuid",
            Column(WireType.STRING, 0xFE10, collation=BINARY, declared="uuid"),
            st.uuids().map(str),
        ),
        (
            "inet4",
            Column(WireType.STRING, 0xFE04, collation=BINARY, declared="inet4"),
            st.ip_addresses(v=4).map(str),
        ),
        (
            "TEXT COMPRESSED",
            Column(WireType.BLOB_COMPRESSED, 2, collation=UTF8),
            st.text("ab", max_size=900),
        ),
        (
            "VARBINARY COMPRESSED",
            Column(WireType.VARCHAR_COMPRESSED, 300, collation=BINARY),
            st.binary(max_size=300),
        ),
    ]


@pytest.mark.parametrize(
    ("name", "column", "values"), columns(), ids=lambda v: v if isinstance(v, str) else ""
)
@settings(max_examples=25)
@given(st.data())
def test_a_value_survives_its_bytes_by_both_ways_of_reading(
    name: str, column: Column, values: st.SearchStrategy[object], data: st.DataObject
) -> None:
    value = data.draw(values)
    reading = reading_of(column)
    raw = value_bytes(column, value)
    assert value_reader(reading)(raw[reading.prefix :]) == value
    table = TableMap("s", "t", (column, Column(WireType.DATE)))
    image = make_image(table.columns, (value, None))
    decoder = Decoder(table)
    assert decoder._read(image * 2, 0) == [(value, None)] * 2


def test_the_zero_timestamp_is_the_zero_date() -> None:
    reading = reading_of(Column(WireType.TIMESTAMP2, 3))
    assert value_reader(reading)(bytes(6)) == "0000-00-00 00:00:00.000"


def test_a_negative_time_borrows_its_fraction() -> None:
    # -00:00:00.01 is one hundredth below zero, so whole seconds read -1 and hundredths 255.
    column = Column(WireType.TIME2, 2)
    reading = reading_of(column)
    assert value_reader(reading)(bytes.fromhex("7fffffff")) == "-00:00:00.01"
    assert value_bytes(column, "-00:00:00.01") == bytes.fromhex("7fffffff")


@given(st.floats(width=32, allow_nan=False, allow_infinity=False))
def test_a_float_is_written_with_the_fewest_digits_that_lead_back_to_it(value: float) -> None:
    short = shortest_float(value)
    assert struct.unpack("<f", struct.pack("<f", short))[0] == value
    assert shortest_float(0.10000000149011612) == 0.1


@given(st.floats(allow_nan=False, allow_infinity=False))
@example(1e15)
@example(123456789012345.0)
@example(1.5e-9)
def test_a_double_s_text_reads_back_as_the_same(value: float) -> None:
    assert float(double_text(value)) == value
    assert math.copysign(1, float(double_text(value))) == math.copysign(1, value)


@given(json_values)
def test_json_survives_its_binary_form_and_prints_as_json(value: object) -> None:
    data = write_json(value)
    assert read_json(data) == value
    assert json.loads(json_text(data)) == value


@given(json_values, st.data())
def test_damaged_json_is_malformed_and_never_large(value: object, data: st.DataObject) -> None:
    raw = bytearray(write_json(value))
    for _ in range(3):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    with suppress(Malformed):
        json_text(bytes(raw))


@given(st.binary(max_size=64))
def test_random_bytes_are_json_or_malformed(raw: bytes) -> None:
    with suppress(Malformed):
        json_text(raw)
    with suppress(Malformed):
        read_changes(raw)


def test_large_json_has_wide_offsets() -> None:
    value = {"a": "x" * 70_000, "b": [1, "y" * 70_000]}
    data = write_json(value)
    assert data[0] == 0x01
    assert read_json(data) == value


def test_json_prints_keys_in_stored_order_and_opaque_values_as_their_own_type() -> None:
    packed = ((2024 * 13 + 2) << 22 | 29 << 17 | 12 << 12 | 34 << 6 | 56) << 24 | 789
    value = {
        "bb": Opaque(WireType.NEWDECIMAL, bytes.fromhex("0502 7ffecd".replace(" ", ""))),
        "a": Opaque(WireType.DATETIME, packed.to_bytes(8, "little")),
        "dd": Opaque(
            WireType.DATE, ((2024 * 13 + 2) << 22 | 29 << 17).__lshift__(24).to_bytes(8, "little")
        ),
        "ccc": Opaque(WireType.TIME, (-(1 << 36)).to_bytes(8, "little", signed=True)),
        "e": Opaque(WireType.VARCHAR, b"ab"),
        "f": [1.0, 1e20, 18446744073709551615, "é\n\x01"],
    }
    assert json_text(write_json(value)) == (
        '{"a": "2024-02-29 12:34:56.000789", "e": "base64:type15:YWI=",'
        ' "f": [1.0, 1e20, 18446744073709551615, "é\\n\\u0001"],'
        ' "bb": -1.50, "dd": "2024-02-29", "ccc": "-01:00:00.000000"}'
    )


def packed_time(year: int, month: int, day: int, clock: str, micro: int = 0) -> bytes:
    hour, minute, second = map(int, clock.split(":"))
    date = (year * 13 + month) << 22 | day << 17
    return ((date | hour << 12 | minute << 6 | second) << 24 | micro).to_bytes(8, "little")


def opaque_values() -> st.SearchStrategy[Opaque]:
    """Return values of columns' types inside JSON, as a MySQL writes them."""
    decimals = st.integers(1 - 10**65, 10**65 - 1).flatmap(
        lambda number: st.integers(0, 30).map(
            lambda scale: Opaque(WireType.NEWDECIMAL, encode_unscaled(number, 65, scale))
        )
    )
    clocks = st.times().map(lambda t: (f"{t:%H:%M:%S}", t.microsecond))
    moments = st.tuples(
        st.sampled_from((WireType.DATETIME, WireType.TIMESTAMP)),
        st.integers(0, 9999), st.integers(0, 12), st.integers(0, 31), clocks,
    ).map(lambda v: Opaque(v[0], packed_time(*v[1:4], *v[4])))  # fmt: skip
    dates = st.tuples(st.integers(0, 9999), st.integers(0, 12), st.integers(0, 31)).map(
        lambda v: Opaque(WireType.DATE, packed_time(*v, "0:0:0"))
    )
    durations = st.tuples(
        st.integers(0, 838), st.integers(0, 59), st.integers(0, 58), st.integers(0, 999_999),
        st.sampled_from((1, -1)),
    ).map(
        lambda v: Opaque(
            WireType.TIME,
            (v[4] * ((v[0] << 12 | v[1] << 6 | v[2]) << 24 | v[3])).to_bytes(
                8, "little", signed=True
            ),
        )
    )  # fmt: skip
    blobs = st.tuples(st.sampled_from((15, 16, 249, 252, 254)), st.binary(max_size=300)).map(
        lambda v: Opaque(*v)
    )
    return decimals | moments | dates | durations | blobs


typed_json = st.recursive(
    opaque_values() | st.integers(-(1 << 63), (1 << 64) - 1) | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=4)
    ),
    max_leaves=8,
)


def opaques_of(
    value: object, path: tuple[str | int, ...] = ()
) -> dict[tuple[str | int, ...], Opaque]:
    if isinstance(value, Opaque):
        return {path: value}
    if not isinstance(value, (dict, list)):
        return {}
    items = value.items() if isinstance(value, dict) else enumerate(value)
    return {p: v for key, item in items for p, v in opaques_of(item, (*path, key)).items()}


@given(typed_json)
def test_scalars_of_columns_types_reach_a_drainer_with_type_and_text(value: object) -> None:
    text = json_text(write_json(value))
    opaques = opaques_of(value)
    assert isinstance(text, jsonb.TypedJson) == bool(opaques)
    read = jsonb.read_text(jsonb.encode_text(text), 0)[0]
    assert json.loads(read, parse_float=str) == json.loads(text, parse_float=str)
    if isinstance(text, jsonb.TypedJson):
        assert text.binary == jsonb.encode_text(read)
        found = {typed.path: typed for typed in jsonb.typed_scalars(text.binary)}
        assert {path: typed.type for path, typed in found.items()} == {
            path: opaque.type for path, opaque in opaques.items()
        }
        for path, opaque in opaques.items():
            shown = json_text(write_json(opaque))
            exact = found[path].value
            wanted = exact if isinstance(exact, bytes) else exact.join(('"', '"'))
            if opaque.type == WireType.NEWDECIMAL:
                assert exact == shown
            else:
                assert wanted == (opaque.data if isinstance(exact, bytes) else shown)


def test_a_time_that_no_clock_shows_stays_text() -> None:
    for data in (packed_time(2020, 1, 2, "31:00:00"), b"\xff" * 8):
        text = json_text(write_json([Opaque(WireType.DATETIME, data)]))
        assert jsonb.read_text(jsonb.encode_text(text), 0)[0] == text
        assert list(jsonb.typed_scalars(jsonb.encode_text(text))) == []


def test_changes_of_json_are_applied_in_order() -> None:
    value = {"a": [1, {"b c": 2}], "zz": 3}
    changes = [
        JsonChange(Operation.REPLACE, '$.a[1]."b c"', "new"),
        JsonChange(Operation.INSERT, "$.a[1]", [None]),
        JsonChange(Operation.INSERT, "$.q", True),
        JsonChange(Operation.REMOVE, "$.zz"),
    ]
    assert read_changes(write_changes(changes)) == changes
    applied = apply_changes(value, changes)
    assert text_of(applied) == '{"a": [1, [null], {"b c": "new"}], "q": true}'
    for bad in [
        JsonChange(Operation.REMOVE, "$.nowhere"),
        JsonChange(Operation.INSERT, "$.a", 1),
        JsonChange(Operation.REMOVE, "$"),
    ]:
        with pytest.raises(Malformed):
            apply_changes({"a": 1}, [bad])
    with pytest.raises(Malformed):
        path_legs("a")


@given(st.binary(max_size=400), st.data())
def test_a_compressed_value_survives_and_damage_is_malformed(
    plain: bytes, data: st.DataObject
) -> None:
    raw = compressed(plain)
    assert decompressed(raw) == plain
    with suppress(Malformed):
        decompressed(raw[: data.draw(st.integers(0, len(raw)))])


def test_addresses_that_hold_an_ipv4_end_like_one() -> None:
    assert inet6_text(bytes(10) + b"\xff\xff\x01\x02\x03\x04") == "::ffff:1.2.3.4"
    assert inet6_text(bytes(15) + b"\x01") == "::1"


def test_every_collation_s_charset_is_known_and_others_are_an_error() -> None:
    names = {
        id_: charset_name(id_) for id_ in [1, 8, 33, 45, 63, 76, 255, 323, 1069, 2048, 2304, 3271]
    }
    assert names[255] == names[323] == names[1069] == names[2304] == "utf8mb4"
    assert names[2048] == names[76] == "utf8mb3"
    assert charset_of(63).is_binary
    for id_ in (0, 17, 500, 1041, 4000):
        with pytest.raises(NeedsOperator):
            charset_name(id_)
    with pytest.raises(NeedsOperator):
        charset_named("klingon")


def test_what_the_server_does_not_say_is_an_error() -> None:
    for column in (Column(WireType.LONG), Column(WireType.VARCHAR, 10), Column(WireType.DECIMAL)):
        with pytest.raises(NeedsOperator):
            reading_of(column)
