"""Debezium's own JDBC sink, in Kafka Connect, rebuilds a server's tables from our messages."""

import itertools
import random
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from drainer.sinks.checkpoint import Checkpoint
from drainer.task.events.event_unit import stream_encoder_of
from drainer.task.events.messages import Messages, RowEvent
from penstock.ddl import Catalog, plan_ddl
from penstock.local.kafka import KafkaServer
from penstock.local.sql_server import SqlServer
from pumpclient import PumpClient
from pumpclient.mysql.verify import command as verify
from tests.kit.opened_sinks import open_event_sink
from tests.kit.servers.binlog_server import BinlogServer
from tests.kit.servers.fix_mariadb import MariadbServer
from tests.kit.servers.fix_replication import Replication
from tests.kit.servers.fix_source import SourceRig, rows_of
from tests.kit.servers.kafka_connect import KafkaConnect, debezium_sink
from tests.kit.wait import eventually, present

pytestmark = [pytest.mark.slow, pytest.mark.spark, pytest.mark.mariadb]

SEED = 20261123
WITHIN_S = 120
ITEM = """CREATE TABLE shop.item (
    id BIGINT PRIMARY KEY, tiny TINYINT, small SMALLINT UNSIGNED, medium MEDIUMINT,
    whole INT UNSIGNED, large BIGINT,
    huge BIGINT UNSIGNED, half FLOAT, real8 DOUBLE, price DECIMAL(65,30),
    bought DATE, made DATETIME, touched DATETIME(6), seen TIMESTAMP(3) NULL, at TIME(6), born YEAR,
    code CHAR(10), name VARCHAR(60), story LONGTEXT, raw VARBINARY(300), picture MEDIUMBLOB,
    flag BIT(1), flags BIT(64), size ENUM('S', 'M', 'L'), tags SET('new', 'old', 'red'), more JSON
) DEFAULT CHARSET=utf8mb4"""
LINE = """CREATE TABLE shop.line (
    sale VARCHAR(20), number INT, amount BIGINT UNSIGNED, price DECIMAL(10,2), note VARCHAR(100),
    PRIMARY KEY (sale, number)
) DEFAULT CHARSET=utf8mb4"""
"""The sink creates this one by itself."""
LOWEST = (-128, 0, -(2**23), 0, -(2**63), 0, -1.5, -1.7976931348623157e308,
          "-" + "9" * 35 + "." + "9" * 30, "1000-01-01", "1000-01-01 00:00:00",
          "1000-01-01 00:00:00.000001", "1970-01-01 00:00:01", "00:00:00", 1901,
          "", "", "", b"", b"", 0, 0, "S", "", "null")  # fmt: skip
HIGHEST = (127, 2**16 - 1, 2**23 - 1, 2**32 - 1, 2**63 - 1, 2**64 - 1, 16777216.0, 5e-324,
           "0." + "0" * 29 + "1", "9999-12-31", "9999-12-31 23:59:59",
           "9999-12-31 23:59:59.999999", "2038-01-19 03:14:07.999", "23:59:59.999999", 2155,
           "𝄞" * 10, 'it\'s \\ "x" \n', "𝄞ü" * 20_000, bytes(range(256)), b"\xff" * 70_000, 1,
           2**64 - 1, "L", "new,old,red", '{"a": [1, "ü\'"]}')  # fmt: skip
NOTHING = (None,) * len(LOWEST)


def write(server: SqlServer, sql: str, *rows: tuple[Any, ...]) -> None:
    connection = server.connect(autocommit=False)
    with connection, connection.cursor() as cursor:
        cursor.execute("SET time_zone = '+00:00'")
        for row in rows:
            cursor.execute(sql, row)
        connection.commit()


def item(server: SqlServer, *rows: tuple[Any, ...]) -> None:
    write(server, f"REPLACE INTO shop.item VALUES ({', '.join(['%s'] * len(rows[0]))})", *rows)


def lines(server: SqlServer, chance: random.Random, numbers: range) -> None:
    for number in numbers:
        sale = f"s'{number % 17} ü𝄞"
        write(
            server,
            "INSERT INTO shop.line (sale, number, amount, price, note) VALUES (%s, %s, %s, %s, %s)",
            *((sale, number * 10 + at, chance.randrange(2**64), "12.50", None) for at in range(5)),
        )
        write(server, "UPDATE shop.line SET note = %s WHERE number %% 7 = %s",
              (f"note {number}", chance.randrange(7)))  # fmt: skip
        write(server, "UPDATE shop.line SET number = -number, amount = 0 WHERE number = %s",
              (number * 10 + chance.randrange(5),))  # fmt: skip
        write(server, "DELETE FROM shop.line WHERE number = %s",
              (chance.randrange(number * 10 + 1),))  # fmt: skip


@pytest.fixture
def upstream(tmp_path: Path) -> Iterator[BinlogServer]:
    server = BinlogServer(tmp_path / "upstream")
    server.install()
    server.start()
    yield server
    server.stop()


def test_debeziums_jdbc_sink_rebuilds_the_tables(
    rig: SourceRig,
    upstream: BinlogServer,
    mariadb: MariadbServer,
    kafka: KafkaServer,
    replication: Replication,
    tmp_path: Path,
) -> None:
    chance = random.Random(SEED)
    upstream.run("CREATE DATABASE shop", ITEM, LINE)
    mariadb.run("CREATE DATABASE shop", ITEM)
    rig.begin(upstream)
    sink = f"kafka://{kafka.address}/?format=debezium&schemas=true&prefix=jdbc"
    drainer = replication.drain_into(sink)
    item(upstream, (1, *LOWEST), (2, *HIGHEST), (3, *NOTHING), (4, *HIGHEST))
    item(upstream, (1, *HIGHEST), (2, *NOTHING), (3, *LOWEST))
    upstream.run("DELETE FROM shop.item WHERE id = 4")
    lines(upstream, chance, range(20))
    upstream.run("ALTER TABLE shop.item ADD COLUMN hint VARCHAR(30)")
    upstream.run("ALTER TABLE shop.line ADD COLUMN weight DECIMAL(12,3)")
    item(upstream, (5, *LOWEST, "ü"), (6, *HIGHEST, None))
    write(upstream, "UPDATE shop.line SET weight = number * 0.125")
    lines(upstream, chance, range(20, 25))
    rig.source.catch_up(upstream)
    with PumpClient.connect(replication.url) as client:
        drainer.wait_until(client.session.oracle.get_ts())
    settings = debezium_sink("sink", mariadb, "shop", r"jdbc\.shop\..*")
    connect = KafkaConnect(tmp_path / "connect", kafka, settings, jars="connect")
    try:
        connect.start()
        eventually(lambda: connect.has_failed("sink") or are_equal(upstream, mariadb), WITHIN_S)
        assert not connect.failure("sink")
    finally:
        connect.stop()
    for table in ("shop.item", "shop.line"):
        assert rows_of(mariadb, table) == rows_of(upstream, table)
    urls = ["--upstream", upstream.url, "--downstream", mariadb.url]
    assert verify.main([*urls, "--tables", "shop.*", "--wait-s", "0"]) == 0


def are_equal(upstream: BinlogServer, downstream: SqlServer) -> bool:
    there = {name for (name,) in downstream.query("SHOW TABLES FROM shop")}
    return there == {"item", "line"} and all(
        rows_of(downstream, table) == rows_of(upstream, table)
        for table in ("shop.item", "shop.line")
    )


REFUSED = {
    "time": ("id INT PRIMARY KEY, v TIME(6)", (1, "-00:00:00.000001"),
             "Invalid value for NanoOfDay"),
    "quote": ("id INT PRIMARY KEY, v ENUM('it''s')", (1, "it's"),
              "Could not find table"),
    "keyless": ("v INT", (1,), "record_key"),
}  # fmt: skip
"""What the guide says that this sink stops at: a table's columns, a row, and what it says."""


def test_what_the_sink_cannot_take_stops_it(
    mariadb: MariadbServer, kafka: KafkaServer, tmp_path: Path
) -> None:
    for name, (columns, row, _) in REFUSED.items():
        url = f"kafka://{kafka.address}/?format=debezium&schemas=true&prefix=jdbc-{name}"
        bring(url, name, columns, row)
        mariadb.run(f"CREATE DATABASE `{name}`")
    settings = [debezium_sink(name, mariadb, name, rf"jdbc-{name}\.shop\..*") for name in REFUSED]
    connect = KafkaConnect(tmp_path / "connect", kafka, *settings, jars="connect")
    try:
        connect.start()
        for name, (_, _, said) in REFUSED.items():
            eventually(partial(connect.has_failed, name), WITHIN_S)
            assert said in (connect.failure(name) or "")
    finally:
        connect.stop()


def bring(url: str, name: str, columns: str, row: tuple[Any, ...]) -> None:
    catalog, ids = Catalog(), itertools.count(1)
    for each in ("CREATE DATABASE shop", f"CREATE TABLE `{name}` ({columns})"):
        for job in plan_ddl(each, "shop", catalog, lambda: next(ids)):
            catalog.apply(job)
    table = present(catalog.table("shop", name))
    with closing(open_event_sink(url, cluster_id=7)) as sink:
        sink.load_checkpoint()
        made = stream_encoder_of(sink.encoding).transaction(
            1 << 40, [RowEvent("shop", table, None, row)]
        )
        messages = Messages.of((1 << 40, message) for message in made)
        sink.put([messages], Checkpoint(commit_ts=1 << 40, schema_version=1))
