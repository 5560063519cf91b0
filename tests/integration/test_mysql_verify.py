"""`penstock verify` on two real servers: what differs is named, and repaired when asked for."""

from __future__ import annotations

import io
import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from pumpclient.mysql.verify import command
from tests.kit import mysql_load
from tests.kit.binlog_server import BinlogServer
from tests.kit.fix_mariadb import MariadbServer

pytestmark = pytest.mark.mariadb
DAMAGE = (
    "UPDATE shop.many SET c = 'flipped' WHERE id = 300",
    "DELETE FROM shop.many WHERE id IN (3, 18000)",
    "INSERT INTO shop.many VALUES (4, 4, 'x', 'y')",
    "UPDATE shop.pair SET v = 7, b = 100000 WHERE a = 'k5' AND b = 5",
    "UPDATE shop.types SET f = 0.2, vb = 'a', ts = '2026-11-21 08:00:00.124' WHERE id = 1",
    "UPDATE shop.types SET tx = NULL WHERE id = 18446744073709551615",
    "DELETE FROM shop.loose WHERE a = 3 LIMIT 1",
    "DROP TABLE shop.empty",
)


@pytest.fixture
def source(tmp_path: Path) -> Iterator[BinlogServer]:
    server = BinlogServer(tmp_path / "source")
    server.install()
    server.start()
    yield server
    server.stop()


def run(server: MariadbServer, *statements: str) -> None:
    with server.connect() as connection, connection.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)


def verify(up: MariadbServer, down: MariadbServer, *more: str) -> int:
    urls = ["--upstream", up.url, "--downstream", down.url]
    return command.main(["verify", *urls, "--rows-per-chunk", "1000", "--wait-s", "0", *more])


def test_flipped_missing_and_extra_rows_are_named_and_repaired(
    source: BinlogServer,
    mariadb: MariadbServer,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    source.run(*mysql_load.statements(6_000))
    run(mariadb, *mysql_load.statements(6_000))
    run(
        mariadb, "CREATE DATABASE tidb_binlog",
        "CREATE TABLE tidb_binlog.checkpoint (clusterID BIGINT PRIMARY KEY, checkPoint TEXT)",
        f"INSERT INTO tidb_binlog.checkpoint VALUES (1, '{json.dumps({'commitTS': 4711})}')",
    )  # fmt: skip
    assert verify(source, mariadb) == 0
    out = capsys.readouterr().out
    assert out.startswith("8 tables, ")
    assert out.endswith(" chunks at commit_ts 4711: equal\n")
    run(mariadb, "SET time_zone = '+00:00'", *DAMAGE)
    assert verify(source, mariadb) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[:-1] == [
        "shop.empty ('id'): no table",
        "shop.loose (3, 'same', 100): missing",
        "shop.many (3): missing",
        "shop.many (300): changed in c",
        "shop.many (4): extra",
        "shop.many (18000): missing",
        "shop.pair ('k5', 5): missing",
        "shop.pair ('k5', 100000): extra",
        "shop.types (1): changed in f, ts, vb",
        "shop.types (18446744073709551615): changed in tx",
    ]
    assert lines[-1].endswith("10 differences")
    monkeypatch.setattr("sys.stdin", io.StringIO("no\n"))
    assert verify(source, mariadb, "--repair") == 2
    assert "nothing was done" in capsys.readouterr().err
    assert verify(source, mariadb, "--tables", "shop.many", "--repair", "--yes") == 0
    assert capsys.readouterr().out.endswith("4 differences, 4 repaired\n")
    assert verify(source, mariadb, "--tables", "shop.[pt]*", "--repair", "--yes") == 0
    assert verify(source, mariadb, "--tables", "shop.loose", "--repair", "--yes") == 1
    assert "no key that names its rows" in capsys.readouterr().err
    assert verify(source, mariadb, "--tables", "shop.many", "shop.pair", "shop.types") == 0
    assert verify(source, mariadb, "--tables", "nothing.*") == 2
    assert "no table is called" in capsys.readouterr().err
    as_sqlite(source, tmp_path / "d.db", capsys)


def as_sqlite(source: BinlogServer, path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Compare with an SQLite file: equal, then with a row that differs."""
    with closing(sqlite3.connect(path)) as database:
        database.execute("CREATE TABLE `shop.pair` (a TEXT, b INT, v INT)")
        database.executemany(
            "INSERT INTO `shop.pair` VALUES (?, ?, ?)", source.query("SELECT * FROM shop.pair")
        )
        database.commit()
        urls = ["--upstream", source.url, "--downstream", f"sqlite:///{path}", "--wait-s", "0"]
        assert command.main(["verify", *urls, "--tables", "shop.pair"]) == 0
        database.execute("UPDATE `shop.pair` SET v = 1 WHERE b = 17")
        database.commit()
    capsys.readouterr()
    assert command.main(["verify", *urls, "--tables", "shop.pair"]) == 1
    assert "shop.pair ('k4', 17): changed in v\n" in capsys.readouterr().out
