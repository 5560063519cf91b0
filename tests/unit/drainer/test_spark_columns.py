"""What fits the columns of a Spark query, and which options a query takes."""

from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest

from drainer.spark_source.columns import fitted, misfit_of
from drainer.spark_source.options import SourceOptions
from drainer.stream import BEGINNING, NOW
from penstock.errors import NeedsOperator
from penstock.ts import compose

I8, I32, I64, F32, F64, TEXT = (
    pa.int8(),
    pa.int32(),
    pa.int64(),
    pa.float32(),
    pa.float64(),
    pa.string(),
)


def decimal(digits: int, scale: int) -> pa.DataType:
    return pa.decimal128(digits, scale)


@pytest.mark.parametrize(
    ("narrow", "wide", "fits"),
    [
        (I32, I32, True), (I8, I64, True), (I64, I32, False), (F32, F64, True), (F64, F32, False),
        (I64, decimal(20, 0), True), (I64, decimal(20, 2), False), (I8, decimal(5, 2), True),
        (decimal(6, 2), decimal(8, 3), True), (decimal(6, 2), decimal(6, 3), False),
        (decimal(6, 2), decimal(8, 1), False), (I32, F64, False), (I32, TEXT, False),
        (TEXT, pa.binary(), False), (pa.timestamp("us"), pa.timestamp("us", "UTC"), False),
    ],
)  # fmt: skip
def test_only_a_wider_type_holds_every_value_of_a_column(
    narrow: pa.DataType, wide: pa.DataType, fits: bool
) -> None:
    had, has = pa.schema([("v", narrow)]), pa.schema([("more", TEXT), ("v", wide)])
    assert misfit_of(had, has) == ("" if fits else "v")
    assert misfit_of(pa.schema([("gone", narrow), ("v", wide)]), has) == "gone"


def test_rows_from_before_a_ddl_have_null_in_new_columns_and_their_values_in_wider_ones() -> None:
    rows = pa.RecordBatch.from_pydict({"v": pa.array([1, None], I8), "name": ["a", "b"]})
    wanted = pa.schema([("name", TEXT), ("more", I32), ("v", decimal(20, 0))])
    made = fitted(rows, wanted)
    assert made.schema == wanted
    assert made.to_pydict() == {"name": ["a", "b"], "more": [None, None], "v": [1, None]}


def test_options_are_read_in_any_letter_case() -> None:
    made = SourceOptions.of({"ETCD": "a:1", "Table": "shop.orders.old", "maxbytespertrigger": "5"})
    assert (made.etcd, made.place, made.bytes_max) == ("a:1", ("shop", "orders.old"), 5)
    assert (made.after, made.until, made.transactions_max, made.pem) == (
        BEGINNING,
        None,
        None,
        None,
    )


@pytest.mark.parametrize(
    ("text", "ts"),
    [
        ("beginning", BEGINNING), ("NOW", NOW), ("17", 17),
        ("2026-11-26T22:00:00.5+01:00",
         compose(int(datetime(2026, 11, 26, 21, tzinfo=UTC).timestamp()) * 1000 + 500, 0)),
    ],
)  # fmt: skip
def test_a_moment_is_a_commit_ts_or_a_time(text: str, ts: int) -> None:
    assert SourceOptions.of({"after": text}).after == ts


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"tabel": "a.b"}, "the option 'tabel' does not exist"),
        ({"table": "orders"}, "is 'orders', not schema.table"),
        ({"after": "2026-11-26T22:00:00"}, "neither a commit_ts, nor a time with its time zone"),
        ({"after": "-5"}, "neither a commit_ts"),
        ({"maxTransactionsPerTrigger": "0"}, "not a number above zero"),
        ({"name": "a b"}, "no name for a reader"),
        ({"cert": "c.pem"}, "a certificate and its key belong together"),
    ],
)
def test_an_invalid_option_is_refused_before_anything_connects(
    given: dict[str, Any], problem: str
) -> None:
    with pytest.raises(NeedsOperator, match=problem):
        SourceOptions.of(given)


def test_options_of_batches_and_of_streams_are_not_mixed() -> None:
    with pytest.raises(NeedsOperator, match="'name' is for a streaming query"):
        SourceOptions.of({"name": "a"}).check_batch()
    with pytest.raises(NeedsOperator, match="'until' is for spark"):
        SourceOptions.of({"until": "5"}).check_stream()
    with pytest.raises(NeedsOperator, match="until 5 is before after 9"):
        SourceOptions.of({"after": "9", "until": "5"}).check_batch()
