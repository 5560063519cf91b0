"""Columns: decoding a batch column-wise is decoding its rows one by one, damage included."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.datum import values
from penstock.datum.columnar import decode, render
from penstock.datum.columnar.decode import Side, decode_columns, decode_keys
from penstock.datum.rows import fields
from penstock.datum.rows.row_codec import RowCodec
from penstock.errors import Malformed
from penstock.schema.model import ColumnFlag, MysqlType, TableInfo
from penstock.wire.binlog import MutationType
from tests.unit.penstock.datum_tables import (
    UNHURRIED,
    column,
    cut_all,
    damage,
    rows_of,
    stored_form,
    tables,
)

T = MysqlType
INSERT, UPDATE, DELETE = MutationType.INSERT, MutationType.UPDATE, MutationType.DELETE
KINDS = st.sampled_from([INSERT, UPDATE, DELETE])
Row = tuple[object, ...]


@pytest.fixture(autouse=True, scope="module")
def _every_left_over_row_is_worth_a_walk() -> Iterator[None]:
    usual, decode.ROWS_WORTH_A_WALK = decode.ROWS_WORTH_A_WALK, 1
    yield
    decode.ROWS_WORTH_A_WALK = usual


def encode(table: TableInfo, kind: MutationType, row: Row, after: Row) -> bytes:
    codec = RowCodec(table)
    if kind is UPDATE:
        return codec.encode_update(row, after)
    return codec.encode_insert(row) if kind is INSERT else codec.encode_delete(row)


def row_wise(table: TableInfo, kind: MutationType, rows: Sequence[bytes]) -> list[list[Row]]:
    """Return stored values by image and row, as the row-wise reader has them."""
    reader = decode.plan_of(table).reader
    if kind is UPDATE:
        both = [reader.update(raw) for raw in rows]
        return [[image[i] for image in both] for i in (0, 1)]
    return [[(reader.insert if kind is INSERT else reader.delete)(raw) for raw in rows]]


def column_wise(
    table: TableInfo, kind: MutationType, rows: Sequence[bytes], tp: pa.DataType | None = None
) -> list[list[Row]]:
    images = decode_columns(table, kind, pa.array(rows, tp or pa.binary()))
    assert (images.before is None) == (kind is INSERT)
    assert (images.after is None) == (kind is DELETE)
    found = [arrays for arrays in (images.before, images.after) if arrays is not None]
    for arrays in found:
        for array, c in zip(arrays, table.columns, strict=True):
            array.validate(full=True)
            assert array.type == render.arrow_type(c)
    return [_transposed(arrays) for arrays in found]


def _transposed(arrays: list[pa.Array]) -> list[Row]:
    return list(zip(*(array.to_pylist() for array in arrays), strict=True))


def assert_same(table: TableInfo, kind: MutationType, rows: Sequence[bytes]) -> None:
    try:
        expected = row_wise(table, kind, rows)
    except Malformed:
        with pytest.raises(Malformed):
            column_wise(table, kind, rows)
        return
    assert column_wise(table, kind, rows) == expected


@UNHURRIED
@given(st.data())
def test_a_batch_decodes_to_the_rows_that_were_encoded(data: st.DataObject) -> None:
    table, kind = data.draw(tables()), data.draw(KINDS)
    pairs = data.draw(st.lists(st.tuples(rows_of(table), rows_of(table)), max_size=8))
    raws = [encode(table, kind, row, after) for row, after in pairs]
    tp = data.draw(st.sampled_from([pa.binary(), pa.large_binary()]))
    found = column_wise(table, kind, raws, tp)
    assert found[0] == [stored_form(table, row) for row, _ in pairs]
    if kind is UPDATE:
        assert found[1] == [stored_form(table, after) for _, after in pairs]


@UNHURRIED
@given(st.data())
def test_one_side_of_updates_is_the_same_as_that_side_of_both(data: st.DataObject) -> None:
    table = data.draw(tables())
    pairs = data.draw(st.lists(st.tuples(rows_of(table), rows_of(table)), min_size=1, max_size=8))
    raws = [encode(table, UPDATE, row, after) for row, after in pairs]
    raws += [damage(data.draw, raws[0])] if data.draw(st.booleans()) else []
    rows = pa.array(raws, pa.binary())
    try:
        both = decode_columns(table, UPDATE, rows)
    except Malformed:
        return
    before = decode_columns(table, UPDATE, rows, side=Side.BEFORE)
    after = decode_columns(table, UPDATE, rows, side=Side.AFTER)
    assert (before.before, before.after) == (both.before, None)
    assert (after.before, after.after) == (None, both.after)


@UNHURRIED
@given(st.data())
def test_a_damaged_batch_decodes_as_its_rows_do(data: st.DataObject) -> None:
    table, kind = data.draw(tables()), data.draw(KINDS)
    pairs = data.draw(st.lists(st.tuples(rows_of(table), rows_of(table)), min_size=1, max_size=4))
    raws = [encode(table, kind, row, after) for row, after in pairs]
    victim = data.draw(st.integers(0, len(raws) - 1))
    raws[victim] = damage(data.draw, raws[victim])
    assert_same(table, kind, raws)


@UNHURRIED
@given(st.lists(st.binary(max_size=40), min_size=1, max_size=4), KINDS, st.data())
def test_random_bytes_decode_as_they_do_row_by_row(
    raws: list[bytes], kind: MutationType, data: st.DataObject
) -> None:
    assert_same(data.draw(tables()), kind, raws)


def _column_pairs(raw: bytes) -> list[bytes]:
    parts = cut_all(raw)
    return [a + b for a, b in zip(parts[::2], parts[1::2], strict=True)]


@UNHURRIED
@given(st.data())
def test_columns_may_come_in_any_order_be_missing_or_be_unknown(data: st.DataObject) -> None:
    table, kind = data.draw(tables()), data.draw(st.sampled_from([UPDATE, DELETE]))
    raws = []
    for row in data.draw(st.lists(rows_of(table), min_size=1, max_size=8)):
        pairs = data.draw(st.permutations(_column_pairs(RowCodec(table).encode_delete(row))))
        pairs = pairs[: data.draw(st.integers(1, len(pairs)))]
        if data.draw(st.booleans()):
            pairs.append(
                values.int_datum(30_000) + data.draw(st.sampled_from([b"\0", b"\x02\x02x"]))
            )
        raws.append(b"".join(pairs) * (2 if kind is UPDATE else 1))
    assert_same(table, kind, raws)


@UNHURRIED
@given(st.data())
def test_keys_are_the_key_columns(data: st.DataObject) -> None:
    table, kind = data.draw(tables()), data.draw(KINDS)
    assert table.row_key is not None
    pairs = data.draw(st.lists(st.tuples(rows_of(table), rows_of(table)), max_size=6))
    rows = pa.array([encode(table, kind, row, after) for row, after in pairs], pa.binary())
    whole = decode_columns(table, kind, rows, [part.offset for part in table.row_key.columns])
    assert decode_keys(table, kind, rows) == (whole.before, whole.after)


WIDE = TableInfo(
    id=1,
    name="t",
    pk_is_handle=True,
    columns=tuple(
        replace(c, id=i + 1, name=f"c{i}", offset=i)
        for i, c in enumerate(
            [
                column(T.LONGLONG, flag=ColumnFlag.PRI_KEY | ColumnFlag.NOT_NULL),
                column(T.VARCHAR),
                column(T.NEWDECIMAL, flen=12, decimal=2),
                column(T.DATETIME, decimal=3),
                column(T.DURATION, decimal=0),
                column(T.JSON),
                column(T.DOUBLE),
                column(T.BLOB, charset="binary"),
            ]
        )
    ),
)


@UNHURRIED
@given(st.data())
def test_a_slice_of_an_array_decodes_as_if_it_were_alone(data: st.DataObject) -> None:
    rows = data.draw(st.lists(rows_of(WIDE), min_size=3, max_size=9))
    array = pa.array([RowCodec(WIDE).encode_delete(row) for row in rows], pa.binary())
    images = decode_columns(WIDE, DELETE, array[1:-1])
    assert images.before is not None
    assert _transposed(images.before) == [stored_form(WIDE, row) for row in rows[1:-1]]
    chunked = pa.chunked_array([array[:1], array[1:]])
    again = decode_columns(WIDE, DELETE, chunked, [1]).before
    assert again is not None
    assert again[0].to_pylist() == [row[1] for row in rows]


def test_a_batch_without_rows_has_columns_without_values() -> None:
    images = decode_columns(WIDE, UPDATE, pa.array([], pa.binary()))
    assert images.before is not None
    assert images.after is not None
    assert [len(array) for array in images.before + images.after] == [0] * 16


def test_rows_that_predate_a_column_read_as_its_default() -> None:
    grown = replace(
        WIDE,
        columns=(
            *WIDE.columns,
            column(T.VARCHAR, id=50, name="s", offset=8, origin_default="old"),
            column(T.LONG, id=51, name="n", offset=9, flag=ColumnFlag.NOT_NULL),
            column(T.LONG, id=52, name="u", offset=10),
        ),
    )
    old = RowCodec(WIDE).encode_insert((1, *[None] * 7))
    new = RowCodec(grown).encode_insert((2, *[None] * 7, "new", 5, 6))
    images = decode_columns(grown, INSERT, pa.array([old, new, old], pa.binary()), [8, 9, 10])
    assert images.after is not None
    assert _transposed(images.after) == [("old", 0, None), ("new", 5, 6), ("old", 0, None)]


def test_columns_that_no_row_holds_are_null() -> None:
    virtual = column(T.LONG, id=60, name="v", offset=8, generated_expr="c0 + 1")
    table = replace(WIDE, columns=(*WIDE.columns, virtual))
    raw = RowCodec(table).encode_insert((1, *[None] * 8))
    images = decode_columns(table, INSERT, pa.array([raw], pa.binary()), [8])
    assert images.after is not None
    assert images.after[0] == pa.array([None], pa.int64())


def test_decimals_of_other_sizes_than_the_columns_read_the_same() -> None:
    key = values.int_datum(1) + values.int_datum(1) + values.int_datum(3)
    small, usual = bytes.fromhex("0603027ffe" + "cd"), bytes.fromhex("060c02" + "800000000000")
    raws = [key + small, key + usual, key + usual]
    assert_same(WIDE, DELETE, raws)


def test_a_column_that_is_more_than_two_gigabytes_takes_large_offsets(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(render, "_OFFSET_MAX", 8)
    rows = pa.array([RowCodec(WIDE).encode_insert((1, "text", *[None] * 5, b"raw"))], pa.binary())
    images = decode_columns(WIDE, INSERT, rows, [1, 7])
    assert images.after is not None
    assert [a.type for a in images.after] == [pa.large_string(), pa.large_binary()]
    assert _transposed(images.after) == [("text", b"raw")]


def test_anything_but_an_array_of_bytes_is_malformed() -> None:
    for wrong in (pa.array(["x"]), pa.array([None], pa.binary())):
        with pytest.raises(Malformed):
            decode_columns(WIDE, INSERT, wrong)


def test_a_key_that_rows_do_not_hold_is_malformed() -> None:
    virtual = replace(WIDE.columns[0], generated_expr="1")
    table = replace(WIDE, columns=(virtual, *WIDE.columns[1:]))
    with pytest.raises(Malformed, match="not in its rows"):
        decode_keys(table, INSERT, pa.array([b"\x08\x02\x00"], pa.binary()))


def test_every_type_has_an_arrow_type() -> None:
    for tp in fields.STRING_TYPES:
        assert render.arrow_type(column(tp, charset="binary")) == pa.binary()
