"""Every change as a statement ends where merged batches and one-by-one apply end, crash or not."""

import random
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from typing import Any, TypedDict

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from drainer.apply.statements import in_commit_order, is_crossing, links_of, spread, whole
from drainer.sinks.protocol import ForeignKey, Split, Transaction
from drainer.sinks.sqlite.ddl import create_table
from drainer.task.compaction import plan_units
from drainer.task.sql.generate import answer, generate
from drainer.task.sql.literals import SQLITE
from drainer.task.sql.row_statements import NO_KEY, UNBOUNDED, RowStatements, fold_of, key_sets
from drainer.task.work_unit import ROWS_SCHEMA, Link, Op, WorkUnit, in_order
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
from tests.kit.workloads.sqlite_copies import Changes, content, database, expected, serial
from tests.kit.workloads.sqlite_copies import run as execute

SCHEMAS = ("statements", "merged", "serial")


def answered(
    table: TableInfo,
    changes: Changes,
    *,
    safe: bool,
    dialect: str = SQLITE,
    links: tuple[Link, ...] = (),
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
    unit = WorkUnit(1, 0, dialect, "statements", table.name, table, rows, links=links)
    return RowStatements.decode(answer(unit.encode()))


def split(
    table: TableInfo,
    changes: Changes,
    *,
    queues: int,
    batch: int,
    safe: bool,
    size: int = 1,
    dialect: str = SQLITE,
) -> Split:
    """Return the changes of one table as queues; no `queues` keep transactions whole."""
    numbers = np.arange(len(changes), dtype=np.int32) // size
    made = in_commit_order([answered(table, changes, safe=safe, dialect=dialect)], [numbers])
    if not safe and is_crossing(made):
        made = in_commit_order([answered(table, changes, safe=True, dialect=dialect)], [numbers])
        safe = True
    if not queues:
        return whole(made, safe=safe)
    return spread(made, queues=queues, statements_max=batch, safe=safe)


def interleaved(made: Split, seed: int) -> Iterator[Transaction]:
    """The queues' transactions as they may come to the downstream, then the last one."""
    luck = random.Random(seed)
    queues = [iter(queue) for queue in made.queues]
    while queues:
        queue = luck.choice(queues)
        transaction = next(queue, None)
        if transaction is None:
            queues.remove(queue)
        else:
            yield transaction
    yield made.last


def run(connection: sqlite3.Connection, transaction: Transaction, *, safe: bool) -> None:
    for statement in transaction:
        found = connection.execute(statement.sql.decode()).rowcount
        assert safe or found or not statement.names_a_row, statement


def merge(connection: sqlite3.Connection, table: TableInfo, changes: Changes) -> None:
    units = plan_units(batch_of(table, changes, schema="merged"), SQLITE)
    execute(connection, in_order(generate(unit) for unit in units))


class Way(TypedDict):
    """How changes are split."""

    queues: int
    batch: int
    safe: bool
    size: int


WAYS = st.builds(
    Way,
    queues=st.sampled_from([0, 1, 2, 5]),
    batch=st.sampled_from([1, 2, 7]),
    safe=st.booleans(),
    size=st.sampled_from([1, 3]),
)


@pytest.mark.fault("cycles: numbers and unique values swapped by way of others, reused, NULL")
@pytest.mark.parametrize("extra", ["", "extra INT DEFAULT 7"], ids=["alike", "extra column"])
@pytest.mark.parametrize("case", CASES, ids=str)
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_statements_merged_and_serial_apply_end_alike(
    case: Case, extra: str, data: st.DataObject
) -> None:
    table = case.table
    upstream = Upstream(table)
    way = data.draw(WAYS)
    seed = data.draw(st.integers(0, 99))
    with closing(database(table, *SCHEMAS, extra=extra)) as connection:
        for changes in played(case, upstream, data.draw(histories(case, 25))):
            made = split(table, changes, **way)
            for transaction in interleaved(made, seed):
                run(connection, transaction, safe=made.safe)
            merge(connection, table, changes)
            execute(connection, serial(table, changes))
            wanted = expected(upstream)
            for schema in SCHEMAS:
                assert content(connection, schema, len(wanted[0]) if wanted else 0) == wanted or (
                    not wanted and content(connection, schema, 0) == []
                ), schema


@pytest.mark.fault(
    "`statements`: anywhere, twice, histories at random, batches cut elsewhere afterwards",
    "equal to upstream",
    cases="20 for each of 9 tables",
)
@pytest.mark.parametrize("case", CASES, ids=str)
@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_a_crash_anywhere_is_healed_by_the_safe_form(case: Case, data: st.DataObject) -> None:
    """The batches of the second run are cut elsewhere, and reach beyond the crash."""
    table = case.table
    upstream = Upstream(table)
    way = data.draw(WAYS)
    number = st.integers(0, 99)
    with closing(database(table, *SCHEMAS)) as connection:
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
            made = split(table, changes, **(way | {"safe": True}))
            for transaction in interleaved(made, data.draw(number)):
                run(connection, transaction, safe=True)
        wanted = expected(upstream)
        assert content(connection, "statements", len(wanted[0]) if wanted else 99) == wanted


def crash(
    connection: sqlite3.Connection, table: TableInfo, changes: Changes, way: Way, seed: int, at: int
) -> None:
    """Apply some of the transactions, but never the last, which has the checkpoint."""
    if changes:
        # Only the first run may be in the usual form; a second one is safe.
        made = split(table, changes, **way)
        way["safe"] = True
        transactions = list(interleaved(made, seed))[:-1]
        for transaction in transactions[: at % (len(transactions) + 1)]:
            run(connection, transaction, safe=made.safe)


# --- foreign keys --------------------------------------------------------------------------

PARENT = table_of("CREATE TABLE p (id INT PRIMARY KEY, v INT)")
CHILD = table_of("CREATE TABLE c (id INT PRIMARY KEY, parent INT, v INT)")
FOREIGN_KEY = ForeignKey("statements", "c", "statements", "p", (("parent", "id"),))


def family_history(
    choices: list[tuple[int, int, int]],
) -> tuple[list[tuple[int, MutationType, bytes]], Any]:
    """Parents and children that come, move and go as a foreign key lets them."""
    upstreams = (Upstream(PARENT), Upstream(CHILD))
    parents, children = upstreams
    order: list[tuple[int, MutationType, bytes]] = []
    for op, one, two in choices:
        ids = [row[0] for _, row in parents.rows]
        used = {row[1] for _, row in children.rows}
        if op == 0:
            parents.insert((one, two))
        elif op == 1:
            children.insert((one, ids[two % len(ids)] if ids else None, 0))
        elif op == 2 and children.rows:
            at = one % len(children.rows)
            row = children.rows[at][1]
            children.update(at, (row[0], ids[two % len(ids)] if ids else None, row[2]))
        elif op == 3 and children.rows:
            children.delete(one % len(children.rows))
        elif op >= 4 and parents.rows:
            at = one % len(parents.rows)
            row = parents.rows[at][1]
            if op == 4 or row[0] in used:
                parents.update(at, (row[0], two))
            elif op == 5:
                parents.delete(at)
            else:
                parents.update(at, (two + 20, row[1]))
        for which, upstream in enumerate(upstreams):
            order += [(which, *change) for change in upstream.changes]
            upstream.changes.clear()
    return order, upstreams


@settings(max_examples=40, deadline=None)
@given(
    choices=st.lists(st.tuples(st.integers(0, 6), st.integers(0, 9), st.integers(0, 9))),
    queues=st.sampled_from([2, 5]),
    safe=st.booleans(),
    seed=st.integers(0, 99),
)
def test_no_child_is_ever_without_its_parent(
    choices: list[tuple[int, int, int]], queues: int, safe: bool, seed: int
) -> None:
    order, upstreams = family_history(choices)
    answers, numbers = [], []
    for which, table in enumerate((PARENT, CHILD)):
        mine = [(i, kind, data) for i, (owner, kind, data) in enumerate(order) if owner == which]
        if not mine:
            continue
        links = links_of("statements", table, [FOREIGN_KEY])
        changes: Changes = [(kind, data) for _, kind, data in mine]
        answers.append(answered(table, changes, safe=safe, links=links))
        numbers.append(np.array([i for i, _, _ in mine], np.int32))
    made = spread(in_commit_order(answers, numbers), queues=queues, statements_max=1, safe=safe)
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        for table in (PARENT, CHILD):
            connection.execute(create_table(f"`statements.{table.name}`", table))
        orphans = (
            "SELECT * FROM `statements.c` WHERE parent IS NOT NULL"
            " AND parent NOT IN (SELECT id FROM `statements.p`)"
        )
        for transaction in interleaved(made, seed):
            run(connection, transaction, safe=safe)
            assert not connection.execute(orphans).fetchall()
        for upstream in upstreams:
            rows = connection.execute(f"SELECT * FROM `statements.{upstream.table.name}`")
            assert sorted(rows, key=repr) == expected(upstream)


# --- causality keys ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("definition", "one", "other", "alike"),
    [
        ("VARCHAR(9) COLLATE utf8mb4_general_ci", "a", "A ", True),
        ("VARCHAR(9) COLLATE utf8mb4_0900_ai_ci", "résumé", "RESUME", True),
        ("VARCHAR(9) COLLATE utf8mb4_bin", "a", "a  ", True),
        ("VARCHAR(9) COLLATE utf8mb4_bin", "a", "A", False),
        ("VARCHAR(9) COLLATE utf8mb4_general_ci", "a", "b", False),
        ("BINARY(4)", b"a", b"a\0\0\0", True),
        ("DOUBLE", 0.0, -0.0, True),
        ("DECIMAL(9,3)", "1.5", "1.500", True),
        ("BIGINT UNSIGNED", 2**64 - 1, 2**64 - 2, False),
    ],
)
def test_values_that_an_index_calls_equal_fold_to_one_key(
    definition: str, one: Any, other: Any, alike: bool
) -> None:
    fold = fold_of(table_of(f"CREATE TABLE t (a {definition})").columns[0])
    assert None not in (fold(one), fold(other))
    assert (fold(one) == fold(other)) is alike


def test_a_prefix_key_sees_no_more_than_the_prefix() -> None:
    (keys,) = key_sets("s", table_of("CREATE TABLE t (a VARCHAR(9), b INT, UNIQUE (a(2), b))"))
    assert keys.key(("abc", 1)) == keys.key(("abd", 1)) != keys.key(("abd", 2))
    assert keys.key((None, 1)) == NO_KEY


@pytest.mark.parametrize(
    ("collation", "value"),
    [("utf8mb4_general_ci", "ß"), ("utf8mb4_swedish_ci", "a"), ("utf8mb4_unicode_ci", "a\tb")],
)
def test_a_value_whose_equals_are_not_known_is_unbounded(collation: str, value: str) -> None:
    table = table_of(f"CREATE TABLE t (a VARCHAR(9) COLLATE {collation} PRIMARY KEY)")
    (keys,) = key_sets("s", table)
    assert keys.key((value,)) == UNBOUNDED


def test_an_unbounded_value_is_in_one_group_with_every_value_of_its_index() -> None:
    table = table_of("CREATE TABLE t (a VARCHAR(9) COLLATE utf8mb4_general_ci PRIMARY KEY)")
    upstream = Upstream(table)
    for text in ("a", "b", "ß", "c"):
        upstream.insert((text,))
    made = split(table, upstream.changes, queues=4, batch=1, safe=False)
    assert [len(queue) for queue in made.queues] == [4]
    calm = [change for i, change in enumerate(upstream.changes) if i != 2]
    assert len(split(table, calm, queues=4, batch=1, safe=False).queues) == 3


def test_values_that_cross_within_a_transaction_take_the_safe_form() -> None:
    table = table_of("CREATE TABLE t (id INT PRIMARY KEY, u INT UNIQUE)")
    upstream = Upstream(table)
    upstream.insert((1, 10))
    upstream.insert((2, 20))
    codec = upstream.codec
    swap = [
        (MutationType.UPDATE, codec.encode_update((1, 10), (1, 20))),
        (MutationType.UPDATE, codec.encode_update((2, 20), (2, 10))),
    ]
    with closing(database(table, *SCHEMAS)) as connection:
        for changes in (upstream.changes, swap):
            made = split(table, changes, queues=2, batch=1, safe=False, size=2)
            for transaction in interleaved(made, 0):
                run(connection, transaction, safe=made.safe)
        assert content(connection, "statements", 2) == [(1, 20), (2, 10)]


def test_transactions_stay_whole_without_dispatch() -> None:
    table = table_of("CREATE TABLE t (id INT PRIMARY KEY)")
    upstream = Upstream(table)
    for i in range(7):
        upstream.insert((i,))
    made = split(table, upstream.changes, queues=0, batch=1, safe=False, size=3)
    assert [[len(t) for t in queue] for queue in made.queues] == [[3, 3]]
    assert len(made.last) == 1


def test_a_table_without_row_key_is_written_with_the_checkpoint() -> None:
    table = table_of("CREATE TABLE t (a INT)")
    upstream = Upstream(table)
    for i in range(9):
        upstream.insert((i,))
    for queues in (0, 4):
        made = split(table, upstream.changes, queues=queues, batch=1, safe=True)
        assert (made.queues, len(made.last)) == ([], 9)
        assert all(statement.sql.startswith(b"INSERT") for statement in made.last)
