"""What every sink promises, kept by SQLite and by a real MariaDB, MySQL and TiDB."""

import itertools
import sqlite3
import threading
from collections.abc import Generator, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from drainer.differences.overrides import Override
from drainer.differences.skipped import Skipped
from drainer.sinks.checkpoint import Checkpoint, Overridden
from drainer.sinks.opening import open_table_sink
from drainer.sinks.protocol import SqlSink
from drainer.task.sql.table_sql import quote, table_name
from penstock.codes import Code
from penstock.ddl import Catalog, SchemaChange, plan_ddl
from penstock.errors import Malformed, NeedsOperator, Retryable

CLUSTER = 6_791_641_053_252_586_769 * 2 + 1  # More than a signed 64-bit number holds.


class Downstream:
    """A downstream, its sinks, and a second pair of eyes that is no sink."""

    def __init__(self, url: str, dialect: str, file: Path | None, server: Any) -> None:
        self.url = url
        self.dialect = dialect
        self._file = file
        self._server = server
        self.catalog = Catalog()
        self.ids = itertools.count(1)
        self.sinks: list[SqlSink] = []
        self.ts = 100

    def open(self, **options: Any) -> SqlSink:
        sink = open_table_sink(self.url, cluster_id=CLUSTER, **options)
        self.sinks.append(sink)
        return sink

    def query(self, sql: str) -> list[Any]:
        if self._file is None:
            return [tuple(row) for row in self._server.query(sql)]
        with closing(sqlite3.connect(self._file)) as connection:
            return list(connection.execute(sql))

    def table(self, name: str) -> str:
        return table_name(self.dialect, "shop", name)

    def changes(self, sql: str) -> list[SchemaChange]:
        jobs = plan_ddl(sql, "shop", self.catalog, lambda: next(self.ids))
        return [self.catalog.apply(job) for job in jobs]

    def point(self, version: int = 0) -> Checkpoint:
        self.ts += 1
        return Checkpoint(commit_ts=self.ts, schema_version=version or self.catalog.version)

    def ddl(self, sink: SqlSink, *statements: str) -> None:
        for sql in statements:
            for change in self.changes(sql):
                sink.run_ddl(change, self.point(), maybe_done=False)


SERVERS = [
    pytest.param("mariadb", marks=pytest.mark.mariadb),
    pytest.param("mysql", marks=pytest.mark.mysql),
    pytest.param("mariadb_new", marks=(pytest.mark.mariadb, pytest.mark.slow)),
    pytest.param("tidb", marks=pytest.mark.tidb),
]


@pytest.fixture(params=["sqlite", *SERVERS])
def downstream(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Downstream]:
    if request.param == "sqlite":
        file = tmp_path / "downstream.db"
        made = Downstream(f"sqlite:///{file}", "sqlite", file, None)
    else:
        server = request.getfixturevalue(request.param)
        made = Downstream(server.url, "mysql", None, server)
    yield made
    for sink in made.sinks:
        sink.close()


@pytest.fixture
def shop(downstream: Downstream) -> tuple[Downstream, SqlSink]:
    sink = downstream.open()
    assert sink.load_checkpoint() is None
    downstream.ddl(sink, "CREATE DATABASE shop", "CREATE TABLE t (id INT PRIMARY KEY, v INT)")
    return downstream, sink


def insert(downstream: Downstream, *ids: int) -> list[bytes]:
    rows = ",".join(f"({i},{i})" for i in ids)
    return [f"INSERT INTO {downstream.table('t')} VALUES {rows}".encode()]


def test_a_fresh_downstream_has_no_checkpoint_and_none_after_looking(
    downstream: Downstream,
) -> None:
    assert downstream.open().load_checkpoint() is None
    assert downstream.open().load_checkpoint() is None


def test_a_saved_checkpoint_is_what_the_next_run_loads(downstream: Downstream) -> None:
    sink = downstream.open()
    sink.load_checkpoint()
    point = Checkpoint(2**63 + 5, 7, consistent=True)
    sink.save_checkpoint(Checkpoint(5, 1))
    sink.save_checkpoint(point)
    sink.close()
    assert downstream.open().load_checkpoint() == point


def test_a_checkpoint_with_counts_and_overrides_is_what_the_next_run_loads(
    downstream: Downstream,
) -> None:
    sink = downstream.open()
    sink.load_checkpoint()
    sql = 'ALTER TABLE `it\'s` ADD c TEXT COMMENT "a \\ and \\" and ü",\n ADD d INT'
    point = replace(
        downstream.point(),
        skipped={Skipped("rows", "override", "shop.it's \\ `odd`"): 2**40},
        overrides={7: Override(commit_ts=7, verb="replace", sql=sql, made="then")},
    )
    sink.save_checkpoint(point)
    assert downstream.open().load_checkpoint() == point


SKIPPED = Override(commit_ts=10**9, verb="skip", made="then")


def test_an_override_is_read_before_the_next_commit_of_the_one_that_writes(
    shop: tuple[Downstream, SqlSink],
) -> None:
    downstream, sink = shop
    operator = downstream.open()
    before = operator.load_checkpoint()
    assert before is not None
    operator.change_overrides(lambda now: {SKIPPED.commit_ts: SKIPPED})
    with pytest.raises(Overridden):
        sink.apply(insert(downstream, 1), downstream.point())
    assert downstream.query(f"SELECT id FROM {downstream.table('t')}") == []
    found = sink.load_checkpoint()
    assert found == replace(before, overrides={SKIPPED.commit_ts: SKIPPED}, has_all_overrides=True)
    assert found.writer == sink.writer
    sink.apply(insert(downstream, 2), replace(found, commit_ts=downstream.point().commit_ts))


def test_an_override_that_comes_before_a_run_has_stored_anything_is_read_by_it_too(
    downstream: Downstream,
) -> None:
    sink, operator = downstream.open(), downstream.open()
    assert sink.load_checkpoint() is operator.load_checkpoint() is None
    operator.change_overrides(lambda now: {SKIPPED.commit_ts: SKIPPED})
    with pytest.raises(Overridden):
        sink.save_checkpoint(downstream.point())
    found = sink.load_checkpoint()
    assert sink.is_new
    assert found == Checkpoint(0, 0, overrides={SKIPPED.commit_ts: SKIPPED}, has_all_overrides=True)
    sink.save_checkpoint(replace(found, commit_ts=5))
    assert not sink.is_new
    # The next one has loaded what the first one stored, and has not stored anything itself.
    following = downstream.open()
    following.load_checkpoint()
    operator.change_overrides(lambda now: {})
    with pytest.raises(Overridden):
        following.save_checkpoint(downstream.point())


def test_a_change_of_overrides_that_fails_leaves_the_checkpoint_as_it_is(
    shop: tuple[Downstream, SqlSink],
) -> None:
    downstream, sink = shop
    operator = downstream.open()
    operator.load_checkpoint()

    def refuse(now: Checkpoint) -> dict[int, Override]:
        raise NeedsOperator("it is under way", hint="wait", code=Code.DDL_UNSUPPORTED)

    with pytest.raises(NeedsOperator, match="under way"):
        operator.change_overrides(refuse)
    sink.apply(insert(downstream, 1), downstream.point())


def test_statements_and_checkpoint_arrive_together(shop: tuple[Downstream, SqlSink]) -> None:
    downstream, sink = shop
    point = downstream.point()
    sink.apply(insert(downstream, 1, 2), point)
    assert downstream.query(f"SELECT id FROM {downstream.table('t')} ORDER BY id") == [(1,), (2,)]
    assert downstream.open().load_checkpoint() == point


def test_a_refused_statement_leaves_neither_rows_nor_checkpoint(
    shop: tuple[Downstream, SqlSink],
) -> None:
    downstream, sink = shop
    before = downstream.open().load_checkpoint()
    bad = [*insert(downstream, 1), b"INSERT INTO nowhere VALUES (1)"]
    with pytest.raises(NeedsOperator):
        sink.apply(bad, downstream.point())
    assert downstream.query(f"SELECT id FROM {downstream.table('t')}") == []
    assert downstream.open().load_checkpoint() == before
    sink.apply(insert(downstream, 1), downstream.point())


def test_a_second_drainer_on_the_same_downstream_stops_the_first(
    shop: tuple[Downstream, SqlSink],
) -> None:
    downstream, first = shop
    second = downstream.open()
    assert second.load_checkpoint() is not None
    second.apply(insert(downstream, 1), downstream.point())
    with pytest.raises(NeedsOperator, match="another Drainer"):
        first.apply(insert(downstream, 2), downstream.point())
    second.apply(insert(downstream, 3), downstream.point())
    assert downstream.query(f"SELECT id FROM {downstream.table('t')} ORDER BY id") == [(1,), (3,)]


def test_two_drainers_that_reach_the_same_checkpoint_do_not_both_apply(
    shop: tuple[Downstream, SqlSink],
) -> None:
    downstream, first = shop
    second = downstream.open()
    second.load_checkpoint()
    point = downstream.point()
    first.apply(insert(downstream, 1), point)
    with pytest.raises(NeedsOperator):
        second.apply(insert(downstream, 2), point)


def test_a_downstream_of_another_cluster_is_refused_and_one_that_they_share_continues(
    downstream: Downstream,
) -> None:
    one, two = downstream.open(), open_table_sink(downstream.url, cluster_id=2)
    with closing(two):
        assert one.load_checkpoint() is None
        assert two.load_checkpoint() is None
        assert one.is_new
        one.save_checkpoint(Checkpoint(5, 1))
        assert (one.is_new, two.is_new) == (False, True)
        with pytest.raises(NeedsOperator, match=rf"that of cluster {CLUSTER} .* of cluster 2,"):
            two.load_checkpoint()
        two.save_checkpoint(Checkpoint(9, 1))  # As an earlier version let it.
        one.save_checkpoint(Checkpoint(6, 1))
        assert two.load_checkpoint() == Checkpoint(9, 1)
    assert downstream.open().load_checkpoint() == Checkpoint(6, 1)


DAMAGES = [
    None, "", "x", "[]", "null", "{}", '{"consistent":true}', '{"commitTS":null}',
    '{"commitTS":-1}', '{"commitTS":"5"}', '{"commitTS":1.5}', '{"commitTS":18446744073709551616}',
    '{"commitTS":5,"consistent":"no"}', '{"commitTS":5,"ddl-intent":-7}', '{"commitTS":5',
]  # fmt: skip


def test_a_checkpoint_that_comes_while_there_was_none_is_not_that_of_another_cluster(
    downstream: Downstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    faster, slower, point = downstream.open(), downstream.open(), downstream.point()
    assert faster.load_checkpoint() is None
    begun = iter([lambda: faster.save_checkpoint(point)])
    looked = type(slower)._stored  # type: ignore[attr-defined]

    def stored(sink: SqlSink, *how: Any) -> str | None:
        found: str | None = looked(sink, *how)
        if sink is slower:
            next(begun, lambda: None)()
        return found

    monkeypatch.setattr(type(slower), "_stored", stored)
    assert slower.load_checkpoint() == point


@pytest.mark.fault(
    "the checkpoint is damaged: no JSON, a field missing, negative, of another type, NULL, 15"
    " in all",
    "refused with a hint, on SQLite and MariaDB (and in a file: 9)",
)
def test_a_damaged_checkpoint_is_refused_and_never_taken_for_none(downstream: Downstream) -> None:
    sink = downstream.open()
    sink.load_checkpoint()
    sink.save_checkpoint(Checkpoint(5, 1))
    for damage in DAMAGES:
        put_checkpoint(downstream, damage)
        with pytest.raises(Malformed, match="damaged"):
            downstream.open().load_checkpoint()


def test_a_checkpoint_of_tidb_binlog_is_continued(downstream: Downstream) -> None:
    sink = downstream.open()
    sink.load_checkpoint()
    sink.save_checkpoint(Checkpoint(5, 1))
    put_checkpoint(
        downstream,
        '{"consistent":false,"commitTS":414529105591271429,"ts-map":{"primary-ts":1,"x":2}}',
    )
    continued = downstream.open()
    assert continued.load_checkpoint() == Checkpoint(414529105591271429, 0)
    continued.save_checkpoint(Checkpoint(414529105591271430, 1, consistent=True))
    assert downstream.open().load_checkpoint() == Checkpoint(414529105591271430, 1, consistent=True)


def put_checkpoint(downstream: Downstream, text: str | None) -> None:
    value = "NULL" if text is None else f"'{text}'"
    if downstream.dialect == "mysql":
        downstream.query(f"UPDATE `tidb_binlog`.`checkpoint` SET checkPoint = {value}")
        return
    with closing(sqlite3.connect(downstream._file or "")) as connection, connection:
        connection.execute(f"UPDATE `tidb_binlog.checkpoint` SET checkPoint = {value}")


def test_a_ddl_moves_the_checkpoint_and_leaves_no_intent(shop: tuple[Downstream, SqlSink]) -> None:
    downstream, sink = shop
    (change,) = downstream.changes("ALTER TABLE t ADD COLUMN w INT NOT NULL DEFAULT 7")
    sink.apply(insert_two(downstream), downstream.point())
    point = downstream.point()
    sink.run_ddl(change, point, maybe_done=False)
    assert downstream.query(f"SELECT * FROM {downstream.table('t')}") == [(1, 1, 7)]
    assert downstream.open().load_checkpoint() == point


def insert_two(downstream: Downstream) -> list[bytes]:
    return [f"INSERT INTO {downstream.table('t')} (id, v) VALUES (1, 1)".encode()]


def test_a_refused_ddl_moves_nothing_and_says_why(shop: tuple[Downstream, SqlSink]) -> None:
    downstream, sink = shop
    (change,) = downstream.changes("CREATE TABLE u (id INT PRIMARY KEY)")
    sink.run_ddl(change, downstream.point(), maybe_done=False)
    last = downstream.open().load_checkpoint()
    assert last is not None
    sink.load_checkpoint()
    point = downstream.point()
    # What stands in its way is not taken for its own work, at the next start neither.
    for each in (sink, downstream.open()):
        stored = each.load_checkpoint()
        assert stored is not None
        assert stored.commit_ts == last.commit_ts
        maybe_done = stored.ddl_intent_ts == point.commit_ts
        with pytest.raises(NeedsOperator):
            each.run_ddl(change, point, maybe_done=maybe_done)


def test_closing_ends_a_call_that_waits(downstream: Downstream, tmp_path: Path) -> None:
    sink = downstream.open()
    sink.close()
    with pytest.raises(Retryable):
        sink.load_checkpoint()


ALL_DDL = [
    "CREATE DATABASE shop",
    "CREATE TABLE t (id INT PRIMARY KEY, v VARCHAR(20), n INT)",
    "ALTER TABLE t ADD COLUMN w INT NOT NULL DEFAULT 7",
    "ALTER TABLE t ADD COLUMN d DECIMAL(10,2) NOT NULL DEFAULT 1.5 FIRST",
    "CREATE INDEX vi ON t (v)",
    "ALTER TABLE t ADD UNIQUE KEY n (n)",
    "ALTER TABLE t RENAME INDEX vi TO vj",
    "ALTER TABLE t CHANGE COLUMN v vv VARCHAR(40)",
    "ALTER TABLE t MODIFY COLUMN n BIGINT",
    "ALTER TABLE t DROP INDEX n",
    "ALTER TABLE t DROP COLUMN w",
    "RENAME TABLE t TO t2",
    "CREATE TABLE t (id INT PRIMARY KEY)",
    "CREATE TABLE u (id INT PRIMARY KEY)",
    "DROP TABLE t, u",
    "TRUNCATE TABLE t2",
    "DROP DATABASE shop",
]


def test_every_ddl_may_be_run_again_when_a_crash_left_it_in_doubt(downstream: Downstream) -> None:
    """After each DDL, pretend that the crash came between it and its checkpoint."""
    first = downstream.open()
    first.load_checkpoint()
    first.save_checkpoint(downstream.point())
    for sql in ALL_DDL:
        for change in downstream.changes(sql):
            before = downstream.open()
            last = before.load_checkpoint()
            assert last is not None
            point = downstream.point()
            before.run_ddl(change, point, maybe_done=False)
            if downstream.dialect == "sqlite":
                continue  # There the DDL and its checkpoint are one transaction.
            before.save_checkpoint(replace(last, ddl_intent_ts=point.commit_ts))
            after = downstream.open()
            assert after.load_checkpoint() == replace(last, ddl_intent_ts=point.commit_ts)
            after.run_ddl(change, point, maybe_done=True)
            assert downstream.open().load_checkpoint() == point


def test_names_may_swap(shop: tuple[Downstream, SqlSink]) -> None:
    downstream, sink = shop
    downstream.ddl(sink, "CREATE TABLE u (id INT PRIMARY KEY, v INT)")
    sink.apply(insert(downstream, 1), downstream.point())
    (change,) = downstream.changes("RENAME TABLE t TO x, u TO t, x TO u")
    sink.run_ddl(change, downstream.point(), maybe_done=False)
    assert downstream.query(f"SELECT id FROM {downstream.table('u')}") == [(1,)]
    assert downstream.query(f"SELECT id FROM {downstream.table('t')}") == []


def test_a_name_with_a_quote_in_it_is_only_a_name(shop: tuple[Downstream, SqlSink]) -> None:
    downstream, sink = shop
    name = "it's `odd`"
    quoted = quote(name)
    downstream.ddl(sink, f"CREATE TABLE {quoted} ({quoted} INT PRIMARY KEY)")
    assert downstream.query(f"SELECT {quoted} FROM {downstream.table(name)}") == []


def test_many_threads_may_not_break_a_sink_that_one_of_them_closes(
    shop: tuple[Downstream, SqlSink],
) -> None:
    downstream, sink = shop
    stopped, under_way = threading.Event(), threading.Event()

    def work() -> None:
        try:
            for i in itertools.count(10):
                sink.apply(insert(downstream, i), downstream.point())
                under_way.set()
        except Retryable:
            stopped.set()

    thread = threading.Thread(target=work)
    thread.start()
    assert under_way.wait(10)
    sink.close()
    thread.join(10)
    assert stopped.is_set()
    count = downstream.query(f"SELECT COUNT(*), MAX(id) FROM {downstream.table('t')}")[0]
    assert count[1] is None or count[0] == count[1] - 9


def test_list_after_list_of_statements_is_one_transaction(shop: tuple[Downstream, SqlSink]) -> None:
    downstream, sink = shop
    before = downstream.open().load_checkpoint()
    counted = f"SELECT count(*) FROM {downstream.table('t')}"
    seen: list[Any] = []

    def parts() -> Generator[list[bytes]]:
        for i in range(5):
            seen.extend(downstream.query(counted))
            yield insert(downstream, 2 * i, 2 * i + 1)

    def broken() -> Generator[list[bytes]]:
        yield insert(downstream, 90)
        raise Malformed("no more", hint="none", code=Code.BINLOG_UNDECODABLE)

    with pytest.raises(Malformed, match="no more"):
        sink.apply_slices(broken, downstream.point())
    assert downstream.open().load_checkpoint() == before
    sink.load_checkpoint()
    point = downstream.point()
    sink.apply_slices(parts, point)
    assert seen == [(0,)] * 5
    assert downstream.query(counted) == [(10,)]
    assert downstream.open().load_checkpoint() == point
    sink.load_checkpoint()
    sink.apply_slices(iter_of, downstream.point())
    with pytest.raises(NeedsOperator):
        sink.apply_slices(lambda: iter_of([b"nonsense"]), downstream.point())


def iter_of(*lists: list[bytes]) -> Generator[list[bytes]]:
    yield from lists
