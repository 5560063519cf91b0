"""Tables of every type and kind of key, and a load as a process that can be killed."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from penstock.failpoints import VARIABLE
from pumpclient import PumpClient
from pumpclient.mysql.load.loader import Load, LoadOptions
from pumpclient.mysql.protocol.server import ServerAddress
from pumpclient.mysql.translate.ddl_pieces import Translator
from tests.kit.servers.binlog_server import AnyBinlogServer, numbers

SOURCE = "db-1"
TYPES = (
    "CREATE TABLE shop.types (id BIGINT UNSIGNED PRIMARY KEY, t TINYINT, tu TINYINT UNSIGNED,"
    " s SMALLINT, m MEDIUMINT UNSIGNED, b BIGINT, f FLOAT, d DOUBLE, n DECIMAL(20,6), y YEAR,"
    " da DATE, dt DATETIME(6), ts TIMESTAMP(3) NULL, ti TIME(2), c CHAR(20), v VARCHAR(300),"
    " l VARCHAR(20) CHARACTER SET latin1, bi BINARY(4), vb VARBINARY(20), tx LONGTEXT, bl BLOB,"
    " e ENUM('a','b''c','d'), se SET('x','y','z'), bt BIT(10), j JSON,"
    " ge GEOMETRY, po POINT, g INT AS (t + 1) STORED, w INT AS (t + 2) VIRTUAL)"
)
TYPED = [
    "1, -128, 255, -32768, 16777215, -9223372036854775808, 0.1, 0.1, -1.5, 1901, '2026-11-21',"
    " '2026-11-21 08:00:00.123456', '2026-11-21 08:00:00.123', '-838:59:59.00', 'abc ', 'dé€😀 ',"
    " 'é', 'ab', 'a\\0b', REPEAT('x', 70000), REPEAT('y', 250), 'b''c', 'x,z', b'1010101010',"
    " '{\"a\": [1, null]}', ST_GeomFromText('LINESTRING(0 0, 1 1)', 4326), POINT(1, -2.5)",
    "18446744073709551615, 127, 0, 0, 0, 9223372036854775807, 3.4e38, -1e308, 12345678901234.5,"
    " 2155, '0000-00-00', '0000-00-00 00:00:00', NULL, '838:59:59', '', '', '', 'abcd', '', '',"
    " REPEAT('z', 251), 'd', '', b'0', '[]', MULTIPOINT(POINT(0, 0), POINT(7, 8)), NULL",
    "2" + ", NULL" * 26,
]
COLUMNS = (
    "id, t, tu, s, m, b, f, d, n, y, da, dt, ts, ti, c, v, l, bi, vb, tx, bl, e, se, bt, j, ge, po"
)
TABLES = {
    "types": TYPES,
    "many": "CREATE TABLE shop.many (id INT PRIMARY KEY, k INT, c CHAR(120), pad CHAR(60))",
    "pair": "CREATE TABLE shop.pair (a VARCHAR(20), b INT, v INT, PRIMARY KEY (a, b))",
    "loose": "CREATE TABLE shop.loose (a INT, b VARCHAR(10))",
    "one": "CREATE TABLE shop.`o%n``e` (`i%d` DATE PRIMARY KEY)",
    "empty": "CREATE TABLE shop.empty (id INT PRIMARY KEY)",
    "part": "CREATE TABLE shop.part (a VARCHAR(50), b INT, PRIMARY KEY (a(3)))",
    "invalid": "CREATE TABLE shop.invalid (d DATE PRIMARY KEY, t DATETIME(2))",
    "choice": "CREATE TABLE shop.choice (e ENUM('z','y','x') PRIMARY KEY, n DECIMAL(5,2))",
}
MANY = 20_000


def statements(many: int = MANY) -> list[str]:
    pads = "'ab-cd', REPEAT('p', 50)"
    return [
        "SET sql_mode = 'ALLOW_INVALID_DATES'", "SET time_zone = '+00:00'",
        "CREATE DATABASE shop", "USE shop",
        *TABLES.values(),
        *(f"INSERT INTO shop.types ({COLUMNS}) VALUES ({row})" for row in TYPED),
        f"INSERT INTO shop.many SELECT seq * 3, seq % 7, {pads} FROM {numbers(many)}",
        "INSERT INTO shop.pair SELECT CONCAT('k', seq % 13), seq, -seq FROM " + numbers(3000),
        "INSERT INTO shop.loose SELECT seq % 10, 'same' FROM " + numbers(1000),
        "INSERT INTO shop.`o%n``e` VALUES ('2026-01-01'), ('2026-01-02')",
        "INSERT INTO shop.part VALUES ('abcdef', 1), ('abd', 2)",
        "INSERT INTO shop.invalid VALUES ('2024-02-30', '2023-02-29 10:00:00.5')",
        "INSERT INTO shop.invalid VALUES ('2024-06-31', NULL)",
        "INSERT INTO shop.invalid SELECT DATE_ADD('2024-03-01', INTERVAL seq HOUR), NULL"
        f" FROM {numbers(4000)} WHERE seq % 24 = 0",
        "INSERT INTO shop.choice VALUES ('x', 1.25), ('z', 2.5)",
        "ANALYZE TABLE shop.many, shop.pair, shop.invalid",
    ]  # fmt: skip


def options(**changes: Any) -> LoadOptions:
    small: dict[str, Any] = {"readers": 3, "rows_per_chunk": 1000, "transaction_bytes": 32 << 10}
    return LoadOptions(translator=Translator(), **{**small, "retry_s": 0.1, **changes})


def spawn(
    server: AnyBinlogServer, etcd_url: str, state: Path, failpoints: str = "", **changes: Any
) -> Any:
    address = {"host": server.host, "port": server.port, "user": server.user}
    address |= {"password": server.password}
    command = [sys.executable, "-m", __name__, json.dumps([address, etcd_url, str(state), changes])]
    return subprocess.Popen(command, env={**os.environ, VARIABLE: failpoints})


def main() -> None:
    address, etcd_url, state, changes = json.loads(sys.argv[1])
    with PumpClient.connect(etcd_url) as client:
        Load(ServerAddress(**address), client, Path(state), options(**changes)).run(SOURCE, 1)


if __name__ == "__main__":
    main()
