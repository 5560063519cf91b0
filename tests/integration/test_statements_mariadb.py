"""Strategy `statements` on a real MariaDB: queues at once, and a Drainer that dies between them."""

import json
from collections.abc import Sequence
from contextlib import closing
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drainer.sinks.checkpoint import Checkpoint
from drainer.sinks.mysql.sink import MysqlSink
from drainer.sinks.opening import open_table_sink
from drainer.sinks.protocol import Split, SqlSink
from drainer.task.sql.literals import MYSQL
from penstock.schema.model import TableInfo
from tests.integration.test_apply_mariadb import content, create, merged, plain, serial
from tests.kit.servers.fix_mariadb import MariadbServer
from tests.kit.servers.fix_replication import Replication
from tests.kit.servers.pages import scraped
from tests.kit.workloads.changes import CASES, Case, Upstream, examples, histories, played
from tests.kit.workloads.random_writer import in_mariadb
from tests.kit.workloads.sqlite_copies import Changes
from tests.unit.drainer.test_statements import split

START = Checkpoint(0, 0)
WORSE = [
    Case(
        "generated columns",
        "id INT PRIMARY KEY, v INT UNIQUE, g INT AS (v + 1) VIRTUAL UNIQUE,"
        " s INT AS (v * 2) STORED",
        ((1, 2, 3, 4), (None, 1, 2, 3), (None,), (None,)),
    ),
    Case(
        "a language's own letters",
        "a VARCHAR(20) CHARACTER SET utf8mb4 COLLATE utf8mb4_swedish_ci PRIMARY KEY, v INT",
        (("y", "Y", "z", "å"), (None, 1, 2, 3)),
    ),
]


def made(table: TableInfo, changes: Changes, way: dict[str, Any]) -> Split:
    return split(table, changes, dialect=MYSQL, **way)


def point(sink: SqlSink) -> Checkpoint:
    assert isinstance(sink, MysqlSink)
    last = sink._ledger.last
    return Checkpoint((last.commit_ts if last else 0) + 1, 1)


def apply(sink: SqlSink, work: Split) -> None:
    missed = sink.apply_split(work, point(sink), START)
    assert not missed.count, missed


def crash(sink: SqlSink, work: Split, queues: Sequence[int]) -> None:
    """Bring some transactions of each queue downstream, and never the last one."""
    torn = [queue[: at % (len(queue) + 1)] for queue, at in zip(work.queues, queues, strict=False)]
    if any(torn):
        later = point(sink)
        sink.apply_split(Split([queue for queue in torn if queue], [], work.safe), later, START)


@pytest.mark.main_case("integer key and unique values")
@pytest.mark.parametrize("case", [*CASES, *WORSE], ids=str)
def test_statements_on_many_connections_merged_and_serial_apply_end_alike(
    mariadb: MariadbServer, case: Case
) -> None:
    table = case.table
    extra = f"CREATE TABLE t ({case.columns}, extra INT NOT NULL DEFAULT 7)"
    create(mariadb, case.sql, "merged", "serial")
    create(mariadb, extra, "statements")
    columns = len(table.columns)
    sink = open_table_sink(mariadb.url, cluster_id=8)
    with closing(mariadb.connect()) as connection, closing(sink):
        plain(connection)
        sink.load_checkpoint()

        @examples(5)
        @given(
            batches=histories(case, 25),
            queues=st.sampled_from([0, 2, 4]),
            safe=st.booleans(),
            deaths=st.lists(st.integers(0, 5), min_size=4, max_size=4),
        )
        def check(batches: Any, queues: int, safe: bool, deaths: list[int]) -> None:
            for schema in ("statements", "merged", "serial"):
                connection.query(f"DELETE FROM {schema}.t")
            upstream = Upstream(table)
            way = {"queues": queues, "batch": 2, "safe": safe}
            for changes in played(case, upstream, batches):
                crash(sink, made(table, changes, way), deaths)
                died = any(deaths)
                apply(sink, made(table, changes, {**way, "safe": safe or died}))
                for statement in [*merged(table, changes)]:
                    connection.query(statement)
                for statement in serial(table, changes):
                    connection.query(statement)
                wanted = content(connection, "serial")
                assert content(connection, "merged") == wanted
                rows = [row[:columns] for row in content(connection, "statements")]
                assert sorted(rows, key=repr) == wanted

        check()


@pytest.mark.fault(
    "`statements`: the Drainer is killed between a batch's transactions",
    "safe mode from the checkpoint on; equal",
    cases="2",
)
@pytest.mark.slow
@pytest.mark.parametrize("dispatch", [True, False], ids=["spread", "whole"])
def test_a_drainer_that_dies_between_a_batch_s_transactions_continues_in_safe_mode(
    replication: Replication,
    mariadb: MariadbServer,
    monkeypatch: pytest.MonkeyPatch,
    dispatch: bool,
) -> None:
    replication.add_pump()
    way = {"apply_strategy": "statements", "apply_txn_batch": 3, "apply_worker_count": 4}
    monkeypatch.setenv("PENSTOCK_APPLY_DISPATCH", str(dispatch).lower())
    drainer = replication.drain_into(mariadb.url, started=False, **way)
    writer = replication.begin(4)
    writer.transact(40)
    writer.bulk(200)
    with monkeypatch.context() as armed:
        armed.setenv("PENSTOCK_FAILPOINTS", "drainer.lane_committed=kill@7")
        drainer.start()
        drainer.wait()
    ((text,),) = mariadb.query("SELECT checkPoint FROM tidb_binlog.checkpoint")
    stored = json.loads(text)
    assert stored["applying"] > stored["commitTS"]
    assert stored["consistent"] is False
    drainer.start()
    drainer.wait_for("safe mode")
    drainer.wait_until(writer.transact(30))
    assert in_mariadb(mariadb) == writer.expected()
    # A row that somebody else removed is missed, and reported.
    victim = next(iter(writer.items))
    mariadb.query(f"DELETE FROM shop.item WHERE id = {victim}")
    with replication.client.begin("shop") as txn:
        txn.delete("item", writer.items.pop(victim))
    assert txn.commit_ts is not None
    drainer.wait_until(txn.commit_ts)
    drainer.wait_for(r"1 updated or deleted rows .*`item`")
    assert (
        scraped(drainer.status().details["status_pages"])["penstock_drainer_missed_rows_total"] == 1
    )
    assert in_mariadb(mariadb) == writer.expected()
    assert drainer.stop() == 0
