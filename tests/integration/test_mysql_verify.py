"""`penstock verify` on two real servers: what differs is named, and repaired when asked for."""

import io
import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from penstock.local.sql_server import SqlServer
from pumpclient.mysql.load.tables import Range, SourceTable
from pumpclient.mysql.protocol.server import ServerAddress
from pumpclient.mysql.verify import __main__ as command
from pumpclient.mysql.verify.sides import MysqlSide
from tests.kit.mysql import load_process
from tests.kit.servers.fix_mariadb import MariadbServer
from tests.kit.servers.fix_source import SHARDS_AS_ONE

pytestmark = pytest.mark.mariadb
DAMAGE = (
    "UPDATE shop.many SET c = 'flipped' WHERE id = 300",
    "DELETE FROM shop.many WHERE id IN (3, 18000)",
    "INSERT INTO shop.many VALUES (4, 4, 'x', 'y')",
    "UPDATE shop.pair SET v = 7, b = 100000 WHERE a = 'k5' AND b = 5",
    "UPDATE shop.types SET f = 0.2, vb = 'a', ts = '2026-11-21 08:00:00.124', po = POINT(1, 2)"
    " WHERE id = 1",
    "UPDATE shop.types SET tx = NULL WHERE id = 18446744073709551615",
    "DELETE FROM shop.loose WHERE a = 3 LIMIT 1",
    "DROP TABLE shop.empty",
)


ROUTED = f"""
    source-id = "db-1"
    shard-mode = "optimistic"
    [filter]
    ignore-tables = [{{ db-name = "shop_0", tbl-name = "hidden" }}]
{SHARDS_AS_ONE}"""
ORDERS = "(id INT PRIMARY KEY, v VARCHAR(20), n INT)"


@pytest.fixture
def source(mariadb_binlog: MariadbServer) -> MariadbServer:
    mariadb_binlog.drop_user_databases()
    return mariadb_binlog


def verify(up: SqlServer, down: SqlServer, *more: str) -> int:
    urls = ["--upstream", up.url, "--downstream", down.url]
    return command.main([*urls, "--rows-per-chunk", "1000", "--wait-s", "0", *more])


@pytest.mark.fault(
    "the downstream has flipped, missing and extra rows, and lacks a table",
    "each is named; repaired where rows have a key",
    cases="10",
)
def test_flipped_missing_and_extra_rows_are_named_and_repaired(
    source: MariadbServer,
    mariadb: MariadbServer,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    source.run(*load_process.statements(6_000))
    mariadb.run(*load_process.statements(6_000))
    mariadb.run(
        "CREATE DATABASE tidb_binlog",
        "CREATE TABLE tidb_binlog.checkpoint (clusterID BIGINT PRIMARY KEY, checkPoint TEXT)",
        f"INSERT INTO tidb_binlog.checkpoint VALUES (1, '{json.dumps({'commitTS': 4711})}')",
    )  # fmt: skip
    assert verify(source, mariadb) == 0
    out = capsys.readouterr().out
    assert out.startswith("9 tables, ")
    assert out.endswith(" chunks at commit_ts 4711: equal\n")
    mariadb.run("SET time_zone = '+00:00'", *DAMAGE)
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
        "shop.types (1): changed in f, ts, vb, po",
        "shop.types (18446744073709551615): changed in tx",
    ]
    assert lines[-1].endswith("10 differences")
    assert verify(source, mariadb, "-o", "json") == 1
    report = json.loads(capsys.readouterr().out)
    assert (report["is_equal"], report["different"], report["commit_ts"]) == (False, 10, 4711)
    assert {"table": "shop.pair", "kind": "extra", "key": ["k5", 100000], "columns": []} in report[
        "differences"
    ]
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
    assert "no table of the upstream is called nothing" in capsys.readouterr().err
    as_sqlite(source, tmp_path / "d.db", capsys)


@pytest.mark.thorough
def test_two_mysql_servers_are_compared_by_checksums(
    mysql: SqlServer, capsys: pytest.CaptureFixture[str]
) -> None:
    mysql.run(
        "CREATE DATABASE shop",
        "CREATE TABLE shop.t (id INT PRIMARY KEY, v VARCHAR(20), f FLOAT, b BLOB, j JSON)",
        "INSERT INTO shop.t VALUES (1, 'é ', 0.1, 'x', '[1]'), (2, NULL, NULL, NULL, NULL)",
        "CREATE TABLE shop.u LIKE shop.t",
        "INSERT INTO shop.u SELECT * FROM shop.t",
    )
    assert verify(mysql, mysql) == 0
    assert capsys.readouterr().out.startswith("2 tables, ")
    mysql.run("UPDATE shop.u SET v = 'é' WHERE id = 1")
    assert checksum(mysql, "t") == checksum(mysql, "t") != checksum(mysql, "u")


def checksum(server: SqlServer, table: str) -> tuple[object, ...]:
    side = MysqlSide(ServerAddress(server.host, server.port, server.user, server.password))
    try:
        found = SourceTable("shop", table, "InnoDB", 0, ("id",), ("int",))
        return side.checksum(found, side.columns(found), Range())
    finally:
        side.close()


def as_sqlite(source: MariadbServer, path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Compare with an SQLite file: equal, then with a row that differs."""
    with closing(sqlite3.connect(path)) as database:
        database.execute("CREATE TABLE `shop.pair` (a TEXT, b INT, v INT)")
        database.executemany(
            "INSERT INTO `shop.pair` VALUES (?, ?, ?)", source.query("SELECT * FROM shop.pair")
        )
        database.commit()
        urls = ["--upstream", source.url, "--downstream", f"sqlite:///{path}", "--wait-s", "0"]
        assert command.main([*urls, "--tables", "shop.pair"]) == 0
        database.execute("UPDATE `shop.pair` SET v = 1 WHERE b = 17")
        database.commit()
        database.execute("CREATE TABLE `shop.own` (a TEXT)")
    capsys.readouterr()
    assert command.main([*urls, "--tables", "shop.pair", "shop.o*"]) == 1
    printed = capsys.readouterr()
    assert "shop.pair ('k4', 17): changed in v\n" in printed.out
    assert "note: shop.own: table only downstream\n" in printed.err


def test_routed_and_merged_tables_are_compared_under_their_names_and_what_is_more_is_noted(
    source: MariadbServer,
    mariadb: MariadbServer,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    both = "SELECT seq + {}, CONCAT('v', seq), seq % 5 FROM seq_1_to_2000"
    source.run(
        "CREATE DATABASE shop_0", "CREATE DATABASE shop_1",
        f"CREATE TABLE shop_0.orders_1 {ORDERS}", f"CREATE TABLE shop_1.orders_2 {ORDERS}",
        "CREATE TABLE shop_0.plain (id INT)", "INSERT INTO shop_0.plain VALUES (1), (1)",
        "CREATE TABLE shop_0._plain_gho (id INT)", "CREATE TABLE shop_0.hidden (id INT)",
        "USE shop_0", f"INSERT INTO shop_0.orders_1 {both.format(0)}",
        f"INSERT INTO shop_1.orders_2 {both.format(1000)} WHERE seq > 1000",
    )  # fmt: skip
    mariadb.run(
        "CREATE DATABASE shop", "USE shop", f"CREATE TABLE orders {ORDERS}",
        "CREATE TABLE plain (id INT)", "INSERT INTO plain VALUES (1), (1)",
        f"INSERT INTO orders {both.format(0)}",
        f"INSERT INTO orders {both.format(1000)} WHERE seq > 1000",
        "INSERT INTO orders VALUES (-5, 'a third server', 1)", "CREATE TABLE late (id INT)",
        "ALTER TABLE orders ADD COLUMN gone INT DEFAULT 3",
    )  # fmt: skip
    config = tmp_path / "source.toml"
    config.write_text(ROUTED)
    options = ["--source-config", str(config)]
    assert verify(source, mariadb, *options) == 0
    out = capsys.readouterr()
    assert out.out.startswith("3 tables, ")
    assert "note: shop.late: table only downstream\n" in out.err
    assert "note: shop_0.orders_1 -> shop.orders: column gone only downstream\n" in out.err
    assert "3 tables, or tables' columns, only downstream" in out.out
    assert verify(source, mariadb, *options, "--strict", "--tables", "shop*.[lp]*") == 1
    assert "shop.late: table only downstream\n" in capsys.readouterr().out
    mariadb.run(
        "UPDATE shop.orders SET v = 'flipped' WHERE id = 7",
        "DELETE FROM shop.orders WHERE id = 2003",
    )
    repair = [*options, "--repair", "--yes"]
    assert verify(source, mariadb, *repair) == 1
    out = capsys.readouterr()
    assert "shop_0.orders_1 -> shop.orders (7): changed in v\n" in out.out
    assert "shop_1.orders_2 -> shop.orders (2003): missing\n" in out.out
    assert "columns that only the downstream has: not repaired" in out.err
    mariadb.run("ALTER TABLE shop.orders DROP COLUMN gone")
    assert verify(source, mariadb, *repair) == 0
    assert len(mariadb.query("SELECT id FROM shop.orders WHERE id IN (-5, 7, 2003)")) == 3
    routes = ["--route", "shop_*.orders_*=shop.orders", "--route", "shop_*=shop"]
    assert verify(source, mariadb, *routes, "--tables", "shop_?.[op]*") == 0
    capsys.readouterr()
    for wrong, why in (
        ([*routes, *options], "given twice"),
        (["--route", "shop"], "no route"),
        (["--source-config", str(tmp_path / "none")], "no file"),
    ):
        assert verify(source, mariadb, *wrong) == 2
        assert why in capsys.readouterr().err


def test_keys_that_the_sides_order_otherwise_are_no_difference(
    source: MariadbServer, mariadb: MariadbServer, capsys: pytest.CaptureFixture[str]
) -> None:
    for server, collation in ((source, "utf8mb4_general_ci"), (mariadb, "utf8mb4_bin")):
        server.run(
            "CREATE DATABASE shop",
            f"CREATE TABLE shop.t (k VARCHAR(20) COLLATE {collation} PRIMARY KEY, v INT)",
            "INSERT INTO shop.t SELECT CONCAT(IF(seq % 2, 'k', 'K'), LPAD(seq, 6, '0')), seq"
            " FROM shop.seq_1_to_4000",
            "ANALYZE TABLE shop.t",
        )
    assert verify(source, mariadb) == 0, capsys.readouterr().out
    mariadb.run("UPDATE shop.t SET v = 0 WHERE k = 'K000100'")
    assert verify(source, mariadb) == 1
    assert "K000100" in capsys.readouterr().out


def test_the_current_rows_of_versioned_tables_are_compared_with_plain_ones(
    source: MariadbServer, mariadb: MariadbServer, capsys: pytest.CaptureFixture[str]
) -> None:
    source.run(
        "CREATE DATABASE shop",
        "CREATE TABLE shop.a (id INT PRIMARY KEY, v INT) WITH SYSTEM VERSIONING",
        "CREATE TABLE shop.b (id INT PRIMARY KEY, s TIMESTAMP(6) AS ROW START,"
        " e TIMESTAMP(6) AS ROW END, v INT, PERIOD FOR SYSTEM_TIME (s, e)) WITH SYSTEM VERSIONING",
    )
    mariadb.run(
        "CREATE DATABASE shop",
        *(f"CREATE TABLE shop.{name} (id INT PRIMARY KEY, v INT)" for name in "ab"),
    )
    for name in "ab":
        insert = f"INSERT INTO shop.{name} (id, v) SELECT seq, 1 FROM shop.seq_1_to_3000"
        source.run(insert, f"UPDATE shop.{name} SET v = 2", f"DELETE FROM shop.{name} WHERE id > 9")
        mariadb.run(f"INSERT INTO shop.{name} SELECT seq, 2 FROM shop.seq_1_to_9")
    assert verify(source, mariadb) == 0
    assert capsys.readouterr().out.startswith("2 tables, ")
    mariadb.run("UPDATE shop.a SET v = 1 WHERE id = 2", "DELETE FROM shop.b WHERE id = 4")
    assert verify(source, mariadb) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[:-1] == ["shop.a (2): changed in v", "shop.b (4): missing"]
    assert verify(source, mariadb, "--repair", "--yes") == 0
    assert verify(source, mariadb) == 0
