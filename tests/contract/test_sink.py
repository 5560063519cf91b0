"""What every sink with tables promises, kept by SQLite and by a real MariaDB, MySQL and TiDB."""

import itertools
import sqlite3
import threading
from collections.abc import Generator, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from drainer.sinks.checkpoint import Checkpoint
from drainer.sinks.opening import open_table_sink
from drainer.sinks.protocol import SqlSink
from drainer.task.sql.upserts import quote, table_name
from penstock.codes import Code
from penstock.errors import Malformed, NeedsOperator, Retryable
from tests.kit.wait import present
from tests.kit.workloads.sink_stream import SinkStream

CLUSTER = 6_791_641_053_252_586_769 * 2 + 1  # More than a signed 64-bit number holds.


class Downstream(SinkStream):
    """A downstream, its sinks, and a second pair of eyes that is no sink."""

    def __init__(self, url: str, dialect: str, file: Path | None, server: Any) -> None:
        super().__init__()
        self.url = url
        self.dialect = dialect
        self._file = file
        self._server = server
        self.sinks: list[SqlSink] = []

    def open(self, **options: Any) -> SqlSink:
        sink = open_table_sink(self.url, **{"cluster_id": CLUSTER, **options})
        self.sinks.append(sink)
        return sink

    def begun(self, **options: Any) -> SqlSink:
        sink = self.open(**options)
        assert sink.load_checkpoint() is None
        self.ddl(sink, "CREATE DATABASE shop", "CREATE TABLE t (id INT PRIMARY KEY, v INT)")
        return sink

    def query(self, sql: str) -> list[Any]:
        if self._file is None:
            return [tuple(row) for row in self._server.query(sql)]
        with closing(sqlite3.connect(self._file)) as connection:
            return list(connection.execute(sql))

    def table(self, name: str) -> str:
        return table_name(self.dialect, "shop", name)

    def ids(self) -> list[int]:
        return [i for (i,) in self.query(f"SELECT id FROM {self.table('t')} ORDER BY id")]

    def add(self, sink: SqlSink, *ids: int, point: Checkpoint | None = None) -> Checkpoint:
        point = point or self.point()
        sink.apply(insert(self, *ids), point)
        return point


SERVERS = [
    pytest.param("mariadb", marks=pytest.mark.mariadb),
    pytest.param("mysql", marks=pytest.mark.mysql),
    pytest.param("mariadb_new", marks=(pytest.mark.mariadb, pytest.mark.slow)),
    pytest.param("tidb", marks=pytest.mark.tidb),
]


def table_downstream(name: str, request: pytest.FixtureRequest, folder: Path) -> Downstream:
    if name == "sqlite":
        file = folder / "downstream.db"
        return Downstream(f"sqlite:///{file}", "sqlite", file, None)
    server = request.getfixturevalue(name)
    return Downstream(server.url, "mysql", None, server)


@pytest.fixture(params=["sqlite", *SERVERS])
def downstream(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Downstream]:
    made = table_downstream(request.param, request, tmp_path)
    yield made
    for sink in made.sinks:
        sink.close()


Shop = tuple[Downstream, SqlSink]


@pytest.fixture
def shop(downstream: Downstream) -> Shop:
    return downstream, downstream.begun()


def insert(downstream: Downstream, *ids: int) -> list[bytes]:
    rows = ",".join(f"({i},{i})" for i in ids)
    return [f"INSERT INTO {downstream.table('t')} VALUES {rows}".encode()]


def test_a_refused_statement_leaves_neither_rows_nor_checkpoint(shop: Shop) -> None:
    downstream, sink = shop
    before = downstream.open().load_checkpoint()
    bad = [*insert(downstream, 1), b"INSERT INTO nowhere VALUES (1)"]
    with pytest.raises(NeedsOperator):
        sink.apply(bad, downstream.point())
    assert downstream.ids() == []
    assert downstream.open().load_checkpoint() == before
    downstream.add(sink, 1)


def test_a_downstream_that_two_clusters_share_continues(downstream: Downstream) -> None:
    one, two = downstream.open(), downstream.open(cluster_id=2)
    assert one.load_checkpoint() is two.load_checkpoint() is None
    one.save_checkpoint(Checkpoint(5, 1))
    assert (one.is_new, two.is_new) == (False, True)
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
    "refused with a hint, on SQLite and MariaDB (and in a savepoint: 9)",
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


def test_a_ddl_moves_the_checkpoint_and_leaves_no_intent(shop: Shop) -> None:
    downstream, sink = shop
    (change,) = downstream.changes("ALTER TABLE t ADD COLUMN w INT NOT NULL DEFAULT 7")
    downstream.add(sink, 1)
    point = downstream.point()
    sink.run_ddl(change, point, maybe_done=False)
    assert downstream.query(f"SELECT * FROM {downstream.table('t')}") == [(1, 1, 7)]
    assert downstream.open().load_checkpoint() == point


def test_a_refused_ddl_moves_nothing_and_says_why(shop: Shop) -> None:
    downstream, sink = shop
    (change,) = downstream.changes("CREATE TABLE u (id INT PRIMARY KEY)")
    sink.run_ddl(change, downstream.point(), maybe_done=False)
    last = present(downstream.open().load_checkpoint())
    sink.load_checkpoint()
    point = downstream.point()
    # What stands in its way is not taken for its own work, at the next start neither.
    for each in (sink, downstream.open()):
        stored = present(each.load_checkpoint())
        assert stored.commit_ts == last.commit_ts
        maybe_done = stored.ddl_intent_ts == point.commit_ts
        with pytest.raises(NeedsOperator):
            each.run_ddl(change, point, maybe_done=maybe_done)


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
            last = present(before.load_checkpoint())
            point = downstream.point()
            before.run_ddl(change, point, maybe_done=False)
            if downstream.dialect == "sqlite":
                continue  # There the DDL and its checkpoint are one transaction.
            before.save_checkpoint(replace(last, ddl_intent_ts=point.commit_ts))
            after = downstream.open()
            assert after.load_checkpoint() == replace(last, ddl_intent_ts=point.commit_ts)
            after.run_ddl(change, point, maybe_done=True)
            assert downstream.open().load_checkpoint() == point


def test_names_may_swap(shop: Shop) -> None:
    downstream, sink = shop
    downstream.ddl(sink, "CREATE TABLE u (id INT PRIMARY KEY, v INT)")
    downstream.add(sink, 1)
    (change,) = downstream.changes("RENAME TABLE t TO x, u TO t, x TO u")
    sink.run_ddl(change, downstream.point(), maybe_done=False)
    assert downstream.query(f"SELECT id FROM {downstream.table('u')}") == [(1,)]
    assert downstream.ids() == []


def test_a_name_with_a_quote_in_it_is_only_a_name(shop: Shop) -> None:
    downstream, sink = shop
    name = "it's `odd`"
    quoted = quote(name)
    downstream.ddl(sink, f"CREATE TABLE {quoted} ({quoted} INT PRIMARY KEY)")
    assert downstream.query(f"SELECT {quoted} FROM {downstream.table(name)}") == []


def test_many_threads_may_not_break_a_sink_that_one_of_them_closes(shop: Shop) -> None:
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


def test_list_after_list_of_statements_is_one_transaction(shop: Shop) -> None:
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
