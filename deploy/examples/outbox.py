"""A shop whose orders are in its own database and in Penstock, even if processes die at any point.

    pump --resolver-kind sql --resolver-url shop=sqlite:////tmp/shop.db &
    python -m deploy.examples.outbox --database /tmp/shop.db --etcd-urls 127.0.0.1:2379

Every order is one transaction of both. Kill this program at any point and restart it: an order is
in the database and downstream, or in neither. With MySQL use `pymysql.connect(...)`, `%s` for `?`,
and `mysql://user:password@host:port/schema` for the Pumps.
"""

from __future__ import annotations

import argparse
import sqlite3
from collections.abc import Sequence
from pathlib import Path

from pumpclient import PumpClient
from pumpclient.outbox import Outbox

OUTBOX = Outbox("shop")


def open_database(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path)
    # The Pumps rely on the transactions that this database acknowledged: they must be durable.
    connection.execute("PRAGMA synchronous = EXTRA")
    connection.execute("CREATE TABLE IF NOT EXISTS item (id INTEGER PRIMARY KEY, stock INTEGER)")
    connection.execute("CREATE TABLE IF NOT EXISTS orders (id INTEGER PRIMARY KEY, item INTEGER)")
    OUTBOX.create_table(connection)
    return connection


def create_tables(client: PumpClient) -> None:
    for sql in (
        "CREATE DATABASE IF NOT EXISTS shop",
        "CREATE TABLE IF NOT EXISTS shop.item (id BIGINT PRIMARY KEY, stock BIGINT)",
        "CREATE TABLE IF NOT EXISTS shop.orders (id BIGINT PRIMARY KEY, item BIGINT)",
    ):
        client.execute_ddl(sql)


def stock_up(client: PumpClient, connection: sqlite3.Connection, item: int, stock: int) -> None:
    with OUTBOX.transaction(client, connection, "shop") as txn:
        connection.execute("INSERT INTO item VALUES (?, ?)", (item, stock))
        txn.insert("item", {"id": item, "stock": stock})


def order(client: PumpClient, connection: sqlite3.Connection, number: int, item: int) -> None:
    """Sell one item and record the order; raise `ValueError` if it is sold out."""
    with OUTBOX.transaction(client, connection, "shop") as txn:
        # The change first: it takes the lock under which the value before is read.
        connection.execute("UPDATE item SET stock = stock - 1 WHERE id = ?", (item,))
        (left,) = connection.execute("SELECT stock FROM item WHERE id = ?", (item,)).fetchone()
        if left < 0:
            raise ValueError(f"item {item} is sold out")  # Both sides roll back.
        connection.execute("INSERT INTO orders VALUES (?, ?)", (number, item))
        txn.update("item", {"id": item, "stock": left + 1}, {"stock": left})
        txn.insert("orders", {"id": number, "item": item})


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--database", type=Path, default=Path("shop.db"))
    parser.add_argument("--etcd-urls", default="127.0.0.1:2379")
    parser.add_argument("--orders", type=int, default=10)
    asked = parser.parse_args(argv)
    connection = open_database(asked.database)
    with PumpClient.connect(asked.etcd_urls) as client:
        create_tables(client)
        if connection.execute("SELECT count(*) FROM item").fetchone() == (0,):
            stock_up(client, connection, item=1, stock=1_000_000)
        (last,) = connection.execute("SELECT coalesce(max(id), 0) FROM orders").fetchone()
        for number in range(last + 1, last + 1 + asked.orders):
            order(client, connection, number, item=1)
    connection.close()
    print(f"{asked.orders} orders after number {last}")


if __name__ == "__main__":
    main()
