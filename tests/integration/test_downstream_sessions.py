"""What a session with a real MariaDB fixes: marks of loop-back control, sql_mode, time zones."""

import os
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drainer.sinks.checkpoint import Checkpoint, TakenOver
from drainer.sinks.mysql.sink import MysqlSink
from drainer.sinks.opening import open_table_sink
from drainer.sinks.protocol import RowStatement, Split, SqlSink
from drainer.task.partitions import Partitions
from penstock.ddl import Catalog, plan_ddl
from penstock.errors import NeedsOperator
from penstock.local.process import program
from penstock.local.sql_server import SqlServer
from penstock.ts import compose
from penstock.wire.binlog import MutationType
from tests.kit.fakes.sliced import sql_of
from tests.kit.servers.fix_mariadb import MariadbServer
from tests.kit.wait import eventually
from tests.kit.workloads.changes import Upstream, batch_of, catalog_of, examples, table_of

START = Checkpoint(7, 0)


def opened(server: MariadbServer, options: str = "") -> SqlSink:
    sink = open_table_sink(f"{server.url}?{options}", cluster_id=1, retry_s_max=5)
    assert sink.load_checkpoint() is None
    return sink


def marks(server: MariadbServer) -> int:
    sql = "SELECT SUM(val), MIN(channel_id), MAX(channel_id) FROM retl._drainer_repl_mark"
    ((total, least, most),) = server.query(sql)
    assert (least, most) == (7, 7)
    return int(total)


def test_every_transaction_of_every_strategy_leaves_one_mark(mariadb: MariadbServer) -> None:
    mariadb.query("CREATE DATABASE shop")
    mariadb.query("CREATE TABLE shop.t (id INT PRIMARY KEY)")
    ids = count()

    def insert() -> bytes:
        return b"INSERT INTO shop.t VALUES (%d)" % next(ids)

    def row() -> RowStatement:
        return RowStatement(insert(), "shop.t")

    with closing(opened(mariadb, "loopback-channel=7")) as sink:
        assert isinstance(sink, MysqlSink)
        sink.apply([insert(), insert()], Checkpoint(10, 1))
        assert marks(mariadb) == 1
        sink.save_checkpoint(Checkpoint(11, 1))
        assert marks(mariadb) == 2
        sink.apply_slices(lambda: (each for each in ([insert()], [insert()])), Checkpoint(12, 1))
        assert marks(mariadb) == 3
        queues = [[[row()], [row(), row()]] for _ in range(4)]
        sink.apply_split(Split(queues, [row()], safe=False), Checkpoint(13, 1), START)
        # Eight of the queues, the one that says "in between", and the last.
        assert marks(mariadb) == 13
        phases = [[[insert()], [insert()]], [[insert()]]]
        sink.apply_partitions(Partitions(phases, [insert()]), Checkpoint(14, 1), START)
        assert marks(mariadb) == 18
    # The next run continues with the rows that are there.
    with closing(open_table_sink(f"{mariadb.url}?loopback-channel=7", cluster_id=1)) as sink:
        assert sink.load_checkpoint() == Checkpoint(14, 1)
        sink.apply([insert()], Checkpoint(15, 1))
        assert marks(mariadb) == 19
    with closing(open_table_sink(mariadb.url, cluster_id=1)) as sink:
        sink.load_checkpoint()
        sink.apply([insert()], Checkpoint(16, 1))
        assert marks(mariadb) == 19


def test_the_operators_sql_mode_holds_for_rows_and_for_ddl(mariadb: MariadbServer) -> None:
    catalog, ids = Catalog(), count(1)
    texts = ["CREATE DATABASE shop",
             "CREATE TABLE t (id INT PRIMARY KEY AUTO_INCREMENT, v TINYINT)",
             r"ALTER TABLE t ADD COLUMN w VARCHAR(9) DEFAULT 'a\tb'"]  # fmt: skip
    jobs = [job for sql in texts for job in plan_ddl(sql, "shop", catalog, lambda: next(ids))
            if catalog.apply(job)]  # fmt: skip
    catalog = Catalog()
    changes = [catalog.apply(job) for job in jobs]
    too_large = [rb"INSERT INTO shop.t (id, v, w) VALUES (0, 1000, 'c\\d')"]
    with closing(opened(mariadb)) as sink:
        for ts, change in enumerate(changes, 10):
            sink.run_ddl(change, Checkpoint(ts, 1), maybe_done=False)
        with pytest.raises(NeedsOperator, match="Out of range"):
            sink.apply(too_large, Checkpoint(20, 1))
    url = f"{mariadb.url}?sql-mode=NO_ENGINE_SUBSTITUTION&params=lock_wait_timeout%3D77"
    with closing(open_table_sink(url, cluster_id=1)) as sink:
        sink.load_checkpoint()
        # Without strict the value is cut; zero is still what it is.
        sink.apply(too_large, Checkpoint(21, 1))
    assert mariadb.query("SELECT * FROM shop.t") == [(0, 127, "c\\d")]
    assert mariadb.query("SELECT DEFAULT(w) FROM shop.t") == [("a\tb",)]
    with (
        closing(open_table_sink(f"{mariadb.url}?sql-mode=NO_SUCH_MODE", cluster_id=1)) as sink,
        pytest.raises(NeedsOperator, match="sql_mode"),
    ):
        sink.load_checkpoint()


@pytest.mark.thorough
@pytest.mark.parametrize(
    "server_name",
    [
        pytest.param("mariadb", marks=pytest.mark.mariadb),
        pytest.param("mysql", marks=pytest.mark.mysql),
    ],
)
def test_expressions_of_a_table_mean_what_they_did_when_it_was_created(
    request: pytest.FixtureRequest, server_name: str
) -> None:
    # A MySQL reads them from the text that it stored, in the mode of the session that opens it.
    server: SqlServer = request.getfixturevalue(server_name)
    columns = "id INT PRIMARY KEY, a VARCHAR(9)"
    codec = Upstream(table := table_of(f"CREATE TABLE t ({columns})")).codec
    server.run(
        "CREATE DATABASE expressions",
        rf"CREATE TABLE expressions.t ({columns}, CHECK (a <> 'x\\'),"
        r" g VARCHAR(9) AS (CONCAT(a, '!\\''')) STORED,"
        r" h VARCHAR(9) DEFAULT (CONCAT('it', '''s\\')))",
    )
    rows = [(1, "p"), (2, "q\\'r")]
    changes = [(MutationType.INSERT, codec.encode_insert(row, rowid=row[0])) for row in rows]
    operators = "?sql-mode=STRICT_ALL_TABLES%2Cno_backslash_escapes"
    for ts, options in enumerate(("", operators), 20):
        server.query("FLUSH TABLES")
        server.query("DELETE FROM expressions.t")
        with closing(open_table_sink(server.url + options, cluster_id=1)) as sink:
            sink.load_checkpoint()
            statements = sql_of(batch_of(table, changes, schema="expressions"), "mysql")
            sink.apply(statements, Checkpoint(ts, 1))
        assert server.query("SELECT * FROM expressions.t ORDER BY id") == [
            (1, "p", "p!\\'", "it's\\"),
            (2, "q\\'r", "q\\'r!\\'", "it's\\"),
        ]


ZONES = ["Europe/Berlin", "America/New_York", "Australia/Lord_Howe"]
# Around each of these the clocks of one of the zones change.
CHANGES = [
    datetime(2021, 3, 28, 1, tzinfo=UTC), datetime(2021, 10, 31, 1, tzinfo=UTC),
    datetime(2021, 3, 14, 7, tzinfo=UTC), datetime(2021, 11, 7, 6, tzinfo=UTC),
    datetime(2021, 4, 3, 15, tzinfo=UTC), datetime(2021, 10, 2, 15, 30, tzinfo=UTC),
    datetime(1970, 1, 1, 2, tzinfo=UTC), datetime(2038, 1, 19, 1, tzinfo=UTC),
]  # fmt: skip
_NEAR = st.builds(
    lambda moment, ms: moment + timedelta(milliseconds=ms),
    st.sampled_from(CHANGES),
    st.integers(-7_199_000, 7_199_000),
)
_ANY = st.integers(86_400_000, 2_147_000_000_000).map(
    lambda ms: datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=ms)
)


@pytest.fixture
def zoned(mariadb: MariadbServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[MariadbServer]:
    """The server with the zones' tables, and its zone and this process's put back afterwards."""
    with closing(mariadb.connect()) as connection, connection.cursor() as cursor:
        cursor.execute("USE mysql")
        cursor.execute("SELECT name FROM time_zone_name")
        known = {name for (name,) in cursor.fetchall()}
        for zone in (zone for zone in ZONES if zone not in known):
            command = [program("mariadb-tzinfo-to-sql", "mysql_tzinfo_to_sql")]
            command += [f"/usr/share/zoneinfo/{zone}", zone]
            text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
            for statement in text.split(";\n"):
                if statement.strip().startswith(("INSERT INTO", "SET @time_zone_id")):
                    cursor.execute(statement)
    before = os.environ.get("TZ")
    yield mariadb
    mariadb.query("SET GLOBAL time_zone = SYSTEM")
    os.environ.pop("TZ", None)
    if before is not None:
        os.environ["TZ"] = before
    time.tzset()


@pytest.mark.thorough
def test_a_timestamp_is_the_same_moment_whatever_the_zones_of_server_and_process(
    zoned: MariadbServer,
) -> None:
    table = table_of("CREATE TABLE t (id INT PRIMARY KEY, ts TIMESTAMP(3) NULL, dt DATETIME(3))")
    codec, points = Upstream(table).codec, count(10)
    zoned.query("CREATE DATABASE s")
    zoned.query("CREATE TABLE s.t (id INT PRIMARY KEY, ts TIMESTAMP(3) NULL, dt DATETIME(3))")
    sinks: dict[str, SqlSink] = {}
    for zone in (*ZONES, "+13:00", "-12:59"):
        zoned.query(f"SET GLOBAL time_zone = '{zone}'")
        sinks[zone] = open_table_sink(zoned.url, cluster_id=len(sinks) + 1)
        sinks[zone].load_checkpoint()  # Connects while this is the server's zone.

    @examples(40)
    @given(
        moments=st.lists(st.one_of(_NEAR, _ANY), min_size=1, max_size=10),
        zone=st.sampled_from(sorted(sinks)),
        own=st.sampled_from(ZONES),
        reads=st.sampled_from([*ZONES, "+05:45"]),
    )
    def check(moments: list[datetime], zone: str, own: str, reads: str) -> None:
        os.environ["TZ"] = own
        time.tzset()
        texts = [f"{each:%Y-%m-%d %H:%M:%S}.{each.microsecond // 1000:03}" for each in moments]
        rows = [(i, text, text) for i, text in enumerate(texts)]
        changes = [(MutationType.INSERT, codec.encode_insert(row, rowid=row[0])) for row in rows]
        statements = [b"DELETE FROM s.t", *sql_of(batch_of(table, changes, schema="s"), "mysql")]
        sinks[zone].apply(statements, Checkpoint(next(points), 1))
        with closing(zoned.connect()) as connection, connection.cursor() as cursor:
            cursor.execute(f"SET time_zone = '{reads}'")
            # The number of seconds has no zone; the text of a DATETIME has none either.
            cursor.execute("SELECT UNIX_TIMESTAMP(ts), CAST(dt AS CHAR) FROM s.t ORDER BY id")
            found = cursor.fetchall()
        epoch = datetime(1970, 1, 1, tzinfo=UTC)
        wanted = [(each - epoch) // timedelta(milliseconds=1) for each in moments]
        assert [int(seconds * 1000) for seconds, _ in found] == wanted
        assert [text for _, text in found] == texts

    check()
    for sink in sinks.values():
        sink.close()


@pytest.mark.thorough
def test_a_ddl_fills_in_moments_as_the_upstream_does_whatever_the_servers_zone(
    zoned: MariadbServer,
) -> None:
    zoned.query("SET GLOBAL time_zone = 'Europe/Berlin'")
    catalog, ids = Catalog(), count(1)
    with closing(opened(zoned)) as sink:
        for at, sql in enumerate([
            "CREATE DATABASE s",
            "CREATE TABLE t (id INT PRIMARY KEY)",
            "ALTER TABLE t ADD COLUMN told TIMESTAMP NOT NULL DEFAULT '2021-10-31 00:30:00'",
            "ALTER TABLE t ADD COLUMN now TIMESTAMP NOT NULL DEFAULT CURRENT_TIMESTAMP",
        ]):  # fmt: skip
            for job in plan_ddl(sql, "s", catalog, lambda: next(ids)):
                ts = compose(1_635_640_200_000 + at, 0)
                change = catalog.apply(replace(job, finished_ts=ts))
                sink.run_ddl(change, Checkpoint(ts, 1), maybe_done=False)
            if at == 1:
                sink.apply([b"INSERT INTO s.t VALUES (1)"], Checkpoint(ts + 1, 1))
    with closing(zoned.connect()) as connection, connection.cursor() as cursor:
        cursor.execute("SELECT UNIX_TIMESTAMP(told), UNIX_TIMESTAMP(now) FROM s.t")
        assert cursor.fetchone() == (1_635_640_200, 1_635_640_200)


@pytest.mark.thorough
def test_a_statement_without_an_answer_is_tried_again_and_a_ddl_is_waited_for(
    mariadb: MariadbServer, caplog: pytest.LogCaptureFixture
) -> None:
    catalog = catalog_of("CREATE DATABASE shop", "CREATE TABLE t (id INT PRIMARY KEY)")
    mariadb.query("CREATE DATABASE shop")
    mariadb.query("CREATE TABLE shop.t (id INT PRIMARY KEY)")
    with (
        closing(open_table_sink(f"{mariadb.url}?read-timeout=1", cluster_id=1)) as sink,
        closing(mariadb.connect(autocommit=False)) as other,
        ThreadPoolExecutor(1) as thread,
    ):
        sink.load_checkpoint()
        other.query("INSERT INTO shop.t VALUES (1)")
        applied = thread.submit(sink.apply, [b"REPLACE INTO shop.t VALUES (1)"], Checkpoint(8, 1))
        eventually(lambda: bool(sink.waits_for()), 60)
        other.rollback()
        applied.result(120)
        assert mariadb.query("SELECT id FROM shop.t") == [(1,)]

        caplog.clear()
        other.query("SELECT * FROM shop.t")
        (job,) = plan_ddl("ALTER TABLE t ADD COLUMN v INT", "shop", catalog, lambda: 99)
        change = catalog.apply(job)
        altered = thread.submit(sink.run_ddl, change, Checkpoint(9, 2), maybe_done=False)
        time.sleep(2.5)  # Longer than a statement may take.
        other.rollback()
        altered.result(120)
        assert "trying again" not in caplog.text
    assert mariadb.query("SELECT * FROM shop.t") == [(1, None)]


def test_of_two_that_store_the_first_checkpoint_at_once_one_learns_of_the_other(
    mariadb: MariadbServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    faster, slower = opened(mariadb), opened(mariadb)
    with closing(faster), closing(slower):
        begun = iter([lambda: faster.save_checkpoint(Checkpoint(11, 0))])
        # Both have looked for a row that they could lock, and there was none.
        monkeypatch.setattr(
            "drainer.sinks.mysql.sink.transaction_begun", lambda: next(begun, lambda: None)()
        )
        with pytest.raises(TakenOver, match="another Drainer"):
            slower.save_checkpoint(Checkpoint(12, 0))
        faster.save_checkpoint(Checkpoint(13, 0))
