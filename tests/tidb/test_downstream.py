"""A real TiDB as downstream: its sessions, its limits, its DDL jobs, and `penstock verify`."""

import itertools
import json
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from drainer.sinks.checkpoint import Checkpoint, TakenOver
from drainer.sinks.mysql.ddl_progress import wait_for_ddl
from drainer.sinks.mysql.session import TIDB_VARIABLES
from drainer.sinks.mysql.sink import MysqlSink
from drainer.sinks.opening import open_sink
from drainer.sinks.protocol import Refused, RowStatement, Split
from penstock.ddl import Catalog, SchemaChange, plan_ddl
from penstock.errors import NeedsOperator
from penstock.local.sql_server import TidbServer
from pumpclient.mysql.protocol.server import cluster_ts
from pumpclient.mysql.verify import __main__ as command
from tests.kit.servers.fix_tidb_alone import TXN_BYTES_MAX
from tests.kit.wait import eventually

CLUSTER = 7
START = Checkpoint(7, 0)


class Shop:
    """A downstream with a sink, whose changes come from DDL text."""

    def __init__(self, server: TidbServer, options: str = "") -> None:
        self.server = server
        self.sink = self.opened(options)
        self._catalog, self._ids, self._ts = Catalog(), itertools.count(1), itertools.count(100)

    def opened(self, options: str = "") -> MysqlSink:
        sink = open_sink(f"{self.server.url}?{options}", cluster_id=CLUSTER, retry_s_max=5)
        assert isinstance(sink, MysqlSink)
        sink.load_checkpoint()
        return sink

    def point(self) -> Checkpoint:
        return Checkpoint(next(self._ts), self._catalog.version)

    def change(self, sql: str) -> SchemaChange:
        (job,) = plan_ddl(sql, "shop", self._catalog, lambda: next(self._ids))
        return self._catalog.apply(job)

    def ddl(self, *statements: str) -> None:
        for sql in statements:
            self.sink.run_ddl(self.change(sql), self.point(), maybe_done=False)

    def variable(self, name: str) -> str:
        found: list[Any] = []

        def ask(connection: Any, _: bool) -> None:
            with connection.cursor() as cursor:
                cursor.execute(f"SELECT @@SESSION.`{name}`")
                found.append(cursor.fetchone()[0])

        self.sink._session.retrying(ask)
        return str(found[0])


@pytest.fixture
def shop(tidb: TidbServer) -> Iterator[Shop]:
    made = Shop(tidb)
    made.ddl("CREATE DATABASE shop", "CREATE TABLE t (id INT PRIMARY KEY, v INT)")
    yield made
    made.sink.close()


def test_a_session_is_set_up_for_a_tidb_that_says_so_and_params_come_last(shop: Shop) -> None:
    assert [shop.variable(name) for name, _ in TIDB_VARIABLES] == [
        "1", "pessimistic", "1", "IGNORE",
    ]  # fmt: skip
    assert shop.variable("transaction_isolation") == "READ-COMMITTED"
    with closing(shop.opened("params=tidb_txn_mode%3Doptimistic")) as other:
        shop.sink, mine = other, shop.sink
        assert shop.variable("tidb_txn_mode") == "optimistic"
        shop.sink = mine


def test_rows_keep_the_keys_that_auto_random_gave_them(shop: Shop) -> None:
    shop.server.run("CREATE TABLE shop.r (id BIGINT AUTO_RANDOM PRIMARY KEY, v INT)")
    rows = b"INSERT INTO `shop`.`r` (`id`,`v`) VALUES (4611686018427387905,1),(2,2)"
    shop.sink.apply([rows], shop.point())
    found = shop.server.query("SELECT id, v FROM shop.r ORDER BY v")
    assert found == [(4611686018427387905, 1), (2, 2)]


def test_a_transaction_of_many_statements_is_one(shop: Shop) -> None:
    statements = [b"INSERT INTO `shop`.`t` (`id`,`v`) VALUES (%d,1)" % i for i in range(6000)]
    shop.sink.apply(statements, shop.point())
    assert shop.server.query("SELECT COUNT(*) FROM shop.t") == [(6000,)]


def test_a_row_and_a_transaction_above_the_limits_are_refused_whole_with_a_hint(shop: Shop) -> None:
    shop.ddl("CREATE TABLE big (id INT PRIMARY KEY, v LONGTEXT)")
    before = shop.sink.load_checkpoint()
    one = b"INSERT INTO `shop`.`big` (`id`,`v`) VALUES (1,'%s')" % (b"x" * (7 << 20))
    with pytest.raises(Refused, match="too large") as refused:
        shop.sink.apply([insert(1), one], shop.point())
    assert "txn-entry-size-limit" in refused.value.hint
    many = [
        b"INSERT INTO `shop`.`big` (`id`,`v`) VALUES (%d,'%s')" % (i, b"x" * (5 << 20))
        for i in range(8)
    ]
    with pytest.raises(NeedsOperator, match="too large") as also:
        shop.sink.apply([insert(2), *many], shop.point())
    assert "txn-total-size-limit" in also.value.hint
    assert "--batch-bytes-max" in also.value.hint
    assert shop.server.query("SELECT * FROM shop.t") == []
    assert shop.opened().load_checkpoint() == before


def insert(number: int) -> bytes:
    return b"INSERT INTO `shop`.`t` (`id`,`v`) VALUES (%d,1)" % number


def test_batches_are_cut_below_the_limit_of_the_server(shop: Shop) -> None:
    assert shop.sink.batch_bytes_max == TXN_BYTES_MAX // 8


def test_queues_of_a_drainer_that_was_replaced_write_nothing(shop: Shop) -> None:
    def row(number: int) -> RowStatement:
        return RowStatement(insert(number), "shop.t")

    queues = [[[row(1)], [row(2)]], [[row(3)], [row(4)]]]
    shop.sink.apply_split(Split(queues, [row(5)], safe=False), shop.point(), START)
    assert shop.server.query("SELECT COUNT(*) FROM shop.t") == [(5,)]
    follower = shop.opened()
    follower.save_checkpoint(shop.point())
    queues = [[[row(11)]], [[row(12)]]]
    with pytest.raises(TakenOver):
        shop.sink.apply_split(Split(queues, [row(13)], safe=False), shop.point(), START)
    # As one that had begun its queues before, and was frozen then.
    shop.sink._ledger._known = follower._ledger._known
    session = shop.sink._session
    with pytest.raises(TakenOver, match="queue 0 is fenced off"):
        session.retrying(lambda connection, _: shop.sink._fences.lock_queue(connection, 0))
    assert shop.server.query("SELECT COUNT(*) FROM shop.t") == [(5,)]
    follower.close()


def test_a_start_waits_for_a_queue_that_is_just_being_committed(shop: Shop) -> None:
    row = RowStatement(insert(1), "shop.t")
    shop.sink.apply_split(Split([[[row]]], [], safe=False), shop.point(), START)
    follower, took = shop.opened(), threading.Event()

    def take_over() -> None:
        follower.save_checkpoint(shop.point())
        took.set()

    with closing(shop.server.connect(autocommit=False)) as queue:
        queue.begin()
        shop.sink._fences.lock_queue(queue, 0)
        thread = threading.Thread(target=take_over)
        thread.start()
        assert not took.wait(1)
        queue.commit()
    thread.join()
    assert took.is_set()
    follower.close()


def test_a_ddl_whose_connection_was_lost_is_waited_for_and_run_once(shop: Shop) -> None:
    rows = ",".join(f"({i},{i})" for i in range(30_000))
    shop.sink.apply([f"INSERT INTO `shop`.`t` (`id`,`v`) VALUES {rows}".encode()], shop.point())
    change, point = shop.change("ALTER TABLE t ADD INDEX by_v (v)"), shop.point()
    running = threading.Thread(
        target=shop.sink.run_ddl, args=(change, point), kwargs={"maybe_done": False}
    )
    running.start()
    jobs = "SELECT COUNT(*) FROM information_schema.ddl_jobs WHERE query LIKE '%by_v%'"
    eventually(lambda: shop.server.query(jobs) != [(0,)], 20)
    shop.sink._session._hang_up()
    running.join(60)
    assert not running.is_alive()
    assert shop.opened().load_checkpoint() == point
    indexes = shop.server.query("SHOW INDEX FROM shop.t WHERE Key_name = 'by_v'")
    assert len(indexes) == 1
    # A second one would have failed, or have been found by its name.
    assert shop.server.query(f"{jobs} AND state = 'synced'") == [(1,)]


def test_a_ddl_that_a_killed_drainer_left_running_is_waited_for(shop: Shop) -> None:
    statement = "ALTER TABLE `shop`.`t` ADD INDEX `left_behind` (`v`)"
    rows = ",".join(f"({i},{i})" for i in range(30_000))
    shop.sink.apply([f"INSERT INTO `shop`.`t` (`id`,`v`) VALUES {rows}".encode()], shop.point())
    other = threading.Thread(target=shop.server.run, args=(statement,))
    other.start()
    jobs = "SELECT COUNT(*) FROM information_schema.ddl_jobs WHERE query LIKE '%left_behind%'"
    eventually(lambda: shop.server.query(jobs) != [(0,)], 20)
    with closing(shop.server.connect()) as connection:
        wait_for_ddl(connection, (statement,), threading.Event(), is_tidb=True)
    assert shop.server.query(f"{jobs} AND state = 'synced'") == [(1,)]
    other.join()


def test_what_an_account_may_not_do_is_said_at_the_start(tidb: TidbServer) -> None:
    tidb.run(
        "CREATE DATABASE tidb_binlog",
        "DROP USER IF EXISTS 'few'@'%', 'rows'@'%'",
        "CREATE USER 'few'@'%', 'rows'@'%'",
        "GRANT ALL ON tidb_binlog.* TO 'few'@'%', 'rows'@'%'",
        "GRANT SELECT ON *.* TO 'few'@'%'",
        "GRANT SELECT, INSERT, UPDATE, DELETE ON shop.* TO 'rows'@'%'",
    )
    url = f"mysql://few@127.0.0.1:{tidb.port}/"
    with (
        closing(open_sink(url, cluster_id=CLUSTER, retry_s_max=5)) as sink,
        pytest.raises(NeedsOperator, match="no right to INSERT, UPDATE, DELETE"),
    ):
        sink.load_checkpoint()
    with closing(open_sink(url.replace("few", "rows"), cluster_id=CLUSTER)) as sink:
        assert sink.load_checkpoint() is None


# --- verify ------------------------------------------------------------------------------------

TABLES = (
    "CREATE DATABASE up", "CREATE DATABASE down", "CREATE DATABASE tidb_binlog",
    *(
        statement.format(schema)
        for schema in ("up", "down")
        for statement in (
            "CREATE TABLE {}.many (id BIGINT PRIMARY KEY, v VARCHAR(20), n DECIMAL(10,3))",
            "CREATE TABLE {}.types (k VARCHAR(10) COLLATE utf8mb4_general_ci, n INT, j JSON,"
            " f FLOAT, d DOUBLE, t TIMESTAMP(3) NULL, b BLOB, e ENUM('a','b'), s SET('x','y'),"
            " bi BIT(10), y YEAR, ti TIME(2), g INT GENERATED ALWAYS AS (n + 1),"
            " PRIMARY KEY (k, n))",
            "CREATE TABLE {}.loose (a INT)",
            "CREATE TABLE {}.r (id BIGINT AUTO_RANDOM PRIMARY KEY, v INT)",
        )
    ),
    "CREATE TABLE tidb_binlog.checkpoint (clusterID BIGINT UNSIGNED PRIMARY KEY,"
    " checkPoint MEDIUMTEXT)",
)  # fmt: skip
ROWS = (
    "INSERT INTO {0}.types (k,n,j,f,d,t,b,e,s,bi,y,ti) VALUES"
    " ('a',1,'{{\"x\": [1, 2.5]}}',0.1,1e300,'2021-01-02 03:04:05.678',x'00ff','b','x,y',5,2021,"
    "'-10:11:12.13'), ('B',2,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL)",
    "INSERT INTO {0}.loose VALUES (1),(1),(2)",
    "SET SESSION allow_auto_random_explicit_insert = 1",
    "INSERT INTO {0}.r VALUES (5, 1), (4611686018427387905, 2)",
)


def verify(server: TidbServer, *more: str) -> int:
    url = server.url.replace("mysql://", "tidb://")
    routes = [f"--route=up.{name}=down.{name}" for name in ("many", "types", "loose", "r")]
    return command.main(
        ["--upstream", server.url, "--downstream", url, *routes,
         "--tables", "up.*", "--rows-per-chunk", "300", *more]
    )  # fmt: skip


def test_two_tidbs_are_compared_and_repaired_by_the_time_of_their_cluster(
    tidb: TidbServer, capsys: pytest.CaptureFixture[str]
) -> None:
    many = ",".join(f"({i},'v{i}',{i}.5)" for i in range(1000))
    tidb.run(*TABLES)
    for schema in ("up", "down"):
        tidb.run(*(text.format(schema) for text in ROWS))
        tidb.run(f"INSERT INTO {schema}.many VALUES {many}", f"ANALYZE TABLE {schema}.many")

    def caught_up(ts: int) -> None:
        text = json.dumps({"commitTS": ts, "consistent": False, "ts-map": {}})
        tidb.run(f"REPLACE INTO tidb_binlog.checkpoint VALUES (1, '{text}')")

    with closing(tidb.connect()) as connection:
        far = cluster_ts(connection) + (3600_000 << 18)
    caught_up(far)
    assert verify(tidb) == 0, capsys.readouterr()
    assert "equal" in capsys.readouterr().out
    tidb.run(
        "UPDATE down.many SET v = 'flipped' WHERE id = 300",
        "DELETE FROM down.many WHERE id = 3",
        "UPDATE down.types SET f = 0.2, j = '{}' WHERE k = 'a'",
        "DELETE FROM down.r WHERE id = 4611686018427387905",
    )
    assert verify(tidb) == 1
    out = capsys.readouterr().out
    for line in (
        "up.many -> down.many (300): changed in v",
        "up.many -> down.many (3): missing",
        "changed in j, f",
        "up.r -> down.r (4611686018427387905): missing",
        "4 differences",
    ):
        assert line in out, out
    assert verify(tidb, "--repair", "--yes") == 0
    assert verify(tidb) == 0
    # A downstream that is behind is waited for, and what differs then may be under way.
    tidb.run("DELETE FROM down.many WHERE id = 5")
    caught_up(5)
    capsys.readouterr()
    assert verify(tidb, "--wait-s", "0") == 1
    assert "the downstream's checkpoint is at 5: what differs may be under way" in (
        capsys.readouterr().err
    )

    def arrive() -> None:
        tidb.run("INSERT INTO down.many VALUES (5,'v5',5.5)")
        caught_up(far)

    later = threading.Timer(1.5, arrive)
    later.start()
    began_s = time.monotonic()
    assert verify(tidb, "--wait-s", "20") == 0
    assert time.monotonic() - began_s > 1
    later.join()
