"""Batches on a real MariaDB: every value arrives, in any order of changes, through any outage."""

import itertools
import logging
import math
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pymysql
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from drainer.sinks.checkpoint import Checkpoint
from drainer.sinks.mysql.session import SQL_MODE
from drainer.sinks.mysql.sink import MysqlSink
from drainer.sinks.opening import open_table_sink
from drainer.sinks.protocol import TableSink
from drainer.task.compaction import plan_units
from drainer.task.sql.generate import generate, generate_rows
from drainer.task.sql.literals import MYSQL
from drainer.task.sql.upserts import table_sql
from drainer.task.work_unit import Bounds, Op, WorkUnit, in_order
from penstock.datum import times
from penstock.ddl import plan_ddl
from penstock.errors import NeedsOperator, Retryable
from penstock.local.sql_server import SqlServer
from penstock.schema.model import TableInfo
from penstock.wire.binlog import MutationType
from tests.kit.servers.fix_mariadb import MariadbServer
from tests.kit.workloads.changes import (
    CASES,
    Case,
    Upstream,
    batch_of,
    catalog_of,
    examples,
    histories,
    padded,
    played,
    table_of,
)

CLUSTER = 7
Changes = list[tuple[MutationType, bytes]]
INSERT, UPDATE, DELETE = MutationType.INSERT, MutationType.UPDATE, MutationType.DELETE


def merged(table: TableInfo, changes: Changes, rowwise_max: int = 100) -> list[bytes]:
    bounds = Bounds(rowwise_max=rowwise_max)
    units = plan_units(batch_of(table, changes, schema="merged"), MYSQL, bounds)
    return list(in_order(generate(WorkUnit.decode(unit.encode()), bounds) for unit in units))


def serial(table: TableInfo, changes: Changes) -> list[bytes]:
    sql = table_sql(MYSQL, "serial", "t", table)
    kinds = [int(kind) for kind, _ in changes]
    rows = pa.array([data for _, data in changes], pa.binary())
    return generate_rows(sql, [Op.ORDERED] * len(kinds), kinds, rows).ordered


def create(server: SqlServer, sql: str, *schemas: str) -> None:
    name = sql.removeprefix("CREATE TABLE ").split()[0]
    connection = server.connect()
    with closing(connection), connection.cursor() as cursor:
        for schema in schemas:
            cursor.execute(f"CREATE DATABASE IF NOT EXISTS {schema}")
            cursor.execute(f"USE {schema}")
            cursor.execute("SET sql_mode = ''")
            cursor.execute(f"DROP TABLE IF EXISTS {name}")
            cursor.execute(sql)


def content(connection: Any, schema: str) -> list[Any]:
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT * FROM {schema}.t")
        return sorted(cursor.fetchall(), key=repr)


def plain(connection: Any) -> None:
    with connection.cursor() as cursor:
        cursor.execute(f"SET SESSION sql_mode = '{SQL_MODE}', time_zone = '+00:00'")


def of_each(*ways: int) -> pytest.MarkDecorator:
    """Run a test on the machine's MariaDB in all ways, on MySQL in one; the slow sweep has all."""
    slow, mysql, mariadb = pytest.mark.slow, pytest.mark.mysql, pytest.mark.mariadb
    named = {0: "columns"}
    params = []
    for server, own, others in (
        ("mariadb", (mariadb,), (mariadb,)),
        ("mysql", (mysql,), (mysql, slow)),
        ("mariadb_new", (mariadb, slow), (mariadb, slow)),
    ):
        for n, way in enumerate(ways):
            name = f"{server}-{named.get(way, 'rows')}"
            params.append(pytest.param(server, way, id=name, marks=others if n else own))
    return pytest.mark.parametrize(("server_name", "rowwise_max"), params)


@pytest.mark.main_case("integer key and unique values")
@of_each(0, 100)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_batches_merged_leave_what_serial_apply_leaves(
    request: pytest.FixtureRequest, server_name: str, case: Case, rowwise_max: int
) -> None:
    table = case.table
    server: SqlServer = request.getfixturevalue(server_name)
    create(server, case.sql, "merged", "serial")
    with closing(server.connect()) as connection:
        plain(connection)

        @examples(15)
        @given(batches=histories(case, 25))
        def check(batches: Any) -> None:
            connection.query("DELETE FROM merged.t")
            connection.query("DELETE FROM serial.t")
            upstream = Upstream(table)
            for changes in played(case, upstream, batches):
                connection.begin()
                for statement in merged(table, changes, rowwise_max):
                    connection.query(statement)
                connection.commit()
                connection.begin()
                for statement in serial(table, changes):
                    connection.query(statement)
                connection.commit()
                assert content(connection, "merged") == content(connection, "serial")
                with connection.cursor() as cursor:
                    cursor.execute("SELECT COUNT(*) FROM merged.t")
                    assert cursor.fetchone() == (len(upstream.rows),)

        check()


_TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
_BYTES = st.binary(max_size=20)
_COLUMNS: dict[str, tuple[str, st.SearchStrategy[Any]]] = {
    "i": ("BIGINT", st.integers(-(2**63), 2**63 - 1)),
    "u": ("BIGINT UNSIGNED", st.integers(0, 2**64 - 1)),
    "y": ("YEAR", st.sampled_from([0, 1901, 1999, 2155])),
    "d": ("DOUBLE", st.floats(allow_nan=False, allow_infinity=False)),
    "f": ("FLOAT", st.floats(width=32, allow_nan=False, allow_infinity=False)),
    "n": ("DECIMAL(30,10)", st.decimals(-(10**19), 10**19, places=10)),
    "s": ("VARCHAR(40) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin", _TEXT),
    "b": ("VARBINARY(40)", _BYTES),
    "z": ("BINARY(4)", st.binary(max_size=4)),
    "t": (
        "DATETIME(6)",
        st.sampled_from(["2022-04-27 04:05:07.000250", "0000-00-00 00:00:00.000000"]),
    ),
    "ts": ("TIMESTAMP", st.sampled_from(["2022-04-27 04:05:07", "0000-00-00 00:00:00"])),
    "da": ("DATE", st.sampled_from(["2022-04-27", "2021-12-31", "0000-00-00", "9999-12-31"])),
    "ti": ("TIME(3)", st.sampled_from(["-838:59:59.000", "00:00:00.001", "12:30:00.000"])),
    "bi": ("BIT(64)", st.integers(0, 2**64 - 1)),
    "e": ("ENUM('x','it''s','z')", st.sampled_from(["x", "it's", "z"])),
    "se": ("SET('p','q''q','r')", st.sampled_from(["", "p", "p,q'q", "p,q'q,r"])),
    "j": ("JSON", st.sampled_from(['{"a": [1, "it\'s \\\\ \\"q\\""]}', "[]", "1.5", "null"])),
}


@pytest.mark.main_case("mariadb-columns")
@of_each(0, 1000)
def test_every_value_of_every_type_arrives(
    request: pytest.FixtureRequest, server_name: str, rowwise_max: int
) -> None:
    server: SqlServer = request.getfixturevalue(server_name)
    names = list(_COLUMNS)
    columns = ", ".join(f"{name} {_COLUMNS[name][0]} NULL" for name in names)
    sql = f"CREATE TABLE t (id INT PRIMARY KEY, {columns})"
    table = table_of(sql)
    codec = Upstream(table).codec
    create(server, sql, "merged")
    row = st.tuples(*[st.none() | _COLUMNS[name][1] for name in names])

    @settings(max_examples=25, deadline=None, database=None)
    @given(rows=st.lists(row, min_size=1, max_size=20))
    def check(rows: list[tuple[Any, ...]]) -> None:
        connection.query("DELETE FROM merged.t")
        full = [(i, *row) for i, row in enumerate(rows)]
        changes = [(MutationType.INSERT, codec.encode_insert(row)) for row in full]
        for statement in merged(table, changes, rowwise_max):
            connection.query(statement)
        for expected, stored in zip(full, stored_rows(connection, names), strict=True):
            # Written values and what the codec says about them are the same thing by now.
            decoded = codec.decode_insert(codec.encode_insert(expected))
            wanted = dict(zip(["id", *names], padded(table, decoded), strict=True))
            if wanted["d"] == 0 and not has_negative_zero:
                wanted["d"] = 0.0
            assert_same(wanted, stored)

    with closing(server.connect(conv={})) as connection:
        plain(connection)
        has_negative_zero = keeps_negative_zero(connection)
        check()


@of_each(0, 1000)
def test_dates_that_no_calendar_has_arrive_as_they_are(
    request: pytest.FixtureRequest,
    server_name: str,
    rowwise_max: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    server: SqlServer = request.getfixturevalue(server_name)
    sql = "CREATE TABLE t (id INT PRIMARY KEY, d DATE, t DATETIME(3), KEY (d))"
    table = table_of(sql)
    codec = Upstream(table).codec
    create(server, sql, "merged")
    old, new = (1, "2020-02-31", "2021-04-31 10:00:00.125"), (1, "2021-09-31", None)
    with monkeypatch.context() as lax:
        # As a source brings them from a server whose sql_mode has ALLOW_INVALID_DATES.
        lax.setattr(times, "checked", lambda fields: fields)
        inserted = [(INSERT, codec.encode_insert(row)) for row in (old, (2, *old[1:]))]
        updated = [(UPDATE, codec.encode_update(old, new))]
        gone = [(DELETE, codec.encode_delete((2, *old[1:])))]
    with closing(server.connect(conv={})) as connection:
        plain(connection)
        found = []
        for changes in (inserted, updated, gone):
            for statement in merged(table, changes, rowwise_max):
                connection.query(statement)
            found.append([tuple(row.values()) for row in stored_rows(connection, ["d", "t"])])
    first, second = ("1", *old[1:]), ("2", *old[1:])
    assert found == [[first, second], [("1", *new[1:]), second], [("1", *new[1:])]]


def stored_rows(connection: Any, names: list[str]) -> list[dict[str, Any]]:
    special = {"f": "CAST(f AS DOUBLE)", "bi": "CAST(bi AS UNSIGNED)"}
    asked = [special.get(name, f"`{name}`") for name in ("id", *names)]
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT {', '.join(asked)} FROM merged.t ORDER BY id")
        return [dict(zip(["id", *names], row, strict=True)) for row in cursor.fetchall()]


def keeps_negative_zero(connection: Any) -> bool:
    """Return whether a DOUBLE keeps it; a MariaDB 10.11.19 stores 0."""
    connection.query("INSERT INTO merged.t (id, d) VALUES (0, -0e0)")
    with connection.cursor() as cursor:
        cursor.execute("SELECT ATAN2(d, -1) < 0 FROM merged.t")
        return bool(int(cursor.fetchone()[0]))


def assert_same(expected: dict[str, Any], stored: dict[str, Any]) -> None:
    for name, value in expected.items():
        text = stored[name]
        if value is None:
            assert text is None, name
        elif name in ("d", "f"):
            assert float(text) == value, name
            assert name == "f" or math.copysign(1, float(text)) == math.copysign(1, value)
        elif name == "n":
            assert Decimal(text) == value, name
        elif isinstance(value, bytes):
            assert (text if isinstance(text, bytes) else text.encode()) == value, name
        elif name == "y":
            assert int(text) == value
        else:
            assert text == str(value), name


def test_rows_above_a_statement_s_size_get_statements_of_their_own(mariadb: MariadbServer) -> None:
    sql = "CREATE TABLE t (id INT PRIMARY KEY, v LONGTEXT)"
    table = table_of(sql)
    codec = Upstream(table).codec
    create(mariadb, sql, "merged")
    texts = ["x" * size for size in (10, 700_000, 700_000, 2_000_000, 10)]
    changes = [
        (MutationType.INSERT, codec.encode_insert((i, text))) for i, text in enumerate(texts)
    ]
    sink = open_table_sink(mariadb.url, cluster_id=CLUSTER)
    with closing(sink):
        sink.load_checkpoint()
        sink.apply(merged(table, changes, rowwise_max=0), Checkpoint(1, 1))
    lengths = mariadb.query("SELECT LENGTH(v) FROM merged.t ORDER BY id")
    assert lengths == [(len(text),) for text in texts]


def test_a_statement_above_the_server_s_limit_stops_with_a_hint(mariadb: MariadbServer) -> None:
    with closing(open_table_sink(mariadb.url, cluster_id=CLUSTER)) as sink:
        sink.load_checkpoint()
        with pytest.raises(NeedsOperator, match="max_allowed_packet"):
            sink.apply([b"SELECT '" + b"x" * (17 << 20) + b"'"], Checkpoint(1, 1))


# --- outages -------------------------------------------------------------------------------


@pytest.fixture
def sink(mariadb: MariadbServer) -> Iterator[TableSink]:
    create(mariadb, "CREATE TABLE t (id INT)", "shop")
    with closing(open_table_sink(mariadb.url, cluster_id=CLUSTER, retry_s_max=30)) as made:
        made.load_checkpoint()
        yield made


def row(i: int) -> list[bytes]:
    return [b"INSERT INTO shop.t VALUES (%d)" % i]


def ids(server: MariadbServer) -> list[int]:
    return [i for (i,) in server.query("SELECT id FROM shop.t ORDER BY id")]


@pytest.mark.thorough
def test_a_killed_and_restarted_downstream_gets_every_batch_once(
    mariadb: MariadbServer, sink: TableSink, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.ERROR)
    stop = threading.Event()
    applied: list[int] = []

    def work() -> None:
        for i in itertools.count(1):
            if stop.is_set():
                return
            sink.apply(row(i), Checkpoint(i, 1))
            applied.append(i)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        for how in (mariadb.kill, mariadb.stop, mariadb.kill, mariadb.kill):
            seen = len(applied)
            deadline = time.monotonic() + 20
            while len(applied) < seen + 20 and time.monotonic() < deadline:
                time.sleep(0.005)
            how()
            mariadb.start()
    finally:
        stop.set()
        thread.join(40)
    assert len(applied) >= 80
    assert ids(mariadb) == applied


@pytest.mark.parametrize("happens", [True, False], ids=["committed", "lost"])
def test_a_commit_without_an_answer_is_neither_repeated_nor_forgotten(
    mariadb: MariadbServer, sink: TableSink, happens: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit = pymysql.connections.Connection.commit
    broken: list[bool] = []

    def breaks(connection: Any) -> None:
        if broken:
            commit(connection)
            return
        broken.append(True)
        if happens:
            commit(connection)
        raise pymysql.err.OperationalError(2013, "Lost connection to server during query")

    monkeypatch.setattr(pymysql.connections.Connection, "commit", breaks)
    sink.apply(row(1), Checkpoint(1, 1))
    sink.apply(row(2), Checkpoint(2, 1))
    assert broken == [True]
    assert ids(mariadb) == [1, 2]


def test_an_abandoned_batch_may_be_given_again(
    mariadb: MariadbServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    create(mariadb, "CREATE TABLE t (id INT)", "shop")
    commit = pymysql.connections.Connection.commit

    def breaks(connection: Any) -> None:
        commit(connection)
        raise pymysql.err.OperationalError(2013, "Lost connection to server during query")

    with closing(open_table_sink(mariadb.url, cluster_id=CLUSTER, retry_s_max=0)) as impatient:
        impatient.load_checkpoint()
        with monkeypatch.context() as patched:
            patched.setattr(pymysql.connections.Connection, "commit", breaks)
            with pytest.raises(Retryable):
                impatient.apply(row(1), Checkpoint(1, 1))
        impatient.apply(row(1), Checkpoint(1, 1))
    assert ids(mariadb) == [1]


def test_a_ddl_without_an_answer_is_done_once(
    mariadb: MariadbServer, sink: TableSink, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An index without a name of its own would silently be made twice."""
    sql = "ALTER TABLE t ADD INDEX (id)"
    catalog = catalog_of("CREATE DATABASE shop", "CREATE TABLE t (id INT)")
    (job,) = plan_ddl(sql, "shop", catalog, lambda: 99)
    assert isinstance(sink, MysqlSink)
    execute = sink._execute_ddl
    broken: list[bool] = []

    def breaks(connection: Any, change: Any) -> None:
        execute(connection, change)
        if not broken:
            broken.append(True)
            raise pymysql.err.OperationalError(2013, "Lost connection to server during query")

    monkeypatch.setattr(sink, "_execute_ddl", breaks)
    sink.run_ddl(catalog.apply(job), Checkpoint(5, 2), maybe_done=False)
    assert broken == [True]
    names = mariadb.query(
        "SELECT index_name FROM information_schema.statistics WHERE table_schema = 'shop'"
    )
    assert names == [("id",)]


def test_a_lock_that_another_client_holds_is_waited_for(
    mariadb: MariadbServer, sink: TableSink
) -> None:
    sink.save_checkpoint(Checkpoint(1, 1))
    with closing(mariadb.connect(autocommit=False)) as other:
        other.query("SELECT * FROM tidb_binlog.checkpoint FOR UPDATE")
        timer = threading.Timer(0.5, other.rollback)
        timer.start()
        sink.apply(row(1), Checkpoint(2, 1))
        timer.join()
    assert ids(mariadb) == [1]


def test_a_downstream_that_stays_away_is_reported_as_retryable(mariadb: MariadbServer) -> None:
    create(mariadb, "CREATE TABLE t (id INT)", "shop")
    with closing(open_table_sink(mariadb.url, cluster_id=CLUSTER, retry_s_max=0.3)) as impatient:
        impatient.load_checkpoint()
        mariadb.stop()
        with pytest.raises(Retryable, match="for 0 s"):
            impatient.apply(row(1), Checkpoint(1, 1))
        mariadb.start()
        impatient.apply(row(1), Checkpoint(1, 1))
    assert ids(mariadb) == [1]


def test_a_wrong_password_is_not_retried(mariadb: MariadbServer) -> None:
    url = mariadb.url.replace("penstock:", "penstock:x")
    with closing(open_table_sink(url, cluster_id=CLUSTER)) as refused:
        with pytest.raises(NeedsOperator, match="grants") as caught:
            refused.load_checkpoint()
        assert "#t" not in str(caught.value)


def test_rights_that_a_mariadb_grants_to_public_count(mariadb: MariadbServer) -> None:
    rows = "SELECT, INSERT, UPDATE, DELETE"
    account = "'few'@'127.0.0.1'"
    create(mariadb, "CREATE TABLE t (id INT)", "shop")
    with mariadb.connect() as connection, connection.cursor() as cursor:
        cursor.execute(f"CREATE USER {account} IDENTIFIED BY 'x'")
        cursor.execute(f"GRANT ALL ON tidb_binlog.* TO {account}")
        url = f"mysql://few:x@127.0.0.1:{mariadb.port}/"
        try:
            with (
                closing(open_table_sink(url, cluster_id=CLUSTER)) as sink,
                pytest.raises(NeedsOperator, match=f"no right to {rows}"),
            ):
                sink.load_checkpoint()
            cursor.execute(f"GRANT {rows} ON shop.* TO PUBLIC")
            with closing(open_table_sink(url, cluster_id=CLUSTER)) as sink:
                assert sink.load_checkpoint() is None
        finally:
            cursor.execute(f"DROP USER {account}")
            cursor.execute("REVOKE ALL ON shop.* FROM PUBLIC")
