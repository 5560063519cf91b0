"""A Drainer dies before or after a DDL and before its checkpoint: the next one does it once."""

import itertools
import threading
from contextlib import closing
from dataclasses import replace
from typing import Any

import pytest

from drainer.differences import REPLACE, Override
from drainer.settings.targets import MysqlTarget
from drainer.sinks.checkpoint import Checkpoint, TakenOver
from drainer.sinks.mysql import ddl_progress
from drainer.sinks.mysql.sink import MysqlSink
from penstock.ddl import Catalog, SchemaChange, plan_ddl
from penstock.errors import NeedsOperator
from penstock.local.sql_server import SqlServer
from tests.kit.sink_target import sink_target
from tests.kit.wait import eventually


class _Killed(BaseException):
    """The process is gone."""


class Downstream:
    """A server, and a Drainer's sink on it that may die."""

    def __init__(self, server: SqlServer) -> None:
        self.server = server
        self._catalog = Catalog()
        self._ids, self._ts = itertools.count(1), itertools.count(1_700_000_000_000)

    def change(self, sql: str) -> tuple[SchemaChange, Checkpoint]:
        (job,) = plan_ddl(sql, "s", self._catalog, lambda: next(self._ids))
        ts = next(self._ts) << 18
        change = self._catalog.apply(replace(job, finished_ts=ts))
        return change, Checkpoint(ts, self._catalog.version)

    def run(self, change: SchemaChange, point: Checkpoint, dies: str = "") -> None:
        with closing(
            MysqlSink(sink_target(MysqlTarget, self.server.url), cluster_id=1, retry_s_max=60)
        ) as sink:
            sink.load_checkpoint()
            if not dies:
                sink.run_ddl(change, point, maybe_done=False)
                return
            execute = sink._execute_ddl

            def killed(*args: Any) -> None:
                if dies == "after":
                    execute(*args)
                raise _Killed

            setattr(sink, "_execute_ddl", killed)  # noqa: B010  -- as a process ends there.
            with pytest.raises(_Killed):
                sink.run_ddl(change, point, maybe_done=False)

    def tables(self) -> dict[str, str]:
        names = self.server.query("SELECT table_name FROM information_schema.tables"
                                  " WHERE table_schema = 's' ORDER BY 1")  # fmt: skip
        return {n: self.server.query(f"SHOW CREATE TABLE s.`{n}`")[0][1] for (n,) in names}


@pytest.fixture(
    params=[
        pytest.param("mariadb", marks=pytest.mark.mariadb),
        pytest.param("mysql", marks=pytest.mark.mysql),
    ]
)
def downstream(request: pytest.FixtureRequest) -> Downstream:
    made = Downstream(request.getfixturevalue(request.param))
    for sql in (
        "CREATE DATABASE s",
        "CREATE TABLE p (id INT PRIMARY KEY)",
        "CREATE TABLE c (id INT PRIMARY KEY, pid INT, v INT, w INT, KEY k (pid))"
        " PARTITION BY HASH (id) PARTITIONS 4",
        "CREATE TABLE d (id INT PRIMARY KEY, pid INT, v INT, KEY k (pid))",
    ):
        made.run(*made.change(sql))
    made.server.run("INSERT INTO s.p VALUES (1)", "INSERT INTO s.d VALUES (1, 1, 5)")
    return made


IN_DOUBT = [
    "ALTER TABLE d ADD CHECK (v > 0)",
    "ALTER TABLE d ADD FOREIGN KEY (pid) REFERENCES p (id), ADD CHECK (v > 0)",
    "ALTER TABLE d ADD INDEX (v)",
    "ALTER TABLE c COALESCE PARTITION 1",
    "ALTER TABLE c ADD PARTITION PARTITIONS 2",
    "ALTER TABLE c CHANGE v w INT, CHANGE w v INT",
    "RENAME TABLE p TO tmp, c TO p, tmp TO c",
    "DROP TABLE d, p",
]


@pytest.mark.fault(
    "the Drainer dies before or after a DDL and before its checkpoint: an unnamed CHECK,"
    " FOREIGN KEY or index, a swap of columns or tables, a number of partitions, a DROP; on"
    " MariaDB and MySQL",
    "the definitions before it, of which the intent has a digest, say whether it was done: it"
    " is done once",
    cases="16",
)
@pytest.mark.main_case("mariadb")
def test_a_ddl_whose_drainer_died_before_or_after_it_is_done_once(downstream: Downstream) -> None:
    for sql in IN_DOUBT:
        before = downstream.tables()
        change, point = downstream.change(sql)
        downstream.run(change, point, dies="before")
        assert downstream.tables() == before
        downstream.run(change, point, dies="after")
        after = downstream.tables()
        assert after != before, sql
        downstream.run(change, point)
        assert downstream.tables() == after, sql


@pytest.mark.fault(
    "the Drainer dies, or the server fails, while a MariaDB drops several tables by one"
    " statement: some are gone",
    "the next one drops those that are left",
    cases="2",
)
@pytest.mark.thorough
def test_a_drop_of_several_tables_that_came_halfway_is_finished(downstream: Downstream) -> None:
    change, point = downstream.change("DROP TABLE c, d, p")
    downstream.run(change, point, dies="before")
    downstream.server.run("DROP TABLE s.d")
    downstream.run(change, point)
    assert downstream.tables() == {}


@pytest.mark.fault(
    "a DROP of several tables names one that the downstream does not have",
    "it stops, and none is dropped: a MariaDB would drop the others first",
    cases="2",
)
@pytest.mark.thorough
def test_a_drop_of_tables_of_which_one_is_not_there_drops_none(downstream: Downstream) -> None:
    change, point = downstream.change("DROP TABLE c, d, p")
    downstream.server.run("RENAME TABLE s.d TO s.e")
    before = downstream.tables()
    with pytest.raises(NeedsOperator, match=r"does not have `s`\.`d`, and has dropped nothing"):
        downstream.run(change, point)
    assert downstream.tables() == before
    downstream.server.run("RENAME TABLE s.e TO s.d")
    downstream.run(change, point)
    assert downstream.tables() == {}


@pytest.mark.fault(
    "a DDL is refused after a lost connection or a crash, and a person changes the table so"
    " that it fits",
    "the DDL runs: what the person changed is not taken for it",
    cases="2",
)
@pytest.mark.thorough
def test_what_a_person_does_about_a_refused_ddl_is_not_taken_for_it(downstream: Downstream) -> None:
    change, point = downstream.change("ALTER TABLE d ADD CONSTRAINT low CHECK (v > 0)")
    downstream.run(change, point, dies="before")
    downstream.server.run("ALTER TABLE s.d ADD CONSTRAINT low CHECK (v > 1)")
    downstream.run(*downstream.change("CREATE TABLE other (id INT PRIMARY KEY)"), dies="before")
    downstream.run(change, point, dies="before")  # In doubt, with the other `low` there.
    with pytest.raises(NeedsOperator, match="low"):
        downstream.run(change, point)
    downstream.server.run("ALTER TABLE s.d DROP CONSTRAINT low")
    downstream.run(change, point)
    assert "`v` > 0" in downstream.tables()["d"]


@pytest.mark.thorough
def test_an_operators_statement_runs_in_the_place_of_a_ddl_in_doubt(downstream: Downstream) -> None:
    change, point = downstream.change("RENAME TABLE d TO e")
    downstream.run(change, point, dies="before")
    instead = Override(commit_ts=point.commit_ts, verb=REPLACE, sql="ALTER TABLE d COMMENT 'x'")
    with closing(
        MysqlSink(sink_target(MysqlTarget, downstream.server.url), cluster_id=1, retry_s_max=60)
    ) as sink:
        sink.load_checkpoint()
        sink.change_overrides(lambda _: {point.commit_ts: instead})
    job = replace(change.job, query="ALTER TABLE `d` COMMENT 'x'")
    (_, table, _, _) = change.renamed[0]
    made = SchemaChange(job=job, altered=(("s", table, replace(table, comment="x")),))
    downstream.run(made, point)
    assert "COMMENT='x'" in downstream.tables()["d"]


@pytest.mark.fault(
    "the Drainer is stopped, killed or cut off while the downstream runs a long DDL, and the"
    " server runs it to its end",
    "the next attempt waits for that end, and finds the DDL done",
    cases="2",
)
def test_a_ddl_that_a_killed_drainer_left_running_is_waited_for(
    downstream: Downstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A statement waits for a reader of its table; a server notices a lost client at its end."""
    monkeypatch.setattr(ddl_progress, "_POLL_S", 0.05)
    change, point = downstream.change(
        "ALTER TABLE d CHANGE pid v INT, CHANGE v pid INT, ADD z TIME"
    )
    downstream.run(change, point, dies="before")

    def taken_over() -> None:
        with pytest.raises(TakenOver):
            downstream.run(change, point)

    with closing(downstream.server.connect(autocommit=False)) as reader:
        reader.query("SELECT * FROM s.d")
        first = threading.Thread(target=taken_over)
        first.start()
        running = "SELECT info FROM information_schema.processlist WHERE info LIKE 'ALTER TABLE%'"
        eventually(lambda: bool(downstream.server.query(running)), 20)
        asked = threading.Event()
        is_running = ddl_progress._is_running

        def looked(*args: Any) -> bool:
            found = is_running(*args)
            if found:
                asked.set()
            return found

        monkeypatch.setattr(ddl_progress, "_is_running", looked)
        second = threading.Thread(target=downstream.run, args=(change, point))
        second.start()
        assert asked.wait(60)
    first.join(60)
    second.join(60)
    assert downstream.server.query("SELECT pid, v FROM s.d") == [(5, 1)]


@pytest.mark.fault(
    "the Drainer dies before or after a DDL and before its checkpoint: a swap of two tables"
    " that are defined alike",
    "refused, because no one can say: an operator decides",
    cases="2",
)
@pytest.mark.thorough
def test_a_swap_of_tables_that_are_alike_is_for_a_person_to_decide(downstream: Downstream) -> None:
    downstream.run(*downstream.change("CREATE TABLE e LIKE d"))
    change, point = downstream.change("RENAME TABLE e TO tmp, d TO e, tmp TO d")
    downstream.run(change, point, dies="after")
    with pytest.raises(NeedsOperator, match="unknown whether"):
        downstream.run(change, point)
    assert downstream.server.query("SELECT * FROM s.e") == [(1, 1, 5)]
