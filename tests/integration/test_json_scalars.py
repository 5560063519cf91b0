"""JSON scalars with types that JSON text has not, from a MySQL into a MySQL and a MariaDB."""

from pathlib import Path

import pytest

from penstock.local.sql_server import SqlServer
from tests.kit.fakes.replica import Replica
from tests.kit.servers.binlog_server import MYSQL, AnyBinlogServer
from tests.kit.servers.fix_source import SourceRig

pytestmark = [pytest.mark.mysql, pytest.mark.mariadb, pytest.mark.thorough]

DOCUMENTS = (
    "JSON_OBJECT('a', 1.10, 'b', JSON_ARRAY(1.50, -0.10, 1.5, 1.5e0, 7, CAST(5 AS DECIMAL(9,0))))",
    "JSON_OBJECT('n', CAST('-99999999999999999999999999999999999.123456789012345678901234567890'"
    " AS DECIMAL(65,30)), 'z', CAST(0 AS DECIMAL(30,30)))",
    "CAST(1.10 AS JSON)",
    "CAST(CAST('2020-01-02 03:04:05.000006' AS DATETIME(6)) AS JSON)",
    "JSON_OBJECT('', DATE'2020-01-02', 'x', JSON_OBJECT('a.b \"*/ /*''\\ é😀', TIME'-838:59:59'))",
    "JSON_ARRAY(TIME'12:34:56.5', TIMESTAMP'2020-01-02 03:04:05.678', 'it''s', NULL, 2.00)",
    "JSON_ARRAY(CAST('0000-00-00' AS DATE), CAST(x'00ff' AS BINARY(2)), x'', '2020-01-02')",
    "JSON_OBJECT('plain', JSON_ARRAY(1, 1.0e0, 'text', TRUE))",
)
PATHS = (
    "$", "$.a", "$.b[0]", "$.b[1]", "$.b[2]", "$.b[3]", "$.b[4]", "$.b[5]", "$.n", "$.z", '$.""',
    '$.x."a.b \\"*/ /*\'\'\\\\ é😀"', "$[0]", "$[1]", "$[2]", "$[3]", "$[4]", "$.plain[1]",
)  # fmt: skip
TYPES = ", ".join(f"JSON_TYPE(JSON_EXTRACT(j, '{path}'))" for path in PATHS)
MODE = "SET SESSION sql_mode = 'NO_BACKSLASH_ESCAPES'"
LOADED = "JSON_OBJECT('a', 1.10, 'b', 12345678901234567890.12345, 'c', 1.5e0)"
TIMES = "JSON_OBJECT('At', CAST('2020-01-02 03:04:05' AS DATETIME), 'Day', DATE'2020-01-02')"


def texts(server: SqlServer, table: str) -> list[tuple[object, ...]]:
    return server.query(f"SELECT id, CAST(j AS CHAR CHARACTER SET utf8mb4) FROM {table} ORDER BY 1")


def types(server: SqlServer, table: str) -> list[tuple[object, ...]]:
    found = f"SELECT id, {TYPES} FROM {table} ORDER BY 1"
    return server.query(found, init_command=MODE)


@pytest.mark.parametrize("kind", [MYSQL])
def test_scalars_arrive_with_their_text_and_in_a_mysql_with_their_type(
    source_server: AnyBinlogServer, rig: SourceRig, mysql: SqlServer, mariadb: SqlServer,
    tmp_path: Path,
) -> None:  # fmt: skip
    server = source_server
    rows = ",".join(f"({n}, {document})" for n, document in enumerate(DOCUMENTS))
    many = ",".join(f"({n}, JSON_OBJECT('n', {n}.10))" for n in range(100, 400))
    server.run(
        MODE,
        "CREATE DATABASE shop",
        "CREATE TABLE shop.l (id INT PRIMARY KEY, j JSON)",
        f"INSERT INTO shop.l VALUES (1, {LOADED})",
        "CREATE TABLE shop.m (id INT, j JSON)",
        f"INSERT INTO shop.m VALUES (1, {TIMES}), (1, LOWER({TIMES})), (2, {TIMES}), (3, {LOADED})",
    )
    rig.begin(server)
    server.run(
        MODE,
        "CREATE TABLE shop.t (id INT PRIMARY KEY, j JSON)",
        "CREATE TABLE shop.k (id INT, j JSON)",
        f"INSERT INTO shop.t VALUES {rows},{many}",
        f"INSERT INTO shop.k VALUES {rows}",
        "UPDATE shop.t SET j = JSON_SET(j, '$.n', 2.20) WHERE id = 100",
    )
    rig.source.catch_up(server)
    downstreams = [
        Replica(rig.etcd, rig.etcd_url, rig.pumps, there, tmp_path / name)
        for there, name in ((mysql, "mysql"), (mariadb, "mariadb"))
    ]
    for replica in downstreams:
        replica.follow()
    for table in ("shop.t", "shop.k", "shop.l"):
        wanted = texts(server, table)
        assert wanted
        for replica in downstreams:
            assert texts(replica.server, table) == wanted
        if table != "shop.l":
            assert types(mysql, table) == types(server, table)
    server.run(
        "DELETE FROM shop.k WHERE id <> 1",
        "UPDATE shop.k SET id = 10",
        "DELETE FROM shop.m WHERE id <> 2 AND JSON_EXTRACT(j, '$.day') IS NULL",
        "UPDATE shop.m SET id = id + 5",
    )
    rig.source.catch_up(server)
    for replica in downstreams:
        replica.follow()
        for table in ("shop.k", "shop.m"):
            assert texts(replica.server, table) == texts(server, table)
    assert rig.source.stop() == 0
