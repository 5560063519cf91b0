"""Compaction leaves the last writer of every key, and makes room for it first."""

from contextlib import closing
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from drainer.task.compaction import compact, compact_few, compact_many, plan_units
from drainer.task.sql.generate import generate
from drainer.task.sql.literals import SQLITE
from drainer.task.sql.rows import apply_key
from drainer.task.work_unit import Bounds, Op, WorkUnit, in_order
from penstock.errors import Malformed
from penstock.schema.model import TableInfo
from penstock.wire.binlog import MutationType
from tests.kit.workloads.changes import (
    CASES,
    Case,
    Upstream,
    batch_of,
    histories,
    play,
    played,
    table_of,
)
from tests.kit.workloads.sqlite_copies import Changes, content, database, expected, run, serial

INSERT, UPDATE, DELETE = MutationType.INSERT, MutationType.UPDATE, MutationType.DELETE


COLUMNS = Bounds(rowwise_max=0)
"""Any number of rows is worth columns."""


def merged(
    table: TableInfo, changes: Changes, bounds: Bounds, *, dialect: str = SQLITE
) -> list[bytes]:
    units = plan_units(batch_of(table, changes, schema="merged"), dialect, bounds)
    return list(in_order(generate(WorkUnit.decode(unit.encode()), bounds) for unit in units))


@pytest.mark.fault(
    "cycles: numbers and unique values swapped by way of others, reused, NULL",
    "as serial apply",
    cases="random histories of 9 tables, and every history of kills in a batch",
)
@pytest.mark.parametrize("rowwise_max", [0, 100], ids=["columns", "rows"])
@pytest.mark.parametrize("case", CASES, ids=str)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_batches_merged_leave_what_serial_apply_leaves(
    case: Case, rowwise_max: int, data: st.DataObject
) -> None:
    table = case.table
    upstream = Upstream(table)
    bounds = Bounds(rowwise_max=rowwise_max)
    with closing(database(table, "merged", "serial")) as connection:
        for changes in played(case, upstream, data.draw(histories(case, 25))):
            run(connection, merged(table, changes, bounds))
            run(connection, serial(table, changes))
            for schema in ("merged", "serial"):
                assert content(connection, schema) == expected(upstream)


@pytest.mark.parametrize("case", [c for c in CASES if apply_key(c.table)], ids=str)
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_rows_and_columns_compact_to_the_same_changes(case: Case, data: st.DataObject) -> None:
    table = case.table
    upstream = Upstream(table)
    for steps in data.draw(histories(case, 25)):
        changes = play(case, upstream, steps)
        kinds = np.array([int(kind) for kind, _ in changes], np.uint8)
        rows = pa.array([row for _, row in changes], pa.binary())
        if changes:
            few, many = compact_few(table, kinds, rows), compact_many(table, kinds, rows)
            assert sorted(zip(*few, strict=True)) == sorted(zip(*many, strict=True))


def left(table: TableInfo, changes: Changes, bounds: Bounds) -> list[tuple[Op, int]]:
    kinds = np.array([int(kind) for kind, _ in changes], np.uint8)
    rows = pa.array([row for _, row in changes], pa.binary())
    ops, _, indexes = compact(table, kinds, rows, bounds)
    return [(Op(int(op)), int(row)) for op, row in zip(ops, indexes, strict=True)]


@pytest.fixture(params=[0, 100], ids=["columns", "rows"])
def bounds(request: pytest.FixtureRequest) -> Bounds:
    """Bounds for the way by columns, and for that row by row."""
    return Bounds(rowwise_max=request.param)


def upstream_of(columns: str, *rows: tuple[Any, ...]) -> Upstream:
    upstream = Upstream(table_of(f"CREATE TABLE t ({columns})"))
    for row in rows:
        upstream.insert(row)
    upstream.changes.clear()
    return upstream


def test_only_the_last_change_of_a_row_is_left(bounds: Bounds) -> None:
    upstream = upstream_of("id INT PRIMARY KEY, v INT", (1, 0))
    for v in range(1, 10):
        upstream.update(0, (1, v))
    assert left(upstream.table, upstream.changes, bounds) == [(Op.UPSERT, 8)]


def test_a_changed_key_deletes_the_old_one_and_writes_the_new_one(bounds: Bounds) -> None:
    upstream = upstream_of("id INT PRIMARY KEY, v INT", (1, 0))
    upstream.update(0, (2, 0))
    assert left(upstream.table, upstream.changes, bounds) == [(Op.DELETE, 0), (Op.UPSERT, 0)]


def test_a_row_that_comes_and_goes_is_deleted_to_be_sure(bounds: Bounds) -> None:
    upstream = upstream_of("id INT PRIMARY KEY, v INT")
    upstream.insert((1, 0))
    upstream.delete(0)
    assert left(upstream.table, upstream.changes, bounds) == [(Op.DELETE, 1)]


def test_rows_whose_unique_values_moved_are_deleted_first(bounds: Bounds) -> None:
    upstream = upstream_of("id INT PRIMARY KEY, u INT UNIQUE, v INT", (1, 10, 0), (2, 20, 0))
    upstream.update(0, (1, 30, 0))
    upstream.update(1, (2, 10, 0))
    upstream.update(0, (1, 20, 0))
    assert left(upstream.table, upstream.changes, bounds) == [
        (Op.DELETE, 0), (Op.DELETE, 1), (Op.UPSERT, 2), (Op.UPSERT, 1)
    ]  # fmt: skip


def test_a_unique_value_that_comes_back_needs_no_delete(bounds: Bounds) -> None:
    upstream = upstream_of("id INT PRIMARY KEY, u INT UNIQUE, v INT", (1, 10, 0))
    upstream.update(0, (1, None, 0))
    upstream.update(0, (1, 10, 5))
    assert left(upstream.table, upstream.changes, bounds) == [(Op.UPSERT, 1)]


def test_a_row_whose_unique_value_is_generated_is_deleted_first(bounds: Bounds) -> None:
    upstream = upstream_of(
        "id INT PRIMARY KEY, v INT, g INT AS (v + 1) VIRTUAL UNIQUE", (1, 1, None)
    )
    upstream.update(0, (1, 2, None))
    assert left(upstream.table, upstream.changes, bounds) == [(Op.DELETE, 0), (Op.UPSERT, 0)]


def test_a_table_without_a_row_key_keeps_every_change_in_order(bounds: Bounds) -> None:
    upstream = upstream_of("a INT, b INT UNIQUE", (1, 1))
    upstream.update(0, (1, 2))
    upstream.update(0, (1, 3))
    upstream.delete(0)
    assert left(upstream.table, upstream.changes, bounds) == [(Op.ORDERED, i) for i in range(3)]


def test_keys_that_differ_only_in_padding_are_one_key(bounds: Bounds) -> None:
    table = table_of("CREATE TABLE t (a BINARY(4) PRIMARY KEY, v INT)")
    codec = Upstream(table).codec
    changes = [
        (INSERT, codec.encode_insert((b"ab", 1))),
        (DELETE, codec.encode_delete((b"ab\0\0", 1))),
    ]
    assert left(table, changes, bounds) == [(Op.DELETE, 1)]


def test_upserts_come_in_key_order() -> None:
    upstream = upstream_of("id INT PRIMARY KEY, v INT")
    for i in (5, -3, 9, 0):
        upstream.insert((i, i))
    assert [row for _, row in left(upstream.table, upstream.changes, COLUMNS)] == [1, 3, 0, 2]


def test_row_bytes_of_another_table_are_refused(bounds: Bounds) -> None:
    table = table_of("CREATE TABLE t (id INT PRIMARY KEY, v INT)")
    with pytest.raises(Malformed):
        left(table, [(INSERT, b"\xff\xff"), (INSERT, b"\xff")], bounds)


def test_a_batch_of_several_tables_deletes_everywhere_before_it_writes_anywhere() -> None:
    one = upstream_of("id INT PRIMARY KEY, v INT", (1, 0))
    one.update(0, (2, 0))
    units = [
        unit
        for schema in ("p", "q")
        for unit in plan_units(batch_of(one.table, one.changes, schema=schema), SQLITE)
    ]
    verbs = [s.split()[0] for s in in_order(generate(unit) for unit in units)]
    assert verbs == [b"DELETE", b"DELETE", b"INSERT", b"INSERT"]


def test_unique_values_may_swap_within_a_transaction_as_tidb_writes_it(bounds: Bounds) -> None:
    """TiDB checks a transaction's end only, so its binlog may hold no step in between."""
    table = table_of("CREATE TABLE t (id INT PRIMARY KEY, u INT UNIQUE)")
    codec = Upstream(table).codec
    with closing(database(table, "merged", "serial")) as connection:
        run(connection, [b"INSERT INTO `merged.t` VALUES (1, 10), (2, 20)"])
        changes = [
            (UPDATE, codec.encode_update((1, 10), (1, 20))),
            (UPDATE, codec.encode_update((2, 20), (2, 10))),
        ]
        run(connection, merged(table, changes, bounds))
        assert content(connection, "merged") == [(1, 20), (2, 10)]
