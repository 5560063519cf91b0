"""Work units and statements survive the way to a Spark task and back."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drainer.task.compaction import plan_units
from drainer.task.held_unit import answer, answered, held_unit
from drainer.task.sql.generate import generate
from drainer.task.sql.literals import MYSQL
from drainer.task.sql.rows import can_meet_others
from drainer.task.work_unit import Batch, Statements, TableRows, WorkUnit, in_order
from penstock.errors import Malformed
from tests.kit.workloads.changes import CASES, Case, Upstream, batch_of

TEXTS = st.lists(st.binary(max_size=20), max_size=5)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_decoded_unit_equals_the_encoded_one(case: Case) -> None:
    upstream = Upstream(case.table)
    upstream.insert(tuple(values[-1] for values in case.values))
    (unit,) = plan_units(batch_of(case.table, upstream.changes, schema="s"), MYSQL)
    assert WorkUnit.decode(unit.encode()) == unit


@pytest.mark.parametrize("displaces", [False, True])
def test_a_task_makes_the_sql_of_all_rows_that_are_in_a_unit(*, displaces: bool) -> None:
    tables: list[TableRows] = []
    plain = Case("no row can meet another", "id INT PRIMARY KEY, v INT", ((1, 2), (1, 2)))
    for number, case in enumerate((*CASES, plain)):
        upstream = Upstream(case.table)
        for at in (0, -1):
            upstream.insert(tuple(values[at] for values in case.values))
        upstream.delete(0)
        named = case.table.renamed(f"t{number}")
        tables += batch_of(named, upstream.changes, schema="s").tables
    batch = Batch(7, tables, displaces)
    made = answered(answer(held_unit(batch, MYSQL)))
    assert [meets for meets, _ in made] == [True, False]
    for meets, statements in made:
        units = [u for u in plan_units(batch, MYSQL) if can_meet_others(u.table) is meets]
        assert list(in_order([statements])) == list(in_order(map(generate, units)))
        assert statements.upserts
    assert made[1][1].ordered


@given(st.binary(max_size=60))
def test_an_answer_from_elsewhere_is_refused(data: bytes) -> None:
    with pytest.raises(Malformed):
        answered(data)
    with pytest.raises(Malformed):
        answer(b"PSTBATCH" + data)


@given(TEXTS, TEXTS, TEXTS)
def test_decoded_statements_equal_the_encoded_ones(
    deletes: list[bytes], upserts: list[bytes], ordered: list[bytes]
) -> None:
    statements = Statements(deletes, upserts, ordered)
    assert Statements.decode(statements.encode()) == statements


@given(st.binary(max_size=60))
def test_bytes_from_elsewhere_are_refused(data: bytes) -> None:
    with pytest.raises(Malformed):
        WorkUnit.decode(data)


@given(TEXTS, st.data())
def test_statements_cut_short_are_refused(texts: list[bytes], data: st.DataObject) -> None:
    encoded = Statements(texts, [b"x"], []).encode()
    with pytest.raises(Malformed):
        Statements.decode(encoded[: data.draw(st.integers(0, len(encoded) - 1))])


def test_deletes_come_first_and_ordered_statements_last() -> None:
    one = Statements([b"d1"], [b"u1"], [b"o1", b"o2"])
    two = Statements([b"d2"], [b"u2"], [])
    assert list(in_order([one, two])) == [b"d1", b"d2", b"u1", b"u2", b"o1", b"o2"]
    assert one.size_bytes == 8


def test_a_batch_without_rows_needs_no_units() -> None:
    assert plan_units(batch_of(CASES[0].table, [], schema="s"), MYSQL) == []


def test_every_row_has_one_kind() -> None:
    batch = batch_of(CASES[0].table, [], schema="s")
    rows = TableRows("s", CASES[0].table, b"\0", batch.tables[0].rows)
    with pytest.raises(AssertionError):
        rows.kind_array()
