"""Mode `parallel` on a real MariaDB: partitions at once, deaths between them, and a take-over."""

import json
import logging
import threading
from collections.abc import Callable
from contextlib import closing
from typing import Any

import pymysql
import pytest
from hypothesis import given
from hypothesis import strategies as st

from drainer.sinks.checkpoint import Checkpoint
from drainer.sinks.mysql import side_connections
from drainer.sinks.mysql.sink import MysqlSink
from drainer.sinks.opening import open_sink
from drainer.sinks.protocol import RowStatement, Split
from drainer.task.compaction import plan_units
from drainer.task.partitions import Partitions, arranged
from drainer.task.sql.generate import generate
from drainer.task.sql.literals import MYSQL
from drainer.task.sql.rows import apply_key, can_meet_others
from penstock.errors import NeedsOperator
from penstock.schema.model import TableInfo
from tests.integration.test_apply_mariadb import content, create, plain, serial
from tests.kit.servers.fix_mariadb import MariadbServer
from tests.kit.servers.fix_replication import Replication
from tests.kit.servers.pages import scraped
from tests.kit.workloads.changes import CASES, Case, Upstream, batch_of, examples, histories, played
from tests.kit.workloads.random_writer import in_mariadb
from tests.kit.workloads.sqlite_copies import Changes
from tests.unit.drainer.test_parallel import SMALL

START = Checkpoint(0, 0)


class Died(Exception):
    """A run ended here."""


def partitions(table: TableInfo, changes: Changes, connections: int) -> Partitions:
    units = plan_units(batch_of(table, changes, schema="parallel"), MYSQL, SMALL)
    meets = apply_key(table) is not None and can_meet_others(table)
    made = [(meets, generate(unit, SMALL)) for unit in units]
    return arranged(made, connections=connections, bytes_min=1)


def opened(server: MariadbServer) -> MysqlSink:
    """Begin another run, as a Drainer does: with the checkpoint that it found."""
    sink = open_sink(server.url, cluster_id=9)
    assert isinstance(sink, MysqlSink)
    sink.save_checkpoint(sink.load_checkpoint() or START)
    return sink


def dies(monkeypatch: pytest.MonkeyPatch, after: int) -> Callable[[], object]:
    """Let the run end when so many partitions are committed; return what lets one run again."""
    left = iter(range(after))
    lock = threading.Lock()

    def committed() -> None:
        with lock:
            if next(left, None) is None:
                raise Died

    context = monkeypatch.context()
    context.__enter__().setattr(side_connections, "partition_committed", committed)
    return lambda: context.__exit__(None, None, None)


@pytest.mark.fault(
    "`parallel`: a run ends anywhere, up to twice in a batch, histories at random",
    "equal to serial apply",
    cases="4 for each of 9 tables",
)
@pytest.mark.main_case("integer key and unique values")
@pytest.mark.parametrize("case", CASES, ids=str)
def test_partitions_end_where_serial_apply_ends_whenever_a_run_ends(
    mariadb: MariadbServer, case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = case.table
    create(mariadb, case.sql, "parallel", "serial")
    runs = [opened(mariadb)]
    clock = iter(range(1, 1 << 30))
    with closing(mariadb.connect()) as connection:
        plain(connection)

        @examples(4)
        @given(
            batches=histories(case, 25), connections=st.sampled_from([2, 4]),
            deaths=st.lists(st.integers(0, 9), max_size=2),
        )  # fmt: skip
        def check(batches: Any, connections: int, deaths: list[int]) -> None:
            for schema in ("parallel", "serial"):
                connection.query(f"DELETE FROM {schema}.t")
            upstream = Upstream(table)
            for changes in played(case, upstream, batches):
                work, point = partitions(table, changes, connections), Checkpoint(next(clock), 1)
                for death in deaths:
                    revive = dies(monkeypatch, death % (work.count + 1))
                    try:
                        runs[-1].apply_partitions(work, point, START)
                        revive()
                        break
                    except Died:
                        revive()
                        runs[-1].close()
                        runs.append(opened(mariadb))
                        last = runs[-1]._ledger.last
                        assert last is not None
                        assert last.applying_ts == point.commit_ts
                else:
                    runs[-1].apply_partitions(work, point, START)
                for statement in serial(table, changes):
                    connection.query(statement)
                assert content(connection, "parallel") == content(connection, "serial")

        check()
    runs[-1].close()


@pytest.fixture
def sink(mariadb: MariadbServer) -> Any:
    create(mariadb, "CREATE TABLE t (id INT PRIMARY KEY, v INT)", "parallel")
    made = opened(mariadb)
    yield made
    made.close()


def inserts(*ids: int) -> list[bytes]:
    return [f"INSERT INTO parallel.t VALUES ({i},{i})".encode() for i in ids]


def ids(server: MariadbServer) -> list[int]:
    return [i for (i,) in server.query("SELECT id FROM parallel.t ORDER BY id")]


def test_partitions_that_a_run_before_has_committed_are_not_run_again(
    sink: MysqlSink,
    mariadb: MariadbServer,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A plain INSERT would fail if it were."""
    work = Partitions([[inserts(1, 2)], [inserts(3), inserts(4)]], inserts(5))
    revive = dies(monkeypatch, 1)
    with pytest.raises(Died):
        sink.apply_partitions(work, Checkpoint(7, 1), START)
    revive()
    assert set(ids(mariadb)) >= {1, 2}
    with closing(opened(mariadb)) as second, caplog.at_level(logging.INFO):
        second.apply_partitions(work, Checkpoint(7, 1), START)
    assert ids(mariadb) == [1, 2, 3, 4, 5]
    assert "committed before" in caplog.text
    assert json.loads(mariadb.query("SELECT checkPoint FROM tidb_binlog.checkpoint")[0][0])[
        "applying"
    ] == 0  # fmt: skip


@pytest.mark.fault(
    "fences are left of another batch, or of a state that an operator put back",
    "not believed",
    cases="2",
)
def test_fences_say_nothing_about_a_batch_that_is_another_or_not_under_way(
    sink: MysqlSink, mariadb: MariadbServer
) -> None:
    """As after an operator put back rows and checkpoint."""
    sink.apply_partitions(Partitions([[inserts(1), inserts(2)]], []), Checkpoint(7, 1), START)
    mariadb.query("DELETE FROM parallel.t")
    mariadb.query("UPDATE tidb_binlog.checkpoint SET checkPoint = '{\"commitTS\": 3}'")
    with closing(opened(mariadb)) as second:
        work = Partitions([[inserts(1), inserts(2)]], [])
        second.apply_partitions(work, Checkpoint(7, 1), START)
    assert ids(mariadb) == [1, 2]


def test_fences_are_forgotten_when_another_way_writes_meanwhile(
    sink: MysqlSink, mariadb: MariadbServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may have taken rows of a partition back to what they were before."""
    work = Partitions([[inserts(1), inserts(2)]], [])
    revive = dies(monkeypatch, 1)
    with pytest.raises(Died):
        sink.apply_partitions(work, Checkpoint(7, 1), START)
    revive()
    with closing(opened(mariadb)) as second:
        assert second.has_begun(work)
        queue = [RowStatement(b"DELETE FROM parallel.t", "all")]
        broken = [RowStatement(b"INSERT INTO nowhere VALUES (1)", "none")]
        with pytest.raises(NeedsOperator):
            second.apply_split(Split([[queue]], broken, safe=True), Checkpoint(7, 1), START)
    with closing(opened(mariadb)) as third:
        assert not third.has_begun(work)
        third.apply_partitions(work, Checkpoint(7, 1), START)
    assert ids(mariadb) == [1, 2]


@pytest.mark.fault(
    "a partition's commit gets no answer, done or not",
    "its fence says which; nothing is run twice",
    cases="2",
)
def test_an_answer_that_got_lost_is_asked_for_again_and_nothing_is_run_twice(
    sink: MysqlSink, mariadb: MariadbServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit = pymysql.connections.Connection.commit
    lost: set[str] = set()

    def breaks(connection: Any) -> None:
        name = threading.current_thread().name
        if name.startswith("partition") and name not in lost:
            lost.add(name)
            if len(lost) == 2:  # This one got lost before the server heard of it.
                connection._force_close()
            else:
                commit(connection)
            raise pymysql.err.OperationalError(2013, "Lost connection to server during query")
        commit(connection)

    monkeypatch.setattr(pymysql.connections.Connection, "commit", breaks)
    work = Partitions([[inserts(1), inserts(2), inserts(3)]], inserts(4))
    sink.apply_partitions(work, Checkpoint(7, 1), START)
    assert len(lost) >= 2
    assert ids(mariadb) == [1, 2, 3, 4]


@pytest.mark.fault("partitions lock each other out", "tried again, both arrive", cases="1")
def test_partitions_that_lock_each_other_out_both_arrive(
    sink: MysqlSink, mariadb: MariadbServer
) -> None:
    sink.apply(inserts(1, 2), Checkpoint(6, 1))
    one, two = (f"UPDATE parallel.t SET v = v + 1 WHERE id = {i}".encode() for i in (1, 2))
    work = Partitions([[[one, two] * 40, [two, one] * 40]], [])
    sink.apply_partitions(work, Checkpoint(7, 1), START)
    assert mariadb.query("SELECT v FROM parallel.t ORDER BY id") == [(81,), (82,)]


@pytest.mark.fault(
    "a second Drainer takes over between partitions", "the first one's are fenced off", cases="1"
)
def test_a_drainer_that_was_taken_over_commits_no_partition_any_more(
    sink: MysqlSink, mariadb: MariadbServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The successor only looked at the checkpoint and stored it, in whatever mode it is."""
    run = sink._side.run_partitions
    successors = []

    def overtaken(*arguments: Any) -> Any:
        successors.append(opened(mariadb))
        return run(*arguments)

    monkeypatch.setattr(sink._side, "run_partitions", overtaken)
    with pytest.raises(NeedsOperator, match="fenced off"):
        sink.apply_partitions(Partitions([[inserts(1), inserts(2)]], []), Checkpoint(7, 1), START)
    assert ids(mariadb) == []
    with closing(successors[0]) as second:
        second.apply_partitions(Partitions([[inserts(3), inserts(4)]], []), Checkpoint(8, 1), START)
    assert ids(mariadb) == [3, 4]


@pytest.mark.fault(
    "`parallel`: the Drainer is killed between a batch's partitions",
    "the batch is cut again where it was, its committed partitions are left out; equal",
    cases="0 / 1",
)
@pytest.mark.slow
def test_a_drainer_that_is_killed_between_partitions_continues_there(
    replication: Replication, mariadb: MariadbServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    replication.add_pump()
    way = {"apply_mode": "parallel", "apply_connections": 3}
    drainer = replication.drain_into(mariadb.url, started=False, **way)
    writer = replication.begin(4)
    writer.bulk(12_000)
    with monkeypatch.context() as armed:
        armed.setenv("PENSTOCK_FAILPOINTS", "drainer.partition_committed=kill@2")
        drainer.start()
        drainer.wait(120)
    ((text,),) = mariadb.query("SELECT checkPoint FROM tidb_binlog.checkpoint")
    stored = json.loads(text)
    assert stored["applying"] > stored["commitTS"]
    assert stored["consistent"] is False
    drainer.start()
    drainer.wait_for("committed before")
    last_ts = writer.bulk(12_000)
    drainer.wait_until(last_ts)
    assert in_mariadb(mariadb) == writer.expected()
    page = scraped(drainer.status().details["status_pages"])
    assert any("partition_seconds" in name for name in page)
    assert drainer.stop() == 0
