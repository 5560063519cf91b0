"""Generated columns, which some servers leave out of what they log, downstream as upstream."""

from pathlib import Path
from typing import Any

from penstock.local.etcd import EtcdServer
from penstock.local.sql_server import SqlServer
from tests.kit.fakes.replica import Replica
from tests.kit.servers.fix_mariadb import MariadbServer
from tests.kit.servers.fix_source import SourceProcess, rows_of

COLUMNS = "n INT, d DATE, s INT AS (n + 1) STORED, v INT AS (n + 2) VIRTUAL"
TABLES = {
    "shop.keyed": f"(id INT PRIMARY KEY, {COLUMNS})",
    "shop.loose": f"(id INT, {COLUMNS})",
    "shop.lone": f"(id INT PRIMARY KEY, {COLUMNS}, UNIQUE (s), UNIQUE (v))",
}


def test_generated_columns_are_downstream_what_they_are_on_the_server(
    etcd: Any,
    etcd_server: EtcdServer,
    pump_factory: Any,
    followed: SqlServer,
    mariadb: MariadbServer,
    tmp_path: Path,
) -> None:
    url = etcd_server.url
    replica = Replica(etcd, url, [pump_factory(url)], mariadb, tmp_path / "drainer")
    followed.run(
        "CREATE DATABASE shop CHARACTER SET utf8mb4 COLLATE utf8mb4_general_ci",
        "SET SESSION sql_mode = 'ALLOW_INVALID_DATES'",
        *(f"CREATE TABLE {table} {columns}" for table, columns in TABLES.items()),
        *(f"INSERT INTO {table} (id, n, d) VALUES (1, 10, '2024-02-30'), (2, 20, NULL),"
          " (3, 30, '2024-03-01'), (4, 40, NULL)" for table in TABLES),
    )  # fmt: skip
    source = SourceProcess(tmp_path / "source", url, followed).start()
    try:
        source.catch_up(followed)
        replica.follow()
        for table in TABLES:
            # Two rows change their unique values, by way of a third one.
            followed.run(
                "SET SESSION sql_mode = 'ALLOW_INVALID_DATES'", "BEGIN",
                f"UPDATE {table} SET n = 99 WHERE id = 1",
                f"UPDATE {table} SET n = 10 WHERE id = 2",
                f"UPDATE {table} SET n = 20, d = '2023-02-29' WHERE id = 1",
                f"DELETE FROM {table} WHERE id = 3", "COMMIT",
                f"UPDATE {table} SET d = '2024-01-01' WHERE s = 41",
            )  # fmt: skip
        source.catch_up(followed)
    finally:
        assert source.stop() == 0
    replica.follow()
    for table in TABLES:
        assert rows_of(mariadb, table) == rows_of(followed, table)
