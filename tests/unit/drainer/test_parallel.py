"""Partitions that commit by themselves end where serial apply ends, wherever a run ends."""

import random
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, nullcontext
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from drainer.apply.batches import FetchBatch, Generation
from drainer.apply.in_tasks import InTasks
from drainer.apply.strategies import Begins, Parallel, Snapshot
from drainer.build import build_strategy
from drainer.components import Components
from drainer.settings.config import ApplyConfig, DrainerConfig
from drainer.sinks.checkpoint import Checkpoint
from drainer.task.compaction import plan_units
from drainer.task.held_unit import Made
from drainer.task.partitions import Partition, Partitions, arranged, cut_by_bytes
from drainer.task.row_fetch import Cut
from drainer.task.sql.digests import Digests
from drainer.task.sql.generate import generate
from drainer.task.sql.literals import SQLITE
from drainer.task.sql.rows import can_meet_others
from drainer.task.work_unit import BOUNDS, Bounds, Statements
from penstock.errors import NeedsOperator
from penstock.schema.model import TableInfo
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
from tests.kit.workloads.sqlite_copies import Changes, content, database, expected
from tests.kit.workloads.sqlite_copies import run as execute
from tests.unit.drainer.test_statements import SCHEMAS, Way, crash, interleaved, run, split

SMALL = Bounds(statement_rows_max=2)
"""A few rows are enough for several statements."""
NOTHING = Digests({}, np.zeros(0, np.uint64))


def partitions(
    table: TableInfo, changes: Changes, connections: int, *, displaces: bool = False
) -> Partitions:
    batch = batch_of(table, changes, schema="merged")
    batch = type(batch)(batch.batch_id, batch.tables, displaces)
    units = plan_units(batch, SQLITE, SMALL)
    meets = can_meet_others(table)
    return arranged(
        [(meets, generate(unit, SMALL)) for unit in units], connections=connections, bytes_min=1
    )


def in_some_order(work: Partitions, seed: int) -> list[Partition]:
    """The partitions as they may come to the downstream; the last one apart."""
    luck = random.Random(seed)
    return [each for phase in work.phases for each in luck.sample(phase, len(phase))]


def apply(connection: sqlite3.Connection, work: Partitions, seed: int) -> None:
    for each in [*in_some_order(work, seed), work.last]:
        execute(connection, each)


SOME = settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.too_slow])
SEEDS = st.integers(0, 99)


@pytest.mark.fault("cycles: numbers and unique values swapped by way of others, reused, NULL")
@pytest.mark.parametrize("case", CASES, ids=str)
@SOME
@given(data=st.data())
def test_partitions_in_any_order_end_where_upstream_is(case: Case, data: st.DataObject) -> None:
    """A run that ends between them leaves the others to the next one."""
    upstream = Upstream(case.table)
    connections = data.draw(st.sampled_from([1, 2, 5]))
    with closing(database(case.table, *SCHEMAS)) as connection:
        for changes in played(case, upstream, data.draw(histories(case, 25))):
            work = partitions(case.table, changes, connections)
            assert partitions(case.table, changes, connections).content == work.content
            order = in_some_order(work, data.draw(SEEDS))
            again = data.draw(SEEDS) % (len(order) + 1)
            for each in order:
                execute(connection, each)
            if again and len(work.phases) == 1:
                execute(connection, order[again - 1])
            execute(connection, work.last)
            wanted = expected(upstream)
            assert content(connection, "merged", len(case.table.columns)) == wanted


@pytest.mark.fault(
    "`parallel`: and another mode or strategy continues, batches cut elsewhere",
    "equal to upstream",
    cases="20 for each of 9 tables",
)
@pytest.mark.parametrize("case", CASES, ids=str)
@SOME
@given(data=st.data())
def test_another_way_continues_where_partitions_or_statements_were_left(
    case: Case, data: st.DataObject
) -> None:
    """It cuts batches elsewhere, trusts no fence, and reaches beyond the crash."""
    table, upstream = case.table, Upstream(case.table)
    drawn = [*data.draw(histories(case, 20)), [], []]
    before, torn, later = (play(case, upstream, steps) for steps in drawn[:3])
    first, second = (
        data.draw(st.sampled_from(["partitions", "statements"])),
        data.draw(st.sampled_from(["snapshot", "partitions", "statements"])),
    )
    # Both ways write the table that `split` writes.
    with closing(database(table, *SCHEMAS)) as connection:
        connection.execute("DROP TABLE `merged.t`")
        connection.execute("ALTER TABLE `statements.t` RENAME TO `merged.t`")
        if before:
            apply(connection, partitions(table, before, 2), data.draw(SEEDS))
        way: Way = {"queues": 3, "batch": 2, "safe": False, "size": 1}
        if torn and first == "partitions":
            order = in_some_order(partitions(table, torn, 4), data.draw(SEEDS))
            for each in order[: data.draw(SEEDS) % (len(order) + 1)]:
                execute(connection, each)
        elif torn:
            with as_statements(connection):
                crash(connection, table, torn, way, data.draw(SEEDS), data.draw(SEEDS))
        rest = torn + later
        cut = data.draw(SEEDS) % (len(rest) + 1)
        for changes in filter(None, [rest[:cut], rest[cut:]]):
            if second == "statements":
                with as_statements(connection):
                    made = split(table, changes, queues=3, batch=2, safe=True)
                    for transaction in interleaved(made, data.draw(SEEDS)):
                        run(connection, transaction, safe=True)
            else:
                connections = 1 if second == "snapshot" else 3
                work = partitions(table, changes, connections, displaces=True)
                apply(connection, work, data.draw(SEEDS))
        assert content(connection, "merged", len(table.columns)) == expected(upstream)


def test_a_unique_value_that_a_torn_batch_left_with_another_row_is_taken_from_it() -> None:
    """At both ends of the batch row 1 has 5 and row 3 has 8, so neither counts as moved."""
    table = table_of("CREATE TABLE t (id INT PRIMARY KEY, u INT UNIQUE)")
    upstream = Upstream(table)
    for row in [(1, 5), (3, 8)]:
        upstream.insert(row)
    start = list(upstream.changes)
    for at, row in [(0, (1, 6)), (1, (3, 5)), (1, (3, 8)), (0, (1, 5))]:
        upstream.update(at, row)
    torn = upstream.changes[len(start) :]
    for displaces in (False, True):
        with closing(database(table, *SCHEMAS)) as connection:
            for changes in (start, torn[:2]):
                apply(connection, partitions(table, changes, 1), 0)
            work = partitions(table, torn, 1, displaces=displaces)
            with nullcontext() if displaces else pytest.raises(sqlite3.IntegrityError):
                apply(connection, work, 0)
                assert content(connection, "merged", 2) == [(1, 5), (3, 8)]


@contextmanager
def as_statements(connection: sqlite3.Connection) -> Iterator[None]:
    connection.execute("ALTER TABLE `merged.t` RENAME TO `statements.t`")
    yield
    connection.execute("ALTER TABLE `statements.t` RENAME TO `merged.t`")


def made(deletes: int, upserts: int, ordered: int = 0) -> Statements:
    return Statements([b"d" * 10] * deletes, [b"u" * 10] * upserts, [b"o" * 10] * ordered)


def test_deletes_come_before_all_upserts_where_rows_can_be_in_the_way() -> None:
    work = arranged([(True, made(4, 4)), (False, made(2, 6))], connections=2, bytes_min=10)
    assert [[len(each) for each in phase] for phase in work.phases] == [[2, 2], [6, 6]]
    assert all(s.startswith(b"d") for each in work.phases[0] for s in each)
    work = arranged([(False, made(4, 4))], connections=4, bytes_min=10)
    assert [[len(each) for each in phase] for phase in work.phases] == [[2, 2, 2, 2]]


def test_a_small_batch_is_one_transaction_with_its_checkpoint() -> None:
    work = arranged([(True, made(1, 2, 3))], connections=4, bytes_min=100)
    assert work == Partitions([], [b"d" * 10, b"u" * 10, b"u" * 10, *[b"o" * 10] * 3])


def test_tables_without_row_key_go_with_the_checkpoint() -> None:
    work = arranged([(False, made(0, 8)), (False, made(0, 0, 5))], connections=2, bytes_min=10)
    assert (work.count, work.last) == (2, [b"o" * 10] * 5)


@given(st.lists(st.integers(1, 50)), st.integers(1, 6), st.integers(1, 40))
def test_a_cut_by_bytes_keeps_the_order_and_the_bounds(
    lengths: list[int], parts_max: int, bytes_min: int
) -> None:
    statements = [b"%d" % i + b"x" * length for i, length in enumerate(lengths)]
    cuts = cut_by_bytes(statements, parts_max, bytes_min)
    assert [each for cut in cuts for each in cut] == statements
    assert len(cuts) <= parts_max
    assert all(cuts)
    total = sum(map(len, statements))
    assert len(cuts) <= max(1, total // bytes_min)
    for cut in cuts:
        assert sum(map(len, cut)) <= total / parts_max * (
            1 if len(cuts) == parts_max else 99
        ) + max(map(len, statements))


def test_content_distinguishes_batches_and_cuts() -> None:
    works = [
        Partitions([[[b"a", b"b"]]], []),
        Partitions([[[b"a"], [b"b"]]], []),
        Partitions([[[b"ab"]]], []),
        Partitions([[[b"a", b"c"]]], []),
    ]
    assert len({work.content for work in works}) == len(works)


def test_a_downstream_with_one_connection_is_refused_with_a_hint() -> None:
    class Sqlite:
        dialect = SQLITE

    class Half:
        dispatcher, task_count, sink, thread = None, 1, Sqlite(), None

    config = DrainerConfig(apply=ApplyConfig(mode="parallel"))
    with pytest.raises(NeedsOperator, match="mode snapshot"):
        build_strategy(config, cast(Components, Half), Checkpoint(5, 1))


class Torn(FetchBatch):
    """A batch without SQL, which records whether it is made to displace."""

    def __init__(self) -> None:
        self.displaces = False

    async def by_unit(self, generation: Generation) -> Made:
        return []

    async def cut(self, *arguments: Any) -> Any:
        return Cut("", [], [], NOTHING), None


class Applied:
    """A sink without the partitions of an earlier run, and its thread."""

    def apply(self, statements: Sequence[bytes], checkpoint: Checkpoint) -> None: ...

    def apply_partitions(self, work: Partitions, checkpoint: Checkpoint, start: Checkpoint) -> Any:
        return []

    def has_begun(self, work: Partitions) -> bool:
        return False

    async def call(self, function: Callable[[], Any]) -> Any:
        return function()


@pytest.mark.parametrize("kind", [Snapshot, Parallel, InTasks])
async def test_a_repair_lasts_until_all_that_was_in_progress_is_committed(kind: type) -> None:
    """Several batches can have been in progress, so the first one's checkpoint does not end it."""
    applied: Any = Applied()
    many = {} if kind is Snapshot else {"connections": 2}
    start = Checkpoint(6, 1, applying_ts=8)
    strategy = kind(Generation(applied, dialect=SQLITE), applied, applied, start=start, **many)
    for ts, repairs in ((7, True), (8, True), (9, False)):
        batch, checkpoint = Torn(), Checkpoint(ts, 1)
        prepared = await strategy.prepare(batch)
        end = await prepared.begin(checkpoint) if isinstance(prepared, Begins) else prepared
        await end(checkpoint)
        assert batch.displaces == repairs, ts


def test_units_of_one_table_are_compacted_alike_in_every_run() -> None:
    table = table_of("CREATE TABLE t (id INT PRIMARY KEY, v INT)")
    upstream = Upstream(table)
    for i in range(BOUNDS.rowwise_max * 2):
        upstream.insert((i * 7 % 1000, i))
    one, two = (partitions(table, upstream.changes, 3) for _ in range(2))
    assert one.content == two.content
    assert one.count == 3
