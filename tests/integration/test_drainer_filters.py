"""Filters and routes through real Pumps and a real Drainer, into SQLite and MariaDB."""

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from pumpclient import PumpClient
from tests.kit.servers.fix_mariadb import MariadbServer
from tests.kit.servers.fix_replication import Replication

pytestmark = pytest.mark.thorough

SETTINGS = """
source-id = "north"
[filter]
ignore-dbs = ["hidden*"]
[[filter.events]]
schema-pattern = "shop"
table-pattern = "journal"
events = ["delete", "truncate table"]
action = "Ignore"
[[filter.routes]]
schema-pattern = "s_?"
table-pattern = "orders_*"
target-schema = "all_shops"
target-table = "orders"
[[filter.routes]]
schema-pattern = "s_?"
table-pattern = "log_*"
target-schema = "all_shops"
target-table = "log"
extract-schema = { schema-regexp = "s_(.*)", target-column = "shop" }
extract-source = { source-regexp = "(.*)", target-column = "region" }
[[filter.expressions]]
schema = "shop"
table = "item"
insert-value-expr = "price < 0 OR name LIKE 'test%'"
delete-value-expr = "id = 3"
[syncer]
ignore-schemas = "scratch"
"""
Query = Callable[[str, str, str], list[tuple[Any, ...]]]


def prepare(client: PumpClient) -> None:
    for schema in ("shop", "hidden_1", "scratch", "s_1", "s_2"):
        client.execute_ddl(f"CREATE DATABASE {schema}")
    for schema in ("shop", "hidden_1", "scratch"):
        client.execute_ddl(
            f"CREATE TABLE {schema}.item (id INT PRIMARY KEY, name VARCHAR(20), price INT)"
        )
    client.execute_ddl("CREATE TABLE shop.journal (id INT PRIMARY KEY, line VARCHAR(20))")
    for number in (1, 2):
        client.execute_ddl(
            f"CREATE TABLE s_{number}.orders_{number}"
            " (id INT PRIMARY KEY, item INT, KEY of_item (item))"
        )
        client.execute_ddl(f"CREATE TABLE s_{number}.log_{number} (id INT PRIMARY KEY, n INT)")


def add(client: PumpClient, schema: str, table: str, *rows: dict[str, Any]) -> int:
    with client.begin(schema) as txn:
        for row in rows:
            txn.insert(table, row)
    assert txn.commit_ts is not None
    return txn.commit_ts


def remove(client: PumpClient, schema: str, table: str, *rows: dict[str, Any]) -> int:
    with client.begin(schema) as txn:
        for row in rows:
            txn.delete(table, row)
    assert txn.commit_ts is not None
    return txn.commit_ts


def trade(client: PumpClient) -> None:
    """Write rows that pass and rows that do not, and merge two tables while they change."""

    def item(key: int, name: str, price: int) -> dict[str, Any]:
        return {"id": key, "name": name, "price": price}

    items = [item(1, "tea", 5), item(2, "test tea", 5), item(3, "pot", 9), item(4, "debt", -1)]
    for schema in ("shop", "hidden_1", "scratch"):
        add(client, schema, "item", *items)
    remove(client, "shop", "item", items[0], items[2])
    lines = [{"id": 1, "line": "kept"}, {"id": 2, "line": "kept too"}]
    add(client, "shop", "journal", *lines)
    remove(client, "shop", "journal", lines[0])
    client.execute_ddl("TRUNCATE TABLE shop.journal")
    client.execute_ddl("ALTER TABLE hidden_1.item ADD COLUMN more INT")
    add(client, "hidden_1", "item", {**item(9, "x", 1), "more": 1})

    # One key travels between the shards within what may be one batch.
    add(client, "s_1", "orders_1", {"id": 1, "item": 10}, {"id": 7, "item": 70})
    add(client, "s_2", "orders_2", {"id": 2, "item": 20})
    remove(client, "s_1", "orders_1", {"id": 7, "item": 70})
    add(client, "s_2", "orders_2", {"id": 7, "item": 71})
    client.execute_ddl("ALTER TABLE s_1.orders_1 ADD COLUMN note VARCHAR(20)")
    add(client, "s_1", "orders_1", {"id": 3, "item": 30, "note": "one"})
    add(client, "s_2", "orders_2", {"id": 4, "item": 40})
    client.execute_ddl("ALTER TABLE s_2.orders_2 ADD COLUMN note VARCHAR(20)")
    add(client, "s_2", "orders_2", {"id": 5, "item": 50, "note": "two"})
    for number in (1, 2):
        add(client, f"s_{number}", f"log_{number}", {"id": 1, "n": number}, {"id": 2, "n": 0})
    remove(client, "s_1", "log_1", {"id": 2, "n": 0})
    client.execute_ddl("DROP INDEX of_item ON s_1.orders_1")
    client.execute_ddl("DROP INDEX of_item ON s_2.orders_2")


@pytest.fixture(params=[pytest.param("sqlite", marks=pytest.mark.slow), "mariadb"])
def downstream(request: Any, tmp_path: Path) -> tuple[str, Query]:
    """Return the URL of a downstream, and how to ask it for the rows of a table.

    One table is there already: the one that names where its rows came from.
    """
    columns = "(id INT, n INT, shop VARCHAR(9), region VARCHAR(9), PRIMARY KEY (id, shop))"
    if request.param == "sqlite":
        path = tmp_path / "down.db"
        with closing(sqlite3.connect(path)) as made:
            made.execute(f'CREATE TABLE "all_shops.log" {columns}')

        def from_sqlite(schema: str, table: str, columns: str) -> list[tuple[Any, ...]]:
            with closing(sqlite3.connect(path)) as connection:
                sql = f'SELECT {columns} FROM "{schema}.{table}" ORDER BY id'
                return list(connection.execute(sql))

        return f"sqlite:///{path}", from_sqlite
    server: MariadbServer = request.getfixturevalue("mariadb")
    server.query("CREATE DATABASE all_shops")
    server.query(f"CREATE TABLE all_shops.log {columns}")

    def from_mariadb(schema: str, table: str, columns: str) -> list[tuple[Any, ...]]:
        return server.query(f"SELECT {columns} FROM {schema}.{table} ORDER BY id")

    return server.url, from_mariadb


@pytest.mark.mariadb
def test_what_passes_arrives_under_its_name_and_the_checkpoint_passes_what_does_not(
    replication: Replication, downstream: tuple[str, Query], tmp_path: Path
) -> None:
    url, rows = downstream
    (tmp_path / "filters.toml").write_text(SETTINGS)
    for _ in range(2):
        replication.add_pump()
    drainer = replication.drain_into(url, config=tmp_path / "filters.toml")
    with PumpClient.connect(replication.url) as client:
        prepare(client)
        trade(client)
        # The last transaction is filtered wholly: only time moves.
        drainer.wait_until(add(client, "scratch", "item", {"id": 9, "name": "", "price": 0}))
        assert rows("shop", "item", "id, name") == [(3, "pot")]
        assert rows("shop", "journal", "id, line") == [(1, "kept"), (2, "kept too")]
        orders = [(1, 10, None), (2, 20, None), (3, 30, "one"), (4, 40, None), (5, 50, "two")]
        assert rows("all_shops", "orders", "*") == [*orders, (7, 71, None)]
        log = rows("all_shops", "log", "id, shop, n, region")
        assert sorted(log) == [(1, "1", 1, "north"), (1, "2", 2, "north"), (2, "2", 0, "north")]
        for schema, table in (("hidden_1", "item"), ("scratch", "item"), ("s_1", "orders_1")):
            with pytest.raises(Exception, match=r"no such table|doesn't exist|Unknown database"):
                rows(schema, table, "*")

        details = drainer.status().details
        # Two items and a delete in the shop, one line of its journal, five rows in each schema.
        assert (details["rows_left_out"], details["ddls_left_out"]) == ("14", "6")

        # The next run reads the same settings and stops where rows of others would go.
        assert drainer.stop() == 0
        client.execute_ddl("TRUNCATE TABLE s_1.orders_1")
        drainer.spawn()
        drainer.wait_for("would touch all_shops.orders downstream")
        assert drainer.wait() == 2
    assert len(rows("all_shops", "orders", "*")) == 6
