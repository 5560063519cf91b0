"""A transaction that is applied slice by slice leaves what it would have left in one piece."""

import asyncio
import random
import sqlite3
import weakref
from contextlib import closing
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from drainer.apply.large import LargeTransactions
from drainer.intake.payload import Limits, Spooled, outline
from drainer.planner import LargeStep
from drainer.sinks.checkpoint import Checkpoint
from drainer.sinks.opening import SinkThread, open_table_sink
from drainer.sinks.protocol import Sink
from drainer.sinks.sqlite.ddl import create_table
from drainer.task.sql.literals import MYSQL, SQLITE
from drainer.task.sql.rows import apply_key, can_meet_others
from drainer.task.sql.upserts import table_sql
from drainer.task.work_unit import Batch
from penstock.errors import NeedsOperator, Retryable
from penstock.wire.binlog import Binlog, BinlogType, MutationType
from penstock.wire.codec import encode_binlog
from tests.kit.fakes.sliced import VERSION, Changes, sliced, sql_of, value_of
from tests.kit.wait import never, turn
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
from tests.kit.workloads.sqlite_copies import content, database, expected, run


@pytest.mark.parametrize("case", CASES, ids=str)
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_slices_leave_what_the_whole_transaction_leaves(case: Case, data: st.DataObject) -> None:
    table = case.table
    upstream = Upstream(table)
    bytes_max = data.draw(st.sampled_from([1, 100, 150, 300, 1000]))
    with closing(database(table, "s")) as connection, closing(database(table, "s")) as whole:
        for changes in played(case, upstream, data.draw(histories(case, 40))):
            run(connection, sliced(table, changes, bytes_max))
            run(whole, sql_of(batch_of(table, changes, schema="s")))
            assert content(connection, "s") == content(whole, "s") == expected(upstream)


def net_changes(upstream: Upstream, before: list[Any], rng: random.Random) -> Changes:
    """Return what happened to each row on the whole, row after row in any order."""
    codec, then, now = upstream.codec, dict(before), dict(upstream.rows)
    rowids = sorted(then.keys() | now.keys())
    rng.shuffle(rowids)
    changes = []
    for rowid in rowids:
        old, new = then.get(rowid), now.get(rowid)
        if old is None and new is not None:
            changes.append((MutationType.INSERT, codec.encode_insert(new, rowid=rowid)))
        elif new is None and old is not None:
            changes.append((MutationType.DELETE, codec.encode_delete(old, rowid=rowid)))
        elif old is not None and new is not None and old != new:
            changes.append((MutationType.UPDATE, codec.encode_update(old, new, rowid=rowid)))
    return changes


@pytest.mark.parametrize("case", [CASES[0], CASES[8]], ids=str)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data(), seed=st.integers(0, 1000))
def test_unique_values_that_move_between_rows_in_any_order_end_where_they_belong(
    case: Case, data: st.DataObject, seed: int
) -> None:
    """A writer that notes key by key may name a value's new owner before its old one."""
    table = case.table
    upstream, rng = Upstream(table), random.Random(seed)
    keys = [part.offset for part in (apply_key(table) or pytest.fail("no key")).columns]
    with closing(database(table, "s")) as connection:
        for steps in data.draw(histories(case, 30)):
            before = list(upstream.rows)
            play(case, upstream, steps)
            # A key that goes from row to row is noted as one row that changes.
            was = {tuple(row[k] for k in keys): rowid for rowid, row in before}
            upstream.rows = [
                (was.get(tuple(row[k] for k in keys), 1000 + rowid), row)
                for rowid, row in upstream.rows
            ]
            kept = {rowid for rowid, _ in upstream.rows}
            assert len(kept) == len(upstream.rows)
            changes = net_changes(upstream, before, rng)
            if changes:
                run(connection, sliced(table, changes, 1))
            assert content(connection, "s") == expected(upstream)
            upstream.rows = [(i, row) for i, (_, row) in enumerate(upstream.rows, 10_000)]
            upstream.next_rowid = 20_000 + upstream.next_rowid


@pytest.mark.parametrize("dialect", [MYSQL, SQLITE])
def test_only_tables_where_another_row_can_be_in_the_way_are_replaced(dialect: str) -> None:
    for columns, meets in (
        ("id BIGINT PRIMARY KEY, v INT, KEY (v)", False),
        ("a INT, b INT, v INT, PRIMARY KEY (a, b)", False),
        ("id INT PRIMARY KEY, v INT UNIQUE", True),
        ("id VARCHAR(9) PRIMARY KEY, v INT", True),
    ):
        table = table_of(f"CREATE TABLE t ({columns})")
        assert can_meet_others(table) is meets
        for displaces in (False, True):
            sql = table_sql(dialect, "s", "t", table, displaces=displaces)
            row = pa.array([sql.row_text([1] * len(table.columns)) + ","], pa.large_string())
            if columns.startswith("id VARCHAR"):
                row = pa.array([sql.row_text(["1", 1]) + ","], pa.large_string())
            (statement,) = sql.upserts(row)
            assert statement.startswith(b"REPLACE INTO") == (displaces and meets)


class Rig:
    """A large step, a real SQLite sink, and SQL made in the process."""

    def __init__(self, folder: Path, rows: int = 2000, *, bad_at: int = -1) -> None:
        self.table = table_of("CREATE TABLE t (id INT PRIMARY KEY, v VARCHAR(100))")
        codec = Upstream(self.table).codec
        rows_bytes = [codec.encode_insert((i, f"{i:090}"), rowid=i) for i in range(rows)]
        if bad_at >= 0:
            rows_bytes[bad_at] = b"\xff" * 30
        value = value_of([(MutationType.INSERT, row) for row in rows_bytes])
        prewrite = Binlog(tp=BinlogType.PREWRITE, start_ts=49, prewrite_value=value)
        commit = Binlog(tp=BinlogType.COMMIT, start_ts=49, commit_ts=50)
        data = encode_binlog(prewrite) + encode_binlog(commit)
        self.file = folder / "spooled"
        self.file.write_bytes(data)
        found = outline(lambda offset, count: data[offset : offset + count], len(data))
        self.known = {7: ("s", self.table)}
        self.step = LargeStep(
            50,
            Spooled(self.file, len(data), b"", found),
            lambda table_id, version: self.known[table_id],
            Limits(bytes_max=10_000, rows_max=10**9),
        )
        self.path = folder / "down.db"
        self.sink = open_table_sink(f"sqlite:///{self.path}", cluster_id=1, retry_s_max=5)
        weakref.finalize(self, self.sink.close)  # Python 3.13 warns of one that is left open.
        self.made = 0

    async def generate(self, batch: Batch) -> list[bytes]:
        self.made += 1
        await turn()
        return sql_of(batch)

    def count(self) -> int:
        with closing(sqlite3.connect(self.path)) as connection:
            (count,) = connection.execute("SELECT count(*) FROM `s.t`").fetchone()
            return int(count)

    def create(self) -> None:
        self.sink.load_checkpoint()
        with closing(sqlite3.connect(self.path)) as connection:
            connection.execute(create_table("`s.t`", self.table))


async def test_a_large_step_is_one_transaction_and_its_file_goes_with_it(tmp_path: Path) -> None:
    rig, thread = Rig(tmp_path), SinkThread()
    await thread.call(rig.create)
    seen = []

    async def generate(batch: Batch) -> list[bytes]:
        seen.append(await asyncio.to_thread(rig.count))
        return await rig.generate(batch)

    prepared = await LargeTransactions(generate, rig.sink.apply_slices, rig.sink, thread).prepare(
        rig.step
    )
    rig.known.clear()  # A DDL behind the step: its rows still go where they belong.
    await prepared(Checkpoint(50, VERSION))
    assert rig.count() == 2000
    assert not rig.file.exists()
    with closing(open_table_sink(f"sqlite:///{rig.path}", cluster_id=1)) as another:
        assert another.load_checkpoint() == Checkpoint(50, VERSION)
    assert rig.made > 15
    assert set(seen) == {0}


async def test_a_try_that_fails_begins_again_with_the_first_slice(tmp_path: Path) -> None:
    class Flaky:
        """A sink whose connection breaks twice."""

        def __init__(self) -> None:
            self.tries: list[int] = []

        def apply_slices(self, parts: Any, checkpoint: Checkpoint) -> None:
            for stop in (1, 7, 10**9):
                self.tries.append(0)
                with closing(parts()) as lists:
                    for statements in lists:
                        self.tries[-1] += len(statements)
                        if self.tries[-1] >= stop:
                            break

    rig, thread, sink = Rig(tmp_path), SinkThread(), Flaky()
    large = LargeTransactions(rig.generate, sink.apply_slices, cast(Sink, sink), thread)
    prepared = await large.prepare(rig.step)
    await prepared(Checkpoint(50, VERSION))
    assert sink.tries[0] == 1
    assert sink.tries[1] == 7
    assert sink.tries[2] > 15


async def test_a_slice_that_is_malformed_leaves_nothing_downstream(tmp_path: Path) -> None:
    rig, thread = Rig(tmp_path, bad_at=1990), SinkThread()
    await thread.call(rig.create)
    prepared = await LargeTransactions(
        rig.generate, rig.sink.apply_slices, rig.sink, thread
    ).prepare(rig.step)
    with pytest.raises(NeedsOperator):
        await prepared(Checkpoint(50, VERSION))
    assert rig.made > 10
    assert rig.count() == 0
    assert rig.file.exists()


async def test_an_end_in_the_middle_rolls_back_and_hangs_nothing(tmp_path: Path) -> None:
    rig, thread = Rig(tmp_path), SinkThread()
    await thread.call(rig.create)
    reached = asyncio.Event()

    async def generate(batch: Batch) -> list[bytes]:
        rig.made += 1
        if rig.made == 8:
            reached.set()
            await never()
        return sql_of(batch)

    def after_close() -> None:
        rig.sink.close()
        rig.sink.save_checkpoint(Checkpoint(1, 1))

    prepared = await LargeTransactions(generate, rig.sink.apply_slices, rig.sink, thread).prepare(
        rig.step
    )
    committing = asyncio.create_task(prepared(Checkpoint(50, VERSION)))
    await reached.wait()
    committing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await committing
    with pytest.raises(Retryable):
        await thread.call(after_close)
    assert rig.count() == 0


async def test_at_most_two_slices_exist_at_a_time(tmp_path: Path) -> None:
    rig, thread = Rig(tmp_path), SinkThread()
    ahead: list[int] = []

    class Slow:
        def apply_slices(self, parts: Any, checkpoint: Checkpoint) -> None:
            with closing(parts()) as lists:
                for number, _ in enumerate(lists, 1):
                    ahead.append(rig.made - number)

    slow = Slow()
    large = LargeTransactions(rig.generate, slow.apply_slices, slow, thread)  # type: ignore[arg-type]
    await (await large.prepare(rig.step))(Checkpoint(50, VERSION))
    assert max(ahead) <= 1
