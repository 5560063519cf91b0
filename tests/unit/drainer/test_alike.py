"""Tables of one layout that go through the same calls get the SQL that each would get alone."""

from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from drainer.task.compaction import groups, plan_units
from drainer.task.sql.generate import generate
from drainer.task.sql.literals import MYSQL, SQLITE
from drainer.task.sql.rows import apply_key
from drainer.task.work_unit import BOUNDS, Batch, Bounds, Statements, TableRows, WorkUnit, in_order
from penstock.datum.rows.row_codec import RowCodec
from penstock.errors import Malformed
from penstock.schema.model import TableInfo
from penstock.wire.binlog import MutationType
from tests.kit.workloads.changes import CASES, Case, Upstream, histories, play, table_of
from tests.kit.workloads.sqlite_copies import content, database, run
from tests.unit.drainer.test_compaction import COLUMNS

KEYED = [case for case in CASES if apply_key(case.table)]
Changes = Sequence[tuple[MutationType, bytes]]
DAMAGED = b"\xff\xff"
TABLE = table_of("CREATE TABLE t (id INT PRIMARY KEY, v INT)")


COLUMNS_ALONE = Bounds(rowwise_max=0, table_rows_max=0)


def rows_of(table: TableInfo, number: int, changes: Changes) -> TableRows:
    """Changes of the table's twin of that number, some of them in Arrow's large type."""
    kinds = bytes(int(kind) for kind, _ in changes)
    rows = pa.array([row for _, row in changes], pa.large_binary() if number % 2 else pa.binary())
    twin = replace(table, id=100 + number, name=f"t`{number}", comment=str(number))
    return TableRows("a'b", twin, kinds, rows)


def written(
    tables: list[TableRows], dialect: str, bounds: Bounds, *, displaces: bool
) -> Statements:
    units = plan_units(Batch(1, tables, displaces), dialect, bounds)
    assert [unit.part for unit in units] == list(range(len(units)))
    assert [WorkUnit.decode(unit.encode()) for unit in units] == units
    made = [generate(WorkUnit.decode(unit.encode()), bounds) for unit in units]
    return Statements(
        sorted(s for each in made for s in each.deletes),
        sorted(s for each in made for s in each.upserts),
        [s for each in made for s in each.ordered],
    )


@pytest.mark.parametrize("case", KEYED, ids=str)
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_tables_together_get_the_statements_that_each_gets_alone(
    case: Case, data: st.DataObject
) -> None:
    upstreams = [Upstream(case.table) for _ in range(data.draw(st.integers(2, 4)))]
    batches = data.draw(histories(case, 30))
    displaces = data.draw(st.booleans())
    dialect = data.draw(st.sampled_from([MYSQL, SQLITE]))
    for steps in batches:
        share = len(steps) // len(upstreams) + 1
        tables = [
            rows_of(case.table, i, play(case, upstream, steps[i * share : (i + 1) * share]))
            for i, upstream in enumerate(upstreams)
        ]
        together = written(tables, dialect, COLUMNS, displaces=displaces)
        alone = written(tables, dialect, COLUMNS_ALONE, displaces=displaces)
        assert alone == together


@pytest.mark.parametrize("case", KEYED, ids=str)
@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_two_alike_tables_end_as_each_does_alone(case: Case, data: st.DataObject) -> None:
    upstreams = {name: Upstream(case.table) for name in ("merged", "serial")}
    with (
        closing(database(case.table, *upstreams)) as together,
        closing(database(case.table, *upstreams)) as alone,
    ):
        for steps in data.draw(histories(case, 30)):
            cut = len(steps) // 3
            tables = []
            for (name, upstream), some in zip(
                upstreams.items(), (steps[:cut], steps[cut:]), strict=True
            ):
                changes = play(case, upstream, some)
                tables.append(replace(rows_of(case.table, 0, changes), schema=name))
            tables = [replace(each, table=case.table) for each in tables]
            units = plan_units(Batch(1, tables), SQLITE, COLUMNS)
            assert len(units) == 1 or not all(len(each.rows) for each in tables)
            run(together, list(in_order(generate(unit, COLUMNS) for unit in units)))
            # Few rows: these go row by row.
            units = plan_units(Batch(1, tables), SQLITE, Bounds(table_rows_max=0))
            run(alone, list(in_order(map(generate, units))))
            for name in upstreams:
                assert content(together, name) == content(alone, name)


def inserts(count: int) -> list[tuple[MutationType, bytes]]:
    codec = RowCodec(TABLE)
    return [(MutationType.INSERT, codec.encode_insert((i, i))) for i in range(count)]


def test_a_group_is_one_unit_that_counts_the_rows_of_each_table() -> None:
    tables = [rows_of(TABLE, i, inserts(1 + i % 5 * 10)) for i in range(40)]
    (unit,) = plan_units(Batch(1, tables), MYSQL)
    counted = [(name, upserts) for _, name, _, upserts in unit.members]
    assert counted == [(each.table.name, len(each.rows)) for each in tables]
    assert len(unit.rows) == sum(len(each.rows) for each in tables)


def test_other_layouts_many_rows_and_a_table_that_comes_twice_stay_alone() -> None:
    other = table_of("CREATE TABLE t (id INT PRIMARY KEY, v BIGINT)")
    keyless = table_of("CREATE TABLE t (id INT, v INT)")
    tables = [
        rows_of(TABLE, 0, inserts(1)),
        rows_of(TABLE, 1, inserts(1)),
        rows_of(TABLE, 2, inserts(1)),
        rows_of(TABLE, 1, inserts(2)),
        rows_of(other, 3, inserts(1)),
        rows_of(keyless, 4, inserts(1)),
        rows_of(TABLE, 5, inserts(BOUNDS.table_rows_max)),
        rows_of(TABLE, 6, []),
    ]
    found = [[tables.index(each) for each in group] for group in groups(tables)]
    assert found == [[0, 2], [1], [3], [4], [5], [6]]


def test_a_group_holds_no_more_than_its_bytes() -> None:
    tables = [rows_of(TABLE, i, inserts(100)) for i in range(10)]
    found = groups(tables, Bounds(group_bytes_max=4 * tables[1].rows.nbytes))
    assert max(map(len, found)) <= 5
    assert [each for group in found for each in group] == tables


@pytest.mark.parametrize("number", [0, 2])
def test_a_damaged_row_is_reported_with_its_own_table(number: int) -> None:
    tables = [rows_of(TABLE, i, inserts(1)) for i in range(4)]
    tables[number] = rows_of(TABLE, number, [(MutationType.DELETE, DAMAGED)])
    with pytest.raises(Malformed, match=f"t`{number}"):
        plan_units(Batch(1, tables), MYSQL, COLUMNS)


@pytest.mark.parametrize("number", [0, 2])
def test_a_row_that_only_the_task_finds_damaged_is_reported_with_its_own_table(number: int) -> None:
    """Compaction reads no further than the key."""
    tables = [rows_of(TABLE, i, inserts(1)) for i in range(4)]
    bytes_of_row = inserts(1)[0][1]
    tables[number] = rows_of(TABLE, number, [(MutationType.INSERT, bytes_of_row[:-1])])
    (unit,) = plan_units(Batch(1, tables), MYSQL, COLUMNS)
    with pytest.raises(Malformed, match=f"t`{number}"):
        generate(unit, COLUMNS)
