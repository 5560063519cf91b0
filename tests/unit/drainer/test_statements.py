"""Every change as a statement ends where merged batches and one-by-one apply end, crash or not."""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from drainer.apply.compaction import plan_units
from drainer.apply.generate import generate
from drainer.apply.literals import SQLITE
from drainer.apply.row_statements import RowStatements
from drainer.apply.rowwise import generate_rows
from drainer.apply.sql import table_sql
from drainer.apply.task import answer
from drainer.apply.work import ROWS_SCHEMA, Op, WorkUnit, in_order
from drainer.sinks.split import Split, Transaction
from drainer.sinks.sqlite import exact_double
from drainer.sinks.sqlite_convert import stored_value
from drainer.sinks.sqlite_ddl import create_indexes, create_table
from drainer.strategies.grouping import in_commit_order, is_crossing, spread, whole
from penstock.model import MutationType
from penstock.schema import TableInfo
from tests.kit.changes import CASES, Case, Upstream, batch_of, histories, padded, play

Changes = list[tuple[MutationType, bytes]]
SCHEMAS = ("statements", "merged", "serial")


def answered(
    table: TableInfo, changes: Changes, *, safe: bool, dialect: str = SQLITE
) -> RowStatements:
    kinds = [int(kind) for kind, _ in changes]
    rows = pa.RecordBatch.from_arrays(
        [
            pa.array([int(Op.SAFE if safe else Op.EACH)] * len(kinds), pa.uint8()),
            pa.array(kinds, pa.uint8()),
            pa.array([row for _, row in changes], pa.large_binary()),
        ],
        schema=ROWS_SCHEMA,
    )
    unit = WorkUnit(1, 0, dialect, "statements", table.name, table, rows)
    return RowStatements.decode(answer(unit.encode()))


def split(
    table: TableInfo,
    changes: Changes,
    *,
    lanes: int,
    batch: int,
    safe: bool,
    size: int = 1,
    dialect: str = SQLITE,
) -> Split:
    """Return the changes of one table as lanes; no `lanes` keep transactions whole."""
    numbers = np.arange(len(changes), dtype=np.int32) // size
    made = in_commit_order([answered(table, changes, safe=safe, dialect=dialect)], [numbers])
    if not safe and is_crossing(made):
        made = in_commit_order([answered(table, changes, safe=True, dialect=dialect)], [numbers])
        safe = True
    if not lanes:
        return whole(made, safe=safe)
    return spread(made, lanes=lanes, statements_max=batch, safe=safe)


def interleaved(made: Split, seed: int) -> Iterator[Transaction]:
    """The lanes' transactions as they may come to the downstream, then the last one."""
    luck = random.Random(seed)
    lanes = [iter(lane) for lane in made.lanes]
    while lanes:
        lane = luck.choice(lanes)
        transaction = next(lane, None)
        if transaction is None:
            lanes.remove(lane)
        else:
            yield transaction
    yield made.last


def run(connection: sqlite3.Connection, transaction: Transaction, *, safe: bool) -> None:
    for statement in transaction:
        found = connection.execute(statement.sql.decode()).rowcount
        assert safe or found or not statement.names_a_row, statement


def database(table: TableInfo, extra: str = "") -> sqlite3.Connection:
    connection = sqlite3.connect(":memory:", isolation_level=None)
    connection.create_function("exact_double", 1, exact_double)
    for schema in SCHEMAS:
        name = f"`{schema}.t`"
        connection.execute(create_table(name, table))
        for index in create_indexes(name, table):
            connection.execute(index.replace("penstock.index", f"penstock.{schema}"))
        if extra:
            connection.execute(f"ALTER TABLE {name} ADD COLUMN {extra}")
    return connection


def content(connection: sqlite3.Connection, schema: str, columns: int) -> list[Any]:
    rows = connection.execute(f"SELECT * FROM `{schema}.t`")
    return sorted((row[:columns] for row in rows), key=repr)


def merge(connection: sqlite3.Connection, table: TableInfo, changes: Changes) -> None:
    units = plan_units(batch_of(table, changes, schema="merged"), 1, SQLITE)
    for statement in in_order(generate(unit) for unit in units):
        connection.execute(statement.decode())


def serial(connection: sqlite3.Connection, table: TableInfo, changes: Changes) -> None:
    sql = table_sql(SQLITE, "serial", "t", table)
    kinds = [int(kind) for kind, _ in changes]
    rows = pa.array([data for _, data in changes], pa.binary())
    for statement in generate_rows(sql, [Op.ORDERED] * len(kinds), kinds, rows).ordered:
        connection.execute(statement.decode())


def expected(upstream: Upstream) -> list[Any]:
    columns = [i for i, c in enumerate(upstream.table.columns) if not c.is_generated]
    rows = [padded(upstream.table, row) for _, row in upstream.rows]
    return sorted((tuple(stored_value(row[i]) for i in columns) for row in rows), key=repr)


WAYS = st.fixed_dictionaries(
    {
        "lanes": st.sampled_from([0, 1, 2, 5]),
        "batch": st.sampled_from([1, 2, 7]),
        "safe": st.booleans(),
        "size": st.sampled_from([1, 3]),
    }
)


@pytest.mark.parametrize("extra", ["", "extra INT DEFAULT 7"], ids=["alike", "extra column"])
@pytest.mark.parametrize("case", CASES, ids=str)
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_statements_merged_and_serial_apply_end_alike(
    case: Case, extra: str, data: st.DataObject
) -> None:
    table = case.table
    upstream = Upstream(table)
    way = data.draw(WAYS)
    seed = data.draw(st.integers(0, 99))
    with closing(database(table, extra)) as connection:
        for steps in data.draw(histories(case, 25)):
            changes = play(case, upstream, steps)
            if not changes:
                continue
            made = split(table, changes, **way)
            for transaction in interleaved(made, seed):
                run(connection, transaction, safe=made.safe)
            merge(connection, table, changes)
            serial(connection, table, changes)
            wanted = expected(upstream)
            for schema in SCHEMAS:
                assert content(connection, schema, len(wanted[0]) if wanted else 0) == wanted or (
                    not wanted and content(connection, schema, 0) == []
                ), schema


@pytest.mark.parametrize("case", CASES, ids=str)
@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_a_crash_anywhere_is_healed_by_the_safe_form(case: Case, data: st.DataObject) -> None:
    """The batches of the second life are cut elsewhere, and reach beyond the crash."""
    table = case.table
    upstream = Upstream(table)
    way = data.draw(WAYS)
    number = st.integers(0, 99)
    with closing(database(table)) as connection:
        drawn = [*data.draw(histories(case, 20)), [], []]
        before, torn, later = (play(case, upstream, steps) for steps in drawn[:3])
        for changes in filter(None, [before]):
            made = split(table, changes, **way)
            for transaction in interleaved(made, data.draw(number)):
                run(connection, transaction, safe=made.safe)
        for _ in range(data.draw(st.integers(1, 2))):
            crash(connection, table, torn, way, data.draw(number), data.draw(number))
        rest = torn + later
        cut = data.draw(number) % (len(rest) + 1)
        for changes in filter(None, [rest[:cut], rest[cut:]]):
            made = split(table, changes, **{**way, "safe": True})
            for transaction in interleaved(made, data.draw(number)):
                run(connection, transaction, safe=True)
        wanted = expected(upstream)
        assert content(connection, "statements", len(wanted[0]) if wanted else 99) == wanted


def crash(
    connection: sqlite3.Connection,
    table: TableInfo,
    changes: Changes,
    way: dict[str, Any],
    seed: int,
    at: int,
) -> None:
    """Apply some of the transactions, but never the last, which has the checkpoint."""
    if changes:
        # Only the first life may be in the usual form; a second one is safe.
        made = split(table, changes, **way)
        way["safe"] = True
        transactions = list(interleaved(made, seed))[:-1]
        for transaction in transactions[: at % (len(transactions) + 1)]:
            run(connection, transaction, safe=made.safe)
