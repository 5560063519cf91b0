"""Digests: two batches share one exactly if a unique index could see the values of both."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from drainer.task.compaction import plan_units
from drainer.task.sql.digests import Digests, Touched, merged
from drainer.task.sql.generate import generate
from drainer.task.sql.literals import MYSQL
from drainer.task.sql.row_statements import UNBOUNDED, fold_of
from drainer.task.work_unit import Batch, Bounds, TableRows, WorkUnit
from penstock.errors import Malformed
from penstock.wire.binlog import MutationType
from tests.kit.workloads.changes import (
    CASES,
    Case,
    Upstream,
    batch_of,
    examples,
    histories,
    play,
    table_of,
)

CI = "VARCHAR(20) COLLATE utf8mb4_general_ci"
WAYS = (Bounds(rowwise_max=0), Bounds())
"""Column by column, and row by row."""


def digests_of(batch: Batch, bounds: Bounds = WAYS[0]) -> Digests:
    found = []
    for unit in plan_units(batch, MYSQL, bounds):
        touched = Touched(WorkUnit.decode(unit.encode()))
        generate(unit, bounds, touched)
        found.append(touched.digests())
    return Digests.decode(merged(found).encode())


class Writer:
    """A table upstream; each call of `batch` returns the changes since the last one."""

    def __init__(self, columns: str, *rows: tuple[Any, ...]) -> None:
        self.upstream = Upstream(table_of(f"CREATE TABLE t ({columns})"))
        for row in rows:
            self.upstream.insert(row)
        self.upstream.changes.clear()

    def batch(self, schema: str = "shop") -> Batch:
        made = batch_of(self.upstream.table, self.upstream.changes, schema=schema)
        self.upstream.changes.clear()
        return made


def inserted(columns: str, *rows: tuple[Any, ...], schema: str = "shop") -> Batch:
    writer = Writer(columns)
    for row in rows:
        writer.upstream.insert(row)
    return writer.batch(schema)


@pytest.fixture(params=WAYS, ids=["columns", "rows"])
def bounds(request: pytest.FixtureRequest) -> Bounds:
    way: Bounds = request.param
    return way


def conflict(one: Batch, other: Batch, bounds: Bounds) -> bool:
    first, second = digests_of(one, bounds), digests_of(other, bounds)
    assert first.shares(second) == second.shares(first)
    return first.shares(second)


def test_batches_of_different_rows_share_nothing(bounds: Bounds) -> None:
    columns = "id INT PRIMARY KEY, u INT UNIQUE"
    assert not conflict(inserted(columns, (1, 2)), inserted(columns, (2, 1)), bounds)
    assert conflict(inserted(columns, (1, 2)), inserted(columns, (1, 3)), bounds)


def test_batches_of_different_tables_share_nothing(bounds: Bounds) -> None:
    one = inserted("id INT PRIMARY KEY", (1,), schema="shop")
    assert not conflict(one, inserted("id INT PRIMARY KEY", (1,), schema="other"), bounds)
    assert conflict(one, inserted("id INT PRIMARY KEY", (1,), schema="SHOP"), bounds)


@pytest.mark.fault("two batches that conflict only by collation", "the later one waits")
@pytest.mark.parametrize(
    ("one", "other"), [("a", "A"), ("a", "a "), ("a", "á"), ("Zürich", "zurich"), ("", " ")]
)
def test_batches_conflict_by_collation_alone(one: str, other: str, bounds: Bounds) -> None:
    for columns in (f"a {CI} PRIMARY KEY, v INT", f"v INT PRIMARY KEY, a {CI} UNIQUE"):
        rows = [(one, 1), (other, 2)] if columns.startswith("a") else [(1, one), (2, other)]
        assert conflict(inserted(columns, rows[0]), inserted(columns, rows[1]), bounds)
    exact = "a VARCHAR(20) COLLATE utf8mb4_bin PRIMARY KEY"
    is_same = one.rstrip() == other.rstrip()
    assert conflict(inserted(exact, (one,)), inserted(exact, (other,)), bounds) is is_same


@pytest.mark.fault("two batches that conflict only by a unique index", "the later one waits")
def test_batches_conflict_by_a_unique_index_alone(bounds: Bounds) -> None:
    columns = "id INT PRIMARY KEY, a INT, b INT, UNIQUE KEY ab (a, b)"
    one = inserted(columns, (1, 5, 6))
    assert conflict(one, inserted(columns, (2, 5, 6)), bounds)
    assert not conflict(one, inserted(columns, (2, 6, 5)), bounds)
    assert not conflict(one, inserted(columns, (5, 1, 6)), bounds)


@pytest.mark.fault("two batches that conflict only by a before image", "the later one waits")
def test_batches_conflict_by_a_before_image_alone(bounds: Bounds) -> None:
    columns = "id INT PRIMARY KEY, u INT UNIQUE"
    writer = Writer(columns, (1, 7), (2, 8))
    writer.upstream.update(0, (1, 9))
    moved = writer.batch()
    writer.upstream.delete(1)
    deleted = writer.batch()
    writer.upstream.update(0, (3, 9))
    renamed = writer.batch()
    assert conflict(moved, inserted(columns, (4, 7)), bounds)
    assert conflict(deleted, inserted(columns, (4, 8)), bounds)
    assert conflict(renamed, inserted(columns, (1, 4)), bounds)
    assert not conflict(moved, deleted, bounds)


@pytest.mark.fault("two batches that conflict only by a before image")
def test_a_value_that_a_batch_frees_by_way_of_others_is_shared(bounds: Bounds) -> None:
    """The row is deleted when it has another value than the batch found."""
    columns = "id INT PRIMARY KEY, u INT UNIQUE"
    writer = Writer(columns, (1, 7))
    writer.upstream.update(0, (1, 8))
    writer.upstream.delete(0)
    assert conflict(writer.batch(), inserted(columns, (2, 7)), bounds)


def test_null_in_a_unique_index_is_shared_with_nothing(bounds: Bounds) -> None:
    columns = "id INT PRIMARY KEY, a INT, b INT, UNIQUE KEY ab (a, b)"
    one, other = inserted(columns, (1, None, 6)), inserted(columns, (2, None, 6))
    assert not conflict(one, other, bounds)
    assert len(digests_of(one, bounds).keys) == 1


def test_a_prefix_index_compares_the_prefix_alone(bounds: Bounds) -> None:
    for definition, values in (
        ("VARCHAR(9) COLLATE utf8mb4_bin", ("abc", "abd", "acd")),
        (CI, ("ábc", "ABd", "acd")),
        ("VARBINARY(9)", (b"abc", b"abd", b"acd")),
        ("BINARY(4)", (b"ab", b"ab\0\1", b"a\0\0\0")),
    ):
        one, same, different = (
            inserted(f"a {definition} NOT NULL, PRIMARY KEY (a(2))", (each,)) for each in values
        )
        assert conflict(one, same, bounds)
        assert not conflict(one, different, bounds)


@pytest.mark.parametrize(
    ("definition", "one", "same", "different"),
    [
        ("DOUBLE", 0.0, -0.0, 1.0),
        ("DECIMAL(65,2)", "1" * 60, "1" * 60 + ".00", "1" * 59 + "2"),
        ("DECIMAL(5,2)", "1.5", "1.50", "-1.5"),
        ("BIGINT UNSIGNED", 2**64 - 1, 2**64 - 1, 2**63),
        ("BIGINT", -1, -1, 1),
        ("BINARY(3)", b"a", b"a\0\0", b"a\0\1"),
        ("CHAR(3) COLLATE utf8mb4_bin", "a", "a ", "A"),
        ("DATETIME(3)", "2022-04-27 04:05:07.250", "2022-04-27 04:05:07.250", "1000-01-01"),
        ("ENUM('x','y')", "x", "x", "y"),
        ("SET('p','q')", "p,q", "q,p", "p"),
        ("BIT(64)", 2**64 - 1, 2**64 - 1, 0),
        ("VARBINARY(40)", b"123456789" * 3, b"123456789" * 3, b"123456789" * 3 + b"\0"),
    ],
)
def test_equal_values_of_a_type_are_shared_and_others_are_not(
    definition: str, one: Any, same: Any, different: Any, bounds: Bounds
) -> None:
    batches = [
        inserted(f"id INT PRIMARY KEY, a {definition} UNIQUE", (number, value))
        for number, value in enumerate((one, same, different))
    ]
    assert conflict(batches[0], batches[1], bounds)
    assert not conflict(batches[0], batches[2], bounds)


@pytest.mark.parametrize(
    ("columns", "row", "other"),
    [
        ("a INT, b INT UNIQUE", (1, 1), (2, 2)),
        ("id INT PRIMARY KEY, v INT, g INT AS (v) VIRTUAL UNIQUE", (1, 1, None), (2, 2, None)),
        ("a VARCHAR(9) COLLATE utf8mb4_swedish_ci PRIMARY KEY", ("a",), ("b",)),
        (f"a {CI} PRIMARY KEY", ("ß",), ("b",)),
        (f"id INT PRIMARY KEY, a {CI} UNIQUE", (1, "\t"), (2, None)),
    ],
    ids=["no key", "generated", "collation", "character", "character of an index"],
)
def test_a_table_whose_values_cannot_be_compared_is_shared_as_a_whole(
    columns: str, row: tuple[Any, ...], other: tuple[Any, ...], bounds: Bounds
) -> None:
    one = inserted(columns, row)
    assert conflict(one, one, bounds)
    assert conflict(one, inserted(columns, other), bounds)
    assert not conflict(one, inserted(columns, other, schema="elsewhere"), bounds)
    assert UNBOUNDED in digests_of(one, bounds).tables.values()


def test_tables_of_two_forms_in_one_place_are_shared_as_a_whole(bounds: Bounds) -> None:
    """Two upstream tables may be routed into one table downstream."""
    one = inserted("id INT PRIMARY KEY, v INT", (1, 1))
    assert conflict(one, inserted("id BIGINT PRIMARY KEY, v INT", (2, 1)), bounds)
    assert conflict(one, inserted("id INT PRIMARY KEY, v INT UNIQUE", (2, 1)), bounds)
    assert not conflict(one, inserted("id INT PRIMARY KEY, v BIGINT", (2, 1)), bounds)


def test_a_table_whose_keys_change_within_a_batch_is_shared_as_a_whole(bounds: Bounds) -> None:
    pieces = [
        inserted("id INT PRIMARY KEY, v INT", (1, 1)),
        inserted("id INT PRIMARY KEY, v INT UNIQUE", (2, 1)),
    ]
    both = Batch(1, [each.tables[0] for each in pieces])
    assert list(digests_of(both, bounds).tables.values()) == [UNBOUNDED]
    assert conflict(both, inserted("id INT PRIMARY KEY, v INT", (3, 3)), bounds)


def test_tables_that_share_a_unit_keep_their_own_digests() -> None:
    table = table_of(f"CREATE TABLE t (id INT PRIMARY KEY, a {CI} UNIQUE)")
    pieces: list[TableRows] = []
    for number in range(4):
        upstream = Upstream(table)
        for i in range(30):
            upstream.insert((i, "ß" if number == 2 and i == 7 else f"v{i}"))
        for i in range(5):
            upstream.update(i, (i, f"w{i}"))
        upstream.changes[:5] = []
        pieces += batch_of(table.renamed(f"t{number}"), upstream.changes, schema="shop").tables
    assert len(plan_units(Batch(1, pieces), MYSQL)) == 1
    together = digests_of(Batch(1, pieces), Bounds())
    alone = [digests_of(Batch(1, [piece]), Bounds()) for piece in pieces]
    assert together.tables == merged(alone).tables
    assert list(together.tables.values()).count(UNBOUNDED) == 1
    np.testing.assert_array_equal(together.keys, merged(alone).keys)


def test_the_rows_of_a_batch_have_the_same_digests_however_they_are_processed() -> None:
    table = table_of("CREATE TABLE t (id INT PRIMARY KEY, d DECIMAL(9,3) UNIQUE)")
    encode = Upstream(table).codec.encode_insert
    values = [None if i % 7 == 0 else str(i) for i in range(3000)]
    changes = [(MutationType.INSERT, encode((i, value))) for i, value in enumerate(values)]
    batch = batch_of(table, changes, schema="shop")
    columns, rows = digests_of(batch), digests_of(batch, Bounds(10_000))
    np.testing.assert_array_equal(columns.keys, rows.keys)
    assert len(rows.keys) == 3000 + 3000 - 429


@pytest.mark.parametrize("case", CASES, ids=str)
@examples(12)
@given(data=st.data())
def test_rows_and_columns_give_the_same_digests(case: Case, data: st.DataObject) -> None:
    upstream = Upstream(case.table)
    for steps in data.draw(histories(case, 25)):
        batch = batch_of(case.table, play(case, upstream, steps), schema="shop")
        columns, rows = (digests_of(batch, way) for way in WAYS)
        assert columns.tables == rows.tables
        np.testing.assert_array_equal(columns.keys, rows.keys)


TEXTS = st.text(alphabet="aA áÁäß\t\u0301bー", max_size=4)


@examples(60)
@given(one=TEXTS, other=TEXTS, length=st.sampled_from([-1, 1, 2]))
@pytest.mark.parametrize("collation", ["utf8mb4_general_ci", "latin1_swedish_ci", "utf8mb4_bin"])
def test_texts_share_a_digest_exactly_if_they_fold_to_one_key(
    collation: str, one: str, other: str, length: int
) -> None:
    part = "" if length == -1 else f"({length})"
    columns = f"id INT PRIMARY KEY, a VARCHAR(9) COLLATE {collation}, UNIQUE KEY (a{part})"
    fold = fold_of(table_of(f"CREATE TABLE t ({columns})").columns[1], length)
    first, second = fold(one), fold(other)
    wanted = first == second or None in (first, second)
    assert conflict(inserted(columns, (1, one)), inserted(columns, (2, other)), WAYS[0]) is wanted


def test_an_empty_answer_is_a_few_bytes_and_a_damaged_one_is_refused() -> None:
    empty = merged([])
    assert len(empty.encode()) == 4
    assert not empty.shares(empty)
    data = digests_of(inserted("id INT PRIMARY KEY", (1,))).encode()
    assert len(data) == 4 + 16 + 8
    for wrong in (data[:3], data[:-1], data[:12]):
        with pytest.raises(Malformed):
            Digests.decode(wrong)
