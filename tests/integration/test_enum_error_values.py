"""An ENUM's error value ('' with index 0) arrives as it is, from a load straight into the sink too;
what does not fit is still refused."""

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from typing import Any

import pytest

from drainer.settings.targets import MysqlTarget
from drainer.sinks.checkpoint import Checkpoint
from drainer.sinks.mysql import server as server_module
from drainer.sinks.mysql.server import report_engines
from drainer.sinks.mysql.session import many
from drainer.sinks.mysql.sink import MysqlSink
from drainer.sinks.opening import open_table_sink
from drainer.sinks.protocol import RowStatement, Split, SqlSink
from drainer.task.sql.literals import MYSQL
from drainer.task.sql.upserts import TableSql
from penstock.ddl import Catalog, plan_ddl
from penstock.errors import NeedsOperator
from penstock.local.sql_server import SqlServer
from pumpclient.mysql.load.sink import SinkOptions, SinkSession
from pumpclient.mysql.load.text_rows import SqlRows, TextRows
from pumpclient.mysql.protocol.server import address_in
from tests.kit.sink_target import sink_target
from tests.kit.workloads.changes import table_of

START = Checkpoint(9, 1)
UPSERT = "ON DUPLICATE KEY UPDATE e=VALUES(e),n=VALUES(n),s=VALUES(s)"


@pytest.fixture(
    params=[
        pytest.param("mariadb", marks=pytest.mark.mariadb),
        pytest.param("mysql", marks=pytest.mark.mysql),
    ]
)
def server(request: pytest.FixtureRequest) -> SqlServer:
    made: SqlServer = request.getfixturevalue(request.param)
    made.run(
        "CREATE DATABASE shop",
        "CREATE TABLE shop.t (id INT PRIMARY KEY, e ENUM('a','b') NOT NULL, n ENUM('x'), s INT)",
    )
    return made


@pytest.fixture
def sink(server: SqlServer) -> Iterator[SqlSink]:
    with closing(open_table_sink(server.url, cluster_id=1, retry_s_max=5)) as made:
        made.load_checkpoint()
        made.save_checkpoint(START)
        yield made


def upsert(rows: str) -> bytes:
    return f"INSERT INTO `shop`.`t` (`id`,`e`,`n`,`s`) VALUES {rows} {UPSERT}".encode()


def rows(server: SqlServer) -> list[tuple[object, ...]]:
    return server.query("SELECT id, e + 0, n + 0, s FROM shop.t ORDER BY id")


@pytest.mark.main_case("mariadb")
def test_error_values_are_written_by_every_kind_of_statement(
    server: SqlServer, sink: SqlSink
) -> None:
    many = ",".join(f"({i},{i % 3},{i % 2},{i})" for i in range(300))
    sink.apply([upsert(many)], Checkpoint(10, 1))
    assert rows(server) == [(i, i % 3, i % 2, i) for i in range(300)]
    sink.apply([upsert("(1,0,0,0),(2,2,NULL,0)")], Checkpoint(11, 1))
    assert rows(server)[1:3] == [(1, 0, 0, 0), (2, 2, None, 0)]
    queue = [
        RowStatement(b"UPDATE `shop`.`t` SET `e`=0,`s`=7 WHERE `id`=2 AND `e`=2 LIMIT 1", "id 2"),
        RowStatement(b"REPLACE INTO `shop`.`t` (`id`,`e`,`n`,`s`) VALUES (4,0,1,8)", "id 4"),
    ]
    missed = sink.apply_split(Split([[queue]], [], safe=False), Checkpoint(12, 1), START)
    assert (missed.count, rows(server)[2], rows(server)[4]) == (0, (2, 0, None, 7), (4, 0, 1, 8))
    assert server.query("SELECT e FROM shop.t WHERE id = 2") == [("",)]


@pytest.mark.thorough
@pytest.mark.parametrize("row", ["(1,3,1,1)", "(1,0,2,1)", "(1,0,1,99999999999)", "(1,0,1,'7x')"])
def test_what_does_not_fit_beside_an_error_value_is_refused(
    server: SqlServer, sink: SqlSink, row: str
) -> None:
    with pytest.raises(NeedsOperator, match="refused"):
        sink.apply([upsert(f"(0,0,0,0),{row}")], Checkpoint(10, 1))
    assert rows(server) == []
    assert sink.load_checkpoint() == START


def test_the_session_is_as_strict_as_before_once_an_error_value_is_written(
    server: SqlServer, sink: SqlSink
) -> None:
    sink.apply([upsert("(1,0,0,0)")], Checkpoint(10, 1))
    with pytest.raises(NeedsOperator, match="Out of range"):
        sink.apply([upsert("(2,1,1,99999999999)")], Checkpoint(11, 1))
    assert rows(server) == [(1, 0, 0, 0)]


@pytest.mark.thorough
def test_a_load_straight_into_the_sink_writes_error_values_and_nothing_that_does_not_fit(
    server: SqlServer,
) -> None:
    options = SinkOptions(address_in(server.url, "sink"))
    reader = TextRows((), lambda data, at, out: (at, True), bytes)
    way = SqlRows(reader, b"INSERT INTO `shop`.`t` (`id`,`e`,`n`,`s`) VALUES ", True)
    with closing(SinkSession(options, ["test"], lambda: True)) as session:
        session.insert(way, [b"(1,0,NULL,1)", b"(2,2,0,-5)"])
        for wrong in (b"(4,3,1,1)", b"(4,0,1,'7x')"):
            with pytest.raises(NeedsOperator, match="the sink refuses rows"):
                session.insert(way, [b"(3,0,0,0)", wrong])
        session.insert(way, [b"(5,1,1,1)"])
    assert rows(server) == [(1, 0, None, 1), (2, 2, 0, -5), (5, 1, 1, 1)]


@pytest.mark.thorough
def test_what_a_lax_session_cut_in_a_generated_column_is_cut_here_too(
    server: SqlServer, sink: SqlSink
) -> None:
    server.run(
        "CREATE TABLE shop.g (id INT PRIMARY KEY, n SMALLINT, e ENUM('','b'),"
        " g TINYINT AS (n * 100) STORED, h VARCHAR(3) AS (CONCAT('ab', n)) STORED)"
    )
    sink.apply([b"INSERT INTO `shop`.`g` (`id`,`n`,`e`) VALUES (1,55,0),(2,1,1)"], Checkpoint(9, 1))
    found = "SELECT id, n, e + 0, g, h FROM shop.g ORDER BY id"
    assert server.query(found) == [(1, 55, 0, 127, "ab5"), (2, 1, 1, 100, "ab1")]
    too_large = b"INSERT INTO `shop`.`g` (`id`,`n`,`e`) VALUES (3,99999,1)"
    with pytest.raises(NeedsOperator, match="refused"):
        sink.apply([too_large], Checkpoint(10, 1))
    assert len(server.query(found)) == 2


@pytest.mark.thorough
def test_a_text_that_a_generated_column_reads_as_a_number_is_read_so_here_too(
    server: SqlServer, sink: SqlSink
) -> None:
    server.run(
        "CREATE TABLE shop.x (id INT PRIMARY KEY, v VARCHAR(9), d DATE, g INT AS (v + 0) STORED,"
        " h INT AS (v * 2) VIRTUAL, KEY (h))"
    )
    head = b"INSERT INTO `shop`.`x` (`id`,`v`,`d`) VALUES "
    sink.apply([head + b"(1,'12abc',NULL),(2,'7','2020-01-01')"], Checkpoint(9, 1))
    found = "SELECT id, v, g, h FROM shop.x ORDER BY id"
    assert server.query(found) == [(1, "12abc", 12, 24), (2, "7", 7, 14)]
    with pytest.raises(NeedsOperator, match="refused"):
        sink.apply([head + b"(3,'9z','no date')"], Checkpoint(10, 1))
    assert len(server.query(found)) == 2


@pytest.mark.thorough
def test_rows_that_a_check_refuses_are_taken_or_refused_with_a_way_to_take_them(
    server: SqlServer, sink: SqlSink
) -> None:
    server.run("CREATE TABLE shop.c (id INT PRIMARY KEY, n INT, CONSTRAINT p CHECK (n > 0))")
    statements = [b"INSERT INTO `shop`.`c` (`id`,`n`) VALUES (1,-5)"]
    if "MariaDB" in server.query("SELECT VERSION()")[0][0]:
        sink.apply(statements, Checkpoint(10, 1))
    else:
        with pytest.raises(NeedsOperator) as refusal:
            sink.apply(statements, Checkpoint(10, 1))
        assert "ALTER CHECK" in refusal.value.hint
        server.run("ALTER TABLE shop.c ALTER CHECK p NOT ENFORCED")
        sink.apply(statements, Checkpoint(10, 1))
    assert server.query("SELECT * FROM shop.c") == [(1, -5)]


@pytest.mark.thorough
def test_differences_that_are_negative_are_taken_once_their_column_subtracts_signed_numbers(
    server: SqlServer, sink: SqlSink
) -> None:
    columns = "id VARCHAR(9) PRIMARY KEY, a BIGINT UNSIGNED, u INT UNIQUE"
    server.run("SET sql_mode = 'NO_UNSIGNED_SUBTRACTION'",
               f"CREATE TABLE shop.d ({columns}, g BIGINT AS (a - 5) STORED)")  # fmt: skip
    sql = TableSql(MYSQL, "shop", "d", table_of(f"CREATE TABLE d ({columns})"))
    # The upsert has a guard, which answers with the same error.
    rows = ",".join(map(sql.row_text, [("x", 1, 1), ("y", 9223372036854775812, 2)]))
    upsert = sql._upsert_head + rows + sql._upsert_tail
    for _ in range(2):
        with pytest.raises(NeedsOperator, match="out of range") as refusal:
            sink.apply([upsert], Checkpoint(10, 1))
        assert "AS DECIMAL(20)" in refusal.value.hint
    server.run("ALTER TABLE shop.d MODIFY g BIGINT AS (CAST(a AS DECIMAL(20)) - 5) STORED")
    sink.apply([upsert], Checkpoint(10, 1))
    sink.apply([upsert], Checkpoint(11, 1))
    assert server.query("SELECT g FROM shop.d ORDER BY id") == [(-4,), (9223372036854775807,)]


@pytest.mark.thorough
def test_of_rows_whose_json_is_equal_the_very_same_one_is_found(
    server: SqlServer, sink: SqlSink
) -> None:
    server.run("CREATE TABLE shop.j (j JSON)")
    values = ("[1]", "[1.0]", "true", "1", '"1"')
    sink.apply(
        [f"INSERT INTO `shop`.`j` VALUES ('{v}')".encode() for v in values], Checkpoint(9, 1)
    )
    sql = TableSql(MYSQL, "shop", "j", table_of("CREATE TABLE j (j JSON)"))
    sink.apply([sql.delete_one(("[1.0]",)), sql.delete_one(("1",))], Checkpoint(10, 1))
    assert server.query("SELECT j FROM shop.j") == [("[1]",), ("true",), ('"1"',)]


def test_tables_have_transactions_whatever_the_servers_default_is(
    server: SqlServer, caplog: pytest.LogCaptureFixture
) -> None:
    try:
        server.run("SET GLOBAL default_storage_engine = 'MyISAM'")
        with closing(
            MysqlSink(sink_target(MysqlTarget, server.url), cluster_id=1, retry_s_max=5)
        ) as sink:
            sink.load_checkpoint()
            catalog = Catalog()
            for n, sql in enumerate((
                "CREATE TABLE t (id INT PRIMARY KEY)",
                "CREATE TABLE m (id INT PRIMARY KEY) ENGINE = MyISAM COMMENT = 'ENGINE=MyISAM'",
                "CREATE TABLE k (a INT, b INT AUTO_INCREMENT, PRIMARY KEY (a, b)) ENGINE=MyISAM",
            )):  # fmt: skip
                if not n:
                    server.run("CREATE DATABASE s")
                    (job,) = plan_ddl("CREATE DATABASE s", None, catalog, lambda: 99)
                    catalog.apply(job)
                (job,) = plan_ddl(sql, "s", catalog, lambda at=n: 100 + at)  # type: ignore[misc]
                job = replace(job, finished_ts=(1_700_000_000_000 + n) << 18)
                sink.run_ddl(catalog.apply(job), Checkpoint(n + 1, 1), maybe_done=False)
        engines = (
            "SELECT table_name, engine FROM information_schema.tables"
            " WHERE table_schema IN ('s', 'tidb_binlog') ORDER BY 1"
        )
        assert server.query(engines) == [
            ("checkpoint", "InnoDB"), ("k", "MyISAM"), ("m", "InnoDB"), ("t", "InnoDB")
        ]  # fmt: skip
        (warning,) = (text for text in caplog.messages if "an engine without transactions" in text)
        assert "`s`.`k` (MyISAM)" in warning
        server.run("ALTER TABLE tidb_binlog.checkpoint ENGINE=MyISAM")
        with (
            closing(
                MysqlSink(sink_target(MysqlTarget, server.url), cluster_id=1, retry_s_max=5)
            ) as sink,
            pytest.raises(NeedsOperator, match="has the engine MyISAM") as refusal,
        ):
            sink.load_checkpoint()
        assert "`tidb_binlog`.`checkpoint` ENGINE=InnoDB" in refusal.value.hint
    finally:
        server.run("SET GLOBAL default_storage_engine = 'InnoDB'")


@pytest.mark.mariadb
def test_after_a_ddl_the_engine_is_asked_for_without_a_scan_of_all_databases(
    mariadb: SqlServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    mariadb.run("CREATE DATABASE s", "CREATE TABLE s.k (a INT) ENGINE=MyISAM")
    asked: list[str] = []

    def noting(connection: Any, sql: str) -> list[Any]:
        asked.append(sql)
        return many(connection, sql)

    monkeypatch.setattr(server_module, "many", noting)
    known: set[tuple[str, str]] = set()
    with closing(mariadb.connect()) as connection:
        report_engines(connection, [("s", "k")], known)
    assert known == {("s", "k")}
    plans = [str(row) for row in mariadb.query(f"EXPLAIN {asked[0]}")]
    assert any("Scanned 0 databases" in plan for plan in plans), plans
