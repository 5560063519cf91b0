"""Two clusters that replicate each other: nothing goes back to where it came from."""

import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from penstock.local.etcd import EtcdServer
from pumpclient import PumpClient
from tests.kit.servers.fix_drainer import DrainerFactory, DrainerProcess
from tests.kit.servers.fix_mariadb import MariadbServer

pytestmark = pytest.mark.thorough

Row = tuple[Any, ...]

MARKS = "retl._drainer_repl_mark"
CREATE_MARKS = (
    f"CREATE TABLE {MARKS} (id BIGINT NOT NULL, channel_id BIGINT NOT NULL DEFAULT 0, val BIGINT"
    " DEFAULT 0, channel_info VARCHAR(64), PRIMARY KEY (id, channel_id))"
)
COLUMNS = {"item": ("id", "v"), "_drainer_repl_mark": ("id", "channel_id", "val", "channel_info")}
KEYS = {"item": 1, "_drainer_repl_mark": 2}


class Mirror:
    """The other cluster as the writer of what a Drainer does to a database: rows and marks."""

    def __init__(self, server: MariadbServer, schema: str, client: PumpClient) -> None:
        self._server, self._schema, self._client = server, schema, client
        self._last: dict[str, dict[Row, Row]] = {table: {} for table in COLUMNS}
        for sql in ("CREATE DATABASE shop", "CREATE TABLE shop.item (id INT PRIMARY KEY, v INT)",
                    "CREATE DATABASE retl", CREATE_MARKS):  # fmt: skip
            client.execute_ddl(sql)

    def _now(self) -> dict[str, dict[Row, Row]]:
        with closing(self._server.connect()) as connection, connection.cursor() as cursor:
            cursor.execute("START TRANSACTION WITH CONSISTENT SNAPSHOT")
            found = {}
            for table, columns in COLUMNS.items():
                place = MARKS if table != "item" else f"{self._schema}.item"
                cursor.execute(f"SELECT {', '.join(columns)} FROM {place}")
                found[table] = {row[: KEYS[table]]: row for row in cursor.fetchall()}
        return found

    def look(self) -> None:
        """Take what is there for granted: somebody else writes it."""
        self._last = self._now()

    def replay(self) -> int:
        """Write what has changed since the last look as one transaction; return its commit_ts."""
        now = self._now()
        places = {"item": "shop.item", "_drainer_repl_mark": MARKS}
        changed = set()
        with self._client.begin() as txn:
            for table, columns in COLUMNS.items():
                before, after = self._last[table], now[table]
                for key in before.keys() | after.keys():
                    old, new = (
                        None if key not in rows else dict(zip(columns, rows[key], strict=True))
                        for rows in (before, after)
                    )
                    if old == new:
                        continue
                    changed.add(table)
                    if old is None and new is not None:
                        txn.insert(places[table], new)
                    elif new is None and old is not None:
                        txn.delete(places[table], old)
                    elif old is not None and new is not None:
                        txn.update(places[table], old, new)
        assert changed == set(COLUMNS), "a Drainer changes rows and marks together"
        self._last = now
        assert txn.commit_ts is not None
        return txn.commit_ts


def insert(client: PumpClient, *rows: tuple[int, int]) -> int:
    with client.begin("shop") as txn:
        for key, value in rows:
            txn.insert("item", {"id": key, "v": value})
    assert txn.commit_ts is not None
    return txn.commit_ts


def items(server: MariadbServer, schema: str) -> list[Row]:
    return server.query(f"SELECT id, v FROM {schema}.item ORDER BY id")


def counter(drainer: DrainerProcess, key: str) -> int:
    return int(drainer.status().details[key])


SETTINGS = """
[syncer]
loopback-control = true
channel-id = 7
"""
ROUTES = """
[[syncer.table-migrate-rule]]
source = { schema = "shop", table = "*" }
target = { schema = "shop_1" }
[[syncer.table-migrate-rule]]
source = { schema = "shop" }
target = { schema = "shop_1" }
"""


@pytest.mark.parametrize("strategy", [pytest.param("merge", marks=pytest.mark.slow), "statements"])
def test_what_a_drainer_brought_does_not_come_back_and_what_is_new_does(
    strategy: str,
    etcd: Any,
    etcd_server: EtcdServer,
    fresh_etcd: EtcdServer,
    pump_factory: Any,
    drainer_factory: DrainerFactory,
    mariadb: MariadbServer,
    tmp_path: Path,
) -> None:
    """Cluster 1 writes to the database `shop`, which is cluster 2's; that writes to `shop_1`."""
    for name, text in (("1", SETTINGS), ("2", SETTINGS + ROUTES)):
        (tmp_path / f"{name}.toml").write_text(f'{text}\n[apply]\nstrategy = "{strategy}"\n')
    for server in (etcd_server, fresh_etcd):
        pump_factory(server.url)
    url = mariadb.url
    there = drainer_factory(etcd_server.url, url, config=tmp_path / "1.toml", started=False)
    # A table holds the checkpoint of one cluster: the other one has its own.
    own = f"{url}?checkpoint-table=checkpoint_2"
    back = drainer_factory(fresh_etcd.url, own, config=tmp_path / "2.toml", started=False)
    for drainer in (there, back):
        drainer.start()
    with PumpClient.connect(etcd_server.url) as one, PumpClient.connect(fresh_etcd.url) as two:
        # Each cluster has the schema of both, and a copy of what the other's Drainer writes.
        to_one, to_two = Mirror(mariadb, "shop_1", one), Mirror(mariadb, "shop", two)
        there.wait_until(insert(one, (1, 1), (2, 2)))
        assert items(mariadb, "shop") == [(1, 1), (2, 2)]
        back.wait_until(to_two.replay())
        assert items(mariadb, "shop_1") == []
        assert (counter(back, "transactions_returned"), counter(back, "rows")) == (1, 0)

        # What cluster 2 writes by itself goes to cluster 1, once, and does not return.
        to_one.look()
        back.wait_until(insert(two, (10, 10)))
        assert items(mariadb, "shop_1") == [(10, 10)]
        rows = counter(there, "rows")
        there.wait_until(to_one.replay())
        assert (counter(there, "transactions_returned"), counter(there, "rows")) == (1, rows)
        assert items(mariadb, "shop") == [(1, 1), (2, 2)]

        # A while later neither has anything to say that the other would have to hear.
        steps = counter(there, "rows") + counter(back, "rows")
        time.sleep(2)
        assert counter(there, "rows") + counter(back, "rows") == steps
        schemas = {name for (name,) in mariadb.query("SHOW DATABASES")}
        assert {"shop", "shop_1", "retl", "tidb_binlog"} <= schemas
        ((channels, total),) = mariadb.query(f"SELECT MAX(channel_id), SUM(val) FROM {MARKS}")
        assert channels == 7
        assert total >= 4
