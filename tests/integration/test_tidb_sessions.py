"""What the sink does where a TiDB is: by script, and on a MariaDB that is taken for one.

The same on a real TiDB is in `tests/tidb/test_downstream.py`.
"""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pytest

from drainer.build import _batch_bytes_max
from drainer.settings.config import DrainerConfig
from drainer.sinks.checkpoint import Checkpoint, TakenOver
from drainer.sinks.mysql import ddl_progress
from drainer.sinks.mysql.ddl_progress import wait_for_ddl
from drainer.sinks.mysql.session import TIDB_VARIABLES
from drainer.sinks.mysql.sink import MysqlSink
from drainer.sinks.opening import open_sink
from drainer.sinks.protocol import Refused, RowStatement, Split
from penstock.errors import NeedsOperator, Retryable
from pumpclient.mysql.verify.sides import MysqlSide
from tests.kit.fakes.scripted_mysql import Rows, ScriptedMysql, error
from tests.kit.servers.fix_mariadb import MariadbServer

VERSION = "5.7.25-TiDB-v7.0.0"
CLUSTER = 7
START = Checkpoint(7, 0)
ALL_RIGHTS = "SELECT", "INSERT", "UPDATE", "DELETE", "CREATE", "ALTER", "DROP", "INDEX"
STORED = '{"consistent": false, "commitTS": 5, "writer": "x"}'


def answers(**more: Rows | bytes) -> dict[str, Rows | bytes]:
    """Return what a TiDB says to a sink; `more` by the name of an answer goes before."""
    config = {"performance": {"txn-total-size-limit": 64 << 20}}
    said: dict[str, Rows | bytes] = {
        "tidb_placement_mode": error(1193, "Unknown system variable 'tidb_placement_mode'"),
        "tidb_config": (("@@tidb_config",), [(json.dumps(config),)]),
        "max_allowed_packet": (("p",), [(64 << 20,)]),
        "checkpoint_fence": error(1146, "Table 'checkpoint_fence' doesn't exist", "42S02"),
        "SELECT checkPoint FROM": (("checkPoint",), [(STORED,)]),
        "CURRENT_USER": (("u",), [("root@%",)]),
        "CURRENT_ROLE": (("r",), [("",)]),
        "USER_PRIVILEGES": (("p",), [(each,) for each in ALL_RIGHTS]),
        "SHOW GRANTS": (("g",), [("GRANT ALL PRIVILEGES ON *.* TO 'root'@'%'",)]),
    }
    return {**more, **{name: rows for name, rows in said.items() if name not in more}}


def opened(server: ScriptedMysql, scheme: str = "mysql", options: str = "") -> MysqlSink:
    url = f"{scheme}://root@{server.address}/?{options}"
    sink = open_sink(url, cluster_id=CLUSTER, retry_s_max=0.2)
    assert isinstance(sink, MysqlSink)
    return sink


def set_variables(server: ScriptedMysql) -> list[str]:
    heads = [query.partition("`")[2].partition("`")[0] for query in server.queries if "`" in query]
    return [name for name in heads if name in dict(TIDB_VARIABLES) or name == "x_mode"]


@pytest.mark.parametrize(
    ("version", "scheme", "is_tidb"),
    [
        (VERSION, "mysql", True),
        ("8.0.11-TiDB-v8.1.0", "mysql", True),
        ("8.0.11", "tidb", True),  # Its server-version hides what it is.
        ("8.4.2", "mysql", False),
        ("10.11.6-MariaDB", "mariadb", False),
    ],
)
def test_a_tidb_is_known_by_its_version_or_by_name_and_what_it_lacks_is_passed_over(
    version: str, scheme: str, is_tidb: bool
) -> None:
    with (
        ScriptedMysql(rows=answers(), version=version) as server,
        closing(opened(server, scheme, "params=x_mode%3D1")) as sink,
    ):
        found = sink.load_checkpoint()
        assert found is not None
        assert found.commit_ts == 5
        names = [name for name, _ in TIDB_VARIABLES] if is_tidb else []
        assert set_variables(server) == [*names, "x_mode"]
        assert sink.batch_bytes_max == ((64 << 20) // 8 if is_tidb else 0)
        assert any("SHOW GRANTS" in query for query in server.queries)


def test_batches_are_cut_at_the_settings_or_at_the_downstream_before() -> None:
    with ScriptedMysql(rows=answers(), version=VERSION) as server, closing(opened(server)) as sink:
        assert _batch_bytes_max(DrainerConfig(batch_bytes_max=1 << 30), sink) == 1 << 30
        sink.load_checkpoint()
        assert _batch_bytes_max(DrainerConfig(batch_bytes_max=1 << 30), sink) == 8 << 20
        assert _batch_bytes_max(DrainerConfig(batch_bytes_max=1 << 20), sink) == 1 << 20
    hidden = error(1227, "Access denied")
    with (
        ScriptedMysql(rows=answers(tidb_config=hidden), version=VERSION) as server,
        closing(opened(server)) as sink,
    ):
        sink.load_checkpoint()
        assert sink.batch_bytes_max == (100 << 20) // 8


@pytest.mark.parametrize(
    ("code", "message", "hint"),
    [
        (8025, "entry too large, the max entry size is 6291456", "txn-entry-size-limit"),
        (8004, "Transaction is too large, size: 104857601", "txn-total-size-limit"),
        (8175, "Your query has been cancelled due to exceeding", "tidb_mem_quota_query"),
        (1105, "Out Of Memory Quota![conn=5]", "tidb_mem_quota_query"),
    ],
)
def test_what_is_above_a_limit_is_refused_with_what_to_raise(
    code: int, message: str, hint: str
) -> None:
    rows = answers(**{"INSERT INTO `shop`": error(code, message)})
    with ScriptedMysql(rows=rows, version=VERSION) as server, closing(opened(server)) as sink:
        sink.load_checkpoint()
        with pytest.raises(Refused) as refused:
            sink.apply([b"INSERT INTO `shop`.`t` (`id`) VALUES (1)"], Checkpoint(9, 1))
        assert hint in refused.value.hint
        assert "nothing was changed" in refused.value.hint
        assert not any(query.startswith("COMMIT") for query in server.queries)


@pytest.mark.parametrize("code", [8005, 8028, 8229, 9001, 9005, 9007, 9011])
def test_what_passes_in_a_tidb_is_tried_again(code: int) -> None:
    rows = answers(**{"INSERT INTO `shop`": error(code, "later")})
    with ScriptedMysql(rows=rows, version=VERSION) as server, closing(opened(server)) as sink:
        sink.load_checkpoint()
        with pytest.raises(Retryable, match="later"):
            sink.apply([b"INSERT INTO `shop`.`t` (`id`) VALUES (1)"], Checkpoint(9, 1))
        assert sum(query.startswith("INSERT") for query in server.queries) > 1


def jobs(count: int) -> Rows:
    return ("COUNT(*)",), [(count,)]


def test_a_ddl_that_still_runs_there_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ddl_progress, "_POLL_S", 0.01)
    with ScriptedMysql(rows=answers(ddl_jobs=jobs(1)), version=VERSION) as server:
        asked: list[int] = []

        def asks(connection: Any) -> int:
            asked.append(1)
            if len(asked) == 3:
                server.rows["ddl_jobs"] = jobs(0)
            return 0

        never = threading.Event()

        def waits(sink: MysqlSink) -> None:
            sink._session.retrying(
                lambda c, _: wait_for_ddl(c, ("ALTER TABLE t",), never, is_tidb=True)
            )

        with closing(opened(server)) as sink:
            ask = ddl_progress._is_under_way

            def counted(connection: Any, texts: Any, *, is_tidb: bool) -> bool:
                asks(connection)
                return ask(connection, texts, is_tidb=is_tidb)

            monkeypatch.setattr(ddl_progress, "_is_under_way", counted)
            waits(sink)
            assert len(asked) == 3
            server.rows["ddl_jobs"] = jobs(1)
            asked[:] = [1] * 9
            never.set()
            with pytest.raises(Retryable, match="was closed while the downstream ran a DDL"):
                waits(sink)
            # A TiDB from before there was such a table has none to wait for.
            server.rows["ddl_jobs"] = error(1146, "Table 'information_schema.ddl_jobs'", "42S02")
            never.clear()
            waits(sink)
    assert any("query IN ('ALTER TABLE t')" in query for query in server.queries)


def test_a_comparison_takes_its_time_from_the_cluster_and_a_snapshot_in_its_grammar() -> None:
    rows: dict[str, Rows | bytes] = {
        "tidb_current_ts": (("ts",), [(414529105591271429,)]),
        "READ ONLY": error(1064, "You have an error in your SQL syntax", "42000"),
    }
    with (
        ScriptedMysql(rows=rows, version=VERSION) as server,
        closing(MysqlSide(server.address)) as side,
    ):
        assert str(side.end()) == "commit_ts 414529105591271429"
        side.refresh()
        assert server.queries[-1] == "START TRANSACTION WITH CONSISTENT SNAPSHOT"


# --- on a MariaDB that is taken for a TiDB -----------------------------------------------------


@pytest.fixture
def taken_for_one(mariadb: MariadbServer) -> Iterator[Callable[[], MysqlSink]]:
    mariadb.run("CREATE DATABASE shop", "CREATE TABLE shop.t (id INT PRIMARY KEY, v INT)")
    sinks: list[MysqlSink] = []

    def make() -> MysqlSink:
        url = mariadb.url.replace("mysql://", "tidb://")
        sink = open_sink(url, cluster_id=CLUSTER, retry_s_max=5)
        assert isinstance(sink, MysqlSink)
        sink.load_checkpoint()
        sinks.append(sink)
        return sink

    yield make
    for sink in sinks:
        sink.close()


def row(number: int) -> RowStatement:
    return RowStatement(b"INSERT INTO `shop`.`t` (`id`,`v`) VALUES (%d,1)" % number, "shop.t")


def test_queues_lock_rows_of_their_own_and_those_of_a_replaced_drainer_write_nothing(
    mariadb: MariadbServer, taken_for_one: Callable[[], MysqlSink]
) -> None:
    sink = taken_for_one()
    queues = [[[row(1)], [row(2)]], [[row(3)], [row(4)]]]
    sink.apply_split(Split(queues, [row(5)], safe=False), Checkpoint(10, 1), START)
    assert mariadb.query("SELECT COUNT(*) FROM shop.t") == [(5,)]
    parts = mariadb.query("SELECT part FROM tidb_binlog.checkpoint_fence ORDER BY part")
    assert parts == [(-2,), (-1,)]
    follower = taken_for_one()
    follower.save_checkpoint(Checkpoint(11, 1))
    with pytest.raises(TakenOver):
        sink.apply_split(Split([[[row(11)]]], [row(12)], safe=False), Checkpoint(12, 1), START)
    # As one that had begun its queues before, and was frozen then.
    sink._ledger._known = follower._ledger._known
    with pytest.raises(TakenOver, match="queue 0 is fenced off"):
        sink._session.retrying(lambda connection, _: sink._fences.lock_queue(connection, 0))
    assert mariadb.query("SELECT COUNT(*) FROM shop.t") == [(5,)]


def test_a_start_waits_for_a_queue_that_is_just_being_committed(
    mariadb: MariadbServer, taken_for_one: Callable[[], MysqlSink]
) -> None:
    sink, follower, took = taken_for_one(), taken_for_one(), threading.Event()
    sink.apply_split(Split([[[row(1)]]], [], safe=False), Checkpoint(10, 1), START)
    follower.load_checkpoint()

    def take_over() -> None:
        follower.save_checkpoint(Checkpoint(11, 1))
        took.set()

    with closing(mariadb.connect(autocommit=False)) as queue:
        queue.begin()
        sink._fences.lock_queue(queue, 0)
        thread = threading.Thread(target=take_over)
        thread.start()
        assert not took.wait(0.5)
        queue.commit()
    thread.join()
    assert took.is_set()


def test_rights_are_read_from_what_the_server_shows(mariadb: MariadbServer) -> None:
    mariadb.run(
        "CREATE DATABASE tidb_binlog",
        "CREATE OR REPLACE USER few@'%'", "CREATE OR REPLACE USER `rows`@'%'",
        "GRANT ALL ON tidb_binlog.* TO few@'%', `rows`@'%'",
        "GRANT SELECT ON *.* TO few@'%'",
        "GRANT SELECT, INSERT, UPDATE, DELETE ON shop.* TO `rows`@'%'",
    )  # fmt: skip
    url = f"tidb://few@127.0.0.1:{mariadb.port}/"
    with (
        closing(open_sink(url, cluster_id=CLUSTER, retry_s_max=5)) as sink,
        pytest.raises(NeedsOperator, match="no right to INSERT, UPDATE, DELETE"),
    ):
        sink.load_checkpoint()
    with closing(open_sink(url.replace("few", "rows"), cluster_id=CLUSTER)) as sink:
        assert sink.load_checkpoint() is None
