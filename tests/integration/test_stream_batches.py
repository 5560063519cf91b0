"""`Reader.batches`: transactions of real Pumps as Arrow record batches, one for each table."""

import re
from collections.abc import Iterator
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from penstock.stream import Batch, Ddl, Reader, ReaderOptions
from pumpclient import PumpClient
from tests.integration.test_stream import shop

__all__ = ["shop"]

META = ["_kind", "_commit_ts", "_start_ts", "_seq"]
WAIT_S = 5.0


def batches(reader: Reader, **options: Any) -> Iterator[Batch | Ddl]:
    return reader.batches(timeout_s=WAIT_S, **options)


def next_batch(found: Iterator[Batch | Ddl]) -> Batch:
    each = next(found)
    while isinstance(each, Ddl):
        each = next(found)
    return each


def test_the_lines_of_a_batch_are_in_commit_order_with_the_types_of_their_columns(
    etcd_url: str, shop: PumpClient
) -> None:
    shop.execute_ddl("CREATE TABLE shop.days (day DATE PRIMARY KEY, note TEXT)")
    with shop.begin("shop") as one:
        one.insert("goods", {"id": 1, "name": "nut", "price": "1.50"})
        one.insert("days", {"day": "2026-02-28", "note": None})
        one.update("goods", {"id": 1, "name": "nut", "price": "1.50"}, {"price": "2.00"})
    with shop.begin("shop") as two:
        two.delete("goods", {"id": 1, "name": "nut", "price": "2.00"})
    with Reader.connect(etcd_url) as reader:
        goods: list[pa.RecordBatch] = []
        days: list[pa.RecordBatch] = []
        for each in batches(reader):
            if isinstance(each, Batch):
                assert each.commit_ts in (one.commit_ts, two.commit_ts)
                goods += [each.tables["shop.goods"]]
                days += [each.tables["shop.days"]] if "shop.days" in each.tables else []
    made = pa.Table.from_batches(goods)
    assert [str(field.type) for field in made.schema] == [
        "int32", "string", "decimal128(6, 2)", "string", "int64", "int64", "int64",
    ]  # fmt: skip
    assert made.schema.names == ["id", "name", "price", *META]
    assert made["_kind"].to_pylist() == ["insert", "update_preimage", "update_postimage", "delete"]
    assert made["price"].to_pylist() == [Decimal(p) for p in ("1.50", "1.50", "2.00", "2.00")]
    assert made["_commit_ts"].to_pylist() == [one.commit_ts] * 3 + [two.commit_ts]
    assert made["_start_ts"].to_pylist() == [one.start_ts] * 3 + [two.start_ts]
    (line,) = pa.Table.from_batches(days).to_pylist()
    assert (line["day"], line["note"], line["_kind"]) == (date(2026, 2, 28), None, "insert")
    numbers = [*made["_seq"].to_pylist()[:3], line["_seq"]]
    assert sorted(numbers) == [0, 1, 2, 3]
    assert made["_seq"].to_pylist()[3] == 0


def test_a_reader_goes_on_after_the_checkpoint_of_a_batch(etcd_url: str, shop: PumpClient) -> None:
    for number in range(10):
        with shop.begin("shop") as txn:
            txn.insert_many("goods", [{"id": 2 * number}, {"id": 2 * number + 1}])
    seen: list[int] = []
    checkpoint: str | int = 0
    while len(seen) < 20:
        with Reader.connect(etcd_url, after=checkpoint) as reader:
            found = next_batch(batches(reader, rows_max=3))
            assert found.tables["shop.goods"].num_rows <= 4
            seen += found.tables["shop.goods"]["id"].to_pylist()
            checkpoint = found.checkpoint
    assert seen == list(range(20))


def test_a_ddl_is_between_the_batches_before_and_after_it(etcd_url: str, shop: PumpClient) -> None:
    with shop.begin("shop") as txn:
        txn.insert("goods", {"id": 1})
    shop.execute_ddl("ALTER TABLE shop.goods DROP COLUMN price")
    with shop.begin("shop") as txn:
        txn.insert("goods", {"id": 2})
    with Reader.connect(etcd_url) as reader:
        kinds = [
            each.query[:11] if isinstance(each, Ddl) else each.tables["shop.goods"].schema.names
            for each in batches(reader)
        ]
    assert kinds == [
        "CREATE DATA", "CREATE TABL", ["id", "name", "price", *META],
        "ALTER TABLE", ["id", "name", *META],
    ]  # fmt: skip


def test_the_page_s_lines_for_data_frames_work(
    etcd_url: str, shop: PumpClient, spark_session: Any
) -> None:
    with shop.begin("shop") as txn:
        txn.insert("goods", {"id": 1, "name": "nut", "price": "1.50"})
    with Reader.connect(etcd_url) as reader:
        rows = next_batch(batches(reader)).tables["shop.goods"]
    page = (Path(__file__).parents[2] / "docs/reading.md").read_text(encoding="utf-8")
    snippets = dict(
        re.findall(r'```python title="(pandas|Polars|Spark)"\n(.*?)```', page, re.DOTALL)
    )
    assert len(snippets) == 3
    seen = {}
    for name, text in snippets.items():
        names: dict[str, Any] = {"rows": rows, "spark": spark_session}
        exec(text, names)
        seen[name] = names["frame"]
    assert seen["pandas"].to_dict("records")[0]["price"] == Decimal("1.50")
    assert seen["Polars"].row(0)[:4] == (1, "nut", Decimal("1.50"), "insert")
    assert tuple(seen["Spark"].first())[:4] == (1, "nut", Decimal("1.50"), "insert")


@pytest.mark.thorough
def test_the_slices_of_a_large_transaction_are_numbered_throughout_and_it_is_stored_last(
    etcd_url: str, shop: PumpClient
) -> None:
    shop.execute_ddl("CREATE TABLE shop.blobs (id INT PRIMARY KEY, data LONGBLOB)")
    with shop.begin("shop") as txn:
        for number in range(30):
            txn.insert("blobs", {"id": number, "data": bytes(1 << 20)})
    options = ReaderOptions(large_bytes=1 << 22)
    with Reader.connect(etcd_url, options=options) as reader:
        found = [each for each in batches(reader, rows_max=4) if isinstance(each, Batch)]
    assert len(found) > 2
    lines = pa.Table.from_batches([each.tables["shop.blobs"] for each in found])
    assert lines["_seq"].to_pylist() == lines["id"].to_pylist() == list(range(30))
    before, *_, last = [each.checkpoint for each in found]
    assert before != last
    assert {each.checkpoint for each in found[:-1]} == {before}
    with Reader.connect(etcd_url, after=before) as reader:
        again = next_batch(batches(reader))
        assert again.tables["shop.blobs"]["id"][0].as_py() == 0
