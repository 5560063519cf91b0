"""What 40 types with their extreme values are in a lake, and what their DDL makes of them."""

import asyncio
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from drainer.sinks.delta.lake_ddl import becomes
from drainer.task.compaction import plan_units
from drainer.task.events.event_unit import answer
from drainer.task.sql.lake_rows import COMES, OP, Block, lake_array, lake_schema, lake_type
from drainer.task.sql.literals import ARROW
from drainer.task.work_unit import Batch, Statements, TableRows
from penstock.datum.rows.row_codec import RowCodec
from penstock.ddl import Catalog, plan_ddl
from penstock.errors import Malformed
from penstock.schema.model import TableInfo
from penstock.wire.binlog import MutationType
from tests.kit.delta.lake_reader import LakeReader
from tests.kit.fakes.local_drainer import Way, run_drainer
from tests.kit.workloads.bank import Bank
from tests.kit.workloads.forty_types import HIGHEST, LOWEST, NAMES, NOTHING, FortyTypes

AS_THEY_ARE = [f"c{number:02}" for number in (*range(1, 11), 12, *range(24, 36), 38, 39, 40)]
"""Columns whose values are the same in a lake and upstream."""
OTHERS: dict[str, tuple[Any, Any]] = {
    "c11": (-1.5, 16777216.0),
    "c13": ("-" + "9" * 35 + "." + "9" * 30, "0." + "0" * 29 + "1"),
    "c14": (Decimal(-99999), Decimal(0)),
    "c15": (Decimal("0.00"), Decimal("99999999.99")),
    "c16": (None, date(9999, 12, 31)),
    "c17": (datetime(1000, 1, 1), datetime(9999, 12, 31, 23, 59, 59)),  # noqa: DTZ001
    "c18": (None, datetime(9999, 12, 31, 23, 59, 59, 999999)),  # noqa: DTZ001
    "c19": (datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC), datetime(2038, 1, 19, 3, 14, 7, tzinfo=UTC)),
    "c20": (None, datetime(2038, 1, 19, 3, 14, 7, 999000, tzinfo=UTC)),
    "c21": ("-838:59:59", "838:59:59"),
    "c22": ("-00:00:00.000001", "838:59:58.999999"),
    "c23": (0, 2155),
    "c36": (b"\0", b"\1"),
    "c37": (bytes(8), b"\xff" * 8),
}


def block_of(table: TableInfo, kinds: list[MutationType], rows: list[bytes]) -> list[Block]:
    held = TableRows("kinds", table, bytes(kinds), pa.array(rows, pa.binary()))
    made = [
        Statements.decode(answer(unit.encode())) for unit in plan_units(Batch(1, [held]), ARROW)
    ]
    return [Block.decode(each) for one in made for each in (*one.deletes, *one.upserts)]


def table_of(sql: str) -> TableInfo:
    catalog, ids = Catalog(), iter(range(1, 9))
    for each in ("CREATE DATABASE s", sql):
        for job in plan_ddl(each, "s", catalog, lambda: next(ids)):
            catalog.apply(job)
    (found,) = (table for _, table in catalog.tables())
    return found


def test_forty_types_with_their_extremes_are_in_a_lake_what_they_are_upstream() -> None:
    stream = FortyTypes()
    rows = [stream.codec.encode_insert(row) for row in (LOWEST, HIGHEST, NOTHING)]
    (block,) = block_of(stream.table, [MutationType.INSERT] * 3, rows)
    assert block.rows.drop_columns([OP]).schema == lake_schema(stream.table)
    assert block.rows.column(OP).to_pylist() == [COMES] * 3
    assert block.key == ("id",)
    assert block.nulled == {"c16": 1, "c18": 1, "c20": 1}
    found = block.rows.to_pydict()
    assert {*AS_THEY_ARE, *OTHERS} == set(NAMES)
    for name, low, high in zip(NAMES, LOWEST[1:], HIGHEST[1:], strict=True):
        wanted = OTHERS.get(name, (low, high))
        assert found[name] == [*wanted, None], name


def test_forty_types_are_in_a_change_log_what_they_are_in_a_mirror(tmp_path: Path) -> None:
    """By a whole pipeline: each row as it was before and after each change."""
    url = f"delta://{tmp_path}/lake?mode=changes&interval=0"
    way = Way(url=url, folder=tmp_path / "drainer", strategy="events")
    asyncio.run(run_drainer(cast(Bank, FortyTypes()), way))
    lines = LakeReader(tmp_path / "lake").log("kinds", "t")
    low, high = (
        [OTHERS[n][i] if n in OTHERS else value for n, value in zip(NAMES, row[1:], strict=True)]
        for i, row in enumerate((LOWEST, HIGHEST))
    )
    null = list(NOTHING[1:])
    updates = [(1, row) for row in (low, high, high, null, null, low)]
    wanted = [(1, low), (2, high), (3, null), *updates, (4, high), (4, high)]
    assert [(each["id"], [each[name] for name in NAMES]) for each in lines] == wanted
    pair = ["update_preimage", "update_postimage"]
    kinds = ["insert"] * 3 + pair * 3 + ["insert", "delete"]
    assert [each["_op"] for each in lines] == kinds


@settings(max_examples=25)
@given(st.lists(st.one_of(st.none(), st.dates()), max_size=20), st.integers(0, 30))
def test_a_date_that_is_none_is_null_and_no_other_one(days: list[date | None], none: int) -> None:
    column = table_of("CREATE TABLE t (id INT PRIMARY KEY, d DATE)").columns[1]
    texts = [None if day is None else f"{day:%Y-%m-%d}".rjust(10, "0") for day in days]
    texts.insert(none % (len(texts) + 1), "2021-02-00")
    wanted = list(days)
    wanted.insert(none % (len(days) + 1), None)
    assert lake_array(column, pa.array(texts, pa.string())).to_pylist() == wanted


def test_a_key_has_one_form_whichever_one_a_writer_sends() -> None:
    table = table_of("CREATE TABLE t (a CHAR(5), b BINARY(3), PRIMARY KEY (a, b))")
    text, binary = table.columns
    assert lake_array(text, pa.array(["x  ", "x"])).to_pylist() == ["x", "x"]
    assert lake_array(binary, pa.array([b"x", b"x\0\0"])).to_pylist() == [b"x\0\0"] * 2


def test_a_key_that_is_no_date_is_refused() -> None:
    table = table_of("CREATE TABLE t (d DATE PRIMARY KEY)")
    row = RowCodec(table).encode_insert(("0000-00-00",))
    with pytest.raises(Malformed, match="a key in 'd' that is no date"):
        block_of(table, [MutationType.INSERT], [row])


WIDER = {
    ("TINYINT", "INT"): True,
    ("INT UNSIGNED", "BIGINT"): True,
    ("BIGINT", "INT"): False,
    ("INT", "DECIMAL(12,2)"): True,
    ("INT", "DECIMAL(11,2)"): False,
    ("DECIMAL(10,2)", "DECIMAL(12,3)"): True,
    ("DECIMAL(10,2)", "DECIMAL(12,1)"): False,
    ("FLOAT", "DOUBLE"): True,
    ("DOUBLE", "FLOAT"): False,
    ("INT", "VARCHAR(20)"): True,
    ("VARCHAR(20)", "INT"): False,
    ("VARCHAR(20)", "TEXT"): True,
    ("DATE", "DATETIME"): True,
    ("DATETIME", "TIMESTAMP"): False,
    ("ENUM('a')", "ENUM('b','a')"): True,
}


@pytest.mark.parametrize("types", WIDER, ids="-".join)
def test_a_type_becomes_another_one_where_all_values_stay_what_they_are(
    types: tuple[str, str],
) -> None:
    old, new = (table_of(f"CREATE TABLE t (c {sql} NULL)").columns[0] for sql in types)
    assert becomes(lake_type(old), lake_type(new)) is WIDER[types]
